"""A spec becomes QEMU's argument list. Pure: no file is opened here.

Every disk names its driver, so nothing a guest wrote is ever probed for a format. Sockets are
handed over as listening descriptors: a connection can be made before QEMU is up, and a confined
QEMU needs no folder for them.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from vm_backends.spec import BootFiles

TRANSLATION_CACHE_MIB = 128
"""QEMU's own default is up to a gigabyte of translated code a machine."""

TCG_CPU = "max,-erms,-la57"
"""All that the emulator has, less two that cost: «enhanced» string copies are emulated byte by
byte (copies in the guest took twice as long), a fifth level of page tables is one more to walk."""

AGENT_PORT = "boxgrove.agent"

_QUIET_BOOT = (
    "console=ttyS0 quiet loglevel=4 panic=1 random.trust_cpu=on no_timer_check "
    "cryptomgr.notests 8250.nr_uarts=1"
)


_NO_STRING_COPIES = "clearcpuid=112"
"""Feature 112 is «rep_good»: copy with string instructions, which the emulator steps through word
by word. Without it the guest's kernel copies in plain loops; its kernel then says «tainted»."""


@dataclass(frozen=True, slots=True)
class Sockets:
    """Descriptor numbers of listening sockets, as QEMU will see them."""

    monitor: int
    agent: int
    console: int


@dataclass(frozen=True, slots=True)
class DiskFiles:
    active: Path
    base: Path


def kernel_command_line(*, hostname: str, root: bool, accelerator: str) -> str:
    words = [_QUIET_BOOT]
    if accelerator == "tcg":
        words.append(_NO_STRING_COPIES)
    if root:
        words.append(f"boxgrove.root=/dev/vda boxgrove.hostname={hostname}")
    return " ".join(words)


def arguments(
    *,
    binary: Path,
    name: str,
    accelerator: str,
    cpus: int,
    memory_mib: int,
    boot: BootFiles,
    disk: DiskFiles | None,
    sockets: Sockets,
) -> list[str]:
    """The whole command line; without a disk the guest stays in its initial ramdisk."""
    command = [str(binary), "-name", f"guest={_quoted(name)}"]
    command += ["-nodefaults", "-no-user-config", "-display", "none", "-S"]
    command += ["-machine", "q35,usb=off,vmport=off,suppress-vmdesc=on"]
    command += processor(accelerator)
    command += ["-smp", str(cpus), "-m", f"{memory_mib}M"]
    command += ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,"
                "resourcecontrol=deny"]  # fmt: skip
    command += ["-rtc", "base=utc,clock=host"]
    command += ["-kernel", str(boot.kernel), "-initrd", str(boot.initrd)]
    line = kernel_command_line(hostname=name, root=disk is not None, accelerator=accelerator)
    command += ["-append", line]
    command += _sockets(sockets)
    command += ["-object", "rng-random,id=entropy,filename=/dev/urandom"]
    command += ["-device", "virtio-rng-pci,rng=entropy"]
    if disk:
        command += _disk(disk)
    return command


def processor(accelerator: str) -> list[str]:
    if accelerator == "kvm":
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", f"tcg,thread=multi,tb-size={TRANSLATION_CACHE_MIB}", "-cpu", TCG_CPU]


def _sockets(sockets: Sockets) -> list[str]:
    def listening(name: str, descriptor: int) -> list[str]:
        return ["-chardev", f"socket,id={name},fd={descriptor},server=on,wait=off"]

    return [
        *listening("monitor", sockets.monitor),
        "-mon", "chardev=monitor,mode=control",
        *listening("console", sockets.console),
        "-serial", "chardev:console",
        "-device", "virtio-serial-pci,max_ports=4",
        *listening("agent", sockets.agent),
        "-device", f"virtserialport,chardev=agent,name={AGENT_PORT}",
    ]  # fmt: skip


def _disk(disk: DiskFiles) -> list[str]:
    def node(name: str, path: Path, *, read_only: bool, backing: str | None) -> dict[str, object]:
        return {
            "driver": "qcow2",
            "node-name": name,
            "read-only": read_only,
            "discard": "unmap",
            "file": {"driver": "file", "filename": str(path), "discard": "unmap"},
            "backing": backing,
        }

    base = node("base", disk.base, read_only=True, backing=None)
    active = node("disk", disk.active, read_only=False, backing="base")
    return [
        "-blockdev", json.dumps(base),
        "-blockdev", json.dumps(active),
        "-device", "virtio-blk-pci,drive=disk,serial=root",
    ]  # fmt: skip


def _quoted(value: str) -> str:
    return value.replace(",", ",,")
