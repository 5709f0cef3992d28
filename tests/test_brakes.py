"""What stops an apply before its first write."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.brakes import check_brakes
from reconciler.config import Limits
from reconciler.engines import engine_class
from reconciler.errors import ExitCode, RefusedError
from reconciler.manifest import AIPLATFORM_V1, ML_V1, Manifest
from reconciler.plan import Action, Change, DesiredJob, Plan, Target
from reconciler.reconcile import accelerator_hours

A100 = {"machineType": "a2-highgpu-2g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 2}
POOLS: list[dict[str, Any]] = [
    {"machineSpec": A100},
    {"machineSpec": A100, "replicaCount": "3"},
    {},
    {"machineSpec": {}},
]
TUNING = {
    "trialJobSpec": {"workerPoolSpecs": POOLS, "scheduling": {"timeout": "900.0s"}},
    "maxTrialCount": 5,
}


def job(spec: dict[str, Any]) -> DesiredJob:
    ml = "trainingInput" in spec
    kind = "Job" if ml else "HyperparameterTuningJob" if "trialJobSpec" in spec else "CustomJob"
    manifest = Manifest(ML_V1 if ml else AIPLATFORM_V1, kind, "census", spec)
    return DesiredJob(manifest, "0" * 64, "census_" + "0" * 16, "", spec)


@pytest.mark.parametrize(
    ("spec", "hours"),
    [
        ({"workerPoolSpecs": [{"machineSpec": {"machineType": "n1-standard-4"}}]}, 0),
        ({"workerPoolSpecs": POOLS, "scheduling": {"timeout": "7200s"}}, 8 * 2),
        ({"workerPoolSpecs": POOLS, "scheduling": {"timeout": "0s"}}, 8 * 168),
        ({"workerPoolSpecs": POOLS}, 8 * 168),
        (TUNING, 8 * 0.25 * 5),
        ({"trainingInput": {"scaleTier": "BASIC_GPU", "scheduling": {"maxRunningTime": "3600s"}}}, 1),
        ({"trainingInput": {"scaleTier": "BASIC"}}, 0),
        (
            {
                "trainingInput": {
                    "scaleTier": "CUSTOM",
                    "masterType": "complex_model_m_gpu",
                    "workerType": "n1-standard-8",
                    "workerCount": "2",
                    "workerConfig": {"acceleratorConfig": {"count": "3", "type": "NVIDIA_TESLA_T4"}},
                    "hyperparameters": {"maxTrials": 5},
                    "scheduling": {"maxRunningTime": "3600s"},
                }
            },
            (4 + 6) * 5,
        ),
    ],
)  # fmt: skip
def test_accelerator_hours(spec: dict[str, Any], hours: float) -> None:
    wanted = job(spec)
    engine = engine_class(wanted.manifest.api_version)
    assert engine.accelerator_hours(wanted.manifest.kind, spec) == pytest.approx(hours)


def plan(*actions: Action) -> Plan:
    wanted = job({"workerPoolSpecs": POOLS, "scheduling": {"timeout": "3600s"}})
    changes = tuple(Change(action, "", "census", "census", "CustomJob", desired=wanted) for action in actions)
    return Plan(Target("prod", "google", "p", "l"), changes, (), "sha256:1")


@pytest.mark.parametrize(
    ("limits", "refused"),
    [
        (Limits(), ""),
        (Limits(submissions=2, cancels=1, accelerator_hours=16), ""),
        (Limits(submissions=1), "submissions: 2"),
        (Limits(cancels=0), "cancels: 1"),
        (Limits(accelerator_hours=15.5), "acceleratorHours: 16"),
    ],
)
def test_over_a_limit_nothing_is_done_and_the_message_says_what_to_raise(
    limits: Limits, refused: str
) -> None:
    found = plan(Action.SUBMIT, Action.RETRY, Action.CANCEL, Action.NONE, Action.BLOCKED)
    if not refused:
        check_brakes(found, accelerator_hours(found), limits, None)
        return
    with pytest.raises(RefusedError) as caught:
        check_brakes(found, accelerator_hours(found), limits, None)
    assert refused in caught.value.hint
    assert caught.value.exit_code is ExitCode.REFUSED


def test_only_the_reviewed_plan_is_applied() -> None:
    check_brakes(plan(), 0, Limits(), "sha256:1")
    with pytest.raises(RefusedError, match="no longer the reviewed one"):
        check_brakes(plan(), 0, Limits(), "sha256:2")


def test_an_empty_digest_is_not_taken_for_none() -> None:
    with pytest.raises(RefusedError):
        check_brakes(plan(), 0, Limits(), "")
