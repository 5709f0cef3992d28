"""The same trainer through the command: by an executor image, in a container and in an environment."""

from __future__ import annotations

import json
import shutil
import textwrap
from pathlib import Path

import pytest

from reconciler.training_service.runner.containers import ContainerEngine
from tests.support.repository import IMAGE, Repository
from tests.support.training_service import trainers
from tests.support.training_service.staged_code import PYTHON

ROOT = Path(__file__).resolve().parents[3]

MANIFEST = """
    apiVersion: aiplatform.googleapis.com/v1
    kind: CustomJob
    metadata:
      name: {name}
    package: {{path: ../iris_bayes{package}}}
    spec:
      workerPoolSpecs:
        - machineSpec: {{machineType: n1-standard-4}}
          replicaCount: 1
          {task}
      baseOutputDirectory: {{outputUriPrefix: gs://models/{name}}}
"""
PACKAGE = '{executorImageUri: %s, pythonModule: bayes.task, args: ["--smoothing=0.1"]}'
CONTAINER = '{imageUri: %s, args: ["--smoothing=0.1"]}'


def manifest(name: str, image: str, *, is_container: bool = True) -> str:
    """Return a manifest of the trainer in this image."""
    package = ", module: bayes.task" if is_container else ""
    task = f"containerSpec: {CONTAINER % image}" if is_container else f"pythonPackageSpec: {PACKAGE % image}"
    return textwrap.dedent(MANIFEST).format(name=name, package=package, task=task)


@pytest.fixture
def iris(repository: Repository) -> Repository:
    """Return a repository with the trainer of jobs/iris-bayes.yaml."""
    shutil.copytree(ROOT / "jobs/trainers/iris_bayes", repository.root / "iris_bayes")
    repository.has_jobs = True
    return repository


def model(repository: Repository, name: str) -> bytes:
    return (repository.home / "gcs/models" / name / "model/model.json").read_bytes()


def log(repository: Repository, name: str) -> str:
    return repository.run("logs", name).out


def test_an_executor_image_a_container_and_an_environment_give_the_same_model(
    iris: Repository, engine: ContainerEngine, python_image: str
) -> None:
    iris.write("jobs/executor.yaml", manifest("executor", IMAGE, is_container=False))
    iris.write("jobs/container.yaml", manifest("container", python_image))
    iris.write("jobs/environment.yaml", manifest("environment", PYTHON))
    applied = iris.run("apply", "--wait")
    assert applied.code == 0, applied.out + applied.err
    assert model(iris, "executor") == model(iris, "container") == model(iris, "environment")
    assert len(json.loads(model(iris, "executor"))) == 3
    assert "runs in an environment" in log(iris, "environment")
    assert "environment" not in log(iris, "container")


def test_code_that_nothing_here_runs_is_refused_and_trains_once_its_image_has_an_entry(
    iris: Repository, tmp_path: Path
) -> None:
    (tmp_path / "programs").mkdir()
    environ = {"PATH": str(tmp_path / "programs")}
    iris.write("jobs/refused.yaml", manifest("refused", "team/base:1"))
    refused = iris.run("apply", "--wait", **environ)
    assert refused.code == 1
    assert "No container engine works on this machine to run the image team/base:1" in refused.out
    settings = (iris.root / "reconciler.yaml").read_text()
    iris.write(
        "reconciler.yaml", f'{settings}  team/base: {{python: "{trainers.OWN_PYTHON}", requirements: []}}\n'
    )
    applied = iris.run("apply", "--wait", **environ)
    assert applied.code == 0, applied.out + applied.err
    assert len(json.loads(model(iris, "refused"))) == 3
