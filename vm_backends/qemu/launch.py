"""Starting one QEMU: sockets first, then the process inside its walls, then its number."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from vm_backends.agent.link import printable
from vm_backends.errors import EngineFailed
from vm_backends.process import ProcessMark, tail
from vm_backends.qemu import confine
from vm_backends.qemu.command import Sockets
from vm_backends.spec import MachineSpec

MONITOR, AGENT, CONSOLE = "q", "a", "s"


@dataclass(slots=True)
class Launched:
    """A QEMU that was started here. `wrapper` is our child; `mark` is QEMU itself."""

    mark: ProcessMark
    wrapper: subprocess.Popen[bytes]

    def reap(self) -> int | None:
        """The exit status once it is over: negative for a signal, as Python has it."""
        try:
            status = self.wrapper.wait(timeout=2)
        except subprocess.TimeoutExpired:
            return None
        return 128 - status if status > 128 else status  # bubblewrap reports 128 + signal


async def launch(
    spec: MachineSpec,
    command: Callable[[Sockets], list[str]],
    reach: confine.Reach,
    run: Path,
    log: Path,
) -> Launched:
    """Start QEMU, stopped before its first instruction, with its sockets listening in `run`."""
    walls = confine.find_walls()
    listeners = [_listen(run / name) for name in (MONITOR, AGENT, CONSOLE)]
    info_read, info_write = os.pipe()
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        numbers = [listener.fileno() for listener in listeners]
        inner = command(Sockets(*numbers))
        confined = walls.bubblewrap is not None
        words = confine.wrap(inner, walls, reach, spec, info_fd=info_write if confined else None)
        wrapper = subprocess.Popen(
            words,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[*numbers, info_write] if confined else numbers,
            start_new_session=True,
            env={"PATH": os.environ.get("PATH", "/usr/bin:/bin"), **_session_bus()},
        )
    except OSError as error:
        os.close(info_read)
        raise EngineFailed(f"QEMU could not be started: {error.strerror}") from error
    finally:
        for listener in listeners:
            listener.close()
        os.close(info_write)
        os.close(output)
    mark: ProcessMark | None = None
    try:
        pid = await _inner_pid(info_read) if confined else wrapper.pid
        mark = ProcessMark.of(pid) if pid else None
    finally:
        if mark is None:
            _end(wrapper, info_read)
        os.close(info_read)
    if mark is None:
        raise EngineFailed(f"QEMU did not start: {last_words(log)}")
    return Launched(mark, wrapper)


def strays(disk: Path) -> list[ProcessMark]:
    """QEMUs (or their wrappers) on this disk that no keeper knows of: their own was killed.

    bubblewrap's child waits for ever if its parent went at the wrong moment, and has no socket.
    """
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        program = os.path.basename(words.split(b"\0", 1)[0])
        ours = program == b"bwrap" or program.startswith(b"qemu-system-")
        if ours and os.fsencode(disk) in words and (mark := ProcessMark.of(int(folder.name))):
            found.append(mark)
    return found


def _end(wrapper: subprocess.Popen[bytes], info: int) -> None:
    """A start that is given up leaves neither the wrapper nor what it began to wrap."""
    with suppress(ProcessLookupError):
        os.killpg(wrapper.pid, signal.SIGKILL)
    wrapper.wait()
    with suppress(OSError):
        child = _told_pid(os.read(info, 4096))
        if child and (mark := ProcessMark.of(child)):
            mark.kill()


def last_words(log: Path) -> str:
    """What QEMU (or its wrapper) said last, in one line."""
    lines = [line.strip() for line in tail(log).splitlines() if line.strip()]
    if not lines:
        return "it said nothing"
    # Its own name and the place in its sources mean nothing to the reader.
    return printable(re.sub(r"^qemu-system-\S+: (\S+\.c:\d+: )?", "", lines[-1])[-300:])


def _listen(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        os.chmod(path, 0o600)
        listener.listen(4)
    except OSError as error:
        listener.close()
        raise EngineFailed(f"cannot make the socket {path}: {error.strerror}") from error
    return listener


async def _inner_pid(descriptor: int) -> int | None:
    """bubblewrap tells the number of its child as JSON, then closes its end."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    os.set_blocking(descriptor, False)
    loop.add_reader(descriptor, readable.set)
    text = b""
    try:
        while True:
            await asyncio.wait_for(readable.wait(), 10)
            readable.clear()
            try:
                piece = os.read(descriptor, 4096)
            except BlockingIOError:
                continue
            text += piece
            if not piece or b"}" in piece:
                break
    except TimeoutError:
        return None
    finally:
        loop.remove_reader(descriptor)
    return _told_pid(text)


def _told_pid(text: bytes) -> int | None:
    try:
        return int(json.loads(text)["child-pid"])
    except (ValueError, KeyError, TypeError):
        return None


def _session_bus() -> dict[str, str]:
    """systemd-run needs to find the user's manager; nothing else of our environment goes along."""
    names = ("XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS")
    return {name: os.environ[name] for name in names if name in os.environ}
