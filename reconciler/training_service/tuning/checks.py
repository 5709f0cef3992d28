"""Checks of the specification of a search.

The rules follow the descriptions of the fields in the discovery documents. A mistake is a pair of the
field's path and a sentence.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise

from reconciler.training_service.http.json_mapping import snake
from reconciler.training_service.state.records import Json

Mistake = tuple[str, str]
"""The path of a field, and the description of the mistake."""
Message = Mapping[str, Json]

NOT_SET = "Required field is not set."
_NULL = "Must not contain a NUL character: it becomes a word of a command line."
_MAX_VALUES = 1000
_CLOSEST = 1e-10  # discrete values that are closer count as equal

_VALUE_SPECS = ("doubleValueSpec", "integerValueSpec", "categoricalValueSpec", "discreteValueSpec")
_CONDITIONS = {
    "parentIntValues": "integerValueSpec",
    "parentDiscreteValues": "discreteValueSpec",
    "parentCategoricalValues": "categoricalValueSpec",
}
_STOPPING = ("decayCurveStoppingSpec", "medianAutomatedStoppingSpec", "convexAutomatedStoppingSpec")
_TIMES = ("minimumRuntimeConstraint", "maximumRuntimeConstraint", "maxDurationNoProgress")
_COUNTS = ("maxTrials", "maxParallelTrials", "maxFailedTrials")


def study_spec(spec: Message, path: str) -> Iterator[Mistake]:
    """Yield the mistakes in `HyperparameterTuningJob.studySpec`."""
    for name in ("metrics", "parameters"):
        if not spec.get(name):
            yield f"{path}.{name}", NOT_SET
    yield from _metrics(spec.get("metrics", []), f"{path}.metrics")
    parameters = spec.get("parameters", [])
    grid = spec.get("algorithm") == "GRID_SEARCH"
    for index, parameter in enumerate(parameters):
        yield from _parameter(parameter, f"{path}.parameters[{index}]", grid)
    yield from _clashes([(parameter, None) for parameter in parameters], f"{path}.parameters")
    if sum(name in spec for name in _STOPPING) > 1:
        yield f"{path}.automated_stopping_spec", "At most one rule of automated stopping may be set."


def not_carried_out(spec: Message, path: str) -> Iterator[Mistake]:
    """Yield the fields that Vertex AI accepts but this service doesn't support."""
    for index, metric in enumerate(spec.get("metrics", [])):
        if "safetyConfig" in metric:
            yield (
                f"{path}.metrics[{index}].safety_config",
                "The embedded training service has no safe search. Remove the field: the metric is then an"
                " ordinary one.",
            )
    config = spec.get("studyStoppingConfig", {})
    for name in _TIMES:
        if name in config:
            yield (
                f"{path}.study_stopping_config.{snake(name)}",
                "The embedded training service stops a study by the number of its trials, not by time. Write"
                " max_num_trials or max_num_trials_no_progress, or scheduling.timeout for each trial.",
            )


def hyperparameters(spec: Message, path: str) -> Iterator[Mistake]:
    """Yield the mistakes in `TrainingInput.hyperparameters` of ml."""
    params = spec.get("params", [])
    if not params:
        yield f"{path}.params", NOT_SET
    for name in _COUNTS:
        if spec.get(name, 0) < 0:
            yield f"{path}.{snake(name)}", "Must not be negative."
    grid = spec.get("algorithm") == "GRID_SEARCH"
    seen: set[str] = set()
    for index, param in enumerate(params):
        below = f"{path}.params[{index}]"
        yield from _param(param, below, grid)
        name = param.get("parameterName", "")
        if name in seen:
            yield f"{below}.parameter_name", f"The parameter name {name} is used twice."
        seen.add(name)


def number(value: Json) -> float:
    """Return a number of a normalised body, in which 64-bit integers, "NaN" and "Infinity" are strings."""
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            return float(value)
    return float(value)


def same(one: Json, other: Json) -> bool:
    """Return True if two discrete values count as equal."""
    return abs(number(one) - number(other)) < _CLOSEST


def _metrics(metrics: Sequence[Message], path: str) -> Iterator[Mistake]:
    seen: set[str] = set()
    for index, metric in enumerate(metrics):
        below, name = f"{path}[{index}]", metric.get("metricId", "")
        yield from _named(name, f"{below}.metric_id")
        if not metric.get("goal"):
            yield f"{below}.goal", NOT_SET
        if name and name in seen:
            yield f"{below}.metric_id", f"The metric id {name} is used twice."
        seen.add(name)


def _named(name: str, path: str) -> Iterator[Mistake]:
    if not name:
        yield path, NOT_SET
    elif any(char.isspace() for char in name):
        yield path, "Must not contain whitespaces."
    elif "\0" in name:
        yield path, _NULL


def _parameter(spec: Message, path: str, grid: bool) -> Iterator[Mistake]:
    yield from _named(spec.get("parameterId", ""), f"{path}.parameter_id")
    given = [name for name in _VALUE_SPECS if name in spec]
    if len(given) != 1:
        specs = ", ".join(map(snake, _VALUE_SPECS))
        yield f"{path}.parameter_value_spec", f"Exactly one of {specs} must be set."
        return
    kind, below = given[0], f"{path}.{snake(given[0])}"
    values = spec[kind]
    positive = spec.get("scaleType") in _POSITIVE
    if kind in ("doubleValueSpec", "integerValueSpec"):
        yield from _range(values, f"{below}.", positive)
    else:
        listed = values.get("values", [])
        yield from _listed(listed, f"{below}.values", positive and kind == "discreteValueSpec", kind)
    if grid and kind == "doubleValueSpec":
        yield below, _NO_GRID
    for index, child in enumerate(spec.get("conditionalParameterSpecs", [])):
        under = f"{path}.conditional_parameter_specs[{index}]"
        yield from _condition(child, kind, values, under)
        yield from _parameter(child.get("parameterSpec", {}), f"{under}.parameter_spec", grid)


def _condition(child: Message, kind: str, parent: Message, path: str) -> Iterator[Mistake]:
    given = [name for name in _CONDITIONS if name in child]
    if len(given) != 1 or _CONDITIONS[given[0]] != kind:
        fitting = [name for name, parent_kind in _CONDITIONS.items() if parent_kind == kind]
        text = f"Exactly {snake(fitting[0])} must be set." if fitting else "A double can't be a condition."
        yield f"{path}.parent_value_condition", text
        return
    listed = child[given[0]].get("values", [])
    below = f"{path}.{snake(given[0])}.values"
    if not listed:
        yield below, NOT_SET
    for value in listed:
        if not _is_value_of(value, kind, parent):
            yield below, f"The parent parameter doesn't have the value {value}."


def _is_value_of(value: Json, kind: str, parent: Message) -> bool:
    if kind == "integerValueSpec":
        low, high = (number(parent.get(name, 0)) for name in ("minValue", "maxValue"))
        return low <= number(value) <= high
    if kind == "discreteValueSpec":
        return any(same(value, allowed) for allowed in parent.get("values", []))
    return value in parent.get("values", [])


def _param(spec: Message, path: str, grid: bool) -> Iterator[Mistake]:
    if not spec.get("parameterName"):
        yield f"{path}.parameter_name", NOT_SET
    elif "\0" in spec["parameterName"]:
        yield f"{path}.parameter_name", _NULL
    positive = spec.get("scaleType") in _POSITIVE
    match spec.get("type", "PARAMETER_TYPE_UNSPECIFIED"):
        case "DOUBLE" | "INTEGER" as kind:
            yield from _range(spec, f"{path}.", positive)
            if kind == "INTEGER":
                yield from _whole(spec, path)
            elif grid:
                yield f"{path}.type", _NO_GRID
        case "CATEGORICAL":
            yield from _listed(spec.get("categoricalValues", []), f"{path}.categorical_values", False, "")
        case "DISCRETE":
            values = spec.get("discreteValues", [])
            yield from _listed(values, f"{path}.discrete_values", positive, "discreteValueSpec")
        case _:
            yield f"{path}.type", NOT_SET


def _whole(spec: Message, path: str) -> Iterator[Mistake]:
    for name in ("minValue", "maxValue"):
        if not float(spec.get(name, 0)).is_integer():
            yield f"{path}.{snake(name)}", "The bounds of an INTEGER parameter must be integers."


def _range(spec: Message, path: str, positive: bool) -> Iterator[Mistake]:
    low, high = (number(spec.get(name, 0)) for name in ("minValue", "maxValue"))
    bounds = {"min_value": low, "max_value": high}
    infinite = [name for name, bound in bounds.items() if not math.isfinite(bound)]
    for name in infinite:
        yield f"{path}{name}", "Must be a finite number."
    if infinite:
        return
    if high < low:
        yield f"{path}max_value", f"Must not be less than min_value: {high} < {low}."
    if positive and low <= 0:
        yield f"{path}min_value", _NOT_POSITIVE


def _listed(values: Sequence[Json], path: str, positive: bool, kind: str) -> Iterator[Mistake]:
    if not values:
        yield path, NOT_SET
    elif kind == "discreteValueSpec":
        yield from _numbers([number(value) for value in values], path, positive)
    elif len(set(values)) < len(values):
        yield path, "The values must be different."
    elif any("\0" in value for value in values):
        yield path, _NULL


def _numbers(values: Sequence[float], path: str, positive: bool) -> Iterator[Mistake]:
    if not all(map(math.isfinite, values)):
        yield path, "Must be finite numbers."
    elif any(after - before < _CLOSEST for before, after in pairwise(values)):
        yield path, "The values must be in strictly increasing order, at least 1e-10 apart."
    if len(values) > _MAX_VALUES:
        yield path, f"At most {_MAX_VALUES} values."
    if positive and min(values) <= 0:
        yield path, _NOT_POSITIVE


def _clashes(siblings: Sequence[tuple[Message, frozenset[Json] | None]], path: str) -> Iterator[Mistake]:
    """Yield the names that two parameters share that can be active at the same time.

    Args:
        siblings: Parameters, each with the parent's values that activate it; None for all values.
    """
    for (one, when), (other, then) in combinations(siblings, 2):
        # Siblings with disjoint conditions are never active together and may share a name.
        if when is None or then is None or when & then:
            for name in sorted(_names(one) & _names(other)):
                yield path, f"The parameter id {name} is used twice."
    for parameter, _ in siblings:
        children = [
            (child.get("parameterSpec", {}), _values_of(child))
            for child in parameter.get("conditionalParameterSpecs", [])
        ]
        parameter_id = parameter.get("parameterId", "")
        if any(parameter_id in _names(child) for child, _ in children):
            yield path, f"The parameter id {parameter_id} is used twice."
        yield from _clashes(children, path)


def _values_of(child: Message) -> frozenset[Json]:
    return frozenset(
        value for name in _CONDITIONS if name in child for value in child[name].get("values", [])
    )


def _names(parameter: Message) -> frozenset[str]:
    below = (
        _names(child.get("parameterSpec", {})) for child in parameter.get("conditionalParameterSpecs", [])
    )
    return frozenset({parameter.get("parameterId", "")} - {""}).union(*below)


_POSITIVE = ("UNIT_LOG_SCALE", "UNIT_REVERSE_LOG_SCALE")
_NOT_POSITIVE = "With a logarithmic scale all values must be greater than zero."
_NO_GRID = "With GRID_SEARCH all parameters must be INTEGER, CATEGORICAL or DISCRETE."
