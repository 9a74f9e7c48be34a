"""Running the tools that build images: output into a log, whole process groups, no orphans."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path

from boxgrove.images.errors import ImageFailed

GRACE_S = 8.0
"""How long a tool may tidy up after it was asked to end; mmdebstrap unmounts and deletes."""
TAIL_LINES = 12
_ADMIN_PATH = "/usr/local/sbin:/usr/sbin:/sbin"


class BuildLog:
    """Everything the tools of one build printed; the last lines are what an error quotes."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = path.open("w", encoding="utf-8")
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    def line(self, text: str) -> None:
        self._file.write(text + "\n")
        if text.strip():
            self._tail.append(text)

    def tail(self) -> str:
        return "\n".join(self._tail)

    def close(self) -> None:
        self._file.close()


class ToolFailed(Exception):
    """A tool ended with an error; the caller knows which sentence that deserves."""

    def __init__(self, argv: Sequence[str], status: int, tail: str) -> None:
        super().__init__(f"{Path(argv[0]).name} ended with status {status}")
        self.tail = tail


def tool(name: str, package: str) -> str:
    """The path of a program, looked for where administrators' tools are as well."""
    found = shutil.which(name, path=search_path())
    if found is None:
        raise ImageFailed(
            f"{name} is not installed, and images are built with it",
            hint=f"Install the package {package} (`packaging/host-packages.sh install` does).",
        )
    return found


def search_path() -> str:
    # An ordinary user's PATH on Debian has no sbin, and mke2fs lives there.
    return os.environ.get("PATH", os.defpath) + ":" + _ADMIN_PATH


async def run(
    argv: Sequence[str],
    log: BuildLog,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: bytes | None = None,
    on_line: Callable[[str], None] | None = None,
) -> str:
    """Run a tool to its end and give what it printed (both streams, as they came).

    A non-zero status is `ToolFailed`. A cancelled caller takes the whole process group along.
    """
    log.line("$ " + " ".join(argv))
    process = await asyncio.create_subprocess_exec(
        *_tied_to_us(),
        *argv,
        cwd=cwd,
        env={**os.environ, "PATH": search_path(), "LC_ALL": "C.UTF-8", **(env or {})},
        stdin=asyncio.subprocess.PIPE if stdin is not None else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
        limit=1 << 20,
    )
    lines: list[str] = []

    def take(text: str) -> None:
        lines.append(text)
        log.line(text)
        if on_line is not None:
            on_line(text)

    try:
        await asyncio.gather(_feed(process, stdin), _read(process, take))
        status = await process.wait()
    finally:
        await _end(process)
    if status:
        raise ToolFailed(argv, status, "\n".join(lines[-TAIL_LINES:]))
    return "\n".join(lines)


@cache
def _tied_to_us() -> tuple[str, ...]:
    """A prefix that ends a tool when we are killed ourselves and cannot end it any more.

    Otherwise mmdebstrap works on for minutes in a folder that the next build clears away.
    """
    setpriv = shutil.which("setpriv", path=search_path())
    if setpriv is None:
        return ()
    tie = (setpriv, "--pdeathsig", "TERM", "--")
    # Not every setpriv knows the option: busybox has one without.
    known = subprocess.run([*tie, "true"], capture_output=True, check=False).returncode == 0
    return tie if known else ()


async def _feed(process: asyncio.subprocess.Process, data: bytes | None) -> None:
    if data is None or process.stdin is None:
        return
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def _read(process: asyncio.subprocess.Process, take: Callable[[str], None]) -> None:
    assert process.stdout is not None
    rest = b""
    while chunk := await process.stdout.read(1 << 16):
        # Progress meters end their lines with a carriage return.
        *whole, rest = (rest + chunk).replace(b"\r", b"\n").split(b"\n")
        for line in whole:
            take(line.decode("utf-8", "replace"))
        rest = rest[-65536:]
    if rest:
        take(rest.decode("utf-8", "replace"))


async def _end(process: asyncio.subprocess.Process) -> None:
    """Make sure that nothing of the group is left, politely first."""
    try:
        if process.returncode is None:
            _signal(process.pid, signal.SIGTERM)
            with suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), GRACE_S)
    finally:
        # Also when we are cancelled once more: whoever presses Ctrl-C twice is in a hurry.
        _signal(process.pid, signal.SIGKILL)
    if process.returncode is None:
        await process.wait()


def _signal(group: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)
