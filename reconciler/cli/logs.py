"""`reconciler logs`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from reconciler.cli.context import context_of, newest_run
from reconciler.cli.following import GOOGLE_PACE, LOCAL_PACE, follow
from reconciler.errors import ExitCode, NotFoundError
from reconciler.inert import lines, one_line
from reconciler.job import ActualJob, LogEntry, State, Trials
from reconciler.services.cloudlog import JobLog
from reconciler.session import Session
from reconciler.validation.suggest import same_word, similar_word

_SERVICE = "service"
_MOST_NAMED = 100


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print a job's log, oldest line first."""
    context = context_of(arguments)
    with context.session(start=False) as session:
        job = session.read(newest_run(arguments.name, session))
        part = _part(arguments, session, job)
        if not _print(_entries(arguments, session, part), part.source()):
            _refuse_unbegun(part if not arguments.follow else _part(arguments, session, session.read(job)))
    return ExitCode.DONE


@dataclass(frozen=True, slots=True)
class _Part:
    """What of a log is shown.

    Attributes:
        replicas: The job's, by what their names begin with, and how many there are.
        trials: The job's, None for a job without.
        replica, trial: The ones that are wanted alone, "" for all.
    """

    job: ActualJob
    replicas: Mapping[str, int]
    trials: Trials | None
    replica: str
    trial: str

    @property
    def name(self) -> str:
        """What is asked for, in words."""
        trial = f"trial {self.trial}" if self.trial else ""
        return " of ".join(filter(None, (self.replica, trial, self.job.job_name)))

    def source(self) -> Callable[[LogEntry], str]:
        """What says where an entry is from, always of the same width; "" where there is but one place."""
        names = [f"{prefix}{count - 1}" for prefix, count in self.replicas.items()]
        several = not self.replica and sum(self.replicas.values()) > 1
        of_replica = max(map(len, (*names, _SERVICE))) if several else 0
        of_trial = len(f"trial {_largest(self.trials)}") if self.trials and not self.trial else 0

        def told(entry: LogEntry) -> str:
            trial = f"trial {entry.trial}" if entry.trial else "-"
            columns = [f"{trial:{of_trial}}"] if of_trial else []
            columns += [f"{entry.replica:{of_replica}}"] if of_replica else []
            return "".join(f"{column} " for column in columns)

        return told


def _part(arguments: argparse.Namespace, session: Session, job: ActualJob) -> _Part:
    """What is asked for; raises NotFoundError where the job has and will have no such replica or trial."""
    engine = session.engine(job.api_version)
    replicas, trials = engine.replicas(job.kind, job.spec), engine.trials(job)
    if arguments.replica:
        _check_replica(arguments.replica, replicas, job)
    if arguments.trial:
        _check_trial(arguments.trial, trials, job)
    trial = str(arguments.trial) if arguments.trial else ""
    return _Part(job, replicas, trials, arguments.replica or "", trial)


def _check_replica(name: str, replicas: Mapping[str, int], job: ActualJob) -> None:
    known = [f"{prefix}{n}" for prefix, count in replicas.items() for n in range(min(count, _MOST_NAMED))]
    prefix, _, number = name.rpartition("-")
    is_known = number.isascii() and number.isdigit() and int(number) < replicas.get(f"{prefix}-", 0)
    if name in (_SERVICE, *known) or is_known:
        return
    meant = same_word(name, [*known, _SERVICE]) or similar_word(name, [*known, _SERVICE])
    ranges = (f"{p}0" if n == 1 else f"{p}0 to {p}{n - 1}" for p, n in replicas.items())
    hint = f"did you mean {meant}?" if meant else f"it has {', '.join(ranges)}; and {_SERVICE}"
    raise NotFoundError(f'{job.job_name} has no replica "{name}"', hint=hint)


def _check_trial(number: int, trials: Trials | None, job: ActualJob) -> None:
    if trials is None:
        raise NotFoundError(f"{job.job_name} has no trials", hint="only tuning jobs have")
    if str(number) not in trials.begun and not trials.goes_on and 0 < trials.planned < number:
        hint = f"its trials are counted from 1 to {trials.planned}"
        raise NotFoundError(f"{job.job_name} has no trial {number}", hint=hint)


def _largest(trials: Trials) -> int:
    """The largest number of a trial, as far as it is known."""
    return max(trials.planned, *(int(name) for name in trials.begun if name.isdecimal()), 0)


def _refuse_unbegun(part: _Part) -> None:
    """Say why there is nothing, where it is known: raises NotFoundError."""
    job = part.job
    unbegun_trial = part.trial and part.trials and part.trial not in part.trials.begun
    unbegun_replica = part.replica not in ("", _SERVICE) and job.state in (State.QUEUED, State.PREPARING)
    if unbegun_trial and job.state.ended:
        raise NotFoundError(f"{part.name} never began: the job ended {job.state}")
    if unbegun_trial or unbegun_replica:
        raise NotFoundError(
            f"{part.name} hasn't begun yet: the job is {job.state}", hint="--follow waits for it"
        )


def _entries(arguments: argparse.Namespace, session: Session, part: _Part) -> Iterator[LogEntry | None]:
    log = JobLog(session.connection, part.job, part.replica, part.trial)
    if arguments.follow:
        pace = LOCAL_PACE if session.is_local else GOOGLE_PACE
        return follow(log, pace, lambda: session.read(part.job).state.ended)
    return log.entries()


def _print(entries: Iterable[LogEntry | None], source: Callable[[LogEntry], str]) -> bool:
    """Print entries, those before a None without waiting for more; whether there were any."""
    printed = False
    for entry in entries:
        if entry is None:
            sys.stdout.flush()
            continue
        printed = True
        for line in lines(entry.text):
            print(one_line(f"{entry.timestamp} {entry.severity:7} {source(entry)}{line}"))
    return printed
