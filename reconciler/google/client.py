"""Connection to Google's APIs: builds and sends requests; `responses.py` reads what comes back.

Google's client builds writes and parses their responses. Reads do without it, because it takes long to import
and a small plan only reads. The transport under both sends each request once.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from msgspec import Struct

from reconciler.base.http import HttpRequest, HttpResponse, NoAnswerError, Transport, retry_after
from reconciler.google.responses import api_error
from reconciler.manifests import schemas
from reconciler.model.manifest import JsonObject

if TYPE_CHECKING:
    import httplib2

Parameters = Mapping[str, str | int | None]
"""Parameters of a method, by their names in its discovery document; None for a missing parameter."""

API_VERSIONS = {"aiplatform": "v1", "ml": "v1", "storage": "v1", "logging": "v2", "iamcredentials": "v1"}
"""Version of each Google API that is used; its discovery document is `schemas/discovery/API.VERSION.json`."""

_VARIABLE = re.compile(r"\{(\+?)(\w+)\}")

# RFC 6570, section 3.2.3: the reserved characters that "{+name}" doesn't escape, without "?", "#" and
# "%": a resource name must not end the path, and must not be decoded to another name.
_RESERVED = "!$&'()*+,/:;=@[]"


# Copied from the discovery documents, which take longer to read than a small plan's listings.
_PATHS = {
    "aiplatform.projects.locations.customJobs.get": "v1/{+name}",
    "aiplatform.projects.locations.customJobs.list": "v1/{+parent}/customJobs",
    "aiplatform.projects.locations.hyperparameterTuningJobs.get": "v1/{+name}",
    "aiplatform.projects.locations.hyperparameterTuningJobs.list": "v1/{+parent}/hyperparameterTuningJobs",
    "aiplatform.projects.locations.models.get": "v1/{+name}",
    "aiplatform.projects.locations.trainingPipelines.get": "v1/{+name}",
    "aiplatform.projects.locations.trainingPipelines.list": "v1/{+parent}/trainingPipelines",
    "logging.entries.list": "v2/entries:list",
    "ml.projects.jobs.get": "v1/{+name}",
    "ml.projects.jobs.list": "v1/{+parent}/jobs",
    "storage.buckets.get": "storage/v1/b/{bucket}",
    "storage.objects.get": "storage/v1/b/{bucket}/o/{object}",
    "storage.objects.list": "storage/v1/b/{bucket}/o",
}
"""Path of each read below its API's root, by the method's id."""


def address(roots: Mapping[str, str], method: str, parameters: Parameters) -> str:
    """Return the address of a GET, percent-encoded.

    Args:
        roots: Base URL of each API, with a trailing slash.
        method: The method's id, one of `_PATHS`.
        parameters: The variables of the path, and the parameters of the query.
    """
    given = {name: str(value) for name, value in parameters.items() if value is not None}

    def expanded(variable: re.Match[str]) -> str:
        return quote(given.pop(variable[2]), safe=_RESERVED if variable[1] else "")

    path = _VARIABLE.sub(expanded, _PATHS[method])
    query = urlencode({"alt": "json", **given})
    return f"{roots[method.partition('.')[0]]}{path}?{query}"


class Endpoint(Struct, frozen=True):
    """Addresses and authorization of an environment's services.

    Attributes:
        transport: Sends one request, once.
        authorize: Returns the authorization headers; each thread calls it for each request.
        roots: Base URL of each API in `API_VERSIONS`, with a trailing slash.
        console: True if Google's console shows the jobs.
        distant: True if responses take so long that concurrent reads save time.
        on_runner: True if the jobs run on a runner of GitHub Actions.
        buckets: The folder of the embedded service's buckets; "" at Google.
    """

    transport: Transport
    authorize: Callable[[], Mapping[str, str]]
    project: str
    location: str
    roots: Mapping[str, str]
    console: bool = False
    distant: bool = False
    on_runner: bool = False
    buckets: str = ""


class Connection:
    """APIs of one environment; Google's clients for them are built at first use.

    Thread-safe. Google's clients are thread-safe too, because their requests share only our transport; only
    building a client isn't, because it changes the document that it reads.
    """

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._clients: dict[str, Any] = {}
        self._building = threading.RLock()

    def get(
        self, method: str, *, fresh: bool = False, part: str = "", **parameters: str | int | None
    ) -> HttpResponse:
        """Send a GET; raise ApiError for an error response, or the transport's errors.

        Args:
            method: The method's id in the discovery document, such as "storage.objects.list".
            fresh: True if no cache on the way may respond.
            part: The part of the content to get, as the Range header has it; "" for all.
            parameters: The method's parameters; None for a missing parameter.
        """
        headers = {"cache-control": "no-cache"} if fresh else {}
        return self._sent("GET", method, parameters, {**headers, "range": part} if part else headers)

    def post(self, method: str, body: JsonObject) -> JsonObject:
        """Send a read that takes a body; return its response, or raise as `get` does."""
        headers = {"content-type": "application/json"}
        return object_of(self._sent("POST", method, {}, headers, json.dumps(body).encode()).body)

    def _sent(
        self,
        verb: str,
        method: str,
        parameters: Parameters,
        headers: Mapping[str, str],
        body: bytes | None = None,
    ) -> HttpResponse:
        url = address(self.endpoint.roots, method, parameters)
        all_headers = {"accept": "application/json", **headers, **self.endpoint.authorize()}
        response = self.endpoint.transport.send(HttpRequest(verb, url, all_headers, body))
        _check_status(response.status, response.headers, response.body)
        return response

    def client(self, name: str) -> Any:
        """Return Google's client of an API or of a collection in it, such as "storage.objects"."""
        # An API's client builds a collection with all its methods at every access: keep the first.
        with self._building:
            if name not in self._clients:
                within, _, last = name.rpartition(".")
                self._clients[name] = getattr(self.client(within), last)() if within else self._built(last)
            return self._clients[name]

    def _built(self, api: str) -> Any:
        from googleapiclient.discovery import build_from_document

        # Change the document's rootUrl instead of passing api_endpoint: with api_endpoint, the client drops
        # storage's `/storage/v1/` and sends media uploads to https.
        document = schemas.discovery(f"{api}.{API_VERSIONS[api]}")
        document["rootUrl"] = self.endpoint.roots[api]
        document.pop("mtlsRootUrl", None)
        http = ClientHttp(self.endpoint.transport, self.endpoint.authorize)
        return build_from_document(document, http=http)


def execute(request: Any, http: ClientHttp | None = None) -> Any:
    """Send a request of Google's client, by default with that client's sender.

    Raises:
        ApiError, NoAnswerError: Refused, or an unusable response; the transport has its own errors.
    """
    return _checked_object(_send(request, http))


def object_of(body: bytes) -> JsonObject:
    """Return the JSON object in the response to a read; raise NoAnswerError for anything else."""
    try:
        answer = json.loads(body.decode())
    except (ValueError, RecursionError):
        # No JSON, no UTF-8, a number with thousands of digits, or nested too deep.
        answer = None
    return _checked_object(answer)


def _checked_object(answer: Any) -> JsonObject:
    # The client returns a body that it can't parse as text, such as a proxy's page with status 200. The
    # outcome of the request is then unknown, as without a response.
    if not isinstance(answer, dict):
        raise NoAnswerError(
            "the service's answer is not a JSON object", hint="check the endpoint and any proxy between"
        )
    return answer


def delete(request: Any) -> None:
    """Send a deletion, with an empty response; raise ApiError or the transport's errors."""
    _send(request, None)


def _send(request: Any, http: ClientHttp | None) -> Any:
    """Return the response as the client parses it; None if the client can't parse it."""
    try:
        # No retries: a second create could make a second job.
        return request.execute(http=http or request.http, num_retries=0)
    except (ValueError, RecursionError):
        # No UTF-8, a number with thousands of digits, or nested too deep: the client doesn't catch these.
        return None


class ClientHttp:
    """Replacement of `httplib2.Http` for google-api-python-client, which sends by our transport.

    It raises ApiError before the client sees an error response. The client fails over some of these, such as
    a message that is no text, and then loses the status, which decides if a request had an effect.

    `authorize` returns the headers to add. It is called for each request, because tokens expire.
    """

    def __init__(self, transport: Transport, authorize: Callable[[], Mapping[str, str]]) -> None:
        self._transport = transport
        self._authorize = authorize

    def request(
        self,
        uri: str,
        method: str = "GET",
        body: Any = None,
        headers: Mapping[str, Any] | None = None,
        redirections: int = 0,
        connection_type: object = None,
    ) -> tuple[httplib2.Response, bytes]:
        """Send as `httplib2.Http.request` does, but ignore `redirections` and `connection_type`.

        Raises:
            ApiError: An error response.
            NotSentError, NoAnswerError: The transport failed.
        """
        all_headers = {name: str(value) for name, value in (headers or {}).items()}
        all_headers |= self._authorize()
        response = self._transport.send(HttpRequest(method, uri, all_headers, _bytes(body)))
        _check_status(response.status, response.headers, response.body)
        return _client_response(response), response.body

    def close(self) -> None:
        """Do nothing: the transport's creator closes it."""


def _bytes(body: Any) -> bytes | None:
    # The client passes text, bytes, or for an upload in parts a file object.
    if body is None or isinstance(body, bytes):
        return body
    return body.encode() if isinstance(body, str) else bytes(body.read())


def _client_response(response: HttpResponse) -> httplib2.Response:
    from http.client import responses

    import httplib2

    answer = httplib2.Response({**response.headers, "status": str(response.status)})
    answer.reason = responses.get(response.status, "")
    return answer


def _check_status(status: int, headers: Mapping[str, str], body: bytes) -> None:
    if status >= 300:
        raise api_error(status, body, retry_after(HttpResponse(status, headers, b"")))


def with_headers(connection: Connection, headers: Mapping[str, str]) -> ClientHttp:
    """Return a sender that authorizes by these headers alone."""
    return ClientHttp(connection.endpoint.transport, lambda: headers)


def filter_of(labels: Mapping[str, str], prefix: str = "", name: str = "", not_in: Iterable[str] = ()) -> str:
    """Return the list filter for jobs with these labels.

    Args:
        prefix: The beginning of their names; "" for any.
        name: The field with a job's name.
        not_in: States that the jobs don't have.
    """
    terms = [f'labels.{label}="{value}"' for label, value in labels.items()]
    terms += [f'state!="{state}"' for state in not_in]
    return " AND ".join([*terms, f'{name}:"{prefix}*"'] if prefix else terms)
