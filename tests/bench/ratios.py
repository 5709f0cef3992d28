"""Summary of the figures: growth, and ratios beside the desired bounds. No figure is judged here."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import limits, others, programs
from .place import Cost

Figures = Mapping[str, Any]
"""All measurements of a benchmark, as `__main__` collects them and writes them as JSON."""

GROWTH_WISHED = 12.0
_TIMES = 10

_OF_LOADING = {programs.VALIDATE: 0.5, programs.PLAN: 0.95}
_OF_LOADING_LESS = {"1000": {programs.PLAN: 2.1}}
"""The same bounds at a smaller size, where the start of the program counts."""

# Seconds of CPU, on a machine where `python -c pass` takes 0.022.
_STARTS = {programs.VALIDATE_ONE: 0.117, programs.PLAN_ONE: 0.151, programs.HELP: 0.065}
_NOTHING = 0.022


@dataclass(frozen=True)
class Ratio:
    """Ratio beside its desired bound.

    Attributes:
        what: The two quantities.
        wall: The median of the repetitions' ratios, by the wall clock; None if only CPU counts.
        cpu: The same median by CPU time, which a busy machine affects less.
        wished: The desired bound: on `wall`, else on `cpu`.
        at_least: True for a lower bound.
    """

    what: str
    wall: float | None
    cpu: float
    wished: float
    at_least: bool = False


@dataclass(frozen=True)
class Growth:
    """Growth of the costs with ten times as many manifests, as factors.

    Attributes:
        what: The stage, or the program.
        wall, cpu: For a stage, the median of the repetitions' factors; each repetition runs both sizes in
            sequence. For a program, the factor of the medians, in units of the loader's costs at that size.
        memory: The factor of the peaks.
    """

    what: str
    wall: float
    cpu: float
    memory: float


def ratios(figures: Figures) -> Iterator[Ratio]:
    """Yield the main ratios, at the largest size; for Terraform, at the largest size that it ran."""
    number, size = largest(figures["sizes"])
    ran, loading = size["programs"], size["limits"][limits.LOADING]
    for program, wished in _OF_LOADING.items():
        yield _ratio(f"{program}, {number:,} : {limits.LOADING} alone", ran[program], loading, wished)
    for name in _OF_LOADING_LESS.keys() & figures["sizes"].keys() - {str(number)}:
        less = figures["sizes"][name]
        for program, wished in _OF_LOADING_LESS[name].items():
            what = f"{program}, {int(name):,} : {limits.LOADING} alone"
            yield _ratio(what, less["programs"][program], less["limits"][limits.LOADING], wished)
    what = f"{programs.PLAN_PUBLISHED}, {number:,} : {programs.PLAN}"
    yield _ratio(what, ran[programs.PLAN_PUBLISHED], ran[programs.PLAN], 1.1)
    if checked := size[others.CHECK_JSONSCHEMA]:
        what = f"{others.CHECK_JSONSCHEMA}, {number:,} : {programs.VALIDATE}"
        yield _ratio(what, checked, ran[programs.VALIDATE], 25, at_least=True)
    planned = {name: found for name, found in figures["sizes"].items() if found[others.TERRAFORM]}
    if planned:
        number, size = largest(planned)
        what = f"{others.TERRAFORM}, {number:,} : {programs.PLAN}"
        yield _ratio(what, size[others.TERRAFORM], size["programs"][programs.PLAN], 14, at_least=True)
    nothing = column(figures["start"][programs.NOTHING], "cpu")
    for program, seconds in _STARTS.items():
        cpu = of(column(figures["start"][program], "cpu"), nothing)
        yield Ratio(f"CPU of {program} : {programs.NOTHING}", None, cpu, seconds / _NOTHING)


def _ratio(
    what: str, above: Sequence[Cost], below: Sequence[Cost], wished: float, *, at_least: bool = False
) -> Ratio:
    wall, cpu = (of(column(above, clock), column(below, clock)) for clock in ("wall", "cpu"))
    return Ratio(what, wall, cpu, wished, at_least)


def growths(figures: Figures) -> list[Growth]:
    """Return the growth from the previous to the largest size; empty unless it is tenfold."""
    numbers = sorted(map(int, figures["sizes"]))
    if len(numbers) < 2 or numbers[-1] != _TIMES * numbers[-2]:
        return []
    small, large = (figures["sizes"][str(number)] for number in numbers[-2:])
    stages = (
        Growth(
            f"stage: {name}",
            *(
                of(column(found["costs"], clock), column(found["smaller"], clock))
                for clock in ("wall", "cpu")
            ),
            found["peak"] / small["stages"][name]["peak"],
        )
        for name, found in large["stages"].items()
    )
    units = small["limits"][limits.LOADING], large["limits"][limits.LOADING]
    ran = (
        _growth(name, small["programs"][name], large["programs"][name], units, peak / small["peaks"][name])
        for name, peak in large["peaks"].items()
    )
    return [*stages, *ran]


def _growth(
    what: str,
    before: Sequence[Cost],
    after: Sequence[Cost],
    units: tuple[Sequence[Cost], Sequence[Cost]],
    memory: float,
) -> Growth:
    """Return growth in units of the loader's times, which removes the machine's variation."""
    wall, cpu = (
        _TIMES * of(column(after, clock), column(units[1])) / of(column(before, clock), column(units[0]))
        for clock in ("wall", "cpu")
    )
    return Growth(what, wall, cpu, memory)


def largest(sizes: Mapping[str, Figures]) -> tuple[int, Figures]:
    """Return the largest size and its figures."""
    number = max(map(int, sizes))
    return number, sizes[str(number)]


def of(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the ratios by repetition; surplus repetitions are ignored."""
    return statistics.median(a / b for a, b in zip(above, below, strict=False))


def column(costs: Iterable[Cost], clock: str = "wall") -> list[float]:
    """Return the seconds of each repetition, by `wall` or `cpu`."""
    return [cost[clock] for cost in costs]


def median(costs: Iterable[Cost], clock: str = "wall") -> float:
    """Return the seconds of the middle repetition."""
    return statistics.median(column(costs, clock))
