"""The filter language: laws over all filters, and its refusals."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.base.listener.message import Request
from reconciler.training_service.application import Application
from reconciler.training_service.http import filters
from reconciler.training_service.http.filters import And, Filter, Not, Or, Restriction
from reconciler.training_service.http.message import ApiError
from reconciler.training_service.state import database
from reconciler.training_service.state.database import Store
from reconciler.training_service.state.records import UNFINISHED, JobState
from tests.support.training_service.bodies import ML, VERTEX, custom_job, ml_job
from tests.support.training_service.served import Clock

FIELDS = ("a", "b", "labels.team")
VALUES = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
RESTRICTIONS = st.builds(
    Restriction, st.sampled_from([("a",), ("b",), ("labels", "team")]), st.just("="), VALUES
)
FILTERS = st.recursive(
    RESTRICTIONS,
    lambda below: st.one_of(
        st.builds(Not, below),
        st.builds(And, st.lists(below, min_size=2, max_size=3).map(tuple)),
        st.builds(Or, st.lists(below, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=8,
)
ITEMS = st.fixed_dictionaries(dict.fromkeys(FIELDS, VALUES))


def written(found: Filter) -> str:
    """Return the filter as text, with parentheses everywhere."""
    match found:
        case Restriction(field, comparison, value):
            escaped = value.replace("\\", "\\\\").replace('"', '\\"')
            return f'{".".join(field)}{comparison}"{escaped}"'
        case Not(term):
            return f"NOT ({written(term)})"
        case And(terms):
            return "(" + " AND ".join(map(written, terms)) + ")"
        case Or(terms):
            return "(" + " OR ".join(map(written, terms)) + ")"


def holds(found: Filter, item: dict[str, str]) -> bool:
    """Evaluate the filter by an independent implementation."""
    match found:
        case Restriction(field, _, value):
            return item[".".join(field)] == value
        case Not(term):
            return not holds(term, item)
        case And(terms):
            return all(holds(term, item) for term in terms)
        case Or(terms):
            return any(holds(term, item) for term in terms)


@pytest.mark.parametrize("text", ['a=("x" OR y)', '(a="x" OR a=y)'])
def test_field_is_compared_with_several_values(text: str) -> None:
    assert filters.parse(text) == Or((Restriction(("a",), "=", "x"), Restriction(("a",), "=", "y")))


@pytest.mark.parametrize("text", ['a=("x" AND "y")', 'a=("x"', "a=()", 'a!=("x" OR "y")', "a=(x OR)"])
def test_list_of_values_has_only_values(text: str) -> None:
    with pytest.raises(ApiError, match="can't read it"):
        filters.parse(text)


@given(FILTERS, ITEMS)
def test_selected_item_has_a_possible_value(found: Filter, item: dict[str, str]) -> None:
    values = filters.possible_values(found, ("a",))
    assert not holds(found, item) or values is None or item["a"] in values


def test_possible_values_are_those_of_every_alternative() -> None:
    assert filters.possible_values(filters.parse('a=("x" OR "y") AND (a="y" OR b=1)'), ("a",)) == {"x", "y"}
    assert filters.possible_values(filters.parse('a=("x" OR "y") AND a="y"'), ("a",)) == {"y"}
    assert filters.possible_values(filters.parse('a="x" OR b="y"'), ("a",)) is None
    assert filters.possible_values(filters.parse('NOT a="x"'), ("a",)) is None


def field(path: tuple[str, ...]) -> filters.Field[dict[str, str]]:
    return filters.text_field(lambda item: item[".".join(path)], "=", "!=", ":")


def selects(text: str, **item: str) -> bool:
    return filters.compile_filter(filters.parse(text), field)(item)


@given(FILTERS)
def test_a_written_filter_is_read_as_it_was(found: Filter) -> None:
    assert filters.parse(written(found)) == found


@given(FILTERS, ITEMS)
def test_a_filter_selects_what_it_means(found: Filter, item: dict[str, str]) -> None:
    assert filters.compile_filter(found, field)(item) == holds(found, item)


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_refused(text: str) -> None:
    try:
        found = filters.parse(text)
    except ApiError as error:
        assert error.status == "INVALID_ARGUMENT"  # noqa: PT017 (both ways are right)
    else:
        assert found == And(()) or filters.parse(written(found)) == found


@given(VALUES, VALUES)
def test_a_wildcard_stands_for_any_text(start: str, rest: str) -> None:
    pattern = filters.compile_filter(Restriction(("a",), ":", start.replace("*", "") + "*"), field)
    assert pattern({"a": start.replace("*", "") + rest})


def test_wildcard_of_many_stars_takes_bounded_time() -> None:
    began = time.process_time()
    assert not selects('a:"' + "*a" * 60 + '*b"', a="a" * 128)
    # Less than 0.01 s; a backtracking pattern would take years.
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", True),
        ("a=1 AND b=2", True),
        ("a=1 b=2", True),
        ("a=2 AND b=2", False),
        ("a=2 OR b=2", True),
        # OR binds tighter than AND: AIP-160
        ("a=2 AND b=2 OR b=2", False),
        ("b=2 OR a=1 AND a=2", False),
        ("NOT a=1", False),
        ("-a=1", False),
        ("NOT NOT a=1", True),
        ("NOT a=2 AND b=2", True),
        ("a!=2", True),
        ("( a = '1' )", True),
        ('a : "*"', True),
        ('b:"2*"', True),
        ('b:"*1"', False),
        ('d:"one*o*two"', True),
        ('d:"*two*one*"', False),
        ('d:"*o*o"', True),
        ("c.d=x", True),
    ],
)
def test_precedence_and_spelling(text: str, wanted: bool) -> None:
    assert selects(text, a="1", b="2", d="one or two", **{"c.d": "x"}) is wanted


@pytest.mark.parametrize(
    "text",
    [
        "a",
        "a=",
        "=1",
        "a==1",
        "(a=1",
        "a=1)",
        "a=1 AND",
        "OR a=1",
        "a=1 OR OR b=2",
        '"a"=1',
        'a="x',
        "NOT",
        "a=~x",
    ],
)
def test_what_is_no_filter(text: str) -> None:
    with pytest.raises(ApiError, match="Invalid filter"):
        filters.parse(text)


@pytest.mark.parametrize(
    "text", ["(" * 60 + "a=1" + ")" * 60, "NOT " * 60 + "a=1", 'a="' + "x" * 30_000 + '"']
)
def test_a_filter_has_bounds(text: str) -> None:
    with pytest.raises(ApiError):
        filters.parse(text)


def test_quotes_and_backslashes_are_escaped_in_quoted_text() -> None:
    assert filters.parse(r'a="say \"x\" \\ y"') == Restriction(("a",), "=", r'say "x" \ y')
    assert filters.parse(r"a='it\'s'") == Restriction(("a",), "=", "it's")


def test_a_quoted_part_of_a_field_may_hold_dots() -> None:
    assert filters.parse('labels."a.b"=1') == Restriction(("labels", "a.b"), "=", "1")


def test_unknown_fields_comparisons_and_values_are_refused() -> None:
    def known(path: tuple[str, ...]) -> filters.Field[datetime] | None:
        return filters.ordered_field(lambda item: item, filters.moment) if path == ("time",) else None

    for text in ("other=1", 'time:"2026-01-01T00:00:00Z"', 'time>"yesterday"'):
        with pytest.raises(ApiError, match="Invalid filter"):
            filters.compile_filter(filters.parse(text), known)
    later = filters.compile_filter(filters.parse('time>"2026-01-01T01:00:00+01:00"'), known)
    assert not later(datetime(2026, 1, 1, tzinfo=UTC))
    assert later(datetime(2026, 1, 1, 0, 0, 1, tzinfo=UTC))


def job_filters(states: list[str], key: str) -> st.SearchStrategy[tuple[str, Callable[[Any], bool]]]:
    """Draw filters by state and key, each with its meaning for a job's resource."""
    terms: list[tuple[str, Callable[[Any], bool]]] = [
        (f'labels.{key}="{value}"', lambda job, value=value: job.get("labels", {}).get(key) == value)
        for value in ("a", "b", "c")
    ]
    terms += [
        (
            f"labels.{key}:{start}*",
            lambda job, start=start: (
                job.get("labels", {}).get(key, "").startswith(start) and key in job.get("labels", {})
            ),
        )
        for start in ("a", "")
    ]
    terms += [(f'state!="{state}"', lambda job, state=state: job["state"] != state) for state in states]
    terms += [(f'state="{state}"', lambda job, state=state: job["state"] == state) for state in states]

    def both(one: Any, other: Any) -> Any:
        return f"({one[0]}) AND ({other[0]})", lambda job: one[1](job) and other[1](job)

    def either(one: Any, other: Any) -> Any:
        return f"({one[0]}) OR ({other[0]})", lambda job: one[1](job) or other[1](job)

    def negated(one: Any) -> Any:
        return f"NOT ({one[0]})", lambda job: not one[1](job)

    return st.recursive(
        st.sampled_from(terms),
        lambda below: st.one_of(
            st.builds(both, below, below), st.builds(either, below, below), st.builds(negated, below)
        ),
        max_leaves=6,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "collection", "prefix"), [(f"{VERTEX}/customJobs", "customJobs", "JOB_STATE_"), (ML, "jobs", "")]
)
def test_filtered_list_has_what_the_filter_means_of_the_whole_list(
    path: str, collection: str, prefix: str, tmp_path: Path
) -> None:
    store = Store(database.open_file(tmp_path / "state.db"), Clock())
    application = Application(store, tmp_path)
    states = [JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED]
    for number in range(12):
        labels = {"reconciler-key": "ab"[number % 2]} if number % 3 else {}
        body = ml_job(f"j{number}", labels=labels) if collection == "jobs" else custom_job(labels=labels)
        made = application.handle(Request.of("POST", path, body=json.dumps(body).encode()))
        assert made.status == 200, made.content
        store.move(number + 1, states[number % 4], only_from=UNFINISHED, at=store.now())

    def listed(**query: str) -> list[Any]:
        found = application.handle(Request.of("GET", f"{path}?{urlencode(query)}"))
        assert found.status == 200, found.content
        return json.loads(found.content).get(collection, [])

    whole = listed()
    assert len(whole) == 12

    @given(job_filters([f"{prefix}{state}" for state in states], "reconciler-key"))
    def check(wanted: tuple[str, Callable[[Any], bool]]) -> None:
        text, means = wanted
        assert listed(filter=text) == [job for job in whole if means(job)]

    check()
