"""Sentences of judgements: what was measured beside what is expected, and why a metric is missing."""

from __future__ import annotations

import pytest

from reconciler.model.expectation import Expectation, Judged, Judgement, Measured, Missing
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
