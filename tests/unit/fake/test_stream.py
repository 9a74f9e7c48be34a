"""The guest's end of the stream: sync at any byte, credit kept in both directions."""

from __future__ import annotations

import asyncio
import errno

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vm_backends.agent import frames
from vm_backends.agent.frames import Frame
from vm_backends.agent.link import AgentLink, LinkChannel, refusal
from vm_backends.agent.protocol import Kind, Packer, Type, Unpacker, open_payload
from vm_backends.conformance import Bench
from vm_backends.fake.stream import GRANT, GuestParser, Sync

STEADY = settings(deadline=None)
RECORD = frames.sync_record(bytes(16))
FRAME = st.builds(Frame, st.integers(0, 255), st.integers(0, 2**32 - 1), st.binary(max_size=90))


def _parse(data: bytes, step: int) -> list[Frame | Sync]:
    parser = GuestParser()
    found: list[Frame | Sync] = []
    for at in range(0, len(data), step):
        found += parser.feed(data[at : at + step])
        assert len(parser._buffer) < frames.MAX_PAYLOAD + frames.OVERHEAD
    return found


@STEADY
@given(st.lists(FRAME, max_size=5), st.integers(0, 200), st.integers(1, 300))
def test_a_sync_is_found_after_a_cut_at_any_byte(some: list[Frame], cut: int, step: int) -> None:
    raw = b"".join(frames.encode(*frame) for frame in some)
    nonce = b"0123456789abcdef"
    start = frames.PADDING + frames.sync_record(nonce) + frames.encode(2, 1, b"x")
    found = _parse(raw[:cut] + start, step * 50)
    assert found[-2:] == [Sync(nonce), Frame(2, 1, b"x")]
    assert found[:-2] == some[: len(found) - 2]


@STEADY
@given(st.binary(max_size=300), st.lists(FRAME, max_size=3), st.integers(1, 50))
def test_pieces_do_not_matter(noise: bytes, some: list[Frame], step: int) -> None:
    raw = noise + frames.sync_record(bytes(16)) + b"".join(frames.encode(*f) for f in some)
    assert _parse(raw, step) == _parse(raw, len(raw))


@STEADY
@given(st.binary(min_size=1, max_size=300), FRAME)
def test_after_noise_nothing_counts_before_the_next_sync(noise: bytes, frame: Frame) -> None:
    assume(noise[0] not in (0, frames.START, frames.SYNC_MAGIC[0]))
    raw = noise + frames.encode(*frame)
    assume(frames.SYNC_MAGIC not in raw)
    parser = GuestParser()
    assert list(parser.feed(raw)) == []
    assert list(parser.feed(frames.PADDING + RECORD)) == [Sync(bytes(16))]


@STEADY
@given(st.binary(max_size=100), st.binary(max_size=100))
def test_a_record_inside_of_data_does_not_hide_the_real_one(before: bytes, after: bytes) -> None:
    forged = before + frames.SYNC_MAGIC + after
    found = _parse(b"\x01" + forged + frames.PADDING + RECORD, 1000)
    assert found[-1] == Sync(bytes(16))


def _exec(link: AgentLink, window: int, *argv: str) -> LinkChannel:
    packed = Packer().u8(0).text("").text("").texts([]).texts(argv).done()
    return LinkChannel(link, open_payload(Kind.EXEC, packed, window))


async def test_the_guest_sends_no_more_than_it_may(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine, guest = await bench.running()
        channel = _exec(machine.link, 1000, "yes")
        assert (await channel.receive()).type == Type.OPENED
        for more in (1000, 1, 5000):
            got = 0
            while got < more:
                got += len((await channel.receive()).payload)
            assert got == more
            for _ in range(3):
                await guest.ping()
            assert channel._frames.empty()
            await channel.send(Type.CREDIT, Packer().u32({1000: 1, 1: 5000}.get(more, 0)).done())
        await channel.aclose()


async def test_the_host_may_not_send_more_than_it_may(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine, guest = await bench.running()
        channel = _exec(machine.link, 0, "sleep", "1000")
        opened = await channel.receive()
        assert Unpacker(opened.payload).u32() == GRANT
        for _ in range(GRANT // 65536):
            await channel.send(Type.DATA, bytes(65536))
        await guest.ping()
        await channel.send(Type.DATA, b"!")
        frame = await channel.receive()
        while frame.type == Type.CREDIT:
            await channel.send(Type.DATA, bytes(65536))
            frame = await channel.receive()
        assert frame.type == Type.REFUSED
        assert refusal(frame.payload).errno == errno.EPROTO
        assert "sleep" not in (await guest.exec("ps")).stdout


@pytest.mark.parametrize(
    ("payload", "number"),
    [
        (b"", errno.EPROTO),
        (b"\xff" + bytes(4), errno.EPROTO),
        (open_payload(Kind.EXEC, b"\0"), errno.EPROTO),
        (open_payload(Kind.SESSIONS, b"left over"), errno.EPROTO),
        (open_payload(Kind.EXEC, Packer().u8(0).text("").text("").texts([]).texts([]).done()), 22),
        (open_payload(Kind.GET, Packer().u8(0).text("/nowhere").done()), errno.ENOENT),
        (open_payload(Kind.STAT, Packer().u8(0).text("relative").done()), errno.EINVAL),
    ],
)
async def test_what_cannot_be_opened_is_refused(
    payload: bytes, number: int, fake_bench: Bench
) -> None:
    async with fake_bench as bench:
        machine, guest = await bench.running()
        answers: asyncio.Queue[object] = asyncio.Queue()
        machine.link.attach(payload, 0, answers.put_nowait)
        frame = await asyncio.wait_for(answers.get(), 5)
        assert isinstance(frame, Frame) and frame.type == Type.REFUSED
        assert refusal(frame.payload).errno == number
        await guest.ping()


async def test_at_most_256_channels(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine, _ = await bench.running()
        channels = [_exec(machine.link, 0, "sleep", "1000") for _ in range(257)]
        kinds = [(await channel.receive()).type for channel in channels]
        assert kinds == [Type.OPENED] * 256 + [Type.REFUSED]
        await channels[0].aclose()
        assert (await _exec(machine.link, 0, "true").receive()).type == Type.OPENED
