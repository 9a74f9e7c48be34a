"""One place to build in: locked, temporary, and published by a single rename.

A build that is killed leaves a folder named `.building-…` and nothing else; whoever holds the lock
next removes it. Two builds at once wait for one another.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import re
import shutil
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from boxgrove.images.errors import ImageFailed
from boxgrove.images.process import BuildLog, ToolFailed
from vm_backends.errors import NoSpace

PREFIX = ".building-"
MIB = 1024 * 1024


class Workshop:
    """A private folder to build in, on the same filesystem as `root`, and the build's log."""

    def __init__(self, root: Path, folder: Path) -> None:
        self.root = root
        self.folder = folder
        self.log = BuildLog(folder / "build.log")

    def need_space(self, size: int) -> None:
        """Refuse before a long build what could only fail at its end."""
        free = shutil.disk_usage(self.root).free
        if free < size:
            raise NoSpace(
                f"building this takes {size // MIB} MiB for a while, "
                f"and {self.root} has {free // MIB} MiB left"
            )

    def publish(self, name: str, target: Path) -> None:
        """Move `folder/name` to `target`, durable before it is visible.

        Names are content addresses: what is already there under one is just as good.
        """
        source = self.folder / name
        for path in [*source.rglob("*"), source] if source.is_dir() else [source]:
            if not path.is_symlink():
                _sync(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            source.rename(target)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        _sync(target.parent)


@asynccontextmanager
async def workshop(root: Path, name: str) -> AsyncIterator[Workshop]:
    """Wait for the lock of `root`, then hand out a fresh folder that is gone afterwards.

    Leaves only Faults: a tool's failure keeps the log and quotes its end.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        lock = await _lock(root / ".lock")
    except OSError as error:
        raise _fault(error, root) from error
    place: Workshop | None = None
    try:
        await asyncio.to_thread(collect, root)
        place = Workshop(root, Path(tempfile.mkdtemp(prefix=PREFIX, dir=root)))
        yield place
    except ToolFailed as error:
        if "No space left on device" in error.tail:
            raise NoSpace(f"the disk of {root} is full") from error
        kept = _keep_log(place, name)
        raise ImageFailed(
            f"building {name} failed: {error}\n{error.tail}",
            hint=f"The whole log is {kept}." if kept else "",
        ) from error
    except OSError as error:
        raise _fault(error, root) from error
    finally:
        try:
            if place is not None:
                place.log.close()
                # In a thread it is out of reach of a second Ctrl-C, and finishes whatever comes.
                await asyncio.shield(asyncio.to_thread(_discard, place.folder))
        finally:
            os.close(lock)


async def _lock(path: Path) -> int:
    """Hold `path` exclusively; give its descriptor.

    flock() cannot be awaited or interrupted, so a daemon thread waits in it: a caller that is
    cancelled leaves at once, and the thread lets go again as soon as it gets the lock.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return descriptor
    except BlockingIOError:
        pass
    loop = asyncio.get_running_loop()
    held: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if held.cancelled():
            os.close(descriptor)
        else:
            held.set_result(None)

    def wait() -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:  # the loop ended while we waited
            os.close(descriptor)

    threading.Thread(target=wait, name="image-lock", daemon=True).start()
    await held
    return descriptor


def collect(root: Path) -> None:
    """Remove what builds that were killed have left. Only for the holder of the lock."""
    for folder in root.glob(PREFIX + "*"):
        _discard(folder)


def _discard(folder: Path) -> None:
    """Remove a folder of ours. One with something mounted in it is left alone.

    What is mounted there may be the host's own /dev: deleting through it would be a disaster.
    """
    if any(folder.resolve() in mounted.parents for mounted in _mounts()):
        return
    # A tree of a distribution has folders that even their owner may not write to.
    for parent, names, _ in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            if not path.is_symlink() and not os.access(path, os.R_OK | os.W_OK | os.X_OK):
                with suppress(OSError):
                    path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


def _mounts() -> list[Path]:
    """Every mount point of this process; none where there is no /proc to ask."""
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return []
    # Spaces and the like are written as three octal digits.
    escaped = re.compile(r"\\([0-7]{3})")
    fields = (line.split(" ")[4] for line in lines)
    return [Path(escaped.sub(lambda found: chr(int(found[1], 8)), field)) for field in fields]


def _keep_log(place: Workshop | None, name: str) -> Path | None:
    if place is None:
        return None
    place.log.close()
    kept = place.root / "logs" / f"{name}.log"
    try:
        kept.parent.mkdir(exist_ok=True)
        place.log.path.replace(kept)
    except OSError:
        return None
    return kept


def _fault(error: OSError, root: Path) -> Exception:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NoSpace(f"the disk of {root} is full")
    what = f"{error.filename}: {error.strerror}" if error.filename else str(error)
    return ImageFailed(
        f"cannot build in {root}: {what}",
        hint="Set BOXGROVE_HOME to a folder that you can write to.",
    )


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
