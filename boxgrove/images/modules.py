"""Which drivers a kernel needs before it can see our disk and our port, in the order to load them.

A kernel package carries no `modules.dep` (it is made at installation, which we never do), so the
dependencies are read from the modules themselves: each names its own in its ELF `.modinfo`.
"""

from __future__ import annotations

import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vm_backends.errors import KernelMissing

NEEDED = ("virtio_pci", "virtio_console", "virtio_blk", "ext4")
WELCOME = ("virtio_rng",)
"""Taken when the kernel has them; a box without runs as well."""
CHECKSUMS = ("crc32c_generic", "crc32c_cryptoapi", "crc32c_intel", "crc32c")
"""ext4 asks for one of these by alias only, so no `depends=` names it. The first found is enough,
and newer kernels have it built in under no module name at all."""

_ELF_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SUFFIXES = (".ko", ".ko.xz", ".ko.gz", ".ko.zst")


class NotAModule(Exception):
    """A file that is not a 64-bit little-endian ELF object, or one that was cut short."""


@dataclass(frozen=True, slots=True)
class Driver:
    """One module as the guest's kernel takes it: decompressed, signature and all."""

    name: str
    data: bytes


def load_order(tree: Path) -> tuple[Driver, ...]:
    """The drivers of the kernel whose `/lib/modules/RELEASE` is `tree`, dependencies first."""
    files, builtin = _files(tree), _builtin(tree)
    wanted = [*NEEDED]
    provider = next((name for name in CHECKSUMS if name in builtin or name in files), None)
    wanted += [name for name in (provider, *WELCOME) if name in files]
    order: dict[str, Driver] = {}
    for name in wanted:
        _add(name, files, builtin, order, path=())
    return tuple(order.values())


def _add(
    name: str,
    files: Mapping[str, Path],
    builtin: frozenset[str],
    order: dict[str, Driver],
    path: tuple[str, ...],
) -> None:
    if name in order or name in builtin:
        return
    if name in path:
        raise KernelMissing(f"the kernel's drivers need one another in a circle: {name}")
    if name not in files:
        raise KernelMissing(
            f"the kernel has no {name} driver, so a box could not use its disk or be reached",
            hint="Set BOXGROVE_KERNEL and BOXGROVE_KERNEL_MODULES to a kernel with virtio drivers.",
        )
    try:
        data = _read(files[name])
        depends = modinfo(data).get("depends", "")
    except (OSError, NotAModule, EOFError, ValueError) as error:
        raise KernelMissing(f"the kernel's driver {files[name]} cannot be read: {error}") from error
    for needed in filter(None, depends.split(",")):
        _add(_plain(needed), files, builtin, order, (*path, name))
    order[name] = Driver(name, data)


def modinfo(data: bytes) -> dict[str, str]:
    """The `key=value` strings of a module's .modinfo section; the first of each key."""
    found: dict[str, str] = {}
    for entry in _section(data, b".modinfo").split(b"\0"):
        key, sign, value = entry.decode("utf-8", "replace").partition("=")
        if sign:
            found.setdefault(key, value)
    return found


def _section(data: bytes, wanted: bytes) -> bytes:
    try:
        head = _ELF_HEADER.unpack_from(data)
        if head[0][:6] != b"\x7fELF\x02\x01":
            raise NotAModule("not a 64-bit ELF file")
        offset, size, count, names_at = head[6], head[11], head[12], head[13]
        sections = [_SECTION.unpack_from(data, offset + size * n) for n in range(count)]
        names = _content(data, sections[names_at])
        for section in sections:
            name = names[section[0] :].split(b"\0", 1)[0]
            if name == wanted:
                return _content(data, section)
    except (struct.error, IndexError) as error:
        raise NotAModule("cut short") from error
    return b""


def _content(data: bytes, section: tuple[int, ...]) -> bytes:
    start, size = section[4], section[5]
    if start + size > len(data):
        raise NotAModule("cut short")
    return data[start : start + size]


def _plain(name: str) -> str:
    return name.strip().replace("-", "_")


def _files(tree: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for path in sorted(_walk(tree)):
        found.setdefault(_plain(path.name.split(".ko", 1)[0]), path)
    return found


def _walk(tree: Path) -> Iterator[Path]:
    # A host's own folder has links to its headers in it (`build`, `source`): stay in the drivers.
    for part in ("updates", "kernel", "extra"):
        for path in (tree / part).rglob("*.ko*"):
            if path.name.endswith(_SUFFIXES):
                yield path


def _builtin(tree: Path) -> frozenset[str]:
    try:
        lines = (tree / "modules.builtin").read_text().splitlines()
    except OSError as error:
        raise KernelMissing(
            f"{tree} is not a folder of kernel modules: {error.strerror}",
            hint="It should be the /lib/modules/RELEASE folder that belongs to the kernel.",
        ) from error
    return frozenset(_plain(Path(line).name.removesuffix(".ko")) for line in lines)


def _read(path: Path) -> bytes:
    data = path.read_bytes()
    match path.suffix:
        case ".xz":
            import lzma

            try:
                return lzma.decompress(data)
            except lzma.LZMAError as error:
                raise NotAModule(str(error)) from error
        case ".gz":
            import gzip

            return gzip.decompress(data)
        case ".zst":
            return _unzstd(data)
    return data


def _unzstd(data: bytes) -> bytes:
    """Through the `zstd` program: Python itself learned the format in 3.14 only."""
    program = shutil.which("zstd")
    if program is None:
        raise KernelMissing(
            "the kernel's drivers are compressed with zstd, which is not installed",
            hint="Install the package zstd.",
        )
    done = subprocess.run([program, "-dcq"], input=data, capture_output=True, check=False)
    if done.returncode:
        raise NotAModule(done.stderr.decode("utf-8", "replace").strip())
    return done.stdout
