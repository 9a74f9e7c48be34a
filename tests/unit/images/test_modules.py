"""Load order and reading of drivers, on modules that are small but real ELF files."""

from __future__ import annotations

import gzip
import lzma
import shutil
import subprocess
from pathlib import Path

import pytest

from boxgrove.images.modules import NotAModule, load_order, modinfo
from tests.unit.images.conftest import DRIVERS, MakeKernel, module
from vm_backends.errors import KernelMissing


def names(tree: Path) -> list[str]:
    return [driver.name for driver in load_order(tree)]


def test_dependencies_are_loaded_first(make_kernel: MakeKernel) -> None:
    order = names(make_kernel()[1])
    for path, depends in DRIVERS.items():
        name = Path(path).name.replace("-", "_")
        for needed in filter(None, depends.replace("-", "_").split(",")):
            if name in order:
                assert order.index(needed) < order.index(name), (needed, name)
    assert len(order) == len(set(order))


def test_only_what_a_box_needs_is_taken(make_kernel: MakeKernel) -> None:
    order = names(make_kernel()[1])
    assert set(order) == {
        *("virtio", "virtio_ring", "virtio_pci", "virtio_console", "virtio_blk", "virtio_rng")
    }


def test_a_filesystem_that_is_a_module_brings_its_checksums(make_kernel: MakeKernel) -> None:
    drivers = DRIVERS | {"fs/ext4/ext4": "jbd2", "fs/jbd2/jbd2": "", "crypto/crc32c-intel": ""}
    order = names(make_kernel(drivers, builtin=())[1])
    assert order.index("jbd2") < order.index("ext4")
    assert "crc32c_intel" in order


def test_a_missing_driver_is_named(make_kernel: MakeKernel) -> None:
    drivers = {path: needs for path, needs in DRIVERS.items() if "blk" not in path}
    with pytest.raises(KernelMissing, match="virtio_blk") as caught:
        load_order(make_kernel(drivers)[1])
    assert "BOXGROVE_KERNEL" in caught.value.hint


def test_a_missing_dependency_is_named(make_kernel: MakeKernel) -> None:
    with pytest.raises(KernelMissing, match="lost"):
        load_order(make_kernel(DRIVERS | {"drivers/block/virtio_blk": "lost"})[1])


def test_a_circle_ends(make_kernel: MakeKernel) -> None:
    circle = {"drivers/virtio/virtio": "virtio_ring", "drivers/virtio/virtio_ring": "virtio"}
    with pytest.raises(KernelMissing, match="circle"):
        load_order(make_kernel(DRIVERS | circle)[1])


@pytest.mark.parametrize("suffix", [".xz", ".gz", ".zst"])
def test_compressed_drivers_come_out_plain(make_kernel: MakeKernel, suffix: str) -> None:
    tree = make_kernel()[1]
    plain = tree / "kernel/drivers/block/virtio_blk.ko"
    data = plain.read_bytes()
    packed = plain.with_name(plain.name + suffix)
    if suffix == ".zst":
        if shutil.which("zstd") is None:
            pytest.skip("the zstd program is not here")
        subprocess.run(["zstd", "-q", "--rm", str(plain)], check=True)
    else:
        packed.write_bytes(lzma.compress(data) if suffix == ".xz" else gzip.compress(data))
        plain.unlink()
    assert {d.name: d.data for d in load_order(tree)}["virtio_blk"] == data


@pytest.mark.parametrize("suffix", ["", ".xz", ".gz"])
def test_a_damaged_driver_is_a_plain_error(make_kernel: MakeKernel, suffix: str) -> None:
    tree = make_kernel()[1]
    plain = tree / "kernel/drivers/block/virtio_blk.ko"
    plain.rename(plain.with_name(plain.name + suffix)).write_bytes(b"rubbish")
    with pytest.raises(KernelMissing, match="virtio_blk"):
        load_order(tree)


def test_every_cut_of_a_module_is_refused_or_read() -> None:
    whole = module("a,b")
    assert modinfo(whole)["depends"] == "a,b"
    for end in range(len(whole)):
        with pytest.raises(NotAModule):
            modinfo(whole[:end])


def test_a_folder_without_modules_says_so(tmp_path: Path) -> None:
    with pytest.raises(KernelMissing, match="not a folder of kernel modules"):
        load_order(tmp_path)
