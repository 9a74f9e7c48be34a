"""Scripted trouble for fake machines: set from Python, or from BOXGROVE_FAKE as JSON.

BOXGROVE_FAKE='{"delays_s": {"start": 3}, "agent": "garbage"}'
BOXGROVE_FAKE='{"box": "web", "fail": {"pause": {"code": "engine-failed", "message": "no"}}}'
BOXGROVE_FAKE='[{"box": "a", "crash_after_s": 5}, {"box": "b", "agent": "silent"}]'
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from vm_backends.errors import BadSpec, Fault, from_wire
from vm_backends.state import Verb

VARIABLE = "BOXGROVE_FAKE"


class Agent(Enum):
    """How the guest's agent behaves when it is spoken to."""

    WELL = "well"
    SILENT = "silent"
    LATE = "late"
    GARBAGE = "garbage"


@dataclass(frozen=True)
class FakeFaults:
    """What goes wrong with one machine. `fail` is used up: each entry fails its verb once."""

    delays_s: Mapping[Verb, float] = field(default_factory=dict)
    """Extra time that a verb takes; for `stop` it is the guest that takes so long."""
    fail: Mapping[Verb, Fault] = field(default_factory=dict)
    agent: Agent = Agent.WELL
    late_s: float = 2.0
    """When a late agent answers."""
    crash_after_s: float | None = None
    reboot_after_s: float | None = None
    boot_deadline_s: float = 20.0

    @staticmethod
    def from_text(text: str, name: str) -> FakeFaults:
        """What `BOXGROVE_FAKE` says about the machine of that name; BadSpec if it is nonsense."""
        if not text.strip():
            return FakeFaults()
        try:
            data = json.loads(text)
            for one in data if isinstance(data, list) else [data]:
                if one.pop("box", name) == name:
                    return _from_json(one)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            known = ", ".join(item.name for item in fields(FakeFaults))
            raise BadSpec(
                f"{VARIABLE} is not what a fake machine understands ({error})",
                hint=f"It is JSON with any of: box, {known}.",
            ) from error
        return FakeFaults()


def _from_json(data: dict[str, Any]) -> FakeFaults:
    if "delays_s" in data:
        data["delays_s"] = {Verb(verb): float(s) for verb, s in data["delays_s"].items()}
    if "fail" in data:
        data["fail"] = {Verb(verb): from_wire(fault) for verb, fault in data["fail"].items()}
    if "agent" in data:
        data["agent"] = Agent(data["agent"])
    for key in ("late_s", "crash_after_s", "reboot_after_s", "boot_deadline_s"):
        if data.get(key) is not None:
            data[key] = float(data[key])
    return FakeFaults(**data)
