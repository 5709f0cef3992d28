"""`reconciler status`: jobs and their states."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import islice

from msgspec.structs import replace

from reconciler.base.concurrency import run_concurrently, run_in_order
from reconciler.base.errors import ExitCode, NotFoundError, ReconcilerError, ServiceError, UsageError
from reconciler.cli import has_colours, print_error, print_json_rows, print_lines, print_paged
from reconciler.cli.context import context_of, readable_jobs, selection_of
from reconciler.cli.flag_types import count, terminal_columns, words
from reconciler.cli.flags import add_format, add_labels, complete_with, job_names
from reconciler.model.details import PublishedPlace
from reconciler.model.expectation import Expectation
from reconciler.model.job import ActualJob, State
from reconciler.model.plan import FORMAT_VERSION, DesiredJob
from reconciler.operations.judgements import with_judgements
from reconciler.operations.plan import wanted_of
from reconciler.operations.publications import place_of_model
from reconciler.operations.results import short_result
from reconciler.operations.session import Session
from reconciler.output.json import job_json
from reconciler.output.status_text import status_text
from reconciler.output.wording.judgement import judgement_text
from reconciler.output.wording.published_place import with_place
from reconciler.planning.outcome import Condition, JobStatus
from reconciler.planning.state import NameState, TargetState, target_state
from reconciler.planning.status_rows import by_attention, is_shown, job_statuses, newest_first
from reconciler.submission.look import Observation, look
from reconciler.submission.observe import Observed

EXAMPLES = """reconciler status -l team=risk --state failed
  reconciler status --all census-income"""


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add = parser.add_argument
    names = add("names", nargs="*", metavar="NAME", help="base names or job names (default: all)")
    complete_with(names, job_names)
    add_format(parser, "text", "json")
    add_labels(parser)
    state = add(
        "--state",
        type=words,
        action="extend",
        metavar="STATE",
        help="only jobs in this state: failed, running, held, …",
    )
    complete_with(state, lambda **_: [condition.replace(" ", "-") for condition in Condition])
    add("--limit", type=count, metavar="N", help="show at most N jobs, the most urgent first")
    add("--all", action="store_true", help="include earlier runs, newest first")
    add("--wide", action="store_true", help="show more columns, without truncation")


_MOST_RESULTS = 30
"""Runs whose results a table shows."""


def run(arguments: argparse.Namespace) -> ExitCode:
    """Print the run of each job of the repository; with `--all` all runs."""
    shown, selected, code = _rows(arguments)
    if arguments.format == "json":
        print_json_rows(FORMAT_VERSION, "jobs", map(job_json, shown))
        return code
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


def _rows(arguments: argparse.Namespace) -> tuple[list[JobStatus], list[JobStatus], ExitCode]:
    """Return the rows to show, all selected rows, and the exit code."""
    conditions = _conditions(arguments.state or ())
    context = context_of(arguments)
    desired, whole = readable_jobs(context, arguments.log_format)
    # Only a full look has rows of ended runs that no manifest asks for.
    full = arguments.all or not whole or bool(selection_of(arguments).names)
    with context.session(start=False) as session:
        observed, code = _observed(session, desired, arguments.log_format, full=full)
        state = target_state(desired, observed.runs, observed.claims)
        rows = _selected(job_statuses(state), arguments, whole=whole)
        selected = [row for row in rows if row.condition in conditions]
        shown = selected[: arguments.limit]
        if arguments.format == "json":
            return shown, selected, code
        return _with_results(shown, state, observed, session), selected, code


def _conditions(words: Sequence[str]) -> frozenset[Condition]:
    """Return the conditions of `--state`, all by default; raise UsageError."""
    conditions = {condition.replace(" ", "-"): condition for condition in Condition}
    for word in words:
        if word not in conditions:
            raise UsageError(f'there is no state "{word}"', hint=f"one of {', '.join(conditions)}")
    return frozenset(conditions[word] for word in words or conditions)


def _observed(
    session: Session, desired: Sequence[DesiredJob], log_format: str, *, full: bool
) -> tuple[Observed, ExitCode]:
    """Return claims and runs, and the exit code."""
    try:
        seen = look(session.ports, wanted_of(desired), full=full)
        print_lines([*seen.notes, *_last_full(seen)], log_format)
        return seen.observed, ExitCode.DONE
    except ServiceError as error:
        # Unusable claims must not hide the states of the runs.
        runs = session.runs()
        print_error(error, log_format)
        return Observed({}, runs), ExitCode.FAILED


def _last_full(seen: Observation) -> list[str]:
    """Return a line about the last full look, for a short one."""
    if seen.full or seen.summary is None:
        return []
    when = f"{seen.summary.taken.astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    again = "`reconciler status --all` reads them again"
    return [f"ended runs are as of {when}, when all were last read; {again}"]


def _selected(rows: Sequence[JobStatus], arguments: argparse.Namespace, *, whole: bool) -> list[JobStatus]:
    """Return the selected rows in the order of the output; raise NotFoundError."""
    selection = selection_of(arguments)
    if selection.names:
        by_id = {id(row): row for name in selection.names for row in _named(name, rows, arguments.all)}
        rows = [*by_id.values()]
    elif not arguments.all:
        rows = [row for row in rows if is_shown(row, whole=whole)]
    if selection.terms:
        rows = [row for row in rows if selection.has_labels(row.labels)]
    return newest_first(rows) if arguments.all else by_attention(rows)


def _named(name: str, rows: Iterable[JobStatus], every: bool) -> Iterator[JobStatus]:
    """Yield the run of a job name; or of a base name, the desired content's, the newest and all live runs.

    With `every`, yield all runs of the base name.
    """
    base = name.replace("-", "_")
    by_job = [row for row in rows if row.job_name == name]
    matches = by_job or [row for row in rows if row.base_name.replace("-", "_") == base]
    if not matches:
        raise NotFoundError(f'there is no job "{name}"', hint="see `reconciler status`")
    newest = [row for row in matches if row.state is not None][-1:]
    yield from (row for row in matches if by_job or every or row.current or row.is_open or row in newest)


def _with_results(
    rows: Sequence[JobStatus], state: TargetState, observed: Observed, session: Session
) -> list[JobStatus]:
    """Return the rows with the results of the first runs that succeeded.

    Where the manifest expects metrics, the result is what it expects beside what the run has.
    """
    # Each result takes a few requests: a longer table leaves the others to `show`.
    wanted = [*islice((row for row in rows if row.state is State.SUCCEEDED), _MOST_RESULTS)]
    expected = {row.resource: row.manifest.expect for row in wanted if row.manifest and row.manifest.expect}
    asked = _asked(state, expected)
    state = with_judgements(session, state, observed.metrics, asked=asked, with_desired=False)
    results = {name: judgement_text(state.judgement(name, expect)) for name, expect in expected.items()}
    by_resource = {run.resource: run for run in observed.runs} if rows else {}
    others = (row.resource for row in wanted if not results.get(row.resource))
    read = [partial(_result, session, by_resource[name]) for name in others if name in by_resource]
    run_all = run_concurrently if session.connection.endpoint.distant else run_in_order
    results |= dict(run_all(read))
    places = dict(run_all([partial(_place, session, name, observed) for name in _published(wanted, state)]))
    shown = {name: with_place(results.get(name, ""), places.get(name)) for name in {*results, *places}}
    return [replace(row, result=shown[row.resource]) if row.resource in shown else row for row in rows]


def _published(rows: Sequence[JobStatus], state: TargetState) -> list[NameState]:
    """Return the states of the base names whose desired run is one of these, and is published somewhere."""
    resources = {row.resource for row in rows}
    return [
        name
        for job, name in state.of_desired
        if job.publish and name.last_wanted and name.last_wanted.resource in resources
    ]


def _place(session: Session, name: NameState, observed: Observed) -> tuple[str, PublishedPlace | None]:
    """Return a run's resource name, and where its model is published; None if that can't be read."""
    assert name.last_wanted is not None, "its run succeeded"
    resource = name.last_wanted.resource
    try:
        return resource, place_of_model(session, name, observed.in_place.get(resource))
    except ServiceError:
        return resource, None


def _asked(state: TargetState, expected: Mapping[str, Sequence[Expectation]]) -> dict[str, set[str]]:
    """Return the names of the expected metrics by the keys of the runs' contents."""
    keys = {a.resource: key for key, attempts in state.by_key.items() for a in attempts} if expected else {}
    return {keys[name]: {e.metric for e in expect} for name, expect in expected.items() if name in keys}


def _result(session: Session, run: ActualJob) -> tuple[str, str]:
    """Return a run's resource name, and its result in a few words; "" if it can't be read."""
    try:
        return run.resource, short_result(session, session.read(run), os.environ)
    except ReconcilerError:
        return run.resource, ""
