"""The status of jobs: a row for each run, and for each attempt without a run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.model.cause import Cause, CauseClass
from reconciler.model.claim import ClaimState
from reconciler.model.job import COMMIT, KEY, ErrorInfo, State
from reconciler.model.manifest import TRAINING_PIPELINE, Reconcile
from reconciler.model.naming import job_name
from reconciler.model.plan import Action, Change, DesiredJob
from reconciler.model.reason import ReasonCode
from reconciler.output.wording.cause import cause_remedy
from reconciler.output.wording.plan import outcome_error, progress_text, row_error
from reconciler.planning.outcome import JobStatus, Outcome, Status, SubmitProgress, failed
from reconciler.planning.status_rows import by_attention, is_shown, job_statuses, newest_first
from tests.support.planning import PARENT, bound_to, claim_on, run_of, saying, state_of, wanted

JOB = wanted()


def get_statuses(desired: list[DesiredJob], runs: list, claims: list) -> list[JobStatus]:  # type: ignore[type-arg]
    return job_statuses(state_of(desired, runs, claims))


def test_status_has_row_for_wanted_job_without_claim_or_run() -> None:
    row = JobStatus(JOB.job_name, "census", "CustomJob", None, "none", current=True, manifest=JOB.manifest)
    assert get_statuses([JOB], [], []) == [row]


def test_row_has_fields_of_run_from_service() -> None:
    run = run_of(
        JOB,
        State.FAILED,
        attempt=2,
        start_time="2026-01-01T00:01:00Z",
        end_time="2026-01-01T00:02:00Z",
        error="out of memory",
        url="https://x",
    )
    run = replace(run, labels={**run.labels, COMMIT: "c" * 40})
    assert get_statuses([JOB], [run], [bound_to(JOB, run, attempt=2, error="old")]) == [
        JobStatus(
            job_name=f"{JOB.job_name}_2",
            base_name="census",
            kind="CustomJob",
            state=State.FAILED,
            claim="bound",
            service_state="JOB_STATE_FAILED",
            create_time="2026-01-01T00:00:00Z",
            start_time="2026-01-01T00:01:00Z",
            end_time="2026-01-01T00:02:00Z",
            error="out of memory",
            resource=f"{PARENT}/1",
            url="https://x",
            commit="c" * 40,
            attempt=2,
            cause=Cause(
                CauseClass.RESOURCES,
                ReasonCode.OUT_OF_MEMORY,
                {"head": "out of memory"},
                "census",
                kind="CustomJob",
            ),
            current=True,
            run_labels=run.labels,
            manifest=JOB.manifest,
        )
    ]


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize("state", list(ClaimState))
def test_row_has_state_of_claim_with_or_without_run(state: ClaimState, there: bool) -> None:
    claim = claim_on(JOB, state, attempt=2, error="no quota", commit="c" * 40)
    (row,) = get_statuses([JOB], [run_of(JOB, State.RUNNING, 2)] if there else [], [claim])
    assert (row.claim, row.state) == (state.value, State.RUNNING if there else None)
    assert (row.job_name, row.base_name, row.kind, row.attempt) == (
        f"{JOB.job_name}_2",
        "census",
        "CustomJob",
        2,
    )
    said = "no quota"
    if state is ClaimState.BOUND:
        # For a bound claim, the error is the reason of a cancel; a run that wasn't cancelled doesn't show it.
        said = ""
    if state is ClaimState.HELD and not there:
        said += f"; run `reconciler resolve {JOB.job_name}_2 --resubmit` or `--give-up`"
    if state is ClaimState.PENDING and not there:
        said = "the next apply looks for its job, and submits it again once no earlier request can create one"
    assert row_error(row) == said
    assert row.commit == ("" if there else "c" * 40)
    assert row.resource == (f"{PARENT}/1" if there else "")


def test_row_says_given_up_when_claim_was_given_up() -> None:
    (row,) = get_statuses([], [], [claim_on(JOB, ClaimState.HELD, given_up=True, error="odd")])
    assert row_error(row) == "given up; run it again with `reconciler rerun census`"


@pytest.mark.parametrize("ended", [None, State.SUCCEEDED, State.FAILED, State.CANCELLED])
def test_row_has_state_from_claim_when_service_dropped_job(ended: State | None) -> None:
    (row,) = get_statuses([], [], [claim_on(JOB, ended=ended, resource=f"{PARENT}/1")])
    assert (row.state, row.claim, row.resource, row.create_time) == (ended, "bound", f"{PARENT}/1", "")


def test_run_without_claim_has_claim_none() -> None:
    (row,) = get_statuses([JOB], [run_of(JOB, State.RUNNING)], [])
    assert row.claim == "none"


def test_run_that_claim_does_not_record_has_claim_none() -> None:
    run, stranger = run_of(JOB, State.RUNNING, number=2), run_of(JOB, State.FAILED, number=1, mark="unknown")
    rows = get_statuses([JOB], [run, stranger], [bound_to(JOB, run)])
    assert [(row.resource, row.claim) for row in rows] == [(f"{PARENT}/1", "none"), (f"{PARENT}/2", "bound")]
    rows = get_statuses([JOB], [stranger], [claim_on(JOB, ClaimState.PENDING)])
    assert [(row.resource, row.claim) for row in rows] == [(f"{PARENT}/1", "none"), ("", "pending")]


def test_status_has_row_for_every_run_of_attempt() -> None:
    runs = [run_of(JOB, State.RUNNING, number=number) for number in (1, 2)]
    rows = get_statuses([JOB], runs, [bound_to(JOB, runs[0])])
    assert [(row.resource, row.claim) for row in rows] == [(f"{PARENT}/1", "bound"), (f"{PARENT}/2", "bound")]


def test_rows_are_sorted_by_base_name_then_dropped_then_age_then_unsubmitted() -> None:
    older = [wanted(content=content) for content in "xyz"]
    runs = [run_of(older[0], State.SUCCEEDED, number=2), run_of(older[1], State.SUCCEEDED, number=1)]
    claims = [
        bound_to(older[0], runs[0]),
        bound_to(older[1], runs[1]),
        claim_on(older[2], ended=State.SUCCEEDED),
        claim_on(JOB, ClaimState.PENDING),
    ]
    rows = get_statuses([JOB, wanted("a")], runs, claims)
    assert [row.job_name for row in rows] == [
        wanted("a").job_name,
        older[2].job_name,
        older[1].job_name,
        older[0].job_name,
        JOB.job_name,
    ]


def test_base_name_comes_from_manifest_then_claim_then_run() -> None:
    dashed, underscored = wanted("a-b"), wanted("a_b", "older")
    run = run_of(underscored, State.RUNNING)
    assert [row.base_name for row in get_statuses([dashed], [run], [bound_to(underscored, run)])] == [
        "a-b",
        "a-b",
    ]
    assert [row.base_name for row in get_statuses([], [run], [bound_to(underscored, run)])] == ["a_b"]
    assert [row.base_name for row in get_statuses([], [run_of(dashed, State.RUNNING)], [])] == ["a_b"]


@pytest.mark.fault(19)
def test_job_with_older_hash_name_has_single_row() -> None:
    old = "1" * 64
    run = run_of(JOB, State.RUNNING, identity=old)
    rows = get_statuses([replace(JOB, earlier=(old,))], [run], [bound_to(JOB, run, identity=old)])
    assert [row.job_name for row in rows] == [job_name("census", old)]
    assert KEY in run.labels


@pytest.mark.fault(16, 72)
@pytest.mark.parametrize("kind", ["HyperparameterTuningJob", TRAINING_PIPELINE])
def test_trials_and_backing_jobs_have_no_rows(kind: str) -> None:
    job = replace(JOB, manifest=replace(JOB.manifest, kind=kind))
    trial = run_of(job, State.RUNNING, kind="CustomJob")
    assert [row.claim for row in get_statuses([job], [trial], [])] == ["none"]


def list_shown_rows(desired: list[DesiredJob], runs: list, claims: list, *, whole: bool = True) -> list[str]:  # type: ignore[type-arg]
    return [
        row.resource or row.job_name
        for row in get_statuses(desired, runs, claims)
        if is_shown(row, whole=whole)
    ]


def test_status_shows_only_newest_run_of_job_by_default() -> None:
    runs = [run_of(JOB, State.FAILED, attempt, number=attempt) for attempt in (1, 2)]
    claims = [bound_to(JOB, run, attempt=number) for number, run in enumerate(runs, 1)]
    assert list_shown_rows([JOB], runs, claims) == [f"{PARENT}/2"]


def test_changed_content_is_shown_as_not_submitted_only_beside_live_run() -> None:
    older = wanted(content="older")
    ended, live = run_of(older, State.SUCCEEDED), run_of(older, State.RUNNING)
    assert list_shown_rows([JOB], [ended], [bound_to(older, ended)]) == [JOB.job_name]
    assert list_shown_rows([JOB], [live], [bound_to(older, live)]) == [live.resource, JOB.job_name]


@pytest.mark.parametrize("state", [ClaimState.PENDING, ClaimState.HELD])
def test_open_submission_of_older_content_is_shown(state: ClaimState) -> None:
    older = wanted(content="older")
    assert older.job_name in list_shown_rows([JOB], [], [claim_on(older, state)])
    assert older.job_name not in list_shown_rows([JOB], [], [claim_on(older, ClaimState.HELD, given_up=True)])


def test_ended_run_without_manifest_is_shown_only_when_manifests_are_unreadable() -> None:
    runs = [run_of(JOB, State.SUCCEEDED, attempt, number=attempt) for attempt in (1, 2)]
    assert list_shown_rows([], runs, []) == []
    assert list_shown_rows([], runs, [], whole=False) == [f"{PARENT}/2"]
    live = run_of(JOB, State.RUNNING)
    assert list_shown_rows([], [live], [bound_to(JOB, live)]) == [live.resource]


def test_rows_are_sorted_by_needed_attention_then_newest_first() -> None:
    jobs = [wanted(name) for name in "abcdef"]
    states = [State.SUCCEEDED, State.RUNNING, State.FAILED, State.FAILED]
    runs = [
        run_of(job, state, number=number, create_time=f"2026-01-0{number}T00:00:00Z")
        for number, (job, state) in enumerate(zip(jobs, states, strict=False), 1)
    ]
    suspended = replace(jobs[5], manifest=replace(jobs[5].manifest, reconcile=Reconcile(suspend=True)))
    rows = get_statuses([*jobs[:5], suspended], runs, [claim_on(jobs[4], ClaimState.HELD)])
    assert [row.base_name for row in by_attention(rows)] == ["d", "c", "e", "b", "a", "f"]
    assert [row.base_name for row in newest_first(rows)] == ["d", "c", "b", "a", "e", "f"]


def test_rows_of_same_time_are_sorted_by_name_then_job_then_resource() -> None:
    names = [("a", "a_1", "9"), ("b", "a_0", "9"), ("b", "b_0", "1"), ("b", "b_0", "2")]
    rows = [
        JobStatus(job, base, "CustomJob", None, "none", resource=resource) for base, job, resource in names
    ]
    assert newest_first(reversed(rows)) == by_attention(reversed(rows)) == rows


def test_attempt_without_run_is_current_row_of_its_manifest() -> None:
    first = bound_to(JOB, run_of(JOB, State.FAILED))
    second = claim_on(JOB, ClaimState.PENDING, attempt=2)
    older, newest = get_statuses([JOB], [run_of(JOB, State.FAILED)], [first, second])
    assert (older.current, newest.current, newest.manifest) == (False, True, JOB.manifest)


def test_remedy_names_job_as_manifest_does() -> None:
    job = wanted("a-b")
    (row,) = get_statuses([job], [run_of(job, State.FAILED, error="exit code 1")], [])
    assert row.cause
    assert "`reconciler logs a-b`" in cause_remedy(row.cause)


@pytest.mark.parametrize(
    ("claim", "state", "condition"),
    [
        ("none", None, "not submitted"),
        ("pending", None, "outcome unknown"),
        ("bound", None, "deleted outside"),
        ("rejected", None, "refused"),
        ("held", None, "held"),
        *(("bound", state, state.lower()) for state in State),
    ],
)
def test_condition_is_state_of_run_or_reason_for_missing_run(
    claim: str, state: State | None, condition: str
) -> None:
    row = JobStatus("a_1", "a", "CustomJob", state, claim)
    assert row.condition == condition
    given_up = replace(row, given_up=True)
    assert given_up.condition == (condition if state else "given up")
    assert replace(given_up, unreadable=True).condition == "unreadable"
    is_live = state is not None and not state.ended
    assert row.is_open is (is_live or (state is None and claim in ("pending", "held")))
    assert given_up.is_open is is_live


def test_only_current_content_of_suspended_job_is_suspended() -> None:
    suspended = replace(JOB.manifest, reconcile=Reconcile(suspend=True))
    row = JobStatus("a_1", "a", "CustomJob", State.FAILED, "bound", current=True, manifest=suspended)
    assert row.condition == "suspended"
    assert replace(row, state=None).condition == "suspended"
    assert replace(row, current=False).condition == "failed"
    assert replace(row, manifest=JOB.manifest).condition == "failed"
    assert replace(row, manifest=None).condition == "failed"
    assert (replace(row, manifest=None).labels, row.labels) == ({}, suspended.labels)


@pytest.mark.parametrize(
    ("state", "condition"),
    [
        (State.FAILED, "suspended"),
        (State.CANCELLED, "suspended"),
        (State.SUCCEEDED, "succeeded"),
        (State.RUNNING, "running"),
    ],
)
def test_suspended_job_shows_succeeded_once_it_succeeded(state: State, condition: str) -> None:
    job = replace(JOB, manifest=replace(JOB.manifest, reconcile=Reconcile(suspend=True)))
    (row,) = get_statuses([job], [run_of(job, state)], [])
    assert row.condition == condition


def test_labels_of_manifest_override_labels_of_run() -> None:
    job = replace(JOB, manifest=replace(JOB.manifest, labels={"team": "risk"}))
    run = run_of(job, State.RUNNING)
    run = replace(run, labels={**run.labels, "team": "fraud", "stage": "dev"})
    (row,) = get_statuses([job], [run], [])
    assert (row.labels["team"], row.labels["stage"]) == ("risk", "dev")


def test_failed_change_has_error_without_its_full_stop_before_hint() -> None:
    change = Change(Action.SUBMIT, saying("new"), "census", JOB.job_name, "CustomJob")
    outcome = failed(change, ServiceError("The bucket is missing.", hint="make it"))
    assert (outcome.status, outcome_error(outcome)) == (Status.FAILED, "The bucket is missing (make it)")
    outcome = failed(change, ServiceError("The bucket is missing."))
    assert outcome_error(outcome) == "The bucket is missing."


def test_progress_begins_with_no_submission_done() -> None:
    begun = SubmitProgress(2)
    assert (begun.done, begun.failed, begun.open, progress_text(begun)) == (0, 0, 0, "")


# --- the words of rows, and their order -------------------------------------------------------------------


def test_names_of_outcome_statuses_never_change() -> None:
    assert [str(status) for status in Status] == ["applied", "failed", "skipped"]


def test_outcome_and_row_have_empty_defaults() -> None:
    outcome = Outcome(Change(Action.NONE, saying(""), "a", "a_1", "CustomJob"), Status.APPLIED)
    assert (outcome.state, outcome.reason, outcome.resource) == (None, None, "")
    row = JobStatus("a_1", "a", "CustomJob", None, "none")
    told = (
        row.service_state,
        row.create_time,
        row.start_time,
        row.end_time,
        row.error,
        row.resource,
        row.url,
    )
    assert told == ("",) * 7
    assert (row.commit, row.attempt) == ("", 1)
    assert (row.cause, row.given_up, row.current, row.manifest, row.result) == (None, False, False, None, "")
    assert outcome.cause is None


def test_row_says_that_record_of_run_is_unreadable() -> None:
    job = wanted()
    for reason, is_unreadable in (("UNREADABLE", True), ("OUT_OF_MEMORY", False)):
        run = run_of(job, State.FAILED, info=ErrorInfo(reason))
        (row,) = get_statuses([job], [run], [bound_to(job, run)])
        assert row.unreadable is is_unreadable


def test_run_without_error_has_empty_error() -> None:
    (row,) = job_statuses(state_of([JOB], [run_of(JOB, State.RUNNING)]))
    assert row.error == ""


def test_row_has_error_of_claim_when_service_reports_none() -> None:
    run = run_of(JOB, State.RUNNING)
    claim = claim_on(JOB, ClaimState.HELD, error="once refused")
    (row,) = job_statuses(state_of([JOB], [run], [claim]))
    assert row.error == "once refused"


def test_row_shows_cancel_reason_only_once_run_is_cancelled() -> None:
    run = run_of(JOB, State.RUNNING)
    claim = bound_to(JOB, run, error="cancelled by `reconciler cancel`")
    (live,) = job_statuses(state_of([JOB], [run], [claim]))
    (gone,) = job_statuses(state_of([JOB], [], [replace(claim, ended=State.CANCELLED)]))
    assert (row_error(live), row_error(gone)) == ("", "cancelled by `reconciler cancel`")


def test_row_of_unwanted_attempt_without_run_has_base_name_of_claim() -> None:
    claim = claim_on(wanted("a-b"), ClaimState.PENDING)
    (row,) = job_statuses(state_of([], [], [claim]))
    assert row.base_name == "a-b"


def test_only_newest_attempt_of_job_is_current_without_its_second_run() -> None:
    for older in ("0" * 64, "f" * 64):
        job = replace(JOB, earlier=(older,))
        first = run_of(JOB, State.FAILED)
        second, beside = (run_of(JOB, State.RUNNING, 2, number=number, identity=older) for number in (2, 3))
        claims = [bound_to(JOB, first), bound_to(JOB, second, attempt=2, identity=older)]
        rows = job_statuses(state_of([job], [first, second, beside], claims))
        assert [row.resource for row in rows if row.current] == [second.resource]


def test_unrecorded_run_sorts_after_dropped_job() -> None:
    claim = claim_on(JOB, resource="jobs/9", ended=State.SUCCEEDED)
    stranger = run_of(JOB, State.RUNNING, mark="unknown")
    rows = job_statuses(state_of([JOB], [stranger], [claim]))
    assert [(row.claim, row.resource) for row in rows] == [("bound", "jobs/9"), ("none", stranger.resource)]


def test_runs_of_same_time_are_sorted_by_name_then_resource() -> None:
    moment = "2026-01-01T00:00:00Z"
    first, second = wanted("a", "1"), wanted("a", "2")
    second, first = sorted((first, second), key=lambda job: job.job_name, reverse=True)
    runs = [
        replace(run_of(second, State.RUNNING, number=1), create_time=moment),
        replace(run_of(first, State.RUNNING, number=3), create_time=moment),
        replace(run_of(first, State.RUNNING, number=2, mark="other"), create_time=moment),
        replace(run_of(second, State.RUNNING, 2, number=4), create_time="2025-01-01T00:00:00Z"),
    ]
    rows = job_statuses(state_of([], runs))
    assert [row.resource.rpartition("/")[2] for row in rows] == ["4", "2", "3", "1"]


def test_unrecorded_run_of_same_time_is_sorted_by_resource() -> None:
    own = run_of(JOB, State.RUNNING, number=2)
    stranger = run_of(JOB, State.RUNNING, number=1, mark="unknown", create_time=own.create_time)
    claim = bound_to(JOB, own)
    rows = job_statuses(state_of([JOB], [own, stranger], [claim]))
    assert [row.resource for row in rows] == [stranger.resource, own.resource]
