"""`reconciler resolve`."""

from __future__ import annotations

import argparse
import os
import sys

from reconciler.base.errors import ExitCode, NotFoundError, RefusedError, UsageError
from reconciler.base.sanitize import one_line
from reconciler.cli.context import context_of
from reconciler.google.session import Session
from reconciler.model.claim import Claim, ClaimState
from reconciler.model.job import ActualJob
from reconciler.model.plan import DesiredJob
from reconciler.operations.execute import applier_of
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.origin import origin_of, uncarried
from reconciler.operations.plan import hours_of
from reconciler.operations.submissions import unsettled_reason
from reconciler.planning.attempts import keys_of
from reconciler.planning.limits import check_limit
from reconciler.submission.observe import observe
from reconciler.submission.protocol import Submitter


def run(arguments: argparse.Namespace) -> ExitCode:
    """Settle a submission that doesn't settle itself: send it again, or never."""
    context = context_of(arguments)
    with context.session(start=True) as session:
        observed = observe(session.ports)
        claim = _unsettled(arguments.name, list(observed.known.values()))
        if arguments.give_up:
            return _give_up(session, claim)
        desired = load_desired(context.config, context.environment, [])
        return _resubmit(session, desired, claim, observed.runs)


def _unsettled(name: str, claims: list[Claim]) -> Claim:
    """The claim that NAME means: of a job name, or of a base name the only one that isn't settled."""
    base = name.replace("-", "_")
    named = [claim for claim in claims if name == claim.job_name]
    based = [claim for claim in claims if base == claim.base_name.replace("-", "_")]
    if not named and not based:
        raise NotFoundError(f'nothing was ever submitted as "{name}"', hint="see `reconciler status`")
    found = [claim for claim in named or based if claim.state is not ClaimState.BOUND]
    if not found:
        raise NotFoundError(f'"{name}" has nothing to resolve: it is known which job it became')
    if len(found) > 1:
        raise UsageError(
            f'"{name}" means several submissions',
            hint="name one of " + ", ".join(sorted(claim.job_name for claim in found)),
        )
    return found[0]


def _give_up(session: Session, claim: Claim) -> ExitCode:
    held = Submitter(session.ports).give_up(claim.id)
    if held is None or held.state is ClaimState.BOUND:
        told = held.resource if held else "nothing"
        print(one_line(f"{claim.job_name} is {told}: there is nothing to give up"))
        return ExitCode.FAILED
    name = one_line(claim.job_name)
    print(f'{name} is given up: it is submitted only when its content or "rerun" changes')
    if claim.state is ClaimState.PENDING:
        print("a request for it was sent: if its job still appears, the claim is bound to it")
    return ExitCode.DONE


def _resubmit(session: Session, desired: Desired, claim: Claim, runs: tuple[ActualJob, ...]) -> ExitCode:
    job = _wanted(desired, claim)
    _check_brakes(session, job)
    origin = origin_of(session.config, desired, [job], os.environ, whole=False)
    for line in uncarried(origin, [job]):
        _tell(line)
    applier = applier_of(session, desired, origin.commit_of, tell=_tell)
    settled = applier.resubmit(job, claim, runs)
    if settled.claim.state is ClaimState.BOUND:
        print(one_line(f"{claim.job_name} is {settled.claim.resource}"))
        return ExitCode.DONE
    print(one_line(f"{claim.job_name}: {unsettled_reason(settled)}"))
    return ExitCode.FAILED


def _tell(line: str) -> None:
    print(one_line(line), file=sys.stderr)


def _wanted(desired: Desired, claim: Claim) -> DesiredJob:
    for job in desired.jobs:
        if claim.id.key in keys_of(job):
            return job
    raise NotFoundError(
        f"no manifest holds the content of {claim.job_name} any more",
        hint=f"bring it back, or run `reconciler resolve {claim.job_name} --give-up`",
    )


def _check_brakes(session: Session, job: DesiredJob) -> None:
    """The brakes of an apply that submits this one job; raises RefusedError."""
    if job.manifest.reconcile.suspend:
        raise RefusedError(
            f"{job.manifest.path} says that {job.manifest.name} is suspended",
            hint='take "suspend" from it, or give the submission up',
        )
    limits = session.environment.limits
    check_limit("submissions", 1, limits.submissions)
    check_limit("acceleratorHours", hours_of(job), limits.accelerator_hours)
