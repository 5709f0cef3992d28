"""JSON shapes for scripts; each has a schema in `schemas/` and a `formatVersion`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from reconciler.base.diagnostics import WARNING, Problem
from reconciler.model.plan import FORMAT_VERSION, Action, Change, Plan

if TYPE_CHECKING:
    from reconciler.model.cause import Cause
    from reconciler.planning.outcome import JobStatus, Outcome

Json = dict[str, Any]


def validation_json(files: int, problems: Sequence[Problem]) -> Json:
    """Return the output of `validate --format json`."""
    return {
        "formatVersion": FORMAT_VERSION,
        "valid": all(problem.level == WARNING for problem in problems),
        "files": files,
        "problems": [problem_json(problem) for problem in problems],
    }


def problem_json(problem: Problem) -> Json:
    """Return a problem with its place and level."""
    return asdict(problem)


def plan_json(plan: Plan, problems: Sequence[Problem] = ()) -> Json:
    """Return the output of `plan --format json`; `problems` are those of the manifests, warnings included."""
    target = plan.target
    if plan.comparison:
        problems = (*plan.comparison.problems, *plan.comparison.warnings)
    return {
        "formatVersion": FORMAT_VERSION,
        "target": {
            "environment": target.environment,
            "engine": target.engine,
            "project": target.project,
            "location": target.location,
        },
        "digest": plan.digest,
        "summary": summary(plan),
        "changes": [_change_json(change) for change in plan.changes],
        "drift": [
            {
                "kind": str(drift.kind),
                "jobName": drift.job_name,
                "baseName": drift.base_name,
                "detail": drift.detail,
            }
            for drift in plan.drift
        ],
        "problems": [problem_json(problem) for problem in problems],
    }


def apply_json(plan: Plan, outcomes: Iterable[Outcome]) -> Json:
    """Return the output of `apply --format json`: the plan, and the outcome of each change."""
    return {
        **plan_json(plan),
        "outcomes": [
            {
                "jobName": outcome.change.job_name,
                "action": str(outcome.change.action),
                "status": str(outcome.status),
                "state": str(outcome.state) if outcome.state else None,
                "error": outcome.error,
                "cause": _cause_json(outcome.cause) if outcome.cause else None,
            }
            for outcome in outcomes
        ],
    }


def job_json(job: JobStatus) -> Json:
    """Return one of the `jobs` of `status --format json`."""
    return {
        "jobName": job.job_name,
        "baseName": job.base_name,
        "kind": job.kind,
        "state": str(job.state) if job.state else None,
        "claim": job.claim,
        "createTime": job.create_time or None,
        "startTime": job.start_time or None,
        "endTime": job.end_time or None,
        "error": job.error or None,
        "resource": job.resource or None,
        "url": job.url or None,
        "commit": job.commit or None,
        "attempt": job.attempt,
        "cause": _cause_json(job.cause) if job.cause else None,
    }


def _cause_json(cause: Cause) -> Json:
    return {"class": str(cause.class_), "message": cause.message, "remedy": cause.remedy}


def summary(plan: Plan) -> dict[str, int]:
    """Return the number of changes by action, and the number of drift findings."""
    count = Counter(change.action for change in plan.changes)
    # Actions without changes are included with 0: scripts read a fixed set of keys.
    return {**{str(action): count[action] for action in Action}, "drift": len(plan.drift)}


def _change_json(change: Change) -> Json:
    return {
        "action": str(change.action),
        "reason": change.reason,
        "baseName": change.base_name,
        "jobName": change.job_name,
        "kind": change.kind,
        "path": change.path or None,
        "line": change.line or None,
        "fields": [
            {"pointer": field.pointer, "before": field.before, "after": field.after}
            for field in change.fields
        ],
        "spec": change.spec,
        "files": [{"path": file.path, "added": file.added, "removed": file.removed} for file in change.files],
    }
