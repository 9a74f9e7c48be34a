"""Files that are whole after a crash: written aside, forced to disk, then put in place.

The store's rule is "files before rows": what a row names has been through here first.
"""

from __future__ import annotations

import fcntl
import os
import stat
from pathlib import Path

from boxgrove.core.errors import writing_in

PART_PREFIX = ".part-"
"""How files and folders in the making are called; `trash.collect_leftovers` knows them by it."""


def part_beside(path: Path) -> Path:
    """A fresh name next to `path` (so that a rename is atomic) that says who is writing there."""
    return path.with_name(f"{PART_PREFIX}{os.getpid()}-{os.urandom(6).hex()}")


def part_owner(name: str) -> int | None:
    """The process that made a file of this name, or None if it is no such file."""
    if not name.startswith(PART_PREFIX):
        return None
    number = name[len(PART_PREFIX) :].partition("-")[0]
    return int(number) if number.isascii() and number.isdigit() else 0


def write_atomic(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Replace a file as a whole: readers see the old or the new one, also after a power cut."""
    part = part_beside(path)
    with writing_in(path.parent):
        try:
            descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
            with open(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                _force(file.fileno())
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        fsync_folder(path.parent)


def fsync_folder(path: Path) -> None:
    """Make the names in a folder last: what was created, renamed or removed there."""
    _fsync(path, os.O_DIRECTORY)


def fsync_tree(path: Path) -> None:
    """Force everything below (and with) `path` to disk; links are not followed."""
    with writing_in(path):
        kind = path.lstat().st_mode
        if stat.S_ISDIR(kind):
            with os.scandir(path) as entries:
                for entry in entries:
                    # Opening a pipe would wait for its other end; sockets cannot be opened.
                    if entry.is_dir(follow_symlinks=False) or entry.is_file(follow_symlinks=False):
                        fsync_tree(Path(entry.path))
            fsync_folder(path)
        elif stat.S_ISREG(kind):
            _fsync(path, os.O_NOFOLLOW)


def _fsync(path: Path, flags: int) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        _force(descriptor)
    finally:
        os.close(descriptor)


def _force(descriptor: int) -> None:
    full = getattr(fcntl, "F_FULLFSYNC", None)
    if full is not None:
        # On macOS fsync() stops at the drive's cache.
        try:
            fcntl.fcntl(descriptor, full)
            return
        except OSError:
            pass
    os.fsync(descriptor)
