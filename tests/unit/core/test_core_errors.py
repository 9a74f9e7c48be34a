"""Errors about boxes: one tree, one code each, and a way across the keeper's socket."""

from __future__ import annotations

from boxgrove.core import errors
from vm_backends.errors import fault_classes, from_wire


def test_every_error_has_a_code_of_its_own() -> None:
    ours = [
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, errors.BoxError)
    ]
    assert len({kind.code for kind in ours}) == len(ours) >= 14
    assert all(fault_classes()[kind.code] is kind for kind in ours)
    assert errors.__doc__ is not None
    assert all(kind.__name__ in errors.__doc__ and kind.code in errors.__doc__ for kind in ours)


def test_they_cross_the_wire() -> None:
    sent = errors.UnknownBox.among("tri", ["try", "other"])
    got = from_wire(sent.to_wire())
    assert type(got) is errors.UnknownBox
    assert (got.message, got.hint) == ('there is no box "tri"', "Did you mean try?")


def test_nothing_close_points_at_the_list() -> None:
    assert "boxgrove ls" in errors.UnknownBox.among("zzz", ["try"]).hint


def test_shown_is_short_and_printable() -> None:
    assert errors.shown("a\x1b[2Jb\n\udcff") == "a\\x1b[2Jb\\n\\udcff"
    assert errors.shown("x" * 300) == "x" * 39 + "…"
