"""Commit records in Cloud Storage, next to the claims, under the same permissions:

    reconciler/claims/SOURCE/_commits/PROJECT/LOCATION/ENVIRONMENT/SHA

Each is an object that is written only by its generation.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from reconciler.base.errors import ServiceError
from reconciler.google.claim_store import PREFIX
from reconciler.google.client import Connection
from reconciler.google.object_store import ObjectStore, StoredObject, answered_at
from reconciler.google.responses import ApiError, NotFoundAtServiceError
from reconciler.model.commit_record import CommitRecord, record_json, record_of
from reconciler.model.ports import VersionedRecord


class ObjectCommits:
    """Implementation of the port `CommitStore` by a bucket, for a repository in an environment.

    Args:
        bucket: Without `gs://`.
        source: The repository's id.
    """

    def __init__(
        self,
        connection: Connection,
        bucket: str,
        source: str,
        project: str,
        location: str,
        environment: str,
    ) -> None:
        # 404: without a bucket there are no records to replace, and statuses are posted without records too.
        self._store = ObjectStore(connection, bucket, "name,generation", not_done=(404, 412))
        self._bucket = bucket
        self._cached_records: dict[str, VersionedRecord] = {}
        self._prefix = f"{PREFIX}{source}/_commits/{project}/{location}/{environment}/"

    def all(self) -> Mapping[str, VersionedRecord]:
        """Return the records by commit; raise ServiceError for an unreadable record."""
        with self._explained():
            try:
                records = [self._read(item) for item in self._store.list_objects(self._prefix)]
            except NotFoundAtServiceError:
                return {}
        return {versioned.record.sha: versioned for versioned in records if versioned}

    def write(self, record: CommitRecord, generation: int) -> bool:
        """Replace the record of this generation, 0 for none; return False if the store has another one."""
        content = json.dumps(record_json(record)).encode()
        with self._explained():
            return self._store.write(self._prefix + record.sha, content, generation) is not None

    def remove(self, sha: str, generation: int) -> None:
        """Remove the record of this generation; do nothing if the store has another generation."""
        with self._explained():
            self._store.delete(self._prefix + sha, generation)

    def now(self) -> datetime:
        """Return the store's time in whole seconds."""
        with self._explained():
            return answered_at(self._store.find(self._prefix)[1])

    def _read(self, item: StoredObject) -> VersionedRecord | None:
        name, generation = item.name, item.generation
        cached_record = self._cached_records.get(name)
        if cached_record and str(cached_record.generation) == generation:
            return cached_record
        try:
            content = self._store.read(item)
        except NotFoundAtServiceError:
            # Changed since it was listed: the process that changed it posts the statuses.
            return None
        try:
            record = record_of(json.loads(content))
            if self._prefix + record.sha != name:
                raise ValueError(f"it is the record of {record.sha}")
            self._cached_records[name] = VersionedRecord(record, int(generation))
            return self._cached_records[name]
        except (ValueError, RecursionError) as error:
            raise ServiceError(
                f"gs://{self._bucket}/{name} can't be read: {error}",
                hint="update the reconciler if a newer version wrote it, else delete it: only statuses of "
                "that commit are lost",
            ) from None

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add the bucket and a remedy to every failure."""
        try:
            yield
        except NotFoundAtServiceError:
            raise
        except ApiError as error:
            raise ServiceError(
                f"the statuses still to be posted can't be read or written in gs://{self._bucket}: "
                f"{error.message}",
                hint=error.hint or "the next pass posts what is missing",
            ) from None
