"""What a job is called: a hash of all that makes it this job and no other.

The names are promises. A job that was submitted under one is found again only under the same, so neither a
new version of the tool nor another machine may compute another name for the same content. What is hashed has
a version, which is part of it. A job is looked up under every version before it may be submitted under the
newest, and vectors in the tests hold the results of each for ever.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import lru_cache

from reconciler.canonical import canonical_json
from reconciler.manifest import JsonObject, Manifest

_DOMAIN = b"reconciler job\n"
_DIGITS_IN_NAME = 16


def identity(manifest: Manifest, spec: JsonObject, code: str) -> str:
    """The identity of the job that a manifest asks for: a SHA-256, as 64 hex digits, of the newest version.

    Args:
        manifest: Gives apiVersion, kind, base name and `rerun`; where it stands and its labels don't count,
            nor does the rest of `reconcile`.
        spec: The manifest's spec as `canonical_spec` returns it, with no default of an environment filled in.
        code: The digest of the package's source tree; "" without a package.
    """
    return identities(manifest, spec, code)[0]


def identities(manifest: Manifest, spec: JsonObject, code: str) -> tuple[str, ...]:
    """The identities that all versions give the same job, newest first: it may be there under any of them."""
    return tuple(VERSIONS[version](manifest, spec, code) for version in sorted(VERSIONS, reverse=True))


def job_name(base_name: str, identity: str, attempt: int = 1) -> str:
    """`<base>_<16 digits>`, and `_2`, `_3`, … for later attempts: a valid `jobId` and `displayName`.

    Args:
        base_name: At most 100 characters; '-' is written as '_'.
        identity: As `identity` returns it.
        attempt: From 1.
    """
    name = f"{base_name.replace('-', '_')}_{identity[:_DIGITS_IN_NAME]}"
    return name if attempt == 1 else f"{name}_{attempt}"


@lru_cache(maxsize=100_000)
def label_of(identity: str) -> str:
    """The whole identity as a label's value: lower-case base32, 52 characters.

    Hex would be 64, one more than a label may have.
    """
    return base64.b32encode(bytes.fromhex(identity)).decode("ascii").rstrip("=").lower()


def _version_1(manifest: Manifest, spec: JsonObject, code: str) -> str:
    """Over the canonical JSON of one object with fixed keys, behind a line that no other hash begins with.

    So two different contents are never the same bytes.
    """
    content = {
        "apiVersion": manifest.api_version,
        "baseName": manifest.base_name,
        "code": code,
        "kind": manifest.kind,
        "rerun": manifest.reconcile.rerun,
        "spec": spec,
        "version": 1,
    }
    return hashlib.sha256(_DOMAIN + canonical_json(content)).hexdigest()


VERSIONS: dict[int, Callable[[Manifest, JsonObject, str], str]] = {1: _version_1}
"""What is hashed, by version: one is added when it changes, and none is ever changed or taken away."""

HASH_VERSION = max(VERSIONS)
"""The version that names new jobs."""
