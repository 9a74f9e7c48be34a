"""Boxes as values: what the store keeps, what a status adds, and what `--json` prints of both."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vm_backends.state import MachineState


def new_id() -> str:
    """An id for life: 32 hex digits."""
    return os.urandom(16).hex()


@dataclass(frozen=True, slots=True)
class Box:
    """What somebody owns and names. The machine inside comes and goes, this stays."""

    id: str
    name: str
    image: str
    image_digest: str
    backend: str
    cpus: int
    memory_mib: int
    disk_bytes: int
    user: str = ""
    """Who commands run as in the guest when nobody says; empty is root."""
    created: float = 0.0
    trashed: float | None = None
    """When it went to the trash, in unix seconds; None for a box in use."""


@dataclass(frozen=True, slots=True)
class BoxStatus:
    """What is true of a box right now, asked of its keeper and its disk."""

    state: MachineState = MachineState.STOPPED
    why: str = ""
    """For a crash or a pause nobody asked for: one sentence on what happened."""
    accelerator: str | None = None
    uptime_s: float | None = None
    pid: int | None = None
    disk_used_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class ListedBox:
    """A box together with its status."""

    box: Box
    status: BoxStatus = field(default_factory=BoxStatus)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The picture of all boxes at one moment; screens and tables are drawn from it."""

    boxes: tuple[ListedBox, ...] = ()
    trash: tuple[Box, ...] = ()


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line of the store's history."""

    id: int
    time: float
    box_id: str
    verb: str
    detail: Mapping[str, Any]


def to_json(listed: ListedBox) -> dict[str, Any]:
    """What `ls --json` and `show --json` promise: these keys, whatever the state."""
    box, status = listed.box, listed.status
    alive = status.state.alive
    return {
        "name": box.name,
        "id": box.id,
        "state": status.state.value,
        "why": status.why,
        "backend": box.backend,
        "accelerator": status.accelerator or None,
        "image": box.image,
        "cpus": box.cpus,
        "memory_mib": box.memory_mib,
        "disk_bytes": box.disk_bytes,
        "disk_used_bytes": status.disk_used_bytes,
        "created": iso_time(box.created),
        "uptime_s": status.uptime_s if alive else None,
    }


def trashed_to_json(box: Box) -> dict[str, Any]:
    """What `trash --json` promises for each box in there."""
    return {
        "name": box.name,
        "id": box.id,
        "image": box.image,
        "created": iso_time(box.created),
        "trashed": None if box.trashed is None else iso_time(box.trashed),
    }


def iso_time(seconds: float) -> str:
    """Unix seconds as ISO 8601 in UTC, to the second."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
