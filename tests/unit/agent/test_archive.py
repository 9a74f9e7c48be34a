"""Archives from a guest that wants out: whatever it sends, nothing outside the target changes."""

from __future__ import annotations

import os
import stat
import struct
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vm_backends.agent.archive import CopyFailed, Entry, Receiver
from vm_backends.errors import Fault, GuestGarbage

END = Entry("e", 0, 0, 0, 0, "").pack()


def folder(path: str = "", mode: int = 0o755) -> bytes:
    return Entry("d", mode, 1_600_000_000, 0, 0, path).pack()


def file(path: str, data: bytes = b"data", mode: int = 0o644) -> bytes:
    head = Entry("f", mode, 1_600_000_000, 5, len(data), path).pack()
    chunk = struct.pack("<I", len(data)) + data if data else b""
    return head + chunk + struct.pack("<I", 0)


def link(path: str, target: str) -> bytes:
    return Entry("l", 0o777, 0, 0, 0, path, target).pack()


def hard(path: str, target: str) -> bytes:
    return Entry("h", 0o644, 0, 0, 0, path, target).pack()


def receive(target: Path, *pieces: bytes, step: int = 1 << 20) -> Receiver:
    receiver = Receiver(target)
    data = b"".join(pieces)
    try:
        for at in range(0, len(data), step):
            receiver.feed(data[at : at + step])
        receiver.finish()
    finally:
        receiver.close()
    return receiver


@pytest.mark.parametrize("step", [1, 7, 1 << 20])
def test_a_tree_arrives_whatever_the_pieces(tmp_path: Path, step: int) -> None:
    target = tmp_path / "t"
    receive(
        target, folder(mode=0o750), folder("sub", 0o555), file("sub/a", b"x" * 300, 0o604),
        link("l", "sub/a"), hard("again", "sub/a"), file("new\nline", b""), END, step=step,
    )  # fmt: skip
    assert (target / "sub" / "a").read_bytes() == b"x" * 300
    assert stat.S_IMODE((target / "sub" / "a").stat().st_mode) == 0o604
    assert (target / "sub" / "a").stat().st_mtime_ns == 1_600_000_000_000_000_005
    assert stat.S_IMODE((target / "sub").stat().st_mode) == 0o555
    assert stat.S_IMODE(target.stat().st_mode) == 0o750
    assert os.readlink(target / "l") == "sub/a"
    assert (target / "again").stat().st_ino == (target / "sub" / "a").stat().st_ino
    assert (target / "new\nline").read_bytes() == b""
    (target / "sub").chmod(0o755)


@pytest.mark.parametrize("path", ["/etc/x", "../x", "a/../../x", "a//b", ".", "a/.", "..", "/"])
@pytest.mark.parametrize("make", [file, folder, lambda path: link(path, "x")])
def test_no_path_leads_out(tmp_path: Path, path: str, make: object) -> None:
    assert callable(make)
    with pytest.raises(GuestGarbage, match="outside of itself"):
        receive(tmp_path / "t", folder(), make(path), END)
    assert os.listdir(tmp_path) == ["t"]


def test_no_link_is_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    for pieces in (
        (link("way", str(outside)), file("way/in")),
        (link("way", "../outside"), folder("way/in")),
        (link("way", str(outside)), link("way/in", "x")),
        (link("way", str(outside)), folder("way")),
    ):
        with pytest.raises(CopyFailed):
            receive(tmp_path / "t", folder(), *pieces, END)
        assert os.listdir(outside) == []


def test_a_link_in_the_way_is_replaced_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "name").symlink_to("../mine")
    receive(tmp_path / "t", folder(), file("name", b"theirs"), END)
    assert (tmp_path / "mine").read_text() == "mine"
    assert (tmp_path / "t" / "name").read_bytes() == b"theirs"


@pytest.mark.parametrize("target", ["../mine", "/etc/passwd", "", "way/mine", "way"])
def test_a_hard_link_reaches_nothing_of_ours(tmp_path: Path, target: str) -> None:
    (tmp_path / "mine").write_text("mine")
    with pytest.raises((GuestGarbage, CopyFailed)):
        receive(tmp_path / "t", folder(), link("way", ".."), hard("stolen", target), END)
    assert (tmp_path / "mine").stat().st_nlink == 1
    assert not (tmp_path / "t" / "stolen").exists()


def test_set_id_bits_stay_behind(tmp_path: Path) -> None:
    receive(tmp_path / "t", file("", b"#!", 0o6755), END)
    assert stat.S_IMODE((tmp_path / "t").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    "pieces",
    [
        (folder(), folder()),
        (file(""), file("more")),
        (file("more"),),
        (folder(), END, file("late")),
        (Entry("?", 0, 0, 0, 0, "").pack(),),
        (folder(), Entry("f", 0o644, 0, 0, 0, "f").pack() + struct.pack("<I", 1 << 20)),
        (b"f" + bytes(32) + struct.pack("<I", 1 << 31),),
    ],
)
def test_nonsense_is_told(tmp_path: Path, pieces: tuple[bytes, ...]) -> None:
    with pytest.raises(GuestGarbage):
        receive(tmp_path / "t", *pieces)


def test_cut_short_leaves_no_half_file(tmp_path: Path) -> None:
    whole = folder() + file("a", b"x" * 1000) + END
    for cut in (len(folder()) + 60, len(whole) - 40, len(whole) - 1):
        with pytest.raises(CopyFailed, match="cut short"):
            receive(tmp_path / "t", whole[:cut])
        assert all(not name.startswith(".boxgrove-") for name in os.listdir(tmp_path / "t"))


def test_what_could_not_be_read_is_dropped_and_said(tmp_path: Path) -> None:
    reason = struct.pack("<I", 0xFFFFFFFF) + struct.pack("<I", 3) + b"bad"
    head = Entry("f", 0o644, 0, 0, 4, "a").pack() + struct.pack("<I", 4) + b"half"
    done = receive(tmp_path / "t", folder(), head + reason, Entry("p", 0, 0, 0, 0, "p").pack(), END)
    assert done.warnings == ["a: bad", "p: not a file, folder or link"]
    assert os.listdir(tmp_path / "t") == []


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=400))
def test_any_bytes_at_all(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    place = tmp_path_factory.mktemp("any")
    with suppress(Fault):  # Refused in our words: that is all that is asked.
        receive(place / "t", folder(), data)
    assert set(os.listdir(place)) <= {"t"}
