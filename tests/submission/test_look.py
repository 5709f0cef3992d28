"""Short looks: their reads, their conclusions, and the cases that need a full look."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.expectation import RunMetrics
from reconciler.model.job import INSTANCE, SOURCE, ActualJob, State
from reconciler.model.manifest import ML_V1, Reconcile
from reconciler.model.naming import label_of
from reconciler.model.plan import DesiredJob, Plan, Target
from reconciler.model.ports import Announcement, Ports, Versioned
from reconciler.operations.execute import Applier
from reconciler.operations.plan import wanted_of
from reconciler.planning.planner import make_plan
from reconciler.planning.state import target_state
from reconciler.submission.look import FULL_AFTER, Observation, keep_summary, look
from reconciler.submission.summary import Kept, Preface, Summary, encoded, read_summary
from tests.simulation.passes import body_of
from tests.simulation.scenario import desired
from tests.support.memory_ports import BOUNDS, PLACE, Outside
from tests.support.planning import bound_to, claim_on, run_of, wanted

JOB = desired("census", "0", Reconcile())
OTHER = desired("churn-model", "0", Reconcile())
TARGET = Target("prod", "google", "acme-ml", "us-central1")


def get_ports(outside: Outside) -> Ports:
    outside.least_history = 0
    return outside.ports


def plan_jobs(outside: Outside, seen: Observation, *jobs: DesiredJob) -> Plan:
    observed = seen.observed
    state = target_state(jobs, observed.runs, observed.claims, source=outside.ports.source)
    return make_plan(TARGET, state)


def apply_jobs(outside: Outside, *jobs: DesiredJob, full: bool = False) -> Plan:
    """Apply these jobs once, and update claims and summary."""
    ports = get_ports(outside)
    plan = plan_jobs(outside, look(ports, wanted_of(jobs), full=full), *jobs)
    applier = Applier(ports, body_of)
    list(applier.run(plan))
    seen = look(ports, wanted_of(jobs), full=full)
    applier.upkeep(jobs, seen.observed)
    keep_summary(ports, seen, wanted_of(jobs))
    return plan


@pytest.fixture
def outside() -> Outside:
    """Return a service with two jobs that were submitted and succeeded, and a summary of them."""
    outside = Outside()
    apply_jobs(outside, JOB, OTHER)
    for job in outside.jobs.jobs:
        outside.jobs.becomes(job, State.SUCCEEDED)
    outside.time.now += BOUNDS.visible * 2
    apply_jobs(outside, JOB, OTHER)
    apply_jobs(outside, JOB, OTHER)
    assert {run.state for _, run in get_copies(outside)} == {State.SUCCEEDED}
    assert len(get_copies(outside)) == 2
    return outside


def get_copies(outside: Outside) -> Any:
    _, summary = read_summary(outside.claims.summary())
    return [(each.versioned.claim, each.run) for each in summary.kept] if summary else []


def test_short_look_lists_no_history(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    full = look(get_ports(outside), wanted_of([JOB, OTHER]), full=True)
    for port, name in ((outside.claims, "listed"), (outside.jobs, "runs")):
        monkeypatch.setattr(port, name, lambda: pytest.fail("the history is listed"))
    monkeypatch.setattr(outside.jobs, "live", lambda: ())
    monkeypatch.setattr(outside.jobs, "with_key", lambda *_: tuple(outside.jobs.jobs))
    short = look(get_ports(outside), wanted_of([JOB, OTHER]))
    assert not short.full
    assert plan_jobs(outside, short, JOB, OTHER) == plan_jobs(outside, full, JOB, OTHER)


def forge_claims(change: Callable[[Claim], Claim]) -> Forgery:
    """Return a forgery of each copied claim."""

    def forge(preface: Preface, summary: Summary) -> tuple[Preface, Summary]:
        copies = (each.versioned for each in summary.kept)
        forged = [replace(copy, claim=change(copy.claim)) for copy in copies]
        pairs = zip(summary.kept, forged, strict=True)
        return preface, replace(summary, kept=tuple(replace(each, versioned=copy) for each, copy in pairs))

    return forge


def get_summary(outside: Outside) -> Summary:
    _, summary = read_summary(outside.claims.summary())
    assert summary
    return summary


def forge_summary(**fields: Any) -> Callable[[Preface, Summary], tuple[Preface, Summary]]:
    """Return a forgery of the summary."""
    return lambda preface, summary: (preface, replace(summary, **fields))


def forge_preface(**fields: Any) -> Callable[[Preface, Summary], tuple[Preface, Summary]]:
    """Return a forgery of the preface."""
    return lambda preface, summary: (replace(preface, **fields), summary)


Forgery = Callable[[Preface, Summary], tuple[Preface, Summary]]


def store_forgery(outside: Outside, change: Forgery) -> None:
    preface, summary = read_summary(outside.claims.summary())
    assert preface
    assert summary
    outside.claims.stored = encoded(*change(preface, summary)), outside.claims.stored[1]


@pytest.mark.fault(55)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(forge_summary(kept=()), id="without settled attempts"),
        pytest.param(forge_summary(kept=(), open=(), bases=(), former=()), id="empty"),
        pytest.param(forge_summary(taken=datetime(2026, 2, 1, tzinfo=UTC)), id="too new"),
        pytest.param(forge_preface(genesis=7), id="of another store"),
        pytest.param(forge_preface(format=5), id="of a newer version"),
        pytest.param(forge_preface(place=replace(PLACE, location="there")), id="of another location"),
        pytest.param(forge_preface(place=replace(PLACE, source="other")), id="of another repository"),
        pytest.param(forge_claims(lambda claim: replace(claim, ended=State.FAILED)), id="failed"),
        pytest.param(forge_claims(lambda claim: replace(claim, state=ClaimState.REJECTED)), id="rejected"),
        pytest.param(forge_claims(lambda claim: replace(claim, ended=None)), id="not ended"),
        pytest.param(forge_claims(lambda claim: replace(claim, path="other.yaml")), id="moved"),
        pytest.param(forge_claims(lambda claim: replace(claim, resource="jobs/9")), id="of another job"),
    ],
)
def test_forged_summary_causes_no_second_submission_and_full_look_corrects_it(
    outside: Outside, change: Forgery
) -> None:
    right = get_copies(outside)
    store_forgery(outside, change)
    again = desired("census", "0", Reconcile(attempts=3))
    apply_jobs(outside, again, OTHER)
    assert len(outside.jobs.jobs) == 2
    apply_jobs(outside, JOB, OTHER, full=True)
    assert len(outside.jobs.jobs) == 2
    assert get_copies(outside) == right


@pytest.mark.fault(55)
def test_deleted_or_broken_summary_is_written_again(outside: Outside) -> None:
    right = get_copies(outside)
    for content in (b"", b"{", b'{"taken": 3}'):
        outside.claims.stored = content, outside.claims.stored[1] if content else 0
        apply_jobs(outside, JOB, OTHER)
        assert len(outside.jobs.jobs) == 2
        assert get_copies(outside) == right


@pytest.mark.fault(55)
def test_full_look_reports_error_of_forged_summary(outside: Outside) -> None:
    def change(preface: Preface, summary: Summary) -> tuple[Preface, Summary]:
        first, *rest = summary.kept
        assert first.run
        failed = replace(first, run=replace(first.run, state=State.FAILED))
        return preface, replace(summary, kept=(failed, *rest))

    store_forgery(outside, change)
    (said,) = look(get_ports(outside), wanted_of([JOB, OTHER]), full=True).notes
    assert "the summary of ended runs was wrong" in said
    assert "is succeeded, not failed" in said.lower()


def test_full_look_reports_open_claim_that_no_short_look_would_have_read(outside: Outside) -> None:
    late = desired("late", "0", Reconcile())
    claim = claim_on(late, ClaimState.PENDING)
    outside.claims.held[claim.id] = Versioned(claim, 1)
    ports, settled = get_ports(outside), wanted_of([JOB, OTHER])
    (said,) = look(ports, settled, full=True).notes
    assert f"{claim.job_name} is pending and wasn't listed as open" in said
    assert look(ports, wanted_of([JOB, OTHER, late]), full=True).notes == ()
    assert look(ports, settled, [claim.id.key], full=True).notes == ()
    announcement = Announcement("a1", outside.time.now, (claim.id,))
    store_forgery(outside, forge_preface(announced=(announcement,)))
    seen = look(ports, settled, full=True)
    assert (seen.notes, seen.announced) == ((), (announcement,))


def test_short_look_has_folders_and_metrics_of_the_summary(outside: Outside) -> None:
    def change(preface: Preface, summary: Summary) -> tuple[Preface, Summary]:
        first, second = summary.kept
        assert first.run
        metrics = RunMetrics(first.run.job_name, first.run.resource, "gs://models/census")
        return preface, replace(
            summary,
            kept=(
                replace(first, folder="gs://models/census", metrics=metrics),
                replace(second, run=None, folder="gs://models/churn"),
            ),
        )

    assert look(get_ports(outside), wanted_of([JOB, OTHER])).observed.folders == {}
    store_forgery(outside, change)
    first, _ = get_summary(outside).kept
    assert first.run
    seen = look(get_ports(outside), wanted_of([JOB, OTHER])).observed
    assert seen.folders == {first.run.resource: "gs://models/census"}
    assert seen.metrics == {first.run.resource: first.metrics}
    assert not seen.is_full


def test_short_look_finds_submission_of_older_version(outside: Outside) -> None:
    """An older version writes claims and jobs, and ignores the summary."""
    newer = desired("census", "1", Reconcile())
    ports = outside.ports
    list(Applier(ports, body_of).run(plan_jobs(outside, look(ports, wanted_of([newer]), full=True), newer)))
    plan = apply_jobs(outside, newer, OTHER)
    assert [change.action for change in plan.changes] == ["none", "none"]
    assert len(outside.jobs.jobs) == 3


def test_failed_attempt_is_read_again_before_next_attempt(outside: Outside) -> None:
    again = desired("iris", "0", Reconcile(attempts=1))
    apply_jobs(outside, again)
    outside.jobs.becomes(outside.jobs.jobs[-1], State.FAILED)
    apply_jobs(outside, again)
    apply_jobs(outside, again)
    more = desired("iris", "0", Reconcile(attempts=2))
    apply_jobs(outside, more)
    assert len(outside.jobs.jobs) == 4
    # Another process may have made the second attempt, and it may have ended, since the summary was written.
    outside.jobs.becomes(outside.jobs.jobs[-1], State.SUCCEEDED)
    seen = look(get_ports(outside), wanted_of([more]))
    assert not seen.full
    assert ClaimId(more.keys[0] if more.keys else next(iter(wanted_of([more]))), 2) in seen.observed.claims


def test_look_is_full_when_former_base_name_returns(outside: Outside) -> None:
    ports = get_ports(outside)
    assert not look(ports, wanted_of([JOB, desired("topics", "0", Reconcile())])).full, "it has no history"
    apply_jobs(outside, JOB)
    summary = get_summary(outside)
    assert summary.former == (OTHER.manifest.base_name,)
    assert look(ports, wanted_of([JOB, OTHER])).full
    assert look(ports, wanted_of([JOB, desired("churn-model", "1", Reconcile())])).full
    apply_jobs(outside, JOB, OTHER)
    assert not look(ports, wanted_of([JOB, OTHER])).full
    assert not look(ports, wanted_of([JOB, desired("churn-model", "1", Reconcile())])).full


def test_look_is_full_after_given_duration(outside: Outside) -> None:
    ports = get_ports(outside)
    assert not look(ports, wanted_of([JOB]), full_after=FULL_AFTER).full
    outside.time.now += FULL_AFTER * 2
    assert look(ports, wanted_of([JOB]), full_after=FULL_AFTER).full
    assert not look(ports, wanted_of([JOB])).full


def test_short_look_finds_live_duplicate_of_settled_job(outside: Outside) -> None:
    body = next(body for body, _ in outside.jobs.sent if "census" in body["displayName"])
    second = outside.jobs.add(body)
    seen = look(get_ports(outside), wanted_of([JOB, OTHER]))
    assert not seen.full
    assert second.resource in {run.resource for run in seen.observed.runs}
    (finding,) = plan_jobs(outside, seen, JOB, OTHER).drift
    assert finding.kind == "duplicate"


def test_empty_search_is_checked_by_ended_job(outside: Outside) -> None:
    outside.jobs.hidden = {job.resource for job in outside.jobs.jobs}
    with pytest.raises(ServiceError, match="leaves out"):
        look(get_ports(outside), wanted_of([JOB, OTHER]))


def test_small_history_has_no_summary() -> None:
    outside = Outside()
    seen = look(outside.ports, wanted_of([JOB]))
    keep_summary(outside.ports, seen, wanted_of([JOB]))
    assert outside.claims.stored == (b"", 0)


CENSUS = wanted("census")
ENDED = run_of(CENSUS, State.SUCCEEDED)
LATER = datetime(2026, 3, 1, tzinfo=UTC)
"""A time at which every listing must show the runs of `run_of`."""


class World:
    """A target with given claims and runs, and a summary with given copies."""

    def __init__(
        self,
        claims: Iterable[Claim] = (),
        runs: Iterable[ActualJob] = (),
        copies: Iterable[tuple[Claim, ActualJob | None]] = (),
        announced: tuple[Announcement, ...] = (),
        **summary: Any,
    ) -> None:
        self.outside = Outside()
        self.outside.time.now = LATER
        self.outside.jobs.jobs = [*runs]
        for claim in claims:
            self.outside.claims.write(claim, 0)
        self.kept = tuple(Kept(Versioned(claim, 0), run) for claim, run in copies)
        fields = {"taken": LATER, "size": 0, "oldest": "", "bases": ("census",), **summary}
        preface = Preface(PLACE, 1, announced)
        self.outside.claims.stored = encoded(preface, Summary(kept=self.kept, **fields)), 1
        self.ports = self.outside.ports
        self.read: list[str] = []
        """Keys whose claims were read."""
        self.searched: list[tuple[str, str, str]] = []
        of_key, with_key = self.outside.claims.of_key, self.outside.jobs.with_key
        self.outside.claims.of_key = lambda key: self.read.append(key) or of_key(key)  # type: ignore[method-assign, func-returns-value]
        self.outside.jobs.with_key = lambda *by: self.searched.append(by) or with_key(*by)  # type: ignore[method-assign, func-returns-value]

    def look(self, *jobs: DesiredJob, also: Iterable[str] = (), full: bool = False) -> Observation:
        return look(self.ports, index_by_key(*jobs), tuple(also), full=full)

    def look_short(self, *jobs: DesiredJob, also: Iterable[str] = ()) -> Observation:
        seen = self.look(*jobs, also=also)
        assert not seen.full
        return seen


def index_by_key(*jobs: DesiredJob) -> dict[str, DesiredJob]:
    return wanted_of(jobs)


def get_key(job: DesiredJob) -> str:
    return label_of(job.identity)


def get_resources(seen: Observation) -> list[str]:
    return sorted(run.resource for run in seen.observed.runs)


def test_short_look_neither_reads_nor_searches_settled_content() -> None:
    world = World([bound_to(CENSUS, ENDED)], [ENDED], [(bound_to(CENSUS, ENDED), ENDED)])
    seen = world.look_short(CENSUS, also=[get_key(CENSUS)])
    assert (world.read, seen.observed.runs) == ([], (ENDED,))
    # The only search is the check by an ended job.
    assert world.searched == [(ENDED.api_version, ENDED.kind, get_key(CENSUS))]
    assert seen.observed.claims == {bound_to(CENSUS, ENDED).id: bound_to(CENSUS, ENDED)}


def test_settled_content_whose_run_the_service_dropped_has_no_run() -> None:
    claim = bound_to(CENSUS, ENDED)
    seen = World([claim], [], [(claim, None)]).look_short(CENSUS)
    assert (seen.observed.runs, list(seen.observed.claims)) == ((), [claim.id])


def test_contents_are_read_and_searched_for_in_a_fixed_order() -> None:
    jobs = [wanted("census", str(n)) for n in range(8)]
    world = World(size=0)
    world.look_short(*jobs)
    keys = sorted(get_key(job) for job in jobs)
    assert world.read == keys
    assert world.searched == [(jobs[0].manifest.api_version, "CustomJob", key) for key in keys]


@pytest.mark.parametrize(("size", "few"), [(0, 8), (15, 8), (16, 9), (33, 10)])
def test_look_is_full_when_it_would_read_too_many_contents(size: int, few: int) -> None:
    keys = tuple(f"key-{n}" for n in range(few + 1))
    assert not World(size=size, open=keys[:few]).look().full
    assert World(size=size, open=keys).look().full


def test_short_look_reads_open_content_that_no_manifest_wants() -> None:
    old = wanted("old")
    run = run_of(old, State.FAILED)
    world = World([bound_to(old, run, ended=None)], [run], open=(get_key(old),))
    seen = world.look_short()
    assert (get_resources(seen), list(seen.observed.claims)) == ([run.resource], [ClaimId(get_key(old), 1)])


def test_short_look_reads_content_of_live_run_that_no_manifest_wants() -> None:
    """Check that its claim is read, and by a search an ended run that has the same labels."""
    old = wanted("old")
    live, ended = run_of(old, State.RUNNING), run_of(old, State.FAILED, number=2)
    assert get_resources(World([], [live, ended]).look_short()) == [live.resource, ended.resource]
    assert list(World([bound_to(old, live)], [live]).look_short().observed.claims) == [
        ClaimId(get_key(old), 1)
    ]


def test_short_look_reads_other_content_only_without_copy() -> None:
    old = wanted("old")
    run = run_of(old, State.FAILED)
    claim = bound_to(old, run)
    for copies, read in (([], [get_key(old)]), ([(claim, run)], [])):
        world = World([claim], [run], copies)
        seen = world.look_short(also=[get_key(old)])
        assert (world.read, get_resources(seen)) == (read, [run.resource])


def test_short_look_reads_all_keys_of_job_after_failed_attempt_that_may_be_retried() -> None:
    failed = run_of(CENSUS, State.FAILED)
    claim = bound_to(CENSUS, failed)
    for attempts, read in ((1, []), (2, sorted([get_key(CENSUS), "earlier"]))):
        job = wanted("census", attempts=attempts)
        job = replace(job, keys=(get_key(job), "earlier"))
        world = World([claim], [failed], [(claim, failed)])
        world.look_short(job)
        assert world.read == read


def test_short_look_reads_all_keys_of_job_unless_the_copies_of_each_are_settled() -> None:
    """Check this for a job whose older name an applier of an earlier version goes on with."""
    cancelled = run_of(CENSUS, State.CANCELLED)
    claim, job = bound_to(CENSUS, cancelled), replace(CENSUS, keys=(get_key(CENSUS), "earlier"))
    job = replace(job, manifest=replace(job.manifest, reconcile=Reconcile(attempts=3)))
    for state, read in ((State.FAILED, sorted(job.keys)), (State.SUCCEEDED, [])):
        run = run_of(CENSUS, state, number=2)
        older = replace(bound_to(CENSUS, run), id=ClaimId("earlier", 1))
        world = World([claim, older], [cancelled, run], [(claim, cancelled), (older, run)])
        world.look_short(job)
        assert world.read == read, state


def test_short_look_reads_all_keys_of_settled_job_when_its_run_is_live() -> None:
    claim = bound_to(CENSUS, ENDED)
    job = replace(CENSUS, keys=(get_key(CENSUS), "earlier"))
    live = run_of(CENSUS, State.RUNNING, number=2)
    world = World([claim], [ENDED, live], [(claim, ENDED)])
    seen = world.look_short(job)
    assert world.read == sorted([get_key(CENSUS), "earlier"])
    assert get_resources(seen) == [ENDED.resource, live.resource]


def test_copy_is_ignored_when_its_content_was_read() -> None:
    copy = bound_to(CENSUS, ENDED)
    world = World([replace(copy, commit="c2")], [ENDED], [(copy, ENDED)], open=(get_key(CENSUS),))
    seen = world.look_short(CENSUS)
    assert [claim.commit for claim in seen.observed.claims.values()] == ["c2"]
    assert seen.observed.versions == world.outside.claims.held


def test_live_run_of_other_instance_is_not_read_and_is_doubtful_by_age() -> None:
    other = run_of(CENSUS, State.RUNNING, number=5)
    other = replace(other, labels={**other.labels, INSTANCE: "b"})
    for oldest, is_doubtful in (
        ("", True),
        ("2026-01-04T00:00:00+00:00", False),
        ("2026-01-06T00:00:00+00:00", True),
    ):
        world = World([], [other], oldest=oldest)
        world.ports = replace(world.ports, neighbours=frozenset({"b"}))
        seen = world.look_short()
        doubtful = [run.resource for run in seen.observed.doubtful]
        assert (world.read, seen.observed.runs, doubtful) == ([], (), [other.resource] * is_doubtful)


def test_age_of_environment_comes_from_ended_own_run_of_wanted_content() -> None:
    other = run_of(wanted("other"), State.RUNNING, number=5)
    other = replace(other, labels={**other.labels, INSTANCE: "b"})
    claim = bound_to(CENSUS, ENDED)
    world = World([claim], [ENDED, other], [(claim, ENDED)])
    world.ports = replace(world.ports, neighbours=frozenset({"b"}))
    assert world.look_short(CENSUS).observed.doubtful == ()


def test_unlisted_young_run_is_read_by_name_in_its_claim() -> None:
    young = run_of(CENSUS, State.RUNNING, create_time=LATER.isoformat())
    world = World([bound_to(CENSUS, young)], [young])
    world.outside.jobs.hidden = {young.resource}
    assert get_resources(world.look_short(CENSUS)) == [young.resource]


@pytest.mark.fault(15)
@pytest.mark.parametrize("beside", [()], ids=["alone"])
def test_empty_short_look_fails_while_ended_job_of_read_content_exists(
    beside: tuple[DesiredJob, ...],
) -> None:
    young = [run_of(job, State.RUNNING, number=2, create_time=LATER.isoformat()) for job in beside]
    claims = [bound_to(job, run) for job, run in zip(beside, young, strict=True)]
    world = World([bound_to(CENSUS, ENDED), *claims], [ENDED, *young])
    world.outside.jobs.hidden = {run.resource for run in (ENDED, *young)}
    with pytest.raises(ServiceError, match="leaves out"):
        world.look(CENSUS, *beside)
    world.outside.jobs.jobs = young
    assert len(world.look_short(CENSUS, *beside).observed.runs) == len(young)


@pytest.mark.fault(15)
def test_short_look_that_finds_run_reads_no_ended_job_by_name() -> None:
    other = run_of(wanted("census", "b"), State.RUNNING, number=2)
    world = World([bound_to(CENSUS, ENDED)], [ENDED, other])
    world.outside.jobs.hidden = {ENDED.resource}
    world.outside.jobs.read = lambda *of: pytest.fail("a needless read")  # type: ignore[method-assign]
    assert get_resources(world.look_short(CENSUS)) == [other.resource]


def test_run_of_another_repository_with_the_same_key_is_left_out() -> None:
    foreign = replace(ENDED, labels={**ENDED.labels, SOURCE: "other"})
    assert World([], [foreign]).look_short(CENSUS).observed.runs == ()


def test_service_that_lists_no_jobs_is_not_searched() -> None:
    world = World()
    world.outside.jobs.lists = lambda api_version: api_version == ML_V1  # type: ignore[method-assign]
    world.look_short(CENSUS)
    assert (world.read, world.searched) == ([get_key(CENSUS)], [])


@pytest.mark.parametrize(
    ("claims", "runs", "copies"),
    [
        pytest.param([], [], [], id="new"),
        pytest.param([claim_on(CENSUS, ClaimState.REJECTED)], [], [], id="claim"),
        pytest.param([], [run_of(CENSUS, State.RUNNING)], [], id="live run"),
        pytest.param([bound_to(CENSUS, ENDED)], [], [(bound_to(CENSUS, ENDED), ENDED)], id="copy"),
    ],
)
def test_look_is_full_for_former_base_name_in_any_state_of_job(
    claims: list[Claim], runs: list[ActualJob], copies: list[Any]
) -> None:
    assert World(claims, runs, copies, former=("census",)).look(CENSUS).full
    assert World(claims, runs, copies, former=("census", "other")).look(CENSUS).full
    assert not World(claims, runs, copies, former=("other",)).look(CENSUS).full


def test_look_is_full_when_any_wanted_base_name_is_former() -> None:
    assert World(former=("other",)).look(CENSUS, wanted("other")).full


def list_witnesses(kept: list[tuple[Claim, ActualJob | None]]) -> list[str]:
    """Return the ended jobs read by name after an empty search of a service that has dropped all jobs."""
    world, read = World([], [], kept), []

    def read_missing(api_version: str, kind: str, resource: str) -> ActualJob:
        read.append(resource)
        raise NotFoundError(resource)

    world.outside.jobs.read = read_missing  # type: ignore[method-assign]
    named = world.outside.jobs.named

    def find_by_name(api_version: str, kind: str, job_name: str) -> str | None:
        assert kind == "CustomJob"
        assert job_name.startswith("census")
        return named(api_version, kind, job_name)

    world.outside.jobs.named = find_by_name  # type: ignore[method-assign]
    seen = world.look_short(also=[claim.id.key for claim, _ in kept])
    assert len(seen.observed.claims) == len(kept)
    return read


def test_empty_search_is_checked_by_three_oldest_ended_jobs_with_copies() -> None:
    jobs = [wanted("census", str(n)) for n in range(5)]
    runs = [run_of(job, State.FAILED, number=n) for job, n in zip(jobs, (4, 2, 5, 1, 3), strict=True)]
    kept: list[Any] = [(bound_to(job, run), run) for job, run in zip(jobs, runs, strict=True)]
    assert list_witnesses(kept) == [runs[3].resource, runs[1].resource, runs[4].resource]


def test_empty_search_is_not_checked_by_dropped_adopted_or_caller_named_jobs() -> None:
    adopted = bound_to(wanted("census", "adopted"), ENDED, request_ids=())
    legacy = replace(ENDED, api_version=ML_V1)
    named = replace(bound_to(wanted("census", "named"), ENDED), api_version=ML_V1)
    assert list_witnesses([(adopted, ENDED), (bound_to(CENSUS, ENDED), None), (named, legacy)]) == []


def test_look_is_full_more_than_day_after_last_full_look() -> None:
    world = World()
    world.outside.time.now = LATER + timedelta(hours=24)
    assert not look(world.ports, {}, full_after=FULL_AFTER).full
    world.outside.time.now += timedelta(microseconds=1)
    assert look(world.ports, {}, full_after=FULL_AFTER).full


def test_look_without_summary_is_full_and_reports_only_unusable_summary() -> None:
    world = World()
    world.ports = replace(world.ports, least_history=0)
    for content, notes in ((b"", 0), (b"{", 1)):
        world.outside.claims.stored = content, 1
        seen = look(world.ports, {}, full_after=FULL_AFTER)
        assert (seen.full, seen.summary, len(seen.notes)) == (True, None, notes)
    assert "can't be read" in seen.notes[0]
    world.outside.claims.summary = lambda: None  # type: ignore[method-assign]
    seen = look(world.ports, {}, full_after=FULL_AFTER)
    assert (seen.full, seen.stored, seen.notes) == (True, None, ())
    keep_summary(world.ports, seen, {})
    assert world.outside.claims.stored == (b"{", 1)


@pytest.mark.parametrize(("least", "is_kept"), [(2, True), (3, False)])
def test_summary_is_kept_from_least_history_of_claims_and_runs(least: int, is_kept: bool) -> None:
    world = World([bound_to(CENSUS, ENDED)], [ENDED])
    world.ports = replace(world.ports, least_history=least)
    world.outside.claims.stored = b"", 0
    keep_summary(world.ports, world.look(CENSUS), index_by_key(CENSUS))
    assert bool(world.outside.claims.stored[0]) is is_kept


def test_unusable_summary_of_a_small_history_is_replaced() -> None:
    world = World([bound_to(CENSUS, ENDED)], [ENDED])
    world.outside.claims.stored = b"{", 1
    assert world.look(CENSUS).notes
    keep_summary(world.ports, world.look(CENSUS), index_by_key(CENSUS))
    assert not world.look(CENSUS).notes
    assert len(get_copies(world.outside)) == 1


def test_summary_of_a_small_history_is_kept_up_to_date() -> None:
    world = World([bound_to(CENSUS, ENDED)], [ENDED])
    keep_summary(world.ports, world.look_short(CENSUS), index_by_key(CENSUS))
    assert len(get_copies(world.outside)) == 1


def get_summary_after(world: World, *, full: bool) -> Summary:
    world.outside.time.now = LATER + timedelta(hours=1)
    keep_summary(world.ports, world.look(CENSUS, full=full), index_by_key(CENSUS))
    return get_summary(world.outside)


def test_only_a_full_look_changes_the_time_and_the_size_in_the_summary() -> None:
    claim = bound_to(CENSUS, ENDED)
    short = get_summary_after(World([claim], [ENDED], size=7, oldest="2025"), full=False)
    assert (short.taken, short.size, short.oldest) == (LATER, 7, "2025")
    full = get_summary_after(World([claim], [ENDED], size=7, oldest="2025"), full=True)
    assert (full.taken - LATER, full.size, full.oldest) == (
        timedelta(hours=1),
        1,
        "2026-01-01T00:00:00+00:00",
    )
    assert get_summary_after(World([], [], oldest="2025"), full=True).oldest == ""


@pytest.mark.parametrize(("stored", "expected"), [(0, 5), (3, 3)])
def test_summary_has_the_generation_of_the_genesis_that_was_read_first(stored: int, expected: int) -> None:
    """A read without a summary gives no generation; a known generation shows a store restored since then."""
    world = World()
    world.ports = replace(world.ports, least_history=0)
    world.outside.claims.stored = b"", 0
    world.outside.claims.marked = stored
    seen = world.look(CENSUS)
    world.outside.claims.marked = 5
    keep_summary(world.ports, seen, index_by_key(CENSUS))
    world.outside.claims.marked = expected
    assert get_summary(world.outside)


def test_partial_look_makes_no_summary_and_leaves_what_one_says_of_others(outside: Outside) -> None:
    late = desired("late", "0", Reconcile())
    empty = Outside()
    keep_summary(get_ports(empty), look(get_ports(empty), {}, full=True), {}, whole=False)
    stored = empty.claims.summary()
    assert stored is not None
    assert stored.content == b""
    before, wanted_jobs = get_summary(outside), wanted_of([JOB, late])
    outside.time.now += timedelta(hours=1)
    seen = look(get_ports(outside), wanted_jobs, full=True)
    keep_summary(get_ports(outside), seen, wanted_jobs, whole=False)
    after = get_summary(outside)
    assert (after.kept, after.taken) == (before.kept, before.taken)
    assert after.bases == ("census", "churn_model", "late")


@pytest.mark.parametrize(
    ("whole", "also", "is_announced", "kept"),
    [
        (True, False, True, False),
        (True, True, False, True),
        (False, False, True, True),
        (False, True, False, True),
        (False, False, False, False),
    ],
)
def test_summary_keeps_other_content_that_looks_need_or_a_partial_one_finds_announced(
    outside: Outside, whole: bool, also: bool, is_announced: bool, kept: bool
) -> None:
    mine, other = get_summary(outside).kept
    if mine.run and mine.run.job_name != JOB.job_name:
        mine, other = other, mine
    id = other.versioned.claim.id
    announced = (Announcement("a1", outside.time.now, (id,)),) if is_announced else ()
    store_forgery(
        outside,
        lambda preface, summary: (replace(preface, announced=announced), replace(summary, kept=(mine,))),
    )
    wanted_jobs = wanted_of([JOB])
    seen = look(get_ports(outside), wanted_jobs, full=True)
    keep_summary(get_ports(outside), seen, wanted_jobs, [id.key] if also else (), whole=whole)
    assert (id in [one.versioned.claim.id for one in get_summary(outside).kept]) is kept


def test_announcement_of_claim_that_was_seen_is_dropped_though_the_summary_stays(outside: Outside) -> None:
    before, wanted_jobs = get_summary(outside), wanted_of([JOB, OTHER])
    id = before.kept[0].versioned.claim.id
    store_forgery(outside, forge_preface(announced=(Announcement("a1", outside.time.now, (id,)),)))
    seen = look(get_ports(outside), wanted_jobs)
    keep_summary(get_ports(outside), seen, wanted_jobs)
    preface, after = read_summary(outside.claims.summary())
    assert preface is not None
    assert (preface.announced, after) == ((), before)
