"""What lists tell of jobs, and are filtered by: little of each, remembered as long as a job is as it was."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from reconciler.localservice.records import JobState, Json

_MOST = 20_000

# Only names of columns, and conditions, that stand in this module go into statements.
_COLUMNS = (
    "id, revision, collection, project_number, location, job_id, state, create_time, start_time, end_time,"
    " update_time, error_code, error_message, etag, body"
)
_ROWS = f"SELECT {_COLUMNS} FROM jobs WHERE id IN (SELECT value FROM json_each(?))"  # noqa: S608
_REVISIONS = (
    "SELECT id, revision FROM jobs"
    " WHERE collection = ? AND project_number = ? AND location = ? AND id < ? ORDER BY id DESC LIMIT ?"
)


class JobHead(msgspec.Struct, frozen=True, gc=False):
    """A job without what it is to do.

    Attributes:
        revision: Changes whenever anything of the job does.
        display_name: "" where it has none.
        labels: None where its creator gave none.
    """

    id: int
    revision: int
    collection: str
    project_number: str
    location: str
    job_id: str
    state: JobState
    create_time: str
    start_time: str
    end_time: str
    update_time: str
    error_code: int
    error_message: str
    etag: str
    display_name: str
    labels: Mapping[str, str] | None


class Heads:
    """The heads of one database's jobs, read again where their revision isn't the remembered one.

    At most `most` of them are remembered, those that were read last. Not to be used by two threads at once.
    """

    def __init__(self, most: int = _MOST) -> None:
        self._most = most
        self._known: dict[int, JobHead] = {}

    def before(
        self, connection: sqlite3.Connection, place: tuple[str, str, str], before: int, chunk: int
    ) -> Iterator[JobHead]:
        """The jobs of a place (collection, the project's number, location) below a row number, newest first.

        They are looked for `chunk` at a time, as they are wanted.
        """
        while True:
            found = _plain(connection, _REVISIONS, (*place, before, chunk))
            yield from self._of(connection, found)
            if len(found) < chunk:
                return
            before = found[-1][0]

    def _of(self, connection: sqlite3.Connection, found: Sequence[tuple[int, int]]) -> Iterator[JobHead]:
        known = self._known
        heads = {id: head for id, revision in found if (head := known.get(id)) and head.revision == revision}
        if len(heads) < len(found):
            heads |= self._read(connection, [id for id, _ in found if id not in heads])
        for id, _ in found:
            if id in heads:  # else it is gone meanwhile
                yield heads[id]

    def _read(self, connection: sqlite3.Connection, ids: list[int]) -> dict[int, JobHead]:
        rows = _plain(connection, _ROWS, (json.dumps(ids),))
        read = {row[0]: _head(row) for row in rows}
        for id, head in read.items():
            self._known.pop(id, None)
            self._known[id] = head
        while len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        return read


def _plain(connection: sqlite3.Connection, statement: str, values: tuple[object, ...]) -> list[Any]:
    """The rows as tuples, which cost less than rows that know their columns' names."""
    cursor = connection.cursor()
    cursor.row_factory = None
    return cursor.execute(statement, values).fetchall()


def _head(row: tuple[Any, ...]) -> JobHead:
    values: list[Any] = [*row[:6], _STATES[row[6]], *row[7:-1], *_told(row[-1])]
    return JobHead(*values)


class _Body(msgspec.Struct):
    displayName: str = ""
    labels: dict[str, str] | None = None


_STATES = {str(state): state for state in JobState}
_decoded = msgspec.json.Decoder(_Body).decode


def _told(text: str) -> tuple[str, Mapping[str, str] | None]:
    """The display name and the labels in a job's body."""
    try:
        body = _decoded(text)
    except msgspec.MsgspecError:
        # A value of any type may hold half of a surrogate pair, which msgspec doesn't take.
        found: Json = json.loads(text)
        return str(found.get("displayName", "")), found.get("labels")
    return body.displayName, body.labels
