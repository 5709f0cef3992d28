"""Table of `status` for people: a row for each job, in columns that fit the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from textwrap import wrap

from reconciler.base.diagnostics import counted
from reconciler.base.sanitize import one_line, shortened
from reconciler.model.claim import time_of
from reconciler.model.job import State, service_word
from reconciler.output.terminal import (
    GAP,
    SIGNS,
    Paint,
    age,
    column_widths,
    duration,
    fitted,
    painter,
    width_of,
)
from reconciler.output.text import short_error
from reconciler.output.wording.cause import cause_headline, cause_label, cause_text
from reconciler.output.wording.plan import row_error
from reconciler.planning.outcome import Condition, JobStatus

_NONE = "-"
CONDITION_SIGNS: Mapping[Condition, str] = {
    **{Condition(state.lower()): sign for state, sign in SIGNS.items()},
    Condition.UNREADABLE: "!",
    Condition.HELD: "!",
    Condition.REFUSED: "!",
    Condition.UNKNOWN: "?",
    Condition.DELETED: "!",
    Condition.GIVEN_UP: "-",
    Condition.NOT_SUBMITTED: "+",
    Condition.SUSPENDED: "-",
}
"""The sign of each condition."""
_STYLES: Mapping[Condition, str] = {
    **{Condition(state.lower()): state for state in State},
    **{condition: "!" for condition, sign in CONDITION_SIGNS.items() if sign == "!"},
    Condition.UNKNOWN: "~",
    Condition.GIVEN_UP: "…",
    Condition.SUSPENDED: "…",
}
_STATE, _RESULT, _CAUSE = "STATE", "RESULT", "CAUSE"
_LEAST = {"JOB": 20, _RESULT: 10, _CAUSE: 16}
"""The smallest width of each column that may be cut off."""
_MAX_ERROR = 300
_NBSP = "\N{NO-BREAK SPACE}"
_IN_FULL = "Causes and remedies in full: `reconciler status --wide`."
_SHOWN_OF_SHA = 12

_Cells = dict[str, str]


def status_text(
    rows: Sequence[JobStatus],
    selected: Sequence[JobStatus],
    now: datetime,
    *,
    width: int | None = None,
    colour: bool = False,
    wide: bool = False,
) -> str:
    """Return a table of jobs, and a last line with the numbers of jobs by condition.

    Args:
        rows: The jobs to show, in this order.
        selected: The jobs to count.
        now: The present time.
        width: The terminal's width; None for no limit.
        colour: True for colours.
        wide: True for all columns in full.
    """
    if not selected:
        return "No jobs."
    paint, width = painter(colour=colour), None if wide else width
    times = Counter(row.base_name for row in rows)
    cells = [_cells(row, now, is_only=times[row.base_name] == 1, wide=wide) for row in rows]
    brief = max((width_of(_causes(row)[-1]) for row in rows if row.cause or row_error(row)), default=0)
    columns = _columns(cells, width, brief)
    room = dict(columns).get(_CAUSE, 0)
    is_cut = False
    for status, row in zip(rows, cells, strict=True):
        if row[_CAUSE] != _NONE and width_of(row[_CAUSE]) > room:
            row[_CAUSE], is_cut = _shorter_cause(status, room), True
    head = _line({name: name for name, _ in columns}, columns, lambda style, text: text, "") if cells else ""
    lines = [paint("head", head)] if cells else []
    lines += (
        _line(row, columns, paint, _STYLES.get(status.condition, ""))
        for status, row in zip(rows, cells, strict=True)
    )
    below = [_counts(selected, len(rows)), *[_IN_FULL] * is_cut]
    return "\n".join(
        [*lines, *[""] * bool(lines), *(part for line in below for part in _wrapped(line, width))]
    )


def _columns(rows: Sequence[_Cells], width: int | None, brief: int) -> list[tuple[str, int]]:
    """Return the names and widths of the columns that have content and room.

    RESULT shrinks first, until CAUSE has room for the widest of the short causes, `brief`.
    """
    names = [name for name in rows[0] if any(row[name] != _NONE for row in rows)] if rows else []
    natural = [max(len(name), *(width_of(row[name]) for row in rows)) for name in names]
    least = [_LEAST.get(name, natural_width) for name, natural_width in zip(names, natural, strict=True)]
    if width is not None and {_RESULT, _CAUSE} <= {*names}:
        result, cause = names.index(_RESULT), names.index(_CAUSE)
        needed = sum(natural) - natural[cause] + min(natural[cause], brief) + GAP * (len(names) - 1)
        spare = max(0, natural[result] - least[result])
        natural[result] -= min(spare, max(0, needed - width))
    return [pair for pair in zip(names, column_widths(natural, least, width), strict=True) if pair[1]]


def _line(cells: _Cells, columns: Sequence[tuple[str, int]], paint: Paint, style: str) -> str:
    """Return a line of the table, the state in the colour of `style`."""
    shown = [fitted(cells[name], width) for name, width in columns]
    shown[-1] = shown[-1].rstrip()
    for number, (name, _) in enumerate(columns):
        if name == _STATE:
            shown[number] = paint(style, shown[number])
    return (" " * GAP).join(shown)


def _cells(row: JobStatus, now: datetime, *, is_only: bool, wide: bool) -> _Cells:
    """Return the cells of a row; the job name tells several rows of one base name apart."""
    created, started = time_of(row.create_time), time_of(row.start_time)
    ended = time_of(row.end_time) or now
    condition = row.condition
    cells = {
        "JOB": one_line(row.base_name if is_only else row.job_name) or _NONE,
        _STATE: f"{CONDITION_SIGNS[condition]} {state_text(row, condition)}",
        "AGE": age(now - created) if created else _NONE,
        "DURATION": duration(ended - started) if started else _NONE,
        _RESULT: one_line(row.result) or _NONE,
    }
    if wide:
        cells |= {
            "KIND": one_line(row.kind),
            "ATTEMPT": str(row.attempt),
            "CLAIM": row.claim,
            "COMMIT": one_line(row.commit[:_SHOWN_OF_SHA]) or _NONE,
            "RUN": one_line(row.job_name) or _NONE,
        }
    return {**cells, _CAUSE: _causes(row)[0] or _NONE}


def _causes(row: JobStatus) -> list[str]:
    """Return the cause: with its remedy, without it, and in a few words."""
    cause = row.cause
    if cause is None:
        return [shortened(short_error(row_error(row)), _MAX_ERROR)]
    return [one_line(words(cause)) for words in (cause_text, cause_headline, cause_label)]


def _shorter_cause(row: JobStatus, room: int) -> str:
    """Return the longest form of the cause that fits, else its shortest form."""
    causes = _causes(row)
    return next((cause for cause in causes if width_of(cause) <= room), causes[-1])


def state_text(row: JobStatus, condition: Condition) -> str:
    """Return the condition, or the state with the service's own word for it."""
    if row.state is None or condition in (Condition.SUSPENDED, Condition.UNREADABLE):
        return condition
    word = service_word(row.state, row.service_state)
    return one_line(f"{row.state} ({word})") if word else str(row.state)


def _counts(selected: Sequence[JobStatus], shown: int) -> str:
    """Return the numbers of jobs by condition."""
    numbers = Counter(row.condition for row in selected)
    # A number stays on the line of its word.
    counts = [
        f"{numbers[condition]} {condition}".replace(" ", _NBSP)
        for condition in Condition
        if numbers[condition]
    ]
    more = f" ({shown} shown)" if shown < len(selected) else ""
    return f"{counted(len(selected), 'job')}: {', '.join(counts)}{more}."


def _wrapped(line: str, width: int | None) -> list[str]:
    parts = [line] if width is None else wrap(line, max(1, width), break_on_hyphens=False)
    return [part.replace(_NBSP, " ") for part in parts]
