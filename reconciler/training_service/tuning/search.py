"""Choice of the next trial's parameters, by grid, at random or by Bayesian search."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from random import Random

from reconciler.training_service.state.records import TrialRecord, TrialState
from reconciler.training_service.tuning.study import (
    Algorithm,
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
    for trial in sorted(done, key=lambda each: (each.end_time, each.number)):
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
