"""Search space: all of its points, random points, and a membership test.

A point holds the value of each active parameter by name, in the order of the specification.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from random import Random

from reconciler.training_service.tuning.study import Kind, Parameter, Scale, Value

Point = dict[str, Value]


def points(parameters: Sequence[Parameter]) -> Iterator[Point]:
    """Yield each point once; the space must not have double parameters.

    A generator, because the points may be very many.
    """
    if not parameters:
        yield {}
        return
    first, *others = parameters
    for value in _values(first):
        for below in points(first.active(value)):
            for rest in points(others):
                yield {first.name: value, **below, **rest}


def draw(parameters: Sequence[Parameter], random: Random) -> Point:
    """Return a random point, each parameter uniform on its scale."""
    point: Point = {}
    for parameter in parameters:
        value = _drawn(parameter, random)
        point |= {parameter.name: value, **draw(parameter.active(value), random)}
    return point


def holds(parameters: Sequence[Parameter], point: Mapping[str, Value]) -> bool:
    """Return True if the point is in the space."""
    active = list(_active(parameters, point))
    return len(active) == len(point) and all(
        each.name in point and _has(each, point[each.name]) for each in active
    )


def key(point: Mapping[str, Value]) -> frozenset[tuple[str, Value]]:
    """Return a key that is equal for equal points, whatever the order of their parameters."""
    return frozenset(point.items())


def mirrored(parameter: Parameter, value: float) -> float:
    """Return the value mirrored at the middle of the range, which reverses a log scale."""
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
    # Extend an integer's range by the values that round to its bounds: the bounds are then as likely as
    # their neighbours.
    edge = 0.5 if parameter.kind is Kind.INTEGER else 0.0
    low, high = parameter.low - edge, parameter.high + edge
    if parameter.scale is Scale.LINEAR:
        value = random.uniform(low, high)
    else:
        value = math.exp(random.uniform(math.log(low), math.log(high)))
    value = min(max(value, parameter.low), parameter.high)  # exp(log(x)) may leave the range by rounding
    if parameter.scale is Scale.REVERSE_LOG:
        value = mirrored(parameter, value)
    return round(value) if parameter.kind is Kind.INTEGER else float(value)
