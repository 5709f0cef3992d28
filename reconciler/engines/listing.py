"""Whole listings: every page of one and the same pass, or an error; never a part that passes for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from reconciler.engines.base import ApiError, execute, text_of
from reconciler.errors import ServiceError
from reconciler.manifest import JsonObject
from reconciler.transport import NoAnswerError

RESTARTS = 3
"""How often a listing begins again before it counts as impossible."""

# What a service may say of a page token that it gave out and doesn't know any more.
_REFUSALS = frozenset({400, 404, 410, 412})


class _LostError(Exception):
    """The listing can't go on from where it is."""


def listing(collection: Any, request: Callable[[], Any], items: str, identity: str) -> tuple[JsonObject, ...]:
    """Every item of a listing.

    A page token that the service refuses, or gives a second time, begins the listing anew: to go on without
    it would leave items out.

    Args:
        collection: The Google client's, which knows how to ask for a next page.
        request: Makes the request for the first page.
        items: The field of the answers that holds a page's items.
        identity: The field that tells items apart: one that moves to a later page meanwhile is listed once.

    Raises:
        ServiceError: There is no complete listing to be had.
    """
    for _ in range(1 + RESTARTS):
        try:
            return _pass(collection, request(), items, identity)
        except _LostError:
            continue
    raise ServiceError(
        f"the listing of {items} broke off {1 + RESTARTS} times: the service gives no use of its page tokens",
        hint="try again later; nothing is decided from a part of a listing",
    )


def _pass(collection: Any, request: Any, items: str, identity: str) -> tuple[JsonObject, ...]:
    found: dict[str, JsonObject] = {}
    tokens: set[str] = set()
    while request is not None:
        answer = _page(request, first=not tokens)
        found |= _identified(answer, items, identity)
        token = answer.get("nextPageToken") or ""
        if not isinstance(token, str) or not _encodable(token):
            raise NoAnswerError("the service's answer has a page token that is no text")
        if token in tokens:
            raise _LostError
        tokens.add(token)
        request = collection.list_next(request, answer) if token else None
    return tuple(found.values())


def _encodable(text: str) -> bool:
    """Whether it can be sent back: JSON's escapes can hold half of a surrogate pair."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)


def _page(request: Any, *, first: bool) -> JsonObject:
    try:
        answer: JsonObject = execute(request)
    except ApiError as error:
        if first or error.status not in _REFUSALS:
            raise
        raise _LostError from None
    return answer


def _identified(answer: JsonObject, items: str, identity: str) -> dict[str, JsonObject]:
    """A page's items by what tells them apart; raises NoAnswerError where the page isn't one."""
    page = answer.get(items, [])
    whole = isinstance(page, list) and all(
        isinstance(item, dict) and text_of(item, identity) for item in page
    )
    if not whole:
        raise NoAnswerError(f"the service's answer has {items} without {identity}")
    return {item[identity]: item for item in page}
