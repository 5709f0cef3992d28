"""SQLite database of the service: serialized, durable writes; reopened after an I/O error."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reconciler.training_service.state.records import TABLES

SCHEMA_VERSION = 6
LABEL = "reconciler-key"
"""The label by which the reconciler looks for the jobs of one content: this search has an index."""
LABEL_VALUE = f"CASE WHEN json_valid(body) THEN json_extract(body, '$.labels.\"{LABEL}\"') END"

_INDEXES = (
    f"CREATE INDEX IF NOT EXISTS jobs_by_label ON jobs ({LABEL_VALUE})",
    # A list continues in this index from the end of its last page.
    "CREATE INDEX IF NOT EXISTS jobs_by_place ON jobs (collection, project_number, location, id, revision)",
    # Older versions compare revisions to find changed rows.
    "CREATE TRIGGER IF NOT EXISTS jobs_revised AFTER UPDATE ON jobs WHEN NEW.revision = OLD.revision BEGIN"
    " UPDATE jobs SET revision = OLD.revision + 1 WHERE id = NEW.id; END",
)
# Before version 3 jobs had no trials.
_ADD_TRIALS = ("ALTER TABLE runs ADD COLUMN trial INTEGER NOT NULL DEFAULT 0",)
_ADD_REVISIONS = ("ALTER TABLE jobs ADD COLUMN revision INTEGER NOT NULL DEFAULT 0",)
# Before version 5 no end had a recorded cause.
_ADD_CAUSES = "ALTER TABLE {} ADD COLUMN error_details TEXT NOT NULL DEFAULT '{{}}'"
# Before version 4 `objects` was WITHOUT ROWID. SQLite stores such a table like an index, where each row of
# this size takes a page of its own.
_RENAME_OLD_OBJECTS = ("ALTER TABLE objects RENAME TO objects_3",)
_COPY_OLD_OBJECTS = ("INSERT INTO objects SELECT * FROM objects_3", "DROP TABLE objects_3")


class DatabaseError(Exception):
    """Failure to read or write the database (disk full, locked, damaged …); the write is undone."""


class Database:
    """SQLite database, shared by the threads of one process; other processes may use the same file.

    Attributes:
        connect: Opens the database; called again after an error, because SQLite's cached view of the file
            can't be trusted then.
    """

    def __init__(self, connect: Callable[[], sqlite3.Connection]) -> None:
        self._connect = connect
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._openings = 0

    def version(self) -> tuple[int, int, int]:
        """Return a value that differs whenever the content may have changed, by this process or another."""
        with self.reading() as connection:
            by_others = int(connection.execute("PRAGMA data_version").fetchone()[0])
            return self._openings, connection.total_changes, by_others

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Lend the connection for reads; the lock keeps other threads out until the block ends."""
        with self._lock, self._errors():
            yield self._opened()

    @contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """Run the block in an exclusive transaction: durable after the block, rolled back on an error."""
        with self._lock, self._errors():
            connection = self._opened()
            with _transaction(connection):
                yield connection

    def close(self) -> None:
        """Close the connection; the next use opens a new one."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()

    def _opened(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = self._connect()
            self._openings += 1
        return self._connection

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise  # a violated constraint is the caller's to handle; the connection is sound
        except sqlite3.Error as error:
            self.close()
            raise DatabaseError(str(error)) from error


def open_file(path: Path) -> Database:
    """Return the database in this file, which is created if missing."""
    return Database(lambda: _connect_file(path))


def _connect_file(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=10.0, isolation_level=None, check_same_thread=False)
    try:
        path.chmod(0o600)  # job environments may contain secrets
        connection.execute("PRAGMA journal_mode = WAL")
        # WAL mode's default may lose a commit in a power failure.
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA fullfsync = ON")  # macOS: plain fsync stops at the disk's cache
        prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def prepare(connection: sqlite3.Connection) -> None:
    """Create or migrate the tables; raise DatabaseError if a newer version wrote the database."""
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA foreign_keys = ON")
    found = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if found > SCHEMA_VERSION:
        raise DatabaseError(
            f"state.db has format {found}, this version knows {SCHEMA_VERSION}: a newer version wrote it"
        )
    if found < SCHEMA_VERSION:
        _migrate(connection)


def _migrate(connection: sqlite3.Connection) -> None:
    # One transaction, so that a crash leaves either the old tables or the new ones.
    with _transaction(connection):
        # Another process may have migrated while this one waited for the lock.
        if int(connection.execute("PRAGMA user_version").fetchone()[0]) < SCHEMA_VERSION:
            for statement in _statements(connection):
                connection.execute(statement)


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    # IMMEDIATE takes the write lock at once: what the block reads is still true when it writes.
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        # After some errors SQLite has already rolled back.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(connection: sqlite3.Connection) -> list[str]:
    """Return the statements that bring the existing tables to this version."""
    runs, jobs = (_columns(connection, table) for table in ("runs", "jobs"))
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    objects = version < 4 and _columns(connection, "objects")
    ending = {table: _columns(connection, table) for table in ("jobs", "trials")}
    return [
        *(_ADD_TRIALS if runs and "trial" not in runs else ()),
        *(_ADD_REVISIONS if jobs and "revision" not in jobs else ()),
        *(_ADD_CAUSES.format(name) for name, has in ending.items() if has and "error_details" not in has),
        *(_RENAME_OLD_OBJECTS if objects else ()),
        *filter(str.strip, TABLES.split(";")),
        *(_COPY_OLD_OBJECTS if objects else ()),
        *_INDEXES,
        f"PRAGMA user_version = {SCHEMA_VERSION}",
    ]


def _columns(connection: sqlite3.Connection, table: str) -> set[str]:
    return {row["name"] for row in connection.execute(f"PRAGMA table_info({table})")}
