"""Bayesian search by Optuna's tree-structured Parzen estimator."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from random import Random

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, create_trial
from optuna.trial import TrialState as OptunaState

from reconciler.training_service.state.trial_records import TrialRecord, TrialState
from reconciler.training_service.tuning.study import (
    Kind,
    Parameter,
    Scale,
    Study,
    Value,
    contains_point,
    mirrored,
    random_point,
)

_STARTING = 10  # random trials before the estimator has enough data
# Each branch of a space with branches has few trials, so the estimator may miss the good branch: every fourth
# point is random there.
_CHANCE = 4

# Optuna logs each study that it creates.
optuna.logging.set_verbosity(optuna.logging.WARNING)


def suggest(study: Study, trials: Sequence[TrialRecord], seed: int) -> dict[str, Value]:
    """Return the most promising point by the results so far; equal arguments give equal points."""
    if any(parameter.children for parameter in study.parameters) and len(trials) % _CHANCE == _CHANCE - 1:
        return random_point(study.parameters, Random(seed))  # noqa: S311 (chance for a search, no secret)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # constant_liar keeps parallel trials apart: a running trial counts as bad until it has ended.
        sampler = optuna.samplers.TPESampler(
            n_startup_trials=_STARTING, multivariate=True, group=True, constant_liar=True, seed=seed
        )
    directions = [
        StudyDirection.MAXIMIZE if metric.maximize else StudyDirection.MINIMIZE for metric in study.metrics
    ]
    history = optuna.create_study(directions=directions, sampler=sampler)
    # A resumed job's trials may lie outside of this job's space.
    history.add_trials(
        _frozen(study, trial) for trial in trials if contains_point(study.parameters, trial.parameters)
    )
    return _suggested_point(history.ask(), study.parameters, "")


def _suggested_point(trial: optuna.Trial, parameters: Sequence[Parameter], above: str) -> dict[str, Value]:
    point: dict[str, Value] = {}
    for index, parameter in enumerate(parameters):
        name = _name(above, index)
        value = _decoded(parameter, _suggested(trial, name, _distribution(parameter)))
        point[parameter.name] = value
        for number, (child, parent_values) in enumerate(parameter.children):
            if value in parent_values:
                point |= _suggested_point(trial, (child,), f"{name}.{number}")
    return point


def _frozen(study: Study, trial: TrialRecord) -> FrozenTrial:
    placed = list(_placed(study.parameters, trial.parameters, ""))
    params = {name: _encoded(parameter, value) for name, parameter, value in placed}
    distributions = {name: _distribution(parameter) for name, parameter, _ in placed}
    # A failed trial counts as running, and so as bad: the search should avoid points at which trainers fail.
    state, values = OptunaState.RUNNING, None
    if trial.state is TrialState.SUCCEEDED and trial.final:
        state = OptunaState.COMPLETE
        values = [trial.final.metrics[metric.name] for metric in study.metrics]
    return create_trial(state=state, values=values, params=params, distributions=distributions)


def _placed(
    parameters: Sequence[Parameter], point: Mapping[str, Value], above: str
) -> Iterator[tuple[str, Parameter, Value]]:
    """Yield the active parameters of a point, each with Optuna's name for it and its value."""
    for index, parameter in enumerate(parameters):
        name, value = _name(above, index), point[parameter.name]
        yield name, parameter, value
        for number, (child, parent_values) in enumerate(parameter.children):
            if value in parent_values:
                yield from _placed((child,), point, f"{name}.{number}")


def _name(above: str, index: int) -> str:
    # By place, not by name: two parameters may share a name for different values of their parent.
    return f"{above}/{index}"


def _distribution(parameter: Parameter) -> BaseDistribution:
    log = parameter.scale is not Scale.LINEAR
    match parameter.kind:
        case Kind.DOUBLE:
            return FloatDistribution(float(parameter.low), float(parameter.high), log=log)
        case Kind.INTEGER:
            return IntDistribution(int(parameter.low), int(parameter.high), log=log)
        case Kind.DISCRETE:  # by index, which keeps the order of the values
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
        value = mirrored(parameter, value)
    return int(value) if parameter.kind is Kind.INTEGER else float(value)


def _decoded(parameter: Parameter, encoded: int | float | str) -> Value:
    if parameter.kind is Kind.DISCRETE:
        return parameter.values[int(encoded)]
    if isinstance(encoded, str):
        return encoded
    if parameter.scale is Scale.REVERSE_LOG:
        encoded = mirrored(parameter, encoded)
    return int(encoded) if parameter.kind is Kind.INTEGER else float(encoded)
