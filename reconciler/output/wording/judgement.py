"""Sentences of judgements: a metric beside what its manifest expects."""

from __future__ import annotations

from collections.abc import Iterable

from msgspec.structs import replace

from reconciler.model.expectation import (
    MOST,
    Expectation,
    Judged,
    Judgement,
    Measured,
    Missing,
    Uncompared,
)
from reconciler.output.terminal import number_text

_MISSING = {
    Missing.NO_FOLDER: "the run has no output folder",
    Missing.NO_FILE: "the run wrote no metrics file",
    Missing.NOT_NAMED: "{files} lacks it",
    Missing.NO_NUMBER: "{files} has no finite number",
    Missing.NOT_JSON: "{files} is no JSON object",
    Missing.TOO_LARGE: "{files} is too large",
    Missing.WRITTEN_LATER: "{files} was written after the run had ended",
    Missing.TWO_VALUES: "{files} have different values",
    Missing.NO_TRIAL: "the study has no best trial",
    Missing.RECORD_GONE: "the service no longer has the run's record",
}
_OF_SEVERAL = {
    Missing.NOT_NAMED: "{files} lack it",
    Missing.NOT_JSON: "{files} are no JSON objects",
    Missing.TOO_LARGE: "{files} are too large",
    Missing.WRITTEN_LATER: "{files} were written after the run had ended",
}
_UNCOMPARED = {
    Uncompared.NOTHING_PUBLISHED: "nothing published to compare with",
    Uncompared.NOT_RECORDED: "not compared: the record of {job_name} lacks it",
    Uncompared.IN_PLACE: "not compared: it is the published one",
    Uncompared.PUBLISHED_BEFORE: "not compared: published here before",
}


def judgement_text(judgement: Judgement) -> str:
    """Return the metrics of a judgement, the misses first, each with what is expected; not sanitized."""
    missed = judgement.misses
    met = [judged for judged in judgement.judged if judged.is_met]
    return "; ".join(map(_text, [*missed, *met]))


def misses_text(missed: Iterable[Judged]) -> str:
    """Return the metrics that aren't as expected; not sanitized."""
    return "; ".join(map(_text, missed))


def _text(judged: Judged) -> str:
    expectation, measured = judged.expectation, judged.measured
    name = expectation.metric
    if measured.value is None:
        assert measured.missing is not None, "a metric without a value has a reason"
        files = " and ".join(measured.files) or "its measurement"
        sentences = {**_MISSING, **_OF_SEVERAL} if len(measured.files) > 1 else _MISSING
        return f"{name} is missing ({sentences[measured.missing].format(files=files)})"
    shown = number_text(measured.value)
    # "0.95, expected at least 0.95" would be a riddle.
    if replace(judged, measured=Measured(float(shown))).is_met != judged.is_met:
        shown = repr(measured.value)
    if judged.is_met:
        about = " and ".join(filter(None, [_bounds(expectation), _comparison(judged)]))
        about = "; ".join(filter(None, [about, _uncompared(judged)]))
        return f"{name} {shown} ({about})" if about else f"{name} {shown}"
    expected = "" if judged.is_within else _bounds(expectation)
    worse = f"{_comparison(judged)} ({judged.rival.job_name})" if judged.rival and judged.is_worse else ""
    return f"{name} {shown}, expected {' and '.join(filter(None, [expected, worse]))}"


def _comparison(judged: Judged) -> str:
    """Return how much worse than the published value a value may be; "" if it isn't compared."""
    published, worse = judged.published, judged.expectation.worse
    if published is None or worse is None:
        return ""
    side = "below" if judged.expectation.goal == MOST else "above"
    return f"at most {_exact(worse)} {side} the published {_exact(published)}"


def _uncompared(judged: Judged) -> str:
    if judged.rival is None or judged.uncompared is None:
        return ""
    return _UNCOMPARED[judged.uncompared].format(job_name=judged.rival.job_name)


def _bounds(expectation: Expectation) -> str:
    least, most = expectation.min, expectation.max
    if least is not None and most is not None:
        return f"{_exact(least)} to {_exact(most)}"
    if least is not None:
        return f"at least {_exact(least)}"
    return f"at most {_exact(most)}" if most is not None else ""


def _exact(bound: float) -> str:
    shown = number_text(bound)
    return shown if float(shown) == bound else repr(bound)
