"""The plain form of manifests: one of the several forms that gcloud and the API take for the same `spec`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

from reconciler.base.diagnostics import Keys

_CAPITAL = re.compile("[A-Z]")
_UNDERSCORE = re.compile("_([a-z])")
_MOST_NAMES = 1000  # fields of the API have fewer


def plain_form(manifest: Any, schema: Mapping[str, Any]) -> Any:
    """Return a manifest of any shape with its `spec` in plain form; the argument stays as it is.

    The published schemas also accept other forms that gcloud takes: a null field and an enum's
    `x-unspecified` value, which count as absent, and a single mapping where the API repeats, which counts as
    a list of one. Below `x-snake-case` keys in snake_case become the fields that they mean. The checks, the
    name, the plan and the request see only the plain form.

    A required field stays even if it is null, as one with `x-not-null` does, so that its message has a place.
    `schema` is the plain schema of the manifest's kind.
    """
    if not isinstance(manifest, dict) or "spec" not in manifest:
        return manifest
    return {**manifest, "spec": _plain(manifest["spec"], schema["properties"]["spec"], schema["$defs"])}


def _plain(
    value: Any, schema: Mapping[str, Any], definitions: Mapping[str, Any], *, by_snake: bool = False
) -> Any:
    """Return the value of one field in plain form; `by_snake` if its keys may be in snake_case."""
    by_snake = by_snake or "x-snake-case" in schema
    schema = _target_of(schema, definitions)
    if "items" in schema:
        item = _target_of(schema["items"], definitions)
        if "properties" not in item:
            return value
        # A mapping without any field of an item, such as `env: {SEED: "1"}`, is a mistake of another kind.
        if isinstance(value, dict) and (not value or _has_any(value, item["properties"], by_snake=by_snake)):
            value = [value]
        if not isinstance(value, list):
            return value
        return [_plain(element, item, definitions, by_snake=by_snake) for element in value]
    if not isinstance(value, dict):
        return value
    if "properties" not in schema:
        values = schema.get("additionalProperties")
        if not isinstance(values, dict):
            return value
        return {key: _plain(part, values, definitions, by_snake=by_snake) for key, part in value.items()}
    fields, required = schema["properties"], schema.get("required", ())
    if by_snake:
        value = in_camel_case(value, fields)
    return {
        key: _plain(part, _field_of(key, fields), definitions, by_snake=by_snake)
        for key, part in value.items()
        if key not in fields or key in required or not _is_absent(part, fields[key])
    }


def _field_of(key: Any, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema of a key's value, also for a key that is in snake_case by mistake."""
    if key not in fields and isinstance(key, str) and "_" in key:
        key = keys_in_camel_case((key,))[0]
    field: Mapping[str, Any] = fields.get(key, {})
    return field


def _has_any(value: Mapping[str, Any], fields: Mapping[str, Any], *, by_snake: bool) -> bool:
    names = [*fields, *map(snake_case, fields)] if by_snake else fields
    return any(name in value for name in names)


def _is_absent(value: Any, field: Mapping[str, Any]) -> bool:
    if value is None:
        return "x-not-null" not in field
    return isinstance(value, str) and value in field.get("x-unspecified", ())


def _target_of(schema: Mapping[str, Any], definitions: Mapping[str, Any]) -> Mapping[str, Any]:
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    target: Mapping[str, Any] = definitions.get(name, schema)
    return target


@lru_cache(_MOST_NAMES)
def snake_case(name: str) -> str:
    """Return a field's name in snake_case: `machine_spec` for `machineSpec`."""
    return _CAPITAL.sub(lambda match: f"_{match[0].lower()}", name)


def in_camel_case(value: Mapping[str, Any], fields: Iterable[str]) -> dict[str, Any]:
    """Return a mapping in which a field written in snake_case has its own name.

    A field that the mapping has in both spellings keeps both, so that a check finds them.
    """
    names = {snake_case(name): name for name in fields}
    return {name if (name := names.get(key, key)) not in value else key: part for key, part in value.items()}


def keys_in_camel_case(keys: Keys) -> Keys:
    """Return a path with every key in camelCase."""
    return tuple(
        _UNDERSCORE.sub(lambda match: match[1].upper(), key) if isinstance(key, str) else key for key in keys
    )
