"""Submissions over the ports in memory."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from msgspec.structs import replace

from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.job import ATTEMPT, KEY, REQUEST_ID, SOURCE
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1
from reconciler.model.ports import Unknown
from reconciler.submission.protocol import Order, SubmissionResult, Submitter
from tests.support.memory_ports import BOUNDS, Outside

KEY_1 = "k" * 52

ID = ClaimId(KEY_1, 1)

CLAIM = Claim(ID, ClaimState.PENDING, "census_0123", "census", AIPLATFORM_V1, "CustomJob", "jobs/c.yaml")

RIPE = BOUNDS.lifetime + BOUNDS.executes + BOUNDS.visible

MOMENT = timedelta(seconds=1)


def body(mark: str, **more: Any) -> dict[str, Any]:
    labels = {SOURCE: "acme", KEY: KEY_1, ATTEMPT: "1", REQUEST_ID: mark}
    spec = {"workerPoolSpecs": [{"containerSpec": {"imageUri": "x", "args": ["1"]}}]}
    return {"displayName": "census_0123", "labels": labels, "jobSpec": {**spec, **more}}


def ml_body(mark: str) -> dict[str, Any]:
    made = body(mark)
    return {"jobId": "census_0123", "labels": made["labels"], "trainingInput": {"region": "r"}}


ORDER = Order(replace(CLAIM, commit="c1"), body)

ML_ORDER = Order(replace(CLAIM, api_version=ML_V1, kind="Job"), ml_body)


def settle(outside: Outside, order: Order = ORDER) -> SubmissionResult:
    return Submitter(outside.ports).submit(order)


def pending(outside: Outside, order: Order = ORDER) -> Claim:
    """Leave a submission whose answer was lost and whose job is not visible yet; return its claim."""
    outside.jobs.answers = [Unknown("no answer came")]
    claim = settle(outside, order).claim
    assert claim.state is ClaimState.PENDING
    return claim
