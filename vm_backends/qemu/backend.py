"""QemuBackend: finds QEMU, says what this host can do with it, makes machines."""

from __future__ import annotations

import asyncio
import os
import platform
import re
import shutil
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from vm_backends.contract import Engine, Feature, Support
from vm_backends.errors import EngineFailed, EngineMissing, EngineTooOld
from vm_backends.process import quick_output
from vm_backends.spec import BootFiles, MachineSpec, Problem, check_limits

MINIMUM = (7, 0)
BINARY = "BOXGROVE_QEMU"
INSTALL_HINT = (
    "Install it: apt install qemu-system-x86 qemu-utils (Debian, Ubuntu), "
    "dnf install qemu-kvm (Fedora), pacman -S qemu-base (Arch), brew install qemu."
)


class QemuBackend:
    name = "qemu"

    async def probe(self) -> Mapping[Feature, Support]:
        try:
            await asyncio.to_thread(find_qemu)
        except EngineMissing as missing:
            lacking = Support(False, missing.message)
            return dict.fromkeys(Feature, lacking)
        later = Support(False, "snapshots are not built yet")
        return {
            Feature.RUN: Support(True),
            Feature.PAUSE: Support(True),
            Feature.REATTACH: Support(True),
            Feature.LIVE_SNAPSHOT: later,
            Feature.LIVE_FORK: later,
            Feature.ROLLBACK: later,
        }

    async def require(self) -> None:
        await asyncio.to_thread(find_qemu)

    async def choose(self, boot: BootFiles, cache: Path) -> Engine:
        from vm_backends.qemu import accelerator

        binary, version = await asyncio.to_thread(find_qemu)
        return await accelerator.choose(binary, version, boot, cache)

    def check(self, spec: MachineSpec) -> Sequence[Problem]:
        return check_limits(spec, host_memory_mib())

    async def create(self, spec: MachineSpec, home: Path) -> None:
        from vm_backends.qemu import disk

        await disk.create_overlay(home, spec.base, spec.disk_bytes)

    async def open(self, spec: MachineSpec, home: Path, run: Path) -> QemuMachine:
        machine = QemuMachine(spec, home, run, find_binary())
        await machine.reattach()
        return machine


def find_binary() -> Path:
    """The QEMU program, without running it; EngineMissing with the way to get it."""
    wanted = os.environ.get(BINARY) or f"qemu-system-{_architecture()}"
    found = shutil.which(wanted)
    if not found:
        raise EngineMissing(f"there is no {Path(wanted).name} on this computer", hint=INSTALL_HINT)
    return Path(found)


@cache
def find_qemu() -> tuple[Path, str]:
    """QEMU and its version; EngineTooOld below the oldest that has what we use."""
    binary = find_binary()
    status, output = quick_output([str(binary), "--version"], timeout_s=10)
    match = re.search(r"version (\d+)\.(\d+)(\.\d+)?", output)
    if status != 0 or not match:
        raise EngineFailed(f"{binary} does not tell its version: {output.strip()[:200]}")
    if (int(match[1]), int(match[2])) < MINIMUM:
        raise EngineTooOld(
            f"QEMU {match[0].removeprefix('version ')} is too old",
            hint=f"Boxgrove needs QEMU {MINIMUM[0]}.{MINIMUM[1]} or newer.",
        )
    return binary, match[0].removeprefix("version ")


def host_memory_mib() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20


def _architecture() -> str:
    machine = platform.machine().lower()
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(machine, machine)


# Last, so that `find_qemu` can be used without loading all of the driver.
from vm_backends.qemu.machine import QemuMachine  # noqa: E402
