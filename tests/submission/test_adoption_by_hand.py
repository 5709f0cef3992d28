"""Adoption of a live job that a person made: one conditional write, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from memory_ports import Outside, labels
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.model.claim import Claim, ClaimId, ClaimState, claim_json, claim_of
from reconciler.model.job import ActualJob, State
from reconciler.submission.adoption import Adopted, Adoption, adopt
from reconciler.submission.observe import observe
from tests.submission.test_submission import CLAIM, KEY_1, ORDER, body, settle

PACKAGE = "gs://staging/reconciler/packages/0/x.tar.gz"


def by_hand(**more: Any) -> dict[str, Any]:
    """The body of the same job as a person sends it."""
    return {**body("", **more), "displayName": "census 7", "labels": {"team": "risk"}}


@pytest.fixture
def outside() -> Outside:
    return Outside()


@pytest.fixture
def job(outside: Outside) -> ActualJob:
    return outside.jobs.add(by_hand())


def adopted(outside: Outside, job: ActualJob, claim: Claim = CLAIM, **more: Any) -> Adopted:
    adoption = Adoption(claim, (claim.id.key,), job.resource, lambda name: by_hand(), **more)
    return adopt(outside.ports, adoption, observe(outside.ports))


def test_claim_names_the_job_under_its_own_name(outside: Outside, job: ActualJob) -> None:
    claim = adopted(outside, job, replace(CLAIM, on_delete="cancel")).claim
    assert claim == outside.claim
    assert (claim.state, claim.resource, claim.job_name) == (ClaimState.BOUND, job.resource, "census 7")
    assert claim.on_delete == "keep"
    assert claim.is_adopted
    assert claim_of(claim_json(claim)) == claim
    assert [run.resource for run in observe(outside.ports).runs] == [job.resource]


@pytest.mark.fault(54)
def test_apply_sends_nothing_for_an_adopted_content(outside: Outside, job: ActualJob) -> None:
    adopted(outside, job)
    assert settle(outside).claim == outside.claim
    assert outside.jobs.sent == []


@pytest.mark.fault(54)
def test_adoption_while_a_request_is_under_way_writes_nothing(outside: Outside, job: ActualJob) -> None:
    found = observe(outside.ports)
    settle(outside)
    before = outside.claim
    adoption = Adoption(CLAIM, (KEY_1,), job.resource, lambda name: by_hand())
    result = adopt(outside.ports, adoption, found)
    assert (result.claim, outside.claim) == (None, before)
    assert result.why == "lost to another process, which has just claimed the manifest's content"


@pytest.mark.fault(54)
def test_of_two_adoptions_at_once_both_find_the_job_adopted(outside: Outside, job: ActualJob) -> None:
    results: list[Adopted] = []

    def other(claim: Claim) -> None:
        outside.claims.before_write = lambda claim: None
        results.append(adopted(outside, job))

    outside.claims.before_write = other
    results.append(adopted(outside, job))
    assert [result.claim for result in results] == [outside.claim, outside.claim]
    assert len(outside.claims.history) == 1


@pytest.mark.fault(54)
@pytest.mark.parametrize("fault", ["lost", "denied"])
def test_write_that_took_effect_counts_whatever_the_answer(
    fault: str, outside: Outside, job: ActualJob
) -> None:
    outside.claims.faults = [fault]
    assert adopted(outside, job).claim == outside.claim


@pytest.mark.fault(54)
def test_adoption_after_a_failed_write_is_made_good_by_the_next(outside: Outside, job: ActualJob) -> None:
    outside.claims.faults = ["failed"]
    with pytest.raises(ServiceError, match="the store is away"):
        adopted(outside, job)
    assert outside.claims.held == {}
    assert adopted(outside, job).claim == adopted(outside, job).claim == outside.claim


def test_emptied_store_is_an_error(outside: Outside, job: ActualJob) -> None:
    found = observe(outside.ports)
    outside.claims.genesis = False
    adoption = Adoption(CLAIM, (KEY_1,), job.resource, lambda name: by_hand())
    with pytest.raises(ServiceError, match="no genesis"):
        adopt(outside.ports, adoption, found)


def of_other_content(outside: Outside, job: ActualJob) -> None:
    claim = replace(CLAIM, id=ClaimId("z" * 52), base_name="other", state=ClaimState.BOUND)
    outside.claims.write(replace(claim, resource=job.resource), 0)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda outside, job: outside.jobs.jobs.clear(), "no longer exists"),
        (lambda outside, job: outside.jobs.becomes(job, State.FAILED), "has ended (FAILED)"),
        (of_other_content, "is the job of the manifest other already"),
        (
            lambda outside, job: settle(outside, ORDER),
            "is too late: the manifest was submitted already (census_0123, bound)",
        ),
        (
            lambda outside, job: outside.jobs.add({**body("t"), "labels": labels(KEY_1)}),
            "is not the manifest's only job: projects/acme/locations/here/customJobs/2 has its labels",
        ),
    ],
    ids=["gone", "ended", "other", "begun", "labelled"],
)
def test_job_that_cannot_be_the_manifests_is_not_adopted(
    change: Callable[[Outside, ActualJob], object], why: str, outside: Outside, job: ActualJob
) -> None:
    change(outside, job)
    before = dict(outside.claims.held)
    assert adopted(outside, job) == Adopted(None, why)
    assert outside.claims.held == before


def test_job_with_labels_of_another_repository_is_not_adopted(outside: Outside) -> None:
    job = outside.jobs.add({**by_hand(), "labels": labels("x" * 52, source="others")})
    assert adopted(outside, job).why.startswith("has the label reconciler-")


def test_differences_are_named_without_secrets(outside: Outside) -> None:
    secret = "AKIA" + "Q3R7T2U6V4W5X7YZ"
    job = outside.jobs.add(by_hand(serviceAccount="a@b", network=secret))
    result = adopted(outside, job)
    assert (result.claim, result.why) == (None, "differs from the manifest's job")
    found = {field.pointer: field.before for field in result.fields}
    assert found.keys() == {"/jobSpec/network", "/jobSpec/serviceAccount"}
    assert secret not in found.values()


@pytest.mark.parametrize(("uri", "is_same"), [("gs://mine/a.tar.gz", True), ("gs://mine/b.tar.gz", False)])
def test_package_elsewhere_counts_by_its_bytes(uri: str, is_same: bool, outside: Outside) -> None:
    job = outside.jobs.add(by_hand(packageUris=[uri]))
    adoption = Adoption(
        CLAIM,
        (KEY_1,),
        job.resource,
        lambda name: by_hand(packageUris=[PACKAGE]),
        PACKAGE,
        lambda found: found == "gs://mine/a.tar.gz",
    )
    result = adopt(outside.ports, adoption, observe(outside.ports))
    assert (result.claim is not None) == is_same
    assert [field.pointer for field in result.fields] == ([] if is_same else ["/jobSpec/packageUris/0"])
