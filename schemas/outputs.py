"""What commands print with `--format json`."""

from __future__ import annotations

from typing import Any

from words import Schema, whole

_STATES = ["QUEUED", "PREPARING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLING", "CANCELLED"]
_ACTIONS = ["submit", "retry", "cancel", "none", "blocked"]
_DRIFT = ["orphaned", "superseded", "cancelled-outside", "deleted-outside", "modified", "duplicate"]


def _value(type_: str | list[str], description: str, **keywords: Any) -> Schema:
    return {"description": description, "type": type_, **keywords}


def _text(description: str) -> Schema:
    return _value("string", description)


def _text_or_null(description: str) -> Schema:
    return _value(["string", "null"], description)


def _count(description: str) -> Schema:
    return _value("integer", description, minimum=0)


def _one_of(values: list[str], description: str) -> Schema:
    return _value("string", description, enum=values)


def _state(description: str) -> Schema:
    return {"description": description, "enum": [*_STATES, None]}


def _object(description: str, properties: Schema) -> Schema:
    """A mapping that has all of these fields and no other."""
    return {
        "description": description,
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(properties),
    }


def _list(description: str, properties: Schema) -> Schema:
    return {"description": description, "type": "array", "items": _object("One of them.", properties)}


def _output(command: str, description: str, properties: Schema) -> Schema:
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": f"{command}-output.schema.json",
        "title": f"reconciler {command} --format json",
        **_object(
            description,
            {
                "formatVersion": {
                    "description": "Rises when a field changes its meaning or goes.",
                    "type": "integer",
                    "const": 1,
                },
                **properties,
            },
        ),
    }


_VALIDATE: Schema = {
    "valid": _value("boolean", "Whether there is no problem of level `error`."),
    "files": _count("How many files were checked."),
    "problems": _list(
        "What is wrong, sorted by place.",
        {
            "path": _text("The file, relative to the repository's root."),
            "line": _value("integer", "From 1.", minimum=1),
            "column": _value("integer", "From 1, in characters.", minimum=1),
            "pointer": _text("JSON pointer into the document; empty for the whole of it."),
            "message": _text("What is wrong."),
            "hint": _text("What to write instead; empty where that can't be known."),
            "level": _one_of(
                ["error", "warning"], "`warning` for what may be right, but is probably a mistake."
            ),
        },
    ),
}

_PLAN: Schema = {
    "target": _object(
        "Where the plan is for.",
        {
            "environment": _text("The environment's name."),
            "engine": _text("Who runs the jobs."),
            "project": _text("The project's id."),
            "location": _text("The region."),
        },
    ),
    "digest": _value(
        ["string", "null"],
        "SHA-256 of the target and of all changes but `none`, for `apply --plan-digest`; null where no "
        "service was asked.",
        pattern=whole("sha256:[0-9a-f]{64}"),
    ),
    "summary": _object(
        "How many changes there are of each action, and how much drift.",
        {
            **{action: _count(f"Changes with the action `{action}`.") for action in _ACTIONS},
            "drift": _count("Findings of drift."),
        },
    ),
    "changes": _list(
        "One for each job that is wanted or to be cancelled.",
        {
            "action": _one_of(_ACTIONS, "What apply does."),
            "reason": _text("Why, for readers."),
            "baseName": _text("The base name as the manifest writes it."),
            "jobName": _text("The run's name."),
            "kind": _text("The manifest's kind."),
            "path": _text_or_null(
                "The manifest's file, relative to the repository's root; null where it is gone."
            ),
            "line": _value(["integer", "null"], "The manifest's line in it, from 1.", minimum=1),
            "fields": _list(
                "How the wanted spec differs from that of the newest run.",
                {
                    "pointer": _text("JSON pointer below `spec`."),
                    "before": {"description": "The newest run's value; null where it has none."},
                    "after": {"description": "The wanted value; null where there is none."},
                },
            ),
            "spec": _value(["object", "null"], "The effective spec of a new job; null for other changes."),
            "files": _list(
                "The changed files of the job's code, as far as both sides are known.",
                {
                    "path": _text("The file, relative to the repository's root."),
                    "added": _value(["integer", "null"], "Added lines; null for a binary file.", minimum=0),
                    "removed": _value(
                        ["integer", "null"], "Removed lines; null for a binary file.", minimum=0
                    ),
                },
            ),
        },
    ),
    "drift": _list(
        "How what there is differs from what is wanted without apply mending it.",
        {
            "kind": _one_of(_DRIFT, "The kind of drift."),
            "jobName": _text("The run's name."),
            "baseName": _text("The base name."),
            "detail": _text("What was found, for readers."),
        },
    ),
    "problems": _VALIDATE["problems"],
}

_CAUSE: Schema = {
    **_object(
        "Why the job ended FAILED or CANCELLED, and the next step; null for every other job.",
        {
            "class": _one_of(
                ["user-code", "set-up", "resources", "cancelled", "service"], "The class of the cause."
            ),
            "message": _text("The cause in one line."),
            "remedy": _text("The next step."),
        },
    ),
    "type": ["object", "null"],
}

_APPLY: Schema = {
    **_PLAN,
    "outcomes": _list(
        "What became of each change but `none`.",
        {
            "jobName": _text("The run's name."),
            "action": _one_of(_ACTIONS, "What was to be done."),
            "status": _one_of(["applied", "failed", "skipped"], "Whether it was done."),
            "state": _state("The job's last known state; null where there is no job."),
            "error": _text_or_null("Why it failed, or how the job did; null where nothing did."),
            "cause": _CAUSE,
        },
    ),
}

_STATUS: Schema = {
    "jobs": _list(
        "The newest run of each job, or all that were asked for.",
        {
            "jobName": _text("The run's name."),
            "baseName": _text("The base name."),
            "kind": _text("The manifest's kind."),
            "state": _state("The state; null where none is known."),
            "claim": _one_of(
                ["none", "pending", "bound", "rejected", "held"],
                "How far the submission has come, as recorded.",
            ),
            "createTime": _text_or_null("When the service took the job; RFC 3339 in UTC."),
            "startTime": _text_or_null("When it began to run."),
            "endTime": _text_or_null("When it ended."),
            "error": _text_or_null("Why it failed, or why there is no job."),
            "resource": _text_or_null("The service's full name of the job."),
            "url": _text_or_null("A page about the job."),
            "commit": _text_or_null("The commit that asked for the job."),
            "attempt": _value("integer", "From 1.", minimum=1),
            "cause": _CAUSE,
        },
    ),
}

OUTPUTS: dict[str, Schema] = {
    "validate": _output("validate", "Whether the manifests are valid.", _VALIDATE),
    "plan": _output("plan", "What apply would do, and the drift.", _PLAN),
    "apply": _output("apply", "What was to be done, and what became of it.", _APPLY),
    "status": _output("status", "Jobs and their states.", _STATUS),
}
"""The schema of each command's output."""
