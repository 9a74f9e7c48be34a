"""The bench that checks stand on: fresh machines of one driver, cleared away at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from vm_backends.agent.client import GuestClient
from vm_backends.contract import Backend, Machine
from vm_backends.errors import Fault
from vm_backends.spec import BootFiles, MachineSpec


class NotConforming(AssertionError):
    """The driver broke a promise; the message says which."""


class DoesNotApply(Exception):
    """The driver does not claim the power that a check is about; the message says why."""


def ensure(truth: object, promise: str) -> None:
    if not truth:
        raise NotConforming(promise)


class Bench:
    """Makes fresh machines of one driver in a folder, and clears them away at the end."""

    def __init__(self, backend: Backend, spec: MachineSpec, folder: Path) -> None:
        self.backend = backend
        self.spec = spec
        self.folder = folder
        self._made: list[Machine] = []
        self._count = 0

    async def machine(self, boot: BootFiles | None = None) -> Machine:
        """A new machine, stopped."""
        self._count += 1
        number = self._count
        home, run = self.folder / f"h{number}", self.folder / f"r{number}"
        home.mkdir()
        run.mkdir()
        spec = replace(self.spec, name=f"check-{number}", boot=boot or self.spec.boot)
        await self.backend.create(spec, home)
        machine = await self.backend.open(spec, home, run)
        self._made.append(machine)
        return machine

    async def running(self) -> tuple[Machine, GuestClient]:
        machine = await self.machine()
        await machine.start()
        return machine, GuestClient(machine.link.open)

    async def reopened(self, machine: Machine) -> Machine:
        """What the driver finds where that machine was, after letting go of it."""
        await machine.aclose()
        again = await self.backend.open(machine.spec, machine.home, machine.run)
        self._made.append(again)
        return again

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.clear()

    async def clear(self) -> None:
        """End every machine made so far."""
        made, self._made = self._made, []
        # The newest first: of two openings of one machine, the later has the connections.
        for machine in reversed(made):
            with suppress(Fault):
                if machine.state.alive:
                    await machine.kill()
            await machine.aclose()


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of the contract."""

    name: str
    promise: str
    work: Callable[[Bench], Awaitable[None]]
    deadline_s: float = 120.0

    async def run(self, bench: Bench) -> None:
        """Raises NotConforming, DoesNotApply, or whatever the driver let rise."""
        try:
            async with asyncio.timeout(self.deadline_s):
                await self.work(bench)
        except TimeoutError as error:
            raise NotConforming(f"not done within {self.deadline_s:g} s") from error


def checks(*works: Callable[[Bench], Awaitable[None]]) -> tuple[Check, ...]:
    """Each function as a check: its name, and its docstring as the promise."""
    return tuple(Check(work.__name__, (work.__doc__ or "").strip(), work) for work in works)
