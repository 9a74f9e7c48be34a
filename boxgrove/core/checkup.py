"""What this computer offers for boxes, as plain findings: for `doctor` and the first-run page."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from boxgrove.core import sizes
from boxgrove.core.service import BoxService
from boxgrove.version import __version__
from vm_backends.contract import Feature
from vm_backends.errors import Fault
from vm_backends.events import Progress
from vm_backends.qemu import accelerator
from vm_backends.qemu.backend import INSTALL_HINT, find_qemu
from vm_backends.qemu.confine import find_walls
from vm_backends.spec import GIB

LOW_SPACE = 5 * GIB
REFLINK = {"btrfs", "xfs", "zfs", "bcachefs", "apfs"}


class Verdict(Enum):
    GOOD = "ok"
    POOR = "warning"
    BAD = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at. `fix` is the one step that would mend it."""

    name: str
    verdict: Verdict
    detail: str
    fix: str = ""

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"verdict": self.verdict.value}


OnProgress = Callable[[Progress], None]


async def examine(service: BoxService, progress: OnProgress) -> list[Finding]:
    """Look at everything a box needs. Changes nothing but the accelerator's kept verdict."""
    findings = [await _engine(service), await _accelerator(service, progress)]
    findings += await asyncio.to_thread(_confinement)
    findings += await asyncio.to_thread(_store, service)
    findings.append(await asyncio.to_thread(_builders))
    findings.append(await asyncio.to_thread(_images, service))
    findings.append(_versions())
    return findings


async def _engine(service: BoxService) -> Finding:
    support = (await service.backend.probe())[Feature.RUN]
    name = service.backend.name
    if not support:
        return Finding("engine", Verdict.BAD, support.why_not, INSTALL_HINT)
    if name != "qemu":
        return Finding("engine", Verdict.GOOD, name)
    binary, version = await asyncio.to_thread(find_qemu)
    return Finding("engine", Verdict.GOOD, f"QEMU {version} ({binary})")


async def _accelerator(service: BoxService, progress: OnProgress) -> Finding:
    if service.backend.name != "qemu":
        return Finding("accelerator", Verdict.GOOD, "none: this engine needs none")
    if why_not := accelerator.without_trying():
        return Finding("accelerator", Verdict.POOR, f"tcg: {why_not}", _kvm_fix(why_not))
    boot = service.images.boot_files_at_hand()
    if boot is None:
        return Finding(
            "accelerator", Verdict.POOR, "not tried yet: that takes a kernel",
            "Run `boxgrove image build starter`.",
        )  # fmt: skip
    progress(Progress("Trying the accelerator"))
    try:
        engine = await service.backend.choose(boot, service.paths.cache)
    except Fault as fault:
        return Finding("accelerator", Verdict.BAD, fault.message, fault.hint)
    verdict = Verdict.GOOD if engine.accelerator == "kvm" else Verdict.POOR
    return Finding("accelerator", verdict, f"{engine.accelerator}: {engine.why}")


def _kvm_fix(why_not: str) -> str:
    if "may not use" in why_not:
        return "Run `sudo usermod -aG kvm $USER`, then log in again."
    return "" if "not Linux" in why_not else "Turn on virtualization (VT-x, AMD-V) in the firmware."


def _confinement() -> list[Finding]:
    walls = find_walls()
    findings = [Finding("seccomp", Verdict.GOOD, "QEMU's own filter is on for every box")]
    if walls.bubblewrap:
        findings.append(
            Finding("bubblewrap", Verdict.GOOD, "own namespaces, own files, no network for QEMU")
        )
    else:
        fix = "Install bubblewrap." if "not installed" in walls.why_no_bubblewrap else (
            "Allow unprivileged user namespaces (kernel.unprivileged_userns_clone=1)."
        )  # fmt: skip
        findings.append(Finding("bubblewrap", Verdict.POOR, walls.why_no_bubblewrap, fix))
    if walls.scope:
        findings.append(Finding("limits", Verdict.GOOD, "a systemd scope a box, and rlimits"))
    else:
        findings.append(
            Finding("limits", Verdict.GOOD, f"rlimits and priority; {walls.why_no_scope}")
        )
    return findings


def _store(service: BoxService) -> list[Finding]:
    home = service.paths.home
    kind = filesystem(home)
    note = "clones are instant" if kind in REFLINK else "works; btrfs or xfs would clone faster"
    findings = [Finding("home", Verdict.GOOD, f"{home} on {kind}, {note}")]
    if service.store.refusal:
        refusal = service.store.refusal
        findings.append(Finding("index", Verdict.BAD, refusal.message, refusal.hint))
    elif wrong := service.store.check():
        findings.append(
            Finding("index", Verdict.BAD, wrong, "Copy the home away before anything else.")
        )
    else:
        count = len(service.store.boxes())
        findings.append(
            Finding("index", Verdict.GOOD, f"sound, {count} {'box' if count == 1 else 'boxes'}")
        )
    free = shutil.disk_usage(home).free
    if free < LOW_SPACE:
        fix = "Free some space there, or set BOXGROVE_HOME to another disk."
        findings.append(Finding("space", Verdict.POOR, f"only {sizes.show(free)} are free", fix))
    else:
        findings.append(Finding("space", Verdict.GOOD, f"{sizes.show(free)} are free"))
    return findings


def filesystem(path: Path) -> str:
    """The type of the filesystem a path is on, from the longest mount point above it."""
    best, kind = "", "an unknown filesystem"
    real = os.path.realpath(path)
    try:
        with open("/proc/self/mounts") as mounts:
            for line in mounts:
                _, point, type_, *_ = line.split()
                inside = real == point or real.startswith(point.rstrip("/") + "/")
                if inside and len(point) >= len(best):
                    best, kind = point, type_
    except OSError:
        pass  # Not Linux: the type is only worth a remark.
    return kind


def _builders() -> Finding:
    missing = [name for name in ("qemu-img", "mke2fs", "mmdebstrap") if not _which(name)]
    if not any(_which(name) for name in ("musl-gcc", "cc", "gcc")):
        missing.append("a C compiler")
    if missing:
        detail = f"cannot build images without {', '.join(missing)}"
        return Finding("builders", Verdict.POOR, detail, "Install the packages of the same names.")
    return Finding("builders", Verdict.GOOD, "all that images are built with is here")


def _which(name: str) -> str | None:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return shutil.which(name, path=path)


def _images(service: BoxService) -> Finding:
    names = sorted({image.name for image in service.images.list()})
    if names:
        return Finding("images", Verdict.GOOD, ", ".join(names))
    return Finding("images", Verdict.GOOD, "none yet: the first box builds what it needs")


def _versions() -> Finding:
    python = sys.version.split()[0]
    detail = f"Boxgrove {__version__}, Python {python}, {platform.system()} {platform.release()}"
    return Finding("versions", Verdict.GOOD, detail)
