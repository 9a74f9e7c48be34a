"""The guest agent as a binary: shipped, compiled before, or compiled now from its C sources."""

from __future__ import annotations

import hashlib
import importlib.util
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from boxgrove.images import process
from boxgrove.images.errors import ImageFailed
from boxgrove.images.process import ToolFailed
from boxgrove.images.workshop import Workshop
from vm_backends.events import Progress

NAME = "boxgrove-agent"
FLAGS = ("-std=gnu11", "-static", "-Os", "-s", "-fno-asynchronous-unwind-tables")
_SECTIONS = ("-ffunction-sections", "-fdata-sections", "-Wl,--gc-sections")


@dataclass(frozen=True, slots=True)
class Compiler:
    """A command that makes static binaries; musl first, its binaries are a tenth of glibc's."""

    kind: str
    command: tuple[str, ...]


def shipped(resources: Path, machine: str) -> Path | None:
    """The binary that a release carries; it wins, so that users need no compiler."""
    path = resources / "guest" / "bin" / machine / NAME
    return path if path.is_file() else None


def fingerprint(resources: Path, machine: str) -> str:
    """Changes whenever the agent would. Quick: boxes ask on every start."""
    found = shipped(resources, machine)
    if found is not None:
        return "bin-" + hashlib.sha256(found.read_bytes()).hexdigest()[:20]
    digest = hashlib.sha256(repr((FLAGS, _SECTIONS, machine)).encode())
    for path in _sources(resources, "*.[ch]"):
        digest.update(f"{path.name} {path.stat().st_size}\n".encode() + path.read_bytes())
    return "src-" + digest.hexdigest()[:20]


def find_compiler(machine: str) -> Compiler | None:
    for kind in ("musl-gcc", "cc"):
        if found := shutil.which(kind):
            return Compiler(kind, (found,))
    if importlib.util.find_spec("ziglang") is not None:
        target = f"{machine}-linux-musl"
        return Compiler("zig", (sys.executable, "-m", "ziglang", "cc", "-target", target))
    return None


async def provide(
    resources: Path,
    machine: str,
    cache: Path,
    place: Workshop,
    progress: Callable[[Progress], None],
) -> Path:
    """The agent's binary; what was compiled is kept in `cache` by fingerprint."""
    if (found := shipped(resources, machine)) is not None:
        return found
    key = fingerprint(resources, machine)
    compiler = find_compiler(machine)
    # Without a compiler one that any other compiler made of the same sources is fine.
    pattern = f"{key}-{compiler.kind if compiler else '*'}"
    for folder in sorted(cache.glob(pattern)):
        return folder / NAME
    if compiler is None:
        raise ImageFailed(
            "there is no C compiler, and the guest agent has to be compiled once",
            hint="Install the packages musl-tools and gcc (or `pip install ziglang`).",
        )
    progress(Progress("Compiling the guest agent"))
    (place.folder / key).mkdir()
    await _compile(compiler, resources, place.folder / key / NAME, place)
    target = cache / f"{key}-{compiler.kind}"
    place.publish(key, target)
    return target / NAME


async def _compile(compiler: Compiler, resources: Path, output: Path, place: Workshop) -> None:
    sources = [str(path) for path in _sources(resources, "*.c")]
    command = [*compiler.command, *FLAGS, *_SECTIONS, "-o", str(output), *sources]
    try:
        await process.run(command, place.log)
    except ToolFailed as error:
        if "cannot find -lc" in error.tail or "unable to find library -lc" in error.tail:
            raise ImageFailed(
                f"{compiler.kind} cannot make static programs: the static C library is missing",
                hint="Install the package musl-tools (Fedora: glibc-static).",
            ) from error
        raise
    output.chmod(0o755)


def _sources(resources: Path, pattern: str) -> list[Path]:
    folder = resources / "guest" / "agent"
    found = sorted(folder.glob(pattern))
    if not found:
        raise ImageFailed(
            f"the guest agent is missing: no sources in {folder}",
            hint="Install boxgrove again; its files are not complete.",
        )
    return found
