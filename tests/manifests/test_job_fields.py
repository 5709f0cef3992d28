"""Fields of jobs beside others, and names that stand for something else: their remedies are followed."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.diagnostics import WARNING, Finding, Problem
from reconciler.manifests.rules import domain_findings
from reconciler.manifests.settings import load_config
from reconciler.manifests.validate import validate
from tests.support.manifests import CUSTOM_JOB, ML_JOB, TUNING_JOB, write

TENSORBOARD = "projects/123/locations/us-central1/tensorboards/456"
ACCOUNT = "trainer@acme.iam.gserviceaccount.com"


def custom_job(**fields: Any) -> dict[str, Any]:
    value = copy.deepcopy(CUSTOM_JOB)
    del value["package"]
    value["spec"]["workerPoolSpecs"] = value["spec"]["workerPoolSpecs"][2:]
    value["spec"]["workerPoolSpecs"][0]["replicaCount"] = 1
    value["spec"] |= fields
    return value


def problems_of(root: Path, value: Any, filled: frozenset[str] = frozenset()) -> list[Problem]:
    write(root, "jobs/job.yaml", value)
    return list(validate(root, [root / "jobs"], filled).problems)


def findings_of(value: Any, filled: frozenset[str] = frozenset()) -> list[Finding]:
    return [*domain_findings(value, filled)]


def test_a_tensorboard_needs_a_service_account_of_the_manifest_or_the_environment(tmp_path: Path) -> None:
    value = custom_job(tensorboard=TENSORBOARD)
    assert problems_of(tmp_path, value) == []
    del value["spec"]["serviceAccount"]
    (problem,) = problems_of(tmp_path, value)
    assert problem.pointer == "/spec/tensorboard"
    assert problems_of(tmp_path, value, frozenset({"serviceAccount"})) == []
    name, _, account = problem.hint.removeprefix("add ").partition(": ")
    assert problems_of(tmp_path, custom_job(tensorboard=TENSORBOARD, **{name: account})) == []


def test_trials_need_a_service_account_for_their_tensorboard() -> None:
    value = copy.deepcopy(TUNING_JOB)
    value["spec"]["trialJobSpec"]["tensorboard"] = TENSORBOARD
    (finding,) = findings_of(value)
    assert finding.keys == ("spec", "trialJobSpec", "tensorboard")


@pytest.mark.parametrize(
    ("field", "wrong", "right"),
    [
        ("serviceAccount", "trainer", ""),
        ("serviceAccount", "me@example.com", ""),
        ("serviceAccount", f"serviceAccount:{ACCOUNT}", ACCOUNT),
        ("serviceAccount", f"projects/acme/serviceAccounts/{ACCOUNT}", ACCOUNT),
        ("tensorboard", "456", ""),
        ("persistentResourceId", "projects/1/locations/us-central1/persistentResources/a-b", "a-b"),
        ("persistentResourceId", "A_b", ""),
        ("experiment", "a", ""),
        ("experimentRun", "a", ""),
        ("models", ["a"], ""),
        ("network", "default", ""),
    ],
)
def test_the_name_of_a_resource_in_another_form_is_refused_with_the_form(
    field: str, wrong: Any, right: str, tmp_path: Path
) -> None:
    (problem,) = problems_of(tmp_path, custom_job(**{field: wrong}))
    assert problem.pointer.startswith(f"/spec/{field}")
    if right:
        assert problem.hint == f'write "{right}"'
    written = problem.hint.removeprefix("write ").rpartition("such as ")[2].strip('"')
    value = custom_job(**{field: [written] if isinstance(wrong, list) else written})
    assert problems_of(tmp_path, value) == []


@pytest.mark.parametrize(
    "account", [ACCOUNT, "12-compute@developer.gserviceaccount.com", "acme@appspot.gserviceaccount.com"]
)
def test_every_kind_of_service_account_is_one(account: str, tmp_path: Path) -> None:
    assert problems_of(tmp_path, custom_job(serviceAccount=account)) == []


@pytest.mark.parametrize("scheme", ["https://", "http://", "docker://"])
def test_an_image_with_a_scheme_is_refused_with_the_name_to_write(scheme: str, tmp_path: Path) -> None:
    value = custom_job()
    container = value["spec"]["workerPoolSpecs"][0]["containerSpec"]
    container["imageUri"] = f"{scheme}gcr.io/acme/t:1"
    (problem,) = problems_of(tmp_path, value)
    container["imageUri"] = problem.hint.removeprefix("write ").strip('"')
    assert container["imageUri"] == "gcr.io/acme/t:1"
    assert problems_of(tmp_path, value) == []


def test_a_network_with_a_projects_id_is_a_warning_also_in_the_settings(tmp_path: Path) -> None:
    network = "projects/acme-ml/global/networks/default"
    ml_job = copy.deepcopy(ML_JOB)
    ml_job["spec"]["trainingInput"]["network"] = network
    for value in (custom_job(network=network), ml_job):
        (finding,) = findings_of(value)
        assert (finding.keys[-1], finding.level) == ("network", WARNING)
        assert finding.hint.startswith("write projects/NUMBER/global/networks/default,")
    prod: dict[str, Any] = {"engine": "google", "project": "acme-ml", "location": "us-central1"}
    prod |= {"stagingBucket": "acme-code", "defaults": {"network": network}}
    text = json.dumps({"source": "acme-7f3a", "environments": {"prod": prod}})
    write(tmp_path, "reconciler.yaml", text)
    (warning,) = load_config(tmp_path).warnings
    assert warning.pointer == "/environments/prod/defaults/network"


@pytest.mark.parametrize(
    ("module", "right", "level"),
    [
        ("trainer/task.py", "trainer.task", "error"),
        ("./task.py", "task", "error"),
        ("-m trainer.task", "trainer.task", "error"),
        ("python3 -m trainer.task", "trainer.task", "error"),
        ("trainer\\task", "trainer.task", "error"),
        ("trainer.task.py", "trainer.task", "warning"),
        ("task.py", "task", "warning"),
        ("trainer task", "trainer.task", "error"),
    ],
)
def test_a_module_that_is_written_as_a_file_or_a_command_gets_its_name(
    module: str, right: str, level: str
) -> None:
    value = copy.deepcopy(ML_JOB)
    value["spec"]["trainingInput"]["pythonModule"] = module
    (finding,) = findings_of(value)
    assert (finding.keys[-1], finding.level) == ("pythonModule", level)
    assert right in finding.hint
    value["spec"]["trainingInput"]["pythonModule"] = right
    assert findings_of(value) == []


@pytest.mark.parametrize(
    ("image", "framework"),
    [
        (
            "us-docker.pkg.dev/vertex-ai/prediction/tf2-cpu.2-12:latest",
            "us-docker.pkg.dev/vertex-ai/training/tf-cpu.",
        ),
        (
            "europe-docker.pkg.dev/vertex-ai/prediction/pytorch-gpu.2-0",
            "europe-docker.pkg.dev/vertex-ai/training/pytorch-gpu.",
        ),
        (
            "gcr.io/cloud-aiplatform/prediction/sklearn-cpu.0-23",
            "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.",
        ),
    ],
)
def test_a_prediction_image_as_executor_is_a_warning_with_a_training_image(
    image: str, framework: str
) -> None:
    value = copy.deepcopy(CUSTOM_JOB)
    package = value["spec"]["workerPoolSpecs"][0]["pythonPackageSpec"]
    package["executorImageUri"] = image
    (finding,) = findings_of(value)
    assert finding.hint.startswith(f"write {framework}")
    package["executorImageUri"] = finding.hint.removeprefix("write ")
    assert findings_of(value) == []
