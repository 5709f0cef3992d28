"""Adoption of a live job that a person made: one conditional write, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.model.claim import Claim, ClaimId, ClaimState, claim_json, claim_of
from reconciler.model.job import ActualJob, State, labels_digest
from reconciler.submission.adoption import Adopted, Adoption, adopt
from reconciler.submission.observe import observe
from tests.submission.test_protocol import CLAIM, KEY_1, ORDER, body, settle
from tests.support.memory_ports import Outside, labels

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


def adoption_of(job: ActualJob, claim: Claim = CLAIM) -> Adoption:
    return Adoption(claim, (claim.id.key,), job.resource, lambda name: by_hand(), "", lambda uri: False)


def adopted(outside: Outside, job: ActualJob, claim: Claim = CLAIM) -> Adopted:
    return adopt(outside.ports, adoption_of(job, claim), observe(outside.ports))


def test_claim_names_the_job_under_its_own_name(outside: Outside, job: ActualJob) -> None:
    checked: list[int] = []
    outside.claims.check = lambda runs: checked.append(runs)  # type: ignore[method-assign]
    result = adopted(outside, job, replace(CLAIM, on_delete="cancel"))
    claim = result.claim
    assert result == Adopted(outside.claim, "")
    assert claim is not None
    assert (claim.state, claim.resource, claim.job_name) == (ClaimState.BOUND, job.resource, "census 7")
    assert outside.claims.history[0].on_delete == "keep"
    assert (claim.labels, claim.owner) == (labels_digest(job.labels), "a test")
    assert checked == [1, 1]
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
    result = adopt(outside.ports, adoption_of(job), found)
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
    with pytest.raises(ServiceError, match="no genesis"):
        adopt(outside.ports, adoption_of(job), found)


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
    found = {field.pointer: (field.before, field.after) for field in result.fields}
    assert found.keys() == {"/jobSpec/network", "/jobSpec/serviceAccount"}
    assert found["/jobSpec/serviceAccount"] == ("a@b", None)
    assert secret not in str(found)


def test_job_is_read_by_its_kind(outside: Outside, job: ActualJob) -> None:
    asked: list[tuple[str, str, str]] = []

    def read(api_version: str, kind: str, resource: str) -> ActualJob:
        asked.append((api_version, kind, resource))
        return job

    outside.jobs.read = read  # type: ignore[method-assign]
    adopted(outside, job)
    assert asked == [(CLAIM.api_version, CLAIM.kind, job.resource)]


def test_adopted_job_is_not_claimed_again(outside: Outside, job: ActualJob) -> None:
    first = adopted(outside, job)
    outside.claims.before_write = lambda claim: pytest.fail("a second write")
    assert adopted(outside, job) == first


def test_write_without_effect_is_lost_to_another_process(
    outside: Outside, job: ActualJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside.claims, "write", lambda claim, generation: None)
    assert adopted(outside, job).why.startswith("lost to another process")


def test_written_claim_is_not_read_again(
    outside: Outside, job: ActualJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside.claims, "read", lambda id: pytest.fail("a needless read"))
    assert adopted(outside, job).claim == outside.claim


SAME = "gs://mine/a.tar.gz"


@pytest.mark.parametrize(
    ("uris", "more", "held", "pointers"),
    [
        ([SAME], {}, [SAME], []),
        (["gs://mine/b.tar.gz"], {}, [SAME], ["/jobSpec/packageUris/0"]),
        (["gs://mine/b.tar.gz"], {}, [PACKAGE], ["/jobSpec/packageUris/0"]),
        ([PACKAGE], {}, [PACKAGE], []),
        ([PACKAGE], {}, [], ["/package"]),
        ([PACKAGE], {"network": "n"}, [], ["/jobSpec/network", "/package"]),
        ([SAME], {"network": SAME}, [SAME], ["/jobSpec/network"]),
        ([], {}, [None], ["/jobSpec/packageUris/0"]),
    ],
    ids=["elsewhere", "other", "other-beside", "same", "changed", "and-more", "only-code", "none"],
)
def test_package_counts_by_its_bytes(
    uris: list[str], more: dict[str, str], held: list[str], pointers: list[str], outside: Outside
) -> None:
    job = outside.jobs.add(by_hand(packageUris=uris, **more))
    wanted = by_hand(packageUris=[PACKAGE])
    adoption = Adoption(CLAIM, (KEY_1,), job.resource, lambda name: wanted, PACKAGE, held.__contains__)
    result = adopt(outside.ports, adoption, observe(outside.ports))
    assert [field.pointer for field in result.fields] == pointers
    assert (result.claim is None) == bool(pointers)
    if pointers[-1:] == ["/package"]:
        assert (result.fields[-1].before, result.fields[-1].after) == (PACKAGE, "other bytes")
