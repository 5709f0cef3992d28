"""Judged metrics of runs in Cloud Storage, next to the claims, under the same permissions:

    reconciler/claims/SOURCE/_verdicts/PROJECT/LOCATION/KEY
    reconciler/claims/SOURCE/_instances/INSTANCE/_verdicts/PROJECT/LOCATION/KEY

Each is an object that is written only by its generation, and whose metrics are only added to.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
from msgspec import Struct

from reconciler.base.errors import ServiceError
from reconciler.google.client import Connection
from reconciler.google.object_store import ObjectStore, StoredObject
from reconciler.google.responses import ApiError, NotFoundAtServiceError
from reconciler.model.expectation import RunMetrics
from reconciler.model.ports import NO_METRICS, VersionedMetrics

_FORMAT = 1
_LARGEST = 256 * 1024  # bytes of an object


class _Stored(Struct, frozen=True, rename="camel"):
    """Stored form; a field of a later version is ignored."""

    format_version: int
    key: str
    run: RunMetrics


class ObjectMetrics:
    """Implementation of the port `MetricsStore` by a bucket.

    Args:
        bucket: Without `gs://`.
        folder: The folder of the environment's claims, with a slash at its end.
    """

    def __init__(self, connection: Connection, bucket: str, folder: str, project: str, location: str) -> None:
        # 404: without a bucket there is nothing to replace.
        self._store = ObjectStore(connection, bucket, "name,generation,size", not_done=(404, 412))
        self._bucket = bucket
        self._prefix = f"{folder}_verdicts/{project}/{location}/"

    def read(self, key: str) -> VersionedMetrics:
        """Return the judged metrics of a content's run; raise ServiceError for an unreadable object."""
        with self._explained():
            try:
                stored, _ = self._store.find(self._prefix + key)
                return self._read(stored, key) if stored else NO_METRICS
            except NotFoundAtServiceError:
                # No bucket yet, or changed since it was listed: a write by generation 0 then does nothing.
                return NO_METRICS

    def write(self, key: str, run: RunMetrics, generation: int) -> bool:
        """Replace the object of this generation, 0 for none; return False if the store has another one."""
        content = msgspec.json.encode(_Stored(_FORMAT, key, run))
        if len(content) > _LARGEST:  # it could never be read again
            raise ServiceError(
                f"the judged metrics take more than {_LARGEST // 1024} KiB",
                hint="give the metrics files shorter names, or expect fewer metrics",
            )
        with self._explained():
            return self._store.write(self._prefix + key, content, generation) is not None

    def _read(self, stored: StoredObject, key: str) -> VersionedMetrics:
        try:
            if not stored.size.isdecimal() or int(stored.size) > _LARGEST:
                raise ValueError("it is too large")
            found = msgspec.json.decode(self._store.read(stored), type=_Stored)
            if (found.format_version, found.key) != (_FORMAT, key):
                raise ValueError("it is of another version, or of another content")
            return VersionedMetrics(found.run, int(stored.generation))
        except (ValueError, RecursionError) as error:
            raise ServiceError(
                f"gs://{self._bucket}/{stored.name} can't be read: {error}",
                hint="update the reconciler if a newer version wrote it, else delete it: it is made again",
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
                f"the judged metrics can't be read or written in gs://{self._bucket}: {error.message}",
                hint=error.hint or "apply again",
            ) from None
