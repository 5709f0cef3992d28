"""Small JSON objects in Cloud Storage, written and deleted only by their generation."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct, field

from reconciler.base.errors import ServiceError
from reconciler.base.http import HttpResponse
from reconciler.google.client import Connection, delete, execute, object_of
from reconciler.google.listing import RecordPages, listing
from reconciler.google.responses import ApiError, NotFoundAtServiceError, typed_record
from reconciler.model.claim import checked
from reconciler.model.fields import text_of
from reconciler.model.manifest import JsonObject

if TYPE_CHECKING:
    pass

_PAGE_SIZE = 1000
_LIST = "storage.objects.list"
_PRECONDITION_FAILED = 412


class StoredObject(Struct, frozen=True, gc=False):
    """Object as it is listed; fields that the store doesn't request are empty."""

    name: Annotated[str, Meta(min_length=1)]
    generation: str = ""
    metadata: Mapping[str, str] = {}
    size: str = ""
    updated: str = ""
    time_created: str = field(default="", name="timeCreated")
    crc32c: str = ""


class ChangedObjectError(ServiceError):
    """Error for an object that isn't as it was listed."""


_PAGES = RecordPages("items", StoredObject)


class ObjectStore:
    """Objects of a bucket. All methods raise ApiError or the transport's errors.

    Args:
        bucket: Without `gs://`.
        fields: The fields of `StoredObject` that listings request.
        fresh: True if no cache on the way may respond to listings.
        not_done: The statuses by which a write or a deletion had no effect, instead of an error.
    """

    def __init__(
        self,
        connection: Connection,
        bucket: str,
        fields: str,
        *,
        fresh: bool = False,
        not_done: Collection[int] = (_PRECONDITION_FAILED,),
    ) -> None:
        self._connection = connection
        self._bucket = bucket
        self._fields = fields
        self._fresh = fresh
        self._not_done = not_done

    def list_objects(self, prefix: str, most: int | None = None) -> list[StoredObject]:
        """Return all objects with names that begin with `prefix`; raise ServiceError instead of a part.

        With `most`, the listing ends as soon as it has more objects than that, and has more then.
        """
        get = partial(
            self._connection.get,
            _LIST,
            fresh=self._fresh,
            bucket=self._bucket,
            prefix=prefix,
            maxResults=_PAGE_SIZE,
            fields=f"items({self._fields}),nextPageToken",
        )
        return listing(get, _PAGES, most)

    def first_objects(
        self, prefix: str, most: int, delimiter: str | None = None
    ) -> tuple[list[StoredObject], bool]:
        """Return the first objects with names that begin with `prefix`, and True if these are all.

        Args:
            most: The largest number, at most a page's.
            delimiter: Leave out names with this text behind the prefix; None for no name.
        """
        page = self._connection.get(
            _LIST,
            fresh=self._fresh,
            bucket=self._bucket,
            prefix=prefix,
            delimiter=delimiter,
            maxResults=most,
            fields=f"items({self._fields}),nextPageToken",
        )
        objects, token = _PAGES.read(page.body)
        return list(objects.values())[:most], not token

    def find(self, name: str) -> tuple[StoredObject | None, HttpResponse]:
        """Return the present object of this name, None if it is missing, and the response.

        Raises:
            ServiceError: The response is no listing.
        """
        # A listing, because a read distinguishes a missing object from a forbidden object only for callers
        # who may list the whole bucket. A permission for one folder is enough here.
        response = self._connection.get(
            _LIST,
            fresh=self._fresh,
            bucket=self._bucket,
            prefix=name,
            maxResults=1,
            fields=f"kind,items({self._fields})",
        )
        # Of all names that begin with `name`, `name` itself comes first.
        first = _first(object_of(response.body))
        is_found = first is not None and first.get("name") == name
        return typed_record(StoredObject, first) if first and is_found else None, response

    def read(self, stored_object: StoredObject) -> bytes:
        """Return the content of a listed object at its generation."""
        media = self._connection.get(
            "storage.objects.get",
            alt="media",
            bucket=self._bucket,
            object=stored_object.name,
            generation=stored_object.generation or None,
        )
        return media.body

    def read_part(self, stored_object: StoredObject, first: int, last: int) -> bytes:
        """Return the bytes from `first` to `last` of a listed object, at its generation if it has one.

        Raises:
            ChangedObjectError: The object has another size by now, or is stored in another encoding.
        """
        media = self._connection.get(
            "storage.objects.get",
            part=f"bytes={first}-{last}",
            alt="media",
            bucket=self._bucket,
            object=stored_object.name,
            generation=stored_object.generation or None,
        )
        # Cloud Storage unpacks objects with a content encoding, and then has no parts.
        expected = f"bytes {first}-{last}/{stored_object.size}"
        if media.headers.get("content-range") != expected or len(media.body) != last - first + 1:
            raise ChangedObjectError("it has another size by now, or a content encoding")
        return media.body

    def write(
        self, name: str, content: bytes, generation: int, metadata: Mapping[str, str] | None = None
    ) -> str | None:
        """Replace the object of this generation, 0 for none, in a single request.

        Returns:
            The new generation; None if the store had another generation.
        """
        from googleapiclient.http import MediaInMemoryUpload

        # no-store: a public cache must never return an older generation.
        body: dict[str, Any] = {"name": name, "cacheControl": "no-store"}
        if metadata is not None:
            body["metadata"] = metadata
        request = self._connection.client("storage.objects").insert(
            bucket=self._bucket,
            ifGenerationMatch=str(generation),
            fields="generation",
            body=body,
            media_body=MediaInMemoryUpload(content, mimetype="application/json"),
        )
        try:
            return text_of(execute(request), "generation")
        except ApiError as error:
            if error.status not in self._not_done:
                raise
            return None

    def copy(self, bucket: str, source: StoredObject, name: str) -> bool:
        """Copy a listed object of any bucket to a new name; return False if either has changed.

        Its bytes don't pass through this process: Cloud Storage copies them, in several calls where the
        object is large and the buckets differ in location or class.

        Args:
            bucket: The bucket of `source`, without `gs://`.
            source: The object; another generation of it isn't copied.
            name: A name that this bucket doesn't have.
        """
        objects = self._connection.client("storage.objects")
        token: str | None = None
        while True:
            request = objects.rewrite(
                sourceBucket=bucket,
                sourceObject=source.name,
                destinationBucket=self._bucket,
                destinationObject=name,
                sourceGeneration=source.generation,
                ifSourceGenerationMatch=source.generation,
                ifGenerationMatch="0",
                rewriteToken=token,
                fields="done,rewriteToken",
                body={},
            )
            try:
                answer = execute(request)
            except ApiError as error:
                if error.status not in (*self._not_done, 404):
                    raise
                return False
            token = text_of(answer, "rewriteToken")
            if answer.get("done") is True:
                return True
            if not token:
                raise ServiceError(
                    "Cloud Storage's answer to a copy says neither that it is done nor how it goes on",
                    hint="check any proxy between, and apply again",
                )

    def delete(self, name: str, generation: int) -> None:
        """Delete the object of this generation; do nothing if the store has another generation."""
        objects = self._connection.client("storage.objects")
        try:
            delete(objects.delete(bucket=self._bucket, object=name, ifGenerationMatch=str(generation)))
        except ApiError as error:
            if error.status not in self._not_done:
                raise


def answered_at(response: HttpResponse) -> datetime:
    """Return the time of the response by Cloud Storage's clock, in UTC."""
    # This import takes longer than a pass that needs no time.
    from email.utils import parsedate_to_datetime

    try:
        time = checked(parsedate_to_datetime(response.headers.get("date", "")))
    except (ValueError, OverflowError):
        time = None
    if time is None:
        raise ServiceError(
            "Cloud Storage's answer doesn't say when it was given",
            hint="check any proxy between: the Date header of answers must come through",
        )
    return time


def _first(answer: JsonObject) -> JsonObject | None:
    """Return the first object of a listing; None for an empty listing."""
    items = answer.get("items", [])
    is_usable = isinstance(items, list) and all(isinstance(item, dict) for item in items)
    # Cloud Storage leaves `items` out of an empty listing: only `kind` tells one from any other JSON object.
    if answer.get("kind") != "storage#objects" or not is_usable:
        raise ServiceError(
            "Cloud Storage's answer is not a listing of objects",
            hint='check "endpoints" in reconciler.yaml, and any proxy between',
        )
    return items[0] if items else None


def ensure_bucket(connection: Connection, bucket: str) -> None:
    """Create a bucket of the embedded service if it is missing."""
    # Most often the bucket exists, and this read needs no import of Google's client.
    try:
        connection.get("storage.buckets.get", bucket=bucket, fields="name")
        return
    except NotFoundAtServiceError:
        buckets = connection.client("storage.buckets")
    try:
        execute(buckets.insert(project=connection.endpoint.project, body={"name": bucket}))
    except ApiError as error:
        if error.status != 409:
            raise
