"""Trees of files through GET and PUT, as bytes: what a hostile or clumsy host could send, too."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path
from typing import Any

import pytest

from tests.agent.raw_client import Outcome, RawClient
from vm_backends.agent.protocol import Kind, Packer, Type, Unpacker

ENOENT, EINVAL = 2, 22
UNREADABLE = 0xFFFFFFFF
LIST, KEEP_OWNERS, SET_OWNER = 1, 1, 2


def entry(
    kind: str,
    path: str = "",
    target: str = "",
    *,
    data: bytes | None = None,
    mode: int = 0o755,
    uid: int = 0,
    gid: int = 0,
    mtime: int = 1_600_000_000,
    size: int = 0,
) -> bytes:
    head = struct.pack("<BIIIqIQ", ord(kind), mode, uid, gid, mtime, 5, size)
    packed = Packer().raw(head).text(path).text(target)
    if data is not None:
        for at in range(0, len(data), 50000):
            piece = data[at : at + 50000]
            packed.u32(len(piece)).raw(piece)
        packed.u32(0)
    return packed.done()


END = entry("e")


def put(
    client: RawClient, path: Path, *pieces: bytes, flags: int = 0, step: int = 60000
) -> Outcome:
    """Send an archive; small `step`s cut it at awkward places."""
    channel = client.open(Kind.PUT, Packer().u8(flags).text(str(path)).text("").done())
    frame = client.of(channel)
    if frame.type != Type.OPENED:
        return Outcome(frame)
    credit = Unpacker(frame.payload).u32()
    data = b"".join(pieces)
    for at in range(0, len(data), step):
        piece = data[at : at + step]
        while credit < len(piece):
            frame = client.of(channel)
            if frame.type != Type.CREDIT:
                return Outcome(frame)
            credit += Unpacker(frame.payload).u32()
        client.send(Type.DATA, channel, piece)
        credit -= len(piece)
    client.send(Type.EOF, channel)
    return client.finish(channel)


def get(
    client: RawClient, path: str, *, flags: int = 0, window: int = 1 << 19
) -> list[tuple[Any, ...]]:
    """The entries of an archive: (kind, path, target, mode, size, mtime, contents)."""
    channel = client.open(Kind.GET, Packer().u8(flags).text(path).done(), window)
    outcome = client.finish(channel)
    assert outcome.status == 0
    take = Unpacker(bytes(outcome.out))
    found: list[tuple[Any, ...]] = []
    while True:
        kind, mode = chr(take.u8()), take.u32()
        take.u32(), take.u32()
        mtime, _, size = take.i64(), take.u32(), take.u64()
        name, target = take.text(), take.text()
        data: bytes | str | None = None
        if kind == "f":
            data = b""
            while (piece := take.u32()) not in (0, UNREADABLE):
                data += take.exactly(piece)
            if piece == UNREADABLE:
                data = take.text()
        if kind == "e":
            take.end()
            return found
        found.append((kind, name, target, mode, size, mtime, data))


def make_tree(root: Path) -> None:
    (root / "deep" / "er").mkdir(parents=True)
    (root / "empty").mkdir()
    (root / "file").write_bytes(b"contents")
    (root / "big").write_bytes(os.urandom(300_000))
    (root / "deep" / "er" / "zero").write_bytes(b"")
    (root / "new\nline \udcff").write_bytes(b"odd name")
    (root / "link").symlink_to("deep/er")
    (root / "dangling").symlink_to("/nowhere/at/all")
    (root / "script").write_bytes(b"#!/bin/sh\n")
    (root / "script").chmod(0o4751)
    (root / "empty").chmod(0o1700)
    os.link(root / "file", root / "deep" / "same")
    for path in [*root.rglob("*"), root]:
        os.utime(path, (1_500_000_000, 1_500_000_000), follow_symlinks=False)


def describe(root: Path) -> dict[str, tuple[Any, ...]]:
    """Everything that a copy should keep."""
    found = {}
    for path in [root, *root.rglob("*")]:
        info = path.lstat()
        data: object = None
        if path.is_symlink():
            data = os.readlink(path)
        elif path.is_file():
            data = path.read_bytes()
        mode = 0 if path.is_symlink() else stat.S_IMODE(info.st_mode)
        kept = (stat.S_IFMT(info.st_mode), mode, int(info.st_mtime), data)
        found[str(path.relative_to(root))] = kept
    return found


def archive_of(found: list[tuple[Any, ...]]) -> bytes:
    """What GET gave, as something to PUT."""
    pieces = []
    for kind, name, target, mode, size, mtime, data in found:
        assert not isinstance(data, str)
        pieces.append(entry(kind, name, target, data=data, mode=mode, size=size, mtime=mtime))
    return b"".join(pieces) + END


@pytest.mark.parametrize(("window", "step"), [(1 << 19, 60000), (700, 60000), (3000, 13)])
def test_a_tree_there_and_back(client: RawClient, tmp_path: Path, window: int, step: int) -> None:
    make_tree(tmp_path / "one")
    if step < 100:
        (tmp_path / "one" / "big").write_bytes(b"not so big")
        os.utime(tmp_path / "one", (1_500_000_000, 1_500_000_000))
    found = get(client, str(tmp_path / "one"), window=window)
    done = put(client, tmp_path / "two", archive_of(found), step=step)
    assert (done.status, done.message) == (0, "")
    assert describe(tmp_path / "two") == describe(tmp_path / "one")
    same = [(tmp_path / "two" / name).stat().st_ino for name in ("file", "deep/same")]
    assert same[0] == same[1]


def test_parents_come_first_and_links_point_back(client: RawClient, tmp_path: Path) -> None:
    make_tree(tmp_path / "one")
    found = get(client, str(tmp_path / "one"))
    assert found[0][:2] == ("d", "")
    seen = {""}
    for kind, name, target, *_ in found:
        assert name.rpartition("/")[0] in seen
        if kind == "h":
            assert target in seen
        seen.add(name)
    assert len([item for item in found if item[0] == "h"]) == 1


def test_one_file_one_link_one_folder_by_link(client: RawClient, tmp_path: Path) -> None:
    make_tree(tmp_path / "one")
    file = get(client, str(tmp_path / "one" / "file"))
    assert [item[:2] for item in file] == [("f", "")]
    assert file[0][6] == b"contents"
    link = get(client, str(tmp_path / "one" / "link"))
    assert [item[:3] for item in link] == [("l", "", "deep/er")]
    through = get(client, str(tmp_path / "one" / "link") + "/")
    assert [item[:2] for item in through] == [("d", ""), ("f", "zero")]


def test_listing_has_one_level_and_no_contents(client: RawClient, tmp_path: Path) -> None:
    make_tree(tmp_path / "one")
    found = get(client, str(tmp_path / "one"), flags=LIST)
    names = {item[1] for item in found}
    assert names == {""} | {path.name for path in (tmp_path / "one").iterdir()}
    assert {item[6] for item in found} == {None, b""}
    assert next(item[4] for item in found if item[1] == "big") == 300_000


def test_get_of_special_files(client: RawClient, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert [item[0] for item in get(client, str(tmp_path))] == ["d", "p"]
    assert get(client, "/proc/self/status")[0][6].startswith(b"Name:")
    assert client.ask(Kind.GET, Packer().u8(0).text("/no/such").done()).errno == ENOENT
    assert client.ask(Kind.GET, Packer().u8(0).text("no/slash").done()).errno == EINVAL


def test_get_stays_on_its_filesystem(client: RawClient) -> None:
    if os.stat("/").st_dev == os.stat("/proc").st_dev:
        pytest.skip("/proc is not a mount here")
    channel = client.open(Kind.GET, Packer().u8(LIST).text("/").done())
    assert client.finish(channel).status == 0


def test_unreadable_files_are_told(client: RawClient, tmp_path: Path) -> None:
    mem = get(client, "/proc/self/mem")
    assert mem[0][0] == "f"
    assert isinstance(mem[0][6], str)
    assert "error" in mem[0][6].lower()
    done = put(
        client,
        tmp_path / "x",
        entry("d"),
        entry("f", "gone") + Packer().u32(3).raw(b"abc").u32(UNREADABLE).text("why").done(),
        entry("f", "kept", data=b"kept"),
        END,
    )
    assert done.status == 0
    assert os.listdir(tmp_path / "x") == ["kept"]


@pytest.mark.parametrize(
    "path",
    ["..", ".", "../up", "a/../../up", "/absolute", "a//b", "a/", "a/./b", "x" * 256, "a/..", "//"],
)
@pytest.mark.parametrize("kind", ["f", "d", "l", "h"])
def test_hostile_paths_are_refused(client: RawClient, tmp_path: Path, path: str, kind: str) -> None:
    data = b"evil" if kind == "f" else None
    hostile = entry(kind, path, "target", data=data)
    done = put(client, tmp_path / "root", entry("d"), entry("d", "a"), hostile, END)
    assert done.status == 1
    assert done.message
    assert set(os.listdir(tmp_path)) == {"root"}


def test_links_below_the_root_are_never_followed(client: RawClient, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    sent = [entry("d"), entry("l", "way", str(outside)), entry("f", "way/file", data=b"x"), END]
    assert put(client, tmp_path / "root", *sent).status == 1
    inside = [entry("d"), entry("l", "way", str(outside)), entry("d", "way")]
    inside += [entry("f", "way/file", data=b"x"), END]
    assert put(client, tmp_path / "root", *inside).status == 0
    assert (tmp_path / "root" / "way" / "file").read_bytes() == b"x"
    hard = [entry("d"), entry("l", "up", ".."), entry("h", "stolen", "up/secret"), END]
    (tmp_path / "secret").write_text("mine")
    assert put(client, tmp_path / "other", *hard).status == 1
    assert os.listdir(outside) == []
    assert not (tmp_path / "other" / "stolen").exists()


def test_a_file_through_a_link_replaces_the_link(client: RawClient, tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("unharmed")
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "name").symlink_to("../victim")
    assert (
        put(client, tmp_path / "root", entry("d"), entry("f", "name", data=b"new"), END).status == 0
    )
    assert (tmp_path / "root" / "name").read_bytes() == b"new"
    assert not (tmp_path / "root" / "name").is_symlink()
    assert (tmp_path / "victim").read_text() == "unharmed"


def test_replacing_and_merging(client: RawClient, tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "kept").mkdir(parents=True)
    (root / "kept" / "mine").write_text("mine")
    (root / "kept").chmod(0o711)
    (root / "old").write_text("old")
    (root / "full").mkdir()
    (root / "full" / "x").write_text("x")
    sent = [entry("d", mode=0o700), entry("d", "kept", mode=0o777), entry("f", "old", data=b"new")]
    assert put(client, root, *sent, END).status == 0
    assert (root / "old").read_text() == "new"
    assert (root / "kept" / "mine").read_text() == "mine"
    assert stat.S_IMODE((root / "kept").stat().st_mode) == 0o711
    for kind in "fl":
        over = entry(kind, "full", "t", data=b"x" if kind == "f" else None)
        assert put(client, root, entry("d"), over, END).status == 1
    assert put(client, root, entry("d"), entry("d", "old"), END).status == 1
    assert sorted(os.listdir(root)) == ["full", "kept", "old"]


def test_a_single_file(client: RawClient, tmp_path: Path) -> None:
    done = put(client, tmp_path / "f", entry("f", data=b"z" * 200_000, mode=0o604), END)
    assert done.status == 0
    assert (tmp_path / "f").read_bytes() == b"z" * 200_000
    assert stat.S_IMODE((tmp_path / "f").stat().st_mode) == 0o604
    assert (tmp_path / "f").stat().st_mtime_ns == 1_600_000_000_000_000_005
    assert os.listdir(tmp_path) == ["f"]


@pytest.mark.parametrize(
    "sent",
    [
        [],
        [entry("d")],
        [entry("f", data=b"whole")],
        [entry("f") + Packer().u32(100).raw(b"half").done()],
        [entry("d")[:20]],
        [entry("f", "no/root", data=b""), END],
        [entry("d"), entry("d"), END],
        [entry("f", data=b""), entry("f", "below", data=b""), END],
        [entry("?"), END],
        [entry("d"), END, b"more"],
        [entry("f") + Packer().u32(65537).done(), END],
        [entry("d"), entry("f", "a/b", data=b"no parent"), END],
        [entry("d")[:33] + Packer().u32(5000).done() + bytes(5000)],
        [entry("d")[:33] + Packer().u32(3).raw(b"a\0b").u32(0).done(), END],
    ],
)
def test_archives_that_are_not_whole(client: RawClient, tmp_path: Path, sent: list[bytes]) -> None:
    done = put(client, tmp_path / "x", *sent)
    assert done.status == 1
    assert done.message
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert left in ([], ["x"])
    if left:
        assert (tmp_path / "x").read_bytes() in (b"whole", b"")


@pytest.mark.parametrize("how", ["sync", "close"])
def test_a_put_that_is_cut_leaves_nothing(client: RawClient, tmp_path: Path, how: str) -> None:
    channel = client.open(Kind.PUT, Packer().u8(0).text(str(tmp_path / "x")).text("").done())
    assert client.of(channel).type == Type.OPENED
    client.send(Type.DATA, channel, entry("f") + Packer().u32(60000).raw(bytes(50000)).done())
    client.ping(b"it has seen that")
    assert len(os.listdir(tmp_path)) == 1
    if how == "sync":
        client.sync()
    else:
        client.send(Type.CLOSE, channel)
        assert client.of(channel).type == Type.CLOSED
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_owners(client: RawClient, tmp_path: Path) -> None:
    sent = [entry("d", uid=11, gid=12), entry("f", "file", data=b"", uid=13, gid=14), END]
    sent.insert(1, entry("l", "link", "file", uid=15, gid=16))
    assert put(client, tmp_path / "plain", *sent).status == 0
    assert put(client, tmp_path / "kept", *sent, flags=KEEP_OWNERS).status == 0
    channel = client.open(
        Kind.PUT, Packer().u8(SET_OWNER).text(str(tmp_path / "given")).text("daemon").done()
    )
    assert client.of(channel).type == Type.OPENED
    client.send(Type.DATA, channel, b"".join(sent))
    client.send(Type.EOF, channel)
    assert client.finish(channel).status == 0

    def owners(name: str) -> list[tuple[int, int]]:
        paths = [tmp_path / name, tmp_path / name / "link", tmp_path / name / "file"]
        return [(path.lstat().st_uid, path.lstat().st_gid) for path in paths]

    assert owners("plain") == [(0, 0)] * 3
    assert owners("kept") == [(11, 12), (15, 16), (13, 14)]
    assert owners("given") == [(1, 1)] * 3
    bad = Packer().u8(SET_OWNER).text(str(tmp_path / "bad")).text("no-such-user").done()
    assert client.ask(Kind.PUT, bad).errno == ENOENT


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make devices")
def test_devices_only_with_owners(client: RawClient, tmp_path: Path) -> None:
    sent = [
        entry("d"),
        entry("c", "null", size=1 << 32 | 3, mode=0o666),
        entry("p", "pipe", mode=0o620),
        entry("s", "socket"),
        END,
    ]
    assert put(client, tmp_path / "without", *sent).status == 0
    assert os.listdir(tmp_path / "without") == []
    assert put(client, tmp_path / "with", *sent, flags=KEEP_OWNERS).status == 0
    assert sorted(os.listdir(tmp_path / "with")) == ["null", "pipe"]
    info = (tmp_path / "with" / "null").stat()
    assert stat.S_ISCHR(info.st_mode)
    assert (info.st_rdev, stat.S_IMODE(info.st_mode)) == (os.makedev(1, 3), 0o666)
    assert get(client, str(tmp_path / "with"))[1][0] in "cp"


def test_many_small_files(client: RawClient, tmp_path: Path) -> None:
    sent = [entry("d")]
    for folder in range(20):
        sent.append(entry("d", f"d{folder}"))
        sent += [entry("f", f"d{folder}/{i}", data=b"%d" % i) for i in range(100)]
    assert put(client, tmp_path / "x", *sent, END).status == 0
    found = get(client, str(tmp_path / "x"))
    assert len(found) == 1 + 20 + 2000
    assert all(item[6] == item[1].rpartition("/")[2].encode() for item in found if item[0] == "f")


def test_deep_trees_are_bounded(client: RawClient, tmp_path: Path) -> None:
    sent = [entry("d")] + [entry("d", "/".join(["d"] * depth)) for depth in range(1, 300)]
    done = put(client, tmp_path / "x", *sent, END)
    assert done.status == 1
    assert "deep" in done.message
    at = tmp_path / "y"
    for _ in range(270):
        at.mkdir()
        at /= "d"
    found = get(client, str(tmp_path / "y"))
    assert [item[0] for item in found].count("w") == 1


def test_a_missing_parent_of_the_target_is_refused(client: RawClient, tmp_path: Path) -> None:
    assert put(client, tmp_path / "no" / "such", entry("d"), END).errno == ENOENT
