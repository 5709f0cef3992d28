"""The protocol `EngineClient`, and the clients by apiVersion.

The version of a client's API is in `client.API_VERSIONS`, and its discovery document in `schemas/discovery`.
Its service must refuse a create whose credential has expired.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from reconciler.engines.api.ai_platform import AiPlatformTraining
from reconciler.engines.api.vertex_ai import VertexAi
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.google.client import Connection
from reconciler.model.job import ActualJob
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, JsonObject
from reconciler.model.reason import Reason


class EngineClient(Protocol):
    """Client of the service that runs the jobs of one apiVersion; see the module's docstring."""

    def __init__(self, connection: Connection) -> None: ...

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

    def obstacle(self, kind: str, spec: JsonObject) -> Reason | None:
        """Return why a job with this spec would come to nothing, by the models and jobs that exist now."""

    def cancel(self, job: ActualJob) -> None:
        """Request the cancellation of a job, which may still succeed or fail."""


CLIENTS: Mapping[str, type[EngineClient]] = {AIPLATFORM_V1: VertexAi, ML_V1: AiPlatformTraining}
"""The client of each apiVersion."""


def engine_client(api_version: str, connection: Connection) -> EngineClient:
    """Return a client of the service that runs manifests of `api_version`; raise as `engine_spec` does."""
    engine_spec(api_version)
    return CLIENTS[api_version](connection)
