"""Expectations of manifests: bounds that no value meets, and metrics that nothing gives."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.diagnostics import Problem
from reconciler.manifests.validate import validate
from tests.support.manifests import GOOD, write


def problems_of(root: Path, value: Any, *filled: str) -> tuple[Problem, ...]:
    """Return the problems of a manifest; `filled` are the fields that the environment gives."""
    write(root, "trainers/census/task.py", "")
    write(root, "jobs/job.yaml", value)
    return validate(root, [root / "jobs"], frozenset(filled)).problems


@pytest.mark.parametrize(
    ("kind", "expect", "folder"),
    [
        ("CustomJob", "accuracy", ["spec", "baseOutputDirectory"]),
        ("HyperparameterTuningJob", "rmse", ["spec", "trialJobSpec", "baseOutputDirectory"]),
        ("Job", "rmse", ["spec", "trainingInput", "jobDir"]),
    ],
)
def test_metric_in_no_study_needs_folder_of_manifest_or_environment(
    kind: str, expect: str, folder: list[str], tmp_path: Path
) -> None:
    value = copy.deepcopy(GOOD[kind]) | {"expect": {expect: {"min": 0.5}}}
    *above, field = folder
    job = value
    for key in above:
        job = job[key]
    given = job.pop(field, None)
    (problem,) = problems_of(tmp_path, value)
    assert (problem.pointer, problem.message, problem.hint.split(":")[0]) == (
        f"/expect/{expect}",
        "no file and no study gives this metric",
        f'add "{field}"',
    )
    assert problems_of(tmp_path, value, "baseOutputDirectory") == ()
    assert problems_of(tmp_path, value, "region") == (problem,)
    job[field] = given or {"outputUriPrefix": "gs://my-bucket/tuning"}
    assert problems_of(tmp_path, value) == ()


@pytest.mark.parametrize(
    ("kind", "tag", "metric"),
    [
        ("HyperparameterTuningJob", None, "accuracy"),
        ("Job", None, "training/hptuning/metric"),
        ("Job", "loss", "loss"),
    ],
)
def test_metric_of_study_needs_no_folder(kind: str, tag: str | None, metric: str, tmp_path: Path) -> None:
    value = copy.deepcopy(GOOD[kind])
    if training_input := value["spec"].get("trainingInput"):
        del training_input["jobDir"]
        if tag:
            training_input["hyperparameters"]["hyperparameterMetricTag"] = tag
    value["expect"] = {metric: {"min": 0.5}}
    assert problems_of(tmp_path, value) == ()
    value["expect"] = {metric: {"min": 0.5}, "other": {"min": 0.5}}
    (problem,) = problems_of(tmp_path, value)
    assert problem.pointer == "/expect/other"
    assert problem.hint.endswith(f'; the study gives "{metric}"')


@pytest.mark.parametrize(("least", "most"), [(0.5, 0.95), (0, 0), (-1e300, 1e-4)])
def test_bounds_are_refused_only_when_swapped(least: float, most: float, tmp_path: Path) -> None:
    value = copy.deepcopy(GOOD["HyperparameterTuningJob"])
    value["expect"] = {"accuracy": {"min": least, "max": most}}
    assert problems_of(tmp_path, value) == ()
    value["expect"] = {"accuracy": {"min": most + 1, "max": least}}
    (problem,) = problems_of(tmp_path, value)
    assert (problem.pointer, problem.hint) == ("/expect/accuracy/min", "swap them")
