"""JSON shapes for scripts; each has a schema in `schemas/` and a `formatVersion`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from reconciler.base.diagnostics import WARNING, Problem
from reconciler.model.plan import FORMAT_VERSION, Action, Change, Plan

if TYPE_CHECKING:
    from reconciler.model.cause import Cause
    from reconciler.model.details import JobDetails, Output, Study, Workers
    from reconciler.model.job import LogEntry
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


def details_json(details: JobDetails) -> Json:
    """Return the output of `show --format json`."""
    study, links = details.study, details.links
    return {
        "formatVersion": FORMAT_VERSION,
        "jobName": details.job_name,
        "baseName": details.base_name,
        "apiVersion": details.api_version,
        "kind": details.kind,
        "environment": details.environment,
        **_record_json(details),
        "spec": details.spec,
        "workers": [_workers_json(each) for each in details.workers],
        "serviceAccount": details.service_account or None,
        "network": details.network or None,
        "timeout": details.timeout or None,
        "labels": details.labels,
        "output": _output_json(details.output) if details.output else None,
        "metrics": [{"file": each.name, "values": _numbers_json(each.values)} for each in details.metrics],
        "study": _study_json(study) if study else None,
        "links": {
            "console": links.console or None,
            "workflowRun": links.workflow_run or None,
            "tensorboardDirectory": links.tensorboard or None,
        },
        "log": [_entry_json(entry) for entry in details.log],
        "unread": [{"part": part, "reason": reason} for part, reason in sorted(details.unread.items())],
    }


def _record_json(details: JobDetails) -> Json:
    """Return the state, times, origin and claim of a job."""
    claim, place = details.claim, details.manifest
    commit = {"sha": details.commit, "author": details.author or None, "subject": details.subject or None}
    manifest = {"path": place.path, "line": place.line or None, "relation": place.relation or None}
    requests = len(claim.request_ids) if claim else 0
    return {
        "state": str(details.state) if details.state else None,
        "deletedOutside": details.is_gone,
        "suspended": details.is_suspended,
        "cause": _cause_json(details.cause) if details.cause else None,
        "error": details.error or None,
        "resource": details.resource or None,
        "attempt": details.attempt,
        "createTime": details.create_time or None,
        "prepareTime": details.prepare_time or None,
        "startTime": details.start_time or None,
        "endTime": details.end_time or None,
        "commit": commit if details.commit else None,
        "manifest": manifest if place.path else None,
        "claim": {"state": str(claim.state) if claim else "none", "requests": requests},
        "unsettled": [{"jobName": each.job_name, "state": str(each.state)} for each in details.unsettled],
    }


def _output_json(output: Output) -> Json:
    return {
        "uri": output.uri,
        "folder": output.folder or None,
        "complete": output.is_complete,
        "files": [
            {"name": file.name, "size": file.size, "updated": file.updated or None, "older": file.is_older}
            for file in output.files
        ],
    }


def _entry_json(entry: LogEntry) -> Json:
    return {
        "timestamp": entry.timestamp,
        "severity": entry.severity,
        "text": entry.text,
        "replica": entry.replica or None,
        "trial": entry.trial or None,
    }


def _workers_json(workers: Workers) -> Json:
    return {
        "name": workers.name,
        "replicas": workers.count,
        "machineType": workers.machine or None,
        "acceleratorType": workers.accelerator or None,
        "acceleratorCount": workers.accelerator_count,
        "image": workers.image or None,
        "module": workers.module or None,
        "command": [*workers.command],
        "args": [*workers.args],
        "env": [{"name": name, "value": value} for name, value in workers.env],
    }


def _study_json(study: Study) -> Json:
    return {
        "goals": [
            {"metric": goal.metric, "goal": "MAXIMIZE" if goal.is_maximum else "MINIMIZE"}
            for goal in study.goals
        ],
        "planned": study.planned,
        "best": study.best.id if study.best else None,
        "trials": [
            {
                "id": trial.id,
                "state": trial.state,
                "parameters": trial.parameters,
                "metrics": _numbers_json(trial.metrics),
                "startTime": trial.start_time or None,
                "endTime": trial.end_time or None,
                "reason": trial.reason or None,
            }
            for trial in study.trials
        ],
    }


def _numbers_json(values: Mapping[str, float]) -> Json:
    """Return numbers by name; null for NaN and infinity, which JSON can't hold."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


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
