"""What a machine's folder says of its state, readable without its keeper.

The keeper holds a lock for as long as it lives and writes `state.json` at every change. So anyone
can tell the truth from three looks: the lock, the file, and whether the machine's process lives.
No event loop, no socket: `boxgrove ls` depends on this being cheap.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import BinaryIO

from vm_backends.process import ProcessMark
from vm_backends.state import MachineState

SPEC = "machine.json"
STATE = "state.json"
LOCK = "keeper.lock"
LOG = "keeper.log"
SOCKET = "k"

# What a new keeper tells whoever started it; if it tells nothing it has failed.
LISTENING = b"1"
ALREADY_KEPT = b"2"
ROOM = 4096
"""The state file always has this size: writing over it needs no room that a full disk lacks."""


@dataclass(frozen=True, slots=True)
class MachineRecord:
    """The state of a machine as its folder tells it."""

    state: MachineState
    why: str = ""
    code: str = ""
    hint: str = ""
    accelerator: str = ""
    started: float | None = None
    pid: int | None = None
    kept: bool = False
    """A keeper is alive; without one a live machine waits for the next command to bring one."""

    @property
    def uptime_s(self) -> float | None:
        if self.started is None or not self.state.alive:
            return None
        return max(0.0, time.time() - self.started)


def write_record(
    home: Path,
    record: MachineRecord,
    mark: ProcessMark | None,
) -> None:
    """Replace the state file in one step, or, on a full disk, write over it where it is."""
    data = asdict(record) | {"state": record.state.value, "mark": asdict(mark) if mark else None}
    text = json.dumps(data).encode().ljust(ROOM)
    temporary = home / f"{STATE}.new"
    try:
        with open(temporary, "wb") as file:
            _write_down(file, text)
        os.replace(temporary, home / STATE)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        temporary.unlink(missing_ok=True)
        with open(home / STATE, "r+b") as file:
            _write_down(file, text)


def _write_down(file: BinaryIO, text: bytes) -> None:
    file.write(text)
    file.flush()
    os.fsync(file.fileno())


def read_record(home: Path) -> MachineRecord:
    """The truth about a machine, whoever is alive."""
    kept = keeper_alive(home)
    try:
        data = json.loads((home / STATE).read_text())
        record = MachineRecord(
            MachineState(data["state"]),
            why=data["why"],
            code=data["code"],
            hint=data["hint"],
            accelerator=data["accelerator"],
            started=data["started"],
            pid=data["pid"],
            kept=kept,
        )
        mark = ProcessMark(**data["mark"]) if data["mark"] else None
    except FileNotFoundError:
        return MachineRecord(MachineState.STARTING if kept else MachineState.STOPPED, kept=kept)
    except (OSError, ValueError, KeyError, TypeError) as error:
        return MachineRecord(MachineState.CRASHED, f"its state file cannot be read ({error})")
    if kept or not record.state.alive:
        return record
    return _without_keeper(record, mark)


def _without_keeper(record: MachineRecord, mark: ProcessMark | None) -> MachineRecord:
    if mark and mark.alive():
        steady = record.state in (MachineState.RUNNING, MachineState.PAUSED)
        state = record.state if steady else MachineState.RUNNING
        return MachineRecord(
            state, record.why, accelerator=record.accelerator, started=record.started, pid=mark.pid
        )
    if mark and not mark.same_boot():
        why = "the computer was restarted while the box ran"
    else:
        why = "its machine and its keeper were ended while it ran"
    return MachineRecord(MachineState.CRASHED, why, accelerator=record.accelerator)


class KeeperLock:
    """Held by the one keeper of a machine for as long as it lives, however it ends."""

    def __init__(self, home: Path) -> None:
        self._descriptor = os.open(home / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def take(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        os.close(self._descriptor)


def keeper_alive(home: Path) -> bool:
    """Whether somebody holds the keeper's lock."""
    try:
        descriptor = os.open(home / LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
