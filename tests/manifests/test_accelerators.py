"""A machine's built-in accelerators count even if a job doesn't name them: a limit is to cap cost."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.manifests import known_values, rules
from reconciler.manifests.known_values import accelerators_of
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1

WEEK = 7 * 24


@pytest.mark.parametrize(
    ("machine", "count"),
    [
        ("a2-highgpu-1g", 1),
        ("a2-highgpu-8g", 8),
        ("a2-megagpu-16g", 16),
        ("a3-highgpu-8g", 8),
        ("a4x-highgpu-4g", 4),
        ("g2-standard-24", 2),
        ("g2-standard-32", 1),
        ("g2-standard-96", 8),
        ("g4-standard-6", 1),
        ("g4-standard-384", 8),
        ("ct3-hightpu-4t", 4),
        ("ct4p-hightpu-4t", 4),
        ("ct5l-hightpu-8t", 8),
        ("ct5lp-hightpu-1t", 1),
        ("ct5lp-hightpu-4t", 4),
        ("ct5p-hightpu-4t", 4),
        ("ct6e-standard-8t", 8),
        ("tpu7x-standard-4t", 4),
        ("n1-standard-4", 0),
        ("c3-standard-4-lssd", 0),
        ("c2-standard-8", 0),
        ("e2-standard-8", 0),
        ("cloud-tpu", 0),
        ("", 0),
    ],
)
def test_a_machine_has_the_accelerators_that_it_comes_with(machine: str, count: int) -> None:
    assert accelerators_of(machine) == count


def test_it_agrees_with_what_validation_knows() -> None:
    for machine in known_values.TABLES.bundled:
        for count in range(1, 17):
            fits = rules.accelerator_mismatch(machine, rules.bundled_accelerator(machine), count) is None
            assert fits == (accelerators_of(machine) == count), machine


def pool(replicas: int = 1, **machine: Any) -> dict[str, Any]:
    return {"machineSpec": machine, "replicaCount": str(replicas)}


@pytest.mark.parametrize(
    ("pools", "count"),
    [
        ([pool(4, machineType="ct5lp-hightpu-4t")], 16),
        ([pool(machineType="a2-highgpu-8g")], 8),
        ([pool(machineType="a2-highgpu-8g", acceleratorCount=0)], 8),
        ([pool(machineType="a2-highgpu-8g", acceleratorCount=2)], 2),
        ([pool(2, machineType="n1-standard-8", acceleratorCount=4)], 8),
        ([pool(machineType="cloud-tpu", acceleratorType="TPU_V2", acceleratorCount=8)], 8),
        ([pool(machineType="n1-standard-8"), pool(2, machineType="g2-standard-24")], 4),
        ([pool(machineType="ct5lp-hightpu-4t", tpuTopology="4x4")], 16),
        ([pool(4, machineType="ct5lp-hightpu-4t", tpuTopology="4x4")], 16),
        ([pool(machineType="ct4p-hightpu-4t", tpuTopology="2x2x2")], 8),
        ([pool(machineType="ct5lp-hightpu-4t", tpuTopology="2x2")], 4),
        ([pool(machineType="ct5lp-hightpu-4t", tpuTopology="wide")], 4),
        ([pool(machineType="ct5lp-hightpu-4t", tpuTopology="x".join(["9" * 5000] * 2))], 4),
    ],
)
def test_the_accelerators_of_a_job_are_those_of_all_its_machines(
    pools: list[dict[str, Any]], count: int
) -> None:
    engine = engine_spec(AIPLATFORM_V1)
    assert engine.accelerator_hours("CustomJob", {"workerPoolSpecs": pools}) == count * WEEK
    tuning = {"trialJobSpec": {"workerPoolSpecs": pools}, "maxTrialCount": 3}
    assert engine.accelerator_hours("HyperparameterTuningJob", tuning) == 3 * count * WEEK


def test_on_the_older_service_too() -> None:
    training = {"scaleTier": "CUSTOM", "masterType": "a2-highgpu-4g"}
    assert engine_spec(ML_V1).accelerator_hours("Job", {"trainingInput": training}) == 4 * WEEK
    given = {**training, "masterConfig": {"acceleratorConfig": {"count": "2", "type": "NVIDIA_TESLA_A100"}}}
    assert engine_spec(ML_V1).accelerator_hours("Job", {"trainingInput": given}) == 2 * WEEK
