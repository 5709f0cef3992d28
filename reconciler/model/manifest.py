"""Manifests: each valid YAML document describes a desired job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct, msgpack

from reconciler.model.expectation import Expectation

AIPLATFORM_V1 = "aiplatform.googleapis.com/v1"
ML_V1 = "ml.googleapis.com/v1"
TRAINING_PIPELINE = "TrainingPipeline"
"""The kind of Vertex AI whose job trains by another job, and then registers a model."""
DEFAULT_METRIC = "training/hptuning/metric"
"""The metric of a study of AI Platform that names none."""

JsonObject = Mapping[str, Any]
Packed = JsonObject | bytes
"""A JSON object, or its MessagePack until it is decoded."""
OnLiveRun = Literal["keep", "cancel"]


def unpacked(packed: Packed) -> JsonObject:
    """Return the object itself, decoded."""
    if isinstance(packed, bytes):
        content: JsonObject = msgpack.decode(packed)
        return content
    return packed


Identities = tuple[tuple[str, str], ...]
"""A job's identities, newest first: each as 64 hex digits and in its form as a label."""


class Reconcile(Struct, frozen=True, array_like=True):
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


class Publish(Struct, frozen=True, array_like=True):
    """Where the result of a manifest's job is published: the manifest's `publish`, with its defaults.

    Attributes:
        to: The address (gs://…), without a slash at its end; "" until the environment's default is known.
        source: The published folder, below the run's own, `from` in the manifest; in tuning, below that of
            the best trial.
    """

    to: str = ""
    source: str = "model"


class NotedImage(Struct, frozen=True, array_like=True):
    """Image in a manifest that may deserve a warning.

    Attributes:
        keys: The path to it in its document.
        uri: As written.
    """

    keys: tuple[str | int, ...]
    uri: str


class Manifest(Struct, frozen=True, array_like=True):
    """One valid YAML document; without its file in a `CheckedFile`, which processes exchange.

    Attributes:
        api_version: `aiplatform.googleapis.com/v1` or `ml.googleapis.com/v1`.
        kind: `CustomJob`, `HyperparameterTuningJob`, or `Job`.
        name: The base name as written.
        packed: The `spec`, decoded on demand: most jobs are in sync, and their spec is never read.
        labels: The user's labels of the job in the cloud.
        package: Absolute path of the folder of staged code; None without code, and without its file.
        reconcile: The policy for the job.
        path: The file, relative to the repository's root; "" without its file.
        line: First line of the document in the file, from 1.
        written: `package.path` as written in the file; "" without a package.
        digest: The BLAKE2b of the file's bytes as they were read, 32 bytes; b"" if unknown.
        module: The module of the package that the containers run; "" without containers that run staged code.
        requirements: The path, in the package, of the lock file that they install; "" for none.
        python_modules: The Python modules that the package must contain.
        identities: Of all versions of the hash; () with a package, whose code is a part of them, and if they
            are to be computed.
        images: Images that deserve a warning now, or from some day on.
        expect: What a good result is; no part of the identities.
        publish: Where the result is published; None for nowhere; no part of the identities.
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
    python_modules: tuple[str, ...] = ()
    identities: Identities = ()
    images: tuple[NotedImage, ...] = ()
    expect: tuple[Expectation, ...] = ()
    publish: Publish | None = None

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
