"""The `fake` driver: everything works, nothing runs. For demos, pictures and tests."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from vm_backends.contract import Engine, Feature, Machine, Support
from vm_backends.fake.faults import VARIABLE, FakeFaults
from vm_backends.fake.filesystem import dump, first_tree, load, write_atomically
from vm_backends.fake.machine import DISK, FakeMachine
from vm_backends.spec import MIB, BootFiles, MachineSpec, Problem, check_limits

PRETEND_BOOT = BootFiles(Path(os.devnull), Path(os.devnull))
"""Boot files for machines that boot nothing. Any others must at least be readable."""

_LATER = Support(False, "snapshots are not part of this version yet")


class FakeBackend:
    """Machines that live inside the process that opens them."""

    @property
    def name(self) -> str:
        return "fake"

    async def probe(self) -> Mapping[Feature, Support]:
        return {
            Feature.RUN: Support(True),
            Feature.PAUSE: Support(True),
            Feature.LIVE_SNAPSHOT: _LATER,
            Feature.LIVE_FORK: _LATER,
            Feature.ROLLBACK: _LATER,
            Feature.REATTACH: Support(False, "a fake machine lives inside its keeper"),
        }

    async def require(self) -> None:
        """Nothing is needed to pretend."""

    async def choose(self, boot: BootFiles, cache: Path) -> Engine:
        return Engine("none", "a pretend machine: nothing really runs")

    def check(self, spec: MachineSpec) -> Sequence[Problem]:
        host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return check_limits(spec, host // MIB)

    async def create(self, spec: MachineSpec, home: Path) -> None:
        data = dump(first_tree(spec.name))
        await asyncio.to_thread(write_atomically, home / DISK, data)

    async def open(self, spec: MachineSpec, home: Path, run: Path) -> Machine:
        faults = FakeFaults.from_text(os.environ.get(VARIABLE, ""), spec.name)
        await asyncio.to_thread(load, home / DISK)
        return FakeMachine(spec, home, run, faults)
