"""The default search: Optuna's tree-structured Parzen estimator over what the trials have shown so far.

The service keeps the trials itself: each time a study is made anew from them, which takes some 20 ms for
fifty, and is the same after a restart. Only the tuning of a job loads this module.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from random import Random

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState, create_trial

from reconciler.training_service.state.records import TrialRecord
from reconciler.training_service.state.records import TrialState as State
from reconciler.training_service.tuning import space
from reconciler.training_service.tuning.study import Kind, Parameter, Scale, Study, Value

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
    state, values = TrialState.RUNNING, None
    if trial.state is State.SUCCEEDED and trial.final:
        state = TrialState.COMPLETE
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
