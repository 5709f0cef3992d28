"""Values as a remedy writes them: YAML in one line, and lists of parameters and metrics made of mappings."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from msgspec import json

from reconciler.base.diagnostics import same_word

_PLAIN = re.compile(r"(?:--?|\.{0,2}/)?[A-Za-z_][\w./=@%+-]*(?::[\w./=@%+-]+)*", re.ASCII)
_YAML_WORDS = frozenset({"y", "n", "yes", "no", "true", "false", "on", "off", "null"})
_IDS = ("parameterId", "parameterName", "metricId")
_LEAST = frozenset({"min", "minValue", "lower", "low"})
_MOST = frozenset({"max", "maxValue", "upper", "high"})
_VALUES = frozenset({"values", "categories", "choices", "categoricalValues", "discreteValues"})


def flow_word(word: str) -> str:
    """Return a text as YAML in one line, quoted where YAML would read something else."""
    if _PLAIN.fullmatch(word) and word.lower() not in _YAML_WORDS:
        return word
    return json.encode(word).decode()


def flow(value: Any) -> str:
    """Return a value as YAML in one line."""
    if isinstance(value, dict):
        return f"{{{', '.join(f'{flow_word(key)}: {flow(part)}' for key, part in value.items())}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(flow, value))}]"
    return flow_word(value) if isinstance(value, str) else json.encode(value).decode()


def named_item(name: str, part: Any, fields: Collection[str]) -> dict[str, Any] | None:
    """Return the item of a list that a key with its value stands for, such as `rate: {min: 0, max: 1}`.

    Args:
        name: The key: a parameter's or metric's name.
        part: Its value.
        fields: The fields of the list's items.

    Returns:
        The item; None for an item without a name, or for a value of another form.
    """
    id_field = next((field for field in _IDS if field in fields), "")
    if not id_field:
        return None
    if id_field == "metricId" and isinstance(part, str):
        goal = same_word(part, ("MAXIMIZE", "MINIMIZE"))
        return {id_field: name, "goal": goal} if goal else None
    if not isinstance(part, dict) or not part:
        return None
    own = {same_word(key, fields): value for key, value in part.items()}
    if all(own):
        return {id_field: name, **own}
    values = _values(part, is_vertex=id_field == "parameterId")
    return {id_field: name, **values} if values else None


def _values(part: Mapping[str, Any], *, is_vertex: bool) -> dict[str, Any]:
    """Return a parameter's values in the service's fields, from the short forms that people write."""
    words = {same_word(key, _LEAST | _MOST | _VALUES): value for key, value in part.items()}
    least = next((words[word] for word in words if word in _LEAST), None)
    most = next((words[word] for word in words if word in _MOST), None)
    listed = next((words[word] for word in words if word in _VALUES), None)
    if _is_number(least) and _is_number(most):
        is_whole = isinstance(least, int) and isinstance(most, int)
        bounds = {"minValue": least, "maxValue": most}
        if is_vertex:
            return {"integerValueSpec" if is_whole else "doubleValueSpec": bounds}
        return {"type": "INTEGER" if is_whole else "DOUBLE", **bounds}
    if not isinstance(listed, list) or not listed:
        return {}
    if all(map(_is_number, listed)):
        numbers = sorted(listed)
        return (
            {"discreteValueSpec": {"values": numbers}}
            if is_vertex
            else {
                "type": "DISCRETE",
                "discreteValues": numbers,
            }
        )
    texts = [item if isinstance(item, str) else json.encode(item).decode() for item in listed]
    return (
        {"categoricalValueSpec": {"values": texts}}
        if is_vertex
        else {
            "type": "CATEGORICAL",
            "categoricalValues": texts,
        }
    )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
