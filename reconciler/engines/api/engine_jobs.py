"""The port `JobApi` by the engines' clients."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from reconciler.base.errors import ServiceError, UsageError
from reconciler.base.http import NotSentError
from reconciler.base.sanitize import redacted
from reconciler.engines.api.engine_client import EngineClient
from reconciler.google.responses import ApiError, unknown
from reconciler.model.job import SOURCE, ActualJob
from reconciler.model.manifest import JsonObject
from reconciler.model.ports import (
    Answer,
    Created,
    Credential,
    NotSent,
    Unknown,
    refusal,
)

_REFUSED_FILTER = 400


class EngineJobs:
    """Implementation of the port `JobApi` by the engines' clients.

    Args:
        source: The repository's id.
        engine: Returns the client of an apiVersion.
        api_versions: The apiVersions with a running service.
    """

    def __init__(
        self,
        source: str,
        engine: Callable[[str], EngineClient],
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
        runs = list[ActualJob]()
        for version in self._api_versions:
            runs += self._live(version)
        # A run may have ended since its page was read.
        return tuple(run for run in runs if not run.state.ended)

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
        labels, runs = {SOURCE: self._source}, list[ActualJob]()
        for version in self._api_versions:
            runs += self._engine(version).jobs(labels, base=base)
        return tuple(run for run in runs if run.job_name.startswith(f"{base}_"))

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

    def _of(self, api_version: str) -> EngineClient:
        # The apiVersion may come from a claim that a newer version wrote.
        try:
            return self._engine(api_version)
        except UsageError as error:
            raise unknown(error.message) from None
