"""Manifests: each valid YAML document describes a desired job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Raw, Struct, msgpack

AIPLATFORM_V1 = "aiplatform.googleapis.com/v1"
ML_V1 = "ml.googleapis.com/v1"

JsonObject = Mapping[str, Any]
Packed = JsonObject | Raw
"""A JSON object, or its MessagePack until it is decoded."""
OnLiveRun = Literal["keep", "cancel"]


def unpacked(packed: Packed) -> JsonObject:
    """Return the object itself, decoded."""
    if isinstance(packed, Raw):
        found: JsonObject = msgpack.decode(packed)
        return found
    return packed


class Reconcile(Struct, frozen=True):
    """Policy for the job: the manifest's `reconcile`, with its defaults filled in.

    Attributes:
        not_secret: The JSON pointers of values that look like secrets and are none.
    """

    suspend: bool = False
    attempts: int = 1
    rerun: str = ""
    on_change: OnLiveRun = "keep"
    on_delete: OnLiveRun = "keep"
    not_secret: tuple[str, ...] = ()


class Manifest(Struct, frozen=True):
    """One valid YAML document.

    Attributes:
        api_version: `aiplatform.googleapis.com/v1` or `ml.googleapis.com/v1`.
        kind: `CustomJob`, `HyperparameterTuningJob`, or `Job`.
        name: The base name as written.
        packed: The `spec`, decoded on demand: most jobs are in sync, and their spec is never read.
        labels: The user's labels of the job in the cloud.
        package: Absolute path of the folder of staged code; None without code.
        reconcile: The policy for the job.
        path: The file, relative to the repository's root.
        line: First line of the document in the file, from 1.
        written: `package.path` as written in the file; "" without a package.
        digest: The BLAKE2b of the file's bytes as they were read, 32 bytes; b"" if unknown.
        module: The module of the package that the containers run; "" without containers that run staged code.
        requirements: The path, in the package, of the lock file that they install; "" for none.
    """

    api_version: str
    kind: str
    name: str
    packed: Packed
    labels: Mapping[str, str] = {}
    package: Path | None = None
    reconcile: Reconcile = Reconcile()
    path: str = ""
    line: int = 1
    written: str = ""
    digest: bytes = b""
    module: str = ""
    requirements: str = ""

    @property
    def spec(self) -> JsonObject:
        """The API's JSON body in canonical form, without defaults."""
        return unpacked(self.packed)

    @property
    def base_name(self) -> str:
        """The base name in the form that job names begin with: '-' counts as '_'."""
        # A `jobId` of AI Platform may not contain "-"; one form for both services keeps the names alike.
        return self.name.replace("-", "_")


class ManifestPlace(Struct, frozen=True):
    """Manifest of a job: its file, relative to the repository's root, and line; "" and 0 if unknown.

    Attributes:
        relation: "current" if the manifest gives this run, "changed" if it gives another one, "missing" if
            the file no longer has it, "" if unknown.
    """

    path: str = ""
    line: int = 0
    relation: str = ""
