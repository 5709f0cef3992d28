"""Complete listings: all pages of a single pass, or an error; never a part of the items."""

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
from reconciler.google.client import ApiError, object_of, text_of, typed_record
from reconciler.model.manifest import JsonObject

RESTARTS = 3
"""Number of times that a listing starts again before it fails."""

# Statuses by which a service may refuse a page token that has expired.
_REFUSALS = frozenset({400, 404, 410, 412})

Item = TypeVar("Item", bound=msgspec.Struct)


class Pages(Generic[Item]):
    """Reader of a listing's pages.

    Args:
        items: The field of the responses that contains a page's items.
        item: The type of an item. Its first field identifies the item and must not be empty.
    """

    def __init__(self, items: str, item: type[Item]) -> None:
        self.items = items
        self._item = item
        self._identity = item.__struct_encode_fields__[0]
        self._identity_of = attrgetter(item.__struct_fields__[0])

    def page(self, body: bytes) -> tuple[Raw, str]:
        """Return a page's undecoded items and the next page's token; raise NoAnswerError for no page."""
        try:
            page = self._page.decode(body)
        except (ValueError, RecursionError):
            return self._lenient_page(object_of(body))
        return page.items, page.token

    def read(self, written: Raw) -> dict[str, Item]:
        """Return a page's items by their identity; raise NoAnswerError for items without identity."""
        try:
            items = self._decoder.decode(written)
        except (ValueError, RecursionError):
            return self._lenient_items(object_of(b'{"items":' + bytes(written) + b"}")["items"])
        return dict(zip(map(self._identity_of, items), items, strict=True))

    def _lenient_page(self, answer: JsonObject) -> tuple[Raw, str]:
        token = answer.get("nextPageToken") or ""
        if not isinstance(token, str) or not _encodable(token):
            raise NoAnswerError("the service's answer has a page token that is no text")
        return Raw(json.dumps(answer.get(self.items, [])).encode()), token

    def _lenient_items(self, page: Any) -> dict[str, Item]:
        is_complete = isinstance(page, list) and all(
            isinstance(item, dict) and text_of(item, self._identity) for item in page
        )
        if not is_complete:
            raise NoAnswerError(f"the service's answer has {self.items} without {self._identity}")
        return {item[self._identity]: typed_record(self._item, item) for item in page}

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[list[Item]]:
        # mypy can't check a type that is computed at run time.
        return msgspec.json.Decoder(list[self._item])  # type: ignore[name-defined]

    @cached_property
    def _page(self) -> msgspec.json.Decoder[Any]:
        fields = [("items", Raw, Raw(b"[]")), ("token", str, "")]
        names = {"items": self.items, "token": "nextPageToken"}
        return msgspec.json.Decoder(msgspec.defstruct("Page", fields, rename=names))


class _BrokenOffError(Exception):
    """Listing that can't be continued."""


def listing(get: Callable[..., HttpResponse], pages: Pages[Item]) -> list[Item]:
    """Return every item of a listing; an item that moves to a later page meanwhile is returned once.

    Args:
        get: Requests the page of a `pageToken`; None stands for the first page.

    Raises:
        ServiceError: No complete listing can be read.
    """
    found: dict[str, Item] = {}
    for written in _listed(get, pages):
        found |= pages.read(written)
    return list(found.values())


def _listed(get: Callable[..., HttpResponse], pages: Pages[Item]) -> list[Raw]:
    for _ in range(1 + RESTARTS):
        with suppress(_BrokenOffError):
            return _pass(get, pages)
    raise ServiceError(
        f"the listing of {pages.items} broke off {1 + RESTARTS} times: "
        "the service gives no use of its page tokens",
        hint="try again later; nothing is decided from a part of a listing",
    )


def _pass(get: Callable[..., HttpResponse], pages: Pages[Item]) -> list[Raw]:
    listed: list[Raw] = []
    tokens: set[str] = set()
    body = get(pageToken=None).body
    while True:
        items, token = pages.page(body)
        listed.append(items)
        if not token:
            return listed
        if token in tokens:
            # The service returned a token twice: the listing would never end.
            raise _BrokenOffError
        tokens.add(token)
        body = _next(get, token)


def _next(get: Callable[..., HttpResponse], token: str) -> bytes:
    try:
        return get(pageToken=token).body
    except ApiError as error:
        if error.status not in _REFUSALS:
            raise
        # Without the token, the rest of the items would be left out.
        raise _BrokenOffError from None


def _encodable(text: str) -> bool:
    # JSON's escapes can contain half of a surrogate pair, which UTF-8 can't encode.
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
