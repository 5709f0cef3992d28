"""Names of staged archives, which contain their hashes and differ from users' own URIs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from reconciler.model.manifest import JsonObject

if TYPE_CHECKING:
    from reconciler.packaging.sdist import Sdist

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
