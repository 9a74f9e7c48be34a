"""The list of images that can be built, whole and broken."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxgrove.images import ImageFailed, recipes
from boxgrove.resources import resource

GOOD = '[a]\nabout = "x"\nsize_mib = 3\ndownload_mib = 0\nseconds = 5\n'


def test_ours_is_sound() -> None:
    assert [known.name for known in recipes.read(resource("images.toml"))] == ["starter", "debian"]


def test_numbers_become_bytes(tmp_path: Path) -> None:
    (tmp_path / "images.toml").write_text(GOOD)
    (known,) = recipes.read(tmp_path / "images.toml")
    assert (known.name, known.size_bytes, known.seconds) == ("a", 3 << 20, 5)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        (GOOD.replace("3", '"three"'), "a.size_mib"),
        (GOOD.replace("3", "-3"), "a.size_mib"),
        (GOOD.replace("about", "abuot"), "a.about"),
        (GOOD + "more = 1\n", "a.more"),
        ("[a\n", "cannot be read"),
        ("a = 1\n", "a:"),
    ],
)
def test_the_wrong_place_is_named(tmp_path: Path, text: str, part: str) -> None:
    (tmp_path / "images.toml").write_text(text)
    with pytest.raises(ImageFailed, match=part):
        recipes.read(tmp_path / "images.toml")


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ImageFailed, match="cannot be read"):
        recipes.read(tmp_path / "images.toml")
