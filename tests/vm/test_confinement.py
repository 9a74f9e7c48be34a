"""The wall around a real QEMU: what its process may not do, read from the kernel's own books."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
from pathlib import Path

import pytest

from tests.helpers.homes import Home, processes, wait_until
from vm_backends.qemu import launch
from vm_backends.qemu.command import Sockets
from vm_backends.qemu.confine import ADDRESS_SPACE_SLACK, Reach, find_walls
from vm_backends.spec import MIB, BootFiles, MachineSpec

pytestmark = pytest.mark.vm

needs_bubblewrap = pytest.mark.skipif(
    find_walls().bubblewrap is None, reason=find_walls().why_no_bubblewrap or "it works"
)


@pytest.fixture
def engine(home: Home, starter: str) -> Path:
    return Path(f"/proc/{home.engine_pid(starter)}")


@pytest.fixture
def status(engine: Path) -> dict[str, str]:
    lines = (engine / "status").read_text().splitlines()
    return {key: value.strip() for key, value in (line.split(":", 1) for line in lines)}


def test_a_filter_and_no_new_privileges(status: dict[str, str]) -> None:
    assert status["Seccomp"] == "2"
    assert int(status["Seccomp_filters"]) >= 1
    assert status["NoNewPrivs"] == "1"


@needs_bubblewrap
def test_no_capability_at_all(status: dict[str, str]) -> None:
    for kind in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert int(status[kind], 16) == 0, kind


@needs_bubblewrap
@pytest.mark.parametrize("kind", ["net", "mnt", "pid", "ipc", "uts", "user"])
def test_namespaces_of_its_own(engine: Path, kind: str) -> None:
    if kind == "user" and os.geteuid() == 0:
        pytest.skip("root needs no user namespace to make the others")
    assert os.readlink(engine / "ns" / kind) != os.readlink(f"/proc/self/ns/{kind}")


@needs_bubblewrap
def test_it_has_no_network(engine: Path) -> None:
    lines = (engine / "net" / "dev").read_text().splitlines()[2:]
    assert [line.split(":")[0].strip() for line in lines] == ["lo"]


@needs_bubblewrap
def test_it_sees_its_own_files_and_nothing_else_of_the_home(
    home: Home, starter: str, engine: Path
) -> None:
    mounts = [line.split()[4] for line in (engine / "mountinfo").read_text().splitlines()]
    ours = [point for point in mounts if point.startswith(str(home.path))]
    folder = home.folder(starter)
    assert str(folder / "disk") in ours
    for point in ours:
        allowed = (str(folder / "disk"), str(home.path / "images"), str(home.path / "boot"))
        assert point.startswith(allowed), point
    root = engine / "root"
    assert not (root / str(home.path / "index.db").lstrip("/")).exists()
    assert not (root / str(folder / "state.json").lstrip("/")).exists()
    assert not (root / "root").exists()
    assert not (root / "home").exists()
    assert not (root / "etc" / "passwd").exists()


@needs_bubblewrap
def test_only_its_disk_can_be_written(home: Home, starter: str, engine: Path) -> None:
    disk = str(home.folder(starter) / "disk")
    writable = []
    for line in (engine / "mountinfo").read_text().splitlines():
        fields, rest = line.split(" - ")
        point, options = fields.split()[4], fields.split()[5]
        kind = rest.split()[0]
        if "rw" in options.split(",") and kind not in ("proc", "devpts", "mqueue", "tmpfs"):
            writable.append(point)
    assert set(writable) - {disk} <= {p for p in writable if p.startswith("/dev/")}, writable


def test_limits_that_hold(home: Home, starter: str, engine: Path) -> None:
    limits = resource.prlimit(int(engine.name), resource.RLIMIT_AS)
    space = 256 * MIB + ADDRESS_SPACE_SLACK
    assert limits == (space, space)
    assert resource.prlimit(int(engine.name), resource.RLIMIT_CORE) == (0, 0)
    assert resource.prlimit(int(engine.name), resource.RLIMIT_NOFILE)[1] == 1024
    assert os.getpriority(os.PRIO_PROCESS, int(engine.name)) >= 5


def test_the_environment_tells_nothing(engine: Path) -> None:
    names = {word.split(b"=")[0] for word in (engine / "environ").read_bytes().split(b"\0") if word}
    assert names <= {b"PATH", b"MALLOC_ARENA_MAX", b"PWD", b"XDG_RUNTIME_DIR",
                     b"DBUS_SESSION_BUS_ADDRESS"}  # fmt: skip


def test_the_guest_has_no_network_card(home: Home, starter: str) -> None:
    assert home.ok("exec", starter, "--", "ls", "/sys/class/net").split() == ["lo"]


def test_doctor_says_what_is_active(home: Home) -> None:
    said = home.ok("doctor")
    assert re.search(r"^ok +seccomp", said, re.MULTILINE)
    assert bool(re.search(r"^ok +bubblewrap", said, re.MULTILINE)) == bool(find_walls().bubblewrap)


@needs_bubblewrap
@pytest.mark.parametrize("turns", [0, 1, 3, 10])
async def test_a_start_that_is_given_up_leaves_no_process(home: Home, turns: int) -> None:
    """bubblewrap's child waits for ever if its parent is gone at the wrong moment."""
    binary = shutil.which("qemu-system-x86_64") or shutil.which("qemu-system-aarch64")
    assert binary
    run = home.path.parent / f"given-up-{turns}"
    run.mkdir()
    boot = BootFiles(Path(os.devnull), Path(os.devnull))
    spec = MachineSpec("given-up", "qemu", boot, Path(os.devnull))
    mark = f"guest=given-up-{turns}-{os.getpid()}"

    def command(sockets: Sockets) -> list[str]:
        return [binary, "-S", "-display", "none", "-machine", "none", "-name", mark]

    def running() -> list[int]:
        return [pid for pid, words in processes() if mark in words]

    log = run / "log"
    starting = asyncio.create_task(launch.launch(spec, command, Reach((), ()), run, log))
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    outcome = (await asyncio.gather(starting, return_exceptions=True))[0]
    if isinstance(outcome, launch.Launched):  # It was quicker than we were.
        outcome.mark.kill()
        outcome.reap()
    await asyncio.to_thread(wait_until, lambda: not running(), 10, "nothing is left of it")
