"""Object index in the database: a row per object, announced content, and the counter of generations."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Collection
from datetime import UTC, datetime

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from reconciler.training_service.state.database import rfc3339
from reconciler.training_service.state.records import JsonObject
from reconciler.training_service.storage.files import TICK_NS
from reconciler.training_service.storage.upload_sessions import Checksums

_UNKNOWN = -1


class StoredObject(Struct, frozen=True, gc=False):
    """An object's row.

    Attributes:
        created, updated: RFC 3339; creation of this generation, and last change of its metadata.
        inode, mtime_ns: The file's when it was recorded; the time is negative if it was too recent to be
            trusted, and -1 if it is unknown.
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
        """Return whether the file is unchanged since it was recorded."""
        return self.mtime_ns == status.st_mtime_ns and self._is_like(status)

    def may_be_of(self, status: os.stat_result) -> bool:
        """Return the same, but accept equal size and inode if the recorded time is not trusted."""
        return self.is_of(status) or (self.mtime_ns < 0 and self._is_like(status))

    def is_older_than(self, status: os.stat_result) -> bool:
        """Return whether the file was written again since it was recorded."""
        return self.mtime_ns != _UNKNOWN and abs(self.mtime_ns) != status.st_mtime_ns

    def _is_like(self, status: os.stat_result) -> bool:
        return (self.size, self.inode) == (status.st_size, status.st_ino)

    def has(self, checksums: Checksums) -> bool:
        """Return whether the content has these checksums."""
        return Checksums(self.size, self.md5, self.crc32c) == checksums


def find(connection: sqlite3.Connection, bucket: str, name: str) -> StoredObject | None:
    """Return an object's row."""
    row = connection.execute("SELECT * FROM objects WHERE bucket = ? AND name = ?", (bucket, name)).fetchone()
    if row is None:
        return None
    return StoredObject(**{column: row[column] for column in _COLUMNS} | {"body": json.loads(row["body"])})


def find_all(connection: sqlite3.Connection, bucket: str, names: Collection[str]) -> dict[str, StoredObject]:
    """Return the rows of several objects by name."""
    cursor = connection.cursor()
    cursor.row_factory = None  # rows with column names cost more
    # The statement contains only column names and a condition from this module.
    chosen = "bucket = ? AND name IN (SELECT value FROM json_each(?))"
    statement = f"SELECT {', '.join(_COLUMNS)} FROM objects WHERE {chosen}"  # noqa: S608
    rows = cursor.execute(statement, (bucket, json.dumps([*names])))
    return {row[1]: StoredObject(*(*row[:-1], msgspec.json.decode(row[-1]))) for row in rows}


def note(connection: sqlite3.Connection, noted: StoredObject) -> StoredObject:
    """Write an object's row, and return the object."""
    values = [json.dumps(noted.body) if name == "body" else getattr(noted, name) for name in _COLUMNS]
    marks = ", ".join("?" * len(_COLUMNS))
    # The statement contains only column names from this module.
    connection.execute(f"REPLACE INTO objects ({', '.join(_COLUMNS)}) VALUES ({marks})", values)  # noqa: S608
    return noted


def announce(
    connection: sqlite3.Connection, bucket: str, name: str, inode: int, md5: str, body: JsonObject
) -> None:
    """Store metadata of content before its file takes its place, so that a crash in between can't lose it."""
    values = (bucket, name, inode, md5, json.dumps(body))
    connection.execute("REPLACE INTO announced VALUES (?, ?, ?, ?, ?)", values)


def withdraw(connection: sqlite3.Connection, bucket: str, name: str, inode: int) -> None:
    """Delete the announcement of this file."""
    key = (bucket, name, inode)
    connection.execute("DELETE FROM announced WHERE bucket = ? AND name = ? AND inode = ?", key)


def note_new(
    connection: sqlite3.Connection,
    bucket: str,
    name: str,
    status: os.stat_result,
    checksums: Checksums,
    body: JsonObject,
    now: datetime,
    created: datetime | None = None,
) -> StoredObject:
    """Write the row of a new generation, delete its announcement, and return the object.

    Args:
        now: The service's time.
        created: When the file was written, if that was before; None for now.
    """
    withdraw(connection, bucket, name, status.st_ino)
    at = rfc3339(now)
    noted = StoredObject(
        bucket=bucket,
        name=name,
        generation=next_generation(connection, now),
        metageneration=1,
        created=rfc3339(created) if created else at,
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
    """Write the row of a file that changed since it was recorded.

    Another program wrote it, or this service crashed before it could record it. Equal content keeps its
    generation; if it was written again, that is a change of its metadata, as that of a file's time is.

    It was created when its file was written, however much later it is found here: who compares that time with
    the end of a run would take the run's own files for somebody else's. That is the time of the inode's last
    change, as a copy may have the modification time of its original.
    """
    # A younger file may change again within one tick of the clock, without a new modification time.
    settled = time.time_ns() - status.st_mtime_ns > TICK_NS
    recorded = find(connection, bucket, name)
    if recorded is None or recorded.inode != status.st_ino or not recorded.has(checksums):
        body = _announced(connection, bucket, name, status.st_ino, checksums.md5)
        written = min(now, datetime.fromtimestamp(status.st_ctime, UTC))
        recorded = note_new(connection, bucket, name, status, checksums, body, now, written)
    elif recorded.is_older_than(status):
        more = recorded.metageneration + 1
        recorded = replace(recorded, metageneration=more, updated=rfc3339(now))
    mtime_ns = status.st_mtime_ns if settled else -status.st_mtime_ns
    return note(connection, replace(recorded, mtime_ns=mtime_ns))


def forget(connection: sqlite3.Connection, bucket: str, name: str) -> None:
    """Delete an object's row."""
    connection.execute("DELETE FROM objects WHERE bucket = ? AND name = ?", (bucket, name))


def forget_all(connection: sqlite3.Connection, bucket: str) -> None:
    """Delete the rows of a bucket's objects."""
    connection.execute("DELETE FROM objects WHERE bucket = ?", (bucket,))
    connection.execute("DELETE FROM announced WHERE bucket = ?", (bucket,))


def next_generation(connection: sqlite3.Connection, now: datetime) -> int:
    """Return the next generation: microseconds, as in Cloud Storage."""
    row = connection.execute("SELECT value FROM settings WHERE name = 'generation'").fetchone()
    last = 0 if row is None else int(row["value"])
    # Greater than the last even if the clock was set back: generations identify content.
    following = max(last + 1, int(now.timestamp() * 1_000_000))
    connection.execute("REPLACE INTO settings (name, value) VALUES ('generation', ?)", (str(following),))
    return following


_COLUMNS = tuple(StoredObject.__struct_fields__)


def _announced(connection: sqlite3.Connection, bucket: str, name: str, inode: int, md5: str) -> JsonObject:
    row = connection.execute(
        "SELECT body FROM announced WHERE bucket = ? AND name = ? AND inode = ? AND md5 = ?",
        (bucket, name, inode, md5),
    ).fetchone()
    body: JsonObject = {} if row is None else json.loads(row["body"])
    return body
