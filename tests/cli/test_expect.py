"""What a manifest expects of its result: plan, exit codes, commit statuses and records of the verdict."""

from __future__ import annotations

import html
import json
from pathlib import Path

import pytest

from tests.support.commit_story import Story
from tests.support.models import TRAINER, job_of, settings, write
from tests.support.repository import Repository
from tests.support.waiting import until

pytestmark = pytest.mark.slow

GOOD = "{accuracy: {min: 0.95}}"
ALL, JOB = "reconciler", "reconciler/local/census"


@pytest.fixture
def own(models: Repository) -> Repository:
    """Return a repository whose runs have folders of their own."""
    settings(models, "outputs: own")
    return models


def planned(repository: Repository) -> tuple[str, str]:
    """Return the action and the code of the reason of the job's change."""
    (change,) = repository.run("plan", "--format", "json").json["changes"]
    return change["action"], change["reasonCode"]


def test_missed_expectation_fails_wait_with_both_figures_and_leaves_job_succeeded(own: Repository) -> None:
    write(own, "--accuracy=0.60", attempts=3, expect=GOOD)
    done = own.run("apply", "--wait")
    name = job_of(own)["jobName"]
    assert done.code == 1
    assert f"{name}: succeeded; accuracy 0.6, expected at least 0.95" in done.err
    assert planned(own) == ("none", "expectation-missed")
    assert "Nothing to do: 1 job (1 below expectations)." in own.run("plan").out
    assert own.run("apply").code == 0
    assert own.run("apply", "--wait").code == 1
    assert own.states() == {name: "SUCCEEDED"}, "it uses up no attempt"


@pytest.mark.fault(65)
def test_change_of_expect_alone_judges_recorded_values_again_and_trains_nothing(own: Repository) -> None:
    write(own, "--accuracy=0.90", expect=GOOD)
    assert own.run("apply", "--wait").code == 1
    name = job_of(own)["jobName"]
    # Neither a later file nor its loss changes a value that was judged.
    (metrics,) = (own.home / "gcs/models").rglob("metrics.json")
    metrics.write_text('{"accuracy": 0.1}')
    write(own, "--accuracy=0.90", expect="{accuracy: {min: 0.85}}")
    assert own.run("apply", "--wait").code == 0
    assert planned(own) == ("none", "succeeded")
    metrics.unlink()
    write(own, "--accuracy=0.90", expect="{accuracy: {max: 0.85}}")
    done = own.run("apply", "--wait")
    assert (done.code, "accuracy 0.9, expected at most 0.85" in done.err) == (1, True)
    assert own.states() == {name: "SUCCEEDED"}


@pytest.mark.fault(65)
def test_judged_file_that_changes_later_is_drift_and_changes_no_verdict(own: Repository) -> None:
    write(own, "--accuracy=0.96", expect=GOOD)
    assert own.run("apply", "--wait").code == 0
    assert own.run("plan", "--format", "json").json["drift"] == []
    (metrics,) = (own.home / "gcs/models").rglob("metrics.json")
    metrics.write_text('{"accuracy": 0.1}')
    plan = own.run("plan", "--format", "json").json
    assert [(drift["kind"], drift["detail"]) for drift in plan["drift"]] == [
        ("modified", "model/metrics.json, which its metrics were read from, changed since; the verdict stays")
    ]
    assert planned(own) == ("none", "succeeded")


@pytest.mark.fault(64)
@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({"metrics.json": '{"loss": 1}'}, "model/metrics.json lacks it"),
        ({"metrics.json": '{"accuracy": NaN}'}, "model/metrics.json has no finite number"),
        ({"metrics.json": '{"accuracy": "0.99"}'}, "model/metrics.json has no finite number"),
        ({"metrics.json": "accuracy: 1"}, "model/metrics.json is no JSON object"),
        ({"model.bin": "x"}, "the run wrote no metrics file"),
        (
            {"metrics.json": '{"accuracy": 0.99}', "eval.json": '{"accuracy": 0.98}'},
            "model/eval.json and model/metrics.json have different values",
        ),
    ],
    ids=["not named", "NaN", "text", "no JSON", "no file", "two files"],
)
def test_metric_without_a_usable_value_is_a_miss_with_its_reason(
    own: Repository, files: dict[str, str], why: str
) -> None:
    write(own, *(f"--write={name}:{content}" for name, content in files.items()), expect=GOOD)
    done = own.run("apply", "--wait")
    assert done.code == 1
    assert f"succeeded; accuracy is missing ({why})" in done.err
    assert planned(own) == ("none", "expectation-missed")


def test_commits_show_the_verdict_of_their_own_expectation(story: Story) -> None:
    repository = story.repository
    repository.write("trainer/task.py", TRAINER)
    settings(repository, "outputs: own")
    write(repository, "--accuracy=0.90", expect=GOOD)
    first = story.push("a model")
    assert story.run("apply", "--wait").code == 1
    assert story.shown(first) == {ALL: "failure", JOB: "failure", "reconciler drift": "success"}
    assert story.said(first, JOB).startswith("succeeded, accuracy 0.9, expected at least 0.95 · run ")
    assert story.said(first, ALL).startswith("below expectations: census · 0 of 1 succeeded")

    # Another commit, of which nothing is its own, isn't blamed.
    words = story.push_words("words")
    assert story.run("apply").code == 0
    assert story.shown(words)[ALL] == "success"
    assert "earlier: 1 below expectations" in story.said(words, ALL)

    write(repository, "--accuracy=0.90", expect="{accuracy: {min: 0.85}}")
    lower = story.push("a lower bound")
    assert story.run("apply", "--wait").code == 0
    assert story.shown(lower) == {ALL: "success", JOB: "success", "reconciler drift": "success"}
    assert "accuracy 0.9 (at least 0.85)" in story.said(lower, JOB)
    assert story.run("report").code == 0
    assert story.shown(first)[ALL] == "failure", "it keeps its own"
    assert story.said(first, JOB).startswith("succeeded, accuracy 0.9, expected at least 0.95 · run ")
    assert len(json.loads(repository.run("status", "--all", "--format", "json").out)["jobs"]) == 1


def test_unread_metrics_fail_apply_and_report_until_they_are_read(story: Story, tmp_path: Path) -> None:
    repository = story.repository
    repository.write("trainer/task.py", TRAINER)
    settings(repository, "outputs: own")
    write(repository, "--accuracy=0.96", expect=GOOD)
    sha = story.push("a model")
    assert story.run("apply").code == 0
    until(lambda: [*repository.states().values()] == ["SUCCEEDED"])
    name = job_of(repository)["jobName"]
    bucket, away = repository.home / "gcs/models", tmp_path / "away"
    bucket.rename(away)

    reported = story.run("report")
    assert reported.code == 1
    assert f"{name}'s metrics can't be read: " in reported.err
    assert story.shown(sha) == {ALL: "pending", JOB: "pending", "reconciler drift": "success"}
    assert story.said(sha, JOB).startswith("succeeded, not judged yet: its metrics can't be read: ")
    summary = tmp_path / "summary.md"
    summary.touch()
    applied = story.run("apply", GITHUB_STEP_SUMMARY=str(summary))
    assert applied.code == 1
    assert f"{name}: succeeded; its metrics can't be read: " in applied.err
    assert "| SUCCEEDED | succeeded; its metrics can't be read: " in html.unescape(summary.read_text())
    assert planned(repository) == ("none", "metrics-unread")
    assert story.run("apply", "--wait").code == 1

    away.rename(bucket)
    assert story.run("report").code == 0
    assert story.shown(sha) == {ALL: "success", JOB: "success", "reconciler drift": "success"}
    assert "accuracy 0.96 (at least 0.95)" in story.said(sha, JOB)
    assert story.run("apply").code == 0
    assert planned(repository) == ("none", "succeeded")
    # What is recorded needs no file any more.
    bucket.rename(away)
    assert story.run("report").code == 0
    assert story.shown(sha)[ALL] == "success"


def test_status_shows_expected_metric_of_each_run_and_how_it_compares(own: Repository) -> None:
    for accuracy in ("0.60", "0.96"):
        write(own, f"--accuracy={accuracy}", expect=GOOD)
        own.run("apply", "--wait")
    table = own.run("status").out
    assert "accuracy 0.96 (at least 0.95)" in table
    history = own.run("status", "--all", "census", "--wide").out
    assert "accuracy 0.96 (at least 0.95)" in history
    assert "accuracy 0.6, expected at least 0.95" in history
