"""The archive is read back by a parser that shares nothing with its writer."""

from __future__ import annotations

import stat
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from boxgrove.images.initrd import Entry, cpio, ramdisk
from boxgrove.images.modules import Driver


@dataclass
class Found:
    mode: int
    data: bytes
    device: tuple[int, int]


def parse(data: bytes) -> dict[str, Found]:
    """A newc archive as the kernel reads it: 13 hex fields, a name, the content, all padded."""
    found: dict[str, Found] = {}
    at = 0
    while True:
        assert data[at : at + 6] == b"070701"
        fields = [int(data[at + 6 + 8 * n : at + 14 + 8 * n], 16) for n in range(13)]
        mode, uid, gid, mtime, size = fields[1], fields[2], fields[3], fields[5], fields[6]
        name = data[at + 110 : at + 110 + fields[11] - 1].decode()
        assert data[at + 110 + fields[11] - 1] == 0
        start = (at + 110 + fields[11] + 3) & ~3
        at = (start + size + 3) & ~3
        if name == "TRAILER!!!":
            assert at == len(data)
            return found
        assert (uid, gid, mtime) == (0, 0, 0)
        found[name] = Found(mode, data[start : start + size], (fields[9], fields[10]))


def test_the_ramdisk_holds_agent_drivers_and_their_order() -> None:
    drivers = [Driver("zeta", b"first"), Driver("alpha", b"second")]
    found = parse(ramdisk(b"the agent", drivers))
    assert found["init"].data == b"the agent"
    assert stat.S_IMODE(found["init"].mode) == 0o755
    assert found["modules.list"].data == b"/modules/zeta.ko\n/modules/alpha.ko\n"
    assert found["modules/zeta.ko"].data == b"first"
    assert stat.S_ISCHR(found["dev/console"].mode)
    assert found["dev/console"].device == (5, 1)
    for folder in ("dev", "proc", "sys", "newroot"):
        assert stat.S_ISDIR(found[folder].mode)


def test_folders_come_before_what_is_in_them() -> None:
    names = list(parse(ramdisk(b"", [Driver("a", b"")])))
    for name in names:
        parent = name.rpartition("/")[0]
        assert not parent or names.index(parent) < names.index(name)


def test_the_same_input_gives_the_same_bytes() -> None:
    entries = [Entry("b", stat.S_IFREG | 0o644, b"x"), Entry("a", stat.S_IFDIR | 0o755)]
    assert cpio(entries) == cpio(reversed(entries))


names = st.text(st.characters(min_codepoint=97, max_codepoint=122), min_size=1, max_size=9)


@given(st.dictionaries(names, st.binary(max_size=40)))
def test_any_files_come_back_whole(files: dict[str, bytes]) -> None:
    archive = cpio(Entry(name, stat.S_IFREG | 0o644, data) for name, data in files.items())
    assert {name: found.data for name, found in parse(archive).items()} == files
