"""Whole listings: every page of one and the same pass, or an error; never a part that passes for all."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw

from reconciler.base.errors import ServiceError
from reconciler.base.http import HttpResponse, NoAnswerError
from reconciler.google.client import ApiError, object_of, text_of
from reconciler.model.manifest import JsonObject

RESTARTS = 3
"""How often a listing begins again before it counts as impossible."""

# What a service may say of a page token that it gave out and doesn't know any more.
_REFUSALS = frozenset({400, 404, 410, 412})

Item = TypeVar("Item", bound=msgspec.Struct)
Made = TypeVar("Made")


class Pages(Generic[Item]):
    """How the pages of a listing are read.

    Args:
        items: The field of the answers that holds a page's items.
        item: What each of them is; its field `identity` must not be empty.
        identity: The field that tells items apart, both as the service and as `item` calls it.
        lenient: Makes an `item` of one that has fields which aren't as they should be.
    """

    def __init__(
        self,
        items: str,
        item: type[Item],
        identity: tuple[str, str],
        lenient: Callable[[JsonObject], Item],
    ) -> None:
        self.items = items
        self._item = item
        self._identity, self._attribute = identity
        self._lenient = lenient

    def page(self, body: bytes) -> tuple[Raw, str]:
        """A page's items as they are written, and the next page's token; NoAnswerError for no page."""
        try:
            page = self._page.decode(body)
        except (ValueError, RecursionError):
            # What has another form than is known: how far it can be read all the same is said below.
            return self._odd_page(object_of(body))
        return page.items, page.token

    def read(self, written: Raw) -> dict[str, Item]:
        """The items of a page by what tells them apart; NoAnswerError where they have nothing that does."""
        try:
            items = self._decoder.decode(written)
        except (ValueError, RecursionError):
            return self._leniently(object_of(b'{"items":' + bytes(written) + b"}")["items"])
        return dict(zip(map(self._name, items), items, strict=True))

    def _odd_page(self, answer: JsonObject) -> tuple[Raw, str]:
        token = answer.get("nextPageToken") or ""
        if not isinstance(token, str) or not _encodable(token):
            raise NoAnswerError("the service's answer has a page token that is no text")
        return Raw(json.dumps(answer.get(self.items, [])).encode()), token

    def _leniently(self, page: Any) -> dict[str, Item]:
        whole = isinstance(page, list) and all(
            isinstance(item, dict) and text_of(item, self._identity) for item in page
        )
        if not whole:
            raise NoAnswerError(f"the service's answer has {self.items} without {self._identity}")
        return {item[self._identity]: self._lenient(item) for item in page}

    @cached_property
    def _name(self) -> Callable[[Item], str]:
        return attrgetter(self._attribute)

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[list[Item]]:
        # A type that is known only here can't be checked: hence the "ignore".
        return msgspec.json.Decoder(list[self._item])  # type: ignore[name-defined]

    @cached_property
    def _page(self) -> msgspec.json.Decoder[Any]:
        fields = [("items", Raw, Raw(b"[]")), ("token", str, "")]
        names = {"items": self.items, "token": "nextPageToken"}
        return msgspec.json.Decoder(msgspec.defstruct("Page", fields, rename=names))


class _LostError(Exception):
    """The listing can't go on from where it is."""


def listing(
    ask: Callable[[str | None], HttpResponse], pages: Pages[Item], made: Callable[[Item], Made]
) -> list[Made]:
    """Return what `made` makes of every item of a listing.

    A page token that the service refuses, or gives a second time, begins the listing anew: to go on without
    it would leave items out. An item that moves to a later page meanwhile is listed once.

    Args:
        ask: Asks for the page of a token, for the first one with None.
        pages: How its answers are read.
        made: Converts an item.

    Raises:
        ServiceError: There is no complete listing to be had, or it can't be read.
    """
    found: dict[str, Made] = {}
    for written in _listed(ask, pages):
        page = pages.read(written)
        found |= zip(page, map(made, page.values()), strict=True)
    return list(found.values())


def _listed(ask: Callable[[str | None], HttpResponse], pages: Pages[Item]) -> list[Raw]:
    """The items of every page."""
    for _ in range(1 + RESTARTS):
        with suppress(_LostError):
            return _pass(ask, pages)
    raise ServiceError(
        f"the listing of {pages.items} broke off {1 + RESTARTS} times: "
        "the service gives no use of its page tokens",
        hint="try again later; nothing is decided from a part of a listing",
    )


def _pass(ask: Callable[[str | None], HttpResponse], pages: Pages[Item]) -> list[Raw]:
    listed: list[Raw] = []
    tokens: set[str] = set()
    body = ask(None).body
    while True:
        items, token = pages.page(body)
        listed.append(items)
        if not token:
            return listed
        if token in tokens:
            raise _LostError
        tokens.add(token)
        body = _next(ask, token)


def _next(ask: Callable[[str | None], HttpResponse], token: str) -> bytes:
    try:
        return ask(token).body
    except ApiError as error:
        if error.status not in _REFUSALS:
            raise
        raise _LostError from None


def _encodable(text: str) -> bool:
    """Whether it can be sent back: JSON's escapes can hold half of a surrogate pair."""
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
