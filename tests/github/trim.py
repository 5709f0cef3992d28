"""Trim GitHub's own OpenAPI description to the reporter's operations, and add its missing constraints.

    npm pack @octokit/openapi@23.0.2
    tar xzf octokit-openapi-23.0.2.tgz
    python tests/github/trim.py package/generated/api.github.com.json > tests/github/description.json

A trimmed description stays unchanged.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

OPERATIONS = {
    "/repos/{owner}/{repo}/statuses/{sha}": ("post",),
    "/repos/{owner}/{repo}/commits/{ref}/statuses": ("get",),
    "/repos/{owner}/{repo}/commits/{commit_sha}/pulls": ("get",),
    "/repos/{owner}/{repo}/issues/{issue_number}/comments": ("get", "post"),
    "/repos/{owner}/{repo}/issues/comments/{comment_id}": ("patch",),
    "/user": ("get",),
}
# Keys for readers rather than for validators.
TOLD = ("description", "example", "examples", "externalDocs", "summary", "tags", "title")
# Responses need a description to be valid; a property may have any of these names.
ERRORS = {
    "401": "basic-error",
    "403": "basic-error",
    "404": "basic-error",
    "429": "basic-error",
    "422": "status-validation-error",
}


def trim(whole: dict[str, Any]) -> dict[str, Any]:
    """Return the used operations, their referenced parts, and the overlay."""
    paths = {
        path: {method: with_errors(quiet(whole["paths"][path][method])) for method in methods}
        for path, methods in OPERATIONS.items()
    }
    trimmed: dict[str, Any] = {
        "openapi": whole["openapi"],
        "info": {key: whole["info"][key] for key in ("title", "version", "license")},
        "servers": whole["servers"],
        "paths": paths,
        "components": {"schemas": {"status-validation-error": STATUS_VALIDATION_ERROR}},
    }
    add_references(trimmed, whole)
    overlay(trimmed)
    return trimmed


def quiet(node: Any, *, names: bool = False) -> Any:
    """Remove the text for readers; with `names`, the keys are chosen names, and all of them stay."""
    if isinstance(node, list):
        return [quiet(item) for item in node]
    if not isinstance(node, dict):
        return node
    if "description" in node and "content" in node:
        # A response: its description is required.
        kept = {key: quiet(value) for key, value in node.items() if key != "examples"}
        return {**kept, "description": "Response"}
    return {
        key: quiet(value, names=key in ("properties", "headers", "responses", "schemas"))
        for key, value in node.items()
        if names or not (key in TOLD or key.startswith("x-"))
    }


def with_errors(operation: dict[str, Any]) -> dict[str, Any]:
    """Return the operation with the error responses that GitHub describes only elsewhere."""
    described = {
        status: {
            "description": "Response",
            "content": {"application/json": {"schema": {"$ref": f"#/components/schemas/{schema}"}}},
        }
        for status, schema in ERRORS.items()
    }
    moved = {"$ref": "#/components/responses/moved_permanently"}
    responses = {**described, "301": moved, "307": moved, **operation["responses"]}
    return {**operation, "responses": dict(sorted(responses.items()))}


def add_references(trimmed: dict[str, Any], whole: dict[str, Any]) -> None:
    """Copy every directly or indirectly referenced component."""
    missing = references(trimmed)
    while missing:
        kind, name = missing.pop()
        of_kind = trimmed["components"].setdefault(kind, {})
        if name not in of_kind:
            of_kind[name] = quiet(whole["components"][kind][name])
            if kind == "responses":
                of_kind[name]["description"] = "Response"
            missing |= references(of_kind[name])


def references(node: Any) -> set[tuple[str, str]]:
    """Return every `#/components/KIND/NAME` in `node`."""
    if isinstance(node, list):
        return set().union(*map(references, node))
    if not isinstance(node, dict):
        return set()
    found = set().union(*map(references, node.values()))
    if isinstance(node.get("$ref"), str):
        _, _, kind, name = node["$ref"].split("/")
        found.add((kind, name))
    return found


# GitHub reports an invalid status as a single text ("Validation failed: Description is too long (maximum is
# 140 characters)"), and earlier as a list of objects; the API's description has only the list.
STATUS_VALIDATION_ERROR = {
    "type": "object",
    "required": ["message", "documentation_url"],
    "additionalProperties": False,
    "properties": {
        "message": {"type": "string"},
        "documentation_url": {"type": "string"},
        "status": {"type": "string"},
        "errors": {
            "oneOf": [
                {"type": "string"},
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["code"],
                        "properties": {
                            "resource": {"type": "string"},
                            "field": {"type": "string"},
                            "message": {"type": "string"},
                            "code": {"type": "string"},
                        },
                    },
                },
            ]
        },
    },
}


def overlay(trimmed: dict[str, Any]) -> None:
    """Add GitHub's undescribed limits, and forbid keys beyond the described keys."""
    post = trimmed["paths"]["/repos/{owner}/{repo}/statuses/{sha}"]["post"]
    body = post["requestBody"]["content"]["application/json"]["schema"]
    body["additionalProperties"] = False
    body["properties"]["description"] |= {"maxLength": 140, "pattern": r"^[\u0001-\uffff]*$"}
    body["properties"]["target_url"]["pattern"] = "^https?://"
    comments = trimmed["paths"]["/repos/{owner}/{repo}/issues/{issue_number}/comments"]["post"]
    comment = trimmed["paths"]["/repos/{owner}/{repo}/issues/comments/{comment_id}"]["patch"]
    for operation in (comments, comment):
        body = operation["requestBody"]["content"]["application/json"]["schema"]
        body["additionalProperties"] = False
        body["properties"]["body"] |= {"minLength": 1, "maxLength": 65_536}
    for name in ("status", "basic-error", "nullable-simple-user", "issue-comment", "public-user"):
        trimmed["components"]["schemas"][name]["additionalProperties"] = False


if __name__ == "__main__":
    json.dump(trim(json.loads(Path(sys.argv[1]).read_bytes())), sys.stdout, indent=1, sort_keys=True)
    sys.stdout.write("\n")
