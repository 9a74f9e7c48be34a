"""Sizes and times as people type and read them: 1.5G, 30s, «3 h 12 min».

K, M, G and T are powers of 1024 however they are spelled (G, GB, GiB), as in QEMU's own tools.
"""

from __future__ import annotations

import re

from boxgrove.core.errors import BadDuration, BadSize, shown

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_SIZE = re.compile(
    r"([0-9]{1,19})(?:\.([0-9]{1,9}))?\s*(?:([kmgt])(?:i?b)?|b)", re.IGNORECASE | re.ASCII
)
_NUMBER = re.compile(r"[0-9]+(\.[0-9]+)?", re.ASCII)
_MOST = 2**63 - 1

_PART = r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*(min|ms|[smhd])\s*"
_PARTS = re.compile(_PART, re.IGNORECASE | re.ASCII)
_DURATION = re.compile(f"(?:{_PART})+", re.IGNORECASE | re.ASCII)
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_LONGEST_S = 365 * 86400.0


def parse(text: str) -> int:
    """Bytes from `512M`, `1.5g`, `2048MiB`, `10GB`, `4096B`; a bare number has no meaning here."""
    text = text.strip()
    found = _SIZE.fullmatch(text)
    if found is None:
        raise _bad_size(text)
    whole, fraction, letter = found[1], found[2] or "", found[3]
    unit: int = 1024 ** " kmgt".index(letter.lower()) if letter else 1
    # Whole numbers all the way: a float would lose the last bytes of a terabyte.
    value: int = int(whole + fraction) * unit // 10 ** len(fraction)
    if value > _MOST:
        raise BadSize(f'the size "{shown(text)}" is larger than any disk')
    return value


def parse_mib(text: str) -> int:
    """Whole MiB from a size, rounded up, for memory."""
    return -(-parse(text) // 1024**2)


def _bad_size(text: str) -> BadSize:
    if not text:
        return BadSize("a size is missing")
    quoted = f'"{shown(text)}"'
    if len(text) <= 12 and _NUMBER.fullmatch(text):
        return BadSize(
            f"the size {quoted} has no unit", hint=f"Write {text}M for MiB or {text}G for GiB."
        )
    if text.startswith("-"):
        return BadSize(f"the size {quoted} is less than nothing")
    if "," in text and _SIZE.fullmatch(text.replace(",", ".", 1)):
        return BadSize(
            f"the size {quoted} has a comma in it", hint=f"Write {text.replace(',', '.', 1)}."
        )
    return BadSize(f"{quoted} is not a size")


def show(size_bytes: int) -> str:
    """`1.5 GiB`, `512 MiB`, `0 B`: one decimal at most."""
    if size_bytes < 0:
        return f"-{show(-size_bytes)}"
    tenths, unit = size_bytes * 10, 0
    # 1023.96 MiB is 1 GiB to a reader, never "1024 MiB".
    while tenths >= 10240 * 1024**unit - 1024**unit // 2 and unit < len(_UNITS) - 1:
        unit += 1
    whole, tenth = divmod((tenths + 1024**unit // 2) // 1024**unit, 10)
    return f"{whole}.{tenth} {_UNITS[unit]}" if tenth else f"{whole} {_UNITS[unit]}"


def show_age(seconds: float) -> str:
    """`42 s`, `12 min`, `3 h 12 min`, `2 d 5 h`: the two largest parts, rounded down."""
    total = int(seconds) if seconds > 0 else 0
    if total < 60:
        return f"{total} s"
    if total < 3600:
        return f"{total // 60} min"
    if total < 86400:
        return _pair(total // 3600, "h", total % 3600 // 60, "min")
    return _pair(total // 86400, "d", total % 86400 // 3600, "h")


def _pair(large: int, large_unit: str, small: int, small_unit: str) -> str:
    return f"{large} {large_unit} {small} {small_unit}" if small else f"{large} {large_unit}"


def parse_duration(text: str) -> float:
    """Seconds from `30s`, `10m`, `2h`, `500ms`, `1h30m`; a bare number is seconds."""
    text = text.strip()
    typed = f"{text}s" if _NUMBER.fullmatch(text) else text
    if _DURATION.fullmatch(typed) is None:
        raise BadDuration(f'"{shown(text)}" is not a time' if text else "a time is missing")
    seconds = sum(float(part[1]) * _SECONDS[part[2].lower()] for part in _PARTS.finditer(typed))
    if seconds <= 0:
        raise BadDuration(f'the time "{shown(text)}" is over before it begins')
    if seconds > _LONGEST_S:
        raise BadDuration(f'the time "{shown(text)}" is longer than a year')
    return seconds
