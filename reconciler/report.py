"""Each wanted job's state as a status of the commit that asked for it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from reconciler.config import Config
from reconciler.job import ActualJob
from reconciler.labels import COMMIT
from reconciler.plan import DesiredJob
from reconciler.planner import runs_of
from reconciler.reporters.github import Failed, GitHubReporter
from reconciler.reporters.settings import github_settings
from reconciler.reporters.status import CommitStatus, status_of
from reconciler.transport import UrllibTransport


def statuses(
    environment: str,
    desired: Iterable[DesiredJob],
    runs: Sequence[ActualJob],
    commit: str,
    problems: Mapping[str, str],
) -> dict[str, list[CommitStatus]]:
    """The statuses of each commit.

    Args:
        environment: The environment's name.
        desired: The wanted jobs.
        runs: The runs that the repository owns.
        commit: The commit that is checked out, "" where the work tree isn't a clean checkout.
        problems: By the job name of a first attempt, why it wasn't submitted.
    """
    found: dict[str, list[CommitStatus]] = defaultdict(list)
    for job in desired:
        mine = runs_of(job, runs)
        problem = problems.get(job.job_name, "")
        # The commit of the first submission asked for the job; a later one only found it there.
        sha = mine[0].labels.get(COMMIT, "") if mine else commit
        if not sha or (not mine and not problem):
            continue
        newest = mine[-1] if mine else None
        found[sha].append(status_of(environment, job.manifest.name, newest, problem=problem))
    return dict(found)


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
