"""What a machine should be: plain frozen values, so that a keeper can read them cheaply.

Borders that face people (command line, settings, other people's files) validate with pydantic;
a keeper only reads the `machine.json` that our own side wrote, and pydantic would cost it a
fifth of its memory.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

MIB = 1024 * 1024
GIB = 1024 * MIB

MIN_MEMORY_MIB = 64
MIN_DISK_BYTES = 16 * MIB
MAX_DISK_BYTES = 64 * 1024 * GIB
MAX_CPUS = 64


@dataclass(frozen=True, slots=True)
class BootFiles:
    """A kernel and the initial ramdisk that holds our agent and the drivers it loads."""

    kernel: Path
    initrd: Path


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """One machine, complete: two equal specs give two equal machines."""

    name: str
    """Shown in process lists and used as the guest's host name."""
    backend: str
    boot: BootFiles
    base: Path
    """The read-only qcow2 image that the machine's own disk stands on."""
    cpus: int = 1
    memory_mib: int = 512
    disk_bytes: int = 10 * GIB
    accelerator: str = "auto"

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=str, indent=1)

    @staticmethod
    def from_json(text: str) -> MachineSpec:
        data: dict[str, Any] = json.loads(text)
        boot = data.pop("boot")
        return MachineSpec(
            boot=BootFiles(Path(boot["kernel"]), Path(boot["initrd"])),
            base=Path(data.pop("base")),
            **data,
        )


@dataclass(frozen=True, slots=True)
class Problem:
    """Something about a spec that this host cannot give; `hint` is what would work."""

    message: str
    hint: str = ""


def check_limits(spec: MachineSpec, host_memory_mib: int) -> list[Problem]:
    """What is wrong with a spec whatever the engine."""
    problems = []
    if not 1 <= spec.cpus <= MAX_CPUS:
        problems.append(Problem(f"{spec.cpus} CPUs is not between 1 and {MAX_CPUS}"))
    if spec.memory_mib < MIN_MEMORY_MIB:
        problems.append(
            Problem(
                f"{spec.memory_mib} MiB of memory is too little to boot",
                f"Give it at least {MIN_MEMORY_MIB}M.",
            )
        )
    elif spec.memory_mib > host_memory_mib:
        problems.append(
            Problem(
                f"{spec.memory_mib} MiB of memory is more than this computer has",
                f"It has {host_memory_mib} MiB.",
            )
        )
    if not MIN_DISK_BYTES <= spec.disk_bytes <= MAX_DISK_BYTES:
        problems.append(
            Problem(
                f"a disk of {spec.disk_bytes} bytes is not between "
                f"{MIN_DISK_BYTES // MIB} MiB and {MAX_DISK_BYTES // GIB} GiB",
                "Sizes look like 10G or 500M.",
            )
        )
    return problems
