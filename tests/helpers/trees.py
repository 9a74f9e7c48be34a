"""Trees of files with everything that a copy can get wrong, and a picture of one to compare."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

OLD = 1_234_567_890
"""A time in the past, so that a copy that takes the time of copying is found out."""


@dataclass(frozen=True)
class Seen:
    """One entry of a tree: what must be equal on both sides."""

    kind: str
    mode: int
    mtime_s: int
    content: str
    """The hash of a file, the target of a link."""


def picture(root: Path) -> dict[bytes, Seen]:
    """Every entry below a folder, and the folder itself, by its name as bytes."""
    top = os.fsencode(root)
    seen = {b"": _look(top)}
    for here, folders, files in os.walk(top):
        for name in folders + files:
            path = os.path.join(here, name)
            seen[path[len(top) + 1 :]] = _look(path)
    return seen


def _look(path: bytes) -> Seen:
    info = os.lstat(path)
    kind = stat.filemode(info.st_mode)[0]
    if kind == "l":
        # A link has no mode of its own.
        return Seen(kind, 0, int(info.st_mtime), os.fsdecode(os.readlink(path)))
    content = ""
    if kind == "-":
        with open(path, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    return Seen(kind, stat.S_IMODE(info.st_mode), int(info.st_mtime), content)


def differences(one: dict[bytes, Seen], other: dict[bytes, Seen]) -> list[str]:
    """What differs, readable; empty if nothing does."""
    names = sorted(one.keys() | other.keys())
    return [
        f"{name!r}: {one.get(name)} became {other.get(name)}"
        for name in names
        if one.get(name) != other.get(name)
    ]


def plant_odd_tree(root: Path, *, small_files: int = 2000) -> None:
    """Many small files and one of everything: modes, links, empty folders, names."""
    root.mkdir()
    for number in range(small_files):
        folder = root / "many" / f"{number % 20:02}"
        if number < 20:
            folder.mkdir(parents=True)
        (folder / f"{number:04}.txt").write_bytes(os.urandom(number % 3000))
    modes = root / "modes"
    modes.mkdir()
    for mode in (0o600, 0o755, 0o444, 0o640, 0o000, 0o1644):
        path = modes / f"{mode:04o}"
        path.write_text(f"{mode:o}\n")
        path.chmod(mode)
    links = root / "links"
    links.mkdir()
    (links / "relative").symlink_to("../modes/0600")
    (links / "absolute").symlink_to("/etc/passwd")
    (links / "dangling").symlink_to("nowhere/at all")
    (links / "folder").symlink_to("../many")
    (links / "itself").symlink_to("itself")
    (root / "empty").mkdir()
    (root / "empty" / "inside").mkdir()
    (root / "empty.txt").touch()
    names = root / "names"
    names.mkdir()
    odd = ("two\nlines", " spaces ", "-rf", "ünïcödé 箱 🌳", "a\\b", "quote'\"", "x" * 255)
    for name in odd:
        (names / name).write_text(name)
    Path(os.fsdecode(os.fsencode(names) + b"/not \xff text \x80")).write_text("bytes")
    (names / ("folder\n" + "two")).mkdir()
    sealed = root / "sealed"
    sealed.mkdir()
    (sealed / "inside").write_text("in a folder that nobody may write\n")
    (sealed / "deeper").mkdir(0o555)
    sealed.chmod(0o555)
    _age(root)


def _age(root: Path) -> None:
    """Give every entry a time of its own, long ago."""
    for count, (here, folders, files) in enumerate(os.walk(os.fsencode(root), topdown=False)):
        for number, name in enumerate(folders + files):
            when = OLD + count * 1000 + number
            os.utime(os.path.join(here, name), (when, when), follow_symlinks=False)
    os.utime(root, (OLD, OLD))


def write_noise(path: Path, size: int) -> str:
    """A file that no compression makes smaller; its hash."""
    block, total = os.urandom(1_000_000), hashlib.sha256()
    with path.open("wb") as file:
        for number in range(size // len(block)):
            piece = number.to_bytes(4, "big") + block[4:]
            total.update(piece)
            file.write(piece)
    return total.hexdigest()
