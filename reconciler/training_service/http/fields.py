"""Field masks: the `fields` parameter ("customJobs(name,labels/team),nextPageToken"), and read masks."""

from __future__ import annotations

import re
from functools import lru_cache

from reconciler.training_service.http.message import ApiError, invalid
from reconciler.training_service.state.records import Json, JsonObject

Mask = dict[str, "Mask"]
"""Selected fields by name; an empty mask below a name selects the whole value. "*" is any name."""

_TOKEN = re.compile(r"[A-Za-z0-9_*.\-]+|[(),/]")
_MAX_DEPTH = 20


def parse(text: str) -> Mask:
    """Return the mask of a `fields` parameter.

    Raises:
        ApiError: INVALID_ARGUMENT: The text is not a field mask.
    """
    tokens = _TOKEN.findall(text)
    if "".join(tokens) != "".join(text.split()):
        raise _unreadable(text)
    mask, end = _selection(text, tokens, 0, 0)
    if end != len(tokens):
        raise _unreadable(text)
    return mask


parsed = lru_cache(maxsize=100)(parse)
"""Cached `parse`; the result is shared and must not be changed."""


def parse_paths(text: str) -> Mask:
    """Return the mask of a google.protobuf.FieldMask: snake_case or camelCase paths, separated by commas."""
    mask: Mask = {}
    for path in text.split(","):
        below = mask
        for part in path.strip().split("."):
            below = below.setdefault(_camel(part), {})
    return mask


def select(value: Json, mask: Mask) -> Json:
    """Return the parts of `value` that the mask selects; applies the mask to each item of a list."""
    if not mask:
        return value
    if isinstance(value, list):
        return [select(item, mask) for item in value]
    if not isinstance(value, dict):
        return value
    return _select_fields(value, mask)


def _select_fields(value: JsonObject, mask: Mask) -> JsonObject:
    found: JsonObject = {}
    for name, item in value.items():
        below = mask.get(name, mask.get("*"))
        if below is not None:
            found[name] = select(item, below) if below else item
    return found


def _selection(text: str, tokens: list[str], at: int, depth: int) -> tuple[Mask, int]:
    """Parse comma-separated fields from token `at` on; return their mask and the next position."""
    mask: Mask = {}
    while True:
        at = _field(text, tokens, at, depth, mask)
        if at == len(tokens) or tokens[at] != ",":
            return mask, at
        at += 1


def _field(text: str, tokens: list[str], at: int, depth: int, mask: Mask) -> int:
    """Parse one field with its sub-fields into `mask`; return the next position."""
    if depth > _MAX_DEPTH or at == len(tokens) or tokens[at] in "(),/":
        raise _unreadable(text)
    below = mask.setdefault(tokens[at], {})
    following = tokens[at + 1] if at + 1 < len(tokens) else ""
    if following == "/":
        return _field(text, tokens, at + 2, depth + 1, below)
    if following != "(":
        return at + 1
    inner, end = _selection(text, tokens, at + 2, depth + 1)
    if end == len(tokens) or tokens[end] != ")":
        raise _unreadable(text)
    below.update(inner)
    return end + 1


def _unreadable(text: str) -> ApiError:
    return invalid(f"Invalid field selection {text[:200]}")


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
