"""The states of a machine and the one table of what is allowed when.

Drivers refuse by it, buttons grey out by it, and the sentences of both come from here.
"""

from __future__ import annotations

from enum import Enum


class MachineState(Enum):
    STOPPED = "stopped"
    STARTING = "starting"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    STOPPING = "stopping"
    CRASHED = "crashed"

    @property
    def alive(self) -> bool:
        """A machine exists right now, in whatever mood."""
        return self not in (MachineState.STOPPED, MachineState.CRASHED)


class Verb(Enum):
    START = "start"
    PAUSE = "pause"
    RESUME = "resume"
    STOP = "stop"
    KILL = "kill"
    USE = "use"

    @property
    def words(self) -> str:
        return "talk to" if self is Verb.USE else self.value


_S = MachineState

ALLOWED: dict[Verb, frozenset[MachineState]] = {
    Verb.START: frozenset({_S.STOPPED, _S.CRASHED}),
    Verb.PAUSE: frozenset({_S.RUNNING}),
    Verb.RESUME: frozenset({_S.PAUSED}),
    Verb.STOP: frozenset({_S.RUNNING, _S.PAUSED}),
    Verb.KILL: frozenset(s for s in _S if s.alive),
    Verb.USE: frozenset({_S.RUNNING}),
}

_WAY_OUT: dict[tuple[Verb, MachineState], str] = {
    (Verb.PAUSE, _S.STOPPED): "Start it first.",
    (Verb.RESUME, _S.STOPPED): "Start it first.",
    (Verb.RESUME, _S.RUNNING): "It is running already.",
    (Verb.PAUSE, _S.PAUSED): "It is paused already.",
    (Verb.START, _S.RUNNING): "It is running already.",
    (Verb.START, _S.PAUSED): "Resume it instead.",
    (Verb.STOP, _S.STOPPED): "It is stopped already.",
    (Verb.KILL, _S.STOPPED): "It is stopped already.",
    (Verb.USE, _S.PAUSED): "Resume it first.",
    (Verb.USE, _S.STOPPED): "Start it first.",
    (Verb.PAUSE, _S.CRASHED): "Start it first.",
    (Verb.RESUME, _S.CRASHED): "Start it first.",
    (Verb.USE, _S.CRASHED): "Start it again first.",
}


def allowed(verb: Verb, state: MachineState) -> bool:
    return state in ALLOWED[verb]


def why_not(verb: Verb, state: MachineState, what: str = "box") -> tuple[str, str]:
    """The sentence and the hint for a refusal: «cannot resume a stopped box»."""
    return f"cannot {verb.words} a {state.value} {what}", _WAY_OUT.get((verb, state), "")
