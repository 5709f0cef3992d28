"""Overhead of the embedded service on trainings: jobs of a small package, and the trials of a tuning job.

Each job asks for all CPUs, so that jobs run in sequence, and has its own argument; trials run in sequence
too. A first job builds the environments in advance. Seconds are those of the whole command `apply --wait`, by
job or trial; CPU includes the command, the service and all its child processes. The trainer only prints and,
in a trial, reports a figure.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import psutil

from .place import RECONCILER, Cost, Place

JOBS = "a job of a small package"
TRIALS = "a trial that trains nothing"
ALONE = "`python -m` by hand"
WISHED = {JOBS: "≤ 0.6 over `python -m`", TRIALS: "≤ 0.5", ALONE: "-"}

_IMAGE = "example.test/plain:1"
_TASK = """\
import json, os, pathlib, sys

print("trained with", *sys.argv[1:])
if "CLOUD_ML_TRIAL_ID" in os.environ:
    report = pathlib.Path(os.environ["CLOUD_ML_HP_METRIC_FILE"])
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(json.dumps({"loss": "1", "global_step": "1", "timestamp": 1.0, "trial": "1"}) + "\\n")
"""


def measured(place: Place, jobs: int, trials: int, repeats: int) -> Mapping[str, Sequence[Cost]]:
    """Return the costs of each repetition, by job, by trial, and of the trainer alone."""
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    images = {_IMAGE: {"python": version, "requirements": []}}
    (place.root / "reconciler.yaml").write_text(json.dumps({"images": images}))
    trainer = place.root / "trainer"
    trainer.mkdir()
    (trainer / "task.py").write_text(_TASK)
    costs: dict[str, list[Cost]] = {JOBS: [], TRIALS: [], ALONE: []}
    with place.served():
        _apply(place, {"first": _custom_job("first")})
        for repetition in range(repeats):
            names = [f"job-{repetition}-{number}" for number in range(jobs)]
            costs[JOBS].append(_share(_apply(place, {name: _custom_job(name) for name in names}), jobs))
            name = f"tuning-{repetition}"
            costs[TRIALS].append(_share(_apply(place, {name: _tuning_job(name, trials)}), trials))
            costs[ALONE].append(place.run([sys.executable, "-m", "task"], folder=trainer))
    return costs


def _apply(place: Place, manifests: Mapping[str, Any]) -> Cost:
    for name, manifest in manifests.items():
        file = place.root / "jobs" / f"{name}.yaml"
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(manifest))
    service = psutil.Process(json.loads((place.home / "service.json").read_text())["pid"])
    before = _cpu(service)
    cost = place.run([*RECONCILER, "apply", "--wait"])
    return {**cost, "cpu": cost["cpu"] + _cpu(service) - before}


def _cpu(service: psutil.Process) -> float:
    """Return the CPU seconds of the service and of the runs that it has collected."""
    return float(sum(service.cpu_times()[:4]))


def _share(cost: Cost, count: int) -> Cost:
    return {"wall": cost["wall"] / count, "cpu": cost["cpu"] / count}


def _custom_job(name: str) -> Mapping[str, Any]:
    return _manifest("CustomJob", name, {"workerPoolSpecs": _pools(f"--name={name}")})


def _tuning_job(name: str, trials: int) -> Mapping[str, Any]:
    rate = {"parameterId": "rate", "doubleValueSpec": {"minValue": 0.1, "maxValue": 1}}
    study = {"metrics": [{"metricId": "loss", "goal": "MINIMIZE"}], "parameters": [rate]}
    spec = {"studySpec": study, "trialJobSpec": {"workerPoolSpecs": _pools()}}
    return _manifest(
        "HyperparameterTuningJob", name, {**spec, "maxTrialCount": trials, "parallelTrialCount": 1}
    )


def _manifest(kind: str, name: str, spec: Mapping[str, Any]) -> Mapping[str, Any]:
    head = {"apiVersion": "aiplatform.googleapis.com/v1", "kind": kind, "metadata": {"name": name}}
    return {**head, "package": {"path": "../trainer"}, "spec": spec}


def _pools(*arguments: str) -> Sequence[Mapping[str, Any]]:
    package = {"executorImageUri": _IMAGE, "pythonModule": "task", "args": [*arguments]}
    machine = {"machineType": "n1-highcpu-96"}
    return [{"machineSpec": machine, "replicaCount": 1, "pythonPackageSpec": package}]
