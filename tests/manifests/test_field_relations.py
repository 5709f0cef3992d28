"""Rules between fields: what is told, and that the remedies make a manifest without a finding."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from reconciler.base.diagnostics import WARNING
from reconciler.manifests.known_values import TABLES, machine_doubt, undocumented_machine
from reconciler.manifests.messages import tpu_machine
from reconciler.manifests.rules import domain_findings
from reconciler.manifests.settings import Environment
from reconciler.manifests.validate import validate
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1
from tests.support.manifests import ML_JOB, TUNING_JOB, write

L4 = {"machineType": "g2-standard-8", "acceleratorType": "NVIDIA_L4", "acceleratorCount": 1}
A100 = {"machineType": "a2-highgpu-1g", "acceleratorType": "NVIDIA_TESLA_A100", "acceleratorCount": 1}
T4 = {"machineType": "n1-standard-8", "acceleratorType": "NVIDIA_TESLA_T4", "acceleratorCount": 1}
CPU = {"machineType": "n1-standard-8"}


def custom_job(*machines: dict[str, Any], **fields: Any) -> dict[str, Any]:
    pools = [
        {"machineSpec": machine, "containerSpec": {"imageUri": "localhost/trainer:1"}} for machine in machines
    ]
    return {
        "apiVersion": AIPLATFORM_V1,
        "kind": "CustomJob",
        "metadata": {"name": "census"},
        "spec": {"workerPoolSpecs": pools, **fields},
    }


def told(root: Path, value: Any) -> list[tuple[str, str]]:
    """Return pointer and hint of each problem and warning."""
    write(root, "jobs/job.yaml", value)
    found = validate(root, [root / "jobs"])
    return [(problem.pointer, problem.hint) for problem in (*found.problems, *found.warnings)]


@pytest.mark.parametrize(
    ("machines", "wrong", "right"),
    [
        ([L4, L4, {}], [], None),
        ([A100], [], None),
        ([T4], [0], L4),
        ([CPU, A100], [0], A100),
        ([L4, A100], [1], L4),
        ([CPU, T4], [0, 1], L4),
    ],
)
def test_flex_start_needs_its_gpus_and_one_machine_in_all_pools(
    machines: list[dict[str, Any]], wrong: list[int], right: Any, tmp_path: Path
) -> None:
    value = custom_job(*machines, scheduling={"strategy": "FLEX_START", "timeout": "604800s"})
    pools = value["spec"]["workerPoolSpecs"]
    value["spec"]["workerPoolSpecs"] = [pool if pool["machineSpec"] else {} for pool in pools]
    found = told(tmp_path, value)
    assert [pointer for pointer, _ in found] == [f"/spec/workerPoolSpecs/{at}/machineSpec" for at in wrong]
    for at, (_, hint) in zip(wrong, found, strict=True):
        written = yaml.safe_load(hint.splitlines()[0].removeprefix("write "))
        assert written == {"machineSpec": right}
        value["spec"]["workerPoolSpecs"][at] |= written
    assert told(tmp_path, value) == []


@pytest.mark.parametrize("timeout", ["604801s", "999999999999s"])
def test_flex_start_runs_for_seven_days_at_most(timeout: str, tmp_path: Path) -> None:
    value = custom_job(L4, scheduling={"strategy": "FLEX_START", "timeout": timeout})
    ((pointer, hint),) = told(tmp_path, value)
    assert pointer == "/spec/scheduling/timeout"
    value["spec"]["scheduling"] |= yaml.safe_load(hint.removeprefix("write "))
    assert told(tmp_path, value) == []
    value["spec"]["scheduling"] = {"strategy": "SPOT", "timeout": timeout}
    assert told(tmp_path, value) == []


def test_flex_start_with_a_longer_default_timeout_of_the_environment_needs_a_timeout(tmp_path: Path) -> None:
    value = custom_job(L4, scheduling={"strategy": "FLEX_START"})
    for timeout, is_wrong in (("604800s", False), ("604801s", True)):
        environment = Environment("local", "local", "p", "l", "s", "c", defaults={"timeout": timeout})
        found = [*domain_findings(value, environment.filled)]
        assert [finding.keys[-1] for finding in found] == ["strategy"] * is_wrong
    value["spec"]["scheduling"] |= yaml.safe_load(found[0].hint.removeprefix("add "))
    assert not [*domain_findings(value, environment.filled)]
    assert told(tmp_path, value) == []


@pytest.mark.parametrize("strategy", ["SPOT", "FLEX_START", "STANDARD"])
def test_strategy_beside_a_persistent_resource_is_a_warning(strategy: str) -> None:
    value = custom_job(L4, persistentResourceId="my-pool", scheduling={"strategy": strategy})
    found = [*domain_findings(value)]
    wrong = ["strategy"] * (strategy != "STANDARD")
    assert [(finding.keys[-1], finding.level) for finding in found] == [(name, WARNING) for name in wrong]
    del value["spec"]["scheduling"]
    assert not [*domain_findings(value)]


def test_reservation_beside_a_persistent_resource_is_a_warning() -> None:
    affinity = {"reservationAffinity": {"reservationAffinityType": "ANY_RESERVATION"}}
    value = custom_job(L4, {**L4, **affinity}, persistentResourceId="my-pool")
    (finding,) = domain_findings(value)
    assert finding.keys == ("spec", "workerPoolSpecs", 1, "machineSpec", "reservationAffinity")
    assert finding.level == WARNING
    del value["spec"]["persistentResourceId"]
    assert not [*domain_findings(value)]


@pytest.mark.parametrize(
    ("machine", "similar"),
    [
        ("c3-standard-8", "n2-standard-8"),
        ("c3d-standard-8-lssd", "n2-standard-8"),
        ("n2d-highcpu-224", "n2-highcpu-96"),
        ("m3-ultramem-64", "m1-ultramem-80"),
        ("h3-standard-88", "n2-standard-96"),
        ("e2-medium", "e2-standard-2"),
        ("f1-micro", "e2-standard-2"),
    ],
)
def test_machine_without_documented_training_is_a_warning(machine: str, similar: str, tmp_path: Path) -> None:
    value = custom_job({"machineType": machine})
    (finding,) = domain_findings(value)
    assert finding.message == f"Vertex AI documents no training on {machine}"
    assert (finding.hint.endswith(f"such as {similar}"), finding.level) == (True, WARNING)
    assert told(tmp_path, custom_job({"machineType": similar})) == []


@pytest.mark.parametrize("machine", ["n1-standard-4", "a3-highgpu-1g", "m1-megamem-96", "ct5lp-hightpu-4t"])
def test_documented_machine_is_no_warning(machine: str) -> None:
    assert undocumented_machine(machine) is None


@pytest.mark.parametrize("count", [1, 2, 4, 8])
def test_a_retired_accelerator_is_a_warning_with_its_successor(count: int, tmp_path: Path) -> None:
    (accelerator,) = TABLES.retired
    machine = {"machineType": "n1-standard-4", "acceleratorType": accelerator, "acceleratorCount": count}
    value = custom_job(machine)
    (finding,) = domain_findings(value)
    assert finding.level == WARNING
    machine |= yaml.safe_load(finding.hint.removeprefix("write\n"))
    assert machine["acceleratorType"] == "NVIDIA_TESLA_T4"
    assert told(tmp_path, value) == []


@pytest.mark.parametrize(
    ("name", "machine"),
    [
        ("TPU_V6E", "ct6e-standard-4t"),
        ("TPU_V5P", "ct5p-hightpu-4t"),
        ("TPU-v5e", "ct5lp-hightpu-4t"),
        ("TPU_7X", "tpu7x-standard-4t"),
    ],
)
def test_a_tpu_that_is_a_machine_type_is_no_other_tpu(name: str, machine: str, tmp_path: Path) -> None:
    value = custom_job({"machineType": "n1-standard-8", "acceleratorType": name, "acceleratorCount": 1})
    for _, hint in told(tmp_path, value):
        assert "did you mean" not in hint
        assert machine in hint
    assert told(tmp_path, custom_job({"machineType": machine})) == []
    ((_, hint),) = told(tmp_path, custom_job({"machineType": name}))
    assert machine in hint


@pytest.mark.parametrize("name", ["TPU_V2", "TPU_V3", "TPU_V4_POD", "TPU_V55", "NVIDIA_L4", ""])
def test_other_accelerators_are_no_machine_types(name: str) -> None:
    assert tpu_machine(name) == ""


@pytest.mark.parametrize(
    ("machine", "nearest"),
    [
        ("n1-standard-3", "n1-standard-4"),
        ("n1-highmem-100", "n1-highmem-96"),
        ("a2-highgpu-3g", "a2-highgpu-4g"),
        ("ct5lp-hightpu-3t", "ct5lp-hightpu-4t"),
        ("e2-standard-1", "e2-standard-2"),
    ],
)
def test_a_guess_stays_in_the_machines_family(machine: str, nearest: str) -> None:
    doubt = machine_doubt(AIPLATFORM_V1, machine)
    assert doubt
    assert doubt.hint == f"did you mean {nearest}?"


def test_a_guess_for_ai_platform_is_a_machine_that_it_had() -> None:
    doubt = machine_doubt(ML_V1, "n1-standard-5")
    assert doubt
    assert doubt.hint == "did you mean n1-standard-4?"


def training_input(**fields: Any) -> dict[str, Any]:
    value = copy.deepcopy(ML_JOB)
    value["spec"]["trainingInput"] |= fields
    return value


@pytest.mark.parametrize("count", [0, "0"])
@pytest.mark.parametrize("role", ["worker", "parameterServer", "evaluator"])
def test_a_count_of_0_needs_no_machine_and_a_higher_one_does(role: str, count: Any, tmp_path: Path) -> None:
    value = training_input(**{f"{role}Count": count})
    value["spec"]["trainingInput"].pop(f"{role}Type", None)
    assert told(tmp_path, value) == []
    value["spec"]["trainingInput"][f"{role}Count"] = 1
    ((_, hint),) = told(tmp_path, value)
    assert f'"{role}Count" needs it' in hint


@pytest.mark.parametrize("role", ["worker", "parameterServer", "evaluator"])
def test_configuration_of_machines_without_a_count_is_a_warning(role: str) -> None:
    value = training_input(**{f"{role}Config": {"imageUri": "localhost/trainer:1"}})
    for name in ("Type", "Count"):
        value["spec"]["trainingInput"].pop(f"{role}{name}", None)
    (finding,) = domain_findings(value)
    assert (finding.keys[-1], finding.level) == (f"{role}Config", WARNING)
    value["spec"]["trainingInput"][f"{role}Count"] = 1
    assert not [*domain_findings(value)]


@pytest.mark.parametrize("role", ["worker", "parameterServer", "evaluator"])
def test_machines_without_a_count_are_a_warning(role: str) -> None:
    value = training_input(**{f"{role}Type": "n1-standard-8"})
    value["spec"]["trainingInput"].pop(f"{role}Count", None)
    (finding,) = domain_findings(value)
    assert (finding.keys[-1], finding.level) == (f"{role}Type", WARNING)
    value["spec"]["trainingInput"][f"{role}Count"] = 1
    assert not [*domain_findings(value)]


def test_a_machine_of_a_tier_that_brings_its_own_is_a_warning() -> None:
    value = training_input(scaleTier="BASIC", masterType="n1-standard-8")
    for name in ("workerType", "workerCount"):
        value["spec"]["trainingInput"].pop(name, None)
    (finding,) = domain_findings(value)
    assert (finding.keys[-1], finding.level) == ("masterType", WARNING)


@pytest.mark.parametrize(("trials", "at_once"), [(2, 5), (1, 2)])
def test_more_trials_at_once_than_there_are_is_a_warning(trials: int, at_once: int) -> None:
    value = copy.deepcopy(TUNING_JOB)
    value["spec"] |= {"maxTrialCount": trials, "parallelTrialCount": at_once}
    (finding,) = domain_findings(value)
    assert finding.hint == f"write parallelTrialCount: {trials}"
    value["spec"]["parallelTrialCount"] = trials
    assert not [*domain_findings(value)]


def test_several_trials_at_once_of_the_one_by_default_are_a_warning() -> None:
    tuning = {"maxParallelTrials": 3, "params": []}
    (finding,) = domain_findings(training_input(hyperparameters=tuning))
    assert finding.message == '"maxParallelTrials" is 3, and without "maxTrials" there is only 1 trial'
    assert finding.hint == "add maxTrials: 3, or more"
    assert not [*domain_findings(training_input(hyperparameters={**tuning, "maxTrials": 3}))]


@pytest.mark.parametrize("name", ["doubleValueSpec", "categoricalValueSpec"])
def test_default_value_of_a_parameter_is_a_warning(name: str) -> None:
    value = copy.deepcopy(TUNING_JOB)
    spec = {"minValue": 0, "maxValue": 1} if name == "doubleValueSpec" else {"values": ["1", "2"]}
    value["spec"]["studySpec"]["parameters"] = [{"parameterId": "rate", name: {**spec, "defaultValue": 1}}]
    (finding,) = domain_findings(value)
    assert (finding.keys[-2:], finding.level) == ((name, "defaultValue"), WARNING)


@pytest.mark.parametrize(
    ("kind", "field", "is_wrong"),
    [
        ("DOUBLE", "discreteValues", True),
        ("INTEGER", "categoricalValues", True),
        ("CATEGORICAL", "discreteValues", True),
        ("DISCRETE", "discreteValues", False),
        ("CATEGORICAL", "categoricalValues", False),
    ],
)
def test_values_of_another_type_of_parameter_are_a_warning(kind: str, field: str, is_wrong: bool) -> None:
    values = ["a", "b"] if field == "categoricalValues" else [1, 2]
    parameter = {"parameterName": "a", "type": kind, field: values}
    found = [*domain_findings(training_input(hyperparameters={"params": [parameter]}))]
    assert [(finding.keys[-1], finding.level) for finding in found] == [(field, WARNING)] * is_wrong


@pytest.mark.parametrize(
    ("machine", "topology", "is_wrong"),
    [
        ("ct5lp-hightpu-4t", "4x4", True),
        ("ct4p-hightpu-4t", "2x2x2", True),
        ("ct5lp-hightpu-4t", "2x2", False),
        ("ct9x-unknown", "4x4", False),
        ("ct5lp-hightpu-4t", "many", False),
    ],
)
def test_spot_has_no_slices_of_tpu_pods(machine: str, topology: str, is_wrong: bool) -> None:
    value = custom_job({"machineType": machine, "tpuTopology": topology}, scheduling={"strategy": "SPOT"})
    found = [finding.keys[-1] for finding in domain_findings(value) if finding.level != WARNING]
    assert found == ["tpuTopology"] * is_wrong
    del value["spec"]["scheduling"]
    assert not [finding for finding in domain_findings(value) if finding.level != WARNING]


def test_restart_that_is_disabled_is_a_warning() -> None:
    scheduling = {"restartJobOnWorkerRestart": True, "disableRetries": True}
    (finding,) = domain_findings(custom_job(CPU, scheduling=scheduling))
    assert (finding.keys[-1], finding.level) == ("restartJobOnWorkerRestart", WARNING)
    for name in scheduling:
        assert not [*domain_findings(custom_job(CPU, scheduling={**scheduling, name: False}))]


def test_ranges_of_no_network_are_a_warning() -> None:
    value = custom_job(CPU, reservedIpRanges=["my-range"])
    (finding,) = domain_findings(value)
    assert (finding.keys[-1], finding.level) == ("reservedIpRanges", WARNING)
    assert not [*domain_findings(value, frozenset({"network"}))]
    value["spec"]["network"] = "projects/1/global/networks/my-network"
    assert not [*domain_findings(value)]


@pytest.mark.parametrize(("name", "right"), [("--rate", "rate"), ("-r", "r"), ("a-b", ""), ("--", "")])
def test_a_parameter_with_the_dashes_of_a_flag_is_a_warning(name: str, right: str) -> None:
    value = copy.deepcopy(TUNING_JOB)
    value["spec"]["studySpec"]["parameters"][0]["parameterId"] = name
    assert [finding.hint for finding in domain_findings(value)] == [f"write {right}"] * bool(right)


@pytest.mark.parametrize(
    ("uri", "right"),
    [
        ("gs://my-bucket/a/../b", "gs://my-bucket/b"),
        ("gs://my-bucket/..", "gs://my-bucket/"),
        ("gs://my-bucket/a/b/..", "gs://my-bucket/a"),
        ("gs://my-bucket/a..b/c..", ""),
        ("gs://my-bucket/...", ""),
    ],
)
def test_two_dots_in_a_path_are_a_warning(uri: str, right: str, tmp_path: Path) -> None:
    value = custom_job(CPU, baseOutputDirectory={"outputUriPrefix": uri})
    assert [hint for _, hint in told(tmp_path, value)] == [f"write {right}"] * bool(right)
    if right:
        assert told(tmp_path, custom_job(CPU, baseOutputDirectory={"outputUriPrefix": right})) == []


@pytest.mark.parametrize("field", ["args", "env"])
@pytest.mark.parametrize(
    "text", ["gs://my-bucket/a/../b", "--data=gs://my-bucket/a/../b", "-d=gs://my-bucket/.."]
)
def test_two_dots_in_arguments_and_variables_are_a_warning(field: str, text: str, tmp_path: Path) -> None:
    value = custom_job(CPU)
    (pool,) = value["spec"]["workerPoolSpecs"]
    pool["containerSpec"][field] = [text if field == "args" else {"name": "DATA", "value": text}]
    ((pointer, hint),) = told(tmp_path, value)
    pointer_end = "args/0" if field == "args" else "env/0/value"
    assert pointer == f"/spec/workerPoolSpecs/0/containerSpec/{pointer_end}"
    right = hint.removeprefix("write ")
    pool["containerSpec"][field] = [right if field == "args" else {"name": "DATA", "value": right}]
    assert told(tmp_path, value) == []


@pytest.mark.parametrize("text", ["a/../b", "--range=1..2", "see gs://my-bucket/a/../b"])
def test_two_dots_elsewhere_in_arguments_are_no_warning(text: str) -> None:
    assert not [*domain_findings(training_input(args=[text]))]


def test_two_dots_in_arguments_of_ai_platform_are_a_warning() -> None:
    (finding,) = domain_findings(training_input(args=["--data=gs://my-bucket/a/../b"]))
    assert (finding.keys[-2:], finding.hint) == (("args", 0), "write --data=gs://my-bucket/b")


def test_bounds_of_discrete_values_are_a_warning() -> None:
    value = training_input()
    value["spec"]["trainingInput"]["hyperparameters"]["params"] = [
        {"parameterName": "a", "type": "DISCRETE", "discreteValues": [1, 2], "minValue": 1, "maxValue": 2}
    ]
    found = [*domain_findings(value)]
    assert [(finding.keys[-1], finding.level) for finding in found] == [
        ("minValue", WARNING),
        ("maxValue", WARNING),
    ]
    assert all(re.search("has no effect", finding.message) for finding in found)
