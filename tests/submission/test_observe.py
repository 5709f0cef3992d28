"""Observation of claims and runs, and the signs that it is incomplete."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.model.claim import ClaimId, ClaimState
from reconciler.model.job import ATTEMPT, INSTANCE, KEY, SOURCE, ActualJob, State
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1
from reconciler.model.ports import ClaimRead, Versioned
from reconciler.submission.observe import Observed, check_search, doubtful_runs, observe, with_reasons
from tests.support.memory_ports import BOUNDS, Outside, Time, labels
from tests.support.planning import bound_to, run_of, wanted
from tests.support.submission import KEY_1, ORDER, body, settle


@pytest.fixture
def outside() -> Outside:
    outside = Outside()
    settle(outside)
    return outside


def test_observe_returns_claims_and_runs(outside: Outside) -> None:
    seen = observe(outside.ports)
    assert seen.claims == {ClaimId(KEY_1, 1): outside.claim}
    assert [run.resource for run in seen.runs] == [outside.claim.resource]


@pytest.mark.fault(15)
def test_job_created_between_listings_does_not_count_as_missing(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Claims are listed first: a claim's job existed before, and the listing of runs must show it."""
    (made,), claim = outside.jobs.jobs, outside.claim
    outside.time.now += BOUNDS.visible * 2
    held = dict(outside.claims.held)
    outside.jobs.jobs.clear()
    outside.claims.held.clear()

    def list_then_create(listed: Callable[[], Any]) -> Any:
        found = listed()
        outside.jobs.jobs[:] = [made]
        outside.claims.held |= held
        return found

    monkeypatch.setattr(outside.claims, "listed", partial(list_then_create, outside.claims.listed))
    monkeypatch.setattr(outside.jobs, "runs", partial(list_then_create, outside.jobs.runs))
    seen = observe(outside.ports)
    assert (seen.claims, [run.resource for run in seen.runs]) == ({}, [claim.resource])


@pytest.mark.fault(11)
def test_observe_fails_when_store_has_no_genesis(outside: Outside) -> None:
    outside.claims.genesis = False
    with pytest.raises(ServiceError, match="no genesis"):
        observe(outside.ports)


@pytest.mark.fault(12)
def test_young_job_missing_from_listing_is_read_by_name(outside: Outside) -> None:
    outside.jobs.hidden.add(outside.claim.resource)
    outside.time.now += BOUNDS.visible
    (run,) = observe(outside.ports).runs
    assert run.resource == outside.claim.resource


@pytest.mark.fault(15)
def test_observe_fails_when_listing_leaves_out_old_job(outside: Outside) -> None:
    outside.jobs.hidden.add(outside.claim.resource)
    outside.time.now += BOUNDS.visible + timedelta(seconds=1)
    with pytest.raises(ServiceError) as error:
        observe(outside.ports)
    assert error.value.message == (
        f"the service's listing leaves out {outside.claim.resource}, which exists: nothing can be planned"
    )
    assert "filter" in error.value.hint


@pytest.mark.fault(15)
@pytest.mark.parametrize("text", ["", "yesterday", "2026-01-01T00:00:00", "99999-01-01T00:00:00Z"])
def test_observe_fails_when_unlisted_job_has_no_valid_creation_time(outside: Outside, text: str) -> None:
    (job,) = outside.jobs.jobs
    outside.jobs.jobs = [replace(job, create_time=text)]
    outside.jobs.hidden.add(job.resource)
    with pytest.raises(ServiceError, match="leaves out"):
        observe(outside.ports)


def test_job_with_changed_source_label_is_observed(outside: Outside) -> None:
    """A person changed the label: this is no sign of an incomplete listing."""
    (job,) = outside.jobs.jobs
    outside.jobs.jobs = [replace(job, labels={**job.labels, SOURCE: "other"})]
    outside.jobs.hidden.add(job.resource)
    outside.time.now += BOUNDS.visible * 2
    assert [run.resource for run in observe(outside.ports).runs] == [job.resource]


@pytest.mark.fault(23)
def test_deleted_job_is_not_observed(outside: Outside) -> None:
    outside.jobs.jobs.clear()
    assert observe(outside.ports).runs == ()


@pytest.mark.parametrize("known", [{"ended": State.FAILED}, {"gone": True}])
def test_ended_or_gone_job_is_not_read_by_name(outside: Outside, known: dict[str, object]) -> None:
    """This holds as long as the listing shows any job."""
    other = outside.jobs.add({"displayName": "other", "labels": labels("other"), "jobSpec": {}})
    claim = replace(outside.claim, **known)  # type: ignore[arg-type]
    outside.claims.write(claim, outside.claims.held[claim.id].generation)
    outside.jobs.hidden.add(claim.resource)
    outside.time.now += BOUNDS.visible * 2
    assert [run.resource for run in observe(outside.ports).runs] == [other.resource]


@pytest.mark.fault(15)
def test_observe_fails_when_listing_is_empty_while_ended_job_exists(outside: Outside) -> None:
    claim = replace(outside.claim, ended=State.FAILED)
    outside.claims.write(claim, outside.claims.held[claim.id].generation)
    outside.jobs.hidden.add(claim.resource)
    outside.time.now += BOUNDS.visible * 2
    with pytest.raises(ServiceError, match="leaves out"):
        observe(outside.ports)
    outside.jobs.jobs.clear()
    assert observe(outside.ports).runs == ()


def test_job_of_pending_claim_is_not_read_by_name(outside: Outside) -> None:
    from reconciler.model.ports import Unknown
    from reconciler.submission.protocol import Order

    outside.jobs.answers = [Unknown("?")]
    settle(outside, Order(replace(ORDER.claim, id=ClaimId("z" * 52)), body))
    assert len(observe(outside.ports).runs) == 1


def make_empty_listing(claims: int, version: str = AIPLATFORM_V1, **known: Any) -> tuple[Outside, list[str]]:
    """Return a service that lists no job, and the growing list of the jobs read by name."""
    outside = Outside()
    for number in range(1, claims + 1):
        job = outside.jobs.add({"displayName": "a", "labels": labels(f"k{number}")}, version)
        claim = replace(ORDER.claim, id=ClaimId(f"k{number}"), api_version=version, kind="CustomJob")
        made = {"state": ClaimState.BOUND, "resource": job.resource, "request_ids": ("t",)}
        given = {**made, "ended": State.FAILED, **known}
        outside.claims.write(replace(claim, **given), 0)
        outside.jobs.hidden.add(job.resource)
    read: list[str] = []

    def record_read(api_version: str, kind: str, resource: str) -> ActualJob:
        assert (api_version, kind) == (version, "CustomJob")
        read.append(resource)
        raise NotFoundError(resource)

    named = outside.jobs.named

    def find_by_name(api_version: str, kind: str, job_name: str) -> str | None:
        assert (api_version, kind, job_name) == (version, "CustomJob", ORDER.claim.job_name)
        return named(api_version, kind, job_name)

    outside.jobs.read = record_read  # type: ignore[method-assign]
    outside.jobs.named = find_by_name  # type: ignore[method-assign]
    observe(outside.ports)
    return outside, read


def test_adopted_job_is_read_by_name_before_and_after_its_end() -> None:
    outside = Outside()
    job = outside.jobs.add({"displayName": "by hand", "labels": {}})
    claim = replace(ORDER.claim, state=ClaimState.BOUND, resource=job.resource)
    outside.jobs.hidden.add(job.resource)
    outside.time.now += BOUNDS.visible * 2
    written = outside.claims.write(claim, 0)
    assert written is not None
    assert [run.state for run in observe(outside.ports).runs] == [State.QUEUED]
    outside.jobs.becomes(job, State.SUCCEEDED)
    outside.claims.write(replace(claim, ended=State.SUCCEEDED), written.generation)
    assert [run.state for run in observe(outside.ports).runs] == [State.SUCCEEDED]
    outside.jobs.hidden.clear()
    assert len(observe(outside.ports).runs) == 1


def test_deleted_adopted_job_is_not_read_again(outside: Outside) -> None:
    claim = replace(ORDER.claim, id=ClaimId("z" * 52), state=ClaimState.BOUND, resource="jobs/7", gone=True)
    outside.claims.write(claim, 0)
    outside.jobs.read = lambda *named: pytest.fail("a needless read")  # type: ignore[method-assign]
    assert len(observe(outside.ports).runs) == 1


def test_adopted_job_does_not_confirm_empty_listing() -> None:
    outside, _ = make_empty_listing(1)
    read = outside.jobs.read
    job = outside.jobs.add({"displayName": "by hand", "labels": {}})
    outside.jobs.hidden.add(job.resource)
    claim = replace(ORDER.claim, id=ClaimId("z" * 52), state=ClaimState.BOUND, resource=job.resource)
    outside.claims.write(claim, 0)
    names: list[str] = []

    def record_read(api_version: str, kind: str, resource: str) -> ActualJob:
        names.append(resource)
        return job if resource == job.resource else read(api_version, kind, resource)

    outside.jobs.read = record_read  # type: ignore[method-assign]
    observe(outside.ports)
    assert len(names) == 2


def test_three_ended_jobs_are_read_by_name_when_the_listing_is_empty() -> None:
    assert len(make_empty_listing(5)[1]) == 3


@pytest.mark.parametrize(
    "known",
    [
        {"ended": None, "gone": True},
        {"state": ClaimState.PENDING, "request_ids": ("t",), "credential_expiry": Time().now},
    ],
    ids=["gone", "pending"],
)
def test_only_bound_claims_of_ended_jobs_are_read_when_the_listing_is_empty(known: dict[str, Any]) -> None:
    assert make_empty_listing(1, **known)[1] == []


def test_caller_named_jobs_are_not_read_when_listing_is_empty() -> None:
    assert make_empty_listing(1, ML_V1)[1] == []


@pytest.fixture
def witness(outside: Outside) -> ActualJob:
    """Return a job that the service has and that no search finds."""
    (job,) = outside.jobs.jobs
    outside.jobs.hidden.add(job.resource)
    outside.time.now += BOUNDS.visible + timedelta(seconds=1)
    return job


def test_search_fails_when_it_leaves_out_old_witness(
    outside: Outside, witness: ActualJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(
        outside.claims, "read", lambda id: asked.append(id) or ClaimRead(None, outside.time.now)
    )
    second = replace(witness, labels={**witness.labels, ATTEMPT: "2"})
    monkeypatch.setattr(outside.jobs, "read", lambda *of: asked.append(of) or second)
    with pytest.raises(ServiceError, match="leaves out"):
        check_search(outside.ports, [witness])
    assert asked == [(witness.api_version, witness.kind, witness.resource), ClaimId(KEY_1, 2)]


def test_search_passes_when_witness_is_young_or_has_other_key(outside: Outside, witness: ActualJob) -> None:
    check_search(outside.ports, [replace(witness, labels={**witness.labels, KEY: "other"})])
    outside.time.now -= timedelta(seconds=1)
    check_search(outside.ports, [witness])


def test_missing_witness_does_not_affect_search(outside: Outside, witness: ActualJob) -> None:
    gone = replace(witness, resource="projects/acme/jobs/gone")
    check_search(outside.ports, [gone])
    with pytest.raises(ServiceError, match="leaves out"):
        check_search(outside.ports, [gone, witness])


def test_only_cancelled_runs_get_reason_from_claim_of_their_resource() -> None:
    jobs = [wanted(name) for name in ("replaced", "failed", "unclaimed")]
    states = (State.CANCELLED, State.FAILED, State.CANCELLED)
    replaced, failed, unclaimed = (
        run_of(job, state, number=n) for n, (job, state) in enumerate(zip(jobs, states, strict=True), 1)
    )
    claims = [bound_to(jobs[0], replaced, error="because"), bound_to(jobs[1], failed, error="too late")]
    known = {claim.id: Versioned(claim, 1) for claim in claims}
    found = with_reasons(known, (replaced, failed, unclaimed))
    assert found == (replace(replaced, cancelled="because"), failed, unclaimed)
    assert with_reasons(known, (failed,)) == (failed,)


@pytest.mark.parametrize(
    ("given", "listed", "seen", "is_doubtful"),
    [(3, 5, 4, False), (7, 5, 6, False), (None, 5, 4, True), (None, 5, 6, False), (3, 5, 2, True)],
)
def test_run_of_neighbour_is_not_doubtful_when_younger_than_listed_or_given_own_run(
    given: int | None, listed: int, seen: int, is_doubtful: bool
) -> None:
    job = wanted()
    own, run = run_of(job, State.SUCCEEDED, number=listed), run_of(job, State.RUNNING, number=seen)
    neighbours_run = replace(run, labels={**run.labels, INSTANCE: "b"})
    ports = replace(Outside().ports, neighbours=frozenset({"b"}))
    claim = bound_to(job, own)
    oldest = datetime(2026, 1, given, tzinfo=UTC) if given else None
    found = doubtful_runs(ports, {claim.id: Versioned(claim, 1)}, [own], [neighbours_run], oldest)
    assert found == (neighbours_run,) * is_doubtful


# --- jobs missing from a listing --------------------------------------------------------------------------


@pytest.fixture
def unlisted(outside: Outside) -> Outside:
    """Return the same service with a listing that lacks the job."""
    outside.jobs.hidden.add(outside.claim.resource)
    return outside


def test_unlisted_job_is_read_by_api_and_kind_of_its_claim(
    unlisted: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    read = unlisted.jobs.read

    def record_read(api_version: str, kind: str, resource: str) -> ActualJob:
        asked.append((api_version, kind, resource))
        return read(api_version, kind, resource)

    monkeypatch.setattr(unlisted.jobs, "read", record_read)
    observe(unlisted.ports)
    assert asked == [("aiplatform.googleapis.com/v1", "CustomJob", unlisted.claim.resource)]


def test_unlisted_job_is_read_only_when_its_claim_is_bound(unlisted: Outside) -> None:
    claim = replace(unlisted.claim, state=ClaimState.HELD)
    unlisted.claims.write(claim, unlisted.claims.held[claim.id].generation)
    assert observe(unlisted.ports).runs == ()


def test_unlisted_job_with_changed_key_does_not_make_observe_fail(unlisted: Outside) -> None:
    (job,) = unlisted.jobs.jobs
    unlisted.jobs.jobs = [replace(job, labels={**job.labels, KEY: "other"})]
    unlisted.time.now += BOUNDS.visible + timedelta(days=1)
    assert [run.resource for run in observe(unlisted.ports).runs] == [job.resource]


def test_observations_are_equal_when_claims_and_runs_are_whatever_a_summary_adds() -> None:
    observed = Observed({}, ())
    assert observed == replace(observed, folders={"run": "gs://b/f"}, is_full=False)
    assert observed != Observed({}, (run_of(wanted(), State.RUNNING),))
    assert (observed == "no observation") is False
    assert not isinstance(observed, Hashable)


def test_observation_of_every_claim_and_run_is_full(outside: Outside) -> None:
    assert observe(outside.ports).is_full
