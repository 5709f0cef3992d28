"""Complete listings: all pages or an error, never a part of the items."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cached_property
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from reconciler.base.errors import ServiceError
from reconciler.base.http import HttpResponse, NoAnswerError
from reconciler.google.client import object_of
from reconciler.google.responses import ApiError, typed_record
from reconciler.model.fields import text_of
from reconciler.model.manifest import JsonObject

RESTARTS = 3
"""Number of times that a listing starts again before it fails."""

# Statuses by which a service may refuse a page token that has expired.
_REFUSALS = frozenset({400, 404, 410, 412})

Item = TypeVar("Item", bound=msgspec.Struct)
Found = TypeVar("Found")


class RecordPages(Generic[Item]):
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

    def read(self, body: bytes) -> tuple[dict[str, Item], str]:
        """Return a page's items by their identity, and the next page's token; raise NoAnswerError."""
        try:
            page = self._decoder.decode(body)
        except (ValueError, RecursionError):
            return self._read_leniently(object_of(body))
        return dict(zip(map(self._identity_of, page.items), page.items, strict=True)), page.token

    def _read_leniently(self, page: JsonObject) -> tuple[dict[str, Item], str]:
        """Return the same of a page that has a field with a value of another type."""
        items, token = self.resources(page)
        return {name: typed_record(self._item, item) for name, item in items.items()}, token

    def resources(self, page: JsonObject) -> tuple[dict[str, JsonObject], str]:
        """Return the items as the service wrote them, by their identity, and the next page's token.

        Raises:
            NoAnswerError: The page is none; fields with a value of another type do no harm.
        """
        token, items = page.get("nextPageToken") or "", page.get(self.items, [])
        if not isinstance(token, str) or not _encodable(token):
            raise NoAnswerError("the service's answer has a page token that is not text")
        is_complete = isinstance(items, list) and all(
            isinstance(item, dict) and text_of(item, self._identity) for item in items
        )
        if not is_complete:
            raise NoAnswerError(f"the service's answer has {self.items} without {self._identity}")
        return {item[self._identity]: item for item in items}, token

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        # mypy can't check a type that is computed at run time.
        items: Any = list[self._item]  # type: ignore[name-defined]
        fields = [("items", items, msgspec.field(default_factory=list)), ("token", str, "")]
        names = {"items": self.items, "token": "nextPageToken"}
        return msgspec.json.Decoder(msgspec.defstruct("Page", fields, rename=names))


class ResourcePages(Generic[Item]):
    """Reader of a listing's pages that keeps every field of the items."""

    def __init__(self, pages: RecordPages[Item]) -> None:
        self.items = pages.items
        self._pages = pages

    def read(self, body: bytes) -> tuple[dict[str, JsonObject], str]:
        """Return a page's items by their identity, and the next page's token; raise NoAnswerError."""
        return self._pages.resources(object_of(body))


class PageReader(Protocol[Found]):
    """Reader of the pages that `listing` goes through."""

    items: str

    def read(self, body: bytes) -> tuple[dict[str, Found], str]:
        """Return a page's items by their identity, and the next page's token; raise NoAnswerError."""


class _BrokenOffError(Exception):
    """Listing that can't be continued."""


def listing(
    get: Callable[..., HttpResponse], pages: PageReader[Found], most: int | None = None
) -> list[Found]:
    """Return every item of a listing; an item that moves to a later page meanwhile is returned once.

    Args:
        get: Requests the page of a `pageToken`; None stands for the first page.
        most: Number of items; after a page with which there are more, no page is requested. None for all.

    Raises:
        ServiceError: No complete listing can be read.
    """
    for _ in range(1 + RESTARTS):
        with suppress(_BrokenOffError):
            return _pass(get, pages, most)
    raise ServiceError(
        f"the listing of {pages.items} failed {1 + RESTARTS} times: the service rejects its own page tokens",
        hint="try again later; nothing is decided from an incomplete listing",
    )


def _pass(get: Callable[..., HttpResponse], pages: PageReader[Found], most: int | None) -> list[Found]:
    tokens: set[str] = set()
    all_items, token = pages.read(get(pageToken=None).body)
    while token and (most is None or len(all_items) <= most):
        if token in tokens:
            # The service returned a token twice: the listing would never end.
            raise _BrokenOffError
        tokens.add(token)
        try:
            body = get(pageToken=token).body
        except ApiError as error:
            if error.status not in _REFUSALS:
                raise
            # Without the token, the rest of the items would be left out.
            raise _BrokenOffError from None
        items, token = pages.read(body)
        all_items |= items
    return list(all_items.values())


def _encodable(text: str) -> bool:
    # JSON's escapes can contain half of a surrogate pair, which UTF-8 can't encode.
    return text.isascii() or not any("\ud800" <= char <= "\udfff" for char in text)
