"""Finding a kernel: the user's word counts, and every way to fail has a sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from boxgrove.images import apt, kernel
from tests.unit.images.conftest import RELEASE, MakeKernel
from vm_backends.errors import KernelMissing


async def test_the_users_kernel_is_read_with_its_drivers(make_kernel: MakeKernel) -> None:
    files = make_kernel()
    found = await kernel.from_user(files)
    assert (found.release, found.image) == (RELEASE, files[0])
    assert "virtio_blk" in [driver.name for driver in found.drivers]


def test_a_kernel_without_its_modules_is_refused() -> None:
    with pytest.raises(KernelMissing, match="BOXGROVE_KERNEL_MODULES"):
        kernel.given({"BOXGROVE_KERNEL": "/somewhere/vmlinuz"})
    assert kernel.given({}) is None


async def test_a_missing_kernel_is_named(make_kernel: MakeKernel) -> None:
    image, tree = make_kernel()
    image.unlink()
    with pytest.raises(KernelMissing, match="No such file") as caught:
        await kernel.from_user((image, tree))
    assert "BOXGROVE_KERNEL" in caught.value.hint


async def test_any_other_file_is_no_kernel(make_kernel: MakeKernel) -> None:
    image, tree = make_kernel()
    image.write_bytes(b"#!/bin/sh\n")
    with pytest.raises(KernelMissing, match="not a Linux kernel"):
        await kernel.from_user((image, tree))


async def test_the_hosts_kernel_is_found(make_kernel: MakeKernel, tmp_path: Path) -> None:
    make_kernel(root=tmp_path / "host")
    found = await kernel.from_host(tmp_path / "host")
    assert found is not None
    assert found.release == RELEASE
    assert found.source.startswith("host:")


async def test_a_host_without_a_kernel_has_none(tmp_path: Path) -> None:
    assert await kernel.from_host(tmp_path) is None
    assert kernel.none_found(tmp_path).hint


def test_apts_reason_is_given_without_its_addresses() -> None:
    offline = (
        "Err:1 http://mirror.example/packages bookworm/main amd64 linux-image amd64 6.1\n"
        "  Temporary failure resolving 'mirror.example'\n"
        "E: Failed to fetch http://mirror.example/linux.deb  Temporary failure resolving 'mirror'\n"
        "E: Some files failed to download\n"
    )
    assert apt.reason(offline) == "Temporary failure resolving 'mirror'"
    assert apt.reason("E: Unable to locate package linux") == "Unable to locate package linux"
    assert apt.reason("") == "apt gave no reason"
