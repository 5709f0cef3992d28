"""Statuses that are due for commits: recorded, posted to a real server, and removed once seen there."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.base.http import DirectTransport, HttpRequest, HttpResponse
from reconciler.model.commit_record import WantedJob
from reconciler.model.job import State
from reconciler.model.plan import DesiredJob, Plan
from reconciler.operations.report import LINGERING, PATIENCE, SLOWEST, open_record, report
from reconciler.planning.attempts import keys_of
from reconciler.planning.lineage import Lineage, PassedOver
from reconciler.reporting.github.contexts import Contexts
from reconciler.reporting.github.settings import GitHubSettings
from reconciler.reporting.github.statuses import FRESH, Failed, GitHubReporter
from reconciler.reporting.status_rules import View, due_statuses
from tests.support.github_server import GitHubServer, page_of_html, secondary_limit
from tests.support.memory_ports import Commits, Time
from tests.support.planning import bound_to, plan, run_of, state_of, wanted
from tests.support.tls import Loopback

JOB, TREES = wanted(), wanted("trees")
FIRST, SECOND, THIRD = "1" * 40, "2" * 40, "3" * 40
TOKEN = "ghs_owed"
ALL = Lineage()


@pytest.fixture
def store() -> Commits:
    return Commits(Time())


@pytest.fixture
def github() -> Iterator[GitHubServer]:
    with GitHubServer(commits={FIRST, SECOND, THIRD}, tokens={TOKEN: "write"}).running() as server:
        yield server
        assert server.violations == []


def view(commit: str, *states: tuple[DesiredJob, State], asked: str = "") -> View:
    """Return the view at a commit with jobs in these states."""
    runs = [run_of(job, state, number=n) for n, (job, state) in enumerate(states, 1)]
    claims = [bound_to(job, run, commit=asked or commit) for (job, _), run in zip(states, runs, strict=True)]
    jobs = [job for job, _ in states]
    return View(Contexts("prod"), commit, state_of(jobs, runs, claims), plan(jobs, runs, claims))


def applied(store: Commits, commit: str, *desired: DesiredJob, skipped: tuple[str, ...] = ()) -> None:
    """Open the record of a commit: it brought its jobs, unless it was preceded by skipped commits."""
    owe(store, commit, plan(desired), Lineage(own_names=frozenset(), parts=skipped) if skipped else ALL)


def owe(store: Commits, commit: str, made: Plan, lineage: Lineage = ALL) -> None:
    names = {change.base_name.replace("-", "_") for change in made.changes}
    open_record(store, store.all(), commit, made, lineage, {name for name in names if lineage.brought(name)})


def close(store: Commits, github: GitHubServer, seen: View) -> None:
    """Post until no status is due any more."""
    for _ in range(2):
        tell(store, github, seen)
    store.time.sleep(LINGERING.total_seconds() + 1)
    tell(store, github, seen)


def tell(store: Commits, github: GitHubServer, seen: View) -> list[Failed]:
    settings = GitHubSettings(github.repository, github.url, TOKEN)
    reporter = GitHubReporter(DirectTransport(Loopback()), settings, sleep=lambda _: None)
    return [*report(store, reporter, seen).failed]


@pytest.mark.slow
def test_a_record_is_closed_by_the_look_that_finds_all_of_it(store: Commits, github: GitHubServer) -> None:
    applied(store, FIRST, JOB)
    assert tell(store, github, view(FIRST, (JOB, State.RUNNING))) == []
    ended = view(FIRST, (JOB, State.SUCCEEDED))
    assert tell(store, github, ended) == []
    assert not store.held[FIRST].record.closed, "what was posted was not seen yet"
    posted = len(github.posted())
    assert tell(store, github, ended) == []
    assert not store.held[FIRST].record.closed, "a slow reporter may still post older news"
    store.time.sleep(LINGERING.total_seconds())
    assert tell(store, github, ended) == []
    assert not store.held[FIRST].record.closed
    store.time.sleep(1)
    assert tell(store, github, ended) == []
    assert store.held[FIRST].record.closed
    assert len(github.posted()) == posted
    assert github.states(FIRST, "reconciler") == ["pending", "success"]


@pytest.mark.fault(26)
def test_older_news_of_a_slower_reporter_change_nothing(store: Commits, github: GitHubServer) -> None:
    applied(store, FIRST, JOB)
    slow, fast = view(FIRST, (JOB, State.RUNNING)), view(FIRST, (JOB, State.FAILED))
    tell(store, github, fast)
    tell(store, github, slow)
    for context in ("reconciler", "reconciler/prod/census"):
        assert github.states(FIRST, context) == ["failure"]
    assert not store.held[FIRST].record.closed, "who knows less closes nothing"


@pytest.mark.fault(26)
def test_older_news_that_were_posted_late_are_put_right(store: Commits, github: GitHubServer) -> None:
    """A reporter can pause for an hour between reading and posting."""
    applied(store, FIRST, JOB)
    ended = view(FIRST, (JOB, State.SUCCEEDED))
    for _ in range(2):
        tell(store, github, ended)
    said = "0 of 1 succeeded, 1 running · update 2"
    github.add(FIRST, context="reconciler", state="pending", description=said)
    tell(store, github, ended)
    assert github.states(FIRST, "reconciler") == ["success", "pending", "success"]


@pytest.mark.slow
@pytest.mark.fault(29)
def test_commits_that_were_passed_over_are_told_once(store: Commits, github: GitHubServer) -> None:
    applied(store, FIRST, JOB)
    applied(store, THIRD, JOB, skipped=(SECOND,))
    close(store, github, view(THIRD, (JOB, State.SUCCEEDED), asked=FIRST))
    assert github.states(SECOND, "reconciler") == ["success"]
    assert github.statuses[SECOND][0]["description"] == "applied as part of 3333333"
    assert github.states(FIRST, "reconciler") == github.states(THIRD, "reconciler") == ["success"]
    assert github.states(FIRST, "reconciler/prod/census") == ["success"]
    assert github.states(THIRD, "reconciler/prod/census") == []
    assert store.held.keys() == {THIRD}, "nothing is owed to the others"


@pytest.mark.slow
def test_a_commit_that_was_passed_over_and_is_applied_after_all_gets_its_verdict(
    store: Commits, github: GitHubServer
) -> None:
    applied(store, FIRST, JOB)
    applied(store, THIRD, JOB, skipped=(SECOND,))
    seen = view(THIRD, (JOB, State.SUCCEEDED), asked=FIRST)
    tell(store, github, seen)
    applied(store, SECOND, JOB)
    tell(store, github, dataclasses.replace(seen, commit=SECOND))
    assert github.states(SECOND, "reconciler") == ["success", "success"]


def test_commit_that_was_part_of_another_and_is_told_apart_later_shows_its_jobs(
    store: Commits, github: GitHubServer
) -> None:
    applied(store, THIRD, JOB, skipped=(SECOND,))
    passed = {SECOND: PassedOver({"census": WantedJob(keys_of(JOB))})}
    owe(store, FIRST, plan([JOB]), Lineage(own_names=frozenset(), passed_over=passed))
    tell(store, github, view(FIRST, (JOB, State.FAILED), asked=SECOND))
    assert github.states(SECOND, "reconciler") == ["failure"]


@pytest.mark.slow
def test_a_commit_that_has_a_verdict_is_not_called_passed_over(store: Commits, github: GitHubServer) -> None:
    github.add(SECOND, context="reconciler", state="success", description="no jobs")
    applied(store, THIRD, JOB, skipped=(SECOND,))
    close(store, github, view(THIRD, (JOB, State.SUCCEEDED)))
    assert github.states(SECOND, "reconciler") == ["success"]
    assert SECOND not in store.held


@pytest.mark.fault(27)
def test_a_limit_ends_the_whole_report_and_the_newest_commit_comes_first(
    store: Commits, github: GitHubServer
) -> None:
    for commit in (FIRST, SECOND, THIRD):
        applied(store, commit, JOB)
    seen = view(THIRD, (JOB, State.RUNNING))
    github.queued = [None, None, secondary_limit(retry_after=3600)]
    failed = tell(store, github, seen)
    assert {one.sha for one in failed} == {FIRST, SECOND, THIRD}
    assert len(github.requests) == 3, "nothing was asked after the limit"
    assert github.states(THIRD, "reconciler") == ["pending"]


class Standing:
    """A transport that pauses before the first status is posted."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        self.meanwhile = [meanwhile]

    def send(self, request: HttpRequest) -> HttpResponse:
        if request.method == "POST" and self.meanwhile:
            self.meanwhile.pop()()
        return DirectTransport(Loopback()).send(request)


@pytest.mark.slow
@pytest.mark.fault(26)
@pytest.mark.parametrize("rest", [State.RUNNING, State.SUCCEEDED])
@pytest.mark.parametrize("closed", [False, True])
def test_who_stood_still_before_posting_has_the_commit_looked_at_again(
    store: Commits, github: GitHubServer, rest: State, closed: bool
) -> None:
    """Check that old posts can't hide statuses that others posted and recorded during the pause."""
    applied(store, FIRST, JOB, TREES)
    old = view(FIRST, (JOB, State.RUNNING), (TREES, State.RUNNING))
    new = view(FIRST, (JOB, State.SUCCEEDED), (TREES, rest))
    others = partial(close if closed else tell, store, github, new)
    settings = GitHubSettings(github.repository, github.url, TOKEN)
    report(store, GitHubReporter(Standing(others), settings, sleep=lambda _: None), old)
    census = "reconciler/prod/census"
    assert github.states(FIRST, census) == ["success", "pending"]
    tell(store, github, new)
    assert github.states(FIRST, census) == ["success", "pending", "success"]
    end = "pending" if rest is State.RUNNING else "success"
    assert github.states(FIRST, "reconciler")[-1] == end


def shown(github: GitHubServer) -> str:
    newest = next(kept for kept in github.statuses[FIRST] if kept["context"] == "reconciler")
    return str(newest["description"])


@pytest.mark.slow
@pytest.mark.fault(26)
def test_what_a_reporter_covered_with_old_news_before_it_died_is_put_right(
    store: Commits, github: GitHubServer
) -> None:
    applied(store, FIRST, JOB)
    running, queued = view(FIRST, (JOB, State.RUNNING)), view(FIRST, (JOB, State.QUEUED))
    tell(store, github, running)
    said = shown(github)
    # The reporter read the earlier commit, paused, and posted then.
    due = due_statuses(queued, store.held[FIRST].record).by_commit[FIRST]
    (old,) = (status for status in due if status.context == "reconciler")
    github.add(FIRST, context=old.context, state=old.state, description=old.description)
    tell(store, github, running)
    assert shown(github) == old.description, "nothing changed since the last post"
    store.time.sleep(SLOWEST.total_seconds() + 1)
    for _ in range(2):
        tell(store, github, running)
        assert shown(github) == said
    store.time.sleep(SLOWEST.total_seconds() + 1)
    tell(store, github, running)
    requests = len(github.requests)
    store.time.sleep(SLOWEST.total_seconds() + 1)
    tell(store, github, running)
    assert len(github.requests) - requests <= 2, "what was confirmed is not read again, but for the drift"


@pytest.mark.fault(26)
def test_who_stood_still_for_long_reads_the_commit_again_before_posting(
    store: Commits, github: GitHubServer
) -> None:
    applied(store, FIRST, JOB)
    old, new = view(FIRST, (JOB, State.RUNNING)), view(FIRST, (JOB, State.SUCCEEDED))
    now = [0.0]

    class Sleeping:
        """A transport that sleeps after its first read, while others report."""

        def send(self, request: HttpRequest) -> HttpResponse:
            response = DirectTransport(Loopback()).send(request)
            if request.method == "GET" and not now[0]:
                now[0] = FRESH + 1
                tell(store, github, new)
            return response

    settings = GitHubSettings(github.repository, github.url, TOKEN)
    report(store, GitHubReporter(Sleeping(), settings, clock=lambda: now[0]), old)
    for context in ("reconciler", "reconciler/prod/census"):
        assert github.states(FIRST, context) == ["success"]


def test_what_goes_on_as_it_was_is_not_looked_at_again(store: Commits, github: GitHubServer) -> None:
    applied(store, FIRST, JOB)
    applied(store, THIRD, TREES)
    states = ((JOB, State.RUNNING), (TREES, State.RUNNING))
    seen = view(THIRD, *states, asked=FIRST)
    tell(store, github, seen)
    before = len(github.requests)
    tell(store, github, seen)
    # The status about drift goes to the branch's head.
    assert [path for _, path, _ in github.requests[before:] if FIRST in path] == []
    tell(store, github, view(THIRD, (JOB, State.FAILED), (TREES, State.RUNNING), asked=FIRST))
    assert github.states(FIRST, "reconciler") == ["pending", "failure"]


@pytest.mark.slow
@pytest.mark.fault(13)
def test_a_second_job_turns_the_commit_red_also_when_all_was_told(
    store: Commits, github: GitHubServer
) -> None:
    applied(store, FIRST, JOB)
    good = view(FIRST, (JOB, State.SUCCEEDED))
    close(store, github, good)
    run = run_of(JOB, State.SUCCEEDED)
    second = replace(run, resource=f"{run.resource}9", state=State.CANCELLED)
    claim = bound_to(JOB, run, commit=FIRST)
    twice = dataclasses.replace(good, state=state_of([JOB], [run, second], [claim]))
    tell(store, github, twice)
    for context in ("reconciler", "reconciler/prod/census"):
        assert github.states(FIRST, context) == ["success", "error"]


@pytest.mark.slow
@pytest.mark.parametrize("seen_between", [True, False])
def test_a_further_attempt_turns_the_overall_status_of_older_commits(
    store: Commits, github: GitHubServer, seen_between: bool
) -> None:
    applied(store, FIRST, JOB, TREES)
    close(store, github, view(FIRST, (JOB, State.FAILED), (TREES, State.SUCCEEDED)))
    other = wanted("other")
    both = ((JOB, State.FAILED), (TREES, State.SUCCEEDED))
    second = view(SECOND, *both, (other, State.SUCCEEDED), asked=FIRST)
    owe(store, SECOND, second.plan)
    close(store, github, second)
    assert store.held.keys() == {FIRST, SECOND}, "a further attempt may turn the first"

    runs = [run_of(JOB, State.FAILED), run_of(TREES, State.SUCCEEDED, number=2)]
    runs.append(run_of(other, State.SUCCEEDED, number=3))
    claims = [bound_to(job, run, commit=FIRST) for job, run in zip((JOB, TREES, other), runs, strict=True)]
    more = [wanted(attempts=2), TREES, other]
    owe(store, THIRD, plan(more, runs, claims))
    for state in (State.RUNNING, State.SUCCEEDED) if seen_between else (State.SUCCEEDED,):
        retried = run_of(JOB, state, 2, number=4)
        everything = [*claims, bound_to(JOB, retried, 2, commit=THIRD)]
        present = state_of(more, [*runs, retried], everything)
        planned = plan(more, [*runs, retried], everything)
        tell(store, github, View(Contexts("prod"), THIRD, present, planned))
    for sha in (FIRST, SECOND, THIRD):
        assert github.states(sha, "reconciler")[-1] == "success"
    assert github.states(FIRST, "reconciler/prod/census")[-1] == "success"


@pytest.mark.slow
def test_a_red_commit_is_forgotten_once_its_failed_job_has_other_content(
    store: Commits, github: GitHubServer
) -> None:
    applied(store, FIRST, JOB)
    close(store, github, view(FIRST, (JOB, State.FAILED)))
    changed = wanted(content="b")
    applied(store, SECOND, changed)
    close(store, github, view(SECOND, (changed, State.SUCCEEDED)))
    assert store.held.keys() == {SECOND}


@pytest.mark.fault(50)
def test_what_could_not_be_posted_is_owed(store: Commits, github: GitHubServer) -> None:
    applied(store, FIRST, JOB)
    seen = view(FIRST, (JOB, State.SUCCEEDED))
    github.queued = [page_of_html(502)] * 20
    assert {one.sha for one in tell(store, github, seen)} == {FIRST}
    github.queued.clear()
    assert not store.held[FIRST].record.closed
    assert tell(store, github, seen) == []
    assert github.states(FIRST, "reconciler") == ["success"]


@pytest.mark.slow
@pytest.mark.fault(28)
def test_a_commit_that_github_does_not_know_is_owed_for_thirty_days(
    store: Commits, github: GitHubServer
) -> None:
    github.commits = {SECOND}
    applied(store, FIRST, JOB)
    applied(store, SECOND, JOB)
    seen = view(SECOND, (JOB, State.SUCCEEDED), asked=FIRST)
    failed = tell(store, github, seen)
    assert {one.sha for one in failed if one.unknown_commit} == {FIRST}
    assert len(failed) == 2
    store.time.sleep(PATIENCE.total_seconds())
    tell(store, github, seen)
    assert store.held.keys() == {FIRST, SECOND}
    store.time.sleep(timedelta(seconds=1).total_seconds())
    tell(store, github, seen)
    assert store.held.keys() == {SECOND}


def test_a_record_is_only_written_over_the_one_that_was_read(
    store: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two applies of a commit run at once: each adds its own planned changes."""
    write = store.write

    def interrupted(record: Any, generation: int) -> bool:
        monkeypatch.setattr(store, "write", write)
        owe(store, FIRST, plan([TREES], whole=False))
        return write(record, generation)

    monkeypatch.setattr(store, "write", interrupted)
    owe(store, FIRST, plan([JOB], whole=False))
    assert store.held[FIRST].record.jobs.keys() == {"census", "trees"}


def test_what_cannot_be_written_down_stops_before_anything_is_submitted(
    store: Commits, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "write", lambda record, generation: False)
    with pytest.raises(ServiceError, match="can't be recorded"):
        applied(store, FIRST, JOB)


@pytest.mark.slow
def test_an_apply_without_news_writes_nothing(store: Commits, github: GitHubServer) -> None:
    applied(store, FIRST, JOB)
    generation = store.held[FIRST].generation
    applied(store, FIRST, JOB)
    assert store.held[FIRST].generation == generation
    ended = view(FIRST, (JOB, State.SUCCEEDED))
    close(store, github, ended)
    generation = store.held[FIRST].generation
    owe(store, FIRST, ended.plan)
    assert store.held[FIRST].generation == generation
