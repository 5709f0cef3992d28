"""Which values the next trial tries."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from random import Random

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from reconciler.training_service.state.records import TrialRecord, TrialState
from reconciler.training_service.tuning import space
from reconciler.training_service.tuning.study import Algorithm, Kind, Parameter, Scale, Study, Value

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

        yield ask(study, trials, _seed(study, trials) % 2**32)
    random = Random(_seed(study, trials))  # noqa: S311 (chance for a search, no secret)
    for _ in range(_DRAWS):
        yield space.draw(study.parameters, random)


def _seed(study: Study, trials: Sequence[TrialRecord]) -> int:
    text = f"{study.seed}/{len(trials)}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


_STARTING = 10  # trials at random before the estimator has something to go by
# Of a search with branches it sees little each, and may miss the good one: one point of as many is at random.
_CHANCE = 4

# It tells each study that it makes.
optuna.logging.set_verbosity(optuna.logging.WARNING)


def ask(study: Study, trials: Sequence[TrialRecord], seed: int) -> dict[str, Value]:
    """The point that the trials so far make most promising; the same for the same arguments."""
    if any(each.children for each in study.parameters) and len(trials) % _CHANCE == _CHANCE - 1:
        return space.draw(study.parameters, Random(seed))  # noqa: S311 (chance for a search, no secret)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Trials at once keep apart: one that runs counts as bad until it has ended.
        sampler = optuna.samplers.TPESampler(
            n_startup_trials=_STARTING, multivariate=True, group=True, constant_liar=True, seed=seed
        )
    directions = [
        StudyDirection.MAXIMIZE if metric.maximize else StudyDirection.MINIMIZE for metric in study.metrics
    ]
    known = optuna.create_study(directions=directions, sampler=sampler)
    known.add_trials(
        _known(study, trial) for trial in trials if space.holds(study.parameters, trial.parameters)
    )
    return _asked(known.ask(), study.parameters, "")


def _asked(trial: optuna.Trial, parameters: Sequence[Parameter], above: str) -> dict[str, Value]:
    found: dict[str, Value] = {}
    for index, parameter in enumerate(parameters):
        name = _name(above, index)
        value = _decoded(parameter, _suggested(trial, name, _distribution(parameter)))
        found[parameter.name] = value
        for number, (child, wanted) in enumerate(parameter.children):
            if value in wanted:
                found |= _asked(trial, (child,), f"{name}.{number}")
    return found


def _known(study: Study, trial: TrialRecord) -> FrozenTrial:
    """A trial as Optuna keeps it."""
    params: dict[str, int | float | str] = {}
    distributions: dict[str, BaseDistribution] = {}
    _encode(study.parameters, trial.parameters, "", params, distributions)
    # One that has failed stays a bad one, as if it ran: a search shouldn't go where trainers break down.
    state, values = OptunaState.RUNNING, None
    if trial.state is TrialState.SUCCEEDED and trial.final:
        state = OptunaState.COMPLETE
        values = [trial.final.metrics[metric.name] for metric in study.metrics]
    return create_trial(state=state, values=values, params=params, distributions=distributions)


def _encode(
    parameters: Sequence[Parameter],
    point: Mapping[str, Value],
    above: str,
    params: dict[str, int | float | str],
    distributions: dict[str, BaseDistribution],
) -> None:
    for index, parameter in enumerate(parameters):
        name, value = _name(above, index), point[parameter.name]
        params[name], distributions[name] = _encoded(parameter, value), _distribution(parameter)
        for number, (child, wanted) in enumerate(parameter.children):
            if value in wanted:
                _encode((child,), point, f"{name}.{number}", params, distributions)


def _name(above: str, index: int) -> str:
    """A parameter by its place: two of one name may be there, each for other values of their parent."""
    return f"{above}/{index}"


def _distribution(parameter: Parameter) -> BaseDistribution:
    log = parameter.scale is not Scale.LINEAR
    match parameter.kind:
        case Kind.DOUBLE:
            return FloatDistribution(float(parameter.low), float(parameter.high), log=log)
        case Kind.INTEGER:
            return IntDistribution(int(parameter.low), int(parameter.high), log=log)
        case Kind.DISCRETE:  # by their places, which keep the order
            return IntDistribution(0, len(parameter.values) - 1)
        case Kind.CATEGORICAL:
            return CategoricalDistribution(parameter.values)


def _suggested(trial: optuna.Trial, name: str, distribution: BaseDistribution) -> int | float | str:
    match distribution:
        case FloatDistribution(low=low, high=high, log=log):
            return trial.suggest_float(name, low, high, log=log)
        case IntDistribution(low=low, high=high, log=log):
            return trial.suggest_int(name, low, high, log=log)
        case CategoricalDistribution(choices=choices):
            return str(trial.suggest_categorical(name, choices))
    raise AssertionError(distribution)


def _encoded(parameter: Parameter, value: Value) -> int | float | str:
    if isinstance(value, str):
        return value
    if parameter.kind is Kind.DISCRETE:
        return parameter.values.index(value)
    if parameter.scale is Scale.REVERSE_LOG:
        value = space.mirrored(parameter, value)
    return int(value) if parameter.kind is Kind.INTEGER else float(value)


def _decoded(parameter: Parameter, found: int | float | str) -> Value:
    if parameter.kind is Kind.DISCRETE:
        return parameter.values[int(found)]
    if isinstance(found, str):
        return found
    if parameter.scale is Scale.REVERSE_LOG:
        found = space.mirrored(parameter, found)
    return int(found) if parameter.kind is Kind.INTEGER else float(found)
