"""The checks of what surrounds the verbs: the conversation, events, letting go."""

from __future__ import annotations

from vm_backends.agent.client import GuestClient
from vm_backends.conformance.bench import Bench, DoesNotApply, checks, ensure
from vm_backends.conformance.steps import (
    PLACE,
    SOON_S,
    Log,
    broken_off,
    drop,
    file_appears,
    gone,
    keep_file,
    until_printed,
)
from vm_backends.contract import Feature
from vm_backends.state import MachineState

_S = MachineState
_MIB = 1024 * 1024

# The conversation


async def resync_in_a_transfer(bench: Bench) -> None:
    """The link can start over in the middle of anything, and no half file is left."""
    machine, guest = await bench.running()
    reading = await guest.start("head", "-c", str(64 * _MIB), "/dev/zero", stdin=False)
    came = 0

    async def start_over(data: bytes) -> None:
        nonlocal came
        came += len(data)
        if came > _MIB and machine.link.greeted:
            machine.link.resync()

    await broken_off(reading.pump(start_over, drop))
    await machine.link.greeting(SOON_S)
    await keep_file(guest, "before")
    source = machine.run / "large"
    source.write_bytes(bytes(4 * _MIB))

    def sent(count: int) -> None:
        if machine.link.greeted:
            machine.link.resync()

    await broken_off(guest.copy_in(source, f"{PLACE}/large", on_bytes=sent))
    await machine.link.greeting(SOON_S)
    ensure(await guest.stat(f"{PLACE}/large") is None, "a copy that was cut leaves no file")
    names = (await guest.exec("ls", "-a", PLACE)).stdout.split()
    left = [name for name in names if name not in (".", "..", "before")]
    ensure(not left, f"nor anything else: {left}")
    await guest.copy_in(source, f"{PLACE}/large")
    whole = await guest.stat(f"{PLACE}/large")
    ensure(whole and whole.size == 4 * _MIB, "a copy that was not cut is whole")


async def sessions_survive_resync(bench: Bench) -> None:
    """A terminal and a command live on when the link starts over; old output is shown again."""
    machine, guest = await bench.running()
    terminal = await guest.session("kept", "sh")
    await terminal.write(b"echo mar''ker\n")
    await until_printed(terminal, b"marker\r\n")
    await guest.exec("mkdir", "-p", PLACE)
    await guest.start("sh", "-c", f"sleep 1; echo done > {PLACE}/carried-on", stdin=False)
    machine.link.resync()
    await machine.link.greeting(SOON_S)
    again = await guest.session("kept", create=False)
    ensure(not again.created and again.pid == terminal.pid, "it is the same session")
    ensure(again.replay > 0, "its old output comes again")
    await until_printed(again, b"marker\r\n")
    await again.write(b"echo an''swer; exit 3\n")
    await until_printed(again, b"answer\r\n")
    while await again.read():
        pass
    ensure(again.status == 3, f"it ended as told: {again.status}")
    await file_appears(guest, f"{PLACE}/carried-on")


# Listening and letting go


async def events_match_the_state(bench: Bench) -> None:
    """Each event is told when it is true, in order, and not after listening has stopped."""
    machine = await bench.machine()
    events = Log(machine)
    await machine.start()
    await machine.pause()
    await machine.resume()
    await machine.stop(60)
    expected = [
        *(_S.STARTING, _S.RUNNING, _S.PAUSING, _S.PAUSED),
        *(_S.RESUMING, _S.RUNNING, _S.STOPPING, _S.STOPPED),
    ]
    ensure(events.states == expected, f"the whole life in order: {events.states}")
    ensure(not events.untrue, f"told when it was not so: {events.untrue}")
    events.stop()
    await machine.start()
    ensure(events.states == expected, "nothing is told to who left")


async def letting_go_twice(bench: Bench) -> None:
    """aclose may be called twice, on a machine that never ran as on one that does."""
    idle = await bench.machine()
    await idle.aclose()
    await idle.aclose()
    machine, _ = await bench.running()
    async with machine:
        pass
    await machine.aclose()


async def taken_up_again(bench: Bench) -> None:
    """A machine that was let go of runs on, and opening takes it up, running or paused."""
    support = (await bench.backend.probe())[Feature.REATTACH]
    if not support:
        raise DoesNotApply(support.why_not)
    machine, guest = await bench.running()
    await guest.session("kept", "sh")
    epoch, pid = machine.link.greeted, machine.pid
    again = await bench.reopened(machine)
    ensure(again.state is _S.RUNNING and again.pid == pid, f"it is {again.state}")
    hello = await again.link.greeting(SOON_S)
    ensure(epoch and hello.epoch == epoch.epoch, "it is the same boot")
    sessions = await GuestClient(again.link.open).sessions()
    ensure([one.name for one in sessions] == ["kept"], "its sessions are there")
    await again.pause()
    paused = await bench.reopened(again)
    ensure(paused.state is _S.PAUSED, f"paused, not {paused.state}")
    await paused.resume()
    await paused.link.greeting(SOON_S)
    await GuestClient(paused.link.open).ping(SOON_S)
    ensure(await paused.stop(60), "it stops cleanly after all that")
    await gone(paused, pid)


CHECKS = checks(
    resync_in_a_transfer,
    sessions_survive_resync,
    events_match_the_state,
    letting_go_twice,
    taken_up_again,
)
