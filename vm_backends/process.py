"""Processes: start, recognise again, watch and end them, without ever mistaking one for another.

A machine's process outlives its keeper, so it is known by its number *and* the moment it
started; a number alone may by then belong to somebody else.
"""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class ProcessMark:
    """One process for all time: number and start moment (clock ticks since boot), and the boot."""

    pid: int
    started: int
    boot_id: str

    @staticmethod
    def of(pid: int) -> ProcessMark | None:
        started = _start_ticks(pid)
        return None if started is None else ProcessMark(pid, started, boot_id())

    def alive(self) -> bool:
        return self.boot_id == boot_id() and _start_ticks(self.pid) == self.started

    def same_boot(self) -> bool:
        return self.boot_id == boot_id()

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Signal exactly this process, never one that got its number later."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except (ProcessLookupError, AttributeError):
            return
        try:
            if self.alive():
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(descriptor, number)
        finally:
            os.close(descriptor)


def boot_id() -> str:
    """Names this run of the host: changes with every restart."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return "unknown"


def _start_ticks(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rsplit(b")", 1)[1].split()
    except (OSError, IndexError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


async def wait_gone(mark: ProcessMark, deadline_s: float | None = None) -> bool:
    """Until the process has ended (child of ours or not); False if the deadline came first."""
    import asyncio  # here, because listing boxes needs this module and no event loop

    try:
        descriptor = os.pidfd_open(mark.pid)
    except ProcessLookupError:
        return True
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        if not mark.alive():
            return True
        await asyncio.wait_for(gone.wait(), deadline_s)
        return True
    except TimeoutError:
        return False
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


def quick_output(command: list[str], *, timeout_s: float) -> tuple[int, str]:
    """Run a short tool to its end: status and what it said. For probes, off the event loop."""
    import subprocess  # as above: most users of this module never start anything

    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError:
        return 127, f"{command[0]} is not there"
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {timeout_s:g} s"
    except OSError as error:
        return 126, f"{command[0]}: {error.strerror}"
    return done.returncode, done.stdout.decode("utf-8", "replace")


def tail(path: Path, size: int = 4096) -> str:
    """The end of a log, as text; empty if there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - size))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
