"""KVM or software emulation, decided by really booting once.

`/dev/kvm` that opens proves nothing: there are hosts where a virtual machine is made and no guest
ever runs in it. So our own kernel and agent get a few seconds under KVM, and the verdict is kept
until the host restarts or QEMU or the kernel changes.
"""

from __future__ import annotations

import json
import os
import platform
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from vm_backends.agent.link import AgentLink
from vm_backends.agent.pipe import Pipe
from vm_backends.contract import Engine
from vm_backends.errors import BadSpec, Fault
from vm_backends.process import boot_id, wait_gone
from vm_backends.qemu import command, launch
from vm_backends.qemu.confine import Reach
from vm_backends.qemu.monitor import Monitor
from vm_backends.spec import BootFiles, MachineSpec

TRIAL_S = 8.0
FORCE = "BOXGROVE_ACCEL"
DEVICE = Path("/dev/kvm")


async def choose(binary: Path, version: str, boot: BootFiles, cache: Path) -> Engine:
    """The accelerator for this host, from the environment, the kept verdict, or a trial."""
    if forced := os.environ.get(FORCE):
        if forced not in ("kvm", "tcg"):
            raise BadSpec(f"{FORCE} is {forced!r}", hint="It can be kvm or tcg.")
        return Engine(forced, f"{FORCE} asks for it")
    if why_not := without_trying():
        return Engine("tcg", why_not)
    key = "|".join((boot_id(), platform.release(), str(binary), version, boot.kernel.parent.name))
    if kept := kept_verdict(cache, key):
        return kept
    engine = await _try_kvm(binary, boot)
    _keep(cache, key, engine)
    return engine


def without_trying() -> str:
    """The reason why KVM is out of the question, or nothing."""
    if platform.system() != "Linux":
        return "this is not Linux, so there is no KVM"
    if not DEVICE.exists():
        return "this computer has no /dev/kvm: boxes run emulated, slower but just as separate"
    if not os.access(DEVICE, os.R_OK | os.W_OK):
        return "you may not use /dev/kvm: join the group kvm (sudo usermod -aG kvm $USER)"
    return ""


def kept_verdict(cache: Path, key: str | None = None) -> Engine | None:
    """What a trial found; without a key, whatever was found last."""
    try:
        data = json.loads((cache / "accelerator.json").read_text())
        if key is None or data["key"] == key:
            return Engine(str(data["accelerator"]), str(data["why"]))
    except (OSError, ValueError, KeyError):
        pass  # No verdict yet: a trial will make one.
    return None


def _keep(cache: Path, key: str, engine: Engine) -> None:
    data = {"key": key, "accelerator": engine.accelerator, "why": engine.why}
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
        temporary = cache / f"accelerator.{os.getpid()}"
        temporary.write_text(json.dumps(data))
        os.replace(temporary, cache / "accelerator.json")


async def _try_kvm(binary: Path, boot: BootFiles) -> Engine:
    with tempfile.TemporaryDirectory(prefix="bg-") as folder:
        try:
            await _boot_once(binary, boot, Path(folder), "kvm")
        except Fault as fault:
            reason = fault.message.rstrip(".")
            return Engine(
                "tcg",
                "/dev/kvm is there, but a guest does not run under it "
                f"({reason}): boxes run emulated, slower but just as separate",
            )
    return Engine("kvm", "a trial guest booted under KVM")


async def _boot_once(binary: Path, boot: BootFiles, folder: Path, accelerator: str) -> None:
    """Boot to the agent's greeting, without a disk; raises the Fault that kept it from that."""
    spec = replace(
        MachineSpec(name="trial", backend="qemu", boot=boot, base=boot.kernel), memory_mib=256
    )

    def arguments(sockets: command.Sockets) -> list[str]:
        return command.arguments(
            binary=binary, name="trial", accelerator=accelerator, cpus=1, memory_mib=256,
            boot=boot, disk=None, sockets=sockets,
        )  # fmt: skip

    reach = Reach((), (boot.kernel, boot.initrd), (DEVICE,))
    log = folder / "qemu.log"
    launched = await launch.launch(spec, arguments, reach, folder, log)
    monitor = Monitor(lambda name, data: None)
    link: AgentLink | None = None
    try:
        link = AgentLink(await Pipe.connect(folder / launch.AGENT))
        link.start()
        await monitor.connect(folder / launch.MONITOR)
        await monitor.execute("cont")
        await link.greeting(TRIAL_S)
    except Fault as fault:
        words = launch.last_words(log)
        if not launched.mark.alive() and words != "it said nothing":
            raise type(fault)(f"QEMU said: {words}") from fault
        raise
    finally:
        await monitor.aclose()
        if link:
            await link.aclose()
        launched.mark.kill()
        await wait_gone(launched.mark, 10)
        launched.reap()
