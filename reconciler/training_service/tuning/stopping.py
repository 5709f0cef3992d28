"""Early stopping of running trials.

The rules follow the discovery document at StudySpec's three kinds of automated stopping. They compare trials
by step, or by the seconds since a trial began. A trial that reports no steps can't be compared: measurements
at step 0 don't count for either side.

With several metrics a trial is stopped only if each metric says so: else it might be the best by another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import StatisticsError, fmean, linear_regression, median

from reconciler.training_service.state.records import TrialRecord, TrialState
from reconciler.training_service.tuning.search import is_enough
from reconciler.training_service.tuning.study import Convex, DecayCurve, Median, Metric, Study

_ENDED = 3  # trials that must have ended before others are compared with them
_POINTS = 4  # measurements that an extrapolation needs
_DECAYS = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0)
_UNLIKELY = 3.0  # errors of the fit: the trial hardly ends so far above its extrapolation
_AS_WELL = 2.0  # times the least error: fits up to this limit count as good


@dataclass(frozen=True, slots=True)
class _Curve:
    """One metric of one trial, larger is better: `merits` at `places` in ascending order."""

    places: tuple[float, ...]
    merits: tuple[float, ...]

    @property
    def last(self) -> float:
        return self.places[-1]

    def until(self, place: float) -> tuple[float, ...]:
        return tuple(merit for at, merit in zip(self.places, self.merits, strict=True) if at <= place)


def to_stop(study: Study, trials: Sequence[TrialRecord]) -> set[int]:
    """Return the numbers of the running trials to stop now."""
    running = [trial for trial in trials if trial.state is TrialState.RUNNING]
    config = study.stopping_config
    if config and config.at_once and running and is_enough(study, trials):
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
    """Return True if the curve a - b / place^c that fits the trial best stays far below `best` at `end`."""
    # Vertex AI uses a Gaussian process. Learning curves mostly follow a power law, which needs few points.
    if len(own.places) < _POINTS or own.last >= end:
        return False
    fits = [(_error(fit, own), fit.at(end)) for fit in (_fit(own, decay) for decay in _DECAYS)]
    least = min(error for error, _ in fits)
    # Give the trial the benefit of the doubt: of all good fits take the one with the highest end.
    highest = max(at_end + _UNLIKELY * error for error, at_end in fits if error <= _AS_WELL * least)
    return max(highest, *own.merits) < best


@dataclass(frozen=True, slots=True)
class _Fit:
    a: float
    b: float
    decay: float

    def at(self, place: float) -> float:
        return self.a + self.b * math.pow(place, -self.decay)


def _fit(own: _Curve, decay: float) -> _Fit:
    """Return the least-squares fit for one decay."""
    places = [math.pow(place, -decay) for place in own.places]
    try:
        slope, intercept = linear_regression(places, own.merits)
    except StatisticsError:  # the places are so large that their powers are equal
        return _Fit(fmean(own.merits), 0.0, decay)
    return _Fit(intercept, slope, decay)


def _error(fit: _Fit, own: _Curve) -> float:
    """Return the root of the fit's mean square error."""
    squares = [(fit.at(p) - m) ** 2 for p, m in zip(own.places, own.merits, strict=True)]
    return math.sqrt(fmean(squares))


def _too_flat(rule: Convex, own: _Curve, others: Sequence[_Curve], best: float) -> bool:
    last = rule.last or max(curve.last for curve in others)
    first = last / 10 if rule.first is None else rule.first
    enough = len(own.places) >= max(2, rule.measurements) and len(others) > rule.measurements
    if not enough or own.last <= first or own.last >= last:
        return False
    highest = tuple(accumulate(own.merits, max))
    back = max(1, len(own.places) // 2)
    # A learning curve flattens: it stays below the straight line through its latest half.
    slope = (highest[-1] - highest[-1 - back]) / (own.last - own.places[-1 - back])
    return slope > 0 and highest[-1] + slope * (last - own.last) < best


def _curve(trial: TrialRecord, metric: Metric, by_elapsed: bool) -> _Curve | None:
    merits: dict[float, float] = {}
    for each in trial.measurements:
        place = each.elapsed if by_elapsed else float(each.step)
        if place > 0 and metric.name in each.metrics:
            merits[place] = metric.merit(each.metrics[metric.name])
    places = tuple(sorted(merits))
    return _Curve(places, tuple(merits[place] for place in places)) if places else None
