"""Guests that misbehave: fork bombs, full memory, full disks; host and neighbours stay well."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.helpers.homes import Home, wait_until
from tests.vm.conftest import MAKE_S
from vm_backends.qemu.confine import OVERHEAD_MIB
from vm_backends.spec import MIB

pytestmark = pytest.mark.vm

MEMORY_MIB = 256
DISK = 200 * MIB
ANSWER_S = 10.0
"""An exec takes a fifth of a second on an idle machine; with a neighbour at full power, more."""


@pytest.fixture(scope="module")
def neighbour(home: Home) -> Iterator[str]:
    home.ok("create", "neighbour", "--image", "starter", "--memory", "256M", timeout=MAKE_S)
    yield "neighbour"
    home.ok("rm", "--force", "neighbour", timeout=MAKE_S)


@pytest.fixture
def victim(home: Home) -> Iterator[str]:
    sizes = ("--image", "starter", "--memory", f"{MEMORY_MIB}M", "--disk", "200M")
    home.ok("create", "victim", *sizes, timeout=MAKE_S)
    yield "victim"
    if home.state("victim") == "running":
        home.ok("kill", "victim")
    home.ok("rm", "victim")


def all_is_well(home: Home, neighbour: str) -> None:
    """The neighbour answers and so does the host."""
    began = time.monotonic()
    assert home.ok("exec", neighbour, "--", "echo", "well", timeout=60) == "well\n"
    assert time.monotonic() - began < ANSWER_S
    began = time.monotonic()
    home.ok("ls")
    assert time.monotonic() - began < ANSWER_S


def resident_mib(home: Home, box: str) -> float:
    for line in Path(f"/proc/{home.engine_pid(box)}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no VmRSS")


def stops(home: Home, box: str) -> None:
    began = time.monotonic()
    home.ok("stop", box, timeout=90)
    assert time.monotonic() - began < 60
    assert home.state(box) == "stopped"
    wait_until(lambda: not home.processes_of(box))


def test_a_fork_bomb(home: Home, victim: str, neighbour: str) -> None:
    most = int(home.ok("exec", victim, "--", "cat", "/proc/sys/kernel/threads-max"))
    bomb = "b() { b | b & }; b; echo lit; sleep 600"
    running = home.start("exec", victim, "--", "sh", "-c", bomb)
    assert running.stdout and running.stdout.readline() == b"lit\n"
    counts = [0]

    def full() -> bool:
        """A command can still be run in it; the bomb has reached the limit when growth ends."""
        said = home.ok("exec", "-n", victim, "--", "cat", "/proc/loadavg", timeout=60)
        counts.append(int(said.split()[3].split("/")[1]))
        return counts[-1] > 300 and counts[-1] < counts[-2] * 1.1

    wait_until(full, 90, "it goes off", every=0.5)
    assert max(counts) < most, "some room is left for us"
    all_is_well(home, neighbour)
    assert resident_mib(home, victim) < MEMORY_MIB + OVERHEAD_MIB
    all_is_well(home, neighbour)
    stops(home, victim)
    running.wait(60)


def test_full_memory(home: Home, victim: str, neighbour: str) -> None:
    fill = "a=xxxxxxxxxxxxxxxx; while :; do a=$a$a; done"
    done = home.run("exec", victim, "--", "sh", "-c", fill, timeout=120)
    assert done.returncode == 128 + 9, "the guest's kernel ends it"
    tmpfs = "mount -t tmpfs -o size=4G none /mnt && dd if=/dev/zero of=/mnt/x bs=1M; echo $?"
    filling = home.start("exec", victim, "--", "sh", "-c", tmpfs)
    all_is_well(home, neighbour)
    filling.wait(120)
    assert resident_mib(home, victim) < MEMORY_MIB + OVERHEAD_MIB
    all_is_well(home, neighbour)
    stops(home, victim)


def test_a_full_disk(home: Home, victim: str, neighbour: str) -> None:
    fill = "dd if=/dev/urandom of=/root/x bs=1M; for n in 1 2; do dd if=/dev/zero of=/root/$n; done"
    filling = home.start("exec", victim, "--", "sh", "-c", fill)
    all_is_well(home, neighbour)
    _, said = filling.communicate(timeout=180)
    assert b"No space left" in said
    assert home.state(victim) == "running"
    used = sum(path.stat().st_blocks * 512 for path in (home.folder(victim) / "disk").iterdir())
    assert 100 * MIB < used < DISK + 8 * MIB, "its size, and a little for its map"
    assert home.show(victim)["disk_bytes"] == DISK
    home.ok("exec", victim, "--", "sh", "-c", "rm /root/*; echo room > /root/note; sync")
    stops(home, victim)
    home.ok("start", victim, timeout=MAKE_S)
    assert home.ok("exec", victim, "--", "cat", "/root/note") == "room\n"


def test_all_processors_busy(home: Home, victim: str, neighbour: str) -> None:
    spin = "for n in 1 2 3 4; do while :; do :; done & done; echo spinning; wait"
    running = home.start("exec", victim, "--", "sh", "-c", spin)
    assert running.stdout and running.stdout.readline() == b"spinning\n"
    all_is_well(home, neighbour)
    assert home.ok("exec", victim, "--", "echo", "still") == "still\n"
    stops(home, victim)
