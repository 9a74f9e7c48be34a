"""The index's schema as the steps that lead to it; a store's version is how many it has taken.

A step, once released, is never changed: later ones build on it. Each runs in a transaction of
its own, which `database.py` opens and closes. SQLite 3.34 is the oldest to be had with Python
3.11 on a living distribution, so no STRICT tables and no RETURNING.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Sequence

Migration = Callable[[sqlite3.Connection], None]


def _first(index: sqlite3.Connection) -> None:
    """Boxes, the log of what happened to them, and the index's own identity."""
    for statement in _FIRST:
        index.execute(statement)
    index.execute("INSERT INTO about VALUES ('identity', ?)", (os.urandom(16).hex(),))


_FIRST = (
    "CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    """CREATE TABLE boxes (
        id TEXT PRIMARY KEY CHECK (length(id) = 32),
        name TEXT NOT NULL CHECK (name <> ''),
        image TEXT NOT NULL,
        image_digest TEXT NOT NULL,
        backend TEXT NOT NULL,
        cpus INTEGER NOT NULL,
        memory_mib INTEGER NOT NULL,
        disk_bytes INTEGER NOT NULL,
        user TEXT NOT NULL,
        created REAL NOT NULL,
        trashed REAL,
        doomed INTEGER NOT NULL DEFAULT 0 CHECK (doomed = 0 OR trashed IS NOT NULL)
    ) WITHOUT ROWID""",
    # Two creates of one name at once have one winner; the trash may hold a name many times.
    "CREATE UNIQUE INDEX live_names ON boxes (name) WHERE trashed IS NULL",
    """CREATE TABLE log (
        id INTEGER PRIMARY KEY AUTOINCREMENT,
        time REAL NOT NULL,
        box_id TEXT NOT NULL,
        verb TEXT NOT NULL,
        detail TEXT NOT NULL
    )""",
    "CREATE INDEX log_by_box ON log (box_id, id)",
    """CREATE TRIGGER log_is_not_changed BEFORE UPDATE ON log
        BEGIN SELECT RAISE(ABORT, 'the log is only appended to'); END""",
    """CREATE TRIGGER log_is_not_cut BEFORE DELETE ON log
        BEGIN SELECT RAISE(ABORT, 'the log is only appended to'); END""",
)

MIGRATIONS: Sequence[Migration] = (_first,)
