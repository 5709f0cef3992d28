"""A job that fails between two runs: one run is red, once, and the merged pull request is told."""

from __future__ import annotations

import pytest

from tests.support.commit_story import Story
from tests.support.repository import Repository
from tests.support.waiting import until

pytestmark = pytest.mark.slow

FLAGS = ("--comment-merged", "--fail-on-new-failure")


def has_ended(repository: Repository) -> bool:
    jobs = repository.run("status", "--format", "json").json["jobs"]
    return all(job["state"] in ("SUCCEEDED", "FAILED") for job in jobs)


@pytest.mark.parametrize("command", ["apply", "report"])
def test_first_run_after_a_failure_is_red_and_comments_on_the_merged_pull_request(
    story: Story, command: str
) -> None:
    sha = story.push_job("a job that fails", "census", args=["--fail"])
    story.github.add_pull(7, sha)
    story.repository.hold.touch()
    assert story.run("apply", *FLAGS).code == 0
    story.repository.hold.unlink()
    until(lambda: has_ended(story.repository))
    red = story.run(command, *FLAGS)
    assert red.code == 1
    assert "census_" in red.err
    assert "has failed: no run has reported it before" in red.err
    assert "::error title=Failed::census_" in red.err
    (comment,) = story.github.comments[7]
    assert "1 failed" in comment["body"]
    for again in (command, "apply", "report"):
        green = story.run(again, *FLAGS)
        assert green.code == 0, green.err
    assert len(story.github.comments[7]) == 1


def test_first_run_after_a_failure_is_red_without_statuses_too(repository: Repository) -> None:
    repository.job("census", args=["--fail"])
    repository.hold.touch()
    assert repository.run("apply", "--fail-on-new-failure").code == 0
    repository.hold.unlink()
    until(lambda: has_ended(repository))
    assert [repository.run("apply", "--fail-on-new-failure").code for _ in range(2)] == [1, 0]


def test_failed_attempt_that_is_retried_makes_no_run_red(repository: Repository) -> None:
    repository.job("census", args=["--fail"], reconcile="{attempts: 2}")
    repository.hold.touch()
    assert repository.run("apply", "--fail-on-new-failure").code == 0
    repository.hold.unlink()
    until(lambda: has_ended(repository))
    repository.hold.touch()
    assert repository.run("apply", "--fail-on-new-failure").code == 0
    repository.hold.unlink()
    until(lambda: has_ended(repository))
    assert repository.run("apply", "--fail-on-new-failure").code == 1


def test_failure_is_new_though_its_statuses_are_refused(story: Story) -> None:
    story.push_job("a job that fails", "census", args=["--fail"])
    story.repository.hold.touch()
    assert story.run("apply", "--fail-on-new-failure").code == 0
    story.repository.hold.unlink()
    until(lambda: has_ended(story.repository))
    codes = [story.run("apply", "--fail-on-new-failure", GITHUB_TOKEN="").code for _ in range(2)]
    assert codes == [1, 0]
