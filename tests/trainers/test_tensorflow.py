"""Trainers that know Google's storage alone, in real jobs: for `make trainers`, not for `make test`."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from repository import Repository

from reconciler.base.state_dir import prepare_home
from reconciler.base.state_dir_trust import home_of

HERE = Path(__file__).resolve().parent
FETCHED = HERE.parents[1] / ".venv" / "tensorflow"
DEADLINE = 900.0  # with the installation of TensorFlow
IMAGE = "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-17.py310:latest"
SAVED_MODEL = ("saved_model.pb", "variables/variables.index", "variables/variables.data-00000-of-00001")


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """A repository with the trainers; what they need comes from the wheels that `make trainers` fetched."""
    monkeypatch.setenv("PIP_FIND_LINKS", str(FETCHED / "wheels"))
    (FETCHED / "environments").mkdir(parents=True, exist_ok=True)
    made = Repository(tmp_path / "repository", FETCHED / "environments")
    made.has_jobs = True
    shutil.copytree(HERE / "tensorflow", made.root / "trainer", dirs_exist_ok=True)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    requirements = ["tensorflow-cpu==2.*", "tensorboard"]
    images = {IMAGE: {"python": version, "requirements": requirements}}
    made.write("reconciler.yaml", json.dumps({"images": images}))
    yield made
    made.stop()


def custom_job(repository: Repository, module: str, workers: int = 0) -> None:
    package = {"executorImageUri": IMAGE, "pythonModule": module, "args": ["--data=gs://census-data"]}
    pools = [
        {"machineSpec": {"machineType": "n1-standard-4"}, "replicaCount": count, "pythonPackageSpec": package}
        for count in (1, workers)
        if count
    ]
    output = {"outputUriPrefix": f"gs://models/{module}"}
    spec = {"workerPoolSpecs": pools, "baseOutputDirectory": output}
    write(repository, "aiplatform.googleapis.com/v1", "CustomJob", module, spec)


def write(repository: Repository, api: str, kind: str, name: str, spec: dict[str, Any]) -> None:
    manifest = {"apiVersion": api, "kind": kind, "metadata": {"name": name.replace("_", "-")}, "spec": spec}
    manifest["package"] = {"path": "../trainer"}
    repository.write(f"jobs/{name}.yaml", yaml.safe_dump(manifest))


def applied(repository: Repository, name: str) -> str:
    """The job's log, after it succeeded."""
    process = repository.start("apply", "--wait", "--format", "json")
    out, err = process.communicate(timeout=DEADLINE)
    log = repository.run("logs", name).out
    assert process.returncode == 0, out + err + log
    return log


def names(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def test_keras_reads_and_writes_gs_alone(trained: Repository) -> None:
    draw = random.Random(1)
    pairs = [(draw.random() * 2, draw.random() * 2) for _ in range(200)]
    prepare_home(home_of(trained.root, os.environ), os.environ)
    trained.write(".reconciler/gcs/census-data/table.csv", "".join(f"{x},{y},{x + y}\n" for x, y in pairs))
    custom_job(trained, "keras_census")
    log = applied(trained, "keras-census")
    assert "with TensorFlow 2." in log
    made = names(trained.home / "gcs" / "models" / "keras_census")
    assert {"model/model.keras", *(f"model/saved/{name}" for name in SAVED_MODEL)} <= made
    assert {"checkpoints/checkpoint", "checkpoints/ckpt-1.index"} <= made
    assert any(name.startswith("logs/train/events.out.tfevents") for name in made)


def test_two_replicas_reach_each_other_and_gs(trained: Repository) -> None:
    custom_job(trained, "together", workers=1)
    log = applied(trained, "together")
    assert log.count("the total of 2 is 9.0") == 2
    made = names(trained.home / "gcs" / "models" / "together" / "checkpoints")
    assert {"total-1.index", "worker-0/total-1.index"} <= made


@pytest.mark.skipif(not [*FETCHED.glob("wheels/tensorflow-1.15.*")], reason="TensorFlow 1 needs a Python 3.7")
def test_an_estimator_of_tensorflow_1_writes_to_its_job_dir(trained: Repository) -> None:
    spec = {
        "trainingInput": {
            "scaleTier": "BASIC",
            "region": "us-central1",
            "runtimeVersion": "1.15",
            "pythonVersion": "3.7",
            "pythonModule": "estimator",
            "jobDir": "gs://models/estimator",
        }
    }
    write(trained, "ml.googleapis.com/v1", "Job", "estimator", spec)
    assert "with TensorFlow 1.15" in applied(trained, "estimator")
    made = names(trained.home / "gcs" / "models" / "estimator")
    assert "checkpoint" in made
    assert any(name.endswith("/saved_model.pb") for name in made)
