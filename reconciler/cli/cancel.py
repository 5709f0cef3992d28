"""`reconciler cancel`."""

from __future__ import annotations

import argparse
import sys

from reconciler.cli.context import context_of, newest_run
from reconciler.cli.progress import progress
from reconciler.errors import ExitCode
from reconciler.job import State
from reconciler.wait import wait


def run(arguments: argparse.Namespace) -> ExitCode:
    """Ask for a run's end, wait for it, and tell it as it was: a cancel may come too late."""
    context = context_of(arguments)
    with context.session(start=True) as session:
        job = newest_run(arguments.name, session)
        if job.state.ended:
            print(f"{job.job_name} had ended before: {job.state}")
            return ExitCode.DONE
        if job.state is not State.CANCELLING:
            session.engine(job.api_version).cancel(job)
        with progress(session, arguments, sys.stderr) as tell:
            ended = wait(session, {job.job_name}, tell)
    for run_ in ended:
        print(f"{run_.job_name} ended {run_.state}")
    done = ended and all(run_.state is State.CANCELLED for run_ in ended)
    return ExitCode.DONE if done else ExitCode.FAILED
