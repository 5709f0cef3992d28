"""Smallest values that GitHub's description of its API permits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_TEXTS = {"date-time": "2026-01-01T00:00:00Z", "uri": "https://api.github.com/", "email": "a@example.com"}


def smallest(schema: Mapping[str, Any], description: Mapping[str, Any]) -> Any:
    """Return a value of a schema, with required properties only.

    Args:
        schema: The schema.
        description: The whole description, to which its references lead.
    """
    if reference := schema.get("$ref"):
        target: Any = description
        for name in reference.removeprefix("#/").split("/"):
            target = target[name]
        return smallest(target, description)
    for key in ("oneOf", "anyOf", "allOf"):
        if key in schema:
            return smallest(schema[key][0], description)
    if "enum" in schema:
        return schema["enum"][0]
    types = schema.get("type", "object")
    kind = types if isinstance(types, str) else types[0]
    if schema.get("nullable") or (not isinstance(types, str) and "null" in types):
        return None
    match kind:
        case "object":
            properties = schema.get("properties", {})
            return {name: smallest(properties[name], description) for name in schema.get("required", ())}
        case "array":
            return []
        case "string":
            return _TEXTS.get(schema.get("format", ""), "")
        case "boolean":
            return False
        case _:
            return 0
