"""`reconciler cancel`: the ends of runs that a person names."""

from __future__ import annotations

import argparse
import sys

from reconciler.base.errors import ExitCode, NotFoundError, ReconcilerError, ServiceError, UsageError
from reconciler.base.sanitize import one_line
from reconciler.cli import print_error, print_lines
from reconciler.cli.context import Context, confirm, context_of, readable_jobs, run_of, selection_of
from reconciler.cli.flags import YES, add_labels, complete_with, job_names
from reconciler.cli.progress import progress
from reconciler.model.claim import BY_COMMAND
from reconciler.model.job import ActualJob, State
from reconciler.model.selection import Selection
from reconciler.operations.session import Session
from reconciler.operations.wait import awaited, wait
from reconciler.planning.state import target_state
from reconciler.planning.status_rows import job_statuses
from reconciler.submission.claims_upkeep import cancel, record_cancel
from reconciler.submission.observe import observe

EXAMPLES = """reconciler cancel census-income
  reconciler cancel -l stage=dev"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    names = parser.add_argument(
        "names", nargs="*", metavar="NAME", help="base names (the live run of each) or job names"
    )
    complete_with(names, job_names)
    add_labels(parser)
    parser.add_argument("--yes", action="store_true", help=YES)


def run(arguments: argparse.Namespace) -> ExitCode:
    """Cancel runs, wait for their ends, and print the final state of each."""
    selection = selection_of(arguments)
    if not selection:
        raise UsageError("no jobs given", hint="name jobs, or select them with -l KEY=VALUE")
    context = context_of(arguments)
    with context.session(start=True) as session:
        # All names are looked up before the first job is cancelled: one may be misspelt.
        if selection.terms:
            jobs = _selected(context, session, selection, arguments.log_format)
        else:
            runs = [run_of(session, name, live=True)[1] for name in selection.names]
            jobs = {run.resource: run for run in runs}
        for job in (job for job in jobs.values() if job.state.ended):
            print(f"{one_line(job.job_name)} had already ended: {job.state}")
        running = [job for job in jobs.values() if not job.state.ended]
        if named := [one_line(job.job_name) for job in running if job.state is not State.CANCELLING]:
            confirm(context, arguments, f"Cancel {', '.join(named)}?")
        live = [job for job in running if _is_cancelled(session, job, arguments.log_format)]
        if not live:
            return ExitCode.FAILED if running else ExitCode.DONE
        with progress(session, arguments, sys.stderr) as listener:
            ended = wait(session.ports, [awaited(job) for job in live], listener, session.pause)
    for job in ended:
        # The job may have succeeded or failed before the cancellation reached it.
        print(f"{one_line(job.job_name)} ended {job.state}")
    seen = {job.resource for job in ended}
    gone = [f"{job.job_name} is gone; its final state is unknown" for job in live if job.resource not in seen]
    print_lines(gone, arguments.log_format)
    is_done = len(ended) == len(running) and all(job.state is State.CANCELLED for job in ended)
    return ExitCode.DONE if is_done else ExitCode.FAILED


def _is_cancelled(session: Session, job: ActualJob, log_format: str) -> bool:
    """Request a job's cancel; report an error and return False if the service refuses it."""
    # One job must not keep the others running.
    try:
        _cancel(session, job, log_format)
    except ReconcilerError as error:
        print_error(error, log_format)
        return False
    return True


def _cancel(session: Session, job: ActualJob, log_format: str) -> None:
    """Record the cancel on the job's claim, and request it."""
    try:
        record_cancel(session.ports, job, BY_COMMAND)
    except ServiceError as error:
        if job.state is State.CANCELLING:
            # Nothing but the record would make it a person's cancel.
            hint = (
                "apply may have cancelled it, and submits it again if it is wanted: "
                '"suspend: true" in its manifest prevents that'
            )
            raise ServiceError(f"the cancellation isn't recorded: {error.message}", hint=hint) from None
        # Stopping the job counts more: whoever may cancel jobs needn't be able to write claims.
        said = f"the cancellation isn't recorded, so the run will count as cancelled outside: {error.message}"
        print_lines([said], log_format)
    # A job that apply has cancelled needs no other request, but a person's cancel is final.
    if job.state is not State.CANCELLING:
        cancel(session.ports, job)


def _selected(
    context: Context, session: Session, selection: Selection, log_format: str
) -> dict[str, ActualJob]:
    """Return the live runs that `status` shows for the same names and labels; raise NotFoundError."""
    desired, _ = readable_jobs(context, log_format)
    observed = observe(session.ports)
    runs = {run.resource: run for run in observed.runs}
    rows = [
        row
        for row in job_statuses(target_state(desired, observed.runs, observed.claims))
        if selection.has_name(row.base_name, row.job_name) and selection.has_labels(row.labels)
    ]
    if not rows:
        raise NotFoundError("no job has these names and labels", hint="see `reconciler status`")
    # A run without a claim may be another person's, with copied labels: it is cancelled by its name only.
    own_rows = [row for row in rows if row.claim != "none" and row.state and not row.state.ended]
    live = {row.resource: runs[row.resource] for row in own_rows}
    if not live:
        print("No running job has these labels.")
    return live
