"""The command `status`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from reconciler.base.errors import ExitCode, NotFoundError, ServiceError, UsageError
from reconciler.cli import has_colours, print_error, print_json_rows, print_paged
from reconciler.cli.arguments import terminal_columns
from reconciler.cli.context import context_of, readable_jobs, selection_of
from reconciler.google.session import Session
from reconciler.model.claim import Claim, ClaimId
from reconciler.model.job import ActualJob
from reconciler.output.json import job_json
from reconciler.planning.outcome import (
    Condition,
    JobStatus,
    by_attention,
    is_shown,
    job_statuses,
    newest_first,
)
from reconciler.submission.observe import observe


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the newest run of each job of the repository; with `--all` all runs."""
    conditions = _conditions(arguments.state or ())
    rows, code = _rows(arguments)
    selected = [row for row in rows if row.condition in conditions]
    shown = selected[: arguments.limit]
    if arguments.format == "json":
        print_json_rows("jobs", map(job_json, shown))
        return code
    from reconciler.output.status_text import status_text

    text = status_text(
        shown,
        selected,
        datetime.now(UTC),
        width=terminal_columns() if sys.stdout.isatty() else None,
        colour=has_colours(sys.stdout),
        wide=arguments.wide,
    )
    print_paged(text)
    return code


def _conditions(words: Sequence[str]) -> frozenset[Condition]:
    """Return the conditions of `--state`, all by default; raise UsageError."""
    known = {condition.replace(" ", "-"): condition for condition in Condition}
    for word in words:
        if word not in known:
            raise UsageError(f'there is no state "{word}"', hint=f"one of {', '.join(known)}")
    return frozenset(known[word] for word in words or known)


def _rows(arguments: argparse.Namespace) -> tuple[list[JobStatus], ExitCode]:
    """Return the rows by name, label and age, in the order of the output, and the exit code."""
    context = context_of(arguments)
    desired, whole = readable_jobs(context, arguments.log_format)
    with context.session(start=False) as session:
        runs, claims, code = _observed(session, arguments.log_format)
    return _selected(job_statuses(desired, runs, claims), arguments, whole=whole), code


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


def _selected(rows: Sequence[JobStatus], arguments: argparse.Namespace, *, whole: bool) -> list[JobStatus]:
    """Return the selected rows in the order of the output; raise NotFoundError."""
    selection = selection_of(arguments)
    if selection.names:
        found = {id(row): row for name in selection.names for row in _named(name, rows, arguments.all)}
        rows = [*found.values()]
    elif not arguments.all:
        rows = [row for row in rows if is_shown(row, whole=whole)]
    if selection.terms:
        rows = [row for row in rows if selection.has_labels(row.labels)]
    return newest_first(rows) if arguments.all else by_attention(rows)


def _named(name: str, rows: Iterable[JobStatus], every: bool) -> Iterator[JobStatus]:
    """Yield the run of a job name; or of a base name, the newest run and all that goes on; or `every` run."""
    base = name.replace("-", "_")
    by_job = [row for row in rows if row.job_name == name]
    found = by_job or [row for row in rows if row.base_name.replace("-", "_") == base]
    if not found:
        raise NotFoundError(f'there is no job "{name}"', hint="see `reconciler status`")
    newest = [row for row in found if row.state is not None][-1:]
    yield from (row for row in found if by_job or every or row.current or row.is_open or row in newest)
