"""What the plan says beside its changes: images that the embedded service will refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reconciler.base.errors import ExitCode
from reconciler.cli import run

VERTEX = """\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: {name}}}
package: {{path: ../code}}
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      pythonPackageSpec: {{executorImageUri: "{image}", pythonModule: task}}
"""
ML = """\
apiVersion: ml.googleapis.com/v1
kind: Job
metadata: {name: old}
package: {path: ../code}
spec:
  trainingInput:
    scaleTier: BASIC
    region: us-central1
    runtimeVersion: "1.4"
    pythonModule: task
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "repository"
    for folder in ("jobs", "code"):
        (root / folder).mkdir(parents=True)
    (root / "code/task.py").write_text("print(1)\n")
    monkeypatch.chdir(root)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return root


def write_job(root: Path, name: str, image: str) -> None:
    (root / f"jobs/{name}.yaml").write_text(VERTEX.format(name=name, image=image))


def test_plan_on_local_names_each_unknown_image_once_with_its_entry(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "reconciler.yaml").write_text(
        'images: {"acme.test/trainer:1": {python: "3.11", requirements: []}}\n'
    )
    write_job(root, "a", "acme.test/trainr:1")
    write_job(root, "b", "acme.test/trainr:1")
    write_job(root, "c", "acme.test/trainer:1")
    write_job(root, "d", "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest")
    assert run(["plan", "--format", "json"]) == ExitCode.DONE
    printed = capsys.readouterr()
    (problem,) = json.loads(printed.out)["problems"]
    assert problem["message"].endswith('know the image acme.test/trainr:1, which "a" has (and 1 more)')
    assert problem["hint"].startswith("correct its name to acme.test/trainer:1, or say under images")
    assert printed.err.count("trainr:1, which") == 1
    entry = problem["hint"].rpartition("what to run it as: ")[2]
    (root / "reconciler.yaml").write_text(
        f"images:\n  {entry}\n  acme.test/trainer: {{python: '3.11', requirements: []}}\n"
    )
    assert run(["plan", "--format", "json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["problems"] == []


def test_plan_on_local_names_an_unknown_runtime_version(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "jobs/old.yaml").write_text(ML)
    assert run(["plan"]) == ExitCode.DONE
    assert 'know the runtime version 1.4, which "old" has' in capsys.readouterr().err
