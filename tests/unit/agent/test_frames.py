"""Bytes to frames: the same whatever the pieces, bounded whatever the bytes."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from vm_backends.agent import frames
from vm_backends.agent.frames import Frame, FrameReader, StreamLost

BOUND = frames.MAX_PAYLOAD + frames.OVERHEAD

FRAME = st.builds(
    Frame,
    st.integers(0, 255),
    st.integers(0, 2**32 - 1),
    st.binary(max_size=200) | st.integers(0, 3000).map(bytes),
)
FRAMES = st.lists(FRAME, max_size=8)
NONCE = st.binary(min_size=16, max_size=16)
STEADY = settings(deadline=None)
"""A busy computer is no failure."""


def wire(some: list[Frame]) -> bytes:
    return b"".join(frames.encode(*frame) for frame in some)


def read(data: bytes, step: int, nonce: bytes | None = None) -> tuple[list[Frame], bool]:
    """The frames found when `data` comes in pieces, and whether the stream was lost."""
    reader = FrameReader(nonce)
    found: list[Frame] = []
    try:
        for at in range(0, len(data), step):
            found += reader.feed(data[at : at + step])
            assert len(reader._buffer) < BOUND
    except StreamLost:
        return found, True
    return found, False


@STEADY
@given(FRAMES)
def test_round_trip(some: list[Frame]) -> None:
    assert read(wire(some), BOUND) == (some, False)


@STEADY
@given(FRAMES, st.integers(0, 300), st.integers(1, 5000))
def test_padding_means_nothing(some: list[Frame], zeros: int, step: int) -> None:
    data = b"".join(bytes(zeros) + frames.encode(*frame) for frame in some) + bytes(zeros)
    assert read(data, step) == (some, False)


@STEADY
@given(st.data(), st.binary(max_size=100), FRAMES)
def test_pieces_do_not_matter(data: st.DataObject, tail: bytes, some: list[Frame]) -> None:
    raw = bytearray(wire(some) + tail)
    for _ in range(data.draw(st.integers(0, 3)) if raw else 0):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    pieces = bytes(raw[:3000])
    whole = read(pieces, BOUND)
    assert read(pieces, 1) == whole
    assert read(pieces, 7) == whole


@STEADY
@given(st.binary(max_size=3000), FRAMES, NONCE, st.integers(1, 4000))
def test_sync_is_found_anywhere(before: bytes, some: list[Frame], nonce: bytes, step: int) -> None:
    record = frames.sync_record(nonce)
    data = before + record + wire(some)
    assume(data.find(record) == len(before))
    assert read(data, step, nonce) == (some, False)


@STEADY
@given(st.binary(max_size=500), NONCE, NONCE)
def test_another_ones_sync_is_not_ours(before: bytes, ours: bytes, theirs: bytes) -> None:
    reader = FrameReader(ours)
    data = before + frames.sync_record(theirs) + wire([Frame(1, 0, b"hello")])
    assume(frames.sync_record(ours) not in data)
    assert not list(reader.feed(data))
    assert not reader.synced


@STEADY
@given(st.binary(max_size=4000), st.integers(1, 500))
def test_nonsense_is_lost_and_never_kept(data: bytes, step: int) -> None:
    read(data, step)
    assert read(data, step, bytes(16))[1] is False


@pytest.mark.parametrize("step", [1, 7, 65536, BOUND * 3])
def test_the_largest_frames(step: int) -> None:
    some = [Frame(5, number, bytes([number]) * frames.MAX_PAYLOAD) for number in (1, 2, 3)]
    assert read(wire(some), step) == (some, False)


def test_waiting_for_a_sync_keeps_no_more_than_a_record() -> None:
    reader = FrameReader(b"n" * 16)
    for _ in range(100):
        assert not list(reader.feed(random.randbytes(65536)))
        assert len(reader._buffer) < 32
    assert reader.discarded > 99 * 65536


def test_padding_without_end_keeps_nothing() -> None:
    reader = FrameReader()
    for _ in range(200):
        assert not list(reader.feed(frames.PADDING))
        assert len(reader._buffer) < frames.HEADER_SIZE


@pytest.mark.parametrize("spoil", [0, 2, 3, 11, -1, -4])
def test_every_part_of_a_frame_is_checked(spoil: int) -> None:
    raw = bytearray(frames.encode(5, 7, b"some data"))
    raw[spoil] ^= 0x41
    with pytest.raises(StreamLost):
        list(FrameReader().feed(bytes(raw) + bytes(BOUND)))


def test_a_cut_frame_ends_in_the_padding_before_a_sync() -> None:
    whole = frames.encode(5, 7, random.Random(1).randbytes(frames.MAX_PAYLOAD))
    for cut in (1, 2, 5, 8, 11, 12, 13, 4000, len(whole) - 5, len(whole) - 3, len(whole) - 1):
        with pytest.raises(StreamLost):
            list(FrameReader().feed(whole[:cut] + frames.PADDING + b"\xf1" * 20))


def test_what_does_not_fit_is_not_sent() -> None:
    with pytest.raises(ValueError, match="over 65536"):
        frames.encode(5, 1, bytes(frames.MAX_PAYLOAD + 1))
