"""PyTorch's own distributed training: several replicas reach the result of a single process."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.repository import Repository

ROOT = Path(__file__).resolve().parents[2]
TORCH = ROOT / ".venv" / "torch"
STEPS = 50


@pytest.fixture
def spirals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """Yield a repository with the suspended example's trainer, and PyTorch to run it with."""
    if not (TORCH / "wheels").is_dir():
        pytest.skip("no build of PyTorch for CPUs is here: `make test` fetches it where there is one")
    monkeypatch.setenv("PIP_FIND_LINKS", str(TORCH / "wheels"))
    # Kept between test runs: the installation takes most of a minute.
    (TORCH / "environments").mkdir(exist_ok=True)
    made = Repository(tmp_path / "repository", TORCH / "environments")
    made.has_jobs = True
    shutil.copytree(
        ROOT / "jobs" / "trainers" / "spirals", made.root / "spirals", ignore=shutil.ignore_patterns("__*")
    )
    yield made
    made.stop()


def write_job(repository: Repository, name: str, workers: int) -> str:
    """Write the example with another name and number of workers; return its image."""
    manifest = yaml.safe_load((ROOT / "jobs" / "pytorch-spirals.yaml").read_text())
    del manifest["reconcile"]
    manifest["metadata"]["name"] = name
    manifest["package"]["path"] = "../spirals"
    manifest["spec"]["baseOutputDirectory"]["outputUriPrefix"] = f"gs://models/{name}"
    primary, others = manifest["spec"]["workerPoolSpecs"]
    for pool in (primary, others):
        pool["containerSpec"]["args"] = [f"--steps={STEPS}"]
    others["replicaCount"] = workers
    manifest["spec"]["workerPoolSpecs"] = [primary, others] if workers else [primary]
    repository.write(f"jobs/{name}.yaml", yaml.safe_dump(manifest))
    return str(primary["containerSpec"]["imageUri"])


@pytest.mark.slow
def test_three_replicas_train_the_model_that_one_process_trains(spirals: Repository) -> None:
    write_job(spirals, "alone", workers=0)
    image = write_job(spirals, "together", workers=2)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    images = {image: {"python": version, "requirements": ["torch==2.13.0"]}}
    spirals.write("reconciler.yaml", json.dumps({"images": images}))
    applied = spirals.run("apply", "--wait", "--format", "json")
    told = {name: spirals.run("logs", name).out for name in ("alone", "together")}
    assert applied.code == 0, applied.out + applied.err + told["together"]

    alone, together = (metrics(spirals, name) for name in ("alone", "together"))
    assert (alone["replicas"], together["replicas"]) == (1, 3)
    for figure in ("loss", "size_of_weights", "accuracy"):
        assert together[figure] == pytest.approx(alone[figure], rel=1e-6, abs=0)
    assert alone["loss"] < 0.5  # three spirals at random: 1.1
    assert all(f"replica {rank} of 3" in told["together"] for rank in range(3))
    assert told["together"].count("asks for accelerators: the job runs on the CPU here.") == 1


def metrics(repository: Repository, name: str) -> dict[str, Any]:
    folder = repository.home / "gcs" / "models" / name / "model"
    assert (folder / "model.pt").stat().st_size > 1000
    found: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return found
