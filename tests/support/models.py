"""A repository whose job writes a model and its metrics to the folders that the service gives it."""

from __future__ import annotations

import json
import textwrap
from typing import Any

from tests.support.repository import IMAGE, Repository

TRAINER = """
import os, pathlib, sys

def folder(name):
    path = pathlib.Path(os.environ[name].replace("gs://", "/gcs/"))
    path.mkdir(parents=True, exist_ok=True)
    return path

checkpoint = folder("AIP_CHECKPOINT_DIR") / "checkpoint"
if "--resume" in sys.argv:
    print("resumes:", checkpoint.read_text() if checkpoint.exists() else "nothing", flush=True)
    checkpoint.write_text(str(sys.argv[1:]))
    sys.exit(1)
for given in (arg.removeprefix("--write=") for arg in sys.argv if arg.startswith("--write=")):
    name, _, content = given.partition(":")
    (folder("AIP_MODEL_DIR") / name).write_text(content)
if any(arg.startswith("--write=") for arg in sys.argv):
    sys.exit()
accuracy = next(arg.partition("=")[2] for arg in sys.argv if arg.startswith("--accuracy="))
(folder("AIP_MODEL_DIR") / "metrics.json").write_text('{"accuracy": %s}' % accuracy)
"""
HEAD = """
    apiVersion: aiplatform.googleapis.com/v1
    kind: {kind}
    metadata: {{name: {name}}}
    package: {{path: ../trainer}}
    reconcile: {{attempts: {attempts}}}
    spec:
"""
JOB = """
    workerPoolSpecs:
      - machineSpec: {{machineType: {machine}}}
        replicaCount: 1
        pythonPackageSpec:
          executorImageUri: {image}
          pythonModule: task
          args: {args}
"""
FOLDER = "    baseOutputDirectory: {outputUriPrefix: gs://models/census}\n"
STUDY = """
      maxTrialCount: 1
      parallelTrialCount: 1
      studySpec:
        metrics: [{metricId: accuracy, goal: MAXIMIZE}]
        parameters: [{parameterId: lr, doubleValueSpec: {minValue: 0.1, maxValue: 1}}]
"""


def settings(repository: Repository, lines: str) -> None:
    """Add lines to reconciler.yaml."""
    file = repository.root / "reconciler.yaml"
    file.write_text(f"{lines}\n{file.read_text()}")


def write(
    repository: Repository,
    *args: str,
    tuning: bool = False,
    attempts: int = 1,
    folder: bool = True,
    machine: str = "n1-standard-4",
    expect: str = "",
    publish: str = "",
    name: str = "census",
) -> None:
    """Write the job's manifest; `expect` and `publish` are YAML, such as "{accuracy: {min: 0.9}}"."""
    kind = "HyperparameterTuningJob" if tuning else "CustomJob"
    job = (
        textwrap.dedent(JOB).format(image=IMAGE, machine=machine, args=json.dumps([*args]))
        + FOLDER.strip(" ") * folder
    )
    spec = textwrap.indent(job, "  ")
    if tuning:
        trial = "  trialJobSpec:\n" + textwrap.indent(spec, "  ")
        spec = textwrap.indent(textwrap.dedent(STUDY), "  ") + trial
    head = textwrap.dedent(HEAD).format(kind=kind, attempts=attempts, name=name)
    if expect:
        head = head.replace("spec:", f"expect: {expect}\nspec:")
    if publish:
        head = head.replace("spec:", f"publish: {publish}\nspec:")
    repository.write(f"jobs/{name}.yaml", head + spec)
    repository.has_jobs = True


def job_of(repository: Repository) -> Any:
    """Return what `show` has of the desired run."""
    return repository.run("show", "census", "--format", "json").json


def accuracies(repository: Repository) -> dict[str, float]:
    """Return the accuracy in each metrics file of the bucket, by its path."""
    bucket = repository.home / "gcs/models"
    return {
        file.relative_to(bucket).as_posix(): json.loads(file.read_text())["accuracy"]
        for file in bucket.rglob("metrics.json")
    }
