"""From a commit to its checks: a real git repository, real trainings, and the final statuses on GitHub."""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path

import pytest

from reconciler.base.errors import InvalidError
from reconciler.git.commit import commit_of
from reconciler.manifests.settings import load_config
from reconciler.operations.follow_up import FollowUp, load_or_report
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.session import open_session
from tests.support.commit_story import Story
from tests.support.github_server import secondary_limit
from tests.support.repository import IMAGE, switching_git

JOB, ALL, DRIFT = "reconciler/local/", "reconciler", "reconciler drift"


@pytest.mark.fault(29)
def test_each_commit_carries_its_verdicts_in_the_end(story: Story, tmp_path: Path) -> None:
    repository = story.repository
    repository.job("census", args=["--epochs=1"], reconcile="{onChange: cancel}")
    first = story.push("the first job")
    assert story.run("apply", "--wait").code == 0
    green = {ALL: "success", f"{JOB}census": "success", DRIFT: "success"}
    assert story.shown(first) == green
    assert story.said(first, ALL) == "1 of 1 succeeded · update 3"

    # A pull request: its plan sends GitHub no request, and a single comment shows it.
    repository.git("switch", "-q", "-c", "more-epochs")
    repository.job("census", args=["--epochs=2"], reconcile="{onChange: cancel}")
    head = story.push("more epochs")
    story.github.comments[7] = []
    before = len(story.github.requests)
    planned = story.run(
        "plan", "--base", "main", "--format", "markdown", "--output-dir", str(tmp_path / "plan"), CI="true"
    )
    assert planned.code == 0, planned.err
    assert "--epochs=2" in planned.out
    assert len(story.github.requests) == before
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 7, "head": {"sha": head}}}))
    commented = story.run(
        "report",
        "--comment",
        str(tmp_path / "plan" / "comment.md"),
        GITHUB_EVENT_NAME="pull_request",
        GITHUB_EVENT_PATH=str(event),
    )
    assert commented.code == 0, commented.err
    (comment,) = story.client.get_repo("acme/models").get_issue(7).get_comments()
    assert "census" in comment.body

    # After the merge, the job runs; the commit before keeps its verdict.
    repository.git("switch", "-q", "main")
    repository.git("merge", "-q", "--no-ff", "-m", "merge", "more-epochs")
    merged = repository.git("rev-parse", "HEAD")
    story.github.commits.add(merged)
    repository.hold.touch()
    assert story.run("apply").code == 0
    assert story.shown(merged) == {ALL: "pending", f"{JOB}census": "pending", DRIFT: "success"}
    assert story.shown(first) == green
    assert head not in story.github.statuses

    # A superseding commit: the run is cancelled, and its commit gets a status.
    repository.job("census", args=["--epochs=3"], reconcile="{onChange: cancel}")
    superseding = story.push("even more epochs")
    assert story.run("apply").code == 0
    assert story.run("report").code == 0
    assert story.shown(merged) == {ALL: "error", f"{JOB}census": "error", DRIFT: "success"}
    assert story.said(merged, f"{JOB}census").startswith("superseded, cancelled")
    assert story.shown(superseding)[ALL] == "pending"

    # A person cancels the job outside the reconciler: an error and drift; no run is started for it.
    story.cancel_outside()
    assert story.run("report").code == 0
    assert story.shown(superseding) == {ALL: "error", f"{JOB}census": "error", DRIFT: "failure"}
    assert story.said(superseding, DRIFT).startswith("1 finding: cancelled-outside census_")

    # A manifest is deleted, another is new.
    (repository.root / "jobs" / "census.yaml").unlink()
    repository.job("trees", args=["--depth=1"])
    repository.hold.unlink()
    replacing = story.push("trees instead")
    assert story.run("apply", "--wait").code == 0
    assert story.shown(replacing) == {ALL: "success", f"{JOB}trees": "success", DRIFT: "success"}

    # Five quick pushes: newer runs replace those of the commits in the middle.
    repository.hold.touch()
    pushed = []
    for depth in range(2, 7):
        repository.job("trees", args=[f"--depth={depth}"])
        pushed.append(story.push(f"depth {depth}"))
        if depth == 2:
            assert story.run("apply").code == 0
    repository.hold.unlink()
    assert story.run("apply", "--wait").code == 0
    assert story.run("apply").code == 0
    quick, *dropped, last = pushed
    replacing_ones = [*dropped[1:], last]
    assert story.shown(quick)[ALL] == "success", "onChange is keep: its run went on"
    assert story.shown(last) == {ALL: "success", f"{JOB}trees": "success", DRIFT: "success"}
    for sha, by in zip(dropped, replacing_ones, strict=True):
        assert story.shown(sha) == {ALL: "success", f"{JOB}trees": "success"}
        assert story.said(sha, ALL) == f"replaced by {by[:7]} before it ran"
    # In the end no status is due: a look without news posts none.
    posted = len(story.github.posted())
    assert story.run("report").code == 0
    assert len(story.github.posted()) == posted


@pytest.mark.fault(28, 50)
def test_what_could_not_be_posted_is_posted_later(story: Story) -> None:
    """GitHub rejects requests while a job ends, and another job ends before its commit is pushed."""
    pushed = story.push_job("a job", "census")
    story.github.commits.clear()
    story.github.queued = [secondary_limit(retry_after=3600)] * 10
    away = story.run("apply", "--wait")
    assert away.code == 0, "the jobs did what they should"
    assert "accepts no more requests" in away.err
    story.github.queued.clear()
    unknown = story.run("report")
    assert unknown.code == 0
    assert "push it first" in unknown.err
    assert story.github.statuses == {}
    later = story.push_job("another job", "trees")
    story.github.commits.add(pushed)
    assert story.run("apply", "--wait").code == 0
    for sha in (pushed, later):
        assert story.shown(sha)[ALL] == "success"
    assert story.shown(pushed)[f"{JOB}census"] == "success"
    assert f"{JOB}census" not in story.shown(later), "the first commit asked for it"


@pytest.mark.fault(28)
def test_in_a_pull_request_the_head_is_told_and_not_the_merge_that_nobody_sees(
    story: Story, tmp_path: Path
) -> None:
    head = story.push_job("a job", "census")
    merge = story.push("what Actions checks out")
    event = tmp_path / "event.json"
    event.write_text(json.dumps({"pull_request": {"number": 7, "head": {"sha": head}}}))
    environ = {"GITHUB_EVENT_NAME": "pull_request", "GITHUB_EVENT_PATH": str(event), "GITHUB_SHA": merge}
    assert story.run("apply", "--wait", **environ).code == 0
    assert story.shown(head)[ALL] == "success"
    assert merge not in story.github.statuses


def test_from_a_dirty_tree_nothing_is_posted(story: Story) -> None:
    story.push_job("a job", "census")
    story.repository.job("census", args=["--epochs=9"])
    applied = story.run("apply", "--wait")
    assert applied.code == 0
    assert "jobs/census.yaml differs from commit" in applied.err
    assert "census carries no commit" in applied.err
    assert "the commit gets no overall status" in applied.err
    assert story.run("report").code == 0
    assert story.github.statuses == {}


def test_a_commit_is_told_of_the_jobs_that_are_as_committed_when_another_is_edited(story: Story) -> None:
    story.repository.job("census")
    sha = story.push_job("two jobs", "trees", args=["--depth=1"])
    story.repository.job("trees", args=["--depth=2"])
    applied = story.run("apply", "--wait")
    assert applied.code == 0
    assert "jobs/trees.yaml differs from commit" in applied.err
    assert story.shown(sha) == {f"{JOB}census": "success"}
    carried = {job["baseName"]: job["commit"] for job in story.run("status", "--format", "json").json["jobs"]}
    assert carried == {"census": sha, "trees": None}

    # After the commit of the current state, the other job belongs to this commit.
    later = story.push("deeper trees")
    assert story.run("apply", "--wait").code == 0
    assert story.shown(later)[ALL] == "success"
    assert story.shown(sha) == {ALL: "success", f"{JOB}census": "success", f"{JOB}trees": "success"}
    assert story.said(sha, f"{JOB}trees") == f"replaced by {later[:7]} before it ran"


def test_a_commit_gets_no_verdict_from_a_work_tree_that_lacks_one_of_its_manifests(story: Story) -> None:
    story.repository.job("census")
    trees = story.repository.job("trees")
    sha = story.push("two jobs")
    trees.unlink()
    story.repository.write("notes.txt", "a file that no job is made of")
    applied = story.run("apply", "--wait")
    assert applied.code == 0
    assert f"jobs/trees.yaml is only in commit {sha[:7]}: the commit gets no overall status" in applied.err
    assert "carries no commit" not in applied.err
    assert story.shown(sha) == {f"{JOB}census": "success"}


@pytest.mark.parametrize("at", [0, 1, 3], ids="after call {}".format)
def test_no_commit_gets_statuses_for_jobs_of_a_branch_that_was_switched_to_during_apply(
    story: Story, tmp_path: Path, at: int
) -> None:
    shas = {}
    for branch in ("main", "other"):
        if shas:
            story.repository.git("switch", "-q", "-c", branch)
        story.repository.job("census", args=[f"--on={branch}"])
        shas[branch] = story.push(branch)
    story.repository.git("switch", "-q", "main")
    path = switching_git(story.repository, tmp_path, "other", at)
    applied = story.run("apply", "--wait", PATH=path)
    assert applied.code == 0, applied.err
    trained = story.repository.starts.read_text()
    for branch, sha in shas.items():
        if sha in story.github.statuses:
            assert f"--on={branch}" in trained, f"{branch} was told of a job that is not its own"
            assert story.shown(sha)[ALL] == "success"


def test_a_file_that_no_job_is_made_of_takes_no_verdict_away(story: Story) -> None:
    sha = story.push_job("a job", "census")
    story.repository.write("notes.txt", "untracked")
    story.repository.write("jobs/notes.txt", "untracked")
    applied = story.run("apply", "--wait")
    assert (applied.code, "carries no commit" in applied.err) == (0, False)
    assert story.shown(sha) == {ALL: "success", f"{JOB}census": "success", DRIFT: "success"}


def test_a_commit_that_can_not_be_applied_is_told_why_and_the_others_how_their_jobs_ended(
    story: Story,
) -> None:
    story.repository.hold.touch()
    running = story.push_job("a job that takes long", "census")
    assert story.run("apply").code == 0
    settings = story.repository.root / "reconciler.yaml"
    good = settings.read_text()
    settings.write_text(good + "limits: {submissions: 0}\n")
    refused = story.push_job("more than is allowed", "trees")
    assert story.run("apply").code == 4
    assert story.shown(refused)[ALL] == "error"
    assert story.said(refused, ALL).startswith("refused: ")
    settings.write_text(good)
    story.repository.write("jobs/broken.yaml", "kind: CustomJob\n")
    broken = story.push("not even valid")
    story.repository.hold.unlink()
    # `logs --follow` returns when the job has ended.
    assert story.run("logs", "census", "--follow").code == 0
    for command in ("apply", "report"):
        assert story.run(command).code == 3
    assert story.shown(broken) == {ALL: "error"}
    assert "see `reconciler validate`" in story.said(broken, ALL)
    assert story.shown(running)[ALL] == "success"


def test_invalid_manifests_are_reported_to_a_commit_only_if_it_stays_checked_out_while_they_load(
    story: Story, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in story.environ.items():
        monkeypatch.setenv(name, value)
    story.repository.write("jobs/broken.yaml", "kind: CustomJob\n")
    commits = [story.push("not valid")]
    config = load_config(story.repository.root)
    environment = config.environment(None)

    def load(*, moves: bool) -> Desired:
        if moves:
            commits.append(story.push("another one"))
        return load_desired(config, environment, [])

    def report(*, moves: bool) -> None:
        with pytest.raises(InvalidError, match="not valid"):
            load_or_report(
                config,
                partial(load, moves=moves),
                partial(open_session, config, environment, os.environ, start=True),
                partial(commit_of, config.root, os.environ),
                reports.append,
            )

    reports: list[FollowUp] = []
    report(moves=True)
    assert [story.shown(commit) for commit in commits] == [{}, {}]
    report(moves=False)
    assert [story.shown(commit) for commit in commits] == [{}, {ALL: "error"}]
    assert reports == [FollowUp(None)] * 2


def test_a_commit_without_jobs_is_green_and_the_settings_leave_out_single_jobs(story: Story) -> None:
    (story.repository.root / "jobs").mkdir()
    story.repository.write("jobs/.gitkeep", "")
    empty = story.push("nothing yet")
    assert story.run("apply").code == 0
    assert story.shown(empty) == {ALL: "success", DRIFT: "success"}
    settings = story.repository.root / "reconciler.yaml"
    settings.write_text(settings.read_text() + "github: {statuses: summary}\n")
    asked = story.push_job("a job", "census")
    assert story.run("apply", "--wait").code == 0
    assert story.shown(asked) == {ALL: "success", DRIFT: "success"}


@pytest.mark.fault(53)
def test_a_failed_set_up_is_told_with_its_class_and_the_next_step(story: Story) -> None:
    story.repository.job("census")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    entry = f'{{python: "{version}", requirements: ["no-such-package==1"]}}'
    story.repository.write("reconciler.yaml", f"images: {{{json.dumps(IMAGE)}: {entry}}}\n")
    sha = story.push("first")
    assert story.run("apply", "--wait").code == 1
    said = story.said(sha, JOB + "census")
    assert "set-up: no version of a package fits; correct the package's requirements" in said
    assert story.shown(sha)[JOB + "census"] == "failure"
    assert story.shown(sha)[ALL] == "pending"
