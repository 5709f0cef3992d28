"""`reconciler logs`."""

from __future__ import annotations

import argparse
import sys
import time

from reconciler.cli.context import context_of, newest_run
from reconciler.errors import ExitCode
from reconciler.inert import lines, one_line
from reconciler.job import ActualJob
from reconciler.services.cloudlog import JobLog
from reconciler.session import Session

_LOCAL_PAUSE = 0.3
_GOOGLE_PAUSE = 5.0


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print a job's log, oldest line first."""
    context = context_of(arguments)
    with context.session(start=False) as session:
        job = newest_run(arguments.name, session)
        _print(JobLog(session.connection, job), _following(session, job) if arguments.follow else None)
    return ExitCode.DONE


class _following:
    """Says whether the job may still write, pausing between two looks."""

    def __init__(self, session: Session, job: ActualJob) -> None:
        self._session = session
        self._job = job
        self._pause = _LOCAL_PAUSE if session.environment.engine == "local" else _GOOGLE_PAUSE

    def ended(self) -> bool:
        self._job = self._session.read(self._job)
        return self._job.state.ended

    def rest(self) -> None:
        time.sleep(self._pause)


def _print(log: JobLog, following: _following | None) -> None:
    since, told = "", set[str]()
    while True:
        # Asked before the entries are read: what a job wrote before it ended is then among them.
        ended = following is None or following.ended()
        for entry in log.entries(since):
            if entry.insert_id in told:
                continue
            if entry.timestamp != since:
                since, told = entry.timestamp, set()
            told.add(entry.insert_id)
            for line in lines(entry.text):
                print(one_line(f"{entry.timestamp} {entry.severity:7} {line}"))
        sys.stdout.flush()
        if ended or following is None:
            return
        following.rest()
