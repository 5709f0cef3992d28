"""`reconciler logs`: what a job wrote."""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from reconciler.base.diagnostics import same_word, similar_word
from reconciler.base.errors import ExitCode, NotFoundError, ReconcilerError
from reconciler.base.sanitize import is_on_runner, lines, one_line
from reconciler.cli import print_message
from reconciler.cli.context import context_of, run_of
from reconciler.cli.events import events
from reconciler.cli.flag_types import trial
from reconciler.cli.flags import add_name
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.google.job_log import JobLog, hiding
from reconciler.model.cause import Cause, cause_of
from reconciler.model.job import SERVICE, ActualJob, LogEntry, State, Trials
from reconciler.operations.session import Session
from reconciler.output.wording.cause import cause_text
from reconciler.submission.claims_upkeep import with_reason

EXAMPLES = """reconciler logs census-income --follow
  reconciler logs census-tuned --trial 3 --replica workerpool0-0"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add = parser.add_argument
    add_name(parser)
    add("-f", "--follow", action="store_true", help="keep printing until the job has ended")
    add(
        "--replica",
        metavar="REPLICA",
        help="only this replica, such as workerpool1-0 or worker-replica-0; service: the service's messages",
    )
    add("--trial", type=trial, metavar="N", help="only this trial of a tuning job, counted from 1")


_MOST_REMEMBERED = 100_000
_LONG_AGO = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Pace:
    """Times of following a log, in seconds."""

    pause: float  # between two reads
    lateness: float  # of an entry behind others of the same time, at most
    after_end: float  # entries may still arrive that long after the job's end


LOCAL_PACE = Pace(pause=0.3, lateness=2.0, after_end=0.0)
"""The embedded service ends a job only after its last line is in its file."""
GOOGLE_PACE = Pace(pause=5.0, lateness=10.0, after_end=10.0)


def follow(
    log: JobLog, pace: Pace, ended: Callable[[], bool], clock: Callable[[], float] = time.monotonic
) -> Iterator[LogEntry | None]:
    """Yield a log's entries as they arrive, each once, until the job has ended; None before each pause."""
    printed = PrintedEntries(pace.lateness, clock)
    end_seen: float | None = None
    while True:
        # The state is read before the entries, so that they include all that a job wrote before its end.
        if end_seen is None and ended():
            end_seen = clock()
        is_last = end_seen is not None and clock() >= end_seen + pace.after_end
        yield from (entry for entry in log.entries(printed.since) if printed.add(entry))
        if is_last:
            return
        printed.forget()
        yield None
        time.sleep(pace.pause)


class PrintedEntries:
    """Recently printed entries, remembered to print each only once.

    Args:
        lateness: Seconds that an entry may arrive after others of its time.
        clock: A monotonic clock in seconds.
        most: The maximal number of remembered entries; for a log that grows faster, less of the past is read.
    """

    def __init__(self, lateness: float, clock: Callable[[], float], most: int = _MOST_REMEMBERED) -> None:
        self._lateness = timedelta(seconds=lateness)
        self._clock = clock
        self._most = most
        self._recent: deque[tuple[float, datetime]] = deque()
        self._times: dict[tuple[str, str], datetime] = {}
        self._newest = self._floor = _LONG_AGO

    @property
    def since(self) -> str:
        """Start time of the next read (RFC 3339), "" for the log's beginning."""
        return "" if self._floor == _LONG_AGO else self._floor.strftime("%Y-%m-%dT%H:%M:%S.%fZ")

    def add(self, entry: LogEntry) -> bool:
        """Add the entry; return False if it is already among the printed ones."""
        key = (entry.timestamp, entry.insert_id)
        if key in self._times:
            return False
        moment = self._moment(entry.timestamp)
        self._newest = max(self._newest, moment)
        self._times[key] = moment
        self._recent.append((self._clock(), moment))
        if len(self._recent) >= 2 * self._most:
            self.forget()
        return True

    def forget(self) -> None:
        """Move the start of the next read forward, and forget the entries before it."""
        while len(self._recent) > self._most:
            self._floor = max(self._floor, self._recent.popleft()[1])
        complete = self._newest - self._lateness
        printed_before = self._clock() - self._lateness.total_seconds()
        while self._recent and self._recent[0][0] < printed_before:
            complete = max(complete, self._recent.popleft()[1])
        # A trainer may set the time of its entries: an entry of tomorrow must not hide all until then.
        self._floor = max(self._floor, min(complete, datetime.now(UTC) - self._lateness))
        # The next read returns entries of exactly the start time again, so these stay.
        self._times = {key: moment for key, moment in self._times.items() if moment >= self._floor}

    def _moment(self, timestamp: str) -> datetime:
        # An entry without a valid time counts as the newest: it must neither end the loop nor move the start.
        try:
            return max(_LONG_AGO, datetime.fromisoformat(timestamp).astimezone(UTC))
        except (ValueError, OverflowError):
            return self._newest


_MOST_NAMED = 100


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print a job's log, oldest line first."""
    context = context_of(arguments)
    with context.session(start=False) as session:
        named_job, job = run_of(session, arguments.name, live=arguments.follow)
        part = _part(arguments, session, job)
        printed = _print(_entries(arguments, session, part), part.source())
        if arguments.follow:
            # The job may have changed in the meantime.
            part = _part(arguments, session, session.read(job))
        if not printed:
            _refuse_not_started(part)
        ended = with_reason(session.ports, part.job)
        manifest = named_job.desired.manifest if named_job.desired else None
        cause = cause_of(ended, named_job.base_name, manifest)
        _print_cause(ended, cause, printed, arguments.log_format)
    return ExitCode.DONE


def _print_cause(job: ActualJob, cause: Cause | None, printed: bool, log_format: str) -> None:
    """Print why a job did not succeed: on stderr, or with its state and error in place of an empty log."""
    if not printed:
        print("\n".join(_empty(job)))
    if cause is None:
        return
    sys.stdout.flush()
    verb = {State.FAILED: " failed,", State.CANCELLED: " was"}.get(job.state, ":")
    line = f"{job.job_name}{verb} {cause_text(cause, below_log=True)}"
    if printed:
        print_message(line, log_format)
    else:
        print(one_line(line))


@dataclass(frozen=True, slots=True)
class _Part:
    """The shown part of a job's log.

    Attributes:
        replicas: The number of the job's replicas by prefix of their names.
        trials: The job's trials, None for a job without.
        replica, trial: The chosen replica and trial, "" for all.
    """

    job: ActualJob
    replicas: Mapping[str, int]
    trials: Trials | None
    replica: str
    trial: str

    @property
    def name(self) -> str:
        """Description of the part for messages."""
        trial = f"trial {self.trial}" if self.trial else ""
        return " of ".join(filter(None, (self.replica, trial, self.job.job_name)))

    def source(self) -> Callable[[LogEntry], str]:
        """Return a function that formats an entry's source in columns; "" if all have the same source."""
        names = [f"{prefix}{count - 1}" for prefix, count in self.replicas.items()]
        several = not self.replica and sum(self.replicas.values()) > 1
        replica_width = max(map(len, (*names, SERVICE))) if several else 0
        trial_width = len(f"trial {_largest(self.trials)}") if self.trials and not self.trial else 0

        def formatted(entry: LogEntry) -> str:
            trial = f"trial {entry.trial}" if entry.trial else "-"
            columns = [f"{trial:{trial_width}}"] if trial_width else []
            columns += [f"{entry.replica:{replica_width}}"] if replica_width else []
            return "".join(f"{column} " for column in columns)

        return formatted


def _part(arguments: argparse.Namespace, session: Session, job: ActualJob) -> _Part:
    """Return the chosen part; raise NotFoundError if the job can never have this replica or trial."""
    engine = engine_spec(job.api_version)
    replicas, trials = engine.replicas(job.kind, job.spec), engine.trials(job)
    if arguments.replica:
        _check_replica(arguments.replica, replicas, job)
    if arguments.trial:
        _check_trial(arguments.trial, trials, job)
    trial = str(arguments.trial) if arguments.trial else ""
    return _Part(job, replicas, trials, arguments.replica or "", trial)


def _check_replica(name: str, replicas: Mapping[str, int], job: ActualJob) -> None:
    names = [f"{prefix}{n}" for prefix, count in replicas.items() for n in range(min(count, _MOST_NAMED))]
    names.append(SERVICE)
    prefix, _, number = name.rpartition("-")
    exists = number.isascii() and number.isdigit() and int(number) < replicas.get(f"{prefix}-", 0)
    if name in names or exists:
        return
    similar = same_word(name, names) or similar_word(name, names)
    ranges = (f"{p}0" if n == 1 else f"{p}0 to {p}{n - 1}" for p, n in replicas.items())
    hint = f"did you mean {similar}?" if similar else f"it has {', '.join(ranges)}; and {SERVICE}"
    raise NotFoundError(f'{job.job_name} has no replica "{name}"', hint=hint)


def _check_trial(number: int, trials: Trials | None, job: ActualJob) -> None:
    if trials is None:
        raise NotFoundError(f"{job.job_name} has no trials", hint="only tuning jobs have trials")
    if str(number) not in trials.begun and not trials.goes_on and 0 < trials.planned < number:
        hint = f"its trials are numbered from 1 to {trials.planned}"
        raise NotFoundError(f"{job.job_name} has no trial {number}", hint=hint)


def _largest(trials: Trials) -> int:
    return max(trials.planned, *(int(name) for name in trials.begun if name.isdecimal()), 0)


def _refuse_not_started(part: _Part) -> None:
    """Raise NotFoundError with the reason, if the log is empty because the part hasn't started."""
    job = part.job
    unbegun_trial = part.trial and part.trials and part.trial not in part.trials.begun
    unbegun_replica = part.replica not in ("", SERVICE) and job.state in (State.QUEUED, State.PREPARING)
    if unbegun_trial and job.state.ended:
        raise NotFoundError(f"{part.name} never started: the job ended {job.state}")
    if unbegun_trial or unbegun_replica:
        raise NotFoundError(
            f"{part.name} hasn't started yet: the job is {job.state}", hint="--follow waits for it"
        )


def _empty(job: ActualJob) -> list[str]:
    """Return lines that stand in for an empty log: the job's state and, if it is known, the reason."""
    if job.error:
        about = f": {job.error}"
    elif job.backing and not job.backing_body:
        about = ": its log is gone with the job that trained for it, which was deleted"
    else:
        about = " before it printed anything" if job.state.ended else ": it has no log yet"
    first, *others = lines(f"{job.job_name} is {job.state}{about}")
    return [one_line(line) for line in (first, *others)]


def _entries(arguments: argparse.Namespace, session: Session, part: _Part) -> Iterator[LogEntry | None]:
    log = JobLog(session.connection, part.job, part.replica, part.trial)
    if arguments.follow:
        pace = LOCAL_PACE if session.is_local else GOOGLE_PACE
        return follow(log, pace, lambda: session.read(part.job).state.ended)
    return log.entries()


def _print(entries: Iterable[LogEntry | None], source: Callable[[LogEntry], str]) -> bool:
    """Print entries, and flush them at each None; return True if any was printed."""
    printed = False
    for entry in entries:
        if entry is None:
            sys.stdout.flush()
            continue
        printed = True
        for line in _entry_lines(entry, source, entry.text):
            print(line)
    return printed


def _entry_lines(entry: LogEntry, source: Callable[[LogEntry], str], text: str) -> Iterator[str]:
    for line in lines(text):
        yield one_line(f"{entry.timestamp} {entry.severity:7} {source(entry)}{line}")


_MOST_LINES = 50
_MOST_BYTES = 64 * 1024


def print_ends(session: Session, jobs: Iterable[ActualJob], log_format: str) -> None:
    """Print the last lines of each job's log on stderr; for GitHub's runner as a group without commands."""
    for job in jobs:
        try:
            shown = _last_lines(session, session.read(job))
        except ReconcilerError as error:
            print_message(f"the log of {job.job_name} can't be read: {error.message}", log_format)
            continue
        title = one_line(f"The last lines of the log of {job.job_name}")
        if log_format == "json":
            events(log_format).info("log", job=job.job_name, lines=shown)
            continue
        if is_on_runner(os.environ):
            # Nobody who writes a log can know the word. One write: no other line gets between.
            word = secrets.token_hex(16)
            shown = [f"::group::{title}", f"::stop-commands::{word}", *shown, f"::{word}::", "::endgroup::"]
        else:
            shown = [f"{title}:", *(f"    {line}" for line in shown)]
        print("\n".join(shown), file=sys.stderr, flush=True)


def _last_lines(session: Session, job: ActualJob) -> list[str]:
    """Return the last lines of a log as `logs` prints them, without secrets: at most 50, and 64 KiB."""
    engine = engine_spec(job.api_version)
    part = _Part(job, engine.replicas(job.kind, job.spec), engine.trials(job), "", "")
    hide, source = hiding(job.spec), part.source()
    entries = JobLog(session.connection, job).last(_MOST_LINES)
    log_lines = [line for entry in entries for line in _entry_lines(entry, source, hide(entry.text))]
    shown: deque[str] = deque()
    left = _MOST_BYTES
    for line in reversed(log_lines[-_MOST_LINES:]):
        data = line.encode("utf-8", "backslashreplace")
        if left <= len(data):
            # Of a line that is too long, as of a log that is: the end.
            shown.appendleft(one_line("…" + data[len(data) - left + 4 :].decode(errors="ignore")))
            break
        left -= len(data) + 1
        shown.appendleft(line)
    return [*shown] or ["(empty)"]
