"""Objects, buckets and IAM policies in the API's form."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from urllib.parse import quote

from reconciler.training_service.http.message import ApiError, invalid
from reconciler.training_service.state.records import Json, JsonObject
from reconciler.training_service.storage.index import StoredObject
from reconciler.training_service.storage.objects import Bucket, not_met
from reconciler.training_service.storage.upload_sessions import Checksums

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
# Fields of a client's that would protect an object, or give it away, and that nothing is done about here.
_REFUSED_FIELDS = ("acl", "contexts", "kmsKeyName", "retention")
_MAX_CUSTOM = 8 * 1024  # https://cloud.google.com/storage/quotas#objects
_COMPONENTS = "componentCount"
BUCKET_FIELDS = ("iamConfiguration", "labels", "location", "storageClass")
"""Fields of a bucket that are stored and returned, without effect here."""


def object_body(given: Mapping[str, Json]) -> JsonObject:
    """Return the stored part of a client's Object.

    Raises:
        ApiError: INVALID_ARGUMENT: The custom metadata is too large; UNIMPLEMENTED: A field is not kept here.
    """
    _refuse_fields(given)
    return _checked({name: given[name] for name in _OBJECT_FIELDS if name in given})


def patched(body: JsonObject, given: Mapping[str, Json]) -> JsonObject:
    """Return the metadata after a patch: null removes a field; entries of `metadata` are patched singly.

    Raises:
        ApiError: As for `object_body`.
    """
    _refuse_fields(given)
    merged = {**body, **given}
    if isinstance(given.get("metadata"), dict):
        entries = {**body.get("metadata", {}), **given["metadata"]}
        merged["metadata"] = {key: value for key, value in entries.items() if value is not None}
    kept = {name: merged[name] for name in _OBJECT_FIELDS if merged.get(name) is not None}
    return _checked(kept | {name: body[name] for name in (_COMPONENTS,) if name in body})


def _refuse_fields(given: Mapping[str, Json]) -> None:
    refused = [name for name in _REFUSED_FIELDS if given.get(name)]
    if refused:
        raise ApiError("UNIMPLEMENTED", f"This service keeps no {', '.join(refused)} of an object.")


def composed(body: JsonObject, sources: Sequence[StoredObject]) -> JsonObject:
    """Return the stored part of an object that is composed of others."""
    return {**body, _COMPONENTS: sum(source.body.get(_COMPONENTS, 1) for source in sources)}


def object_resource(stored: StoredObject, base: str) -> JsonObject:
    """Return the object in the API's form; `base` begins its links."""
    # quote returns a part without special characters at once, but encodes a text with "/" byte by byte.
    path = f"b/{stored.bucket}/o/{'%2F'.join(map(quote, stored.name.split('/')))}"
    media = f"{base}/download/storage/v1/{path}?generation={stored.generation}&alt=media"
    # https://cloud.google.com/storage/docs/composite-objects: only the CRC32C of a composite object is known.
    md5 = {} if _COMPONENTS in stored.body else {"md5Hash": stored.md5}
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
        **md5,
        "crc32c": stored.crc32c,
        "etag": etag_of(stored),
        "timeCreated": stored.created,
        "updated": stored.updated,
        "timeStorageClassUpdated": stored.created,
        "timeFinalized": stored.created,
    }


def stored_of(resource: Mapping[str, Json]) -> StoredObject:
    """Return the object that Google describes in the API's form; it has no file here."""
    kept = {name: resource[name] for name in (*_OBJECT_FIELDS, _COMPONENTS) if name in resource}
    without_md5 = {} if "md5Hash" in resource else {_COMPONENTS: resource.get(_COMPONENTS, 1)}
    return StoredObject(
        bucket=resource["bucket"],
        name=resource["name"],
        generation=int(resource["generation"]),
        metageneration=int(resource["metageneration"]),
        created=resource["timeCreated"],
        updated=resource["updated"],
        size=int(resource["size"]),
        md5=resource.get("md5Hash", ""),
        crc32c=resource["crc32c"],
        inode=-1,
        mtime_ns=-1,
        body=kept | without_md5,
    )


def bucket_resource(bucket: Bucket, base: str) -> JsonObject:
    """Return the bucket in the API's form."""
    return {
        "kind": "storage#bucket",
        "id": bucket.name,
        "selfLink": f"{base}/storage/v1/b/{bucket.name}",
        "name": bucket.name,
        "generation": str(bucket.generation),
        "metageneration": str(bucket.metageneration),
        "location": "LOCAL",
        "storageClass": "STANDARD",
        **bucket.body,
        "etag": _bucket_etag(bucket),
        "timeCreated": bucket.created,
        "updated": bucket.created,
    }


def policy_resource(bucket: Bucket) -> JsonObject:
    """Return the bucket's IAM policy in the API's form; it has no effect here."""
    return {
        "kind": "storage#policy",
        "resourceId": f"projects/_/buckets/{bucket.name}",
        "version": 1,
        **bucket.policy,
        "etag": _bucket_etag(bucket),
    }


_ROLE = re.compile(r"(?:(?:projects|organizations)/[^/]+/)?roles/[\w.]+")
_MEMBER = re.compile(
    r"allUsers|allAuthenticatedUsers|(?:user|serviceAccount|group|domain|project(?:Owner|Editor|Viewer)"
    r"|deleted:(?:user|serviceAccount|group)|principal(?:Set)?):.+"
)


def given_policy(bucket: Bucket, given: Mapping[str, Json]) -> JsonObject:
    """Return the stored part of a policy that a client sets.

    Raises:
        ApiError: FAILED_PRECONDITION: The policy is based on another one than the bucket's; INVALID_ARGUMENT.
    """
    if given.get("etag", "") not in ("", _bucket_etag(bucket)):
        raise not_met(412)
    version, bindings = given.get("version", 1), given.get("bindings", [])
    if version not in (0, 1, 3):
        raise invalid(f"There is no IAM policy of version {version}.")
    for binding in bindings:
        if not _ROLE.fullmatch(binding.get("role", "")):
            raise invalid(f"The role {binding.get('role', '')!r} is not of the form roles/NAME.")
        unknown = [member for member in binding.get("members", []) if not _MEMBER.fullmatch(member)]
        if unknown or not binding.get("members"):
            text = f"The member {unknown[0]!r} has no known type." if unknown else "A binding needs members."
            raise invalid(text)
        if "condition" in binding and version != 3:
            raise invalid("A policy with conditions has the version 3.")
    return {"version": version or 1, "bindings": bindings}


def etag_of(stored: StoredObject) -> str:
    """Return the etag, which changes with the generation and the metageneration."""
    return _base64(f"{stored.generation}/{stored.metageneration}")


def check_sums(given: Mapping[str, Json], checksums: Checksums) -> None:
    """Compare content with the checksums that its sender may give: md5Hash and crc32c.

    Raises:
        ApiError: INVALID_ARGUMENT: A checksum differs.
    """
    for name, expected, calculated in (
        ("CRC32C", given.get("crc32c"), checksums.crc32c),
        ("MD5 hash", given.get("md5Hash"), checksums.md5),
    ):
        if expected and expected != calculated:
            text = f'Provided {name} "{expected}" doesn\'t match calculated {name} "{calculated}".'
            raise ApiError("INVALID_ARGUMENT", text)


def header_of_sums(stored: StoredObject) -> str:
    """Return the X-Goog-Hash header of an object's content."""
    md5 = "" if _COMPONENTS in stored.body else f",md5={stored.md5}"
    return f"crc32c={stored.crc32c}{md5}"


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


def _bucket_etag(bucket: Bucket) -> str:
    return _base64(f"{bucket.generation}/{bucket.metageneration}")


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
