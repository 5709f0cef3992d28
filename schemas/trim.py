"""Discovery documents cut down to what the reconciler and its embedded service use.

Each is still a whole discovery document: `googleapiclient.discovery.build_from_document` takes it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from googleapiclient import discovery_cache

Json = dict[str, Any]

SHIPPED = Path(discovery_cache.__file__).parent / "documents"

_JOBS = ("create", "get", "list", "cancel", "delete")
METHODS: dict[str, dict[str, tuple[str, ...]]] = {
    "aiplatform.v1": {
        "projects.locations.customJobs": _JOBS,
        "projects.locations.hyperparameterTuningJobs": _JOBS,
        "projects.locations.trainingPipelines": _JOBS,
        "projects.locations.models": (
            "upload",
            "get",
            "list",
            "listVersions",
            "patch",
            "mergeVersionAliases",
            "delete",
            "deleteVersion",
        ),
    },
    "ml.v1": {"projects.jobs": ("create", "get", "list", "cancel", "patch", "getIamPolicy")},
    "storage.v1": {
        "buckets": (
            "get",
            "insert",
            "list",
            "delete",
            "getIamPolicy",
            "setIamPolicy",
            "testIamPermissions",
            "getStorageLayout",
        ),
        "managedFolders": ("list",),
        "objects": ("get", "insert", "list", "delete", "patch", "copy", "rewrite", "move", "compose"),
    },
    "logging.v2": {"entries": ("list", "write")},
    "iamcredentials.v1": {"projects.serviceAccounts": ("generateAccessToken",)},
}
"""The methods that are kept: document, resource path, names."""

SCHEMAS: dict[str, tuple[str, ...]] = {
    # The inputs of a pipeline's tuning task, whose field is of any type.
    "aiplatform.v1": ("GoogleCloudAiplatformV1SchemaTrainingjobDefinitionHyperparameterTuningJobSpec",),
}
"""The schemas that are kept beside those that the methods reach."""

_TOP = (
    "kind",
    "discoveryVersion",
    "id",
    "name",
    "version",
    "revision",
    "title",
    "protocol",
    "rootUrl",
    "mtlsRootUrl",
    "servicePath",
    "basePath",
    "baseUrl",
    "batchPath",
)
_PROSE = ("description", "enumDescriptions")


def shipped(name: str) -> Json:
    """The whole document `name`, such as "ml.v1", as the installed client brings it."""
    document: Json = json.loads((SHIPPED / f"{name}.json").read_text(encoding="utf-8"))
    return document


def trimmed(name: str) -> Json:
    """The document with only the methods in METHODS, the schemas that these reach, and no prose."""
    whole = shipped(name)
    root: Json = {}
    for path, methods in METHODS[name].items():
        _at(root, path)["methods"] = {m: _bare(_at(whole, path)["methods"][m]) for m in methods}
    kept = reached(whole["schemas"], [*references(root), *SCHEMAS.get(name, ())])
    return {
        **{key: whole[key] for key in _TOP},
        "auth": {"oauth2": {"scopes": {scope: {} for scope in whole["auth"]["oauth2"]["scopes"]}}},
        "parameters": _bare_each(whole["parameters"]),
        "schemas": {key: _bare(whole["schemas"][key]) for key in sorted(kept)},
        "resources": root["resources"],
    }


def is_output_only(node: Json) -> bool:
    """Whether only the service sets this field; most of ml v1 tells it in the description alone."""
    described = node.get("description")
    return node.get("readOnly") is True or (
        isinstance(described, str) and described.startswith("Output only")
    )


def references(node: Any) -> Iterator[str]:
    """Every `$ref` anywhere in `node`."""
    if isinstance(node, dict):
        if isinstance(node.get("$ref"), str):
            yield node["$ref"]
        node = list(node.values())
    if isinstance(node, list):
        for item in node:
            yield from references(item)


def reached(schemas: Mapping[str, Any], roots: Iterable[str]) -> set[str]:
    """The names that `roots` lead to, they themselves among them."""
    found: set[str] = set()
    left = list(roots)
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += references(schemas[name])
    return found


def _at(root: Json, path: str) -> Json:
    node = root
    for part in path.split("."):
        node = node.setdefault("resources", {}).setdefault(part, {})
    return node


def _bare(node: Any) -> Any:
    """`node` without prose; what only its description tells, "Output only", becomes `readOnly`."""
    if isinstance(node, list):
        return [_bare(item) for item in node]
    if not isinstance(node, dict):
        return node
    bare = {key: _bare_value(key, value) for key, value in node.items() if key not in _PROSE}
    return {**bare, "readOnly": True} if is_output_only(node) else bare


def _bare_value(key: str, value: Any) -> Any:
    # The keys below these two are names, and "description" may be one of them.
    return _bare_each(value) if key in ("properties", "parameters") else _bare(value)


def _bare_each(nodes: Json) -> Json:
    return {name: _bare(node) for name, node in nodes.items()}
