"""Each field, scale tier, machine, runtime and image of AI Platform, and its result on Vertex AI."""

from __future__ import annotations

import json
from datetime import date, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from reconciler.base.diagnostics import WARNING
from reconciler.base.warning_kinds import WarningKind
from reconciler.convert.importing.manifest import yaml_text
from reconciler.convert.importing.tidy_spec import tidy
from reconciler.convert.migrating.report import FieldRow
from reconciler.convert.migrating.rewrite import Converted, convert
from reconciler.convert.migrating.rules import rules
from reconciler.manifests.diagnose import diagnose
from reconciler.manifests.files import ManifestFile
from reconciler.manifests.packages import package_folder
from reconciler.manifests.training_images import (
    image_warnings,
    noted_images,
    training_image_uri,
    training_images,
)
from reconciler.model.manifest import AIPLATFORM_V1, Manifest

Json = dict[str, Any]
FACTS = json.loads((Path(__file__).parent / "migration_facts.json").read_text("utf-8"))

PACKAGE: Json = {
    "region": "us-central1",
    "scaleTier": "BASIC",
    "runtimeVersion": "2.11",
    "pythonVersion": "3.7",
    "packageUris": ["gs://tide/code-1.tar.gz"],
    "pythonModule": "tide.fit",
}
CONTAINER: Json = {
    "region": "us-central1",
    "scaleTier": "CUSTOM",
    "masterType": "n1-standard-4",
    "masterConfig": {"imageUri": "gcr.io/tide/fit:1"},
}
CUSTOM: Json = {**PACKAGE, "scaleTier": "CUSTOM", "masterType": "n1-standard-8"}
PARAMETER = {"parameterName": "rate", "type": "DOUBLE", "minValue": 0.1, "maxValue": 0.5}
TUNING = {"goal": "MINIMIZE", "params": [PARAMETER]}
TUNED = {**PACKAGE, "hyperparameters": TUNING}


def converted(given: Json, *, has_labels: bool = False) -> Converted:
    return convert(given, "tide-fit", has_labels=has_labels)


def job_spec(given: Json) -> Json:
    found = converted(given)
    spec: Json = found.spec.get("trialJobSpec", found.spec)
    return spec


def pool(given: Json, index: int = 0) -> Json:
    found: Json = job_spec(given)["workerPoolSpecs"][index]
    return found


def errors(found: Converted) -> list[str]:
    """Return the problems of the migrated manifest."""
    manifest = {
        "apiVersion": AIPLATFORM_V1,
        "kind": found.kind,
        "metadata": {"name": "tide-fit"},
        "spec": tidy(AIPLATFORM_V1, found.kind, found.spec),
    }
    data = yaml_text(manifest).encode()
    file = ManifestFile("job.yaml", "/tide/job.yaml", len(data))
    result = diagnose(file, data, frozenset(), lambda file, path: package_folder(Path(file.real), path))
    result.check(Path("/tide"))
    return [problem.message for problem in result.problems if problem.level != WARNING]


@pytest.mark.parametrize("fact", FACTS["scale_tiers"], ids=lambda fact: fact["scaleTier"])
def test_scale_tier_becomes_these_pools(fact: Json) -> None:
    tier = fact["scaleTier"]
    if tier == "CUSTOM":
        given = {
            **CUSTOM,
            "workerType": "n1-highmem-2",
            "workerCount": "2",
            "parameterServerType": "standard",
        }
        given |= {"parameterServerCount": "3", "evaluatorType": "n1-highcpu-4", "evaluatorCount": "1"}
        expected = [("n1-standard-8", 1, ""), ("n1-highmem-2", 2, ""), ("n1-standard-4", 3, "")]
        expected.append(("n1-highcpu-4", 1, ""))
    else:
        given = {**PACKAGE, "scaleTier": tier}
        expected = [(each["machineType"], each["replicaCount"], _accelerator(each)) for each in fact["pools"]]
    found = converted(given)
    made = [
        (each["machineSpec"]["machineType"], each["replicaCount"], _accelerator(each["machineSpec"]))
        for each in found.spec["workerPoolSpecs"]
    ]
    assert made == expected
    (row,) = [row for row in found.report.rows if row.source == "scaleTier"]
    assert row.verdict == fact["verdict"]
    assert bool(row.sentence) == (fact["verdict"] != "exact") or row.sentence.startswith(f"{tier} becomes")
    assert errors(found) == []


def _accelerator(part: Json) -> str:
    if "accelerator" in part:
        return str(part["accelerator"])
    return f"{part['acceleratorType']} x{part['acceleratorCount']}" if "acceleratorType" in part else ""


@pytest.mark.parametrize("fact", FACTS["legacy_machines"], ids=lambda fact: fact["name"])
def test_own_machine_name_becomes_this_machine(fact: Json) -> None:
    found = converted({**CUSTOM, "masterType": fact["name"]})
    machine = found.spec["workerPoolSpecs"][0]["machineSpec"]
    names = ("machineType", "acceleratorType", "acceleratorCount")
    assert [machine.get(name) for name in names] == [fact[name] for name in names]
    (row,) = [row for row in found.report.rows if row.source == "masterType"]
    assert row.verdict == fact["verdict"]
    assert bool(row.sentence) == (fact["verdict"] != "exact")
    assert errors(found) == []


def test_tpu_worker_becomes_the_only_pool() -> None:
    worker: Json = {"workerType": "cloud_tpu", "workerCount": "1"}
    worker |= {"workerConfig": {"acceleratorConfig": {"type": "TPU_V3", "count": "8"}}}
    found = converted({**CUSTOM, **worker})
    (only,) = found.spec["workerPoolSpecs"]
    assert only["machineSpec"] == {
        "machineType": "cloud-tpu",
        "acceleratorType": "TPU_V3",
        "acceleratorCount": 8,
    }
    assert errors(found) == []


@pytest.mark.parametrize("region", ["us-east1", "europe-west4", "asia-east1", "australia-southeast1"])
@pytest.mark.parametrize("fact", FACTS["runtimes"], ids=lambda fact: fact["runtimeVersion"])
def test_runtime_becomes_this_image(fact: Json, region: str) -> None:
    continent = {"us": "us", "eu": "europe", "as": "asia", "au": "asia"}[region[:2]]
    if fact["cpu"] is None:
        for runtime, python in _lost_runtimes(fact):
            given = {**PACKAGE, "region": region, "runtimeVersion": runtime, "pythonVersion": python}
            found = converted(given)
            (row,) = [row for row in found.report.rows if row.source.startswith("runtimeVersion")]
            assert (row.verdict, len(found.report.obstacles)) == (fact["verdict"], 1)
            assert "Python 3.7" in row.sentence
        return
    given = {**CUSTOM, "region": region, "runtimeVersion": fact["runtimeVersion"], "pythonVersion": "3.7"}
    given |= {"workerType": "standard_p100", "workerCount": "1"}
    found = converted(given)
    images = [each["pythonPackageSpec"]["executorImageUri"] for each in found.spec["workerPoolSpecs"]]
    place = f"{continent}-docker.pkg.dev/vertex-ai/training"
    assert images == [f"{place}/{fact['cpu']}:latest", f"{place}/{fact['gpu']}:latest"]
    (row,) = [row for row in found.report.rows if row.source == "runtimeVersion, pythonVersion"]
    assert row.verdict == fact["verdict"]
    assert str(training_images()[fact["cpu"]].end_of_availability) in row.sentence
    assert rules().way_out in row.sentence


def _lost_runtimes(fact: Json) -> list[tuple[str, str]]:
    if "from" not in fact:
        return [(fact["runtimeVersion"], fact["pythonVersion"])]
    assert (fact["from"], fact["to"]) == ("1.0", "1.14")
    return [(f"1.{minor}", python) for minor in range(15) for python in ("2.7", "3.5")]


@pytest.mark.parametrize("fact", FACTS["images"], ids=lambda fact: fact["image"])
def test_image_ends_on_this_day(fact: Json) -> None:
    image = training_images()[fact["image"]]
    assert (image.python, image.accelerator) == (fact["python"], fact["accelerator"])
    ends = (image.end_of_support.isoformat(), image.end_of_availability.isoformat())
    assert ends == (fact["end_of_support"], fact["end_of_availability"])
    uri = training_image_uri(fact["image"], "europe-west1")
    spec = {"workerPoolSpecs": [{"pythonPackageSpec": {"executorImageUri": uri}}]}
    noted = noted_images(spec)
    last = date.fromisoformat(fact["end_of_availability"])
    manifest = Manifest(AIPLATFORM_V1, "CustomJob", "job", spec, path="job.yaml", images=noted)
    assert image_warnings([manifest], last) == []
    (warning,) = image_warnings([manifest], last + timedelta(days=1))
    assert (warning.path, warning.kind) == ("job.yaml", WarningKind.IMAGE_END)
    assert warning.pointer == "/spec/workerPoolSpecs/0/pythonPackageSpec/executorImageUri"
    assert warning.message == f"Google ended the availability of the image {fact['image']} on {last}"


def test_table_of_images_has_no_other_rows() -> None:
    assert set(training_images()) == {fact["image"] for fact in FACTS["images"]}
    assert set(rules().tiers) == {fact["scaleTier"] for fact in FACTS["scale_tiers"]}
    assert set(rules().machines) == {fact["name"] for fact in FACTS["legacy_machines"]}
    assert set(rules().runtimes) == {fact["runtimeVersion"] for fact in FACTS["runtimes"] if fact["cpu"]}


class Case(NamedTuple):
    """A job with a field.

    Attributes:
        given: Its `trainingInput`.
        row: The beginning of the source in the report's row.
        spec: Path in the new spec -> its value; None for a missing one.
        words: Parts of the sentence.
    """

    given: Json
    row: str
    spec: dict[str, Any] = {}  # noqa: RUF012
    words: tuple[str, ...] = ()


def accelerated(kind: str, count: str = "2") -> Json:
    return {**CUSTOM, "masterConfig": {"acceleratorConfig": {"type": kind, "count": count}}}


POOL = "workerPoolSpecs.0"
PYTHON = f"{POOL}.pythonPackageSpec"
IMAGE = f"{POOL}.containerSpec"
STUDY_PARAMETER = "studySpec.parameters.0"


def tuned(**more: Any) -> Json:
    return {**PACKAGE, "hyperparameters": {**TUNING, **more}}


def parameter(**more: Any) -> Json:
    return tuned(params=[{**PARAMETER, **more}])


EVALUATED = {**CUSTOM, "evaluatorType": "n1-standard-4", "evaluatorCount": "1"}
MANY = {**CUSTOM, "workerType": "n1-standard-8", "workerCount": "2"}
KEY = "projects/p/locations/us-central1/keyRings/r/cryptoKeys/k"
A100: Json = {**CUSTOM, "masterType": "a2-highgpu-1g"}
A100 |= {"masterConfig": {"acceleratorConfig": {"type": "NVIDIA_TESLA_A100", "count": "1"}}}
CASES = {
    "jobId": Case(PACKAGE, "jobId", {"jobId": None, "displayName": None}, ("tide-fit", "display name")),
    "labels": Case(PACKAGE, "labels", {"labels": None}, ("Vertex AI", "lower-case")),
    "(labels later)": Case(PACKAGE, "labels of a submitted job", {}, ("no method",)),
    "trainingInput.region": Case(PACKAGE, "region", {"region": None}, ("us-central1",)),
    "region not in Vertex AI": Case({**PACKAGE, "region": "mars-north1"}, "region", {}, ("mars-north1",)),
    "scaleTier, masterType, workerType/Count, parameterServerType/Count, evaluatorType/Count": Case(
        MANY,
        "scaleTier",
        {f"{POOL}.replicaCount": 1, "workerPoolSpecs.1.replicaCount": 2},
        ("2 worker pools",),
    ),
    'masterConfig.acceleratorConfig {type,count:"n"}': Case(
        accelerated("NVIDIA_TESLA_T4"),
        "masterConfig.acceleratorConfig",
        {f"{POOL}.machineSpec.acceleratorType": "NVIDIA_TESLA_T4", f"{POOL}.machineSpec.acceleratorCount": 2},
        ("2 NVIDIA_TESLA_T4",),
    ),
    "acceleratorConfig.type NVIDIA_TESLA_K80": Case(
        accelerated("NVIDIA_TESLA_K80", "8"),
        "masterConfig.acceleratorConfig",
        {f"{POOL}.machineSpec.acceleratorType": "NVIDIA_TESLA_T4", f"{POOL}.machineSpec.acceleratorCount": 4},
        ("retired", "4 NVIDIA_TESLA_T4 in place of 8"),
    ),
    "acceleratorConfig.type TPU_V2_POD, TPU_V3_POD": Case(
        accelerated("TPU_V2_POD", "32"),
        "masterConfig.acceleratorConfig",
        {f"{POOL}.machineSpec.acceleratorType": None},
        ("TPU_V2_POD", "TPU_V5_LITEPOD"),
    ),
    "*Config.diskConfig": Case(
        {**CUSTOM, "masterConfig": {"diskConfig": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 200}}},
        "masterConfig.diskConfig",
        {f"{POOL}.diskSpec": {"bootDiskType": "pd-ssd", "bootDiskSizeGb": 200}},
    ),
    "built-in algorithm": Case(
        {**CONTAINER, "masterConfig": {"imageUri": "gcr.io/cloud-ml-algos/linear_learner_cpu:latest"}},
        "built-in algorithm",
        {},
        ("linear_learner_cpu", "2025-01-31"),
    ),
    "masterConfig.imageUri; worker, ps, evaluator default to the master's": Case(
        {**CONTAINER, "workerType": "n1-standard-4", "workerCount": "1"},
        "masterConfig.imageUri",
        {"workerPoolSpecs.1.containerSpec.imageUri": "gcr.io/tide/fit:1"},
        ("master's",),
    ),
    "*Config.containerCommand, containerArgs": Case(
        {
            **CONTAINER,
            "masterConfig": {
                "imageUri": "gcr.io/tide/fit:1",
                "containerCommand": ["fit"],
                "containerArgs": ["-v"],
            },
        },
        "masterConfig.containerCommand",
        {f"{IMAGE}.command": ["fit"], f"{IMAGE}.args": ["-v"]},
    ),
    "args with a custom container": Case(
        {**CONTAINER, "args": ["--steps=3"]}, "args", {f"{IMAGE}.args": ["--steps=3"]}
    ),
    "*Config.tpuTfVersion": Case(
        {**CUSTOM, "masterConfig": {"imageUri": "gcr.io/tide/fit:1", "tpuTfVersion": "2.3"}},
        "masterConfig.tpuTfVersion",
        {},
        ("image decides",),
    ),
    "packageUris, pythonModule, args": Case(
        {**MANY, "args": ["--steps=3"]},
        "packageUris",
        {
            f"{PYTHON}.packageUris": PACKAGE["packageUris"],
            f"{PYTHON}.pythonModule": "tide.fit",
            "workerPoolSpecs.1.pythonPackageSpec.args": ["--steps=3"],
        },
    ),
    "runtimeVersion, pythonVersion": Case(
        PACKAGE,
        "runtimeVersion",
        {f"{PYTHON}.executorImageUri": "us-docker.pkg.dev/vertex-ai/training/tf-cpu.2-11:latest"},
        ("2024-11-15",),
    ),
    "runtime's other libraries": Case(
        {**PACKAGE, "runtimeVersion": "1.15"},
        "libraries of the runtime",
        {},
        ("scikit-learn 0.20.4", "xgboost 0.82"),
    ),
    "jobDir": Case(
        {**PACKAGE, "args": ["-v"], "jobDir": "gs://tide/out"},
        "jobDir",
        {
            "baseOutputDirectory.outputUriPrefix": "gs://tide/out",
            f"{PYTHON}.args": ["-v", "--job-dir", "gs://tide/out"],
        },
        ("--job-dir",),
    ),
    "(none)": Case({**PACKAGE, "jobDir": "gs://tide/out"}, "(new)", {}, ()),
    "TF_CONFIG": Case(PACKAGE, "TF_CONFIG", {}, ("more than one replica",)),
    "useChiefInTfConfig": Case(
        {**CONTAINER, "useChiefInTfConfig": False},
        "useChiefInTfConfig",
        {"useChiefInTfConfig": None},
        ("chief",),
    ),
    "evaluatorType, evaluatorCount, evaluatorConfig": Case(
        EVALUATED,
        "evaluatorType, evaluatorCount, evaluatorConfig",
        {
            "workerPoolSpecs.1": {},
            "workerPoolSpecs.2": {},
            "workerPoolSpecs.3.machineSpec.machineType": "n1-standard-4",
        },
    ),
    "hyperparameters": Case(TUNED, "hyperparameters", {f"trialJobSpec.{PYTHON}.pythonModule": "tide.fit"}),
    "hyperparameters.goal": Case(TUNED, "hyperparameters.goal", {"studySpec.metrics.0.goal": "MINIMIZE"}),
    "hyperparameters.hyperparameterMetricTag (default training/hptuning/metric)": Case(
        TUNED,
        "hyperparameters.hyperparameterMetricTag",
        {"studySpec.metrics.0.metricId": "training/hptuning/metric"},
        ("cloudml-hypertune",),
    ),
    "hyperparameters.maxTrials (1), maxParallelTrials (1)": Case(
        TUNED, "hyperparameters.maxTrials", {"maxTrialCount": 1, "parallelTrialCount": 1}
    ),
    "hyperparameters.maxFailedTrials": Case(
        tuned(maxFailedTrials=2), "hyperparameters.maxFailedTrials", {"maxFailedTrialCount": 2}
    ),
    "hyperparameters.algorithm": Case(
        tuned(algorithm="RANDOM_SEARCH"),
        "hyperparameters.algorithm",
        {"studySpec.algorithm": "RANDOM_SEARCH"},
    ),
    "hyperparameters.enableTrialEarlyStopping": Case(
        tuned(enableTrialEarlyStopping=True),
        "hyperparameters.enableTrialEarlyStopping",
        {"studySpec.medianAutomatedStoppingSpec": {}},
        ("decayCurveStoppingSpec",),
    ),
    "hyperparameters.resumePreviousJobId": Case(
        tuned(resumePreviousJobId="tide_1"), "hyperparameters.resumePreviousJobId", {}, ("anew",)
    ),
    "params[].parameterName": Case(
        TUNED, "hyperparameters.params[].parameterName", {f"{STUDY_PARAMETER}.parameterId": "rate"}
    ),
    "params[] DOUBLE": Case(
        TUNED,
        "hyperparameters.params[] DOUBLE",
        {f"{STUDY_PARAMETER}.doubleValueSpec": {"minValue": 0.1, "maxValue": 0.5}},
    ),
    "params[] INTEGER": Case(
        parameter(type="INTEGER", minValue=1.0, maxValue=5),
        "hyperparameters.params[] INTEGER",
        {f"{STUDY_PARAMETER}.integerValueSpec": {"minValue": 1, "maxValue": 5}},
    ),
    "params[] CATEGORICAL, DISCRETE": Case(
        tuned(
            params=[
                {"parameterName": "kind", "type": "CATEGORICAL", "categoricalValues": ["a", "b"]},
                {"parameterName": "size", "type": "DISCRETE", "discreteValues": [1, 2.5]},
            ]
        ),
        "hyperparameters.params[] CATEGORICAL",
        {
            f"{STUDY_PARAMETER}.categoricalValueSpec.values": ["a", "b"],
            "studySpec.parameters.1.discreteValueSpec.values": [1, 2.5],
        },
    ),
    "params[].scaleType NONE": Case(
        parameter(scaleType="NONE"),
        "hyperparameters.params[].scaleType NONE",
        {f"{STUDY_PARAMETER}.scaleType": None},
    ),
    "params[].scaleType others": Case(
        parameter(scaleType="UNIT_LOG_SCALE"),
        "hyperparameters.params[].scaleType",
        {f"{STUDY_PARAMETER}.scaleType": "UNIT_LOG_SCALE"},
    ),
    "scheduling.maxRunningTime": Case(
        {**PACKAGE, "scheduling": {"maxRunningTime": "3600s"}},
        "scheduling.maxRunningTime",
        {"scheduling.timeout": "3600s"},
        ("7 days",),
    ),
    "scheduling.maxWaitTime": Case(
        {**A100, "scheduling": {"maxWaitTime": "3600s"}},
        "scheduling.maxWaitTime",
        {"scheduling.maxWaitDuration": "3600s", "scheduling.strategy": "FLEX_START"},
        ("FLEX_START",),
    ),
    "scheduling.priority": Case(
        {**PACKAGE, "scheduling": {"priority": 5}}, "scheduling.priority", {"scheduling": None}
    ),
    "network": Case(
        {**PACKAGE, "network": "projects/1/global/networks/n"},
        "network",
        {"network": "projects/1/global/networks/n"},
        ("number", "peered"),
    ),
    "serviceAccount": Case(
        {**PACKAGE, "serviceAccount": "fit@tide.iam.gserviceaccount.com"},
        "serviceAccount",
        {"serviceAccount": "fit@tide.iam.gserviceaccount.com"},
        ("iam.serviceAccounts.actAs",),
    ),
    "enableWebAccess": Case(
        {**PACKAGE, "enableWebAccess": True}, "enableWebAccess", {"enableWebAccess": True}
    ),
    "encryptionConfig.kmsKeyName": Case(
        {**PACKAGE, "encryptionConfig": {"kmsKeyName": KEY}},
        "encryptionConfig.kmsKeyName",
        {"encryptionSpec.kmsKeyName": KEY},
        ("region",),
    ),
    "default identity": Case(PACKAGE, "default identity", {}, ("Custom Code Service Agent",)),
    "retries": Case(PACKAGE, "retries", {}, ("6, 11, 134 and 139", "5 times", "3 times")),
    "memory": Case(PACKAGE, "memory", {}, ("40 %", "n1-standard-4")),
}
# Values without a place in Vertex AI, or that no manifest can hold
UNPLACED = {"acceleratorConfig.type TPU_V2_POD, TPU_V3_POD"}


@pytest.mark.parametrize("fact", FACTS["fields"], ids=lambda fact: f"{fact['source']} - {fact['target']}")
def test_field_has_this_verdict_and_place(fact: Json) -> None:
    case = CASES[fact["source"]]
    found = converted(case.given, has_labels=True)
    row = _row(found, case.row, fact["target"])
    assert row.verdict == fact["verdict"]
    assert row.sentence or row.verdict == "exact"
    for words in case.words:
        assert words in row.sentence
    for path, value in case.spec.items():
        # Compare as JSON: it distinguishes 1 from 1.0.
        assert json.dumps(_at(found.spec, path)) == json.dumps(value), path
    is_tuning = "hyperparameters" in case.given
    assert found.kind == ("HyperparameterTuningJob" if is_tuning else "CustomJob")
    assert bool(found.report.obstacles) == (fact["source"] in UNPLACED)
    assert errors(found) == []


def _row(found: Converted, source: str, target: str) -> FieldRow:
    rows = [row for row in found.report.rows if row.source == source or row.source.startswith(f"{source},")]
    # Two rows describe new variables, and each parameter has rows of its own.
    if source == "(new)":
        rows = [row for row in rows if row.target == target]
    assert len({(row.target, row.verdict, row.sentence) for row in rows}) == 1, found.report.rows
    return rows[0]


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value[int(name)] if isinstance(value, list) else value.get(name)
        if value is None:
            return None
    return value


def test_pod_of_another_generation_needs_a_decision() -> None:
    (obstacle,) = converted(accelerated("TPU_V4_POD", "32")).report.obstacles
    assert "ct4p-hightpu-4t" in obstacle.hint


def test_wait_is_lost_without_machines_that_queue() -> None:
    found = converted({**PACKAGE, "scheduling": {"maxWaitTime": "3600s"}})
    (row,) = [row for row in found.report.rows if row.source == "scheduling.maxWaitTime"]
    assert (row.verdict, "scheduling" in found.spec) == ("lost", False)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (PACKAGE, "This job has one"),
        (MANY, '"chief", as before'),
        ({**MANY, "runtimeVersion": "1.15"}, 'was "master" before'),
        ({**CONTAINER, "workerType": "standard", "workerCount": 2}, 'was "master" before'),
        ({**CONTAINER, "workerType": "standard", "workerCount": 2, "useChiefInTfConfig": True}, "as before"),
    ],
)
def test_tf_config_row_fits_the_job(given: Json, words: str) -> None:
    (row,) = [row for row in converted(given).report.rows if row.source == "TF_CONFIG"]
    assert words in row.sentence


def test_job_dir_of_trials_is_told_to_be_shared() -> None:
    found = converted({**TUNED, "jobDir": "gs://tide/out"})
    (row,) = [row for row in found.report.rows if row.source == "jobDir"]
    assert "overwrite" in row.sentence
    assert "CLOUD_ML_TRIAL_ID" in row.sentence
    args = found.spec["trialJobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]["args"]
    assert args == ["--job-dir", "gs://tide/out"]


def test_grid_search_over_real_numbers_is_refused_by_the_manifest() -> None:
    assert errors(converted(tuned(algorithm="GRID_SEARCH")))


def test_images_of_ai_platform_run_packages_in_those_of_vertex_ai() -> None:
    given = {key: value for key, value in CUSTOM.items() if key != "runtimeVersion"}
    given["masterConfig"] = {"imageUri": "gcr.io/cloud-ml-public/training/pytorch-gpu.1-10"}
    uri = pool(given)["pythonPackageSpec"]["executorImageUri"]
    assert uri == "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.1-10:latest"
