"""What is special about fake machines: their disk, their scripted trouble, their worlds."""

from __future__ import annotations

import asyncio
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from vm_backends import registry
from vm_backends.agent.client import GuestClient
from vm_backends.conformance import Bench
from vm_backends.conformance.steps import SOON_S, Log
from vm_backends.contract import Machine
from vm_backends.errors import (
    BadSpec,
    DiskDamaged,
    EngineFailed,
    GuestGarbage,
    GuestRefused,
    GuestUnreachable,
    NoSpace,
)
from vm_backends.fake import filesystem, guest
from vm_backends.fake.backend import FakeBackend
from vm_backends.fake.faults import Agent, FakeFaults
from vm_backends.fake.machine import DISK, FakeMachine
from vm_backends.fake.metrics import Wander
from vm_backends.fake.scenarios import SCENARIOS
from vm_backends.state import MachineState, Verb

_S = MachineState


async def _with(bench: Bench, faults: FakeFaults) -> FakeMachine:
    machine = await bench.machine()
    assert isinstance(machine, FakeMachine)
    machine.faults = faults
    return machine


def test_it_is_registered() -> None:
    assert registry.backend("fake").name == "fake"


# Disk


async def test_what_was_not_saved_is_lost_in_a_kill(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine, talk = await bench.running()
        await talk.exec("sh", "-c", "echo 1 > /root/kept; sync; echo 2 > /root/lost")
        await machine.kill()
        await machine.start()
        talk = GuestClient(machine.link.open)
        assert (await talk.exec("ls", "/root")).stdout == "kept\n"


async def test_it_saves_by_itself(fake_bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guest, "SAVE_EVERY_S", 0.01)
    async with fake_bench as bench:
        machine, talk = await bench.running()
        disk = machine.home / DISK
        before = disk.read_bytes()
        await talk.exec("touch", "/root/kept")
        async with asyncio.timeout(10):
            while disk.read_bytes() == before:
                await talk.ping()
        assert "kept" in disk.read_text()


async def test_letting_go_of_a_live_one_ends_it_and_loses_nothing(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine, talk = await bench.running()
        await talk.exec("touch", "/root/kept")
        again = await bench.reopened(machine)
        assert machine.state is _S.STOPPED and again.state is _S.STOPPED
        await again.start()
        talk = GuestClient(again.link.open)
        assert (await talk.exec("ls", "/root")).stdout == "kept\n"


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"format": 2}', '{"format": 1, "root": 3}'])
async def test_a_damaged_disk_is_named(content: str, fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine = await bench.machine()
        (machine.home / DISK).write_text(content)
        with pytest.raises(DiskDamaged, match="not a pretend disk"):
            await machine.start()
        assert machine.state is _S.STOPPED
        with pytest.raises(DiskDamaged):
            await bench.reopened(machine)
        (machine.home / DISK).unlink()
        with pytest.raises(DiskDamaged, match="missing"):
            await machine.start()


async def test_a_tree_goes_in_and_out(
    fake_bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "tree"
    (source / "empty").mkdir(parents=True)
    (source / "run me").write_bytes(os.urandom(300_000))
    (source / "run me").chmod(0o755)
    (source / "a\nname").write_text("newline")
    (source / "link").symlink_to("run me")
    os.utime(source / "a\nname", ns=(1_000_000_000, 1_234_567_890))
    async with fake_bench as bench:
        machine, talk = await bench.running()
        await talk.copy_in(source, "/root/tree")
        await machine.stop()
        await machine.start()
        talk = GuestClient(machine.link.open)
        await talk.copy_out("/root/tree", tmp_path / "back")
        back = tmp_path / "back"
        assert sorted(os.listdir(back)) == sorted(os.listdir(source))
        assert (back / "run me").read_bytes() == (source / "run me").read_bytes()
        assert (back / "run me").stat().st_mode & 0o777 == 0o755
        assert (back / "a\nname").stat().st_mtime_ns == 1_234_567_890
        assert (back / "link").readlink() == Path("run me")
        await talk.exec("ln", "-s", "/etc", "/root/out")
        with pytest.raises(GuestRefused, match="Not a directory"):
            await talk.copy_in(source, "/root/tree/link")
        monkeypatch.setattr(filesystem, "CAPACITY", 100_000)
        with pytest.raises(GuestRefused, match="No space left"):
            await talk.copy_in(source, "/root/more")


# Trouble


@pytest.mark.parametrize(
    ("agent", "fault"), [(Agent.SILENT, GuestUnreachable), (Agent.GARBAGE, GuestGarbage)]
)
async def test_bad_agents(agent: Agent, fault: type[Exception], fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine = await _with(bench, FakeFaults(agent=agent, boot_deadline_s=0.2))
        with pytest.raises(fault):
            await machine.start()
        assert machine.state is _S.STOPPED
        machine.faults = FakeFaults()
        await machine.start()


async def test_a_late_agent(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine = await _with(bench, FakeFaults(agent=Agent.LATE, late_s=0.1))
        await machine.start()
        assert machine.state is _S.RUNNING


async def test_a_crash_is_told_with_its_reason(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine = await _with(bench, FakeFaults(crash_after_s=0.1))
        log = Log(machine)
        await machine.start()
        talk = GuestClient(machine.link.open)
        sleeping = asyncio.create_task(talk.exec("sleep", "100"))
        await asyncio.wait_for(machine.wait_ended(), SOON_S)
        assert machine.state is _S.CRASHED and log.states[-1] is _S.CRASHED
        assert "told to crash" in machine.why and not log.untrue
        with pytest.raises(GuestUnreachable):
            await sleeping
        machine.faults = FakeFaults()
        await machine.start()
        assert machine.why == ""


async def test_a_paused_one_does_not_crash(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine = await _with(bench, FakeFaults(crash_after_s=0.2))
        await machine.start()
        await machine.pause()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(machine.wait_ended(), 0.4)
        await machine.resume()
        await asyncio.wait_for(machine.wait_ended(), SOON_S)


async def test_a_reboot_by_itself(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine = await _with(bench, FakeFaults(reboot_after_s=0.1))
        log = Log(machine)
        await machine.start()
        await log.until(lambda: len(log.epochs) == 2)
        assert machine.state is _S.RUNNING
        await GuestClient(machine.link.open).ping()


async def test_a_verb_fails_once(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine = await _with(bench, FakeFaults())
        for verb, work, state in (
            (Verb.START, machine.start, _S.STOPPED),
            (Verb.PAUSE, machine.pause, _S.RUNNING),
            (Verb.RESUME, machine.resume, _S.PAUSED),
            (Verb.STOP, machine.stop, _S.RUNNING),
        ):
            machine.fail_next(verb, NoSpace("full"))
            with pytest.raises(NoSpace, match="full"):
                await work()
            assert machine.state is state
            await work()
        assert machine.state is _S.STOPPED


async def test_a_guest_that_will_not_stop_is_ended(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine = await _with(bench, FakeFaults(delays_s={Verb.STOP: 1000}))
        await machine.start()
        assert not await machine.stop(0.1)
        assert machine.state is _S.STOPPED


async def test_a_slow_start_can_be_killed_and_cancelled(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine = await _with(bench, FakeFaults(delays_s={Verb.START: 1000}))
        for end in (machine.kill, None):
            log = Log(machine)
            starting = asyncio.create_task(machine.start())
            await log.until(lambda log=log: _S.STARTING in log.states)  # type: ignore[misc]
            if end:
                await end()
                with pytest.raises(EngineFailed, match="killed during its start"):
                    await starting
            else:
                starting.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await starting
            assert machine.state is _S.STOPPED


async def test_trouble_from_the_environment(
    fake_bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail = {"pause": {"code": "no-space", "message": "full", "hint": "tidy"}}
    script = [{"box": "other", "agent": "silent"}, {"fail": fail, "delays_s": {"stop": 1}}]
    monkeypatch.setenv("BOXGROVE_FAKE", json.dumps(script))
    async with fake_bench as bench:
        machine, _ = await bench.running()
        assert isinstance(machine, FakeMachine)
        assert machine.faults.delays_s == {Verb.STOP: 1.0}
        with pytest.raises(NoSpace, match="full") as caught:
            await machine.pause()
        assert caught.value.hint == "tidy"
        await machine.pause()


@pytest.mark.parametrize(
    "text", ["{", "7", '{"agent": "drunk"}', '{"fail": {"fly": {}}}', '{"speed": 1}']
)
async def test_nonsense_in_the_environment(text: str) -> None:
    with pytest.raises(BadSpec, match="BOXGROVE_FAKE") as caught:
        FakeFaults.from_text(text, "box")
    assert "delays_s" in caught.value.hint


# Nothing left


async def test_nothing_is_left_behind(fake_bench: Bench) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    async with fake_bench as bench:
        machine, talk = await bench.running()
        await talk.start("yes", stdin=False)
        await talk.session("s")
        await machine.pause()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert not tasks
    assert len(os.listdir("/proc/self/fd")) == descriptors


# Figures and worlds


async def test_figures_wander_but_not_by_chance(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        machine, talk = await bench.running()
        first = await talk.metrics()
        await talk.exec("sleep", "0.05")
        second = await talk.metrics()
    assert second.uptime_ms > first.uptime_ms and second.cpu_busy_ms >= first.cpu_busy_ms
    assert second.cpus == machine.spec.cpus
    assert second.disk_total == machine.spec.disk_bytes > second.disk_free
    wander, again, other = Wander("a"), Wander("a"), Wander("b")
    times = [step / 3 for step in range(3000)]
    assert [wander.at(t) for t in times] == [again.at(t) for t in times]
    assert wander.at(1) != other.at(1)
    assert all(0 < wander.at(t) < 1 for t in times)
    sums = [wander.integral(t) for t in times]
    assert sums == sorted(sums) and sums[0] == 0


def test_worlds() -> None:
    worlds = {name: make() for name, make in SCENARIOS.items()}
    assert len(worlds["crowded"]) == 40
    for boxes in worlds.values():
        assert len({box.name for box in boxes}) == len(boxes)
        assert all(bool(box.why) == (box.state is _S.CRASHED) for box in boxes)


async def test_every_broken_box_can_be_opened_with_its_trouble(fake_bench: Bench) -> None:
    async with fake_bench as bench:
        for box in SCENARIOS["broken"]():
            machine: Machine = await _with(bench, replace(box.faults, boot_deadline_s=0.05))
            try:
                await machine.start()
            except GuestUnreachable:
                assert box.faults.agent is not Agent.WELL
            else:
                assert box.faults.agent is Agent.WELL


async def test_the_driver_says_what_runs_it(tmp_path: Path, fake_bench: Bench) -> None:
    engine = await FakeBackend().choose(fake_bench.spec.boot, tmp_path)
    assert engine.accelerator == "none" and "nothing really runs" in engine.why
