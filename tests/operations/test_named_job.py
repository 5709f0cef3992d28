"""The run selected by a name in `show`, `logs`, `status` and `cancel`: that of the desired content."""

from __future__ import annotations

import pytest

from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.job import State
from reconciler.model.manifest import AIPLATFORM_V1
from reconciler.operations.named_job import NamedJob
from reconciler.planning.attempts import Attempt
from reconciler.planning.state import NameState
from tests.support.planning import bound_to, claim_on, run_of, state_of, wanted
from tests.support.repository import Repository
from tests.support.waiting import PATIENCE, until

OLD, NEW = wanted(content="a"), wanted(content="b")


def named(state: NameState, attempt: Attempt, *, is_base_name: bool = True) -> NamedJob:
    return NamedJob(state, attempt, attempt.run, is_base_name)


def test_base_name_of_adopted_job_is_that_of_its_claim() -> None:
    id = ClaimId("0" * 64, 1)
    claim = Claim(id, ClaimState.BOUND, "Nightly run 7", "nightly", AIPLATFORM_V1, "CustomJob", resource="r")
    assert NamedJob(NameState("nightly"), Attempt(id, claim, None)).base_name == "nightly"


def test_other_run_is_newest_with_a_claim_at_other_content() -> None:
    old, new = run_of(OLD, State.SUCCEEDED, number=1), run_of(NEW, State.SUCCEEDED, number=2)
    stray = run_of(wanted(content="c"), State.RUNNING, number=3)
    claims = [bound_to(OLD, old), bound_to(NEW, new)]
    name = state_of([OLD], [old, new, stray], claims).names["census"]
    (mine,) = name.wanted
    assert named(name, mine).other_run == new
    (other,) = [attempt for attempt in name.others if attempt.run == new]
    assert named(name, other).other_run == old


def test_live_runs_are_those_with_a_claim_and_only_of_a_base_name() -> None:
    old, new = run_of(OLD, State.RUNNING, number=1), run_of(NEW, State.QUEUED, number=2)
    stray = run_of(wanted(content="c"), State.RUNNING, number=3)
    name = state_of([NEW], [old, new, stray], [bound_to(OLD, old), bound_to(NEW, new)]).names["census"]
    (mine,) = name.wanted
    assert named(name, mine).live_runs == [old, new]
    assert named(name, mine, is_base_name=False).live_runs == []


def test_unsettled_claims_are_those_of_other_attempts_without_a_run() -> None:
    run = run_of(NEW, State.SUCCEEDED, number=2)
    held = claim_on(OLD, ClaimState.HELD)
    name = state_of([NEW], [run], [bound_to(NEW, run), held]).names["census"]
    (mine,) = name.wanted
    assert named(name, mine).unsettled == (held,)


@pytest.fixture
def reverted(repository: Repository) -> tuple[str, str]:
    """Return the names of two succeeded runs: the desired content's, and a newer run's that was reverted."""
    repository.job(args=["first"])
    assert repository.run("apply", "--wait").code == 0
    (first,) = repository.states()
    repository.job(args=["second"])
    assert repository.run("apply", "--wait").code == 0
    (second,) = repository.states().keys() - {first}
    repository.job(args=["first"])
    return first, second


@pytest.mark.slow
def test_name_means_run_of_desired_content_after_revert(
    repository: Repository, reverted: tuple[str, str]
) -> None:
    first, second = reverted
    shown = repository.run("show", "census", "--format", "json").json
    assert shown["jobName"] == first
    assert shown["otherRun"] == {"jobName": second, "state": "SUCCEEDED"}
    assert f"Other run    {second}: SUCCEEDED, with other content" in repository.run("show", "census").out
    assert repository.run("show", second, "--format", "json").json["otherRun"] is None
    assert "training with first" in repository.run("logs", "census").out
    status = repository.run("status", "census").out
    assert first in status
    assert second in status
    (repository.root / "jobs/census.yaml").rename(repository.root / "jobs/moved.yaml")
    moved = repository.run("show", "census", "--format", "json").json
    assert (moved["jobName"], moved["manifest"]["relation"]) == (first, "current")


@pytest.mark.slow
def test_live_run_is_among_those_to_choose_from_however_many_contents_are_newer(
    repository: Repository,
) -> None:
    repository.hold.touch()
    for number in range(7):
        repository.job(args=[str(number)])
        assert repository.run("apply").code == 0
    names = repository.states()
    refused = repository.run("cancel", "census")
    assert '"census" has 7 live runs' in refused.err
    assert all(name in refused.err for name in names)


@pytest.mark.slow
def test_cancel_and_follow_take_live_run_and_ask_which_of_two(repository: Repository) -> None:
    repository.hold.touch()
    repository.job(args=["first"])
    assert repository.run("apply").code == 0
    (first,) = repository.states()
    repository.job(args=["second"])
    assert repository.run("apply").code == 0
    (second,) = repository.states().keys() - {first}
    until(repository.starts.exists)

    for command in (("cancel", "census"), ("logs", "--follow", "census")):
        refused = repository.run(*command)
        assert refused.code == 64
        assert '"census" has 2 live runs' in refused.err
        assert f"name one of them: {first} or {second}" in refused.err

    assert f"{second} ended CANCELLED" in repository.run("cancel", second).out
    # The desired content's run has ended: the name means the run that goes on.
    following = repository.start("logs", "--follow", "census")
    assert following.stdout
    begun = following.stdout.readline()  # by now, it has chosen the run
    assert f"{first} ended CANCELLED" in repository.run("cancel", "census").out
    assert "training with first" in begun + following.stdout.read()
    assert following.wait(PATIENCE) == 0
    assert f"{second} had already ended: CANCELLED" in repository.run("cancel", "census").out
