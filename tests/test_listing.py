"""A listing has every page or is an error, and is told apart from every other one before it is read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from reconciler.engines.base import ApiError
from reconciler.engines.listing import RESTARTS, Pages, listing
from reconciler.errors import ServiceError
from reconciler.transport import HttpResponse, NoAnswerError
from reconciler.unread import Unread, already_read, digest_of, joined


class Item(Struct):
    name: Annotated[str, Meta(min_length=1)]


PAGES = Pages("items", Item, ("name", "name"), lambda item: Item(item["name"]))


class Service:
    """Gives the pages of `script`, one after the other; notes what it is asked for."""

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


def unread(script: list[Any]) -> Unread[Sequence[str]]:
    return listing(Service(script).ask, PAGES, lambda item: item.name)


def listed(script: list[Any]) -> tuple[list[str], Service]:
    service = Service(script)
    return list(listing(service.ask, PAGES, lambda item: item.name).read()), service


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
    with pytest.raises(ServiceError, match="broke off 4 times"):
        listed([("a", "1"), 410] * (1 + RESTARTS))


@pytest.mark.parametrize("script", [[500], [400], [("a", "1"), 500], [("a", "1"), ("b", "2"), 403]])
def test_what_else_goes_wrong_is_told(script: list[Any]) -> None:
    with pytest.raises(ApiError):
        listed(script)


def test_a_page_that_is_none_ends_it() -> None:
    with pytest.raises(ServiceError, match="without name"):
        listed([("a", "1"), ([""], "2"), ("c", "")])


# --- What isn't read yet ---------------------------------------------------------------------------------

WHOLE = b'{"items": [{"name": "a"}, {"name": "b"}], "nextPageToken": ""}'


@pytest.mark.parametrize(
    "script",
    [
        [("ab", "")],
        [b'{"kind": "list", "items": [{"name": "a"}, {"name": "b"}]}'],
        [b'{"items": [{"name": "a"}, {"name": "b"}], "nextPageToken": null}'],
        [("a", "1"), 410, ("ab", "")],
    ],
)
def test_what_reads_the_same_to_the_letter_has_one_digest(script: list[Any]) -> None:
    assert unread(script).digest == unread([WHOLE]).digest != b""


@pytest.mark.parametrize(
    "script",
    [
        [("ba", "")],
        [("a", "")],
        [("a", "1"), ("b", "")],
        [("ab", "1"), ("", "")],
        [b'{"items": [{"name": "a"}, {"name": "b", "state": "gone"}]}'],
        [b"{}"],
    ],
)
def test_what_may_read_otherwise_has_another_digest(script: list[Any]) -> None:
    assert unread(script).digest != unread([WHOLE]).digest


@given(st.lists(st.text("ab", max_size=3), min_size=1, max_size=3), st.data())
def test_a_digest_is_of_one_content_alone(pages: list[str], data: st.DataObject) -> None:
    others = data.draw(st.lists(st.text("ab", max_size=3), min_size=1, max_size=3))
    scripts = [
        [*((page, str(n)) for n, page in enumerate(each[:-1])), (each[-1], "")] for each in (pages, others)
    ]
    found, other = map(unread, scripts)
    assert (found.digest == other.digest) == (pages == others)


def test_a_digest_tells_where_a_part_ends() -> None:
    assert len({digest_of(parts) for parts in ([b"ab"], [b"a", b"b"], [b"", b"ab"], [], [b""])}) == 5


def test_several_listings_have_a_digest_where_all_of_them_have_one() -> None:
    first, second = unread([("a", "")]), unread([("b", "")])
    assert joined([first, second]).read() == ("a", "b")
    assert joined([first, second]).digest not in (joined([second, first]).digest, joined([first]).digest, b"")
    third: Unread[Sequence[str]] = already_read(["c"])
    assert joined([first, third]).digest == b""
    assert joined([first, third]).read() == ("a", "c")


def test_a_listing_is_read_once() -> None:
    made: list[str] = []
    found = listing(Service([("ab", "")]).ask, PAGES, lambda item: made.append(item.name))
    assert made == []
    assert found.then(len).digest == found.digest
    assert [found.then(len).read(), len(found.read())] == [2, 2]
    assert made == ["a", "b"]


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
        unread([page])


@pytest.mark.parametrize(
    "items",
    [b"null", b'"x"', b"{}", b"[7]", b'[{"name": 7}]', b'[{"name": "\xff"}]', b"[" + b"9" * 5000 + b"]"],
)
def test_items_that_are_none_are_refused_when_they_are_read(items: bytes) -> None:
    found = unread([b'{"items": ' + items + b"}"])
    with pytest.raises(NoAnswerError):
        found.read()


def test_a_page_in_an_odd_form_is_read_as_far_as_it_goes() -> None:
    page = b'{"items": [{"name": "a", "size": NaN}, {"name": "b"}], "nextPageToken": false}'
    assert unread([page]).read() == ["a", "b"]
