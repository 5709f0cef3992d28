"""A claim that is bound keeps the job that it became, and nothing of how it came to that."""

from __future__ import annotations

from datetime import UTC, datetime

from reconciler.model.claim import ClaimState
from reconciler.model.job import State, labels_digest
from reconciler.submission.protocol import bound
from tests.support.planning import claim_on, run_of, wanted

JOB = wanted()
TIME = datetime(2026, 1, 1, tzinfo=UTC)
TROUBLED = claim_on(
    JOB,
    ClaimState.HELD,
    credential_expiry=TIME,
    gone=True,
    odd="jobs/7",
    error="why",
    not_before=TIME,
    refusals=3,
    unanswered=2,
    given_up=True,
    request_ids=("first", "second"),
    owner="somebody",
)


def test_nothing_is_left_of_its_troubles() -> None:
    run = run_of(JOB, State.RUNNING, mark="first")
    assert bound(TROUBLED, run) == claim_on(
        JOB,
        resource=run.resource,
        labels=labels_digest(run.labels),
        request_ids=("first", "second"),
        owner="somebody",
    )


def test_the_mark_of_a_job_that_is_taken_for_it_is_kept_with_the_others() -> None:
    assert bound(TROUBLED, run_of(JOB, State.RUNNING, mark="third")).request_ids == (
        "first",
        "second",
        "third",
    )


def test_a_job_without_a_mark_adds_none() -> None:
    unmarked = run_of(JOB, State.RUNNING, labels={})
    assert bound(TROUBLED, unmarked).request_ids == ("first", "second")


def test_how_the_job_ended_is_kept_and_what_is_no_end_is_not() -> None:
    for state in State:
        assert bound(TROUBLED, run_of(JOB, state)).ended == (state if state.ended else None)
