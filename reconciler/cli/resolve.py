"""`reconciler resolve`: the end of a submission whose outcome is unknown."""

from __future__ import annotations

import argparse
import os
import sys

from reconciler.base.errors import ExitCode, NotFoundError, RefusedError, UsageError
from reconciler.base.sanitize import one_line
from reconciler.cli.context import context_of
from reconciler.cli.flags import complete_with, job_names
from reconciler.model.claim import Claim, ClaimState
from reconciler.model.job import KEY
from reconciler.model.plan import DesiredJob
from reconciler.model.reason import unsettled_reason
from reconciler.model.stand_ins import CodeUse
from reconciler.operations.execute import applier_of
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.origin import origin_of, uncarried
from reconciler.operations.plan import hours_of
from reconciler.operations.session import Session
from reconciler.output.wording.plan import reason_text
from reconciler.planning.attempts import keys_of
from reconciler.planning.limits import check_limit
from reconciler.submission.observe import Observed, observe
from reconciler.submission.protocol import Submitter

EXAMPLES = "reconciler resolve census-income --resubmit"


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Add the command's flags."""
    name = parser.add_argument(
        "name", metavar="NAME", help="a job name, or a base name with one unresolved submission"
    )
    complete_with(name, job_names)
    add = parser.add_mutually_exclusive_group(required=True).add_argument
    add("--resubmit", action="store_true", help="submit it again once no earlier request can create a job")
    add("--give-up", action="store_true", help="don't submit it again; adopt its job if it appears after all")


def run(arguments: argparse.Namespace) -> ExitCode:
    """Resolve a submission with an unknown outcome: send it again, or give it up."""
    context = context_of(arguments)
    with context.session(start=True) as session:
        observed = observe(session.ports)
        claim = _open_claim(arguments.name, list(observed.claims.values()))
        if arguments.give_up:
            return _give_up(session, claim)
        desired = load_desired(context.config, context.environment, [], use=CodeUse.STAGED)
        return _resubmit(session, desired, claim, observed)


def _open_claim(name: str, claims: list[Claim]) -> Claim:
    """Return the claim of a job name, or the only claim of a base name that isn't bound to a job."""
    base = name.replace("-", "_")
    by_job = [claim for claim in claims if name == claim.job_name]
    by_base = [claim for claim in claims if base == claim.base_name.replace("-", "_")]
    if not by_job and not by_base:
        raise NotFoundError(f'nothing was ever submitted as "{name}"', hint="see `reconciler status`")
    open_claims = [claim for claim in by_job or by_base if claim.state is not ClaimState.BOUND]
    if not open_claims:
        raise NotFoundError(f'"{name}" has nothing to resolve: its job is known')
    if len(open_claims) > 1:
        raise UsageError(
            f'"{name}" matches several submissions',
            hint="name one of " + ", ".join(sorted(claim.job_name for claim in open_claims)),
        )
    return open_claims[0]


def _give_up(session: Session, claim: Claim) -> ExitCode:
    # The claim may have been bound or deleted since it was read; `give_up` returns its current state.
    held = Submitter(session.ports).give_up(claim.id)
    if held is None or held.state is ClaimState.BOUND:
        resource = held.resource if held else "nothing"
        print(one_line(f"{claim.job_name} is {resource}: there is nothing to give up"))
        return ExitCode.FAILED
    name = one_line(claim.job_name)
    print(f'{name} is given up: it is submitted again only when its content or "rerun" changes')
    # A request that was already sent can't be recalled.
    if claim.state is ClaimState.PENDING:
        print("a request for it was sent: if its job still appears, the claim is bound to it")
    return ExitCode.DONE


def _resubmit(session: Session, desired: Desired, claim: Claim, observed: Observed) -> ExitCode:
    job = _desired_job(desired, claim)
    _refuse_second_run(observed, job)
    _check_limits(session, job)
    origin = origin_of(session.config, desired, [job], os.environ, whole=False)
    for line in uncarried(origin, [job]):
        _print_line(line)
    applier = applier_of(session, desired, origin.commit_of, on_wait=_print_line)
    result = applier.resubmit(job, claim, observed.runs)
    if result.claim.state is ClaimState.BOUND:
        print(one_line(f"{claim.job_name} is {result.claim.resource}"))
        return ExitCode.DONE
    reason = reason_text(unsettled_reason(result.claim, result.until, result.cause))
    print(one_line(f"{claim.job_name}: {reason}"))
    return ExitCode.FAILED


def _print_line(line: str) -> None:
    print(one_line(line), file=sys.stderr)


def _desired_job(desired: Desired, claim: Claim) -> DesiredJob:
    for job in desired.jobs:
        if claim.id.key in keys_of(job):
            return job
    raise NotFoundError(
        f"no manifest holds the content of {claim.job_name} any more",
        hint=f"restore it, or run `reconciler resolve {claim.job_name} --give-up`",
    )


def _refuse_second_run(observed: Observed, job: DesiredJob) -> None:
    """Raise RefusedError beside a live run of the content that may be the environment's own."""
    for run in observed.doubtful:
        if run.labels.get(KEY) in keys_of(job):
            raise RefusedError(
                f"{run.resource} ({run.state.lower()}) has this content, and may have been submitted for "
                "this environment before its instance changed",
                hint="wait until it has ended, or cancel it, and resolve again",
            )


def _check_limits(session: Session, job: DesiredJob) -> None:
    """Check the limits of an apply that submits only this job; raise RefusedError."""
    if job.manifest.reconcile.suspend:
        raise RefusedError(
            f"{job.manifest.path} says that {job.manifest.name} is suspended",
            hint=f'remove "suspend" from it, or run `reconciler resolve {job.manifest.name} --give-up`',
        )
    limits = session.environment.limits
    check_limit("submissions", 1, limits.submissions)
    check_limit("acceleratorHours", hours_of(job), limits.accelerator_hours)
