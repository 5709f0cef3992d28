"""A listing has every page or is an error, whether or not the next page is asked for while one is read."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Annotated, Any

import pytest
from msgspec import Meta, Struct

from reconciler.engines.base import ApiError
from reconciler.engines.listing import RESTARTS, Pages, listing
from reconciler.errors import ServiceError
from reconciler.transport import HttpResponse


class Item(Struct):
    name: Annotated[str, Meta(min_length=1)]


PAGES = Pages("items", Item, ("name", "name"), lambda item: Item(item["name"]))


class Service:
    """Gives the pages of `script`, one after the other; notes what it is asked for."""

    def __init__(self, script: list[Any]) -> None:
        self.script = script
        self.asked: list[str | None] = []
        self.under_way = 0
        self.most = 0
        self._lock = threading.Lock()

    def ask(self, token: str | None) -> HttpResponse:
        with self._lock:
            self.under_way += 1
            self.most = max(self.most, self.under_way)
            number = len(self.asked)
            self.asked.append(token)
        try:
            page = self.script[number]
            if isinstance(page, int):
                raise ApiError("refused", status=page, reason="")
            names, following = page
            answer = {"items": [{"name": name} for name in names], "nextPageToken": following}
            return HttpResponse(200, {}, json.dumps(answer).encode())
        finally:
            with self._lock:
                self.under_way -= 1


Listed = Callable[[list[Any]], tuple[list[str], Service]]


@pytest.fixture(params=[False, True], ids=["one by one", "ahead"])
def listed(request: pytest.FixtureRequest) -> Listed:
    def take(script: list[Any]) -> tuple[list[str], Service]:
        service = Service(script)
        try:
            found = listing(service.ask, PAGES, lambda item: item.name, ahead=request.param)
        finally:
            assert (service.under_way, service.most) == (0, 1)
        return list(found), service

    return take


def test_all_pages_are_taken_in_order_and_no_item_twice(listed: Listed) -> None:
    found, service = listed([("ab", "1"), ("", "2"), ("bc", "3"), ("d", "")])
    assert found == ["a", "b", "c", "d"]
    assert service.asked == [None, "1", "2", "3"]


@pytest.mark.parametrize("lost", [400, 404, 410, 412])
def test_a_token_that_is_not_taken_begins_anew(listed: Listed, lost: int) -> None:
    found, service = listed([("a", "1"), lost, ("a", "2"), ("b", "")])
    assert found == ["a", "b"]
    assert service.asked == [None, "1", None, "2"]


def test_a_token_that_comes_again_begins_anew(listed: Listed) -> None:
    found, service = listed([("a", "1"), ("b", "1"), ("c", "")])
    assert found == ["c"]
    assert service.asked == [None, "1", None]


def test_a_listing_that_breaks_off_each_time_is_none(listed: Listed) -> None:
    with pytest.raises(ServiceError, match="broke off 4 times"):
        listed([("a", "1"), 410] * (1 + RESTARTS))


@pytest.mark.parametrize("script", [[500], [400], [("a", "1"), 500], [("a", "1"), ("b", "2"), 403]])
def test_what_else_goes_wrong_is_told(listed: Listed, script: list[Any]) -> None:
    with pytest.raises(ApiError):
        listed(script)


def test_a_page_that_is_none_ends_it(listed: Listed) -> None:
    with pytest.raises(ServiceError, match="without name"):
        listed([("a", "1"), ([""], "2"), ("c", "")])
