"""Values in the tables, values that a service never had, and values that no table has."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.diagnostics import ERROR, WARNING
from reconciler.base.errors import InvalidError
from reconciler.manifests import known_values
from reconciler.manifests.checked_files import CheckedFiles
from reconciler.manifests.settings import load_config
from reconciler.manifests.validate import Validation, validate
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1
from tests.support.manifests import GOOD, write

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("api_version", "machine", "level", "hint"),
    [
        (AIPLATFORM_V1, "n1-standart-4", WARNING, "did you mean n1-standard-4?"),
        (AIPLATFORM_V1, "n1_standard_4", WARNING, "did you mean n1-standard-4?"),
        (AIPLATFORM_V1, "n1-standard-5", WARNING, "did you mean n1-standard-"),
        (AIPLATFORM_V1, "quite-another-thing", WARNING, "check its name"),
        (AIPLATFORM_V1, "standard", ERROR, "write n1-standard-4"),
        (AIPLATFORM_V1, "complex_model_m_gpu", ERROR, "write n1-standard-16 with its accelerator"),
        (AIPLATFORM_V1, "cloud_tpu", ERROR, "write cloud-tpu"),
        (ML_V1, "c3-standard-4", ERROR, "N1 series"),
        (ML_V1, "ct5lp-hightpu-4t", ERROR, "N1 series"),
        (ML_V1, "n1-standart-4", WARNING, "did you mean n1-standard-4?"),
    ],
)
def test_machine_type_that_no_table_has_is_a_warning_and_one_of_the_other_service_an_error(
    api_version: str, machine: str, level: str, hint: str
) -> None:
    doubt = known_values.machine_doubt(api_version, machine)
    assert doubt is not None
    assert bool(doubt.kind) is (level == WARNING)
    assert hint in doubt.hint
    assert machine in doubt.message


@pytest.mark.parametrize("machine", ["n1-standard-4", "n1-highcpu-16", "m1-ultramem-40", "e2-highmem-2"])
def test_machine_type_of_both_services_is_known(machine: str) -> None:
    assert known_values.machine_doubt(AIPLATFORM_V1, machine) is None
    assert known_values.machine_doubt(ML_V1, machine) is None


@pytest.mark.parametrize("machine", ["a3-highgpu-8g", "g2-standard-12", "c3-standard-4-lssd", "cloud-tpu"])
def test_newer_machine_type_is_known_on_vertex_ai(machine: str) -> None:
    assert known_values.machine_doubt(AIPLATFORM_V1, machine) is None


@pytest.mark.parametrize(
    ("api_version", "region", "level"),
    [
        (AIPLATFORM_V1, "us-centrall1", WARNING),
        (AIPLATFORM_V1, "global", ERROR),
        (ML_V1, "us-centrall1", WARNING),
        (ML_V1, "me-west1", ERROR),
    ],
)
def test_region_that_no_table_has_is_a_warning_and_one_without_the_service_an_error(
    api_version: str, region: str, level: str
) -> None:
    doubt = known_values.region_doubt(api_version, region)
    assert doubt is not None
    assert bool(doubt.kind) is (level == WARNING)
    assert "us-central1" in doubt.hint
    assert known_values.region_doubt(api_version, "us-central1") is None


@pytest.mark.parametrize("version", ["1.0", "1.14", "1.15", "2.1", "2.11"])
def test_runtime_version_that_was_there_is_known(version: str) -> None:
    assert known_values.runtime_doubt(version) is None


@pytest.mark.parametrize("version", ["0.9", "1.16", "2.0", "2.12", "3.0"])
def test_runtime_version_that_never_was_is_an_error_with_the_versions_there_are(version: str) -> None:
    doubt = known_values.runtime_doubt(version)
    assert doubt is not None
    assert not doubt.kind
    assert doubt.hint == "there are 1.0 to 1.15 and 2.1 to 2.11"


def test_python_of_a_runtime_version_is_one_that_it_had() -> None:
    assert known_values.python_doubt("1.15", "2.7") is known_values.python_doubt("1.15", "3.7") is None
    doubt = known_values.python_doubt("1.14", "3.7")
    assert doubt is not None
    assert (doubt.kind, doubt.hint) == ("", 'write "2.7" or "3.5"')


def test_every_table_names_its_source_and_date() -> None:
    tables = json.loads((ROOT / "schemas" / "known_values.json").read_text(encoding="utf-8"))
    sources = tables.pop("sources")
    named = {name for key in sources for name in key.partition(" of ")[0].split(", ")}
    assert named >= tables.keys()
    for source in sources.values():
        assert source["url"].startswith("https://")
        assert source["asOf"] >= "2026-11-23"


# --- In manifests ---------------------------------------------------------------------------------------


def doubtful(root: Path) -> dict[str, Any]:
    value = copy.deepcopy(GOOD["CustomJob"])
    (pool, *_) = value["spec"]["workerPoolSpecs"]
    pool["machineSpec"] = {"machineType": "n1-standart-4"}
    write(root, "trainers/census/task.py", "")
    write(root, "jobs/a.yaml", value)
    return value


def check(root: Path, checked: CheckedFiles | None = None) -> Validation:
    return validate(root, [root / "jobs"], checked=checked)


def test_manifest_with_a_warning_is_valid(tmp_path: Path) -> None:
    doubtful(tmp_path)
    found = check(tmp_path)
    assert found.problems == ()
    assert [manifest.name for manifest in found.manifests] == [GOOD["CustomJob"]["metadata"]["name"]]
    (warning,) = found.warnings
    assert (warning.path, warning.level) == ("jobs/a.yaml", WARNING)
    assert warning.pointer == "/spec/workerPoolSpecs/0/machineSpec/machineType"
    assert warning.message == "n1-standart-4 is not a known machine type"


def test_file_with_a_warning_needs_no_slow_check_and_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = doubtful(tmp_path)
    checked = CheckedFiles()
    monkeypatch.setattr("reconciler.manifests.diagnose.diagnose", None)
    first = check(tmp_path, checked)
    assert len(first.warnings) == len(checked) == 1
    assert check(tmp_path, checked) == first
    # The same content elsewhere has its own path.
    (tmp_path / "jobs" / "a.yaml").unlink()
    write(tmp_path, "jobs/b.yaml", value)
    assert [warning.path for warning in check(tmp_path, checked).warnings] == ["jobs/b.yaml"]


def test_manifest_with_a_warning_and_an_error_is_invalid_and_not_kept(tmp_path: Path) -> None:
    value = doubtful(tmp_path)
    value["spec"]["workerPoolSpecs"][0]["replicaCount"] = 2
    write(tmp_path, "jobs/a.yaml", value)
    checked = CheckedFiles()
    found = check(tmp_path, checked)
    assert [problem.level for problem in found.problems] == [ERROR]
    assert [warning.level for warning in found.warnings] == [WARNING]
    assert found.manifests == ()
    assert len(checked) == 0


# --- In reconciler.yaml ---------------------------------------------------------------------------------

SETTINGS = """\
source: abcdefgh
environments:
  prod:
    engine: google
    project: my-project
    location: {location}
    stagingBucket: my-bucket-1
"""


def test_settings_with_an_unknown_location_are_valid_and_have_a_warning(tmp_path: Path) -> None:
    (tmp_path / "reconciler.yaml").write_text(SETTINGS.format(location="us-centrall1"))
    config = load_config(tmp_path)
    assert config.environments["prod"].location == "us-centrall1"
    (warning,) = config.warnings
    assert (warning.line, warning.level) == (6, WARNING)
    assert warning.hint == "did you mean us-central1?"


def test_settings_with_a_location_without_training_are_invalid(tmp_path: Path) -> None:
    (tmp_path / "reconciler.yaml").write_text(SETTINGS.format(location="global"))
    with pytest.raises(InvalidError) as caught:
        load_config(tmp_path)
    (problem,) = caught.value.problems
    assert problem.message == "Vertex AI runs no training jobs in global"
