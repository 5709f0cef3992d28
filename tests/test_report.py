"""What commits are told of their jobs: by claims, and by the runs that claims are bound to."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from planning import bound_to, claim_on, run_of, wanted

from reconciler.claim import Claim, ClaimState
from reconciler.job import ActualJob, State
from reconciler.ports import Versioned
from reconciler.report import statuses
from reconciler.reporters.status import CommitStatus, is_news
from reconciler.submission.observation import Observed

JOB = wanted(attempts=2)
ASKED = "a" * 40
OTHER = "b" * 40
CONTEXT = "reconciler/prod/census"


def told(
    runs: Iterable[ActualJob], claims: Iterable[Claim], problem: str = ""
) -> dict[str, list[CommitStatus]]:
    known = {claim.id: Versioned(claim, 1) for claim in claims}
    problems = {JOB.job_name: problem} if problem else {}
    return statuses("prod", [JOB], Observed(known, tuple(runs)), OTHER, problems)


def status(runs: Iterable[ActualJob], *claims: Claim, problem: str = "") -> CommitStatus | None:
    """The one status that the commit of the claims is told, None for none."""
    found = told(runs, [replace(claim, commit=ASKED) for claim in claims], problem)
    assert found.keys() <= {ASKED}
    return found[ASKED][0] if found else None


def state(runs: Iterable[ActualJob], *claims: Claim, problem: str = "") -> str | None:
    found = status(runs, *claims, problem=problem)
    return found.state if found else None


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (State.RUNNING, "pending"),
        (State.SUCCEEDED, "success"),
        (State.FAILED, "failure"),
        (State.CANCELLED, "error"),
    ],
)
def test_the_run_that_the_claim_is_bound_to_says_how_the_job_stands(end: State, expected: str) -> None:
    run = run_of(JOB, end)
    assert state([run], bound_to(JOB, run)) == expected


def test_the_first_submissions_commit_is_told() -> None:
    first, second = run_of(JOB, State.FAILED), run_of(JOB, State.RUNNING, 2, number=2)
    claims = [bound_to(JOB, first, commit=ASKED), bound_to(JOB, second, attempt=2, commit=OTHER)]
    (asked,) = told([first, second], claims)
    assert asked == ASKED
    assert told([first], [bound_to(JOB, first, commit="")]) == {}, "submitted from a dirty work tree"


def test_without_a_claim_only_a_problem_is_told_to_the_commit_that_is_checked_out() -> None:
    assert told([run_of(JOB, State.SUCCEEDED)], []) == {}
    assert told([], [], problem="it can't be staged") == {
        OTHER: [CommitStatus("error", CONTEXT, "it can't be staged")]
    }


UNSETTLED: list[tuple[ClaimState, dict[str, Any], str, str]] = [
    (ClaimState.REJECTED, {"error": "a quota is used up"}, "error", "refused: a quota is used up"),
    (ClaimState.REJECTED, {}, "error", "refused: no reason given"),
    (
        ClaimState.HELD,
        {"error": "another job has the name"},
        "error",
        "held, see `reconciler resolve census`: another job has the name",
    ),
    (
        ClaimState.HELD,
        {"error": "old", "given_up": True},
        "error",
        'given up; change "rerun" to run it again',
    ),
]


@pytest.mark.parametrize(("claimed", "fields", "expected", "said"), UNSETTLED)
@pytest.mark.parametrize("problem", ["", "what this apply says"])
def test_a_submission_that_is_not_settled_is_told_by_its_claim(
    claimed: ClaimState, fields: dict[str, Any], expected: str, said: str, problem: str
) -> None:
    """By apply and by report alike, so that neither posts its own words over the other's each time."""
    assert status([], claim_on(JOB, claimed, **fields), problem=problem) == CommitStatus(
        expected,  # type: ignore[arg-type]
        CONTEXT,
        said,
    )


@pytest.mark.fault(2)
def test_an_unknown_outcome_is_pending_whatever_is_there() -> None:
    claim = claim_on(JOB, ClaimState.PENDING)
    hash_ = JOB.job_name.removeprefix("census_")
    unknown = CommitStatus("pending", CONTEXT, f"whether a job was created is not known yet · run {hash_}")
    assert status([], claim) == unknown
    assert status([], claim, problem="no token") == unknown
    assert status([run_of(JOB, State.SUCCEEDED)], claim) == unknown, "no claim is bound to it"


@pytest.mark.parametrize(
    ("claimed", "expected"),
    [(ClaimState.PENDING, "pending"), (ClaimState.REJECTED, "error"), (ClaimState.HELD, "error")],
)
def test_the_newest_attempt_decides_and_replaces_the_failure_before_it(
    claimed: ClaimState, expected: str
) -> None:
    failed = run_of(JOB, State.FAILED)
    first, second = bound_to(JOB, failed), claim_on(JOB, claimed, attempt=2)
    before, after = status([failed], first), status([failed], first, second)
    assert before
    assert after
    assert (before.state, after.state) == ("failure", expected)
    assert is_news(after, before)
    assert not (expected == "pending" and is_news(before, after)), "older news of a slower report"
    retried = run_of(JOB, State.SUCCEEDED, 2, number=2)
    green = status([failed, retried], first, bound_to(JOB, retried, attempt=2))
    assert green
    assert green.state == "success"
    assert is_news(green, after)


def test_why_a_failed_attempt_is_not_followed_by_another() -> None:
    failed = run_of(JOB, State.FAILED)
    assert status([failed], bound_to(JOB, failed), problem="blocked") == CommitStatus(
        "error", CONTEXT, "blocked"
    )
    run = run_of(JOB, State.SUCCEEDED)
    assert state([run], bound_to(JOB, run), problem="out of date") == "success"


@pytest.mark.fault(18)
def test_only_a_run_that_a_claim_is_bound_to_makes_a_status_green() -> None:
    ran = run_of(JOB, State.SUCCEEDED)
    others = [
        claim_on(JOB, ClaimState.REJECTED),
        claim_on(JOB, ClaimState.HELD),
        claim_on(JOB, resource="projects/1/locations/l/customJobs/7"),
        claim_on(JOB, resource="projects/1/locations/l/customJobs/7", tries=("other",)),
    ]
    for claim in others:
        assert state([ran], claim) != "success"


@pytest.mark.fault(23)
def test_a_job_that_was_deleted_before_its_end_was_seen_does_not_stay_pending() -> None:
    run = run_of(JOB, State.RUNNING)
    found = status([], bound_to(JOB, run))
    assert found
    assert found.state == "error"
    assert found.description.startswith("deleted outside")
    assert found.description.endswith("its end was not seen")
    # What was seen has been told.
    assert status([], bound_to(JOB, run_of(JOB, State.SUCCEEDED))) is None


class TestTwice:
    """Two jobs of one attempt are an error for as long as both are to be seen."""

    @pytest.mark.fault(13)
    @pytest.mark.parametrize("one", State)
    @pytest.mark.parametrize("other", State)
    def test_however_they_stand(self, one: State, other: State) -> None:
        runs = [run_of(JOB, one, number=9), run_of(JOB, other, number=10)]
        found = status(runs, bound_to(JOB, runs[0]))
        assert found == CommitStatus("error", CONTEXT, "attempt 1 has 2 jobs: 10, 9")
        assert status(runs[::-1], bound_to(JOB, runs[1])) == found
        assert state(runs[:1], bound_to(JOB, runs[0])) != "error" or one is State.CANCELLED

    def test_also_of_an_attempt_before(self) -> None:
        runs = [run_of(JOB, State.FAILED, number=1), run_of(JOB, State.FAILED, number=2)]
        last = run_of(JOB, State.SUCCEEDED, 2, number=3)
        assert state([*runs, last], bound_to(JOB, runs[0]), bound_to(JOB, last, attempt=2)) == "error"

    @pytest.mark.fault(16, 18)
    def test_a_run_that_no_recorded_request_made_is_no_second_one(self) -> None:
        run = run_of(JOB, State.SUCCEEDED)
        for beside in (
            run_of(JOB, State.RUNNING, number=2, mark="unknown"),
            run_of(JOB, State.RUNNING, number=2, kind="HyperparameterTuningJob"),
            run_of(wanted(content="b"), State.RUNNING, number=2),
            replace(run, state=State.RUNNING),
        ):
            assert state([run, beside], bound_to(JOB, run)) == "success"
