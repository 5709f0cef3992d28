"""Whole listings: every page of one and the same pass, or an error; never a part that passes for all."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, Generic, TypeVar

import msgspec

from reconciler.engines.base import ApiError, object_of, text_of
from reconciler.errors import ServiceError
from reconciler.manifest import JsonObject
from reconciler.meanwhile import Meanwhile
from reconciler.transport import HttpResponse, NoAnswerError

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

    @staticmethod
    def token_of(body: bytes) -> str:
        """The next page's token, found quickly; "" where there is none, or where the page has to say more."""
        try:
            return _turn.decode(body).token
        except (ValueError, RecursionError):
            return ""

    def read(self, body: bytes) -> tuple[dict[str, Item], str]:
        """A page's items by what tells them apart, and the next page's token; NoAnswerError for no page."""
        try:
            page = self._decoder.decode(body)
        except (ValueError, RecursionError):
            # What has another form than is known: how far it can be read all the same is said below.
            return self._leniently(object_of(body))
        return dict(zip(map(self._name, page.items), page.items, strict=True)), page.token

    def _leniently(self, answer: JsonObject) -> tuple[dict[str, Item], str]:
        page = answer.get(self.items, [])
        whole = isinstance(page, list) and all(
            isinstance(item, dict) and text_of(item, self._identity) for item in page
        )
        if not whole:
            raise NoAnswerError(f"the service's answer has {self.items} without {self._identity}")
        token = answer.get("nextPageToken") or ""
        if not isinstance(token, str) or not _encodable(token):
            raise NoAnswerError("the service's answer has a page token that is no text")
        return {item[self._identity]: self._lenient(item) for item in page}, token

    @cached_property
    def _name(self) -> Callable[[Item], str]:
        return attrgetter(self._attribute)

    @cached_property
    def _decoder(self) -> msgspec.json.Decoder[Any]:
        # A type that is known only here can't be checked: hence the "ignore".
        fields = [
            ("items", list[self._item], msgspec.field(default_factory=list)),  # type: ignore[name-defined]
            ("token", str, ""),
        ]
        page = msgspec.defstruct("Page", fields, rename={"items": self.items, "token": "nextPageToken"})
        return msgspec.json.Decoder(page)


class _Turn(msgspec.Struct, rename={"token": "nextPageToken"}):
    """What a page says of the next one."""

    token: str = ""


_turn = msgspec.json.Decoder(_Turn)


class _LostError(Exception):
    """The listing can't go on from where it is."""


def listing(
    ask: Callable[[str | None], HttpResponse],
    pages: Pages[Item],
    made: Callable[[Item], Made],
    *,
    ahead: bool = False,
) -> Sequence[Made]:
    """What is made of every item of a listing.

    A page token that the service refuses, or gives a second time, begins the listing anew: to go on without
    it would leave items out. An item that moves to a later page meanwhile is listed once.

    Args:
        ask: Asks for the page of a token, for the first one with None.
        pages: How its answers are read.
        made: Makes of an item what is wanted.
        ahead: Whether the next page is asked for while one is read; there is one request at most even so.

    Raises:
        ServiceError: There is no complete listing to be had.
    """
    for _ in range(1 + RESTARTS):
        try:
            return _pass(ask, pages, made, ahead=ahead)
        except _LostError:
            continue
    raise ServiceError(
        f"the listing of {pages.items} broke off {1 + RESTARTS} times: "
        "the service gives no use of its page tokens",
        hint="try again later; nothing is decided from a part of a listing",
    )


def _pass(
    ask: Callable[[str | None], HttpResponse],
    pages: Pages[Item],
    made: Callable[[Item], Made],
    *,
    ahead: bool,
) -> Sequence[Made]:
    found: dict[str, Made] = {}
    tokens: set[str] = set()
    body = ask(None).body
    while True:
        following = _Following(ask, pages.token_of(body) if ahead else "", tokens)
        try:
            page, token = pages.read(body)
            found |= zip(page, map(made, page.values()), strict=True)
        finally:
            following.end()
        if not token:
            return list(found.values())
        if token in tokens:
            raise _LostError
        tokens.add(token)
        body = following.page(token)


class _Following:
    """The next page, fetched beside the reading of this one; nothing for a token that was given before."""

    def __init__(
        self, ask: Callable[[str | None], HttpResponse], token: str, tokens: Collection[str]
    ) -> None:
        self._ask = ask
        self._fetching: Meanwhile[bytes] | None = None
        if token and token not in tokens:
            self._fetching = Meanwhile(lambda: _next(ask, token))
            self._fetching.begin()

    def end(self) -> None:
        """Wait until no request is under way."""
        if self._fetching is not None:
            self._fetching.end()

    def page(self, token: str) -> bytes:
        """The page of the token that reading this one gave."""
        return self._fetching.result() if self._fetching is not None else _next(self._ask, token)


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
