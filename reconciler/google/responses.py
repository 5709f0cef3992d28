"""Responses of the services: readers of their fields, and the exceptions for their errors.

A field with a value of another type counts as missing, so that one such field doesn't hide a job.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, TypeVar, get_origin

from msgspec import Struct
from msgspec.structs import fields

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.base.http import NoAnswerError
from reconciler.base.sanitize import one_line
from reconciler.google.denials import remedy_of
from reconciler.model.fields import count_of, list_of, part_of, text_of
from reconciler.model.manifest import JsonObject

Record = TypeVar("Record", bound=Struct)

_ANY = re.compile(".+")


class ApiError(ServiceError):
    """Error response of a service.

    Attributes:
        reason: `error.status` of `google.rpc.Status`, such as "ALREADY_EXISTS"; "" for none.
        remedy: The remedy of the reason that the error's details give; "" for none, as if a role is missing.
        retry_after: The seconds that the service asks to wait; None for none.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int,
        reason: str,
        hint: str = "",
        retry_after: float | None = None,
        remedy: str = "",
    ) -> None:
        super().__init__(message, hint=remedy or hint)
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        self.remedy = remedy


def about(resource: JsonObject, name: str, pattern: re.Pattern[str] = _ANY) -> JsonObject:
    """Return the response if its field `name` matches the pattern of a job's name; raise NoAnswerError."""
    if not pattern.fullmatch(text_of(resource, name)):
        raise NoAnswerError("the service's answer names no job of this repository")
    return resource


def unknown(what: str) -> ServiceError:
    """Return the exception for a kind or a name of a job that this version doesn't support."""
    return ServiceError(
        what, hint="a newer version may have written the claim that names it: update the reconciler"
    )


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
    if type_ is int:
        return count_of
    return {Mapping: _texts_of, list: list_of}.get(get_origin(type_), text_of)


def _texts_of(resource: JsonObject, name: str) -> Mapping[str, str]:
    """Return the text fields of an object field."""
    return {key: value for key, value in part_of(resource, name).items() if isinstance(value, str)}


def api_error(status: int, content: bytes, delay: float | None = None) -> ApiError:
    """Return the exception for an error response; its text contains nothing of the request.

    `delay` is the number of seconds that the response asks to wait.
    """
    try:
        error = json.loads(content)["error"]
        reason, message = text_of(error, "status"), text_of(error, "message")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        # A 404 means a missing resource only if it comes from the service, not from a proxy.
        message = f"HTTP {status} without a readable error; a proxy may have answered"
        hint = _HINTS.get(status, "check the endpoint and any proxy between")
        return ApiError(message, status=status, reason="", hint=hint, retry_after=delay)
    mistakes = _MISTAKE.findall(message) if message.startswith("List of found errors:") else ()
    text = one_line("; ".join(f"{what} ({field})" for field, what in mistakes) or message or f"HTTP {status}")
    if status == 404:
        return NotFoundAtServiceError(text, status=status, reason=reason, hint=_NOT_FOUND)
    remedy, hint = remedy_of(error, is_denied=status == 403), _HINTS.get(status, "")
    return ApiError(text, status=status, reason=reason, hint=hint, retry_after=delay, remedy=remedy)


_MISTAKE = re.compile(r"\t\d+\.Field: ([^;\t]*); Message: ([^\t]*)")
"""A mistake in the message by which Vertex AI refuses a job."""
_NOT_FOUND = 'check "project" and "location" in reconciler.yaml'
_HINTS = {
    401: "the credentials are missing or expired: run `gcloud auth application-default login`",
    403: "the identity lacks a permission, such as those of roles/aiplatform.user, or the API is not enabled "
    "in this project; `reconciler init --claims` prints who needs which role",
    429: "a quota is exhausted: try again later, or raise the quota",
}


class NotFoundAtServiceError(ApiError, NotFoundError):
    """The service has no such resource."""
