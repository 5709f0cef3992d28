"""Charts of a study, as SVG with classes for the page's style.

Shapes stand in an inner drawing of 1000 by 1000 units that the browser stretches to its room; texts stand
outside it and keep their size. Figures are cut down before they are drawn, so that a page stays small.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from markupsafe import Markup
from msgspec import Struct

from reconciler.base.sanitize import one_line
from reconciler.model.details import Goal, Study, Trial
from reconciler.output.details import number_of, parameters_of, value_text
from reconciler.output.terminal import number_text

_SIZE = 1000.0
_HEIGHT = 260  # pixels of a chart's shapes
_FOOT = 22  # pixels of the texts below
_MOST_CURVES = 200
_MOST_POINTS = 60
_MOST_CATEGORIES = 12
_MOST_AXES = 16
_CLASSES = 5
_LARGE = 1e6

Point = tuple[float, float]


class Axis(Struct, frozen=True):
    """Axis of numbers from `low` to `high`, or of texts.

    Attributes:
        is_log: True for a logarithmic scale; all its numbers are positive.
        texts: The texts in their order; empty for numbers.
    """

    low: float = 0.0
    high: float = 1.0
    is_log: bool = False
    texts: tuple[str, ...] = ()

    def place(self, value: float | str | None) -> float | None:
        """Return the place of a value from 0 to 1; None if it has none."""
        if self.texts:
            text = value_text(value)
            return (self.texts.index(text) + 0.5) / len(self.texts) if text in self.texts else None
        number = number_of(value)
        if number is None or not math.isfinite(number) or (self.is_log and number <= 0):
            return None
        low, high, at = (
            math.log10(bound) if self.is_log else bound for bound in (self.low, self.high, number)
        )
        # Halves, because the difference of two large numbers may be infinite.
        span = high / 2 - low / 2
        return min(1.0, max(0.0, (at / 2 - low / 2) / span)) if span > 0 else 0.5

    def ticks(self) -> list[tuple[float, str]]:
        """Return places and texts of a few marks."""
        if self.texts:
            return [((number + 0.5) / len(self.texts), text) for number, text in enumerate(self.texts)]
        values = self._decades() if self.is_log else []
        values = values if len(values) > 1 else self._even()
        return [
            (position, _mark_text(value)) for value in values if (position := self.place(value)) is not None
        ]

    def _decades(self) -> list[float]:
        first, last = math.floor(math.log10(self.low)), math.ceil(math.log10(self.high))
        step = max(1, math.ceil((last - first) / 6))
        steps = (1, 2, 5) if last - first <= 2 else (1,)
        marks = [factor * float(f"1e{power}") for power in range(first, last + 1, step) for factor in steps]
        # A tenth of a thousandth more: powers of ten aren't exact.
        return [value for value in marks if self.low * 0.9999 <= value <= self.high * 1.0001]

    def _even(self) -> list[float]:
        span = self.high - self.low
        if not 0 < span < math.inf:
            return sorted({self.low, self.high})
        unit = 10.0 ** math.floor(math.log10(span / 4)) if span > 1e-300 else 0.0
        step = (
            next((unit * factor for factor in (1, 2, 5, 10) if span / (unit * factor) <= 5), 0.0)
            if unit
            else 0.0
        )
        if not step or self.low + step == self.low:
            return [self.low, self.high]
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _mark_text(value: float) -> str:
    """Return the number at a mark, in few characters."""
    return number_text(value) if abs(value) < _LARGE else f"{value:.3g}"


def axis_of(values: Iterable[float | str | None], *, is_log: bool = False) -> Axis | None:
    """Return the axis of some values, of texts if not all are numbers; None without any value."""
    present = [value for value in values if value is not None]
    numbers = [
        number for value in present if (number := number_of(value)) is not None and math.isfinite(number)
    ]
    texts = {value_text(value) for value in present if number_of(value) is None}
    if texts:
        kept = sorted({value_text(value) for value in present})[:_MOST_CATEGORIES]
        return Axis(texts=tuple(kept))
    if not numbers:
        return None
    low, high = float(min(numbers)), float(max(numbers))
    return Axis(low, high, is_log=is_log and low > 0)


def figures(study: Study) -> Iterator[Markup]:
    """Yield the charts of a study: for each goal the best so far and the curves, then all parameters."""
    for goal in study.goals[:_CLASSES]:
        yield from filter(None, (_best_so_far(study, goal), _curves(study, goal)))
    yield from filter(None, [_parallel(study, study.goals[0])] if study.goals else [])


def _best_so_far(study: Study, goal: Goal) -> Markup | None:
    """Return the result of each trial, and the best one up to it as a line of steps."""
    measured = [
        (number, trial, value)
        for number, trial in enumerate(study.trials, 1)
        for value in [_measured(trial, goal)]
        if value is not None
    ]
    axis = axis_of(value for _, _, value in measured)
    if axis is None:
        return None
    count = len(study.trials)
    steps: list[str] = []
    best: float | None = None
    shapes: list[Markup] = []
    for number, trial, value in measured:
        x, y = _across(number, count), _down(axis, value)
        is_better = best is None or (value > best if goal.is_maximum else value < best)
        if is_better:
            best = value
            # A step: the earlier best holds until this trial.
            steps.append(f"H{x:.1f}V{y:.1f}" if steps else f"M{x:.1f} {y:.1f}")
        shapes.append(_dot(x, y, "c4" if is_better else "c2", f"trial {trial.id}: {number_text(value)}"))
    steps.append(f"H{_across(count, count):.1f}")
    failed = [(number, trial) for number, trial in enumerate(study.trials, 1) if trial.reason]
    shapes += (_mark(_across(number, count), f"trial {trial.id}: {trial.state}") for number, trial in failed)
    word = "highest" if goal.is_maximum else "lowest"
    line = Markup('<path class="line top c4" d="{}"/>').format("".join(steps))
    kinds = [
        ("line top c4", f"the {word} so far"),
        ("dot c2", "other trials"),
        *([("line top cx", "no result")] if failed else []),
    ]
    below = [(position, text) for position, text in _counting(count)]
    named = f"Best so far: {goal.metric}"
    said = f"{named}, {word} {number_text(best or 0.0)} after {len(measured)} of {count} trials"
    return _figure(named, said, axis.ticks(), [line, *shapes], below, "trial", kinds)


def _counting(count: int) -> list[tuple[float, str]]:
    axis = Axis(1.0, float(count))
    whole = [
        number
        for number in sorted({1, *(round(float(text)) for _, text in axis.ticks()), count})
        if number > 0
    ]
    kept = [number for number in whole if number in (1, count) or 0.06 * count < number < 0.94 * count]
    return [(_across(number, count) / _SIZE, str(number)) for number in kept]


def _across(number: int, count: int) -> float:
    return _SIZE * (0.5 if count < 2 else (number - 1) / (count - 1))


def _down(axis: Axis, value: float | str | None) -> float:
    position = axis.place(value)
    return _SIZE * (1 - (0.5 if position is None else position))


def _measured(trial: Trial, goal: Goal) -> float | None:
    value = trial.metrics.get(goal.metric)
    is_good = trial.state == "SUCCEEDED" and value is not None and math.isfinite(value)
    return value if is_good else None


def _curves(study: Study, goal: Goal) -> Markup | None:
    """Return each trial's measurements by training step, the best trial's on top."""
    curves = [(trial, points) for trial in study.trials if len(points := _points(trial, goal)) > 1]
    if not curves:
        return None
    ranked = _by_merit(study, goal)
    curves.sort(key=lambda curve: ranked.get(curve[0].id, -1.0))
    left = max(0, len(curves) - _MOST_CURVES)
    curves = curves[left:]
    across = axis_of(step for _, points in curves for step, _ in points)
    down = axis_of(value for _, points in curves for _, value in points)
    assert across is not None, "a curve has points"
    assert down is not None, "a curve has points"
    best = study.best.id if study.best else ""
    shapes = []
    for trial, points in curves:
        placed = [(_SIZE * (across.place(step) or 0.0), _down(down, value)) for step, value in points]
        is_best = trial.id == best
        kind = "top cb" if is_best else f"thin {_class(ranked.get(trial.id))}"
        title = f"trial {trial.id}: {number_text(points[-1][1])} at step {number_text(points[-1][0])}"
        shapes.append(_path(placed, kind, title))
    named = f"Learning curves: {goal.metric}"
    note = f"; the {len(curves)} best of {len(curves) + left} are shown" if left else ""
    said = f"{named} of {len(curves)} trials by training step{note}"
    return _figure(
        named + note, said, down.ticks(), shapes, across.ticks(), "training step", _kinds(has_best=bool(best))
    )


def _points(trial: Trial, goal: Goal) -> list[Point]:
    """Return steps and values of a trial, thinned out to a number that can be seen."""
    points = [
        (float(measurement.step), value)
        for measurement in trial.measurements
        if math.isfinite(value := measurement.metrics.get(goal.metric, math.nan))
    ]
    if len(points) <= _MOST_POINTS:
        return points
    every = (len(points) - 1) / (_MOST_POINTS - 1)
    return [points[round(number * every)] for number in range(_MOST_POINTS)]


def _by_merit(study: Study, goal: Goal) -> dict[str, float]:
    """Return the rank of each measured trial, from 0 for the worst to 1 for the best."""
    measured = [(value, trial.id) for trial in study.trials if (value := _measured(trial, goal)) is not None]
    measured.sort(reverse=not goal.is_maximum)
    last = max(1, len(measured) - 1)
    return {id: number / last for number, (_, id) in enumerate(measured)}


def _class(rank: float | None) -> str:
    """Return the class of a rank: one of five colours from the worst to the best."""
    return "cx" if rank is None else f"c{min(_CLASSES - 1, int(rank * _CLASSES))}"


def _kinds(*, has_best: bool) -> list[tuple[str, str]]:
    return [
        ("line top c0", "worst fifth"),
        ("line top c2", "middle"),
        ("line top c4", "best fifth"),
        *([("line top cb", "best trial")] if has_best else []),
    ]


def _parallel(study: Study, goal: Goal) -> Markup | None:
    """Return parallel coordinates: axes for parameters and the metric, a line for each measured trial."""
    trials = [trial for trial in study.trials if _measured(trial, goal) is not None]
    names = parameters_of(study)
    left = max(0, len(names) - _MOST_AXES)
    axes: list[tuple[str, Axis]] = []
    for name in names[:_MOST_AXES]:
        values = (trial.parameters.get(name) for trial in trials)
        if (axis := axis_of(values, is_log=name in study.logarithmic)) is not None:
            axes.append((name, axis))
    result = axis_of(_measured(trial, goal) for trial in trials)
    if result is None or not axes or len(trials) < 2:
        return None
    ranked, best = _by_merit(study, goal), study.best.id if study.best else ""
    shapes = []
    for trial in sorted(trials, key=lambda trial: (trial.id == best, ranked[trial.id])):
        placed = [
            *((axis, trial.parameters.get(name)) for name, axis in axes),
            (result, trial.metrics[goal.metric]),
        ]
        points = [
            (_SIZE * number / len(axes), _SIZE * (1 - position))
            for number, (axis, value) in enumerate(placed)
            if (position := axis.place(value)) is not None
        ]
        title = f"trial {trial.id}: {goal.metric} {number_text(trial.metrics[goal.metric])}, " + ", ".join(
            f"{name} {value_text(value)}" for name, value in trial.parameters.items()
        )
        shapes.append(
            _path(points, "top cb" if trial.id == best else f"thin {_class(ranked[trial.id])}", title)
        )
    note = f"; {left} more parameters are in the table" if left else ""
    named = f"Parameters and {goal.metric}{note}"
    said = f"{named}: {len(trials)} trials, one line each, along {len(axes) + 1} axes"
    return _axes([*axes, (goal.metric, result)], named, said, shapes, _kinds(has_best=bool(best)))


def _axes(
    axes: Sequence[tuple[str, Axis]],
    named: str,
    said: str,
    shapes: list[Markup],
    kinds: Sequence[tuple[str, str]],
) -> Markup:
    """Return the figure of parallel axes; each axis has its name above and its marks beside it."""
    last = len(axes) - 1
    lines = [
        Markup('<path class="grid" d="M{:.1f} 0V1000"/>').format(_SIZE * n / last) for n in range(last + 1)
    ]
    texts, names = [], []
    for number, (name, axis) in enumerate(axes):
        x = 100 * number / last
        is_last = number == last
        for position, text in axis.ticks():
            y = 30 + _HEIGHT * (1 - position)
            texts.append(text_at(x, y, _short(text, 18), "end" if is_last else "start", -5 if is_last else 5))
        names.append(Markup("<li>{}{}</li>").format(one_line(name), " (logarithmic)" if axis.is_log else ""))
        side = "end" if is_last else "middle" if number else "start"
        texts.append(text_at(x, 14, f"{number + 1} {_short(name, 8)}", side, 0))
    inner = _inner(30, _HEIGHT, [*lines, *shapes])
    height = 30 + _HEIGHT + 10
    width = next((f"n{least}" for least in (15, 11, 7, 4) if len(axes) >= least), "")
    return Markup(
        '<figure><figcaption>{}</figcaption>{}<ol class="axes" aria-label="Axes from left to right">{}</ol>'
        '<div class="scroll" tabindex="0" role="region" aria-label="{}"><div class="bar {}">'
        '<svg height="{}" role="img" aria-label="{}">{}{}</svg></div></div></figure>'
    ).format(
        one_line(named),
        _legend(kinds),
        Markup("").join(names),
        one_line(named),
        width,
        height,
        one_line(said),
        inner,
        Markup("").join(texts),
    )


def _short(text: str, most: int) -> str:
    """Return a text cut to some characters; the list of axes, titles and the table have it whole."""
    shown = one_line(text)
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def _figure(
    named: str,
    said: str,
    ticks: Sequence[tuple[float, str]],
    shapes: Sequence[Markup],
    below: Sequence[tuple[float, str]],
    unit: str,
    kinds: Sequence[tuple[str, str]],
) -> Markup:
    """Return a figure: its marks at the left, shapes over a grid, and marks below with their unit."""
    marks = [text_at(92, 8 + _HEIGHT * (1 - position), text, "end", 0) for position, text in ticks]
    grid = [
        Markup('<path class="grid" d="M0 {:.1f}H1000"/>').format(_SIZE * (1 - position))
        for position, _ in ticks
    ]
    feet = [
        text_at(
            100 * position,
            8 + _HEIGHT + _FOOT - 4,
            text,
            "start" if position < 0.02 else "end" if position > 0.98 else "middle",
            0,
        )
        for position, text in below
    ]
    height = 8 + _HEIGHT + _FOOT
    return Markup(
        '<figure><figcaption>{}</figcaption>{}<div class="plot"><svg height="{}" aria-hidden="true">{}</svg>'
        '<svg height="{}" role="img" aria-label="{}">{}{}</svg><span></span>'
        '<span class="dim">{}</span></div></figure>'
    ).format(
        one_line(named),
        _legend(kinds),
        height,
        Markup("").join(marks),
        height,
        one_line(said),
        _inner(8, _HEIGHT, [*grid, *shapes]),
        Markup("").join(feet),
        unit,
    )


def _inner(top: int, height: int, shapes: Sequence[Markup]) -> Markup:
    return Markup(
        '<svg y="{}" width="100%" height="{}" viewBox="0 0 1000 1000" preserveAspectRatio="none">{}</svg>'
    ).format(top, height, Markup("").join(shapes))


def _legend(kinds: Sequence[tuple[str, str]]) -> Markup:
    """Return a list of classes and their meanings; a dot is a line of no length."""
    item = Markup('<li><svg viewBox="0 0 28 14" aria-hidden="true"><path class="{}" d="{}"/></svg>{}</li>')
    items = (
        item.format(kind, "M14 7h0" if kind.startswith("dot") else "M0 7H28", text) for kind, text in kinds
    )
    return Markup('<ul class="legend">{}</ul>').format(Markup("").join(items))


def text_at(x: float, y: float, text: str, side: str, shift: int) -> Markup:
    """Return a text at a place in percent of the width; `side` is its anchor, `shift` pixels to the right."""
    return Markup('<text x="{:.2f}%" y="{:.1f}" dx="{}" dy="4" text-anchor="{}">{}</text>').format(
        x, y, shift, side, one_line(text)
    )


def _dot(x: float, y: float, kind: str, title: str) -> Markup:
    # A line of no length with round ends stays round, however the drawing is stretched.
    return Markup('<path class="dot {}" d="M{:.1f} {:.1f}h0"><title>{}</title></path>').format(
        kind, x, y, one_line(title)
    )


def _mark(x: float, title: str) -> Markup:
    """Return a short upright line at the foot of a chart."""
    return Markup('<path class="line top cx" d="M{:.1f} 1000v-40"><title>{}</title></path>').format(
        x, one_line(title)
    )


def _path(points: Sequence[Point], kind: str, title: str) -> Markup:
    drawn = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return Markup('<path class="line {}" d="{}"><title>{}</title></path>').format(
        kind, drawn, one_line(title)
    )
