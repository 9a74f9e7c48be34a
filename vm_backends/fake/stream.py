"""The guest's end of the agent stream: parsing with hunting, channels, credit both ways."""

from __future__ import annotations

import asyncio
import errno
import os
import struct
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from vm_backends.agent import frames
from vm_backends.agent.frames import HEADER_SIZE, MAX_PAYLOAD, NONCE_SIZE, SYNC_MAGIC, Frame
from vm_backends.agent.protocol import Malformed, Packer, Type, Unpacker
from vm_backends.fake.clock import GuestClock

GRANT = 256 * 1024
"""What the host may send on a channel before it is given more."""
_REPAY = GRANT // 4


@dataclass(frozen=True, slots=True)
class Sync:
    nonce: bytes


class GuestParser:
    """Bytes from the host to frames and sync records; nonsense is skipped, never kept."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._hunting = False

    def feed(self, data: bytes) -> Iterator[Frame | Sync]:
        self._buffer += data
        while (got := self._next()) is not None:
            yield got

    def _next(self) -> Frame | Sync | None:
        buffer = self._buffer
        while True:
            if self._hunting and not self._hunt():
                return None
            if buffer[:1] == b"\0":
                del buffer[: len(buffer) - len(buffer.lstrip(b"\0"))]
            if not buffer:
                return None
            if buffer[0] == frames.START:
                size = self._frame_size()
                if size is not None and len(buffer) < size:
                    return None
                frame = self._frame(size)
                if frame is not None:
                    return frame
            elif SYNC_MAGIC.startswith(buffer[: len(SYNC_MAGIC)]):
                end = len(SYNC_MAGIC) + NONCE_SIZE
                if len(buffer) < end:
                    return None
                nonce = bytes(buffer[len(SYNC_MAGIC) : end])
                del buffer[:end]
                return Sync(nonce)
            del buffer[:1]
            self._hunting = True

    def _hunt(self) -> bool:
        at = self._buffer.find(SYNC_MAGIC)
        if at < 0:
            del self._buffer[: -len(SYNC_MAGIC) + 1]
            return False
        del self._buffer[:at]
        self._hunting = False
        return True

    def _frame_size(self) -> int | None:
        """How many bytes the frame at hand takes; None if its header cannot be right."""
        if len(self._buffer) < HEADER_SIZE:
            return HEADER_SIZE
        zero, _, length = struct.unpack_from("<HII", self._buffer, 2)
        return None if zero or length > MAX_PAYLOAD else frames.OVERHEAD + length

    def _frame(self, size: int | None) -> Frame | None:
        if size is None:
            return None
        raw = bytes(self._buffer[:size])
        _, type_, _, channel, _ = struct.unpack_from("<BBHII", raw)
        payload = raw[HEADER_SIZE:-4]
        if frames.encode(type_, channel, payload) != raw:
            return None
        del self._buffer[:size]
        return Frame(type_, channel, payload)


class Gone(Exception):
    """Nobody on the host is interested in this channel any more."""


class Conversation:
    """Everything said since one sync record; the next one makes it `over`."""

    def __init__(self, writer: asyncio.StreamWriter, clock: GuestClock) -> None:
        self._writer = writer
        self.clock = clock
        self.channels: dict[int, GuestChannel] = {}
        self._over = False

    def send(self, type_: int, channel: int, payload: bytes = b"") -> None:
        if not self._over:
            self._writer.write(frames.encode(type_, channel, payload))

    async def drained(self) -> None:
        await self._writer.drain()
        await self.clock.gate()

    def end(self) -> None:
        self._over = True
        for channel in list(self.channels.values()):
            channel.lose()


class GuestChannel:
    """One exec, session viewer, transfer or question, seen from the guest."""

    def __init__(self, talk: Conversation, number: int, credit: int) -> None:
        self._talk = talk
        self._number = number
        self._credit = credit
        self._granted = 0
        self._owed = 0
        self._input: deque[bytes] = deque()
        self._input_ended = False
        self._stirred = asyncio.Event()
        self.gone = False
        self.on_signal: Callable[[int], None] = lambda number: None
        self.on_resize: Callable[[int, int], None] = lambda columns, rows: None
        self.on_close: Callable[[], None] = lambda: None
        """The host said that it is no longer interested."""
        self.on_gone: Callable[[], None] = lambda: None
        """The channel has ended, however that came."""
        talk.channels[number] = self

    # What the guest says

    def allow(self, more: int) -> None:
        self._credit += more

    def opened(self, results: bytes = b"", grant: int = 0) -> None:
        self._granted = grant
        self._talk.send(Type.OPENED, self._number, Packer().u32(grant).raw(results).done())

    def refuse(self, number: int, message: str = "") -> None:
        words = message or os.strerror(number)
        self.finish(Type.REFUSED, Packer().i32(number).text(words).done())

    def reply(self, payload: bytes = b"") -> None:
        self.finish(Type.REPLY, payload)

    def exit(self, status: int, message: str = "") -> None:
        self.finish(Type.EXIT, Packer().i32(status).text(message).done())

    def tell(self, type_: Type, payload: bytes = b"") -> None:
        """A frame that costs no credit."""
        if not self.gone:
            self._talk.send(type_, self._number, payload)

    def finish(self, type_: Type, payload: bytes = b"") -> None:
        self.tell(type_, payload)
        self.lose()

    def lose(self) -> None:
        """From now on nothing is sent or received here."""
        self.gone = True
        self._talk.channels.pop(self._number, None)
        self._stirred.set()
        self.on_gone()

    async def room(self) -> int:
        """How many bytes may be sent, once that is more than none; raises Gone."""
        await self._talk.drained()
        while not self.gone and self._credit == 0:
            await self._stir()
        await self._talk.clock.gate()
        if self.gone:
            raise Gone
        return min(self._credit, MAX_PAYLOAD)

    def send_now(self, data: bytes, type_: Type = Type.DATA) -> None:
        """Send what `room` allowed, with no step in between."""
        self._credit -= len(data)
        self._talk.send(type_, self._number, data)

    async def send(self, data: bytes, type_: Type = Type.DATA) -> None:
        at = 0
        while at < len(data):
            room = await self.room()
            self.send_now(data[at : at + room], type_)
            at += room

    # What the host says

    async def read(self) -> bytes:
        """The next bytes from the host, b"" after its EOF; raises Gone if it left before."""
        while not self._input:
            if self._input_ended:
                return b""
            if self.gone:
                raise Gone
            await self._stir()
        data = self._input.popleft()
        self._owed += len(data)
        if self._owed >= _REPAY and not self._input_ended:
            self.tell(Type.CREDIT, Packer().u32(self._owed).done())
            self._granted += self._owed
            self._owed = 0
        return data

    def take(self, frame: Frame) -> None:
        """Act on a frame of this channel; raises Malformed."""
        fields = Unpacker(frame.payload)
        match frame.type:
            case Type.DATA:
                self._take_data(frame.payload)
                return
            case Type.EOF:
                self._input_ended = True
            case Type.CREDIT:
                self.allow(fields.u32())
            case Type.SIGNAL:
                self.on_signal(fields.u32())
            case Type.RESIZE:
                self.on_resize(fields.u16(), fields.u16())
            case Type.CLOSE:
                self.on_close()
                self.finish(Type.CLOSED)
            case _:
                raise Malformed(f"a host does not send type {frame.type} here")
        fields.end()
        self._stirred.set()

    def _take_data(self, data: bytes) -> None:
        if len(data) > self._granted:
            self.on_close()
            self.refuse(errno.EPROTO, "more data than was allowed")
            return
        self._granted -= len(data)
        if data and not self._input_ended:
            self._input.append(data)
            self._stirred.set()

    async def _stir(self) -> None:
        self._stirred.clear()
        await self._stirred.wait()
