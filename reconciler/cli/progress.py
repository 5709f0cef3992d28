"""How waiting looks: a live table on a terminal, else one line for each change of state."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TextIO

from reconciler.errors import ReconcilerError
from reconciler.events import events
from reconciler.inert import one_line
from reconciler.job import ActualJob, State
from reconciler.render import short_error
from reconciler.services.cloudlog import JobLog
from reconciler.session import Session
from reconciler.wait import Listener

if TYPE_CHECKING:
    from rich.table import Table

_STYLES = {State.SUCCEEDED: "green", State.FAILED: "red", State.CANCELLED: "yellow", State.RUNNING: "cyan"}


@contextmanager
def progress(session: Session, arguments: argparse.Namespace, stream: TextIO) -> Iterator[Listener]:
    """What `wait` tells how the jobs stand."""
    if arguments.quiet:
        yield lambda jobs: None
    elif stream.isatty() and "NO_COLOR" not in os.environ and arguments.log_format == "text":
        with _live_table(session) as tell:
            yield tell
    else:
        yield _Lines(arguments)


class _Lines:
    """One line for each change of a job's state."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self._events = events(arguments.log_format)
        self._known: dict[str, State] = {}

    def __call__(self, jobs: tuple[ActualJob, ...]) -> None:
        for job in jobs:
            if self._known.get(job.resource) is job.state:
                continue
            self._known[job.resource] = job.state
            error = {"error": short_error(job.error)} if job.error else {}
            self._events.info(str(job.state), job=job.job_name, **error)


@contextmanager
def _live_table(session: Session) -> Iterator[Listener]:
    from rich.console import Console
    from rich.live import Live

    with Live(console=Console(stderr=True), refresh_per_second=4) as live:
        yield lambda jobs: live.update(_table(session, jobs))


def _table(session: Session, jobs: tuple[ActualJob, ...]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("job", "state", "elapsed", "last log line", box=None, pad_edge=False)
    for job in jobs:
        state = Text(str(job.state), style=_STYLES.get(job.state, ""))
        table.add_row(
            Text(one_line(job.job_name)), state, _elapsed(job), Text(_last_line(session, job), no_wrap=True)
        )
    return table


def _elapsed(job: ActualJob) -> str:
    start = _time(job.create_time)
    if start is None:
        return ""
    end = _time(job.end_time) or datetime.now(UTC)
    seconds = max(0, int((end - start).total_seconds()))
    return f"{seconds // 3600}:{seconds % 3600 // 60:02}:{seconds % 60:02}"


def _time(text: str) -> datetime | None:
    """A service's time; None where it is none, or says no zone: waiting must not end for it."""
    try:
        time = datetime.fromisoformat(text)
        return time.astimezone(UTC) if time.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _last_line(session: Session, job: ActualJob) -> str:
    """A log that can't be read must not end the wait."""
    if job.error:
        return short_error(job.error)
    try:
        entry = JobLog(session.connection, job).last()
    except ReconcilerError:
        return ""
    return one_line(entry.text) if entry else ""
