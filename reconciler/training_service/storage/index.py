"""What the database knows of objects: one row for each, those announced, and the counter of generations."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from reconciler.training_service.http.message import ApiError
from reconciler.training_service.state.records import JsonObject
from reconciler.training_service.state.store import rfc3339
from reconciler.training_service.storage.files import TICK_NS
from reconciler.training_service.storage.incoming import Checksums

_UNSETTLED = -1


class StoredObject(Struct, frozen=True, gc=False):
    """One object.

    Attributes:
        created, updated: RFC 3339; of this generation, and of its metadata.
        inode, mtime_ns: Those of the file when it was noted; the time is -1 where it couldn't be trusted yet.
        body: The client's own metadata, as in the API's Object: contentType, metadata, cacheControl, …
    """

    bucket: str
    name: str
    generation: int
    metageneration: int
    created: str
    updated: str
    size: int
    md5: str
    crc32c: str
    inode: int
    mtime_ns: int
    body: JsonObject

    def is_of(self, status: os.stat_result) -> bool:
        """Whether the file is still the one that was noted."""
        return self.mtime_ns == status.st_mtime_ns and self._is_like(status)

    def may_be_of(self, status: os.stat_result) -> bool:
        """The same, but where the time couldn't be trusted yet, size and inode are enough."""
        return self.is_of(status) or (self.mtime_ns == _UNSETTLED and self._is_like(status))

    def _is_like(self, status: os.stat_result) -> bool:
        return (self.size, self.inode) == (status.st_size, status.st_ino)

    def has(self, checksums: Checksums) -> bool:
        """Whether its content has these checksums."""
        return Checksums(self.size, self.md5, self.crc32c) == checksums


@dataclass(frozen=True, slots=True)
class Conditions:
    """The preconditions of a request, None where not given; a generation of 0 stands for no object."""

    generation: int | None = None
    generation_not: int | None = None
    metageneration: int | None = None
    metageneration_not: int | None = None

    def check(self, current: StoredObject | None, *, reading: bool = False) -> None:
        """Refuse if the object, None where there is none, isn't as the request wants it.

        Raises:
            ApiError: 412; 304 where one reads what one has already.
        """
        generation = current.generation if current else 0
        if self.generation not in (None, generation):
            raise _not_met(412)
        if self.metageneration is not None and (
            current is None or self.metageneration != current.metageneration
        ):
            raise _not_met(412)
        if self.generation_not is not None and generation in (0, self.generation_not):
            raise _not_met(304 if reading else 412)
        if self.metageneration_not is not None and (
            current is None or self.metageneration_not == current.metageneration
        ):
            raise _not_met(304 if reading else 412)


ANY = Conditions()


def find(connection: sqlite3.Connection, bucket: str, name: str) -> StoredObject | None:
    """What was noted of an object."""
    row = connection.execute("SELECT * FROM objects WHERE bucket = ? AND name = ?", (bucket, name)).fetchone()
    if row is None:
        return None
    return StoredObject(**{column: row[column] for column in _COLUMNS} | {"body": json.loads(row["body"])})


def find_all(connection: sqlite3.Connection, bucket: str, names: Collection[str]) -> dict[str, StoredObject]:
    """What was noted of several objects."""
    return {
        row[1]: StoredObject(*(*row[:-1], msgspec.json.decode(row[-1])))
        for row in _rows(connection, _COLUMNS, bucket, names)
    }


def _rows(
    connection: sqlite3.Connection, columns: Collection[str], bucket: str, names: Collection[str]
) -> list[tuple[Any, ...]]:
    cursor = connection.cursor()
    cursor.row_factory = None  # rows that know their columns' names cost more
    # Only names of columns, and conditions, that stand in this module go into the statement.
    chosen = "bucket = ? AND name IN (SELECT value FROM json_each(?))"
    statement = f"SELECT {', '.join(columns)} FROM objects WHERE {chosen}"  # noqa: S608
    return cursor.execute(statement, (bucket, json.dumps([*names]))).fetchall()


def note(connection: sqlite3.Connection, noted: StoredObject) -> StoredObject:
    """Write an object's row."""
    values = [json.dumps(noted.body) if name == "body" else getattr(noted, name) for name in _COLUMNS]
    marks = ", ".join("?" * len(_COLUMNS))
    # Only names of columns, and conditions, that stand in this module go into the statement.
    connection.execute(f"REPLACE INTO objects ({', '.join(_COLUMNS)}) VALUES ({marks})", values)  # noqa: S608
    return noted


def announce(
    connection: sqlite3.Connection, bucket: str, name: str, inode: int, md5: str, body: JsonObject
) -> None:
    """Remember what is said of content before it takes its place, so that it isn't lost if all ends then."""
    values = (bucket, name, inode, md5, json.dumps(body))
    connection.execute("REPLACE INTO announced VALUES (?, ?, ?, ?, ?)", values)


def withdraw(connection: sqlite3.Connection, bucket: str, name: str, inode: int) -> None:
    """Forget what was announced of this file."""
    place = (bucket, name, inode)
    connection.execute("DELETE FROM announced WHERE bucket = ? AND name = ? AND inode = ?", place)


def note_new(
    connection: sqlite3.Connection,
    bucket: str,
    name: str,
    status: os.stat_result,
    checksums: Checksums,
    body: JsonObject,
    now: datetime,
) -> StoredObject:
    """Write the row of a new generation, which isn't only announced any more."""
    withdraw(connection, bucket, name, status.st_ino)
    at = rfc3339(now)
    noted = StoredObject(
        bucket=bucket,
        name=name,
        generation=next_generation(connection, now),
        metageneration=1,
        created=at,
        updated=at,
        size=checksums.size,
        md5=checksums.md5,
        crc32c=checksums.crc32c,
        inode=status.st_ino,
        mtime_ns=status.st_mtime_ns,
        body=body,
    )
    return note(connection, noted)


def note_outside(
    connection: sqlite3.Connection,
    bucket: str,
    name: str,
    status: os.stat_result,
    checksums: Checksums,
    now: datetime,
) -> StoredObject:
    """Write the row of a file that was never noted as it is now; the same content is the same generation.

    Somebody else has written it, or we have, and were ended before we could note it.
    """
    settled = time.time_ns() - status.st_mtime_ns > TICK_NS
    known = find(connection, bucket, name)
    if known is None or known.inode != status.st_ino or not known.has(checksums):
        body = _announced(connection, bucket, name, status.st_ino, checksums.md5)
        known = note_new(connection, bucket, name, status, checksums, body, now)
    return note(connection, replace(known, mtime_ns=status.st_mtime_ns if settled else _UNSETTLED))


def forget(connection: sqlite3.Connection, bucket: str, name: str) -> None:
    """Remove an object's row."""
    connection.execute("DELETE FROM objects WHERE bucket = ? AND name = ?", (bucket, name))


def next_generation(connection: sqlite3.Connection, now: datetime) -> int:
    """Microseconds, as in Cloud Storage, but always more than the last, whatever the clock does."""
    row = connection.execute("SELECT value FROM settings WHERE name = 'generation'").fetchone()
    last = 0 if row is None else int(row["value"])
    following = max(last + 1, int(now.timestamp() * 1_000_000))
    connection.execute("REPLACE INTO settings (name, value) VALUES ('generation', ?)", (str(following),))
    return following


_COLUMNS = tuple(StoredObject.__struct_fields__)


def _announced(connection: sqlite3.Connection, bucket: str, name: str, inode: int, md5: str) -> JsonObject:
    row = connection.execute(
        "SELECT body FROM announced WHERE bucket = ? AND name = ? AND inode = ? AND md5 = ?",
        (bucket, name, inode, md5),
    ).fetchone()
    found: JsonObject = {} if row is None else json.loads(row["body"])
    return found


def _not_met(http: int) -> ApiError:
    message = "At least one of the pre-conditions you specified did not hold."
    return ApiError("FAILED_PRECONDITION", message, http=http, reason="conditionNotMet")
