"""The space of a search: all of its points, one drawn at random, and whether a point is of it.

A point is the value of each parameter that is there, by name, in the order of the specification.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from reconciler.training_service.tuning.study import Kind, Parameter, Scale, Value

Point = dict[str, Value]


def points(parameters: Sequence[Parameter]) -> Iterator[Point]:
    """Each point once; there must be no doubles. Made as they are wanted: there may be very many."""
    if not parameters:
        yield {}
        return
    first, *others = parameters
    for value in _values(first):
        for below in points(first.active(value)):
            for rest in points(others):
                yield {first.name: value, **below, **rest}


def draw(parameters: Sequence[Parameter], random: Random) -> Point:
    """A point, each parameter evenly on its scale."""
    found: Point = {}
    for parameter in parameters:
        value = _drawn(parameter, random)
        found |= {parameter.name: value, **draw(parameter.active(value), random)}
    return found


def holds(parameters: Sequence[Parameter], point: Mapping[str, Value]) -> bool:
    """Whether the point is one of the space."""
    active = list(_active(parameters, point))
    return len(active) == len(point) and all(
        each.name in point and _has(each, point[each.name]) for each in active
    )


def key(point: Mapping[str, Value]) -> frozenset[tuple[str, Value]]:
    """The same for equal points, whatever the order of their parameters."""
    return frozenset(point.items())


def mirrored(parameter: Parameter, value: float) -> float:
    """The value as far from the one bound as it is from the other; a reverse log scale is a log scale so."""
    return min(max(parameter.low + parameter.high - value, parameter.low), parameter.high)


def _active(parameters: Sequence[Parameter], point: Mapping[str, Value]) -> Iterator[Parameter]:
    for parameter in parameters:
        yield parameter
        if parameter.name in point:
            yield from _active(parameter.active(point[parameter.name]), point)


def _has(parameter: Parameter, value: Value) -> bool:
    if parameter.kind in (Kind.CATEGORICAL, Kind.DISCRETE):
        return value in parameter.values
    if isinstance(value, str) or (parameter.kind is Kind.INTEGER and not float(value).is_integer()):
        return False
    return parameter.low <= value <= parameter.high


def _values(parameter: Parameter) -> Sequence[Value]:
    if parameter.kind is Kind.INTEGER:
        return range(int(parameter.low), int(parameter.high) + 1)
    return parameter.values


def _drawn(parameter: Parameter, random: Random) -> Value:
    if parameter.values:
        return random.choice(parameter.values)
    if parameter.kind is Kind.INTEGER and parameter.scale is Scale.LINEAR:
        return random.randint(int(parameter.low), int(parameter.high))
    # An integer stands for what is rounded to it: the bounds are as likely as their neighbours.
    edge = 0.5 if parameter.kind is Kind.INTEGER else 0.0
    low, high = parameter.low - edge, parameter.high + edge
    if parameter.scale is Scale.LINEAR:
        value = random.uniform(low, high)
    else:
        value = math.exp(random.uniform(math.log(low), math.log(high)))
    value = min(max(value, parameter.low), parameter.high)
    if parameter.scale is Scale.REVERSE_LOG:
        value = mirrored(parameter, value)
    return round(value) if parameter.kind is Kind.INTEGER else float(value)
