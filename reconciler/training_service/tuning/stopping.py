"""Which running trials aren't worth going on with.

The rules are those that the discovery document describes at StudySpec's three kinds of automated stopping. A
trial is looked at along its steps, or along the seconds since it began. Where no steps are told there is
nothing to compare by: measurements at step 0 count for neither side.

With several metrics a trial is stopped only if it is so by each: else it might be the best one by another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import fmean, median

from reconciler.training_service.state.records import TrialRecord, TrialState
from reconciler.training_service.tuning.search import is_enough
from reconciler.training_service.tuning.study import Convex, DecayCurve, Median, Metric, Study

_ENDED = 3  # trials that must have ended before others are compared with them
_POINTS = 4  # of a curve that is drawn on
_DECAYS = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0)
_UNLIKELY = 3.0  # times what the trial strays from its curve: so far off it hardly ends
_AS_WELL = 2.0  # times the least that a curve strays


@dataclass(frozen=True, slots=True)
class _Curve:
    """One metric of one trial, so that more is better: `merits` at `places`, which grow."""

    places: tuple[float, ...]
    merits: tuple[float, ...]

    @property
    def last(self) -> float:
        return self.places[-1]

    def until(self, place: float) -> tuple[float, ...]:
        return tuple(merit for at, merit in zip(self.places, self.merits, strict=True) if at <= place)


def to_stop(study: Study, trials: Sequence[TrialRecord]) -> set[int]:
    """The numbers of running trials that early stopping ends now."""
    running = [trial for trial in trials if trial.state is TrialState.RUNNING]
    if study.enough and study.enough.at_once and running and is_enough(study, trials):
        return {trial.number for trial in running}
    if study.stopping is None:
        return set()
    ended = [trial for trial in trials if trial.state is TrialState.SUCCEEDED and trial.final]
    return {
        trial.number
        for trial in running
        if all(_is_hopeless(study.stopping, metric, trial, ended) for metric in study.metrics)
    }


def _is_hopeless(
    rule: Median | DecayCurve | Convex, metric: Metric, trial: TrialRecord, ended: Sequence[TrialRecord]
) -> bool:
    own = _curve(trial, metric, rule.by_elapsed)
    others = [curve for each in ended if (curve := _curve(each, metric, rule.by_elapsed))]
    if own is None or len(others) < _ENDED:
        return False
    best = max(metric.merit(each.final.metrics[metric.name]) for each in ended if each.final)
    match rule:
        case Median():
            return _below_median(own, others)
        case DecayCurve():
            return _decays_below(own, max(curve.last for curve in others), best)
        case Convex():
            return _too_flat(rule, own, others, best)


def _below_median(own: _Curve, others: Sequence[_Curve]) -> bool:
    means = [fmean(merits) for curve in others if (merits := curve.until(own.last))]
    return len(means) >= _ENDED and max(own.merits) < median(means)


def _decays_below(own: _Curve, end: float, best: float) -> bool:
    """Whether the curve a - b / place^c that fits the trial best is at `end` far below `best`.

    Vertex AI uses a Gaussian process here; a power law is what learning curves mostly follow, and says as
    much with a handful of points.
    """
    if len(own.places) < _POINTS or own.last >= end:
        return False
    fits = [(_strayed(fit, own), fit.at(end)) for fit in (_fit(own, decay) for decay in _DECAYS)]
    least = min(strayed for strayed, _ in fits)
    # Of all that fit about as well, the one that promises most.
    promised = max(at_end + _UNLIKELY * strayed for strayed, at_end in fits if strayed <= _AS_WELL * least)
    return max(promised, *own.merits) < best


@dataclass(frozen=True, slots=True)
class _Fit:
    a: float
    b: float
    decay: float

    def at(self, place: float) -> float:
        return self.a + self.b * math.pow(place, -self.decay)


def _fit(own: _Curve, decay: float) -> _Fit:
    """The least squares for one decay."""
    places = [math.pow(place, -decay) for place in own.places]
    x, y = fmean(places), fmean(own.merits)
    spread = math.fsum((place - x) ** 2 for place in places)
    if spread == 0:
        return _Fit(y, 0.0, decay)
    b = math.fsum((p - x) * (m - y) for p, m in zip(places, own.merits, strict=True)) / spread
    return _Fit(y - b * x, b, decay)


def _strayed(fit: _Fit, own: _Curve) -> float:
    """How far off the fit is, as a root of the mean square."""
    squares = [(fit.at(p) - m) ** 2 for p, m in zip(own.places, own.merits, strict=True)]
    return math.sqrt(fmean(squares))


def _too_flat(rule: Convex, own: _Curve, others: Sequence[_Curve], best: float) -> bool:
    """Whether a straight line, which a curve that levels off stays under, ends below the best value."""
    last = rule.last or max(curve.last for curve in others)
    first = last / 10 if rule.first is None else rule.first
    enough = len(own.places) >= max(2, rule.measurements) and len(others) > rule.measurements
    if not enough or own.last <= first or own.last >= last:
        return False
    highest = tuple(accumulate(own.merits, max))
    back = max(1, len(own.places) // 2)
    slope = (highest[-1] - highest[-1 - back]) / (own.last - own.places[-1 - back])
    return slope > 0 and highest[-1] + slope * (last - own.last) < best


def _curve(trial: TrialRecord, metric: Metric, by_elapsed: bool) -> _Curve | None:
    """None where there is nothing to go by."""
    found: dict[float, float] = {}
    for each in trial.measurements:
        place = each.elapsed if by_elapsed else float(each.step)
        if place > 0 and metric.name in each.metrics:
            found[place] = metric.merit(each.metrics[metric.name])
    places = tuple(sorted(found))
    return _Curve(places, tuple(found[place] for place in places)) if places else None
