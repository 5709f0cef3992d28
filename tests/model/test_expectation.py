"""Judgement of measured metrics by what a manifest expects."""

from __future__ import annotations

import math
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.expectation import (
    LEAST,
    MOST,
    Expectation,
    Judged,
    Judgement,
    Measured,
    Missing,
    Rival,
    RunMetrics,
    Uncompared,
    judge,
)

GOOD, LOSS = Expectation("accuracy", min=0.95), Expectation("loss", max=1.0)
BAD, SMALL = Measured(0.9), Measured(0.5)


@pytest.mark.parametrize(
    ("least", "most", "value", "expected"),
    [
        (0.95, None, 0.95, True),
        (0.95, None, 0.9499999999999998, False),
        (0.95, None, 1e300, True),
        (None, 0.95, 0.95, True),
        (None, 0.95, 0.9500000000000001, False),
        (None, 0.0, -0.0, True),
        (0.0, None, -1e-300, False),
        (-1.0, 1.0, 1.0, True),
        (-1.0, 1.0, 1.5, False),
        (-1.0, 1.0, -1.5, False),
        (0.5, 0.5, 0.5, True),
    ],
)
def test_value_at_bound_is_within(
    least: float | None, most: float | None, value: float, expected: bool
) -> None:
    assert Judged(Expectation("a", least, most), Measured(value)).is_met is expected


def compared(value: float, published: float, worse: float, goal: str = MOST) -> Judged:
    """Return the judgement of a metric beside the published one."""
    expectation = Expectation("a", worse=worse, goal=goal)
    return Judged(expectation, Measured(value), Rival("census_1", {"a": published}))


@pytest.mark.parametrize(
    ("value", "published", "worse", "goal", "expected"),
    [
        (0.94, 0.95, 0.01, MOST, True),
        (0.9399999, 0.95, 0.01, MOST, False),
        (0.28, 0.29, 0.01, MOST, True),
        (0.3, 0.1, 0.2, LEAST, True),
        (0.30000000000000004, 0.1, 0.2, LEAST, False),
        (5.0, 0.1, 0.2, MOST, True),
        (-5.0, 0.1, 0.2, LEAST, True),
        (0.95, 0.95, 0.0, MOST, True),
        (0.95, 0.95, 0.0, LEAST, True),
        (0.9499999999999998, 0.95, 0.0, MOST, False),
        (-1.5e308, 1.5e308, 1.7e308, MOST, False),
        (-0.0, 0.0, 0.0, MOST, True),
    ],
)
def test_value_may_be_worse_than_published_one_by_exactly_what_is_permitted(
    value: float, published: float, worse: float, goal: str, expected: bool
) -> None:
    judged = compared(value, published, worse, goal)
    assert (judged.is_met, judged.is_worse, judged.is_within) == (expected, not expected, True)


@given(st.decimals(-1000, 1000, places=3), st.decimals(0, 1000, places=3), st.sampled_from([MOST, LEAST]))
def test_numbers_are_compared_as_they_are_written(published: Decimal, worse: Decimal, goal: str) -> None:
    side = -1 if goal == MOST else 1
    last, beyond = published + side * worse, published + side * (worse + Decimal("0.001"))
    assert compared(float(last), float(published), float(worse), goal).is_met
    assert not compared(float(beyond), float(published), float(worse), goal).is_met


def test_bounds_hold_beside_the_comparison() -> None:
    expectation = Expectation("a", min=0.9, worse=0.5, goal=MOST)
    judged = Judged(expectation, Measured(0.8), Rival("census_1", {"a": 0.85}))
    assert (judged.is_met, judged.is_within, judged.is_worse) == (False, False, False)


def test_metric_without_value_is_missed_and_not_worse() -> None:
    judged = Judged(Expectation("a", worse=0.5, goal=MOST), Measured(None, Missing.NO_FILE))
    judged = Judgement((judged,)).beside(Rival("census_1", {"a": 0.85})).judged[0]
    assert (judged.is_met, judged.is_worse) == (False, False)


def test_only_what_asks_for_it_is_compared() -> None:
    worse = Expectation("a", worse=0.1, goal=MOST)
    judged = Judged(worse, Measured(0.5))
    assert (judged.is_met, judged.published, judged.uncompared) == (True, None, None)
    rival = Rival("census_1", {"a": 0.9, "loss": 0.0})
    found = Judgement((judged, Judged(LOSS, SMALL)), "why").beside(rival)
    assert found == Judgement((Judged(worse, Measured(0.5), rival), Judged(LOSS, SMALL)), "why")
    assert found.misses == [found.judged[0]]
    assert [one.published for one in found.judged] == [0.9, None]


@pytest.mark.parametrize("uncompared", [*Uncompared, None])
def test_metric_that_is_not_compared_is_met_and_tells_why(uncompared: Uncompared | None) -> None:
    metrics = {"a": 0.9} if uncompared else {"b": 0.9}
    rival = Rival("census_1", metrics, uncompared)
    judged = Judged(Expectation("a", worse=0.1, goal=MOST), Measured(0.5), rival)
    assert (judged.is_met, judged.published) == (True, None)
    assert judged.uncompared is (uncompared or Uncompared.NOT_RECORDED)


@pytest.mark.parametrize("missing", Missing)
def test_metric_without_value_is_missed(missing: Missing) -> None:
    judgement = judge([Expectation("a", max=1.0)], {"a": Measured(missing=missing)})
    assert (judgement.misses, judgement.unread) == ([*judgement.judged], "")
    assert len(judgement.judged) == 1


def test_judgement_has_measured_metrics_in_order_of_manifest() -> None:
    metrics = {"loss": SMALL, "rows": Measured(1.0), "accuracy": BAD}
    found = judge([GOOD, LOSS], metrics)
    assert found == Judgement((Judged(GOOD, BAD), Judged(LOSS, SMALL)))
    assert found.misses == [Judged(GOOD, BAD)]


def test_judgement_is_unread_only_while_metric_is_not_measured() -> None:
    assert judge([GOOD, LOSS], {"accuracy": BAD}, "why") == Judgement((Judged(GOOD, BAD),), "why")
    assert judge([GOOD], {"accuracy": BAD}, "why").unread == ""
    assert judge([GOOD], {}, "why") == Judgement((), "why")
    assert judge([], {}, "why") == Judgement()


def test_bound_that_is_left_out_is_no_bound() -> None:
    assert judge([GOOD, LOSS], {"accuracy": Measured(0.97), "loss": SMALL}).misses == []


@given(st.floats(allow_nan=False), st.floats(allow_nan=False), st.floats(allow_nan=False))
def test_wider_bounds_never_miss_what_narrower_ones_meet(value: float, least: float, most: float) -> None:
    narrow = Judged(Expectation("x", least, most), Measured(value))
    wide = Judged(Expectation("x", min(least, -math.inf), max(most, math.inf)), Measured(value))
    assert wide.is_met >= narrow.is_met


def test_stored_words_for_a_missing_metric_never_change() -> None:
    assert [*map(str, Missing)] == [
        "no-folder",
        "no-file",
        "not-named",
        "no-number",
        "not-json",
        "too-large",
        "written-later",
        "two-values",
        "no-trial",
        "record-gone",
    ]


def test_values_that_are_left_out_mean_none() -> None:
    assert Measured(1.0).missing is None
    assert RunMetrics("census_1", "jobs/1").folder == ""
    assert (Judgement().unread, judge([GOOD], {}).unread) == ("", "")
