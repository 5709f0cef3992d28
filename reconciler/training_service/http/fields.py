"""Field masks: the `fields` parameter ("customJobs(name,labels/team),nextPageToken"), and read masks."""

from __future__ import annotations

import re
from collections import deque
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
    tokens = deque(_TOKEN.findall(text))
    if "".join(tokens) != "".join(text.split()):
        raise _unreadable(text)
    mask = _selection(text, tokens, 0)
    if tokens:
        raise _unreadable(text)
    return mask


parse_cached = lru_cache(maxsize=100)(parse)
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


def _selection(text: str, tokens: deque[str], depth: int) -> Mask:
    """Take comma-separated fields from the tokens; return their mask."""
    mask: Mask = {}
    _take_field(text, tokens, depth, mask)
    while tokens and tokens[0] == ",":
        tokens.popleft()
        _take_field(text, tokens, depth, mask)
    return mask


def _take_field(text: str, tokens: deque[str], depth: int, mask: Mask) -> None:
    """Take one field with its sub-fields from the tokens, and add it to the mask."""
    # The limit keeps a request from exhausting the interpreter's stack.
    if depth > _MAX_DEPTH or not tokens or tokens[0] in "(),/":
        raise _unreadable(text)
    below = mask.setdefault(tokens.popleft(), {})
    if tokens and tokens[0] == "/":
        tokens.popleft()
        _take_field(text, tokens, depth + 1, below)
    elif tokens and tokens[0] == "(":
        tokens.popleft()
        below.update(_selection(text, tokens, depth + 1))
        if not tokens or tokens.popleft() != ")":
            raise _unreadable(text)


def _unreadable(text: str) -> ApiError:
    return invalid(f"Invalid field selection {text[:200]}")


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
