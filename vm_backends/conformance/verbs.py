"""The checks of a machine's verbs: what is forbidden, then what each of them does."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Coroutine
from dataclasses import replace

from vm_backends.agent.client import GuestClient
from vm_backends.conformance.bench import Bench, DoesNotApply, NotConforming, checks, ensure
from vm_backends.conformance.steps import (
    PLACE,
    SOON_S,
    Log,
    drop,
    file_is_there,
    gone,
    keep_file,
    no_answer,
    passing,
    refused,
    settled,
)
from vm_backends.contract import Feature, Machine
from vm_backends.errors import GuestRefused, GuestUnreachable, KernelMissing, WrongState
from vm_backends.events import GuestReady, StateChanged
from vm_backends.spec import BootFiles
from vm_backends.state import MachineState, Verb

_S = MachineState
_MIB = 1024 * 1024

# What is forbidden


async def nothing_before_start(bench: Bench) -> None:
    """A stopped machine refuses everything but start, in the state table's words."""
    machine = await bench.machine()
    events = Log(machine)
    ensure(machine.state is _S.STOPPED, "a new machine is stopped")
    for verb in (Verb.PAUSE, Verb.RESUME, Verb.STOP, Verb.KILL, Verb.USE):
        await refused(machine, verb)
    ensure(not events.all, "a refusal tells nobody anything")
    await asyncio.wait_for(machine.wait_ended(), SOON_S)


async def nothing_twice(bench: Bench) -> None:
    """A running machine refuses start and resume; a paused one pause, start and talk."""
    machine, guest = await bench.running()
    for verb in (Verb.START, Verb.RESUME):
        await refused(machine, verb)
    await guest.ping()
    await machine.pause()
    for verb in (Verb.START, Verb.PAUSE, Verb.USE):
        await refused(machine, verb)
    ensure(machine.state is _S.PAUSED, "a refusal changes nothing")


async def verbs_wait_for_one_another(bench: Bench) -> None:
    """Of two starts at once one is refused; a stop behind a pause still stops."""
    machine = await bench.machine()
    both = await asyncio.gather(machine.start(), machine.start(), return_exceptions=True)
    failed = [error for error in both if error is not None]
    ensure(len(failed) == 1 and isinstance(failed[0], WrongState), f"one is refused: {failed}")
    await asyncio.gather(machine.pause(), machine.stop(60))
    ensure(machine.state is _S.STOPPED, "the stop came after the pause")


async def limits_are_named(bench: Bench) -> None:
    """The driver says what it lacks and why, and finds what is wrong with a spec."""
    support = await bench.backend.probe()
    ensure(set(support) == set(Feature), "every power is answered for")
    ensure(support[Feature.RUN], "a driver under test can run machines here")
    silent = [feature for feature, has in support.items() if not has and not has.why_not]
    ensure(not silent, f"a missing power has a reason: {silent}")
    ensure(not bench.backend.check(bench.spec), "the spec under test is fine")
    for wrong in (
        replace(bench.spec, cpus=0),
        replace(bench.spec, memory_mib=1),
        replace(bench.spec, memory_mib=10**9),
        replace(bench.spec, disk_bytes=1),
    ):
        problems = bench.backend.check(wrong)
        ensure(problems and problems[0].message, f"a problem with {wrong}")


# What each verb does


async def start_greets(bench: Bench) -> None:
    """Start returns once the agent has greeted, and says so in order."""
    machine = await bench.machine()
    events = Log(machine)
    await machine.start()
    kinds = [e.state if isinstance(e, StateChanged) else type(e) for e in events.all]
    steps = [kind for kind in kinds if kind in (_S.STARTING, GuestReady, _S.RUNNING)]
    ensure(steps == [_S.STARTING, GuestReady, _S.RUNNING], f"starting, ready, running: {kinds}")
    hello = machine.link.greeted
    ensure(hello and hello.epoch == events.epochs[-1], "the greeting is the one announced")
    ensure(machine.accelerator, "it says what runs it")
    await GuestClient(machine.link.open).ping()


async def commands_run(bench: Bench) -> None:
    """Output, errors, status, input, signals and refusals of commands come through."""
    _, guest = await bench.running()
    result = await guest.exec("sh", "-c", "echo out; echo err >&2; exit 7")
    ensure((result.status, result.stdout, result.stderr) == (7, "out\n", "err\n"), str(result))
    data = os.urandom(_MIB)
    result = await guest.exec("cat", input=data)
    ensure(result.ok and result.stdout_bytes == data, "a megabyte through cat is the same")
    sleeping = await guest.start("sleep", "1000", stdin=False)
    await sleeping.signal(signal.SIGTERM)
    status = await sleeping.pump(drop, drop)
    ensure(status == -signal.SIGTERM, f"a killed command names its signal: {status}")
    try:
        await guest.exec("no-such-command")
    except GuestRefused as no:
        ensure(no.errno == 2, f"an unknown command is ENOENT: {no.errno}")
    else:
        raise NotConforming("an unknown command is refused")


async def unread_output_holds_up_nobody(bench: Bench) -> None:
    """A command that prints for ever and that nobody reads does not disturb others."""
    _, guest = await bench.running()
    endless = await guest.start("yes", stdin=False)
    for _ in range(5):
        ensure((await guest.exec("echo", "on")).stdout == "on\n", "others run on")
    await endless.aclose()
    await guest.ping()


async def paused_is_frozen(bench: Bench) -> None:
    """A paused guest does not answer, its time stands still, and afterwards it answers."""
    machine, guest = await bench.running()
    command = await guest.start("sh", "-c", "sleep 1; echo done", stdin=False)
    began, before = time.monotonic(), (await guest.metrics(SOON_S)).uptime_ms
    await machine.pause()
    paused = time.monotonic()
    await no_answer(guest)
    lasted = time.monotonic() - paused
    await machine.resume()
    await guest.ping(SOON_S)
    ran = (await guest.metrics(SOON_S)).uptime_ms - before
    passed = time.monotonic() - began
    ensure(ran <= (passed - lasted / 2) * 1000, f"{ran} ms went by in a guest paused {lasted} s")
    printed = bytearray()

    async def keep(data: bytes) -> None:
        printed.extend(data)

    ensure(await command.pump(keep, drop) == 0, "a command goes on after the pause")
    ensure(printed == b"done\n", "its output too")


async def stop_is_clean(bench: Bench) -> None:
    """A clean stop keeps every file, from running as from paused; nothing is left running."""
    machine, guest = await bench.running()
    await keep_file(guest, "first")
    pid = machine.pid
    ensure(await machine.stop(60), "the stop was clean")
    ensure(machine.state is _S.STOPPED, "stopped afterwards")
    await gone(machine, pid)
    await machine.start()
    guest = GuestClient(machine.link.open)
    await file_is_there(guest, "first")
    await keep_file(guest, "second")
    await machine.pause()
    ensure(await machine.stop(60), "the stop from a pause was clean")
    await machine.start()
    await file_is_there(GuestClient(machine.link.open), "second")


async def kill_and_start_again(bench: Bench) -> None:
    """After a kill, running or paused, it starts again with what the guest had synced."""
    machine, guest = await bench.running()
    await keep_file(guest, "kept", sync=True)
    pid = machine.pid
    await machine.kill()
    ensure(machine.state is _S.STOPPED, "stopped afterwards")
    await gone(machine, pid)
    try:
        await guest.ping(SOON_S)
    except GuestUnreachable:
        pass
    else:
        raise NotConforming("a killed guest does not answer")
    await machine.start()
    await file_is_there(GuestClient(machine.link.open), "kept")
    await machine.pause()
    await machine.kill()
    await machine.start()
    await file_is_there(GuestClient(machine.link.open), "kept")


async def kill_during_start(bench: Bench) -> None:
    """A kill at any moment of a start ends it; the start then fails or had been done."""
    machine = await bench.machine()
    for delay_s in (0.0, 0.05, 0.5):
        starting = asyncio.create_task(machine.start())
        await passing(machine, _S.STARTING)
        await asyncio.wait([starting], timeout=delay_s)
        pid = machine.pid
        await machine.kill()
        await settled(starting)
        ensure(machine.state is _S.STOPPED, f"stopped, not {machine.state}")
        await gone(machine, pid)
    await machine.start()
    await GuestClient(machine.link.open).ping()


async def kill_during_stop(bench: Bench) -> None:
    """A kill does not wait for a stop that is under way."""
    machine, _ = await bench.running()
    stopping = asyncio.create_task(machine.stop(60))
    await passing(machine, _S.STOPPING)
    pid = machine.pid
    if machine.state.alive:
        await machine.kill()
    await settled(stopping)
    ensure(machine.state is _S.STOPPED, f"stopped, not {machine.state}")
    await gone(machine, pid)


async def cancelled_start(bench: Bench) -> None:
    """A start that is cancelled leaves nothing running, and the next one works."""
    machine = await bench.machine()
    starting = asyncio.create_task(machine.start())
    await passing(machine, _S.STARTING)
    await asyncio.wait([starting], timeout=0.01)
    pid = machine.pid
    starting.cancel()
    if await settled(starting):
        ensure(not machine.state.alive, f"nothing runs, but it is {machine.state}")
        await gone(machine, pid)
        await machine.start()
    await GuestClient(machine.link.open).ping()


async def cancelled_pause_and_resume(bench: Bench) -> None:
    """After a cancelled verb the state is what is true: asked, not guessed."""
    machine, guest = await bench.running()
    await _cancelled(machine, machine.pause(), _S.PAUSING)
    if machine.state is _S.RUNNING:
        await guest.ping(SOON_S)
        await machine.pause()
    await no_answer(guest)
    await _cancelled(machine, machine.resume(), _S.RESUMING)
    if machine.state is _S.PAUSED:
        await no_answer(guest)
        await machine.resume()
    await guest.ping(SOON_S)


async def _cancelled(
    machine: Machine, work: Coroutine[None, None, None], state: MachineState
) -> None:
    """Cancel a verb in its passing state; the machine has to come to rest."""
    working = asyncio.create_task(work)
    await passing(machine, state)
    working.cancel()
    await settled(working)
    ensure(machine.state in (_S.RUNNING, _S.PAUSED), f"at rest, not {machine.state}")


async def ends_by_itself(bench: Bench) -> None:
    """A guest that switches itself off is stopped, and who waits is told."""
    machine, guest = await bench.running()
    waiting = asyncio.create_task(machine.wait_ended())
    await asyncio.wait([waiting], timeout=0.05)
    ensure(not waiting.done(), "nobody is told too early")
    pid = machine.pid
    await guest.power_off()
    await asyncio.wait_for(waiting, SOON_S)
    ensure(machine.state is _S.STOPPED, f"stopped, not {machine.state} ({machine.why})")
    await gone(machine, pid)


async def reboots(bench: Bench) -> None:
    """A guest that reboots is a running machine again once it has greeted anew."""
    machine, guest = await bench.running()
    events = Log(machine)
    first = machine.link.greeted
    await keep_file(guest, "kept")
    await guest.power_off(reboot=True)
    await events.until(lambda: bool(events.epochs) and machine.state is _S.RUNNING)
    ensure(first and events.epochs[-1] != first.epoch, "it is another boot")
    ended = [state for state in events.states if not state.alive]
    ensure(not ended, f"it never counts as ended: {ended}")
    await file_is_there(GuestClient(machine.link.open), "kept")


async def killed_process_is_a_crash(bench: Bench) -> None:
    """When its process is killed from outside it has crashed, says why, and starts again."""
    machine, _ = await bench.running()
    if machine.pid is None:
        raise DoesNotApply("these machines have no process of their own")
    os.kill(machine.pid, signal.SIGKILL)
    await asyncio.wait_for(machine.wait_ended(), SOON_S)
    ensure(machine.state is _S.CRASHED, f"crashed, not {machine.state}")
    ensure(machine.why, "a crash has a reason")
    await machine.start()
    await GuestClient(machine.link.open).ping()


async def missing_kernel(bench: Bench) -> None:
    """Boot files that are not there give KernelMissing, and nothing is left running."""
    nowhere = bench.folder / "no-such-kernel"
    machine = await bench.machine(BootFiles(nowhere, nowhere))
    try:
        await machine.start()
    except KernelMissing as missing:
        ensure(missing.message, "it says what is missing")
    else:
        raise NotConforming("a missing kernel is KernelMissing")
    ensure(not machine.state.alive, f"nothing runs, but it is {machine.state}")
    await gone(machine, None)
    await asyncio.wait_for(machine.wait_ended(), SOON_S)


async def two_are_apart(bench: Bench) -> None:
    """Two machines see nothing of one another, and one may end while the other runs."""
    (one, first), (_, second) = await asyncio.gather(bench.running(), bench.running())
    await keep_file(first, "mine")
    ensure(await second.stat(f"{PLACE}/mine") is None, "a file of one is not in the other")
    await one.kill()
    ensure((await second.exec("echo", "on")).stdout == "on\n", "the other runs on")


CHECKS = checks(
    nothing_before_start,
    nothing_twice,
    verbs_wait_for_one_another,
    limits_are_named,
    start_greets,
    commands_run,
    unread_output_holds_up_nobody,
    paused_is_frozen,
    stop_is_clean,
    kill_and_start_again,
    kill_during_start,
    kill_during_stop,
    cancelled_start,
    cancelled_pause_and_resume,
    ends_by_itself,
    reboots,
    killed_process_is_a_crash,
    missing_kernel,
    two_are_apart,
)
