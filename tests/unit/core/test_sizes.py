"""Sizes and times: what is typed is what is meant, and what is shown can be typed again."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boxgrove.core import sizes
from boxgrove.core.errors import BadDuration, BadSize

MIB = 1024**2
GIB = 1024**3


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("512M", 512 * MIB),
        ("1G", GIB),
        ("1.5g", GIB * 3 // 2),
        ("2048MiB", 2 * GIB),
        ("10GB", 10 * GIB),
        (" 1.5 GiB ", GIB * 3 // 2),
        ("4096B", 4096),
        ("1k", 1024),
        ("10T", 10 * 1024 * GIB),
        ("0.1K", 102),
        ("0M", 0),
    ],
)
def test_sizes_people_type(text: str, size: int) -> None:
    assert sizes.parse(text) == size


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("", "missing", "512M"),
        ("512", "has no unit", "512M for MiB"),
        ("-1G", "less than nothing", "512M"),
        ("1,5G", "comma", "1.5G"),
        ("lots", "is not a size", "512M"),
        ("1GG", "is not a size", "512M"),
        ("G", "is not a size", "512M"),
        ("1e3G", "is not a size", "512M"),
        ("٣G", "is not a size", "512M"),
        ("99999999999T", "larger than any disk", "512M"),
        ("9" * 5000 + "G", "is not a size", "512M"),
        ("1G\x1b[31m", "\\x1b", "512M"),
    ],
)
def test_bad_sizes_hear_why(text: str, says: str, hint: str) -> None:
    with pytest.raises(BadSize) as caught:
        sizes.parse(text)
    assert says in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.code == "bad-size"
    assert len(caught.value.message) < 120


def test_memory_is_rounded_up_to_whole_mib() -> None:
    assert [sizes.parse_mib(text) for text in ("1K", "1M", "1025K", "1G")] == [1, 1, 2, 1024]


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536 * MIB, "1.5 GiB"),
        (512 * MIB, "512 MiB"),
        (GIB - 1, "1 GiB"),
        (10 * GIB, "10 GiB"),
        (-GIB, "-1 GiB"),
    ],
)
def test_sizes_shown(size: int, text: str) -> None:
    assert sizes.show(size) == text


@given(st.integers(0, 2**52))
def test_a_shown_size_can_be_typed_again(size: int) -> None:
    text = sizes.show(size)
    if not text.endswith("PiB"):
        assert abs(sizes.parse(text) - size) <= max(1, size // 15)
        assert float(text.split()[0]) < 1024


@given(st.text(max_size=30))
def test_any_text_is_a_size_or_bad(text: str) -> None:
    try:
        assert 0 <= sizes.parse(text) < 2**63
    except BadSize as error:
        assert error.message.isprintable()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("10m", 600),
        ("2h", 7200),
        ("1d", 86400),
        ("500ms", 0.5),
        ("90", 90),
        ("1h30m", 5400),
        ("1 h 30 min", 5400),
        ("1.5h", 5400),
    ],
)
def test_times_people_type(text: str, seconds: float) -> None:
    assert sizes.parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", ["", "0", "0s", "-5s", "soon", "5x", "5s!", "1h30", "30 40", "nan", "1e9", "9999d"]
)
def test_bad_times(text: str) -> None:
    with pytest.raises(BadDuration) as caught:
        sizes.parse_duration(text)
    assert caught.value.code == "bad-duration"
    assert "30s" in caught.value.hint


@given(st.text(alphabet="0123456789.smhd inx-", max_size=12))
def test_any_text_is_a_time_or_bad(text: str) -> None:
    with suppress(BadDuration):
        assert sizes.parse_duration(text) > 0


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-3, "0 s"),
        (0.4, "0 s"),
        (42, "42 s"),
        (12 * 60 + 5, "12 min"),
        (3 * 3600, "3 h"),
        (3 * 3600 + 12 * 60 + 59, "3 h 12 min"),
        (2 * 86400 + 5 * 3600, "2 d 5 h"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    assert sizes.show_age(seconds) == text
