"""A listing has every page or is an error, and differs from every other listing before it is read."""

from __future__ import annotations

import json
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from reconciler.base.errors import ServiceError
from reconciler.base.http import HttpResponse, NoAnswerError
from reconciler.google.listing import RESTARTS, RecordPages, listing
from reconciler.google.responses import ApiError


class Item(Struct):
    name: Annotated[str, Meta(min_length=1)]


PAGES = RecordPages("items", Item)


class Service:
    """A service that returns the pages of `script` in order and records the requested page tokens."""

    def __init__(self, script: list[Any]) -> None:
        self.script = script
        self.asked: list[str | None] = []

    def ask(self, token: str | None) -> HttpResponse:
        page = self.script[len(self.asked)]
        self.asked.append(token)
        if isinstance(page, int):
            raise ApiError("refused", status=page, reason="")
        if isinstance(page, bytes):
            return HttpResponse(200, {}, page)
        names, following = page
        answer = {"items": [{"name": name} for name in names], "nextPageToken": following}
        return HttpResponse(200, {}, json.dumps(answer).encode())


def listed(script: list[Any]) -> tuple[list[str], Service]:
    service = Service(script)
    found = listing(lambda **page: service.ask(page["pageToken"]), PAGES)
    return [item.name for item in found], service


def test_all_pages_are_taken_in_order_and_no_item_twice() -> None:
    found, service = listed([("ab", "1"), ("", "2"), ("bc", "3"), ("d", "")])
    assert found == ["a", "b", "c", "d"]
    assert service.asked == [None, "1", "2", "3"]


@pytest.mark.parametrize("lost", [400, 404, 410, 412])
def test_a_token_that_is_not_taken_begins_anew(lost: int) -> None:
    found, service = listed([("a", "1"), lost, ("a", "2"), ("b", "")])
    assert found == ["a", "b"]
    assert service.asked == [None, "1", None, "2"]


def test_a_token_that_comes_again_begins_anew() -> None:
    found, service = listed([("a", "1"), ("b", "1"), ("c", "")])
    assert found == ["c"]
    assert service.asked == [None, "1", None]


def test_a_listing_that_breaks_off_each_time_is_none() -> None:
    with pytest.raises(ServiceError, match="failed 4 times"):
        listed([("a", "1"), 410] * (1 + RESTARTS))


@pytest.mark.parametrize("script", [[500], [400], [("a", "1"), 500], [("a", "1"), ("b", "2"), 403]])
def test_what_else_goes_wrong_is_told(script: list[Any]) -> None:
    with pytest.raises(ApiError):
        listed(script)


def test_a_page_that_is_none_ends_it() -> None:
    with pytest.raises(ServiceError, match="without name"):
        listed([("a", "1"), ([""], "2"), ("c", "")])


# --- Pages that can't be read ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "page",
    [
        b"[]",
        b"<html>",
        b'{"items": [{"name": "a"}], "nextPageToken": 7}',
        b'{"items": [{"name": "a"}], "nextPageToken": "\\ud800"}',
        b'{"items": [' + b"9" * 5000 + b'], "nextPageToken": 7}',
        b'{"items": [{"name": "\xff"}], "nextPageToken": 7}',
        b'{"items": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    ],
)
def test_what_is_no_page_at_all_is_refused_when_it_comes(page: bytes) -> None:
    with pytest.raises(NoAnswerError):
        listed([page])


@pytest.mark.parametrize(
    "items",
    [b"null", b'"x"', b"{}", b"[7]", b'[{"name": 7}]', b'[{"name": "\xff"}]', b"[" + b"9" * 5000 + b"]"],
)
def test_items_that_are_none_are_refused(items: bytes) -> None:
    with pytest.raises(NoAnswerError):
        listed([b'{"items": ' + items + b"}"])


def test_a_page_in_an_odd_form_is_read_as_far_as_it_goes() -> None:
    page = b'{"items": [{"name": "a", "size": NaN}, {"name": "b"}], "nextPageToken": false}'
    found, _ = listed([page])
    assert found == ["a", "b"]


def test_a_bounded_listing_ends_with_the_page_that_exceeds_the_bound() -> None:
    service = Service([("ab", "1"), ("c", "2"), ("d", "")])
    found = listing(lambda **page: service.ask(page["pageToken"]), PAGES, 2)
    assert [item.name for item in found] == ["a", "b", "c"]
    assert service.asked == [None, "1"]
