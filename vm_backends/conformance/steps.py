"""The steps that checks are written in: expect a refusal, leave a file, wait for an event."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from vm_backends.agent.client import GuestClient
from vm_backends.agent.pty import GuestTerminal
from vm_backends.conformance.bench import NotConforming, ensure
from vm_backends.contract import Machine
from vm_backends.errors import Fault, GuestUnreachable, TimedOut, WrongState
from vm_backends.events import GuestReady, MachineEvent, StateChanged
from vm_backends.state import MachineState, Verb, why_not

SOON_S = 60.0
"""Longer than anything here takes, even under emulation on a busy computer."""
SILENCE_S = 2.0
PLACE = "/conformance"


class Log:
    """Everything that a machine tells, and whether it was true when it was told."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._news = asyncio.Event()
        self.all: list[MachineEvent] = []
        self.untrue: list[MachineEvent] = []
        self.stop = machine.listen(self._hear)

    def _hear(self, event: MachineEvent) -> None:
        self.all.append(event)
        if isinstance(event, StateChanged) and event.state is not self._machine.state:
            self.untrue.append(event)
        self._news.set()

    @property
    def states(self) -> list[MachineState]:
        return [event.state for event in self.all if isinstance(event, StateChanged)]

    @property
    def epochs(self) -> list[str]:
        return [event.epoch for event in self.all if isinstance(event, GuestReady)]

    async def until(self, truth: Callable[[], bool]) -> None:
        async with asyncio.timeout(SOON_S):
            while not truth():
                self._news.clear()
                await self._news.wait()


# What is expected of a machine


async def refused(machine: Machine, verb: Verb) -> None:
    """The verb raises WrongState with the table's words, and changes nothing."""
    state = machine.state
    try:
        match verb:
            case Verb.START:
                await machine.start()
            case Verb.PAUSE:
                await machine.pause()
            case Verb.RESUME:
                await machine.resume()
            case Verb.STOP:
                await machine.stop()
            case Verb.KILL:
                await machine.kill()
            case Verb.USE:
                _ = machine.link
    except WrongState as error:
        said = (error.message, error.hint)
        ensure(said == why_not(verb, state), f"the state table's words, not {said}")
        ensure(machine.state is state, f"a refused {verb.value} changes nothing")
        return
    raise NotConforming(f"{verb.value} is refused while {state.value}")


async def passing(machine: Machine, state: MachineState) -> None:
    """Until a verb that was just made a task has brought the machine into that state."""
    log = Log(machine)
    await log.until(lambda: state in log.states)
    log.stop()


async def settled(task: asyncio.Task[Any]) -> bool:
    """Wait for a verb that was disturbed; True if it failed, as it then may."""
    async with asyncio.timeout(SOON_S):
        await asyncio.wait([task])
    if task.cancelled():
        return True
    error = task.exception()
    if error is not None and not isinstance(error, Fault):
        raise error
    return error is not None


async def gone(machine: Machine, pid: int | None) -> None:
    """Nothing of the machine runs: it names no process, and the one it named has ended."""
    ensure(machine.pid is None, f"it still names process {machine.pid}")
    ensure(pid is None or _ended(pid), f"process {pid} is still there")


def _ended(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        status = Path(f"/proc/{pid}/stat").read_text()
    except ProcessLookupError:
        return True
    except OSError:
        return False
    # A zombie is only an entry that its parent has not read yet.
    return status.rpartition(")")[2].split()[0] == "Z"


# What is expected of a guest


async def no_answer(guest: GuestClient) -> None:
    try:
        await guest.ping(SILENCE_S)
    except TimedOut:
        return
    raise NotConforming("a paused guest does not answer")


async def keep_file(guest: GuestClient, name: str, *, sync: bool = False) -> None:
    """Leave a file that holds its own name."""
    end = "; sync" if sync else ""
    result = await guest.exec("sh", "-c", f"mkdir -p {PLACE} && echo {name} > {PLACE}/{name}{end}")
    ensure(result.ok, f"the guest can write a file: {result.stderr}")


async def file_is_there(guest: GuestClient, name: str) -> None:
    result = await guest.exec("cat", f"{PLACE}/{name}")
    ensure(result.stdout == f"{name}\n", f"the file {name} is there: {result}")


async def file_appears(guest: GuestClient, path: str) -> None:
    """Until a command that nobody watches has written it."""
    async with asyncio.timeout(SOON_S):
        while await guest.stat(path) is None:
            await guest.exec("sleep", "0.2")


async def broken_off(work: Awaitable[object]) -> None:
    """The work fails because the link started over."""
    try:
        await asyncio.wait_for(work, SOON_S)
    except GuestUnreachable:
        return
    raise NotConforming("what was open when the link started over fails")


async def until_printed(terminal: GuestTerminal, words: bytes) -> None:
    printed = b""
    async with asyncio.timeout(SOON_S):
        while words not in printed:
            data = await terminal.read()
            ensure(data, f"the session ended before it printed {words!r}: {printed!r}")
            printed += data


async def drop(data: bytes) -> None:
    """For output that nobody looks at."""
