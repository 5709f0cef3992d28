"""The quota of creates, shared by all submissions of an apply, on a simulated clock."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.model.claim import Claim, ClaimState
from reconciler.model.manifest import JsonObject
from reconciler.model.ports import Answer, Created, Credential, NotSent, Refused, Unknown
from reconciler.operations.execute import Applier
from reconciler.planning.outcome import Outcome, Status
from reconciler.submission.protocol import Submitter
from reconciler.submission.quota import NotBegunError, Quota
from tests.simulation.process import Process
from tests.support.applying import body_of, plan_of
from tests.support.memory_ports import BOUNDS, Claims, Jobs, Outside
from tests.support.planning import wanted
from tests.support.submission import ID, ML_ORDER, MOMENT, ORDER, RIPE, body, pending

EPOCH = datetime(2026, 1, 1, tzinfo=UTC)
FULL = Refused(429, "RESOURCE_EXHAUSTED", "60 submissions a minute")
TAKEN: Answer = Created(None)  # type: ignore[arg-type]  # any job will do


@dataclass
class Clock:
    """A clock that sleeping advances, for several threads."""

    now: float = 0.0
    slept: list[float] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        with self.lock:
            self.slept.append(seconds)
            self.now += seconds


def make_quota(clock: Clock, chance: float = 0.0, **settings: Any) -> Quota:
    share = min(int(chance * 2**64), 2**64 - 1)
    return Quota(clock, lambda count: share.to_bytes(count, "big"), **settings)


class TestQuota:
    """A single quota, called directly."""

    def test_quota_spaces_creates_by_pace(self) -> None:
        clock = Clock()
        one = make_quota(clock, pace=1.5)
        moments = []
        for _ in range(3):
            assert one.take(until=100.0) == 0.0
            moments.append(clock.now)
        assert moments == [0.0, 1.5, 3.0]

    def test_quota_spaces_begun_submissions_by_pace_without_creates(self) -> None:
        clock = Clock()
        one = make_quota(clock, pace=1.5)
        for _ in range(3):
            one.begin()
        assert clock.now == 3.0

    def test_turn_of_late_create_stays_free(self) -> None:
        clock = Clock()
        one = make_quota(clock, pace=10.0)
        assert one.take(until=0.0) == 0.0
        assert one.take(until=9.0) == 10.0
        assert one.take(until=10.0) == 0.0
        assert clock.now == 10.0

    @pytest.mark.parametrize(("chance", "waits"), [(0.0, 30.0), (0.5, 37.5), (1.0, 45.0)])
    def test_refusal_delays_all_submissions_by_random_time(self, chance: float, waits: float) -> None:
        clock = Clock()
        one = make_quota(clock, chance, patience=60.0)
        one.answered(FULL)
        assert one.held_for == pytest.approx(waits)
        one.begin()
        assert clock.now == pytest.approx(waits)
        assert one.held_for == 0.0

    @pytest.mark.parametrize(
        ("refusals", "asked", "waits"),
        [(1, None, 30), (2, None, 60), (8, None, 3600), (99, None, 3600), (1, 600.0, 600), (1, 1e9, 3600)],
    )
    def test_backoff_doubles_up_to_an_hour_or_follows_retry_after(
        self, refusals: int, asked: float | None, waits: float
    ) -> None:
        assert make_quota(Clock()).backoff(refusals, asked) == timedelta(seconds=waits)
        assert make_quota(Clock(), 1.0).backoff(refusals, asked) <= timedelta(seconds=1.5 * waits)
        assert make_quota(Clock(), 0.5).backoff(refusals, asked) == timedelta(seconds=1.25 * waits)

    def test_further_refusals_of_requests_under_way_do_not_extend_wait(self) -> None:
        lines: list[str] = []
        one = make_quota(Clock(), tell=lines.append)
        for _ in range(8):
            one.answered(FULL)
        assert (one.held_for, len(lines)) == (30.0, 1)

    def test_refusal_with_longer_retry_after_extends_wait(self) -> None:
        one = make_quota(Clock())
        one.answered(FULL)
        one.answered(Refused(429, "RESOURCE_EXHAUSTED", "", 90.0))
        assert one.held_for == 90.0

    @pytest.mark.parametrize(
        ("answer", "waits"), [(TAKEN, 30.0), (Refused(400, "", "no"), 30.0), (Unknown("?"), 60.0)]
    )
    def test_only_answer_of_service_ends_doubling_of_wait(self, answer: Answer, waits: float) -> None:
        clock = Clock()
        one = make_quota(clock)
        one.answered(FULL)
        one.begin()
        one.answered(answer)
        one.answered(FULL)
        assert one.held_for == waits

    def test_answer_to_request_sent_before_refusal_does_not_end_doubling(self) -> None:
        clock = Clock()
        one = make_quota(clock)
        one.answered(FULL)
        one.answered(TAKEN)
        assert one.held_for == 30.0
        one.begin()
        one.answered(FULL)
        assert one.held_for == 60.0

    @pytest.mark.parametrize("answer", [NotSent("no"), Unknown("?"), Refused(403, "PERMISSION_DENIED", "")])
    def test_other_answers_do_not_delay_submissions(self, answer: Answer) -> None:
        one = make_quota(Clock())
        one.answered(answer)
        assert one.held_for == 0.0

    def test_submission_fails_without_wait_when_refusal_exceeds_patience(self) -> None:
        clock = Clock()
        one = make_quota(clock, patience=89.0)
        one.answered(FULL)
        one.begin()
        one.answered(FULL)
        for ask in (one.begin, one.check):
            with pytest.raises(NotBegunError, match="60 submissions a minute"):
                ask()
        assert clock.now == 30.0
        # Another submission may take long meanwhile.
        clock.now = 90.0
        one.begin()
        one.check()

    def test_quota_notices_stop_within_pause(self) -> None:
        clock = Clock()
        one = make_quota(clock, patience=60.0, pause=2.0, go_on=lambda: clock.now < 5.0)
        one.answered(FULL)
        with pytest.raises(NotBegunError, match=r"^$"):
            one.begin()
        assert clock.now == 6.0

    def test_each_thread_has_own_turn(self) -> None:
        clock = Clock()
        one = make_quota(clock, pace=1.0)
        barrier = threading.Barrier(8)

        def take() -> None:
            barrier.wait(60)
            for _ in range(20):
                assert one.take(until=1e9) == 0.0

        threads = [threading.Thread(target=take) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        # 160 turns, a second apart.
        assert clock.now >= 159.0


class World:
    """The parts of a world that greenlets need in place of threads: a clock, and chance."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        self.rng = random.Random(seed)

    def trace(self, who: str, what: str) -> None:
        """Discard the trace."""


class Time:
    """The service's clock; sleeping is the process's."""

    def __init__(self, world: World) -> None:
        self.world = world

    @property
    def now(self) -> datetime:
        return EPOCH + timedelta(seconds=self.world.now)


class Slow(Outside):
    """An outside with answers as slow as over a long distance, and with a quota of creates per minute.

    Args:
        a_minute: The number of creates that it takes in any minute; more are refused.
        pace: Seconds from one create to the next.
        lifetime: The lifetime of a credential in seconds.
    """

    def __init__(self, seed: int, a_minute: int = 60, pace: float = 1.0, lifetime: float = 300.0) -> None:
        self.world = World(seed)
        super().__init__(time=Time(self.world))  # type: ignore[arg-type]
        self.bounds = replace(BOUNDS, pace=pace, lifetime=timedelta(seconds=lifetime))
        self.sent_at: list[float] = []
        self.refused_at: list[float] = []
        self.process: Process
        outer = self

        def take_turn(what: str) -> None:
            outer.process.sleep(outer.world.rng.uniform(0.05, 0.9))

        class SlowClaims(Claims):
            def read(self, id: Any) -> Any:
                take_turn("read")
                return super().read(id)

            def write(self, claim: Any, generation: int) -> Any:
                take_turn("write")
                return super().write(claim, generation)

        class SlowJobs(Jobs):
            def create(self, api_version: str, kind: str, body: JsonObject, credential: Credential) -> Answer:
                now = outer.world.now
                recent = [moment for moment in outer.sent_at if moment > now - 60.0]
                outer.sent_at.append(now)
                if len(recent) >= a_minute:
                    outer.refused_at.append(now)
                    answer: Answer = FULL
                else:
                    answer = super().create(api_version, kind, body, credential)
                take_turn("answer")
                return answer

        self.claims, self.jobs = SlowClaims(self.time), SlowJobs(self.time)

    def apply(self, count: int, most: int, **settings: Any) -> list[Outcome]:
        """Return the outcomes of a number of jobs, with a number of them submitted at once."""
        outcomes: list[Outcome] = []
        jobs = [wanted(f"job-{number}") for number in range(count)]

        def run_apply(process: Process) -> None:
            ports = replace(self.ports, clock=process, bounds=self.bounds)
            together = partial(process.together, most)
            applier = Applier(ports, body_of, together=together, **settings)
            outcomes.extend(applier.run(plan_of(self, jobs)))

        self.process = Process("one", self.world, run_apply)  # type: ignore[arg-type]
        while not self.process.ended:
            if not self.process.ready():
                self.world.now = self.process.wakes
            self.process.resume()
        return outcomes

    @property
    def names(self) -> list[str]:
        return [job.job_name for job in self.jobs.jobs]


@pytest.mark.fault(49)
@pytest.mark.parametrize("seed", range(3))
def test_creates_keep_their_pace_with_many_submissions_under_way(seed: int) -> None:
    outside = Slow(seed)
    outcomes = outside.apply(60, most=8)
    assert {outcome.status for outcome in outcomes} == {Status.APPLIED}
    apart = [later - earlier for earlier, later in zip(outside.sent_at, outside.sent_at[1:], strict=False)]
    assert min(apart) >= 1.0 - 1e-9
    # Sequentially they would take three times as long.
    assert outside.world.now < 60 * 1.3
    assert len(set(outside.names)) == len(outside.names) == 60


def test_sequential_submissions_take_as_long_as_their_answers() -> None:
    """Measure the baseline of the test above."""
    outside = Slow(0)
    outside.apply(20, most=1)
    assert outside.world.now > 20 * 1.3


@pytest.mark.fault(4, 49)
@pytest.mark.parametrize("seed", range(3))
def test_apply_submits_each_job_once_through_many_refusals(seed: int) -> None:
    """Another client uses most of the quota: no pace keeps within the rest."""
    outside = Slow(seed, a_minute=10)
    outcomes = outside.apply(60, most=8, patience=7200.0, pause=15.0)
    assert {outcome.status for outcome in outcomes} == {Status.APPLIED}
    assert len(set(outside.names)) == len(outside.names) == 60
    assert {found.claim.state for found in outside.claims.held.values()} == {ClaimState.BOUND}
    # After the first refusal, only requests already sent may still arrive.
    for refused in outside.refused_at:
        on_the_way = [moment for moment in outside.sent_at if refused < moment < refused + 30.0]
        assert all(moment < refused + 1.0 for moment in on_the_way)
    assert len(outside.refused_at) < 60


def test_claimed_submission_is_put_back_when_quota_is_used_up() -> None:
    """Its credential would end before the request may be sent: the claim is put back, and sent later."""
    outside = Slow(1, a_minute=3, pace=0.0, lifetime=30.0)
    outcomes = outside.apply(12, most=8, patience=7200.0, pause=15.0)
    put_back = [claim for claim in outside.claims.history if "just before" in claim.error]
    assert {(claim.state, claim.not_before is None) for claim in put_back} == {(ClaimState.REJECTED, False)}
    assert {outcome.status for outcome in outcomes} == {Status.APPLIED}
    assert len(set(outside.names)) == len(outside.names) == 12


def stop_after(outside: Slow, count: int) -> Callable[[], bool]:
    return lambda: len(outside.jobs.jobs) < count


@pytest.mark.fault(31)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("pace", [0.0, 1.0])
def test_stop_skips_waiting_submissions_and_completes_begun_submissions(seed: int, pace: float) -> None:
    outside = Slow(seed, pace=pace)
    outcomes = outside.apply(40, most=8, go_on=stop_after(outside, 10))
    statuses = [outcome.status for outcome in outcomes]
    assert len(statuses) == 40
    assert statuses.count(Status.SKIPPED) + statuses.count(Status.APPLIED) == 40
    assert 10 <= statuses.count(Status.APPLIED) <= 18
    assert {found.claim.state for found in outside.claims.held.values()} == {ClaimState.BOUND}
    assert len(outside.claims.held) == statuses.count(Status.APPLIED)
    assert {outcome.reason for outcome in outcomes} == {None}


# --- a single submission while the quota is used up -------------------------------------------------------


@pytest.fixture
def outside() -> Outside:
    return Outside()


def make_full_submitter(outside: Outside, *, stopping: bool = False) -> Submitter:
    """Return a submitter that is to stop, or that can't wait for the end of the used-up quota."""
    ports = outside.ports
    quota = Quota(ports.clock, ports.chance, patience=600.0 if stopping else 0.0, go_on=lambda: not stopping)
    quota.answered(FULL)
    return Submitter(ports, quota)


@pytest.mark.parametrize("stopping", [False, True])
def test_submit_writes_no_claim_and_mints_no_credential_while_quota_is_used_up(
    outside: Outside, stopping: bool
) -> None:
    with pytest.raises(NotBegunError):
        make_full_submitter(outside, stopping=stopping).submit(ORDER)
    assert (outside.claims.held, outside.credentials.minted, outside.jobs.sent) == ({}, 0, [])


def test_submit_without_claim_does_not_search_for_job_while_quota_is_used_up(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside.jobs, "with_key", None)
    with pytest.raises(NotBegunError):
        make_full_submitter(outside).submit(ORDER)


def test_submit_binds_found_job_while_quota_is_used_up(outside: Outside) -> None:
    claim = pending(outside)
    job = outside.jobs.add(body(claim.request_ids[0]))
    assert make_full_submitter(outside).submit(ORDER).job == job


def test_submit_rejects_unanswered_claim_when_no_job_appeared_while_quota_is_used_up(
    outside: Outside,
) -> None:
    claim = pending(outside)
    assert make_full_submitter(outside).submit(ORDER).claim == claim
    outside.time.now += RIPE + MOMENT
    settled = make_full_submitter(outside).submit(ORDER)
    assert settled.claim.state is ClaimState.REJECTED
    assert settled.claim.error == "not submitted, as the service accepts no more now: 60 submissions a minute"
    assert len(outside.jobs.sent) == 1
    assert Submitter(outside.ports).submit(ORDER).claim.state is ClaimState.BOUND


@pytest.mark.parametrize("waited", [timedelta(0), RIPE])
def test_unknown_outcome_is_kept_while_request_may_still_make_job(
    outside: Outside, waited: timedelta
) -> None:
    """The service makes a single job of a name, so no wait is needed; but the job may still appear."""
    claim = pending(outside, ML_ORDER)
    outside.time.now += waited
    with pytest.raises(NotBegunError):
        make_full_submitter(outside).submit(ML_ORDER)
    assert outside.claims.held[ID].claim == claim


def test_pending_claim_is_unchanged_when_submitter_stops(outside: Outside) -> None:
    claim = pending(outside)
    outside.time.now += RIPE + MOMENT
    with pytest.raises(NotBegunError):
        make_full_submitter(outside, stopping=True).submit(ORDER)
    assert outside.claims.held[ID].claim == claim


def test_resubmit_leaves_claim_while_quota_is_used_up(outside: Outside) -> None:
    claim = pending(outside)
    outside.time.now += RIPE + MOMENT
    with pytest.raises(NotBegunError):
        make_full_submitter(outside).resubmit(ORDER)
    assert outside.claims.held[ID].claim == claim


def test_submit_rejects_claim_when_quota_is_refused_before_request(outside: Outside) -> None:
    ports = outside.ports
    quota = Quota(ports.clock, ports.chance)

    def refuse_meanwhile(claim: Claim) -> None:
        outside.claims.before_write = lambda claim: None
        quota.answered(Refused(429, "RESOURCE_EXHAUSTED", "60 submissions a minute", 600.0))

    outside.claims.before_write = refuse_meanwhile
    claim = Submitter(ports, quota).submit(ORDER).claim
    assert (claim.state, outside.jobs.sent) == (ClaimState.REJECTED, [])
    assert claim.error == "the service stopped accepting submissions just before this one was sent"
    assert claim.not_before == outside.time.now + timedelta(seconds=600)


def test_repeated_unsent_request_takes_own_turn_of_pace(outside: Outside) -> None:
    ports = outside.ports
    outside.jobs.answers = [NotSent("it can't be reached"), NotSent("it can't be reached"), ""]
    settled = Submitter(ports, Quota(ports.clock, ports.chance, pace=3.0)).submit(ORDER)
    assert settled.claim.state is ClaimState.BOUND
    assert outside.time.slept == [2.0, 1.0] * 2


def test_refusal_of_submission_delays_shared_quota(outside: Outside) -> None:
    ports = outside.ports
    quota = Quota(ports.clock, ports.chance)
    outside.jobs.answers = [FULL]
    claim = Submitter(ports, quota).submit(ORDER).claim
    assert quota.held_for == 30.0
    assert claim.not_before == outside.time.now + timedelta(seconds=30)
