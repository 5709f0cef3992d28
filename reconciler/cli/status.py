"""The command `status`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from reconciler.base.errors import ExitCode, InvalidError, NotFoundError, ServiceError, UsageError
from reconciler.cli import print_error, print_json, print_message
from reconciler.cli.context import Context, context_of
from reconciler.google.session import Session
from reconciler.model.claim import Claim, ClaimId
from reconciler.model.job import ActualJob
from reconciler.model.plan import DesiredJob
from reconciler.operations.load_desired import load_desired
from reconciler.output.json import status_json
from reconciler.output.text import status_text
from reconciler.planning.outcome import JobStatus, job_statuses
from reconciler.submission.observe import observe


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the repository's desired jobs and its runs."""
    context = context_of(arguments)
    with context.session(start=False) as session:
        runs, claims, code = _observed(session, arguments.log_format)
    statuses = job_statuses(_desired(context, arguments.log_format), runs, claims)
    if arguments.names:
        statuses = [status for name in arguments.names for status in _named(name, statuses)]
    if arguments.format == "json":
        print_json(status_json(statuses))
    else:
        print(status_text(statuses))
    return code


def _observed(
    session: Session, log_format: str
) -> tuple[tuple[ActualJob, ...], Mapping[ClaimId, Claim], ExitCode]:
    """Return runs, claims and the exit code."""
    try:
        observed = observe(session.ports)
        return observed.runs, observed.claims, ExitCode.DONE
    except ServiceError as error:
        # Unusable claims must not hide the states of the runs.
        runs = session.runs()
        print_error(error, log_format)
        return runs, {}, ExitCode.FAILED


def _desired(context: Context, log_format: str) -> tuple[DesiredJob, ...]:
    try:
        return load_desired(context.config, context.environment, []).jobs
    except (InvalidError, UsageError) as error:
        # An invalid manifest must not hide the states of the runs.
        print_error(error, log_format)
        print_message("only runs are shown", log_format)
        return ()


def _named(name: str, statuses: list[JobStatus]) -> list[JobStatus]:
    """Return the job of a job name; or of a base name, the newest run and all jobs with unknown outcome."""
    by_job = [status for status in statuses if status.job_name == name]
    base = name.replace("-", "_")
    by_base = [status for status in statuses if status.base_name.replace("-", "_") == base]
    if not by_job and not by_base:
        raise NotFoundError(f'there is no job "{name}"', hint="see `reconciler status`")
    runs = [status for status in by_base if status.state is not None]
    newest = (by_job or runs or by_base)[-1]
    not_bound = [status for status in by_base if status.claim in ("pending", "rejected", "held")]
    return by_job or [newest, *(status for status in not_bound if status is not newest)]
