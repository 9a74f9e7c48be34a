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
        if self._awaited is not None:
            self._buffer += data
            if not self._find_sync(self._awaited):
                return
            data = bytes(self._buffer)
            self._buffer.clear()
        yield from self._frames(data)

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

    def _frames(self, data: bytes) -> Iterator[Frame]:
        """Frames are cut out of `data` itself; only one that is not whole yet is put aside."""
        at = 0
        if self._buffer:
            at = self._complete(data)
            if at < 0:
                return
            yield _frame(self._buffer, 0, _length(self._buffer, 0))
            self._buffer.clear()
        while at < len(data):
            if data[at] == 0:
                padding = _ZEROS.match(data, at)
                assert padding
                at = padding.end()
                continue
            if data[at] != START:
                raise StreamLost(f"byte {data[at]:#x} is not the start of a frame")
            if len(data) - at < HEADER_SIZE:
                break
            length = _length(data, at)
            if len(data) - at < length + OVERHEAD:
                break
            yield _frame(data, at, length)
            at += length + OVERHEAD
        self._buffer += data[at:]

    def _complete(self, data: bytes) -> int:
        """Add to the frame put aside what it lacks; how much that took, -1 if it lacks more."""
        taken = 0
        for wanted in (HEADER_SIZE, None):
            total = _length(self._buffer, 0) + OVERHEAD if wanted is None else wanted
            lacking = max(0, total - len(self._buffer))
            self._buffer += data[taken : taken + lacking]
            taken += lacking
            if len(self._buffer) < total:
                return -1
        return taken


def _length(data: bytes | bytearray, at: int) -> int:
    """The length of the payload that a header announces, if it may be that long."""
    _, _, zero, _, length = _HEADER.unpack_from(data, at)
    if zero or length > MAX_PAYLOAD:
        raise StreamLost("a frame's header is out of bounds")
    size: int = length
    return size


def _frame(data: bytes | bytearray, at: int, length: int) -> Frame:
    """The whole frame that starts at `at`, its check made."""
    _, type_, _, channel, _ = _HEADER.unpack_from(data, at)
    end = at + HEADER_SIZE + length
    if _CHECK.unpack_from(data, end)[0] != _check(type_, channel, length):
        raise StreamLost("a frame's check does not fit")
    return Frame(type_, channel, bytes(data[at + HEADER_SIZE : end]))
