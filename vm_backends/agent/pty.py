"""A guest terminal as an async byte stream with a size.

The session lives in the guest: closing this only leaves it, and attaching again by name shows
the last 256 KiB of what it printed.
"""

from __future__ import annotations

from dataclasses import dataclass

from vm_backends.agent.link import printable
from vm_backends.agent.protocol import Type, Unpacker
from vm_backends.agent.stream import ChannelStream, exit_status


@dataclass(frozen=True, slots=True)
class SessionInfo:
    name: str
    pid: int
    columns: int
    rows: int
    viewers: int
    created: int
    command: str

    @staticmethod
    def unpack(take: Unpacker) -> SessionInfo:
        return SessionInfo(
            printable(take.text(), 64),
            take.u32(),
            take.u16(),
            take.u16(),
            take.u16(),
            take.i64(),
            printable(take.text()),
        )


class GuestTerminal:
    """One viewer of a session."""

    def __init__(
        self, stream: ChannelStream, *, name: str, pid: int, created: bool, replay: int
    ) -> None:
        self._stream = stream
        self.name = name
        self.pid = pid
        self.created = created
        self.replay = replay
        """How many of the first bytes are old output, shown again."""
        self.status: int | None = None
        """How its process ended, once it has."""

    @staticmethod
    async def opened(stream: ChannelStream) -> GuestTerminal:
        take = await stream.opened()
        created, pid, replay = bool(take.u8()), take.u32(), take.u32()
        name = printable(take.text(), 64)
        return GuestTerminal(stream, name=name, pid=pid, created=created, replay=replay)

    async def read(self) -> bytes:
        """What it printed next; empty once the session has ended (see `status`)."""
        while self.status is None:
            frame = await self._stream.read()
            if frame.type == Type.DATA:
                return frame.payload
            if frame.type == Type.EXIT:
                self.status = exit_status(frame)[0]
            elif frame.type == Type.CLOSED:
                break
        return b""

    async def write(self, data: bytes) -> None:
        await self._stream.write(data)

    async def resize(self, columns: int, rows: int) -> None:
        await self._stream.resize(columns, rows)

    async def signal(self, number: int) -> None:
        """To whatever runs in its foreground."""
        await self._stream.signal(number)

    async def aclose(self) -> None:
        """Leave; the session stays."""
        await self._stream.aclose()
