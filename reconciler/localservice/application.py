"""The service apart from its HTTP server: finds the method a request is for, reads it, answers it."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import format_datetime
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from reconciler.localservice import discovery, field_masks, wire
from reconciler.localservice.aiplatform_api import AiPlatformApi
from reconciler.localservice.calls import Call, Handler
from reconciler.localservice.credentials_api import CredentialsApi
from reconciler.localservice.database import DatabaseError
from reconciler.localservice.discovery import Form, Match
from reconciler.localservice.logging_api import LoggingApi
from reconciler.localservice.message import ApiError, Request, Response, invalid, json_response, not_found
from reconciler.localservice.ml_api import MlApi
from reconciler.localservice.objects import Objects
from reconciler.localservice.paging import Pages
from reconciler.localservice.reach import EVERYTHING, Reach
from reconciler.localservice.records import JsonObject
from reconciler.localservice.storage_api import StorageApi
from reconciler.localservice.store import Store
from reconciler.localservice.tokens import Tokens
from reconciler.localservice.training_api import Training
from reconciler.localservice.uploads import Uploads

MAX_MESSAGE = 10 * 1024 * 1024
"""The largest JSON body, in bytes; uploads aren't limited by it."""

_log = logging.getLogger(__name__)

T = TypeVar("T")

_READS = ("logging.entries.list",)
STORAGE_PATHS = ("/storage/", "/upload/", "/download/", "/resumable/")
"""What Cloud Storage's paths begin with."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EMFILE, errno.ENFILE)


class Application:
    """All APIs over one home.

    Attributes:
        wake: Called when a job was created or is to be cancelled.
        read_only: Refuse whatever would change something: nobody is there to carry it out.
    """

    def __init__(
        self, store: Store, home: Path, *, wake: Callable[[], None] = lambda: None, read_only: bool = False
    ) -> None:
        pages = Pages(store)
        training = Training(store, home, pages, wake)
        objects = Objects(home, store.database, store.clock)
        self._clock = store.clock
        self._read_only = read_only
        self._handlers: dict[str, Handler] = {
            **AiPlatformApi(training).handlers(),
            **MlApi(training).handlers(),
            **StorageApi(objects, Uploads(home), pages).handlers(),
            **LoggingApi(store, home, pages).handlers(),
            **CredentialsApi(Tokens(store)).handlers(),
        }

    def handle(self, request: Request, reach: Reach = EVERYTHING) -> Response:
        """The answer to a request, dated by the service's clock; whatever goes wrong is one too."""
        # The time before looking: what the answer shows is never older than its date.
        began = self._clock()
        return _dated(answered(request, lambda: self._answer(request, reach)), began)

    def _answer(self, request: Request, reach: Reach) -> Response:
        found = discovery.match(request.method, request.path)
        if found is None:
            raise not_found("Method not found.")
        handler = self._handlers.get(found.method.id)
        if handler is None:
            raise ApiError("UNIMPLEMENTED", f"This service doesn't serve {found.method.id}.")
        if self._read_only and found.method.verb != "GET" and found.method.id not in _READS:
            raise ApiError("FAILED_PRECONDITION", "The embedded training service isn't running.")
        answer = handler(_call(request, found, reach))
        return answer if isinstance(answer, Response) else _written(request, answer)


def answered(request: Request, answer: Callable[[], T]) -> T | Response:
    """Return the result of `answer`, or the response for what it raises; log unexpected errors."""
    try:
        return answer()
    except ApiError as error:
        return error_response(request, error)
    except DatabaseError as error:
        _log.error("the database failed: %s", error)
        return error_response(request, ApiError("UNAVAILABLE", f"The service can't keep its state: {error}"))
    except OSError as error:
        return error_response(request, _of_system(error))
    except Exception:
        _log.exception("%s %s failed", request.method, request.path)
        return error_response(request, ApiError("INTERNAL", "Internal error encountered."))


def _dated(response: Response, at: datetime) -> Response:
    dated = (*response.headers, ("Date", _date(int(at.timestamp()))))
    return Response(response.status, dated, response.content, response.file, response.length)


@lru_cache(maxsize=1)
def _date(seconds: int) -> str:
    return format_datetime(datetime.fromtimestamp(seconds, UTC), usegmt=True)


def error_response(request: Request, error: ApiError) -> Response:
    """The error in the form of the API that the request is for."""
    if error.http == 304:
        return Response(304)
    body = error.storage_body() if request.path.startswith(STORAGE_PATHS) else error.body()
    return json_response(body, error.http)


def _call(request: Request, found: Match, reach: Reach) -> Call:
    method = found.method
    # An upload's content isn't its message, and its steps carry an id that isn't in the discovery document.
    upload = found.form is Form.UPLOAD
    query = tuple(pair for pair in request.query if not upload or pair[0] != "upload_id")
    parameters = wire.read_parameters(method, query)
    alt = str(parameters.get("alt", "json")).partition(";")[0]
    if alt not in ("json", "media"):
        raise invalid(f"This service doesn't answer in {alt!r}.")
    body: JsonObject = {}
    if method.request and not upload:
        body = _message(request, found)
    return Call(request, method, found.form, found.path, {**parameters, "alt": alt}, body, reach)


def _message(request: Request, found: Match) -> JsonObject:
    text = request.body.read(MAX_MESSAGE + 1)
    if len(text) > MAX_MESSAGE:
        raise invalid(f"Request payload size exceeds the limit: {MAX_MESSAGE} bytes.")
    api, schema = found.method.api, found.method.request
    patch = api.name == "storage" and found.method.verb == "PATCH"
    return wire.read_message(api, schema, wire.read_json(text), _FIELDS.get(schema, ""), nulls=patch)


# The request fields that hold the whole body, as errors name them.
_FIELDS = {
    "GoogleCloudAiplatformV1CustomJob": "custom_job",
    "GoogleCloudAiplatformV1HyperparameterTuningJob": "hyperparameter_tuning_job",
    "GoogleCloudMlV1__Job": "job",
}


def _written(request: Request, message: JsonObject) -> Response:
    wanted = request.parameter("fields")
    value = field_masks.select(message, field_masks.parsed(wanted)) if wanted else message
    return json_response(value, pretty=request.parameter("prettyPrint") != "false")


def _of_system(error: OSError) -> ApiError:
    if error.errno in _FULL:
        _log.error("the system failed: %s", error)
        return ApiError("UNAVAILABLE", f"The service can't read or write its files: {error.strerror}")
    _log.error("unexpected system error", exc_info=error)
    return ApiError("INTERNAL", "Internal error encountered.")
