"""`reconciler apply`: submissions, retries and cancels, as planned."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial

from reconciler.base.errors import ExitCode, InvalidError, ReconcilerError, RefusedError, UsageError
from reconciler.base.sanitize import one_line
from reconciler.cli import (
    has_colours,
    print_error,
    print_json,
    print_lines,
    print_message,
    print_note,
)
from reconciler.cli.actions import has_new_failures, has_summary, print_unposted
from reconciler.cli.apply_actions import Failure, show_ends, show_invalid, show_plan, show_refused
from reconciler.cli.context import Context, confirm, context_of, is_by_hand, selection_of
from reconciler.cli.flag_types import digest, terminal_columns
from reconciler.cli.flags import FULL, YES, add_format, add_paths, add_reports, add_selection
from reconciler.cli.logs import print_ends
from reconciler.cli.problems import print_warnings
from reconciler.cli.progress import progress, submitting
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.git.commit import commit_of
from reconciler.model.applied_tree import Relation, TreeFinding
from reconciler.model.cause import cause_of, is_failed_set_up
from reconciler.model.job import KEY, ActualJob, State, attempt_of
from reconciler.model.plan import Action, Change, NotDone, Plan
from reconciler.model.reason import ReasonCode, because
from reconciler.model.stand_ins import CodeUse
from reconciler.operations.apply import Applied, ApplyListener, apply, publish_ended
from reconciler.operations.code_warnings import with_code_warnings
from reconciler.operations.execute import PATIENCE
from reconciler.operations.follow_up import follow_up, load_or_report
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.origin import Origin, uncarried
from reconciler.operations.plan import submitted_by, wanted_of, with_changed_files, with_tree
from reconciler.operations.report import missing_status_reasons, posts_statuses
from reconciler.operations.session import Session
from reconciler.operations.submissions import Listener as SubmissionListener
from reconciler.operations.wait import Awaited, unended, wait
from reconciler.output.json import apply_json
from reconciler.output.text import outcomes_text, plan_text
from reconciler.output.wording.cause import cause_text
from reconciler.output.wording.plan import reason_text
from reconciler.output.wording.tree import tree_line
from reconciler.planning.attempts import base_of, keys_of
from reconciler.planning.decide import problems_of_results
from reconciler.planning.outcome import Outcome, Status
from reconciler.planning.planner import SUBMISSIONS
from reconciler.planning.state import TargetState
from reconciler.submission.look import FULL_AFTER, look

EXAMPLES = "reconciler apply --wait"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    add = parser.add_argument
    add_paths(parser)
    add_selection(parser)
    add_format(parser, "text", "json")
    add("--full", action="store_true", help=FULL)
    add("--wait", action="store_true", help="wait until the jobs end; exit 1 unless all have succeeded")
    add("--logs", action="store_true", help="with --wait, print the end of each failed job's log")
    add("--allow-older", action="store_true", help="apply a checkout although a newer one was applied")
    add("--plan-digest", type=digest, metavar="sha256:…", help="apply only if the plan still has this digest")
    add("--yes", action="store_true", help=YES)
    add_reports(parser)


WAITING_PATIENCE = 7200.0
"""Seconds that `--wait` waits for unknown outcomes: longer than most requests take to be settled.

A token is valid for an hour, or up to twelve where an organization's policy allows it. A job that isn't
listed ten minutes after that will never exist.
"""

_NO_LOGS = (
    "the logs of failed jobs are gone with this runner: `apply --wait --logs`, which is the action's input "
    "`logs: true`, prints the end of each"
)
_MOST_FOLDERS = 20
_ASKED = (*SUBMISSIONS, Action.CANCEL, Action.PUBLISH)
_UNSUCCESSFUL = (
    NotDone.FAILED,
    NotDone.CANCELLED,
    NotDone.DELETED,
    NotDone.GIVEN_UP,
)


def run(arguments: argparse.Namespace) -> ExitCode:
    """Carry out the plan; with `--wait`, wait until the jobs have ended."""
    if arguments.logs and not arguments.wait:
        raise UsageError("--logs is for jobs that have ended", hint="add --wait")
    try:
        return _apply(arguments)
    except InvalidError as error:
        show_invalid(error, arguments.log_format)
        raise


def _apply(arguments: argparse.Namespace) -> ExitCode:
    context = context_of(arguments)
    config, log_format = context.config, arguments.log_format
    desired = _load(arguments, context)
    with context.session(start=True) as session:
        seen = look(session.ports, wanted_of(desired.jobs), full=arguments.full, full_after=FULL_AFTER)
        print_lines(seen.notes, log_format)
        listener = _Listener(arguments, context, desired)
        applied = apply(
            session,
            desired,
            seen.observed,
            listener,
            by_hand=is_by_hand(),
            reviewed=arguments.plan_digest,
            allow_older=arguments.allow_older,
            patience=WAITING_PATIENCE if arguments.wait else PATIENCE,
        )
        report = partial(follow_up, comments=arguments.comment_merged)
        # Before the wait, so that commits show the submissions; and again with the final states.
        if not applied.refused or posts_statuses(config):
            after = report(session, desired, applied, full=arguments.full)
            print_unposted(after.problems, after.denied, log_format)
        if applied.refused:
            show_refused(applied.plan, applied.refused, log_format)
            raise applied.refused
        jobs = unended(applied.plan, applied.outcomes) if arguments.wait else frozenset()
        ended = _wait(session, jobs, arguments) if jobs else ()
        if ended:
            applied = _published(session, desired, applied, listener, arguments)
            before, after = after, report(session, desired, applied)
            after = dataclasses.replace(after, failures=(*before.failures, *after.failures))
            # A warning of a permission stands above already.
            print_unposted(after.problems, {*after.denied} - {*before.denied}, log_format)
        _print_results(session, applied.plan, ended, arguments)
    outcomes = [_with_end(outcome, ended) for outcome in applied.outcomes]
    plan, waits = applied.plan, arguments.wait
    unsuccessful = [*_failures(plan, jobs, ended), *_ended_before(plan, applied.outcomes)] if waits else []
    unsuccessful += _problems_of_results(plan, after.state, only_unread=not waits)
    print_lines((line for _, line in unsuccessful), log_format)
    runs = [*(after.observed.runs if after.observed else ()), *ended]
    show_ends(applied.plan, outcomes, unsuccessful, runs, frozenset(j.resource for j in jobs), log_format)
    if arguments.format == "json":
        plan = with_changed_files(applied.plan, desired, config.root, os.environ)
        print_json(apply_json(with_tree(plan, applied.tree), outcomes))
    elif outcomes:
        print(outcomes_text(outcomes))
    failures = has_new_failures(after.failures, arguments)
    # A duplicate job of an attempt is a failure, even if it was cancelled in time.
    _refuse_too_many(outcomes)
    is_done = all(outcome.status is Status.APPLIED and not outcome.change.repair for outcome in outcomes)
    return ExitCode.DONE if is_done and not (unsuccessful or failures) else ExitCode.FAILED


def _load(arguments: argparse.Namespace, context: Context) -> Desired:
    """Return the desired jobs; print the warnings about them."""
    config, environment, selection = context.config, context.environment, selection_of(arguments)
    desired = load_or_report(
        config,
        partial(load_desired, config, environment, arguments.paths, selection=selection, use=CodeUse.STAGED),
        partial(context.session, start=True),
        partial(commit_of, config.root, os.environ),
        lambda report: print_unposted(report.problems, report.denied, arguments.log_format),
    )
    desired = with_code_warnings(desired, config, environment)
    print_warnings(desired.warnings, arguments.log_format, verbose=arguments.verbose)
    return desired


def _published(
    session: Session,
    desired: Desired,
    applied: Applied,
    listener: ApplyListener,
    arguments: argparse.Namespace,
) -> Applied:
    """Publish the models of jobs that ended; return what was applied without them if the service fails."""
    try:
        return publish_ended(session, desired, applied, listener)
    except ReconcilerError as error:
        # The outcomes of the submissions must be printed all the same.
        print_error(error, arguments.log_format)
        return applied


def _refuse_too_many(outcomes: Sequence[Outcome]) -> None:
    """Raise RefusedError if the limit forbade the publications: everything else is done."""
    for outcome in outcomes:
        if outcome.reason and outcome.reason.code is ReasonCode.TOO_MANY_PUBLICATIONS:
            raise RefusedError(f"nothing was published: {reason_text(outcome.reason)}")


class _Listener(ApplyListener):
    """Printer of an apply's progress."""

    def __init__(self, arguments: argparse.Namespace, context: Context, desired: Desired) -> None:
        self._arguments = arguments
        self._context = context
        self._desired = desired

    def waiting(self, line: str) -> None:
        """Print a line about a wait on stderr."""
        if not self._arguments.quiet:
            print(one_line(line), file=sys.stderr, flush=True)

    def compared(self, tree: TreeFinding) -> None:
        """Print what a person should know of the checkout's commit."""
        if line := tree_line(tree):
            is_unknown = tree.relation is Relation.UNKNOWN
            print_note(line, self._arguments.log_format, is_warning=is_unknown)

    def planned(self, plan: Plan, origin: Origin) -> None:
        """Print the plan and notes about commits; ask before it is carried out in Google Cloud."""
        arguments, config = self._arguments, self._context.config
        is_shown = arguments.format == "text" and not arguments.quiet
        if is_shown or has_summary():
            plan = with_changed_files(plan, self._desired, config.root, os.environ)
        show_plan(plan, arguments.log_format)
        if is_shown:
            verbose, colour = arguments.verbose, has_colours(sys.stdout)
            shown = plan_text(plan, verbose=verbose, colour=colour, width=terminal_columns())
            print(shown, end="\n\n", flush=True)
        notes = [*uncarried(origin, submitted_by(plan)), *missing_status_reasons(config, origin)]
        print_lines(notes, arguments.log_format)
        if any(change.action in _ASKED or change.is_awaited for change in plan.changes):
            confirm(self._context, arguments, "Apply this plan?")

    def submitting(self) -> AbstractContextManager[SubmissionListener]:
        """Show the progress of submissions."""
        return submitting(self._arguments, sys.stderr)


def _wait(session: Session, jobs: frozenset[Awaited], arguments: argparse.Namespace) -> tuple[ActualJob, ...]:
    """Wait for jobs and return those that ended; empty if the service fails meanwhile."""
    seen: list[ActualJob] = []
    try:
        with progress(session, arguments, sys.stderr) as show:

            def listener(jobs: tuple[ActualJob, ...]) -> None:
                seen[:] = jobs
                show(jobs)

            return wait(session.ports, jobs, listener, session.pause)
    except KeyboardInterrupt:
        print_lines(map(_standing, seen), arguments.log_format)
        raise
    except ReconcilerError as error:
        # The outcomes of the submissions must be printed all the same.
        print_error(error, arguments.log_format)
        return ()


def _standing(job: ActualJob) -> str:
    """Return a line about a job at an interrupt: its state, and that it goes on."""
    if job.state.ended:
        return f"{job.job_name} ended {job.state}"
    return f"{job.job_name} is {job.state} and goes on; `reconciler cancel {base_of(job.job_name)}` stops it"


def _print_results(
    session: Session, plan: Plan, ended: Sequence[ActualJob], arguments: argparse.Namespace
) -> None:
    """With `--wait`, print the ends of the logs of failed jobs, or how to get them, and all jobs' folders."""
    # Those that were waited for, and those that had failed before and stay so.
    before = (c.actual for c in plan.changes if c.desired and c.actual and c.action not in SUBMISSIONS)
    failed = [job for job in (*ended, *before) if job.state is State.FAILED]
    if arguments.logs:
        print_ends(session, failed, arguments.log_format)
    elif failed and arguments.wait and session.connection.endpoint.on_runner:
        print_message(_NO_LOGS, arguments.log_format)
    if arguments.format == "text":
        for line in _folders(session, ended):
            print(line)


def _folders(session: Session, ended: Sequence[ActualJob]) -> Iterator[str]:
    """Yield a line for each ended job whose files are on this machine, but not for too many."""
    if not session.is_local or session.connection.endpoint.on_runner:
        return
    for job in sorted(ended, key=lambda job: job.job_name)[:_MOST_FOLDERS]:
        try:
            uri = engine_spec(job.api_version).output_directory(job.kind, session.read(job).spec)
        except ReconcilerError:  # the line is an extra
            continue
        folder = session.folder_of(uri, os.environ) if uri else None
        if folder is not None and folder.is_dir():
            yield one_line(f"files of {job.job_name}: {folder}")


def _with_end(outcome: Outcome, ended: tuple[ActualJob, ...]) -> Outcome:
    for job in ended:
        if job.resource == outcome.resource and outcome.status is Status.APPLIED:
            desired = outcome.change.desired
            cause = cause_of(job, outcome.change.base_name, desired.manifest if desired else None)
            reason = because(ReasonCode.ERROR, message=job.error) if job.error else outcome.reason
            return replace(outcome, state=job.state, reason=reason, cause=cause)
    return outcome


def _failures(plan: Plan, jobs: frozenset[Awaited], ended: tuple[ActualJob, ...]) -> Iterator[Failure]:
    """Yield each awaited job that didn't succeed or didn't end during the wait."""
    changes = [(change, change.desired) for change in plan.changes if change.desired]
    wanted = {key: change for change, job in changes for key in keys_of(job)}
    # An adopted run has no label with a key.
    wanted |= {change.actual.resource: change for change, _ in changes if change.actual}
    for job in ended:
        if job.state != State.SUCCEEDED:
            change = wanted.get(job.labels.get(KEY) or job.resource)
            yield change, _failure(job, change)
    for resource in sorted({job.resource for job in jobs} - {job.resource for job in ended}):
        yield None, f"the wait ended before {resource} did"


def _problems_of_results(plan: Plan, state: TargetState | None, *, only_unread: bool) -> Iterator[Failure]:
    """Yield each desired job whose result isn't good, isn't in its place, or couldn't be read.

    A result that couldn't be read is a failure of the command itself, whether or not it waits.
    """
    changes = {change.desired.manifest.base_name: change for change in plan.changes if change.desired}
    for name, reason, kind in problems_of_results(state) if state else ():
        if kind is NotDone.UNJUDGED or not only_unread:
            assert name.last_wanted is not None, "it has a run that succeeded"
            yield changes.get(name.base_name), f"{name.last_wanted.name}: {reason_text(reason, name.name)}"


def _failure(job: ActualJob, change: Change | None) -> str:
    """Return a line about a job that ended FAILED or CANCELLED: its cause and the next step."""
    ended, more = "failed," if job.state is State.FAILED else "was", ""
    manifest = change.desired.manifest if change and change.desired else None
    if change and manifest:
        attempts = manifest.reconcile.attempts
        attempt = attempt_of(job) - change.free
        if job.state is State.FAILED and attempt < attempts and not is_failed_set_up(job):
            more = f"; the next apply starts attempt {attempt + 1} of {attempts}"
    cause = cause_of(job, manifest.name if manifest else "", manifest)
    assert cause is not None, "it ended other than SUCCEEDED"
    return f"{job.job_name} {ended} {cause_text(cause)}{more}"


def _ended_before(plan: Plan, outcomes: Sequence[Outcome]) -> Iterator[Failure]:
    """Yield each desired job that had ended other than SUCCEEDED before the wait."""
    # A repeated step of continuous integration must not turn green over a model that isn't there.
    adopted = {id(outcome.change) for outcome in outcomes if outcome.state in (State.FAILED, State.CANCELLED)}
    for change in plan.changes:
        if not change.desired or (change.stuck not in _UNSUCCESSFUL and id(change) not in adopted):
            continue
        # The reason says if content that apply stopped comes back, and its job's cause doesn't.
        if change.actual and change.actual.state.ended and not change.stopped:
            yield change, _failure(change.actual, change)
        else:
            yield change, f"{change.job_name}: {reason_text(change.reason, change.desired.manifest.name)}"
