"""What the repository says: one manifest is one job that is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Raw, Struct, msgpack

AIPLATFORM_V1 = "aiplatform.googleapis.com/v1"
ML_V1 = "ml.googleapis.com/v1"

JsonObject = Mapping[str, Any]
Packed = JsonObject | Raw | Callable[[], JsonObject]
"""A JSON object, the MessagePack of one that nobody has looked into yet, or what gives it."""
OnLiveRun = Literal["keep", "cancel"]


def unpacked(packed: Packed) -> JsonObject:
    """The object itself."""
    if isinstance(packed, Raw):
        found: JsonObject = msgpack.decode(packed)
        return found
    return packed() if callable(packed) else packed


class Reconcile(Struct, frozen=True):
    """How the reconciler treats the job: the manifest's `reconcile`, with its defaults filled in."""

    suspend: bool = False
    attempts: int = 1
    rerun: str = ""
    on_change: OnLiveRun = "keep"
    on_delete: OnLiveRun = "keep"


class Manifest(Struct, frozen=True):
    """One valid YAML document.

    Attributes:
        api_version: `aiplatform.googleapis.com/v1` or `ml.googleapis.com/v1`.
        kind: `CustomJob`, `HyperparameterTuningJob`, or `Job`.
        name: The base name as written.
        packed: What `spec` gives: of 10,000 jobs that are as wanted, nobody looks at one.
        labels: The user's labels of the job in the cloud.
        package: The folder whose code is staged, absolute; None where the job brings none.
        reconcile: How the reconciler treats the job.
        path: The file, relative to the repository's root.
        line: Where the document starts in the file, from 1.
        written: `package.path` as the file has it; "" without a package.
        digest: The BLAKE2b of the file's bytes as they were read, 32 bytes; b"" if unknown.
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

    @property
    def spec(self) -> JsonObject:
        """The API's own JSON body in canonical form, with no default filled in."""
        return unpacked(self.packed)

    @property
    def base_name(self) -> str:
        """The base name in the form that job names begin with: '-' counts as '_'."""
        return self.name.replace("-", "_")
