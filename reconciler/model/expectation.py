"""Expectations of a run's metrics, the values that they are judged on, and the judgement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import Decimal
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

MOST = "max"
LEAST = "min"


class Expectation(Struct, frozen=True, array_like=True):
    """Bounds of one metric, an entry of a manifest's `expect`: at least one is given, None is none.

    Commit records keep it: earlier versions skip the fields that they don't know.

    Attributes:
        metric: Its name.
        min, max: The least and the greatest good value.
        worse: How much worse than that of the model in place it may be.
        goal: Which value is better, `MOST` or `LEAST`; "" without `worse`.
    """

    metric: str
    min: float | None = None
    max: float | None = None
    worse: float | None = None
    goal: str = ""


class Uncompared(StrEnum):
    """Why a metric isn't compared with that of the model in place, although `worse` asks for it."""

    NOTHING_PUBLISHED = "nothing-published"
    """There is no model in place."""
    NOT_RECORDED = "not-recorded"
    """The record of the model in place lacks the metric, or is gone."""
    IN_PLACE = "in-place"
    """It is the model in place."""
    PUBLISHED_BEFORE = "published-before"
    """It was published at this address before: a revert is always possible."""


class Rival(Struct, frozen=True):
    """What the metrics of a model are compared with before it is published.

    Attributes:
        job_name: The run of the model in place; "" for none.
        metrics: Those that its record has.
        uncompared: Why nothing is compared; None if the metrics are.
    """

    job_name: str = ""
    metrics: Mapping[str, float] = {}
    uncompared: Uncompared | None = None


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
    """One expectation beside the measured value, and beside the published one once that is asked for.

    Attributes:
        expectation, measured: Both.
        rival: The model that `worse` compares it with; None before a publication, and without `worse`.
    """

    expectation: Expectation
    measured: Measured
    rival: Rival | None = None

    @property
    def is_met(self) -> bool:
        """True if the value is within the bounds, and not too much worse than the published one."""
        return self.is_within and not self.is_worse

    @property
    def is_within(self) -> bool:
        """True if the value is within the bounds."""
        value, bounds = self.measured.value, self.expectation
        if value is None:
            return False
        return (bounds.min is None or value >= bounds.min) and (bounds.max is None or value <= bounds.max)

    @property
    def is_worse(self) -> bool:
        """True if the value is worse than the published one by more than `worse`."""
        value, published, by = self.measured.value, self.published, self.expectation.worse
        if value is None or published is None or by is None:
            return False
        # As people write the numbers: 0.29 - 0.01 is 0.27999999999999997 in floating point.
        difference = _decimal(published) - _decimal(value)
        return (difference if self.expectation.goal == MOST else -difference) > _decimal(by)

    @property
    def published(self) -> float | None:
        """The value that it is compared with; None for none."""
        if self.rival is None or self.uncompared:
            return None
        return self.rival.metrics[self.expectation.metric]

    @property
    def uncompared(self) -> Uncompared | None:
        """Why it is not compared; None if it is, or if nothing asks for that."""
        if self.rival is None or self.rival.uncompared:
            return self.rival.uncompared if self.rival else None
        return None if self.expectation.metric in self.rival.metrics else Uncompared.NOT_RECORDED


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

    def beside(self, rival: Rival) -> Judgement:
        """Return the judgement with the comparisons that `worse` asks for."""
        judged = (
            replace(one, rival=rival) if one.expectation.worse is not None else one for one in self.judged
        )
        return replace(self, judged=tuple(judged))


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


def _decimal(value: float) -> Decimal:
    return Decimal(repr(value))
