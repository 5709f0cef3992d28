"""Results in a shared folder that a run of other content wrote to later."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from msgspec.structs import replace

from reconciler.model.claim import ClaimState
from reconciler.model.job import ActualJob, State
from reconciler.model.plan import Action, DriftKind, NotDone, Plan
from reconciler.planning.overwriting import overwriting_of, undecided_runs, with_overwriting
from reconciler.planning.planner import make_plan
from tests.support.planning import (
    LOCAL,
    bound_to,
    claim_on,
    detail_of,
    only,
    reason_of,
    run_of,
    state_of,
    wanted,
)

GOOD, BAD = wanted(content="good"), wanted(content="bad")
SHARED = "gs://models/census"


def started(run: ActualJob) -> ActualJob:
    return replace(run, start_time=run.create_time)


FIRST = started(run_of(GOOD, State.SUCCEEDED, number=1))
LATER = started(run_of(BAD, State.SUCCEEDED, number=2))
BOTH = {FIRST.resource: SHARED, LATER.resource: SHARED}


def plan_of(runs: list[ActualJob], folders: Mapping[str, str]) -> Plan:
    claims = [bound_to(BAD if run.job_name == BAD.job_name else GOOD, run) for run in runs]
    return make_plan(LOCAL, with_overwriting(state_of([GOOD], runs, claims), folders))


@pytest.mark.fault(62)
def test_reverted_content_is_overwritten_when_later_run_has_its_folder() -> None:
    plan = plan_of([FIRST, LATER], BOTH)
    change = only(plan)
    assert (change.action, change.stuck, change.actual) == (Action.NONE, NotDone.OVERWRITTEN, FIRST)
    assert reason_of(change) == (
        f"overwritten: {LATER.job_name} wrote to its folder {SHARED}; run it again with `reconciler rerun`"
    )
    (drift,) = plan.drift
    assert (drift.kind, drift.job_name, drift.base_name) == (DriftKind.OVERWRITTEN, GOOD.job_name, "census")
    assert detail_of(drift) == (
        f"{LATER.job_name} (succeeded), which began or ended later, has the same folder {SHARED}"
    )


@pytest.mark.fault(62)
def test_result_is_being_overwritten_when_later_run_is_live() -> None:
    plan = plan_of([FIRST, replace(LATER, state=State.RUNNING)], BOTH)
    cancel = f"stop it with `reconciler cancel {LATER.job_name}`"
    assert reason_of(only(plan)) == (
        f"being overwritten: {LATER.job_name} may write to its folder {SHARED}; {cancel}, "
        "then run it again with `reconciler rerun`"
    )
    assert DriftKind.OVERWRITTEN in [drift.kind for drift in plan.drift]


@pytest.mark.parametrize(
    ("runs", "folders"),
    [
        ([FIRST, LATER], {FIRST.resource: f"{SHARED}/{GOOD.job_name}", LATER.resource: SHARED}),
        ([FIRST, LATER], {FIRST.resource: "", LATER.resource: ""}),
        ([FIRST, replace(LATER, start_time="", state=State.CANCELLED)], BOTH),
        ([replace(FIRST, start_time="2026-02-01T00:00:00Z"), LATER], BOTH),
        ([replace(FIRST, state=State.QUEUED, start_time=""), LATER], BOTH),
        ([replace(FIRST, state=State.FAILED), LATER], BOTH),
    ],
    ids=["own folder", "no folder", "never started", "started before", "not started yet", "without a result"],
)
def test_result_stays_when_other_run_did_not_write_to_its_folder_later(
    runs: list[ActualJob], folders: dict[str, str]
) -> None:
    plan = plan_of(runs, folders)
    assert only(plan).stuck is not NotDone.OVERWRITTEN
    assert plan.drift == ()


def test_run_that_was_created_before_and_started_later_overwrites_result() -> None:
    waited = replace(LATER, create_time="2025-12-01T00:00:00Z", start_time="2026-01-01T00:00:00.5Z")
    change = only(plan_of([replace(FIRST, start_time="2026-01-01T00:00:00Z"), waited], BOTH))
    assert (change.stuck, change.actual and change.actual.job_name) == (NotDone.OVERWRITTEN, GOOD.job_name)


def test_newest_of_several_later_runs_is_named() -> None:
    worst = wanted(content="worst")
    third = started(run_of(worst, State.FAILED, number=3))
    runs = [FIRST, LATER, third]
    claims = [bound_to(GOOD, FIRST), bound_to(BAD, LATER), bound_to(worst, third)]
    name = state_of([GOOD], runs, claims).names["census"]
    overwriting = overwriting_of(name, {**BOTH, third.resource: SHARED})
    assert overwriting is not None
    assert overwriting.run == third


def test_folders_are_asked_for_only_as_far_as_they_decide() -> None:
    state = state_of([GOOD], [FIRST, LATER], [bound_to(GOOD, FIRST), bound_to(BAD, LATER)])
    assert undecided_runs(state, {}) == [FIRST]
    assert undecided_runs(state, {FIRST.resource: SHARED}) == [LATER]
    assert undecided_runs(state, BOTH) == []
    assert undecided_runs(state, {FIRST.resource: ""}) == []
    own = {FIRST.resource: f"{SHARED}/{GOOD.job_name}"}
    assert undecided_runs(state, own) == []
    assert undecided_runs(state_of([BAD], [FIRST, LATER], []), {}) == []


def test_folder_of_first_attempt_is_own_folder_of_its_retry() -> None:
    retry = started(run_of(GOOD, State.SUCCEEDED, 2, number=1))
    state = state_of([GOOD], [retry, LATER], [])
    assert undecided_runs(state, {retry.resource: f"{SHARED}/{GOOD.job_name}"}) == []


def test_cancelled_run_has_no_result_to_overwrite() -> None:
    plan = plan_of([replace(FIRST, state=State.CANCELLED), LATER], BOTH)
    assert DriftKind.OVERWRITTEN not in [drift.kind for drift in plan.drift]


@pytest.mark.parametrize(
    "first",
    [replace(FIRST, state=State.RUNNING), replace(FIRST, start_time="")],
    ids=["begun", "ended without a known start"],
)
def test_run_that_has_begun_or_ended_is_overwritten_by_one_that_began_later(first: ActualJob) -> None:
    state = state_of([GOOD], [first, LATER], [bound_to(GOOD, first), bound_to(BAD, LATER)])
    overwriting = with_overwriting(state, BOTH).names["census"].overwriting
    assert overwriting is not None
    assert overwriting.run == LATER


def test_overwritten_result_of_suspended_job_is_no_drift() -> None:
    state = state_of([wanted(content="good", suspend=True)], [FIRST, LATER], [bound_to(GOOD, FIRST)])
    assert with_overwriting(state, BOTH).names["census"].overwriting is not None
    assert make_plan(LOCAL, with_overwriting(state, BOTH)).drift == ()


def test_state_keeps_the_folders_for_its_summary() -> None:
    assert with_overwriting(state_of([GOOD], [FIRST], []), BOTH).folders == BOTH


@pytest.mark.parametrize("runs", [[], [LATER]], ids=["nothing", "other content alone"])
def test_name_without_a_run_of_desired_content_needs_no_folder(runs: list[ActualJob]) -> None:
    state = state_of([GOOD], runs, [])
    assert undecided_runs(state, {}) == []
    assert with_overwriting(state, BOTH).names["census"].overwriting is None


def test_claim_whose_run_the_service_dropped_needs_no_folder() -> None:
    state = state_of([GOOD], [LATER], [bound_to(GOOD, FIRST), bound_to(BAD, LATER)])
    assert undecided_runs(state, BOTH) == []
    assert with_overwriting(state, BOTH).names["census"].overwriting is None


def test_claim_of_other_content_without_a_run_overwrites_nothing() -> None:
    pending = claim_on(BAD, ClaimState.PENDING)
    state = state_of([GOOD], [FIRST], [bound_to(GOOD, FIRST), pending])
    assert with_overwriting(state, BOTH).names["census"].overwriting is None


def test_second_run_and_stranger_of_other_content_overwrite_as_well() -> None:
    bound = started(run_of(BAD, State.SUCCEEDED, number=3))
    older = bound_to(BAD, bound)
    second = started(run_of(BAD, State.SUCCEEDED, number=4))
    stranger = started(run_of(BAD, State.SUCCEEDED, number=5, mark="unknown"))
    for other in (second, stranger):
        state = state_of([GOOD], [FIRST, bound, other], [bound_to(GOOD, FIRST), older])
        folders = {FIRST.resource: SHARED, bound.resource: "gs://elsewhere", other.resource: SHARED}
        overwriting = with_overwriting(state, folders).names["census"].overwriting
        assert overwriting is not None
        assert overwriting.run == other


def test_shared_folder_with_the_form_of_another_jobs_name_is_compared() -> None:
    folder = f"{SHARED}/{wanted('fraud').job_name}"
    state = state_of([GOOD], [FIRST, LATER], [bound_to(GOOD, FIRST), bound_to(BAD, LATER)])
    assert undecided_runs(state, {FIRST.resource: folder}) == [LATER]


def test_older_run_overwrites_when_it_ends_later_or_is_still_live() -> None:
    ended = replace(FIRST, start_time="2026-01-05T00:00:00Z", end_time="2026-01-05T01:00:00Z")
    for other in (
        replace(LATER, end_time="2026-01-05T02:00:00Z"),
        replace(LATER, state=State.RUNNING),
    ):
        assert only(plan_of([ended, other], BOTH)).stuck is NotDone.OVERWRITTEN
    earlier = replace(LATER, end_time="2026-01-05T00:30:00Z")
    assert only(plan_of([ended, earlier], BOTH)).stuck is not NotDone.OVERWRITTEN
