"""Cloud Storage's resources as its JSON API writes them, and the client's own part of their metadata."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from urllib.parse import quote

from reconciler.training_service.http.message import ApiError
from reconciler.training_service.state.records import Json, JsonObject
from reconciler.training_service.storage.incoming import Checksums
from reconciler.training_service.storage.index import StoredObject
from reconciler.training_service.storage.objects import Bucket

DEFAULT_TYPE = "application/octet-stream"

_OBJECT_FIELDS = (
    "cacheControl",
    "contentDisposition",
    "contentEncoding",
    "contentLanguage",
    "contentType",
    "customTime",
    "eventBasedHold",
    "metadata",
    "storageClass",
    "temporaryHold",
)
_MAX_CUSTOM = 8 * 1024  # https://cloud.google.com/storage/quotas#objects
BUCKET_FIELDS = ("iamConfiguration", "labels", "location", "storageClass")
"""What a bucket is told and gives back, with no effect here."""


def object_body(given: Mapping[str, Json]) -> JsonObject:
    """What is kept of a client's Object.

    Raises:
        ApiError: INVALID_ARGUMENT: too much of it.
    """
    return _checked({name: given[name] for name in _OBJECT_FIELDS if name in given})


def patched(body: JsonObject, given: Mapping[str, Json]) -> JsonObject:
    """The metadata after a patch: null removes, and the entries of `metadata` are patched one by one.

    Raises:
        ApiError: INVALID_ARGUMENT: too much of it.
    """
    merged = {**body, **given}
    if isinstance(given.get("metadata"), dict):
        entries = {**body.get("metadata", {}), **given["metadata"]}
        merged["metadata"] = {key: value for key, value in entries.items() if value is not None}
    return _checked({name: merged[name] for name in _OBJECT_FIELDS if merged.get(name) is not None})


def object_resource(stored: StoredObject, base: str) -> JsonObject:
    """The object as the API gives it; `base` is what its links begin with."""
    # quote returns a part without special characters at once, but encodes a text with "/" byte by byte.
    path = f"b/{stored.bucket}/o/{'%2F'.join(map(quote, stored.name.split('/')))}"
    media = f"{base}/download/storage/v1/{path}?generation={stored.generation}&alt=media"
    return {
        "kind": "storage#object",
        "id": f"{stored.bucket}/{stored.name}/{stored.generation}",
        "selfLink": f"{base}/storage/v1/{path}",
        "mediaLink": media,
        "name": stored.name,
        "bucket": stored.bucket,
        "generation": str(stored.generation),
        "metageneration": str(stored.metageneration),
        "contentType": DEFAULT_TYPE,
        "storageClass": "STANDARD",
        **stored.body,
        "size": str(stored.size),
        "md5Hash": stored.md5,
        "crc32c": stored.crc32c,
        "etag": etag_of(stored),
        "timeCreated": stored.created,
        "updated": stored.updated,
        "timeStorageClassUpdated": stored.created,
        "timeFinalized": stored.created,
    }


def bucket_resource(bucket: Bucket, base: str) -> JsonObject:
    """The bucket as the API gives it."""
    return {
        "kind": "storage#bucket",
        "id": bucket.name,
        "selfLink": f"{base}/storage/v1/b/{bucket.name}",
        "name": bucket.name,
        "generation": str(bucket.generation),
        "metageneration": "1",
        "location": "LOCAL",
        "storageClass": "STANDARD",
        **bucket.body,
        "etag": _base64(f"{bucket.generation}/1"),
        "timeCreated": bucket.created,
        "updated": bucket.created,
    }


def etag_of(stored: StoredObject) -> str:
    """Changes with the generation and the metageneration."""
    return _base64(f"{stored.generation}/{stored.metageneration}")


def check_sums(given: Mapping[str, Json], found: Checksums) -> None:
    """Refuse content that isn't what its sender says it is; `given` may have md5Hash and crc32c.

    Raises:
        ApiError: INVALID_ARGUMENT.
    """
    for name, told, calculated in (
        ("CRC32C", given.get("crc32c"), found.crc32c),
        ("MD5 hash", given.get("md5Hash"), found.md5),
    ):
        if told and told != calculated:
            text = f'Provided {name} "{told}" doesn\'t match calculated {name} "{calculated}".'
            raise ApiError("INVALID_ARGUMENT", text)


def sums_of_header(header: str) -> JsonObject:
    """The checksums in an X-Goog-Hash header: "crc32c=…,md5=…"."""
    pairs = [part.strip().partition("=") for part in header.split(",")]
    names = {"crc32c": "crc32c", "md5": "md5Hash"}
    return {names[name]: value for name, _, value in pairs if name in names}


def _checked(body: JsonObject) -> JsonObject:
    size = sum(len(part.encode()) for entry in body.get("metadata", {}).items() for part in entry)
    if size > _MAX_CUSTOM:
        text = f"The custom metadata has {size} bytes, keys and values; at most {_MAX_CUSTOM} are allowed."
        raise ApiError("INVALID_ARGUMENT", text)
    return body


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
