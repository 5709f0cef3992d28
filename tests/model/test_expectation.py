"""Expectations of metrics, and their judgement."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model.expectation import Expectation, Judged, Judgement, Measured, Missing, RunMetrics, judge

AT_LEAST = Expectation("accuracy", min=0.95)
AT_MOST = Expectation("rmse", max=3.2)


@pytest.mark.parametrize(
    ("expectation", "value", "met"),
    [
        (AT_LEAST, 0.95, True),
        (AT_LEAST, 0.96, True),
        (AT_LEAST, 0.9499999, False),
        (AT_MOST, 3.2, True),
        (AT_MOST, 3.0, True),
        (AT_MOST, 3.2000001, False),
        (Expectation("x", min=1, max=2), 1.5, True),
        (Expectation("x", min=1, max=2), 0.5, False),
        (Expectation("x", min=1, max=2), 2.5, False),
    ],
)
def test_expectation_is_met_within_its_bounds(expectation: Expectation, value: float, met: bool) -> None:
    assert Judged(expectation, Measured(value)).is_met is met


@pytest.mark.parametrize("missing", Missing)
def test_expectation_is_not_met_without_a_value(missing: Missing) -> None:
    assert not Judged(AT_LEAST, Measured(missing=missing)).is_met


def test_judgement_has_measured_metrics_in_order_of_expectations() -> None:
    metrics = {"rmse": Measured(9.0), "accuracy": Measured(0.99), "loss": Measured(1.0)}
    judgement = judge([AT_LEAST, AT_MOST], metrics, "no permission")
    assert [judged.expectation for judged in judgement.judged] == [AT_LEAST, AT_MOST]
    assert [judged.expectation for judged in judgement.misses] == [AT_MOST]
    assert judgement.unread == "", "all are measured"


def test_judgement_says_why_a_metric_is_not_measured() -> None:
    judgement = judge([AT_LEAST, AT_MOST], {"rmse": Measured(9.0)}, "no permission")
    assert [judged.expectation for judged in judgement.judged] == [AT_MOST]
    assert judgement.unread == "no permission"


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
        "two-values",
        "no-trial",
        "record-gone",
    ]


def test_values_that_are_left_out_mean_none() -> None:
    assert Measured(1.0).missing is None
    assert RunMetrics("census_1", "jobs/1").folder == ""
    assert (Judgement().unread, judge([AT_LEAST], {}).unread) == ("", "")
