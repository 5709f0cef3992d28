"""The jobs under jobs/ are valid, train on the embedded service, and measure what is known of their data."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler.validation.validate import validate

ROOT = Path(__file__).resolve().parent.parent

# What each job is known to give, by its folder in the bucket, with a tolerance that other versions of
# scikit-learn stay well within (1.0 to 1.9 give the same figures) and a broken trainer does not.
KNOWN_ACCURACY = {
    # The data set's own description (wdbc.names, UCI) tells 97.5 % by ten-fold cross-validation for one
    # separating plane on three of its columns; a plane on all thirty gets 98.07 %, 558 of 569.
    "breast-cancer/model": pytest.approx(0.9807, abs=0.003),
    # scikit-learn's example "Recognizing hand-written digits": the same model and split, accuracy 0.97.
    "digits": pytest.approx(0.9689, abs=0.003),
    # scikit-learn's example "Importance of Feature Scaling", as it was up to version 1.1: 81.48 % of the
    # 54 test wines without scaling, 98.15 % with it.
    "wine/unscaled/model": pytest.approx(44 / 54, abs=0.02),
    "wine/scaled/model": pytest.approx(53 / 54, abs=0.02),
}


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of the examples with their settings; the service that serves it ends with the test."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "reconciler.yaml", tmp_path)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    reconciler("serve", "--stop")


def reconciler(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "reconciler", *arguments], capture_output=True, text=True)


def test_the_examples_are_valid() -> None:
    found = validate(ROOT, [ROOT / "jobs"])
    assert found.problems == ()
    assert {manifest.kind for manifest in found.manifests} == {"CustomJob", "Job"}


@pytest.mark.usefixtures("wheelhouse")
def test_the_examples_train_to_their_known_accuracy(repository: Path) -> None:
    applied = reconciler("apply", "--wait", "--format", "json")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    states = {outcome["jobName"]: outcome["state"] for outcome in json.loads(applied.stdout)["outcomes"]}
    assert set(states.values()) == {"SUCCEEDED"}
    assert len(states) == len(KNOWN_ACCURACY)

    bucket = repository / ".reconciler" / "gcs" / "example-models"
    written = {str(path.parent.relative_to(bucket)): path for path in bucket.rglob("metrics.json")}
    measured = {folder: json.loads(path.read_text())["accuracy"] for folder, path in written.items()}
    assert measured == KNOWN_ACCURACY
    assert all(path.with_name("model.joblib").stat().st_size > 1000 for path in written.values())

    again = reconciler("plan", "--detailed-exitcode")
    assert again.returncode == 0, again.stdout + again.stderr
