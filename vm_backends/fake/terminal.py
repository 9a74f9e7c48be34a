"""Terminal sessions of the pretend guest: a line discipline, a ring of output, its viewers."""

from __future__ import annotations

import asyncio
import re
import signal
from collections import deque
from collections.abc import Callable

from vm_backends.agent.protocol import Packer, Type
from vm_backends.fake.process import Process
from vm_backends.fake.stream import Gone, GuestChannel

RING = 256 * 1024
_PIECE = 4096
_MAX_LINE = 4096
_MAX_UNREAD = 64 * 1024
_ESCAPE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|O.|[^\[O])")


class Ring:
    """The last 256 KiB of what was printed, and who has seen how much of it."""

    def __init__(self) -> None:
        self._data = bytearray()
        self.start = 0
        """The place of the oldest byte kept, counted from the first ever printed."""
        self.cursors: dict[object, int] = {}
        self.over = False
        self._stirred = asyncio.Event()

    @property
    def end(self) -> int:
        return self.start + len(self._data)

    def append(self, data: bytes) -> None:
        self._data += data
        excess = max(0, len(self._data) - RING)
        del self._data[:excess]
        self.start += excess
        self.stir()

    async def has_room(self, size: int) -> None:
        """Until some viewer keeps up, or there is none."""
        while self.cursors and all(self.end + size - at > RING for at in self.cursors.values()):
            await self.stirred()

    def slice(self, at: int, size: int) -> bytes:
        return bytes(self._data[at - self.start : at - self.start + size])

    def stir(self) -> None:
        self._stirred.set()

    async def stirred(self) -> None:
        self._stirred.clear()
        await self._stirred.wait()


class Tty:
    """Line editing between the viewers of a session and whatever runs in its foreground."""

    def __init__(self, ring: Ring, columns: int, rows: int) -> None:
        self._ring = ring
        self.columns = columns
        self.rows = rows
        self.foreground = 0
        self.on_signal: Callable[[int], None] = lambda number: None
        self._line = bytearray()
        self._lines: deque[bytes] = deque()
        self._stirred = asyncio.Event()

    # The side of the programs

    async def read(self) -> bytes:
        """One line, or what was typed before Ctrl-D: b"" if that was nothing."""
        while not self._lines:
            self._stirred.clear()
            await self._stirred.wait()
        return self._lines.popleft()

    async def write(self, data: bytes) -> None:
        for at in range(0, len(data), _PIECE):
            piece = data[at : at + _PIECE].replace(b"\n", b"\r\n")
            await self._ring.has_room(len(piece))
            self._ring.append(piece)

    def echo(self, data: bytes) -> None:
        self._ring.append(data)

    # The side of the keyboard

    def type(self, data: bytes) -> None:
        # A key such as an arrow is one escape sequence: this editor has no use for it.
        for byte in _ESCAPE.sub(b"", data):
            self._key(byte)

    def _key(self, byte: int) -> None:
        match byte:
            case 0x03:
                self._line.clear()
                self.echo(b"^C\r\n")
                self.on_signal(signal.SIGINT)
            case 0x04:
                self._push(bytes(self._line))
            case 0x08 | 0x7F:
                self._rub_out()
            case 0x0A | 0x0D:
                self.echo(b"\r\n")
                self._push(bytes(self._line) + b"\n")
            case 0x15:
                while self._line:
                    self._rub_out()
            case _ if byte < 0x20 and byte != 0x09:
                pass
            case _ if len(self._line) >= _MAX_LINE:
                self.echo(b"\a")
            case _:
                self._line.append(byte)
                self.echo(bytes([byte]))

    def _rub_out(self) -> None:
        if not self._line:
            return
        while self._line and self._line[-1] & 0xC0 == 0x80:
            self._line.pop()
        if self._line:
            self._line.pop()
        self.echo(b"\b \b")

    def _push(self, line: bytes) -> None:
        self._line.clear()
        if sum(map(len, self._lines)) + len(line) > _MAX_UNREAD:
            self.echo(b"\a")
            return
        self._lines.append(line)
        self._stirred.set()


class Session:
    """A terminal with a process and a name; it lives in the guest, whoever looks on."""

    def __init__(self, name: str, created_s: int, columns: int, rows: int) -> None:
        self.name = name
        self.created_s = created_s
        self.ring = Ring()
        self.tty = Tty(self.ring, columns, rows)
        self.process: Process | None = None
        self.passing = False
        self.status = 0

    def run(self, process: Process) -> None:
        self.process = process
        self.tty.foreground = process.group
        self.tty.on_signal = self.signal

    def signal(self, number: int) -> None:
        if self.process is not None:
            self.process.world.signal_group(self.tty.foreground, number)

    def resize(self, columns: int, rows: int) -> None:
        self.tty.columns, self.tty.rows = columns, rows
        self.signal(signal.SIGWINCH)

    async def live(self) -> None:
        """Until its process has ended; viewers then get the rest and the status."""
        assert self.process is not None
        self.status = await self.process.wait()
        self.ring.over = True
        self.ring.stir()

    def attach(self, channel: GuestChannel) -> None:
        self.ring.cursors[channel] = self.ring.start
        channel.on_signal = self.signal
        channel.on_resize = self.resize
        channel.on_gone = self.ring.stir

    def detach(self, channel: GuestChannel) -> None:
        self.ring.cursors.pop(channel, None)
        if self.passing and not self.ring.cursors:
            self.signal(signal.SIGHUP)
        self.ring.stir()

    async def show(self, channel: GuestChannel) -> None:
        """Send one viewer everything, as its credit allows, until it leaves or it is over."""
        ring = self.ring
        try:
            while True:
                while ring.cursors[channel] == ring.end and not ring.over and not channel.gone:
                    await ring.stirred()
                if ring.cursors[channel] == ring.end and ring.over:
                    channel.exit(self.status)
                    return
                room = await channel.room()
                missed = ring.start - ring.cursors[channel]
                if missed > 0:
                    channel.tell(Type.GAP, Packer().u64(missed).done())
                    ring.cursors[channel] = ring.start
                data = ring.slice(ring.cursors[channel], room)
                channel.send_now(data)
                ring.cursors[channel] += len(data)
                ring.stir()
        except Gone:
            pass
        finally:
            self.detach(channel)

    async def listen(self, channel: GuestChannel) -> None:
        """Take what one viewer types."""
        try:
            while data := await channel.read():
                self.tty.type(data)
        except Gone:
            pass
