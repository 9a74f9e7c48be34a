"""`images.toml`, the list of what can be built: a file that people edit, so it is checked."""

from __future__ import annotations

import tomllib
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeInt, TypeAdapter, ValidationError

from boxgrove.images.errors import ImageFailed
from boxgrove.images.manifest import KnownImage


class _Recipe(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    about: str
    size_mib: NonNegativeInt
    download_mib: NonNegativeInt
    seconds: NonNegativeInt


_FILE = TypeAdapter(dict[str, _Recipe])


def read(path: Path) -> list[KnownImage]:
    """Every image of the file, or the one place in it that is wrong."""
    try:
        recipes = _FILE.validate_python(tomllib.loads(path.read_text()))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ImageFailed(f"{path}: {where}: {first['msg']}") from error
    except (OSError, ValueError) as error:
        raise ImageFailed(f"{path} cannot be read: {error}") from error
    return [
        KnownImage(
            name=name,
            about=recipe.about,
            size_bytes=recipe.size_mib << 20,
            download_bytes=recipe.download_mib << 20,
            seconds=recipe.seconds,
        )
        for name, recipe in recipes.items()
    ]
