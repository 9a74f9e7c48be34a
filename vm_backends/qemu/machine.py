"""QemuMachine: one QEMU process, its monitor, its console and its agent link.

QEMU outlives us on purpose: `aclose` and even a killed keeper leave it running, and `reattach`
takes it up again through the same sockets.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Awaitable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from vm_backends.agent.client import GuestClient
from vm_backends.agent.link import AgentLink, printable
from vm_backends.agent.pipe import Pipe
from vm_backends.agent.protocol import Hello
from vm_backends.contract import Machine
from vm_backends.errors import (
    DiskDamaged,
    EngineFailed,
    Fault,
    GuestUnreachable,
    KernelMissing,
    NoSpace,
)
from vm_backends.process import ProcessMark, tail, wait_gone
from vm_backends.qemu import command, disk, launch
from vm_backends.qemu.confine import Reach
from vm_backends.qemu.console import ConsoleLog
from vm_backends.qemu.monitor import Monitor
from vm_backends.spec import MachineSpec
from vm_backends.state import MachineState

BOOT_DEADLINE_S = {"kvm": 30.0, "tcg": 120.0}
RUNTIME = "runtime.json"
NO_ROOM = "the host's disk is full"
T = TypeVar("T")


class QemuMachine(Machine):
    def __init__(self, spec: MachineSpec, home: Path, run: Path, binary: Path) -> None:
        super().__init__(spec, home, run)
        self._binary = binary
        self._accelerator = "tcg" if spec.accelerator == "auto" else spec.accelerator
        self._mark: ProcessMark | None = None
        self._launched: launch.Launched | None = None
        self._monitor = Monitor(self._on_event)
        self._console = ConsoleLog(home / "serial.log")
        self._agent: AgentLink | None = None
        self._watch: asyncio.Task[None] | None = None
        self._reboot: asyncio.Task[None] | None = None
        self._farewell = ""
        self._verdict: Fault | None = None
        self._expected_end = False
        self._doomed = False

    @property
    def accelerator(self) -> str:
        return self._accelerator

    @property
    def pid(self) -> int | None:
        return self._mark.pid if self._mark else None

    # Verbs

    async def _start(self) -> None:
        self._farewell, self._verdict = "", None
        self._expected_end = self._doomed = False
        self._check_files()
        self.run.mkdir(mode=0o700, parents=True, exist_ok=True)
        _keep_previous(self.home / "serial.log")
        await self._end_orphan()
        try:
            self._launched = await launch.launch(
                self.spec, self._command, self._reach(), self.run, self.home / "qemu.log"
            )
            mark = self._mark = self._launched.mark
            if self._doomed:
                raise EngineFailed("it was killed while it started")
            self._write_runtime(mark)
            await self._unless_gone(mark, self._connect())
            await self._unless_gone(mark, self._monitor.execute("cont"))
            deadline_s = BOOT_DEADLINE_S.get(self._accelerator, 60.0)
            await self._unless_gone(mark, self._greeting(deadline_s))
        except BaseException:
            await asyncio.shield(self._end())
            raise
        self._watch = asyncio.create_task(self._watch_process(), name="qemu watch")

    async def _pause(self) -> None:
        await self._monitor.execute("stop")

    async def _resume(self) -> None:
        await self._monitor.execute("cont")
        status = await self._monitor.status()
        if status == "io-error" or self.state is MachineState.PAUSED:
            raise NoSpace(f"the box still cannot write: {NO_ROOM}")

    async def _stop(self, deadline_s: float) -> bool:
        self._expected_end = True
        mark = self._mark
        assert mark is not None
        asked = time.monotonic()
        with suppress(Fault, TimeoutError):
            if await self._monitor.status() != "running":
                await self._monitor.execute("cont", 5.0)
            await asyncio.wait_for(self._ask_power_off(), deadline_s)
        left = max(0.0, deadline_s - (time.monotonic() - asked))
        clean = await wait_gone(mark, left) and self._farewell.startswith("guest-shutdown")
        await self._end()
        return clean

    async def _ask_power_off(self) -> None:
        try:
            assert self._agent
            await GuestClient(self._agent.open).power_off()
        except Fault:
            await self._monitor.execute("system_powerdown", 5.0)

    async def _kill(self) -> None:
        self._expected_end = self._doomed = True
        await self._end_process()
        # A verb that was under way fails with its process, and tidies up first.
        async with self._lock:
            await self._end()

    async def _end(self) -> None:
        """End whatever runs and forget it; for verbs, which hold the lock."""
        self._expected_end = True
        await self._end_process()
        await self._forget()

    async def _end_process(self) -> None:
        if self._mark:
            self._mark.kill()
            await wait_gone(self._mark, 10.0)

    async def _let_go(self) -> None:
        for task in (self._watch, self._reboot):
            if task and task is not asyncio.current_task():
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
        self._watch = self._reboot = None
        await self._disconnect()

    def _link(self) -> AgentLink:
        if self._agent is None:
            raise GuestUnreachable("there is no connection to the guest")
        return self._agent

    async def _look(self) -> tuple[MachineState, str]:
        if not self._mark or not self._mark.alive():
            return MachineState.STOPPED, ""
        try:
            status = await self._monitor.status()
        except Fault as fault:
            return MachineState.RUNNING, fault.message
        return (
            (MachineState.RUNNING, "")
            if status == "running"
            else (MachineState.PAUSED, _pause_reason(status))
        )

    # Taking up a machine that runs

    async def reattach(self) -> None:
        """After another keeper was killed: the same QEMU, the same guest, a new conversation."""
        runtime = read_runtime(self.home)
        if runtime is None:
            return
        mark, self._accelerator = runtime
        if not mark.alive():
            why = (
                "QEMU was ended while nobody watched"
                if mark.same_boot()
                else "the computer was restarted while the box ran"
            )
            await self._forget()
            self._publish(MachineState.CRASHED, why)
            return
        self._mark = mark
        await self._connect()
        self._publish(*await self._look())
        self._watch = asyncio.create_task(self._watch_process(), name="qemu watch")
        if self.state is MachineState.RUNNING:
            with suppress(GuestUnreachable):
                await self._greeting(10.0)

    # Inside

    def _check_files(self) -> None:
        for path in (self.spec.boot.kernel, self.spec.boot.initrd):
            if not os.access(path, os.R_OK):
                raise KernelMissing(f"the kernel file {path} is missing or cannot be read")
        disk.check_readable(self.spec.base, "the image of this box")
        disk.check_readable(disk.active_disk(self.home), "the disk of this box")

    def _command(self, sockets: command.Sockets) -> list[str]:
        return command.arguments(
            binary=self._binary,
            name=self.spec.name,
            accelerator=self._accelerator,
            cpus=self.spec.cpus,
            memory_mib=self.spec.memory_mib,
            boot=self.spec.boot,
            disk=command.DiskFiles(disk.active_disk(self.home), self.spec.base),
            sockets=sockets,
        )

    def _reach(self) -> Reach:
        boot = self.spec.boot
        devices = (Path("/dev/kvm"),) if self._accelerator == "kvm" else ()
        return Reach(
            writable=(self.home / disk.DISK_FOLDER,),
            readable=(boot.kernel, boot.initrd, self.spec.base),
            devices=devices,
        )

    async def _end_orphan(self) -> None:
        """A keeper killed in the very moment of a start leaves a QEMU that nobody knows: end it."""
        for stray in await asyncio.to_thread(launch.strays, disk.active_disk(self.home)):
            stray.kill()
            await wait_gone(stray, 5.0)
        path = self.run / launch.MONITOR
        if not path.exists():
            return
        orphan = Monitor(lambda name, data: None)
        with suppress(Fault, TimeoutError):
            await asyncio.wait_for(orphan.connect(path), 5.0)
            await orphan.execute("quit", 5.0)
        await orphan.aclose()

    async def _connect(self) -> None:
        try:
            await self._console.connect(self.run / launch.CONSOLE)
            pipe = await Pipe.connect(self.run / launch.AGENT)
        except OSError as error:
            raise EngineFailed(f"QEMU's sockets are gone: {error.strerror}") from error
        self._agent = AgentLink(pipe)
        self._agent.on_hello = self._on_hello
        self._agent.start()
        await self._monitor.connect(self.run / launch.MONITOR)

    async def _greeting(self, deadline_s: float) -> None:
        await self._link().greeting(deadline_s)

    async def _unless_gone(self, mark: ProcessMark, work: Awaitable[T]) -> T:
        """Await something that only a live QEMU can finish; its last words if it dies first."""
        task = asyncio.ensure_future(work)
        gone = asyncio.create_task(wait_gone(mark))
        try:
            await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not task.cancelled() and task.exception():
                # Its sockets close a moment before it is gone.
                await asyncio.wait({gone}, timeout=1.0)
            if not gone.done():
                return await task
            await asyncio.wait({task}, timeout=0.2)
            raise self._why_it_died()
        finally:
            for job in (task, gone):
                job.cancel()
            await asyncio.gather(task, gone, return_exceptions=True)

    def _why_it_died(self) -> Fault:
        if self._verdict:
            return self._verdict
        words = launch.last_words(self.home / "qemu.log")
        lowered = words.lower()
        if "qcow2" in lowered or "corrupt" in lowered:
            return _damaged(words)
        if unmounted := self._last_line("boxgrove: cannot "):
            return _damaged(f"the guest {unmounted.removeprefix('boxgrove: ')}")
        if panic := self._panic():
            return EngineFailed(f"the guest's kernel gave up: {panic}")
        if "cannot set up guest memory" in lowered or "cannot allocate memory" in lowered:
            return NoSpace("there is not enough free memory to start this box")
        return EngineFailed(f"QEMU ended while starting: {words}")

    async def _watch_process(self) -> None:
        assert self._mark
        await wait_gone(self._mark)
        if self._expected_end:
            return
        status = self._launched.reap() if self._launched else None
        if self._farewell.startswith("guest-shutdown"):
            outcome, why = MachineState.STOPPED, ""
        elif self._verdict:
            outcome, why = MachineState.CRASHED, self._verdict.message
        elif self._farewell:
            outcome, why = MachineState.CRASHED, f"QEMU ended: {self._farewell}"
        else:
            outcome, why = MachineState.CRASHED, self._ending(status)
        await self._forget()
        self._publish(outcome, why)

    def _ending(self, status: int | None) -> str:
        if status is not None and status < 0:
            return f"QEMU was ended by signal {-status}"
        words = launch.last_words(self.home / "qemu.log")
        return f"QEMU ended unexpectedly: {words}"

    def _panic(self) -> str:
        return self._last_line("Kernel panic")

    def _last_line(self, words: str) -> str:
        """The line of the guest's console that has these words in it, if there is one."""
        for line in tail(self.home / "serial.log", 16384).splitlines():
            if words in line:
                return printable(line.strip()[-200:])
        return ""

    def _on_hello(self, hello: Hello) -> None:
        self._guest_ready(hello.epoch)

    def _on_event(self, name: str, data: dict[str, Any]) -> None:
        if name == "SHUTDOWN":
            self._farewell = str(data.get("reason", "shutdown"))
        elif name == "RESET" and data.get("guest") and self.state is MachineState.RUNNING:
            self._reboot = asyncio.create_task(self._after_reset(), name="reboot")
        elif name == "BLOCK_IO_ERROR" and data.get("nospace"):
            self._out_of_room()
        elif name == "BLOCK_IMAGE_CORRUPTED" and data.get("fatal"):
            # From here on the guest could neither read nor write.
            self._end_with(_damaged(str(data.get("msg", ""))[:200]))

    def _out_of_room(self) -> None:
        """QEMU has stopped the guest in the middle of a write, which it repeats when resumed."""
        if self.state in (MachineState.RUNNING, MachineState.RESUMING):
            self._publish(MachineState.PAUSED, _pause_reason("io-error"))
        elif self.state is MachineState.STARTING:
            # It would wait for its greeting in vain.
            self._end_with(NoSpace(f"the box could not boot: {NO_ROOM}"))

    def _end_with(self, verdict: Fault) -> None:
        self._verdict = verdict
        if self._mark:
            self._mark.kill()

    async def _after_reset(self) -> None:
        """The guest reset itself: a reboot if it comes back, a crash if its kernel gave up."""
        async with self._lock:
            if self.state is not MachineState.RUNNING:
                return
            self._publish(MachineState.STARTING)
            assert self._agent
            try:
                if panic := self._panic():
                    raise EngineFailed(f"the guest's kernel gave up: {panic}")
                self._agent.resync()
                await self._greeting(BOOT_DEADLINE_S.get(self._accelerator, 60.0))
                self._publish(MachineState.RUNNING)
            except Fault as fault:
                await self._end()
                self._publish(MachineState.CRASHED, fault.message)

    async def _disconnect(self) -> None:
        await self._monitor.aclose()
        if self._agent:
            await self._agent.aclose()
            self._agent = None
        await self._console.aclose()
        self._monitor = Monitor(self._on_event)

    async def _forget(self) -> None:
        """Nothing runs any more: connections, runtime file and sockets go."""
        if self._watch and self._watch is not asyncio.current_task():
            self._watch.cancel()
        self._watch = None
        await self._disconnect()
        if self._launched:
            self._launched.reap()
        self._mark = self._launched = None
        (self.home / RUNTIME).unlink(missing_ok=True)
        for name in (launch.MONITOR, launch.AGENT, launch.CONSOLE):
            (self.run / name).unlink(missing_ok=True)

    def _write_runtime(self, mark: ProcessMark) -> None:
        data = {
            "pid": mark.pid,
            "started": mark.started,
            "boot_id": mark.boot_id,
            "accelerator": self._accelerator,
        }
        temporary = self.home / f"{RUNTIME}.new"
        temporary.write_text(json.dumps(data))
        os.replace(temporary, self.home / RUNTIME)


def read_runtime(home: Path) -> tuple[ProcessMark, str] | None:
    try:
        data = json.loads((home / RUNTIME).read_text())
        mark = ProcessMark(int(data["pid"]), int(data["started"]), str(data["boot_id"]))
        return mark, str(data["accelerator"])
    except (OSError, ValueError, KeyError):
        return None


def _damaged(how: str) -> DiskDamaged:
    return DiskDamaged(
        f"the disk of this box is damaged: {how}",
        hint="The image below it is not affected; `boxgrove logs NAME` has all of it.",
    )


def _pause_reason(status: str) -> str:
    if status == "io-error":
        return f"{NO_ROOM}: free some space, then resume"
    return ""


def _keep_previous(log: Path) -> None:
    with suppress(FileNotFoundError):
        os.replace(log, f"{log}.old")
