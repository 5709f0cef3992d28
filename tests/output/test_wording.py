"""Each code has words, and JSON prints the code beside them."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from reconciler.model.cause import _CAUSES, Cause, CauseClass, cause_of
from reconciler.model.claim import ClaimState
from reconciler.model.job import State
from reconciler.model.plan import Action, Change, Edit, Plan
from reconciler.model.reason import NoteCode, Reason, ReasonCode, because, unsettled_reason
from reconciler.output.json import apply_json, job_json, plan_json
from reconciler.output.wording import cause, notes
from reconciler.output.wording import plan as of_plan
from reconciler.output.wording.cause import cause_remedy, cause_text
from reconciler.output.wording.plan import names_edit, outcome_error, reason_beside, reason_text
from reconciler.planning.outcome import Outcome, Status
from reconciler.planning.status_rows import job_statuses
from tests.support.planning import LOCAL, bound_to, claim_on, only, plan, run_of, saying, state_of, wanted

JOB = wanted()
FAILED = run_of(JOB, State.FAILED, error="exit code 3", error_code=3)
TIME = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
OF_PLAN = {*of_plan._SENTENCES, *of_plan._MADE}
CAUSE = Cause(
    CauseClass.USER_CODE, ReasonCode.NON_ZERO_EXIT, {"exit_code": "3", "last": "ValueError: NaN"}, "census"
)


@pytest.mark.parametrize("code", ReasonCode)
def test_code_has_words_as_a_reason_or_as_a_cause(code: ReasonCode) -> None:
    assert code in OF_PLAN | cause._CAUSE_TEXTS.keys()
    assert not of_plan._SENTENCES.keys() & of_plan._MADE.keys()


@pytest.mark.parametrize("code", NoteCode)
def test_note_has_words(code: NoteCode) -> None:
    assert notes._NOTES[code]


@pytest.mark.parametrize("code", [code for _, code in _CAUSES.values()])
def test_cause_of_every_service_reason_has_words(code: ReasonCode) -> None:
    assert code in cause._CAUSE_TEXTS


def test_codes_are_in_kebab_case_for_scripts() -> None:
    assert all(re.fullmatch("[a-z]+(-[a-z]+)*", code) for code in ReasonCode)


def test_sentence_names_the_job_only_where_its_name_is_given() -> None:
    reason = because(ReasonCode.GIVEN_UP)
    assert reason_text(reason) == "given up; run it again with `reconciler rerun`"
    assert reason_text(reason, "census") == "given up; run it again with `reconciler rerun census`"


def test_value_with_braces_is_printed_as_it_is() -> None:
    reason = because(ReasonCode.ALREADY_RAN, job_name="{again}", state=State.FAILED)
    assert reason_text(reason).startswith("already ran as {again} (failed); ")
    assert reason_text(because(ReasonCode.ERROR, message="{x}", hint="{y}")) == "{x} ({y})"


def test_time_is_printed_in_utc() -> None:
    claim = claim_on(JOB, ClaimState.HELD)
    assert reason_text(unsettled_reason(claim, TIME)).endswith("can be submitted again after 12:30:00 UTC")


CHANGED = because(ReasonCode.CHANGED, fields=1, code=False, rerun=False)
BY_DEFAULT = because(ReasonCode.CHANGED, fields=0, code=False, rerun=False)
REMOVED = because(ReasonCode.REMOVED, is_cancelled=True)


@pytest.mark.parametrize(
    ("reason", "edit", "is_named", "beside"),
    [
        (because(ReasonCode.NEW), Edit.NEW, True, ""),
        (because(ReasonCode.CHANGED), Edit.CHANGED, True, ""),
        (CHANGED, Edit.CHANGED, True, "1 field changed"),
        (BY_DEFAULT, Edit.CHANGED, False, "only a default was added or removed"),
        (REMOVED, Edit.REMOVED, True, "onDelete: cancel"),
        (because(ReasonCode.REMOVED, is_cancelled=False), Edit.REMOVED, True, ""),
        (because(ReasonCode.SUSPENDED), Edit.NEW, False, "suspended"),
        (because(ReasonCode.SAME_CONTENT), Edit.UNCHANGED, False, "the same content"),
    ],
)
def test_edit_is_said_once(reason: Reason, edit: Edit, is_named: bool, beside: str) -> None:
    assert names_edit(reason, edit) is is_named
    change = Change(Action.NONE, reason, "census", "census_0", "CustomJob", "a.yaml", edit=edit)
    assert reason_beside(change) == beside


def test_remedy_below_a_log_does_not_name_the_log() -> None:
    assert cause_remedy(CAUSE) == "see `reconciler logs census` and correct the code"
    assert cause_remedy(CAUSE, below_log=True) == "correct the code"
    assert cause_text(CAUSE, below_log=True) == "user code: exit code 3: ValueError: NaN; correct the code"
    on_runner = replace(CAUSE, on_runner=True)
    assert cause_remedy(on_runner, below_log=True) == cause_remedy(on_runner)


def test_plan_prints_the_code_beside_its_sentence() -> None:
    (change,) = plan_json(plan([JOB], [FAILED], [bound_to(JOB, FAILED)]))["changes"]
    assert (change["reasonCode"], change["reason"][:7]) == ("failed", "failed;")
    assert [*change][:3] == ["action", "reason", "reasonCode"]


def test_outcome_has_the_code_of_its_cause_or_of_its_reason() -> None:
    change = only(plan([JOB]))
    held = unsettled_reason(claim_on(JOB, ClaimState.HELD))
    outcomes = [
        Outcome(change, Status.APPLIED, State.FAILED, saying("exit code 3"), cause=cause_of(FAILED)),
        Outcome(change, Status.FAILED, reason=held),
        Outcome(change, Status.APPLIED, State.QUEUED),
    ]
    printed = apply_json(Plan(LOCAL, (change,), (), None), outcomes)["outcomes"]
    assert [outcome["reasonCode"] for outcome in printed] == ["non-zero-exit", "held", None]
    assert (change.action, printed[0]["error"]) == (Action.SUBMIT, "exit code 3")


@pytest.mark.parametrize(
    ("claim", "code"),
    [
        (claim_on(JOB, ClaimState.PENDING), "outcome-unknown"),
        (claim_on(JOB, ClaimState.REJECTED, error="no quota"), "refused"),
        (claim_on(JOB, ClaimState.HELD), "held"),
        (claim_on(JOB, ClaimState.HELD, given_up=True), "given-up"),
        (claim_on(JOB, resource="gone"), "deleted-outside"),
        (claim_on(JOB, resource="gone", ended=State.SUCCEEDED), "record-gone"),
    ],
)
def test_status_has_the_code_of_a_missing_run(claim: object, code: str) -> None:
    assert isinstance(claim, type(claim_on(JOB)))
    (row,) = job_statuses(state_of([JOB], [], [claim]))
    assert job_json(row)["reasonCode"] == code
    assert row.reason is not None
    assert reason_text(row.reason)


def test_error_of_an_outcome_names_the_job_in_its_remedy() -> None:
    (change,) = plan([JOB], [], [claim_on(JOB, ClaimState.HELD, given_up=True)]).changes
    outcome = Outcome(change, Status.SKIPPED, reason=change.reason)
    assert "`reconciler rerun census`" in outcome_error(outcome, "census")
    assert "`reconciler rerun`" in outcome_error(outcome)


def test_status_has_the_code_of_a_cause_and_none_for_other_jobs() -> None:
    (failed,) = job_statuses(state_of([JOB], [FAILED]))
    assert job_json(failed)["reasonCode"] == "non-zero-exit"
    (never,) = job_statuses(state_of([JOB]))
    (live,) = job_statuses(state_of([JOB], [run_of(JOB, State.RUNNING)]))
    assert job_json(never)["reasonCode"] is job_json(live)["reasonCode"] is None
