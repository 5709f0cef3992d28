"""Warnings about output folders that runs share."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from reconciler.base.diagnostics import Problem
from reconciler.manifests.places import placed
from reconciler.manifests.settings import Outputs, load_config
from reconciler.manifests.validate import validate
from reconciler.operations.folder_warnings import folder_warnings

VERTEX = """\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: {name}}}
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      containerSpec:
        imageUri: docker.io/library/python@sha256:{digest}
        args: ["--epochs=3", "{arg}"]
        env: [{{name: MODEL, value: "{variable}"}}]
{folder}
"""
FOLDER = "  baseOutputDirectory: {outputUriPrefix: gs://models/census/}"
ML = """\
apiVersion: ml.googleapis.com/v1
kind: Job
metadata: {name: old}
spec:
  trainingInput:
    scaleTier: BASIC
    region: us-central1
    runtimeVersion: "2.11"
    pythonVersion: "3.7"
    pythonModule: trainer.task
    packageUris: [gs://models/trainer.tar.gz]
    args: [--out, gs://models/census/out]
    jobDir: gs://models/census
"""


def job(root: Path, name: str, arg: str = "-v", variable: str = "none", folder: str = FOLDER) -> None:
    (root / "jobs").mkdir(exist_ok=True)
    text = VERTEX.format(name=name, digest="0" * 64, arg=arg, variable=variable, folder=folder)
    (root / f"jobs/{name}.yaml").write_text(text)


def warnings(root: Path, outputs: Outputs | None) -> list[Problem]:
    environment = replace(load_config(root).environment(None), outputs=outputs)
    found = validate(root, [root / "jobs"])
    assert found.manifests
    return placed(root, folder_warnings(found.manifests, environment))


def places(problems: list[Problem]) -> list[tuple[str, int, int]]:
    return [(problem.path, problem.line, problem.column) for problem in problems]


def test_repository_gets_one_warning_when_jobs_have_folders_and_setting_is_missing(tmp_path: Path) -> None:
    job(tmp_path, "census")
    job(tmp_path, "fraud", folder=FOLDER.replace("census", "fraud"))
    (warning,) = warnings(tmp_path, None)
    assert (warning.path, warning.level) == ("reconciler.yaml", "warning")
    assert "after a revert" in warning.message
    assert 'write "outputs: own"' in warning.hint


@pytest.mark.parametrize("outputs", ["own", "shared"])
def test_written_setting_is_an_answer(tmp_path: Path, outputs: Outputs) -> None:
    job(tmp_path, "census", arg="gs://elsewhere/census/x")
    assert warnings(tmp_path, outputs) == []


def test_jobs_without_folders_get_no_warning(tmp_path: Path) -> None:
    job(tmp_path, "census", folder="")
    assert warnings(tmp_path, None) == []


def test_second_manifest_with_same_folder_gets_warning_unless_outputs_are_own(tmp_path: Path) -> None:
    job(tmp_path, "census")
    job(tmp_path, "fraud", folder=FOLDER.replace("census/", "census"))
    (warning,) = warnings(tmp_path, "shared")
    assert places([warning]) == [("jobs/fraud.yaml", 12, 42)]
    assert warning.pointer == "/spec/baseOutputDirectory/outputUriPrefix"
    assert warning.message.startswith('"census" and "fraud" write to this folder')
    assert warnings(tmp_path, "own") == []


def test_argument_and_variable_below_written_folder_stay_shared_when_outputs_are_own(tmp_path: Path) -> None:
    job(tmp_path, "census", arg="--out=gs://models/census/out", variable="gs://models/census")
    job(tmp_path, "fraud", arg="gs://models/census2", folder=FOLDER)
    job(tmp_path, "mounted", arg="--out=/gcs/models/census/out", folder=FOLDER)
    (tmp_path / "jobs/old.yaml").write_text(ML)
    found = warnings(tmp_path, "own")
    assert [(problem.path, problem.pointer.rpartition("/spec/")[2]) for problem in found] == [
        ("jobs/census.yaml", "workerPoolSpecs/0/containerSpec/args/1"),
        ("jobs/census.yaml", "workerPoolSpecs/0/containerSpec/env/0/value"),
        ("jobs/mounted.yaml", "workerPoolSpecs/0/containerSpec/args/1"),
        ("jobs/old.yaml", "trainingInput/args/1"),
    ]
    assert [problem.line for problem in found] == [10, 11, 10, 12]
    assert "AIP_MODEL_DIR" in found[0].hint
    assert "--job-dir" in found[3].hint
