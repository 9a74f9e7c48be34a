"""Boxes that were thrown away, and everything else that nobody needs any more.

A box in the trash is a row with a time: its files stay where they are, so going in and coming
out is atomic and costs nothing. After seven days it goes for good, in an order that a crash at
any point cannot spoil: its row is doomed, its files are removed, its row is removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from boxgrove.core.box_folder import Making, maker, making_of, remove_box_folder, remove_tree
from boxgrove.core.durable import part_owner
from boxgrove.core.model import Box
from boxgrove.core.names import is_id
from boxgrove.core.paths import Paths
from boxgrove.core.store import Store
from vm_backends.errors import Fault, NoSpace

KEEP_S = 7 * 24 * 3600.0
GRACE_S = 10 * 60.0
_LOST = "lost-"


@dataclass(frozen=True, slots=True)
class Collected:
    """What a collection did: names for a log, never needed to go on."""

    removed: tuple[str, ...] = ()
    set_aside: tuple[str, ...] = ()
    """Folders that no row names and that are not known to be unfinished: kept for seven days."""
    stuck: tuple[str, ...] = ()
    """What could not be removed; it is tried again at the next start."""


def expired(store: Store, now: float | None = None) -> list[Box]:
    """The boxes whose seven days in the trash are over."""
    before = (time.time() if now is None else now) - KEEP_S
    return [box for box in store.trashed() if box.trashed is not None and box.trashed <= before]


def empty(paths: Paths, store: Store, boxes: Iterable[Box] | None = None) -> list[Box]:
    """Remove these boxes, or all in the trash, for good; those that were removed come back."""
    chosen = store.trashed() if boxes is None else boxes
    return [box for box in chosen if _purge(paths, store, box)]


def _purge(paths: Paths, store: Store, box: Box) -> bool:
    try:
        if not store.doom(box.id):
            return False
    except NoSpace:
        # The way out of a full disk must not need space on it: files first, then.
        if box.id not in {other.id for other in store.trashed()}:
            return False
        remove_box_folder(paths, box.id)
        store.doom(box.id)
    _finish(paths, store, box.id)
    return True


def _finish(paths: Paths, store: Store, box_id: str) -> None:
    remove_box_folder(paths, box_id)
    store.forget(box_id)


def collect_leftovers(paths: Paths, store: Store, now: float | None = None) -> Collected:
    """Finish what a crash cut short and purge what has expired; to be called at start.

    Costs a look at a few folders when there is nothing to do. Never fails: what cannot be
    removed now is `stuck` and stays for the next time.
    """
    if store.refusal is not None:
        return Collected()
    return _Collection(paths, store, time.time() if now is None else now).run()


class _Collection:
    def __init__(self, paths: Paths, store: Store, now: float) -> None:
        self._paths = paths
        self._store = store
        self._now = now
        self._removed: list[str] = []
        self._aside: list[str] = []
        self._stuck: list[str] = []

    def run(self) -> Collected:
        for step in (self._purge_expired, self._finish_removals, self._sweep_trash, self._boxes):
            with suppress(Fault):
                step()
        for folder in (self._paths.home, self._paths.images, self._paths.boot, self._paths.cache):
            self._sweep_parts(folder)
        # What could not be removed as a box is tried, and told, again as a folder.
        stuck = tuple(dict.fromkeys(self._stuck))
        return Collected(tuple(self._removed), tuple(self._aside), stuck)

    def _purge_expired(self) -> None:
        for box in expired(self._store, self._now):
            # Asked again in the transaction: somebody may be taking it out right now.
            self._store.doom(box.id, trashed_before=self._now - KEEP_S)

    def _finish_removals(self) -> None:
        for box_id in self._store.doomed():
            try:
                _finish(self._paths, self._store, box_id)
                self._removed.append(box_id)
            except OSError:
                self._stuck.append(box_id)

    def _sweep_trash(self) -> None:
        for path in _entries(self._paths.trash):
            since, box_id = _set_aside(path.name)
            if box_id and self._store.knows(box_id):
                # Its index is back (from a backup, say), so the box comes home.
                with suppress(OSError):
                    if not os.path.lexists(self._paths.box(box_id)):
                        path.rename(self._paths.box(box_id))
            elif since is None or since <= self._now - KEEP_S:
                self._remove(path)

    def _boxes(self) -> None:
        folders = _entries(self._paths.boxes)
        if not folders:
            return
        known = self._store.ids()
        for folder in folders:
            if folder.name not in known:
                self._unknown(folder)

    def _unknown(self, folder: Path) -> None:
        """A folder without a row, as far as we know: it may have got one since we looked."""
        owner = part_owner(folder.name)
        if owner is not None:
            if self._is_old(folder) and not _is_running(owner):
                self._remove(folder)
            return
        with making_of(folder) as making:
            if making is Making.BUSY:
                return
            # The maker keeps the lock until its row is written: only now is the answer final.
            if is_id(folder.name) and self._store.knows(folder.name):
                return
            if making is Making.ABANDONED:
                self._remove(folder)
            elif self._is_old(folder):
                self._set_aside(folder)

    def _set_aside(self, folder: Path) -> None:
        # A finished box without a row means that the index was lost or is an old copy. Made by
        # another index it is none of our business; made by ours, a week is left to notice.
        if maker(folder) not in ("", self._store.identity):
            return
        try:
            folder.rename(self._paths.trash / f"{_LOST}{int(self._now)}-{folder.name}")
            self._aside.append(folder.name)
        except OSError:
            self._stuck.append(folder.name)

    def _sweep_parts(self, folder: Path) -> None:
        for path in _entries(folder):
            owner = part_owner(path.name)
            if owner is not None and self._is_old(path) and not _is_running(owner):
                self._remove(path)

    def _is_old(self, path: Path) -> bool:
        try:
            return path.lstat().st_mtime <= self._now - GRACE_S
        except OSError:
            return False

    def _remove(self, path: Path) -> None:
        try:
            remove_tree(path)
            self._removed.append(path.name)
        except OSError:
            self._stuck.append(path.name)


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _set_aside(name: str) -> tuple[int | None, str]:
    """When a folder was set aside and the box it was, from its name in the trash folder."""
    time_, _, box_id = name.removeprefix(_LOST).partition("-")
    if not name.startswith(_LOST) or not (time_.isascii() and time_.isdigit()):
        return None, ""
    return int(time_), box_id if is_id(box_id) else ""


def _is_running(pid: int) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        return True
    return True
