"""The folder of a run's own."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.engines.spec.output_folder import spec_of_attempt, with_own_folder
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1

NAME = "census_0123456789abcdef"
VERTEX: dict[str, Any] = {
    "workerPoolSpecs": [{}],
    "baseOutputDirectory": {"outputUriPrefix": "gs://b/census/"},
}
ML: dict[str, Any] = {"trainingInput": {"jobDir": "gs://b/census/"}}
TUNED_ML: dict[str, Any] = {"trainingInput": {**ML["trainingInput"], "hyperparameters": {"maxTrials": 2}}}
TUNING = "HyperparameterTuningJob"
CASES = [
    (AIPLATFORM_V1, "CustomJob", VERTEX, False),
    (AIPLATFORM_V1, TUNING, {"trialJobSpec": VERTEX}, True),
    (ML_V1, "Job", ML, False),
    (ML_V1, "Job", TUNED_ML, True),
]


@pytest.mark.parametrize(("version", "kind", "spec", "tuning"), CASES)
def test_own_folder_has_name_of_run_and_of_attempt_when_job_has_trials(
    version: str, kind: str, spec: dict[str, Any], tuning: bool
) -> None:
    engine = engine_spec(version)
    own = with_own_folder(version, kind, spec, NAME)
    assert isinstance(own, dict)
    assert engine.output_directory(kind, own) == f"gs://b/census/{NAME}"
    assert spec_of_attempt(version, kind, own, NAME, NAME) == own
    second = engine.output_directory(kind, spec_of_attempt(version, kind, own, NAME, f"{NAME}_2"))
    assert second == f"gs://b/census/{NAME}" + "_2" * tuning


@pytest.mark.parametrize(("version", "kind", "spec", "tuning"), CASES)
def test_shared_folder_stays_as_written_for_every_attempt(
    version: str, kind: str, spec: dict[str, Any], tuning: bool
) -> None:
    assert spec_of_attempt(version, kind, spec, NAME, f"{NAME}_2") == spec


@pytest.mark.parametrize(
    ("version", "kind", "spec"),
    [(AIPLATFORM_V1, "CustomJob", {"workerPoolSpecs": []}), (ML_V1, "Job", {"trainingInput": {}})],
)
def test_job_without_folder_gets_none(version: str, kind: str, spec: dict[str, Any]) -> None:
    assert with_own_folder(version, kind, spec, NAME) == spec
