"""One SQLite file opened so that nothing about it surprises: versions, locks, full and read-only
disks, damage. `store.py` says what is in it."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

from boxgrove.core.durable import fsync_folder, fsync_tree, part_beside
from boxgrove.core.errors import (
    HomeUnwritable,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreNewer,
    StoreReadOnly,
    no_space,
    writing_in,
)
from boxgrove.core.migrations import MIGRATIONS, Migration
from vm_backends.errors import Fault

APPLICATION_ID = 0x42784776
BUSY_TIMEOUT_S = 5.0
_SMALLEST = 512


class _Header(NamedTuple):
    application_id: int
    version: int
    is_empty: bool


class Database:
    """The open file. Any thread may use it; transactions of one process take turns.

    `refusal` says why it cannot be written, if so; what can be read is still read. Who holds
    `turn` sees no transaction of this process begin or end.
    """

    def __init__(self, path: Path, migrations: Sequence[Migration] = MIGRATIONS) -> None:
        self.path = path
        self.refusal: StoreError | None = None
        self._migrations = migrations
        self.turn = threading.RLock()
        with self._faults():
            self._connection = self._open()
            try:
                self._settle()
            except BaseException:
                self._connection.close()
                raise

    def close(self) -> None:
        with self.turn:
            self._connection.close()

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Everything one SELECT finds."""
        with self.turn, self._faults():
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """A transaction: what is done inside happens as a whole, and is on disk afterwards."""
        if self.refusal is not None:
            raise type(self.refusal)(self.refusal.message, hint=self.refusal.hint)
        with self.turn, self._faults(), self._transaction():
            if self._version() > len(self._migrations):
                # A newer program has moved the schema on while we had it open.
                raise self._newer()
            yield self._connection

    def check(self) -> str:
        """What SQLite finds wrong with the file, in its own words; empty if it is sound."""
        with suppress(StoreDamaged):
            found = self.rows("PRAGMA quick_check(1)")
            return "" if found == [("ok",)] else str(found[0][0])
        return "it cannot be read"

    # Opening

    def _open(self) -> sqlite3.Connection:
        folder = self.path.parent
        if not self.path.exists():
            with writing_in(folder):
                self._make()
        elif not os.access(self.path, os.R_OK):
            raise HomeUnwritable(f"{self.path} may not be read by this user")
        elif not (os.access(self.path, os.W_OK) and os.access(folder, os.W_OK | os.X_OK)):
            # SQLite writes beside the file, too, so the folder counts.
            self.refusal = StoreReadOnly(f"{folder} cannot be written, so nothing can be changed")
            return _copy_in_memory(self.path)
        elif 0 < self.path.stat().st_size < _SMALLEST:
            # SQLite would take this for an empty file and write over it.
            raise self._damaged(f"{self.path}, the index of all boxes, is damaged")
        return _connect(_address(self.path, "mode=rw"))

    def _make(self) -> None:
        with suppress(FileExistsError):
            os.close(os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))

    def _settle(self) -> None:
        """Find out whose file this is, bring it to our version, and set how it is used."""
        header = self._header()
        if header.application_id != APPLICATION_ID and not (
            header.application_id == 0 and header.version == 0 and header.is_empty
        ):
            raise StoreDamaged(
                f"{self.path} is some other program's file, not an index of boxes",
                hint="Move it away, or set BOXGROVE_HOME to another folder.",
            )
        if header.version < len(self._migrations):
            self._upgrade()
        if self._version() > len(self._migrations):
            self.refusal = self._newer()
            self._connection.execute("PRAGMA query_only = ON")
        self._connection.execute("PRAGMA foreign_keys = ON")
        self._connection.execute("PRAGMA synchronous = FULL")
        # macOS: a plain fsync stops at the drive's cache.
        self._connection.execute("PRAGMA fullfsync = ON")

    def _header(self) -> _Header:
        # In one transaction: another process may be making the file at this moment.
        self._connection.execute("BEGIN")
        try:
            return _Header(
                self._number("PRAGMA application_id"),
                self._version(),
                self._number("SELECT count(*) FROM sqlite_master") == 0,
            )
        finally:
            self._connection.execute("ROLLBACK")

    def _version(self) -> int:
        return self._number("PRAGMA user_version")

    def _number(self, sql: str) -> int:
        return int(self._connection.execute(sql).fetchone()[0])

    # Bringing it up to date

    def _upgrade(self) -> None:
        if self.refusal is not None:
            # A copy in memory: an older schema on a read-only disk can be read all the same.
            self._migrate()
            return
        # SQLite cannot queue for the switch to WAL, so those who would upgrade queue here.
        with _queue(self.path.with_name("index.lock")):
            version = self._version()
            if 0 < version < len(self._migrations):
                self._back_up(version)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._migrate()

    def _migrate(self) -> None:
        for number, migration in enumerate(self._migrations, start=1):
            with self._transaction():
                if self._version() >= number:
                    continue
                migration(self._connection)
                self._connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
                self._connection.execute(f"PRAGMA user_version = {number}")

    def _back_up(self, version: int) -> None:
        part = part_beside(self.path)
        try:
            self._connection.execute("VACUUM INTO ?", (os.fspath(part),))
            part.chmod(0o600)
            fsync_tree(part)
            part.replace(backup_of(self.path, version))
            fsync_folder(self.path.parent)
        finally:
            part.unlink(missing_ok=True)

    # Failing well

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        # IMMEDIATE: to begin as a reader and want to write later cannot be waited for.
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        finally:
            # SQLite may have rolled back by itself, on a full disk for one.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            fault = self._fault(error)
            if fault is None:
                raise
            raise fault from error

    def _fault(self, error: sqlite3.Error) -> Fault | None:
        """The one place where SQLite's failures become ours; None for what must be a bug."""
        code = getattr(error, "sqlite_errorcode", 0)
        kind = code & 0xFF
        if kind == sqlite3.SQLITE_FULL:
            return no_space(self.path)
        if kind in (sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN):
            if _is_full(self.path.parent):
                return no_space(self.path)
            return self._damaged(f"{self.path} cannot be read or written: {error}")
        if kind == sqlite3.SQLITE_READONLY:
            return StoreReadOnly(f"{self.path} cannot be written")
        if kind in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return self._damaged(f"{self.path}, the index of all boxes, is damaged")
        if kind in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            return StoreBusy(
                f"{self.path} was in use by another process for {BUSY_TIMEOUT_S:.0f} s"
            )
        if kind == sqlite3.SQLITE_ERROR and isinstance(self.refusal, StoreNewer):
            # Its tables are no longer those we know.
            return self._newer()
        return None

    def _damaged(self, message: str) -> StoreDamaged:
        backups = [
            saved.name
            for version in range(len(self._migrations), 0, -1)
            if (saved := backup_of(self.path, version)).exists()
        ]
        way_out = f"put a copy back ({backups[0]} is one)" if backups else "put a copy back"
        return StoreDamaged(
            message,
            hint=f"The boxes' files are untouched: {way_out}, or move it away to begin anew.",
        )

    def _newer(self) -> StoreNewer:
        return StoreNewer(
            "a newer Boxgrove has used this home, so boxes can be listed but not changed"
        )


def backup_of(path: Path, version: int) -> Path:
    """Where a store of that version was saved before it was brought up to date."""
    return path.with_name(f"{path.name}.v{version}.bak")


def _address(path: Path, options: str) -> str:
    return f"{path.absolute().as_uri()}?{options}"


def _connect(address: str) -> sqlite3.Connection:
    return sqlite3.connect(
        address,
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )


def _copy_in_memory(path: Path) -> sqlite3.Connection:
    """The content of a store that cannot be written, not even for SQLite's own lock files."""
    memory = _connect(":memory:")
    try:
        _fill(memory, _address(path, "mode=ro"))
    except sqlite3.OperationalError:
        log = path.with_name(path.name + "-wal")
        if not (log.exists() and log.stat().st_size):
            _fill(memory, _address(path, "immutable=1"))
        else:
            # What only stands in the log would be missing: SQLite gets a copy it may write.
            import tempfile

            with tempfile.TemporaryDirectory(prefix="boxgrove-") as folder:
                copy = Path(folder, path.name)
                copy.write_bytes(path.read_bytes())
                copy.with_name(log.name).write_bytes(log.read_bytes())
                _fill(memory, _address(copy, "mode=rw"))
    return memory


def _fill(memory: sqlite3.Connection, address: str) -> None:
    source = _connect(address)
    try:
        source.backup(memory)
    finally:
        source.close()


@contextmanager
def _queue(path: Path) -> Iterator[None]:
    with writing_in(path.parent):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _is_full(folder: Path) -> bool:
    try:
        about = os.statvfs(folder)
    except OSError:
        return False
    return about.f_bavail == 0 or (about.f_files > 0 and about.f_favail == 0)
