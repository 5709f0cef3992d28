"""What commands print with `--format json`."""

from __future__ import annotations

from typing import Any

from words import Schema, whole

from reconciler.base.warning_kinds import WarningKind
from reconciler.model.reason import ReasonCode
from reconciler.operations.verify import DifferenceKind

_STATES = ["QUEUED", "PREPARING", "RUNNING", "SUCCEEDED", "FAILED", "CANCELLING", "CANCELLED"]
_ACTIONS = ["submit", "retry", "cancel", "publish", "none", "blocked"]
_DRIFT = [
    "orphaned",
    "superseded",
    "cancelled-outside",
    "deleted-outside",
    "modified",
    "duplicate",
    "overwritten",
    "unpublished",
]


_CODES = [str(code) for code in ReasonCode]
_RELATIONS = ["none", "same", "newer", "older", "diverged", "unknown"]


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


def _code(description: str) -> Schema:
    return {"description": f"{description} A later version may have further codes.", "enum": [*_CODES, None]}


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


def _publication(description: str) -> Schema:
    """Where a model is published, and whose is in place there; null where nothing is published."""
    properties = {
        "to": _text("The address, gs://…."),
        "current": _text_or_null("The run whose model is in place there; null for none."),
    }
    return {**_object(description, properties), "type": ["object", "null"]}


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
            "kind": _one_of(
                ["", *map(str, WarningKind)],
                "The kind of a warning, which `warnings` in reconciler.yaml can acknowledge; empty for an "
                "error. A later version may have further kinds.",
            ),
        },
    ),
    "acknowledged": {
        "description": "The numbers of warnings that `warnings` in reconciler.yaml acknowledges, by kind; "
        "they are not among the problems.",
        "type": "object",
        "additionalProperties": _count("Warnings of this kind."),
    },
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
            "reasonCode": _one_of(_CODES, "Why, for scripts; a later version may have further codes."),
            "baseName": _text("The base name as the manifest writes it."),
            "jobName": _text(
                "The run's name; with `(name known at apply)`, it depends on a submodule whose files a plan "
                "against a base doesn't read."
            ),
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
            "outputDirectory": _text_or_null(
                "The folder (gs://…) that a submission's run writes to; null for none, and for other changes."
            ),
            "files": _list(
                "The changed files of the job's code, as far as both sides are known.",
                {
                    "path": _text("The file, relative to the repository's root."),
                    "added": _value(
                        ["integer", "null"],
                        "Added lines; null for a binary file, and for one that isn't here.",
                        minimum=0,
                    ),
                    "removed": _value(
                        ["integer", "null"],
                        "Removed lines; null for a binary file, and for one that isn't here.",
                        minimum=0,
                    ),
                },
            ),
            "publication": _publication(
                "Where the model of a `publish` belongs, or of a `blocked` in its place; null for others."
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
    "newBuckets": {
        "description": "The buckets of output folders that the embedded service would make.",
        "type": "array",
        "items": _text("gs:// and the bucket's name."),
    },
    "appliedTree": {
        **_object(
            "How the checkout relates to the commit that was applied last; null before the first apply, and "
            "where no service was asked.",
            {
                "commit": _text("The commit that was applied last, 40 hex digits."),
                "relation": _one_of(_RELATIONS, "The checkout's relation to that commit."),
                "effect": _one_of(
                    ["apply", "withhold", "refuse"],
                    "Whether apply cancels what is replaced, only submits, or refuses.",
                ),
                "time": _text_or_null("When that commit was applied first."),
                "message": _text_or_null("What a person should know, for readers; null for nothing."),
            },
        ),
        "type": ["object", "null"],
    },
}

_CAUSE: Schema = {
    **_object(
        "Why the job ended FAILED or CANCELLED, and the next step; null for every other job.",
        {
            "class": _one_of(
                ["user-code", "set-up", "resources", "cancelled", "model", "service"],
                "The class of the cause.",
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
            "reasonCode": _code("The code of the cause, else of the error; null where there is neither."),
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
            "reasonCode": _code("The code of the cause, else of why there is no job; null for neither."),
            "resource": _text_or_null("The service's full name of the job."),
            "url": _text_or_null("A page about the job."),
            "commit": _text_or_null("The commit that asked for the job."),
            "attempt": _value("integer", "From 1.", minimum=1),
            "cause": _CAUSE,
        },
    ),
}

_TEXTS: Schema = {"type": "array", "items": {"type": "string"}}
_NUMBERS: Schema = {"type": "object", "additionalProperties": {"type": ["number", "null"]}}


def _object_or_null(description: str, properties: Schema) -> Schema:
    return {**_object(description, properties), "type": ["object", "null"]}


_SHOW: Schema = {
    "jobName": _text("The run's name; of a job that was never submitted, the name that it would get."),
    "baseName": _text("The base name as the manifest writes it."),
    "apiVersion": _text("The manifest's apiVersion."),
    "kind": _text("The manifest's kind."),
    "environment": _text("The environment's name."),
    "state": _state("The state; of a deleted run its end; null for no run, or an unknown end."),
    "deletedOutside": _value("boolean", "True if the service no longer has the run."),
    "suspended": _value("boolean", "True if the manifest suspends the job."),
    "cause": _CAUSE,
    "error": _text_or_null("The error of the service or of the claim."),
    "resource": _text_or_null("The service's full name of the run."),
    "attempt": _value("integer", "From 1.", minimum=1),
    "createTime": _text_or_null("When the service took the job; RFC 3339 in UTC."),
    "prepareTime": _text_or_null("When its set-up began, as far as the service shows it."),
    "startTime": _text_or_null("When it began to run."),
    "endTime": _text_or_null("When it ended."),
    "commit": _object_or_null(
        "The commit that asked for the job; null if it is unknown.",
        {
            "sha": _text("40 hex digits."),
            "author": _text_or_null("The author's name; null if git doesn't have the commit."),
            "subject": _text_or_null("The first line of its message."),
        },
    ),
    "manifest": _object_or_null(
        "The manifest; null if it is unknown.",
        {
            "path": _text("The file, relative to the repository's root."),
            "line": _value(["integer", "null"], "The manifest's line in it, from 1.", minimum=1),
            "relation": {
                "description": "Whether it gives this run (current) or another one (changed), or the file "
                "no longer has it (missing); null if that is unknown.",
                "enum": ["current", "changed", "missing", None],
            },
        },
    ),
    "claim": _object(
        "The record of the submission.",
        {
            "state": _one_of(["none", "pending", "bound", "rejected", "held"], "Its state."),
            "requests": _count("Recorded requests."),
        },
    ),
    "unsettled": _list(
        "Other submissions of the base name that made no job yet.",
        {
            "jobName": _text("The name of its run."),
            "state": _one_of(["pending", "rejected", "held"], "The state of its claim."),
        },
    ),
    "otherRun": {
        **_object(
            "The newest run of other content; null for none, and where a job name was given.",
            {"jobName": _text("Its name."), "state": _one_of(_STATES, "Its state.")},
        ),
        "type": ["object", "null"],
    },
    "spec": _value("object", "The effective spec, with `***` for secrets; empty if it is unknown."),
    "workers": _list(
        "The worker pools or roles.",
        {
            "name": _text("The name of the pool or role."),
            "replicas": _count("Its replicas."),
            "machineType": _text_or_null("The machine type, or the scale tier that decides it."),
            "acceleratorType": _text_or_null("The accelerators of each replica."),
            "acceleratorCount": _count("Their number."),
            "image": _text_or_null("The image, or the runtime version."),
            "module": _text_or_null("The Python module; null for a container."),
            "command": {"description": "The container's command.", **_TEXTS},
            "args": {"description": "The arguments, with `***` for secrets.", **_TEXTS},
            "env": _list(
                "The variables.",
                {"name": _text("Its name."), "value": _text("Its value, `***` for a secret.")},
            ),
        },
    ),
    "serviceAccount": _text_or_null("The account that it runs as."),
    "network": _text_or_null("The network that it runs in."),
    "timeout": _text_or_null("The limit of its run, such as 3600s."),
    "labels": {
        "description": "The labels of the run, else those of the manifest.",
        "type": "object",
        "additionalProperties": {"type": "string"},
    },
    "output": _object_or_null(
        "The output directory, with its files if there is a run; null for none.",
        {
            "uri": _text("gs://…"),
            "folder": _text_or_null("The same on this machine, as an absolute path; null in the cloud."),
            "complete": _value("boolean", "False if there are more files."),
            "files": _list(
                "The first files below it, by name.",
                {
                    "name": _text("Relative to the directory."),
                    "size": _count("In bytes."),
                    "updated": _text_or_null("When it was written; RFC 3339 in UTC."),
                    "older": _value("boolean", "True if it was written before the job was created."),
                },
            ),
        },
    ),
    "model": _text_or_null("The model version that the pipeline registered: projects/…/models/ID@VERSION."),
    "backing": _text_or_null("The custom or tuning job that trains for the pipeline."),
    "publication": _publication(
        "Where the model of a desired run that succeeded belongs; null for no such run, without `publish` in "
        "its manifest, and where it can't be read."
    ),
    "metrics": _list(
        "Numbers of the metrics files.",
        {
            "file": _text("Relative to the output directory."),
            "values": {"description": "By name; null for NaN and infinity.", **_NUMBERS},
        },
    ),
    "study": _object_or_null(
        "The study of a tuning job; null for other jobs.",
        {
            "goals": _list(
                "The metrics that rank the trials.",
                {
                    "metric": _text("Its name."),
                    "goal": _one_of(["MAXIMIZE", "MINIMIZE"], "Its direction."),
                },
            ),
            "planned": _count("The largest number of trials."),
            "best": _text_or_null("The id of the best trial; null for none or several goals."),
            "trials": _list(
                "The trials by number.",
                {
                    "id": _text("Its id."),
                    "state": _text("The service's word."),
                    "parameters": {
                        "description": "Its parameters by name.",
                        "type": "object",
                        "additionalProperties": {"type": ["number", "string"]},
                    },
                    "metrics": {
                        "description": "Its final measurement; null for NaN and infinity.",
                        **_NUMBERS,
                    },
                    "startTime": _text_or_null("When it began."),
                    "endTime": _text_or_null("When it ended."),
                    "reason": _text_or_null("Why it has no measurement."),
                },
            ),
        },
    ),
    "links": _object(
        "Pages and folders about the job.",
        {
            "console": _text_or_null("The service's page."),
            "workflowRun": _text_or_null("The run of GitHub Actions in which the command runs."),
            "tensorboardDirectory": _text_or_null("What `reconciler tensorboard` shows."),
        },
    ),
    "log": _list(
        "The last ten entries of the log, oldest first.",
        {
            "timestamp": _text("RFC 3339."),
            "severity": _text("Such as INFO."),
            "text": _text("The text, as it was written."),
            "replica": _text_or_null("The replica; `service` for the service's own words."),
            "trial": _text_or_null("The trial's id."),
        },
    ),
    "unread": _list(
        "The parts that could not be read.",
        {
            "part": _one_of(["claim", "log", "manifest", "metrics", "output", "publication"], "The part."),
            "reason": _text("Why."),
        },
    ),
}

_VERDICTS = ["exact", "translated", "changes behaviour", "lost"]
_MIGRATE: Schema = {
    "written": _value("boolean", "True if the manifests were replaced."),
    "jobs": _list(
        "The jobs of AI Platform, and with --image those of ended images, by file and line.",
        {
            "name": _text("The base name."),
            "jobName": _text_or_null("The new name of the job; null while a problem prevents it."),
            "path": _text("The manifest's file, relative to the repository's root."),
            "line": _value("integer", "First line of the document, from 1.", minimum=1),
            "kind": _one_of(["CustomJob", "HyperparameterTuningJob"], "The new kind."),
            "suspended": _value("boolean", "True if the next apply doesn't submit it."),
            "fields": _list(
                "The fields of the old job, and behaviour that changes without a field.",
                {
                    "source": _text("The field in `trainingInput`, or the behaviour."),
                    "target": _text_or_null("The new field; null for none."),
                    "verdict": _one_of(_VERDICTS, "The difference."),
                    "sentence": _text("The difference and the next step; empty for none."),
                    "line": _value("integer", "The line of the field in the old file.", minimum=1),
                },
            ),
            "code": _list(
                "Places in the trainer's source that behave differently.",
                {
                    "path": _text_or_null("The file; null for the package as a whole."),
                    "line": _value(
                        ["integer", "null"], "From 1; null for the package as a whole.", minimum=1
                    ),
                    "topic": _one_of(
                        ["job-dir", "TF_CONFIG", "chief", "metric", "TPU", "not searched"], "The subject."
                    ),
                    "sentence": _text("The difference and the next step."),
                },
            ),
        },
    ),
    "files": _list(
        "The files that change.",
        {"path": _text("The file, relative to the repository's root."), "diff": _text("A unified diff.")},
    ),
    "submitted": {
        "description": "The names of the migrated jobs that the next apply submits.",
        "type": "array",
        "items": {"type": "string"},
    },
}

_PUBLISHED: Schema = {
    "baseName": _text("The base name as the manifest wrote it."),
    "source": _text("The repository's id."),
    "environment": _text("The environment that publishes here."),
    "commit": _text_or_null("The commit that was checked out; null for none."),
    "time": _text("When it was published; RFC 3339 in UTC."),
}
_FETCH: Schema = {
    "jobName": _text("The run that wrote the files."),
    "uri": _text("The folder (gs://…) that the files were in."),
    "published": _object_or_null("The publication; null for the files of a run.", _PUBLISHED),
    "folder": _text("The new folder; an absolute path."),
    "size": _count("The bytes of all files."),
    "files": _list(
        "The files, each with its checksum as computed here.",
        {
            "name": _text("Relative to the folder; with a slash at its end, a folder."),
            "size": _count("In bytes."),
            "crc32c": _text("CRC32C in base64."),
        },
    ),
}
_VERIFY: Schema = {
    "verified": _value("boolean", "Whether all agrees."),
    "signed": {"description": "The record is unsigned.", "const": False},
    "notice": _text("What that means, for readers."),
    "to": _text("The address (gs://…)."),
    "jobName": _text("The recorded job."),
    "hash": _text("Its recorded hash."),
    "uri": _text("The model's folder (gs://…)."),
    "published": _object("The publication.", _PUBLISHED),
    "files": _count("How many files the record has."),
    "size": _count("Their bytes."),
    "differences": _list(
        "What differs.",
        {
            "kind": _one_of([str(kind) for kind in DifferenceKind], "What it is about."),
            "message": _text("What differs, for readers."),
        },
    ),
}

OUTPUTS: dict[str, Schema] = {
    "validate": _output("validate", "Whether the manifests are valid.", _VALIDATE),
    "plan": _output("plan", "What apply would do, and the drift.", _PLAN),
    "apply": _output("apply", "What was to be done, and what became of it.", _APPLY),
    "status": _output("status", "Jobs and their states.", _STATUS),
    "show": _output("show", "All that is known of one job.", _SHOW),
    "fetch": _output("fetch", "What was fetched, and where it is.", _FETCH),
    "verify": _output("verify", "Whether a publication is what the repository says.", _VERIFY),
    "migrate": _output("migrate", "The jobs of AI Platform as jobs of Vertex AI.", _MIGRATE),
}
"""The schema of each command's output."""
