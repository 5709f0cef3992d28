"""`reconciler apply`."""

from __future__ import annotations

import argparse
import os
import sys

from reconciler.apply import Applier
from reconciler.brakes import check_brakes
from reconciler.cli.context import context_of
from reconciler.cli.output import print_json, tell_failed
from reconciler.cli.progress import progress
from reconciler.commit import commit_of
from reconciler.desired import Desired
from reconciler.errors import ExitCode
from reconciler.job import ActualJob, State
from reconciler.jsonforms import apply_json
from reconciler.outcome import Outcome, Status
from reconciler.plan import Plan
from reconciler.reconcile import accelerator_hours, plan_of, wanted
from reconciler.render import outcomes_text, plan_text
from reconciler.report import post, statuses
from reconciler.session import Session
from reconciler.wait import wait


def run(arguments: argparse.Namespace) -> ExitCode:
    """Carry out the plan; with `--wait`, stay until the jobs have ended."""
    context = context_of(arguments)
    desired = wanted(context.config, context.environment, arguments.paths)
    commit = commit_of(context.config.root, os.environ) or ""
    with context.session(start=True) as session:
        plan = plan_of(session, desired, session.runs(), whole=not arguments.paths)
        check_brakes(plan, accelerator_hours(plan), context.environment.limits, arguments.plan_digest)
        _tell_plan(plan, arguments)
        outcomes = list(Applier(session, desired, commit).run(plan))
        _report(session, desired, commit, outcomes)
        ended = _wait(session, plan, outcomes, arguments) if arguments.wait else ()
        if ended:
            _report(session, desired, commit, outcomes)
    outcomes = [_as_ended(outcome, ended) for outcome in outcomes]
    if arguments.format == "json":
        print_json(apply_json(plan, outcomes))
    elif outcomes:
        print(outcomes_text(outcomes))
    return _exit_code(outcomes, ended)


def _report(session: Session, desired: Desired, commit: str, outcomes: list[Outcome]) -> None:
    """Tell the commits how their jobs stand; that it can't be told is no failure of the jobs."""
    problems = {
        outcome.change.desired.job_name: outcome.error
        for outcome in outcomes
        if outcome.change.desired and outcome.error
    }
    by_commit = statuses(session.environment.name, desired.jobs, session.runs(), commit, problems)
    tell_failed(post(session.config, by_commit, os.environ))


def _tell_plan(plan: Plan, arguments: argparse.Namespace) -> None:
    if arguments.format == "text" and not arguments.quiet:
        print(plan_text(plan, verbose=arguments.verbose), end="\n\n", flush=True)


def _wait(
    session: Session, plan: Plan, outcomes: list[Outcome], arguments: argparse.Namespace
) -> tuple[ActualJob, ...]:
    """Wait for what was submitted, and for the wanted runs that hadn't ended before."""
    submitted = {o.change.job_name for o in outcomes if o.status is Status.APPLIED}
    live = {
        change.job_name
        for change in plan.changes
        if change.desired and change.actual and not change.actual.state.ended
    }
    with progress(session, arguments, sys.stderr) as tell:
        return wait(session, submitted | live, tell)


def _as_ended(outcome: Outcome, ended: tuple[ActualJob, ...]) -> Outcome:
    for job in ended:
        if job.job_name == outcome.change.job_name and outcome.status is Status.APPLIED:
            return Outcome(outcome.change, outcome.status, job.state, job.error or outcome.error)
    return outcome


def _exit_code(outcomes: list[Outcome], ended: tuple[ActualJob, ...]) -> ExitCode:
    cancelled = {o.change.job_name for o in outcomes if o.change.action == "cancel"}
    failed = any(o.status is not Status.APPLIED for o in outcomes)
    failed |= any(job.state is not State.SUCCEEDED for job in ended if job.job_name not in cancelled)
    return ExitCode.FAILED if failed else ExitCode.DONE
