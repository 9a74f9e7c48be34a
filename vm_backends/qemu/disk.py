"""A machine's own disk: a qcow2 layer over a read-only image, made and checked by name."""

from __future__ import annotations

import asyncio
import os
import shutil
import struct
from pathlib import Path

from vm_backends.errors import DiskDamaged, EngineFailed, EngineMissing, NoSpace
from vm_backends.process import quick_output

DISK_FOLDER = "disk"
ACTIVE = "active.qcow2"
HEADROOM = 64 * 1024 * 1024
"""A store with less free space than this would strand a new box at once."""

_HEADER = struct.Struct(">4sIQIIQ")


def active_disk(home: Path) -> Path:
    return home / DISK_FOLDER / ACTIVE


async def create_overlay(home: Path, base: Path, size: int) -> None:
    """Make the active layer over `base`; on disk when this returns."""
    check_readable(base, "the image")
    tool = shutil.which("qemu-img")
    if not tool:
        raise EngineMissing(
            "qemu-img is not installed", hint="Install your system's qemu-utils (or qemu-img)."
        )
    folder = home / DISK_FOLDER
    folder.mkdir(mode=0o700, exist_ok=True)
    free = shutil.disk_usage(home).free
    if free < HEADROOM:
        raise NoSpace(f"only {free // 2**20} MiB are free on the disk that keeps your boxes")
    size = max(size, virtual_size(base))
    path = folder / ACTIVE
    command = [tool, "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(base), str(path)]
    status, output = await asyncio.to_thread(quick_output, [*command, str(size)], timeout_s=60)
    if status != 0:
        if "No space" in output:
            raise NoSpace("the disk that keeps your boxes is full")
        raise EngineFailed(f"the box's disk could not be made: {output.strip()[-300:]}")
    await asyncio.to_thread(_fsync, path, folder)


def check_readable(path: Path, what: str) -> None:
    """A disk file that is missing, unreadable or no qcow2 at all is told apart here."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEADER.size)
    except FileNotFoundError:
        raise DiskDamaged(
            f"{what} is missing: {path}",
            hint="Put the file back, or remove the box with `boxgrove rm`.",
        ) from None
    except OSError as error:
        raise DiskDamaged(f"{what} cannot be read: {path}: {error.strerror}") from error
    if len(head) < _HEADER.size or head[:4] != b"QFI\xfb":
        raise DiskDamaged(
            f"{what} is damaged: {path} is not a qcow2 file",
            hint="`qemu-img check` may say more; the image below it is not affected.",
        )


def virtual_size(path: Path) -> int:
    with open(path, "rb") as file:
        size: int = _HEADER.unpack(file.read(_HEADER.size))[5]
    return size


def _fsync(*paths: Path) -> None:
    for path in paths:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
