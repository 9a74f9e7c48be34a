"""Going away: the trash and its undo, removal that survives kills, and leftovers of every kind."""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from boxgrove.core.box_folder import CREATING, MADE_BY, new_box_folder, remove_tree
from boxgrove.core.durable import part_beside
from boxgrove.core.errors import BoxBusy
from boxgrove.core.migrations import MIGRATIONS
from boxgrove.core.model import Box, new_id
from boxgrove.core.paths import Paths
from boxgrove.core.store import Store
from boxgrove.core.trash import GRACE_S, KEEP_S, Collected, collect_leftovers, empty, expired

MakeBox = Callable[..., Box]
Start = Callable[..., "subprocess.Popen[str]"]
Finish = Callable[..., str]

NOTHING = Collected()


@pytest.fixture
def new_box(paths: Paths, store: Store, make_box: MakeBox) -> Callable[..., Box]:
    """A box with its folder, made in the one right way."""

    def make(name: str = "try", trashed: float | None = None) -> Box:
        box = make_box(name)
        with new_box_folder(paths, store, box.id) as folder:
            (folder / "disk.qcow2").write_bytes(b"data")
            store.add_box(box)
        return box if trashed is None else store.set_trashed(box.id, trashed)

    return make


def age(path: Path, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then), follow_symlinks=False)


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def dead_pid() -> int:
    process = subprocess.Popen(["true"])
    process.wait()
    return process.pid


# Making a folder


def test_a_new_folder_is_private_locked_and_then_marked(
    paths: Paths, store: Store, make_box: MakeBox
) -> None:
    box = make_box()
    with new_box_folder(paths, store, box.id) as folder:
        assert folder == paths.box(box.id)
        assert folder.stat().st_mode & 0o777 == 0o700
        assert names_in(folder) == [CREATING]
        assert names_in(paths.boxes) == [box.id]
        store.add_box(box)
    assert (folder / MADE_BY).read_text() == store.identity
    assert not (folder / CREATING).exists()


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failed_create_leaves_nothing(
    paths: Paths, store: Store, error: type[BaseException]
) -> None:
    with pytest.raises(error), new_box_folder(paths, store, new_id()) as folder:
        (folder / "disk.qcow2").write_bytes(b"half")
        raise error
    assert names_in(paths.boxes) == []


def test_a_create_that_fails_after_its_row_keeps_the_box(
    paths: Paths, store: Store, make_box: MakeBox
) -> None:
    box = make_box()
    with pytest.raises(RuntimeError), new_box_folder(paths, store, box.id) as folder:
        store.add_box(box)
        raise RuntimeError
    assert (folder / MADE_BY).exists()


async def test_a_cancelled_create_never_leaves_a_row_without_files(
    paths: Paths, store: Store, make_box: MakeBox
) -> None:
    """The thread of a cancelled `to_thread` runs on: before, amid or after its transaction."""

    async def create(box: Box) -> None:
        with new_box_folder(paths, store, box.id):
            await asyncio.to_thread(store.add_box, box)

    boxes = [make_box(f"box-{number}") for number in range(80)]
    for number, box in enumerate(boxes):
        task = asyncio.create_task(create(box))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        if number % 2:
            await asyncio.to_thread(time.sleep, number / 50_000)
        task.cancel()
        await asyncio.wait([task])
    await asyncio.get_running_loop().shutdown_default_executor()
    assert store.ids() == set(names_in(paths.boxes))
    assert len(store.ids()) < len(boxes)


def test_a_given_up_box_gets_no_row(paths: Paths, store: Store, make_box: MakeBox) -> None:
    box = make_box()
    assert store.give_up(box.id)
    with pytest.raises(BoxBusy, match="given up"):
        store.add_box(box)
    kept = store.add_box(make_box())
    assert not store.give_up(kept.id)


def test_a_used_id_is_refused_and_its_folder_kept(
    paths: Paths, store: Store, new_box: Callable[..., Box]
) -> None:
    box = new_box()
    with pytest.raises(OSError), new_box_folder(paths, store, box.id):
        pytest.fail("two boxes in one folder")
    assert names_in(paths.boxes) == [box.id]
    assert (paths.box(box.id) / "disk.qcow2").exists()


# The trash


def test_trash_and_undo_touch_no_file(
    paths: Paths, store: Store, new_box: Callable[..., Box]
) -> None:
    box = new_box(trashed=time.time())
    assert collect_leftovers(paths, store) == NOTHING
    assert (paths.box(box.id) / "disk.qcow2").read_bytes() == b"data"
    assert store.restore(box.id) == replace(box, trashed=None)


def test_seven_days(paths: Paths, store: Store, new_box: Callable[..., Box]) -> None:
    now = 10_000_000.0
    old = new_box("old", trashed=now - KEEP_S)
    young = new_box("young", trashed=now - KEEP_S + 1)
    kept = new_box("kept")
    assert [box.id for box in expired(store, now)] == [old.id]
    assert collect_leftovers(paths, store, now).removed == (old.id,)
    assert names_in(paths.boxes) == sorted([young.id, kept.id])
    assert names_in(paths.trash) == []
    assert store.ids() == {young.id, kept.id}


def test_emptying_removes_rows_and_files(
    paths: Paths, store: Store, new_box: Callable[..., Box]
) -> None:
    one, two, kept = new_box("one", trashed=1.0), new_box("two", trashed=2.0), new_box("kept")
    assert empty(paths, store, [one]) == [one]
    assert empty(paths, store) == [two]
    assert empty(paths, store, [one, kept]) == []
    assert names_in(paths.boxes) == [kept.id]
    assert store.ids() == {kept.id}


def test_a_restored_box_is_not_emptied(
    paths: Paths, store: Store, new_box: Callable[..., Box]
) -> None:
    box = new_box(trashed=1.0)
    store.restore(box.id)
    assert empty(paths, store, [box]) == []
    assert (paths.box(box.id) / "disk.qcow2").exists()


def test_a_full_disk_can_be_emptied(
    start: Start, finish: Finish, own_mounts: tuple[str, ...], paths: Paths
) -> None:
    code = """
        import subprocess
        from boxgrove.core.trash import empty
        from vm_backends.errors import NoSpace
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "none", str(home)], check=True)
        paths.prepare()
        with Store(paths.index) as store:
            box = store.add_box(make_box("a"))
            paths.box(box.id).mkdir()
            (paths.box(box.id) / "disk").write_bytes(bytes(300_000))
            store.set_trashed(box.id)
            try:
                while True:
                    store.log("", "fill", {"x": "x" * 3000})
            except NoSpace:
                pass
            try:
                with open(home / "ballast", "wb") as ballast:
                    while True:
                        ballast.write(b"x" * 100)
                        ballast.flush()
            except OSError:
                pass
            try:
                store.doom(box.id)
                print("not full")
                sys.exit()
            except NoSpace:
                pass
            print(len(empty(paths, store)), os.listdir(paths.boxes), store.ids())
    """
    assert finish(start(code, paths.home, *own_mounts)) == "1 [] set()\n"


@pytest.mark.parametrize("files", ["whole", "half gone", "set aside", "all gone"])
def test_a_removal_cut_short_is_finished(
    paths: Paths, store: Store, new_box: Callable[..., Box], files: str
) -> None:
    box = new_box(trashed=time.time())
    assert store.doom(box.id)
    folder = paths.box(box.id)
    if files == "half gone":
        (folder / "disk.qcow2").unlink()
    elif files == "set aside":
        folder.rename(paths.trash / box.id)
    elif files == "all gone":
        remove_tree(folder)
    assert collect_leftovers(paths, store).removed == (box.id,)
    assert names_in(paths.boxes) == names_in(paths.trash) == []
    assert store.ids() == set()
    assert collect_leftovers(paths, store) == NOTHING


def test_removal_killed_anywhere_is_finished_by_the_next_start(
    start: Start, paths: Paths, store: Store, new_box: Callable[..., Box]
) -> None:
    kept = new_box("kept")
    code = """
        from boxgrove.core.trash import empty
        store = Store(paths.index)
        print("go", flush=True)
        empty(paths, store)
    """
    cut_short = 0
    for attempt in range(6):
        for number in range(3):
            box = new_box(f"box-{number}", trashed=time.time())
            for part in range(150):
                (paths.box(box.id) / f"layer-{part}").touch()
        remover = start(code, paths.home)
        assert remover.stdout is not None
        remover.stdout.readline()
        # Cut at some file: as soon as the folder set aside has begun to shrink, or later.
        while not store.doomed() and remover.poll() is None:
            pass
        for _ in range(attempt * 40):
            names_in(paths.trash)
        remover.kill()
        remover.wait()
        cut_short += len(names_in(paths.boxes)) > 1 or bool(names_in(paths.trash))
        collect_leftovers(paths, store)
        # Boxes whose turn had not come are in the trash, whole; none is half there.
        for left in store.trashed():
            assert len(names_in(paths.box(left.id))) == 152
        empty(paths, store)
        assert names_in(paths.boxes) == [kept.id]
        assert names_in(paths.trash) == []
        assert store.ids() == {kept.id}
    assert cut_short


def test_what_cannot_be_removed_waits_for_the_next_start(
    start: Start, finish: Finish, own_mounts: tuple[str, ...], paths: Paths, store: Store
) -> None:
    code = """
        import subprocess
        from boxgrove.core.trash import collect_leftovers
        paths.prepare()
        store = Store(paths.index)
        box = store.add_box(make_box("a"))
        paths.box(box.id).mkdir()
        stuck = paths.box(box.id) / "mounted"
        stuck.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "none", str(stuck)], check=True)
        store.set_trashed(box.id, 1.0)
        print(collect_leftovers(paths, store).stuck == (box.id,), store.doomed() == [box.id])
        subprocess.run(["umount", str(paths.trash / box.id / "mounted")], check=True)
        print(collect_leftovers(paths, store).removed == (box.id,), store.ids())
    """
    said = finish(start(code, paths.home, *own_mounts)).splitlines()
    assert said == ["True True", "True set()"]


# Leftovers


def test_a_create_in_another_process_is_left_alone_until_it_is_killed(
    start: Start, paths: Paths, store: Store
) -> None:
    code = """
        from boxgrove.core.box_folder import new_box_folder
        store = Store(paths.index)
        box = make_box("a")
        with new_box_folder(paths, store, box.id) as folder:
            (folder / "disk").write_bytes(bytes(1000))
            print(box.id, flush=True)
            sys.stdin.readline()
    """
    creator = start(code, paths.home)
    assert creator.stdout is not None
    folder = paths.box(creator.stdout.readline().strip())
    age(folder, 3 * GRACE_S)
    assert collect_leftovers(paths, store) == NOTHING
    assert (folder / "disk").exists()
    creator.kill()
    creator.wait()
    assert collect_leftovers(paths, store).removed == (folder.name,)
    assert names_in(paths.boxes) == []


def test_a_create_that_ends_while_we_collect_keeps_its_box(
    start: Start, finish: Finish, paths: Paths, store: Store
) -> None:
    code = """
        from boxgrove.core.box_folder import new_box_folder
        store = Store(paths.index)
        for number in range(60):
            box = make_box(f"box-{number}")
            with new_box_folder(paths, store, box.id) as folder:
                (folder / "disk").write_bytes(b"x")
                os.utime(folder, (1, 1))
                store.add_box(box)
            os.utime(folder, (1, 1))
    """
    creator = start(code, paths.home)
    while creator.poll() is None:
        assert collect_leftovers(paths, store) == NOTHING
    finish(creator)
    assert len(store.boxes()) == 60
    assert all((paths.box(box.id) / "disk").exists() for box in store.boxes())


def test_a_create_killed_between_row_and_mark_is_a_box(
    paths: Paths, store: Store, new_box: Callable[..., Box]
) -> None:
    folder = paths.box(new_box().id)
    (folder / MADE_BY).rename(folder / CREATING)
    age(folder, 3 * GRACE_S)
    assert collect_leftovers(paths, store) == NOTHING
    assert (folder / "disk.qcow2").exists()


def test_an_unknown_folder_is_set_aside_for_a_week_and_then_removed(
    paths: Paths, store: Store
) -> None:
    folder = paths.boxes / new_id()
    folder.mkdir()
    (folder / "disk").write_bytes(b"x")
    assert collect_leftovers(paths, store) == NOTHING
    now = time.time() + 2 * GRACE_S
    assert collect_leftovers(paths, store, now).set_aside == (folder.name,)
    assert names_in(paths.boxes) == []
    assert collect_leftovers(paths, store, now + KEEP_S - 2) == NOTHING
    assert len(collect_leftovers(paths, store, now + KEEP_S + 2).removed) == 1
    assert names_in(paths.trash) == []


def test_a_box_set_aside_comes_home_with_its_index(
    paths: Paths, store: Store, new_box: Callable[..., Box]
) -> None:
    box = new_box()
    now = time.time() + 2 * GRACE_S
    aside = paths.trash / f"lost-{int(now)}-{box.id}"
    paths.box(box.id).rename(aside)
    assert collect_leftovers(paths, store, now) == NOTHING
    assert (paths.box(box.id) / "disk.qcow2").exists()


def test_boxes_of_a_lost_index_are_never_touched(
    paths: Paths, store: Store, new_box: Callable[..., Box], tmp_path: Path
) -> None:
    box = new_box()
    with Store(tmp_path / "begun-anew.db") as another:
        later = time.time() + 100 * KEEP_S
        assert collect_leftovers(paths, another, later) == NOTHING
    assert (paths.box(box.id) / "disk.qcow2").exists()


def test_nothing_is_collected_for_a_newer_version(
    paths: Paths, store: Store, make_box: MakeBox
) -> None:
    box = store.add_box(make_box())
    store.set_trashed(box.id, 1.0)
    (paths.boxes / new_id()).mkdir()
    later = (*MIGRATIONS, lambda index: None)
    Store(paths.index, migrations=later).close()
    with Store(paths.index) as older:
        assert collect_leftovers(paths, older, time.time() + 2 * KEEP_S) == NOTHING
    assert len(names_in(paths.boxes)) == 1


@pytest.mark.parametrize("where", ["home", "images", "boot", "cache", "boxes"])
def test_files_in_the_making_go_when_old_and_their_maker_is_gone(
    paths: Paths, store: Store, where: str
) -> None:
    folder: Path = getattr(paths, where)
    ours = part_beside(folder / "x")
    dead_old = folder / f".part-{dead_pid()}-1"
    dead_young = folder / f".part-{dead_pid()}-2"
    nobodys = folder / ".part-"
    for path in (ours, dead_old, dead_young, nobodys):
        path.mkdir()
        (path / "layer").write_bytes(b"x")
    for path in (ours, dead_old, nobodys):
        age(path, 2 * GRACE_S)
    assert set(collect_leftovers(paths, store).removed) == {dead_old.name, nobodys.name}
    assert ours.exists()
    assert dead_young.exists()


def test_strange_things_among_the_boxes_do_no_harm(paths: Paths, store: Store) -> None:
    for name in (b"\xff\xfe", b"README", b"lost+found"):
        path = Path(os.fsdecode(os.fsencode(paths.boxes) + b"/" + name))
        path.write_bytes(b"")
        age(path, 2 * GRACE_S)
    (paths.trash / "lost-x").write_bytes(b"")
    found = collect_leftovers(paths, store)
    assert len(found.set_aside) == 3
    assert found.removed == ("lost-x",)
    assert collect_leftovers(paths, store) == NOTHING


def test_nothing_to_do_costs_nothing(
    paths: Paths, store: Store, new_box: Callable[..., Box]
) -> None:
    for number in range(50):
        new_box(f"box-{number}")
    best = min(_timed(lambda: collect_leftovers(paths, store)) for _ in range(5))
    assert best < 0.02


def _timed(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


# Links


def test_links_are_removed_and_never_followed(
    paths: Paths, store: Store, new_box: Callable[..., Box], tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "deep" / "precious").write_text("mine")
    inside = new_box("inside", trashed=1.0)
    (paths.box(inside.id) / "link").symlink_to(outside)
    (paths.box(inside.id) / "file").symlink_to(outside / "deep" / "precious")
    itself = new_box("itself", trashed=1.0)
    remove_tree(paths.box(itself.id))
    paths.box(itself.id).symlink_to(outside)
    (outside / CREATING).write_text("")
    (paths.boxes / new_id()).symlink_to(outside)
    (paths.trash / new_id()).symlink_to(outside)
    collect_leftovers(paths, store, time.time() + 2 * KEEP_S)
    assert (outside / "deep" / "precious").read_text() == "mine"
    assert (outside / CREATING).exists()
    assert names_in(paths.boxes) == names_in(paths.trash) == []


def test_remove_tree_opens_closed_folders_and_forgives_absence(tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    deep.mkdir(parents=True)
    (deep / "file").write_bytes(b"")
    (tmp_path / "a" / "b").chmod(0o500)
    remove_tree(tmp_path / "a")
    remove_tree(tmp_path / "a")
    remove_tree(tmp_path / "no" / "such" / "folder")
    assert names_in(tmp_path) == []
