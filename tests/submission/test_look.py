"""Short looks: what they read, what they conclude, and when a full one takes their place."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from memory_ports import BOUNDS, Outside
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.job import State
from reconciler.model.manifest import Reconcile
from reconciler.model.plan import DesiredJob, Plan, Target
from reconciler.model.ports import Ports
from reconciler.operations.execute import Applier
from reconciler.operations.plan import wanted_of
from reconciler.planning.planner import make_plan
from reconciler.submission.look import OLDEST, Look, keep_summary, look
from reconciler.submission.summary import Summary, encoded, summary_of
from tests.simulation.passes import body_of
from tests.simulation.scenario import desired

JOB = desired("census", "0", Reconcile())
OTHER = desired("churn-model", "0", Reconcile())
TARGET = Target("prod", "google", "acme-ml", "us-central1")


def ports_of(outside: Outside) -> Ports:
    import dataclasses

    return dataclasses.replace(outside.ports, least_history=0)


def plan_of(outside: Outside, seen: Look, *jobs: DesiredJob) -> Plan:
    observed = seen.observed
    return make_plan(
        TARGET,
        jobs,
        observed.runs,
        observed.claims,
        lambda job: body_of(job, job.job_name, {}),
        source=outside.ports.source,
    )


def applied(outside: Outside, *jobs: DesiredJob, full: bool = False) -> Plan:
    """One apply of these jobs, with the update of claims and of the summary."""
    ports = ports_of(outside)
    plan = plan_of(outside, look(ports, wanted_of(jobs), full=full), *jobs)
    applier = Applier(ports, body_of)
    list(applier.run(plan))
    seen = look(ports, wanted_of(jobs), full=full)
    applier.upkeep(jobs, seen.observed)
    keep_summary(ports, seen, wanted_of(jobs))
    return plan


@pytest.fixture
def outside() -> Outside:
    """Two jobs that were submitted and succeeded, and a summary that has them."""
    outside = Outside()
    applied(outside, JOB, OTHER)
    for job in outside.jobs.jobs:
        outside.jobs.becomes(job, State.SUCCEEDED)
    outside.time.now += BOUNDS.visible * 2
    applied(outside, JOB, OTHER)
    applied(outside, JOB, OTHER)
    assert {run.state for _, run in kept(outside)} == {State.SUCCEEDED}
    assert len(kept(outside)) == 2
    return outside


def kept(outside: Outside) -> Any:
    summary = summary_of(outside.claims.summary())
    return [(each.versioned.claim, each.run) for each in summary.kept] if summary else []


def test_a_short_look_lists_no_history(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    full = look(ports_of(outside), wanted_of([JOB, OTHER]), full=True)
    for port, name in ((outside.claims, "listed"), (outside.jobs, "runs")):
        monkeypatch.setattr(port, name, lambda: pytest.fail("the history is listed"))
    monkeypatch.setattr(outside.jobs, "live", lambda: ())
    monkeypatch.setattr(outside.jobs, "with_key", lambda *_: tuple(outside.jobs.jobs))
    short = look(ports_of(outside), wanted_of([JOB, OTHER]))
    assert not short.full
    assert plan_of(outside, short, JOB, OTHER) == plan_of(outside, full, JOB, OTHER)


def as_claims(change: Callable[[Claim], Claim]) -> Callable[[Summary], Summary]:
    """A forgery of each copied claim."""

    def changed(summary: Summary) -> Summary:
        copies = (each.versioned for each in summary.kept)
        forged = [replace(copy, claim=change(copy.claim)) for copy in copies]
        pairs = zip(summary.kept, forged, strict=True)
        return replace(summary, kept=tuple(replace(each, versioned=copy) for each, copy in pairs))

    return changed


def forged(outside: Outside, change: Callable[[Summary], Summary]) -> None:
    summary = summary_of(outside.claims.summary())
    assert summary
    outside.claims.stored = encoded(change(summary)), outside.claims.stored[1]


@pytest.mark.fault(55)
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda summary: replace(summary, kept=()), id="without settled attempts"),
        pytest.param(lambda summary: replace(summary, kept=(), open=(), bases=()), id="empty"),
        pytest.param(lambda summary: replace(summary, taken=summary.taken + timedelta(days=9)), id="too new"),
        pytest.param(lambda summary: replace(summary, genesis=7), id="of another store"),
        pytest.param(lambda summary: replace(summary, format=2), id="of a newer version"),
        pytest.param(as_claims(lambda claim: replace(claim, ended=State.FAILED)), id="failed"),
        pytest.param(as_claims(lambda claim: replace(claim, state=ClaimState.REJECTED)), id="rejected"),
        pytest.param(as_claims(lambda claim: replace(claim, ended=None)), id="not ended"),
        pytest.param(as_claims(lambda claim: replace(claim, path="other.yaml")), id="moved"),
        pytest.param(as_claims(lambda claim: replace(claim, resource="jobs/9")), id="of another job"),
    ],
)
def test_a_forged_summary_submits_nothing_twice_and_a_full_look_corrects_it(
    outside: Outside, change: Callable[[Summary], Summary]
) -> None:
    right = kept(outside)
    forged(outside, change)
    again = desired("census", "0", Reconcile(attempts=3))
    applied(outside, again, OTHER)
    assert len(outside.jobs.jobs) == 2
    applied(outside, JOB, OTHER, full=True)
    assert len(outside.jobs.jobs) == 2
    assert kept(outside) == right


@pytest.mark.fault(55)
def test_a_deleted_or_broken_summary_is_made_anew(outside: Outside) -> None:
    right = kept(outside)
    for content in (b"", b"{", b'{"taken": 3}'):
        outside.claims.stored = content, outside.claims.stored[1] if content else 0
        applied(outside, JOB, OTHER)
        assert len(outside.jobs.jobs) == 2
        assert kept(outside) == right


@pytest.mark.fault(55)
def test_a_full_look_says_what_a_forged_summary_had_wrong(outside: Outside) -> None:
    def change(summary: Summary) -> Summary:
        first, *rest = summary.kept
        assert first.run
        return replace(summary, kept=(replace(first, run=replace(first.run, state=State.FAILED)), *rest))

    forged(outside, change)
    (said,) = look(ports_of(outside), wanted_of([JOB, OTHER]), full=True).notes
    assert "the summary of ended runs was wrong" in said
    assert "is succeeded, not failed" in said.lower()


def test_an_older_version_that_submits_beside_is_seen(outside: Outside) -> None:
    """It writes claims and jobs, and knows nothing of the summary."""
    newer = desired("census", "1", Reconcile())
    ports = outside.ports
    list(Applier(ports, body_of).run(plan_of(outside, look(ports, wanted_of([newer]), full=True), newer)))
    plan = applied(outside, newer, OTHER)
    assert [change.action for change in plan.changes] == ["none", "none"]
    assert len(outside.jobs.jobs) == 3


def test_a_failed_attempt_is_read_again_before_the_next(outside: Outside) -> None:
    again = desired("iris", "0", Reconcile(attempts=1))
    applied(outside, again)
    outside.jobs.becomes(outside.jobs.jobs[-1], State.FAILED)
    applied(outside, again)
    applied(outside, again)
    more = desired("iris", "0", Reconcile(attempts=2))
    applied(outside, more)
    assert len(outside.jobs.jobs) == 4
    # Another process may have made the second attempt, and it may have ended, since the summary was written.
    outside.jobs.becomes(outside.jobs.jobs[-1], State.SUCCEEDED)
    seen = look(ports_of(outside), wanted_of([more]))
    assert not seen.full
    assert ClaimId(more.keys[0] if more.keys else next(iter(wanted_of([more]))), 2) in seen.observed.claims


def test_a_look_is_full_for_a_new_base_name_and_after_a_day(outside: Outside) -> None:
    ports = ports_of(outside)
    assert not look(ports, wanted_of([JOB]), oldest=OLDEST).full
    assert look(ports, wanted_of([JOB, desired("topics", "0", Reconcile())])).full
    outside.time.now += OLDEST * 2
    assert look(ports, wanted_of([JOB]), oldest=OLDEST).full
    assert not look(ports, wanted_of([JOB])).full


def test_a_live_duplicate_of_a_settled_job_shows_in_a_short_look(outside: Outside) -> None:
    body = next(body for body, _ in outside.jobs.sent if "census" in body["displayName"])
    second = outside.jobs.add(body)
    seen = look(ports_of(outside), wanted_of([JOB, OTHER]))
    assert not seen.full
    assert second.resource in {run.resource for run in seen.observed.runs}
    (finding,) = plan_of(outside, seen, JOB, OTHER).drift
    assert finding.kind == "duplicate"


def test_a_search_that_finds_nothing_is_checked_by_an_ended_job(outside: Outside) -> None:
    outside.jobs.hidden = {job.resource for job in outside.jobs.jobs}
    with pytest.raises(ServiceError, match="leaves out"):
        look(ports_of(outside), wanted_of([JOB, OTHER]))


def test_a_small_history_has_no_summary() -> None:
    outside = Outside()
    seen = look(outside.ports, wanted_of([JOB]))
    keep_summary(outside.ports, seen, wanted_of([JOB]))
    assert outside.claims.stored == (b"", 0)
