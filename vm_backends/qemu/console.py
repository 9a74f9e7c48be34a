"""The guest's serial console, kept in a log that cannot grow without bounds."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

LOG_LIMIT = 1024 * 1024
"""At this size the log becomes `….old` and a new one begins: at most twice this is kept."""


class ConsoleLog:
    """Drains the console socket into a file for as long as it is open."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self._task: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def connect(self, path: Path) -> None:
        reader, self._writer = await asyncio.open_unix_connection(str(path))
        self._task = asyncio.create_task(self._drain(reader), name="console log")

    async def aclose(self) -> None:
        """Stop listening, after what QEMU has already sent was written down."""
        if self._task:
            await asyncio.wait([self._task], timeout=0.05)
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        if self._writer:
            self._writer.close()
            self._writer = None

    async def _drain(self, reader: asyncio.StreamReader) -> None:
        descriptor = self._open()
        try:
            size = os.fstat(descriptor).st_size
            while data := await reader.read(65536):
                if size > LOG_LIMIT:
                    os.close(descriptor)
                    os.replace(self._log, f"{self._log}.old")
                    descriptor, size = self._open(), 0
                try:
                    size += os.write(descriptor, data)
                except OSError:
                    continue  # A full host disk must not stop the guest's console.
        except OSError:
            return
        finally:
            os.close(descriptor)

    def _open(self) -> int:
        return os.open(self._log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
