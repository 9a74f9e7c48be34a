"""The messages spoken with the guest agent: types, kinds, and typed packing of their fields.

`resources/guest/PROTOCOL.md` is the specification this follows; the C side is
`resources/guest/agent/`. Reading is strict: a field that runs past its payload, a string with a
NUL or a left-over byte is `Malformed`, never a guess.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Self

VERSION = 1
WINDOW = 512 * 1024
MAX_STRING = 32 * 1024


class Type(IntEnum):
    HELLO = 1
    OPEN = 2
    OPENED = 3
    REFUSED = 4
    DATA = 5
    DATA2 = 6
    EOF = 7
    CREDIT = 8
    SIGNAL = 9
    RESIZE = 10
    EXIT = 11
    CLOSE = 12
    CLOSED = 13
    REPLY = 14
    GAP = 15
    EVENT = 16


ENDS = frozenset({Type.REFUSED, Type.EXIT, Type.CLOSED, Type.REPLY})


class Kind(IntEnum):
    EXEC = 1
    SESSION = 2
    SESSIONS = 3
    GET = 4
    PUT = 5
    STAT = 6
    METRICS = 7
    POWER = 8
    SETUP = 9
    PING = 10


class GuestEvent(IntEnum):
    REBOOTING = 1
    POWERING_OFF = 2


class Malformed(Exception):
    """A payload that does not say what its type promises."""


class Packer:
    """Builds a payload field by field."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def u8(self, value: int) -> Self:
        return self.raw(struct.pack("<B", value))

    def u16(self, value: int) -> Self:
        return self.raw(struct.pack("<H", value))

    def u32(self, value: int) -> Self:
        return self.raw(struct.pack("<I", value))

    def i32(self, value: int) -> Self:
        return self.raw(struct.pack("<i", value))

    def u64(self, value: int) -> Self:
        return self.raw(struct.pack("<Q", value))

    def i64(self, value: int) -> Self:
        return self.raw(struct.pack("<q", value))

    def text(self, value: str | bytes) -> Self:
        data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        if len(data) > MAX_STRING or b"\0" in data:
            raise ValueError("a string for the guest is too long or has a NUL in it")
        return self.u32(len(data)).raw(data)

    def texts(self, values: list[str] | tuple[str, ...]) -> Self:
        self.u32(len(values))
        for value in values:
            self.text(value)
        return self

    def raw(self, data: bytes) -> Self:
        self._parts.append(data)
        return self

    def done(self) -> bytes:
        return b"".join(self._parts)


class Unpacker:
    """Takes a payload apart, field by field, and trusts nothing in it."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise Malformed("a field runs past the end of its message")
        piece = self._data[self._at : end]
        self._at = end
        return piece

    def _number(self, form: str, size: int) -> int:
        value: int = struct.unpack(form, self._take(size))[0]
        return value

    def u8(self) -> int:
        return self._number("<B", 1)

    def u16(self) -> int:
        return self._number("<H", 2)

    def u32(self) -> int:
        return self._number("<I", 4)

    def i32(self) -> int:
        return self._number("<i", 4)

    def u64(self) -> int:
        return self._number("<Q", 8)

    def i64(self) -> int:
        return self._number("<q", 8)

    def exactly(self, size: int) -> bytes:
        return self._take(size)

    def blob(self) -> bytes:
        size = self.u32()
        if size > MAX_STRING:
            raise Malformed("a string is over its limit")
        data = self._take(size)
        if b"\0" in data:
            raise Malformed("a string has a NUL in it")
        return data

    def text(self) -> str:
        return self.blob().decode("utf-8", "surrogateescape")

    def texts(self) -> list[str]:
        count = self.u32()
        if count > (len(self._data) - self._at) // 4:
            raise Malformed("a list is longer than its message")
        return [self.text() for _ in range(count)]

    def rest(self) -> bytes:
        return self._take(len(self._data) - self._at)

    def end(self) -> None:
        if self._at != len(self._data):
            raise Malformed("a message has bytes after its end")


@dataclass(frozen=True, slots=True)
class Hello:
    """The agent's greeting."""

    version: int
    epoch: str
    is_init: bool
    kernel: str
    hostname: str

    @staticmethod
    def unpack(payload: bytes) -> Hello:
        take = Unpacker(payload)
        hello = Hello(
            take.u16(),
            take.exactly(16).hex(),
            bool(take.u8()),
            take.text()[:256],
            take.text()[:256],
        )
        take.end()
        return hello

    def pack(self) -> bytes:
        return (
            Packer()
            .u16(self.version)
            .raw(bytes.fromhex(self.epoch))
            .u8(self.is_init)
            .text(self.kernel)
            .text(self.hostname)
            .done()
        )


def open_payload(kind: Kind, arguments: bytes = b"", window: int = WINDOW) -> bytes:
    return Packer().u8(kind).u32(window).raw(arguments).done()
