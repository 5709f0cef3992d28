"""Buckets and objects: the files below the home's `gcs` folder, and what is noted of them.

A file that isn't as it was noted (size, time, inode) has changed without us: trainers write there directly.
"""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from reconciler.training_service.http.message import ApiError, invalid, not_found
from reconciler.training_service.state.database import Database
from reconciler.training_service.state.records import JsonObject
from reconciler.training_service.state.store import rfc3339
from reconciler.training_service.storage import files as bucket_files
from reconciler.training_service.storage import files as bucket_walk
from reconciler.training_service.storage import index
from reconciler.training_service.storage.files import Found, Wanted
from reconciler.training_service.storage.incoming import Staged, checksums_of
from reconciler.training_service.storage.index import ANY, Conditions, StoredObject

_TRIES = 100


@dataclass(frozen=True, slots=True)
class Bucket:
    """One bucket; `body` is what its creator said of it."""

    name: str
    generation: int
    created: str
    body: JsonObject


@dataclass(frozen=True, slots=True)
class Content:
    """An object with its content, a file open at its beginning."""

    object: StoredObject
    file: BinaryIO


class Objects:
    """The buckets of one home."""

    def __init__(self, home: Path, database: Database, clock: Callable[[], datetime]) -> None:
        self._root = home / "gcs"
        self._database = database
        self._clock = clock

    def buckets(self) -> list[str]:
        """The names of all buckets, sorted."""
        if not self._root.is_dir():
            return []
        found = (path.name for path in self._root.iterdir() if path.is_dir() and not path.is_symlink())
        return sorted(filter(bucket_files.is_bucket_name, found))

    def bucket(self, name: str) -> Bucket:
        """One bucket; a folder that somebody made is one.

        Raises:
            ApiError: NOT_FOUND.
        """
        with self._folder(name) as folder:
            made = datetime.fromtimestamp(os.fstat(folder).st_mtime, UTC)
        with self._database.reading() as connection:
            row = connection.execute("SELECT * FROM buckets WHERE name = ?", (name,)).fetchone()
        if row is None:
            return Bucket(name, 1, rfc3339(made), {})
        return Bucket(name, row["generation"], row["created"], json.loads(row["body"]))

    def create_bucket(self, name: str, body: JsonObject) -> Bucket:
        """Make a bucket.

        Raises:
            ApiError: INVALID_ARGUMENT: no bucket's name; ALREADY_EXISTS.
        """
        if not bucket_files.is_bucket_name(name):
            raise invalid(f"Invalid bucket name: {name!r}")
        self._root.mkdir(exist_ok=True)
        with self._database.writing() as connection:
            try:
                (self._root / name).mkdir()
            except FileExistsError:
                raise ApiError("ALREADY_EXISTS", f"The bucket {name} is there already.") from None
            with bucket_files.opened(self._root) as root:
                os.fsync(root)
            now = self._clock()
            bucket = Bucket(name, index.next_generation(connection, now), rfc3339(now), body)
            row = (name, bucket.generation, bucket.created, json.dumps(body))
            connection.execute("REPLACE INTO buckets VALUES (?, ?, ?, ?)", row)
        return bucket

    def get(self, bucket: str, name: str) -> StoredObject:
        """An object without its content.

        Raises:
            ApiError: NOT_FOUND.
        """
        with self._folder(bucket) as folder:
            status = bucket_files.status(folder, bucket_files.parts_of(name))
        known = self._known(bucket, name)
        if status is not None and known is not None and known.is_of(status):
            return known
        content = self.open(bucket, name)
        content.file.close()
        return content.object

    def open(self, bucket: str, name: str) -> Content:
        """An object with its content.

        Raises:
            ApiError: NOT_FOUND.
        """
        for _ in range(_TRIES):
            with self._folder(bucket) as folder:
                descriptor = bucket_files.open_file(folder, bucket_files.parts_of(name))
            if descriptor is None:
                raise _no_object(bucket, name)
            file = os.fdopen(descriptor, "rb")
            found = self._noted(bucket, name, file)
            if found is not None:
                return Content(found, file)
            file.close()
        raise _always_changing(bucket, name)

    def put(
        self, bucket: str, name: str, staged: Staged, body: JsonObject, conditions: Conditions = ANY
    ) -> StoredObject:
        """Make the staged file the object's content, and `body` what is said of it: both, or neither.

        Raises:
            ApiError: NOT_FOUND: no such bucket; INVALID_ARGUMENT: the name; FAILED_PRECONDITION.
        """
        status = staged.path.stat()
        # What meets the conditions now may no longer meet them when it is known to be announced.
        with self._changing(bucket, name, conditions) as (connection, _, _):
            index.announce(connection, bucket, name, status.st_ino, staged.checksums.md5, body)
        with (
            self._withdrawn_if_refused(bucket, name, status.st_ino),
            self._changing(bucket, name, conditions) as (connection, folder, _),
        ):
            # The file first: if all ends between the two, the next look finds the row by what was announced.
            bucket_files.place(folder, bucket_files.parts_of(name), staged.path)
            return index.note_new(connection, bucket, name, status, staged.checksums, body, self._clock())

    def patch(
        self, bucket: str, name: str, change: Callable[[JsonObject], JsonObject], conditions: Conditions
    ) -> StoredObject:
        """Replace the client's metadata of an object by what `change` makes of it.

        Raises:
            ApiError: NOT_FOUND, FAILED_PRECONDITION.
        """
        for _ in range(_TRIES):
            found = self.get(bucket, name)
            with self._changing(bucket, name, conditions) as (connection, _, current):
                # Another generation, or changed without us a moment ago: look again.
                if current is not None and current.generation == found.generation:
                    after = replace(
                        current,
                        metageneration=current.metageneration + 1,
                        updated=rfc3339(self._clock()),
                        body=change(current.body),
                    )
                    return index.note(connection, after)
        raise _always_changing(bucket, name)

    def delete(self, bucket: str, name: str, generation: int | None, conditions: Conditions) -> None:
        """Remove an object, or that generation of it.

        Raises:
            ApiError: NOT_FOUND, FAILED_PRECONDITION.
        """
        with self._changing(bucket, name, conditions) as (connection, folder, current):
            if current is None or generation not in (None, current.generation):
                raise _no_object(bucket, name)
            bucket_files.remove(folder, bucket_files.parts_of(name))
            index.forget(connection, bucket, name)

    def walk(self, bucket: str, wanted: Wanted) -> Iterator[Found]:
        """Yield the bucket's wanted names, in order.

        Raises:
            ApiError: NOT_FOUND: no such bucket.
        """
        with self._folder(bucket) as folder:
            yield from bucket_walk.walk(folder, wanted)

    def described(self, bucket: str, found: Iterable[Found]) -> Iterator[StoredObject]:
        """The objects of found files, but for those that are gone meanwhile."""
        files = [each for each in found if each.status is not None]
        with self._database.reading() as connection:
            noted = index.find_all(connection, bucket, [each.name for each in files])
        for each in files:
            known = noted.get(each.name)
            if known is not None and each.status is not None and known.is_of(each.status):
                yield known
                continue
            with suppress(ApiError):
                yield self.get(bucket, each.name)

    @contextmanager
    def _folder(self, bucket: str) -> Iterator[int]:
        if not bucket_files.is_bucket_name(bucket):
            raise _no_bucket()
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(bucket_files.opened(self._root / bucket))
            except OSError as error:
                if bucket_files.is_missing(error):
                    raise _no_bucket() from error
                raise
            yield folder

    def _known(self, bucket: str, name: str) -> StoredObject | None:
        with self._database.reading() as connection:
            return index.find(connection, bucket, name)

    @contextmanager
    def _withdrawn_if_refused(self, bucket: str, name: str, inode: int) -> Iterator[None]:
        try:
            yield
        except ApiError:  # which is before the file takes its place
            with self._database.writing() as connection:
                index.withdraw(connection, bucket, name, inode)
            raise

    @contextmanager
    def _changing(
        self, bucket: str, name: str, conditions: Conditions
    ) -> Iterator[tuple[sqlite3.Connection, int, StoredObject | None]]:
        """A transaction in which the object, None where there is none, meets the conditions."""
        parts = bucket_files.parts_of(name)
        with suppress(ApiError):
            self.get(bucket, name)  # notes what was written without us, so that it has a generation
        with self._folder(bucket) as folder, self._database.writing() as connection:
            status = bucket_files.status(folder, parts)
            current = index.find(connection, bucket, name) if status else None
            if status and (current is None or not current.may_be_of(status)):
                current = _changed_just_now(bucket, name, status)
            conditions.check(current)
            yield connection, folder, current

    def _noted(self, bucket: str, name: str, file: BinaryIO) -> StoredObject | None:
        """The object of an open file; None where the file was cut while it was read, or is no more."""
        status = os.fstat(file.fileno())
        known = self._known(bucket, name)
        if known is not None and known.is_of(status):
            return known
        checksums = checksums_of(file, status.st_size)
        file.seek(0)
        if checksums is None:
            return None
        with self._folder(bucket) as folder, self._database.writing() as connection:
            now = bucket_files.status(folder, bucket_files.parts_of(name))
            if now is None or now.st_ino != status.st_ino:
                return None
            known = index.find(connection, bucket, name)
            if known is not None and known.is_of(status):
                return known
            return index.note_outside(connection, bucket, name, status, checksums, self._clock())


def _changed_just_now(bucket: str, name: str, status: os.stat_result) -> StoredObject:
    """A file that somebody is writing without us: there, and of no generation that a client can know."""
    return StoredObject(bucket, name, -1, -1, "", "", status.st_size, "", "", status.st_ino, -1, {})


def _always_changing(bucket: str, name: str) -> ApiError:
    return ApiError("UNAVAILABLE", f"{bucket}/{name} changes whenever it is looked at.")


def _no_bucket() -> ApiError:
    return not_found("The specified bucket does not exist.")


def _no_object(bucket: str, name: str) -> ApiError:
    return not_found(f"No such object: {bucket}/{name}")
