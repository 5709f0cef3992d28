"""Cloud Storage's resources in JSON, and the client's own part of their metadata."""

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
"""Fields of a bucket that are stored and returned, without effect here."""


def object_body(given: Mapping[str, Json]) -> JsonObject:
    """Return the stored part of a client's Object.

    Raises:
        ApiError: INVALID_ARGUMENT: The custom metadata is too large.
    """
    return _checked({name: given[name] for name in _OBJECT_FIELDS if name in given})


def patched(body: JsonObject, given: Mapping[str, Json]) -> JsonObject:
    """Return the metadata after a patch: null removes a field; entries of `metadata` are patched singly.

    Raises:
        ApiError: INVALID_ARGUMENT: The custom metadata is too large.
    """
    merged = {**body, **given}
    if isinstance(given.get("metadata"), dict):
        entries = {**body.get("metadata", {}), **given["metadata"]}
        merged["metadata"] = {key: value for key, value in entries.items() if value is not None}
    return _checked({name: merged[name] for name in _OBJECT_FIELDS if merged.get(name) is not None})


def object_resource(stored: StoredObject, base: str) -> JsonObject:
    """Return the object in the API's form; `base` begins its links."""
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
    """Return the bucket in the API's form."""
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
    """Return the etag, which changes with the generation and the metageneration."""
    return _base64(f"{stored.generation}/{stored.metageneration}")


def check_sums(given: Mapping[str, Json], found: Checksums) -> None:
    """Compare content with the checksums that its sender may give: md5Hash and crc32c.

    Raises:
        ApiError: INVALID_ARGUMENT: A checksum differs.
    """
    for name, expected, calculated in (
        ("CRC32C", given.get("crc32c"), found.crc32c),
        ("MD5 hash", given.get("md5Hash"), found.md5),
    ):
        if expected and expected != calculated:
            text = f'Provided {name} "{expected}" doesn\'t match calculated {name} "{calculated}".'
            raise ApiError("INVALID_ARGUMENT", text)


def sums_of_header(header: str) -> JsonObject:
    """Return the checksums of an X-Goog-Hash header: "crc32c=…,md5=…"."""
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
