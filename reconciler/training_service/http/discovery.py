"""Methods of the APIs: routes and schemas by discovery documents."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote_to_bytes

from reconciler.training_service.http.message import STORAGE_PATHS, invalid
from reconciler.training_service.state.records import Json, JsonObject

DOCUMENTS = ("aiplatform.v1", "ml.v1", "storage.v1", "logging.v2", "iamcredentials.v1")

# A bucket's name has at least three characters, so that `/v1/…`, a path of an API, is never an object's.
_MEDIA = re.compile(r"/(?:[a-z0-9]|%[0-9A-Fa-f]{2})(?:[a-z0-9._-]|%[0-9A-Fa-f]{2}){2,}/.+")
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


class Form(StrEnum):
    """Encoding of a method's content: JSON, or media."""

    JSON = "json"
    UPLOAD = "upload"
    DOWNLOAD = "download"


@dataclass(frozen=True, slots=True)
class Api:
    """A discovery document; `parameters` are common to all its methods."""

    name: str
    schemas: Mapping[str, JsonObject]
    parameters: Mapping[str, JsonObject]


@dataclass(frozen=True, slots=True, eq=False)
class Method:
    """A method of an API; `request` is the name of a schema, "" for none.

    Equal to itself only, and so hashable although its documents aren't.

    Attributes:
        id: Such as "aiplatform.projects.locations.customJobs.create".
        parameters: The query parameters by name.
    """

    api: Api
    id: str
    verb: str
    parameters: Mapping[str, JsonObject]
    request: str


@dataclass(frozen=True, slots=True)
class Route:
    """A path pattern and verbs that lead to a method."""

    method: Method
    verbs: tuple[str, ...]
    pattern: re.Pattern[str]
    slashes: int
    form: Form


@dataclass(frozen=True, slots=True)
class Match:
    """The method of a request, with the variable parts of its path, decoded."""

    method: Method
    form: Form
    path: Mapping[str, str]


def schemas_folder() -> Path:
    """Return the folder of the shipped schemas: inside the package in a wheel, next to it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    inside = package / "schemas"
    return inside if inside.is_dir() else package.parent / "schemas"


@cache
def document(name: str) -> JsonObject:
    """Return a trimmed discovery document, such as "ml.v1"."""
    path = schemas_folder() / "discovery" / f"{name}.json"
    api_document: JsonObject = json.loads(path.read_text(encoding="utf-8"))
    return api_document


@cache
def routes() -> tuple[Route, ...]:
    """Return the routes of all documents."""
    return tuple(route for name in DOCUMENTS for route in _routes_of(document(name)))


@cache
def _routes_by_shape() -> Mapping[tuple[str, int], Sequence[Route]]:
    # A variable part of a path contains no slash, so the verb and the number of slashes select few patterns.
    by_shape: dict[tuple[str, int], list[Route]] = {}
    # The longest first: jobs/{jobsId} has the shape of jobs/{jobsId}:getIamPolicy too.
    for route in sorted(routes(), key=lambda route: -len(route.pattern.pattern)):
        for verb in dict.fromkeys(route.verbs):
            by_shape.setdefault((verb, route.slashes), []).append(route)
    return by_shape


def match(verb: str, path: str) -> Match | None:
    """Return the method for a verb and a percent-encoded path; None if no method matches."""
    for route in _routes_by_shape().get((verb, path.count("/")), ()):
        matched = route.pattern.fullmatch(path)
        if matched:
            parts = {key: _decoded(value) for key, value in matched.groupdict().items()}
            return Match(route.method, route.form, parts)
    return _match_media(path) if is_media(verb, path) else None


def is_media(verb: str, path: str) -> bool:
    """Return True for the download of an object at /BUCKET/OBJECT, as in Cloud Storage's XML API."""
    return verb == "GET" and is_object(path)


def is_object(path: str) -> bool:
    """Return True for the path of an object in Cloud Storage's XML API: /BUCKET/OBJECT."""
    return not path.startswith(STORAGE_PATHS) and _MEDIA.fullmatch(path) is not None


def _match_media(path: str) -> Match:
    _, bucket, name = path.split("/", 2)
    return Match(_download(), Form.DOWNLOAD, {"bucket": _decoded(bucket), "object": _decoded(name)})


@cache
def _download() -> Method:
    return next(route.method for route in routes() if route.method.id == "storage.objects.get")


def unserved(verb: str, path: str) -> str:
    """Return the id of the method of Google's APIs that a path leads to, also if this service lacks it.

    The installed client's documents are read when a request first asks for such a method: they take 0.1 s.
    """
    methods = _all_methods().get(verb, ())
    return next((method for pattern, method in methods if pattern.fullmatch(path)), "")


@cache
def _all_methods() -> Mapping[str, Sequence[tuple[re.Pattern[str], str]]]:
    client = find_spec("googleapiclient")
    folders = [Path(location) for location in client.submodule_search_locations or ()] if client else []
    by_verb: dict[str, list[tuple[re.Pattern[str], str]]] = {}
    for name in DOCUMENTS:
        for path in (folder / "discovery_cache" / "documents" / f"{name}.json" for folder in folders):
            whole = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {"resources": {}}
            for method in _methods(whole["resources"]):
                template = f"/{whole['servicePath']}{method.get('flatPath') or method['path']}"
                entry = _whole_pattern(method, template), method["id"]
                by_verb.setdefault(method["httpMethod"], []).append(entry)
    # The longest first, as for `_routes_by_shape`.
    return {verb: sorted(held, key=lambda entry: -len(entry[0].pattern)) for verb, held in by_verb.items()}


def _whole_pattern(method: JsonObject, template: str) -> re.Pattern[str]:
    """Return the pattern of a method's path, in which a model's or a version's name may have any depth."""
    # The flat path of ml.projects.predict, v1/projects/{projectsId}:predict, is that of no model.
    is_deep = any(
        parameter.get("pattern") == "^projects/.*$" for parameter in method.get("parameters", {}).values()
    )
    return re.compile(_pattern(template).pattern.replace("[^/]+", ".+")) if is_deep else _pattern(template)


def _decoded(part: str) -> str:
    try:
        return unquote_to_bytes(part).decode()
    except UnicodeDecodeError as error:
        raise invalid(f"The path holds text that isn't UTF-8: {part}") from error


def _routes_of(api_document: JsonObject) -> Iterator[Route]:
    api = Api(api_document["name"], api_document["schemas"], api_document["parameters"])
    for definition in _methods(api_document["resources"]):
        yield from _routes_to(api, api_document["servicePath"], definition)


def _methods(resources: JsonObject) -> Iterator[JsonObject]:
    for resource in resources.values():
        yield from resource.get("methods", {}).values()
        yield from _methods(resource.get("resources", {}))


def _routes_to(api: Api, service_path: str, definition: JsonObject) -> Iterator[Route]:
    method = _method(api, definition)
    path = f"/{service_path}{definition.get('flatPath') or definition['path']}"
    yield _route(method, (method.verb,), path, Form.JSON)
    if definition.get("supportsMediaDownload"):
        yield _route(method, (method.verb,), "/download" + path, Form.DOWNLOAD)
    for protocol in definition.get("mediaUpload", {}).get("protocols", {}).values():
        # A resumable upload continues with PUT and is cancelled with DELETE, on its first path.
        yield _route(method, (method.verb, "PUT", "DELETE"), protocol["path"], Form.UPLOAD)


def _route(method: Method, verbs: tuple[str, ...], path: str, form: Form) -> Route:
    return Route(method, verbs, _pattern(path), path.count("/"), form)


def _method(api: Api, definition: JsonObject) -> Method:
    parameters: Mapping[str, Json] = definition.get("parameters", {})
    return Method(
        api=api,
        id=definition["id"],
        verb=definition["httpMethod"],
        parameters={name: value for name, value in parameters.items() if value["location"] == "query"},
        request=definition.get("request", {}).get("$ref", ""),
    )


def _pattern(template: str) -> re.Pattern[str]:
    escaped = re.escape(template).replace(r"\{", "{").replace(r"\}", "}")
    return re.compile(_PLACEHOLDER.sub(r"(?P<\1>[^/]+)", escaped))
