"""A channel with credit: bytes out no faster than the guest takes them, bytes in as we use them."""

from __future__ import annotations

import asyncio

from vm_backends.agent.frames import MAX_PAYLOAD, Frame
from vm_backends.agent.link import Channel, printable, refusal
from vm_backends.agent.protocol import ENDS, WINDOW, Packer, Type, Unpacker
from vm_backends.errors import GuestGarbage, GuestUnreachable

GRANT_AT = WINDOW // 4
"""Give credit back in pieces of this size: one small frame for many data frames."""


class ChannelStream:
    """Wraps one opened channel. One reader, one writer, both bounded by credit."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._credit = 0
        self._more = asyncio.Event()
        self._used = 0
        self._over = False

    async def opened(self) -> Unpacker:
        """Wait for the guest's OPENED (its results follow) or raise its refusal."""
        frame = await self._next()
        if frame.type != Type.OPENED:
            raise GuestGarbage(f"the guest answered with message {frame.type} instead of opening")
        take = _parse(frame)
        self._grant(take.u32())
        return take

    async def reply(self) -> Unpacker:
        """The REPLY of a one-shot request."""
        frame = await self._next()
        if frame.type != Type.REPLY:
            raise GuestGarbage(f"the guest answered with message {frame.type} instead of a reply")
        return _parse(frame)

    async def write(self, data: bytes | memoryview) -> bool:
        """Send all of `data` as DATA; False if the channel ended before that."""
        view = memoryview(data)
        while view:
            while not self._credit and not self._over:
                self._more.clear()
                await self._more.wait()
            if self._over:
                return False
            size = min(len(view), self._credit, MAX_PAYLOAD)
            self._credit -= size
            await self._channel.send(Type.DATA, bytes(view[:size]))
            view = view[size:]
        return not self._over

    async def write_eof(self) -> None:
        if not self._over:
            await self._channel.send(Type.EOF)

    async def signal(self, number: int) -> None:
        await self._channel.send(Type.SIGNAL, Packer().u32(number).done())

    async def resize(self, columns: int, rows: int) -> None:
        size = Packer().u16(min(columns, 0xFFFF)).u16(min(rows, 0xFFFF)).done()
        await self._channel.send(Type.RESIZE, size)

    async def read(self) -> Frame:
        """The next frame that is not about credit; data already read is paid for here."""
        if self._used >= GRANT_AT and not self._over:
            used, self._used = self._used, 0
            await self._channel.send(Type.CREDIT, Packer().u32(used).done())
        frame = await self._next()
        if frame.type in (Type.DATA, Type.DATA2):
            self._used += len(frame.payload)
        return frame

    async def aclose(self) -> None:
        self._end()
        await self._channel.aclose()

    async def _next(self) -> Frame:
        while True:
            try:
                frame = await self._channel.receive()
            except BaseException:
                self._end()
                raise
            if frame.type == Type.CREDIT:
                self._grant(_parse(frame).u32())
                continue
            if frame.type in ENDS:
                self._end()
            if frame.type == Type.REFUSED:
                raise refusal(frame.payload)
            return frame

    def _grant(self, amount: int) -> None:
        self._credit += amount
        self._more.set()

    def _end(self) -> None:
        self._over = True
        self._more.set()


def exit_status(frame: Frame) -> tuple[int, str]:
    """Status and message of an EXIT: 0..255, or minus the signal that ended the process."""
    if frame.type != Type.EXIT:
        raise GuestUnreachable("the guest closed the channel without saying how it ended")
    take = _parse(frame)
    return take.i32(), printable(take.text())


def _parse(frame: Frame) -> Unpacker:
    return Unpacker(frame.payload)
