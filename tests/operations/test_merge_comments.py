"""The comment on a merged pull request: how the jobs of its commit ended."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from reconciler.base.http import DirectTransport
from reconciler.model.job import ActualJob, State
from reconciler.model.plan import DesiredJob
from reconciler.operations.merge_comments import MergeComments
from reconciler.operations.report import Reported, open_record, report
from reconciler.planning.lineage import Lineage
from reconciler.reporting.github.contexts import Contexts
from reconciler.reporting.github.settings import GitHubSettings
from reconciler.reporting.github.statuses import GitHubReporter
from reconciler.reporting.status_rules import View
from tests.support.github_server import GitHubServer
from tests.support.memory_ports import Commits, Time
from tests.support.planning import bound_to, plan, run_of, state_of, wanted
from tests.support.tls import Loopback

CENSUS, TREES = wanted(), wanted("trees")
SHA, NUMBER, TOKEN = "1" * 40, 7, "ghs_merged"


@pytest.fixture
def store() -> Commits:
    return Commits(Time())


@pytest.fixture
def github() -> Iterator[GitHubServer]:
    with GitHubServer(commits={SHA}, tokens={TOKEN: "write", "mute": "read"}).running() as server:
        yield server
        assert server.violations == []


@pytest.fixture(autouse=True)
def record(store: Commits) -> None:
    """Record that the commit was applied and brought both jobs."""
    open_record(store, {}, SHA, plan([CENSUS, TREES]), Lineage(), {"census", "trees"})


def tell(
    store: Commits,
    github: GitHubServer,
    census: State | ActualJob,
    trees: State | ActualJob = State.RUNNING,
    token: str = TOKEN,
) -> Reported:
    """Report the states of both jobs, as a pass does."""
    states: list[tuple[DesiredJob, State | ActualJob]] = [(CENSUS, census), (TREES, trees)]
    runs = [
        run_of(job, state, number=n) if isinstance(state, State) else state
        for n, (job, state) in enumerate(states, 1)
    ]
    jobs = [job for job, _ in states]
    claims = [bound_to(job, run, run_attempt(run), commit=SHA) for job, run in zip(jobs, runs, strict=True)]
    view = View(Contexts("prod"), SHA, state_of(jobs, runs, claims), plan(jobs, runs, claims))
    settings, transport = GitHubSettings(github.repository, github.url, token), DirectTransport(Loopback())
    reporter = GitHubReporter(transport, settings, sleep=lambda _: None)
    return report(store, reporter, view, MergeComments(transport, settings, view))


def run_attempt(run: ActualJob) -> int:
    return int(run.labels.get("reconciler-attempt", "1"))


def bodies(github: GitHubServer, number: int = NUMBER) -> list[str]:
    return [comment["body"] for comment in github.comments[number]]


def test_pull_request_is_told_of_first_failure_and_an_edit_adds_the_other_end(
    store: Commits, github: GitHubServer
) -> None:
    github.add_pull(NUMBER, SHA)
    tell(store, github, State.RUNNING)
    assert bodies(github) == []
    tell(store, github, State.FAILED)
    (body,) = bodies(github)
    assert "1 failed, 1 running" in body
    assert "**failed**" in body
    assert "This comment shows the others once they have ended." in body
    tell(store, github, State.FAILED, State.SUCCEEDED)
    (body,) = bodies(github)
    assert "1 failed, 1 succeeded" in body
    assert "once they have ended" not in body


def test_pull_request_is_told_once_when_last_job_has_succeeded(store: Commits, github: GitHubServer) -> None:
    github.add_pull(NUMBER, SHA)
    tell(store, github, State.SUCCEEDED)
    assert bodies(github) == []
    tell(store, github, State.SUCCEEDED, State.SUCCEEDED)
    assert ["2 succeeded" in body for body in bodies(github)] == [True]
    asked = len(github.requests)
    tell(store, github, State.SUCCEEDED, State.SUCCEEDED)
    assert not any("pulls" in path or "comments" in path for _, path, _ in github.requests[asked:])


def test_second_failure_is_told_by_a_new_comment_in_place_of_the_first(
    store: Commits, github: GitHubServer
) -> None:
    github.add_pull(NUMBER, SHA)
    tell(store, github, State.FAILED)
    tell(store, github, State.FAILED, State.FAILED)
    first, second = bodies(github)
    assert first == "*Replaced by a newer comment.*"
    assert "2 failed" in second


def test_comment_quotes_nothing_that_the_trainer_printed(store: Commits, github: GitHubServer) -> None:
    github.add_pull(NUMBER, SHA)
    error = (
        "The replica workerpool0-0 exited with a non-zero status of 1. ValueError: password hunter2 @octocat"
    )
    failed = replace(run_of(CENSUS, State.FAILED, number=1), error=error)
    tell(store, github, failed)
    (body,) = bodies(github)
    assert "reconciler logs census" in body
    assert "hunter2" not in body
    assert "@octocat" not in body


@pytest.mark.parametrize(
    "fields",
    [
        {"state": "open", "merged_at": None},
        {"state": "closed", "merged_at": None},
        {"merge_commit_sha": "2" * 40},
        {"merge_commit_sha": None},
    ],
    ids=["open", "closed unmerged", "merged as another commit", "without a merge"],
)
def test_pull_request_that_was_not_merged_as_the_commit_is_told_nothing(
    store: Commits, github: GitHubServer, fields: dict[str, object]
) -> None:
    github.add_pull(NUMBER, SHA, **fields)
    tell(store, github, State.FAILED)
    assert bodies(github) == []


@pytest.mark.parametrize(
    "base", [("feature", "acme/models"), ("main", "stranger/models")], ids=["other branch", "fork"]
)
def test_pull_request_into_another_branch_or_repository_is_told_nothing(
    store: Commits, github: GitHubServer, base: tuple[str, str]
) -> None:
    github.add_pull(NUMBER, SHA)
    pull = github.pulls[SHA][0]
    pull["base"]["ref"], pull["base"]["repo"]["full_name"] = base
    tell(store, github, State.FAILED)
    assert bodies(github) == []


def test_refused_comment_is_reported_and_written_by_the_next_pass(
    store: Commits, github: GitHubServer
) -> None:
    github.add_pull(NUMBER, SHA)
    reported = tell(store, github, State.FAILED, token="mute")
    ((reason, is_denied),) = reported.untold
    assert is_denied
    assert reason.startswith("the pull request of 1111111 wasn't told how its jobs ended: ")
    assert bodies(github) == []
    tell(store, github, State.FAILED)
    assert len(bodies(github)) == 1


def test_success_after_a_further_attempt_edits_the_comment(store: Commits, github: GitHubServer) -> None:
    github.add_pull(NUMBER, SHA)
    tell(store, github, State.FAILED, State.SUCCEEDED)
    tell(store, github, run_of(CENSUS, State.SUCCEEDED, 1, number=3), State.SUCCEEDED)
    (body,) = bodies(github)
    assert "2 succeeded" in body
