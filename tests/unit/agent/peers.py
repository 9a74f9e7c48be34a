"""A guest's end of a link that says whatever a test wants it to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from vm_backends.agent import frames
from vm_backends.agent.link import AgentLink
from vm_backends.agent.pipe import Pipe
from vm_backends.agent.protocol import VERSION, Hello, Type

HELLO = Hello(VERSION, "ab" * 16, True, "6.1", "peer")


class Peer:
    """The stream as the guest has it, with nothing done on its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def next_nonce(self) -> bytes:
        await self.reader.readuntil(frames.SYNC_MAGIC)
        return await self.reader.readexactly(frames.NONCE_SIZE)

    async def greet(self, hello: bytes = HELLO.pack()) -> None:
        nonce = await self.next_nonce()
        self.say(frames.sync_record(nonce), frames.encode(Type.HELLO, 0, hello))

    def say(self, *pieces: bytes) -> None:
        self.writer.write(b"".join(pieces))

    async def drained(self) -> bool:
        """False once the host has hung up."""
        try:
            await self.writer.drain()
        except OSError:
            return False
        return True


@asynccontextmanager
async def linked() -> AsyncIterator[tuple[AgentLink, Peer]]:
    """A link that has asked for its greeting, and the peer that may give it."""
    ours, theirs = socket.socketpair()
    # The padding alone is longer than the usual limit of `readuntil`.
    reader, writer = await asyncio.open_connection(sock=theirs, limit=2**20)
    link = AgentLink(await Pipe.over(ours))
    link.start()
    try:
        yield link, Peer(reader, writer)
    finally:
        await link.aclose()
        writer.transport.abort()
        # Both ends are closed in the next turns of the loop.
        await asyncio.sleep(0)
        await asyncio.sleep(0)
