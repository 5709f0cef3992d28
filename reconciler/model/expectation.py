"""Expectations of a run's metrics, the values that they are judged on, and the judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum

from msgspec import Struct


class Expectation(Struct, frozen=True, array_like=True):
    """Bounds of one metric, an entry of a manifest's `expect`: at least one is given, None is none."""

    metric: str
    min: float | None = None
    max: float | None = None


class Missing(StrEnum):
    """Why a metric has no value that can be judged."""

    NO_FOLDER = "no-folder"
    """The run has no output folder, and its study no such metric."""
    NO_FILE = "no-file"
    """There is no metrics file."""
    NOT_NAMED = "not-named"
    """No metrics file has the metric."""
    NO_NUMBER = "no-number"
    """The value isn't a finite number."""
    NOT_JSON = "not-json"
    """No file has the metric, and one isn't a JSON object."""
    TOO_LARGE = "too-large"
    """No file has the metric, and one is too large to be read."""
    WRITTEN_LATER = "written-later"
    """No file has the metric, but for one that was written after the run had ended."""
    TWO_VALUES = "two-values"
    """Two files have different values."""
    NO_TRIAL = "no-trial"
    """No trial of the study is the best one."""
    RECORD_GONE = "record-gone"
    """The service no longer has the run's record, and nothing was judged before."""


class Measured(Struct, frozen=True):
    """Value of one metric of a run that succeeded, as it is judged for ever.

    Attributes:
        value: The value; None for none.
        missing: Why there is none; None with a value.
        files: The files it was read from, or that are to blame, relative to the run's output folder; () for a
            study's own measurement.
        generations: The generations of these files.
    """

    value: float | None = None
    missing: Missing | None = None
    files: tuple[str, ...] = ()
    generations: tuple[str, ...] = ()


class RunMetrics(Struct, frozen=True):
    """Measured metrics of the run of one content; later ones are only added.

    Attributes:
        job_name, resource: The run.
        folder: The folder (gs://…) that the files are below; "" for none.
        metrics: By name.
    """

    job_name: str
    resource: str
    folder: str = ""
    metrics: Mapping[str, Measured] = {}


class Judged(Struct, frozen=True):
    """One expectation beside the measured value."""

    expectation: Expectation
    measured: Measured

    @property
    def is_met(self) -> bool:
        """True if the value is within the bounds."""
        value, bounds = self.measured.value, self.expectation
        if value is None:
            return False
        return (bounds.min is None or value >= bounds.min) and (bounds.max is None or value <= bounds.max)


class Judgement(Struct, frozen=True):
    """Judgement of a run that succeeded.

    Attributes:
        judged: The expectations whose metrics have been measured, in the manifest's order.
        unread: Why others could not be measured yet, a clause; "" if all have been.
    """

    judged: tuple[Judged, ...] = ()
    unread: str = ""

    @property
    def misses(self) -> list[Judged]:
        """The expectations that aren't met."""
        return [judged for judged in self.judged if not judged.is_met]


def judge(
    expectations: Sequence[Expectation], metrics: Mapping[str, Measured], unread: str = ""
) -> Judgement:
    """Return the judgement on a run's metrics.

    Args:
        expectations: Those of a manifest.
        metrics: The measured metrics of the run.
        unread: Why others could not be read.
    """
    judged = tuple(Judged(e, metrics[e.metric]) for e in expectations if e.metric in metrics)
    return Judgement(judged, unread if len(judged) < len(expectations) else "")
