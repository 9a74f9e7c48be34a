"""Where things live: the home with everything that lasts, and a short folder for sockets.

A socket's path must fit into 104 bytes on macOS (108 on Linux), its closing zero included, so
sockets have a folder of their own with short names in it.
"""

from __future__ import annotations

import os
import stat
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from boxgrove.core.errors import HomeUnwritable, RuntimeUnsafe, writing_in
from boxgrove.core.names import is_id

SOCKET_LIMIT = 103
"""Bytes in a socket's path; the zero at its end is the 104th."""
SOCKET_NAME_LIMIT = 8
_ID_PART = 8
_RUNTIME_LIMIT = SOCKET_LIMIT - (1 + _ID_PART) - (1 + SOCKET_NAME_LIMIT)


@dataclass(frozen=True, slots=True)
class Paths:
    """One home and its runtime folder. Making the value touches nothing; `prepare` does."""

    home: Path
    runtime: Path

    @staticmethod
    def from_environment(
        environ: Mapping[str, str] | None = None, *, platform: str = sys.platform
    ) -> Paths:
        environ = os.environ if environ is None else environ
        home = _home(environ, platform)
        return Paths(home, _runtime(environ, home))

    @property
    def index(self) -> Path:
        return self.home / "index.db"

    @property
    def boxes(self) -> Path:
        return self.home / "boxes"

    @property
    def images(self) -> Path:
        return self.home / "images"

    @property
    def boot(self) -> Path:
        return self.home / "boot"

    @property
    def trash(self) -> Path:
        """Files on their way out. Boxes in the trash stay where they are until their time is up."""
        return self.home / "trash"

    @property
    def cache(self) -> Path:
        return self.home / "cache"

    def box(self, box_id: str) -> Path:
        """The folder with everything a box has on disk."""
        return self.boxes / _whole(box_id)

    def box_run(self, box_id: str) -> Path:
        """The folder for a running box's sockets; names in it have 8 characters at most."""
        return self.runtime / _whole(box_id)[:_ID_PART]

    def prepare(self) -> None:
        """Make all folders, for our user alone, or say why that cannot be."""
        with writing_in(self.home):
            for folder in (self.home, *self._folders()):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(self.home, os.W_OK | os.X_OK):
            raise HomeUnwritable(f"{self.home} cannot be written")
        self.prepare_runtime()

    def prepare_runtime(self) -> None:
        """Make the folder for sockets; refuse one that somebody else could have laid out."""
        with writing_in(self.runtime):
            self.runtime.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_parent(self.runtime.parent)
            self.runtime.mkdir(mode=0o700, exist_ok=True)
            _make_private(self.runtime)

    def _folders(self) -> Iterator[Path]:
        yield from (self.boxes, self.images, self.boot, self.trash, self.cache)


def _home(environ: Mapping[str, str], platform: str) -> Path:
    chosen = environ.get("BOXGROVE_HOME")
    if chosen:
        if chosen == "~" or chosen.startswith("~/"):
            chosen = os.path.join(_user_home(environ), chosen[2:])
        return Path(os.path.abspath(chosen))
    if platform == "darwin":
        return Path(_user_home(environ), "Library", "Application Support", "Boxgrove")
    data = environ.get("XDG_DATA_HOME", "")
    # The XDG specification: a relative path is to be ignored.
    base = data if os.path.isabs(data) else os.path.join(_user_home(environ), ".local", "share")
    return Path(base, "boxgrove")


def _user_home(environ: Mapping[str, str]) -> str:
    return environ.get("HOME") or os.path.expanduser("~")


def _runtime(environ: Mapping[str, str], home: Path) -> Path:
    # Two homes share nothing, and one home reached over two paths is still one home.
    mark = f"{zlib.crc32(os.fsencode(os.path.realpath(home))) & 0xFFFFFF:06x}"
    chosen = environ.get("BOXGROVE_RUNTIME")
    if chosen:
        runtime = Path(os.path.realpath(chosen), mark)
        if not _fits(runtime):
            raise RuntimeUnsafe(
                f"BOXGROVE_RUNTIME is too long: a socket's path has {SOCKET_LIMIT} bytes at most"
            )
        return runtime
    uid = os.getuid()
    # The second is where systemd puts the first: `su` and cron come without the variable, and
    # must find the same running boxes.
    for base in (environ.get("XDG_RUNTIME_DIR", ""), f"/run/user/{uid}"):
        runtime = Path(base, "boxgrove", mark)
        if os.path.isabs(base) and _is_ours(base) and _fits(runtime):
            return runtime
    return Path(f"/tmp/boxgrove-{uid}", mark)


def _fits(runtime: Path) -> bool:
    return len(os.fsencode(runtime)) <= _RUNTIME_LIMIT


def _is_ours(folder: str) -> bool:
    """Under `sudo -E` the variable still names the folder of the user before."""
    try:
        about = os.stat(folder)
    except OSError:
        return False
    return (
        stat.S_ISDIR(about.st_mode)
        and about.st_uid == os.getuid()
        and os.access(folder, os.W_OK | os.X_OK)
    )


def _check_parent(folder: Path) -> None:
    """Whoever may write in it could exchange our folder for theirs."""
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid not in (0, os.getuid()):
        raise RuntimeUnsafe(f"{folder} belongs to somebody else, so no socket is put there")
    if about.st_mode & 0o022 and not about.st_mode & stat.S_ISVTX:
        raise RuntimeUnsafe(f"others may write in {folder}, so no socket is put there")


def _make_private(folder: Path) -> None:
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise RuntimeUnsafe(f"{folder} belongs to somebody else, so no socket is put there")
    if about.st_mode & 0o077:
        folder.chmod(0o700)


def _whole(box_id: str) -> str:
    if not is_id(box_id):
        raise ValueError(f"{box_id!r} is not the id of a box")
    return box_id
