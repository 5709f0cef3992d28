"""Terminal's signs, colours, widths, relative times and durations, and tables that fit its width.

Texts must have passed `sanitize.one_line` before they come here.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from itertools import pairwise

from reconciler.model.job import ActualJob, State

Paint = Callable[[str, str], str]
"""Returns a text in the colour of a style: a state, a sign of the plan, or "head"; unchanged for others."""

GAP = 2
"""Blanks between two columns."""
SIGNS = {
    State.QUEUED: "○",
    State.PREPARING: "◐",
    State.RUNNING: "●",
    State.SUCCEEDED: "✓",
    State.FAILED: "✗",
    State.CANCELLING: "◑",
    State.CANCELLED: "⊘",
}
"""The sign of each state."""

_RED, _GREEN, _YELLOW, _CYAN, _FAINT = "31", "32", "33", "36", "2"
_COLOURS: dict[str, str] = {
    "head": "1",
    "+": _GREEN,
    "↻": _YELLOW,
    "^": _CYAN,
    "-": _RED,
    "!": "1;31",
    "~": _YELLOW,
    "…": _FAINT,
    State.QUEUED: _CYAN,
    State.PREPARING: _CYAN,
    State.RUNNING: _CYAN,
    State.SUCCEEDED: _GREEN,
    State.FAILED: _RED,
    State.CANCELLING: _YELLOW,
    State.CANCELLED: _YELLOW,
}
_UNITS = ((86400, "d"), (3600, "h"), (60, "m"))
_PAIRS = tuple(pairwise((*_UNITS, (1, "s"))))
_YEAR = 365 * 86400


def painter(*, colour: bool) -> Paint:
    """Return the function that paints texts; without `colour`, it returns them unchanged."""
    return _painted if colour else _plain


def _painted(style: str, text: str) -> str:
    """Return a text in the colour of a style; unchanged for a style without a colour."""
    return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if style in _COLOURS else text


def _plain(style: str, text: str) -> str:
    """Return the text itself."""
    return text


def duration(time: timedelta) -> str:
    """Return a duration in its two largest units: "45s", "3m20s", "1h05m", "2d04h"."""
    seconds = max(0, int(time.total_seconds()))
    for (size, unit), (smaller, name) in _PAIRS:
        if seconds >= size:
            return f"{seconds // size}{unit}{seconds % size // smaller:02}{name}"
    return f"{seconds}s"


def age(time: timedelta) -> str:
    """Return the time since an event in its largest unit: "45s", "3m", "5h", "12d", "2y"."""
    seconds = max(0, int(time.total_seconds()))
    if seconds >= _YEAR:
        return f"{seconds // _YEAR}y"
    for size, unit in _UNITS:
        if seconds >= size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"


def elapsed(job: ActualJob) -> str:
    """Return the time from a job's creation to its end or to now: "1:05:09"; "" if the former is unknown."""
    start = _time(job.create_time)
    if start is None:
        return ""
    end = _time(job.end_time) or datetime.now(UTC)
    seconds = max(0, int((end - start).total_seconds()))
    return f"{seconds // 3600}:{seconds % 3600 // 60:02}:{seconds % 60:02}"


def _time(text: str) -> datetime | None:
    # A time that is invalid or has no zone must not end the wait that shows it.
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC) if time.tzinfo else None
    except (ValueError, OverflowError):
        return None


def number_text(value: float) -> str:
    """Return a number in at most five significant digits; a whole number in all of them."""
    is_whole = isinstance(value, int) or (value.is_integer() and abs(value) < 1e15)
    return f"{value:.0f}" if is_whole and abs(value) < 1e15 else f"{value:.5g}"


def width_of(text: str) -> int:
    """Return the number of a terminal's columns that a text takes."""
    return len(text) if text.isascii() else sum(map(_columns, text))


@lru_cache(maxsize=1000)
def _columns(char: str) -> int:
    if unicodedata.category(char) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def fitted(text: str, width: int) -> str:
    """Return a text in exactly `width` columns: cut off with "…", or filled up with blanks."""
    if text.isascii() and len(text) <= width:
        return text.ljust(width)
    columns = width_of(text)
    if columns > width:
        columns = 1
        for number, char in enumerate(text):
            if columns + _columns(char) > width:
                text = f"{text[:number]}…" if width > 0 else ""
                break
            columns += _columns(char)
    return text + " " * (width - columns)


def column_widths(natural: Sequence[int], least: Sequence[int], width: int | None) -> list[int]:
    """Return the widths of a table's columns, so that a row takes at most `width` columns of the terminal.

    The widest columns shrink first. If the smallest widths take too much, the last columns get 0 and are left
    out, and the first column gets less than its smallest width.

    Args:
        natural: The width of each column's longest cell.
        least: The smallest width that each column may shrink to.
        width: The terminal's width; None for no limit.
    """
    widths = list(natural)
    if width is None:
        return widths
    floor = [min(pair) for pair in zip(natural, least, strict=True)]
    shown = len(widths)
    while shown > 1 and sum(floor[:shown]) + GAP * (shown - 1) > width:
        shown -= 1
        widths[shown] = 0
    excess = sum(widths[:shown]) + GAP * (shown - 1) - width
    while excess > 0:
        spare = [current - lowest for current, lowest in zip(widths[:shown], floor, strict=False)]
        widest = max(range(shown), key=lambda column: (spare[column] > 0, widths[column]))
        if spare[widest] <= 0:
            widths[0] = max(0, widths[0] - excess)
            break
        widths[widest] -= 1
        excess -= 1
    return widths
