"""Plans executed over the ports in memory."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from reconciler.model.plan import DesiredJob, Plan
from reconciler.planning.planner import make_plan
from reconciler.planning.state import target_state
from reconciler.submission.observe import observe
from tests.support.memory_ports import Outside
from tests.support.planning import LOCAL


def body_of(job: DesiredJob, job_name: str, labels: Any) -> dict[str, Any]:
    return {"displayName": job_name, "labels": dict(labels), "jobSpec": job.spec}


def plan_of(outside: Outside, jobs: Iterable[DesiredJob]) -> Plan:
    seen = observe(outside.ports)
    state = target_state(list(jobs), seen.runs, seen.claims, source="acme")
    return make_plan(LOCAL, state)
