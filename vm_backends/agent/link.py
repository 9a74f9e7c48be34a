"""One conversation with a guest agent: many channels over one stream, resynchronised at will.

The link trusts the guest with nothing: frames are bounded, credit is enforced, and nonsense
leads to a new synchronisation, a few times, and then to `GuestGarbage`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Protocol

from vm_backends.agent import frames
from vm_backends.agent.frames import Frame, FrameReader, StreamLost
from vm_backends.agent.pipe import Pipe
from vm_backends.agent.protocol import (
    ENDS,
    VERSION,
    Hello,
    Kind,
    Malformed,
    Type,
    Unpacker,
    open_payload,
)
from vm_backends.errors import Fault, GuestGarbage, GuestRefused, GuestUnreachable

MAX_DISCARDED = 64 * 1024 * 1024
MAX_LOSSES = 3
"""How often a greeted guest may talk nonsense before we stop listening to it."""
SPARE = 64 * 1024
"""What a guest may send on a channel beside its credit (grants, gaps) between two of our frames."""
_FRAME_COST = 64


class Channel(Protocol):
    """One exec, session or transfer. The link and the keeper's client both give these."""

    async def send(self, type_: int, payload: bytes = b"") -> None:
        """Hand a frame over; waits only while the stream itself is full."""

    async def receive(self) -> Frame:
        """The next frame; after one of `protocol.ENDS` there is none. Raises what broke it."""

    async def aclose(self) -> None:
        """Tell the guest that nobody is interested any more. May be called twice."""


Sink = Callable[[Frame | Fault], None]


class AgentLink:
    """The host's end. `connect` makes one; `run` carries it until the stream ends."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._sinks: dict[int, Sink] = {}
        self._allowance: dict[int, int] = {}
        self._spare: dict[int, int] = {}
        self._next = 1
        self._hello: asyncio.Future[Hello] = asyncio.get_running_loop().create_future()
        self._hello.add_done_callback(_quiet)
        self._incoming = FrameReader()
        self._losses = 0
        self._task: asyncio.Task[None] | None = None
        self._broken: Fault | None = None
        self.on_event: Callable[[int], None] = lambda what: None
        self.on_hello: Callable[[Hello], None] = lambda hello: None

    def start(self) -> None:
        """Begin to read and ask for a greeting."""
        self.resync()
        self._task = asyncio.create_task(self._run(), name="agent link")

    def resync(self) -> None:
        """Start the conversation over, in the middle of anything; open channels fail."""
        if self._broken:
            return
        nonce = os.urandom(frames.NONCE_SIZE)
        self._incoming = FrameReader(nonce)
        if self._hello.done():
            self._hello = asyncio.get_running_loop().create_future()
            self._hello.add_done_callback(_quiet)
        self._pipe.write(frames.PADDING + frames.sync_record(nonce))
        self._fail_channels(GuestUnreachable("the connection to the guest was started over"))

    async def greeting(self, deadline_s: float) -> Hello:
        """The agent's HELLO of this conversation; GuestUnreachable if it does not come in time."""
        if self._broken:
            raise self._broken
        try:
            return await asyncio.wait_for(asyncio.shield(self._hello), deadline_s)
        except TimeoutError:
            raise GuestUnreachable(
                f"the guest's agent did not answer within {deadline_s:g} s"
            ) from None

    @property
    def greeted(self) -> Hello | None:
        if self._broken or not self._hello.done() or self._hello.cancelled():
            return None
        return None if self._hello.exception() else self._hello.result()

    # Channels

    def attach(self, payload: bytes, window: int, sink: Sink) -> int:
        """Open a channel whose frames go to `sink`; the number to send with. Never waits."""
        if self._broken:
            raise self._broken
        if self.greeted is None:
            raise GuestUnreachable("the guest's agent has not greeted yet")
        number = self._next
        self._next += 1
        self._sinks[number] = sink
        self._allowance[number] = window
        self._spare[number] = SPARE
        self._pipe.write(frames.encode(Type.OPEN, number, payload))
        return number

    def forward(self, number: int, type_: int, payload: bytes) -> None:
        """Send a frame of an open channel; frames for an ended one are dropped."""
        if number not in self._sinks:
            return
        if type_ == Type.CREDIT:
            self._allowance[number] += Unpacker(payload).u32()
        self._spare[number] = SPARE
        self._pipe.write(frames.encode(type_, number, payload))

    def abandon(self, number: int) -> None:
        """CLOSE: the guest is told, whatever still comes for the channel is dropped."""
        if self._sinks.pop(number, None) is not None and not self._broken:
            del self._allowance[number], self._spare[number]
            self._pipe.write(frames.encode(Type.CLOSE, number))

    async def drained(self) -> None:
        """Until the stream can take more."""
        try:
            await self._pipe.drained()
        except OSError as error:
            raise self._broken or GuestUnreachable("the guest's port was closed") from error

    async def open(self, kind: Kind, arguments: bytes = b"") -> LinkChannel:
        return LinkChannel(self, open_payload(kind, arguments))

    async def aclose(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        self._break(GuestUnreachable("the connection to the guest was closed"))
        # Not close(): that waits for a guest to take what is unsent, and a paused one never will.
        self._pipe.abort()

    # Inside

    async def _run(self) -> None:
        try:
            while data := await self._pipe.read():
                self._take(data)
            self._break(GuestUnreachable("the guest's port was closed"))
        except OSError as error:
            self._break(GuestUnreachable(f"the guest's port failed: {error.strerror}"))
        except Fault as fault:
            self._break(fault)
        except Exception:
            self._break(GuestUnreachable("the connection to the guest failed inside Boxgrove"))
            raise

    def _take(self, data: bytes) -> None:
        try:
            incoming = self._incoming
            for frame in incoming.feed(data):
                self._dispatch(frame)
                if incoming is not self._incoming:
                    # Started over meanwhile: what follows belongs to the old conversation.
                    break
        except (StreamLost, Malformed) as error:
            self._losses += 1
            if self._losses > MAX_LOSSES:
                raise GuestGarbage(f"the guest's agent sends nonsense ({error})") from error
            self.resync()
        if self._incoming.discarded > MAX_DISCARDED:
            raise GuestGarbage("the guest sends bytes without end and no greeting")

    def _dispatch(self, frame: Frame) -> None:
        if frame.channel == 0:
            self._take_control(frame)
            return
        sink = self._sinks.get(frame.channel)
        if sink is None:
            return
        if frame.type in ENDS:
            del self._sinks[frame.channel]
            del self._allowance[frame.channel], self._spare[frame.channel]
        else:
            self._charge(frame)
        sink(frame)

    def _charge(self, frame: Frame) -> None:
        """Data costs credit, every other frame costs a little: no channel can fill our memory."""
        if frame.type in (Type.DATA, Type.DATA2) and frame.payload:
            purse, cost = self._allowance, len(frame.payload)
        else:
            purse, cost = self._spare, len(frame.payload) + _FRAME_COST
        if cost > purse[frame.channel]:
            raise Malformed("more than it was allowed to send")
        purse[frame.channel] -= cost

    def _take_control(self, frame: Frame) -> None:
        if frame.type == Type.HELLO:
            hello = Hello.unpack(frame.payload)
            if hello.version != VERSION:
                raise GuestGarbage(
                    f"the guest's agent speaks version {hello.version}, we speak {VERSION}",
                    hint="Stop the box and start it again: that gives it the right agent.",
                )
            if not self._hello.done():
                self._hello.set_result(hello)
                self.on_hello(hello)
        elif frame.type == Type.EVENT:
            self.on_event(Unpacker(frame.payload).u8())

    def _fail_channels(self, fault: Fault) -> None:
        sinks, self._sinks, self._allowance, self._spare = self._sinks, {}, {}, {}
        for sink in sinks.values():
            sink(fault)

    def _break(self, fault: Fault) -> None:
        if self._broken is None:
            self._broken = fault
            self._fail_channels(fault)
            if not self._hello.done():
                self._hello.set_exception(fault)


class LinkChannel:
    """A channel of an `AgentLink` in this very process."""

    def __init__(self, link: AgentLink, payload: bytes) -> None:
        self._link = link
        self._frames: asyncio.Queue[Frame | Fault] = asyncio.Queue()
        window = Unpacker(payload[1:5]).u32()
        self._number = link.attach(payload, window, self._frames.put_nowait)

    async def send(self, type_: int, payload: bytes = b"") -> None:
        self._link.forward(self._number, type_, payload)
        await self._link.drained()

    async def receive(self) -> Frame:
        got = await self._frames.get()
        if isinstance(got, Fault):
            self._frames.put_nowait(got)
            raise got
        return got

    async def aclose(self) -> None:
        self._link.abandon(self._number)


def refusal(payload: bytes) -> GuestRefused:
    """The guest's REFUSED as our error."""
    take = Unpacker(payload)
    errno = take.i32()
    return GuestRefused(printable(take.text()), errno=errno)


def printable(text: str, limit: int = 400) -> str:
    """Text from a guest made safe to show: no control characters, bounded."""
    shown = "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:limit])
    return shown.encode("utf-8", "replace").decode()


def _quiet(future: asyncio.Future[Hello]) -> None:
    """A greeting that nobody waits for may fail in silence."""
    if not future.cancelled():
        future.exception()
