"""Limits that stop an apply before its first write."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs

from reconciler.base.errors import ExitCode, RefusedError
from reconciler.engines.spec.engine_spec import engine_spec
from reconciler.manifests.settings import GOOGLE_LIMITS, Limits
from reconciler.model.job import State
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1, Manifest
from reconciler.model.plan import Action, Change, Cost, DesiredJob, Plan, Target
from reconciler.operations.plan import accelerator_hours, cost_of
from reconciler.planning.limits import check_limit, check_limits
from tests.support.planning import bound_to, run_of, saying, wanted
from tests.support.planning import plan as planned

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


def make_job(spec: dict[str, Any]) -> DesiredJob:
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
def test_engine_counts_accelerator_hours_of_spec(spec: dict[str, Any], hours: float) -> None:
    wanted = make_job(spec)
    engine = engine_spec(wanted.manifest.api_version)
    assert engine.accelerator_hours(wanted.manifest.kind, spec) == pytest.approx(hours)


def make_spec(*pools: dict[str, Any], timeout: str = "3600s") -> dict[str, Any]:
    scheduling = {"scheduling": {"timeout": timeout}} if timeout else {}
    return {"workerPoolSpecs": [{"machineSpec": pool, "replicaCount": "1"} for pool in pools], **scheduling}


TPU = "ct5lp-hightpu-4t"
T4 = {"machineType": "n1-standard-4", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 2}
ML = {"scaleTier": "CUSTOM", "masterType": "complex_model_m_gpu", "scheduling": {"maxRunningTime": "3600s"}}


@pytest.mark.parametrize(
    ("spec", "cost"),
    [
        (make_spec({"machineType": "n1-standard-4"}), Cost(1)),
        (make_spec(T4, {"machineType": "n1-standard-4"}), Cost(1, 2, ("NVIDIA_TESLA_T4",))),
        (make_spec(T4, {"machineType": "g2-standard-24"}), Cost(1, 4, ("NVIDIA_L4", "NVIDIA_TESLA_T4"))),
        (make_spec({"machineType": TPU, "tpuTopology": "4x4"}), Cost(1, 16, (TPU,))),
        (make_spec(T4, timeout=""), Cost(1, 336, ("NVIDIA_TESLA_T4",), untimed=("census",))),
        (make_spec(T4, timeout="0s"), Cost(1, 336, ("NVIDIA_TESLA_T4",), untimed=("census",))),
        (make_spec({"machineType": "n1-standard-4"}, timeout=""), Cost(1)),
        (make_spec({"machineType": "n9-highgpu-5"}), Cost(1, unknown=("census",))),
        (make_spec({**T4, "machineType": "n9-highgpu-5"}), Cost(1, 2, ("NVIDIA_TESLA_T4",))),
        ({"trainingInput": {"scaleTier": "BASIC"}}, Cost(1)),
        ({"trainingInput": {"scaleTier": "BASIC_TPU"}}, Cost(1, 168, ("BASIC_TPU",), untimed=("census",))),
        ({"trainingInput": ML}, Cost(1, 4, ("complex_model_m_gpu",))),
    ],
)  # fmt: skip
def test_cost_lists_accelerators_untimed_jobs_and_unknown_machines(spec: dict[str, Any], cost: Cost) -> None:
    wanted = make_job(spec)
    change = Change(Action.SUBMIT, saying(""), "census", "census", wanted.manifest.kind, desired=wanted)
    found = structs.replace(
        make_plan(Action.BLOCKED, Action.NONE), changes=(change, *make_plan(Action.BLOCKED).changes)
    )
    assert cost_of(found) == cost
    assert cost_of(found).hours == accelerator_hours(found, GOOGLE_LIMITS)


def make_plan(*actions: Action) -> Plan:
    wanted = make_job({"workerPoolSpecs": POOLS, "scheduling": {"timeout": "3600s"}})
    changes = tuple(
        Change(action, saying(""), "census", "census", "CustomJob", desired=wanted) for action in actions
    )
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
def test_check_refuses_plan_over_limit_and_hint_names_limit_to_raise(limits: Limits, refused: str) -> None:
    found = make_plan(Action.SUBMIT, Action.RETRY, Action.CANCEL, Action.NONE, Action.BLOCKED)
    if not refused:
        check_limits(found, accelerator_hours(found, limits), limits, None)
        return
    with pytest.raises(RefusedError) as caught:
        check_limits(found, accelerator_hours(found, limits), limits, None)
    assert refused in caught.value.hint
    assert caught.value.exit_code is ExitCode.REFUSED


@pytest.mark.fault(48)
def test_check_refuses_plan_when_digest_differs_from_reviewed_plan() -> None:
    check_limits(make_plan(), 0, Limits(), "sha256:1")
    with pytest.raises(RefusedError) as caught:
        check_limits(make_plan(), 0, Limits(), "sha256:2")
    assert caught.value.exit_code is ExitCode.REFUSED
    assert caught.value.message == "the plan has changed since it was reviewed: its digest is now sha256:1"
    assert caught.value.hint == ("review it again with `reconciler plan`, and pass the new digest")


@pytest.mark.fault(48)
def test_plan_digest_changes_when_actions_change() -> None:
    first, second = wanted("census", "a"), wanted("census", "b")
    run = run_of(first, State.RUNNING)
    reviewed = planned([first])
    check_limits(reviewed, 0, Limits(), reviewed.digest)
    for moved in (planned([second]), planned([first], [run], [bound_to(first, run)]), planned([])):
        with pytest.raises(RefusedError):
            check_limits(moved, 0, Limits(), reviewed.digest)


def get_refusal(found: Plan, limits: Limits, hours: float = 0) -> tuple[str, str]:
    with pytest.raises(RefusedError) as caught:
        check_limits(found, hours, limits, None)
    assert caught.value.exit_code is ExitCode.REFUSED
    return caught.value.message, caught.value.hint


@pytest.mark.fault(21)
def test_limits_refuse_plan_when_folder_of_jobs_is_renamed() -> None:
    """Every base name changes: all jobs are submitted again, and all old runs are orphaned."""
    old = [wanted(f"old{n}", on_delete="cancel") for n in range(30)]
    runs = [run_of(job, State.RUNNING, number=n) for n, job in enumerate(old, 1)]
    claims = [bound_to(job, run) for job, run in zip(old, runs, strict=True)]
    found = planned([wanted(f"new{n}") for n in range(30)], runs, claims)
    assert get_refusal(found, GOOGLE_LIMITS) == (
        "the plan has 30 submissions, but one apply may do at most 20",
        'raise "limits: {submissions: 30}" in reconciler.yaml if you want that, '
        "or apply some of the jobs: `reconciler apply PATH`",
    )
    message, hint = get_refusal(found, Limits(cancels=5))
    assert message == "the plan has 30 cancels, but one apply may do at most 5"
    assert '"limits: {cancels: 30}"' in hint


@pytest.mark.fault(21)
def test_plan_cancels_no_run_when_folder_of_jobs_is_emptied() -> None:
    job = wanted(on_delete="cancel")
    run = run_of(job, State.RUNNING)
    check_limits(planned([], [run], [bound_to(job, run)]), 0, Limits(0, 0, 0), None)


@pytest.mark.parametrize("limit", [0, 1])
def test_limit_counts_cancels_of_repair(limit: int) -> None:
    job = wanted()
    runs = [run_of(job, State.RUNNING, number=n) for n in (1, 2, 3)]
    found = planned([job], runs, [bound_to(job, runs[0])])
    assert "the plan has 2 cancels" in get_refusal(found, Limits(cancels=limit))[0]
    check_limits(found, 0, Limits(cancels=2), None)


def test_limit_counts_cancel_that_submission_against_base_commit_would_make() -> None:
    found = planned([wanted("a"), wanted("b")])
    first, second = found.changes
    replacing = structs.replace(first, cancels_earlier=True)
    found = structs.replace(found, changes=(replacing, second))
    assert "the plan has 1 cancels" in get_refusal(found, Limits(cancels=0))[0]
    check_limits(found, 0, Limits(cancels=1), None)


def test_limit_counts_superseded_and_orphaned_run_as_two_cancels() -> None:
    old, gone = wanted("a", "old"), wanted("gone", on_delete="cancel")
    runs = [run_of(old, State.RUNNING, number=1), run_of(gone, State.RUNNING, number=2)]
    found = planned(
        [wanted("a", "new", on_change="cancel")], runs, [bound_to(old, runs[0]), bound_to(gone, runs[1])]
    )
    assert "the plan has 2 cancels" in get_refusal(found, Limits(cancels=1))[0]


@pytest.mark.parametrize(
    ("hours", "told", "raised"), [(0.3, "0.3", "1"), (1234567.5, "1234567.5", "1234568"), (12, "12", "12")]
)
def test_plan_passes_limit_that_refusal_names(hours: float, told: str, raised: str) -> None:
    message, hint = get_refusal(make_plan(), Limits(accelerator_hours=0.25), hours)
    assert message == f"the plan has {told} acceleratorHours, but one apply may do at most 0.25"
    assert f"acceleratorHours: {raised}}}" in hint
    check_limits(make_plan(), hours, Limits(accelerator_hours=float(raised)), None)


def test_accelerator_hours_of_retry_equal_those_of_submission() -> None:
    limits = Limits(accelerator_hours=1000)
    assert (
        accelerator_hours(make_plan(Action.SUBMIT), limits)
        == accelerator_hours(make_plan(Action.RETRY), limits)
        == 8
    )
    assert accelerator_hours(make_plan(Action.NONE, Action.BLOCKED, Action.CANCEL), limits) == 0


def test_empty_reviewed_digest_is_refused() -> None:
    with pytest.raises(RefusedError):
        check_limits(make_plan(), 0, Limits(), "")


@pytest.mark.parametrize("most", [None, 3, 4])
def test_number_within_its_limit_is_not_refused(most: float | None) -> None:
    check_limit("cancels", 3, most)


def test_number_over_its_limit_is_refused_with_the_limit_that_would_do() -> None:
    with pytest.raises(RefusedError, match="has 4 cancels, but one apply may do at most 3") as caught:
        check_limit("cancels", 4, 3)
    assert "limits: {cancels: 4}" in caught.value.hint
