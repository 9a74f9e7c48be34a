"""The pretend guest's time, which stands still while the machine is paused."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress


class GuestClock:
    """Uptime and wall clock of one guest, and the gate that a frozen guest waits at."""

    def __init__(self) -> None:
        self._ran = 0.0
        self._since: float | None = time.monotonic()
        self._wall_at_zero = time.time()
        self._going = asyncio.Event()
        self._going.set()
        self._frozen = asyncio.Event()

    @property
    def uptime_s(self) -> float:
        return self._ran + (0.0 if self._since is None else time.monotonic() - self._since)

    @property
    def wall_s(self) -> float:
        """Like a real guest's: wrong by the length of every pause until the host sets it."""
        return self._wall_at_zero + self.uptime_s

    def set_wall(self, now_s: float) -> None:
        self._wall_at_zero = now_s - self.uptime_s

    @property
    def paused(self) -> bool:
        return self._since is None

    def pause(self) -> None:
        self._ran, self._since = self.uptime_s, None
        self._going.clear()
        self._frozen.set()

    def resume(self) -> None:
        self._since = time.monotonic()
        self._frozen.clear()
        self._going.set()

    async def gate(self) -> None:
        """Everything the guest does passes here first; it also lets others have a turn."""
        await asyncio.sleep(0)
        await self._going.wait()

    async def sleep(self, seconds: float) -> None:
        """Sleep in guest time."""
        end = self.uptime_s + seconds
        while True:
            await self.gate()
            left = end - self.uptime_s
            if left <= 0:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._frozen.wait()
