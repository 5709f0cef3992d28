"""Field masks of responses: the `fields` parameter, or a read mask.

Such as "customJobs(name,labels/team),nextPageToken".
"""

from __future__ import annotations

import re
from collections import deque
from functools import lru_cache

from reconciler.training_service.http.message import ApiError, invalid
from reconciler.training_service.state.records import Json, JsonObject

Mask = dict[str, "Mask"]
"""Selected fields by name; an empty mask below a name selects the whole value. "*" is any name."""

_MASK_TOKEN = re.compile(r"[A-Za-z0-9_*.\-]+|[(),/]")
_MAX_MASK_DEPTH = 20


def mask_of(text: str) -> Mask:
    """Return the mask of a `fields` parameter.

    Raises:
        ApiError: INVALID_ARGUMENT: The text is not a field mask.
    """
    tokens = deque(_MASK_TOKEN.findall(text))
    if "".join(tokens) != "".join(text.split()):
        raise _unreadable_mask(text)
    mask = _take_mask(text, tokens, 0)
    if tokens:
        raise _unreadable_mask(text)
    return mask


cached_mask = lru_cache(maxsize=100)(mask_of)
"""Cached `mask_of`; the result is shared and must not be changed."""


def mask_of_paths(text: str) -> Mask:
    """Return the mask of a google.protobuf.FieldMask: snake_case or camelCase paths, separated by commas."""
    mask: Mask = {}
    for path in text.split(","):
        below = mask
        for part in path.strip().split("."):
            below = below.setdefault(_camel(part), {})
    return mask


def masked(value: Json, mask: Mask) -> Json:
    """Return the parts of `value` that the mask selects; applies the mask to each item of a list."""
    if not mask:
        return value
    if isinstance(value, list):
        return [masked(item, mask) for item in value]
    if not isinstance(value, dict):
        return value
    return _masked_fields(value, mask)


def _masked_fields(value: JsonObject, mask: Mask) -> JsonObject:
    fields: JsonObject = {}
    for name, item in value.items():
        below = mask.get(name, mask.get("*"))
        if below is not None:
            fields[name] = masked(item, below) if below else item
    return fields


def _take_mask(text: str, tokens: deque[str], depth: int) -> Mask:
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
    if depth > _MAX_MASK_DEPTH or not tokens or tokens[0] in "(),/":
        raise _unreadable_mask(text)
    below = mask.setdefault(tokens.popleft(), {})
    if tokens and tokens[0] == "/":
        tokens.popleft()
        _take_field(text, tokens, depth + 1, below)
    elif tokens and tokens[0] == "(":
        tokens.popleft()
        below.update(_take_mask(text, tokens, depth + 1))
        if not tokens or tokens.popleft() != ")":
            raise _unreadable_mask(text)


def _unreadable_mask(text: str) -> ApiError:
    return invalid(f"Invalid field selection {text[:200]}")


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.capitalize() for part in rest)
