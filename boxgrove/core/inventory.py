"""What is true of every box right now, from its row and its folder; no socket, no event loop."""

from __future__ import annotations

import os
from pathlib import Path

from boxgrove.core.model import Box, BoxStatus, Inventory, ListedBox
from boxgrove.core.paths import Paths
from boxgrove.core.store import Store
from vm_backends.keeper.record import read_record


def take_inventory(paths: Paths, store: Store) -> Inventory:
    boxes = tuple(ListedBox(box, status_of(paths, box)) for box in store.boxes())
    return Inventory(boxes, tuple(store.trashed()))


def status_of(paths: Paths, box: Box) -> BoxStatus:
    home = paths.box(box.id)
    told = read_record(home)
    return BoxStatus(
        told.state,
        told.why,
        accelerator=told.accelerator or None,
        uptime_s=told.uptime_s,
        pid=told.pid if told.state.alive else None,
        disk_used_bytes=_used(home / "disk"),
    )


def _used(folder: Path) -> int | None:
    """Bytes that a box's own disk really takes on the host."""
    try:
        with os.scandir(folder) as entries:
            return sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries)
    except OSError:
        return None
