"""Answers in JSON and errors, independent of any HTTP server: the service also runs in process."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from reconciler.base.listener.message import Request, Response
from reconciler.training_service.state.records import Json, JsonObject

JSON_TYPE = "application/json; charset=UTF-8"

# HTTP status of each google.rpc.Code (google/rpc/code.proto).
_HTTP = {
    "INVALID_ARGUMENT": 400,
    "FAILED_PRECONDITION": 400,
    "OUT_OF_RANGE": 400,
    "UNAUTHENTICATED": 401,
    "PERMISSION_DENIED": 403,
    "NOT_FOUND": 404,
    "ABORTED": 409,
    "ALREADY_EXISTS": 409,
    "INTERNAL": 500,
    "UNIMPLEMENTED": 501,
    "UNAVAILABLE": 503,
}

STORAGE_PATHS = ("/storage/", "/upload/", "/download/", "/resumable/", "/batch/")


def json_response(value: Json, status: int = 200, *, pretty: bool = True) -> Response:
    """Return an answer with a JSON body."""
    text = json.dumps(value, separators=(",", ":"))
    if pretty:
        # The same bytes as `json.dumps(value, indent=2)`, which runs in Python and is ten times slower.
        text = msgspec.json.format(text, indent=2) + "\n"
    return Response(status, (("Content-Type", JSON_TYPE),), text.encode())


class ApiError(Exception):
    """Refusal of a request, answered as google.rpc.Status.

    Attributes:
        status: The name of a google.rpc.Code.
        message: For people.
        details: google.rpc error details, each with its "@type".
        http: The HTTP status; by default the code's.
        reason: Cloud Storage's own name for the error ("conditionNotMet"), if any.
    """

    def __init__(
        self,
        status: str,
        message: str,
        *,
        details: Sequence[JsonObject] = (),
        http: int = 0,
        reason: str = "",
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.details = list(details)
        self.http = http or _HTTP[status]
        self.reason = reason

    def body(self) -> JsonObject:
        """Return the error in the form of the JSON APIs."""
        error: JsonObject = {"code": self.http, "message": self.message, "status": self.status}
        if self.details:
            error["details"] = self.details
        return {"error": error}

    def storage_body(self) -> JsonObject:
        """Return the error in Cloud Storage's form: with `errors`, older than google.rpc.Status."""
        reason = self.reason or _STORAGE_REASONS.get(self.http, "backendError")
        error = {"message": self.message, "domain": "global", "reason": reason}
        return {
            "error": {"code": self.http, "message": self.message, "errors": [error], "status": self.status}
        }


# https://cloud.google.com/storage/docs/json_api/v1/status-codes
_STORAGE_REASONS = {
    400: "invalid",
    401: "authError",
    403: "forbidden",
    404: "notFound",
    409: "conflict",
    410: "gone",
    412: "conditionNotMet",
    416: "requestedRangeNotSatisfiable",
    501: "notImplemented",
}


def invalid(message: str) -> ApiError:
    """Return the error for an invalid request."""
    return ApiError("INVALID_ARGUMENT", message)


def not_found(message: str) -> ApiError:
    """Return the error for a missing resource."""
    return ApiError("NOT_FOUND", message)


def violations(mistakes: Sequence[tuple[str, str]], message: str = "") -> ApiError:
    """Return the error for several mistakes, each with its field's path, as google.rpc.BadRequest."""
    fields = [{"field": path, "description": description} for path, description in mistakes]
    details = [{"@type": "type.googleapis.com/google.rpc.BadRequest", "fieldViolations": fields}]
    return ApiError(
        "INVALID_ARGUMENT", message or "\n".join(description for _, description in mistakes), details=details
    )


def error_response(request: Request, error: ApiError) -> Response:
    """Return the error in the form of the API that the request addresses."""
    if error.http == 304:  # "not modified" is not an error to HTTP, and has no body
        return Response(304)
    body = error.storage_body() if request.path.startswith(STORAGE_PATHS) else error.body()
    return json_response(body, error.http)
