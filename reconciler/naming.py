"""What a job is called: a hash of all that makes it this job and no other.

The names are promises. A job that was submitted under one is found again only under the same, so neither a
new version of the tool nor another machine may compute another name for the same content: `HASH_VERSION` is
part of what is hashed, and vectors in the tests hold the results of each version for ever.
"""

from __future__ import annotations

import base64
import hashlib

from reconciler.canonical import canonical_json
from reconciler.manifest import JsonObject, Manifest

HASH_VERSION = 1
"""Raised when what is hashed changes; the names of older versions must stay computable then."""

_DOMAIN = b"reconciler job\n"
_DIGITS_IN_NAME = 16


def identity(manifest: Manifest, spec: JsonObject, code: str) -> str:
    """The identity of the job that a manifest asks for: a SHA-256, as 64 hex digits.

    It is over the canonical JSON of one object with fixed keys, behind a line that no other hash of ours
    begins with, so that two different contents are never the same bytes.

    Args:
        manifest: Gives apiVersion, kind, base name and `rerun`; where it stands and its labels don't count,
            nor does the rest of `reconcile`.
        spec: The manifest's spec as `canonical_spec` returns it, with no default of an environment filled in.
        code: The digest of the package's source tree; "" without a package.
    """
    content = {
        "apiVersion": manifest.api_version,
        "baseName": manifest.base_name,
        "code": code,
        "kind": manifest.kind,
        "rerun": manifest.reconcile.rerun,
        "spec": spec,
        "version": HASH_VERSION,
    }
    return hashlib.sha256(_DOMAIN + canonical_json(content)).hexdigest()


def job_name(base_name: str, identity: str, attempt: int = 1) -> str:
    """`<base>_<16 digits>`, and `_2`, `_3`, … for later attempts: a valid `jobId` and `displayName`.

    Args:
        base_name: At most 100 characters; '-' is written as '_'.
        identity: As `identity` returns it.
        attempt: From 1.
    """
    name = f"{base_name.replace('-', '_')}_{identity[:_DIGITS_IN_NAME]}"
    return name if attempt == 1 else f"{name}_{attempt}"


def label_of(identity: str) -> str:
    """The whole identity as a label's value: lower-case base32, 52 characters.

    Hex would be 64, one more than a label may have.
    """
    return base64.b32encode(bytes.fromhex(identity)).decode("ascii").rstrip("=").lower()
