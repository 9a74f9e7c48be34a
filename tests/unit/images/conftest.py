"""Kernels and drivers small enough to make up: real ELF, real files, nothing downloaded."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import pytest

from boxgrove.images import ImageStore
from boxgrove.resources import resources as default_resources

AGENT = "int main(void) { return 0; }\n"
RELEASE = "6.1.0-test"
MakeKernel = Callable[..., tuple[Path, Path]]


def module(depends: str) -> bytes:
    """The least that is a kernel module: an ELF object with a .modinfo section."""
    info = f"license=GPL\0depends={depends}\0name=x\0".encode()
    names = b"\0.modinfo\0.shstrtab\0"
    start = 64
    sections_at = start + len(info) + len(names)
    head = struct.pack(
        "<16sHHIQQQIHHHHHH",
        b"\x7fELF\x02\x01\x01" + bytes(9), 1, 62, 1, 0, 0, sections_at, 0, 64, 0, 0, 64, 3, 2,
    )  # fmt: skip
    entry = struct.Struct("<IIQQQQIIQQ")
    sections = (
        entry.pack(*([0] * 10))
        + entry.pack(1, 1, 0, 0, start, len(info), 0, 0, 1, 0)
        + entry.pack(10, 3, 0, 0, start + len(info), len(names), 0, 0, 1, 0)
    )
    return head + info + names + sections


DRIVERS = {
    "drivers/virtio/virtio": "",
    "drivers/virtio/virtio_ring": "",
    "drivers/virtio/virtio_pci": "virtio_ring,virtio",
    "drivers/char/virtio_console": "virtio,virtio-ring",
    "drivers/block/virtio_blk": "virtio_ring,virtio",
    "drivers/char/hw_random/virtio-rng": "virtio_ring",
    "drivers/net/unwanted": "virtio",
}


@pytest.fixture
def make_kernel(tmp_path: Path) -> MakeKernel:
    """Makes a vmlinuz and its modules folder."""

    def make(
        drivers: Mapping[str, str] = DRIVERS,
        builtin: Iterable[str] = ("kernel/fs/ext4/ext4.ko", "kernel/crypto/crc32c_generic.ko"),
        root: Path = tmp_path / "kernel-root",
    ) -> tuple[Path, Path]:
        tree = root / "lib/modules" / RELEASE
        for name, depends in drivers.items():
            path = tree / "kernel" / f"{name}.ko"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(module(depends))
        tree.mkdir(parents=True, exist_ok=True)
        (tree / "modules.builtin").write_text("".join(f"{line}\n" for line in builtin))
        image = root / "boot" / f"vmlinuz-{RELEASE}"
        image.parent.mkdir(exist_ok=True)
        image.write_bytes(bytes(0x202) + b"HdrS" + bytes(1000))
        return image, tree

    return make


@pytest.fixture
def resources(tmp_path: Path) -> Path:
    """The real resources with an agent that compiles in no time."""
    folder = tmp_path / "resources"
    (folder / "guest" / "agent").mkdir(parents=True)
    (folder / "guest" / "agent" / "main.c").write_text(AGENT)
    real = default_resources()
    (folder / "images.toml").symlink_to(real / "images.toml")
    for name in ("starter", "debian"):
        (folder / "guest" / name).symlink_to(real / "guest" / name)
    return folder


@pytest.fixture
def store(
    tmp_path: Path, resources: Path, make_kernel: MakeKernel, monkeypatch: pytest.MonkeyPatch
) -> ImageStore:
    """A store whose kernel is the made-up one, so that nothing is downloaded."""
    image, tree = make_kernel()
    monkeypatch.setenv("BOXGROVE_KERNEL", str(image))
    monkeypatch.setenv("BOXGROVE_KERNEL_MODULES", str(tree))
    return ImageStore(tmp_path / "images", tmp_path / "boot", resources)
