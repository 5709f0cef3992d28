"""Jobs under jobs/: valid, trainable on the embedded service, with the known accuracy of their data."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.state_dir import home_of, prepare_home
from reconciler.cli import run
from reconciler.manifests.settings import load_config
from reconciler.manifests.validate import validate
from tests.support import preloaded

ROOT = Path(__file__).resolve().parent.parent

# The known accuracy of each job, by its folder in the bucket. The tolerance covers other versions of
# scikit-learn (1.0 to 1.9 give the same figures), and a broken trainer exceeds it.
KNOWN_ACCURACY = {
    # The data set's own description (wdbc.names, UCI) reports 97.5 % by ten-fold cross-validation for a
    # single separating plane on three of its columns; a plane on all thirty gets 98.07 %, 558 of 569.
    "breast-cancer/model": pytest.approx(0.9807, abs=0.003),
    # scikit-learn's example "Recognizing hand-written digits": the same model and split, accuracy 0.97.
    "digits": pytest.approx(0.9689, abs=0.003),
    # The result of scikit-learn's GaussianNB for 150 flowers, each left out of its own training.
    "iris-bayes/model": pytest.approx(143 / 150, abs=0.001),
    # The result of scikit-learn's LogisticRegression, in a single process, on the same 75 flowers: 71 right.
    "iris-replicas/model": pytest.approx(71 / 75, abs=0.01),
    # scikit-learn's example "Importance of Feature Scaling", as it was up to version 1.1: 81.48 % of the
    # 54 test wines without scaling, 98.15 % with it.
    "wine/unscaled/model": pytest.approx(44 / 54, abs=0.02),
    "wine/scaled/model": pytest.approx(53 / 54, abs=0.02),
}
# The range of the best trial of a tuning job, by the trials' folder. Predicting the mean for all patients has
# an error of 61, and predicting the same digit for each image is right in a tenth of the cases.
KNOWN_BEST = {"diabetes": ("mean_absolute_error", 40.0, 55.0), "digits-tuned": ("accuracy", 0.93, 1.0)}


@pytest.fixture
def repository(tmp_path: Path, environments: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Copy the examples with their settings; stop their service after the test."""
    shutil.copytree(ROOT / "jobs", tmp_path / "jobs", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "reconciler.yaml", tmp_path)
    home = home_of(tmp_path, os.environ)
    prepare_home(home)
    (home / "environments").symlink_to(environments)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    reconciler("serve", "--stop")


def reconciler(*arguments: str) -> subprocess.CompletedProcess[str]:
    return preloaded.run(*arguments, cwd=Path.cwd(), env=os.environ)


def shown(name: str) -> Any:
    """Return the JSON that `show` prints for a job."""
    done = reconciler("show", name, "--format", "json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_examples_have_no_warning_that_is_not_acknowledged(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    assert run(["validate", "--strict"]) == 0, capsys.readouterr().out


def test_the_examples_are_valid() -> None:
    found = validate(ROOT, [ROOT / "jobs"], load_config(ROOT).environment(None).filled)
    assert found.problems == ()
    kinds = {"CustomJob", "HyperparameterTuningJob", "TrainingPipeline", "Job"}
    assert {manifest.kind for manifest in found.manifests} == kinds


@pytest.mark.usefixtures("wheelhouse")
def test_the_examples_train_to_their_known_accuracy(repository: Path) -> None:
    applied = reconciler("apply", "--wait", "--format", "json")
    assert applied.returncode == 0, applied.stdout + applied.stderr
    outcomes = json.loads(applied.stdout)["outcomes"]
    published = [outcome for outcome in outcomes if outcome["action"] == "publish"]
    assert {outcome["jobName"].rpartition("_")[0] for outcome in published} == {"breast_cancer", "diabetes"}
    assert {outcome["status"] for outcome in outcomes} == {"applied"}
    states = {outcome["jobName"]: outcome["state"] for outcome in outcomes if outcome not in published}
    assert set(states.values()) == {"SUCCEEDED"}
    assert len(states) == len(KNOWN_ACCURACY) + len(KNOWN_BEST)

    bucket = home_of(repository, os.environ) / "gcs" / "example-models"
    # Each run has a folder of its own name.
    own = re.compile(r"/[a-z_]+_[0-9a-f]{16}")
    metrics_files = [*bucket.rglob("metrics.json")]
    assert all(own.search(path.as_posix()) for path in metrics_files)
    written = {own.sub("", str(path.parent.relative_to(bucket)), count=1): path for path in metrics_files}
    measured = {folder: json.loads(path.read_text()) for folder, path in written.items()}
    trials = {folder: found for folder, found in measured.items() if folder.partition("/")[0] in KNOWN_BEST}
    assert {folder: measured[folder]["accuracy"] for folder in measured.keys() - trials} == KNOWN_ACCURACY
    for shared, (metric, least, most) in KNOWN_BEST.items():
        reached = [found[metric] for folder, found in trials.items() if folder.startswith(f"{shared}/")]
        assert len(reached) >= 2
        assert any(least <= value <= most for value in reached), reached
    models = [path.parent.glob("model.*") for path in written.values()]
    assert all(next(found).stat().st_size > 300 for found in models)

    for folder, accuracy in KNOWN_ACCURACY.items():
        name = {"wine/unscaled/model": "wine-unscaled", "wine/scaled/model": "wine-scaled"}.get(
            folder, folder.partition("/")[0]
        )
        (metrics,) = shown(name)["metrics"]
        assert metrics["values"]["accuracy"] == accuracy
    for name, (metric, least, most) in KNOWN_BEST.items():
        study = shown(name)["study"]
        (best,) = [trial for trial in study["trials"] if trial["id"] == study["best"]]
        assert least <= best["metrics"][metric] <= most

    assert shown("wine-scaled")["model"].endswith("/models/wine@1")

    again = reconciler("plan", "--detailed-exitcode")
    assert again.returncode == 0, again.stdout + again.stderr
