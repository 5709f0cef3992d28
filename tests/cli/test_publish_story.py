"""The model that a repository asks for is in its place: trained, worsened, reverted, and refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import urllib3

from tests.support.commit_story import Story
from tests.support.models import TRAINER, settings, write
from tests.support.publishing import path_of
from tests.support.repository import Repository
from tests.support.waiting import until

pytestmark = pytest.mark.slow

GOOD, BAD = "--accuracy=0.95", "--accuracy=0.60"
TO = "gs://risk-models/census"
SETTINGS = "outputs: own\nenvironments: {local: {defaults: {publish: gs://risk-models}}}"
ALL, JOB = "reconciler", "reconciler/local/census"


@pytest.fixture
def publishing(models: Repository) -> Repository:
    """Return a repository in git whose runs have folders of their own, and whose models have a place."""
    settings(models, SETTINGS)
    models.git("init", "-q", "-b", "main")
    return models


def commit(repository: Repository, *args: str, **options: Any) -> str:
    """Write the job's manifest and commit everything; return the commit."""
    if args:
        write(repository, *args, **{"publish": "{}", **options})
    repository.git("add", "-A")
    repository.git("commit", "-q", "--allow-empty", "-m", " ".join(args) or "words")
    return repository.git("rev-parse", "HEAD")


def current(repository: Repository, to: str = TO) -> dict[str, Any]:
    """Return what is in the place; {} for nothing."""
    path = path_of(repository.home, f"{to}/current.json")
    told: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return told


def accuracy(repository: Repository, to: str = TO) -> float:
    """Return the accuracy of the model in the place, as its reader finds it."""
    folder = current(repository, to)["folder"]
    told = json.loads(path_of(repository.home, f"{folder}/metrics.json").read_text())
    return float(told["accuracy"])


def publication(repository: Repository, *arguments: str) -> dict[str, Any]:
    """Return the publication in the plan."""
    changes = repository.run("plan", "--format", "json", *arguments).json["changes"]
    (change,) = [change for change in changes if change["action"] in ("publish", "blocked")]
    return dict(change)


def trained(repository: Repository, *contents: str) -> list[str]:
    """Commit contents one after the other, train and publish each; return the names of their runs."""
    names = []
    for content in contents:
        commit(repository, content)
        done = repository.run("apply", "--wait")
        assert done.code == 0, done.out + done.err
        names.append(current(repository)["jobName"])
    return names


def test_revert_puts_the_first_model_back_within_one_apply_and_trains_nothing(publishing: Repository) -> None:
    good, bad = trained(publishing, GOOD, BAD)
    assert accuracy(publishing) == 0.60
    assert publishing.run("plan", "--detailed-exitcode").code == 0
    publishing.git("revert", "--no-edit", "HEAD")
    sha = publishing.git("rev-parse", "HEAD")

    plan = publishing.run("plan")
    assert f"replaces {bad}" in plan.out
    assert "1 to publish" in plan.out
    assert publishing.run("plan", "--detailed-exitcode").code == 2
    told = publishing.run("plan", "--format", "json").json
    change = publication(publishing)
    assert (change["action"], change["jobName"], change["reasonCode"]) == ("publish", good, "publish")
    assert publishing.run("apply", "--plan-digest", "sha256:" + "0" * 64).code == 4
    assert accuracy(publishing) == 0.60
    done = publishing.run("apply", "--plan-digest", told["digest"])
    assert done.code == 0, done.out + done.err

    assert (accuracy(publishing), current(publishing)["commit"]) == (0.95, sha)
    assert {*publishing.states()} == {good, bad}, "nothing was submitted"
    again = publishing.run("apply", "--format", "json")
    assert again.code == 0
    assert publishing.run("plan", "--detailed-exitcode").code == 0


def test_apply_without_wait_publishes_at_the_next_apply(publishing: Repository) -> None:
    commit(publishing, GOOD)
    assert publishing.run("apply").code == 0
    until(lambda: [*publishing.states().values()] == ["SUCCEEDED"])
    assert current(publishing) == {}
    assert "^" in publishing.run("plan").out
    done = publishing.run("apply")
    assert (done.code, accuracy(publishing)) == (0, 0.95), done.out + done.err


@pytest.mark.parametrize("flags", [(), ("--allow-older",)])
def test_older_checkout_publishes_nothing_and_is_told_to_pull(
    publishing: Repository, flags: tuple[str, ...]
) -> None:
    trained(publishing, GOOD, BAD)
    newer = publishing.git("rev-parse", "HEAD")
    publishing.git("checkout", "-q", "HEAD~1")
    change = publication(publishing)
    assert (change["action"], change["reasonCode"]) == ("blocked", "published-by-newer")
    assert f"the newer commit {newer[:7]} published the model in place: pull" in publishing.run("plan").out
    done = publishing.run("apply", *flags)
    assert done.code == 1
    assert "pull" in done.out + done.err
    assert (accuracy(publishing), current(publishing)["commit"]) == (0.60, newer)


def test_shallow_clone_publishes_nothing_and_is_told_to_fetch(publishing: Repository) -> None:
    trained(publishing, GOOD, BAD)
    for content in (BAD, GOOD):
        commit(publishing, content)
    head = publishing.git("rev-parse", "HEAD")
    (publishing.root / ".git/shallow").write_text(f"{head}\n")
    change = publication(publishing)
    assert (change["action"], change["reasonCode"]) == ("blocked", "published-by-newer")
    assert "fetch the history" in publishing.run("plan").out
    assert publishing.run("apply").code == 1
    assert accuracy(publishing) == 0.60
    (publishing.root / ".git/shallow").unlink()
    assert publishing.run("apply").code == 0
    assert accuracy(publishing) == 0.95


def test_work_tree_with_changes_publishes_on_this_machine(publishing: Repository) -> None:
    trained(publishing, GOOD, BAD)
    publishing.git("checkout", "-q", "HEAD~1")
    write(publishing, "--accuracy=0.80", publish="{}")
    done = publishing.run("apply", "--wait")
    assert done.code == 0, done.out + done.err
    assert (accuracy(publishing), current(publishing)["commit"]) == (0.80, "")
    # A commit takes the place of what was tried out.
    publishing.git("checkout", "-q", "-f", "main")
    assert publishing.run("apply").code == 0
    assert accuracy(publishing) == 0.60


def test_second_environment_at_the_same_address_is_refused(publishing: Repository) -> None:
    file = publishing.root / "reconciler.yaml"
    file.write_text(
        file.read_text().replace(
            "environments: {", "environments: {staging: {engine: local, project: staging}, "
        )
    )
    commit(publishing, GOOD, publish=f"{{to: {TO}}}")
    assert publishing.run("apply", "--wait", "--env", "local").code == 0
    place = current(publishing)
    done = publishing.run("apply", "--wait", "--env", "staging")
    assert done.code == 1
    assert 'the environment "local" publishes to gs://risk-models/census' in done.out + done.err
    assert "defaults: {publish: gs://…}" in done.out + done.err
    assert current(publishing) == place


def test_renamed_job_takes_over_the_place(publishing: Repository) -> None:
    commit(publishing, GOOD, publish=f"{{to: {TO}}}")
    assert publishing.run("apply", "--wait").code == 0
    (publishing.root / "jobs/census.yaml").unlink()
    commit(publishing, BAD, publish=f"{{to: {TO}}}", name="census-two")
    assert publishing.run("apply").code == 0
    until(lambda: len([s for s in publishing.states().values() if s == "SUCCEEDED"]) == 2)
    assert "takes over from census" in publishing.run("plan").out
    assert publishing.run("apply").code == 0
    assert (accuracy(publishing), current(publishing)["baseName"]) == (0.60, "census-two")


def test_apply_of_some_manifests_publishes_their_models_alone(publishing: Repository) -> None:
    write(publishing, GOOD, publish="{}")
    commit(publishing, BAD, name="churn")
    assert publishing.run("apply").code == 0
    until(lambda: {*publishing.states().values()} == {"SUCCEEDED"})
    assert publishing.run("apply", "jobs/churn.yaml").code == 0
    assert (current(publishing), accuracy(publishing, "gs://risk-models/churn")) == ({}, 0.60)
    assert publishing.run("apply").code == 0
    assert accuracy(publishing) == 0.95


def test_publications_above_the_limit_are_left_and_the_rest_is_done(publishing: Repository) -> None:
    settings(publishing, "limits: {publications: 1}")
    write(publishing, GOOD, publish="{}")
    commit(publishing, BAD, name="churn")
    assert publishing.run("apply").code == 0
    until(lambda: {*publishing.states().values()} == {"SUCCEEDED"})
    commit(publishing, "--accuracy=0.70", name="third", publish="")
    done = publishing.run("apply")
    assert done.code == 4, done.out + done.err
    assert "limits: {publications: 2}" in done.out + done.err
    assert current(publishing) == {}
    assert any(name.startswith("third_") for name in publishing.states()), "the rest is done"
    assert publishing.run("apply", "jobs/census.yaml").code == 0
    assert accuracy(publishing) == 0.95


def test_suspended_job_is_not_published_and_what_is_in_the_place_stays(publishing: Repository) -> None:
    good, bad = trained(publishing, GOOD, BAD)
    publishing.git("revert", "--no-edit", "HEAD")
    manifest = publishing.root / "jobs/census.yaml"
    text = manifest.read_text()
    manifest.write_text(text.replace("attempts: 1", "attempts: 1, suspend: true"))
    commit(publishing)
    assert publishing.run("apply").code == 0
    assert current(publishing)["jobName"] == bad
    manifest.write_text(text)
    commit(publishing)
    assert publishing.run("apply").code == 0
    assert current(publishing)["jobName"] == good


def test_model_below_expectations_is_not_published(publishing: Repository) -> None:
    commit(publishing, GOOD, expect="{accuracy: {min: 0.9}}")
    assert publishing.run("apply", "--wait").code == 0
    commit(publishing, BAD, expect="{accuracy: {min: 0.9}}")
    assert publishing.run("apply", "--wait").code == 1
    assert accuracy(publishing) == 0.95
    # A published model that misses a tightened expectation stays.
    commit(publishing, GOOD, expect="{accuracy: {min: 0.99}}")
    assert publishing.run("apply", "--wait").code == 1
    assert accuracy(publishing) == 0.95


def test_manifest_that_goes_leaves_its_model_in_the_place(publishing: Repository) -> None:
    trained(publishing, GOOD)
    place = current(publishing)
    commit(publishing, BAD, name="churn", publish="")
    (publishing.root / "jobs/census.yaml").unlink()
    commit(publishing)
    assert publishing.run("apply", "--wait").code == 0
    assert current(publishing) == place


def test_revert_while_the_reverted_run_trains_keeps_the_good_model(publishing: Repository) -> None:
    (good,) = trained(publishing, GOOD)
    publishing.write("trainer/task.py", "import time\ntime.sleep(600)\n")
    commit(publishing, BAD)
    assert publishing.run("apply").code == 0
    publishing.git("revert", "--no-edit", "HEAD")
    done = publishing.run("apply")
    assert done.code == 0, done.out + done.err
    assert current(publishing)["jobName"] == good
    assert current(publishing)["commit"] == publishing.git("rev-parse", "HEAD")


def test_run_whose_record_is_gone_is_put_back(publishing: Repository) -> None:
    good, _ = trained(publishing, GOOD, BAD)
    resource = publishing.run("show", good, "--format", "json").json["resource"]
    service = publishing.service()
    headers = {"Authorization": f"Bearer {service['token']}"}
    assert urllib3.request("DELETE", f"{service['url']}/v1/{resource}", headers=headers).status == 200
    publishing.git("revert", "--no-edit", "HEAD")
    done = publishing.run("apply")
    assert (done.code, accuracy(publishing)) == (0, 0.95), done.out + done.err


def test_commit_is_pending_until_its_model_is_in_the_place(story: Story) -> None:
    repository = story.repository
    repository.write("trainer/task.py", TRAINER)
    settings(repository, SETTINGS)
    write(repository, GOOD, publish="{}")
    first = story.push("a model")
    assert story.run("apply").code == 0
    until(lambda: [*repository.states().values()] == ["SUCCEEDED"])
    assert story.run("report").code == 0
    assert (story.shown(first)[JOB], story.shown(first)[ALL]) == ("pending", "pending")
    assert story.said(first, JOB).startswith("succeeded, not yet published")
    assert story.run("apply").code == 0
    assert (story.shown(first)[JOB], story.shown(first)[ALL]) == ("success", "success")

    write(repository, BAD, publish="{}")
    worse = story.push("worse")
    assert story.run("apply", "--wait").code == 0
    assert story.shown(worse)[JOB] == "success"

    write(repository, GOOD, publish="{}")
    revert = story.push("revert")
    assert story.run("report").code == 0
    assert story.shown(revert).get(ALL) != "success"
    assert story.run("apply").code == 0
    assert story.shown(revert)[ALL] == "success"
    assert accuracy(repository) == 0.95

    # Another environment took the place: the commit that brought the model is told.
    path = path_of(repository.home, f"{TO}/current.json")
    path.write_text(path.read_text().replace('"environment": "local"', '"environment": "staging"'))
    story.push_words("words")
    assert story.run("apply", "--full").code == 1
    assert story.shown(revert)[JOB] == "error"
    said = 'succeeded, not published: the environment "staging" publishes to gs://risk-models/census'
    assert story.said(revert, JOB).startswith(said)
