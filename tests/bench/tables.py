"""Figures as Markdown."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence

from . import limits, others, overhead, programs
from .place import Cost
from .ratios import GROWTH_WISHED, Figures, column, growths, median, of, ratios

_MB = 1e6
_NONE = "-"


def text_of(figures: Figures) -> str:
    """Return all tables in sequence."""
    machine = figures["machine"]
    times = f"times {limits.LOADING} alone"
    return "\n".join(
        [
            f"{machine['system']}, {machine['cores']} cores, Python {machine['python']}; medians of "
            f"{figures['repeats']} interleaved repetitions, of {figures['starts']} for the start.",
            *_section("Start", _start(figures)),
            *_section(f"Programs: seconds ({times}), CPU, peak of all processes in MB", _programs(figures)),
            *_section(f"Stages: milliseconds ({times}), peak of the process in MB", _stages(figures)),
            *_section("Ratios, and what is wished", _ratios(figures)),
            *_section(
                f"Growth to ten times as many; wished: at most {GROWTH_WISHED:g}",
                _growth(figures),
            ),
            *_section("The loop: what is edited, and passes in which nothing changes", _watch(figures)),
            *_section("The embedded service: seconds of small trainings in turn", _overhead(figures)),
        ]
    )


def _section(title: str, rows: Iterable[Sequence[str]]) -> Iterator[str]:
    head, *rest = rows
    if rest:
        yield f"\n### {title}\n"
        yield _row(head)
        yield _row(["---", *(["---:"] * (len(head) - 1))])
        yield from map(_row, rest)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _start(figures: Figures) -> Iterator[Sequence[str]]:
    yield "", "CPU, ms", "wall, ms", f"CPU : {programs.NOTHING}", "heavy packages"
    nothing = column(figures["start"][programs.NOTHING], "cpu")
    for name, costs in figures["start"].items():
        times = of(column(costs, "cpu"), nothing)
        imports = ", ".join(figures["imports"].get(name, [])) or _NONE
        yield name, f"{median(costs, 'cpu') * 1e3:.0f}", f"{median(costs) * 1e3:.0f}", f"{times:.1f}", imports


def _programs(figures: Figures) -> Iterator[Sequence[str]]:
    sizes = _sizes(figures)
    yield "", *(f"{number:,}" for number in sizes)
    for name in (limits.READING, limits.LOADING):
        yield name, *(_times(size["limits"][name], size) for size in sizes.values())
    for name in programs.PROGRAMS:
        yield name, *(_program(size["programs"][name], size, size["peaks"][name]) for size in sizes.values())
    for name in (others.CHECK_JSONSCHEMA, others.TERRAFORM):
        if any(size[name] for size in sizes.values()):
            yield name, *(_program(size[name], size) for size in sizes.values())


def _program(costs: Sequence[Cost], size: Figures, peak: float | None = None) -> str:
    if not costs:
        return _NONE
    memory = peak or max(cost["peak"] for cost in costs)
    return f"{_times(costs, size)}, {median(costs, 'cpu'):.3g}, {memory / _MB:.0f}"


def _times(costs: Sequence[Cost], size: Figures) -> str:
    times = of(column(costs), column(size["limits"][limits.LOADING]))
    return f"{median(costs):.3g} ({times:.3g})"


def _stages(figures: Figures) -> Iterator[Sequence[str]]:
    sizes = _sizes(figures)
    yield "", *(f"{number:,}" for number in sizes)
    for name in next(iter(sizes.values()))["stages"]:
        yield name, *(_stage(size, size["stages"][name]) for size in sizes.values())
    for name in (limits.LOADING, limits.LISTING):
        yield name, *(_alone(size, size["within"][name]) for size in sizes.values())


def _stage(size: Figures, stage: Figures) -> str:
    return f"{_alone(size, stage['costs'])}, {stage['peak'] / _MB:.0f}"


def _alone(size: Figures, costs: Sequence[Cost]) -> str:
    times = of(column(costs), column(size["within"][limits.LOADING]))
    return f"{median(costs) * 1e3:.3g} ({times:.3g})"


def _ratios(figures: Figures) -> Iterator[Sequence[str]]:
    yield "", "wall", "CPU", "wished"
    for ratio in ratios(figures):
        wall = _NONE if ratio.wall is None else f"{ratio.wall:.3g}"
        yield ratio.what, wall, f"{ratio.cpu:.3g}", f"{'≥' if ratio.at_least else '≤'} {ratio.wished:.3g}"


def _growth(figures: Figures) -> Iterator[Sequence[str]]:
    yield "", "wall", "CPU", "memory"
    for growth in growths(figures):
        yield growth.what, f"{growth.wall:.1f}", f"{growth.cpu:.1f}", f"{growth.memory:.1f}"


def _watch(figures: Figures) -> Iterator[Sequence[str]]:
    watch = figures["watch"]
    yield "", f"{watch['manifests']:,} manifests" if watch else ""
    if watch:
        for number, memory in watch["memory"].items():
            yield f"resident after pass {number}, MB", f"{memory / _MB:.1f}"
        for what, seconds in watch["told"].items():
            yield f"{what} is told after, s", f"{statistics.median(seconds):.2f}"
        yield "CPU of the first pass, ms", f"{watch['first'] * 1e3:.0f}"
        yield "CPU of a later pass, ms", f"{watch['cpu'] * 1e3:.1f}"


def _overhead(figures: Figures) -> Iterator[Sequence[str]]:
    costs = figures["overhead"]
    yield "", *(("wall", "least wall", "CPU", "wished") if costs else ())
    for name, wished in overhead.WISHED.items() if costs else ():
        each = [median(costs[name]), min(column(costs[name])), median(costs[name], "cpu")]
        yield name, *(f"{seconds:.2f}" for seconds in each), wished


def _sizes(figures: Figures) -> Mapping[int, Figures]:
    return dict(sorted((int(number), size) for number, size in figures["sizes"].items()))
