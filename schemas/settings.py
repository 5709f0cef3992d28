"""`reconciler.yaml`."""

from __future__ import annotations

from typing import Any

from trim import METHODS
from words import (
    BUCKET,
    DURATION,
    GS_FOLDER,
    IMAGE,
    NETWORK,
    PUBLISHED_ADDRESSES,
    REGION,
    SERVICE_ACCOUNT,
    Schema,
    forbidden,
    has,
    lacks,
    needs,
    shaped,
    told,
    when,
)

from reconciler.base.warning_kinds import WarningKind

_BUCKET = shaped(
    f"(?:gs://)?{BUCKET}/?",
    "not the name of a bucket",
    "use lower-case letters, digits, '-', '_' and '.', from 3 characters",
)
_URL = shaped(r"https?://[^\s/?#@]+(?:/[^\s?#]*)?", "not a URL", 'write "https://HOST"')


def _text(description: str, *rules: Schema) -> Schema:
    return {"description": description, "type": "string"} | (
        {"allOf": list(rules)} if rules else {"minLength": 1}
    )


def _buckets(description: str) -> Schema:
    return {
        "description": description,
        "type": "array",
        "items": {"type": "string", "allOf": [_BUCKET]},
    }


def _mapping(description: str, properties: Schema, **more: Any) -> Schema:
    return {
        "description": description,
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        **more,
    }


def _limit(description: str, kind: str, default: str) -> Schema:
    return {
        "description": f"{description} By default {default}; no limit with `engine: local`, or if null.",
        "type": [kind, "null"],
        "minimum": 0,
    }


_LIMITS = _mapping(
    "The most that one apply may do; over it, apply does nothing and exits with 4.",
    {
        "submissions": _limit("Submissions and retries.", "integer", "20"),
        "cancels": _limit("Cancels.", "integer", "5"),
        "acceleratorHours": _limit(
            "Accelerators times the hours that the submitted jobs may run.", "number", "1,000"
        ),
        "publications": _limit(
            "Models that are published; over it none is, and apply does everything else.", "integer", "20"
        ),
    },
)

_DEFAULTS = _mapping(
    "Values for fields that a manifest leaves out, filled in at submission; the plan shows them, and they "
    "are no part of a job's name.",
    {
        "serviceAccount": _text("The service account that jobs run as.", *SERVICE_ACCOUNT),
        "network": _text("The network that jobs are peered with.", NETWORK),
        "timeout": {"description": 'How long a job may run, such as "3600s".', **DURATION},
        "baseOutputDirectory": _text(
            "Below it, each job gets a folder of its own name for its output.", GS_FOLDER
        ),
        "publish": _text(
            "Below it, each manifest with `publish` and without an address of its own has its address, with "
            "its base name; jobs should not be able to write there.",
            *PUBLISHED_ADDRESSES,
        ),
        "region": _text(
            "The region of `ml.googleapis.com/v1` jobs; by default the environment's location.", *REGION
        ),
    },
)

_OUTPUTS = {
    "description": "Where runs write their files. `own`: each in a folder with the job's name, below the "
    "manifest's folder or the default one. `shared`: in the manifest's folder as it is, where a later run "
    "overwrites an earlier one; this is the default. The setting is no part of a job's name.",
    "enum": ["own", "shared"],
}

_APIS = tuple(name.partition(".")[0] for name in METHODS)
_ENDPOINT = "The https URL to use in place of Google's."
_ENVIRONMENT = _mapping(
    "A place where jobs run.",
    {
        "engine": {
            "description": "The service that runs the jobs.",
            "enum": ["local", "google"],
            "enumDescriptions": ["The training service that is part of the reconciler.", "Google Cloud."],
        },
        "project": _text(
            "The id of the Google Cloud project.",
            # https://cloud.google.com/resource-manager/docs/creating-managing-projects
            shaped(
                "(?:[a-z][a-z0-9.-]*:)?[a-z][a-z0-9-]{4,28}[a-z0-9]",
                "not a project id",
                "use 6 to 30 lower-case letters, digits and '-', a letter first",
            ),
        ),
        "location": _text("The region, such as us-central1.", *REGION),
        "instance": _text(
            "Tells this environment from others with the same project and location: part of the place of "
            "its claims, of its jobs' labels and of the output folders that `defaults` give, not of a job's "
            "name. The environment without it keeps the claims that exist. Only with `engine: google`.",
            shaped(
                "[a-z][a-z0-9-]{0,29}",
                "not the name of an instance",
                "use at most 30 lower-case letters, digits and '-', a letter first",
            ),
        ),
        "stagingBucket": _text("The bucket that packages are uploaded to.", _BUCKET),
        "claimsBucket": _text(
            "The bucket of the reconciler's own records, by default the staging bucket; better one that "
            "training jobs can't write to.",
            _BUCKET,
        ),
        "submitter": _text(
            "The e-mail address of a service account that jobs are submitted as, each with a token of its "
            "own that lasts five minutes; without it, the credentials that read and cancel jobs also "
            "submit them.",
            shaped(
                r"[a-z0-9][a-z0-9-]*@[a-z0-9.-]+\.gserviceaccount\.com",
                "not the e-mail address of a service account",
                'write for example "submitter@my-project.iam.gserviceaccount.com"',
            ),
        ),
        "endpoints": _mapping(
            "URLs to use in place of Google's; a host outside googleapis.com gets the Google "
            "token only if the user allows it in RECONCILER_TOKEN_HOSTS or in the file token-hosts.",
            {api: _text(_ENDPOINT, _URL) for api in _APIS},
        ),
        "defaults": _DEFAULTS,
        "outputs": _OUTPUTS,
        "limits": _LIMITS,
    },
    allOf=[
        when(
            lacks(has("engine", const="google")),
            forbidden(
                ["instance"],
                '"instance" is only for "engine: google"',
                'remove it, and give the environment a "project" of its own',
            ),
        )
    ],
)
_GOOGLE_NEEDS = when(
    has("engine", const="google"),
    needs("project", "the id of the Google Cloud project"),
    needs("location", "the region, such as us-central1"),
    needs("stagingBucket", "the bucket that packages are uploaded to"),
)

# True where some environment is Google's: not every one of them is something else.
_SOURCE_HINT = 'write an id that no other repository uses, such as "source: risk-training-7f3a"'
_ANY_GOOGLE = has(
    "environments",
    type="object",
    **{"not": {"additionalProperties": {"not": {"type": "object", **has("engine", const="google")}}}},
)

CONFIG: Schema = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "$id": "config.schema.json",
    "title": "reconciler.yaml",
    **_mapping(
        "Settings of a repository of training jobs.",
        {
            "source": _text(
                "The id that marks the jobs this repository owns; no two repositories may share one.",
                shaped(
                    "[a-z][a-z0-9-]{2,62}",
                    "not a source id",
                    "use 3 to 63 lower-case letters, digits and '-', a letter first",
                ),
            ),
            "environments": {
                "description": "The places where jobs run, by name; `local` exists without being listed.",
                "type": "object",
                "propertyNames": shaped(
                    "[a-z][a-z0-9-]{0,29}",
                    "not the name of an environment",
                    "use at most 30 lower-case letters, digits and '-', a letter first",
                ),
                "properties": {
                    "local": {
                        "description": "The environment that is taken when none is named.",
                        "$ref": "#/$defs/environment",
                        "properties": {
                            "engine": told(
                                {"const": "local"},
                                'the environment "local" is the embedded service',
                                "give the environment another name",
                            )
                        },
                    }
                },
                "additionalProperties": {
                    "description": "A place where jobs run.",
                    "$ref": "#/$defs/environment",
                    "allOf": [needs("engine", '"engine: local" or "engine: google"'), _GOOGLE_NEEDS],
                },
            },
            "outputs": {
                **_OUTPUTS,
                "description": f"{_OUTPUTS['description']} For every environment that has none of its own.",
            },
            "limits": {**_LIMITS, "description": "Limits of every environment that has none of its own."},
            "warnings": _mapping(
                "Kinds of warnings that are meant so in this repository: `ignore` counts them without "
                "showing them, and `validate --strict` takes them for no error.",
                {str(kind): {"description": kind.description, "enum": ["ignore"]} for kind in WarningKind},
            ),
            "images": {
                "description": "What the embedded service runs for an executor image or a runtime version.",
                "type": "object",
                "propertyNames": {"allOf": IMAGE},
                "additionalProperties": _mapping(
                    "What the embedded service runs for this `executorImageUri` or `runtimeVersion`.",
                    {
                        "python": _text(
                            "The Python version, or a range of versions as pip writes it.",
                            shaped(
                                r"3\.[0-9]+|(?:[<>]=?|[=!]=|~=)3\.[0-9]+(?:,(?:[<>]=?|[=!]=|~=)3\.[0-9]+)*",
                                "not a version of Python 3",
                                'write for example "3.11", or ">=3.11"',
                            ),
                        ),
                        "requirements": {
                            "description": "The requirements that are installed, in pip's format.",
                            "type": "array",
                            "items": {"type": "string", "minLength": 1},
                        },
                    },
                    required=["python", "requirements"],
                ),
            },
            "buckets": _buckets(
                "Buckets that all jobs of the embedded service reach, also those that only their code names; "
                "in the cloud the job's service account decides.",
            ),
            "publicBuckets": _buckets(
                "Google's public buckets, such as cloud-samples-data, that the embedded service reads "
                "without credentials and keeps in its home, up to 5 GB.",
            ),
            "github": _mapping(
                "Where commit statuses are posted.",
                {
                    "repository": _text(
                        "The repository, by default the one that GitHub Actions runs in.",
                        shaped(
                            "[A-Za-z0-9-]+/[A-Za-z0-9._-]+",
                            "not a repository",
                            'write "OWNER/NAME"',
                        ),
                    ),
                    "apiUrl": _text(
                        "The API's https URL, by default https://api.github.com; a host other than that and "
                        "api.*.ghe.com gets the GitHub token only if the user allows it in GITHUB_API_URL, "
                        "RECONCILER_TOKEN_HOSTS or the file token-hosts.",
                        _URL,
                    ),
                    "statuses": {
                        "description": "What commits show beside the verdict over all jobs: each job too, or "
                        "the verdict alone. By default each job, up to 20 jobs of one commit.",
                        "enum": ["jobs", "summary"],
                    },
                },
            ),
        },
        allOf=[when(_ANY_GOOGLE, needs("source", _SOURCE_HINT))],
    ),
    "$defs": {"environment": _ENVIRONMENT},
}
"""The schema of `reconciler.yaml`."""
