"""Laws and cases of the planner: which job gets which action, and what counts as drift."""

from __future__ import annotations

import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.job import ActualJob, State
from reconciler.labels import ATTEMPT, CODE, KEY
from reconciler.manifest import AIPLATFORM_V1, ML_V1, JsonObject, Manifest, Reconcile
from reconciler.naming import job_name, label_of
from reconciler.plan import Action, Change, DesiredJob, DriftKind, Plan, Target
from reconciler.planner import base_of, make_plan, predecessors

LOCAL = Target("local", "local", "local", "local")
GOOGLE = Target("prod", "google", "acme-ml", "us-central1")
LIVE = [state for state in State if not state.ended]


def wanted(name: str = "census", content: str = "a", *, code: str = "", **reconcile: object) -> DesiredJob:
    identity = hashlib.sha256(f"{name} {content} {code}".encode()).hexdigest()
    manifest = Manifest(
        api_version=AIPLATFORM_V1,
        kind="CustomJob",
        name=name,
        spec={"args": [content]},
        reconcile=Reconcile(**reconcile),  # type: ignore[arg-type]
        path=f"jobs/{name}.yaml",
    )
    digest = hashlib.sha256(code.encode()).hexdigest() if code else ""
    return DesiredJob(manifest, identity, job_name(manifest.base_name, identity), digest, manifest.spec)


def run_of(
    job: DesiredJob, state: State, attempt: int = 1, created: str = "2026-01-01T00:00:00Z"
) -> ActualJob:
    name = job_name(job.manifest.base_name, job.identity, attempt)
    labels = {KEY: label_of(job.identity), ATTEMPT: str(attempt)}
    if job.code:
        labels[CODE] = label_of(job.code)
    return ActualJob(
        resource=f"projects/1/locations/l/customJobs/{name}",
        job_name=name,
        api_version=AIPLATFORM_V1,
        kind="CustomJob",
        state=state,
        service_state=f"JOB_STATE_{state}",
        labels=labels,
        spec=job.spec,
        create_time=created,
    )


def plan(
    desired: list[DesiredJob], actual: list[ActualJob], target: Target = LOCAL, *, whole: bool = True
) -> Plan:
    return make_plan(target, desired, actual, _body, whole=whole)


def _body(job: DesiredJob) -> JsonObject:
    return {"displayName": job.job_name, "jobSpec": job.spec, "code": job.code}


def only(found: Plan) -> Change:
    (change,) = found.changes
    return change


def test_a_job_without_a_run_is_submitted() -> None:
    change = only(plan([wanted()], []))
    assert (change.action, change.reason, change.attempt) == (Action.SUBMIT, "new", 1)
    assert change.job_name == wanted().job_name


@pytest.mark.parametrize("state", list(State))
def test_a_job_with_a_run_is_left_alone_whatever_became_of_it(state: State) -> None:
    assert only(plan([wanted()], [run_of(wanted(), state)])).action is Action.NONE


@pytest.mark.parametrize(
    ("attempts", "seen", "action"), [(2, 1, Action.RETRY), (2, 2, Action.NONE), (3, 2, Action.RETRY)]
)
def test_a_failed_run_is_retried_while_attempts_are_left(attempts: int, seen: int, action: Action) -> None:
    job = wanted(attempts=attempts)
    change = only(plan([job], [run_of(job, State.FAILED, n) for n in range(1, seen + 1)]))
    assert change.action is action
    if action is Action.RETRY:
        assert change.attempt == seen + 1
        assert change.job_name == f"{job.job_name}_{seen + 1}"


@pytest.mark.parametrize("state", [state for state in State if state is not State.FAILED])
def test_only_a_failed_run_is_retried(state: State) -> None:
    job = wanted(attempts=5)
    assert only(plan([job], [run_of(job, State.FAILED), run_of(job, state, 2)])).action is Action.NONE


def test_a_suspended_job_is_not_submitted() -> None:
    change = only(plan([wanted(suspend=True)], []))
    assert (change.action, change.reason) == (Action.NONE, "suspended")


def test_a_changed_field_is_one_submit_that_shows_the_field() -> None:
    change = only(plan([wanted(content="b")], [run_of(wanted(content="a"), State.SUCCEEDED)]))
    assert change.action is Action.SUBMIT
    assert [(field.pointer, field.before, field.after) for field in change.fields] == [("/args/0", "a", "b")]
    assert change.reason == "1 field changed"


def test_changed_code_is_said() -> None:
    change = only(plan([wanted(code="new")], [run_of(wanted(code="old"), State.SUCCEEDED)]))
    assert change.action is Action.SUBMIT
    assert change.reason == "the code changed"
    assert [field.pointer for field in change.fields] == ["/package"]


def test_a_revert_to_content_that_ran_does_not_run_again() -> None:
    first, second = wanted(content="a"), wanted(content="b")
    runs = [run_of(first, State.SUCCEEDED, created="1"), run_of(second, State.SUCCEEDED, created="2")]
    assert only(plan([first], runs)).action is Action.NONE


@pytest.mark.parametrize("state", LIVE)
def test_a_live_run_of_older_content_is_drift_and_cancelled_only_if_asked(state: State) -> None:
    old = run_of(wanted(content="a"), state)
    kept = plan([wanted(content="b")], [old])
    assert [finding.kind for finding in kept.drift] == [DriftKind.SUPERSEDED]
    assert [change.action for change in kept.changes] == [Action.SUBMIT]
    cancelling = plan([wanted(content="b", on_change="cancel")], [old])
    asked = [change for change in cancelling.changes if change.action is Action.CANCEL]
    assert [change.job_name for change in asked] == ([] if state is State.CANCELLING else [old.job_name])


def test_a_live_run_without_a_manifest_is_orphaned_drift_only_when_all_is_planned() -> None:
    orphan = run_of(wanted("other"), State.RUNNING)
    assert [finding.kind for finding in plan([], [orphan]).drift] == [DriftKind.ORPHANED]
    assert plan([], [orphan], whole=False).drift == ()
    assert plan([], [replace(orphan, state=State.SUCCEEDED)]).drift == ()
    assert plan([], [orphan]).changes == ()


def test_two_runs_of_one_attempt_are_drift() -> None:
    job = wanted()
    elder = run_of(job, State.RUNNING)
    younger = replace(
        elder, resource="projects/1/locations/l/customJobs/2", create_time="2026-01-02T00:00:00Z"
    )
    (finding,) = plan([job], [younger, elder]).drift
    assert finding.kind is DriftKind.DUPLICATE
    assert finding.detail.index(younger.resource) < finding.detail.index(elder.resource)


def test_a_cancelled_run_of_a_wanted_job_is_drift() -> None:
    (finding,) = plan([wanted()], [run_of(wanted(), State.CANCELLED)]).drift
    assert finding.kind is DriftKind.CANCELLED_OUTSIDE


def test_an_ml_job_is_blocked_on_google_and_the_reason_says_how_to_move_on() -> None:
    job = wanted()
    job = replace(job, manifest=replace(job.manifest, api_version=ML_V1, kind="Job"))
    change = only(plan([job], [], GOOGLE))
    assert change.action is Action.BLOCKED
    assert "CustomJob" in change.reason
    assert only(plan([job], [], LOCAL)).action is Action.SUBMIT


def test_predecessors_are_the_newest_runs_of_changed_jobs_only() -> None:
    same, changed = wanted("same"), wanted("changed", "b")
    older = run_of(wanted("changed", "0"), State.SUCCEEDED, created="1")
    newer = run_of(wanted("changed", "a"), State.SUCCEEDED, created="2")
    runs = [run_of(same, State.SUCCEEDED), newer, older]
    assert predecessors([same, changed, wanted("new")], runs) == [newer]


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("census_0123456789abcdef", "census"),
        ("a_b_0123456789abcdef_2", "a_b"),
        ("census_0123456789abcdef_0123456789abcdef", "census_0123456789abcdef"),
        ("somebody-elses", "somebody-elses"),
    ],
)
def test_base_name_of_a_job_name(name: str, base: str) -> None:
    assert base_of(name) == base


names = st.sampled_from(["a", "b-c", "d_e"])
contents = st.sampled_from(["1", "2", "3"])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[DesiredJob], list[ActualJob]]:
    desired = [
        wanted(name, draw(contents), attempts=draw(st.integers(1, 3)), suspend=draw(st.booleans()))
        for name in draw(st.lists(names, unique=True))
    ]
    actual = [
        run_of(
            wanted(draw(names), draw(contents)), draw(st.sampled_from(State)), draw(st.integers(1, 3)), str(n)
        )
        for n in range(draw(st.integers(0, 6)))
    ]
    return desired, actual


@given(worlds(), st.randoms())
def test_the_plan_does_not_depend_on_the_order_of_what_it_is_given(
    world: tuple[list[DesiredJob], list[ActualJob]], random: object
) -> None:
    desired, actual = world
    shuffled_desired, shuffled_actual = desired[:], actual[:]
    random.shuffle(shuffled_desired)  # type: ignore[attr-defined]
    random.shuffle(shuffled_actual)  # type: ignore[attr-defined]
    assert plan(shuffled_desired, shuffled_actual) == plan(desired, actual)


@given(worlds())
def test_one_change_for_each_wanted_job_and_after_applying_nothing_is_left(
    world: tuple[list[DesiredJob], list[ActualJob]],
) -> None:
    desired, actual = world
    found = plan(desired, actual)
    of_desired = [change for change in found.changes if change.action is not Action.CANCEL]
    assert sorted(c.base_name for c in of_desired) == sorted(job.manifest.name for job in desired)
    names_there = {run.job_name for run in actual}
    submitted = [c for c in of_desired if c.action in (Action.SUBMIT, Action.RETRY)]
    assert not names_there & {change.job_name for change in submitted}
    made = [run_of(c.desired, State.RUNNING, c.attempt, "9") for c in submitted if c.desired]
    again = plan(desired, [*actual, *made])
    assert all(change.action is Action.NONE for change in again.changes)


@given(worlds())
def test_the_digest_tells_plans_apart_by_what_they_would_do(
    world: tuple[list[DesiredJob], list[ActualJob]],
) -> None:
    desired, actual = world
    found = plan(desired, actual)
    other = plan([*desired, wanted("z")], actual)
    assert found.digest != other.digest
    assert found.digest != plan(desired, actual, GOOGLE).digest


def test_a_run_of_other_content_under_the_same_name_blocks() -> None:
    clash = replace(run_of(wanted(), State.SUCCEEDED), labels={KEY: label_of("0" * 64)})
    change = only(plan([wanted()], [clash]))
    assert change.action is Action.BLOCKED
    assert clash.resource in change.reason


@pytest.mark.parametrize("state", [state for state in State if state is not State.FAILED])
def test_nothing_is_retried_beside_a_run_of_the_same_content_that_did_not_fail(state: State) -> None:
    job = wanted(attempts=3)
    elder = run_of(job, state)
    younger = replace(run_of(job, State.FAILED, created="2026-01-02T00:00:00Z"), resource="projects/1/2")
    assert only(plan([job], [elder, younger])).action is Action.NONE


def test_a_live_run_is_not_cancelled_for_a_blocked_job() -> None:
    job = wanted(content="b", on_change="cancel")
    job = replace(job, manifest=replace(job.manifest, api_version=ML_V1, kind="Job"))
    found = plan([job], [run_of(wanted(content="a"), State.RUNNING)], GOOGLE)
    assert [change.action for change in found.changes] == [Action.BLOCKED]
