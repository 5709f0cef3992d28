"""What an engine is, and the connection that all engines share.

Writes are built and their answers parsed by the Google client; reads need no more than an address, and a
small plan no more than reads. The transport under both sends each request once.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Protocol, TypeVar, get_origin
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.base.http import HttpRequest, HttpResponse, NoAnswerError, Transport, retry_after
from reconciler.base.sanitize import one_line
from reconciler.google.http_adapter import ClientHttp
from reconciler.manifests import schemas
from reconciler.model.job import ActualJob, Trials
from reconciler.model.manifest import JsonObject

Parameters = Mapping[str, str | int | None]
"""What a method is asked with, by the names of its discovery document; None for what isn't given."""

_DOCUMENTS = {"aiplatform": "aiplatform.v1", "ml": "ml.v1", "storage": "storage.v1"}
_VARIABLE = re.compile(r"\{(\+?)(\w+)\}")

# RFC 6570, section 3.2.3: what "{+name}" leaves as it is, beside what never needs an escape; but for "?", "#"
# and escapes, as a name is to stay within the path and to be the name that it is.
_RESERVED = "!$&'()*+,/:;=@[]"


class _Method(msgspec.Struct):
    path: str


class _Resource(msgspec.Struct):
    methods: dict[str, _Method] = {}
    resources: dict[str, _Resource] = {}


class _Document(msgspec.Struct, rename="camel"):
    """What of a discovery document the address of a read depends on."""

    service_path: str
    resources: dict[str, _Resource]


def address(roots: Mapping[str, str], method: str, parameters: Parameters) -> str:
    """The whole address of a GET, percent-encoded.

    Args:
        roots: Base URL of each API, with a trailing slash.
        method: Its id, such as "storage.objects.list"; a KeyError where its API's document has none of it.
        parameters: What its path names, and what its query is to hold.
    """
    given = {name: str(value) for name, value in parameters.items() if value is not None}
    template = _template(method)

    def expanded(variable: re.Match[str]) -> str:
        return quote(given.pop(variable[2]), safe=_RESERVED if variable[1] else "")

    path = _VARIABLE.sub(expanded, template)
    query = urlencode({"alt": "json", **given})
    return f"{roots[method.partition('.')[0]]}{path}?{query}"


@cache
def _template(method: str) -> str:
    """A method's path below its API's root, with its variables."""
    api, *names, last = method.split(".")
    document = _document(api)
    resource = _Resource(resources=document.resources)
    for name in names:
        resource = resource.resources[name]
    return document.service_path + resource.methods[last].path


@cache
def _document(api: str) -> _Document:
    file = schemas.folder() / "discovery" / f"{_DOCUMENTS[api]}.json"
    return msgspec.json.decode(file.read_bytes(), type=_Document)


Record = TypeVar("Record", bound=Struct)

_ANY = re.compile(".+")
_VERSIONS = {"aiplatform": "v1", "ml": "v1", "storage": "v1", "logging": "v2", "iamcredentials": "v1"}

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
        retry_after: The seconds that the service asks to wait; None where it doesn't.
    """

    def __init__(
        self, message: str, *, status: int, reason: str, hint: str = "", retry_after: float | None = None
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after


@dataclass(frozen=True, slots=True)
class Endpoint:
    """How an environment's services are reached.

    Attributes:
        transport: Sends one request, once.
        authorize: The headers that prove who asks; called for each request, by whichever thread sends it.
        project, location: Whose jobs, and where.
        roots: Base URL of each API (`aiplatform`, `ml`, `storage`, `logging`, `iamcredentials`), with a
            trailing slash.
        console: Whether people can look at the jobs in Google's console.
        distant: Whether answers take so long to come that several reads are better under way at once.
    """

    transport: Transport
    authorize: Callable[[], Mapping[str, str]]
    project: str
    location: str
    roots: Mapping[str, str]
    console: bool = False
    distant: bool = False


class Connection:
    """The APIs of one environment; Google's clients of them are built when first used.

    Safe to use from several threads. So are Google's clients, whose requests share nothing but what sends
    them, which is ours; but for being built, which writes into the document that they are built from.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._clients: dict[str, Any] = {}
        self._building = threading.RLock()

    def get(self, method: str, *, fresh: bool = False, **parameters: str | int | None) -> HttpResponse:
        """The answer to a GET; raises ApiError for what is no success, or the transport's errors.

        Args:
            method: Its id in the discovery document, such as "storage.objects.list".
            fresh: Whether no cache between may answer it.
            parameters: What it is asked with; None for what isn't given.
        """
        url = address(self.endpoint.roots, method, parameters)
        headers = {"accept": "application/json"}
        if fresh:
            headers["cache-control"] = "no-cache"
        headers |= self.endpoint.authorize()
        response = self.endpoint.transport.send(HttpRequest("GET", url, headers))
        _check_status(response.status, response.headers, response.body)
        return response

    def client(self, name: str) -> Any:
        """Google's client of an API or of a collection within, such as "storage.objects".

        A collection makes all its methods anew each time that its API's client is asked for it: here each is
        made once.
        """
        with self._building:
            if name not in self._clients:
                within, _, last = name.rpartition(".")
                self._clients[name] = getattr(self.client(within), last)() if within else self._built(last)
            return self._clients[name]

    def _built(self, api: str) -> Any:
        from googleapiclient.discovery import build_from_document

        # The document's own rootUrl is changed rather than api_endpoint given: with the latter the client
        # loses storage's `/storage/v1/` and sends media uploads to https.
        document = schemas.discovery(f"{api}.{_VERSIONS[api]}")
        document["rootUrl"] = self.endpoint.roots[api]
        document.pop("mtlsRootUrl", None)
        return build_from_document(
            document, http=ClientHttp(self.endpoint.transport, authorize=self.endpoint.authorize)
        )


def execute(request: Any, http: ClientHttp | None = None) -> Any:
    """The answer to a request that the Google client built; raises ApiError or the transport's errors.

    Args:
        request: What the client built.
        http: Sends it; by default as all requests of its client are sent.
    """
    return _object(_answer(request, http))


def object_of(body: bytes) -> JsonObject:
    """The JSON object that an answer to a read is; raises NoAnswerError where it is none."""
    try:
        answer = json.loads(body.decode())
    except (ValueError, RecursionError):
        # No JSON, no UTF-8, a number of thousands of digits, or nested too deep.
        answer = None
    return _object(answer)


def _object(answer: Any) -> JsonObject:
    # The client returns what it can't parse as text: a proxy's page with status 200, say. What became of the
    # request is unknown then, as without any answer.
    if not isinstance(answer, dict):
        raise NoAnswerError(
            "the service's answer is not a JSON object", hint="check the endpoint and any proxy between"
        )
    return answer


def delete(request: Any) -> None:
    """Send a deletion, whose answer is empty; raises ApiError or the transport's errors."""
    _answer(request, None)


def _answer(request: Any, http: ClientHttp | None) -> Any:
    """The answer as the client gives it, None where it can't read it."""
    try:
        return request.execute(http=_Good(http or request.http), num_retries=0)
    except (ValueError, RecursionError):
        # No UTF-8, a number of thousands of digits, or nested too deep: the client lets these through.
        return None


class _Good(Struct, frozen=True):
    """What a request is sent by; of an error the client itself learns nothing.

    It makes an exception of its own of each, and stumbles over what some of them hold: over a message that is
    no text, for one. What the status was would be lost then.
    """

    http: ClientHttp

    def request(self, *args: Any, **named: Any) -> tuple[Any, bytes]:
        """Send as `ClientHttp.request` does; raises ApiError for what is no success."""
        response, body = self.http.request(*args, **named)
        _check_status(int(response.status), dict(response), body)
        return response, body


def _check_status(status: int, headers: Mapping[str, str], body: bytes) -> None:
    """Raise ApiError for what is no success."""
    if status >= 300:
        raise api_error(status, body, retry_after(HttpResponse(status, headers, b"")))


def about(resource: JsonObject, name: str, pattern: re.Pattern[str] = _ANY) -> JsonObject:
    """The answer, if its field `name` says which job it is about; raises NoAnswerError.

    Args:
        resource: The answer.
        name: The field.
        pattern: What the field's whole text must look like.
    """
    if not pattern.fullmatch(text_of(resource, name)):
        raise NoAnswerError("the service's answer names no job of ours")
    return resource


def with_headers(connection: Connection, headers: Mapping[str, str]) -> ClientHttp:
    """Sends a request with these headers, and none of those that prove who asks otherwise."""
    return ClientHttp(connection.endpoint.transport, authorize=lambda: headers)


def unknown(what: str) -> ServiceError:
    """The exception for a kind of job, or a job's name, that nothing of this version leads to."""
    return ServiceError(
        what, hint="a newer version may have written the claim that names it: update the reconciler"
    )


def text_of(resource: JsonObject, name: str) -> str:
    """A text of an answer; "" where the field isn't there or is no text."""
    value = resource.get(name)
    return value if isinstance(value, str) else ""


def part_of(resource: JsonObject, name: str) -> JsonObject:
    """An object within an answer; an empty one where the field isn't there or is something else."""
    value = resource.get(name)
    return value if isinstance(value, dict) else {}


def parts_of(resource: JsonObject, name: str) -> list[JsonObject]:
    """The objects in a list within an answer, an empty object in the place of anything else."""
    value = resource.get(name)
    return [part if isinstance(part, dict) else {} for part in value] if isinstance(value, list) else []


def count_of(resource: JsonObject, name: str, default: int = 0) -> int:
    """A count of an answer, which writes long ones as text; the default where it is none."""
    value = resource.get(name, default)
    try:
        return int(value) if isinstance(value, int | str) else default
    except ValueError:
        return default


def filter_of(labels: Mapping[str, str], since: str) -> str:
    """Return the list filter for jobs with these labels, created at `since` or later ("" for any)."""
    terms = [f'labels.{name}="{value}"' for name, value in labels.items()]
    return " AND ".join([*terms, f'create_time>="{since}"'] if since else terms)


def typed_record(kind: type[Record], resource: JsonObject) -> Record:
    """Return the record of a resource; a field with a value of another type counts as missing.

    msgspec's decoder is faster, but refuses the whole resource for one such field.
    """
    return kind(**{name: read(resource, key) for name, key, read in _readers(kind)})


@cache
def _readers(kind: type[Struct]) -> list[tuple[str, str, Callable[[JsonObject, str], Any]]]:
    return [(field.name, field.encode_name, _reader(field.type)) for field in fields(kind)]


def _reader(type_: Any) -> Callable[[JsonObject, str], Any]:
    if isinstance(type_, type) and issubclass(type_, Struct):
        return lambda resource, name: typed_record(type_, part_of(resource, name))
    return _texts_of if get_origin(type_) is Mapping else text_of


def _texts_of(resource: JsonObject, name: str) -> Mapping[str, str]:
    """The texts by name in an object within an answer."""
    return {key: value for key, value in part_of(resource, name).items() if isinstance(value, str)}


def api_error(status: int, content: bytes, asked: float | None = None) -> ApiError:
    """The exception that an error answer stands for; its text holds nothing of the request.

    Args:
        status: The HTTP status.
        content: The answer's body.
        asked: The seconds that the answer asks to wait.
    """
    try:
        told = json.loads(content)["error"]
        reason, message = text_of(told, "status"), text_of(told, "message")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # Not even a 404 says that something isn't there, if it isn't the service that speaks.
        message = f"HTTP {status} without a readable error; a proxy may have answered"
        hint = _HINTS.get(status, "check the endpoint and any proxy between")
        return ApiError(message, status=status, reason="", hint=hint, retry_after=asked)
    text = one_line(message or f"HTTP {status}")
    if status == 404:
        return NotFoundAtServiceError(text, status=status, reason=reason, hint=_NOT_FOUND)
    hint = _NO_SCOPE if status == 403 and "scope" in text.lower() else _HINTS.get(status, "")
    return ApiError(text, status=status, reason=reason, hint=hint, retry_after=asked)


_NOT_FOUND = 'check "project" and "location" in reconciler.yaml'
_NO_SCOPE = (
    "the token lacks the scope https://www.googleapis.com/auth/cloud-platform: "
    "run `gcloud auth application-default login`, or give the machine's service account that scope"
)
_HINTS = {
    401: "the credentials are missing or expired: run `gcloud auth application-default login`",
    403: "the identity lacks a permission, such as those of roles/aiplatform.user, or the API is not enabled "
    "in this project; `reconciler init --claims` prints who needs which role",
    429: "a quota is used up: try again later, or raise the quota",
}


class NotFoundAtServiceError(ApiError, NotFoundError):
    """The service has no such resource."""


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

    @staticmethod
    def replicas(kind: str, spec: JsonObject) -> Mapping[str, int]:
        """How many replicas a run has, by what their names in its log begin with: {"workerpool0-": 1}."""

    @staticmethod
    def trials(job: ActualJob) -> Trials | None:
        """The trials of a job as it was read; None for one that has none."""

    @staticmethod
    def log_directory(kind: str, spec: JsonObject) -> str:
        """The folder (gs://…) that TensorBoard shows all runs of the job from; "" where it names none."""

    @staticmethod
    def log_directory_field(kind: str) -> str:
        """The field of a manifest that names that folder: "spec.…"."""

    def jobs(self, labels: Mapping[str, str]) -> Sequence[ActualJob]:
        """All jobs of all kinds that carry these labels, without their specs; complete, or ServiceError."""

    def with_key(self, kind: str, key: str) -> Sequence[ActualJob]:
        """All jobs of this kind that carry this key label, without their specs; complete, or ServiceError."""

    def read(self, kind: str, resource: str) -> ActualJob:
        """The job as it is now, with its spec; raises NotFoundError."""

    def named(self, kind: str, job_name: str) -> str | None:
        """The resource name that a job of this name has; None where the service chooses it."""

    def create(self, kind: str, body: JsonObject, headers: Mapping[str, str]) -> ActualJob:
        """Send the create, once.

        Args:
            kind: The manifest's.
            body: Sent as it is.
            headers: Prove who asks, in place of what other requests carry; sent as they are.

        Raises ApiError where the service refused, NotSentError where it certainly got nothing, and
        NoAnswerError where the job may exist all the same: also where the answer names no job of ours.
        """

    def cancel(self, job: ActualJob) -> None:
        """Ask for the job's end; that it was asked says nothing of how it ends."""
