"""JSON shapes for scripts; each has a schema in `schemas/` and a `formatVersion`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from reconciler.base.diagnostics import Problem
from reconciler.model.plan import FORMAT_VERSION, Action, Change, Drift, Plan
from reconciler.output.problems import problem_json
from reconciler.output.wording.cause import cause_message, cause_remedy
from reconciler.output.wording.notes import note_text
from reconciler.output.wording.plan import outcome_error, reason_text, row_error
from reconciler.output.wording.tree import tree_line

if TYPE_CHECKING:
    from reconciler.model.applied_tree import TreeFinding
    from reconciler.model.cause import Cause
    from reconciler.model.details import JobDetails, Output, Study, Workers
    from reconciler.model.standing import Publication
    from reconciler.planning.outcome import JobStatus, Outcome

Json = dict[str, Any]


def plan_json(plan: Plan, problems: Sequence[Problem] = ()) -> Json:
    """Return the output of `plan --format json`; `problems` are those of the manifests, warnings included."""
    if plan.comparison:
        problems = (*plan.comparison.problems, *plan.comparison.warnings)
    return {
        "formatVersion": FORMAT_VERSION,
        "target": _values(plan.target, "environment", "engine", "project", "location"),
        "digest": plan.digest,
        "summary": summary(plan),
        "changes": [_change_json(change) for change in plan.changes],
        "drift": [_drift_json(finding) for finding in plan.drift],
        "problems": [problem_json(problem) for problem in problems],
        "appliedTree": _tree_json(plan.tree) if plan.tree and plan.tree.commit else None,
        "newBuckets": list(plan.new_buckets),
    }


def _drift_json(finding: Drift) -> Json:
    return {**_values(finding, "kind", "job_name", "base_name"), "detail": note_text(finding.detail)}


def _tree_json(tree: TreeFinding) -> Json:
    time = tree.time.isoformat().replace("+00:00", "Z") if tree.time else None
    return {**_values(tree, "commit", "relation", "effect"), "time": time, "message": tree_line(tree) or None}


def apply_json(plan: Plan, outcomes: Iterable[Outcome]) -> Json:
    """Return the output of `apply --format json`: the plan, and the outcome of each change."""
    return {
        **plan_json(plan),
        "outcomes": [
            {
                **_values(outcome.change, "job_name", "action"),
                **_values(outcome, "status", "state"),
                "error": outcome_error(outcome) if outcome.reason else None,
                "reasonCode": _code(outcome),
                "cause": _cause_json(outcome.cause) if outcome.cause else None,
            }
            for outcome in outcomes
        ],
    }


def job_json(job: JobStatus) -> Json:
    """Return one of the `jobs` of `status --format json`."""
    return {
        **_values(job, "job_name", "base_name", "kind", "state", "claim"),
        **_known(job, "create_time", "start_time", "end_time"),
        "error": row_error(job) or None,
        "reasonCode": _code(job),
        **_known(job, "resource", "url", "commit"),
        "attempt": job.attempt,
        "cause": _cause_json(job.cause) if job.cause else None,
    }


def details_json(details: JobDetails) -> Json:
    """Return the output of `show --format json`."""
    claim, manifest, links, place = details.claim, details.manifest, details.links, details.place
    commit = {"sha": details.commit, **_known(details, "author", "subject")}
    requests = len(claim.request_ids) if claim else 0
    return {
        "formatVersion": FORMAT_VERSION,
        **_values(details, "job_name", "base_name", "api_version", "kind", "environment", "state"),
        "deletedOutside": details.is_gone,
        "suspended": details.is_suspended,
        "cause": _cause_json(details.cause) if details.cause else None,
        **_known(details, "error", "resource"),
        "attempt": details.attempt,
        **_known(details, "create_time", "prepare_time", "start_time", "end_time"),
        "commit": commit if details.commit else None,
        "manifest": _known(manifest, "path", "line", "relation") if manifest.path else None,
        "claim": {"state": claim.state if claim else "none", "requests": requests},
        "unsettled": [_values(unsettled, "job_name", "state") for unsettled in details.unsettled],
        "otherRun": _values(details.other_run, "job_name", "state") if details.other_run else None,
        "spec": details.spec,
        "workers": [_workers_json(pool) for pool in details.workers],
        **_known(details, "service_account", "network", "timeout"),
        "labels": details.labels,
        "output": _output_json(details.output) if details.output else None,
        **_known(details, "model", "backing"),
        "publication": {"to": place.to, "current": place.job_name or None} if place else None,
        "metrics": [{"file": file.name, "values": _numbers_json(file.values)} for file in details.metrics],
        "study": _study_json(details.study) if details.study else None,
        "links": {
            **_known(links, "console", "workflow_run"),
            "tensorboardDirectory": links.tensorboard or None,
        },
        "log": [
            {**_values(entry, "timestamp", "severity", "text"), **_known(entry, "replica", "trial")}
            for entry in details.log
        ],
        "unread": [{"part": part, "reason": reason} for part, reason in sorted(details.unread.items())],
    }


def _output_json(output: Output) -> Json:
    return {
        "uri": output.uri,
        "folder": output.folder or None,
        "complete": output.is_complete,
        "files": [
            {**_values(file, "name", "size"), **_known(file, "updated"), "older": file.is_older}
            for file in output.files
        ],
    }


def _workers_json(workers: Workers) -> Json:
    return {
        "name": workers.name,
        "replicas": workers.count,
        "machineType": workers.machine or None,
        "acceleratorType": workers.accelerator or None,
        "acceleratorCount": workers.accelerator_count,
        **_known(workers, "image", "module"),
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
                **_values(trial, "id", "state", "parameters"),
                "metrics": _numbers_json(trial.metrics),
                **_known(trial, "start_time", "end_time", "reason"),
            }
            for trial in study.trials
        ],
    }


def _numbers_json(values: Mapping[str, float]) -> Json:
    """Return numbers by name; null for NaN and infinity, which JSON can't hold."""
    return {name: value if math.isfinite(value) else None for name, value in values.items()}


def _code(of: Outcome | JobStatus) -> str | None:
    """Return the code of a job's cause, else of the reason for its missing run or its outcome."""
    said = of.cause or of.reason
    return said.code if said else None


def _cause_json(cause: Cause) -> Json:
    return {"class": cause.class_, "message": cause_message(cause), "remedy": cause_remedy(cause)}


def summary(plan: Plan) -> dict[str, int]:
    """Return the number of changes by action, and the number of drift findings."""
    count = Counter(change.action for change in plan.changes)
    # Actions without changes are included with 0: scripts read a fixed set of keys.
    return {**{str(action): count[action] for action in Action}, "drift": len(plan.drift)}


def _change_json(change: Change) -> Json:
    return {
        "action": change.action,
        "reason": reason_text(change.reason),
        "reasonCode": change.reason.code,
        **_values(change, "base_name", "job_name", "kind"),
        **_known(change, "path", "line"),
        "fields": [_values(field, "pointer", "before", "after") for field in change.fields],
        "spec": change.spec,
        "outputDirectory": change.output or None,
        "files": [_values(file, "path", "added", "removed") for file in change.files],
        "publication": _publication_json(change.publication) if change.publication else None,
    }


def _publication_json(publication: Publication) -> Json:
    current = publication.current
    return {"to": publication.publish.to, "current": current.job_name if current else None}


def _values(value: object, *names: str) -> Json:
    """Return attributes under their names in JSON, which are in camel case."""
    return {_camel_case(name): getattr(value, name) for name in names}


def _known(value: object, *names: str) -> Json:
    """Return the same with null for "" and 0, which stand for unknown or none."""
    return {name: field or None for name, field in _values(value, *names).items()}


@cache
def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
