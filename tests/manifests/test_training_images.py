"""Warnings of `validate` about images past their end, and about tags in place of digests."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path

import pytest

from reconciler.base.diagnostics import WARNING, Problem
from reconciler.cli import run
from reconciler.manifests.checked_files import CheckedFiles
from reconciler.manifests.places import placed
from reconciler.manifests.training_images import image_warnings, training_image_name, training_image_uri
from reconciler.manifests.validate import validate

MANIFEST = """\
# executorImageUri: us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-11:latest
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {name: tide}
spec:
  workerPoolSpecs:
    - machineSpec: {machineType: n1-standard-4}
      replicaCount: 1
      %s
"""
PYTHON = (
    'pythonPackageSpec: {executorImageUri: "%s", pythonModule: a, packageUris: [gs://tide/code-1.tar.gz]}'
)
ENDED = "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-11:latest"
DIGEST = "@sha256:" + "0" * 64
TODAY = date(2026, 11, 24)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "reconciler.yaml").write_text("source: tide\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def warnings_about(root: Path, text: str) -> list[Problem]:
    (root / "jobs/job.yaml").write_text(text)
    found = validate(root, [root / "jobs"])
    assert found.problems == ()
    return placed(root, image_warnings(found.manifests, TODAY))


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("gcr.io/tide/fit:1", "a tag can"),
        ("gcr.io/tide/fit:latest", "a tag can"),
        ("gcr.io:443/tide/fit", "an image without a tag"),
        (f"gcr.io/tide/fit{DIGEST}", ""),
        (f"gcr.io/tide/fit:1{DIGEST}", ""),
        ("localhost/tide/fit:1", ""),
        (ENDED, "the image tf-cpu.2-11 on 2024-11-15"),
        (f"us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-11{DIGEST}", "the image tf-cpu.2-11"),
        ("us-docker.pkg.dev/vertex-ai/training/ray-cpu.2-47.py311:latest", ""),
        ("gcr.io/cloud-ml-algos/boosted_trees:latest", "algorithm boosted_trees ended with the service"),
        (f"gcr.io/cloud-ml-algos/boosted_trees{DIGEST}", "algorithm boosted_trees ended with the service"),
    ],
)
def test_container_is_warned_of_by_its_image(root: Path, image: str, words: str) -> None:
    found = warnings_about(root, MANIFEST % f'containerSpec: {{imageUri: "{image}"}}')
    assert len(found) == bool(words)
    for warning in found:
        assert words in warning.message
        assert (warning.line, warning.column, warning.level) == (9, 33, WARNING)
        assert warning.pointer == "/spec/workerPoolSpecs/0/containerSpec/imageUri"


def test_own_image_that_runs_packages_may_have_a_tag(root: Path) -> None:
    assert warnings_about(root, MANIFEST % (PYTHON % "gcr.io/tide/tf:1")) == []


FOLDED = """pythonPackageSpec:
        executorImageUri: >-
          %s
        pythonModule: a
        packageUris: [gs://tide/code-1.tar.gz]"""
ANCHORED = PYTHON.replace('"%s"', '&image "%s"').replace("pythonModule: a", "pythonModule: a, args: [*image]")


@pytest.mark.parametrize("task", [PYTHON, FOLDED, ANCHORED], ids=["plain", "folded", "anchored"])
def test_place_of_an_image_is_found_in_every_layout(root: Path, task: str) -> None:
    (warning,) = warnings_about(root, MANIFEST % (task % ENDED))
    column = 27 if task == FOLDED else 45
    assert (warning.line, warning.column) == (10 if task == FOLDED else 9, column)


def test_pools_with_the_same_image_have_places_of_their_own(root: Path) -> None:
    pool = MANIFEST.partition("    - ")[2] % f"containerSpec: {{imageUri: {ENDED}}}"
    text = MANIFEST % f"containerSpec: {{imageUri: {ENDED}}}" + f"    - {pool}"
    found = warnings_about(root, text)
    assert [(warning.line, warning.pointer) for warning in found] == [
        (9, "/spec/workerPoolSpecs/0/containerSpec/imageUri"),
        (12, "/spec/workerPoolSpecs/1/containerSpec/imageUri"),
    ]


REPLICAS = """\
apiVersion: ml.googleapis.com/v1
kind: Job
metadata: {name: tide}
spec:
  trainingInput:
    scaleTier: CUSTOM
    region: europe-west1
    workerType: n1-standard-4
    workerCount: 1
    workerConfig: {imageUri: gcr.io/tide/fit:1}
    masterType: n1-standard-4
    masterConfig: {imageUri: gcr.io/tide/fit:1}
"""


def test_replicas_with_the_same_image_have_places_of_their_own(root: Path) -> None:
    assert {warning.pointer: warning.line for warning in warnings_about(root, REPLICAS)} == {
        "/spec/trainingInput/workerConfig/imageUri": 10,
        "/spec/trainingInput/masterConfig/imageUri": 12,
    }


def test_place_is_the_same_once_the_file_was_checked(root: Path) -> None:
    (root / "jobs/job.yaml").write_text(MANIFEST % (PYTHON % ENDED))
    checked = CheckedFiles()
    first, second = (validate(root, [root / "jobs"], checked=checked) for _ in range(2))
    assert first.manifests[0].images == second.manifests[0].images
    assert len(first.manifests[0].images) == 1


def test_each_document_of_a_file_has_its_own_place(root: Path) -> None:
    text = MANIFEST % (PYTHON % ENDED)
    found = warnings_about(root, text + "---\n" + text.replace("name: tide", "name: other"))
    assert [warning.line for warning in found] == [9, 19]


@pytest.mark.parametrize("place", ["us", "europe", "asia"])
def test_images_of_all_repositories_are_known(place: str) -> None:
    assert training_image_name(f"{place}-docker.pkg.dev/vertex-ai/training/tf-gpu.2-8:latest") == "tf-gpu.2-8"
    assert training_image_name("example.com/vertex-ai/training/tf-gpu.2-8:latest") == ""


@pytest.mark.parametrize(
    ("region", "place"),
    [("us-east1", "us"), ("europe-west1", "europe"), ("asia-east1", "asia"), ("southamerica-east1", "us")],
)
def test_image_comes_from_the_nearest_repository(region: str, place: str) -> None:
    uri = training_image_uri("tf-cpu.2-11", region)
    assert uri == f"{place}-docker.pkg.dev/vertex-ai/training/tf-cpu.2-11:latest"


def test_validate_prints_the_warnings_and_is_strict_on_request(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (root / "jobs/job.yaml").write_text(MANIFEST % (PYTHON % ENDED))
    assert run(["validate"]) == 0
    assert "jobs/job.yaml:9:45: warning: Google ended the availability" in capsys.readouterr().out
    assert run(["validate", "--strict"]) == 3
    capsys.readouterr()
    assert run(["validate", "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [problem["level"] for problem in found["problems"]] == ["warning"]
    assert run(["validate", "--format", "github"]) == 0
    assert capsys.readouterr().out.startswith("::warning file=jobs/job.yaml,line=9")
