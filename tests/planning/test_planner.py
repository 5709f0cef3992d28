"""The planner's table: each job's action and reason, and the cases that count as drift."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.model.claim import Claim, ClaimState, rerun_digest
from reconciler.model.job import KEY, REQUEST_ID, SOURCE, ActualJob, ErrorInfo, State, labels_digest
from reconciler.model.manifest import ML_V1, TRAINING_PIPELINE
from reconciler.model.naming import job_name, label_of
from reconciler.model.plan import Action, DesiredJob, DriftKind, NotDone, Plan
from reconciler.model.reason import Note, NoteCode, ReasonCode, because
from reconciler.planning import decide
from reconciler.planning.attempts import base_of, keys_of
from reconciler.planning.comparison import predecessors
from reconciler.planning.planner import acting_jobs, make_plan, with_blocked
from tests.support.planning import (
    GOOGLE,
    LIVE,
    LOCAL,
    OURS,
    PARENT,
    bound_to,
    claim_on,
    detail_of,
    mark_of,
    only,
    plan,
    reason_of,
    run_of,
    state_of,
    wanted,
)

JOB = wanted(attempts=2)
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
RERUN = "run it again with `reconciler rerun`"
MORE = f'raise "attempts" or {RERUN}'
GONE = "the service no longer has its record"
RESOLVE = f"run `reconciler resolve {JOB.job_name} --resubmit` or `--give-up`"
UNKNOWN = (
    "the outcome of its submission is unknown: apply looks for its job, and submits it {} if none appears"
)

BOUND, PENDING, REJECTED, HELD = (
    ClaimState.BOUND,
    ClaimState.PENDING,
    ClaimState.REJECTED,
    ClaimState.HELD,
)


def get_drift_kinds(found: Plan) -> list[str]:
    return [finding.kind for finding in found.drift]


def make_runs_and_claims(job: DesiredJob, *states: State) -> tuple[list[ActualJob], list[Claim]]:
    """Return runs of attempts 1, 2, … and their claims."""
    runs = [run_of(job, state, n, number=n) for n, state in enumerate(states, 1)]
    return runs, [bound_to(job, run, n) for n, run in enumerate(runs, 1)]


# Decisions by the claim and, if present, the run of the first attempt
CASES: list[tuple[dict[str, Any] | None, State | None, Action, str, NotDone | None]] = [
    (None, None, Action.SUBMIT, "new", None),
    *(
        (None, state, Action.SUBMIT, "found without a claim: adopted if it is the same job", None)
        for state in State
    ),
    ({}, State.QUEUED, Action.NONE, "queued", None),
    ({}, State.PREPARING, Action.NONE, "preparing", None),
    ({}, State.RUNNING, Action.NONE, "running", None),
    ({}, State.CANCELLING, Action.NONE, "cancelling", None),
    ({}, State.SUCCEEDED, Action.NONE, "succeeded", None),
    ({}, State.CANCELLED, Action.NONE, f"cancelled; {RERUN}", NotDone.CANCELLED),
    ({}, None, Action.NONE, f"deleted outside; {RERUN}", NotDone.DELETED),
    ({"gone": True}, None, Action.NONE, f"deleted outside; {RERUN}", NotDone.DELETED),
    ({"ended": State.SUCCEEDED}, None, Action.NONE, f"succeeded; {GONE}", None),
    ({"ended": State.CANCELLED}, None, Action.NONE, f"cancelled; {GONE}; {RERUN}", NotDone.CANCELLED),
    ({"state": PENDING}, None, Action.SUBMIT, UNKNOWN.format("again"), None),
    (
        {"state": PENDING, "credential_expiry": NOON},
        None,
        Action.SUBMIT,
        UNKNOWN.format("again after 12:00:02 UTC"),
        None,
    ),
    ({"state": REJECTED}, None, Action.SUBMIT, "refused: no reason given", None),
    ({"state": REJECTED, "error": "no quota"}, None, Action.SUBMIT, "refused: no quota", None),
    (
        {"state": REJECTED, "error": "no quota", "not_before": NOON},
        None,
        Action.SUBMIT,
        "refused: no quota; not before 12:00:00 UTC",
        None,
    ),
    *(
        ({"state": state}, run, Action.SUBMIT, "its job was found: the claim is bound to it", None)
        for state in (PENDING, REJECTED, HELD)
        for run in State
    ),
    (
        {"state": HELD, "given_up": True},
        State.RUNNING,
        Action.SUBMIT,
        "its job was found: the claim is bound to it",
        None,
    ),
    ({"state": HELD}, None, Action.BLOCKED, f"held; {RESOLVE}", None),
    ({"state": HELD, "error": "a clash"}, None, Action.BLOCKED, f"a clash; {RESOLVE}", None),
    (
        {"state": HELD, "error": "a clash", "odd": f"{PARENT}/1"},
        State.RUNNING,
        Action.BLOCKED,
        f"a clash; {RESOLVE}",
        None,
    ),
    ({"state": HELD, "given_up": True}, None, Action.NONE, f"given up; {RERUN}", NotDone.GIVEN_UP),
]


@pytest.mark.fault(23, 25)
@pytest.mark.parametrize(("fields", "state", "action", "reason", "stuck"), CASES)
def test_first_attempt_is_decided_by_its_claim_and_run(
    fields: dict[str, Any] | None, state: State | None, action: Action, reason: str, stuck: NotDone | None
) -> None:
    claims = [] if fields is None else [claim_on(JOB, **fields)]
    runs = [] if state is None else [run_of(JOB, state)]
    change = only(plan([JOB], runs, claims))
    assert (change.action, reason_of(change), change.stuck) == (action, reason, stuck)
    assert (change.base_name, change.job_name, change.attempt) == ("census", JOB.job_name, 1)
    assert (change.key, change.kind, change.path, change.line) == (
        label_of(JOB.identity),
        "CustomJob",
        "jobs/census.yaml",
        3,
    )
    assert (change.desired, change.actual) == (JOB, runs[0] if runs else None)
    assert (change.fields, change.repair) == ((), False)


def test_cases_cover_every_claim_state_with_and_without_run() -> None:
    told = {((fields or {}).get("state", BOUND), state) for fields, state, *_ in CASES if fields is not None}
    assert {(state, None) for state in ClaimState} <= told
    assert {(BOUND, state) for state in State} - told == {(BOUND, State.FAILED)}, "failed has its own table"


@pytest.mark.fault(25)
@pytest.mark.parametrize("state", list(State))
def test_reason_says_succeeded_only_for_succeeded_run(state: State) -> None:
    runs, claims = make_runs_and_claims(wanted(), state)
    change = only(plan([wanted()], runs, claims))
    assert reason_of(change).startswith(state.lower())
    assert ("succeeded" in reason_of(change)) == (state is State.SUCCEEDED)
    assert (change.stuck is None) == (state not in (State.FAILED, State.CANCELLED))


def test_decision_matches_every_member_without_default_case() -> None:
    tree = ast.parse(Path(decide.__file__).read_text())
    matches = [node for node in ast.walk(tree) if isinstance(node, ast.Match)]
    assert len(matches) == 2
    for match in matches:
        (last,) = match.cases[-1].body
        assert isinstance(last, ast.Expr)
        assert isinstance(last.value, ast.Call)
        assert ast.unparse(last.value.func) == "assert_never"


@pytest.mark.parametrize(
    ("attempts", "states", "action", "attempt", "reason"),
    [
        (1, [State.FAILED], Action.NONE, 1, f"failed; {MORE}"),
        (2, [State.FAILED], Action.RETRY, 2, "attempt 1 failed, 1 left"),
        (5, [State.FAILED], Action.RETRY, 2, "attempt 1 failed, 4 left"),
        (2, [State.FAILED, State.FAILED], Action.NONE, 2, f"failed; {MORE}"),
        (3, [State.FAILED, State.FAILED], Action.RETRY, 3, "attempt 2 failed, 1 left"),
        (1, [State.FAILED, State.FAILED], Action.NONE, 2, f"failed; {MORE}"),
        (3, [State.FAILED, State.RUNNING], Action.NONE, 2, "running"),
        (3, [State.FAILED, State.CANCELLED], Action.NONE, 2, f"cancelled; {RERUN}"),
        (3, [State.SUCCEEDED, State.FAILED], Action.NONE, 1, "succeeded"),
    ],
)
def test_next_attempt_follows_only_failed_attempt(
    attempts: int, states: list[State], action: Action, attempt: int, reason: str
) -> None:
    job = wanted(attempts=attempts)
    runs, claims = make_runs_and_claims(job, *states)
    change = only(plan([job], runs, claims))
    assert (change.action, change.attempt, reason_of(change)) == (action, attempt, reason)
    assert change.job_name == job_name("census", job.identity, attempt)
    assert change.actual == (runs[-1] if action is Action.RETRY else runs[attempt - 1])


@pytest.mark.parametrize(
    ("fields", "action", "reason"),
    [
        ({"ended": State.FAILED}, Action.RETRY, "attempt 1 failed, 1 left"),
        ({}, Action.NONE, f"deleted outside; {RERUN}"),
        ({"state": PENDING, "ended": State.FAILED}, Action.SUBMIT, UNKNOWN.format("again")),
    ],
)
def test_failure_recorded_in_bound_claim_counts_when_run_is_gone(
    fields: dict[str, Any], action: Action, reason: str
) -> None:
    change = only(plan([JOB], [], [claim_on(JOB, **fields)]))
    assert (change.action, reason_of(change)) == (action, reason)


def test_reason_names_failure_and_missing_record_when_no_attempt_is_left() -> None:
    change = only(plan([wanted()], [], [claim_on(wanted(), ended=State.FAILED)]))
    assert (reason_of(change), change.stuck) == (f"failed; {GONE}; {MORE}", NotDone.FAILED)


@pytest.mark.parametrize(
    ("fields", "action", "reason"),
    [
        ({"state": PENDING}, Action.RETRY, UNKNOWN.format("again")),
        ({"state": REJECTED, "error": "full"}, Action.RETRY, "refused: full"),
        (
            {"state": HELD},
            Action.BLOCKED,
            f"held; run `reconciler resolve {JOB.job_name}_2 --resubmit` or `--give-up`",
        ),
        ({"state": HELD, "given_up": True}, Action.NONE, f"given up; {RERUN}"),
        ({}, Action.NONE, f"deleted outside; {RERUN}"),
    ],
)
def test_begun_second_attempt_continues_under_its_name(
    fields: dict[str, Any], action: Action, reason: str
) -> None:
    runs, claims = make_runs_and_claims(JOB, State.FAILED)
    change = only(plan([JOB], runs, [*claims, claim_on(JOB, attempt=2, **fields)]))
    assert (change.action, reason_of(change)) == (action, reason)
    assert (change.attempt, change.job_name) == (2, f"{JOB.job_name}_2")


def test_succeeded_attempt_takes_precedence_over_unknown_later_attempt() -> None:
    runs, claims = make_runs_and_claims(JOB, State.SUCCEEDED)
    change = only(plan([JOB], runs, [*claims, claim_on(JOB, PENDING, 2)]))
    assert (change.action, reason_of(change), change.attempt) == (Action.NONE, "succeeded", 1)


def test_wait_for_unknown_outcome_depends_on_bounds_of_service() -> None:
    claim = claim_on(JOB, PENDING, credential_expiry=datetime.fromisoformat("2026-01-01T13:00:00.5+01:00"))
    assert reason_of(only(plan([JOB], [], [claim], GOOGLE))) == UNKNOWN.format("again after 12:10:00 UTC")


@pytest.mark.parametrize("state", [None, *State])
@pytest.mark.parametrize("claim_state", [None, *ClaimState])
def test_suspended_job_is_left_unchanged_in_any_state(
    claim_state: ClaimState | None, state: State | None
) -> None:
    job = wanted(suspend=True, attempts=3)
    claims = [claim_on(job, claim_state, error="odd")] if claim_state else []
    runs = [run_of(job, state)] if state else []
    found = plan([job], runs, claims)
    change = only(found)
    goes_on = ""
    if state and not state.ended:
        goes_on = f"; its run continues: {state.lower()}"
    elif claim_state is PENDING:
        goes_on = "; the outcome of its submission is unknown"
    elif claim_state is HELD:
        goes_on = "; odd"
    said = f"suspended{goes_on}"
    assert (change.action, reason_of(change), change.stuck) == (Action.NONE, said, NotDone.SUSPENDED)
    assert (change.attempt, change.key) == (1, label_of(job.identity))
    assert change.actual == (runs[0] if runs else None)
    assert found.drift == ()


def test_suspended_job_is_shown_at_its_newest_attempt() -> None:
    job = wanted(suspend=True, attempts=3)
    assert only(plan([job], *make_runs_and_claims(job, State.FAILED, State.FAILED))).attempt == 2


# Changes


def plan_changed_job(before: DesiredJob, after: DesiredJob, **claim: Any) -> Plan:
    run = run_of(before, State.SUCCEEDED)
    return plan([after], [run], [bound_to(before, run, **claim)])


@pytest.mark.parametrize(
    ("before", "after", "reason", "fields"),
    [
        (wanted(content="a"), wanted(content="b"), "1 field changed", ["/args/0"]),
        (wanted(code="old"), wanted(code="new"), "the code changed", ["/package"]),
        (wanted(), wanted(code="new"), "the code changed", ["/package"]),
        (wanted(rerun="1"), wanted(rerun="2"), "rerun changed", []),
        (
            wanted(content="a", code="old"),
            wanted(content="b", code="new"),
            "1 field changed and the code changed",
            ["/package", "/args/0"],
        ),
    ],
)
def test_changed_job_is_submitted_and_reason_names_changes(
    before: DesiredJob, after: DesiredJob, reason: str, fields: list[str]
) -> None:
    change = only(plan_changed_job(before, after))
    assert (change.action, reason_of(change)) == (Action.SUBMIT, reason)
    assert [field.pointer for field in change.fields] == fields
    assert change.actual is None


def test_changed_field_shows_both_values() -> None:
    (field,) = only(plan_changed_job(wanted(content="a"), wanted(content="b"))).fields
    assert (field.before, field.after) == ("a", "b")
    code = wanted(code="new")
    (field,) = only(plan_changed_job(wanted(), code)).fields
    assert (field.before, field.after) == (None, label_of(code.code))
    (field,) = only(plan_changed_job(code, wanted())).fields
    assert (field.before, field.after) == (label_of(code.code), None)


def test_reason_counts_changed_fields() -> None:
    after = replace(wanted(content="b"), packed={"args": ["b"], "network": "n"})
    assert reason_of(only(plan_changed_job(wanted(content="a"), after))) == "2 fields changed"


@pytest.mark.parametrize(
    ("args", "reason"),
    [
        (["new", "a", "b", "c"], "1 field changed"),
        (["b", "c"], "1 field changed"),
        (["x", "a", "y", "c"], "2 fields changed"),
    ],
)
def test_moved_list_items_are_not_counted(args: list[str], reason: str) -> None:
    before = replace(wanted(), packed={"args": ["a", "b", "c"]})
    after = replace(wanted(content="b"), packed={"args": args})
    assert reason_of(only(plan_changed_job(before, after))) == reason


@pytest.mark.parametrize(
    ("content", "code", "rerun", "reason"),
    [
        ("a", "", "2", "rerun changed"),
        ("b", "", "2", "1 field changed and rerun changed"),
        ("b", "c", "2", "1 field changed, the code changed and rerun changed"),
        ("b", "", "1", "1 field changed"),
    ],
)
def test_changed_rerun_is_named_beside_other_changes(
    content: str, code: str, rerun: str, reason: str
) -> None:
    found = plan_changed_job(
        wanted(rerun="1"), wanted(content=content, code=code, rerun=rerun), rerun=rerun_digest("1")
    )
    assert reason_of(only(found)) == reason


def test_omitted_default_does_not_count_as_changed_rerun() -> None:
    before = replace(wanted(content="x"), packed={"args": ["a"], "scheduling": {"timeout": "604800s"}})
    assert reason_of(only(plan_changed_job(before, wanted(), rerun=rerun_digest("")))) == (
        "only a default was added or removed"
    )


def test_field_filled_in_by_service_does_not_count_as_changed() -> None:
    before = run_of(wanted(content="a"), State.SUCCEEDED)
    filled = {
        **before.spec,
        "enableWebAccess": False,
        "scheduling": {"timeout": "604800s", "strategy": "STRATEGY_UNSPECIFIED"},
    }
    change = only(plan([wanted(content="b")], [replace(before, spec=filled)]))
    assert [field.pointer for field in change.fields] == ["/args/0"]


@pytest.mark.parametrize(
    ("before", "after", "pointers"),
    [
        ({"scheduling": {"timeout": "60s"}}, {"scheduling": {"timeout": "60.0s"}}, []),
        ({"replicaCount": "2"}, {"replicaCount": 2}, []),
        ({}, {"enableWebAccess": False, "labels": {}}, []),
        ({}, {"scheduling": {"timeout": "604800s"}}, ["/scheduling"]),
        ({"replicaCount": "2"}, {}, ["/replicaCount"]),
    ],
)
def test_differently_written_equal_value_does_not_count_as_changed(
    before: dict[str, Any], after: dict[str, Any], pointers: list[str]
) -> None:
    run = run_of(wanted(content="a"), State.SUCCEEDED, spec=before)
    job = replace(wanted(content="b"), packed=after)
    assert [field.pointer for field in only(plan([job], [run])).fields] == pointers


def test_job_is_compared_with_newest_run_of_its_name() -> None:
    runs = [run_of(wanted(content=c), State.SUCCEEDED, number=n) for n, c in enumerate("cab", 1)]
    (field,) = only(plan([wanted(content="d")], runs)).fields
    assert field.before == "b"


def test_content_after_dropped_records_counts_as_changed() -> None:
    change = only(plan([wanted(content="b")], [], [claim_on(wanted(content="a"), ended=State.SUCCEEDED)]))
    assert (change.action, reason_of(change), change.fields) == (Action.SUBMIT, "changed", ())


def test_predecessors_are_newest_runs_of_changed_jobs_only() -> None:
    same, changed_job, claimed = wanted("same"), wanted("changed", "b"), wanted("claimed", "b")
    older = run_of(wanted("changed", "0"), State.SUCCEEDED, number=1)
    newer = run_of(wanted("changed", "a"), State.SUCCEEDED, number=2)
    other = run_of(wanted("claimed", "a"), State.SUCCEEDED, number=3)
    runs = [run_of(same, State.SUCCEEDED, number=4), newer, older, other]
    small = state_of([same, claimed, changed_job, wanted("new")], runs, [claim_on(claimed, PENDING)])
    assert predecessors(small) == [newer]


def test_submitted_jobs_have_no_predecessors() -> None:
    job = wanted(content="b")
    runs = [run_of(wanted(content="a"), State.SUCCEEDED)]
    assert predecessors(state_of([job], runs, [claim_on(job, PENDING)])) == []


def test_job_with_run_of_own_content_has_no_predecessor() -> None:
    job = wanted(content="b")
    runs = [run_of(wanted(content="a"), State.SUCCEEDED), run_of(job, State.SUCCEEDED, number=2)]
    assert predecessors(state_of([job], runs)) == []


@pytest.mark.fault(22)
@pytest.mark.parametrize(
    ("state", "stuck"),
    [
        (State.SUCCEEDED, NotDone.REVERTED),
        (State.FAILED, NotDone.FAILED),
        (State.CANCELLED, NotDone.CANCELLED),
    ],
)
@pytest.mark.parametrize("forgotten", [False, True])
def test_reverted_content_does_not_run_again_and_reason_names_rerun(
    state: State, stuck: NotDone, forgotten: bool
) -> None:
    first, second = wanted(content="a"), wanted(content="b")
    old, new = run_of(first, state, number=1), run_of(second, State.SUCCEEDED, number=2)
    claims = [bound_to(first, old), bound_to(second, new)]
    change = only(plan([first], [new] if forgotten else [old, new], claims))
    assert (change.action, change.stuck) == (Action.NONE, stuck)
    assert reason_of(change) == f"already ran as {first.job_name} ({state.lower()}); {RERUN}"


def test_reason_of_revert_names_attempt_that_succeeded() -> None:
    first, second = wanted(content="a", attempts=2), wanted(content="b")
    (runs, claims), other = (
        make_runs_and_claims(first, State.FAILED, State.SUCCEEDED),
        run_of(second, State.FAILED, number=3),
    )
    change = only(plan([first], [*runs, other], [*claims, bound_to(second, other)]))
    assert reason_of(change) == f"already ran as {first.job_name}_2 (succeeded); {RERUN}"


@pytest.mark.fault(22)
def test_content_of_newest_or_live_run_is_not_reverted() -> None:
    first, second = wanted(content="a"), wanted(content="b")
    old, new = run_of(first, State.SUCCEEDED, number=1), run_of(second, State.SUCCEEDED, number=2)
    claims = [bound_to(first, old), bound_to(second, new)]
    assert reason_of(only(plan([second], [old, new], claims))) == "succeeded"
    live = replace(old, state=State.RUNNING)
    assert reason_of(only(plan([first], [live, new], claims))) == "running"


# Blocked jobs


def test_ml_job_is_blocked_on_google_and_reason_names_migrate() -> None:
    job = wanted()
    job = replace(job, manifest=replace(job.manifest, api_version=ML_V1, kind="Job"))
    change = only(plan([job], target=GOOGLE))
    assert (change.action, reason_of(change)) == (
        Action.BLOCKED,
        "Google shut down AI Platform Training on 2025-01-31; "
        "run `reconciler migrate`, which rewrites it for Vertex AI",
    )
    assert only(plan([job], [], [claim_on(job, PENDING)], GOOGLE)).action is Action.BLOCKED
    assert only(plan([job], target=LOCAL)).action is Action.SUBMIT
    assert only(plan([wanted()], target=GOOGLE)).action is Action.SUBMIT


def pipeline_with(**spec: Any) -> DesiredJob:
    """Return a desired pipeline with these fields besides its task."""
    job = wanted()
    return replace(job, manifest=replace(job.manifest, kind=TRAINING_PIPELINE, packed=spec))


def test_pipeline_with_a_dataset_is_blocked_on_the_embedded_service_with_advice() -> None:
    job = pipeline_with(inputDataConfig={"datasetId": "7"})
    change = only(plan([job], target=LOCAL))
    assert (change.action, change.reason.code) == (Action.BLOCKED, ReasonCode.DATASET_UNSUPPORTED)
    assert "read its data from Cloud Storage" in reason_of(change)
    assert only(plan([job], target=GOOGLE)).action is Action.SUBMIT


@pytest.mark.parametrize(
    ("project", "location", "is_here"),
    [
        (GOOGLE.project, GOOGLE.location, True),
        ("1234567", GOOGLE.location, True),  # may be the project's number
        ("other", GOOGLE.location, False),
        (GOOGLE.project, "europe-west4", False),
        ("1234567", "europe-west4", False),
    ],
)
def test_pipeline_is_blocked_with_a_parent_model_of_another_place(
    project: str, location: str, is_here: bool
) -> None:
    place = f"projects/{project}/locations/{location}"
    change = only(plan([pipeline_with(parentModel=f"{place}/models/census@2")], target=GOOGLE))
    assert change.action is (Action.SUBMIT if is_here else Action.BLOCKED)
    if not is_here:
        assert reason_of(change) == (
            f'"parentModel" is in {place}, and a pipeline registers its model in its own project and '
            f"location: name a model in projects/{GOOGLE.project}/locations/{GOOGLE.location}"
        )


SHARING = replace(LOCAL, sharing="dev")


def test_ml_job_is_blocked_in_shared_project_unless_its_run_is_bound() -> None:
    job = wanted(attempts=2)
    job = replace(job, manifest=replace(job.manifest, api_version=ML_V1, kind="Job"))
    run, failed = run_of(job, State.RUNNING), run_of(job, State.FAILED)
    for actual, claims in (
        ([], []),
        ([run], []),
        ([], [claim_on(job, PENDING)]),
        ([failed], [bound_to(job, failed)]),
    ):
        change = only(plan([job], actual, claims, SHARING))
        assert change.action is Action.BLOCKED
        assert 'the environment "dev" also uses the project "local"' in reason_of(change)
        assert "give the newer environment a project of its own" in reason_of(change)
        assert change.actual == (actual[0] if actual else None)
        assert only(plan([job], actual, claims)).action is not Action.BLOCKED
    change = only(plan([job], [run], [bound_to(job, run)], SHARING))
    assert (change.action, reason_of(change)) == (Action.NONE, "running")
    assert only(plan([wanted()], target=SHARING)).action is Action.SUBMIT


@pytest.mark.fault(24)
@pytest.mark.parametrize("attempt", [1, 2])
@pytest.mark.parametrize("other", ["run", "claim", "stranger"])
def test_job_is_blocked_when_other_content_has_its_name(other: str, attempt: int) -> None:
    twin = JOB.identity[:16] + "0" * 48
    name = job_name("census", JOB.identity, attempt)
    run = run_of(JOB, State.SUCCEEDED, attempt, number=9, identity=twin)
    claim = claim_on(JOB, PENDING, attempt, identity=twin, request_ids=("another",))
    assert run.job_name == claim.job_name == name
    mine = make_runs_and_claims(JOB, *[State.FAILED] * (attempt - 1))
    runs, claims = {"run": ([run], []), "claim": ([], [claim]), "stranger": ([run], [claim])}[other]
    change = only(plan([JOB], [*mine[0], *runs], [*mine[1], *claims]))
    who = f"a claim has the name {name} for" if other == "claim" else f"{run.resource} has this name but"
    assert reason_of(change) == f"{who} different content; get another name with `reconciler rerun`"
    assert (change.action, change.job_name, change.attempt) == (Action.BLOCKED, name, attempt)


@pytest.mark.fault(24)
def test_run_without_key_label_does_not_count_as_job_of_its_name() -> None:
    nameless = run_of(wanted(), State.SUCCEEDED)
    nameless = replace(nameless, labels={SOURCE: OURS})
    assert only(plan([wanted()], [nameless])).action is Action.BLOCKED


def test_name_of_other_content_does_not_block_begun_job() -> None:
    twin = JOB.identity[:16] + "0" * 48
    other = claim_on(JOB, PENDING, identity=twin)
    assert only(plan([JOB], [], [claim_on(JOB, PENDING), other])).action is Action.SUBMIT


@pytest.mark.parametrize("state", list(State))
def test_next_attempt_is_blocked_while_unrecorded_run_exists(state: State) -> None:
    runs, claims = make_runs_and_claims(JOB, State.FAILED)
    stranger = run_of(JOB, state, number=5, mark="unknown")
    change = only(plan([JOB], [*runs, stranger], claims))
    if state in (State.FAILED, State.CANCELLED):
        assert (change.action, reason_of(change)) == (Action.RETRY, "attempt 1 failed, 1 left")
        return
    end = "delete" if state is State.SUCCEEDED else "cancel"
    said = f"{PARENT}/5 has this job's labels, but no recorded request created it; {end} it, or {RERUN}"
    assert (change.action, reason_of(change), change.actual) == (Action.BLOCKED, said, stranger)
    assert change.attempt == 2


@pytest.mark.fault(18)
@pytest.mark.parametrize("state", State)
def test_next_attempt_is_blocked_while_run_labelled_as_later_attempt_exists(state: State) -> None:
    runs, claims = make_runs_and_claims(JOB, State.FAILED)
    later = run_of(JOB, state, 3, number=5)
    change = only(plan([JOB], [*runs, later], claims))
    blocked = state not in (State.FAILED, State.CANCELLED)
    assert (change.action, change.attempt) == (Action.BLOCKED if blocked else Action.RETRY, 2)


# Live runs of jobs that are no longer desired


def plan_superseding_job(state: State, on_change: str, **claim: Any) -> Plan:
    old = wanted(content="a")
    run = run_of(old, state)
    claims = [bound_to(old, run, **claim)] if claim.pop("known", True) else []
    return plan([wanted(content="b", on_change=on_change)], [run], claims)


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("on_change", ["keep", "cancel"])
def test_live_run_of_older_content_is_drift_and_cancelled_only_with_on_change_cancel(
    state: State, on_change: str
) -> None:
    found = plan_superseding_job(state, on_change)
    cancels = [change for change in found.changes if change.action is Action.CANCEL]
    assert get_drift_kinds(found) == ([] if state.ended else ["superseded"])
    assert len(cancels) == (on_change == "cancel" and state in LIVE and state is not State.CANCELLING)
    assert len(found.changes) == 1 + len(cancels)
    if found.drift:
        (finding,) = found.drift
        old = wanted(content="a")
        detail = f"{state.lower()} with content that jobs/census.yaml no longer has"
        assert (finding.job_name, finding.base_name, detail_of(finding)) == (old.job_name, "census", detail)


def test_cancel_of_older_content_names_its_replacement() -> None:
    old, new = wanted(content="a"), wanted(content="b")
    cancel = next(
        c for c in plan_superseding_job(State.RUNNING, "cancel").changes if c.action is Action.CANCEL
    )
    assert reason_of(cancel) == f"superseded by {new.job_name} (onChange: cancel)"
    assert (cancel.base_name, cancel.job_name, cancel.path, cancel.line) == (
        "census",
        old.job_name,
        "jobs/census.yaml",
        3,
    )
    assert (cancel.desired, cancel.repair, cancel.attempt, cancel.kind) == (None, False, 1, "CustomJob")
    assert (cancel.key, cancel.actual) == (label_of(old.identity), run_of(old, State.RUNNING))


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"known": False}, "; it is not cancelled: it has no claim"),
        ({"request_ids": ("another",)}, "; it is not cancelled: no recorded request created it"),
    ],
)
def test_superseded_run_without_own_claim_is_not_cancelled(fields: dict[str, Any], why: str) -> None:
    found = plan_superseding_job(State.RUNNING, "cancel", **fields)
    (finding,) = found.drift
    assert detail_of(finding) == f"running with content that jobs/census.yaml no longer has{why}"
    assert [change.action for change in found.changes] == [Action.SUBMIT]


def test_adopted_run_belongs_to_manifest_and_is_replaced_like_any_run() -> None:
    old, new = wanted(content="a"), wanted(content="b", on_change="cancel")
    run = run_of(old, State.RUNNING, labels={"team": "risk"}, job_name="census by hand")
    claim = bound_to(old, run, request_ids=(), job_name=run.job_name)
    unchanged = only(plan([old], [run], [claim]))
    assert (unchanged.action, reason_of(unchanged), unchanged.actual) == (Action.NONE, "running", run)
    found = plan([new], [run], [claim])
    assert [(change.action, change.actual) for change in found.changes] == [
        (Action.CANCEL, run),
        (Action.SUBMIT, None),
    ]
    assert reason_of(found.changes[1]) == "1 field changed"
    of_others = replace(run, labels={SOURCE: "others"})
    assert [change.action for change in plan([new], [of_others], [claim]).changes] == [Action.SUBMIT]


def test_code_of_adopted_run_counts_as_changed_only_when_spec_is_equal() -> None:
    old, new = wanted(content="a", code="x"), wanted(content="a", code="y")
    run = run_of(old, State.SUCCEEDED, labels={})
    claim = bound_to(old, run, request_ids=())
    assert reason_of(only(plan([new], [run], [claim]))) == "the code changed"
    other = wanted(content="b", code="x")
    assert reason_of(only(plan([other], [run], [claim]))) == "1 field changed"


def test_live_run_is_not_cancelled_when_replacement_is_blocked() -> None:
    old, new = wanted(content="a"), wanted(content="b", on_change="cancel")
    run = run_of(old, State.RUNNING)
    found = plan([new], [run], [bound_to(old, run), claim_on(new, HELD)])
    assert [change.action for change in found.changes] == [Action.BLOCKED]
    assert get_drift_kinds(found) == ["superseded"]


OTHER = wanted("other-job", on_delete="cancel")


@pytest.mark.parametrize("state", list(State))
@pytest.mark.parametrize("on_delete", ["keep", "cancel"])
def test_live_run_without_manifest_is_orphaned_and_cancelled_only_by_its_claim(
    state: State, on_delete: str
) -> None:
    job = wanted("other-job", on_delete=on_delete)
    run = run_of(job, state)
    found = plan([wanted()], [run], [bound_to(job, run, path="jobs/x.yaml")])
    cancels = [change for change in found.changes if change.action is Action.CANCEL]
    assert get_drift_kinds(found) == ([] if state.ended else ["orphaned"])
    assert len(cancels) == (on_delete == "cancel" and state in LIVE and state is not State.CANCELLING)
    for finding in found.drift:
        assert detail_of(finding) == f"{state.lower()}, but no manifest asks for it"
        assert (finding.job_name, finding.base_name) == (job.job_name, "other-job")
    for cancel in cancels:
        assert reason_of(cancel) == "no manifest asks for it (onDelete: cancel)"
        assert (cancel.base_name, cancel.job_name, cancel.path, cancel.line) == (
            "other-job",
            job.job_name,
            "jobs/x.yaml",
            0,
        )
        assert (cancel.repair, cancel.actual, cancel.key) == (False, run, label_of(job.identity))


@pytest.mark.parametrize(
    ("claims", "detail"),
    [
        ([], "running, but no manifest asks for it"),
        (
            [claim_on(OTHER, resource=f"{PARENT}/1", request_ids=("another",))],
            "running, but no manifest asks for it; it is not cancelled: no recorded request created it",
        ),
    ],
)
def test_orphan_without_own_claim_is_drift_only(claims: list[Claim], detail: str) -> None:
    found = plan([wanted()], [run_of(OTHER, State.RUNNING)], claims)
    assert [(finding.kind, detail_of(finding)) for finding in found.drift] == [(DriftKind.ORPHANED, detail)]
    assert [change.action for change in found.changes] == [Action.SUBMIT]


@pytest.mark.parametrize("state", list(ClaimState))
def test_unwanted_claim_without_run_is_not_reported(state: ClaimState) -> None:
    found = plan([wanted()], [], [claim_on(OTHER, state)])
    assert (found.drift, [change.action for change in found.changes]) == ((), [Action.SUBMIT])


def test_base_name_of_orphan_without_claim_comes_from_job_name() -> None:
    (finding,) = plan([], [run_of(OTHER, State.RUNNING)]).drift
    assert finding.base_name == "other_job"


@pytest.mark.fault(21)
def test_plan_cancels_no_run_when_no_manifest_exists_and_finding_says_so() -> None:
    runs = [run_of(OTHER, State.RUNNING, number=n) for n in (1, 2)]
    found = plan([], runs, [bound_to(OTHER, runs[0])])
    why = "; nothing is cancelled while there is no manifest at all"
    assert found.changes == ()
    assert [(finding.kind, detail_of(finding)) for finding in found.drift] == [
        (
            DriftKind.DUPLICATE,
            f"a second run of the same attempt (running): {PARENT}/2 beside {PARENT}/1{why}",
        ),
        (DriftKind.ORPHANED, f"running, but no manifest asks for it{why}"),
    ]
    kept = wanted("other-job")
    assert detail_of(plan([], runs[:1], [bound_to(kept, runs[0])]).drift[0]) == (
        "running, but no manifest asks for it"
    )


@pytest.mark.fault(21)
def test_partial_plan_reports_no_orphans() -> None:
    runs = [run_of(OTHER, State.RUNNING, number=n) for n in (1, 2)]
    found = plan([wanted()], runs, [bound_to(OTHER, runs[0])], whole=False)
    assert not found.whole
    assert found.drift == ()
    assert [change.action for change in found.changes] == [Action.SUBMIT]


# Two runs of an attempt


@pytest.mark.fault(13, 18)
def test_younger_runs_of_attempt_are_cancelled_as_repair() -> None:
    runs = [run_of(JOB, State.RUNNING, number=n) for n in (1, 2, 3)]
    found = plan([JOB], runs[::-1], [bound_to(JOB, runs[2])])
    kept, *cancels = sorted(found.changes, key=lambda change: change.action is Action.CANCEL)
    assert (kept.action, kept.actual, reason_of(kept)) == (Action.NONE, runs[0], "running")
    assert [change.actual for change in cancels] == runs[1:]
    for cancel in cancels:
        assert cancel.repair
        assert reason_of(cancel) == f"a second run of the same attempt; {PARENT}/1 stays"
        assert (cancel.base_name, cancel.job_name, cancel.key) == ("census", JOB.job_name, kept.key)
    assert [(finding.kind, detail_of(finding)) for finding in found.drift] == [
        (DriftKind.DUPLICATE, f"a second run of the same attempt (running): {PARENT}/{n} beside {PARENT}/1")
        for n in (2, 3)
    ]
    assert {(finding.job_name, finding.base_name) for finding in found.drift} == {(JOB.job_name, "census")}


@pytest.mark.fault(17, 18)
@pytest.mark.parametrize("state", [*(s for s in State if s.ended), State.CANCELLING])
def test_ended_or_cancelling_second_run_is_reported_without_cancel(state: State) -> None:
    runs = [run_of(JOB, State.RUNNING), run_of(JOB, state, number=2)]
    found = plan([JOB], runs, [bound_to(JOB, runs[0])])
    assert reason_of(only(found)) == "running"
    (finding,) = found.drift
    assert detail_of(finding) == (
        f"a second run of the same attempt ({state.lower()}): {PARENT}/2 beside {PARENT}/1"
    )


def test_plan_sorts_findings_of_same_job_by_their_sentences() -> None:
    first, older = run_of(JOB, State.RUNNING), run_of(JOB, State.RUNNING, number=4)
    younger = run_of(JOB, State.QUEUED, number=5)
    strangers = [
        run_of(JOB, state, number=n, mark="?") for n, state in ((2, State.RUNNING), (6, State.QUEUED))
    ]
    foreign = run_of(JOB, State.RUNNING, number=3)
    foreign = replace(foreign, labels={**foreign.labels, SOURCE: "globex"})
    found = plan([JOB], [first, older, younger, *strangers, foreign], [bound_to(JOB, first)])
    sentences = [detail_of(finding) for finding in found.drift]
    assert len({*sentences}) == 5
    assert sentences == sorted(sentences)


@pytest.mark.fault(18)
def test_second_run_is_reported_without_cancel_when_attempt_has_no_claim() -> None:
    found = plan([JOB], [run_of(JOB, State.RUNNING, number=n) for n in (1, 2)])
    assert (only(found).action, only(found).actual) == (Action.SUBMIT, run_of(JOB, State.RUNNING))
    assert get_drift_kinds(found) == ["duplicate"]


@pytest.mark.fault(18, 52)
@pytest.mark.parametrize("state", list(State))
def test_run_without_recorded_request_is_reported_and_never_cancelled(state: State) -> None:
    runs = [run_of(JOB, State.RUNNING, number=2), run_of(JOB, state, number=1, mark="unknown")]
    found = plan([JOB], runs, [bound_to(JOB, runs[0])])
    assert only(found).actual == runs[0]
    (finding,) = found.drift
    assert (finding.kind, finding.job_name, finding.base_name) == (
        DriftKind.DUPLICATE,
        JOB.job_name,
        "census",
    )
    assert detail_of(finding) == (
        f"{PARENT}/1 ({state.lower()}) has its labels, but no recorded request created it"
    )


@pytest.mark.fault(16, 72)
@pytest.mark.parametrize("claimed", [False, True])
@pytest.mark.parametrize("kind", ["HyperparameterTuningJob", TRAINING_PIPELINE])
def test_trials_and_backing_jobs_do_not_count_as_runs(kind: str, claimed: bool) -> None:
    job = wanted(attempts=2)
    job = replace(job, manifest=replace(job.manifest, kind=kind))
    run = run_of(job, State.RUNNING, number=5)
    trials = [run_of(job, State.RUNNING, number=n, kind="CustomJob") for n in (1, 9)]
    claims = [bound_to(job, run)] if claimed else []
    found = plan([job], [run, *trials], claims)
    assert (only(found).actual, found.drift) == (run, ())
    if claimed:
        assert [finding.job_name for finding in plan([], [run, *trials], claims).drift] == [run.job_name]


@pytest.mark.fault(14)
def test_run_listed_twice_counts_once() -> None:
    before, after = run_of(JOB, State.RUNNING), run_of(JOB, State.SUCCEEDED)
    for runs in ([before, after], [after, before]):
        found = plan([JOB], runs, [bound_to(JOB, before)])
        assert (reason_of(only(found)), found.drift) == ("succeeded", ())


@pytest.mark.fault(18, 52)
@pytest.mark.parametrize("labels", [{SOURCE: "theirs"}, {}])
def test_foreign_run_of_same_content_is_reported_and_never_changed(labels: dict[str, str]) -> None:
    run = run_of(JOB, State.RUNNING)
    kept = {name: value for name, value in run.labels.items() if name != SOURCE}
    foreign = replace(run, labels={**kept, **labels})
    found = plan([JOB], [foreign])
    assert (only(found).action, reason_of(only(found))) == (Action.SUBMIT, "new")
    (finding,) = found.drift
    assert (finding.kind, finding.job_name, finding.base_name, detail_of(finding)) == (
        DriftKind.DUPLICATE,
        JOB.job_name,
        "census",
        f"{PARENT}/1 (running) has the same content and belongs to {labels.get(SOURCE, 'nobody')}",
    )
    assert plan([JOB], [replace(foreign, state=State.SUCCEEDED)]).drift == ()
    assert plan([wanted("else")], [foreign]).drift == ()


def test_bound_run_stays_own_when_label_is_removed() -> None:
    run = run_of(JOB, State.RUNNING)
    for lost in (SOURCE, KEY, REQUEST_ID):
        labels = {name: value for name, value in run.labels.items() if name != lost}
        found = plan([JOB], [replace(run, labels=labels)], [bound_to(JOB, run)])
        assert (only(found).action, reason_of(only(found))) == (Action.NONE, "running")


# Events outside


def test_recorded_cancel_is_not_drift_and_is_reason_of_change() -> None:
    run = run_of(JOB, State.CANCELLED)
    claim = bound_to(JOB, run, error="cancelled by X")
    claim = replace(claim, ended=State.CANCELLED)
    for runs in ([replace(run, cancelled="cancelled by X")], []):
        found = plan([JOB], runs, [claim])
        assert found.drift == ()
        assert reason_of(only(found)).startswith("cancelled by X; ")


def test_run_cancelled_by_its_time_limit_is_not_drift() -> None:
    info = ErrorInfo("TIME_LIMIT", {"class": "cancelled"})
    run = run_of(JOB, State.CANCELLED)
    assert plan([JOB], [replace(run, info=info)], [bound_to(JOB, run)]).drift == ()


@pytest.mark.fault(23)
@pytest.mark.parametrize(
    ("run", "ended", "gone", "finding"),
    [
        (
            State.CANCELLED,
            None,
            False,
            ("cancelled-outside", "cancelled, although a manifest asks for it"),
        ),
        (
            None,
            State.CANCELLED,
            False,
            ("cancelled-outside", "cancelled, although a manifest asks for it"),
        ),
        (
            None,
            None,
            True,
            ("deleted-outside", "the service no longer has it, and its final state is unknown"),
        ),
        (None, State.SUCCEEDED, False, None),
        (None, State.FAILED, False, None),
        *((state, None, False, None) for state in State if state is not State.CANCELLED),
    ],
)
def test_outside_cancel_or_deletion_is_drift_and_is_not_undone(
    run: State | None, ended: State | None, gone: bool, finding: tuple[str, str] | None
) -> None:
    job = wanted()
    claim = claim_on(job, ended=ended, gone=gone, resource=f"{PARENT}/1")
    found = plan([job], [run_of(job, run)] if run else [], [claim])
    assert only(found).action is Action.NONE
    assert [(f.kind, detail_of(f)) for f in found.drift] == ([finding] if finding else [])
    assert {(f.job_name, f.base_name) for f in found.drift} <= {(job.job_name, "census")}


@pytest.mark.parametrize("state", [PENDING, REJECTED, HELD])
def test_unbound_job_is_never_reported_as_deleted_or_cancelled_outside(state: ClaimState) -> None:
    assert plan([JOB], [], [claim_on(JOB, state)]).drift == ()
    assert plan([JOB], [run_of(JOB, State.CANCELLED)], [claim_on(JOB, state)]).drift == ()


@pytest.mark.parametrize(
    ("labels", "resource", "drift"),
    [
        ({}, "1", []),
        ({"team": "risk"}, "1", ["modified"]),
        ({"goog-managed": "true"}, "1", []),
        ({"team": "risk"}, "7", []),
    ],
)
def test_labels_changed_after_submission_are_drift(
    labels: dict[str, str], resource: str, drift: list[str]
) -> None:
    run = run_of(JOB, State.RUNNING)
    claim = bound_to(JOB, run, labels=labels_digest(run.labels), resource=f"{PARENT}/{resource}")
    found = plan([JOB], [replace(run, labels={**run.labels, **labels})], [claim])
    assert get_drift_kinds(found) == drift
    for finding in found.drift:
        assert detail_of(finding) == "its labels differ from those it was submitted with"
        assert (finding.job_name, finding.base_name) == (JOB.job_name, "census")


def test_changed_metrics_files_of_judged_run_are_drift() -> None:
    run = run_of(JOB, State.SUCCEEDED)
    state = state_of([JOB], [run], [bound_to(JOB, run)])
    files = {run.resource: ("logs/metrics.json", "model/metrics.json"), f"{PARENT}/9": ("metrics.json",)}
    (drift,) = make_plan(LOCAL, replace(state, changed_files=files)).drift
    assert (drift.kind, drift.job_name, drift.base_name) == (DriftKind.MODIFIED, run.job_name, "census")
    note = Note(NoteCode.FILE_CHANGED, {"files": "logs/metrics.json, model/metrics.json"})
    assert drift.detail == note


def test_unrecorded_labels_are_not_drift() -> None:
    run = run_of(JOB, State.RUNNING)
    assert plan([JOB], [run], [bound_to(JOB, run)]).drift == ()


# Older versions of the hash

OLD, OLDER = "1" * 64, "2" * 64
UPGRADED = replace(JOB, earlier=(OLD, OLDER))


@pytest.mark.fault(19)
@pytest.mark.parametrize("identity", [OLD, OLDER])
@pytest.mark.parametrize("state", list(State))
def test_content_that_ran_under_older_hash_name_does_not_run_again(state: State, identity: str) -> None:
    run = run_of(JOB, state, identity=identity)
    claim = bound_to(JOB, run, identity=identity)
    found = plan([replace(UPGRADED, manifest=wanted().manifest)], [run], [claim])
    change = only(found)
    assert (change.action, change.actual) == (Action.NONE, run)
    assert (change.job_name, change.key) == (job_name("census", identity), label_of(identity))
    assert "superseded" not in get_drift_kinds(found)


@pytest.mark.fault(19)
@pytest.mark.parametrize("state", [PENDING, REJECTED, HELD])
def test_submission_begun_under_older_hash_name_continues_under_it(state: ClaimState) -> None:
    change = only(plan([UPGRADED], [], [claim_on(JOB, state, identity=OLD)]))
    assert (change.job_name, change.key) == (job_name("census", OLD), label_of(OLD))
    assert change.action is (Action.BLOCKED if state is HELD else Action.SUBMIT)
    assert change.desired == UPGRADED
    if state is HELD:
        assert job_name("census", OLD) in reason_of(change)


@pytest.mark.fault(19)
def test_retry_keeps_hash_version_of_earlier_attempt() -> None:
    run = run_of(JOB, State.FAILED, identity=OLDER)
    change = only(plan([UPGRADED], [run], [bound_to(JOB, run, identity=OLDER)]))
    assert (change.action, change.attempt) == (Action.RETRY, 2)
    assert (change.job_name, change.key) == (job_name("census", OLDER, 2), label_of(OLDER))


@pytest.mark.fault(19)
def test_hash_version_that_ran_takes_precedence_then_newest_version() -> None:
    old = run_of(JOB, State.SUCCEEDED, identity=OLD)
    claims = [bound_to(JOB, old, identity=OLD), claim_on(JOB, PENDING)]
    assert only(plan([UPGRADED], [old], claims)).job_name == old.job_name
    pending = [claim_on(JOB, PENDING, identity=identity) for identity in (OLDER, JOB.identity, OLD)]
    assert only(plan([UPGRADED], [], pending)).job_name == JOB.job_name
    assert only(plan([UPGRADED], [], [pending[0], pending[2]])).job_name == job_name("census", OLD)


def test_keys_are_sorted_newest_first() -> None:
    assert keys_of(UPGRADED) == tuple(map(label_of, (JOB.identity, OLD, OLDER)))


@pytest.mark.parametrize(
    ("name", "base"),
    [
        ("census_0123456789abcdef", "census"),
        ("a_b_0123456789abcdef_2", "a_b"),
        ("census_0123456789abcdef_0123456789abcdef", "census_0123456789abcdef"),
        ("somebody-elses", "somebody-elses"),
    ],
)
def test_base_name_is_parsed_from_job_name(name: str, base: str) -> None:
    assert base_of(name) == base


@pytest.mark.parametrize("state", [state for state in State if state is not State.FAILED])
def test_attempt_is_not_retried_while_other_run_of_it_did_not_fail(state: State) -> None:
    job = wanted(attempts=3)
    elder, younger = run_of(job, state), run_of(job, State.FAILED, number=2)
    change = only(plan([job], [elder, younger], [bound_to(job, younger)]))
    assert (change.action, change.actual) == (Action.NONE, elder)


def test_base_names_with_dash_and_underscore_are_equal() -> None:
    job = wanted("census-income", "b", on_change="cancel")
    old = run_of(wanted("census_income", "a"), State.RUNNING)
    found = plan([job], [old], [bound_to(wanted("census_income", "a"), old)])
    assert get_drift_kinds(found) == ["superseded"]
    assert {change.base_name for change in found.changes} == {"census-income"}
    assert mark_of(job) != old.labels[REQUEST_ID]


def test_changes_and_findings_are_sorted() -> None:
    jobs = [wanted(name) for name in ("b", "a", "c")]
    orphans = [wanted(name) for name in ("z", "y", "x", "w")]
    runs = [
        run_of(job, State.RUNNING, number=n) for n, job in enumerate((OTHER, wanted("another"), *orphans), 1)
    ]
    found = plan(jobs, runs)
    assert [change.base_name for change in found.changes] == ["a", "b", "c"]
    assert [finding.base_name for finding in found.drift] == ["another", "other_job", "w", "x", "y", "z"]


def get_reasons(changes: Iterable[Any]) -> list[str]:
    return [reason_of(change) for change in changes]


def test_reported_drift_does_not_change_plan_digest() -> None:
    runs, claims = make_runs_and_claims(JOB, State.RUNNING)
    stranger = run_of(JOB, State.RUNNING, number=5, mark="unknown")
    with_drift, without = plan([JOB], [*runs, stranger], claims), plan([JOB], runs, claims)
    assert with_drift.digest == without.digest
    assert get_reasons(with_drift.changes) == get_reasons(without.changes) == ["running"]


@pytest.mark.fault(18)
@pytest.mark.parametrize("state", [PENDING, REJECTED, HELD, BOUND])
def test_later_attempt_known_only_by_labels_is_ignored(state: ClaimState) -> None:
    """A person copied a job's labels and wrote another attempt: the first attempt hasn't failed."""
    first = claim_on(JOB, state, resource=f"{PARENT}/9")
    forged = run_of(JOB, State.SUCCEEDED, 2, mark="forged")
    change = only(plan([JOB], [forged], [first]))
    assert (change.attempt, change.actual) == (1, None)


def test_later_attempt_known_only_by_labels_counts_when_earlier_attempt_failed() -> None:
    failed = run_of(JOB, State.FAILED)
    second = run_of(JOB, State.RUNNING, 2, number=2)
    change = only(plan([JOB], [failed, second], [bound_to(JOB, failed)]))
    assert (change.action, change.attempt) == (Action.RETRY, 2)
    assert reason_of(change) == "found without a claim: adopted if it is the same job"


def test_attempts_are_adopted_in_order_when_all_claims_are_lost() -> None:
    runs = [run_of(JOB, State.FAILED), run_of(JOB, State.RUNNING, 2, number=2)]
    change = only(plan([JOB], runs, []))
    assert (change.action, change.attempt) == (Action.SUBMIT, 1)
    assert reason_of(change) == "found without a claim: adopted if it is the same job"


@pytest.mark.fault(18)
@pytest.mark.parametrize("state", State)
def test_first_attempt_is_blocked_while_run_labelled_as_later_attempt_exists(state: State) -> None:
    """The claims and the record of attempt 1 were lost, or the labels were made up."""
    run = run_of(JOB, state, 2)
    change = only(plan([JOB], [run], []))
    if state in (State.FAILED, State.CANCELLED):
        assert (change.action, change.attempt) == (Action.SUBMIT, 1)
        return
    assert (change.action, change.attempt, change.actual) == (Action.BLOCKED, 1, run)
    end = "delete" if state is State.SUCCEEDED else "cancel"
    assert reason_of(change) == (
        f"{run.resource} has this job's labels, but no recorded request created it; {end} it, or {RERUN}"
    )


def test_blocked_submission_keeps_run_that_it_would_replace_and_no_other_change_changes() -> None:
    jobs = [wanted(name, on_change="cancel") for name in ("census", "done", "fraud")]
    runs, claims = [], []
    for number, job in enumerate(jobs, 1):
        old = wanted(job.manifest.name, content="b")
        runs.append(run_of(old, State.RUNNING, number=number))
        claims.append(bound_to(old, runs[-1]))
    second = replace(runs[0], resource=f"{PARENT}/8", create_time="2026-01-08T00:00:00Z")
    done = run_of(jobs[1], State.SUCCEEDED, number=9)
    found = plan(jobs, [*runs, second, done], [*claims, bound_to(jobs[1], done)])
    reason = because(ReasonCode.NAME_OF_OTHER_CLAIM, job_name="x")
    reasons = {jobs[0].job_name: reason, jobs[1].job_name: reason}

    def actions(changed: Plan) -> list[tuple[str, Action, str]]:
        return sorted(
            (one.base_name, one.action, one.actual.resource if one.actual else "") for one in changed.changes
        )

    kept = [
        ("census", Action.CANCEL, second.resource),
        ("done", Action.CANCEL, runs[1].resource),
        ("done", Action.NONE, done.resource),
        ("fraud", Action.CANCEL, runs[2].resource),
        ("fraud", Action.SUBMIT, ""),
    ]
    replaced = ("census", Action.CANCEL, runs[0].resource)
    assert actions(found) == sorted([*kept, replaced, ("census", Action.SUBMIT, "")])
    blocked = with_blocked(found, reasons)
    assert actions(blocked) == sorted([*kept, ("census", Action.BLOCKED, "")])
    assert [one.reason for one in blocked.changes if one.action is Action.BLOCKED] == [reason]
    assert blocked.digest == found.digest
    assert with_blocked(found, {}) == found
    assert acting_jobs(found) == [jobs[0], jobs[2]]


@pytest.mark.parametrize("whole", [True, False])
def test_plan_says_whether_it_is_whole_and_has_no_digest_at_first(whole: bool) -> None:
    found = make_plan(LOCAL, state_of([JOB]), whole=whole)
    assert (found.digest, found.whole) == (None, whole)
