"""Each code has words."""

from __future__ import annotations

import re
from datetime import UTC, datetime

import pytest
from msgspec.structs import replace

from reconciler.model.cause import _CAUSES, Cause, CauseClass
from reconciler.model.claim import ClaimState
from reconciler.model.job import State
from reconciler.model.plan import Edit
from reconciler.model.reason import NoteCode, Reason, ReasonCode, because, of_submission
from reconciler.output.wording import cause, notes
from reconciler.output.wording import plan as of_plan
from reconciler.output.wording.cause import cause_remedy, cause_text
from reconciler.output.wording.plan import names_edit, reason_beside, reason_text
from tests.support.planning import claim_on, run_of, wanted

JOB = wanted()
FAILED = run_of(JOB, State.FAILED, error="exit code 3", error_code=3)
TIME = datetime(2026, 1, 1, 12, 30, tzinfo=UTC)
OF_PLAN = {*of_plan._SENTENCES, *of_plan._MADE}
OF_MISSING_RUN = {ReasonCode.RECORD_GONE}
CAUSE = Cause(
    CauseClass.USER_CODE, ReasonCode.NON_ZERO_EXIT, {"exit_code": "3", "last": "ValueError: NaN"}, "census"
)


@pytest.mark.parametrize("code", ReasonCode)
def test_code_has_words_as_a_reason_or_as_a_cause(code: ReasonCode) -> None:
    assert code in OF_PLAN | OF_MISSING_RUN | cause._WORDS.keys()
    assert not of_plan._SENTENCES.keys() & of_plan._MADE.keys()


@pytest.mark.parametrize("code", NoteCode)
def test_note_has_words(code: NoteCode) -> None:
    assert notes._NOTES[code]


@pytest.mark.parametrize("code", [code for _, code in _CAUSES.values()])
def test_cause_of_every_service_reason_has_words(code: ReasonCode) -> None:
    assert code in cause._WORDS


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
    assert reason_text(of_submission(claim, TIME)).endswith("can be submitted again after 12:30:00 UTC")


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
    assert reason_beside(reason, edit) == beside


def test_remedy_below_a_log_does_not_name_the_log() -> None:
    assert cause_remedy(CAUSE) == "see `reconciler logs census` and correct the code"
    assert cause_remedy(CAUSE, below_log=True) == "correct the code"
    assert cause_text(CAUSE, below_log=True) == "user code: exit code 3: ValueError: NaN; correct the code"
    on_runner = replace(CAUSE, on_runner=True)
    assert cause_remedy(on_runner, below_log=True) == cause_remedy(on_runner)
