"""The index of boxes: names, lookups, the way into the trash and back, and what is remembered."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from boxgrove.core.errors import BadName, NameTaken, UnknownBox
from boxgrove.core.model import Box
from boxgrove.core.paths import Paths
from boxgrove.core.store import Store

MakeBox = Callable[..., Box]
Start = Callable[..., "subprocess.Popen[str]"]
Finish = Callable[..., str]


def test_a_box_comes_back_as_it_went_in(store: Store, paths: Paths, make_box: MakeBox) -> None:
    box = make_box("Größe", user="agent", disk_bytes=2**45, created=1234.5)
    assert store.add_box(box) == box
    with Store(paths.index) as other:
        assert other.boxes() == [box]
        assert other.get("Größe") == box
        assert other.identity == store.identity


def test_boxes_are_listed_oldest_first(store: Store, make_box: MakeBox) -> None:
    for name, created in (("b", 2.0), ("a", 3.0), ("c", 1.0)):
        store.add_box(make_box(name, created=created))
    assert [box.name for box in store.boxes()] == ["c", "b", "a"]


def test_names_are_checked_and_normal(store: Store, make_box: MakeBox) -> None:
    with pytest.raises(BadName):
        store.add_box(make_box("a/b"))
    assert store.add_box(make_box("u\u0308")).name == "ü"
    assert store.get("u\u0308") == store.get("ü")
    with pytest.raises(NameTaken):
        store.add_box(make_box("ü"))
    store.add_box(make_box("Ü"))


def test_a_taken_name_is_refused_with_a_free_one(store: Store, make_box: MakeBox) -> None:
    store.add_box(make_box("try"))
    store.add_box(make_box("try-2"))
    with pytest.raises(NameTaken) as caught:
        store.add_box(make_box("try"))
    assert caught.value.code == "name-taken"
    assert caught.value.hint.endswith("try-3")
    assert len(store.boxes()) == 2
    assert len(store.history()) == 2


def test_one_id_twice_is_a_bug_and_not_a_taken_name(store: Store, make_box: MakeBox) -> None:
    box = store.add_box(make_box("a"))
    with pytest.raises(sqlite3.IntegrityError):
        store.add_box(replace(box, name="b"))


def test_looking_up(store: Store, make_box: MakeBox) -> None:
    one = store.add_box(make_box("one", id="aaaaaaaa" + "1" * 24))
    two = store.add_box(make_box("two", id="aaaaaaaa" + "2" * 24))
    named = store.add_box(make_box("aaaaaaaa1", id="b" * 32))
    assert store.get("one") == store.get(one.id) == one
    assert store.get("aaaaaaaa2") == store.get("AAAAAAAA2") == two
    assert store.get("aaaaaaaa1") == named
    with pytest.raises(UnknownBox, match="the beginning of 2 ids") as caught:
        store.get("aaaaaaaa")
    assert "one, two" in caught.value.hint


@pytest.mark.parametrize(
    "wanted", ["", "aaaaa", "One", "a/b", "%", "______", "x" * 10**6, "\udcff"]
)
def test_looking_up_what_is_not_there(store: Store, make_box: MakeBox, wanted: str) -> None:
    store.add_box(make_box("one", id="a" * 32))
    with pytest.raises(UnknownBox) as caught:
        store.get(wanted)
    assert caught.value.code == "unknown-box"
    assert caught.value.message.isprintable()
    assert caught.value.hint


def test_close_names_are_offered(store: Store, make_box: MakeBox) -> None:
    store.add_box(make_box("webserver"))
    with pytest.raises(UnknownBox) as caught:
        store.get("web-server")
    assert caught.value.hint == "Did you mean webserver?"


def test_rename(store: Store, make_box: MakeBox) -> None:
    box = store.add_box(make_box("a"))
    store.add_box(make_box("b"))
    assert store.rename(box.id, "c") == replace(box, name="c") == store.get("c")
    assert store.rename(box.id, "c").name == "c"
    with pytest.raises(NameTaken):
        store.rename(box.id, "b")
    with pytest.raises(BadName):
        store.rename(box.id, "b:")
    with pytest.raises(UnknownBox):
        store.rename("f" * 32, "d")
    assert [(entry.verb, dict(entry.detail)) for entry in store.history(box.id)][:1] == [
        ("rename", {"from": "a", "to": "c"})
    ]


def test_the_trash_frees_the_name_and_gives_back_the_box(store: Store, make_box: MakeBox) -> None:
    box = store.add_box(make_box("a"))
    assert store.set_trashed(box.id, 50.0).trashed == 50.0
    assert store.boxes() == []
    assert [found.id for found in store.trashed()] == [box.id]
    with pytest.raises(UnknownBox, match="is in the trash"):
        store.get("a")
    assert store.get("a", trashed=True).id == box.id
    with pytest.raises(UnknownBox):
        store.set_trashed(box.id)
    with pytest.raises(UnknownBox):
        store.rename(box.id, "z")
    assert store.restore(box.id) == box == store.get("a")
    with pytest.raises(UnknownBox):
        store.restore(box.id)


def test_a_name_given_away_meanwhile_becomes_name_2(store: Store, make_box: MakeBox) -> None:
    first = store.add_box(make_box("a"))
    store.set_trashed(first.id, 1.0)
    second = store.add_box(make_box("a"))
    store.set_trashed(second.id, 2.0)
    store.add_box(make_box("a"))
    assert store.get("a", trashed=True).id == second.id
    assert store.restore(first.id).name == "a-2"
    assert store.restore(second.id).name == "a-3"
    assert store.get("a-2").id == first.id


def test_a_doomed_box_is_gone_for_everyone_but_the_collector(
    store: Store, make_box: MakeBox
) -> None:
    box = store.add_box(make_box("a"))
    assert not store.doom(box.id)
    store.set_trashed(box.id, 100.0)
    assert not store.doom(box.id, trashed_before=99.0)
    assert store.doom(box.id, trashed_before=100.0)
    assert not store.doom(box.id)
    assert store.doomed() == [box.id]
    assert store.trashed() == [] == store.boxes() == store.uses_of_image(box.image_digest)
    assert store.knows(box.id)
    with pytest.raises(UnknownBox):
        store.restore(box.id)
    store.forget(box.id)
    store.forget(box.id)
    assert not store.knows(box.id)
    assert store.ids() == set()
    assert [entry.verb for entry in store.history(box.id)] == ["remove", "trash", "create"]


def test_forget_spares_a_box_that_is_not_doomed(store: Store, make_box: MakeBox) -> None:
    box = store.add_box(make_box("a"))
    store.forget(box.id)
    assert store.get("a") == box


def test_uses_of_an_image_include_the_trash(store: Store, make_box: MakeBox) -> None:
    a = store.add_box(make_box("a", image_digest="one", created=1.0))
    b = store.add_box(make_box("b", image_digest="one", created=2.0))
    store.add_box(make_box("c", image_digest="two"))
    store.set_trashed(b.id)
    assert [box.id for box in store.uses_of_image("one")] == [a.id, b.id]
    assert store.uses_of_image("three") == []


def test_the_log_is_kept_in_order_and_cannot_be_changed(store: Store, paths: Paths) -> None:
    for number in range(5):
        store.log("a" * 32, "start", {"number": number, "why": "ü\udcff"})
    store.log("b" * 32, "stop")
    assert [entry.detail.get("number") for entry in store.history("a" * 32)] == [4, 3, 2, 1, 0]
    assert [entry.verb for entry in store.history(limit=2)] == ["stop", "start"]
    raw = sqlite3.connect(paths.index)
    for statement in ("DELETE FROM log", "UPDATE log SET verb = 'x'"):
        with pytest.raises(sqlite3.IntegrityError, match="only appended"):
            raw.execute(statement)
    raw.close()


def test_many_processes_create_one_name_and_one_wins(
    start: Start, finish: Finish, paths: Paths, store: Store
) -> None:
    code = """
        store = Store(paths.index)
        print("ready", flush=True)
        sys.stdin.readline()
        for name in ("same", "other", "third"):
            try:
                store.add_box(make_box(name))
                print("won", name)
            except Exception as error:
                print(error.code, name)
    """
    creators = [start(code, paths.home) for _ in range(6)]
    for creator in creators:
        assert creator.stdout is not None
        assert creator.stdout.readline() == "ready\n"
    for creator in creators:
        assert creator.stdin is not None
        creator.stdin.write("go\n")
        creator.stdin.flush()
    said = "".join(finish(creator) for creator in creators).splitlines()
    for name in ("same", "other", "third"):
        assert said.count(f"won {name}") == 1
        assert said.count(f"name-taken {name}") == 5
    assert len(store.boxes()) == 3
    assert len(store.history()) == 3


async def test_threads_of_one_process_take_turns(store: Store, make_box: MakeBox) -> None:
    async def create(number: int) -> None:
        box = await asyncio.to_thread(store.add_box, make_box(f"box-{number}"))
        await asyncio.to_thread(store.rename, box.id, f"renamed-{number}")
        await asyncio.to_thread(store.boxes)

    await asyncio.gather(*(create(number) for number in range(40)))
    assert {box.name for box in store.boxes()} == {f"renamed-{number}" for number in range(40)}


def test_open_makes_the_home(tmp_path: Path, make_box: MakeBox) -> None:
    paths = Paths(tmp_path / "deep" / "home", tmp_path / "run" / "abcdef")
    with Store.open(paths) as store:
        store.add_box(make_box("a"))
    assert paths.boxes.is_dir()
    assert paths.index.stat().st_mode & 0o077 == 0
