"""The shipped schemas: equal to the generator's output, and each rule refuses its wrong values."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httplib2
import pytest
from googleapiclient import discovery_cache
from googleapiclient.discovery import build_from_document
from jsonschema import Draft202012Validator

from reconciler.base.diagnostics import pointer_of
from reconciler.manifests import schemas
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1
from tests.support.schema_cases import (
    BAD,
    CONFIG,
    CUSTOM_JOB,
    GOOD,
    INPUT,
    INPUTS,
    ML_JOB,
    PACKAGE,
    POOLS,
    STUDY,
    TUNING_JOB,
    Json,
    changed,
    walk,
)

SCHEMAS = Path(__file__).resolve().parents[2] / "schemas"
FILES = sorted(path.name for path in SCHEMAS.glob("*.schema.json"))
DISCOVERY = sorted(path.stem for path in (SCHEMAS / "discovery").glob("*.json"))


def failures(schema: Json, value: Any) -> list[tuple[str, str]]:
    """Return (pointer, message) of each failure; jsonschema's message if the rule has none."""
    found = Draft202012Validator(schema).iter_errors(value)
    return [(pointer_of(error.absolute_path), _said(error)) for error in found]


def _said(error: Any) -> str:
    keywords = error.schema if isinstance(error.schema, dict) else {}
    return keywords.get("x-message", error.message)


PARAM = f"{INPUT}/hyperparameters/params/0"
PROD = "environments/prod"
# Values that their field refuses, independent of all other fields.
WRONG_VALUES: list[tuple[Json, str, Any]] = [
    (CUSTOM_JOB, "apiVersion", ML_V1 + "beta1"),
    (CUSTOM_JOB, "reconcile/onDelete", "kill"),
    (CUSTOM_JOB, "reconcile/rerun", 1),
    (CUSTOM_JOB, "reconcile/suspend", "true"),
    (CUSTOM_JOB, f"{POOLS}/2/replicaCount", 2**63),
    (CUSTOM_JOB, f"{POOLS}/2/replicaCount", 1.5),
    (CUSTOM_JOB, f"{POOLS}/2/replicaCount", "01"),
    (CUSTOM_JOB, f"{POOLS}/2/replicaCount", -1),
    (CUSTOM_JOB, f"{POOLS}/0/machineSpec/acceleratorCount", -1),
    (CUSTOM_JOB, f"{POOLS}/0/machineSpec/acceleratorCount", "1"),
    (CUSTOM_JOB, f"{POOLS}/0/diskSpec", {"bootDiskSizeGb": 0}),
    (CUSTOM_JOB, f"{PACKAGE}/args", "--epochs=3"),
    (CUSTOM_JOB, f"{PACKAGE}/args/0", 3),
    (CUSTOM_JOB, f"{POOLS}/2/containerSpec/imageUri", ""),
    (CUSTOM_JOB, "spec/scheduling", None),
    (CUSTOM_JOB, "spec/scheduling", {"strategy": "FLEX", "maxWaitDuration": "60s"}),
    (CUSTOM_JOB, "spec/scheduling/disableRetries", "no"),
    (TUNING_JOB, "spec/maxFailedTrialCount", -1),
    (TUNING_JOB, f"{STUDY}/algorithm", "BAYES"),
    (TUNING_JOB, f"{STUDY}/metrics/0/goal", "GOAL_TYPE_UNSPECIFIED"),
    (TUNING_JOB, f"{STUDY}/metrics/0/safetyConfig", {"desiredMinSafeTrialsFraction": 1.1}),
    (TUNING_JOB, f"{STUDY}/parameters/0/parameterId", "learning rate"),
    (TUNING_JOB, f"{STUDY}/parameters/0/scaleType", "LOG"),
    (TUNING_JOB, f"{STUDY}/parameters/1/integerValueSpec/minValue", "1.5"),
    (TUNING_JOB, f"{STUDY}/parameters/1/integerValueSpec/maxValue", "1" * 20),
    (TUNING_JOB, f"{STUDY}/studyStoppingConfig", {"maxDurationNoProgress": "1h"}),
    (TUNING_JOB, f"{STUDY}/studyStoppingConfig", {"maximumRuntimeConstraint": {"endTime": "2026-11-07"}}),
    (ML_JOB, f"{INPUT}/scaleTier", "HUGE"),
    (ML_JOB, f"{INPUT}/region", ""),
    (ML_JOB, f"{INPUT}/workerCount", "two"),
    (ML_JOB, f"{INPUT}/pythonVersion", "3"),
    (ML_JOB, f"{INPUT}/network", "default"),
    (ML_JOB, f"{INPUT}/packageUris/0", "gs://my-bucket/folder/"),
    (ML_JOB, f"{INPUT}/masterConfig", {"acceleratorConfig": {"count": -1}}),
    (ML_JOB, f"{INPUT}/masterConfig", {"acceleratorConfig": {"type": "NVIDIA_L4"}}),
    (ML_JOB, f"{INPUT}/masterConfig", {"diskConfig": {"bootDiskType": "hyperdisk-balanced"}}),
    (ML_JOB, f"{INPUT}/masterConfig", {"diskConfig": {"bootDiskSizeGb": 0}}),
    (ML_JOB, f"{INPUT}/encryptionConfig", {"kmsKeyName": "key"}),
    (ML_JOB, f"{INPUT}/scheduling/priority", -1),
    (ML_JOB, f"{INPUT}/scheduling/maxRunningTime", "3600"),
    (ML_JOB, f"{INPUT}/scheduling/maxWaitTime", "0900s"),
    (ML_JOB, f"{INPUT}/hyperparameters/goal", "LEAST"),
    (ML_JOB, f"{INPUT}/hyperparameters/maxTrials", 0),
    (ML_JOB, f"{INPUT}/hyperparameters/maxParallelTrials", 0),
    (ML_JOB, f"{INPUT}/hyperparameters/maxFailedTrials", -1),
    (ML_JOB, f"{PARAM}/type", "FLOAT"),
    (ML_JOB, f"{PARAM}/scaleType", "LOG"),
    (CONFIG, "source", "acme_jobs"),
    (CONFIG, "images/2.11/python", "2.7"),
    (CONFIG, "images/2.11/requirements", "scikit-learn"),
    (CONFIG, "images/2.11/requirements/0", ""),
    (CONFIG, "github/apiUrl", "github.example.com"),
    (CONFIG, f"{PROD}/engine", "aws"),
    (CONFIG, f"{PROD}/project", "Acme"),
    (CONFIG, f"{PROD}/location", "US"),
    (CONFIG, f"{PROD}/stagingBucket", "gs://acme/folder"),
    (CONFIG, f"{PROD}/claimsBucket", "Acme"),
    (CONFIG, f"{PROD}/endpoints/storage", "https://user@storage.example.com"),
    (CONFIG, f"{PROD}/defaults/network", "default"),
    (CONFIG, f"{PROD}/defaults/baseOutputDirectory", "out"),
    (CONFIG, f"{PROD}/limits/submissions", -1),
    (CONFIG, f"{PROD}/limits/acceleratorHours", -0.5),
]


def schema_of(document: Json) -> Json:
    version, kind = document.get("apiVersion", ""), document.get("kind", "")
    found = schemas.manifest_schema(version, kind, spec=document.get("spec"))
    return found or schemas.document("config.schema.json")


@pytest.mark.parametrize("name", GOOD)
def test_what_is_right_passes(name: str) -> None:
    document, edits = GOOD[name]
    assert failures(schema_of(document), changed(document, edits)) == []


@pytest.mark.parametrize("name", BAD)
def test_each_rule_refuses_at_its_place(name: str) -> None:
    document, edits, pointer, said = BAD[name]
    found = failures(schema_of(document), changed(document, edits))
    assert [place for place, _ in found] == [pointer], found
    assert said in found[0][1]


@pytest.mark.parametrize(("document", "path", "value"), WRONG_VALUES)
def test_each_field_refuses_a_wrong_value(document: Json, path: str, value: Any) -> None:
    found = failures(schema_of(document), changed(document, {path: value}))
    assert len(found) == 1
    assert found[0][0].startswith("/" + path)


# "Required." in the discovery document, but only with a condition here.
CONDITIONAL = {
    ("PythonPackageSpec", "packageUris"),  # not if the manifest has `package`
    ("TrainingInput", "packageUris"),
    ("TrainingInput", "pythonModule"),  # not in a custom image
    ("TrainingInput", "scaleTier"),  # gcloud sends jobs without it
    ("HyperparameterSpec", "goal"),  # "Defaults to `MAXIMIZE`."
}


@pytest.mark.slow
def test_what_the_api_calls_required_is_required() -> None:
    optional = set()
    shipped = Path(discovery_cache.__file__).parent / "documents"
    prefixes = {"aiplatform": "GoogleCloudAiplatformV1", "ml": "GoogleCloudMlV1__"}
    nodes = {
        f"{api}.{name.removeprefix(prefix)}": node
        for api, prefix in prefixes.items()
        for name, node in json.loads((shipped / f"{api}.v1.json").read_text())["schemas"].items()
    }
    definitions = schemas.document(schemas.ANY_KIND)["$defs"]
    for name in nodes.keys() & definitions.keys():
        mine = definitions[name]
        for field, node in nodes[name]["properties"].items():
            said = node.get("description", "").startswith("Required. ")
            if said and field in mine["properties"] and field not in mine.get("required", ()):
                optional.add((name.partition(".")[2], field))
    assert optional == CONDITIONAL


@pytest.mark.parametrize("name", [name for name, (document, *_) in BAD.items() if document is not CONFIG])
def test_the_editors_schema_agrees(name: str) -> None:
    document, edits, pointer, said = BAD[name]
    any_kind = schemas.document(schemas.ANY_KIND)
    assert failures(any_kind, document) == []
    assert (pointer, said) in [
        (place, said if said in told else told)
        for place, told in failures(any_kind, changed(document, edits))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", FILES)
def test_schemas_are_valid_schemas(name: str) -> None:
    Draft202012Validator.check_schema(schemas.document(name))


@pytest.mark.slow
def test_the_files_are_what_the_generator_makes() -> None:
    done = subprocess.run(
        [sys.executable, SCHEMAS / "generate.py", "--check"], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_the_generator_tells_of_a_file_that_differs(tmp_path: Path) -> None:
    folder = tmp_path / "schemas"
    shutil.copytree(SCHEMAS, folder, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "job.schema.json").write_text("{}")
    command = [sys.executable, folder / "generate.py"]
    check = subprocess.run([*command, "--check"], capture_output=True, text=True, check=False)
    assert (check.returncode, check.stderr) == (1, "schemas/job.schema.json: not up to date\n")
    assert (folder / "job.schema.json").read_text() == "{}"
    subprocess.run(command, check=True, capture_output=True)
    assert (folder / "job.schema.json").read_bytes() == (SCHEMAS / "job.schema.json").read_bytes()


def objects(schema: Json) -> Iterator[Json]:
    """Yield the schemas of mappings that describe values, without conditions and extra rules."""
    if "properties" in schema and "type" in schema:
        yield schema
    below = [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    for node in [*below, schema.get("items"), schema.get("additionalProperties")]:
        if isinstance(node, dict):
            yield from objects(node)


@pytest.mark.parametrize("name", FILES)
def test_every_field_is_described(name: str) -> None:
    found = list(objects(schemas.document(name)))
    assert found
    silent = [
        key
        for node in found
        for key, field in node["properties"].items()
        if not field.get("description", "").strip()
    ]
    assert silent == []


@pytest.mark.parametrize("name", INPUTS)
def test_unknown_fields_are_refused(name: str) -> None:
    found = objects(schemas.document(name))
    open_ones = [node["description"] for node in found if "additionalProperties" not in node]
    assert open_ones == (["A training job that the repository wants."] if name == schemas.ANY_KIND else [])


@pytest.mark.parametrize("name", FILES)
def test_patterns_mean_the_same_to_editors(name: str) -> None:
    """Python's `$` accepts a final line end, and ECMA has no `\\Z`, `\\A` or inline flags."""
    patterns = [
        node["pattern"] for node in walk(schemas.document(name)) if isinstance(node.get("pattern"), str)
    ]
    assert all(re.compile(pattern) for pattern in patterns)
    assert [p for p in patterns if re.search(r"\$(?!\(\?!\\n\))|\\[AZz]|\(\?[a-zP]", p)] == []


@pytest.mark.parametrize("name", FILES)
def test_a_rule_with_a_sentence_of_its_own_is_one_rule(name: str) -> None:
    for node in walk(schemas.document(name)):
        if "x-message" in node:
            keywords = {key for key in node if not key.startswith("x-")}
            assert len(keywords) == 1
            assert "type" not in keywords


def test_fields_that_only_others_set_are_listed() -> None:
    spec = schemas.manifest_schema(AIPLATFORM_V1, "CustomJob")["properties"]["spec"]
    assert spec["x-set-by-reconciler"] == ["displayName", "labels"]
    assert {"name", "state", "createTime", "webAccessUris"} <= {*spec["x-output-only"]}
    job = schemas.document("job.schema.json")["$defs"]["ml.Job"]
    assert job["x-set-by-reconciler"] == ["jobId", "labels"]
    assert {"state", "trainingOutput", "errorMessage"} <= {*job["x-output-only"]}
    for node in walk([schemas.document(name) for name in INPUTS]):
        others = {
            *node.get("x-output-only", ()),
            *node.get("x-set-by-reconciler", ()),
            *node.get("x-refused", ()),
        }
        assert not others & node.get("properties", {}).keys()


def test_a_missing_field_names_its_flag() -> None:
    training_input = schemas.document("job.schema.json")["$defs"]["ml.TrainingInput"]
    assert training_input["x-gcloud-flag"] == {"region": "--region"}


def test_kinds_are_those_of_the_schemas() -> None:
    for (api_version, kind), name in schemas.KINDS.items():
        properties = schemas.document(name)["properties"]
        assert (properties["apiVersion"]["const"], properties["kind"]["const"]) == (api_version, kind)
    assert schemas.manifest_schema(AIPLATFORM_V1, "Job") is None


def test_wheel_has_every_file_of_the_schemas() -> None:
    project = tomllib.loads((SCHEMAS.parent / "pyproject.toml").read_text("utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    files = {f"schemas/{path.name}" for path in SCHEMAS.glob("*.json")}
    assert files <= {source for source, target in included.items() if target == f"reconciler/{source}"}


METHODS = {
    ("aiplatform.v1", "projects.locations.customJobs"): {"create", "get", "list", "cancel", "delete"},
    ("aiplatform.v1", "projects.locations.hyperparameterTuningJobs"): {
        "create",
        "get",
        "list",
        "cancel",
        "delete",
    },
    ("ml.v1", "projects.jobs"): {"create", "get", "list", "cancel", "patch"},
    ("storage.v1", "buckets"): {"get", "insert", "list"},
    ("storage.v1", "objects"): {"get", "get_media", "insert", "list", "delete"},
    ("logging.v2", "entries"): {"list"},
    ("iamcredentials.v1", "projects.serviceAccounts"): {"generateAccessToken"},
}


@pytest.mark.parametrize(("name", "path"), METHODS)
def test_googles_client_takes_the_trimmed_documents(name: str, path: str) -> None:
    node = build_from_document(schemas.discovery(name), http=httplib2.Http())
    for part in path.split("."):
        node = getattr(node, part)()
    assert METHODS[name, path] <= {*dir(node)}


@pytest.mark.parametrize("name", DISCOVERY)
def test_trimmed_documents_hold_what_they_refer_to_and_no_prose(name: str) -> None:
    document = schemas.discovery(name)
    referred = {node["$ref"] for node in walk(document) if isinstance(node.get("$ref"), str)}
    assert referred <= document["schemas"].keys()
    assert not [node for node in walk(document) if isinstance(node.get("description"), str)]


def test_trimmed_documents_mark_what_only_the_service_sets() -> None:
    job = schemas.discovery("ml.v1")["schemas"]["GoogleCloudMlV1__Job"]["properties"]
    marked = {name for name, field in job.items() if field.get("readOnly")}
    assert {"createTime", "startTime", "endTime", "state", "errorMessage"} <= marked
    assert not {"jobId", "labels", "trainingInput", "etag"} & marked


OUTPUT_SAMPLES: dict[str, Json] = {
    "validate": {
        "formatVersion": 1,
        "valid": False,
        "files": 1,
        "problems": [
            {
                "path": "jobs/a.yaml",
                "line": 1,
                "column": 1,
                "pointer": "",
                "message": "contains no job",
                "hint": "",
                "level": "error",
                "kind": "",
            }
        ],
        "acknowledged": {},
    },
    "plan": {
        "formatVersion": 1,
        "target": {"environment": "local", "engine": "local", "project": "local", "location": "local"},
        "digest": "sha256:" + "0" * 64,
        "summary": {"submit": 1, "retry": 0, "cancel": 0, "publish": 0, "none": 0, "blocked": 0, "drift": 1},
        "changes": [
            {
                "action": "submit",
                "reason": "new",
                "reasonCode": "new",
                "baseName": "census",
                "jobName": "census_0123456789abcdef",
                "kind": "CustomJob",
                "path": "jobs/a.yaml",
                "line": 1,
                "fields": [{"pointer": "/workerPoolSpecs/0", "before": None, "after": {}}],
                "spec": None,
                "outputDirectory": None,
                "files": [{"path": "trainer/task.py", "added": 1, "removed": None}],
                "publication": {"to": "gs://risk-models/census", "current": None},
            }
        ],
        "drift": [
            {"kind": "orphaned", "jobName": "old_0123456789abcdef", "baseName": "old", "detail": "gone"}
        ],
        "problems": [],
        "appliedTree": {
            "commit": "2c166de0" * 5,
            "relation": "older",
            "effect": "refuse",
            "time": "2026-01-01T00:00:00Z",
            "message": "this checkout is older",
        },
        "newBuckets": ["gs://risk-modles"],
    },
    "status": {
        "formatVersion": 1,
        "jobs": [
            {
                "jobName": "census_0123456789abcdef",
                "baseName": "census",
                "kind": "CustomJob",
                "state": None,
                "claim": "none",
                "createTime": None,
                "startTime": None,
                "endTime": None,
                "error": None,
                "reasonCode": "index-unreachable",
                "resource": None,
                "url": None,
                "commit": None,
                "attempt": 1,
                "cause": {"class": "set-up", "message": "no index", "remedy": "make it reachable"},
            }
        ],
    },
}
_PUBLISHED = {
    "baseName": "census",
    "source": "acme-jobs",
    "environment": "prod",
    "commit": None,
    "time": "2026-11-20T09:00:00Z",
}
OUTPUT_SAMPLES["fetch"] = {
    "formatVersion": 1,
    "jobName": "census_0123456789abcdef",
    "uri": "gs://risk-models/census/census_0123456789abcdef",
    "published": {**_PUBLISHED},
    "folder": "/home/ada/census",
    "size": 7,
    "files": [{"name": "model.txt", "size": 7, "crc32c": "AAAAAA=="}],
}
OUTPUT_SAMPLES["verify"] = {
    "formatVersion": 1,
    "verified": False,
    "signed": False,
    "notice": "The record is unsigned.",
    "to": "gs://risk-models/census",
    "jobName": "census_0123456789abcdef",
    "hash": "0" * 64,
    "uri": "gs://risk-models/census/census_0123456789abcdef",
    "published": {**_PUBLISHED},
    "files": 1,
    "size": 7,
    "differences": [{"kind": "file-missing", "message": "model.txt is missing"}],
}
OUTPUT_SAMPLES["apply"] = {
    **OUTPUT_SAMPLES["plan"],
    "outcomes": [
        {
            "jobName": "census_0123456789abcdef",
            "action": "submit",
            "status": "applied",
            "state": "SUCCEEDED",
            "error": None,
            "reasonCode": None,
            "cause": {"class": "user-code", "message": "exit code 1", "remedy": "correct the code"},
        }
    ],
}


@pytest.mark.parametrize("command", OUTPUT_SAMPLES)
def test_outputs_have_the_promised_shape(command: str) -> None:
    schema = schemas.document(f"{command}-output.schema.json")
    sample = OUTPUT_SAMPLES[command]
    assert failures(schema, sample) == []
    assert failures(schema, {**sample, "formatVersion": 2})
    for place in walk(sample):
        for name in list(place):
            value = place.pop(name)
            assert failures(schema, sample), name
            place[name + "X"] = place[name] = value
            assert failures(schema, sample), name
            del place[name + "X"]


@pytest.mark.parametrize(
    "image",
    [
        "alpine",
        "docker:24",
        "python:3.13-slim",
        "my.registry:5000/a/b_c/d__e/f-g---h:v1.2_3",
        "[::1]:5000/x",
        f"gcr.io/google.com/project/x:1@sha256:{'0' * 64}",
    ],
)
def test_each_form_of_an_image_s_name_is_taken(image: str) -> None:
    schema = schemas.document("custom-job.schema.json")["$defs"]["aiplatform.ContainerSpec"]
    assert Draft202012Validator(schema["properties"]["imageUri"]).is_valid(image)
