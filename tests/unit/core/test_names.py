"""Names that work everywhere, and sentences for those that would not."""

from __future__ import annotations

import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxgrove.core import names
from boxgrove.core.errors import BadName


@pytest.mark.parametrize(
    "name",
    ["a", "try", "web-1", "a.b_c", "7", "Größe", "箱", "коробка", "नमस्ते", "x" * 63, "deadbeef"],
)
def test_good_names_stay(name: str) -> None:
    assert names.checked(name) == unicodedata.normalize("NFC", name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("", "needs a name"),
        ("a/b", "a slash"),
        ("../x", "a slash"),
        (".", "does not begin with"),
        ("..", "does not begin with"),
        ("-rf", "does not begin with"),
        ("_x", "does not begin with"),
        ("a\nb", "a line break"),
        ("a b", "a space"),
        ("box:path", "a colon"),
        ("box@snap", "an at sign"),
        ("box~1", "a tilde"),
        ("a\x07", "a control character (U+0007)"),
        ("a\x00b", "a control character (U+0000)"),
        ("abc\u202etxt", "a character that cannot be seen (U+202E)"),
        ("a\u200bb", "a character that cannot be seen (U+200B)"),
        ("a\u3164", "a character that cannot be seen (U+3164)"),
        ("a\ufe0f", "a character that cannot be seen (U+FE0F)"),
        ("a\udcff", "bytes that are not text"),
        ("a!", 'has "!" in it'),
        ("👍", "in it"),
        ("x" * 64, "has 64 characters; 63 are allowed"),
        ("x" * 300, "has 300 characters"),
        ("0123456789abcdef" * 2, "looks like the id"),
        ("0123456789ABCDEF" * 2, "looks like the id"),
    ],
)
def test_bad_names_hear_why(name: str, says: str) -> None:
    with pytest.raises(BadName) as caught:
        names.checked(name)
    assert says in caught.value.message
    assert caught.value.code == "bad-name"
    assert caught.value.hint
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < 160


def test_the_hint_offers_a_name_that_works() -> None:
    with pytest.raises(BadName) as caught:
        names.checked("my box/2")
    assert caught.value.hint.endswith(": my-box-2")


def test_one_name_typed_two_ways_is_one_name() -> None:
    assert names.checked("u\u0308ber") == names.checked("über") == "über"


@given(st.text(max_size=80))
def test_any_text_is_good_or_gets_a_printable_sentence(text: str) -> None:
    try:
        name = names.checked(text)
    except BadName as error:
        assert error.message.isprintable()
        _, has_example, example = error.hint.rpartition(": ")
        assert names.checked(example) if has_example else len(names.normal(text)) > 63
    else:
        assert names.checked(name) == name
        assert 1 <= len(name) <= 63
        assert not set(name) & set("/\\:@~\n\0 ")
        name.encode()


@given(st.text(max_size=80))
def test_a_host_name_is_always_one(text: str) -> None:
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", names.hostname(text))


@pytest.mark.parametrize(
    ("name", "host"),
    [
        ("try", "try"),
        ("Web.Server_1", "web-server-1"),
        ("Größe", "groe"),
        ("箱", "box"),
        ("42", "box-42"),
        ("a" * 62 + ".b", "a" * 62),
    ],
)
def test_host_names(name: str, host: str) -> None:
    assert names.hostname(name) == host


def test_suggest_counts_up_and_stays_within_the_limit() -> None:
    assert names.suggest("a", {"b"}) == "a"
    assert names.suggest("a", {"a"}) == "a-2"
    assert names.suggest("a", {"a", "a-2", "a-3"}) == "a-4"
    long = "x" * 63
    assert names.checked(names.suggest(long, {long})) == "x" * 61 + "-2"
