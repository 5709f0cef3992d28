"""The digest that identifies a reviewed plan: it covers every action of apply."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.model.job import State
from reconciler.model.plan import Plan
from tests.support.planning import GOOGLE, bound_to, plan, run_of, wanted

JOB = wanted()


def compute_sha256(said: Any) -> str:
    text = json.dumps(said, sort_keys=True, separators=(",", ":"))
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()


def make_body(name: str, spec: Any) -> dict[str, Any]:
    return {"displayName": name, "jobSpec": spec, "code": ""}


def test_plan_digest_hashes_target_and_every_acting_change() -> None:
    """A pipeline may keep the digest of a reviewed plan while the reconciler is upgraded."""
    done = wanted("done")
    run = run_of(done, State.SUCCEEDED)
    gone = wanted("gone", on_delete="cancel")
    live = run_of(gone, State.RUNNING, number=2)
    found = plan([JOB, done], [run, live], [bound_to(done, run), bound_to(gone, live)], GOOGLE)
    assert found.digest == compute_sha256(
        {
            "target": ["prod", "google", "acme-ml", "us-central1"],
            "changes": [
                ["submit", JOB.job_name, make_body(JOB.job_name, {"args": ["a"]})],
                ["cancel", gone.job_name, None],
            ],
        }
    )


@pytest.mark.parametrize("field", ["environment", "engine", "project", "location"])
def test_plan_digest_changes_with_target(field: str) -> None:
    here: Plan = plan([JOB], target=replace(GOOGLE, engine="local"))
    there = plan([JOB], target=replace(GOOGLE, **{"engine": "local", field: "other"}))
    assert here.digest != there.digest
