"""Buckets and objects: files below the home's `gcs` folder with rows in the database.

Trainers write files there directly: a file that differs from its row (size, time, inode) has changed.
The files of folder objects ("a/") are in the home's `folders`, which trainers don't see. Such an object
lives as long as its folder: a trainer that removes the folder removes the object, as with Cloud Storage FUSE.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from heapq import merge
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO

from msgspec.structs import replace

from reconciler.training_service.http.message import ApiError, invalid, not_found
from reconciler.training_service.state.database import Database, rfc3339
from reconciler.training_service.state.records import JsonObject
from reconciler.training_service.storage import files, index
from reconciler.training_service.storage.files import ListEntry, Wanted
from reconciler.training_service.storage.index import StoredObject
from reconciler.training_service.storage.upload_sessions import Checksums, Staged, Uploads, checksums_of

_TRIES = 100


@dataclass(frozen=True, slots=True)
class Bucket:
    """A bucket; `body` is its creator's metadata, `policy` the IAM policy that was set."""

    name: str
    generation: int
    created: str
    body: JsonObject
    metageneration: int = 1
    policy: JsonObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Content:
    """An object with its content, a file open at its beginning."""

    object: StoredObject
    file: BinaryIO

    def staged(self, path: Path, uploads: Uploads) -> Staged:
        """Return a durable copy of the whole content as staged.

        Raises:
            ApiError: UNAVAILABLE: The content changed while it was copied.
        """
        stored = self.object
        if stored.is_of(os.fstat(self.file.fileno())):  # a large copy isn't read again for its checksums
            return Staged(path, Checksums(stored.size, stored.md5, stored.crc32c))
        staged = uploads.whole(path)
        if staged.checksums.crc32c != stored.crc32c:
            raise _always_changing(stored.bucket, stored.name)
        return staged


@dataclass(frozen=True, slots=True)
class Conditions:
    """Preconditions of a request, None if not given; generation 0 means that the object is missing."""

    generation: int | None = None
    generation_not: int | None = None
    metageneration: int | None = None
    metageneration_not: int | None = None

    def check(self, current: StoredObject | None, *, reading: bool = False) -> None:
        """Check the preconditions against the object, None if it is missing.

        Raises:
            ApiError: 412, or 304 for a read of unchanged content.
        """
        generation = current.generation if current else 0
        if self.generation not in (None, generation):
            raise not_met(412)
        if self.metageneration is not None and (
            current is None or self.metageneration != current.metageneration
        ):
            raise not_met(412)
        if self.generation_not is not None and generation in (0, self.generation_not):
            raise not_met(304 if reading else 412)
        if self.metageneration_not is not None and (
            current is None or self.metageneration_not == current.metageneration
        ):
            raise not_met(304 if reading else 412)


ANY = Conditions()


class Objects:
    """Buckets of one service home."""

    def __init__(self, home: Path, database: Database, clock: Callable[[], datetime]) -> None:
        self._root = home / "gcs"
        self._folders = home / "folders"
        self._database = database
        self._clock = clock

    def buckets(self) -> list[str]:
        """Return the names of all buckets, sorted."""
        if not self._root.is_dir():
            return []
        names = (path.name for path in self._root.iterdir() if path.is_dir() and not path.is_symlink())
        return sorted(filter(files.is_bucket_name, names))

    def bucket(self, name: str) -> Bucket:
        """Return a bucket, also for a folder that another program created.

        Raises:
            ApiError: NOT_FOUND.
        """
        with self._folder(name) as folder:
            made = datetime.fromtimestamp(os.fstat(folder).st_mtime, UTC)
        with self._database.reading() as connection:
            row = connection.execute("SELECT * FROM buckets WHERE name = ?", (name,)).fetchone()
        if row is None:
            return Bucket(name, 1, rfc3339(made), {})
        body = json.loads(row["body"])
        metageneration, policy = body.pop("metageneration", 1), body.pop("policy", {})
        return Bucket(name, row["generation"], row["created"], body, metageneration, policy)

    def create_bucket(self, name: str, body: JsonObject) -> Bucket:
        """Create a bucket.

        Raises:
            ApiError: INVALID_ARGUMENT: The name is invalid; ALREADY_EXISTS.
        """
        if not files.is_bucket_name(name):
            raise invalid(f"Invalid bucket name: {name!r}")
        self._root.mkdir(exist_ok=True)
        with self._database.writing() as connection:
            try:
                (self._root / name).mkdir()
            except FileExistsError:
                raise ApiError("ALREADY_EXISTS", f"The bucket {name} already exists.") from None
            with files.opened(self._root) as root:
                os.fsync(root)  # the folder must survive a power failure, as its row does
            now = self._clock()
            bucket = Bucket(name, index.next_generation(connection, now), rfc3339(now), body)
            _note_bucket(connection, bucket)
        return bucket

    def set_policy(self, name: str, policy_of: Callable[[Bucket], JsonObject]) -> Bucket:
        """Set a bucket's IAM policy to `policy_of`'s result, and return the bucket.

        Raises:
            ApiError: NOT_FOUND.
        """
        with self._database.writing() as connection:
            bucket = self.bucket(name)
            metageneration = bucket.metageneration + 1
            changed = dataclasses.replace(bucket, metageneration=metageneration, policy=policy_of(bucket))
            _note_bucket(connection, changed)
        return changed

    def delete_bucket(self, name: str, check: Callable[[Bucket], None]) -> None:
        """Delete an empty bucket that `check` accepts.

        Raises:
            ApiError: NOT_FOUND; ABORTED: The bucket is not empty.
        """
        with self._database.writing() as connection:
            check(self.bucket(name))
            with files.opened(self._root) as root:
                if any(self.walk(name, Wanted())) or not files.emptied(name, root):
                    text = "The bucket you tried to delete is not empty."
                    raise ApiError("ABORTED", text, reason="conflict")
                os.fsync(root)
            shutil.rmtree(self._folders / name, ignore_errors=True)
            connection.execute("DELETE FROM buckets WHERE name = ?", (name,))
            index.forget_all(connection, name)

    def get(self, bucket: str, name: str) -> StoredObject:
        """Return an object without its content.

        Raises:
            ApiError: NOT_FOUND.
        """
        with self._tree(bucket, name) as tree:
            status = files.status(tree, files.parts_of(name))
        recorded = self._row(bucket, name)
        if status is not None and recorded is not None and recorded.is_of(status):
            return recorded
        content = Objects.open(self, bucket, name)  # a file of the home, also in a class that has others
        content.file.close()
        return content.object

    def open(self, bucket: str, name: str) -> Content:
        """Return an object with its content.

        Raises:
            ApiError: NOT_FOUND.
        """
        for _ in range(_TRIES):
            with self._tree(bucket, name) as tree:
                descriptor = files.open_file(tree, files.parts_of(name))
            if descriptor is None:
                raise _no_object(bucket, name)
            file = os.fdopen(descriptor, "rb")
            stored = self._recorded(bucket, name, file)
            if stored is not None:
                return Content(stored, file)
            file.close()
        raise _always_changing(bucket, name)

    def put(
        self, bucket: str, name: str, staged: Staged, body: JsonObject, conditions: Conditions = ANY
    ) -> StoredObject:
        """Make the staged file the object's content, and `body` its metadata: both, or neither.

        Raises:
            ApiError: NOT_FOUND: No such bucket; INVALID_ARGUMENT: The name; FAILED_PRECONDITION;
                PERMISSION_DENIED: The object is under a hold.
        """
        status = staged.path.stat()
        # The announcement is a transaction of its own, so the conditions are checked again in the next one.
        with self._transaction(bucket, name, conditions) as (connection, _, current):
            check_holds(current)
            index.announce(connection, bucket, name, status.st_ino, staged.checksums.md5, body)
        with (
            self._withdraw_if_refused(bucket, name, status.st_ino),
            self._transaction(bucket, name, conditions) as (connection, tree, current),
            self._folder(bucket) as folder,
        ):
            check_holds(current)
            parts = files.parts_of(name)
            if name.endswith("/"):
                files.make_folder(folder, parts)
            # The file first: after a crash in between, the next access creates the row from the announcement.
            files.place(tree, parts, staged.path, self._keeps(bucket))
            return index.note_new(connection, bucket, name, status, staged.checksums, body, self._clock())

    def patch(
        self, bucket: str, name: str, change: Callable[[JsonObject], JsonObject], conditions: Conditions
    ) -> StoredObject:
        """Replace the client's metadata of an object by `change`'s result.

        Raises:
            ApiError: NOT_FOUND, FAILED_PRECONDITION.
        """
        for _ in range(_TRIES):
            before = self.get(bucket, name)
            with self._transaction(bucket, name, conditions) as (connection, _, current):
                # Otherwise the object changed since `get`: read it again.
                if current is not None and current.generation == before.generation:
                    after = replace(
                        current,
                        metageneration=current.metageneration + 1,
                        updated=rfc3339(self._clock()),
                        body=change(current.body),
                    )
                    return index.note(connection, after)
        raise _always_changing(bucket, name)

    def delete(self, bucket: str, name: str, generation: int | None, conditions: Conditions) -> None:
        """Delete an object, only if it has the given generation (if any).

        Raises:
            ApiError: NOT_FOUND, FAILED_PRECONDITION; PERMISSION_DENIED: The object is under a hold.
        """
        parts = files.parts_of(name)
        with (
            self._transaction(bucket, name, conditions) as (connection, tree, current),
            self._folder(bucket) as folder,
        ):
            if current is None or generation not in (None, current.generation):
                raise _no_object(bucket, name)
            check_holds(current)
            files.remove(tree, parts)
            index.forget(connection, bucket, name)
            if name.endswith("/"):
                files.remove_folder(folder, parts)
            files.free_names(folder, parts, self._keeps(bucket))

    def walk(self, bucket: str, wanted: Wanted) -> Iterator[ListEntry]:
        """Yield the bucket's selected names, in order.

        Raises:
            ApiError: NOT_FOUND: No such bucket.
        """
        with self._folder(bucket) as folder:
            yield from merge(
                self._folder_objects(bucket, wanted), files.walk(folder, wanted), key=attrgetter("name")
            )

    def described(self, bucket: str, entries: Iterable[ListEntry]) -> Iterator[StoredObject]:
        """Yield the objects of found files, except files deleted since."""
        listed = [entry for entry in entries if entry.status is not None]
        with self._database.reading() as connection:
            noted = index.find_all(connection, bucket, [entry.name for entry in listed])
        for entry in listed:
            stored = noted.get(entry.name)
            if stored is not None and entry.status is not None and stored.is_of(entry.status):
                yield stored
                continue
            with suppress(ApiError):
                yield self.get(bucket, entry.name)

    @contextmanager
    def _folder(self, bucket: str) -> Iterator[int]:
        if not files.is_bucket_name(bucket):
            raise _no_bucket()
        with ExitStack() as stack:
            try:
                folder = stack.enter_context(files.opened(self._root / bucket))
            except OSError as error:
                if files.is_missing(error):
                    raise _no_bucket() from error
                raise
            yield folder

    @contextmanager
    def _tree(self, bucket: str, name: str, *, make: bool = False) -> Iterator[int]:
        """Open the tree that contains the object's file; `make` creates a missing tree of folder objects."""
        parts = files.parts_of(name)
        with ExitStack() as stack:
            folder = stack.enter_context(self._folder(bucket))
            if not parts[-1]:
                exists = files.has_folder(folder, parts)
                if make:
                    (self._folders / bucket).mkdir(parents=True, exist_ok=True)
                try:
                    folder = stack.enter_context(files.opened(self._folders / bucket))
                except FileNotFoundError:
                    raise _no_object(bucket, name) from None
                if not (exists or make):
                    raise _no_object(bucket, name)
                if not exists:
                    with suppress(FileNotFoundError):
                        files.remove(folder, parts)
            yield folder

    def _folder_objects(self, bucket: str, wanted: Wanted) -> Iterator[ListEntry]:
        """Yield the selected folder objects, none of them folded."""
        wanted = Wanted(wanted.prefix, wanted.start, folders=True)
        with (
            suppress(FileNotFoundError),
            files.opened(self._folders / bucket) as tree,
            self._folder(bucket) as folder,
        ):
            for entry in files.walk(tree, wanted):
                if files.has_folder(folder, files.parts_of(entry.name)):
                    yield entry

    def _keeps(self, bucket: str) -> files.Keeps:
        return lambda path: any(self._folder_objects(bucket, Wanted(path)))

    def _row(self, bucket: str, name: str) -> StoredObject | None:
        with self._database.reading() as connection:
            return index.find(connection, bucket, name)

    @contextmanager
    def _withdraw_if_refused(self, bucket: str, name: str, inode: int) -> Iterator[None]:
        try:
            yield
        except ApiError:  # always raised before the file takes its place
            with self._database.writing() as connection:
                index.withdraw(connection, bucket, name, inode)
            raise

    @contextmanager
    def _transaction(
        self, bucket: str, name: str, conditions: Conditions
    ) -> Iterator[tuple[sqlite3.Connection, int, StoredObject | None]]:
        """Run the block in a transaction in which the object, None if missing, meets the conditions."""
        parts = files.parts_of(name)
        with suppress(ApiError):
            self.get(bucket, name)  # gives a file that another program wrote a generation
        with self._tree(bucket, name, make=True) as tree, self._database.writing() as connection:
            status = files.status(tree, parts)
            current = index.find(connection, bucket, name) if status else None
            if status and (current is None or not current.may_be_of(status)):
                current = _changed_just_now(bucket, name, status)
            conditions.check(current)
            yield connection, tree, current

    def _recorded(self, bucket: str, name: str, file: BinaryIO) -> StoredObject | None:
        """Return the object of an open file; None if the file was truncated or replaced while it was read."""
        status = os.fstat(file.fileno())
        recorded = self._row(bucket, name)
        if recorded is not None and recorded.is_of(status):
            return recorded
        checksums = checksums_of(file, status.st_size)
        file.seek(0)
        if checksums is None:
            return None
        with self._tree(bucket, name) as tree, self._database.writing() as connection:
            now = files.status(tree, files.parts_of(name))
            if now is None or now.st_ino != status.st_ino:
                return None
            recorded = index.find(connection, bucket, name)
            if recorded is not None and recorded.is_of(status):
                return recorded
            return index.note_outside(connection, bucket, name, status, checksums, self._clock())


_HOLDS = {"temporaryHold": "Temporary", "eventBasedHold": "Event-Based"}


def check_holds(current: StoredObject | None) -> None:
    """Raise PERMISSION_DENIED if the object is under a hold."""
    for field_name, kind in _HOLDS.items():
        if current is not None and current.body.get(field_name):
            message = f"Object '{current.bucket}/{current.name}' is under active {kind} hold and cannot be"
            raise ApiError(
                "PERMISSION_DENIED", f"{message} deleted, overwritten or archived until hold is removed."
            )


def not_met(http: int) -> ApiError:
    """Return the error for a request whose preconditions don't hold."""
    message = "At least one of the pre-conditions you specified did not hold."
    return ApiError("FAILED_PRECONDITION", message, http=http, reason="conditionNotMet")


def _note_bucket(connection: sqlite3.Connection, bucket: Bucket) -> None:
    more = {"metageneration": bucket.metageneration, "policy": bucket.policy} if bucket.policy else {}
    row = (bucket.name, bucket.generation, bucket.created, json.dumps(bucket.body | more))
    connection.execute("REPLACE INTO buckets VALUES (?, ?, ?, ?)", row)


def _changed_just_now(bucket: str, name: str, status: os.stat_result) -> StoredObject:
    # Another program is writing the file: it exists, but with no generation that a client can know.
    return StoredObject(bucket, name, -1, -1, "", "", status.st_size, "", "", status.st_ino, -1, {})


def _always_changing(bucket: str, name: str) -> ApiError:
    return ApiError("UNAVAILABLE", f"{bucket}/{name} changes whenever it is looked at.")


def _no_bucket() -> ApiError:
    return not_found("The specified bucket does not exist.")


def _no_object(bucket: str, name: str) -> ApiError:
    return not_found(f"No such object: {bucket}/{name}")
