"""Runs that a plan judges by their owner, its cancels for a change, and the order of its output."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconciler.model.claim import ClaimState
from reconciler.model.job import SOURCE, State
from reconciler.model.plan import Action, DriftKind
from reconciler.planning.planner import make_plan
from tests.support.planning import LOCAL, OURS, bound_to, claim_on, plan, run_of, state_of, wanted

JOB = wanted()
OLDER = wanted(content="older", on_change="cancel")


def test_run_of_any_source_counts_as_own_when_environment_has_no_source() -> None:
    run = replace(run_of(JOB, State.RUNNING), labels={})
    run = replace(run, labels={**run_of(JOB, State.RUNNING).labels, SOURCE: "somebody"})
    found = make_plan(LOCAL, state_of([JOB], [run]))
    assert [change.actual for change in found.changes] == [run]
    assert found.drift == ()


def test_plan_covers_all_jobs_and_sources_by_default() -> None:
    gone = wanted("gone", on_delete="cancel")
    run = replace(run_of(gone, State.RUNNING), labels={**run_of(gone, State.RUNNING).labels, SOURCE: "x"})
    claim = bound_to(gone, run)
    found = make_plan(LOCAL, state_of([JOB], [run], [claim]))
    assert [change.action for change in found.changes] == [Action.SUBMIT, Action.CANCEL]


@pytest.mark.parametrize(("whose", "cancelled"), [(OURS, 1), ("somebody", 0)])
def test_orphan_of_other_source_is_reported_without_cancel(whose: str, cancelled: int) -> None:
    gone = wanted("gone", on_delete="cancel")
    run = run_of(gone, State.RUNNING)
    run = replace(run, labels={**run.labels, SOURCE: whose})
    found = plan([JOB], [run], [bound_to(gone, run)])
    assert [change.action for change in found.changes].count(Action.CANCEL) == cancelled
    assert [drift.kind for drift in found.drift] == [DriftKind.ORPHANED]


@pytest.mark.parametrize(
    ("job", "state", "given_up", "cancelled"),
    [
        (wanted(on_change="cancel"), None, False, 1),
        (wanted(on_change="cancel", suspend=True), None, False, 0),
        (wanted(on_change="cancel"), ClaimState.HELD, True, 0),
        (wanted(on_change="cancel"), ClaimState.HELD, False, 0),
        (wanted(on_change="cancel"), ClaimState.PENDING, False, 1),
    ],
    ids=["submitted", "suspended", "given up", "held", "sent again"],
)
def test_superseded_run_is_cancelled_only_when_replacement_runs(
    job: object, state: ClaimState | None, given_up: bool, cancelled: int
) -> None:
    assert isinstance(job, type(JOB))
    run = run_of(OLDER, State.RUNNING)
    claims = [bound_to(OLDER, run)]
    if state is not None:
        claims.append(claim_on(job, state, given_up=given_up, error="why"))
    found = plan([job], [run], claims)
    assert [change.action for change in found.changes].count(Action.CANCEL) == cancelled
    assert [drift.kind for drift in found.drift] == [DriftKind.SUPERSEDED]


def test_second_run_of_orphan_has_base_name_of_its_claim() -> None:
    gone = wanted("gone-job")
    runs = [run_of(gone, State.RUNNING, number=number) for number in (1, 2)]
    found = plan([JOB], runs, [bound_to(gone, runs[0])])
    assert {drift.base_name for drift in found.drift} == {"gone-job"}
    assert [change.base_name for change in found.changes] == ["census", "gone-job"]


def test_second_run_of_renamed_job_has_base_name_of_manifest() -> None:
    dashed, underscored = wanted("a-b"), wanted("a_b")
    runs = [run_of(underscored, State.RUNNING, number=number) for number in (1, 2)]
    found = plan([dashed], runs, [bound_to(underscored, runs[0])])
    assert {change.base_name for change in found.changes} == {"a-b"}


def test_cancel_of_superseded_run_has_location_of_replacing_manifest() -> None:
    moved = replace(JOB, manifest=replace(JOB.manifest, path="moved.yaml", line=7))
    moved = replace(moved, manifest=replace(moved.manifest, reconcile=OLDER.manifest.reconcile))
    run = run_of(OLDER, State.RUNNING)
    found = plan([moved], [run], [bound_to(OLDER, run)])
    cancel = next(change for change in found.changes if change.action is Action.CANCEL)
    assert (cancel.base_name, cancel.path, cancel.line) == ("census", "moved.yaml", 7)


def test_changes_are_sorted_by_base_name_then_name_then_action_then_resource() -> None:
    gone = [wanted("z", on_delete="cancel"), wanted("b", on_delete="cancel")]
    first = [run_of(gone[0], State.RUNNING, number=number) for number in (4, 3)]
    second = [run_of(gone[1], State.RUNNING, attempt=2, number=1), run_of(gone[1], State.RUNNING, number=2)]
    claims = [
        bound_to(gone[0], first[1]),
        bound_to(gone[1], second[0], attempt=2),
        bound_to(gone[1], second[1]),
    ]
    job = wanted("c", on_change="cancel")
    older = run_of(wanted("c", "older"), State.RUNNING, number=5, job_name=job.job_name.replace("c_", "c_0"))
    found = plan([job], [*first, *second, older], [*claims, bound_to(wanted("c", "older"), older)])
    order = [(change.base_name, change.job_name, change.actual) for change in found.changes]
    assert [(base, run.resource.rpartition("/")[2] if run else "") for base, _, run in order] == [
        ("b", "2"),
        ("b", "1"),
        ("c", "5"),
        ("c", ""),
        ("z", "3"),
        ("z", "4"),
    ]


def test_cancels_sort_before_kept_runs_and_base_names_sort_as_written() -> None:
    runs = [run_of(JOB, State.RUNNING, number=number) for number in (1, 2)]
    found = plan([JOB], runs, [bound_to(JOB, runs[0])])
    assert [change.action for change in found.changes] == [Action.CANCEL, Action.NONE]
    found = plan([wanted("x_a"), wanted("x-b")])
    assert [change.base_name for change in found.changes] == ["x-b", "x_a"]
