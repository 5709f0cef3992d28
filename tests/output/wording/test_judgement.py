"""Sentences of judgements: what was measured beside what is expected, and why a metric is missing."""

from __future__ import annotations

import pytest

from reconciler.model.expectation import (
    LEAST,
    MOST,
    Expectation,
    Judged,
    Judgement,
    Measured,
    Missing,
    Rival,
    Uncompared,
)
from reconciler.output.wording.judgement import judgement_text, misses_text

FILE, FILES = ("model/metrics.json",), ("eval.json", "model/metrics.json")


def judged(measured: Measured, least: float | None = 0.95, most: float | None = None) -> Judged:
    """Return the judgement on a metric called accuracy."""
    return Judged(Expectation("accuracy", least, most), measured)


@pytest.mark.parametrize(
    ("least", "most", "value", "expected"),
    [
        (0.95, None, 0.9, "accuracy 0.9, expected at least 0.95"),
        (0.95, None, 0.95, "accuracy 0.95 (at least 0.95)"),
        (None, 1.0, 1.5, "accuracy 1.5, expected at most 1"),
        (None, 0.0, 0.5, "accuracy 0.5, expected at most 0"),
        (None, -1.0, -2.0, "accuracy -2 (at most -1)"),
        (0.5, 1.0, 0.25, "accuracy 0.25, expected 0.5 to 1"),
        (0.5, 1.0, 0.75, "accuracy 0.75 (0.5 to 1)"),
        (0.0, 0.0, 0.0, "accuracy 0 (0 to 0)"),
        (0.95, None, 0.9499999999999, "accuracy 0.9499999999999, expected at least 0.95"),
        (None, 1e6, 1000000.0000001, "accuracy 1000000.0000001, expected at most 1000000"),
        (0.95, None, 0.9500000000001, "accuracy 0.95 (at least 0.95)"),
        (0.9512345, None, 0.9512344, "accuracy 0.95123, expected at least 0.9512345"),
        (0.9512345, None, 0.9512345, "accuracy 0.9512345 (at least 0.9512345)"),
        (None, 0.9512345, 0.9512346, "accuracy 0.9512346, expected at most 0.9512345"),
    ],
)
def test_sentence_has_value_and_bounds(
    least: float | None, most: float | None, value: float, expected: str
) -> None:
    assert judgement_text(Judgement((judged(Measured(value), least, most),))) == expected


def compared(value: float, published: float = 0.95, goal: str = MOST, **bounds: float) -> Judged:
    """Return the judgement on a metric called accuracy, beside that of the published model."""
    expectation = Expectation("accuracy", goal=goal, **{"worse": 0.01, **bounds})
    return Judged(expectation, Measured(value), Rival("census_1163", {"accuracy": published}))


@pytest.mark.parametrize(
    ("judged", "expected"),
    [
        (compared(0.93), "accuracy 0.93, expected at most 0.01 below the published 0.95 (census_1163)"),
        (compared(0.94), "accuracy 0.94 (at most 0.01 below the published 0.95)"),
        (
            compared(0.97, goal=LEAST),
            "accuracy 0.97, expected at most 0.01 above the published 0.95 (census_1163)",
        ),
        (
            compared(0.93, min=0.9),
            "accuracy 0.93, expected at most 0.01 below the published 0.95 (census_1163)",
        ),
        (
            compared(0.93, min=0.94),
            "accuracy 0.93, expected at least 0.94 and at most 0.01 below the published 0.95 (census_1163)",
        ),
        (compared(0.93, min=0.94, worse=0.5), "accuracy 0.93, expected at least 0.94"),
        (
            compared(0.95, min=0.94, max=1.0),
            "accuracy 0.95 (0.94 to 1 and at most 0.01 below the published 0.95)",
        ),
        (
            compared(0.9399999999),
            "accuracy 0.9399999999, expected at most 0.01 below the published 0.95 (census_1163)",
        ),
        (
            compared(0.94, published=0.950000001),
            "accuracy 0.94, expected at most 0.01 below the published 0.950000001 (census_1163)",
        ),
        (
            compared(0.95, worse=0.0, published=0.950000001),
            "accuracy 0.95, expected at most 0 below the published 0.950000001 (census_1163)",
        ),
    ],
)
def test_sentence_has_published_value_and_its_model(judged: Judged, expected: str) -> None:
    assert judgement_text(Judgement((judged,))) == expected


@pytest.mark.parametrize(
    ("uncompared", "expected"),
    [
        (Uncompared.NOTHING_PUBLISHED, "nothing published to compare with"),
        (Uncompared.NOT_RECORDED, "not compared: the record of census_1163 lacks it"),
        (Uncompared.IN_PLACE, "not compared: it is the published one"),
        (Uncompared.PUBLISHED_BEFORE, "not compared: published here before"),
    ],
)
def test_sentence_tells_why_nothing_is_compared(uncompared: Uncompared, expected: str) -> None:
    rival = Rival("census_1163", {}, uncompared)
    alone = Judged(Expectation("accuracy", worse=0.01, goal=MOST), Measured(0.5), rival)
    bounded = Judged(Expectation("accuracy", min=0.25, worse=0.01, goal=MOST), Measured(0.5), rival)
    missed = Judged(Expectation("accuracy", min=0.75, worse=0.01, goal=MOST), Measured(0.5), rival)
    assert judgement_text(Judgement((alone,))) == f"accuracy 0.5 ({expected})"
    assert judgement_text(Judgement((bounded,))) == f"accuracy 0.5 (at least 0.25; {expected})"
    assert judgement_text(Judgement((missed,))) == "accuracy 0.5, expected at least 0.75"


def test_metric_that_is_only_compared_has_no_bounds_before_its_publication() -> None:
    judged = Judged(Expectation("accuracy", worse=0.01, goal=MOST), Measured(0.5))
    assert judgement_text(Judgement((judged,))) == "accuracy 0.5"


@pytest.mark.parametrize(
    ("missing", "files", "why"),
    [
        (Missing.NO_FOLDER, (), "the run has no output folder"),
        (Missing.NO_FILE, (), "the run wrote no metrics file"),
        (Missing.NOT_NAMED, FILE, "model/metrics.json lacks it"),
        (Missing.NOT_NAMED, FILES, "eval.json and model/metrics.json lack it"),
        (Missing.NO_NUMBER, FILE, "model/metrics.json has no finite number"),
        (Missing.NO_NUMBER, (), "its measurement has no finite number"),
        (Missing.NOT_JSON, FILE, "model/metrics.json is no JSON object"),
        (Missing.NOT_JSON, FILES, "eval.json and model/metrics.json are no JSON objects"),
        (Missing.TOO_LARGE, FILE, "model/metrics.json is too large"),
        (Missing.TOO_LARGE, FILES, "eval.json and model/metrics.json are too large"),
        (Missing.TWO_VALUES, FILES, "eval.json and model/metrics.json have different values"),
        (Missing.NO_TRIAL, (), "the study has no best trial"),
        (Missing.RECORD_GONE, (), "the service no longer has the run's record"),
    ],
)
def test_missing_metric_is_told_with_reason_and_files(
    missing: Missing, files: tuple[str, ...], why: str
) -> None:
    assert misses_text([judged(Measured(None, missing, files))]) == f"accuracy is missing ({why})"


@pytest.mark.parametrize("missing", Missing)
def test_each_reason_has_sentence(missing: Missing) -> None:
    for files in ((), FILE, FILES):
        said = misses_text([judged(Measured(None, missing, files))])
        assert said.startswith("accuracy is missing (")
        assert "{" not in said


def test_names_with_braces_stay_as_they_are() -> None:
    said = misses_text([judged(Measured(None, Missing.NOT_NAMED, ("{files}{0}%s",)))])
    assert said == "accuracy is missing ({files}{0}%s lacks it)"


def test_misses_come_first_in_order_of_manifest() -> None:
    names = ("a", "b", "c", "d")
    values = (0.5, 1.5, 0.25, 2.0)
    both = zip(names, values, strict=True)
    found = Judgement(tuple(Judged(Expectation(name, max=1.0), Measured(value)) for name, value in both))
    missed = "b 1.5, expected at most 1; d 2, expected at most 1"
    assert judgement_text(found) == f"{missed}; a 0.5 (at most 1); c 0.25 (at most 1)"
    assert misses_text(found.misses) == missed
    assert judgement_text(Judgement()) == ""
