"""Judgement of measured metrics by what a manifest expects."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.expectation import Expectation, Judged, Judgement, Measured, Missing, RunMetrics, judge

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
