"""Trees of files as a stream, both ways; what comes from a guest is hostile.

The receiver works with folder descriptors and never follows a link below its root, so no name
that a guest sends can reach outside the target.
"""

from __future__ import annotations

import asyncio
import os
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from vm_backends.agent.frames import Frame
from vm_backends.agent.protocol import MAX_STRING, Packer, Type
from vm_backends.agent.stream import ChannelStream
from vm_backends.errors import Fault, GuestGarbage, NoSpace

Counter = Callable[[int], None]
T = TypeVar("T")
CHUNK = 60 * 1024
BATCH = 256 * 1024
AHEAD = 1024 * 1024
UNREADABLE = 0xFFFFFFFF
MAX_WARNINGS = 200

_HEAD = struct.Struct("<BIIIqIQ")


class CopyFailed(Fault):
    code = "copy-failed"


@dataclass(frozen=True, slots=True)
class Entry:
    kind: str
    mode: int
    mtime_s: int
    mtime_ns: int
    size: int
    path: str
    target: str = ""

    def pack(self) -> bytes:
        head = _HEAD.pack(ord(self.kind), self.mode, 0, 0, self.mtime_s, self.mtime_ns, self.size)
        return Packer().raw(head).text(self.path).text(self.target).done()


# Sending


async def send(source: Path, stream: ChannelStream, on_bytes: Counter | None) -> list[str]:
    """Send a tree of the host as an archive; the list of what was skipped."""
    warnings: list[str] = []
    pieces = _batches(_walk(source, warnings))
    ahead = _in_thread(next, pieces, None)
    try:
        while (piece := await asyncio.shield(ahead)) is not None:
            # The next piece is read while this one is on its way.
            ahead = _in_thread(next, pieces, None)
            if not await stream.write(piece):
                return warnings
            if on_bytes:
                on_bytes(len(piece))
    finally:
        await asyncio.wait([ahead])
    await stream.write_eof()
    return warnings


def _in_thread(work: Callable[..., T], *arguments: object) -> asyncio.Future[T]:
    """Work that is waited for even if its caller is cancelled: it holds files open."""
    return asyncio.ensure_future(asyncio.to_thread(work, *arguments))


def _batches(pieces: Iterator[bytes]) -> Iterator[bytes]:
    held: list[bytes] = []
    size = 0
    for piece in pieces:
        held.append(piece)
        size += len(piece)
        if size >= BATCH:
            yield b"".join(held)
            held, size = [], 0
    yield b"".join(held)


def _walk(source: Path, warnings: list[str]) -> Iterator[bytes]:
    try:
        info = os.stat(source)
    except OSError as error:
        raise CopyFailed(f"cannot read {source}: {error.strerror}") from error
    yield from _entry(os.fsencode(source), "", info, warnings)
    if stat.S_ISDIR(info.st_mode):
        yield from _children(os.fsencode(source), "", warnings)
    yield Entry("e", 0, 0, 0, 0, "").pack()


def _children(folder: bytes, prefix: str, warnings: list[str]) -> Iterator[bytes]:
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        warnings.append(f"{os.fsdecode(folder)}: {error.strerror}")
        return
    for name in names:
        full = os.path.join(folder, name)
        path = prefix + os.fsdecode(name)
        try:
            info = os.lstat(full)
        except OSError as error:
            warnings.append(f"{path}: {error.strerror}")
            continue
        yield from _entry(full, path, info, warnings)
        if stat.S_ISDIR(info.st_mode):
            yield from _children(full, path + "/", warnings)


def _entry(full: bytes, path: str, info: os.stat_result, warnings: list[str]) -> Iterator[bytes]:
    mode = stat.S_IMODE(info.st_mode)
    seconds, nanos = divmod(info.st_mtime_ns, 1_000_000_000)
    if stat.S_ISDIR(info.st_mode):
        yield Entry("d", mode, seconds, nanos, 0, path).pack()
    elif stat.S_ISLNK(info.st_mode):
        target = os.fsdecode(os.readlink(full))
        yield Entry("l", mode, seconds, nanos, 0, path, target).pack()
    elif stat.S_ISREG(info.st_mode):
        try:
            descriptor = os.open(full, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            warnings.append(f"{path or os.fsdecode(full)}: {error.strerror}")
            return
        yield Entry("f", mode, seconds, nanos, info.st_size, path).pack()
        yield from _contents(descriptor, path, warnings)
    else:
        warnings.append(f"{path}: not a file, folder or link")


def _contents(descriptor: int, path: str, warnings: list[str]) -> Iterator[bytes]:
    try:
        while data := os.read(descriptor, CHUNK):
            yield struct.pack("<I", len(data)) + data
        yield struct.pack("<I", 0)
    except OSError as error:
        warnings.append(f"{path}: {error.strerror}")
        yield struct.pack("<I", UNREADABLE) + Packer().text(error.strerror or "").done()
    finally:
        os.close(descriptor)


# Receiving


async def receive(stream: ChannelStream, receiver: Receiver) -> Frame:
    """Hand an archive to its receiver as it comes; the first frame that is no data.

    What has come is stored in a thread while more comes in, a bounded piece ahead.
    """
    storing: asyncio.Future[None] | None = None
    held: list[bytes] = []
    size = 0
    try:
        while (frame := await stream.read()).type == Type.DATA:
            held.append(frame.payload)
            size += len(frame.payload)
            if storing and (storing.done() or size >= AHEAD):
                await asyncio.shield(storing)
                storing = None
            if storing is None:
                storing = _in_thread(receiver.feed, b"".join(held))
                held, size = [], 0
        if storing:
            await asyncio.shield(storing)
        storing = _in_thread(receiver.feed, b"".join(held))
        await asyncio.shield(storing)
        return frame
    finally:
        if storing:
            await asyncio.wait([storing])


class Receiver:
    """Takes an archive apart as it comes and puts it at `target`; nothing of it is trusted."""

    def __init__(self, target: Path, on_bytes: Counter | None = None) -> None:
        self._target = target
        self._on_bytes = on_bytes
        self._buffer = bytearray()
        self._file: _OpenFile | None = None
        self._folder_times: list[tuple[str, Entry]] = []
        self._complete = False
        self._root_is_folder = False
        self._seen = False
        self._parent: int | None = None
        self._folder: tuple[str, int] | None = None
        self.warnings: list[str] = []

    def feed(self, data: bytes) -> None:
        self._buffer += data
        if self._on_bytes:
            self._on_bytes(len(data))
        try:
            while self._chunk() if self._file else self._header():
                pass
        except OSError as error:
            if error.errno == 28:
                raise NoSpace(f"no space left for {self._target}") from error
            where = error.filename or self._target
            raise CopyFailed(f"cannot write {where}: {error.strerror}") from error

    def finish(self) -> None:
        """Set folder modes and times; complain if the archive was cut short."""
        if not self._complete:
            raise CopyFailed("the copy was cut short", hint="Run the same command again.")
        for path, entry in reversed(self._folder_times):
            descriptor = self._open_folder(path)
            try:
                os.fchmod(descriptor, entry.mode)
                os.utime(descriptor, ns=(_ns(entry), _ns(entry)))
            finally:
                os.close(descriptor)

    def close(self) -> None:
        """Drop what is half done. May be called twice."""
        if self._file:
            self._file.drop()
            self._file = None
        if self._folder:
            os.close(self._folder[1])
            self._folder = None
        if self._parent is not None:
            os.close(self._parent)
            self._parent = None

    def _header(self) -> bool:
        entry = self._parse()
        if entry is None:
            return False
        if self._complete:
            raise GuestGarbage("the guest sent files after the end of its archive")
        if entry.kind == "e":
            self._complete = True
        elif entry.kind == "w":
            self._warn(entry.path)
        elif entry.kind in "fdlh":
            self._place(entry)
        elif entry.kind in "cbps":
            self._warn(f"{entry.path}: not a file, folder or link")
        else:
            raise GuestGarbage(f"the guest's archive has an entry of kind {entry.kind!r}")
        return True

    def _parse(self) -> Entry | None:
        buffer, at = self._buffer, _HEAD.size
        texts = []
        for _ in range(2):
            if len(buffer) < at + 4:
                return None
            size = int.from_bytes(buffer[at : at + 4], "little")
            if size > MAX_STRING:
                raise GuestGarbage("the guest's archive has a name without end")
            if len(buffer) < at + 4 + size:
                return None
            texts.append(bytes(buffer[at + 4 : at + 4 + size]))
            at += 4 + size
        kind, mode, _uid, _gid, seconds, nanos, size = _HEAD.unpack_from(buffer)
        del buffer[:at]
        path, target = (text.decode("utf-8", "surrogateescape") for text in texts)
        seconds = max(-(2**33), min(seconds, 2**36))
        return Entry(chr(kind), mode & 0o7777, seconds, nanos % 10**9, size, path, target)

    def _place(self, entry: Entry) -> None:
        parts = _parts(entry.path)
        if (self._seen and not self._root_is_folder) or (not self._seen and parts):
            raise GuestGarbage("the guest's archive has no folder to put its files in")
        if not parts:
            if self._seen:
                raise GuestGarbage("the guest's archive has two roots")
            self._seen, self._root_is_folder = True, entry.kind == "d"
        folder, name = self._where(parts)
        if entry.kind == "d":
            _make_folder(name, folder)
            self._folder_times.append((entry.path, entry))
        elif entry.kind == "l":
            _make_link(entry, name, folder)
        elif entry.kind == "h":
            self._make_hard_link(entry, name, folder)
        else:
            self._file = _OpenFile(entry, name, folder)

    def _make_hard_link(self, entry: Entry, name: str, folder: int) -> None:
        """A second name for a file that came earlier; never for anything above the target."""
        *inside, original = _parts(entry.target) or [""]
        if not original or not entry.path:
            raise GuestGarbage("the guest's archive links to itself")
        source = self._open_folder("/".join(inside))
        temporary = _temporary_name()
        names = {"src_dir_fd": source, "dst_dir_fd": folder}
        try:
            if not stat.S_ISREG(os.lstat(original, dir_fd=source).st_mode):
                raise GuestGarbage("the guest's archive links to something that is no file")
            os.link(original, temporary, **names, follow_symlinks=False)
            os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            os.close(source)

    def _where(self, parts: list[str]) -> tuple[int, str]:
        """The descriptor of the folder that gets the entry, and the entry's name in it."""
        if self._parent is None:
            above = os.path.dirname(os.path.abspath(self._target))
            self._parent = os.open(above, os.O_RDONLY | os.O_DIRECTORY)
        if not parts:
            return self._parent, self._target.name
        inside = "/".join(parts[:-1])
        if self._folder is None or self._folder[0] != inside:
            opened = self._open_folder(inside)
            if self._folder:
                os.close(self._folder[1])
            self._folder = (inside, opened)
        return self._folder[1], parts[-1]

    def _open_folder(self, path: str) -> int:
        assert self._parent is not None
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
        current = os.open(self._target.name, flags, dir_fd=self._parent)
        for part in path.split("/") if path else []:
            try:
                following = os.open(part, flags, dir_fd=current)
            finally:
                os.close(current)
            current = following
        return current

    def _chunk(self) -> bool:
        assert self._file
        buffer = self._buffer
        if len(buffer) < 4:
            return False
        size = int.from_bytes(buffer[:4], "little")
        if size == 0:
            del buffer[:4]
            self._file.keep()
            self._file = None
            return True
        if size == UNREADABLE:
            return self._unreadable(self._file)
        if size > 65536:
            raise GuestGarbage("the guest's archive has a piece without bounds")
        if len(buffer) < 4 + size:
            return False
        self._file.write(memoryview(buffer)[4 : 4 + size])
        del buffer[: 4 + size]
        return True

    def _unreadable(self, file: _OpenFile) -> bool:
        if len(self._buffer) < 8:
            return False
        size = int.from_bytes(self._buffer[4:8], "little")
        if size > MAX_STRING:
            raise GuestGarbage("the guest's archive has a name without end")
        if len(self._buffer) < 8 + size:
            return False
        reason = bytes(self._buffer[8 : 8 + size]).decode("utf-8", "replace")
        del self._buffer[: 8 + size]
        self._warn(f"{file.entry.path}: {reason}")
        file.drop()
        self._file = None
        return True

    def _warn(self, text: str) -> None:
        if len(self.warnings) < MAX_WARNINGS:
            self.warnings.append(text)


class _OpenFile:
    """A file being received, under a temporary name until it is whole."""

    def __init__(self, entry: Entry, name: str, folder: int) -> None:
        self.entry = entry
        self._name = name
        self._folder = os.dup(folder)
        self._temporary = _temporary_name()
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        try:
            self._descriptor = os.open(self._temporary, flags, 0o600, dir_fd=self._folder)
        except OSError:
            os.close(self._folder)
            raise

    def write(self, data: memoryview) -> None:
        with data:
            while len(data):
                data = data[os.write(self._descriptor, data) :]

    def keep(self) -> None:
        # Set-id bits from a guest would speak for the host's user: they stay behind.
        os.fchmod(self._descriptor, self.entry.mode & 0o1777)
        os.utime(self._descriptor, ns=(_ns(self.entry), _ns(self.entry)))
        os.close(self._descriptor)
        os.rename(self._temporary, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder)
        os.close(self._folder)

    def drop(self) -> None:
        os.close(self._descriptor)
        os.unlink(self._temporary, dir_fd=self._folder)
        os.close(self._folder)


def _parts(path: str) -> list[str]:
    """A path of an archive, taken apart; nothing in it may lead out of the archive."""
    parts = path.split("/") if path else []
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise GuestGarbage("the guest's archive names a path outside of itself")
    return parts


def _temporary_name() -> str:
    return f".boxgrove-{os.urandom(6).hex()}"


def _make_folder(name: str, folder: int) -> None:
    try:
        os.mkdir(name, 0o700, dir_fd=folder)
    except FileExistsError:
        if not stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise


def _make_link(entry: Entry, name: str, folder: int) -> None:
    temporary = _temporary_name()
    os.symlink(entry.target, temporary, dir_fd=folder)
    os.utime(temporary, ns=(_ns(entry), _ns(entry)), dir_fd=folder, follow_symlinks=False)
    os.rename(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)


def _ns(entry: Entry) -> int:
    return entry.mtime_s * 1_000_000_000 + entry.mtime_ns
