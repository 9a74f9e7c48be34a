"""A command on a real terminal of its own, for tests that type and look."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self


class Terminal:
    """Types into a program and reads what it shows. Leaving the block ends the program."""

    def __init__(
        self, command: Sequence[str], env: Mapping[str, str], columns: int = 80, rows: int = 24
    ) -> None:
        self._ours, theirs = pty.openpty()
        self.resize(columns, rows)
        self.process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**env, "TERM": "xterm-256color"},
            start_new_session=True,
            preexec_fn=_own_terminal,
        )
        os.close(theirs)
        self.shown = b""
        self._read_to = 0

    def keys(self, text: str | bytes) -> None:
        data = text.encode() if isinstance(text, str) else text
        while data:
            data = data[os.write(self._ours, data) :]

    def expect(self, text: str | bytes, timeout: float = 30.0) -> bytes:
        """Read on until this text was shown; all that came before it."""
        wanted = text.encode() if isinstance(text, str) else text
        deadline = time.monotonic() + timeout
        while (at := self.shown.find(wanted, self._read_to)) < 0:
            left = deadline - time.monotonic()
            assert left > 0, f"{wanted!r} was not shown within {timeout:g} s: {self.rest()!r}"
            more = self._read(left)
            assert more is not None, f"it ended before {wanted!r}: {self.rest()!r}"
        before = self.shown[self._read_to : at]
        self._read_to = at + len(wanted)
        return before

    def forget(self) -> None:
        """Look only at what is shown from now on."""
        while self._read(0):
            pass
        self._read_to = len(self.shown)

    def rest(self) -> bytes:
        return self.shown[self._read_to :]

    def resize(self, columns: int, rows: int) -> None:
        fcntl.ioctl(self._ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait(self, timeout: float = 30.0) -> int:
        """Read to the end; the program's status."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"still there: {self.rest()!r}"
            if self._read(0.1) is None:
                break
        while self._read(0):
            pass
        return self.process.wait(timeout)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def _read(self, timeout: float) -> bytes | None:
        """What came, empty if nothing did in time, None at the end."""
        if not select.select([self._ours], [], [], max(0.0, timeout))[0]:
            return b""
        try:
            data = os.read(self._ours, 65536)
        except OSError:
            return None
        self.shown += data
        return data or None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        os.close(self._ours)


def _own_terminal() -> None:
    """Signals of the terminal (Ctrl-C, a new size) go to whoever calls it their own."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
