"""A box's folder from its first moment to its last: made under a lock, removed without trace.

A folder in the making holds the file `.creating`, locked by the process that makes it. The lock
goes with the process, however that ends, so a left-over folder can be told from one that is
being filled. When the box has its row, the file becomes `.made-by` and says which index made it.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path

from boxgrove.core.durable import fsync_folder, part_beside
from boxgrove.core.errors import writing_in
from boxgrove.core.paths import Paths
from boxgrove.core.store import Store

CREATING = ".creating"
MADE_BY = ".made-by"


@contextmanager
def new_box_folder(paths: Paths, store: Store, box_id: str) -> Iterator[Path]:
    """The empty folder of a new box; fill it, force it to disk, then `store.add_box`.

    Leaving the block without a row for the box removes the folder again.
    """
    folder = paths.box(box_id)
    with writing_in(paths.boxes):
        lock = _make_locked(folder, store.identity)
    try:
        try:
            yield folder
        finally:
            # Asked in a way that also stops an `add_box` still on its way in another thread.
            with suppress(OSError):
                if store.give_up(box_id):
                    remove_box_folder(paths, box_id)
                else:
                    os.replace(folder / CREATING, folder / MADE_BY)
                    fsync_folder(folder)
    finally:
        os.close(lock)


def _make_locked(folder: Path, identity: str) -> int:
    # Made aside and renamed: nobody ever sees the folder without its lock.
    part = part_beside(folder)
    part.mkdir(mode=0o700)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        lock = os.open(part / CREATING, flags, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            os.write(lock, identity.encode())
            part.rename(folder)
            fsync_folder(folder.parent)
        except BaseException:
            os.close(lock)
            raise
    except BaseException:
        remove_tree(part)
        raise
    return lock


class Making(Enum):
    """How far the making of a box's folder has come."""

    BUSY = "busy"
    ABANDONED = "abandoned"
    OVER = "over"


@contextmanager
def making_of(folder: Path) -> Iterator[Making]:
    """How far it is; an abandoned folder is locked for us inside the block.

    Ask the store afterwards, not before: a maker lets go only once its row is written.
    """
    try:
        lock = os.open(folder / CREATING, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        yield Making.OVER
        return
    except OSError:
        yield Making.OVER if not folder.is_dir() else Making.BUSY
        return
    try:
        yield Making.ABANDONED if _take(lock) else Making.BUSY
    finally:
        os.close(lock)


def _take(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def maker(folder: Path) -> str:
    """The identity of the index that made this folder's box; empty if it does not say."""
    for name in (MADE_BY, CREATING):
        with suppress(OSError):
            descriptor = os.open(folder / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                return os.read(descriptor, 64).decode("ascii", "replace")
            finally:
                os.close(descriptor)
    return ""


def remove_box_folder(paths: Paths, box_id: str) -> None:
    """Remove all files of a box, whether this is the first attempt or not."""
    folder, aside = paths.box(box_id), paths.trash / box_id
    try:
        # Out of sight at once: a box is never seen with half of its files.
        folder.rename(aside)
    except OSError:
        # The two may be on different disks, or an earlier attempt got this far.
        remove_tree(folder)
    remove_tree(aside)


def remove_tree(path: Path) -> None:
    """Remove a file or a folder with all that is in it; links are removed, never followed.

    What is gone already is fine: two processes may be at it.
    """
    with suppress(FileNotFoundError):
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _remove(path.name, parent)
        finally:
            os.close(parent)


def _remove(name: str, parent: int) -> None:
    # Every step goes through the open parent folder, so that nobody can slip a link in between.
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return
        folder = _open_folder(name, parent)
        try:
            with os.scandir(folder) as entries:
                names = [entry.name for entry in entries]
            for inner in names:
                _remove(inner, folder)
        finally:
            os.close(folder)
        os.rmdir(name, dir_fd=parent)


def _open_folder(name: str, parent: int) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open(name, flags, dir_fd=parent)
    if os.fstat(folder).st_mode & 0o700 != 0o700:
        os.fchmod(folder, 0o700)
    return folder
