"""A guest's files, gathered in a folder by an ordinary user, with the owners they are to have.

The folder holds contents and modes. Owners cannot be given away without root, so those other than
root are only written down, and `disk.py` puts them into the filesystem.

The tree has absolute links in it, which on this side of it lead to the host's own files. So nothing
here goes through a link: a path is followed only while its parents are real folders.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import shutil
import stat
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path

from boxgrove.images.errors import ImageFailed

BLOCK = 4096
Owner = tuple[int, int]
ROOT: Owner = (0, 0)
EPOCH = 1_704_067_200
"""The time on files we write ourselves (the start of 2024), so that trees come out equal."""


class Tree:
    """A root folder that does not exist yet and is filled by the methods below."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.owners: dict[str, Owner] = {}
        root.mkdir()
        root.chmod(0o755)

    def folder(self, path: str, mode: int = 0o755, owner: Owner = ROOT) -> None:
        target = self._at(path)
        target.mkdir(exist_ok=True)
        self._finish(target, path, mode, owner, EPOCH)

    def file(self, path: str, data: bytes, mode: int = 0o644, owner: Owner = ROOT) -> None:
        target = self._at(path)
        # Never written through: what is there may be a link, or a second name of another file.
        target.unlink(missing_ok=True)
        target.write_bytes(data)
        self._finish(target, path, mode, owner, EPOCH)

    def edit(self, path: str, change: Callable[[str], str]) -> None:
        """Replace a text file's content; mode and owner stay."""
        target = self._at(path)
        mode = stat.S_IMODE(target.lstat().st_mode)
        text = change(target.read_text(encoding="utf-8"))
        self.file(path, text.encode(), mode, self.owners.get(path, ROOT))

    def remove(self, pattern: str) -> None:
        """Remove what matches the pattern, folders with all that is in them."""
        for target in list(_matches(self.root, pattern.split("/"))):
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target)
            else:
                target.unlink()
            gone = str(target.relative_to(self.root))
            for path in [p for p in self.owners if p == gone or p.startswith(gone + "/")]:
                del self.owners[path]

    def link(self, path: str, to: str) -> None:
        self._at(path).symlink_to(to)
        os.utime(self.root / path, (EPOCH, EPOCH), follow_symlinks=False)

    def unpack(self, archive: Path, seen: Callable[[int], None] = lambda _: None) -> None:
        """Take over a distribution's tar archive; `seen` hears how far in the file we are.

        Device nodes are left out: the guest's kernel fills /dev itself.
        """
        folders: dict[str, tarfile.TarInfo] = {}
        with tarfile.open(archive, "r:") as tar:
            for number, member in enumerate(tar):
                path = _inside(member.name)
                if path and (parent := path.rpartition("/")[0]) and parent not in folders:
                    raise ImageFailed(f"the archive has {path!r} in a folder it does not have")
                if member.isdir():
                    (self.root / path).mkdir(exist_ok=True)
                    folders[path] = member
                elif member.issym():
                    self.link(path, member.linkname)
                elif member.islnk():
                    os.link(self._at(_inside(member.linkname)), self.root / path)
                elif member.isreg():
                    self._unpack_file(tar, member, path)
                else:
                    continue
                if path and (member.uid, member.gid) != ROOT:
                    self.owners[path] = (member.uid, member.gid)
                if number % 256 == 0:
                    seen(member.offset)
        # Times and modes of folders last: filling them would change the one, and need the other.
        for path, member in reversed(folders.items()):
            (self.root / path).chmod(member.mode)
            os.utime(self.root / path, (member.mtime, member.mtime))

    def _unpack_file(self, tar: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
        content = tar.extractfile(member)
        assert content is not None
        with (self.root / path).open("xb") as out:
            while chunk := content.read(1 << 20):
                out.write(chunk)
        self._finish(self.root / path, path, member.mode, (member.uid, member.gid), member.mtime)

    def _at(self, path: str) -> Path:
        """Where `path` is on the host; refused if a link is on the way to it."""
        parent = self.root
        for part in path.split("/")[:-1]:
            parent /= part
            if parent.is_symlink():
                raise ImageFailed(f"{path!r} leads through a link and out of the tree")
        return self.root / path

    def _finish(self, target: Path, path: str, mode: int, owner: Owner, mtime: float) -> None:
        target.chmod(mode)
        os.utime(target, (mtime, mtime))
        self.owners.pop(path, None)
        if owner != ROOT:
            self.owners[path] = owner

    def paths(self) -> Iterator[tuple[str, os.stat_result]]:
        """Everything below the root, parents first, sorted, as relative paths."""
        pending = [""]
        while pending:
            parent = pending.pop()
            with os.scandir(self.root / parent) as found:
                entries = sorted(found, key=lambda entry: entry.name)
            for entry in entries:
                path = f"{parent}/{entry.name}" if parent else entry.name
                status = entry.stat(follow_symlinks=False)
                yield path, status
                if stat.S_ISDIR(status.st_mode):
                    pending.append(path)

    def digest(self) -> str:
        """Of names, modes, owners and contents. Times are left out: they say when, not what."""
        total = hashlib.sha256()
        for path, status in self.paths():
            uid, gid = self.owners.get(path, ROOT)
            total.update(
                f"{path}\0{status.st_mode:o} {uid} {gid}\0".encode("utf-8", "surrogateescape")
            )
            if stat.S_ISLNK(status.st_mode):
                total.update(os.fsencode(os.readlink(self.root / path)))
            elif stat.S_ISREG(status.st_mode):
                with (self.root / path).open("rb") as file:
                    total.update(hashlib.file_digest(file, "sha256").digest())
        return total.hexdigest()

    def needs(self) -> tuple[int, int]:
        """Bytes (in whole blocks) and inodes that the tree takes in a filesystem."""
        sizes = [status.st_size for _, status in self.paths()]
        return sum(-(-size // BLOCK) * BLOCK for size in sizes), len(sizes)


def _matches(folder: Path, parts: list[str]) -> Iterator[Path]:
    """Like Path.glob, which would go through links."""
    first, *rest = parts
    for path in sorted(folder.iterdir()):
        if fnmatch.fnmatchcase(path.name, first):
            if not rest:
                yield path
            elif path.is_dir() and not path.is_symlink():
                yield from _matches(path, rest)


def _inside(name: str) -> str:
    """A member's path below the root; an archive that points elsewhere is refused."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ImageFailed(f"the archive has a path outside of its tree: {name!r}")
    return "/".join(parts)
