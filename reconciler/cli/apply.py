"""`reconciler apply`."""

from __future__ import annotations

import argparse
import os
import sys

from reconciler.apply import Applier
from reconciler.brakes import check_brakes
from reconciler.cli.context import context_of
from reconciler.cli.output import print_json, tell_error, tell_failed
from reconciler.cli.progress import progress
from reconciler.commit import commit_of
from reconciler.desired import Desired
from reconciler.errors import ExitCode, ReconcilerError
from reconciler.job import ActualJob, State
from reconciler.jsonforms import apply_json
from reconciler.outcome import Outcome, Status
from reconciler.plan import Action, Plan
from reconciler.reconcile import accelerator_hours, plan_of, wanted
from reconciler.render import outcomes_text, plan_text
from reconciler.report import post, statuses
from reconciler.reporters.settings import github_settings
from reconciler.session import Session
from reconciler.wait import wait


def run(arguments: argparse.Namespace) -> ExitCode:
    """Carry out the plan; with `--wait`, stay until the jobs have ended."""
    context = context_of(arguments)
    # Asked for now, so that a setting that can't be stops us before the first write.
    github_settings(context.config.github, os.environ)
    desired = wanted(context.config, context.environment, arguments.paths)
    commit = commit_of(context.config.root, os.environ) or ""
    with context.session(start=True) as session:
        plan = plan_of(session, desired, session.runs(), whole=not arguments.paths)
        check_brakes(plan, accelerator_hours(plan), context.environment.limits, arguments.plan_digest)
        _tell_plan(plan, arguments)
        outcomes = list(Applier(session, desired, commit).run(plan))
        _report(session, desired, commit, outcomes)
        awaited = _awaited(plan, outcomes) if arguments.wait else frozenset()
        ended = _wait(session, awaited, arguments) if awaited else ()
        if ended:
            _report(session, desired, commit, outcomes)
    outcomes = [_as_ended(outcome, ended) for outcome in outcomes]
    for job in ended:
        if job.state is State.FAILED:
            print(f"reconciler: {job.job_name} failed; see `reconciler logs {job.job_name}`", file=sys.stderr)
    if arguments.format == "json":
        print_json(apply_json(plan, outcomes))
    elif outcomes:
        print(outcomes_text(outcomes))
    return _exit_code(outcomes, awaited, ended)


def _report(session: Session, desired: Desired, commit: str, outcomes: list[Outcome]) -> None:
    """Tell the commits how their jobs stand; that it can't be told is no failure of the jobs."""
    problems = {
        outcome.change.desired.job_name: outcome.error
        for outcome in outcomes
        if outcome.change.desired and outcome.error
    }
    if github_settings(session.config.github, os.environ) is None:
        return
    try:
        by_commit = statuses(session.environment.name, desired.jobs, session.runs(), commit, problems)
        tell_failed(post(session.config, by_commit, os.environ))
    except ReconcilerError as error:
        tell_error(error)


def _tell_plan(plan: Plan, arguments: argparse.Namespace) -> None:
    if arguments.format == "text" and not arguments.quiet:
        print(plan_text(plan, verbose=arguments.verbose), end="\n\n", flush=True)


def _awaited(plan: Plan, outcomes: list[Outcome]) -> frozenset[str]:
    """The runs to wait for: what was submitted, and the wanted runs that hadn't ended before."""
    submitted = {o.change.job_name for o in outcomes if o.status is Status.APPLIED}
    live = {
        change.job_name
        for change in plan.changes
        if change.desired and change.actual and not change.actual.state.ended
    }
    return frozenset(submitted | live)


def _wait(session: Session, awaited: frozenset[str], arguments: argparse.Namespace) -> tuple[ActualJob, ...]:
    """The awaited runs at their ends; none where the service can't be asked any more."""
    try:
        with progress(session, arguments, sys.stderr) as tell:
            return wait(session, awaited, tell)
    except ReconcilerError as error:
        tell_error(error)
        return ()


def _as_ended(outcome: Outcome, ended: tuple[ActualJob, ...]) -> Outcome:
    for job in ended:
        if job.job_name == outcome.change.job_name and outcome.status is Status.APPLIED:
            return Outcome(outcome.change, outcome.status, job.state, job.error or outcome.error)
    return outcome


def _exit_code(outcomes: list[Outcome], awaited: frozenset[str], ended: tuple[ActualJob, ...]) -> ExitCode:
    """FAILED for what wasn't done, and for each awaited run whose success wasn't seen."""
    cancelled = {o.change.job_name for o in outcomes if o.change.action is Action.CANCEL}
    succeeded = {job.job_name for job in ended if job.state is State.SUCCEEDED}
    failed = any(o.status is not Status.APPLIED for o in outcomes) or awaited - cancelled - succeeded
    return ExitCode.FAILED if failed else ExitCode.DONE
