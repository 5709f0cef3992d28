"""Reader of a stopped service's state through its own handlers, without a change of the home.

It copies the database's files to a temporary folder, reads the copy into memory, and removes the folder:
SQLite's read-only modes leave files behind or lose the content of the write-ahead log.
"""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from reconciler.training_service.address import unserved
from reconciler.training_service.application import Application
from reconciler.training_service.scheduler.recovery import recover_states
from reconciler.training_service.state.database import Database, DatabaseError, prepare
from reconciler.training_service.state.records import JobRecord, Wait
from reconciler.training_service.state.store import Store


@contextmanager
def open_copy(home: Path) -> Iterator[Application]:
    """Yield the application over a private copy of a home's state; objects and logs are read in place.

    The application shows endings that runs have recorded since the service died. It refuses changes with
    FAILED_PRECONDITION. A missing home counts as empty.

    Raises:
        ServiceRunningError: A service runs; send it the requests instead.
        DatabaseError: The state can't be read.
        OSError: The same.
    """
    with closing(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)) as memory:
        with unserved(home):
            _copy_database(home / "state.db", memory)
        store = Store(Database(lambda: memory))
        recover_states(store, home)
        yield Application(store, home, read_only=True, wait_of=_wait_of)


def _wait_of(job: JobRecord) -> Wait:
    return Wait("Queued: the embedded training service isn't running.", job.create_time)


def _copy_database(path: Path, memory: sqlite3.Connection) -> None:
    """Fill `memory` with the state, and upgrade it to this version's format."""
    try:
        if path.exists():
            _copy_file(path, memory)
        prepare(memory)
    except sqlite3.Error as error:
        raise DatabaseError(str(error)) from error


def _copy_file(path: Path, memory: sqlite3.Connection) -> None:
    with tempfile.TemporaryDirectory(prefix="reconciler-") as folder:
        copy = Path(folder) / path.name
        for suffix in ("", "-wal"):
            source = path.with_name(path.name + suffix)
            if source.exists():
                shutil.copyfile(source, copy.with_name(copy.name + suffix))
        with closing(sqlite3.connect(copy)) as opened:
            opened.backup(memory)
