"""Models that apply published: fetched whole, and verified by the repository, on both engines' code."""

from __future__ import annotations

from pathlib import Path

import pytest

from reconciler.training_service.state.records import JobState
from tests.support.publishing import put
from tests.support.team import Team

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


def committed(team: Team, content: str) -> str:
    team.author.write("jobs/census.yaml", MANIFEST.format(content=content))
    sha = team.commit()
    team.send()
    return sha


def trained(team: Team, content: str) -> str:
    """Commit a content, have its run write a model with its words, and apply; return the commit."""
    sha = committed(team, content)
    assert team.run(team.author, "apply").code == 0
    store = team.service.store
    live = [job for job in team.service.jobs(*team.place) if job["state"] != "JOB_STATE_SUCCEEDED"]
    for job in live:
        folder = job["jobSpec"]["baseOutputDirectory"]["outputUriPrefix"]
        put(team.service.home, f"{folder}/model/deep/model.txt", content.encode())
        put(team.service.home, f"{folder}/log.txt", b"not published")
    for record in store.unfinished():
        store.move(record.id, JobState.RUNNING, only_from={JobState.QUEUED}, at=store.now())
        store.move(record.id, JobState.SUCCEEDED, only_from={JobState.RUNNING}, at=store.now())
    assert team.run(team.author, "apply").code == 0
    return sha


def fetched(team: Team, folder: Path, *arguments: str) -> dict[str, bytes]:
    """Fetch into a folder; return its files by their names."""
    done = team.run(team.author, "fetch", "census", str(folder), *arguments)
    assert done.code == 0, done.err
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_published_model_is_fetched_and_verified_after_a_revert_too(team: Team, tmp_path: Path) -> None:
    settings = team.author.root / "reconciler.yaml"
    settings.write_text(f"outputs: own\n{settings.read_text()}")
    for bucket in ("risk-models", "runs"):
        (team.service.home / "gcs" / bucket).mkdir(parents=True)
    first = trained(team, "good")
    name = team.run(team.author, "show", "census", "--format", "json").json["jobName"]
    assert fetched(team, tmp_path / "first") == {"deep/model.txt": b"good"}
    trained(team, "bad")
    assert fetched(team, tmp_path / "second") == {"deep/model.txt": b"bad"}
    whole = {"model/deep/model.txt": b"good", "log.txt": b"not published"}
    assert fetched(team, tmp_path / "run", "--run", name) == whole

    reverting = committed(team, "good")
    assert team.run(team.author, "apply").code == 0
    assert fetched(team, tmp_path / "third") == {"deep/model.txt": b"good"}
    done = team.run(team.author, "verify", "census")
    assert done.code == 0, done.out + done.err
    assert f"✓ its name is that of census at commit {reverting[:12]}" in done.out
    assert first != reverting
    put(team.service.home, f"gs://risk-models/census/{name}/deep/model.txt", b"evil")
    changed = team.run(team.author, "verify", "gs://risk-models/census/current.json")
    assert changed.code == 1
    assert "✗ deep/model.txt has another size or checksum than manifest.json says" in changed.out
    refused = team.run(team.author, "fetch", "census", str(tmp_path / "fourth"))
    assert refused.code == 1
    assert "deep/model.txt isn't what its size and checksum say" in refused.err
    assert not (tmp_path / "fourth").exists()
