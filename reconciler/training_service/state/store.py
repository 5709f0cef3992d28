"""The store: jobs, their trials and runs, and settings. Every write is durable before it returns."""

from __future__ import annotations

import base64
import json
import secrets
import sqlite3
from collections.abc import Callable, Collection, Mapping
from contextlib import closing
from dataclasses import asdict, replace
from datetime import UTC, datetime
from itertools import islice

import msgspec

from reconciler.training_service.state.database import Database
from reconciler.training_service.state.records import (
    ENDED,
    UNFINISHED,
    JobRecord,
    JobState,
    Json,
    Measurement,
    RunRecord,
    TrialRecord,
    TrialState,
    number_of,
)

_NAMES = (
    "collection",
    "project",
    "location",
    "job_id",
    "body",
    "images",
    "state",
    "create_time",
    "start_time",
    "end_time",
    "update_time",
    "error_code",
    "error_message",
    "etag",
    "gcs_secret",
)
_COLUMNS = ", ".join(_NAMES)


class AlreadyExistsError(Exception):
    """The job id is used up."""


class TooLateError(Exception):
    """The moment has come until which it was allowed."""


def utc_now() -> datetime:
    """The system's clock."""
    return datetime.now(UTC)


def rfc3339(moment: datetime) -> str:
    """The moment as the APIs write it: UTC, six decimal places, "Z"."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


CLAIMS = "claims_buckets"
"""The setting with the names of the buckets that no job reaches."""


class Store:
    """What the service remembers of jobs; safe to use from several threads.

    Attributes:
        database: Where it is kept; object metadata is kept in the same database.
        clock: The time for whoever writes here.
    """

    def __init__(self, database: Database, clock: Callable[[], datetime] = utc_now) -> None:
        self.database = database
        self.clock = clock

    def now(self) -> str:
        """The clock's time in RFC 3339."""
        return rfc3339(self.clock())

    def add_job(self, job: JobRecord, until: datetime | None = None) -> JobRecord:
        """Remember a new job and return it with its id.

        Args:
            until: From then on it is too late. Whoever looks at that time or later, by this store's clock,
                sees all jobs that were added in time: one that isn't there will never be.

        Raises:
            AlreadyExistsError: The job id is used in this project and location.
            TooLateError: The time was over; nothing was added.
        """
        values = _values(job)
        marks = ", ".join("?" * (len(values) + 1))
        # Only names of columns, and conditions, that stand in this module go into the statement.
        statement = f"INSERT INTO jobs (project_number, {_COLUMNS}) VALUES ({marks})"  # noqa: S608
        try:
            with self.database.writing() as connection:
                # Asked inside the transaction: a look that begins after this waits for its end.
                if until is not None and self.clock() >= until:
                    raise TooLateError
                cursor = connection.execute(statement, (number_of(job.project), *values))
        except sqlite3.IntegrityError as error:
            raise AlreadyExistsError(job.job_id) from error
        return replace(job, id=int(cursor.lastrowid or 0))

    def job(self, id: int) -> JobRecord | None:
        """The job with this row number."""
        return self._one("WHERE id = ?", (id,))

    def find(self, collection: str, project: str, location: str, job_id: str) -> JobRecord | None:
        """The job of this name; `project` may be the id or the number."""
        return self._one(
            "WHERE collection = ? AND project_number = ? AND location = ? AND job_id = ?",
            (collection, number_of(project), location, job_id),
        )

    def newest_named(self, project: str, job_id: str) -> JobRecord | None:
        """The newest job with this id, in whatever collection and location of the project."""
        return self._one(
            "WHERE project_number = ? AND job_id = ? ORDER BY id DESC LIMIT 1", (number_of(project), job_id)
        )

    def of_secret(self, gcs_secret: str) -> JobRecord | None:
        """The job whose storage URL holds this secret."""
        return self._one("WHERE gcs_secret = ?", (gcs_secret,))

    def select(
        self,
        place: tuple[str, str, str],
        selects: Callable[[JobRecord], bool],
        most: int,
        *,
        before: int = 2**62,
    ) -> list[JobRecord]:
        """Return the newest selected jobs of a place, at most `most`, with an id below `before`.

        Args:
            place: The collection, the project's id or number, and the location.
        """
        collection, project, location = place
        # The cursor reads rows one by one: most requests need only the first ones.
        statement = (
            f"SELECT id, {_COLUMNS} FROM jobs"  # noqa: S608 (names of columns from this module)
            " WHERE collection = ? AND project_number = ? AND location = ? AND id < ? ORDER BY id DESC"
        )
        values = (collection, number_of(project), location, before)
        with self.database.reading() as connection, closing(connection.execute(statement, values)) as rows:
            return list(islice(filter(selects, map(_job, rows)), most))

    def unfinished(self) -> list[JobRecord]:
        """The jobs that haven't ended, oldest first."""
        marks = ", ".join("?" * len(UNFINISHED))
        return self._all(f"WHERE state IN ({marks}) ORDER BY id", tuple(sorted(UNFINISHED)))

    def move(
        self,
        id: int,
        to: JobState,
        *,
        only_from: Collection[JobState],
        at: str,
        error_code: int = 0,
        error_message: str = "",
    ) -> JobRecord | None:
        """Change a job's state, if it is in one of `only_from`.

        Sets the start time at the first RUNNING, the end time at an end, and the update time.

        Returns:
            The job as it is now, or None where it is gone or in another state.
        """
        with self.database.writing() as connection:
            before = _first(connection, "WHERE id = ?", (id,))
            if before is None or before.state not in only_from:
                return None
            after = replace(
                before,
                state=to,
                start_time=before.start_time or (at if to is JobState.RUNNING else ""),
                end_time=at if to in ENDED else "",
                update_time=at,
                error_code=error_code,
                error_message=error_message,
            )
            connection.execute(
                "UPDATE jobs SET state = ?, start_time = ?, end_time = ?, update_time = ?,"
                " error_code = ?, error_message = ? WHERE id = ?",
                (after.state, after.start_time, after.end_time, at, error_code, error_message, id),
            )
            return after

    def set_labels(self, id: int, labels: Mapping[str, str], *, only_etag: str, at: str) -> JobRecord | None:
        """Replace a job's labels if its etag is `only_etag` (or that is ""); None where it isn't."""
        with self.database.writing() as connection:
            before = _first(connection, "WHERE id = ?", (id,))
            if before is None or only_etag not in ("", before.etag):
                return None
            body = {key: value for key, value in before.body.items() if key != "labels"}
            if labels:
                body["labels"] = dict(labels)
            after = replace(before, body=body, etag=new_etag(), update_time=at)
            connection.execute(
                "UPDATE jobs SET body = ?, etag = ?, update_time = ? WHERE id = ?",
                (json.dumps(body), after.etag, at, id),
            )
            return after

    def delete(self, id: int) -> None:
        """Forget a job and its runs."""
        with self.database.writing() as connection:
            connection.execute("DELETE FROM jobs WHERE id = ?", (id,))

    def add_run(self, id: int, trial: int = 0) -> RunRecord:
        """Remember that a job, or a trial of it, is started once more; to be called before anything is."""
        with self.database.writing() as connection:
            row = connection.execute(
                "SELECT coalesce(max(number), 0) + 1 FROM runs WHERE job = ?", (id,)
            ).fetchone()
            run = RunRecord(f"{id}-{row[0]}-{secrets.token_hex(4)}", id, int(row[0]), trial)
            connection.execute(
                "INSERT INTO runs (run_id, job, number, trial) VALUES (?, ?, ?, ?)",
                (run.run_id, id, run.number, trial),
            )
            return run

    def runs(self, id: int, trial: int | None = None) -> list[RunRecord]:
        """The runs of a job and of all its trials, or of one trial alone, first to last."""
        with self.database.reading() as connection:
            rows = connection.execute(
                "SELECT * FROM runs WHERE job = ? AND trial = coalesce(?, trial) ORDER BY number", (id, trial)
            ).fetchall()
        return [RunRecord(row["run_id"], row["job"], row["number"], row["trial"]) for row in rows]

    def add_trial(
        self, id: int, parameters: Mapping[str, float | int | str], *, after: int = 0
    ) -> TrialRecord:
        """Remember a job's next trial, QUEUED; the first one's number is the one after `after`."""
        with self.database.writing() as connection:
            row = connection.execute(
                "SELECT coalesce(max(number), ?) + 1 FROM trials WHERE job = ?", (after, id)
            ).fetchone()
            trial = TrialRecord(id, int(row[0]), dict(parameters), create_time=self.now())
            _write_trial(connection, trial)
            return trial

    def save_trial(self, trial: TrialRecord) -> None:
        """Write a trial as it is now."""
        with self.database.writing() as connection:
            _write_trial(connection, trial)

    def trials(self, id: int) -> list[TrialRecord]:
        """The job's trials, first to last."""
        with self.database.reading() as connection:
            rows = connection.execute("SELECT * FROM trials WHERE job = ? ORDER BY number", (id,)).fetchall()
        return [_trial(row) for row in rows]

    def setting(self, name: str) -> Json:
        """A setting's value, None where it was never set."""
        with self.database.reading() as connection:
            row = connection.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return None if row is None else json.loads(row["value"])

    def set_setting(self, name: str, value: Json) -> None:
        """Keep a setting: any JSON value."""
        with self.database.writing() as connection:
            connection.execute("REPLACE INTO settings (name, value) VALUES (?, ?)", (name, json.dumps(value)))

    def set_once(self, name: str, value: Json) -> Json:
        """Keep a setting that was never set; what it is now, which may be what somebody else has set."""
        with self.database.writing() as connection:
            connection.execute("INSERT OR IGNORE INTO settings VALUES (?, ?)", (name, json.dumps(value)))
            row = connection.execute("SELECT value FROM settings WHERE name = ?", (name,)).fetchone()
        return json.loads(row["value"])

    def _one(self, condition: str, values: tuple[object, ...]) -> JobRecord | None:
        with self.database.reading() as connection:
            return _first(connection, condition, values)

    def _all(self, condition: str, values: tuple[object, ...]) -> list[JobRecord]:
        with self.database.reading() as connection:
            # Only names of columns, and conditions, that stand in this module go into the statement.
            rows = connection.execute(f"SELECT id, {_COLUMNS} FROM jobs {condition}", values).fetchall()  # noqa: S608
        return [_job(row) for row in rows]


def new_etag() -> str:
    """A version of a job's labels, never seen before; base64, as the API's type for it is bytes."""
    return base64.b64encode(secrets.token_bytes(9)).decode()


def _write_trial(connection: sqlite3.Connection, trial: TrialRecord) -> None:
    connection.execute(
        "REPLACE INTO trials (job, number, parameters, state, create_time, start_time, end_time,"
        " measurements, final, stopped_early, message) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            trial.job,
            trial.number,
            json.dumps(dict(trial.parameters)),
            trial.state,
            trial.create_time,
            trial.start_time,
            trial.end_time,
            json.dumps([asdict(each) for each in trial.measurements]),
            json.dumps(asdict(trial.final) if trial.final else None),
            trial.stopped_early,
            trial.message,
        ),
    )


def _trial(row: sqlite3.Row) -> TrialRecord:
    final = json.loads(row["final"])
    return TrialRecord(
        job=row["job"],
        number=row["number"],
        parameters=json.loads(row["parameters"]),
        create_time=row["create_time"],
        state=TrialState(row["state"]),
        start_time=row["start_time"],
        end_time=row["end_time"],
        measurements=tuple(Measurement(**each) for each in json.loads(row["measurements"])),
        final=Measurement(**final) if final else None,
        stopped_early=bool(row["stopped_early"]),
        message=row["message"],
    )


def _first(connection: sqlite3.Connection, condition: str, values: tuple[object, ...]) -> JobRecord | None:
    # Only names of columns, and conditions, that stand in this module go into the statement.
    row = connection.execute(f"SELECT id, {_COLUMNS} FROM jobs {condition}", values).fetchone()  # noqa: S608
    return None if row is None else _job(row)


def _job(row: sqlite3.Row) -> JobRecord:
    values = dict(row)
    values |= {
        "state": JobState(row["state"]),
        "body": _json(row["body"]),
        "images": _json(row["images"]),
    }
    return JobRecord(**values)


def _json(text: str) -> Json:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)  # msgspec refuses half of a surrogate pair


def _values(job: JobRecord) -> tuple[object, ...]:
    held = {"body": json.dumps(job.body), "images": json.dumps(dict(job.images)), "state": str(job.state)}
    return tuple(held.get(name, getattr(job, name)) for name in _NAMES)
