"""What the repository says: one manifest is one job that is wanted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

AIPLATFORM_V1 = "aiplatform.googleapis.com/v1"
ML_V1 = "ml.googleapis.com/v1"

JsonObject = Mapping[str, Any]
OnLiveRun = Literal["keep", "cancel"]


@dataclass(frozen=True, slots=True)
class Reconcile:
    """How the reconciler treats the job: the manifest's `reconcile`, with its defaults filled in."""

    suspend: bool = False
    attempts: int = 1
    rerun: str = ""
    on_change: OnLiveRun = "keep"
    on_delete: OnLiveRun = "keep"


@dataclass(frozen=True, slots=True)
class Manifest:
    """One valid YAML document.

    Attributes:
        api_version: `aiplatform.googleapis.com/v1` or `ml.googleapis.com/v1`.
        kind: `CustomJob`, `HyperparameterTuningJob`, or `Job`.
        name: The base name as written.
        spec: The API's own JSON body, as written, with no default filled in.
        labels: The user's labels of the job in the cloud.
        package: The folder whose code is staged, absolute; None where the job brings none.
        reconcile: How the reconciler treats the job.
        path: The file, relative to the repository's root.
        line: Where the document starts in the file, from 1.
    """

    api_version: str
    kind: str
    name: str
    spec: JsonObject
    labels: Mapping[str, str] = field(default_factory=dict)
    package: Path | None = None
    reconcile: Reconcile = Reconcile()
    path: str = ""
    line: int = 1

    @property
    def base_name(self) -> str:
        """The base name in the form that job names begin with: '-' counts as '_'."""
        return self.name.replace("-", "_")
