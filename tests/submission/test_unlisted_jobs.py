"""Which jobs are asked for by name when a listing leaves them out, and what that says of the listing."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec.structs import replace

from reconciler.model.claim import ClaimState
from reconciler.model.job import KEY, ActualJob
from reconciler.submission.observe import observe
from tests.submission.test_protocol import settle
from tests.support.memory_ports import BOUNDS, Outside


@pytest.fixture
def outside() -> Outside:
    outside = Outside()
    settle(outside)
    outside.jobs.hidden.add(outside.claim.resource)
    return outside


def test_a_job_is_asked_for_as_what_its_claim_says_it_is(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    read = outside.jobs.read

    def reading(api_version: str, kind: str, resource: str) -> ActualJob:
        asked.append((api_version, kind, resource))
        return read(api_version, kind, resource)

    monkeypatch.setattr(outside.jobs, "read", reading)
    observe(outside.ports)
    assert asked == [("aiplatform.googleapis.com/v1", "CustomJob", outside.claim.resource)]


def test_only_a_claim_that_is_bound_has_a_job_to_ask_for(outside: Outside) -> None:
    claim = replace(outside.claim, state=ClaimState.HELD)
    outside.claims.write(claim, outside.claims.held[claim.id].generation)
    assert observe(outside.ports).runs == ()


def test_a_job_that_lost_its_key_says_nothing_of_the_listing(outside: Outside) -> None:
    (job,) = outside.jobs.jobs
    outside.jobs.jobs = [replace(job, labels={**job.labels, KEY: "other"})]
    outside.time.now += BOUNDS.visible + timedelta(days=1)
    assert [run.resource for run in observe(outside.ports).runs] == [job.resource]
