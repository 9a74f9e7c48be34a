"""The index of boxes: who exists, under which name, on what image, and what happened to them.

The index is the truth. Files are written and forced to disk before the row that names them;
what no row names is collected (`trash.py`). Everything here is short and synchronous: async
callers go through `asyncio.to_thread`, and any thread may call.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from boxgrove.core import names
from boxgrove.core.database import Database
from boxgrove.core.errors import BoxBusy, HomeUnwritable, NameTaken, StoreError, UnknownBox, shown
from boxgrove.core.migrations import MIGRATIONS, Migration
from boxgrove.core.model import Box, LogEntry
from boxgrove.core.paths import Paths

# Named one by one, so that a newer schema with more columns can still be read.
_COLUMNS = (
    "id, name, image, image_digest, backend, cpus, memory_mib, disk_bytes, user, created, trashed"
)
_LIVE = "trashed IS NULL"
_IN_TRASH = "trashed IS NOT NULL AND doomed = 0"


class Store:
    """The open index. Two processes may each have one open, and so may fifty."""

    def __init__(self, path: Path, *, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        self._database = Database(path, migrations)
        self._given_up: set[str] = set()

    @staticmethod
    def open(paths: Paths) -> Store:
        """The store of a home, which is made if need be; one on a read-only disk can be read."""
        try:
            paths.prepare()
        except HomeUnwritable:
            if not paths.index.exists():
                raise
        return Store(paths.index)

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def refusal(self) -> StoreError | None:
        """Why nothing can be changed (a newer version's store, a read-only disk), if so."""
        return self._database.refusal

    @property
    def identity(self) -> str:
        """This index's own mark: one that was lost and begun anew has another."""
        return str(self._database.rows("SELECT value FROM about WHERE key = 'identity'")[0][0])

    def check(self) -> str:
        """What is wrong with the file, for `doctor`; empty if it is sound."""
        return self._database.check()

    # Looking

    def boxes(self) -> list[Box]:
        """Those in use, oldest first."""
        return self._select(f"{_LIVE} ORDER BY created, id")

    def trashed(self) -> list[Box]:
        """Those in the trash, latest first."""
        return self._select(f"{_IN_TRASH} ORDER BY trashed DESC, id")

    def get(self, name_or_id: str, *, trashed: bool = False) -> Box:
        """By name, by id, or by the first 6 or more digits of an id that fit only one box.

        A name wins over an id. Of several in the trash with one name it is the latest.
        """
        wanted = names.normal(name_or_id)[: 4 * names.MAX_LENGTH]
        boxes = self.trashed() if trashed else self.boxes()
        for box in boxes:
            if box.name == wanted:
                return box
        start = wanted.lower()
        found = [box for box in boxes if box.id.startswith(start)]
        if not names.is_id_prefix(start) or not found:
            raise self._unknown(wanted, boxes, trashed=trashed)
        if len(found) > 1:
            raise UnknownBox(
                f'"{shown(wanted)}" is the beginning of {len(found)} ids',
                hint=f"Give more of it, or a name: {', '.join(box.name for box in found[:3])}",
            )
        return found[0]

    def ids(self) -> set[str]:
        """Every box that a row names, be it in use, in the trash, or on its way out."""
        return {str(row[0]) for row in self._database.rows("SELECT id FROM boxes")}

    def knows(self, box_id: str) -> bool:
        """Whether `ids` has this one; the answer is as fresh as can be."""
        return bool(self._database.rows("SELECT 1 FROM boxes WHERE id = ?", (box_id,)))

    def uses_of_image(self, digest: str) -> list[Box]:
        """The boxes that stand on an image, those in the trash included."""
        return self._select("image_digest = ? AND doomed = 0 ORDER BY created, id", (digest,))

    def history(self, box_id: str | None = None, *, limit: int = 100) -> list[LogEntry]:
        """What happened, latest first; to one box, or to all."""
        rows = self._database.rows(
            "SELECT id, time, box_id, verb, detail FROM log"
            " WHERE ?1 IS NULL OR box_id = ?1 ORDER BY id DESC LIMIT ?2",
            (box_id, limit),
        )
        return [
            LogEntry(number, when, box, verb, json.loads(detail))
            for number, when, box, verb, detail in rows
        ]

    # Changing

    def add_box(self, box: Box) -> Box:
        """Make a box known. Its files must be on disk by now (`durable.fsync_tree`).

        Of two that come with one name at once, one wins and the other gets `NameTaken`.
        """
        box = replace(box, name=names.checked(box.name))
        values = tuple(getattr(box, column) for column in _COLUMNS.split(", "))
        marks = ", ".join("?" * len(values))
        with self._naming(box.name), self._database.writing() as index:
            if box.id in self._given_up:
                raise BoxBusy(f'the making of "{box.name}" was given up')
            index.execute(f"INSERT INTO boxes ({_COLUMNS}) VALUES ({marks})", values)
            _log(index, box.id, "create", {"name": box.name, "image": box.image})
        return box

    def give_up(self, box_id: str) -> bool:
        """Make sure that a box in the making never gets a row; False if it has one already.

        A cancelled caller of `asyncio.to_thread` leaves its thread running: an `add_box` that
        has not begun by now will be refused, one that has is waited for.
        """
        with self._database.turn:
            if self.knows(box_id):
                return False
            self._given_up.add(box_id)
            return True

    def rename(self, box_id: str, new_name: str) -> Box:
        new_name = names.checked(new_name)
        with self._naming(new_name), self._database.writing() as index:
            box = _one(index, box_id, _LIVE)
            if box.name != new_name:
                index.execute("UPDATE boxes SET name = ? WHERE id = ?", (new_name, box_id))
                _log(index, box_id, "rename", {"from": box.name, "to": new_name})
        return replace(box, name=new_name)

    def set_trashed(self, box_id: str, when: float | None = None) -> Box:
        """Put a box into the trash: its name is free at once, its files stay where they are."""
        when = time.time() if when is None else when
        with self._database.writing() as index:
            box = _one(index, box_id, _LIVE)
            index.execute("UPDATE boxes SET trashed = ? WHERE id = ?", (when, box_id))
            _log(index, box_id, "trash", {"name": box.name})
        return replace(box, trashed=when)

    def restore(self, box_id: str) -> Box:
        """Take a box out of the trash, as name-2 if its name has been given away meanwhile."""
        with self._database.writing() as index:
            box = _one(index, box_id, _IN_TRASH)
            taken = {str(row[0]) for row in index.execute(f"SELECT name FROM boxes WHERE {_LIVE}")}
            name = names.suggest(box.name, taken)
            index.execute("UPDATE boxes SET name = ?, trashed = NULL WHERE id = ?", (name, box_id))
            _log(index, box_id, "restore", {"name": name})
        return replace(box, name=name, trashed=None)

    def doom(self, box_id: str, *, trashed_before: float | None = None) -> bool:
        """Give up a box in the trash for good: from here on its files may be half gone.

        False if it is no longer in the trash (or not since before then): somebody was quicker.
        """
        with self._database.writing() as index:
            changed = index.execute(
                f"UPDATE boxes SET doomed = 1 WHERE id = ?1 AND {_IN_TRASH}"
                " AND (?2 IS NULL OR trashed <= ?2)",
                (box_id, trashed_before),
            ).rowcount
        return changed == 1

    def doomed(self) -> list[str]:
        """The ids of boxes whose removal has begun."""
        return [str(row[0]) for row in self._database.rows("SELECT id FROM boxes WHERE doomed")]

    def forget(self, box_id: str) -> None:
        """Remove a doomed box's row, as the last step, when its files are gone."""
        with self._database.writing() as index:
            found = index.execute("SELECT name FROM boxes WHERE id = ? AND doomed", (box_id,))
            for (name,) in found.fetchall():
                index.execute("DELETE FROM boxes WHERE id = ?", (box_id,))
                _log(index, box_id, "remove", {"name": name})

    def log(self, box_id: str, verb: str, detail: Mapping[str, Any] | None = None) -> None:
        """Append a line to the history; the verbs above write their own."""
        with self._database.writing() as index:
            _log(index, box_id, verb, detail or {})

    # Parts

    def _select(self, where: str, values: Sequence[Any] = ()) -> list[Box]:
        rows = self._database.rows(f"SELECT {_COLUMNS} FROM boxes WHERE {where}", values)
        return [Box(*row) for row in rows]

    @contextmanager
    def _naming(self, name: str) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_CONSTRAINT_UNIQUE:
                raise
            free = names.suggest(name, {box.name for box in self.boxes()})
            raise NameTaken(
                f'there is a box "{name}" already', hint=f"Take another name, for example: {free}"
            ) from error

    def _unknown(self, wanted: str, boxes: list[Box], *, trashed: bool) -> UnknownBox:
        if trashed:
            return UnknownBox(
                f'there is no box "{shown(wanted)}" in the trash',
                hint="`boxgrove trash` shows what is in it.",
            )
        if any(wanted in (box.name, box.id) for box in self.trashed()):
            return UnknownBox(
                f'the box "{shown(wanted)}" is in the trash',
                hint="`boxgrove trash` shows how to get it back.",
            )
        return UnknownBox.among(wanted, [box.name for box in boxes])


def _one(index: sqlite3.Connection, box_id: str, where: str) -> Box:
    row = index.execute(
        f"SELECT {_COLUMNS} FROM boxes WHERE id = ? AND {where}", (box_id,)
    ).fetchone()
    if row is None:
        place = "in the trash" if where == _IN_TRASH else "in use"
        raise UnknownBox(f'no box {place} has the id "{shown(box_id)}"')
    return Box(*row)


def _log(index: sqlite3.Connection, box_id: str, verb: str, detail: Mapping[str, Any]) -> None:
    index.execute(
        "INSERT INTO log (time, box_id, verb, detail) VALUES (?, ?, ?, ?)",
        (time.time(), box_id, verb, json.dumps(dict(detail))),
    )
