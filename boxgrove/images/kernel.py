"""Where a box's kernel comes from: the user, or the distribution's package, or this host's own.

A package is downloaded and unpacked, never installed. `boot.py` keeps what is found here.
"""

from __future__ import annotations

import asyncio
import os
import platform
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from boxgrove.images import apt, modules
from boxgrove.images.modules import Driver
from boxgrove.images.process import ToolFailed
from boxgrove.images.workshop import Workshop
from vm_backends.errors import KernelMissing
from vm_backends.events import Progress

_META = {
    ("debian", "x86_64"): "linux-image-cloud-amd64",
    ("debian", "aarch64"): "linux-image-cloud-arm64",
    ("ubuntu", "x86_64"): "linux-image-virtual",
    ("ubuntu", "aarch64"): "linux-image-virtual",
}
_CONCRETE = re.compile(r"\blinux-image-(?:unsigned-)?(\d[\w.+~-]*)")
DOWNLOAD_BYTES = 400 * 1024 * 1024
"""Room for the package and its unpacked drivers; almost all of it is free again afterwards."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel to boot and the drivers that belong to it. `source` says where it came from."""

    release: str
    source: str
    image: Path
    drivers: tuple[Driver, ...]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A kernel package that apt could download now."""

    release: str
    packages: tuple[str, ...]


def given(env: Mapping[str, str] = os.environ) -> tuple[Path, Path] | None:
    """The kernel and its modules folder that the user names in the environment."""
    if not (image := env.get("BOXGROVE_KERNEL")):
        return None
    folder = env.get("BOXGROVE_KERNEL_MODULES")
    if not folder:
        raise KernelMissing(
            "BOXGROVE_KERNEL is set, but BOXGROVE_KERNEL_MODULES is not",
            hint="Set it to the /lib/modules/RELEASE folder that belongs to that kernel.",
        )
    return Path(image), Path(folder)


def given_mark(files: tuple[Path, Path]) -> str:
    """Says whether the user's kernel is still the one we have; raises if it cannot be read."""
    image, folder = files
    try:
        status = image.stat()
        with image.open("rb"):
            pass
    except OSError as error:
        raise _unreadable(image, error) from error
    return f"given:{image}:{folder}:{status.st_size}:{status.st_mtime_ns}"


async def from_user(files: tuple[Path, Path]) -> Kernel:
    mark = given_mark(files)
    return await asyncio.to_thread(_read, files[0], files[1], mark)


async def candidate(place: Workshop) -> Candidate | None:
    """What the distribution's package of the day is; None where apt does not know."""
    meta = _META.get((apt.family(), platform.machine()))
    if meta is None or not apt.present():
        return None
    release = next(iter(_CONCRETE.findall(await apt.depends(meta, place))), None)
    if release is None:
        return None
    names = [f"linux-image-{release}"]
    if apt.family() == "ubuntu":
        names.append(f"linux-modules-{release}")
    return Candidate(release, tuple(names))


async def from_package(
    wanted: Candidate, place: Workshop, progress: Callable[[Progress], None]
) -> Kernel:
    """Download and unpack; the files stay in `place` until the caller has copied them."""
    place.need_space(DOWNLOAD_BYTES)
    folder = place.folder / "kernel"
    try:
        await apt.fetch(wanted.packages, folder, place, "Fetching the kernel", progress)
    except ToolFailed as error:
        raise KernelMissing(
            f"the kernel package {wanted.packages[0]} could not be downloaded: "
            f"{apt.reason(error.tail)}",
            hint="Is the network up? If it is, run `sudo apt-get update` and try again.",
        ) from error
    source = f"apt:{wanted.packages[0]}"
    for image, tree in _pairs(folder):
        return await asyncio.to_thread(_read, image, tree, source)
    raise KernelMissing(f"the package {wanted.packages[0]} has no kernel in it")


async def from_host(root: Path = Path("/")) -> Kernel | None:
    """The kernel this computer runs, or another one installed on it, if we may read it."""
    running = platform.release()
    pairs = sorted(_pairs(root), key=lambda pair: (pair[1].name == running, pair[1].name))
    for image, tree in reversed(pairs):
        if os.access(image, os.R_OK):
            return await asyncio.to_thread(_read, image, tree, f"host:{image}")
    return None


def none_found(root: Path = Path("/")) -> KernelMissing:
    """The sentence for a host where every way has failed."""
    if apt.present() and (apt.family(), platform.machine()) in _META:
        return KernelMissing(
            f"apt does not know the package {_META[apt.family(), platform.machine()]}",
            hint="Run `sudo apt-get update` and try again.",
        )
    unreadable = [str(image) for image, _ in _pairs(root)]
    return KernelMissing(
        f"the kernel {unreadable[0]} cannot be read by this user"
        if unreadable
        else "there is no kernel that boxes could boot",
        hint=f"Run `sudo chmod a+r {unreadable[0]}`, or set BOXGROVE_KERNEL."
        if unreadable
        else "Set BOXGROVE_KERNEL to a vmlinuz and BOXGROVE_KERNEL_MODULES to its modules.",
    )


def _pairs(root: Path) -> list[tuple[Path, Path]]:
    """Kernels below `root` with their modules folders (one, where lib links to usr/lib)."""
    found: dict[str, tuple[Path, Path]] = {}
    for tree in (*root.glob("usr/lib/modules/*"), *root.glob("lib/modules/*")):
        for image in (root / "boot" / f"vmlinuz-{tree.name}", tree / "vmlinuz"):
            if image.exists() and (tree / "modules.builtin").exists():
                found.setdefault(tree.name, (image, tree))
    return list(found.values())


def _read(image: Path, tree: Path, source: str) -> Kernel:
    try:
        with image.open("rb") as file:
            head = file.read(0x206)
    except OSError as error:
        raise _unreadable(image, error) from error
    # The two kinds of image QEMU can boot directly: x86 (bzImage) and arm64 (Image, PE or gzip).
    magics = (
        head[0x202:0x206] == b"HdrS",
        head[56:60] == b"ARM\x64",
        head[:2] in (b"MZ", b"\x1f\x8b"),
    )
    if not any(magics):
        raise KernelMissing(f"{image} is not a Linux kernel image")
    return Kernel(tree.name, source, image, modules.load_order(tree))


def _unreadable(image: Path, error: OSError) -> KernelMissing:
    return KernelMissing(
        f"the kernel {image} cannot be read: {error.strerror}",
        hint="Check BOXGROVE_KERNEL, or unset it to use the distribution's kernel.",
    )
