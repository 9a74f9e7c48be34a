"""The outer wall: what a QEMU process may see and use, built from what this host offers.

QEMU's own seccomp filter is always on (see command.py). Around it, where the host has them:
bubblewrap (own namespaces, only the machine's own files, no network, no capabilities) and a
systemd user scope (memory, CPU and task limits that the kernel enforces). Resource limits and a
lower priority hold everywhere.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vm_backends.spec import GIB, MIB, MachineSpec

OVERHEAD_MIB = 512
"""What QEMU itself may use on top of the guest's memory: translation cache, buffers."""

ADDRESS_SPACE_SLACK = 8 * GIB
"""Threads reserve far more addresses than they ever use; this only stops a runaway."""

SYSTEM_FOLDERS = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/nix/store", "/gnu/store")


@dataclass(frozen=True, slots=True)
class Walls:
    """The tools for confinement that this host has, and why a missing one is missing."""

    bubblewrap: Path | None
    scope: Path | None
    prlimit: Path | None
    nice: Path | None
    why_no_bubblewrap: str = ""
    why_no_scope: str = ""


@dataclass(frozen=True, slots=True)
class Reach:
    """The files a machine may touch."""

    writable: tuple[Path, ...]
    readable: tuple[Path, ...]
    devices: tuple[Path, ...] = ()


def wrap(
    command: list[str], walls: Walls, reach: Reach, spec: MachineSpec, *, info_fd: int | None
) -> list[str]:
    """The command inside everything the host has. Pure but for looking at system folders."""
    inner = list(command)
    if walls.bubblewrap and info_fd is not None:
        inner = [*_bubblewrap(walls.bubblewrap, reach, Path(command[0]), info_fd), *inner]
    limits: list[str] = []
    if walls.scope:
        limits += _scope(walls.scope, spec)
    if walls.nice:
        limits += [str(walls.nice), "-n", "5"]
    if walls.prlimit:
        space = spec.memory_mib * MIB + ADDRESS_SPACE_SLACK
        limits += [str(walls.prlimit), f"--as={space}", "--core=0", "--nofile=1024", "--"]
    return [*limits, *inner]


def _scope(tool: Path, spec: MachineSpec) -> list[str]:
    return [
        str(tool), "--user", "--scope", "--quiet", "--collect",
        f"--property=MemoryMax={spec.memory_mib + OVERHEAD_MIB}M",
        "--property=MemorySwapMax=0",
        f"--property=CPUQuota={spec.cpus * 100 + 50}%",
        "--property=TasksMax=256",
        "--",
    ]  # fmt: skip


def _bubblewrap(tool: Path, reach: Reach, binary: Path, info_fd: int) -> list[str]:
    words = [
        str(tool), "--unshare-all", "--as-pid-1", "--new-session", "--cap-drop", "ALL",
        "--clearenv", "--setenv", "PATH", "/usr/bin:/bin", "--setenv", "MALLOC_ARENA_MAX", "2",
        "--info-fd", str(info_fd), "--hostname", "box",
    ]  # fmt: skip
    for folder in SYSTEM_FOLDERS:
        words += _system_folder(folder)
    words += ["--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache"]
    words += ["--dev", "/dev", "--proc", "/proc", "--tmpfs", "/tmp"]
    if not any(binary.is_relative_to(folder) for folder in SYSTEM_FOLDERS):
        words += ["--ro-bind", str(_installation(binary)), str(_installation(binary))]
    for path in reach.readable:
        words += ["--ro-bind", str(path), str(path)]
    for path in reach.writable:
        words += ["--bind", str(path), str(path)]
    for path in reach.devices:
        words += ["--dev-bind", str(path), str(path)]
    return [*words, "--chdir", "/", "--"]


def _installation(binary: Path) -> Path:
    """What a QEMU of the user's own needs to be seen: its tree, but never a whole home."""
    tree = binary.parent.parent
    its_own = binary.parent.name == "bin" and not Path.home().is_relative_to(tree)
    return tree if its_own else binary


def _system_folder(folder: str) -> list[str]:
    if os.path.islink(folder):
        return ["--symlink", os.readlink(folder), folder]
    return ["--ro-bind-try", folder, folder]


@cache
def find_walls() -> Walls:
    """What this host has, tried once a process: a tool that does not work is no wall."""
    bubblewrap, why = _working_bubblewrap()
    scope, why_scope = _working_scope()
    return Walls(
        bubblewrap, scope, _tool("prlimit"), _tool("nice"),
        why_no_bubblewrap=why, why_no_scope=why_scope,
    )  # fmt: skip


def _working_bubblewrap() -> tuple[Path | None, str]:
    tool = _tool("bwrap")
    if not tool:
        return None, "bubblewrap is not installed"
    from vm_backends.process import quick_output

    words = _bubblewrap(tool, Reach((), ()), Path("/usr/bin/env"), 1)
    status, output = quick_output([*words, shutil.which("true") or "/bin/true"], timeout_s=5)
    if status == 0:
        return tool, ""
    return None, f"bubblewrap cannot make namespaces here ({output.strip()[-160:]})"


def _working_scope() -> tuple[Path | None, str]:
    tool = _tool("systemd-run")
    if not tool:
        return None, "this system has no systemd"
    if not os.path.exists(f"{os.environ.get('XDG_RUNTIME_DIR', '/nowhere')}/systemd/private"):
        return None, "no systemd user session is running"
    from vm_backends.process import quick_output

    words = [str(tool), "--user", "--scope", "--quiet", "--collect", "--property=TasksMax=8", "--"]
    status, output = quick_output([*words, shutil.which("true") or "/bin/true"], timeout_s=5)
    if status == 0:
        return tool, ""
    return None, f"systemd gives no user scope here ({output.strip()[-160:]})"


def _tool(name: str) -> Path | None:
    found = shutil.which(name)
    return Path(found) if found else None
