"""A check of answers against the full discovery documents of Google's client, not the trimmed ones."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import jsonschema
from googleapiclient import discovery_cache

from reconciler.base.listener.message import Request, Response

DOCUMENTS = Path(discovery_cache.__file__).parent / "documents"
NAMES = ("aiplatform.v1", "ml.v1", "storage.v1", "logging.v2", "iamcredentials.v1")

_TIME = r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z$"
_FORMATS = {
    "int64": {"pattern": r"^-?[0-9]{1,19}$"},
    "uint64": {"pattern": r"^[0-9]{1,20}$"},
    "int32": {"minimum": -(2**31), "maximum": 2**31 - 1},
    "uint32": {"minimum": 0, "maximum": 2**32 - 1},
    "google-datetime": {"pattern": _TIME},
    "date-time": {"pattern": _TIME},
    "google-duration": {"pattern": r"^-?[0-9]+(\.[0-9]{1,9})?s$"},
    "byte": {"pattern": r"^[A-Za-z0-9+/_-]*={0,2}$"},
}
_STATUSES = {
    400: ("INVALID_ARGUMENT", "FAILED_PRECONDITION", "OUT_OF_RANGE"),
    401: ("UNAUTHENTICATED",),
    403: ("PERMISSION_DENIED",),
    404: ("NOT_FOUND",),
    409: ("ALREADY_EXISTS", "ABORTED"),
    410: ("NOT_FOUND",),
    412: ("FAILED_PRECONDITION",),
    416: ("OUT_OF_RANGE",),
    500: ("INTERNAL",),
    501: ("UNIMPLEMENTED",),
    503: ("UNAVAILABLE",),
}
_DETAIL = {"type": "object", "required": ["@type"], "properties": {"@type": {"type": "string"}}}
_PROBLEM = {
    "type": "object",
    "required": ["message", "domain", "reason"],
    "properties": {name: {"type": "string"} for name in ("message", "domain", "reason")},
    "additionalProperties": False,
}


def check(request: Request, response: Response) -> str:
    """Check an answer, and return the id of its method, "" for none.

    Raises:
        jsonschema.ValidationError, AssertionError: It differs from the documents.
    """
    path = re.sub(r"^/jobs/[^/]+", "", request.path)
    method = _method(request.method, path)
    if path == "/token":  # not a Google API: RFC 6749 defines its answers
        return ""
    if response.status >= 400 and response.status != 499:
        _check_error(path, response)
    elif method and response.status in (200, 201):
        _check_answer(method, path, request, response)
    elif response.status in (204, 304, 308, 499):
        assert not response.content
    return method["id"] if method else ""


def _check_answer(method: dict[str, Any], path: str, request: Request, response: Response) -> None:
    is_media = request.parameter("alt") == "media" or path.startswith("/download/")
    begins_upload = "upload" in path and not response.content
    if is_media or begins_upload:
        return
    _validator(method["document"], method["response"]["$ref"]).validate(_json(response))


def _check_error(path: str, response: Response) -> None:
    properties: dict[str, Any] = {
        "code": {"const": response.status},
        "message": {"type": "string", "minLength": 1},
        "status": {"enum": list(_STATUSES[response.status])},
        "details": {"type": "array", "items": _DETAIL},
    }
    required = ["code", "message", "status"]
    if re.match(r"/(storage|upload|download|resumable|batch)/", path):
        properties["errors"] = {"type": "array", "items": _PROBLEM, "minItems": 1}
        required.append("errors")
    inner = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    outer = {
        "type": "object",
        "properties": {"error": inner},
        "required": ["error"],
        "additionalProperties": False,
    }
    jsonschema.validate(_json(response), outer)
    assert "Traceback" not in response.content.decode()


def _json(response: Response) -> Any:
    assert dict(response.headers)["Content-Type"] == "application/json; charset=UTF-8"
    return json.loads(response.content, parse_constant=_refuse)


def _refuse(name: str) -> None:
    raise AssertionError(f"{name} is no JSON")


@cache
def document(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((DOCUMENTS / f"{name}.json").read_text())
    return loaded


@cache
def methods() -> tuple[tuple[re.Pattern[str], dict[str, Any]], ...]:
    found = []
    for name in NAMES:
        for method in _walk(document(name)["resources"]):
            for path in _paths(document(name), method):
                pattern = re.sub(r"\\\{[^}]+\\\}", "[^/]+", re.escape(path))
                found.append((re.compile(pattern), {**method, "document": name}))
    return tuple(
        sorted(found, key=lambda each: -len(each[0].pattern))
    )  # jobs/J:getIamPolicy has the form of jobs/J


def _paths(of: dict[str, Any], method: dict[str, Any]) -> Iterator[str]:
    path = "/" + of["servicePath"] + method.get("flatPath", method["path"])
    yield path
    yield "/download" + path
    for protocol in method.get("mediaUpload", {}).get("protocols", {}).values():
        yield protocol["path"]


def _walk(resources: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for resource in resources.values():
        yield from resource.get("methods", {}).values()
        yield from _walk(resource.get("resources", {}))


def _method(verb: str, path: str) -> dict[str, Any] | None:
    upload = "/upload/" in path
    for pattern, method in methods():
        verbs = ("POST", "PUT", "DELETE") if upload else (method["httpMethod"],)
        if verb in verbs and pattern.fullmatch(urlsplit(path).path):
            return method
    return None


@cache
def _validator(name: str, schema: str) -> jsonschema.Draft202012Validator:
    definitions = {key: _strict(value) for key, value in document(name)["schemas"].items()}
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{schema}", "$defs": definitions})


def _strict(schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        return {"$ref": f"#/$defs/{schema['$ref']}"}
    if schema["type"] == "any":
        return {}
    if schema["type"] == "array":
        return {"type": "array", "items": _strict(schema["items"])}
    if schema["type"] == "object":
        below = schema.get("additionalProperties")
        properties = {key: _strict(value) for key, value in schema.get("properties", {}).items()}
        return {
            "type": "object",
            "properties": properties,
            "additionalProperties": _strict(below) if below else False,
        }
    found = {"type": schema["type"], **_FORMATS.get(schema.get("format", ""), {})}
    return {**found, "enum": schema["enum"]} if "enum" in schema else found
