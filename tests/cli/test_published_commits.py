"""Publications of a team's commits: the model of the newest commit is in its place, on both engines' code."""

from __future__ import annotations

import json

import pytest

from reconciler.training_service.state.records import JobState
from tests.support.publishing import put
from tests.support.team import Clone, Team

pytestmark = pytest.mark.slow

MANIFEST = """
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: census}}
publish: {{to: gs://risk-models/census}}
package: {{path: ../trainer}}
spec:
  baseOutputDirectory: {{outputUriPrefix: gs://runs/census}}
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      pythonPackageSpec:
        executorImageUri: us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.1-6:latest
        pythonModule: task
        args: ["{content}"]
"""


class Publishing:
    """A team whose job publishes its model."""

    def __init__(self, team: Team) -> None:
        self.team = team
        settings = team.author.root / "reconciler.yaml"
        settings.write_text(f"outputs: own\n{settings.read_text()}")
        for bucket in ("risk-models", "runs"):
            (team.service.home / "gcs" / bucket).mkdir(parents=True, exist_ok=True)

    def push(self, content: str) -> str:
        """Commit and push the job with this content."""
        self.team.author.write("jobs/census.yaml", MANIFEST.format(content=content))
        sha = self.team.commit()
        self.team.send()
        return sha

    def train(self) -> None:
        """Have every live run write its model, whose words are its content, and succeed."""
        store = self.team.service.store
        steps = (JobState.QUEUED, JobState.RUNNING), (JobState.RUNNING, JobState.SUCCEEDED)
        for job in self.team.service.jobs(*self.team.place):
            if job["state"] == "JOB_STATE_SUCCEEDED":
                continue
            folder = job["jobSpec"]["baseOutputDirectory"]["outputUriPrefix"]
            (content,) = job["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]["args"]
            put(self.team.service.home, f"{folder}/model/model.txt", content.encode())
        for record in store.unfinished():
            for before, after in steps:
                store.move(record.id, after, only_from={before}, at=store.now())

    def apply(self, clone: Clone | None = None, code: int = 0, *arguments: str) -> str:
        """Apply a clone, by default the author's; return what is printed."""
        done = self.team.run(clone or self.team.author, "apply", *arguments)
        assert done.code == code, done.out + done.err
        return done.out + done.err

    @property
    def context(self) -> str:
        """The context of the job's status."""
        return f"reconciler/{'prod' if self.team.is_cloud else 'local'}/census"

    @property
    def current(self) -> dict[str, str]:
        path = self.team.service.home / "gcs/risk-models/census/current.json"
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def model(self) -> str:
        """The words of the model in place."""
        folder = self.current["folder"].removeprefix("gs://")
        return (self.team.service.home / "gcs" / folder / "model.txt").read_text()

    def trained(self, content: str) -> str:
        """Push a content, train it, and publish its model."""
        sha = self.push(content)
        self.apply()
        self.train()
        self.apply()
        assert self.model == content
        return sha


@pytest.fixture
def publishing(team: Team) -> Publishing:
    return Publishing(team)


def test_revert_puts_earlier_model_in_its_place_and_starts_no_run(publishing: Publishing) -> None:
    team = publishing.team
    first = publishing.push("good")
    publishing.apply()
    assert team.said(first, publishing.context)[0] == "pending"
    publishing.train()
    assert team.run(team.author, "report").code == 0
    assert team.said(first, publishing.context)[1].startswith("succeeded, not yet published")
    assert publishing.current == {}, "a report publishes nothing"
    publishing.apply()
    assert (publishing.model, publishing.current["commit"]) == ("good", first)
    assert [team.said(first, name)[0] for name in ("reconciler", publishing.context)] == [
        "success",
        "success",
    ]
    second = publishing.trained("bad")
    assert publishing.current["commit"] == second
    runs = len(team.runs())

    third = publishing.push("good")
    planned = team.run(team.author, "plan", "--detailed-exitcode")
    assert (planned.code, "^ publish census_" in planned.out) == (2, True), planned.out
    publishing.apply()
    assert (publishing.model, publishing.current["commit"]) == ("good", third)
    assert len(team.runs()) == runs
    assert team.said(third)[0] == "success"
    assert "Nothing to do: 1 job is up to date." in team.run(team.author, "plan").out


@pytest.mark.fault(71)
def test_older_checkout_moves_no_model_back(publishing: Publishing) -> None:
    team = publishing.team
    publishing.trained("good")
    laptop = team.clone("laptop")
    second = publishing.trained("bad")
    blocked = team.run(laptop, "plan").out
    assert f"the newer commit {second[:7]} published the model in place: pull" in blocked
    for options in ([], ["--allow-older"]):
        assert team.run(laptop, "apply", *options).code in (1, 4)
        assert (publishing.model, publishing.current["commit"]) == ("bad", second)
    laptop.git("pull", "-q")
    assert team.run(laptop, "apply").code == 0
    assert publishing.model == "bad"


@pytest.mark.fault(71)
def test_model_that_is_brought_back_before_its_successor_is_published_is_recorded_with_newest_commit(
    publishing: Publishing,
) -> None:
    team = publishing.team
    publishing.trained("good")
    publishing.push("bad")
    publishing.apply()
    between = team.clone("between")
    third = publishing.push("good")
    publishing.apply()
    assert (publishing.model, publishing.current["commit"]) == ("good", third)
    # The apply of the commit between waits for its run, and comes too late.
    publishing.train()
    late = team.run(between, "apply")
    assert late.code in (1, 4), late.out + late.err
    assert (publishing.model, publishing.current["commit"]) == ("good", third)


def test_run_that_succeeds_while_apply_waits_is_published(publishing: Publishing) -> None:
    publishing.push("good")
    publishing.apply()
    publishing.train()
    out = publishing.apply(None, 0, "--wait")
    assert "applied  publish census_" in out
    assert publishing.model == "good"


def test_files_with_changes_are_published_on_one_machine_alone(
    publishing: Publishing,
) -> None:
    team = publishing.team
    publishing.trained("good")
    team.author.write("jobs/census.yaml", MANIFEST.format(content="tried"))
    publishing.apply()
    publishing.train()
    done = team.run(team.author, "apply")
    if team.is_cloud:
        assert done.code == 1
        assert "jobs/census.yaml differs from commit" in done.out
        assert publishing.model == "good"
    else:
        assert done.code == 0
        assert (publishing.model, publishing.current["commit"]) == ("tried", "")
