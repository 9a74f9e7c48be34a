"""Asking and fetching through the host's own apt: its sources, its keys, nothing installed."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from boxgrove.images import process
from boxgrove.images.process import ToolFailed, search_path
from boxgrove.images.workshop import Workshop
from vm_backends.events import Progress


def present() -> bool:
    return all(shutil.which(name, path=search_path()) for name in ("apt-get", "dpkg-deb"))


@cache
def os_release() -> dict[str, str]:
    """The host's /etc/os-release, unquoted; empty where there is none."""
    try:
        lines = Path("/etc/os-release").read_text().splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines)
    return {key: value.strip("\"'") for key, sign, value in pairs if sign}


def family() -> str:
    """`debian`, `ubuntu`, or the empty string for everything else."""
    host = os_release()
    names = [host.get("ID", ""), *host.get("ID_LIKE", "").split()]
    return next((name for name in names if name in ("debian", "ubuntu")), "")


async def depends(package: str, place: Workshop) -> str:
    """The Depends line of a package's newest version; empty if apt does not know it."""
    try:
        shown = await process.run(["apt-cache", "show", "--no-all-versions", package], place.log)
    except ToolFailed:
        return ""
    lines = (line for line in shown.splitlines() if line.startswith("Depends:"))
    return next(lines, "")


async def fetch(
    packages: Sequence[str],
    folder: Path,
    place: Workshop,
    step: str,
    progress: Callable[[Progress], None],
) -> None:
    """Download packages and unpack them into `folder`, as any user."""
    downloads = place.folder / "downloads"
    downloads.mkdir(exist_ok=True)

    def show(line: str) -> None:
        # dlstatus:<file>:<percent of all>:<words>
        parts = line.split(":")
        if parts[0] == "dlstatus" and len(parts) > 2:
            progress(Progress(step, round(float(parts[2])), 100))

    progress(Progress(step, 0, 100))
    options = ["-q", "-o", "APT::Status-Fd=1", "-o", "Acquire::Retries=2"]
    if os.geteuid() == 0:
        # Otherwise apt complains that its download user cannot reach our private folder.
        options += ["-o", "APT::Sandbox::User=root"]
    command = ["apt-get", *options, "download", *packages]
    await process.run(command, place.log, cwd=downloads, on_line=show)
    folder.mkdir(exist_ok=True)
    for archive in sorted(downloads.glob("*.deb")):
        await process.run(["dpkg-deb", "-x", str(archive), str(folder)], place.log)
    await asyncio.to_thread(shutil.rmtree, downloads)


def reason(output: str) -> str:
    """What apt says is wrong, without the address it says it about."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for line in lines:
        if line.startswith("E:"):
            failed = re.match(r"E: Failed to fetch \S+\s+(.+)", line)
            return failed[1] if failed else line.removeprefix("E:").strip()
    return lines[-1] if lines else "apt gave no reason"
