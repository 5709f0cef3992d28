"""Bars of runs on an axis of time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from datetime import datetime, timedelta

from markupsafe import Markup
from msgspec import Struct

from reconciler.base.sanitize import one_line
from reconciler.pages.charts import text_at

_STEPS = (1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400)
_DAY = 86400


class Span(Struct, frozen=True):
    """Times of a run; None for those that are unknown.

    Attributes:
        end: The end, or the present of a run that goes on.
        outcome: The class of the mark at its end; "" for a run that goes on.
    """

    created: datetime
    prepared: datetime | None
    started: datetime | None
    end: datetime
    outcome: str = ""

    def bands(self) -> Iterator[tuple[str, datetime, datetime]]:
        """Yield the bands that the run consists of, in order."""
        waited = min(self.started or self.end, self.end)
        prepared = self.prepared if self.prepared and self.created <= self.prepared <= waited else None
        yield "queued", self.created, max(self.created, prepared or waited)
        if prepared:
            yield "preparing", prepared, waited
        if self.started:
            yield "running", self.started, max(self.started, self.end)


def bar(span: Span, first: datetime, last: datetime, said: str) -> Markup:
    """Return a run as bands between two moments, thin while queued and thick while running."""
    whole = max((last - first).total_seconds(), 0.001)
    heights = {"queued": (8, 4), "preparing": (6, 8), "running": (3, 14)}
    shapes = []

    def place(moment: datetime) -> float:
        # Clocks differ: a run may seem to end before it began.
        return min(100.0, max(0.0, 100 * (moment - first).total_seconds() / whole))

    for name, start, end in span.bands():
        least = 0.25 if name == "running" else 0.0
        x = min(place(start), 100 - least)
        y, height = heights[name]
        shapes.append(
            Markup('<rect class="{}" x="{:.2f}%" y="{}" width="{:.2f}%" height="{}"/>').format(
                name, x, y, max(least, place(end) - x), height
            )
        )
    if span.outcome:
        shapes.append(
            Markup('<rect class="{}" x="{:.2f}%" y="0" width="3" height="20"/>').format(
                span.outcome, min(place(span.end), 99.7)
            )
        )
    return Markup('<svg height="20" role="img" aria-label="{}">{}</svg>').format(
        one_line(said), Markup("").join(shapes)
    )


def time_axis(first: datetime, last: datetime) -> Markup:
    """Return the marks of a timeline; both moments are in the zone to show."""
    seconds = max(1.0, (last - first).total_seconds())
    step = next((length for length in _STEPS if seconds / length <= 4), _DAY * math.ceil(seconds / _DAY / 4))
    midnight = first.replace(hour=0, minute=0, second=0, microsecond=0)
    start = math.ceil((first - midnight).total_seconds() / step) * step
    form = (
        "%m-%d"
        if step >= _DAY
        else "%m-%d %H:%M"
        if seconds > _DAY / 2
        else "%H:%M"
        if step >= 60
        else "%H:%M:%S"
    )
    texts = []
    for number in range(6):
        offset = (midnight - first).total_seconds() + start + number * step
        if 0 <= offset <= seconds:
            position = offset / seconds
            side = "start" if position < 0.08 else "end" if position > 0.92 else "middle"
            texts.append(text_at(100 * position, 12, f"{first + timedelta(seconds=offset):{form}}", side, 0))
    return Markup('<svg height="20" aria-hidden="true">{}</svg>').format(Markup("").join(texts))
