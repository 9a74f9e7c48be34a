"""The initial ramdisk: the agent as /init, the drivers it loads, and nothing else.

The archive (cpio, "newc") is written here, so that no `cpio` program is needed and the same input
gives the same bytes. It is not compressed: with half a megabyte, plain, gzip, lz4 and zstd start
within 3 % of one another under software emulation (the kernel unpacks while it does other things).
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from boxgrove.images.modules import Driver

_MAGIC = b"070701"
_TRAILER = "TRAILER!!!"
FOLDERS = ("dev", "proc", "sys", "newroot", "modules")


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in the archive; `mode` has the file type in it, owner and times are always 0."""

    path: str
    mode: int
    data: bytes = b""
    device: tuple[int, int] = (0, 0)


def cpio(entries: Iterable[Entry]) -> bytes:
    """A newc archive, sorted by path so that folders come before what is in them."""
    parts: list[bytes] = []
    for number, entry in enumerate(sorted(entries, key=lambda e: e.path), start=1):
        parts += _record(entry, number)
    parts += _record(Entry(_TRAILER, 0), 0)
    return b"".join(parts)


def _record(entry: Entry, number: int) -> Iterator[bytes]:
    name = entry.path.encode() + b"\0"
    links = 2 if stat.S_ISDIR(entry.mode) else 1
    fields = (
        *(number, entry.mode, 0, 0, links, 0, len(entry.data)),
        *(0, 0, *entry.device, len(name), 0),
    )
    head = _MAGIC + b"".join(b"%08X" % field for field in fields) + name
    yield head
    yield bytes(-len(head) % 4)
    yield entry.data
    yield bytes(-len(entry.data) % 4)


def ramdisk(agent: bytes, drivers: Iterable[Driver]) -> bytes:
    """The whole initial ramdisk. /modules.list names the drivers in the order to load them."""
    entries = [Entry(name, stat.S_IFDIR | 0o755) for name in FOLDERS]
    entries.append(Entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1)))
    entries.append(Entry("init", stat.S_IFREG | 0o755, agent))
    listed = []
    for driver in drivers:
        path = f"modules/{driver.name}.ko"
        entries.append(Entry(path, stat.S_IFREG | 0o644, driver.data))
        listed.append(f"/{path}\n")
    entries.append(Entry("modules.list", stat.S_IFREG | 0o644, "".join(listed).encode()))
    return cpio(entries)
