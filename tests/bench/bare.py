"""The baselines: QEMU without us. The same kernel and machine, nothing of ours on the host side."""

from __future__ import annotations

import os
import shutil
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from boxgrove.images.initrd import Entry, cpio
from vm_backends.qemu import command
from vm_backends.qemu.backend import find_binary
from vm_backends.spec import BootFiles

FIRST_LINE = b"first user-space line"
_INIT = """
#include <fcntl.h>
#include <unistd.h>
int main(void)
{
    static const char line[] = "%s\\n";
    int console = open("/dev/console", O_RDWR);
    (void)!write(console, line, sizeof line - 1);
    for (;;)
        pause();
}
"""


def smallest_ramdisk(folder: Path) -> Path:
    """A ramdisk with an init that prints one line and does nothing else."""
    source, binary = folder / "init.c", folder / "init"
    source.write_text(_INIT % FIRST_LINE.decode())
    compiler = shutil.which("musl-gcc") or "cc"
    subprocess.run([compiler, "-static", "-Os", "-o", str(binary), str(source)], check=True)
    entries = [
        Entry("dev", stat.S_IFDIR | 0o755),
        Entry("dev/console", stat.S_IFCHR | 0o600, device=(5, 1)),
        Entry("init", stat.S_IFREG | 0o755, binary.read_bytes()),
    ]
    image = folder / "bare.img"
    image.write_bytes(cpio(entries))
    return image


def boot_to_first_line(kernel: Path, ramdisk: Path, memory_mib: int, accelerator: str) -> float:
    """Seconds from starting QEMU to the first line that user space prints on the console."""
    line = command.kernel_command_line(hostname="", root=False, accelerator=accelerator)
    words = [
        str(find_binary()), "-nodefaults", "-no-user-config", "-display", "none",
        "-machine", "q35", *command.processor(accelerator), "-m", f"{memory_mib}M",
        "-kernel", str(kernel), "-initrd", str(ramdisk), "-append", line, "-serial", "stdio",
    ]  # fmt: skip
    began = time.monotonic()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as qemu:
        assert qemu.stdout
        seen = b""
        while FIRST_LINE not in seen:
            piece = os.read(qemu.stdout.fileno(), 4096)
            assert piece, seen
            seen += piece
        took = time.monotonic() - began
        qemu.kill()
    return took


class BareMachine:
    """A QEMU with the agent's port and one more, `bench`, that a shell in the guest can use."""

    def __init__(self, folder: Path) -> None:
        self.agent = folder / "agent"
        self._bench = folder / "bench"

    def bench_port(self) -> socket.socket:
        port = socket.socket(socket.AF_UNIX)
        port.connect(str(self._bench))
        port.settimeout(120)
        return port


@contextmanager
def bare_machine(
    boot: BootFiles, base: Path, memory_mib: int, accelerator: str
) -> Iterator[BareMachine]:
    folder = Path(tempfile.mkdtemp(prefix="bgb-"))
    listeners: list[socket.socket] = []
    for name in ("monitor", "agent", "console", "bench"):
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(folder / name))
        listener.listen(4)
        listeners.append(listener)
    numbers = [listener.fileno() for listener in listeners]
    overlay = folder / "disk.qcow2"
    subprocess.run(
        ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", str(base), str(overlay),
         "1G"], check=True,
    )  # fmt: skip
    words = command.arguments(
        binary=find_binary(), name="bare", accelerator=accelerator, cpus=1, memory_mib=memory_mib,
        boot=boot, disk=command.DiskFiles(overlay, base), sockets=command.Sockets(*numbers[:3]),
    )  # fmt: skip
    words.remove("-S")
    words += ["-chardev", f"socket,id=bench,fd={numbers[3]},server=on,wait=off"]
    words += ["-device", "virtserialport,chardev=bench,name=bench"]
    qemu = subprocess.Popen(words, pass_fds=numbers)
    for listener in listeners:
        listener.close()
    try:
        yield BareMachine(folder)
    finally:
        qemu.kill()
        qemu.wait()
        shutil.rmtree(folder)
