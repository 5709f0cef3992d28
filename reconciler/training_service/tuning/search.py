"""Which values the next trial tries."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from random import Random

from reconciler.training_service.state.records import TrialRecord, TrialState
from reconciler.training_service.tuning import space
from reconciler.training_service.tuning.study import Algorithm, Study, Value

_DRAWS = 10


def suggest(study: Study, trials: Sequence[TrialRecord]) -> dict[str, Value] | None:
    """The next trial's parameters; None where there is nothing more to try.

    That is so once each point of a grid has been tried, and once the study's own conditions say that it is
    enough. The other searches go on: as in the cloud, they may try a point again where few are left.

    The same for the same study and trials, so that a restart of the service changes nothing.

    Args:
        trials: All there are so far: those that run as well, which have no final measurement, and before them
            those of the job that this one resumes.
    """
    if is_enough(study, trials):
        return None
    tried = {space.key(trial.parameters) for trial in trials}
    candidates = _candidates(study, trials)
    if study.algorithm is Algorithm.GRID:
        return next((point for point in candidates if space.key(point) not in tried), None)
    first = next(candidates)
    if study.algorithm is Algorithm.RANDOM or space.key(first) not in tried:
        return first
    return next((point for point in candidates if space.key(point) not in tried), first)


def is_enough(study: Study, trials: Sequence[TrialRecord]) -> bool:
    """Whether the study's own conditions say that no more trials are to be started."""
    enough = study.enough
    done = [trial for trial in trials if trial.state is TrialState.SUCCEEDED and trial.final]
    if enough is None or len(done) < enough.min_trials:
        return False
    if enough.max_trials and len(trials) >= enough.max_trials:
        return True
    return 0 < enough.without_progress <= _without_progress(study, done)


def _without_progress(study: Study, done: Sequence[TrialRecord]) -> int:
    """How many trials, the last ones to end, were no better than what was there before."""
    if len(study.metrics) != 1:  # what is better isn't clear then: Vertex AI leaves these studies alone too
        return 0
    (metric,) = study.metrics
    count, best = 0, None
    for trial in sorted(done, key=lambda each: (each.end_time, each.number)):
        assert trial.final is not None, "only these are here"
        merit = metric.merit(trial.final.metrics[metric.name])
        count = 0 if best is None or merit > best else count + 1
        best = merit if best is None else max(best, merit)
    return count


def _candidates(study: Study, trials: Sequence[TrialRecord]) -> Iterator[dict[str, Value]]:
    """Points to try, the most promising first."""
    if study.algorithm is Algorithm.GRID:
        yield from space.points(study.parameters)
        return
    if study.algorithm is Algorithm.DEFAULT:
        # Costs half a second the first time: only a tuning job is to pay it.
        from reconciler.training_service.tuning import bayesian

        yield bayesian.ask(study, trials, _seed(study, trials) % 2**32)
    random = Random(_seed(study, trials))  # noqa: S311 (chance for a search, no secret)
    for _ in range(_DRAWS):
        yield space.draw(study.parameters, random)


def _seed(study: Study, trials: Sequence[TrialRecord]) -> int:
    text = f"{study.seed}/{len(trials)}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
