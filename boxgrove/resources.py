"""The data that ships with us: the top-level `resources/`, in a checkout or an installed wheel."""

from __future__ import annotations

from pathlib import Path, PurePosixPath


def resources() -> Path:
    """The folder itself.

    The wheel's own comes first: next to an installed package anybody may have a `resources`.
    """
    package = Path(__file__).resolve().parent
    inside = package / "_resources"
    return inside if inside.is_dir() else package.parent / "resources"


def resource(name: str) -> Path:
    """One file or folder of it, by its path below `resources/`."""
    wanted = PurePosixPath(name)
    if wanted.is_absolute() or ".." in wanted.parts:
        raise ValueError(f"{name!r} is not a name below resources/")
    found = resources() / wanted
    if not found.exists():
        raise FileNotFoundError(f"this installation of Boxgrove lacks resources/{name}")
    return found
