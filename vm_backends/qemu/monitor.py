"""QEMU's monitor (QMP) with our errors: commands in, events out."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from qemu.qmp import EventListener, QMPClient, QMPError
from qemu.qmp.message import Message

from vm_backends.errors import EngineFailed

# Its library reports every lost connection as an error of its own; we report what it means.
logging.getLogger("qemu.qmp").setLevel(logging.CRITICAL)

Event = Callable[[str, dict[str, Any]], None]


class Monitor:
    """One connection to one QEMU."""

    def __init__(self, on_event: Event) -> None:
        self._client = QMPClient("boxgrove")
        self._on_event = on_event
        self._listener = EventListener()
        self._client.register_listener(self._listener)
        self._task: asyncio.Task[None] | None = None

    async def connect(self, path: Path) -> None:
        try:
            await self._client.connect(str(path))
        except (QMPError, OSError, EOFError) as error:
            raise EngineFailed(f"QEMU's monitor did not answer ({error})") from error
        self._task = asyncio.create_task(self._events(), name="qmp events")

    async def execute(self, command: str, deadline_s: float = 30.0, **arguments: object) -> Any:
        """Run one command; every failure is EngineFailed with QEMU's own words."""
        try:
            return await asyncio.wait_for(
                self._client.execute(command, arguments or None), deadline_s
            )
        except TimeoutError:
            raise EngineFailed(f"QEMU did not answer {command} within {deadline_s:g} s") from None
        except (QMPError, OSError, EOFError) as error:
            raise EngineFailed(f"QEMU refused {command}: {error}") from error

    async def status(self) -> str:
        """QEMU's run state: `running`, `paused`, `io-error`, …"""
        answer = await self.execute("query-status", 5.0)
        return str(answer["status"])

    async def aclose(self) -> None:
        if self._task:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        # If it was gone already nothing is left to close.
        with suppress(QMPError, OSError, EOFError, TimeoutError):
            await asyncio.wait_for(self._client.disconnect(), 2.0)

    async def _events(self) -> None:
        async for message in self._listener:
            name, data = _read_event(message)
            self._on_event(name, data)


def _read_event(message: Message) -> tuple[str, dict[str, Any]]:
    data = message.get("data")
    return str(message.get("event", "")), data if isinstance(data, dict) else {}
