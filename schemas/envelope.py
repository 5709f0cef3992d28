"""A whole manifest: what stands around the API's own body in `spec`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from convert import ref
from rules import CUSTOM_TASK, TASK_DEFINITIONS, TUNING_TASK, WITHOUT_PACKAGE
from words import PUBLISHED_ADDRESS, PUBLISHED_PATH, Schema, has, lacks, shaped, told, when

AIPLATFORM_V1 = "aiplatform.googleapis.com/v1"
ML_V1 = "ml.googleapis.com/v1"


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of manifest.

    Attributes:
        name: The manifest's `kind`.
        api_version: Its `apiVersion`.
        file: The schema's file.
        body: The definition that `spec` is made from.
        spec: What `spec` holds, for readers.
        tasks: Of a pipeline: the name of each task -> the definition that describes its inputs.
    """

    name: str
    api_version: str
    file: str
    body: str
    spec: str
    tasks: Mapping[str, str] = field(default_factory=dict)

    @property
    def plain_files(self) -> Mapping[str, str]:
        """The files of the schemas that take only the plain form, see `lenient.py`, by task; "" for none."""
        if not self.tasks:
            return {"": self.file.replace(".schema.json", ".plain.json")}
        return {task: self.file.replace(".schema.json", f".{task}.plain.json") for task in self.tasks}


KINDS = (
    Kind(
        "CustomJob",
        AIPLATFORM_V1,
        "custom-job.schema.json",
        "aiplatform.CustomJob",
        "The CustomJobSpec, as in the file of `gcloud ai custom-jobs create --config`, and `encryptionSpec`.",
    ),
    Kind(
        "HyperparameterTuningJob",
        AIPLATFORM_V1,
        "hyperparameter-tuning-job.schema.json",
        "aiplatform.HyperparameterTuningJob",
        "The study and its trials, as in the file of `gcloud ai hp-tuning-jobs create --config`.",
    ),
    Kind(
        "TrainingPipeline",
        AIPLATFORM_V1,
        "training-pipeline.schema.json",
        "aiplatform.TrainingPipeline",
        "The pipeline, as the API has it: a task, its inputs, and the model that is registered at the end.",
        {CUSTOM_TASK: "aiplatform.CustomTaskInputs", TUNING_TASK: "aiplatform.TuningTaskInputs"},
    ),
    Kind(
        "Job",
        ML_V1,
        "job.schema.json",
        "ml.Job",
        "The training input, as in the file of `gcloud ai-platform jobs submit training --config`.",
    ),
)


def document(file: str, root: Schema) -> Schema:
    """`root` as a document of its own."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": file, **root}


def one_kind(kind: Kind, defs: Mapping[str, Schema], task: str = "") -> Schema:
    """The schema of a manifest of one kind; `task` is a pipeline's, "" for any."""
    return {
        "title": f"{kind.name} manifest ({kind.api_version})",
        "description": "A training job that the repository wants.",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "apiVersion": {"description": "The API that the job is submitted to.", "const": kind.api_version},
            "kind": {"description": "The kind of job.", "const": kind.name},
            "metadata": _METADATA,
            "package": _PACKAGE,
            "reconcile": _RECONCILE,
            "expect": _EXPECT,
            "publish": _PUBLISH,
            "spec": {**_body(kind, defs, task), "description": kind.spec},
        },
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "allOf": [when(lacks(has("package")), {"properties": {"spec": WITHOUT_PACKAGE[kind.name]}})],
    }


def any_kind() -> Schema:
    """The schema that chooses by `apiVersion` and `kind`, for editors."""
    return {
        "title": "Manifest of a training job",
        "description": "A training job that the repository wants.",
        "type": "object",
        "properties": {
            "apiVersion": {
                "description": "The API that the job is submitted to.",
                "enum": sorted({kind.api_version for kind in KINDS}),
            },
            "kind": {
                "description": "The kind of job: Job with ml.googleapis.com/v1, the others with "
                "aiplatform.googleapis.com/v1.",
                "enum": [kind.name for kind in KINDS],
            },
        },
        "required": ["apiVersion", "kind"],
        "allOf": [
            *(when(has("kind", const=kind.name), {"$ref": f"#/$defs/{kind.name}"}) for kind in KINDS),
        ],
    }


def _body(kind: Kind, defs: Mapping[str, Schema], task: str) -> Schema:
    """The schema of `spec`: the resource's fields; a CustomJob's and its jobSpec's are in one mapping."""
    if kind.tasks:
        return _pipeline(kind, defs[kind.body], task)
    if kind.name != "CustomJob":
        return {"$ref": f"#/$defs/{kind.body}"}
    job, spec = defs["aiplatform.CustomJob"], defs["aiplatform.CustomJobSpec"]
    return {**job, **spec, "properties": {**spec["properties"], **job["properties"]}}


def _pipeline(kind: Kind, pipeline: Schema, task: str) -> Schema:
    """The schema of a pipeline's `spec`, whose inputs are those of the task, or of the one it names."""
    definition, inputs = "trainingTaskDefinition", "trainingTaskInputs"
    fields = pipeline["properties"]
    names = "|".join([task] if task else kind.tasks)
    shape = shaped(
        rf"{TASK_DEFINITIONS}/(?:{names})_[0-9]+(?:\.[0-9]+)*\.yaml",
        "not the definition of a task that a pipeline of this tool runs",
        f'write "{TASK_DEFINITIONS}/{task or CUSTOM_TASK}_1.0.0.yaml"',
    )
    fields = {**fields, definition: {**fields[definition], "allOf": [shape]}}
    if task:
        described = {key: part for key, part in fields[inputs].items() if key != "type"}
        return {**pipeline, "properties": {**fields, inputs: {**described, "$ref": ref(kind.tasks[task])}}}
    chosen = [
        when(
            has(definition, pattern=f"/{name}_"),
            {"properties": {inputs: {"$ref": ref(body), "x-snake-case": True}}},
        )
        for name, body in kind.tasks.items()
    ]
    return {**pipeline, "properties": fields, "allOf": [*pipeline["allOf"], *chosen]}


_NAME = shaped(
    "[A-Za-z][A-Za-z0-9_-]{0,99}",
    "not a job name",
    "use letters, digits, '-' and '_', a letter first, at most 100",
)
# https://cloud.google.com/resource-manager/docs/labels-overview#requirements, in ASCII. That page allows 64
# labels on a resource, and the reconciler adds up to 7: those of `reconciler.model.job`.
_LABELS: Schema = {
    "description": "Labels of the job in the cloud, given at its submission; changing them submits nothing.",
    "type": "object",
    "maxProperties": 57,
    "propertyNames": {
        "allOf": [
            shaped(
                "[a-z][a-z0-9_-]{0,62}",
                "not a label key",
                "use lower-case letters, digits, '-' and '_', a letter first, at most 63",
            ),
            told(
                {"not": {"pattern": "^reconciler-"}},
                'label keys that start with "reconciler-" are the reconciler\'s own',
                "take another key",
            ),
        ]
    },
    "additionalProperties": {
        "description": "The label's value.",
        "type": "string",
        "allOf": [
            shaped(
                "[a-z0-9_-]{0,63}",
                "not a label value",
                "use lower-case letters, digits, '-' and '_', at most 63",
            )
        ],
    },
}
_METADATA: Schema = {
    "description": "What the job is called.",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "name": {
            "description": "The base name, unique in the repository, '-' and '_' counting as equal; the "
            "job's name in the cloud is this and a hash of the content.",
            "type": "string",
            "x-hint": 'write a name, such as "census"',
            "allOf": [_NAME],
        },
        "labels": _LABELS,
    },
    "required": ["name"],
}
_PACKAGE: Schema = {
    "description": "Local code that is packed, uploaded to the staging bucket, and installed for the job; "
    "with module, the containers of the job run it.",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "path": {
            "description": "The folder of the code, relative to this file, inside the repository.",
            "type": "string",
            "minLength": 1,
            "allOf": [
                told(
                    {"not": {"type": "string", "pattern": r"^(/|~|[A-Za-z]:|[a-z]+://)|\\"}},
                    "not a path relative to this file",
                    "write for example \"../trainers/census\", with '/' between folders",
                )
            ],
        },
        "module": {
            "description": "The Python module that the job's containers run, such as trainer.task. Their "
            "images need Python 3.7 or newer, but needn't contain the code; args reach the module.",
            "type": "string",
            "allOf": [
                shaped(
                    r"[A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*",
                    "not the name of a Python module",
                    "write for example trainer.task, without .py",
                )
            ],
        },
        "requirements": {
            "description": "A lock file in the folder, whose packages the containers install before they "
            "run the module: each with its hashes, as uv pip compile --generate-hashes writes it.",
            "type": "string",
            "minLength": 1,
            "allOf": [
                told(
                    {
                        "not": {
                            "type": "string",
                            "pattern": r"^(/|~|[A-Za-z]:|[a-z]+://)|\\|(^|/)\.{0,2}(/|$(?!\n))",
                        }
                    },
                    "not a path within the package",
                    'write the path from the folder in "path", for example requirements.lock',
                )
            ],
        },
    },
    "required": ["path"],
}
_BOUND: Schema = {
    "type": "number",
    "format": "double",
    "x-hint": "write a number without quotes, such as 0.95",
}
_EXPECT: Schema = {
    "description": "What a good result is: the bounds of metrics. A run that succeeds is judged on the best "
    "trial's measurement, else on metrics.json in its output folder; changing them runs nothing again.",
    "type": "object",
    "x-hint": "write METRIC: {min: …} below it",
    "allOf": [
        {"minProperties": 1, "x-hint": "write METRIC: {min: …} below it, or remove it"},
        {"maxProperties": 20},
    ],
    "propertyNames": {
        "allOf": [
            shaped(
                r"[^\x00-\x1f\x7f-\x9f]+", "not the name of a metric", "write the name that the trainer uses"
            ),
            told({"maxLength": 200}, "not the name of a metric: it is too long", "at most 200 characters"),
        ]
    },
    "additionalProperties": {
        "description": "The bounds of this metric, and how it compares with that of the published model.",
        "type": "object",
        "x-hint": "write {min: …} or {max: …}",
        "additionalProperties": False,
        "allOf": [{"minProperties": 1, "x-hint": "write {min: …} or {max: …}"}],
        "properties": {
            "min": {"description": "The smallest value that is good.", **_BOUND},
            "max": {"description": "The largest value that is good.", **_BOUND},
            "worse": {
                "description": "How much worse it may be than that of the published model in place. Not "
                "asked of a model that was published before.",
                **_BOUND,
                "minimum": 0,
                "x-hint": "write a number from 0, without quotes, such as 0.01",
            },
            "goal": {
                "description": "Which value is better, for `worse`; by default max with `min` alone, and min "
                "with `max` alone.",
                "enum": ["max", "min"],
            },
        },
    },
}
_PUBLISH: Schema = {
    "description": "Copy the model of the desired run to a stable address, once the run succeeded and meets "
    "`expect`; a revert puts the earlier model back. Changing it runs nothing again.",
    "type": "object",
    "x-hint": 'write {}, or {to: "gs://BUCKET/FOLDER"}',
    "additionalProperties": False,
    "properties": {
        "to": {
            "description": "The address: current.json there names the folder of the model in place. By "
            "default the environment's `defaults.publish`, and below it the base name.",
            "type": "string",
            "x-hint": 'write "gs://BUCKET/FOLDER"',
            "allOf": PUBLISHED_ADDRESS,
        },
        "from": {
            "description": "The folder that is published, below the run's own; in tuning, below that of the "
            "best trial.",
            "type": "string",
            "default": "model",
            "x-hint": 'write for example "model"',
            "allOf": PUBLISHED_PATH,
        },
    },
}
_ON_LIVE_RUN: Schema = {
    "enum": ["keep", "cancel"],
    "enumDescriptions": ["Let it run to its end, and report it as drift.", "Cancel it."],
    "default": "keep",
}
_RECONCILE: Schema = {
    "description": "How the reconciler treats the job.",
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "suspend": {
            "description": "Keep the manifest, but submit nothing.",
            "type": "boolean",
            "default": False,
        },
        "attempts": {
            "description": "The number of submissions in all while the job keeps ending FAILED, 1 for no "
            "retry; on the embedded service a failed set-up does not count.",
            "type": "integer",
            "minimum": 1,
            "maximum": 10,
            "default": 1,
        },
        "rerun": {
            "description": "Any text; changing it runs the same content again.",
            "type": "string",
            "maxLength": 200,
            "default": "",
        },
        "onChange": {
            "description": "What to do about a live run of an older content.",
            **_ON_LIVE_RUN,
        },
        "onDelete": {
            "description": "What to do about a live run whose manifest is gone.",
            **_ON_LIVE_RUN,
        },
        "notSecret": {
            "description": "JSON pointers to values of this manifest that look like secrets and are none, "
            "such as /spec/workerPoolSpecs/0/containerSpec/args/3.",
            "type": "array",
            "maxItems": 100,
            "items": {
                "type": "string",
                "allOf": [shaped("/.*", "not a JSON pointer", "begin it with a slash")],
            },
            "default": [],
        },
    },
}
