"""The published schemas of manifests, widened by keys in snake_case.

The service reads `trainingTaskInputs` as a free value, in which Google's SDK writes snake_case: below the
nodes with `x-snake-case` each field may have either spelling, but not both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from trim import reached, references
from words import Schema

_POINTER = "#/$defs/"
_SUFFIX = ".eitherSpelling"
_PROSE = ("description", "enumDescriptions")


def with_both_spellings(document: Schema) -> Schema:
    """`document` with both spellings below its marked nodes."""
    root = {key: part for key, part in document.items() if key != "$defs"}
    defs: Mapping[str, Schema] = document["$defs"]
    either = {f"{name}{_SUFFIX}": _either(node) for name, node in defs.items()}
    nodes = {name: _marked(node) for name, node in defs.items()} | either
    root = _marked(root)
    kept = reached({f"{_POINTER}{name}": node for name, node in nodes.items()}, references(root))
    return {**root, "$defs": {name: nodes[name] for name in sorted(p.removeprefix(_POINTER) for p in kept)}}


def snake_case(name: str) -> str:
    """A field's name as protocol buffers have it."""
    return re.sub("[A-Z]", lambda match: f"_{match[0].lower()}", name)


def _marked(node: Any) -> Any:
    if isinstance(node, list):
        return [_marked(part) for part in node]
    if not isinstance(node, dict):
        return node
    return _either(node) if "x-snake-case" in node else {key: _marked(part) for key, part in node.items()}


def _either(node: Any) -> Any:
    """A schema whose fields may have either spelling."""
    if isinstance(node, list):
        return [_either(part) for part in node]
    if not isinstance(node, dict):
        return node
    result = {key: _either(part) for key, part in node.items() if key not in ("properties", "required")}
    if "$ref" in node:
        result["$ref"] = f"{node['$ref']}{_SUFFIX}"
    if "properties" in node:
        fields = {name: _either(part) for name, part in node["properties"].items()}
        is_object = "additionalProperties" in node
        others = {
            snake_case(name): _other(name, part) if is_object else part for name, part in fields.items()
        }
        result["properties"] = {**others, **fields}
        twice = [{"required": [name, snake_case(name)]} for name in fields if _has_two(name)]
        if is_object and twice:
            result["allOf"] = [*result.get("allOf", ()), {"not": {"anyOf": twice}}]
    required = node.get("required", ())
    if alone := [name for name in required if not _has_two(name)]:
        result["required"] = alone
    if double := [_one_of(name) for name in required if _has_two(name)]:
        result["allOf"] = [*result.get("allOf", ()), *double]
    return result


def _has_two(name: str) -> bool:
    return snake_case(name) != name


def _one_of(name: str) -> Schema:
    # Not as `anyOf`: an editor then says which field is missing.
    return {"if": {"not": {"required": [snake_case(name)]}}, "then": {"required": [name]}}


def _other(name: str, field: Schema) -> Schema:
    """A field's schema under its name in snake_case, which editors don't offer."""
    bare = {key: part for key, part in field.items() if key not in _PROSE}
    return {"description": f"The same as {name}.", **bare, "doNotSuggest": True}
