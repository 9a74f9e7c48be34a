"""Every failure that is about boxes and their store, as opposed to machines.

Fault                          vm_backends.errors
└── BoxError                   box-error
    ├── UnknownBox             unknown-box       no box has that name or id
    ├── NameTaken              name-taken        another box has that name
    ├── BadName                bad-name          no box can have that name
    ├── BadSize                bad-size          not a size such as 512M
    ├── BadDuration            bad-duration      not a time such as 30s
    ├── BoxBusy                box-busy          somebody else works on that box right now
    ├── HomeUnwritable         home-unwritable   the home cannot be made or written
    ├── RuntimeUnsafe          runtime-unsafe    no safe place for sockets
    └── StoreError             store-error
        ├── StoreNewer         store-newer       made by a newer version: may be read only
        ├── StoreReadOnly      store-read-only   on a disk that cannot be written
        ├── StoreDamaged       store-damaged     not an index, or a broken one
        └── StoreBusy          store-busy        another process did not let go of it in time
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from vm_backends.errors import Fault, NoSpace


class BoxError(Fault):
    code = "box-error"


class UnknownBox(BoxError):
    code = "unknown-box"
    hint = "`boxgrove ls` shows the boxes there are."

    @staticmethod
    def among(name: str, names: Iterable[str]) -> UnknownBox:
        """No such box; the hint has the names that look most like it."""
        # Only a failure pays for this import.
        from difflib import get_close_matches

        close = get_close_matches(name[:80], list(names), n=3)
        hint = f"Did you mean {' or '.join(close)}?" if close else None
        return UnknownBox(f'there is no box "{shown(name)}"', hint=hint)


class NameTaken(BoxError):
    code = "name-taken"


class BadName(BoxError):
    code = "bad-name"


class BadSize(BoxError):
    code = "bad-size"
    hint = "Sizes look like 512M, 1.5G or 2T."


class BadDuration(BoxError):
    code = "bad-duration"
    hint = "Times look like 30s, 10m or 2h."


class BoxBusy(BoxError):
    code = "box-busy"
    hint = "Try again in a moment."


class HomeUnwritable(BoxError):
    code = "home-unwritable"
    hint = "Set BOXGROVE_HOME to a folder that you may write."


class RuntimeUnsafe(BoxError):
    code = "runtime-unsafe"
    hint = "Set BOXGROVE_RUNTIME to a short folder of your own, for example one under /tmp."


class StoreError(BoxError):
    code = "store-error"


class StoreNewer(StoreError):
    code = "store-newer"
    hint = "Update Boxgrove to the version that you used last."


class StoreReadOnly(StoreError):
    code = "store-read-only"
    hint = "Set BOXGROVE_HOME to a folder that you may write, or make this one writable."


class StoreDamaged(StoreError):
    code = "store-damaged"


class StoreBusy(StoreError):
    code = "store-busy"
    hint = "Try again; if it stays so, a process that uses this home hangs."


def shown(text: str, limit: int = 40) -> str:
    """Somebody's text, short and printable enough to stand in a sentence."""
    cut = text if len(text) <= limit else text[: limit - 1] + "…"
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode("ascii")
        for char in cut
    )


_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_DENIED = {
    errno.EROFS: "it is on a read-only disk",
    errno.EACCES: "this user may not",
    errno.EPERM: "this user may not",
    errno.EEXIST: "a file is in its place",
    errno.ENOTDIR: "a file is in its place",
    errno.ELOOP: "its links lead in circles",
}


def no_space(place: str | os.PathLike[str]) -> NoSpace:
    return NoSpace(f"the disk that holds {os.fspath(place)} is full")


@contextmanager
def writing_in(place: str | os.PathLike[str]) -> Iterator[None]:
    """Turn a full disk and a place that cannot be written into Faults; the rest rises as it is."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise no_space(place) from error
        if error.errno in _DENIED:
            raise HomeUnwritable(
                f"{os.fspath(place)} cannot be written: {_DENIED[error.errno]}"
            ) from error
        raise
