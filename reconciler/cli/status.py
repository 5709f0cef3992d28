"""`reconciler status`."""

from __future__ import annotations

import argparse
import sys

from reconciler.cli.context import Context, context_of
from reconciler.cli.output import print_json, tell_error
from reconciler.errors import ExitCode, InvalidError, NotFoundError, UsageError
from reconciler.jsonforms import status_json
from reconciler.outcome import JobStatus, job_statuses
from reconciler.plan import DesiredJob
from reconciler.reconcile import wanted
from reconciler.render import status_text


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the jobs that the repository wants and the runs that it has."""
    context = context_of(arguments)
    with context.session(start=False) as session:
        statuses = job_statuses(_desired(context), session.runs())
    if arguments.names:
        statuses = [status for name in arguments.names for status in _named(name, statuses)]
    if arguments.format == "json":
        print_json(status_json(statuses))
    else:
        print(status_text(statuses))
    return ExitCode.DONE


def _desired(context: Context) -> tuple[DesiredJob, ...]:
    """The wanted jobs; a broken manifest must not hide how the runs stand."""
    try:
        return wanted(context.config, context.environment, []).jobs
    except (InvalidError, UsageError) as error:
        tell_error(error)
        print("    only runs are shown", file=sys.stderr)
        return ()


def _named(name: str, statuses: list[JobStatus]) -> list[JobStatus]:
    """The job of that name, or a base name's newest run."""
    by_job = [status for status in statuses if status.job_name == name]
    base = name.replace("-", "_")
    by_base = [status for status in statuses if status.base_name.replace("-", "_") == base]
    if not by_job and not by_base:
        raise NotFoundError(f'there is no job "{name}"', hint="see `reconciler status`")
    runs = [status for status in by_base if status.state is not None]
    return [(by_job or runs or by_base)[-1]]
