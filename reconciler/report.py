"""Each wanted job's state as a status of the commit that asked for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from reconciler.claim import Claim, ClaimState
from reconciler.config import Config
from reconciler.plan import DesiredJob
from reconciler.planning.attempts import Attempt, attempts_by_base, keys_of
from reconciler.reporters.github import Failed, GitHubReporter
from reconciler.reporters.settings import github_settings
from reconciler.reporters.status import CommitStatus, status_of, unknown_of
from reconciler.submission.observation import Observed
from reconciler.transport import UrllibTransport


def statuses(
    environment: str,
    desired: Iterable[DesiredJob],
    observed: Observed,
    commit: str,
    problems: Mapping[str, str],
) -> dict[str, list[CommitStatus]]:
    """The statuses of each commit.

    Args:
        environment: The environment's name.
        desired: The wanted jobs.
        observed: Its claims and its runs; only a run that a claim is bound to says anything of a job.
        commit: The commit that is checked out, "" where the work tree isn't a clean checkout.
        problems: By the job name of a first attempt, why it wasn't submitted, or isn't again after it failed;
            what the newest claim says goes before it.
    """
    found: dict[str, list[CommitStatus]] = defaultdict(list)
    jobs = list(desired)
    by_base = attempts_by_base(jobs, observed.runs, observed.known)
    for job in jobs:
        claimed = _claimed(job, by_base.get(job.manifest.base_name, ()))
        # The commit of the first submission asked for the job; a later one only found it there.
        sha = claimed[0][0].commit if claimed else commit
        status = _status(environment, job, claimed, problems.get(job.job_name, "")) if sha else None
        if status:
            found[sha].append(status)
    return dict(found)


def _claimed(job: DesiredJob, attempts: Iterable[Attempt]) -> list[tuple[Claim, Attempt]]:
    """The attempts at just this content that have claims, the newest last."""
    keys = keys_of(job)
    mine = ((a.claim, a) for a in attempts if a.claim and a.id.key in keys)
    return sorted(mine, key=lambda pair: (pair[1].id.attempt, -keys.index(pair[1].id.key)))


def _status(
    environment: str, job: DesiredJob, claimed: Sequence[tuple[Claim, Attempt]], problem: str
) -> CommitStatus | None:
    """A job's status; None where there is nothing to say, or nothing new any more."""
    name = job.manifest.name
    said = next((_twice(attempt) for _, attempt in claimed if attempt.others), "")
    if said or not claimed:
        told = said or problem
        return status_of(environment, name, None, problem=told) if told else None
    claim, attempt = claimed[-1]
    if claim.state is ClaimState.PENDING:
        return unknown_of(environment, name, claim.job_name)
    said = _problem(claim, attempt) or (problem if attempt.failed else "")
    if said:
        return status_of(environment, name, None, problem=said)
    bound = attempt.run if attempt.run and attempt.run.resource == claim.resource else None
    return status_of(environment, name, bound) if bound else None


def _twice(attempt: Attempt) -> str:
    """Said as long as more than one job of an attempt is to be seen, however each of them stands."""
    runs = [run for run in (attempt.run, *attempt.others) if run]
    numbers = sorted(run.resource.rpartition("/")[2] for run in runs)
    return f"attempt {attempt.id.attempt} has {len(runs)} jobs: {', '.join(numbers)}"


def _problem(claim: Claim, attempt: Attempt) -> str:
    """What a claim says that its run doesn't; "" where the run says it all."""
    if claim.state is ClaimState.REJECTED:
        return f"refused: {claim.error or 'no reason given'}"
    if claim.state is ClaimState.HELD and claim.given_up:
        return 'given up; change "rerun" to run it again'
    if claim.state is ClaimState.HELD:
        return f"held, see `reconciler resolve {claim.base_name}`: {claim.error or 'no reason given'}"
    return "" if attempt.state else "deleted outside: the service has it no more, and its end was not seen"


def post(
    config: Config, by_commit: Mapping[str, Sequence[CommitStatus]], environ: Mapping[str, str]
) -> list[Failed]:
    """Post what is news, where GitHub is configured; the statuses that couldn't be posted."""
    settings = github_settings(config.github, environ)
    if settings is None:
        return []
    reporter = GitHubReporter(UrllibTransport(), settings)
    outcomes = [
        outcome for sha, wanted in sorted(by_commit.items()) for outcome in reporter.report(sha, wanted)
    ]
    return [outcome for outcome in outcomes if isinstance(outcome, Failed)]
