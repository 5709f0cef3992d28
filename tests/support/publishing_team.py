"""A team whose job publishes its model: its words are the content of the manifest."""

from __future__ import annotations

import json

import pytest

from reconciler.training_service.state.records import JobState
from tests.support.publishing import put
from tests.support.team import Clone, Team

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
FILE = "deep/model.txt"
"""The only file of each model."""
LOG = "log.txt"
"""File of each run that isn't published."""


class PublishingTeam:
    """A team whose job publishes its model."""

    def __init__(self, team: Team) -> None:
        self.team = team
        settings = team.author.root / "reconciler.yaml"
        settings.write_text(f"outputs: own\n{settings.read_text()}")
        for bucket in ("risk-models", "runs"):
            (team.service.home / "gcs" / bucket).mkdir(parents=True, exist_ok=True)

    def write(self, content: str) -> None:
        """Write the job's manifest with this content."""
        self.team.author.write("jobs/census.yaml", MANIFEST.format(content=content))

    def push(self, content: str) -> str:
        """Commit and push the job with this content; return the commit."""
        self.write(content)
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
            put(self.team.service.home, f"{folder}/model/{FILE}", content.encode())
            put(self.team.service.home, f"{folder}/{LOG}", b"not published")
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
        """The content of `current.json`; empty without it."""
        path = self.team.service.home / "gcs/risk-models/census/current.json"
        return json.loads(path.read_text()) if path.exists() else {}

    @property
    def model(self) -> str:
        """The words of the model in place."""
        folder = self.current["folder"].removeprefix("gs://")
        return (self.team.service.home / "gcs" / folder / FILE).read_text()

    def trained(self, content: str) -> str:
        """Push a content, train it, and publish its model; return the commit."""
        sha = self.push(content)
        self.apply()
        self.train()
        self.apply()
        assert self.model == content
        return sha


@pytest.fixture(name="publishing")
def publishing_team(team: Team) -> PublishingTeam:
    return PublishingTeam(team)
