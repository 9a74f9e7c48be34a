"""Ready-made worlds for demos and pictures: everyday, crowded, broken. Plain values."""

from __future__ import annotations

from dataclasses import dataclass, field

from vm_backends.fake.faults import Agent, FakeFaults
from vm_backends.state import MachineState

_S = MachineState
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


@dataclass(frozen=True, slots=True)
class ScenarioBox:
    """One box as it should appear."""

    name: str
    state: MachineState
    image: str = "debian"
    cpus: int = 2
    memory_mib: int = 1024
    age_s: int = _DAY
    why: str = ""
    """For a crashed box: the sentence on what happened."""
    faults: FakeFaults = field(default_factory=FakeFaults)


def everyday() -> tuple[ScenarioBox, ...]:
    """What a person has after a week: a few boxes, most of them at rest."""
    return (
        ScenarioBox("web-shop", _S.RUNNING, cpus=4, memory_mib=2048, age_s=6 * _DAY),
        ScenarioBox("agent", _S.RUNNING, age_s=3 * _HOUR),
        ScenarioBox("data-cleaning", _S.PAUSED, memory_mib=4096, age_s=2 * _DAY),
        ScenarioBox("try", _S.STOPPED, image="starter", cpus=1, memory_mib=256, age_s=_MINUTE),
        ScenarioBox("old-notes", _S.STOPPED, age_s=40 * _DAY),
    )


def crowded() -> tuple[ScenarioBox, ...]:
    """Forty boxes: does it scroll, sort and stay readable?"""
    states = (_S.RUNNING, _S.STOPPED, _S.PAUSED, _S.RUNNING, _S.STOPPED)
    return tuple(
        ScenarioBox(
            name=f"{'a-box-with-quite-a-long-name' if number % 13 == 0 else 'box'}-{number:02}",
            state=states[number % len(states)],
            image="starter" if number % 3 else "debian",
            cpus=1 + number % 4,
            memory_mib=256 << number % 4,
            age_s=_HOUR * number * number,
        )
        for number in range(1, 41)
    )


def broken() -> tuple[ScenarioBox, ...]:
    """Everything that can be wrong, one box each."""
    return (
        ScenarioBox("crashed", _S.CRASHED, why="QEMU was ended from outside (signal 9)"),
        ScenarioBox("silent", _S.STOPPED, faults=FakeFaults(agent=Agent.SILENT)),
        ScenarioBox("late", _S.STOPPED, faults=FakeFaults(agent=Agent.LATE, late_s=5)),
        ScenarioBox("garbage", _S.STOPPED, faults=FakeFaults(agent=Agent.GARBAGE)),
        ScenarioBox("falls-over", _S.RUNNING, faults=FakeFaults(crash_after_s=10)),
        ScenarioBox("restless", _S.RUNNING, faults=FakeFaults(reboot_after_s=10)),
    )


SCENARIOS = {"everyday": everyday, "crowded": crowded, "broken": broken}
