"""One stream socket in chunks, as they come from the kernel.

asyncio's own StreamReader copies every byte twice before it can be parsed; at a hundred megabytes
a second that is half of a keeper's work.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from pathlib import Path

READ_AHEAD = 1024 * 1024
"""Beyond this many unread bytes the sender has to wait."""


class Pipe(asyncio.Protocol):
    """A connected socket: `read` chunks, `write`, wait until `drained`."""

    def __init__(self, on_connected: Callable[[Pipe], Awaitable[None]] | None = None) -> None:
        self._on_connected = on_connected
        self._serving: asyncio.Future[None] | None = None
        self._chunks: deque[bytes] = deque()
        self._unread = 0
        self._reading_paused = False
        self._ended = False
        self._error: Exception | None = None
        self._came = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()

    @staticmethod
    async def connect(path: Path) -> Pipe:
        loop = asyncio.get_running_loop()
        return (await loop.create_unix_connection(Pipe, str(path)))[1]

    @staticmethod
    async def over(connected: socket.socket) -> Pipe:
        """A pipe over a socket of whatever kind that is connected already."""
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(Pipe, sock=connected))[1]

    # For its owner

    async def read(self) -> bytes:
        """The next bytes, empty at the end; OSError if the connection broke."""
        while not self._chunks:
            if self._error:
                raise self._error
            if self._ended:
                return b""
            self._came.clear()
            await self._came.wait()
        data = self._chunks.popleft()
        self._unread -= len(data)
        if self._reading_paused and self._unread < READ_AHEAD // 2:
            self._reading_paused = False
            self._transport.resume_reading()
        return data

    def write(self, data: bytes) -> None:
        if not self._ended:
            self._transport.write(data)

    async def drained(self) -> None:
        """Until the kernel has taken most of what was written; OSError once it never will."""
        if not self._writable.is_set():
            await self._writable.wait()
        if self._ended:
            raise self._error or ConnectionResetError("the other side has gone")

    def close(self) -> None:
        """After what was written is sent."""
        self._transport.close()

    def abort(self) -> None:
        """At once: what is unsent is dropped."""
        self._transport.abort()

    # For the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self._on_connected:
            self._serving = asyncio.ensure_future(self._on_connected(self))

    def data_received(self, data: bytes) -> None:
        self._chunks.append(data)
        self._unread += len(data)
        if self._unread > READ_AHEAD and not self._reading_paused:
            self._reading_paused = True
            self._transport.pause_reading()
        self._came.set()

    def eof_received(self) -> bool:
        self._end(None)
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self._end(error)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _end(self, error: Exception | None) -> None:
        if not self._ended:
            self._ended, self._error = True, error
        self._came.set()
        self._writable.set()
