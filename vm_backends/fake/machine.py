"""FakeMachine: a machine whose guest is a few objects in this process."""

from __future__ import annotations

import asyncio
import os
import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vm_backends.agent.link import AgentLink
from vm_backends.agent.pipe import Pipe
from vm_backends.agent.protocol import Hello, Kind, Packer
from vm_backends.contract import Machine
from vm_backends.errors import EngineFailed, Fault, KernelMissing
from vm_backends.fake.faults import FakeFaults
from vm_backends.fake.filesystem import load
from vm_backends.fake.guest import FakeGuest
from vm_backends.spec import MachineSpec
from vm_backends.state import MachineState, Verb

DISK = "disk.json"


class FakeMachine(Machine):
    """Behaves like a real one, except that it cannot outlive the process that holds it."""

    def __init__(self, spec: MachineSpec, home: Path, run: Path, faults: FakeFaults) -> None:
        super().__init__(spec, home, run)
        self.faults = faults
        """May be replaced at any time; the guest's part counts from the next start."""
        self._guest: FakeGuest | None = None
        self._guest_link: AgentLink | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._unplugged = asyncio.Event()

    @property
    def accelerator(self) -> str:
        return "none"

    @property
    def pid(self) -> int | None:
        return None

    def fail_next(self, verb: Verb, fault: Fault) -> None:
        """Let the next such verb fail with this; later ones work again."""
        self.faults = replace(self.faults, fail={**self.faults.fail, verb: fault})

    # The verbs

    async def _start(self) -> None:
        self._unplugged = asyncio.Event()
        try:
            await self._trouble(Verb.START)
            await self._boot()
        except BaseException:
            await self._end()
            raise

    async def _boot(self) -> None:
        for file in (self.spec.boot.kernel, self.spec.boot.initrd):
            if not await asyncio.to_thread(os.access, file, os.R_OK):
                raise KernelMissing(f"cannot read {file}")
        disk = self.home / DISK
        fs = await asyncio.to_thread(load, disk)
        slow = self.faults.delays_s.get(Verb.STOP, 0.0)
        guest = FakeGuest(self.spec, fs, disk, self.faults, slow)
        link = await _plug_in(guest)
        self._guest, self._guest_link = guest, link
        if self._unplugged.is_set():
            raise EngineFailed("the machine was killed while it started")
        link.on_hello = self._greeted
        guest.on_reboot = link.resync
        link.start()
        self._watcher = asyncio.create_task(self._watch(guest), name="fake machine")
        await link.greeting(self.faults.boot_deadline_s)

    async def _pause(self) -> None:
        await self._trouble(Verb.PAUSE)
        self._living().clock.pause()

    async def _resume(self) -> None:
        await self._trouble(Verb.RESUME)
        self._living().clock.resume()

    async def _stop(self, deadline_s: float) -> bool:
        self._fail_if_told(Verb.STOP)
        guest, link = self._living(), self._link()
        if guest.clock.paused:
            guest.clock.resume()
        # A guest that does not listen, or takes too long, is ended all the same.
        with suppress(TimeoutError, Fault):
            async with asyncio.timeout(deadline_s):
                await link.greeting(deadline_s)
                await link.open(Kind.POWER, Packer().u8(0).done())
                await asyncio.shield(guest.ended)
        clean = guest.ended.done() and not guest.ended.result()
        await self._end()
        if self._unplugged.is_set():
            raise EngineFailed("the machine was killed during its stop")
        return clean

    async def _kill(self) -> None:
        self._unplugged.set()
        await self._end()

    async def _let_go(self) -> None:
        """The guest cannot live on without us, so at least it loses nothing."""
        guest = self._guest
        if guest is not None and not guest.ended.done():
            await guest.save()
        await self._end()
        if self.state.alive:
            self._publish(MachineState.STOPPED)

    def _link(self) -> AgentLink:
        if self._guest_link is None:
            raise EngineFailed("the machine has just ended")
        return self._guest_link

    async def _look(self) -> tuple[MachineState, str]:
        if self._guest is not None and self._guest.ended.done():
            why = self._guest.ended.result()
            await self._end()
            return (MachineState.CRASHED if why else MachineState.STOPPED), why
        if self._guest is None:
            return (self.state, self.why) if not self.state.alive else (MachineState.STOPPED, "")
        paused = self._guest.clock.paused
        return (MachineState.PAUSED if paused else MachineState.RUNNING), ""

    # Inside

    def _living(self) -> FakeGuest:
        if self._guest is None:
            raise EngineFailed(f"the machine ended meanwhile{self.why and f': {self.why}'}")
        return self._guest

    def _greeted(self, hello: Hello) -> None:
        self._guest_ready(hello.epoch)

    async def _watch(self, guest: FakeGuest) -> None:
        """Say so when the guest ends by itself; a verb that ends it speaks for itself."""
        why = await asyncio.shield(guest.ended)
        if self.state is MachineState.STOPPING and not why:
            return
        await self._end()
        self._publish(MachineState.CRASHED if why else MachineState.STOPPED, why)

    async def _end(self) -> None:
        """Nothing of the guest is left afterwards, whoever else is ending it too."""
        guest, self._guest = self._guest, None
        link, self._guest_link = self._guest_link, None
        watcher, self._watcher = self._watcher, None
        if watcher is not None and watcher is not asyncio.current_task():
            watcher.cancel()
        # Shielded: a caller that is cancelled here must not leave half a guest behind.
        await asyncio.shield(_unplug(guest, link))

    async def _trouble(self, verb: Verb) -> None:
        """The delay and the failure that were scripted for a verb; a kill cuts it short."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.faults.delays_s.get(verb, 0.0)):
                await self._unplugged.wait()
            raise EngineFailed(f"the machine was killed during its {verb.value}")
        self._fail_if_told(verb)

    def _fail_if_told(self, verb: Verb) -> None:
        left = dict(self.faults.fail)
        fault = left.pop(verb, None)
        if fault is not None:
            self.faults = replace(self.faults, fail=left)
            raise fault


async def _plug_in(guest: FakeGuest) -> AgentLink:
    ours, theirs = socket.socketpair()
    try:
        await guest.serve(theirs)
        return AgentLink(await Pipe.over(ours))
    except BaseException:
        ours.close()
        await guest.unplug()
        raise


async def _unplug(guest: FakeGuest | None, link: AgentLink | None) -> None:
    if guest is not None:
        await guest.unplug()
    if link is not None:
        await link.aclose()
