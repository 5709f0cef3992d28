"""Job names: a hash of the content that identifies a job.

A submitted job is found again only under its name, so every version of the tool and every machine must
compute the same name for the same content. The hash has a version. A job is looked up under every version
before it may be submitted under the newest; test vectors fix the results of each version for ever.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import lru_cache

from reconciler.model.canonical import canonical_json
from reconciler.model.manifest import JsonObject, Manifest

_DOMAIN = b"reconciler job\n"
_DIGITS_IN_NAME = 16


def identity(manifest: Manifest, spec: JsonObject, code: str) -> str:
    """Return the identity of a manifest's job: a SHA-256, as 64 hex digits, of the newest version.

    Args:
        manifest: Only its apiVersion, kind, base name, `rerun`, and the module and lock file of its package.
        spec: The manifest's spec from `canonical_spec`, without an environment's defaults.
        code: The digest of the package's source tree; "" without a package.
    """
    return identities(manifest, spec, code)[0]


def identities(manifest: Manifest, spec: JsonObject, code: str) -> tuple[str, ...]:
    """Return the job's identities under all versions, newest first: it may exist under any of them."""
    return tuple(VERSIONS[version](manifest, spec, code) for version in sorted(VERSIONS, reverse=True))


NAME_AT_APPLY = "name known at apply"
"""What stands for the digits of a name that depends on files of a submodule that aren't here."""


def job_name(base_name: str, identity: str, attempt: int = 1) -> str:
    """Return `<base>_<16 digits>`, with `_2`, `_3`, … for later attempts: a valid `jobId` and `displayName`.

    Args:
        base_name: At most 100 characters; '-' is written as '_'.
        identity: 64 hex digits, as the function `identity` returns them.
        attempt: From 1.
    """
    name = f"{base_name.replace('-', '_')}_{identity[:_DIGITS_IN_NAME]}"
    return name if attempt == 1 else f"{name}_{attempt}"


@lru_cache(maxsize=100_000)
def label_of(identity: str) -> str:
    """Return the whole identity as a label's value: lower-case base32, 52 characters."""
    # Not hex: its 64 characters are more than the 63 that a label may have.
    return base64.b32encode(bytes.fromhex(identity)).decode("ascii").rstrip("=").lower()


def _version_1(manifest: Manifest, spec: JsonObject, code: str) -> str:
    # A JSON object with fixed keys, so that different contents never give the same bytes.
    content = {
        "apiVersion": manifest.api_version,
        # With "-" as "_", like the name itself: two spellings are one job.
        "baseName": manifest.base_name,
        "code": code,
        "kind": manifest.kind,
        "rerun": manifest.reconcile.rerun,
        "spec": spec,
        "version": 1,
    }
    if manifest.module:
        content["package"] = {"module": manifest.module, "requirements": manifest.requirements}
    return hashlib.sha256(_DOMAIN + canonical_json(content)).hexdigest()


VERSIONS: dict[int, Callable[[Manifest, JsonObject, str], str]] = {1: _version_1}
"""Hash functions by version: add a version for a change; never change or remove a version."""

HASH_VERSION = max(VERSIONS)
"""The version that names new jobs."""
