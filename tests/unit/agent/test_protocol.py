"""Fields in payloads: what is packed comes out again, and nonsense is only ever Malformed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vm_backends.agent.link import printable, refusal
from vm_backends.agent.protocol import (
    MAX_STRING,
    WINDOW,
    Hello,
    Kind,
    Malformed,
    Packer,
    Unpacker,
    open_payload,
)

TEXT = st.binary(max_size=300).map(
    lambda raw: raw.replace(b"\0", b"").decode("utf-8", "surrogateescape")
)
FIELDS: dict[str, st.SearchStrategy[Any]] = {
    "u8": st.integers(0, 2**8 - 1),
    "u16": st.integers(0, 2**16 - 1),
    "u32": st.integers(0, 2**32 - 1),
    "i32": st.integers(-(2**31), 2**31 - 1),
    "u64": st.integers(0, 2**64 - 1),
    "i64": st.integers(-(2**63), 2**63 - 1),
    "text": TEXT,
    "texts": st.lists(TEXT, max_size=5),
}
FIELD = st.sampled_from(sorted(FIELDS)).flatmap(lambda n: st.tuples(st.just(n), FIELDS[n]))
HELLO = st.builds(
    Hello,
    version=st.integers(0, 65535),
    epoch=st.binary(min_size=16, max_size=16).map(bytes.hex),
    is_init=st.booleans(),
    kernel=TEXT.map(lambda text: text[:200]),
    hostname=TEXT.map(lambda text: text[:200]),
)
STEADY = settings(deadline=None)
"""A busy computer is no failure."""


def packed(fields: list[tuple[str, Any]]) -> bytes:
    packer = Packer()
    for name, value in fields:
        getattr(packer, name)(value)
    return packer.done()


@STEADY
@given(st.lists(FIELD, max_size=10))
def test_fields_round_trip(fields: list[tuple[str, Any]]) -> None:
    take = Unpacker(packed(fields))
    assert [(name, getattr(take, name)()) for name, _ in fields] == fields
    take.end()


@STEADY
@given(st.lists(FIELD, min_size=1, max_size=10), st.data())
def test_a_cut_payload_is_malformed(fields: list[tuple[str, Any]], data: st.DataObject) -> None:
    raw = packed(fields)
    take = Unpacker(raw[: data.draw(st.integers(0, len(raw) - 1))])
    with pytest.raises(Malformed):
        for name, _ in fields:
            getattr(take, name)()


@STEADY
@given(st.binary(max_size=400), st.lists(st.sampled_from([*FIELDS, "blob", "rest"]), max_size=10))
def test_nonsense_is_a_value_or_malformed(raw: bytes, names: list[str]) -> None:
    take = Unpacker(raw)
    try:
        for name in names:
            value = getattr(take, name)()
            assert not isinstance(value, (str, bytes, list)) or len(value) <= len(raw)
        take.end()
    except Malformed:
        pass


@STEADY
@given(HELLO)
def test_hello_round_trip(hello: Hello) -> None:
    assert Hello.unpack(hello.pack()) == hello


@STEADY
@given(st.binary(max_size=200), HELLO, st.data())
def test_hostile_hello(raw: bytes, hello: Hello, data: st.DataObject) -> None:
    spoiled = bytearray(hello.pack())
    spoiled[data.draw(st.integers(0, len(spoiled) - 1))] ^= data.draw(st.integers(1, 255))
    for payload in (raw, bytes(spoiled)):
        try:
            got = Hello.unpack(payload)
        except Malformed:
            continue
        assert len(got.kernel) <= 256 and len(got.hostname) <= 256


@STEADY
@given(st.binary(max_size=2000))
def test_what_a_guest_says_is_safe_to_print(raw: bytes) -> None:
    shown = printable(raw.decode("utf-8", "surrogateescape"))
    assert shown.isprintable() and len(shown) <= 400
    shown.encode()
    try:
        message = refusal(raw).message
    except Malformed:
        return
    assert message.isprintable()


def test_a_list_cannot_claim_more_than_its_message_holds() -> None:
    with pytest.raises(Malformed, match="longer than its message"):
        Unpacker(Packer().u32(2**32 - 1).raw(bytes(100)).done()).texts()


@pytest.mark.parametrize("text", ["a\0b", "x" * (MAX_STRING + 1)])
def test_strings_are_checked_both_ways(text: str) -> None:
    with pytest.raises(ValueError, match="too long or has a NUL"):
        Packer().text(text)
    raw = text.encode()
    with pytest.raises(Malformed):
        Unpacker(Packer().u32(len(raw)).raw(raw).done()).text()


def test_left_over_bytes_are_malformed() -> None:
    take = Unpacker(b"ab")
    take.u8()
    with pytest.raises(Malformed, match="after its end"):
        take.end()


def test_opening_says_kind_and_window() -> None:
    take = Unpacker(open_payload(Kind.PING, b"rest"))
    readers: list[Callable[[], object]] = [take.u8, take.u32, take.rest]
    assert [reader() for reader in readers] == [Kind.PING, WINDOW, b"rest"]
