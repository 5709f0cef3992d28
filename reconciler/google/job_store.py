"""The jobs of one environment, through the engines that run them."""

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
    """The runs of looks that follow each other.

    Args:
        memory: What the looks before have seen; its claims are those of this look.
        clock: The process's own.
        bounds: How late a job may appear.
    """

    def __init__(self, memory: Memory, clock: Clock, bounds: Bounds) -> None:
        self._memory = memory
        self._clock = clock
        self._margin = bounds.executes + bounds.visible

    def runs(self, versions: Sequence[str], lister: Lister) -> tuple[ActualJob, ...]:
        """All runs of these apiVersions."""
        claims, runs = self._memory.claims, self._memory.runs
        if claims.vanished:
            runs.forget()
        now = self._clock.monotonic()
        return runs.look(versions, lister, now=now, margin=self._margin, named=claims.named)


_OWN = (AIPLATFORM_V1, ML_V1)
"""The apiVersions of our own engines, which can list only what was created since a moment."""


class EngineJobs:
    """The port `JobApi` over engines.

    Args:
        source: The repository's id.
        engine: Gives the engine of an apiVersion.
        api_versions: Those whose services can be asked.
        known: Lists the runs by what earlier looks saw; None where each look begins from nothing.
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
        """All runs that carry this repository's source label, without their specs."""
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
        # Engines of other packages know nothing of a time.
        engine: Any = self._engine(api_version)
        found: Sequence[ActualJob] = engine.listed({SOURCE: self._source}, since)
        return found

    def with_key(self, api_version: str, kind: str, key: str) -> tuple[ActualJob, ...]:
        """All jobs that carry this key label, whichever source they have, without their specs."""
        return tuple(self._of(api_version).with_key(kind, key))

    def read(self, api_version: str, kind: str, resource: str) -> ActualJob:
        """A job as it is now, with its spec; raises NotFoundError."""
        return self._of(api_version).read(kind, resource)

    def named(self, api_version: str, kind: str, job_name: str) -> str | None:
        """The resource name that a job of that name has; None where the service chooses it."""
        return self._of(api_version).named(kind, job_name)

    def create(self, api_version: str, kind: str, body: JsonObject, credential: Credential) -> Answer:
        """Send one create, once, with this credential and no other.

        Whatever goes wrong is an answer: only what certainly made no job is told as such.
        """
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
        """Ask for the job's end."""
        self._of(job.api_version).cancel(job)

    def _of(self, api_version: str) -> Engine:
        """The engine of an apiVersion, which a claim may name that no manifest names."""
        try:
            return self._engine(api_version)
        except UsageError as error:
            raise unknown(error.message) from None
