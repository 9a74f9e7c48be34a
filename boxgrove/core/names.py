"""What a box may be called, so that a name works in a command, in `cp`, and on every screen."""

from __future__ import annotations

from collections.abc import Collection

from boxgrove.core.errors import BadName, shown

MAX_LENGTH = 63

_PUNCTUATION = "-_."
_HEX = frozenset("0123456789abcdef")
_WORDS = {
    "/": 'a slash "/"',
    "\\": 'a backslash "\\"',
    ":": 'a colon ":"',
    "@": 'an at sign "@"',
    "~": 'a tilde "~"',
    " ": "a space",
    "\n": "a line break",
    "\r": "a line break",
    "\t": "a tab",
}
# Letters and marks to Unicode, yet nothing to the eye: two boxes would look alike.
_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u3164\uffa0")


def checked(name: str) -> str:
    """The name in its normal form (NFC), or `BadName` with what is wrong about this very name."""
    if not name:
        raise BadName("a box needs a name", hint="For example: try")
    if len(name) > 4 * MAX_LENGTH:
        raise _too_long(name)
    name = normal(name)
    if len(name) > MAX_LENGTH:
        raise _too_long(name)
    for char in name:
        if not _may_stand(char, first=False):
            raise BadName(f'the name "{shown(name)}" has {_describe(char)} in it', hint=_hint(name))
    if not _may_stand(name[0], first=True):
        raise BadName(
            f'the name "{shown(name)}" does not begin with a letter or a digit', hint=_hint(name)
        )
    if is_id(name.lower()):
        raise BadName(f'the name "{shown(name)}" looks like the id of a box', hint=_hint("box"))
    return name


def normal(name: str) -> str:
    """The one spelling (NFC) of a name that can be typed in several ways."""
    if name.isascii():
        return name
    # A megabyte of tables that plain names never need.
    import unicodedata

    return unicodedata.normalize("NFC", name)


def is_id(text: str) -> bool:
    """Whether this is a whole box id: 32 hex digits, in small letters."""
    return len(text) == 32 and _HEX.issuperset(text)


def is_id_prefix(text: str) -> bool:
    """Whether this is enough of an id to look a box up by."""
    return 6 <= len(text) <= 32 and _HEX.issuperset(text)


def suggest(name: str, taken: Collection[str]) -> str:
    """The first of name, name-2, name-3, … that nobody has."""
    number, candidate = 1, name
    while candidate in taken:
        number += 1
        ending = f"-{number}"
        candidate = name[: MAX_LENGTH - len(ending)] + ending
    return candidate


def hostname(name: str) -> str:
    """A host name after RFC 1123 that resembles the box's name: plain ASCII, one label."""
    if not name.isascii():
        import unicodedata

        name = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode("ascii")
    kept = "".join(char if char.isalnum() else "-" for char in name.lower())
    label = "-".join(part for part in kept.split("-") if part)
    if label.isdigit():
        # A bare number would be read as an address.
        label = f"box-{label}"
    return label[:MAX_LENGTH].strip("-") or "box"


def _may_stand(char: str, *, first: bool) -> bool:
    if char.isascii():
        return char.isalnum() or (not first and char in _PUNCTUATION)
    if char in _UNSEEN or 0xFE00 <= ord(char) <= 0xFE0F or 0xE0100 <= ord(char) <= 0xE01EF:
        return False
    import unicodedata

    kind = unicodedata.category(char)
    # Many scripts write vowels as marks (Mn, Mc), which follow a letter.
    return kind[0] == "L" or kind == "Nd" or (not first and kind in ("Mn", "Mc"))


def _describe(char: str) -> str:
    if char in _WORDS:
        return _WORDS[char]
    if char.isprintable() and char not in _UNSEEN and ord(char) < 0xFE00:
        return f'"{char}"'
    if 0xDC80 <= ord(char) <= 0xDCFF:
        return "bytes that are not text"
    what = "a control character" if ord(char) < 0xA0 else "a character that cannot be seen"
    return f"{what} (U+{ord(char):04X})"


def _too_long(name: str) -> BadName:
    return BadName(
        f'the name "{shown(name, 24)}" has {len(name)} characters; {MAX_LENGTH} are allowed',
        hint="Take a shorter name.",
    )


def _hint(name: str) -> str:
    """What is allowed, with a name close to the wished one."""
    fits = "".join(char if _may_stand(char, first=False) else "-" for char in name)
    parts = [part for part in fits.strip(_PUNCTUATION).split("-") if part]
    example = "-".join(parts)[:MAX_LENGTH]
    if not example or not _may_stand(example[0], first=True) or is_id(example.lower()):
        example = "my-box"
    return f"Letters, digits, - _ and . can be used, for example: {example}"
