"""What an engine is, and the connection that all engines share.

The Google client builds requests and parses answers; the transport under it sends each request once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from reconciler import schemas
from reconciler.errors import NotFoundError, ServiceError
from reconciler.inert import one_line
from reconciler.job import ActualJob
from reconciler.manifest import JsonObject
from reconciler.transport import ClientHttp, NoAnswerError, Transport

DEFAULT_TIMEOUT = "604800s"
"""Both services' limit for a job that has none of its own: seven days."""


def hours(duration: str) -> float:
    """A duration such as "3600s" in hours; 0 means no limit of its own."""
    return (float(duration.removesuffix("s")) or hours(DEFAULT_TIMEOUT) * 3600) / 3600


class ApiError(ServiceError):
    """The service answered with an error.

    Attributes:
        status: The HTTP status.
        reason: `error.status` of `google.rpc.Status`, such as "ALREADY_EXISTS"; "" for none.
    """

    def __init__(self, message: str, *, status: int, reason: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How an environment's services are reached.

    Attributes:
        transport: Sends one request, once.
        authorize: The headers that prove who asks; called for each request.
        project, location: Whose jobs, and where.
        roots: Base URL of each API (`aiplatform`, `ml`, `storage`, `logging`), with a trailing slash.
        console: Whether people can look at the jobs in Google's console.
    """

    transport: Transport
    authorize: Callable[[], Mapping[str, str]]
    project: str
    location: str
    roots: Mapping[str, str]
    console: bool = False


class Connection:
    """The API clients of one environment, each built when first used."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint

    @cached_property
    def aiplatform(self) -> Any:
        """The client of `aiplatform` v1."""
        return self._client("aiplatform.v1")

    @cached_property
    def ml(self) -> Any:
        """The client of `ml` v1."""
        return self._client("ml.v1")

    @cached_property
    def storage(self) -> Any:
        """The client of `storage` v1."""
        return self._client("storage.v1")

    @cached_property
    def logging(self) -> Any:
        """The client of `logging` v2."""
        return self._client("logging.v2")

    def _client(self, name: str) -> Any:
        from googleapiclient.discovery import build_from_document

        # The document's own rootUrl is changed rather than api_endpoint given: with the latter the client
        # loses storage's `/storage/v1/` and sends media uploads to https.
        document = dict(schemas.discovery(name))
        document["rootUrl"] = self.endpoint.roots[name.partition(".")[0]]
        document.pop("mtlsRootUrl", None)
        return build_from_document(
            document, http=ClientHttp(self.endpoint.transport, authorize=self.endpoint.authorize)
        )


def execute(request: Any) -> Any:
    """The answer to a request that the Google client built; raises ApiError or the transport's errors."""
    from googleapiclient.errors import HttpError

    try:
        answer = request.execute(num_retries=0)
    except HttpError as error:
        raise api_error(int(error.resp.status), error.content) from None
    except UnicodeDecodeError:
        answer = None
    # The client returns what it can't parse as text: a proxy's page with status 200, say. What became of the
    # request is unknown then, as without any answer.
    if not isinstance(answer, dict):
        raise NoAnswerError(
            "the service's answer is not a JSON object", hint="check the endpoint and any proxy between"
        )
    return answer


def created(resource: JsonObject, name: str) -> JsonObject:
    """The answer to a create, if its field `name` says which job it made; raises NoAnswerError."""
    if not isinstance(resource.get(name), str):
        raise NoAnswerError("the service's answer names no job")
    return resource


def api_error(status: int, content: bytes) -> ServiceError:
    """The exception that an error answer stands for; its text holds nothing of the request."""
    reason, message = "", ""
    try:
        told = json.loads(content)["error"]
        reason, message = str(told.get("status", "")), str(told.get("message", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        message = f"HTTP {status} without a readable error; a proxy may have answered"
    text = one_line(message or f"HTTP {status}")
    if status == 404:
        return NotFoundAtServiceError(text, status=status, reason=reason)
    return ApiError(text, status=status, reason=reason, hint=_HINTS.get(status, ""))


_HINTS = {
    401: "the credentials are missing or expired: run `gcloud auth application-default login`",
    403: "the identity lacks a permission, or the API is not enabled in this project",
    429: "a quota is used up: try again later, or raise the quota",
}


class NotFoundAtServiceError(ApiError, NotFoundError):
    """The service has no such resource."""


def pages(collection: Any, request: Any, key: str) -> Iterator[JsonObject]:
    """Every item of a listing, through all its pages."""
    while request is not None:
        answer = execute(request)
        yield from answer.get(key, [])
        request = collection.list_next(request, answer)


class Engine(Protocol):
    """Where the jobs of one apiVersion run."""

    def __init__(self, connection: Connection) -> None: ...

    @staticmethod
    def manifest_schema(kind: str) -> JsonObject | None:
        """The JSON Schema of a manifest of this kind, with `properties.spec`; None for no such kind."""

    @staticmethod
    def module(kind: str, spec: JsonObject) -> str:
        """The Python module that the first replica runs; "" where it runs none."""

    @staticmethod
    def accelerator_hours(kind: str, spec: JsonObject) -> float:
        """The most that one run can use: accelerators of all replicas, times timeout, times trials."""

    @staticmethod
    def with_defaults(kind: str, spec: JsonObject, defaults: JsonObject, job_name: str) -> JsonObject:
        """`spec` with what the manifest leaves out filled from the environment's defaults."""

    @staticmethod
    def with_package(kind: str, spec: JsonObject, uri: str) -> JsonObject:
        """`spec` with the staged package added to its package URIs."""

    @staticmethod
    def body(kind: str, spec: JsonObject, job_name: str, labels: Mapping[str, str]) -> JsonObject:
        """The request body of a create."""

    def jobs(self, label: tuple[str, str]) -> Iterator[ActualJob]:
        """All jobs that carry this label, without their specs."""

    def read(self, job: ActualJob) -> ActualJob:
        """The job as it is now, with its spec."""

    def create(self, kind: str, body: JsonObject) -> ActualJob:
        """Send the create, once.

        Raises ApiError where the service refused, NotSentError where it certainly got nothing, and
        NoAnswerError where the job may exist all the same.
        """

    def cancel(self, job: ActualJob) -> None:
        """Ask for the job's end; that it was asked says nothing of how it ends."""
