"""Trees of pretend files as the protocol's archive, both ways."""

from __future__ import annotations

import errno
import posixpath
import struct
from collections.abc import Iterator

from vm_backends.agent.protocol import MAX_STRING, Malformed, Packer
from vm_backends.fake.filesystem import Filesystem, Node, failure
from vm_backends.fake.stream import GuestChannel

_HEAD = struct.Struct("<BIIIqIQ")
_CHUNK = 60 * 1024
_MAX_CHUNK = 65536
_UNREADABLE = 0xFFFFFFFF


def entry(kind: str, node: Node, path: str, target: str = "") -> bytes:
    seconds, nanos = divmod(node.mtime_ns, 1_000_000_000)
    head = (ord(kind), node.mode, node.uid, node.gid, seconds, nanos, node.size)
    return Packer().raw(_HEAD.pack(*head)).text(path).text(target).done()


def pack(node: Node, *, listing: bool) -> Iterator[bytes]:
    """A file, link or tree in pieces; a listing is one level, its files without content."""
    yield from _one(node, "", listing=listing)
    yield from _below(node, "", listing=listing)
    yield entry("e", Node("e", 0), "")


def _below(folder: Node, prefix: str, *, listing: bool) -> Iterator[bytes]:
    for name, child in sorted(folder.children.items()):
        yield from _one(child, prefix + name, listing=listing)
        if not listing:
            yield from _below(child, f"{prefix}{name}/", listing=False)


def _one(node: Node, path: str, *, listing: bool) -> Iterator[bytes]:
    yield entry(node.kind, node, path, node.target)
    if node.kind == "f":
        data = b"" if listing else bytes(node.data)
        for at in range(0, len(data), _CHUNK):
            piece = data[at : at + _CHUNK]
            yield struct.pack("<I", len(piece)) + piece
        yield struct.pack("<I", 0)


class Unpacking:
    """Takes an archive from a channel and puts it at `target`, file by whole file."""

    def __init__(
        self,
        channel: GuestChannel,
        fs: Filesystem,
        target: str,
        owner: tuple[int, int] | None = None,
    ) -> None:
        self._channel = channel
        self._fs = fs
        self._target = posixpath.normpath(target)
        self._owner = owner
        self._buffer = bytearray()
        self._folders: list[tuple[str, Node]] = []

    async def run(self) -> None:
        """Raises OSError, or Malformed if it is no archive or was cut short."""
        while True:
            head = await self._exactly(_HEAD.size)
            kind, mode, uid, gid, seconds, nanos, _ = _HEAD.unpack(head)
            path, target = await self._text(), await self._text()
            node = Node(chr(kind), mode & 0o7777, seconds * 10**9 + nanos, uid, gid)
            if self._owner is not None:
                node.uid, node.gid = self._owner
            if node.kind == "e":
                break
            await self._entry(node, path, target)
        for place, said in reversed(self._folders):
            made = self._fs.lookup(place, follow=False)
            made.mode, made.mtime_ns = said.mode, said.mtime_ns
            made.uid, made.gid = said.uid, said.gid

    async def _entry(self, node: Node, path: str, target: str) -> None:
        place = self._place(path)
        if node.kind == "f":
            if await self._content(node):
                self._fs.place(place, node)
        elif node.kind == "d":
            self._folder(place, node)
        elif node.kind == "l":
            node.target = target
            self._fs.place(place, node)
        elif node.kind == "h":
            self._fs.place(place, self._fs.lookup(self._place(target), follow=False))
        elif node.kind not in "cbpsw":
            raise Malformed("an entry of an unknown kind")

    def _place(self, path: str) -> str:
        """Where an entry goes; no link below the root is followed on the way there."""
        parts = path.split("/") if path else []
        if any(part in ("", ".", "..") for part in parts):
            raise Malformed("a path that leads out of the archive")
        place = self._target
        for part in parts:
            if self._fs.lookup(place, follow=place == self._target).kind != "d":
                raise failure(errno.ENOTDIR, place)
            place = posixpath.join(place, part)
        return place

    def _folder(self, place: str, said: Node) -> None:
        try:
            there = self._fs.lookup(place, follow=place == self._target)
        except FileNotFoundError:
            self._fs.mkdir(place)
        else:
            if there.kind != "d":
                raise failure(errno.ENOTDIR, place)
        self._folders.append((place, said))

    async def _content(self, node: Node) -> bool:
        """Fill in a file; False if the sender could not read it after all."""
        while True:
            size = struct.unpack("<I", await self._exactly(4))[0]
            if size == 0:
                return True
            if size == _UNREADABLE:
                await self._text()
                return False
            if size > _MAX_CHUNK:
                raise Malformed("a piece of a file is out of bounds")
            node.data += await self._exactly(size)
            # Asked early, so that an endless file cannot fill the host's memory.
            self._fs.check_room(len(node.data), self._target)

    async def _text(self) -> str:
        size = struct.unpack("<I", await self._exactly(4))[0]
        if size > MAX_STRING:
            raise Malformed("a name without end")
        return (await self._exactly(size)).decode("utf-8", "surrogateescape")

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = await self._channel.read()
            if not data:
                raise Malformed("the archive was cut short")
            self._buffer += data
        data = bytes(self._buffer[:size])
        del self._buffer[:size]
        return data
