"""What a machine tells whoever listens: frozen values, no callbacks into drivers."""

from __future__ import annotations

from dataclasses import dataclass

from vm_backends.state import MachineState


@dataclass(frozen=True, slots=True)
class StateChanged:
    state: MachineState
    why: str = ""
    """For a crash or a pause nobody asked for: one sentence on what happened."""


@dataclass(frozen=True, slots=True)
class GuestReady:
    """The agent greeted us: anew after a boot, or again after a pause or a reconnect."""

    epoch: str


@dataclass(frozen=True, slots=True)
class Progress:
    """A step of something long: `done` of `total` (0 when nobody knows)."""

    step: str
    done: int = 0
    total: int = 0


MachineEvent = StateChanged | GuestReady | Progress
