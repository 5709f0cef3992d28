"""The command `cancel`."""

from __future__ import annotations

import argparse
import sys

from reconciler.base.errors import ExitCode, ServiceError
from reconciler.base.sanitize import one_line
from reconciler.cli.context import context_of, newest_run
from reconciler.cli.progress import progress
from reconciler.model.job import State
from reconciler.operations.follow_up import awaited, wait
from reconciler.submission.claims_upkeep import cancel, record_cancel


def run(arguments: argparse.Namespace) -> ExitCode:
    """Cancel a run, wait for its end, and print its final state."""
    context = context_of(arguments)
    with context.session(start=True) as session:
        job = newest_run(arguments.name, session)
        if job.state.ended:
            print(f"{one_line(job.job_name)} had ended before: {job.state}")
            return ExitCode.DONE
        if job.state is not State.CANCELLING:
            try:
                record_cancel(session.ports, job, "cancelled by `reconciler cancel`")
            except ServiceError as error:
                # Stopping the job counts more: whoever may cancel jobs needn't be able to write claims.
                said = (
                    f"the cancel isn't recorded, so the run will count as cancelled outside: {error.message}"
                )
                print(f"reconciler: {one_line(said)}", file=sys.stderr)
            cancel(session.ports, job)
        with progress(session, arguments, sys.stderr) as listener:
            ended = wait(session.ports, [awaited(job)], listener, session.pause)
    if not ended:
        print(f"reconciler: {one_line(job.job_name)} is gone, and its end was not seen", file=sys.stderr)
        return ExitCode.FAILED
    (end,) = (run_.state for run_ in ended)
    # The job may have succeeded or failed before the cancellation reached it.
    print(f"{one_line(job.job_name)} ended {end}")
    return ExitCode.DONE if end is State.CANCELLED else ExitCode.FAILED
