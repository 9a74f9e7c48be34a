"""Benches for the conformance suite: one for each driver that this host has."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from boxgrove.core.paths import Paths
from boxgrove.images import ImageStore
from tests.helpers.benches import fake_bench
from tests.helpers.homes import Home
from vm_backends.conformance import Bench
from vm_backends.qemu.backend import QemuBackend
from vm_backends.spec import MIB, MachineSpec

__all__ = ["fake_bench"]


@pytest.fixture(scope="session")
def qemu_spec(home: Home) -> MachineSpec:
    """A small machine on the starter image, with the accelerator that works here."""
    paths = Paths.from_environment(home.variables())
    images = ImageStore(paths.images, paths.boot)

    async def prepare() -> MachineSpec:
        image = await images.ensure("starter")
        boot = await images.boot_files()
        engine = await QemuBackend().choose(boot, paths.cache)
        return MachineSpec(
            "check", "qemu", boot, image.disk, memory_mib=256, disk_bytes=256 * MIB,
            accelerator=engine.accelerator,
        )  # fmt: skip

    return asyncio.run(prepare())


@pytest.fixture
def qemu_bench(qemu_spec: MachineSpec) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        yield Bench(QemuBackend(), qemu_spec, Path(folder))
