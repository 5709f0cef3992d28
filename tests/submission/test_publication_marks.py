"""Marks of models in their places in the summary: trusted, dropped in time, and never handed on."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

import pytest
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.model.job import ActualJob, State
from reconciler.model.manifest import Reconcile
from reconciler.model.plan import DesiredJob, Target
from reconciler.model.ports import Ports
from reconciler.model.publication import InPlace
from reconciler.operations.execute import Applier
from reconciler.operations.plan import wanted_of
from reconciler.planning.planner import make_plan
from reconciler.planning.state import target_state
from reconciler.submission.look import keep_summary, look
from reconciler.submission.summary import OUTDATED, read_preface, read_summary
from tests.simulation.passes import body_of
from tests.simulation.scenario import desired
from tests.support.memory_ports import BOUNDS, Outside
from tests.support.planning import claim_on, wanted

GOOD = desired("census", "0", Reconcile())
BAD = desired("census", "1", Reconcile())
OTHER = desired("churn-model", "0", Reconcile())
TARGET = Target("prod", "google", "acme-ml", "us-central1")
TO, ELSEWHERE = "gs://risk-models/census", "gs://risk-models/churn"


@pytest.fixture
def outside() -> Outside:
    """Return a service with the ended runs of two contents of one job, and of another job."""
    outside = Outside(least_history=0)
    for jobs in ([BAD, OTHER], [GOOD, OTHER]):
        store_look(outside, outside.ports, jobs)
        for job in outside.jobs.jobs:
            outside.jobs.becomes(job, State.SUCCEEDED)
        outside.time.now += BOUNDS.visible * 2
        store_look(outside, outside.ports, jobs)
    assert len(outside.jobs.jobs) == 3
    return outside


def store_look(
    outside: Outside,
    ports: Ports,
    jobs: Iterable[DesiredJob],
    in_place: dict[str, InPlace] | None = None,
    *,
    whole: bool = True,
    full: bool = False,
) -> None:
    """Apply these jobs, and keep a summary of a look that found these models in their places."""
    wanted = wanted_of([*jobs])
    seen = look(ports, wanted, full=full)
    state = target_state(wanted.values(), seen.observed.runs, seen.observed.claims, source=ports.source)
    applier = Applier(ports, body_of)
    list(applier.run(make_plan(TARGET, state)))
    seen = look(ports, wanted, full=full)
    applier.upkeep([*jobs], seen.observed)
    marks = seen.observed.in_place if in_place is None else in_place
    seen = replace(seen, observed=replace(seen.observed, in_place=marks))
    keep_summary(ports, seen, wanted, whole=whole)


def run_of(outside: Outside, job: DesiredJob) -> ActualJob:
    (run,) = [run for run in outside.jobs.jobs if run.job_name == job.job_name]
    return run


def mark(outside: Outside, job: DesiredJob, to: str = TO) -> dict[str, InPlace]:
    return {run_of(outside, job).resource: InPlace(to, outside.time.now)}


def seen_marks(outside: Outside, *jobs: DesiredJob) -> dict[str, InPlace]:
    """Return what a short look by another process takes from the summary."""
    seen = look(outside.ports, wanted_of(jobs))
    assert not seen.full
    return dict(seen.observed.in_place)


def kept_marks(outside: Outside) -> set[str]:
    """Return the addresses of all marks in the summary."""
    _, summary = read_summary(outside.claims.summary())
    assert summary
    return {kept.in_place.to for kept in summary.kept if kept.in_place}


def announced(outside: Outside) -> list[str]:
    preface = read_preface(outside.claims.summary())
    return [to for one in preface.announced for to in one.publications] if preface else []


def test_mark_is_trusted_by_the_next_look(outside: Outside) -> None:
    marks = mark(outside, GOOD) | mark(outside, OTHER, ELSEWHERE)
    store_look(outside, outside.ports, [GOOD, OTHER], marks)
    assert seen_marks(outside, GOOD, OTHER) == marks
    store_look(outside, outside.ports, [GOOD, OTHER])
    assert seen_marks(outside, GOOD, OTHER) == marks


def test_mark_is_never_handed_on_by_a_look_that_does_not_say_it_again(outside: Outside) -> None:
    store_look(outside, outside.ports, [GOOD, OTHER], mark(outside, GOOD))
    store_look(outside, outside.ports, [GOOD, OTHER], {})
    assert kept_marks(outside) == set()


def test_full_look_takes_no_mark(outside: Outside) -> None:
    store_look(outside, outside.ports, [GOOD, OTHER], mark(outside, GOOD))
    assert look(outside.ports, wanted_of([GOOD, OTHER]), full=True).observed.in_place == {}


def test_announced_address_alone_loses_its_mark(outside: Outside) -> None:
    marks = mark(outside, GOOD) | mark(outside, OTHER, ELSEWHERE)
    store_look(outside, outside.ports, [GOOD, OTHER], marks)
    outside.ports.claims.announce_publications([TO])
    assert seen_marks(outside, GOOD, OTHER) == mark(outside, OTHER, ELSEWHERE)


def test_old_mark_is_not_trusted_after_process_died_between_announcement_and_summary(
    outside: Outside,
) -> None:
    store_look(outside, outside.ports, [GOOD, OTHER], mark(outside, GOOD))
    dying = outside.ports
    dying.claims.announce_publications([TO])
    # Others look meanwhile, find the old model in its place, and write summaries, before it is replaced.
    for full in (False, True, False):
        store_look(outside, outside.ports, [GOOD, OTHER], mark(outside, GOOD), full=full)
        assert seen_marks(outside, GOOD, OTHER) == {}, f"full: {full}"
    assert announced(outside) == [TO]


def test_announcement_of_publication_ends_with_its_process_or_with_time(outside: Outside) -> None:
    ports = outside.ports
    ports.claims.announce_publications([TO])
    store_look(outside, ports, [GOOD, OTHER], mark(outside, GOOD))
    assert announced(outside) == []
    assert seen_marks(outside, GOOD, OTHER) == mark(outside, GOOD)
    outside.ports.claims.announce_publications([TO])
    outside.time.now += OUTDATED
    store_look(outside, outside.ports, [GOOD, OTHER], full=True)
    assert announced(outside) == [TO]
    outside.time.now += timedelta(seconds=1)
    store_look(outside, outside.ports, [GOOD, OTHER])
    assert announced(outside) == [TO]
    store_look(outside, outside.ports, [GOOD, OTHER], full=True)
    assert announced(outside) == []


def test_announced_publication_ends_although_a_claim_of_its_process_may_still_be_written(
    outside: Outside,
) -> None:
    ports, claim = outside.ports, claim_on(wanted("late"))
    ports.claims.announce_publications([TO])
    outside.claims.faults = ["failed"]
    with pytest.raises(ServiceError, match="the store is away"):
        ports.claims.write(claim, 0)
    store_look(outside, ports, [GOOD, OTHER])
    preface = read_preface(outside.claims.summary())
    assert preface
    assert [(one.ids, one.publications) for one in preface.announced] == [((claim.id,), ())]


def test_apply_of_some_jobs_drops_the_mark_of_the_model_that_it_replaced(outside: Outside) -> None:
    store_look(outside, outside.ports, [GOOD, OTHER], mark(outside, GOOD) | mark(outside, OTHER, ELSEWHERE))
    ports = outside.ports
    ports.claims.announce_publications([TO])
    store_look(outside, ports, [BAD], mark(outside, BAD), whole=False)
    assert announced(outside) == []
    assert seen_marks(outside, GOOD, OTHER) == mark(outside, BAD) | mark(outside, OTHER, ELSEWHERE)


def test_apply_of_some_jobs_drops_the_mark_of_another_job_at_the_address_that_it_announced(
    outside: Outside,
) -> None:
    store_look(outside, outside.ports, [GOOD, OTHER], mark(outside, OTHER, TO))
    ports = outside.ports
    ports.claims.announce_publications([TO])
    store_look(outside, ports, [GOOD], whole=False)
    assert kept_marks(outside) == set()


def test_apply_of_some_jobs_leaves_the_marks_of_others(outside: Outside) -> None:
    store_look(outside, outside.ports, [GOOD, OTHER], mark(outside, GOOD) | mark(outside, OTHER, ELSEWHERE))
    store_look(outside, outside.ports, [GOOD], mark(outside, GOOD), whole=False)
    assert kept_marks(outside) == {TO, ELSEWHERE}


def test_publications_are_announced_in_one_write_beside_new_claims(outside: Outside) -> None:
    claims, generation = outside.ports.claims, outside.claims.stored[1]
    addresses = [f"gs://risk-models/{number}" for number in range(8)]
    claims.announce_publications(reversed(addresses[1:]))
    assert outside.claims.stored[1] == generation + 1
    assert announced(outside) == addresses[1:]
    claims.announce_publications(addresses[3:5])
    assert outside.claims.stored[1] == generation + 1, "they are announced"
    store_look(outside, outside.ports, [GOOD, OTHER])
    claims.announce_publications(addresses[:1])
    assert announced(outside) == addresses


def test_publication_that_cannot_be_announced_is_refused(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside.claims, "write_summary", lambda content, generation: False)
    with pytest.raises(ServiceError, match="no publication can be announced") as raised:
        outside.ports.claims.announce_publications([TO])
    assert raised.value.hint == "nothing was published: apply again"
    outside.ports.claims.announce_publications([])
