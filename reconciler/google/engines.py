"""The protocol `Engine`, the registry of engines by apiVersion, and the port `JobApi` by engines.

Other packages add engines by entry points in the group `reconciler.engines`, named for the apiVersion.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from reconciler.base.errors import ServiceError, UsageError
from reconciler.base.http import NotSentError
from reconciler.base.sanitize import redacted
from reconciler.google.client import ApiError, Connection, unknown
from reconciler.google.incremental import IncrementalRuns
from reconciler.manifests import schemas
from reconciler.model.job import SOURCE, ActualJob, Trials
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, JsonObject
from reconciler.model.ports import Answer, Created, Credential, NotSent, Unknown, refusal

GROUP = schemas.ENGINES

# Named here too, because reading all distributions' entry points takes longer than the rest of a small plan.
_OWN = {
    AIPLATFORM_V1: ("reconciler.google.vertex_ai", "AiPlatformEngine"),
    ML_V1: ("reconciler.google.ai_platform", "MlEngine"),
}


def api_versions() -> list[str]:
    """Return the apiVersions of all installed engines, sorted."""
    if not any(_may_contain_engines(Path(folder or ".")) for folder in sys.path):
        return sorted(_OWN)
    from importlib.metadata import entry_points

    return sorted({*_OWN, *(found.name for found in entry_points(group=GROUP))})


def _may_contain_engines(folder: Path) -> bool:
    """Return True if a distribution in the folder, other than ours, may name an engine."""
    # `importlib.metadata` takes a tenth of a small plan's time, and other engines are rare. Use it only if
    # its files contain our group, or if the folder can't be searched, such as a zip file.
    if not folder.is_dir():
        return folder.exists()
    with suppress(OSError), os.scandir(folder) as entries:
        return any(_may_name_engine(entry) for entry in entries)
    return True


def _may_name_engine(entry: os.DirEntry[str]) -> bool:
    if not entry.name.endswith((".dist-info", ".egg-info")) or entry.name.startswith("mljob_reconciler-"):
        return entry.name.endswith(".egg")
    try:
        with open(f"{entry.path}/entry_points.txt", "rb") as file:  # noqa: PTH123  # 100 files per run: Path is slow
            return GROUP.encode() in file.read()
    except OSError:
        return False


def engine_class(api_version: str) -> type[Engine]:
    """Return the engine that runs manifests of `api_version`; raise UsageError if none is installed."""
    if api_version in _OWN:
        module, name = _OWN[api_version]
        own: type[Engine] = getattr(import_module(module), name)
        return own
    from importlib.metadata import entry_points

    for found in entry_points(group=GROUP, name=api_version):
        other: type[Engine] = found.load()
        return other
    raise UsageError(
        f"no engine runs {api_version}", hint=f"install a package with an entry point in {GROUP}"
    )


class Engine(Protocol):
    """Service that runs the jobs of one apiVersion."""

    def __init__(self, connection: Connection) -> None: ...

    @staticmethod
    def manifest_schema(kind: str) -> JsonObject | None:
        """Return the JSON Schema of a kind of manifests, with `properties.spec`; None for no such kind."""

    @staticmethod
    def module(kind: str, spec: JsonObject) -> str:
        """Return the Python module that the first replica runs; "" for none."""

    @staticmethod
    def accelerator_hours(kind: str, spec: JsonObject) -> float:
        """Return the most that a run can use: accelerators of all replicas, times timeout, times trials."""

    @staticmethod
    def with_defaults(kind: str, spec: JsonObject, defaults: JsonObject, job_name: str) -> JsonObject:
        """Return `spec` with missing fields filled from the environment's defaults."""

    @staticmethod
    def with_package(kind: str, spec: JsonObject, uri: str) -> JsonObject:
        """Return `spec` with the staged package added to its package URIs."""

    @staticmethod
    def body(kind: str, spec: JsonObject, job_name: str, labels: Mapping[str, str]) -> JsonObject:
        """Return the request body of a create."""

    @staticmethod
    def replicas(kind: str, spec: JsonObject) -> Mapping[str, int]:
        """Return the numbers of a run's replicas, by the beginning of their names: {"workerpool0-": 1}."""

    @staticmethod
    def trials(job: ActualJob) -> Trials | None:
        """Return the trials in a job's resource; None for a job without trials."""

    @staticmethod
    def log_directory(kind: str, spec: JsonObject) -> str:
        """Return the folder (gs://…) from which TensorBoard shows all runs of the job; "" for none."""

    @staticmethod
    def log_directory_field(kind: str) -> str:
        """Return the field of a manifest that names that folder: "spec.…"."""

    def jobs(self, labels: Mapping[str, str]) -> Sequence[ActualJob]:
        """Return all jobs with these labels, of all kinds, without their specs; complete, or ServiceError."""

    def with_key(self, kind: str, key: str) -> Sequence[ActualJob]:
        """Return all jobs of a kind with this key label, without their specs; complete, or ServiceError."""

    def read(self, kind: str, resource: str) -> ActualJob:
        """Read a job with its spec; raise NotFoundError."""

    def named(self, kind: str, job_name: str) -> str | None:
        """Return the resource name of a job of this name; None if the service chooses it."""

    def create(self, kind: str, body: JsonObject, headers: Mapping[str, str]) -> ActualJob:
        """Send the create, once.

        Args:
            kind: The manifest's kind.
            body: Sent unchanged.
            headers: Authorization, in place of that of other requests.

        Raises:
            ApiError: The service refused.
            NotSentError: The service certainly received nothing.
            NoAnswerError: The job may exist; also raised if the response names no job of this target.
        """

    def cancel(self, job: ActualJob) -> None:
        """Request the cancellation of a job, which may still succeed or fail."""


class EngineJobs:
    """Implementation of the port `JobApi` by engines.

    Args:
        source: The repository's id.
        engine: Returns the engine of an apiVersion.
        api_versions: The apiVersions with a running service.
        known: None to list all runs each time.
    """

    def __init__(
        self,
        source: str,
        engine: Callable[[str], Engine],
        api_versions: Iterable[str],
        known: IncrementalRuns | None = None,
    ) -> None:
        self._source = source
        self._engine = engine
        self._api_versions = tuple(api_versions)
        self._known = known

    def runs(self) -> tuple[ActualJob, ...]:
        """Return all runs with this repository's source label, without their specs."""
        labels = {SOURCE: self._source}
        # Only our engines can list the runs created since a time.
        own = [version for version in self._api_versions if version in _OWN]
        found: list[ActualJob] = []
        if self._known:
            found += self._known.runs(own, self._since)
        for version in self._api_versions:
            if not (self._known and version in own):
                found += self._engine(version).jobs(labels)
        return tuple(found)

    def _since(self, api_version: str, since: str) -> Sequence[ActualJob]:
        # The protocol's `jobs` has no `since`: engines of other packages don't accept it.
        engine: Any = self._engine(api_version)
        found: Sequence[ActualJob] = engine.jobs({SOURCE: self._source}, since)
        return found

    def with_key(self, api_version: str, kind: str, key: str) -> tuple[ActualJob, ...]:
        """Return all jobs with this key label, of all sources, without their specs."""
        return tuple(self._of(api_version).with_key(kind, key))

    def read(self, api_version: str, kind: str, resource: str) -> ActualJob:
        """Read a job with its spec; raise NotFoundError."""
        return self._of(api_version).read(kind, resource)

    def named(self, api_version: str, kind: str, job_name: str) -> str | None:
        """Return the resource name of a job of this name; None if the service chooses it."""
        return self._of(api_version).named(kind, job_name)

    def create(self, api_version: str, kind: str, body: JsonObject, credential: Credential) -> Answer:
        """Send a create once, with this credential only; return every failure as an answer."""
        # Only a failure that certainly created no job may be a refusal or NotSent. All others are Unknown.
        try:
            return Created(self._of(api_version).create(kind, body, credential.headers))
        except ApiError as error:
            message = redacted(error.message, body)
            return refusal(error.status, error.reason, message, error.retry_after)
        except NotSentError as error:
            return NotSent(error.message)
        except ServiceError as error:
            return Unknown(redacted(error.message, body))

    def cancel(self, job: ActualJob) -> None:
        """Request the cancellation of a job."""
        self._of(job.api_version).cancel(job)

    def _of(self, api_version: str) -> Engine:
        # The apiVersion may come from a claim that a newer version wrote.
        try:
            return self._engine(api_version)
        except UsageError as error:
            raise unknown(error.message) from None
