"""The command `apply`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace

from reconciler.base.errors import ExitCode, InvalidError, ReconcilerError, RefusedError
from reconciler.base.sanitize import one_line
from reconciler.cli import print_error, print_json, print_lines
from reconciler.cli.context import context_of
from reconciler.cli.progress import progress, submitting
from reconciler.git.commit import commit_of, still_at
from reconciler.google.session import Session
from reconciler.model.job import KEY, ActualJob, State, attempt_of
from reconciler.model.plan import Plan
from reconciler.operations.apply import (
    Awaited,
    awaited,
    carry_out,
    check_limits,
    invalid,
    origin_for,
    refused,
    settle,
    submitted_by,
    wait,
)
from reconciler.operations.execute import PATIENCE, applier_of
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.origin import uncarried
from reconciler.operations.plan import plan_of
from reconciler.operations.report import missing_status_reasons
from reconciler.output.json import apply_json
from reconciler.output.text import outcomes_text, plan_text
from reconciler.planning.attempts import keys_of
from reconciler.planning.limits import SUBMISSIONS
from reconciler.planning.outcome import Outcome, Status
from reconciler.reporting.github.settings import github_settings
from reconciler.submission.observe import observe

WAITING_PATIENCE = 7200.0
"""Seconds that `--wait` waits for unknown outcomes: more than a request takes to be settled.

A request's token is valid for an hour at most. A job that isn't listed ten minutes later will never exist.
"""


def run(arguments: argparse.Namespace) -> ExitCode:
    """Carry out the plan; with `--wait`, wait until the jobs have ended."""
    context = context_of(arguments)
    # Checked first, so that an invalid setting stops the command before its first write.
    posts_statuses = github_settings(context.config.github, os.environ, context.config.root) is not None
    before = commit_of(context.config.root, os.environ) if posts_statuses else None
    try:
        desired = load_desired(context.config, context.environment, arguments.paths)
    except InvalidError as error:
        if posts_statuses:
            with context.session(start=True) as session:
                commit = still_at(context.config.root, os.environ, before)
                print_lines(invalid(session, commit, error), arguments.log_format)
        raise
    with context.session(start=True) as session:
        plan = plan_of(session, desired, observe(session.ports), whole=not arguments.paths)
        origin = origin_for(session, desired, plan)
        patience = WAITING_PATIENCE if arguments.wait else PATIENCE
        applier = applier_of(session, desired, origin.commit_of, patience, _wait_printer(arguments))
        # Limits are checked against the whole plan, before anything of it is printed or carried out.
        try:
            check_limits(session, plan, arguments.plan_digest)
        except RefusedError as error:
            if posts_statuses:
                report = refused(session, applier, desired, plan, error, origin)
                print_lines(report.problems, arguments.log_format)
            raise
        if arguments.format == "text" and not arguments.quiet:
            print(plan_text(plan, verbose=arguments.verbose), end="\n\n", flush=True)
        notes = [*uncarried(origin, submitted_by(plan)), *missing_status_reasons(session, origin)]
        print_lines(notes, arguments.log_format)
        with submitting(arguments, sys.stderr) as listener:
            outcomes = carry_out(session, replace(applier, listener=listener), plan, origin)
        # Settled before the wait, so that commits show the submissions; and again with the final states.
        report = settle(session, applier, desired, plan, outcomes, origin)
        print_lines(report.problems, arguments.log_format)
        jobs = _awaited(plan, outcomes) if arguments.wait else frozenset()
        ended = _wait(session, jobs, arguments) if jobs else ()
        if ended:
            report = settle(session, applier, desired, plan, outcomes, origin)
            print_lines(report.problems, arguments.log_format)
    outcomes = [_with_end(outcome, ended) for outcome in outcomes]
    print_lines(_failure_lines(desired, jobs, ended), arguments.log_format)
    if arguments.format == "json":
        print_json(apply_json(plan, outcomes))
    elif outcomes:
        print(outcomes_text(outcomes))
    return _exit_code(outcomes, jobs, ended)


def _awaited(plan: Plan, outcomes: list[Outcome]) -> frozenset[Awaited]:
    """Return the jobs to wait for: submitted and desired ones, except those that had already ended."""
    ended = {c.actual.resource for c in plan.changes if c.actual and c.actual.state.ended}
    submitted = {
        Awaited(job.manifest.api_version, job.manifest.kind, outcome.resource)
        for outcome in outcomes
        if outcome.status is Status.APPLIED
        and (job := outcome.change.desired)
        and outcome.resource not in ended
    }
    live = {
        awaited(change.actual)
        for change in plan.changes
        # A submission's actual job may be a different one, which it didn't adopt.
        if change.desired and change.actual and change.action not in SUBMISSIONS
        if not change.actual.state.ended
    }
    return frozenset(submitted | live)


def _wait(session: Session, jobs: frozenset[Awaited], arguments: argparse.Namespace) -> tuple[ActualJob, ...]:
    """Wait for jobs and return those that ended; empty if the service fails meanwhile."""
    try:
        with progress(session, arguments, sys.stderr) as listener:
            return wait(session.ports, jobs, listener, session.pause)
    except ReconcilerError as error:
        # The outcomes of the submissions must be printed all the same.
        print_error(error, arguments.log_format)
        return ()


def _with_end(outcome: Outcome, ended: tuple[ActualJob, ...]) -> Outcome:
    for job in ended:
        if job.resource == outcome.resource and outcome.status is Status.APPLIED:
            return replace(outcome, state=job.state, error=job.error or outcome.error)
    return outcome


def _wait_printer(arguments: argparse.Namespace) -> Callable[[str], None]:
    """Return a function that prints on stderr why apply waits, except with `--quiet`."""
    return lambda line: None if arguments.quiet else print(one_line(line), file=sys.stderr, flush=True)


def _failure_lines(desired: Desired, jobs: frozenset[Awaited], ended: tuple[ActualJob, ...]) -> list[str]:
    """Return a line for each awaited job that didn't succeed or didn't end during the wait."""
    attempts = {key: job.manifest.reconcile.attempts for job in desired.jobs for key in keys_of(job)}
    failed = [job for job in ended if job.state is State.FAILED]
    cancelled = [job for job in ended if job.state is State.CANCELLED]
    not_ended = {job.resource for job in jobs} - {job.resource for job in ended}
    return [
        *(_failure(job, attempts.get(job.labels.get(KEY, ""), 1)) for job in failed),
        *(f"{job.job_name} was cancelled" for job in cancelled),
        *(f"the end of {resource} was not seen" for resource in sorted(not_ended)),
    ]


def _failure(job: ActualJob, attempts: int) -> str:
    attempt = attempt_of(job)
    more = f"; the next apply makes attempt {attempt + 1} of {attempts}" if attempt < attempts else ""
    return f"{job.job_name} failed; see `reconciler logs {job.job_name}`{more}"


def _exit_code(outcomes: list[Outcome], jobs: frozenset[Awaited], ended: tuple[ActualJob, ...]) -> ExitCode:
    """Return FAILED if a change wasn't applied or an awaited job isn't known to have succeeded."""
    # A duplicate job of an attempt is a failure, even if it was cancelled in time.
    duplicated = any(outcome.change.repair for outcome in outcomes)
    succeeded = {job.resource for job in ended if job.state is State.SUCCEEDED}
    unsuccessful = {job.resource for job in jobs} - succeeded
    not_applied = any(outcome.status is not Status.APPLIED for outcome in outcomes)
    return ExitCode.FAILED if not_applied or unsuccessful or duplicated else ExitCode.DONE
