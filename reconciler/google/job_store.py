"""Implementation of the port `JobApi` by engines."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from reconciler.base.errors import ServiceError, UsageError
from reconciler.base.http import NotSentError
from reconciler.base.sanitize import redacted
from reconciler.google.client import ApiError, Engine, unknown
from reconciler.google.incremental import Lister, Memory
from reconciler.model.job import SOURCE, ActualJob
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, JsonObject
from reconciler.model.ports import Answer, Bounds, Clock, Created, Credential, NotSent, Unknown, refusal


class RunsSeen:
    """Incremental listing of runs over several passes.

    Args:
        memory: The runs of earlier passes and the claims of this pass.
        clock: The process's clock.
        bounds: The longest delays until listings contain a new job.
    """

    def __init__(self, memory: Memory, clock: Clock, bounds: Bounds) -> None:
        self._memory = memory
        self._clock = clock
        self._margin = bounds.executes + bounds.visible

    def runs(self, versions: Sequence[str], lister: Lister) -> tuple[ActualJob, ...]:
        """Return all runs of these apiVersions."""
        claims, runs = self._memory.claims, self._memory.runs
        # The claims vouch for deleted runs: with claims missing, only a whole listing is right.
        if claims.vanished:
            runs.forget()
        now = self._clock.monotonic()
        return runs.look(versions, lister, now=now, margin=self._margin, named=claims.named)


_OWN = (AIPLATFORM_V1, ML_V1)
"""The apiVersions of our engines, which can list only the runs created since a time."""


class EngineJobs:
    """Implementation of the port `JobApi` by engines.

    Args:
        source: The repository's id.
        engine: Returns the engine of an apiVersion.
        api_versions: The apiVersions with a running service.
        known: The incremental listing; None to list all runs each time.
    """

    def __init__(
        self,
        source: str,
        engine: Callable[[str], Engine],
        api_versions: Iterable[str],
        known: RunsSeen | None = None,
    ) -> None:
        self._source = source
        self._engine = engine
        self._api_versions = tuple(api_versions)
        self._known = known

    def runs(self) -> tuple[ActualJob, ...]:
        """Return all runs with this repository's source label, without their specs."""
        labels = {SOURCE: self._source}
        own = [version for version in self._api_versions if version in _OWN]
        found: list[ActualJob] = []
        if self._known:
            found += self._known.runs(own, self._since)
        for version in self._api_versions:
            if not (self._known and version in own):
                found += self._engine(version).jobs(labels)
        return tuple(found)

    def _since(self, api_version: str, since: str) -> Sequence[ActualJob]:
        # The protocol `Engine` doesn't contain `listed`: engines of other packages don't have it.
        engine: Any = self._engine(api_version)
        found: Sequence[ActualJob] = engine.listed({SOURCE: self._source}, since)
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
