"""A failed set-up uses up no attempt: it is retried by hand, after a change, or automatically a few times."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.model.cause import entry_digest
from reconciler.model.claim import Claim, ClaimState
from reconciler.model.job import ActualJob, ErrorInfo, State
from reconciler.model.plan import Action, Change, NotDone, Trigger
from reconciler.model.reason import ReasonCode
from reconciler.training_service.jobs import images
from tests.support.planning import GOOGLE, bound_to, claim_on, only, plan, reason_of, run_of, wanted

JOB = wanted()
IMAGE = "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest"
ENTRY = {"python": "3.11", "requirements": ["pandas==2.2.3"]}
BY_HAND = Trigger(by_hand=True)


def make_unstarted_run(attempt: int = 1, *, entry: str = "", **fields: Any) -> ActualJob:
    """Return a run with a failed set-up, for an image with this digest of its entry."""
    metadata = {"class": "set-up", "image": IMAGE} | ({"entry": entry} if entry else {})
    info = ErrorInfo("PACKAGES_NOT_RESOLVED", metadata)
    end = f"2026-01-{attempt:02}T00:00:05Z"
    return run_of(JOB, State.FAILED, attempt, number=attempt, info=info, end_time=end, **fields)


def make_failed_run(attempt: int) -> ActualJob:
    return run_of(JOB, State.FAILED, attempt, number=attempt)


def bind_runs(*runs: ActualJob) -> list[Claim]:
    return [bound_to(JOB, run, attempt) for attempt, run in enumerate(runs, 1)]


def plan_runs(*runs: ActualJob, occasion: Trigger | None = None, **reconcile: Any) -> Change:
    return only(plan([wanted(**reconcile)], runs, bind_runs(*runs), occasion=occasion))


def test_second_set_up_waits_ten_minutes_and_uses_up_no_attempt() -> None:
    change = plan_runs(make_unstarted_run())
    assert (change.action, change.attempt, change.free) == (Action.RETRY, 2, 1)
    assert change.job_name == f"{JOB.job_name}_2"
    assert change.not_before == datetime(2026, 1, 1, 0, 10, 5, tzinfo=UTC)
    assert reason_of(change) == (
        "set-up failed: no version of a package fits; this doesn't count as an attempt, try 2 of 3, "
        "not before 00:10:05 UTC"
    )
    assert change.actual == make_unstarted_run()


def test_failed_set_up_is_free_only_when_claim_is_bound_to_its_job() -> None:
    change = only(plan([wanted()], [make_unstarted_run()], [claim_on(JOB, ClaimState.PENDING)]))
    assert (change.action, change.attempt, change.free) == (Action.SUBMIT, 1, 0)


def test_next_set_up_does_not_wait_when_end_time_is_unknown() -> None:
    change = plan_runs(replace(make_unstarted_run(), end_time=""))
    assert (change.action, change.not_before) == (Action.RETRY, None)
    assert reason_of(change).endswith("this doesn't count as an attempt, try 2 of 3")


def test_failed_set_up_is_not_retried_when_older_hash_version_used_up_attempt() -> None:
    old = "ab" * 32
    job = replace(JOB, earlier=(old,))
    trained = run_of(job, State.FAILED, number=2, identity=old)
    known = {"resource": trained.resource, "ended": State.FAILED}
    claims = [*bind_runs(make_unstarted_run()), claim_on(job, identity=old, **known)]
    change = only(plan([job], [make_unstarted_run(), trained], claims, occasion=BY_HAND))
    assert (change.action, change.stuck) == (Action.NONE, NotDone.FAILED)


def test_second_run_without_claim_is_made_again_only_after_wait_should_it_be_gone() -> None:
    runs = [make_unstarted_run(), run_of(JOB, State.RUNNING, 2, number=2)]
    change = only(plan([JOB], runs, bind_runs(runs[0])))
    assert (change.action, change.attempt, change.actual) == (Action.RETRY, 2, runs[1])
    assert change.not_before == datetime(2026, 1, 1, 0, 10, 5, tzinfo=UTC)


def test_fourth_run_without_claim_is_bound_and_never_made_again_without_person() -> None:
    tried = [make_unstarted_run(n) for n in range(1, 4)]
    runs = [*tried, run_of(JOB, State.RUNNING, 4, number=4)]
    for occasion, binds_only in ((None, True), (BY_HAND, False)):
        change = only(plan([JOB], runs, bind_runs(*tried), occasion=occasion))
        assert (change.action, change.attempt, change.binds_only) == (Action.RETRY, 4, binds_only)


def test_reason_has_the_word_of_a_newer_service_for_its_failed_set_up() -> None:
    info = ErrorInfo("DRIVER_MISSING", {"class": "set-up", "image": IMAGE})
    change = plan_runs(replace(make_unstarted_run(), info=info, error="no driver"))
    assert reason_of(change).startswith("set-up failed: driver missing; this doesn't count as an attempt")
    cause = change.reason.values["cause"]
    assert (cause.code, cause.values) == (ReasonCode.OTHER, {"word": "DRIVER_MISSING"})


def test_set_up_is_tried_at_most_three_times_in_row() -> None:
    runs = [make_unstarted_run(1), make_unstarted_run(2)]
    assert (plan_runs(*runs).action, plan_runs(*runs).attempt) == (Action.RETRY, 3)
    change = plan_runs(*runs, make_unstarted_run(3))
    assert (change.action, change.stuck) == (Action.NONE, NotDone.FAILED)
    assert reason_of(change) == "set-up failed: no version of a package fits; tried 3 times"


def test_person_may_retry_set_up_any_number_of_times_without_wait() -> None:
    runs = [make_unstarted_run(n) for n in range(1, 6)]
    change = plan_runs(*runs, occasion=BY_HAND)
    assert (change.action, change.attempt, change.not_before) == (Action.RETRY, 6, None)
    assert "try" not in reason_of(change)


def test_set_up_is_retried_without_wait_when_image_entry_changes() -> None:
    changed = Trigger(images={IMAGE: ENTRY})
    runs = [make_unstarted_run(n) for n in range(1, 4)]
    change = plan_runs(*runs, occasion=changed)
    assert (change.action, change.attempt, change.not_before) == (Action.RETRY, 4, None)
    runs.append(make_unstarted_run(4, entry=entry_digest({IMAGE: ENTRY}, IMAGE)))
    change = plan_runs(*runs, occasion=changed)
    assert change.not_before is not None
    assert "try 2 of 3" in reason_of(change)


def test_set_up_is_retried_only_once_when_changed_entry_does_not_reach_service() -> None:
    runs = [make_unstarted_run(n) for n in range(1, 5)]
    assert plan_runs(*runs, occasion=Trigger(images={IMAGE: ENTRY})).action is Action.NONE


@pytest.mark.parametrize(
    "other", [{"other:1": ENTRY}, {IMAGE.partition(":")[0] + "-gpu": ENTRY}], ids=["another", "a longer name"]
)
def test_failed_set_up_waits_when_entry_of_other_image_changes(other: dict[str, Any]) -> None:
    assert plan_runs(make_unstarted_run(), occasion=Trigger(images=other)).not_before is not None


@pytest.mark.parametrize("metadata", [{}, {"entry": "0123456789abcdef"}])
def test_failed_set_up_waits_when_it_names_no_image(metadata: dict[str, str]) -> None:
    run = replace(make_unstarted_run(), info=ErrorInfo("HOME_NOT_TRUSTED", {"class": "set-up", **metadata}))
    assert plan_runs(run, occasion=Trigger(images={IMAGE: ENTRY})).not_before is not None


def test_attempts_are_counted_separately_from_set_up_tries() -> None:
    change = plan_runs(make_unstarted_run(1), make_failed_run(2), attempts=2)
    assert (change.action, change.attempt, change.not_before) == (Action.RETRY, 3, None)
    assert reason_of(change) == "attempt 1 failed, 1 left"
    assert plan_runs(make_unstarted_run(1), make_failed_run(2)).stuck is NotDone.FAILED
    change = plan_runs(make_failed_run(1), make_unstarted_run(2), make_failed_run(3), attempts=2)
    assert (change.action, change.stuck) == (Action.NONE, NotDone.FAILED)


def test_failed_set_up_counts_as_attempt_on_vertex_ai() -> None:
    run = make_unstarted_run()
    assert only(plan([JOB], [run], bind_runs(run), GOOGLE, occasion=BY_HAND)).stuck is NotDone.FAILED


def test_failed_set_up_counts_as_attempt_when_attempt_has_second_job() -> None:
    """The other job may have started its trainer."""
    other = replace(make_unstarted_run(), resource="projects/1/locations/l/customJobs/9")
    found = plan([JOB], [make_unstarted_run(), other], bind_runs(make_unstarted_run()), occasion=BY_HAND)
    assert next(change for change in found.changes if change.desired).stuck is NotDone.FAILED


def test_failed_set_up_counts_as_attempt_when_service_has_dropped_job() -> None:
    gone = bound_to(JOB, make_unstarted_run())
    assert only(plan([JOB], [], [gone], occasion=BY_HAND)).stuck is NotDone.FAILED


def test_open_submission_continues_when_its_number_exceeds_attempts() -> None:
    pending = claim_on(JOB, ClaimState.PENDING, 2)
    change = only(plan([JOB], [make_unstarted_run()], [*bind_runs(make_unstarted_run()), pending]))
    assert (change.action, change.attempt, change.free) == (Action.RETRY, 2, 1)


@given(st.lists(st.sampled_from(["set-up", "code"]), max_size=8), st.integers(1, 3))
def test_content_is_submitted_limited_number_of_times_after_any_failures(
    ends: list[str], attempts: int
) -> None:
    """After any sequence of failures, apply by itself comes to an end."""
    runs: list[ActualJob] = []
    most = 3 * attempts
    for number in range(1, most + 2):
        change = plan_runs(*runs, attempts=attempts) if runs else None
        if change is not None and change.action is Action.NONE:
            break
        end = ends[number - 1] if number <= len(ends) else "set-up"
        runs.append(make_unstarted_run(number) if end == "set-up" else make_failed_run(number))
    assert len(runs) <= most


@pytest.mark.parametrize("entry", [ENTRY, {"requirements": []}, {"python": "3.11"}])
@pytest.mark.parametrize("name", [IMAGE, IMAGE.removesuffix(":latest")])
def test_entry_digest_is_same_in_planner_and_training_service(name: str, entry: dict[str, Any]) -> None:
    override = images.find_override(IMAGE, {name: entry})
    assert override is not None
    found = {"python": override.python, "requirements": list(override.requirements)}
    assert images.entry_digest(found) == entry_digest({name: entry}, IMAGE)
    assert entry_digest({}, IMAGE) == ""
