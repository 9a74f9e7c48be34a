"""Frames and sync records: how bytes on a stream become messages, and never more than that.

`resources/guest/PROTOCOL.md` is the specification. The same frames carry a client's talk with a
keeper. Everything that comes in is bounded before it is kept.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from typing import NamedTuple

START = 0xB5
MAX_PAYLOAD = 65536
SYNC_MAGIC = b"\xf1boxgrove-sync\n\x1f"
NONCE_SIZE = 16
PADDING = bytes(MAX_PAYLOAD + 16)

_HEADER = struct.Struct("<BBHII")
_CHECK = struct.Struct("<I")
_ZEROS = re.compile(rb"\0+")
HEADER_SIZE = _HEADER.size
OVERHEAD = HEADER_SIZE + _CHECK.size


class Frame(NamedTuple):
    type: int
    channel: int
    payload: bytes


class StreamLost(Exception):
    """The bytes at hand are not a frame: the stream has to be synchronised anew."""


def _check(type_: int, channel: int, length: int) -> int:
    mixed = (channel * 0x9E3779B1) ^ (length * 0x85EBCA6B) ^ (type_ * 0xC2B2AE35) ^ 0x5A17C0DE
    return mixed & 0xFFFFFFFF or 1


def encode(type_: int, channel: int, payload: bytes | memoryview = b"") -> bytes:
    """One frame as bytes; the payload must fit."""
    length = len(payload)
    if length > MAX_PAYLOAD:
        raise ValueError(f"a payload of {length} bytes is over {MAX_PAYLOAD}")
    head = _HEADER.pack(START, type_, 0, channel, length)
    return b"".join((head, payload, _CHECK.pack(_check(type_, channel, length))))


def sync_record(nonce: bytes) -> bytes:
    return SYNC_MAGIC + nonce


class FrameReader:
    """Turns chunks of bytes into frames.

    With a nonce it first throws everything away up to that sync record. After `StreamLost` it
    is of no further use: the link starts over with a new reader and a new nonce.
    """

    def __init__(self, nonce: bytes | None = None) -> None:
        self._buffer = bytearray()
        self._awaited = None if nonce is None else sync_record(nonce)
        self.discarded = 0

    @property
    def synced(self) -> bool:
        return self._awaited is None

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield every frame that is complete with `data`; raise StreamLost on nonsense."""
        self._buffer += data
        if self._awaited is not None and not self._find_sync(self._awaited):
            return
        yield from self._frames()

    def _find_sync(self, record: bytes) -> bool:
        at = self._buffer.find(record)
        if at < 0:
            keep = len(record) - 1
            drop = max(0, len(self._buffer) - keep)
            self.discarded += drop
            del self._buffer[:drop]
            return False
        self.discarded += at
        del self._buffer[: at + len(record)]
        self._awaited = None
        return True

    def _frames(self) -> Iterator[Frame]:
        buffer = self._buffer
        at = 0
        try:
            while len(buffer) - at >= HEADER_SIZE:
                start, type_, zero, channel, length = _HEADER.unpack_from(buffer, at)
                if start != START:
                    if padding := _ZEROS.match(buffer, at):
                        at = padding.end()
                        continue
                    raise StreamLost(f"byte {start:#x} is not the start of a frame")
                if zero or length > MAX_PAYLOAD:
                    raise StreamLost("a frame's header is out of bounds")
                end = at + HEADER_SIZE + length
                if len(buffer) < end + _CHECK.size:
                    break
                if _CHECK.unpack_from(buffer, end)[0] != _check(type_, channel, length):
                    raise StreamLost("a frame's check does not fit")
                payload = bytes(memoryview(buffer)[at + HEADER_SIZE : end])
                at = end + _CHECK.size
                yield Frame(type_, channel, payload)
        finally:
            del buffer[:at]
