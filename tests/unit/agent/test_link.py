"""The link against guests that lie: nothing but Faults, and never more memory than agreed."""

from __future__ import annotations

import asyncio
import os
import tracemalloc

import pytest

from tests.unit.agent.peers import HELLO, linked
from vm_backends.agent import frames, link
from vm_backends.agent.frames import Frame
from vm_backends.agent.protocol import WINDOW, Hello, Kind, Packer, Type, open_payload
from vm_backends.errors import Fault, GuestGarbage, GuestUnreachable

MIB = 1024 * 1024


async def test_greeting_and_one_question() -> None:
    async with linked() as (host, peer):
        await peer.greet()
        assert await host.greeting(5) == HELLO
        channel = await host.open(Kind.PING, b"there?")
        assert (await peer.reader.readexactly(frames.OVERHEAD + 11))[1] == Type.OPEN
        peer.say(frames.encode(Type.REPLY, 1, b"there?"))
        assert (await channel.receive()).payload == b"there?"


async def test_nothing_is_opened_before_the_greeting() -> None:
    async with linked() as (host, _):
        with pytest.raises(GuestUnreachable, match="not greeted"):
            await host.open(Kind.PING)
        with pytest.raises(GuestUnreachable, match=r"within 0\.05 s"):
            await host.greeting(0.05)


async def test_random_bytes_instead_of_a_greeting_are_skipped() -> None:
    async with linked() as (host, peer):
        peer.say(os.urandom(100_000))
        await peer.greet()
        assert await host.greeting(5) == HELLO


async def test_a_guest_that_hangs_up() -> None:
    async with linked() as (host, peer):
        await peer.greet()
        await host.greeting(5)
        channel = await host.open(Kind.SESSIONS)
        peer.writer.close()
        for _ in range(2):
            with pytest.raises(GuestUnreachable, match="the guest's port"):
                await channel.receive()
        with pytest.raises(GuestUnreachable, match="the guest's port"):
            await host.greeting(5)


@pytest.mark.parametrize(
    "hello",
    [b"", b"\1", HELLO.pack()[:-1], HELLO.pack() + b"x", b"\1\0" + b"\xff" * 60],
)
async def test_a_bad_greeting_is_asked_for_again_and_then_given_up(hello: bytes) -> None:
    async with linked() as (host, peer):
        for _ in range(link.MAX_LOSSES + 1):
            await peer.greet(hello)
        with pytest.raises(GuestGarbage, match="nonsense"):
            await host.greeting(5)


async def test_a_good_greeting_after_a_bad_one() -> None:
    async with linked() as (host, peer):
        await peer.greet(b"?")
        await peer.greet()
        assert await host.greeting(5) == HELLO


async def test_another_version_is_named() -> None:
    async with linked() as (host, peer):
        await peer.greet(Hello(7, "00" * 16, True, "", "").pack())
        with pytest.raises(GuestGarbage, match="speaks version 7, we speak 1"):
            await host.greeting(5)


async def test_more_data_than_allowed_breaks_the_conversation_off() -> None:
    async with linked() as (host, peer):
        await peer.greet()
        await host.greeting(5)
        channel = await host.open(Kind.GET)
        piece = bytes(frames.MAX_PAYLOAD)
        for _ in range(WINDOW // len(piece)):
            peer.say(frames.encode(Type.DATA, 1, piece))
        peer.say(frames.encode(Type.DATA, 1, b"!"))
        for _ in range(WINDOW // len(piece)):
            assert (await channel.receive()).payload == piece
        with pytest.raises(GuestUnreachable, match="started over"):
            await channel.receive()
        await peer.greet()
        await host.greeting(5)


@pytest.mark.parametrize(
    "frame",
    [
        Frame(Type.DATA, 1, b""),
        Frame(Type.CREDIT, 1, Packer().u32(1).done()),
        Frame(Type.GAP, 1, bytes(8)),
        Frame(Type.OPENED, 1, bytes(60_000)),
        Frame(Type.EOF, 1, b""),
        Frame(99, 1, bytes(frames.MAX_PAYLOAD)),
    ],
)
async def test_frames_that_cost_no_credit_are_bounded_too(frame: Frame) -> None:
    async with linked() as (host, peer):
        await peer.greet()
        await host.greeting(5)
        got: list[Frame | Fault] = []
        host.attach(open_payload(Kind.EXEC), WINDOW, got.append)
        raw = frames.encode(*frame)
        for _ in range(2 + link.SPARE // 64):
            peer.say(raw)
            if not await peer.drained() or (got and isinstance(got[-1], Fault)):
                break
        async with asyncio.timeout(5):
            await peer.next_nonce()
        kept = [one for one in got if isinstance(one, Frame)]
        assert isinstance(got[-1], GuestUnreachable)
        assert sum(64 + len(one.payload) for one in kept) <= link.SPARE


async def test_our_own_frames_renew_what_costs_no_credit() -> None:
    async with linked() as (host, peer):
        await peer.greet()
        await host.greeting(5)
        channel = await host.open(Kind.PUT)
        for _ in range(3 * link.SPARE // 64):
            peer.say(frames.encode(Type.CREDIT, 1, bytes(4)))
            assert (await channel.receive()).type == Type.CREDIT
            await channel.send(Type.DATA, b"x")


async def test_bytes_without_end_and_no_greeting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(link, "MAX_DISCARDED", 8 * MIB)
    async with linked() as (host, peer):

        async def babble() -> None:
            while await peer.drained():
                peer.say(b"\x17" * MIB)

        tracemalloc.start()
        babbling = asyncio.create_task(babble())
        try:
            with pytest.raises(GuestGarbage, match="without end"):
                await host.greeting(20)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
            babbling.cancel()
        assert peak < 6 * MIB


async def test_starting_over_fails_what_was_open_and_greets_anew() -> None:
    async with linked() as (host, peer):
        epochs: list[str] = []
        host.on_hello = lambda hello: epochs.append(hello.epoch)
        await peer.greet()
        await host.greeting(5)
        channel = await host.open(Kind.SESSIONS)
        host.resync()
        assert host.greeted is None
        with pytest.raises(GuestUnreachable, match="started over"):
            await channel.receive()
        # An answer of the old conversation, cut in the middle of a frame.
        peer.say(frames.encode(Type.REPLY, 1, bytes(100))[:50])
        await peer.greet()
        await host.greeting(5)
        assert epochs == [HELLO.epoch] * 2


async def test_starting_over_from_within_an_event() -> None:
    async with linked() as (host, peer):
        host.on_event = lambda what: host.resync()
        await peer.greet()
        await host.greeting(5)
        stale = Hello(1, "cd" * 16, True, "", "stale").pack()
        peer.say(frames.encode(Type.EVENT, 0, b"\1"), frames.encode(Type.HELLO, 0, stale))
        await peer.greet()
        assert (await host.greeting(5)).hostname == "peer"


async def test_closing_does_not_wait_for_a_guest_that_reads_nothing() -> None:
    async with linked() as (host, peer):
        await peer.greet()
        await host.greeting(5)
        channel = await host.open(Kind.PUT)

        async def send_for_ever() -> None:
            while True:
                await channel.send(Type.DATA, bytes(frames.MAX_PAYLOAD))

        sending = asyncio.create_task(send_for_ever())
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]  # a frozen guest
        await asyncio.wait([sending], timeout=0.1)
        await host.aclose()
        with pytest.raises(GuestUnreachable):
            await asyncio.wait_for(sending, 5)
