"""Choice of the next trial's parameters, by grid, at random or by Bayesian search; early stopping of trials.

The rules of stopping follow the discovery document at StudySpec's three kinds of automated stopping. They
compare trials by step, or by the seconds since a trial began. A trial that reports no steps can't be
compared: measurements at step 0 don't count for either side.

With several metrics a trial is stopped only if each metric says so: else it might be the best by another.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from itertools import accumulate
from random import Random
from statistics import StatisticsError, fmean, linear_regression, median

from reconciler.training_service.state.trial_records import TrialRecord, TrialState
from reconciler.training_service.tuning.measurements import Curve, curve_of
from reconciler.training_service.tuning.study import (
    Algorithm,
    Convex,
    DecayCurve,
    Median,
    Metric,
    Study,
    Value,
    all_points,
    point_key,
    random_point,
)

_DRAWS = 10  # attempts to find an untried point


def suggest(study: Study, trials: Sequence[TrialRecord]) -> dict[str, Value] | None:
    """Return the next trial's parameters; None if the search is finished.

    A grid search is finished once each point has been tried; every search once `is_enough`. Random and
    Bayesian search never run out of points: as in the cloud, they may repeat a point if few are left.

    Equal arguments give equal results, so a restart of the service doesn't change the search.

    Args:
        trials: All trials so far, including running ones, which have no final measurement, and, before them,
            the trials of the resumed job.
    """
    if is_enough(study, trials):
        return None
    tried = {point_key(trial.parameters) for trial in trials}
    candidates = _candidates(study, trials)
    if study.algorithm is Algorithm.GRID:
        return next((point for point in candidates if point_key(point) not in tried), None)
    first = next(candidates)
    if study.algorithm is Algorithm.RANDOM or point_key(first) not in tried:
        return first
    return next((point for point in candidates if point_key(point) not in tried), first)


def is_enough(study: Study, trials: Sequence[TrialRecord]) -> bool:
    """Return True if the study's stopping conditions forbid further trials."""
    config = study.stopping_config
    done = [trial for trial in trials if trial.state is TrialState.SUCCEEDED and trial.final]
    if config is None or len(done) < config.min_trials:
        return False
    if config.max_trials and len(trials) >= config.max_trials:
        return True
    return 0 < config.without_progress <= _without_progress(study, done)


def _without_progress(study: Study, done: Sequence[TrialRecord]) -> int:
    """Return the number of latest trials in a row without a better value than the trials before."""
    # "Better" is ambiguous with several metrics: Vertex AI ignores the condition for such studies too.
    if len(study.metrics) != 1:
        return 0
    (metric,) = study.metrics
    count, best = 0, None
    for trial in sorted(done, key=lambda trial: (trial.end_time, trial.number)):
        assert trial.final is not None, "the caller passes no other trials"
        merit = metric.merit(trial.final.metrics[metric.name])
        count = 0 if best is None or merit > best else count + 1
        best = merit if best is None else max(best, merit)
    return count


def _candidates(study: Study, trials: Sequence[TrialRecord]) -> Iterator[dict[str, Value]]:
    """Yield points to try, the most promising first."""
    if study.algorithm is Algorithm.GRID:
        yield from all_points(study.parameters)
        return
    if study.algorithm is Algorithm.DEFAULT:
        # The import takes half a second: only a tuning job pays it, not each start of the service.
        from reconciler.training_service.tuning import bayesian

        yield bayesian.suggest(study, trials, _seed(study, trials) % 2**32)
    random = Random(_seed(study, trials))  # noqa: S311 (random search, no secret)
    for _ in range(_DRAWS):
        yield random_point(study.parameters, random)


def _seed(study: Study, trials: Sequence[TrialRecord]) -> int:
    text = f"{study.seed}/{len(trials)}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


_ENDED = 3  # trials that must have ended before others are compared with them
_POINTS = 4  # measurements that an extrapolation needs
_DECAYS = (0.1, 0.25, 0.5, 1.0, 1.5, 2.0)
_UNLIKELY = 3.0  # errors of the fit: the trial hardly ends so far above its extrapolation
_AS_WELL = 2.0  # times the least error: fits up to this limit count as good


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
    curve = curve_of(trial, metric, by_elapsed=rule.by_elapsed)
    curves = (curve_of(ended_trial, metric, by_elapsed=rule.by_elapsed) for ended_trial in ended)
    others = [other for other in curves if other]
    if curve is None or len(others) < _ENDED:
        return False
    best = max(
        metric.merit(ended_trial.final.metrics[metric.name]) for ended_trial in ended if ended_trial.final
    )
    match rule:
        case Median():
            return _below_median(curve, others)
        case DecayCurve():
            return _decays_below(curve, max(other.last for other in others), best)
        case Convex():
            return _too_flat(rule, curve, others, best)


def _below_median(curve: Curve, others: Sequence[Curve]) -> bool:
    means = [fmean(merits) for other in others if (merits := other.until(curve.last))]
    return len(means) >= _ENDED and max(curve.merits) < median(means)


def _decays_below(curve: Curve, end: float, best: float) -> bool:
    """Return True if the curve a - b / position^c that fits best stays far below `best` at `end`."""
    # Vertex AI uses a Gaussian process. Learning curves mostly follow a power law, which needs few points.
    if len(curve.positions) < _POINTS or curve.last >= end:
        return False
    fits = [_fit(curve, decay, end) for decay in _DECAYS]
    least = min(error for error, _ in fits)
    # Give the trial the benefit of the doubt: of all good fits take the one with the highest end.
    highest = max(at_end + _UNLIKELY * error for error, at_end in fits if error <= _AS_WELL * least)
    return max(highest, *curve.merits) < best


def _fit(curve: Curve, decay: float, end: float) -> tuple[float, float]:
    """Return the least-squares fit for one decay: the root of its mean square error, its value at `end`."""
    powers = [math.pow(position, -decay) for position in curve.positions]
    try:
        slope, intercept = linear_regression(powers, curve.merits)
    except StatisticsError:  # the positions are so large that their powers are equal
        slope, intercept = 0.0, fmean(curve.merits)
    errors = [intercept + slope * power - merit for power, merit in zip(powers, curve.merits, strict=True)]
    return math.sqrt(fmean(error**2 for error in errors)), intercept + slope * math.pow(end, -decay)


def _too_flat(rule: Convex, curve: Curve, others: Sequence[Curve], best: float) -> bool:
    last = rule.last or max(other.last for other in others)
    first = last / 10 if rule.first is None else rule.first
    enough = len(curve.positions) >= max(2, rule.measurements) and len(others) > rule.measurements
    if not enough or curve.last <= first or curve.last >= last:
        return False
    highest = tuple(accumulate(curve.merits, max))
    back = max(1, len(curve.positions) // 2)
    # A learning curve flattens: it stays below the straight line through its latest half.
    slope = (highest[-1] - highest[-1 - back]) / (curve.last - curve.positions[-1 - back])
    return slope > 0 and highest[-1] + slope * (last - curve.last) < best
