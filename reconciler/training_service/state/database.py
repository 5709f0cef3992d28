"""SQLite database of the service, and the store of jobs, trials, runs and settings in it.

Writes are serialized, and durable before they return. The database is opened anew after an I/O error.
"""

from __future__ import annotations

import base64
import json
import secrets
import sqlite3
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import fields, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path

from reconciler.training_service.state.records import (
    ENDED,
    PIPELINES,
    UNFINISHED,
    Code,
    JobRecord,
    JobState,
    Json,
    RunRecord,
    details_of,
    number_of,
)
from reconciler.training_service.state.rows import (
    column_of,
    few_ids,
    head_of,
    job_of,
    row_of,
    trial_of,
)
from reconciler.training_service.state.tables import SCHEMA_VERSION, statements
from reconciler.training_service.state.trial_records import TrialRecord


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
    # One damaged byte must not hide all rows.
    connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    connection.execute("PRAGMA foreign_keys = ON")
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > SCHEMA_VERSION:
        raise DatabaseError(
            f"state.db has format {version}, this version knows {SCHEMA_VERSION}: a newer version wrote it"
        )
    if version < SCHEMA_VERSION:
        _migrate(connection)


def _migrate(connection: sqlite3.Connection) -> None:
    # One transaction, so that a crash leaves either the old tables or the new ones.
    with _transaction(connection):
        # Another process may have migrated while this one waited for the lock.
        if int(connection.execute("PRAGMA user_version").fetchone()[0]) < SCHEMA_VERSION:
            for statement in statements(connection):
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


# All statements of `Store` contain only names of columns and conditions from the code.
_SELECT = f"SELECT {', '.join(field.name for field in fields(JobRecord))}, head FROM jobs"  # noqa: S608


class AlreadyExistsError(Exception):
    """Refusal of a job id that is already used."""


class TooLateError(Exception):
    """Refusal of a job that arrives at or after its deadline."""


def utc_now() -> datetime:
    """Return the system's time in UTC."""
    return datetime.now(UTC)


def rfc3339(moment: datetime) -> str:
    """Return the moment as the APIs write it: UTC, six decimal places, "Z"."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


CLAIMS = "claims_buckets"
"""Setting with the names of the buckets that no job may access."""

PUBLIC = "public_buckets"
"""Setting with the names of the buckets that are read from Google."""

REACHABLE = "reachable_buckets"
"""Setting with the names of the buckets that every job may access, named by its resource or not."""

COPIED_LABELS = "labels_on_backing_jobs"
"""Setting: True if a backing job gets the labels of its pipeline."""


class Store:
    """Thread-safe store of jobs and settings.

    Attributes:
        database: The database, which also stores object metadata.
        clock: Returns the time of writes.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self.database = database
        self.clock = clock

    def now(self) -> str:
        """Return the clock's time in RFC 3339."""
        return rfc3339(self.clock())

    def add_job(
        self, job: JobRecord, until: datetime | None = None, *, backing: JobRecord | None = None
    ) -> JobRecord:
        """Add a new job and return it with its id.

        Args:
            backing: The backing job of a pipeline: both are added, or neither.
            until: The deadline. A reader that looks then or later, by this store's clock, sees all jobs that
                were added in time: a job that is missing then can never appear.

        Raises:
            AlreadyExistsError: The job id is already used in this project and location.
            TooLateError: The deadline has passed; the job was not added.
        """
        try:
            with self.database.writing() as connection:
                # Checked inside the transaction: a read that begins after this waits for its end. A client
                # that finds no job after the deadline may thus submit again without creating a second one.
                if until is not None and self.clock() >= until:
                    raise TooLateError
                if backing is not None:
                    _insert(connection, backing)
                return replace(job, id=_insert(connection, job))
        except sqlite3.IntegrityError as error:
            raise AlreadyExistsError(job.job_id) from error

    def job(self, id: int) -> JobRecord | None:
        """Return the job with this row number."""
        return self._one("WHERE id = ?", (id,))

    def find(self, collection: str, project: str, location: str, job_id: str) -> JobRecord | None:
        """Return the job of this name; `project` may be the id or the number."""
        return self._one(
            "WHERE collection = ? AND project_number = ? AND location = ? AND job_id = ?",
            (collection, number_of(project), location, job_id),
        )

    def newest_named(self, project: str, job_id: str) -> JobRecord | None:
        """Return the project's newest job with this id, in any collection and location."""
        return self._one(
            "WHERE project_number = ? AND job_id = ? ORDER BY id DESC LIMIT 1", (number_of(project), job_id)
        )

    def of_project(self, project: str) -> list[JobRecord]:
        """Return all jobs of the project, oldest first."""
        statement = f"{_SELECT} WHERE project_number = ? ORDER BY id"
        with self.database.reading() as connection:
            return [job_of(row) for row in connection.execute(statement, (number_of(project),))]

    def of_secret(self, gcs_secret: str) -> JobRecord | None:
        """Return the job with this secret in its storage URL."""
        return self._one("WHERE gcs_secret = ?", (gcs_secret,))

    def select(
        self,
        parent: tuple[str, str, str],
        selects: Callable[[JobRecord], bool],
        most: int,
        *,
        before: int = 2**62,
        label: str | None = None,
        unfinished: bool = False,
    ) -> list[JobRecord]:
        """Return the newest selected jobs of a parent, at most `most`, with an id below `before`.

        Args:
            parent: The collection, the project's id or number, and the location.
            label: The value of the label `LABEL` that all selected jobs have; None if unknown.
            unfinished: True if all selected jobs are unfinished.
        """
        collection, project, location = parent
        condition = "collection = ? AND project_number = ? AND location = ? AND id < ?"
        values = [collection, number_of(project), location, before]
        few, given = few_ids(label, unfinished=unfinished)
        if few:
            # "+" keeps SQLite from the index of places, in which it would read the whole history.
            condition, values = f"+{condition} AND id IN ({few})", [*values, *given]
        # The cursor reads rows one by one: most requests need only the first ones.
        statement = f"{_SELECT} WHERE {condition} ORDER BY id DESC"
        with self.database.reading() as connection, closing(connection.execute(statement, values)) as rows:
            return list(islice(filter(selects, map(job_of, rows)), most))

    def unfinished(self) -> list[JobRecord]:
        """Return the jobs that haven't ended, oldest first, without pipelines."""
        return self._unfinished("<>")

    def unfinished_pipelines(self) -> list[JobRecord]:
        """Return the pipelines that haven't ended, oldest first."""
        return self._unfinished("=")

    def is_busy(self) -> bool:
        """Return True if a job or a pipeline hasn't ended."""
        return bool(self.unfinished() or self.unfinished_pipelines())

    def move(
        self,
        id: int,
        to: JobState,
        *,
        only_from: Collection[JobState],
        at: str,
        error_code: int = 0,
        error_message: str = "",
        error_details: Mapping[str, str] | None = None,
    ) -> JobRecord | None:
        """Change a job's state if its present state is in `only_from`.

        Sets the start time at the first RUNNING, the end time at a final state, and always the update time.

        Returns:
            The updated job; None if it is deleted or in another state.
        """
        with self.database.writing() as connection:
            before = _first(connection, "WHERE id = ?", (id,))
            # Compared within the transaction, so that two threads can't both make the same change.
            if before is None or before.state not in only_from:
                return None
            return _update(
                connection,
                before,
                state=to,
                start_time=before.start_time or (at if to is JobState.RUNNING else ""),
                end_time=at if to in ENDED else "",
                update_time=at,
                error_code=error_code,
                error_message=error_message,
                error_details=dict(error_details or {}),
            )

    def cancel(self, id: int, message: str) -> JobRecord | None:
        """Cancel a job: at once if QUEUED, otherwise by a state from which the supervisor ends its processes.

        Returns:
            The updated job; None if it is deleted, has ended, or is being cancelled already.
        """
        # A queued job has no processes to end. The supervisor may start it at this moment: then it is one of
        # the second kind, and no state leads back to QUEUED.
        move = partial(
            self.move, id, at=self.now(), error_message=message, error_details=details_of("REQUESTED")
        )
        changed = move(JobState.CANCELLED, only_from={JobState.QUEUED}, error_code=Code.CANCELLED)
        return changed or move(JobState.CANCELLING, only_from={JobState.PREPARING, JobState.RUNNING})

    def finish_pipeline(self, id: int, register: Callable[[sqlite3.Connection], str]) -> JobRecord | None:
        """Register a pipeline's model and end the pipeline as SUCCEEDED, in one transaction.

        Args:
            register: Adds the model version within the transaction, and returns its resource name; an error
                that it raises undoes the transaction.

        Returns:
            The updated pipeline; None if it is deleted, has ended, or is being cancelled.
        """
        with self.database.writing() as connection:
            before = _first(connection, "WHERE id = ?", (id,))
            if before is None or before.state not in UNFINISHED - {JobState.CANCELLING}:
                return None
            model, at = register(connection), self.now()
            changes = {"state": JobState.SUCCEEDED, "end_time": at, "update_time": at, "model": model}
            return _update(connection, before, **changes)

    def set_labels(self, id: int, labels: Mapping[str, str], *, only_etag: str, at: str) -> JobRecord | None:
        """Replace a job's labels; return None unless its etag is `only_etag` (or that is "")."""
        with self.database.writing() as connection:
            before = _first(connection, "WHERE id = ?", (id,))
            if before is None or only_etag not in ("", before.etag):
                return None
            body = {key: value for key, value in before.body.items() if key != "labels"}
            if labels:
                body["labels"] = dict(labels)
            return _update(connection, before, body=body, head=head_of(body), etag=new_etag(), update_time=at)

    def delete(self, id: int) -> None:
        """Delete a job and its runs."""
        with self.database.writing() as connection:
            connection.execute("DELETE FROM jobs WHERE id = ?", (id,))

    def add_run(self, id: int, trial: int = 0) -> RunRecord:
        """Add the next run of a job or trial; must be called before any of its processes starts."""
        with self.database.writing() as connection:
            row = connection.execute(
                "SELECT coalesce(max(number), 0) + 1 FROM runs WHERE job = ?", (id,)
            ).fetchone()
            run = RunRecord(f"{id}-{row[0]}-{secrets.token_hex(4)}", id, int(row[0]), trial)
            _write(connection, "INSERT INTO runs", row_of(run))
            return run

    def runs(self, id: int, trial: int | None = None) -> list[RunRecord]:
        """Return the runs of a job with all its trials, or of one trial, in order of their numbers."""
        with self.database.reading() as connection:
            rows = connection.execute(
                "SELECT * FROM runs WHERE job = ? AND trial = coalesce(?, trial) ORDER BY number", (id, trial)
            ).fetchall()
        return [RunRecord(**dict(row)) for row in rows]

    def add_trial(
        self, id: int, parameters: Mapping[str, float | int | str], *, after: int = 0
    ) -> TrialRecord:
        """Add a job's next trial, QUEUED; the first trial's number is `after` + 1."""
        with self.database.writing() as connection:
            row = connection.execute(
                "SELECT coalesce(max(number), ?) + 1 FROM trials WHERE job = ?", (after, id)
            ).fetchone()
            trial = TrialRecord(id, int(row[0]), dict(parameters), create_time=self.now())
            _write(connection, "REPLACE INTO trials", row_of(trial))
            return trial

    def save_trial(self, trial: TrialRecord) -> None:
        """Write a trial's present values."""
        with self.database.writing() as connection:
            _write(connection, "REPLACE INTO trials", row_of(trial))

    def trials(self, id: int) -> list[TrialRecord]:
        """Return the job's trials in order of their numbers."""
        with self.database.reading() as connection:
            rows = connection.execute("SELECT * FROM trials WHERE job = ? ORDER BY number", (id,)).fetchall()
        return [trial_of(row) for row in rows]

    def setting(self, name: str) -> Json:
        """Return a setting's value; None if never set."""
        with self.database.reading() as connection:
            row = connection.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row["value"])

    def set_setting(self, name: str, value: Json) -> None:
        """Store a setting: any JSON value."""
        text = json.dumps(value)
        with self.database.writing() as connection:
            # Every write makes a new version of the database: each command sets the same values again.
            unchanged = "SELECT 1 FROM settings WHERE name = ? AND value = ?"
            if not connection.execute(unchanged, (name, text)).fetchone():
                connection.execute("REPLACE INTO settings (name, value) VALUES (?, ?)", (name, text))

    def set_once(self, name: str, value: Json) -> Json:
        """Store a setting unless it exists; return the stored value, which another process may have set."""
        with self.database.writing() as connection:
            connection.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", (name, json.dumps(value)))
            row = connection.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return json.loads(row["value"])

    def _unfinished(self, pipelines: str) -> list[JobRecord]:
        marks = ", ".join("?" * len(UNFINISHED))
        # "+" as above: the history of all pipelines is long, those that haven't ended are few.
        statement = f"{_SELECT} WHERE state IN ({marks}) AND +collection {pipelines} ? ORDER BY id"
        with self.database.reading() as connection:
            rows = connection.execute(statement, (*sorted(UNFINISHED), PIPELINES))
            return [job_of(row) for row in rows]

    def _one(self, condition: str, values: tuple[object, ...]) -> JobRecord | None:
        with self.database.reading() as connection:
            return _first(connection, condition, values)


def new_number() -> str:
    """Return a new unique id of 19 digits, as Vertex AI gives to what it makes."""
    return str(secrets.randbelow(8 * 10**18) + 10**18)


def new_etag() -> str:
    """Return a new unique version of a job's labels, in base64 because the API's type is bytes."""
    return base64.b64encode(secrets.token_bytes(9)).decode()


def _insert(connection: sqlite3.Connection, job: JobRecord) -> int:
    """Add a job's row, and return its number."""
    values = {"project_number": number_of(job.project), "head": head_of(job.body), **row_of(job)}
    del values["id"]  # the database counts
    return int(_write(connection, "INSERT INTO jobs", values).lastrowid or 0)


def _write(connection: sqlite3.Connection, statement: str, row: Mapping[str, object]) -> sqlite3.Cursor:
    """Insert or replace a row; `statement` is the part before the names of the columns."""
    marks = ", ".join("?" * len(row))
    return connection.execute(f"{statement} ({', '.join(row)}) VALUES ({marks})", tuple(row.values()))


def _update(connection: sqlite3.Connection, job: JobRecord, **changes: Json) -> JobRecord:
    """Change a job in the database; return it with the changes."""
    names = ", ".join(f"{name} = ?" for name in changes)
    values = (*map(column_of, changes.values()), job.id)
    # The statement contains only column names from this module.
    connection.execute(f"UPDATE jobs SET {names} WHERE id = ?", values)  # noqa: S608
    updated = _first(connection, "WHERE id = ?", (job.id,))
    assert updated, "the row is locked"
    return updated


def _first(connection: sqlite3.Connection, condition: str, values: tuple[object, ...]) -> JobRecord | None:
    row = connection.execute(f"{_SELECT} {condition}", values).fetchone()
    return None if row is None else job_of(row)
