"""A million frames, whole and spoiled, against the host's parsers: Faults or nothing.

BOXGROVE_FUZZ_FRAMES says how many; BOXGROVE_FUZZ_SEED repeats a run.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Iterator
from functools import partial

import pytest

from tests.unit.agent.peers import HELLO, Peer, linked
from vm_backends.agent import frames, link
from vm_backends.agent.frames import Frame, FrameReader, StreamLost
from vm_backends.agent.protocol import WINDOW, Kind, Malformed, Type, Unpacker, open_payload
from vm_backends.errors import Fault, GuestGarbage, GuestUnreachable

TOTAL = int(os.environ.get("BOXGROVE_FUZZ_FRAMES", "1000000"))
SEED = int(os.environ.get("BOXGROVE_FUZZ_SEED", "0")) or random.SystemRandom().getrandbits(32)
BATCH = 500
CHANNELS = 8
LIVELY = (Type.DATA, Type.DATA, Type.DATA2, Type.CREDIT, Type.EOF, Type.GAP, Type.OPENED)
"""Types that do not end their channel."""


def some_frames(chance: random.Random, count: int, channel: int = 0) -> Iterator[Frame]:
    """Mostly small, of every type and of none, for channels that are open and others."""
    for _ in range(count):
        type_ = chance.choice(LIVELY) if chance.random() < 0.98 else chance.randrange(20)
        size = chance.choice((0, 0, 1, 4, 4, 8, 12, 30))
        if chance.random() < 0.0005:
            size = chance.randrange(frames.MAX_PAYLOAD + 1)
        yield Frame(type_, channel + chance.randrange(CHANNELS + 2), chance.randbytes(size))


def spoiled(chance: random.Random, raw: bytes) -> tuple[bytes, int]:
    """The bytes with something wrong in them, and how many before that are as they were."""
    at = chance.randrange(len(raw))
    match chance.randrange(4):
        case 0:
            flipped = bytes([raw[at] ^ chance.randrange(1, 256)])
            return raw[:at] + flipped + raw[at + 1 :], at
        case 1:
            return raw[:at] + raw[at + chance.randrange(1, 40) :], at
        case 2:
            return raw[:at] + chance.randbytes(chance.randrange(1, 40)) + raw[at:], at
        case _:
            return raw[:at], at


def test_reader() -> None:
    chance = random.Random(SEED)
    for _ in range(TOTAL // 2 // BATCH):
        sent = list(some_frames(chance, BATCH))
        raw, good = b"".join(frames.encode(*frame) for frame in sent), 0
        spoil = chance.random() < 0.7
        if spoil:
            raw, good = spoiled(chance, raw)
        found: list[Frame] = []
        at = 0
        reader = FrameReader()
        try:
            while at < len(raw):
                step = chance.choice((1, 7, 100, 5000, 70000))
                found += reader.feed(raw[at : at + step])
                at += step
                kept = len(reader._buffer)
                assert kept < frames.MAX_PAYLOAD + frames.OVERHEAD, f"seed {SEED}"
        except StreamLost:
            assert spoil, f"seed {SEED}"
        whole = len(sent) if not spoil else _complete(sent, good)
        assert found[:whole] == sent[:whole], f"seed {SEED}"
        assert spoil or found == sent, f"seed {SEED}"
        _read_fields(chance, found)


def _complete(sent: list[Frame], size: int) -> int:
    """How many frames lie wholly within so many bytes."""
    count = 0
    for frame in sent:
        size -= frames.OVERHEAD + len(frame.payload)
        if size < 0:
            break
        count += 1
    return count


def _read_fields(chance: random.Random, found: list[Frame]) -> None:
    for frame in found[:50]:
        take = Unpacker(frame.payload)
        try:
            for name in chance.choices(("u8", "u32", "i64", "text", "texts", "blob"), k=3):
                getattr(take, name)()
            take.end()
        except Malformed:
            pass


async def test_link() -> None:
    """Links against a peer that greets and then talks wildly, each until it gives up."""
    chance = random.Random(SEED + 1)
    told = Told()
    sent = links = 0
    while sent < TOTAL // 2:
        async with linked() as (host, peer):
            task = host._task
            assert task is not None
            while not task.done():
                greeting = asyncio.create_task(peer.greet())
                await asyncio.wait([greeting, task], return_when=asyncio.FIRST_COMPLETED)
                greeting.cancel()
                if not task.done():
                    assert await host.greeting(20) == HELLO, f"seed {SEED}"
                    sent += await _talk_wildly(chance, peer, host, told)
            assert not task.exception(), f"seed {SEED}"
            with pytest.raises(GuestGarbage):
                await host.greeting(1)
        links += 1
    assert told.frames > sent // 3, f"{told.frames} of {sent} frames of {links} links got through"


class Told:
    """What came out of a link's channels, held against what the guest was allowed."""

    def __init__(self) -> None:
        self.frames = 0
        self._open: list[int] = []

    def open(self, host: link.AgentLink) -> int:
        """New channels in place of those that were; the number of the first."""
        for number in self._open:
            host.abandon(number)
        self._open = [self._open_one(host) for _ in range(CHANNELS)]
        return self._open[0]

    def _open_one(self, host: link.AgentLink) -> int:
        data = other = 0
        over = False

        def sink(got: Frame | Fault) -> None:
            nonlocal data, other, over
            assert not over, f"seed {SEED}: something after the end"
            if isinstance(got, Fault):
                assert isinstance(got, GuestUnreachable)
                over = True
            elif got.type in (Type.REFUSED, Type.EXIT, Type.CLOSED, Type.REPLY):
                over = True
            elif got.type in (Type.DATA, Type.DATA2) and got.payload:
                data += len(got.payload)
            else:
                other += len(got.payload) + 64
            self.frames += 1
            assert data <= WINDOW and other <= link.SPARE, f"seed {SEED}"

        return host.attach(open_payload(Kind.EXEC), WINDOW, sink)


def _set(event: asyncio.Event, got: Frame | Fault) -> None:
    event.set()


async def _talk_wildly(chance: random.Random, peer: Peer, host: link.AgentLink, told: Told) -> int:
    count = 0
    while host.greeted and count < 20 * BATCH:
        done = asyncio.Event()
        last = host.attach(open_payload(Kind.PING), 0, partial(_set, done))
        batch = list(some_frames(chance, BATCH, told.open(host)))
        if chance.random() < 0.05:
            batch.append(Frame(chance.choice((Type.HELLO, Type.EVENT)), 0, chance.randbytes(30)))
        raw = b"".join(frames.encode(*frame) for frame in [*batch, Frame(Type.REPLY, last, b"")])
        count += BATCH
        if chance.random() < 0.05:
            peer.say(spoiled(chance, raw)[0])
            break
        peer.say(raw)
        await asyncio.wait_for(done.wait(), 20)
    # More than a frame, so that it cannot be taken for the rest of one that was cut.
    peer.say(b"\x17" * (frames.MAX_PAYLOAD + 100))
    return count
