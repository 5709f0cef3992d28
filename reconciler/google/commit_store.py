"""What is owed to commits, in Cloud Storage, beside the claims and under the same permissions.

    reconciler/claims/SOURCE/_commits/PROJECT/LOCATION/ENVIRONMENT/SHA

No project's id has a "_", so that no claim is ever called like this.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Annotated, Any

from msgspec import Meta, Struct

from reconciler.base.errors import ServiceError
from reconciler.base.http import HttpResponse
from reconciler.google.claim_store import PREFIX, answered_at
from reconciler.google.client import (
    ApiError,
    Connection,
    NotFoundAtServiceError,
    delete,
    execute,
    object_of,
    typed_record,
)
from reconciler.google.listing import Pages, listing
from reconciler.model.commit_record import CommitRecord, record_json, record_of
from reconciler.model.ports import VersionedRecord

_CHANGED = (404, 412)
_PAGE_SIZE = 1000
_LIST = "storage.objects.list"


class _Object(Struct, frozen=True, gc=False):
    name: Annotated[str, Meta(min_length=1)]
    generation: str = ""


_PAGES = Pages("items", _Object, ("name", "name"), partial(typed_record, _Object))


class ObjectCommits:
    """The port `CommitStore` over one bucket, for one repository in one environment.

    Args:
        connection: How Cloud Storage is reached.
        bucket: Without `gs://`.
        source: The repository's id.
        project, location, environment: The target.
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
        self._connection = connection
        self._bucket = bucket
        self._known: dict[str, VersionedRecord] = {}
        self._prefix = f"{PREFIX}{source}/_commits/{project}/{location}/{environment}/"

    def all(self) -> Mapping[str, VersionedRecord]:
        """The records by commit; one that can't be read is an error, as something is owed to its commit."""
        with self._told():
            try:
                found = [self._read(item) for item in self._listed()]
            except NotFoundAtServiceError:
                return {}
        return {versioned.record.sha: versioned for versioned in found if versioned}

    def write(self, record: CommitRecord, generation: int) -> bool:
        """Replace the record of this generation, 0 for none; False where that isn't what is there."""
        from googleapiclient.http import MediaInMemoryUpload

        said = json.dumps(record_json(record)).encode()
        request = self._objects.insert(
            bucket=self._bucket,
            ifGenerationMatch=str(generation),
            fields="generation",
            body={"name": self._prefix + record.sha, "cacheControl": "no-store"},
            media_body=MediaInMemoryUpload(said, mimetype="application/json"),
        )
        with self._told():
            return _is_done(lambda: execute(request))

    def remove(self, sha: str, generation: int) -> None:
        """Remove the record of this generation; nothing where that isn't what is there."""
        request = self._objects.delete(
            bucket=self._bucket, object=self._prefix + sha, ifGenerationMatch=str(generation)
        )
        with self._told():
            _is_done(lambda: delete(request))

    def now(self) -> datetime:
        """The store's own time, to the second."""
        with self._told():
            response = self._connection.get(
                _LIST, bucket=self._bucket, prefix=self._prefix, maxResults=1, fields="kind,items(name)"
            )
            object_of(response.body)
            return answered_at(response)

    @property
    def _objects(self) -> Any:
        return self._connection.client("storage.objects")

    def _listed(self) -> Sequence[_Object]:
        def ask(token: str | None) -> HttpResponse:
            return self._connection.get(
                _LIST,
                bucket=self._bucket,
                prefix=self._prefix,
                maxResults=_PAGE_SIZE,
                fields="items(name,generation),nextPageToken",
                pageToken=token,
            )

        return listing(ask, _PAGES, lambda item: item)

    def _read(self, item: _Object) -> VersionedRecord | None:
        """A record; None where it was changed since it was listed: who changed it tells its commit."""
        name, generation = item.name, item.generation
        known = self._known.get(name)
        if known and str(known.generation) == generation:
            return known
        try:
            media = self._connection.get(
                "storage.objects.get",
                alt="media",
                bucket=self._bucket,
                object=name,
                generation=generation or None,
            )
        except NotFoundAtServiceError:
            return None
        try:
            record = record_of(json.loads(media.body))
            if self._prefix + record.sha != name:
                raise ValueError(f"it is the record of {record.sha}")
            self._known[name] = VersionedRecord(record, int(generation))
            return self._known[name]
        except (ValueError, RecursionError) as error:
            raise ServiceError(
                f"gs://{self._bucket}/{name} can't be read: {error}",
                hint="update the reconciler if a newer version wrote it, else delete it: only statuses of "
                "that commit are lost",
            ) from None

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Says of every failure what it was about."""
        try:
            yield
        except NotFoundAtServiceError:
            raise
        except ApiError as error:
            raise ServiceError(
                f"what is owed to commits can't be read or written in gs://{self._bucket}: {error.message}",
                hint=error.hint or "the next pass posts what is missing",
            ) from None


def _is_done(send: Callable[[], object]) -> bool:
    """Whether a change took place; not, where what is there isn't what it was made for."""
    try:
        send()
    except ApiError as error:
        if error.status in _CHANGED:
            return False
        raise
    return True
