"""An image as a value, and the `manifest.json` that is written beside its disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = "manifest.json"
DISK = "disk.qcow2"
VERSION = 1


@dataclass(frozen=True, slots=True)
class Image:
    """A read-only disk that boxes start from; boxes write to layers of their own above it."""

    name: str
    digest: str
    disk: Path
    virtual_bytes: int
    stored_bytes: int
    created: float
    about: str
    kernel: str
    """Release of the kernel that was current when it was built; boxes may boot a newer one."""


@dataclass(frozen=True, slots=True)
class KnownImage:
    """An image there is a recipe for, built or not."""

    name: str
    about: str
    size_bytes: int
    """What it takes on disk, roughly."""
    download_bytes: int
    seconds: int
    """How long building takes on an ordinary computer, roughly."""


def write(folder: Path, image: Image, made_from: str) -> None:
    """`made_from` is what the image depends on: an equal one need not be built again."""
    data = {
        "version": VERSION,
        "name": image.name,
        "digest": image.digest,
        "virtual_bytes": image.virtual_bytes,
        "stored_bytes": image.stored_bytes,
        "created": image.created,
        "about": image.about,
        "kernel": image.kernel,
        "made_from": made_from,
    }
    (folder / FILE).write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    (folder / FILE).chmod(0o444)


def read(folder: Path) -> tuple[Image, str] | None:
    """The image in `folder` and what it was made from; None if it is not a whole image.

    Checked by hand: this is on the way of every `boxgrove ls`, where pydantic would be felt.
    """
    try:
        data: Any = json.loads((folder / FILE).read_text(encoding="utf-8"))
        if data["version"] != VERSION or not (folder / DISK).is_file():
            return None
        image = Image(
            name=_text(data["name"]),
            digest=_text(data["digest"]),
            disk=folder / DISK,
            virtual_bytes=_number(data["virtual_bytes"]),
            stored_bytes=_number(data["stored_bytes"]),
            created=float(data["created"]),
            about=_text(data["about"]),
            kernel=_text(data["kernel"]),
        )
        return image, _text(data["made_from"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not a text: {value!r}")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"not a size: {value!r}")
    return value
