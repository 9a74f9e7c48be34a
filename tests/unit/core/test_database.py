"""The file under the index: upgrades, newer versions, damage, full and read-only disks, kills."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import subprocess
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from boxgrove.core import database
from boxgrove.core.database import Database, backup_of
from boxgrove.core.errors import StoreBusy, StoreDamaged, StoreNewer
from boxgrove.core.migrations import MIGRATIONS
from boxgrove.core.model import Box
from boxgrove.core.paths import Paths
from boxgrove.core.store import Store
from vm_backends.errors import NoSpace

MakeBox = Callable[..., Box]
Start = Callable[..., "subprocess.Popen[str]"]
Finish = Callable[..., str]


def _second(index: sqlite3.Connection) -> None:
    index.execute("ALTER TABLE boxes ADD COLUMN colour TEXT NOT NULL DEFAULT 'green'")


def _third(index: sqlite3.Connection) -> None:
    index.execute("CREATE TABLE snapshots (id TEXT PRIMARY KEY)")


def _broken(index: sqlite3.Connection) -> None:
    index.execute("CREATE TABLE half (id TEXT)")
    raise RuntimeError("this step has a bug")


LATER = (*MIGRATIONS, _second, _third)


def read(path: Path, sql: str) -> object:
    with closing(sqlite3.connect(path)) as raw:
        return raw.execute(sql).fetchone()[0]


def test_a_new_file_is_ours_and_durable(store: Store, paths: Paths) -> None:
    assert read(paths.index, "PRAGMA application_id") == database.APPLICATION_ID
    assert read(paths.index, "PRAGMA user_version") == len(MIGRATIONS)
    assert read(paths.index, "PRAGMA journal_mode") == "wal"
    assert store.check() == ""


def test_connections_are_set_up(paths: Paths) -> None:
    with closing(Database(paths.index)) as opened:
        assert opened.rows("PRAGMA foreign_keys") == [(1,)]
        assert opened.rows("PRAGMA synchronous") == [(2,)]
        assert opened.rows("PRAGMA busy_timeout") == [(5000,)]


# Versions


def test_an_upgrade_keeps_everything_and_a_copy_of_before(paths: Paths, make_box: MakeBox) -> None:
    with Store(paths.index) as old:
        box = old.add_box(make_box("a"))
        with Store(paths.index, migrations=LATER) as new:
            assert new.boxes() == [box]
    assert read(paths.index, "PRAGMA user_version") == 3
    assert read(paths.index, "SELECT colour FROM boxes") == "green"
    saved = backup_of(paths.index, 1)
    assert read(saved, "PRAGMA user_version") == 1
    assert read(saved, "SELECT name FROM boxes") == "a"
    assert not [path for path in paths.home.iterdir() if path.name.startswith(".part-")]
    # The copy is a store in its own right.
    with Store(saved) as before:
        assert before.boxes() == [box]


def test_a_new_store_needs_no_copy(paths: Paths) -> None:
    Store(paths.index, migrations=LATER).close()
    assert not list(paths.home.glob("*.bak"))


def test_a_step_that_fails_leaves_the_version_before(paths: Paths, make_box: MakeBox) -> None:
    with Store(paths.index) as store:
        store.add_box(make_box("a"))
    with pytest.raises(RuntimeError, match="has a bug"):
        Store(paths.index, migrations=(*MIGRATIONS, _second, _broken))
    assert read(paths.index, "PRAGMA user_version") == 2
    assert read(paths.index, "SELECT count(*) FROM sqlite_master WHERE name = 'half'") == 0
    with Store(paths.index, migrations=LATER) as store:
        assert store.get("a")


@pytest.mark.parametrize("existing", [True, False])
def test_many_processes_upgrade_at_once_and_each_step_runs_once(
    start: Start, finish: Finish, paths: Paths, existing: bool
) -> None:
    if existing:
        Store(paths.index).close()
    code = """
        from boxgrove.core.migrations import MIGRATIONS
        def slow(index):
            print("step", flush=True)
            index.execute("CREATE TABLE extra (id TEXT)")
            # Long enough for the others to run into it.
            index.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n"
                          " WHERE i < 300000) SELECT count(*) FROM n").fetchone()
        print("ready", flush=True)
        sys.stdin.readline()
        with Store(paths.index, migrations=(*MIGRATIONS, slow)) as store:
            store.add_box(make_box(f"box-{os.getpid()}"))
            print("open", store.identity)
    """
    openers = [start(code, paths.home) for _ in range(5)]
    for opener in openers:
        assert opener.stdout is not None
        assert opener.stdout.readline() == "ready\n"
    for opener in openers:
        assert opener.stdin is not None
        opener.stdin.write("go\n")
        opener.stdin.flush()
    said = "".join(finish(opener) for opener in openers).splitlines()
    assert said.count("step") == 1
    assert len({line for line in said if line.startswith("open")}) == 1
    with Store(paths.index, migrations=(*MIGRATIONS, _third)) as store:
        assert len(store.boxes()) == 5


def test_a_newer_store_can_be_read_and_not_written(paths: Paths, make_box: MakeBox) -> None:
    with Store(paths.index, migrations=LATER) as newer:
        box = newer.add_box(make_box("a"))
    with Store(paths.index) as store:
        assert store.boxes() == [box]
        assert store.get("a") == box
        assert [entry.verb for entry in store.history()] == ["create"]
        writes: list[Callable[[], object]] = [
            lambda: store.add_box(make_box("b")),
            lambda: store.rename(box.id, "c"),
            lambda: store.set_trashed(box.id),
            lambda: store.log(box.id, "start"),
        ]
        for write in writes:
            with pytest.raises(StoreNewer) as caught:
                write()
            assert caught.value.code == "store-newer"
            assert "a newer Boxgrove has used this home" in caught.value.message
            assert caught.value.hint
    assert read(paths.index, "PRAGMA user_version") == 3
    assert not list(paths.home.glob("*.bak"))


def test_a_newer_store_without_our_tables_says_newer(paths: Paths) -> None:
    def rebuilt(index: sqlite3.Connection) -> None:
        index.execute("ALTER TABLE boxes RENAME TO groves")

    Store(paths.index, migrations=(*MIGRATIONS, rebuilt)).close()
    with Store(paths.index) as store, pytest.raises(StoreNewer):
        store.boxes()


def test_a_store_upgraded_under_our_feet_is_no_longer_written(
    paths: Paths, make_box: MakeBox
) -> None:
    with Store(paths.index) as old:
        old.add_box(make_box("a"))
        Store(paths.index, migrations=LATER).close()
        with pytest.raises(StoreNewer):
            old.add_box(make_box("b"))
        assert [box.name for box in old.boxes()] == ["a"]


# Damage


@pytest.mark.parametrize("content", [b"not a database at all " * 100, b"\0" * 5000, b"x"])
def test_garbage_is_damage_with_a_way_out(paths: Paths, content: bytes) -> None:
    paths.index.write_bytes(content)
    with pytest.raises(StoreDamaged) as caught:
        Store(paths.index)
    assert caught.value.code == "store-damaged"
    assert str(paths.index) in caught.value.message
    assert "untouched" in caught.value.hint
    assert paths.index.read_bytes() == content


def test_a_cut_file_is_damage(paths: Paths, make_box: MakeBox) -> None:
    with Store(paths.index) as store:
        for number in range(50):
            store.add_box(make_box(f"box-{number}"))
    os.truncate(paths.index, 8192)
    with pytest.raises(StoreDamaged), Store(paths.index) as store:
        store.boxes()


def test_overwritten_pages_never_crash_and_never_pass_as_a_bug(
    paths: Paths, make_box: MakeBox
) -> None:
    with Store(paths.index) as store:
        for number in range(100):
            store.add_box(make_box(f"box-{number}"))
    good = paths.index.read_bytes()
    chance = random.Random(7)
    seen = 0
    for _ in range(30):
        bad = bytearray(good)
        start = chance.randrange(100, len(bad) - 600)
        bad[start : start + 600] = chance.randbytes(600)
        paths.index.write_bytes(bad)
        try:
            with Store(paths.index) as store:
                seen += bool(store.check())
                store.history()
        except StoreDamaged:
            seen += 1
        except (ValueError, IndexError, sqlite3.Error):
            # Values that SQLite has no reason to doubt.
            pass
    assert seen > 10


def test_the_hint_names_the_copy_of_before(paths: Paths, make_box: MakeBox) -> None:
    with Store(paths.index) as store:
        store.add_box(make_box("a"))
    Store(paths.index, migrations=LATER).close()
    paths.index.write_bytes(b"garbage" * 1000)
    with pytest.raises(StoreDamaged) as caught:
        Store(paths.index, migrations=LATER)
    assert "index.db.v1.bak" in caught.value.hint
    shutil.copy(backup_of(paths.index, 1), paths.index)
    with Store(paths.index) as store:
        assert store.get("a")


def test_another_programs_database_is_left_alone(paths: Paths) -> None:
    with closing(sqlite3.connect(paths.index)) as other:
        other.execute("CREATE TABLE bookmarks (url TEXT)")
    with pytest.raises(StoreDamaged, match="some other program"):
        Store(paths.index)
    assert read(paths.index, "SELECT count(*) FROM sqlite_master") == 1


def test_a_store_that_stays_locked_is_busy(
    paths: Paths, store: Store, make_box: MakeBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_S", 0.05)
    with closing(sqlite3.connect(paths.index, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with Store(paths.index) as waiting:
            assert waiting.boxes() == []
            with pytest.raises(StoreBusy) as caught:
                waiting.add_box(make_box("a"))
            assert caught.value.code == "store-busy"
        other.execute("ROLLBACK")
    store.add_box(make_box("a"))


# Disks


def test_a_file_that_may_not_grow_is_no_space_and_loses_nothing(
    paths: Paths, make_box: MakeBox
) -> None:
    with Store(paths.index) as store:
        pages = store._database.rows("PRAGMA page_count")[0][0]
        store._database.rows(f"PRAGMA max_page_count = {pages + 4}")
        kept = 0
        with pytest.raises(NoSpace) as caught:
            for kept in range(1000):
                store.add_box(make_box(f"box-{kept}"))
        assert caught.value.code == "no-space"
        assert 5 < kept == len(store.boxes()) == len(store.history(limit=10000))
        store._database.rows(f"PRAGMA max_page_count = {pages + 1000}")
        store.add_box(make_box("more"))
    with Store(paths.index) as store:
        assert len(store.boxes()) == kept + 1
        assert store.check() == ""


def test_a_really_full_disk(
    start: Start, finish: Finish, own_mounts: tuple[str, ...], paths: Paths
) -> None:
    code = """
        import subprocess
        from vm_backends.errors import NoSpace
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "none", str(home)], check=True)
        store = Store(paths.index)
        kept = []
        try:
            for number in range(5000):
                kept.append(store.add_box(make_box(f"box-{number}")).name)
        except NoSpace as error:
            print("full", error.code, len(kept) > 20)
        store.close()
        # Opening with not a byte left: it works or says so.
        try:
            with open(home / "ballast", "wb") as ballast:
                while True:
                    ballast.write(b"x")
                    ballast.flush()
        except OSError:
            pass
        try:
            with Store(paths.index) as store:
                print("seen", [box.name for box in store.boxes()] == kept)
                store.log("", "x" * 5000)
        except NoSpace as error:
            print("seen", True)
        (home / "ballast").unlink()
        with Store(paths.index) as store:
            print("after", sorted(box.name for box in store.boxes()) == sorted(kept), store.check())
    """
    said = finish(start(code, paths.home, *own_mounts)).splitlines()
    assert said[0] == "full no-space True"
    assert "seen True" in said
    assert said[-1] == "after True "


_READ_ONLY = """
    import subprocess
    subprocess.run(["mount", "--bind", str(home), str(home)], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", str(home)], check=True)
    store = Store.open(paths)
    print([box.name for box in store.boxes()])
    try:
        store.add_box(make_box("b"))
    except Exception as error:
        print(error.code, "|", error.message)
"""


@pytest.mark.parametrize("left", ["closed", "killed", "copied without its shm"])
def test_a_read_only_disk_can_be_read(
    start: Start, finish: Finish, own_mounts: tuple[str, ...], paths: Paths, left: str
) -> None:
    code = """
        Store(paths.index).add_box(make_box("a"))
        if sys.stdin.readline() == "kill\\n":
            os.kill(os.getpid(), 9)
    """
    writer = start(code, paths.home)
    writer.communicate("close\n" if left == "closed" else "kill\n", timeout=60)
    log = paths.home / "index.db-wal"
    assert log.exists() == (left != "closed")
    if left == "copied without its shm":
        (paths.home / "index.db-shm").unlink()
    before = {path.name: path.read_bytes() for path in paths.home.iterdir() if path.is_file()}
    said = finish(start(_READ_ONLY, paths.home, *own_mounts)).splitlines()
    assert said[0] == "['a']"
    assert said[1].startswith("store-read-only | ")
    assert before == {
        path.name: path.read_bytes() for path in paths.home.iterdir() if path.is_file()
    }


def test_an_older_store_on_a_read_only_disk_can_be_read(
    start: Start, finish: Finish, own_mounts: tuple[str, ...], paths: Paths, make_box: MakeBox
) -> None:
    with Store(paths.index) as store:
        store.add_box(make_box("a"))
    code = _READ_ONLY.replace(
        "Store.open(paths)",
        "Store(paths.index, migrations=(*MIGRATIONS,"
        ' lambda index: index.execute("CREATE TABLE later (id)")))',
    )
    code = "\n    from boxgrove.core.migrations import MIGRATIONS" + code
    said = finish(start(code, paths.home, *own_mounts)).splitlines()
    assert said[0] == "['a']"
    assert said[1].startswith("store-read-only")
    assert read(paths.index, "PRAGMA user_version") == 1


# Kills


def test_what_was_told_to_be_there_survives_kill_9(start: Start, paths: Paths) -> None:
    code = """
        store = Store(paths.index)
        while True:
            box = store.add_box(make_box("box-" + new_id()[:12]))
            print("add", box.id, flush=True)
            store.set_trashed(box.id)
            print("trash", box.id, flush=True)
    """
    told: dict[str, str] = {}
    for lines in (1, 30, 47, 64):
        writer = start(code, paths.home)
        assert writer.stdout is not None
        for _ in range(lines):
            verb, box_id = writer.stdout.readline().split()
            told[box_id] = verb
        writer.kill()
        for line in writer.stdout:
            if line.endswith("\n"):
                verb, box_id = line.split()
                told[box_id] = verb
        writer.wait()
        with Store(paths.index) as store:
            assert store.check() == ""
            assert set(told) <= store.ids()
            trashed = {box.id for box in store.trashed()}
            assert {box_id for box_id, verb in told.items() if verb == "trash"} <= trashed
            assert len(store.history(limit=10**6)) == len(store.ids()) + len(trashed)


def test_a_kill_in_the_middle_of_making_the_file(start: Start, paths: Paths) -> None:
    code = """
        from boxgrove.core.migrations import MIGRATIONS
        def hang(index):
            MIGRATIONS[0](index)
            print("half", flush=True)
            sys.stdin.readline()
        Store(paths.index, migrations=(hang,))
    """
    maker = start(code, paths.home)
    assert maker.stdout is not None
    assert maker.stdout.readline() == "half\n"
    maker.kill()
    maker.wait()
    with Store(paths.index) as store:
        assert store.boxes() == []
        assert store.identity
