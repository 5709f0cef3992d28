"""The protocol `Engine`, the engines by apiVersion, and the port `JobApi` by engines.

An engine's kinds and schemas are in `schemas.KINDS`, the version of its API in `client.API_VERSIONS`, and its
discovery document in `schemas/discovery`. Its service must refuse a create whose credential has expired.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Protocol

from reconciler.base.errors import ServiceError, UsageError
from reconciler.base.http import NotSentError
from reconciler.base.sanitize import redacted
from reconciler.google.client import Connection
from reconciler.google.responses import ApiError, unknown
from reconciler.model.details import Study, Workers
from reconciler.model.job import SOURCE, ActualJob, Trials
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, JsonObject
from reconciler.model.ports import (
    Answer,
    Created,
    Credential,
    NotSent,
    Unknown,
    refusal,
)

ENGINES = {
    AIPLATFORM_V1: ("reconciler.google.vertex_ai", "VertexAi"),
    ML_V1: ("reconciler.google.ai_platform", "AiPlatformTraining"),
}
"""Module and class of each engine, by its apiVersion."""

_REFUSED_FILTER = 400


def engine_class(api_version: str) -> type[Engine]:
    """Return the engine that runs manifests of `api_version`; raise UsageError for an unknown one."""
    if api_version not in ENGINES:
        known = " or ".join(ENGINES)
        raise UsageError(f"no engine runs {api_version}", hint=f"write apiVersion: {known}")
    module, name = ENGINES[api_version]
    found: type[Engine] = getattr(import_module(module), name)
    return found


class Engine(Protocol):
    """Service that runs the jobs of one apiVersion; see the module's docstring."""

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

    @staticmethod
    def workers(kind: str, spec: JsonObject) -> Sequence[Workers]:
        """Return what the replicas run and on which machines, by worker pool or role."""

    @staticmethod
    def limits(kind: str, spec: JsonObject) -> Mapping[str, str]:
        """Return `serviceAccount`, `network` and `timeout` of a spec, as far as it has them."""

    @staticmethod
    def output_directory(kind: str, spec: JsonObject) -> str:
        """Return the folder (gs://…) that a run writes its results to; "" for none."""

    @staticmethod
    def study(job: ActualJob) -> Study | None:
        """Return the trials in a job's resource with their measurements; None for a job without trials."""

    def jobs(self, labels: Mapping[str, str], base: str = "", *, live: bool = False) -> Sequence[ActualJob]:
        """Return all jobs with these labels, of all kinds, without their specs; complete, or ServiceError.

        Args:
            labels: The labels with their values.
            base: Leave out jobs with names that don't begin with this and "_"; "" for all.
            live: Leave out jobs that have ended.
        """

    def whole_jobs(self, wanted: str) -> Sequence[ActualJob]:
        """Return all jobs that a list filter of the API selects, with their specs.

        Raises:
            ServiceError: The service refuses the filter, or no complete listing can be read.
        """

    def with_key(self, kind: str, key: str) -> Sequence[ActualJob]:
        """Return all jobs of a kind with this key label, without their specs; complete, or ServiceError."""

    def read(self, kind: str, resource: str) -> ActualJob:
        """Read a job with its spec; raise NotFoundError."""

    def named(self, kind: str, job_name: str) -> str | None:
        """Return the resource name of a job of this name; None if the service chooses it.

        A returned name promises that the service makes at most one job of this name, ever: no wait precedes
        a second create.
        """

    def create(self, kind: str, body: JsonObject, headers: Mapping[str, str]) -> ActualJob:
        """Send the create, once.

        Args:
            kind: The manifest's kind.
            body: Sent unchanged.
            headers: Authorization, in place of that of other requests.

        Raises:
            ApiError: The service answered with an error. It counts as a refusal only with a status in
                `ports.REFUSALS` and a reason in `ports.REASONS`; 409 with ALREADY_EXISTS means that the name
                is taken (`ports.Taken`). Any other leaves the outcome unknown.
            NotSentError: The service certainly received nothing.
            NoAnswerError: The job may exist; also raised if the response names no job of this target. Any
                other ServiceError counts the same.
        """

    def cancel(self, job: ActualJob) -> None:
        """Request the cancellation of a job, which may still succeed or fail."""


class EngineJobs:
    """Implementation of the port `JobApi` by engines.

    Args:
        source: The repository's id.
        engine: Returns the engine of an apiVersion.
        api_versions: The apiVersions with a running service.
    """

    def __init__(
        self,
        source: str,
        engine: Callable[[str], Engine],
        api_versions: Iterable[str],
    ) -> None:
        self._source = source
        self._engine = engine
        self._api_versions = tuple(api_versions)

    def runs(self) -> tuple[ActualJob, ...]:
        """Return all runs with this repository's source label, without their specs."""
        labels = {SOURCE: self._source}
        return tuple(run for version in self._api_versions for run in self._engine(version).jobs(labels))

    def live(self) -> tuple[ActualJob, ...]:
        """Return the runs with this repository's source label that haven't ended, without their specs."""
        found = list[ActualJob]()
        for version in self._api_versions:
            found += self._live(version)
        # A run may have ended since its page was read.
        return tuple(run for run in found if not run.state.ended)

    def _live(self, version: str) -> Sequence[ActualJob]:
        engine, labels = self._engine(version), {SOURCE: self._source}
        try:
            return engine.jobs(labels, live=True)
        except ApiError as error:
            # A service that doesn't take the filter is read as before.
            if error.status != _REFUSED_FILTER:
                raise
            return engine.jobs(labels)

    def lists(self, api_version: str) -> bool:
        """Return True if listings contain the jobs of this apiVersion."""
        return api_version in self._api_versions

    def of_base(self, base: str) -> tuple[ActualJob, ...]:
        """Return the runs with this repository's source label and names of this base name, unordered.

        One short listing for each engine, where `runs` lists everything.
        """
        labels, found = {SOURCE: self._source}, list[ActualJob]()
        for version in self._api_versions:
            found += self._engine(version).jobs(labels, base=base)
        return tuple(run for run in found if run.job_name.startswith(f"{base}_"))

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
            # A refused submission's line is all that a person sees of it; a quota's says when it goes on.
            if error.hint and error.status != 429:
                message = f"{message.removesuffix('.')} ({error.hint})"
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
