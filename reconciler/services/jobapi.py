"""The jobs of one environment, through the engines that run them."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from reconciler.answers import Answer, Created, NotSent, Unknown, refusal
from reconciler.engines.base import ApiError, Engine, unknown
from reconciler.errors import ServiceError, UsageError
from reconciler.job import ActualJob
from reconciler.labels import SOURCE
from reconciler.manifest import JsonObject
from reconciler.ports import Credential
from reconciler.redaction import redacted
from reconciler.transport import NotSentError


class EngineJobs:
    """The port `JobApi` over engines.

    Args:
        source: The repository's id.
        engine: Gives the engine of an apiVersion.
        api_versions: Those whose services can be asked.
    """

    def __init__(self, source: str, engine: Callable[[str], Engine], api_versions: Iterable[str]) -> None:
        self._source = source
        self._engine = engine
        self._api_versions = tuple(api_versions)

    def runs(self) -> tuple[ActualJob, ...]:
        """All runs that carry this repository's source label, without their specs."""
        labels = {SOURCE: self._source}
        return tuple(job for version in self._api_versions for job in self._engine(version).jobs(labels))

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
