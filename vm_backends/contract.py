"""What a driver promises: read this first to write one.

A `Backend` is small and stateless: it says what this host can do and makes machines. A `Machine`
is one virtual machine; its public verbs guard (state table, lock, events), the underscored ones,
which a driver writes, do the work. `vm_backends.conformance` is the proof of a driver.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from vm_backends.agent.link import AgentLink
from vm_backends.errors import Fault, WrongState
from vm_backends.events import GuestReady, MachineEvent, StateChanged
from vm_backends.spec import BootFiles, MachineSpec, Problem
from vm_backends.state import MachineState, Verb, allowed, why_not


class Feature(Enum):
    """A power that an engine has or lacks."""

    RUN = "run"
    PAUSE = "pause"
    LIVE_SNAPSHOT = "live snapshot"
    LIVE_FORK = "live fork"
    ROLLBACK = "in-place rollback"
    REATTACH = "re-attach after its keeper was killed"


@dataclass(frozen=True, slots=True)
class Support:
    """Whether a power is there; if not, one sentence a person can act on."""

    ok: bool
    why_not: str = ""

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True, slots=True)
class Engine:
    """How machines will run here: `kvm`, `tcg`, `hvf`, `none`, and the sentence why."""

    accelerator: str
    why: str


class Backend(Protocol):
    """A maker of machines. Cheap to construct; imports its library on first use."""

    @property
    def name(self) -> str: ...

    async def probe(self) -> Mapping[Feature, Support]:
        """What this host can do with this engine. Quick, changes nothing."""

    async def require(self) -> None:
        """Raise the Fault that keeps this engine from running anything here, if there is one."""

    async def choose(self, boot: BootFiles, cache: Path) -> Engine:
        """The accelerator to use, proven by booting once; the verdict is kept in `cache`."""

    def check(self, spec: MachineSpec) -> Sequence[Problem]:
        """What this host cannot give of a spec. Pure: looks at the spec and the host's size."""

    async def create(self, spec: MachineSpec, home: Path) -> None:
        """Make the machine's own disk in `home` (an empty folder). Nothing runs yet.

        Everything is on disk (fsynced) when this returns; on failure `home` may be thrown away.
        """

    async def open(self, spec: MachineSpec, home: Path, run: Path) -> Machine:
        """Take up the machine of `home`: STOPPED, or whatever it is if it still runs.

        `run` holds its sockets. At most one process may have a machine open: its keeper.
        """


Listener = Callable[[MachineEvent], None]


class Machine(ABC):
    """One virtual machine. Leaving its context lets go of it: a machine that runs, runs on."""

    def __init__(self, spec: MachineSpec, home: Path, run: Path) -> None:
        self.spec = spec
        self.home = home
        self.run = run
        self.state = MachineState.STOPPED
        self.why = ""
        self._lock = asyncio.Lock()
        self._listeners: list[Listener] = []
        self._ended = asyncio.Event()
        self._ended.set()

    # What a caller does

    async def start(self) -> None:
        """Boot; returns once the guest's agent has greeted us. On failure nothing runs."""
        async with self._step(Verb.START, MachineState.STARTING, MachineState.RUNNING):
            await self._start()

    async def pause(self) -> None:
        """Freeze the guest; returns once no virtual CPU runs."""
        async with self._step(Verb.PAUSE, MachineState.PAUSING, MachineState.PAUSED):
            await self._pause()

    async def resume(self) -> None:
        """Let a paused guest go on as if nothing had been."""
        async with self._step(Verb.RESUME, MachineState.RESUMING, MachineState.RUNNING):
            await self._resume()

    async def stop(self, deadline_s: float = 20.0) -> bool:
        """Power off cleanly, by force after the deadline; True if it was clean.

        A paused guest is resumed for it. Returns once nothing of the machine runs.
        """
        async with self._step(Verb.STOP, MachineState.STOPPING, MachineState.STOPPED):
            return await self._stop(deadline_s)
        raise AssertionError("a step neither returns nor swallows")

    async def kill(self) -> None:
        """Pull the plug, at any moment. Idempotent while the machine is alive.

        Does not wait for another verb to finish: that verb then fails.
        """
        self._refuse_unless(Verb.KILL)

        async def end() -> None:
            await self._kill()
            self._publish(MachineState.STOPPED)

        # A caller who is cancelled stops waiting; the plug is pulled all the same.
        await asyncio.shield(asyncio.ensure_future(end()))

    @property
    def link(self) -> AgentLink:
        """The conversation with the guest's agent; only while RUNNING."""
        self._refuse_unless(Verb.USE)
        return self._link()

    async def wait_ended(self) -> None:
        """Until nothing of the machine runs any more (stopped or crashed)."""
        await self._ended.wait()

    @property
    @abstractmethod
    def accelerator(self) -> str:
        """What runs it: `kvm`, `tcg`, `none`, …"""

    @property
    @abstractmethod
    def pid(self) -> int | None:
        """The process that is the machine, while there is one."""

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Be told of every event from now on; call the result to stop."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def aclose(self) -> None:
        """Let go: connections close, a live machine runs on. May be called twice."""
        await self._let_go()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    # What a driver writes

    @abstractmethod
    async def _start(self) -> None: ...
    @abstractmethod
    async def _pause(self) -> None: ...
    @abstractmethod
    async def _resume(self) -> None: ...
    @abstractmethod
    async def _stop(self, deadline_s: float) -> bool: ...
    @abstractmethod
    async def _kill(self) -> None: ...
    @abstractmethod
    async def _let_go(self) -> None: ...
    @abstractmethod
    def _link(self) -> AgentLink: ...
    @abstractmethod
    async def _look(self) -> tuple[MachineState, str]:
        """Ask the engine what is true now; used after a failure or a cancelled verb."""

    # What drivers share

    def _refuse_unless(self, verb: Verb) -> None:
        if not allowed(verb, self.state):
            message, hint = why_not(verb, self.state)
            if self.state is MachineState.CRASHED and self.why:
                message = f"{message} ({self.why})"
            raise WrongState(message, hint=hint)

    @asynccontextmanager
    async def _step(
        self, verb: Verb, passing: MachineState, then: MachineState
    ) -> AsyncIterator[None]:
        async with self._lock:
            self._refuse_unless(verb)
            self._publish(passing)
            try:
                yield
            except BaseException as error:
                await self._publish_truth(error)
                raise
            if self.state is passing:
                self._publish(then)

    async def _publish_truth(self, error: BaseException) -> None:
        """After a failed or cancelled verb: never guess, ask, even if cancelled again."""
        looking = asyncio.ensure_future(self._look())
        while not looking.done():
            with suppress(asyncio.CancelledError):
                await asyncio.shield(looking)
        state, why = looking.result()
        if state is MachineState.CRASHED and isinstance(error, Fault):
            why = error.message
        self._publish(state, why)

    def _publish(self, state: MachineState, why: str = "") -> None:
        if (state, why) == (self.state, self.why):
            return
        self.state, self.why = state, why
        if state.alive:
            self._ended.clear()
        else:
            self._ended.set()
        self._tell(StateChanged(state, why))

    def _guest_ready(self, epoch: str) -> None:
        self._tell(GuestReady(epoch))

    def _tell(self, event: MachineEvent) -> None:
        for listener in list(self._listeners):
            listener(event)
