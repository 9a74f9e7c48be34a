"""Runs every measurement once, on a home of its own, and prints one table."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

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
    """Copying one file in and out, against the same bytes raw over a port."""
    say(Progress(f"Copy, {COPY_BYTES // MIB} MiB each way"))
    with tempfile.TemporaryDirectory() as folder:
        source, back = Path(folder, "source"), Path(folder, "back")
        source.write_bytes(os.urandom(COPY_BYTES))
        wire = machine.bench_port()
        raw_in = await _raw(guest, f"dd if={port} of=/dev/null bs=64k count={COPY_BYTES} "
                            f"iflag=fullblock,count_bytes 2>/dev/null; echo x > {port}",
                            lambda: _push(wire))  # fmt: skip
        copy_in = await _speed(box.copy_in(source, "/root/copied"))
        zeros = f"dd if=/dev/zero of={port} bs=64k count={COPY_BYTES // 65536}"
        raw_out = await _raw(guest, zeros, lambda: _pull(wire))
        copy_out = await _speed(box.copy_out("/root/copied", back))
        wire.close()
        assert back.read_bytes() == source.read_bytes()
    await box.exec("rm", "/root/copied")
    return [
        at_least("copy in", copy_in, raw_in, 0.5, "MB/s", "raw port"),
        at_least("copy out", copy_out, raw_out, 0.5, "MB/s", "raw port"),
    ]


async def _raw(guest: GuestClient, script: str, host_side: Callable[[], None]) -> float:
    began = time.perf_counter()
    running = asyncio.create_task(guest.exec("sh", "-c", script))
    await asyncio.to_thread(host_side)
    took = time.perf_counter() - began
    await running
    return COPY_BYTES / took / 1e6


def _push(wire: object) -> None:
    import socket

    assert isinstance(wire, socket.socket)
    block = os.urandom(MIB)
    for _ in range(COPY_BYTES // MIB):
        wire.sendall(block)
    assert wire.recv(1)


def _pull(wire: object) -> None:
    import socket

    assert isinstance(wire, socket.socket)
    left = COPY_BYTES
    while left:
        left -= len(wire.recv(min(left, MIB)))


async def _speed(copy: object) -> float:
    began = time.perf_counter()
    await copy  # type: ignore[misc]
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
