"""Answers that Vertex AI's collections share."""

from __future__ import annotations

from collections.abc import Sequence

from reconciler.training_service.http.message import ApiError, violations
from reconciler.training_service.state.database import new_number
from reconciler.training_service.state.records import JsonObject
from reconciler.training_service.tuning.checks import Mistake

_TYPE = "type.googleapis.com/google.cloud.aiplatform.v1."
_EMPTY: JsonObject = {"@type": "type.googleapis.com/google.protobuf.Empty", "value": {}}


def refused(mistakes: Sequence[Mistake]) -> ApiError:
    """Return the error for a request with mistakes."""
    errors = "".join(f"{n}.Field: {path}; Message: {text}\t" for n, (path, text) in enumerate(mistakes, 1))
    return violations(mistakes, f"List of found errors:\t{errors}")


def deletion(location: str, at: str) -> JsonObject:
    """Return the finished long-running operation that answers a delete.

    Args:
        location: The resource name of the location.
        at: The time, RFC 3339.
    """
    return _operation(location, "DeleteOperationMetadata", at, _EMPTY)


def upload(model: str, version_id: int, at: str) -> JsonObject:
    """Return the finished long-running operation that answers the upload of a model's version.

    Args:
        model: The model's resource name.
        at: The time, RFC 3339.
    """
    response = {"@type": f"{_TYPE}UploadModelResponse", "model": model, "modelVersionId": str(version_id)}
    return _operation(model, "UploadModelOperationMetadata", at, response)


def _operation(parent: str, metadata: str, at: str, response: JsonObject) -> JsonObject:
    return {
        "name": f"{parent}/operations/{new_number()}",
        "metadata": {"@type": _TYPE + metadata, "genericMetadata": {"createTime": at, "updateTime": at}},
        "done": True,
        "response": response,
    }
