"""Objects in Cloud Storage: small JSON objects, written and deleted only by their generation, and packages.

Packages are staged under names that contain their hashes and differ from users' own URIs.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from reconciler.base.errors import ServiceError
from reconciler.base.http import HttpResponse
from reconciler.google.client import (
    ApiError,
    Connection,
    NotFoundAtServiceError,
    delete,
    execute,
    object_of,
    text_of,
    typed_record,
)
from reconciler.google.listing import Pages, listing
from reconciler.model.claim import checked
from reconciler.model.manifest import JsonObject

if TYPE_CHECKING:
    from reconciler.packaging.sdist import Sdist

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


_PAGES = Pages("items", StoredObject)


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

    def list_objects(self, prefix: str) -> list[StoredObject]:
        """Return all objects with names that begin with `prefix`; raise ServiceError instead of a part."""
        get = partial(
            self._connection.get,
            _LIST,
            fresh=self._fresh,
            bucket=self._bucket,
            prefix=prefix,
            maxResults=_PAGE_SIZE,
            fields=f"items({self._fields}),nextPageToken",
        )
        return listing(get, _PAGES)

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
        found, token = _PAGES.read(page.body)
        return list(found.values())[:most], not token

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

    def read(self, found: StoredObject) -> bytes:
        """Return the content of a listed object at its generation."""
        media = self._connection.get(
            "storage.objects.get",
            alt="media",
            bucket=self._bucket,
            object=found.name,
            generation=found.generation or None,
        )
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

    def delete(self, name: str, generation: int) -> None:
        """Delete the object of this generation; do nothing if the store has another generation."""
        objects = self._connection.client("storage.objects")
        try:
            delete(objects.delete(bucket=self._bucket, object=name, ifGenerationMatch=str(generation)))
        except ApiError as error:
            if error.status not in self._not_done:
                raise


class Staging:
    """Staging bucket of an environment."""

    def __init__(self, connection: Connection, bucket: str) -> None:
        self._connection = connection
        self._bucket = bucket

    def put(self, archive: Sdist) -> str:
        """Upload the archive if it is missing; return its `gs://` URI.

        An existing object is used only if it has the archive's size and MD5. Any other object raises
        ServiceError, because it would run unreviewed code.
        """
        found = self._find(archive) or self._insert(archive)
        expected = base64.b64encode(bytes.fromhex(archive.md5)).decode("ascii")
        if "size" not in found:
            raise ServiceError(
                f"Cloud Storage's answer doesn't say what {staged_uri(self._bucket, archive)} holds",
                hint='check "endpoints" in reconciler.yaml, and any proxy between',
            )
        if (found["size"], found.get("md5Hash")) != (str(len(archive.data)), expected):
            raise ServiceError(
                f"{staged_uri(self._bucket, archive)} holds something other than the package of that name",
                hint="find out who may write to the staging bucket, then delete the object",
            )
        return staged_uri(self._bucket, archive)

    def holds(self, uri: str, archive: Sdist) -> bool:
        """Return True if the object of a `gs://` URI has exactly the archive's bytes, by size and MD5."""
        bucket, _, name = uri.removeprefix("gs://").partition("/")
        if not (uri.startswith("gs://") and bucket and name):
            return False
        try:
            answer = self._connection.get("storage.objects.get", bucket=bucket, object=name)
        except NotFoundAtServiceError:
            return False
        found = object_of(answer.body)
        expected = base64.b64encode(bytes.fromhex(archive.md5)).decode("ascii")
        return (found.get("size"), found.get("md5Hash")) == (str(len(archive.data)), expected)

    def _find(self, archive: Sdist) -> Any:
        objects = self._connection.client("storage.objects")
        try:
            return execute(objects.get(bucket=self._bucket, object=staged_name(archive)))
        except NotFoundAtServiceError:
            return None

    def _insert(self, archive: Sdist) -> Any:
        from googleapiclient.http import MediaInMemoryUpload

        request = self._connection.client("storage.objects").insert(
            bucket=self._bucket,
            name=staged_name(archive),
            ifGenerationMatch="0",
            media_body=MediaInMemoryUpload(archive.data, mimetype="application/gzip"),
        )
        try:
            return execute(request)
        except NotFoundAtServiceError as error:
            raise ServiceError(
                f"there is no bucket {self._bucket}: {error.message}",
                hint='create it, or name another under "stagingBucket" in reconciler.yaml',
            ) from None
        except ApiError as error:
            # 412: another process has just staged the same archive.
            found = self._find(archive) if error.status == 412 else None
            if found is not None:
                return found
            if error.status == 403:
                role = (
                    "the account that runs this needs the role roles/storage.objectUser on the staging bucket"
                )
                raise ServiceError(
                    f"can't write to gs://{self._bucket}: {error.message}", hint=role
                ) from None
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


_FOLDER = "reconciler/packages"
_URI = re.compile(rf"gs://[^/]+/{_FOLDER}/[0-9a-f]{{64}}/[^/]+")


def staged_name(archive: Sdist) -> str:
    """Return the object name of a staged archive, addressed by its SHA-256."""
    return f"{_FOLDER}/{archive.sha256}/{archive.file_name}"


def staged_uri(bucket: str, archive: Sdist) -> str:
    """Return the `gs://` URI of a staged archive for a job's `packageUris`."""
    return f"gs://{bucket}/{staged_name(archive)}"


def without_staged(package: JsonObject) -> JsonObject:
    """Return an object with its `packageUris` as in the manifest, without staged archives."""
    uris = package.get("packageUris")
    if not isinstance(uris, list):
        return package
    given = [uri for uri in uris if not (isinstance(uri, str) and _URI.fullmatch(uri))]
    rest = {name: value for name, value in package.items() if name != "packageUris"}
    return {**rest, "packageUris": given} if given else rest
