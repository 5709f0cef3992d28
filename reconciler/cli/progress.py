"""Progress of submitting and waiting: a bar and a live table on a terminal, else lines."""

from __future__ import annotations

import argparse
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from reconciler.base.errors import ReconcilerError
from reconciler.base.sanitize import one_line
from reconciler.cli import has_colours
from reconciler.cli.context import is_by_hand
from reconciler.cli.events import events
from reconciler.google.job_log import JobLog
from reconciler.model.cause import cause_of
from reconciler.model.job import ActualJob, State
from reconciler.operations.session import Session
from reconciler.operations.submissions import Listener as SubmissionListener
from reconciler.operations.wait import JobsListener
from reconciler.output.terminal import SIGNS, elapsed
from reconciler.output.text import short_error
from reconciler.output.wording.cause import cause_message
from reconciler.output.wording.plan import progress_text
from reconciler.planning.attempts import base_of
from reconciler.planning.outcome import SubmitProgress

if TYPE_CHECKING:
    from rich.console import Group
    from rich.live import Live
    from rich.table import Table

_STYLES = {State.SUCCEEDED: "green", State.FAILED: "red", State.CANCELLED: "yellow", State.RUNNING: "cyan"}
_EVERY = 50  # submissions between two lines of a log
_EVERY_SECONDS = 30.0
_BAR = 30  # the bar's width in characters
_MOST_NOTED = 10  # jobs whose logs are read between two lines
_READ_SECONDS = 1.0
_BEFORE_START = (State.PREPARING, State.QUEUED)


@contextmanager
def submitting(arguments: argparse.Namespace, stream: TextIO) -> Iterator[SubmissionListener]:
    """Yield a listener that shows the progress of submissions."""
    if arguments.quiet:
        yield lambda standing: None
    elif _is_live(arguments, stream):
        with closing(_Bar()) as bar:
            yield bar
    else:
        yield _CountedLines(lambda line: print(line, file=stream, flush=True))


class _Bar:
    """A progress bar, shown from the first submission to the end."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._live: Live | None = None
        self._standing, self._at = SubmitProgress(0), 0.0

    def close(self) -> None:
        """Remove the bar."""
        if self._live is not None:
            self._live.stop()

    def __call__(self, standing: SubmitProgress) -> None:
        self._standing, self._at = standing, self._monotonic()
        if self._live is None and standing.total:
            # Imported late, as rich is slow to import and most runs submit nothing.
            from rich.console import Console
            from rich.live import Live

            self._live = Live(console=Console(stderr=True), get_renderable=self.shown, transient=True)
            self._live.start()

    def shown(self) -> Group:
        """Return the current bar."""
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        # Between two submissions the remaining times count down.
        standing, elapsed = self._standing, self._monotonic() - self._at
        left = None if standing.left is None else max(0.0, standing.left - elapsed)
        now = replace(standing, held=max(0.0, standing.held - elapsed), left=left)
        bar = Table.grid(padding=(0, 2))
        counts = Text(f"submitted {now.done} of {now.total}")
        bar.add_row(ProgressBar(total=now.total, completed=now.done, width=_BAR), counts)
        return Group(bar, Text(progress_text(now)))


class _CountedLines:
    """A line for every 50 submissions or 30 seconds, to show in a log that a long apply goes on."""

    def __init__(self, write: Callable[[str], None], monotonic: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._monotonic = monotonic
        self._written, self._written_at = 0, monotonic()

    def __call__(self, standing: SubmitProgress) -> None:
        new, now = standing.done - self._written, self._monotonic()
        # The outcomes follow the last submission, so it needs no line.
        if not new or standing.done == standing.total:
            return
        if new >= _EVERY or now - self._written_at >= _EVERY_SECONDS:
            self._written, self._written_at = standing.done, now
            counts = f"submitted {standing.done} of {standing.total}"
            self._write(", ".join(filter(None, (counts, progress_text(standing)))))


@contextmanager
def progress(session: Session, arguments: argparse.Namespace, stream: TextIO) -> Iterator[JobsListener]:
    """Yield a listener that shows the states of awaited jobs."""
    if arguments.quiet:
        yield lambda jobs: None
    elif _is_live(arguments, stream):
        from rich.console import Console
        from rich.live import Live

        with Live(console=Console(stderr=True), refresh_per_second=4) as live:
            yield lambda jobs: live.update(_table(session, jobs))
        print(file=stream)  # the outcomes follow the table
    else:
        yield _Lines(session, arguments)


def _is_live(arguments: argparse.Namespace, stream: TextIO) -> bool:
    return stream.isatty() and is_by_hand() and has_colours(stream) and arguments.log_format == "text"


class _Lines:
    """A line for each change of a job's state, and for what jobs wait for before they run.

    Only the embedded service writes that into their logs.
    """

    def __init__(self, session: Session, arguments: argparse.Namespace) -> None:
        self._session = session
        self._events = events(arguments.log_format)
        self._states: dict[str, State] = {}
        self._notes: dict[str, tuple[str, float]] = {}
        self._read_at = 0.0

    def __call__(self, jobs: tuple[ActualJob, ...]) -> None:
        for job in jobs:
            if self._states.get(job.resource) is not job.state:
                self._states[job.resource] = job.state
                cause = cause_of(job)
                said = cause_message(cause) if cause else short_error(job.error)
                error = {"error": one_line(said)} if job.error else {}
                self._events.info(str(job.state), job=job.job_name, **error)
        now = time.monotonic()
        if self._session.is_local and now >= self._read_at:
            # Those that are prepared first: each queued job waits for them.
            waiting = [job for state in _BEFORE_START for job in jobs if job.state is state]
            for job in waiting[:_MOST_NOTED]:
                self._note(job, now)
            self._read_at = time.monotonic() + _READ_SECONDS

    def _note(self, job: ActualJob, now: float) -> None:
        """Print a job's last line of log if it is new; its place in the queue seldom, as it often changes."""
        line = _last_line(self._session, job)
        last, at = self._notes.get(job.resource, ("", -_EVERY_SECONDS))
        if not line or line == last or (job.state is State.QUEUED and now - at < _EVERY_SECONDS):
            return
        self._notes[job.resource] = line, now
        self._events.info(str(job.state), job=job.job_name, message=line)


def _table(session: Session, jobs: tuple[ActualJob, ...]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("JOB", "STATE", "ELAPSED", "LAST LINE", box=None, pad_edge=False)
    numbers = Counter(base_of(job.job_name) for job in jobs)
    for job in jobs:
        # The hash takes room, and tells only several runs of one base name apart.
        base = base_of(job.job_name)
        name = base if numbers[base] == 1 else job.job_name
        state = Text(f"{SIGNS[job.state]} {job.state}", style=_STYLES.get(job.state, ""))
        # The state's column has the line's first word already.
        line = _last_line(session, job).removeprefix("Queued: ")
        table.add_row(Text(one_line(name)), state, elapsed(job), Text(line, no_wrap=True))
    return table


def _last_line(session: Session, job: ActualJob) -> str:
    # On a narrow terminal the service's own words would be cut off before the reason.
    if cause := cause_of(job):
        return one_line(cause_message(cause))
    if job.error:
        return short_error(job.error)
    try:
        entries = JobLog(session.connection, job).last()
    except ReconcilerError:
        return ""  # an unreadable log must not end the wait
    return one_line(entries[-1].text) if entries else ""
