"""What a pretend guest says of its load: plausible, never still, the same for the same name."""

from __future__ import annotations

import math
import random
import zlib

from vm_backends.agent.protocol import Packer
from vm_backends.fake.process import World

MIB = 1024 * 1024


class Wander:
    """A value between 0 and 1 that drifts with time: three slow waves."""

    def __init__(self, seed: str) -> None:
        chance = random.Random(zlib.crc32(seed.encode("utf-8", "surrogateescape")))
        self._base = chance.uniform(0.1, 0.45)
        self._waves = [
            (chance.uniform(0.02, 0.03), math.tau / chance.uniform(7, 90), chance.uniform(0, 6))
            for _ in range(3)
        ]

    def at(self, t: float) -> float:
        return self._base + sum(a * math.sin(w * t + p) for a, w, p in self._waves)

    def integral(self, t: float) -> float:
        """From 0 to t: grows always, because the base is larger than the waves together."""
        waves = sum(a / w * (math.cos(p) - math.cos(w * t + p)) for a, w, p in self._waves)
        return self._base * t + waves


def report(world: World, seed: str, disk_bytes: int) -> bytes:
    """The REPLY to METRICS."""
    up = world.clock.uptime_s
    load, memory = Wander(f"cpu {seed}"), Wander(f"memory {seed}")
    total = world.memory_mib * MIB
    values = (
        int(up * 1000),
        world.cpus,
        int(load.integral(up) * 1000 * world.cpus),
        int(up * 1000) * world.cpus,
        total,
        int(total * (1 - memory.at(up))),
        disk_bytes,
        max(0, disk_bytes - world.fs.used),
        len(world.processes) + 1,
        int(load.at(up) * world.cpus * 100),
    )
    packed = Packer().u32(len(values))
    for value in values:
        packed.u64(value)
    return packed.done()
