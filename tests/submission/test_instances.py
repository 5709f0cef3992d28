"""Instances: environments with the same project and location take none of each other's runs and claims."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.google.claim_store import ObjectClaims
from reconciler.model.claim import ClaimId, ClaimState
from reconciler.model.job import ATTEMPT, INSTANCE, KEY, REQUEST_ID, SOURCE, ActualJob, State, attempt_of
from reconciler.model.plan import Action, Plan
from reconciler.model.ports import Ports, Versioned
from reconciler.planning.planner import make_plan
from reconciler.submission.observe import observe
from reconciler.submission.protocol import Submitter
from tests.support.held_service import HeldService
from tests.support.memory_ports import Outside
from tests.support.opened import BUCKET, CLAIM, opened
from tests.support.planning import (
    GOOGLE,
    bound_to,
    claim_on,
    mark_of,
    only,
    reason_of,
    run_of,
    state_of,
    wanted,
)
from tests.support.submission import ORDER, settle

FIRST = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class Environment:
    """An environment's look at a service; `instance` and `neighbours` are as in `Ports`."""

    instance: str
    neighbours: frozenset[str]
    outside: Outside

    @property
    def ports(self) -> Ports:
        return replace(self.outside.ports, instance=self.instance, neighbours=self.neighbours)

    def sees(self, *runs: ActualJob) -> tuple[list[str], list[str]]:
        """Return the resources of its own and of the doubtful runs."""
        self.outside.jobs.jobs = list(runs)
        seen = observe(self.ports)
        return [run.resource for run in seen.runs], [run.resource for run in seen.doubtful]


@pytest.fixture
def outside() -> Outside:
    return Outside()


def make_run(instance: str, age: timedelta = timedelta(0), state: State = State.RUNNING) -> ActualJob:
    """Return a run of an instance, created this long after `FIRST`."""
    made = run_of(wanted(), state)
    labels = {**made.labels, **({INSTANCE: instance} if instance else {})}
    return replace(made, labels=labels, create_time=format_time(age))


OTHER = wanted(content="b")


def make_other_run(instance: str, age: timedelta = timedelta(0), **labels: str) -> ActualJob:
    """Return a run of other content, `OTHER`."""
    made = run_of(OTHER, State.SUCCEEDED, number=2)
    return replace(
        made, labels={**make_run(instance).labels, **made.labels, **labels}, create_time=format_time(age)
    )


def format_time(age: timedelta) -> str:
    return (FIRST + age).isoformat()


LATER, EARLIER = timedelta(seconds=1), timedelta(seconds=-1)


@pytest.mark.parametrize(
    ("own", "neighbours", "seen", "is_own", "is_doubtful"),
    [
        ("blue", {""}, make_run("blue"), True, False),
        ("", {"blue"}, make_run(""), True, False),
        ("blue", {""}, make_run(""), False, True),
        ("", {"blue"}, make_run("blue"), False, True),
        ("blue", {"green"}, make_run(""), False, True),
        ("blue", {""}, make_run("", state=State.SUCCEEDED), False, False),
        ("blue", {"green"}, make_run("", state=State.CANCELLED), False, False),
    ],
)
def test_live_run_of_other_instance_is_doubtful_before_first_run_of_environment(
    outside: Outside, own: str, neighbours: set[str], seen: ActualJob, is_own: bool, is_doubtful: bool
) -> None:
    found = Environment(own, frozenset(neighbours), outside).sees(seen)
    assert found == ([seen.resource] * is_own, [seen.resource] * is_doubtful)


@pytest.mark.parametrize(
    ("own", "neighbours", "firsts", "seen", "is_doubtful"),
    [
        ("blue", {""}, [make_other_run("blue")], make_run("", EARLIER), True),
        ("blue", {""}, [make_other_run("blue")], make_run(""), True),
        ("blue", {""}, [make_other_run("blue")], make_run("", LATER), False),
        ("", {"blue"}, [make_other_run("")], make_run("blue", EARLIER), True),
        ("", {"blue"}, [make_other_run("")], make_run("blue", LATER), False),
        # The oldest own run counts.
        (
            "blue",
            {""},
            [make_other_run("blue", 2 * LATER), make_other_run("blue")],
            make_run("", LATER),
            False,
        ),
        # An own run may be a later attempt.
        (
            "blue",
            {""},
            [make_other_run("blue", **{ATTEMPT: "2", REQUEST_ID: mark_of(OTHER, 2)})],
            make_run("", LATER),
            False,
        ),
        # No environment has the label: its environment gave up its instance, or was removed.
        ("", {"green"}, [make_other_run("")], make_run("blue", LATER), True),
        ("blue", {"green"}, [make_other_run("blue")], make_run("", LATER), True),
        # An unreadable time, of the run or of the own run.
        ("blue", {""}, [make_other_run("blue")], replace(make_run(""), create_time="yesterday"), True),
        (
            "blue",
            {""},
            [make_other_run("blue")],
            replace(make_run(""), create_time="2027-01-01T00:00:00"),
            True,
        ),
        ("blue", {""}, [replace(make_other_run("blue"), create_time="")], make_run("", LATER), True),
        # A run with another repository's label, without a claim or without a request's mark isn't an own run.
        ("blue", {""}, [make_other_run("blue", **{KEY: "unclaimed"})], make_run("", LATER), True),
        ("blue", {""}, [make_other_run("blue", **{SOURCE: "other"})], make_run("", LATER), True),
        ("blue", {""}, [make_other_run("blue", **{REQUEST_ID: "copied"})], make_run("", LATER), True),
    ],
)
def test_neighbours_run_is_doubtful_unless_it_is_younger_than_the_oldest_own_run(
    outside: Outside,
    own: str,
    neighbours: set[str],
    firsts: list[ActualJob],
    seen: ActualJob,
    is_doubtful: bool,
) -> None:
    claim = bound_to(OTHER, firsts[0], attempt_of(firsts[0]))
    outside.claims.held[claim.id] = Versioned(claim, 1)
    _, doubtful = Environment(own, frozenset(neighbours), outside).sees(*firsts, seen)
    assert doubtful == [seen.resource] * is_doubtful


def test_run_bound_only_by_claim_does_not_date_environment(outside: Outside) -> None:
    settle(outside)
    (bound,) = outside.jobs.jobs
    mislabelled = replace(
        bound, labels={**bound.labels, INSTANCE: "green"}, create_time=format_time(timedelta(0))
    )
    neighbours = replace(make_run("", LATER), resource=f"{bound.resource}9")
    found = Environment("blue", frozenset({"", "green"}), outside).sees(mislabelled, neighbours)
    assert found == ([mislabelled.resource], [neighbours.resource])


def test_run_named_by_claim_stays_own_when_its_instance_label_changes(outside: Outside) -> None:
    settle(outside)
    (job,) = outside.jobs.jobs
    labelled = replace(job, labels={**job.labels, INSTANCE: "blue"})
    assert Environment("", frozenset({"blue"}), outside).sees(labelled) == ([job.resource], [])


def plan_beside(*doubtful: ActualJob) -> Plan:
    return make_plan(GOOGLE, state_of([wanted()], doubtful=doubtful))


def test_first_submission_is_blocked_beside_a_doubtful_run_of_the_same_content() -> None:
    doubtful = make_run("")
    change = only(plan_beside(doubtful))
    assert change.action is Action.BLOCKED
    assert change.actual is doubtful
    assert reason_of(change).startswith(f"{doubtful.resource} (running) has this content")
    assert "submitted under no instance" in reason_of(change)
    assert "wait until it has ended, or cancel it, and apply again" in reason_of(change)


def test_submission_beside_several_doubtful_runs_names_the_first_and_its_instance() -> None:
    first, second = (
        make_run("blue"),
        replace(make_run("green"), resource="projects/1/locations/l/customJobs/9"),
    )
    change = only(plan_beside(first, second))
    assert change.actual is first
    assert reason_of(change).startswith(f"{first.resource} (running) has this content")
    assert 'submitted under the instance "blue"' in reason_of(change)


def test_retry_is_blocked_beside_a_doubtful_run_of_the_same_content() -> None:
    job, doubtful = wanted(attempts=2), make_run("")
    failed = run_of(job, State.FAILED, number=2)
    claim = bound_to(job, failed)
    change = only(make_plan(GOOGLE, state_of([job], [failed], [claim], doubtful=[doubtful])))
    assert (change.action, change.attempt, change.actual) == (Action.BLOCKED, 2, doubtful)
    assert "wait until it has ended, or cancel it, and apply again" in reason_of(change)


@pytest.mark.parametrize(
    ("state", "action"), [(ClaimState.REJECTED, Action.BLOCKED), (ClaimState.PENDING, Action.SUBMIT)]
)
def test_refused_attempt_is_blocked_beside_doubtful_run_while_pending_attempt_continues(
    state: ClaimState, action: Action
) -> None:
    job = wanted()
    claim = claim_on(job, state)
    plan = make_plan(GOOGLE, state_of([job], [], [claim], doubtful=[make_run("")]))
    assert only(plan).action is action


def test_first_submission_continues_beside_doubtful_run_of_other_content() -> None:
    other = replace(make_run("green"), labels={**run_of(wanted(content="b"), State.RUNNING).labels})
    assert only(plan_beside(other)).action is Action.SUBMIT


def test_instance_does_not_adopt_the_run_of_a_neighbour_with_the_same_content(outside: Outside) -> None:
    settle(outside)
    (neighbours,) = outside.jobs.jobs
    outside.claims.held.clear()
    blue = replace(outside.ports, instance="blue")
    body = ORDER.body

    def make_labelled_body(mark: str) -> dict[str, object]:
        made = body(mark)
        return {**made, "labels": {**made["labels"], INSTANCE: "blue"}}

    settled = Submitter(blue).submit(replace(ORDER, body=make_labelled_body))
    assert settled.claim.state is ClaimState.BOUND
    assert settled.claim.resource != neighbours.resource
    assert [job.labels.get(INSTANCE) for job in outside.jobs.jobs] == [None, "blue"]


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HeldService]:
    with HeldService(tmp_path / "home").running() as running:
        yield running


def test_claims_of_instance_are_neither_listed_nor_read_by_other_instance(service: HeldService) -> None:
    with opened(service) as session:
        connection = session.connection

        def make_store(instance: str) -> ObjectClaims:
            return ObjectClaims(
                connection, BUCKET, "acme-jobs", "p", "l", may_be_new=False, instance=instance
            )

        stores = {name: make_store(name) for name in ("", "blue", "bl", "p")}
        for name, claims in stores.items():
            with pytest.raises(ServiceError, match=r"isn't prepared|has no claims"):
                claims.check(0)
            claims.prepare()
            claims.write(replace(CLAIM, id=ClaimId(CLAIM.id.key, len(name) + 1)), 0)
        elsewhere = ObjectClaims(connection, BUCKET, "acme-jobs", "p", "m", may_be_new=False, instance="blue")
        with pytest.raises(ServiceError, match="has no claims"):
            elsewhere.check(0)
        for name, claims in stores.items():
            claims.check(0)
            assert [id.attempt for id in claims.listed()] == [len(name) + 1]


def test_new_instance_names_the_command_that_prepares_its_claims(service: HeldService) -> None:
    with opened(service) as session:
        session.claims.prepare()
        claims = ObjectClaims(
            session.connection,
            BUCKET,
            "acme-jobs",
            "local",
            "local",
            may_be_new=False,
            instance="blue",
            environment="prod",
        )
        with pytest.raises(ServiceError, match='the instance "blue" of acme-jobs has no claims') as caught:
            claims.check(3)
        assert "`reconciler init --claims --env prod`" in caught.value.hint


def test_label_of_other_repository_does_not_make_run_of_other_instance(outside: Outside) -> None:
    foreign = replace(make_run(""), labels={**make_run("").labels, SOURCE: "other"})
    assert Environment("blue", frozenset(), outside).sees(foreign) == ([foreign.resource], [])
