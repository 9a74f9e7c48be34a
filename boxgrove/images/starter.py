"""The `starter` image: busybox and a handful of files, built offline in seconds."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

from boxgrove.images import apt
from boxgrove.images.errors import ImageFailed
from boxgrove.images.process import ToolFailed, search_path
from boxgrove.images.tree import Tree
from boxgrove.images.workshop import MIB, Workshop
from vm_backends.events import Progress

CLAW = (1000, 1000)
RECIPE = "starter-1"
_PT_INTERP = 3
FOLDERS = ("bin", "dev", "etc", "home", "mnt", "opt", "proc", "run", "sbin", "srv", "sys", "usr")
MORE_FOLDERS = ("usr/bin", "usr/sbin", "usr/local", "usr/local/bin", "usr/share", "var", "var/log")
MODES = {"etc/shadow": 0o640}


class Starter:
    """`skeleton` holds the files of /etc as they are; the rest is made here."""

    space_bytes = 256 * MIB
    least_bytes = 64 * MIB

    def __init__(self, skeleton: Path) -> None:
        self._skeleton = skeleton
        self._busybox = Path()

    async def made_from(self, place: Workshop, progress: Callable[[Progress], None]) -> str:
        self._busybox = await _busybox(place, progress)
        return await asyncio.to_thread(self._key)

    def _key(self) -> str:
        total = hashlib.sha256(RECIPE.encode() + self._busybox.read_bytes())
        for path in self._files():
            total.update(f"{path.relative_to(self._skeleton)}\0".encode() + path.read_bytes())
        return f"{RECIPE} {total.hexdigest()}"

    async def plant(
        self, tree: Tree, place: Workshop, progress: Callable[[Progress], None]
    ) -> None:
        progress(Progress("Laying out the files"))
        await asyncio.to_thread(self._plant, tree)

    def _plant(self, tree: Tree) -> None:
        for path in (*FOLDERS, *MORE_FOLDERS):
            tree.folder(path)
        tree.folder("root", 0o700)
        tree.folder("home/claw", 0o755, CLAW)
        for path in ("tmp", "var/tmp"):
            tree.folder(path, 0o1777)
        tree.link("var/run", "/run")
        tree.file("bin/busybox", self._busybox.read_bytes(), 0o755)
        for applet in self._applets():
            tree.link(applet, "/bin/busybox")
        for file in self._files():
            path = str(file.relative_to(self._skeleton))
            for parent in reversed(Path(path).parents[:-1]):
                tree.folder(str(parent))
            tree.file(path, file.read_bytes(), MODES.get(path, 0o644))
        for path in ("etc/resolv.conf", "etc/machine-id"):
            tree.file(path, b"")

    def _files(self) -> list[Path]:
        return sorted(path for path in self._skeleton.rglob("*") if path.is_file())

    def _applets(self) -> list[str]:
        """Where busybox wants its commands, e.g. `bin/ls`; never over a file of ours."""
        done = subprocess.run(
            [self._busybox, "--list-full"], capture_output=True, text=True, check=True
        )
        paths = {line.strip().lstrip("/") for line in done.stdout.splitlines()}
        return sorted(p for p in paths - {"", "bin/busybox"} if p.count("/") in (1, 2))


async def _busybox(place: Workshop, progress: Callable[[Progress], None]) -> Path:
    """A static busybox: the host's, or the one of the package, unpacked and not installed."""
    found = shutil.which("busybox", path=search_path())
    if found is not None and is_static(Path(found)):
        return Path(found)
    hint = "Install the package busybox-static (Fedora and Arch: busybox)."
    if not apt.present():
        raise ImageFailed(
            "there is no static busybox, which the starter image is made of", hint=hint
        )
    folder = place.folder / "busybox"
    try:
        await apt.fetch(("busybox-static",), folder, place, "Fetching busybox", progress)
    except ToolFailed as error:
        raise ImageFailed(
            f"busybox could not be downloaded: {apt.reason(error.tail)}", hint=hint
        ) from error
    for path in (folder / "bin/busybox", folder / "usr/bin/busybox"):
        if path.is_file():
            return path
    raise ImageFailed("the package busybox-static has no busybox in it", hint=hint)


def is_static(path: Path) -> bool:
    """Whether an ELF program asks for no loader, so that it runs where no library is."""
    try:
        data = path.read_bytes()
        if data[:5] != b"\x7fELF\x02":
            return False
        offset, size, count = (
            struct.unpack_from("<Q", data, 32)[0],
            *struct.unpack_from("<HH", data, 54),
        )
        kinds = [struct.unpack_from("<I", data, offset + size * n)[0] for n in range(count)]
    except (OSError, struct.error):
        return False
    return _PT_INTERP not in kinds
