"""Runs every measurement once, on a home of its own, and prints one table."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from socket import socket

import boxgrove
from boxgrove.grove import Box, Grove
from tests.bench import bare
from tests.bench.report import Row, at_least, at_most, below, p50, p95, print_rows
from vm_backends.agent.client import GuestClient
from vm_backends.agent.link import AgentLink
from vm_backends.agent.pipe import Pipe
from vm_backends.events import Progress

MEMORY_MIB = 256
BOOTS = 5
EXECS = 200
MIB = 2**20
COPY_BYTES = 96 * MIB
COPIES = 3
FIND_PORT = (
    'for p in /sys/class/virtio-ports/*; do grep -q bench "$p/name" && echo "/dev/${p##*/}"; done'
)


async def main() -> int:
    say(Progress("Preparing"))
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="bgb-") as folder:
        os.environ["BOXGROVE_HOME"] = f"{folder}/home"
        async with boxgrove.open_grove() as grove:
            box = await grove.create(
                "bench", image="starter", memory=MEMORY_MIB * MIB, cpus=1, progress=say
            )
            try:
                rows += await asyncio.to_thread(command_line)
                rows += await keeper_memory(grove, box)
                rows += await port_speed(grove, box)
                rows += await cold_boot(grove, box, Path(folder))
            finally:
                if (await box.status()).state.alive:
                    await box.kill()
    print_rows(rows)
    return 0 if all(row.kept for row in rows) else 1


def say(progress: Progress, said: list[str] = []) -> None:  # noqa: B006 (the last step said)
    if said[-1:] != [progress.step]:
        said[:] = [progress.step]
        sys.stderr.write(f"{progress.step}\n")


async def cold_boot(grove: Grove, box: Box, folder: Path) -> list[Row]:
    """From `start` (keeper included) to the agent's greeting, against QEMU to a first line."""
    say(Progress(f"Cold boot, {BOOTS} times each"))
    boot = await grove.service.images.boot_files()
    ramdisk = bare.smallest_ramdisk(folder)
    accelerator = (await grove.service.backend.choose(boot, grove.service.paths.cache)).accelerator
    ours, theirs = [], []
    for _ in range(BOOTS):
        await box.stop()
        began = time.monotonic()
        await box.start()
        ours.append(time.monotonic() - began)
        await box.pause()
        theirs.append(
            await asyncio.to_thread(
                bare.boot_to_first_line, boot.kernel, ramdisk, MEMORY_MIB, accelerator
            )
        )
        await box.resume()
    return [at_most("cold boot to agent ready", p50(ours), p50(theirs), 1.25, "s", "first line")]


async def port_speed(grove: Grove, box: Box) -> list[Row]:
    boot = await grove.service.images.boot_files()
    image = grove.service.images.find("starter")
    assert image
    accelerator = (await grove.service.backend.choose(boot, grove.service.paths.cache)).accelerator
    rows = []
    with bare.bare_machine(boot, image.disk, MEMORY_MIB, accelerator) as machine:
        link = AgentLink(await Pipe.connect(machine.agent))
        link.start()
        await link.greeting(120)
        guest = GuestClient(link.open)
        port = (await guest.exec("sh", "-c", FIND_PORT)).stdout.strip()
        rows += await exec_latency(box, guest, machine, port)
        rows += await copy_speed(box, guest, machine, port)
        await link.aclose()
    return rows


async def exec_latency(
    box: Box, guest: GuestClient, machine: bare.BareMachine, port: str
) -> list[Row]:
    """Our exec of /bin/true, against a shell in the guest that runs what it reads from a port."""
    say(Progress(f"Exec round trip, {EXECS} times each"))
    loop = f'exec 3<>{port}; while read -r line <&3; do $line; echo "$?" >&3; done'
    shell = await guest.start("sh", "-c", loop, stdin=False)
    wire = machine.bench_port()

    def ask() -> None:
        wire.sendall(b"/bin/true\n")
        assert wire.recv(16) == b"0\n"

    async def run() -> None:
        assert (await box.exec("/bin/true")).ok

    await asyncio.to_thread(ask)
    ours, theirs = [], []
    for _ in range(EXECS):
        began = time.perf_counter()
        await asyncio.to_thread(ask)
        theirs.append((time.perf_counter() - began) * 1000)
        began = time.perf_counter()
        await run()
        ours.append((time.perf_counter() - began) * 1000)
    await shell.signal(9)
    await shell.aclose()
    wire.close()
    return [
        at_most("exec round trip, p50", p50(ours), p50(theirs), 3, "ms", "shell loop on a port"),
        at_most("exec round trip, p95", p95(ours), p95(theirs), 3, "ms", "shell loop on a port"),
    ]


async def copy_speed(
    box: Box, guest: GuestClient, machine: bare.BareMachine, port: str
) -> list[Row]:
    """One file in and out, against a shell in a guest that moves the same bytes over a port.

    To and from a file on its disk, as we do; what the port carries to nowhere is shown beside it.
    """
    say(Progress(f"Copy, {COPY_BYTES // MIB} MiB each way, {COPIES} times"))
    blocks = COPY_BYTES // 65536
    take = f"dd if={port} bs=64k count={blocks} iflag=fullblock 2>/dev/null of="
    give = f"dd of={port} bs=64k count={blocks} 2>/dev/null if="
    speeds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, machine.bench_port() as wire:
        source, back = Path(folder, "source"), Path(folder, "back")
        source.write_bytes(os.urandom(COPY_BYTES))
        for _ in range(COPIES):
            for name, work in (
                ("in", lambda: box.copy_in(source, "/root/copied")),
                ("in, a file", lambda: _raw(guest, f"{take}/root/raw; echo >{port}", _push, wire)),
                ("in, nowhere", lambda: _raw(guest, f"{take}/dev/null; echo >{port}", _push, wire)),
                ("out", lambda: box.copy_out("/root/copied", back)),
                ("out, a file", lambda: _raw(guest, f"{give}/root/raw", _pull, wire)),
                ("out, nowhere", lambda: _raw(guest, f"{give}/dev/zero", _pull, wire)),
            ):
                for one in (box, guest):
                    await one.exec("sh", "-c", "sync; echo 3 > /proc/sys/vm/drop_caches")
                speeds.setdefault(name, []).append(await _speed(work()))
        assert back.read_bytes() == source.read_bytes()
    await box.exec("rm", "/root/copied")
    rows = []
    for way in ("in", "out"):
        baseline = f"raw port and a file; {p50(speeds[f'{way}, nowhere']):.0f} without one"
        rows.append(
            at_least(
                f"copy {way}",
                p50(speeds[way]),
                p50(speeds[f"{way}, a file"]),
                0.5,
                "MB/s",
                baseline,
            )
        )
    return rows


async def _raw(
    guest: GuestClient, script: str, host_side: Callable[[socket], None], wire: socket
) -> None:
    running = asyncio.create_task(guest.exec("sh", "-c", script))
    await asyncio.to_thread(host_side, wire)
    await running


def _push(wire: socket) -> None:
    block = os.urandom(MIB)
    for _ in range(COPY_BYTES // MIB):
        wire.sendall(block)
    assert wire.recv(1)


def _pull(wire: socket) -> None:
    left = COPY_BYTES
    while left:
        left -= len(wire.recv(min(left, MIB)))


async def _speed(copy: Awaitable[object]) -> float:
    began = time.perf_counter()
    await copy
    return COPY_BYTES / (time.perf_counter() - began) / 1e6


async def keeper_memory(grove: Grove, box: Box) -> list[Row]:
    """Private memory of the keeper after it has carried 64 MiB each way."""
    say(Progress("Keeper memory"))
    data = os.urandom(64 * MIB)
    done = await box.exec("cat", input=data)
    assert done.stdout_bytes == data
    home = str(grove.service.paths.box(box.id))
    for folder in Path("/proc").glob("[0-9]*"):
        words = (folder / "cmdline").read_bytes().split(b"\0") if folder.exists() else []
        if b"vm_backends.keeper" in words and home.encode() in words:
            rollup = (folder / "smaps_rollup").read_text()
            private = sum(
                int(line.split()[1])
                for line in rollup.splitlines()
                if line.startswith(("Private_Clean", "Private_Dirty"))
            )
            return [below("keeper memory, private", private / 1024, 25, "MiB")]
    raise AssertionError("there is no keeper")


def command_line() -> list[Row]:
    """`boxgrove ls` with one running box, against importing asyncio."""
    say(Progress("Command line start, 20 times each"))
    boxgrove_ = Path(sys.executable).with_name("boxgrove")
    ours, theirs = [], []
    for _ in range(20):
        theirs.append(_seconds([sys.executable, "-c", "import asyncio"]))
        ours.append(_seconds([str(boxgrove_), "ls"]))
    return [at_most("boxgrove ls", p50(ours) * 1000, p50(theirs) * 1000, 2.5, "ms",
                    "import asyncio")]  # fmt: skip


def _seconds(words: list[str]) -> float:
    began = time.perf_counter()
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
