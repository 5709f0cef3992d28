"""Validation as users meet it: from folders of files to problems with place and remedy, or to manifests."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import msgpack
from msgspec.structs import replace

from reconciler.base.diagnostics import Problem, capped
from reconciler.base.errors import UsageError
from reconciler.manifests import files, rules, schemas
from reconciler.manifests import validate as validation
from reconciler.manifests.files import read_one
from reconciler.manifests.pipelines import TASK_DEFINITIONS
from reconciler.manifests.validate import Validation, check_document, validate
from reconciler.manifests.yaml_load import load_documents
from reconciler.model.expectation import Expectation
from reconciler.model.manifest import Manifest, Reconcile
from reconciler.operations.jobs_folder import manifest_paths
from reconciler.output.problems import validation_github, validation_text
from tests.expected_problems import CASES
from tests.expected_problems import problems_of as problems_of_case
from tests.support.manifests import CUSTOM_JOB, GOOD, ML_JOB, write
from tests.support.yaml_styles import written


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Return a repository with a trainer and an empty folder for manifests."""
    root = tmp_path / "repository"
    (root / "jobs").mkdir(parents=True)
    (root / "trainers" / "census").mkdir(parents=True)
    (root / "trainers" / "census" / "task.py").write_text("print('training')\n")
    return root


def check(root: Path, *paths: str) -> Validation:
    return validate(root, [root / path for path in paths or ("jobs",)])


def problems_of(root: Path, value: Any) -> list[Problem]:
    write(root, "jobs/job.yaml", value)
    return list(check(root).problems)


def named(name: str, kind: str = "HyperparameterTuningJob") -> dict[str, Any]:
    value = copy.deepcopy(GOOD[kind])
    value["metadata"]["name"] = name
    return value


# --- Valid manifests ------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", GOOD)
def test_a_good_manifest_has_no_problem(kind: str, root: Path) -> None:
    assert problems_of(root, GOOD[kind]) == []


def test_a_manifest_holds_what_the_document_says(root: Path) -> None:
    text = "# first\n---\n# census\n" + json.dumps(CUSTOM_JOB)
    write(root, "jobs/job.yml", text)
    result = check(root)
    spec = copy.deepcopy(CUSTOM_JOB["spec"])
    spec["workerPoolSpecs"][2]["replicaCount"] = "3"  # in the only form of its type
    images = result.manifests[0].images
    assert len(images) == 2
    assert result == Validation(
        manifests=(
            Manifest(
                api_version="aiplatform.googleapis.com/v1",
                kind="CustomJob",
                name="census-income",
                packed=msgpack.encode(spec, order="sorted"),
                labels={"team": "risk"},
                package=root.resolve() / "trainers",
                reconcile=Reconcile(
                    suspend=True, attempts=2, rerun="again", on_change="cancel", on_delete="cancel"
                ),
                path="jobs/job.yml",
                line=4,
                written=CUSTOM_JOB["package"]["path"],
                digest=hashlib.blake2b(text.encode(), digest_size=32).digest(),
                python_modules=("census.task",),
                images=images,
                expect=(Expectation("rmse", max=3.0), Expectation("accuracy", min=0.95, max=1.0)),
            ),
        ),
        problems=(),
        files=1,
    )


def test_what_a_manifest_leaves_out_has_its_default(root: Path) -> None:
    write(root, "jobs/job.yaml", ML_JOB)
    (manifest,) = check(root).manifests
    assert (manifest.labels, manifest.package, manifest.reconcile) == ({}, None, Reconcile())


@pytest.mark.slow
@settings(max_examples=20)
@given(st.data(), st.sampled_from(sorted(GOOD)))
def test_style_makes_no_difference(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, kind: str
) -> None:
    root = tmp_path_factory.mktemp("style")
    write(root, "trainers/census/task.py", "")
    write(root, "jobs/job.yaml", data.draw(written(GOOD[kind])).encode())
    write(root, "plain/job.yaml", GOOD[kind])
    styled, plain = check(root), check(root, "plain")
    assert styled.problems == ()
    (manifest,) = styled.manifests
    assert _without_places(manifest) == _without_places(plain.manifests[0])


def _without_places(manifest: Manifest) -> Manifest:
    expect = tuple(sorted(manifest.expect, key=lambda expectation: expectation.metric))
    return replace(manifest, path="", line=0, digest=b"", expect=expect)


# --- Invalid manifests: the corpus ----------------------------------------------------------------------


@pytest.mark.fault(37, 38)
@pytest.mark.parametrize("case", sorted(path.name for path in CASES.iterdir() if path.is_dir()))
def test_bad_manifests(case: str) -> None:
    expected = json.loads((CASES / case / "expected.json").read_text(encoding="utf-8"))
    assert problems_of_case(CASES / case) == expected
    assert expected


def test_every_problem_of_the_corpus_has_a_remedy_and_no_jargon() -> None:
    """Check that users never read the plain message of a parser or a validator."""
    jargon = (
        "schema",
        "keyword",
        "is not of type",
        "is a required property",
        "scanner",
        "token",
        "NoneType",
        "Traceback",
    )
    for path in sorted(CASES.glob("*/expected.json")):
        for problem in json.loads(path.read_text(encoding="utf-8")):
            is_count = "more problems in this file" in problem["message"]
            assert problem["hint"] or is_count, (path, problem)
            told = (problem["message"] + problem["hint"]).replace(TASK_DEFINITIONS, "")
            assert not any(word in told for word in jargon), (path, problem)
            assert problem["message"].isprintable()
            assert problem["line"] >= 1
            assert problem["column"] >= 1


# --- Invalid manifests: every place of a good manifest --------------------------------------------------


def places(value: Any, keys: tuple[str | int, ...] = ()) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield every value within `value`, with the keys that lead to it."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in parts:
        yield (*keys, key), part
        yield from places(part, (*keys, key))


def at(value: Any, keys: tuple[str | int, ...]) -> Any:
    for key in keys:
        value = value[key]
    return value


def snake(key: str) -> str:
    return "".join(f"_{char.lower()}" if char.isupper() else char for char in key)


def pointer(keys: tuple[str | int, ...]) -> str:
    return "".join(f"/{key}" for key in keys)


# Below these, the keys are the user's own names.
FREE = (("labels",), ("expect",))
KEYS = [
    pytest.param(kind, keys, id=f"{kind}{pointer(keys)}")
    for kind, value in GOOD.items()
    for keys, _ in places(value)
    if isinstance(keys[-1], str) and keys[-2:-1] not in FREE
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        case
        for case in KEYS
        if snake(case.values[1][-1]) != case.values[1][-1]
        if "trainingTaskInputs" not in case.values[1][:-1]  # where it is the same key
    ],
)
def test_a_key_in_snake_case_is_one_problem_that_names_the_right_one(
    kind: str, keys: tuple[str, ...], root: Path
) -> None:
    value = copy.deepcopy(GOOD[kind])
    around = at(value, keys[:-1])
    around[snake(keys[-1])] = around.pop(keys[-1])
    (problem,) = problems_of(root, value)
    assert problem.pointer == pointer((*keys[:-1], snake(keys[-1])))
    assert problem.hint == f'did you mean "{keys[-1]}"?'


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "keys"), KEYS)
def test_an_unknown_key_is_one_problem_at_its_place(kind: str, keys: tuple[str, ...], root: Path) -> None:
    value = copy.deepcopy(GOOD[kind])
    at(value, keys[:-1])["qqqqqq"] = 1
    (problem,) = problems_of(root, value)
    assert problem.pointer == pointer((*keys[:-1], "qqqqqq"))
    assert problem.message == 'unknown key "qqqqqq"'


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "keys"), KEYS)
def test_a_null_is_one_problem_at_its_place_or_the_same_as_no_key(
    kind: str, keys: tuple[str, ...], root: Path
) -> None:
    value = copy.deepcopy(GOOD[kind])
    at(value, keys[:-1])[keys[-1]] = None
    found = problems_of(root, value)
    told = [problem for problem in found if problem.pointer == pointer(keys)]
    del at(value, keys[:-1])[keys[-1]]
    if told or keys[0] != "spec":
        assert len(told) == 1
        return
    absent = problems_of(root, value)
    assert [(each.pointer, each.message) for each in found] == [
        (each.pointer, each.message) for each in absent
    ]


LISTS = [case for case in KEYS if isinstance(at(GOOD[case.values[0]], case.values[1]), list)]


@pytest.mark.parametrize(("kind", "keys"), LISTS)
def test_a_single_value_for_a_list_is_one_problem_and_a_single_mapping_counts_as_a_list(
    kind: str, keys: tuple[str, ...], root: Path
) -> None:
    value = copy.deepcopy(GOOD[kind])
    single = at(value, keys[:-1])[keys[-1]] = at(value, keys)[0]
    told = problems_of(root, value)
    if keys[0] == "spec" and isinstance(single, dict):
        assert told == []
        return
    assert [problem.pointer for problem in told] == [pointer(keys)]
    assert told[0].hint.startswith("write")


TEXTS = [case for case in KEYS if isinstance(at(GOOD[case.values[0]], case.values[1]), str)]


@pytest.mark.parametrize(("kind", "keys"), [case for case in TEXTS if len(case.values[1]) > 1])
def test_a_number_for_a_text_is_one_problem_that_shows_the_quotes(
    kind: str, keys: tuple[str, ...], root: Path
) -> None:
    value = copy.deepcopy(GOOD[kind])
    at(value, keys[:-1])[keys[-1]] = "@"
    text = json.dumps(value).replace('"@"', "3.10")
    told = problems_of(root, text)
    assert [problem.pointer for problem in told] == [pointer(keys)]
    assert "3.10" in told[0].message + told[0].hint


@pytest.mark.parametrize(
    ("kind", "keys", "written", "hint"),
    [
        ("Job", ("spec", "trainingInput", "workerCount"), '"007"', "write it without zeros in front"),
        ("Job", ("spec", "trainingInput", "workerCount"), '"-1"', "the minimum is 0"),
        ("Job", ("spec", "trainingInput", "workerCount"), "-1", "the minimum is 0"),
        ("Job", ("spec", "trainingInput", "workerCount"), "2.5", ""),
        ("Job", ("spec", "trainingInput", "workerCount"), "true", ""),
        ("Job", ("spec", "trainingInput", "scheduling", "priority"), "1001", "the maximum is 1000"),
        ("Job", ("spec", "trainingInput", "scheduling", "priority"), '"3"', "write 3 without quotes"),
        ("Job", ("spec", "trainingInput", "scheduling", "priority"), '"1.5"', ""),
        (
            "Job",
            ("spec", "trainingInput", "hyperparameters", "params", 0, "minValue"),
            '"1e-4"',
            "write 1e-4 without quotes",
        ),
        ("Job", ("spec", "trainingInput", "hyperparameters", "params", 0, "minValue"), '"low"', ""),
        ("CustomJob", ("reconcile", "suspend"), '"off"', "write false without quotes"),
        ("CustomJob", ("reconcile", "suspend"), '"maybe"', "write true or false"),
        ("CustomJob", ("reconcile", "suspend"), "1", "write true or false"),
        ("CustomJob", ("spec", "scheduling", "timeout"), "90", 'write "90s" with quotes'),
        ("CustomJob", ("spec", "scheduling", "timeout"), '"90"', 'write seconds and "s": "90s"'),
        ("CustomJob", ("spec", "scheduling", "timeout"), '"1.5 h"', 'write seconds and "s", such as "3600s"'),
        ("CustomJob", ("spec", "scheduling", "timeout"), '"2 Days"', 'write seconds and "s": "172800s"'),
    ],
)
def test_what_to_write_in_place_of_a_number_a_duration_or_a_boolean(
    kind: str, keys: tuple[str | int, ...], written: str, hint: str, root: Path
) -> None:
    value = copy.deepcopy(GOOD[kind])
    at(value, keys[:-1])[keys[-1]] = "@"
    (problem,) = problems_of(root, json.dumps(value).replace('"@"', written))
    assert (problem.pointer, problem.hint) == (pointer(keys), hint)


def test_problems_at_many_places_are_all_told(root: Path) -> None:
    value = copy.deepcopy(CUSTOM_JOB)
    del value["metadata"]["name"]
    value["spec"]["workerPoolSpecs"][0]["machineSpec"]["machineType"] = "n2-standard-8"
    value["spec"]["workerPoolSpecs"][2]["container_spec"] = {"image_uri": 1}
    del value["spec"]["workerPoolSpecs"][2]["containerSpec"]
    value["spec"]["scheduling"]["timeout"] = 3600
    text = json.dumps(value, indent=1)
    told = problems_of(root, text)
    assert [problem.pointer for problem in told] == [
        "/metadata",
        "/spec/workerPoolSpecs/0/machineSpec/acceleratorType",
        "/spec/workerPoolSpecs/2/container_spec",
        "/spec/workerPoolSpecs/2/container_spec/image_uri",
        "/spec/workerPoolSpecs/2/container_spec/image_uri",
        "/spec/scheduling/timeout",
    ]


def test_what_could_not_be_read_is_told_once(root: Path) -> None:
    text = json.dumps(CUSTOM_JOB).replace('"acceleratorCount": 2', '"acceleratorCount": 0o2')
    (problem,) = problems_of(root, text)
    assert problem.pointer.endswith("/acceleratorCount")


# --- Machines -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("machine", "accelerator", "count"),
    [
        ("n1-standard-4", "", 0),
        ("n1-standard-8", "NVIDIA_TESLA_T4", 1),
        ("n1-highmem-16", "NVIDIA_TESLA_V100", 2),
        ("n1-highcpu-96", "NVIDIA_TESLA_P4", 4),
        ("n1-custom-8-16384", "NVIDIA_TESLA_K80", 1),
        ("n1-ultramem-40", "NVIDIA_TESLA_P100", 4),
        ("a2-megagpu-16g", "NVIDIA_TESLA_A100", 16),
        ("a2-ultragpu-4g", "NVIDIA_A100_80GB", 4),
        ("a3-highgpu-2g", "NVIDIA_H100_80GB", 2),
        ("a3-megagpu-8g", "NVIDIA_H100_MEGA_80GB", 8),
        ("a3-ultragpu-8g", "NVIDIA_H200_141GB", 8),
        ("a4-highgpu-8g", "NVIDIA_B200", 8),
        ("a4x-highgpu-4g", "NVIDIA_GB200", 4),
        ("g2-standard-96", "NVIDIA_L4", 8),
        ("g4-standard-192", "NVIDIA_RTX_PRO_6000", 4),
        ("n2-standard-32", "", 0),
        ("cloud-tpu", "TPU_V3", 8),
        ("ct5lp-hightpu-4t", "", 0),
        ("standard_gpu", "", 0),
        ("a9-nothing-yet-1g", "NVIDIA_L4", 3),
        ("g2-standard-256", "NVIDIA_L4", 16),
    ],
)
def test_what_goes_together(machine: str, accelerator: str, count: int) -> None:
    assert rules.machine_name_mismatch(machine) is None
    assert rules.accelerator_mismatch(machine, accelerator, count) is None


@pytest.mark.parametrize(
    ("machine", "accelerator", "count", "part"),
    [
        ("n1-standard-16", "NVIDIA_TESLA_V100", 1, "count"),
        ("n1-custom-32-65536", "NVIDIA_TESLA_P100", 1, "count"),
        ("n1-standard-4", "NVIDIA_TESLA_P4", 3, "count"),
        ("n1-standard-4", "NVIDIA_TESLA_A100", 1, "type"),
        ("n1-standard-4", "TPU_V2", 8, "machine"),
        ("n2-standard-4", "NVIDIA_TESLA_T4", 1, "type"),
        ("e2-standard-4", "TPU_V2", 8, "machine"),
        ("c3-highcpu-4", "NVIDIA_L4", 1, "type"),
        ("m1-ultramem-40", "NVIDIA_L4", 1, "type"),
        ("a2-highgpu-2g", "NVIDIA_TESLA_A100", 1, "count"),
        ("a2-highgpu-2g", "NVIDIA_A100_80GB", 2, "type"),
        ("g2-standard-24", "", 0, "machine"),
        ("complex_model_m_gpu", "NVIDIA_TESLA_K80", 4, "type"),
        ("cloud_tpu", "NVIDIA_TESLA_K80", 4, "type"),
    ],
)
def test_what_does_not(machine: str, accelerator: str, count: int, part: str) -> None:
    found = rules.accelerator_mismatch(machine, accelerator, count)
    assert found is not None
    assert found.part == part
    assert found.hint or found.right


@pytest.mark.parametrize(
    ("accelerator", "most_cpus"),
    [
        ("NVIDIA_TESLA_K80", {1: 8, 2: 16, 4: 32, 8: 64}),
        ("NVIDIA_TESLA_P4", {1: 24, 2: 48, 4: 96}),
        ("NVIDIA_TESLA_P100", {1: 16, 2: 32, 4: 96}),
        ("NVIDIA_TESLA_T4", {1: 48, 2: 48, 4: 96}),
        ("NVIDIA_TESLA_V100", {1: 12, 2: 24, 4: 48, 8: 96}),
    ],
)
def test_how_many_cpus_go_with_how_many_accelerators(accelerator: str, most_cpus: dict[int, int]) -> None:
    for count in range(1, 17):
        for cpus in (2, most_cpus.get(count, 2), most_cpus.get(count, 2) + 2):
            found = rules.accelerator_mismatch(f"n1-custom-{cpus}-8192", accelerator, count)
            assert (found is None) == (cpus <= most_cpus.get(count, 0))


COME_WITH = {
    "NVIDIA_TESLA_A100": {"a2-highgpu-1g": 1, "a2-highgpu-2g": 2, "a2-highgpu-4g": 4, "a2-highgpu-8g": 8}
    | {"a2-megagpu-16g": 16},
    "NVIDIA_A100_80GB": {f"a2-ultragpu-{count}g": count for count in (1, 2, 4, 8)},
    "NVIDIA_H100_80GB": {f"a3-highgpu-{count}g": count for count in (1, 2, 4, 8)} | {"a3-edgegpu-8g": 8},
    "NVIDIA_H100_MEGA_80GB": {"a3-megagpu-8g": 8},
    "NVIDIA_H200_141GB": {"a3-ultragpu-8g": 8},
    "NVIDIA_B200": {"a4-highgpu-8g": 8},
    "NVIDIA_GB200": {"a4x-highgpu-4g": 4},
    "NVIDIA_L4": {f"g2-standard-{cpus}": 1 for cpus in (4, 8, 12, 16, 32)}
    | {"g2-standard-24": 2, "g2-standard-48": 4, "g2-standard-96": 8},
    "NVIDIA_RTX_PRO_6000": {f"g4-standard-{48 * count}": count for count in (1, 2, 4, 8)},
}


@pytest.mark.parametrize("accelerator", COME_WITH)
def test_machines_that_come_with_accelerators(accelerator: str) -> None:
    for machine, count in COME_WITH[accelerator].items():
        for number in range(1, 18):
            assert (rules.accelerator_mismatch(machine, accelerator, number) is None) == (number == count)
        assert rules.accelerator_mismatch(machine, "", 0) is not None


@pytest.mark.parametrize(
    "machine", ["", " ", "n1", "N1-standard-4", "n1 standard 4", "n1-standard-4\n", "n1-", "-4", "é-1"]
)
def test_what_no_machine_is_called(machine: str) -> None:
    assert rules.machine_name_mismatch(machine) is not None


FIELDS = sorted(
    {key for value in GOOD.values() for keys, _ in places(value) for key in keys if isinstance(key, str)}
)


@pytest.mark.slow
@settings(max_examples=100)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda parts: (
            st.lists(parts, max_size=3)
            | st.dictionaries(
                st.sampled_from(FIELDS),
                parts,
                max_size=6,
            )
        ),
        max_leaves=20,
    )
)
def test_rules_take_any_shape(value: Any) -> None:
    list(rules.domain_findings(value))
    list(rules.domain_findings({"spec": value}))
    list(rules.domain_findings({"expect": value, "spec": value}))
    list(rules.domain_findings({"expect": {"accuracy": value}, "spec": value}))
    if isinstance(value, dict):
        list(rules.python_modules(value))


# --- Names over all files -------------------------------------------------------------------------------


def test_a_name_is_taken_once_over_all_files(root: Path) -> None:
    write(root, "jobs/b.yaml", named("a-b"))
    write(root, "jobs/a/z.yaml", "\n\n" + json.dumps(named("a_b")))
    write(root, "jobs/c.yaml", json.dumps(named("a-b")) + "\n---\n" + json.dumps(named("other")))
    result = check(root)
    assert [(problem.path, problem.line, problem.pointer) for problem in result.problems] == [
        ("jobs/b.yaml", 1, "/metadata/name"),
        ("jobs/c.yaml", 1, "/metadata/name"),
    ]
    assert all("jobs/a/z.yaml, line 3" in problem.message for problem in result.problems)
    assert [manifest.name for manifest in result.manifests] == ["a_b", "other"]


def test_names_that_differ_in_case_are_two_names(root: Path) -> None:
    write(root, "jobs/a.yaml", named("census"))
    write(root, "jobs/b.yaml", named("Census"))
    assert check(root).problems == ()


# --- Folders and files ----------------------------------------------------------------------------------


def test_which_files_are_read(root: Path) -> None:
    for path in ("a.yaml", "b.yml", "c/d/e.yaml", ".f.yaml"):
        write(root, f"jobs/{path}", named(Path(path).stem.strip(".")))
    for path in (".hidden/a.yaml", "c/.git/b.yaml", "d.YAML", "e.json", "f.yaml.bak", "yaml"):
        write(root, f"jobs/{path}", "[")
    result = check(root)
    assert result.problems == ()
    assert [manifest.path for manifest in result.manifests] == [
        "jobs/.f.yaml",
        "jobs/a.yaml",
        "jobs/b.yml",
        "jobs/c/d/e.yaml",
    ]


def test_a_path_may_be_a_file_of_any_name_and_several_may_overlap(root: Path) -> None:
    write(root, "jobs/a/one.txt", named("one"))
    write(root, "jobs/a/two.yaml", named("two"))
    result = check(root, "jobs/a/one.txt", "jobs", "jobs/a", "jobs/a/two.yaml")
    assert [manifest.path for manifest in result.manifests] == ["jobs/a/one.txt", "jobs/a/two.yaml"]


def test_paths_count_from_the_working_directory(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(root, "jobs/a/one.yaml", named("one"))
    monkeypatch.chdir(root / "jobs")
    (manifest,) = validate(Path(".."), [Path("a/../a")]).manifests
    assert manifest.path == "jobs/a/one.yaml"


def test_a_repository_that_is_reached_by_a_link_is_a_repository_all_the_same(
    root: Path, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(root)
    write(root, "jobs/job.yaml", CUSTOM_JOB)
    result = check(tmp_path / "link")
    assert result.problems == ()
    assert [manifest.path for manifest in result.manifests] == ["jobs/job.yaml"]


def test_a_path_outside_the_repository_is_called_by_its_whole_name(root: Path, tmp_path: Path) -> None:
    file = write(tmp_path, "elsewhere/one.yaml", named("one"))
    (manifest,) = validate(root, [tmp_path / "elsewhere"]).manifests
    assert manifest.path == file.as_posix()


def test_a_path_that_is_not_there_is_wrong_usage(root: Path) -> None:
    with pytest.raises(UsageError, match="there is no file or folder"):
        check(root, "jobs", "nowhere")


def test_an_empty_folder_is_valid(root: Path) -> None:
    assert check(root) == Validation((), (), 0)


def test_files_in_packages_are_no_manifests(root: Path) -> None:
    value = copy.deepcopy(CUSTOM_JOB)
    value["package"]["path"] = "trainer"
    value["spec"]["workerPoolSpecs"][0]["pythonPackageSpec"]["pythonModule"] = "task"
    write(root, "jobs/z/job.yaml", value)
    write(root, "jobs/z/trainer/task.py", "")
    for path in ("settings.yaml", "deep/broken.yaml", "deep/er/job.yaml"):
        write(root, f"jobs/z/trainer/{path}", "[")
    (root / "jobs/z/trainer/out.yaml").symlink_to("/etc/passwd")
    result = check(root)
    assert result.problems == ()
    assert result.files == 1


def test_a_package_of_what_is_in_a_package_hides_nothing(root: Path) -> None:
    """a's package holds b, and b's package is the folder of c: b is no manifest, so c is a manifest."""

    def job(name: str, package: str) -> dict[str, Any]:
        value = named(name, "CustomJob")
        value["package"]["path"] = package
        value["spec"]["workerPoolSpecs"][0]["pythonPackageSpec"]["pythonModule"] = "task"
        return value

    write(root, "jobs/a.yaml", job("a", "code"))
    write(root, "jobs/code/task.py", "")
    write(root, "jobs/code/b.yaml", job("b", "../other"))
    write(root, "jobs/other/c.yaml", named("c"))
    result = check(root)
    assert result.problems == ()
    assert [manifest.name for manifest in result.manifests] == ["a", "c"]


def test_packages_that_hide_each_others_manifests_are_both_checked(root: Path) -> None:
    for name, other in (("a", "b"), ("b", "a")):
        value = named(name, "CustomJob")
        value["package"]["path"] = f"../{other}"
        write(root, f"jobs/{name}/job.yaml", value)
    assert check(root).files == 2


# --- Links and other irregular files --------------------------------------------------------------------


def only(result: Validation) -> tuple[str, str]:
    (problem,) = result.problems
    assert (problem.line, problem.column, problem.pointer) == (1, 1, "")
    return problem.path, problem.message


@pytest.mark.fault(39)
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_link_out_of_the_repository_is_refused_and_not_followed(
    kind: str, root: Path, tmp_path: Path
) -> None:
    outside = write(tmp_path, "outside/job.yaml", "[")
    link = root / "jobs" / "link.yaml"
    link.symlink_to(outside if kind == "file" else outside.parent)
    assert only(check(root)) == ("jobs/link.yaml", "this link leads out of the repository")


@pytest.mark.fault(39)
def test_a_folder_of_manifests_that_is_a_link_out_is_refused(root: Path, tmp_path: Path) -> None:
    write(tmp_path, "outside/job.yaml", "[")
    (root / "jobs").rmdir()
    (root / "jobs").symlink_to(tmp_path / "outside")
    assert only(check(root)) == ("jobs", "this link leads out of the repository")


def test_a_link_through_a_link_is_judged_by_where_it_ends(root: Path, tmp_path: Path) -> None:
    write(tmp_path, "outside/a.yaml", "[")
    (root / "inside").symlink_to(tmp_path / "outside")
    (root / "jobs" / "x").symlink_to("../inside")
    assert only(check(root)) == ("jobs/x", "this link leads out of the repository")


def test_a_link_inside_is_followed_and_read_once(root: Path) -> None:
    write(root, "shared/one.yaml", named("one"))
    write(root, "jobs/two.yaml", named("two"))
    (root / "jobs" / "a-link").symlink_to("../shared")
    (root / "jobs" / "b-link").symlink_to("../shared")
    (root / "jobs" / "again.yaml").symlink_to("two.yaml")
    result = check(root)
    assert result.problems == ()
    assert [manifest.name for manifest in result.manifests] == ["one", "two"]


@pytest.mark.fault(39)
def test_links_that_lead_nowhere_or_in_circles(root: Path) -> None:
    (root / "jobs" / "a.yaml").symlink_to("nothing.yaml")
    (root / "jobs" / "b.yaml").symlink_to("b.yaml")
    (root / "jobs" / "c").symlink_to("../jobs")
    (root / "jobs" / "d").symlink_to("e")
    (root / "jobs" / "e").symlink_to("d")
    (root / "jobs" / ".f").symlink_to("../..")
    assert [(problem.path, problem.message) for problem in check(root).problems] == [
        ("jobs/a.yaml", "this link leads nowhere"),
        ("jobs/b.yaml", "this link leads nowhere"),
        ("jobs/c", "this link leads to a folder that contains it"),
    ]


@pytest.mark.fault(39)
def test_a_pipe_is_refused_and_not_waited_for(root: Path) -> None:
    os.mkfifo(root / "jobs" / "a.yaml")
    (root / "jobs" / "b.yaml").symlink_to("a.yaml")
    assert {problem.message for problem in check(root).problems} == {
        "this is not a file but a folder, a pipe or a device"
    }
    assert isinstance(files.read_file(root / "jobs" / "a.yaml", "a.yaml"), Problem)


def test_a_file_that_cannot_be_opened_is_a_problem(root: Path) -> None:
    problem = files.read_file(root / "jobs" / "gone.yaml", "jobs/gone.yaml")
    assert isinstance(problem, Problem)
    assert problem.message == "this can't be read: No such file or directory"


def test_a_file_name_that_cannot_be_shown_is_refused(root: Path) -> None:
    write(root, "jobs/a\nb.yaml", named("a"))
    Path(os.fsdecode(bytes(root / "jobs") + b"/\xff.yaml")).write_text("[")
    assert [(problem.path, problem.message) for problem in check(root).problems] == [
        (r"jobs/\udcff.yaml", "the file's name contains characters that can't be shown"),
        (r"jobs/a\nb.yaml", "the file's name contains characters that can't be shown"),
    ]


@pytest.mark.fault(39)
@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("outside", "the package's path leads out of the repository by a link"),
        ("nothing", 'no such folder: "../link"'),
        ("link", 'no such folder: "../link"'),
    ],
)
def test_a_package_behind_a_link(target: str, message: str, root: Path, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (root / "link").symlink_to(tmp_path / "outside" if target == "outside" else target)
    value = copy.deepcopy(CUSTOM_JOB)
    value["package"]["path"] = "../link"
    (problem,) = problems_of(root, value)
    assert (problem.pointer, problem.message) == ("/package/path", message)


def test_a_package_behind_a_link_inside_is_where_it_leads(root: Path) -> None:
    (root / "link").symlink_to("trainers")
    value = copy.deepcopy(CUSTOM_JOB)
    value["package"]["path"] = "../link"
    write(root, "jobs/job.yaml", value)
    (manifest,) = check(root).manifests
    assert manifest.package == root.resolve() / "trainers"


# --- Bounds ---------------------------------------------------------------------------------------------


@pytest.mark.fault(37)
def test_a_file_of_50_mb_is_refused_without_being_read(root: Path) -> None:
    with (root / "jobs" / "job.yaml").open("wb") as file:
        file.truncate(50 * 1024 * 1024)
    tracemalloc.start()
    try:
        result = check(root)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert only(result) == ("jobs/job.yaml", "the file is larger than 10 MB")
    assert peak < 5 * 1024 * 1024


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-32"])
def test_other_encodings(encoding: str, root: Path) -> None:
    path, message = only(check_bytes(root, json.dumps(ML_JOB).encode(encoding)))
    assert path == "jobs/job.yaml"
    assert message.endswith("not UTF-8")


def check_bytes(root: Path, data: bytes) -> Validation:
    write(root, "jobs/job.yaml", data)
    return check(root)


@pytest.mark.fault(37)
def test_too_many_files_are_wrong_usage(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        write(root, f"jobs/{number}.yaml", named(f"job{number}"))
    monkeypatch.setattr(files, "MAX_FILES", 4)
    assert len(check(root).manifests) == 4
    monkeypatch.setattr(files, "MAX_FILES", 3)
    with pytest.raises(UsageError, match="more than 3 manifest files"):
        check(root)


@pytest.mark.fault(37)
def test_too_many_bytes_in_all_end_the_reading(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        write(root, f"jobs/{number}.yaml", "[" if number == 3 else named(f"job{number}"))
    size = (root / "jobs" / "0.yaml").stat().st_size
    monkeypatch.setattr(validation, "MAX_TOTAL_BYTES", 2 * size)
    path, message = only(check(root))
    assert path == "jobs/2.yaml"
    assert "from here on they are not checked" in message


@pytest.mark.fault(37)
def test_too_many_values_behind_aliases_end_the_reading(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "a: &a [x, x, x, x]\n---\nb: &b [x, x]\nc: [*b, *b, *b]\n"
    write(root, "jobs/a.yaml", text)
    write(root, "jobs/b.yaml", text)
    write(root, "jobs/c.yaml", text)
    monkeypatch.setattr(validation, "MAX_TOTAL_ALIASED", 11)
    told = {problem.path: problem.message for problem in check(root).problems}
    assert list(told) == ["jobs/a.yaml", "jobs/b.yaml"]
    assert "values behind aliases" in told["jobs/b.yaml"]


def test_at_most_100_problems_a_file_and_their_number(root: Path) -> None:
    numbers = "".join(f"    - {number}\n" for number in range(250))
    write(root, "jobs/a.yaml", f"a:\n{numbers.replace('- ', '- no  # ')}")
    write(root, "jobs/b.yaml", "a: no\n")
    result = check(root)
    told = [problem for problem in result.problems if problem.path == "jobs/a.yaml"]
    assert len(told) == 101
    assert told[-1].message == "151 more problems in this file"
    assert any(problem.path == "jobs/b.yaml" for problem in result.problems)


def test_beyond_1000_problems_a_file_they_are_not_counted(root: Path) -> None:
    write(root, "jobs/a.yaml", "---\na: no\n" * 5000)
    assert check(root).problems[-1].message == "at least 900 more problems in this file"


def test_problems_are_sorted_and_told_once(root: Path) -> None:
    for name in "cab":
        write(root, f"jobs/{name}.yaml", "b: no\na: yes\n---\n- 1\n")
    problems = check(root).problems
    assert list(problems) == sorted(set(problems))
    assert list(problems) == capped(problems)


@pytest.mark.slow
@settings(max_examples=150)
@given(data=st.data())
def test_any_damage_to_a_value_gives_problems_that_can_be_shown(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Check any value at any place: no exception is raised, and each problem has a place in the file."""
    root = tmp_path_factory.mktemp("damage")
    value = copy.deepcopy(GOOD[data.draw(st.sampled_from(sorted(GOOD)))])
    for _ in range(data.draw(st.integers(1, 4))):
        keys = data.draw(st.sampled_from([keys for keys, _ in places(value)] or [()]))
        around = at(value, keys[:-1]) if keys else value
        action = data.draw(st.sampled_from(["replace", "remove", "rename", "wrap"]))
        if action == "replace":
            around[keys[-1]] = data.draw(
                st.sampled_from([None, True, 0, -1, 1.5, "", "x", [], {}, [[]], {"a": {}}, "é" * 300])
            )
        elif action == "wrap":
            around[keys[-1]] = [around[keys[-1]]]
        elif action == "remove" or not isinstance(around, dict):
            del around[keys[-1]]
        else:
            around[data.draw(st.text(max_size=8))] = around.pop(keys[-1])
        if not value:
            break
    text = json.dumps(value, indent=data.draw(st.sampled_from([None, 1])), ensure_ascii=False)
    write(root, "jobs/job.yaml", text.encode("utf-8", "replace"))
    result = check(root)
    assert bool(result.problems) != bool(result.manifests)
    for problem in result.problems:
        assert 1 <= problem.line <= text.count("\n") + 1
        assert problem.message.isprintable()
        assert len(problem.message) < 600
    slots = [(problem.line, problem.column, problem.pointer, problem.message) for problem in result.problems]
    assert len(slots) == len(set(slots))


# --- Other documents ------------------------------------------------------------------------------------

SETTINGS = {
    "type": "object",
    "additionalProperties": False,
    "properties": {
        "source": {"type": "string"},
        "environments": {"type": "object", "additionalProperties": {"$ref": "#/$defs/environment"}},
    },
    "$defs": {
        "environment": {
            "type": "object",
            "additionalProperties": False,
            "properties": {"stagingBucket": {"type": "string"}, "project": {"type": "string"}},
        }
    },
}


def load_and_check(file: Path, schema: dict[str, Any], path: str) -> tuple[Any, list[Problem]]:
    """Load and check a file that holds a single document, as a command does."""
    data = read_one(file, path)
    return (None, [data]) if isinstance(data, Problem) else check_document(data, schema, path)


def test_another_file_goes_through_the_same(tmp_path: Path) -> None:
    file = write(
        tmp_path, "reconciler.yaml", "source: a\nenvironments:\n  prod: {staging_bucket: b, project: 1.0}\n"
    )
    value, problems = load_and_check(file, SETTINGS, "reconciler.yaml")
    assert value is None
    assert [(problem.line, problem.column, problem.pointer, problem.hint) for problem in problems] == [
        (3, 10, "/environments/prod/staging_bucket", 'did you mean "stagingBucket"?'),
        (3, 38, "/environments/prod/project", 'write "1.0" with quotes'),
    ]


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_another_file_may_be_empty(text: str, tmp_path: Path) -> None:
    assert load_and_check(write(tmp_path, "a.yaml", text), SETTINGS, "a.yaml") == (None, [])


def test_another_file_that_cannot_be_read(tmp_path: Path) -> None:
    value, (problem,) = load_and_check(tmp_path, SETTINGS, "a.yaml")
    assert value is None
    assert (problem.path, problem.line) == ("a.yaml", 1)


def test_another_file_holds_one_document(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "source: a\n---\nsource: b\n")
    value, (problem,) = load_and_check(file, SETTINGS, "a.yaml")
    assert value is None
    assert (problem.line, problem.column, problem.message) == (3, 1, "the file contains a second document")


def test_a_keyword_that_nobody_thought_of_still_gives_a_sentence(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "a: [1, 1]\n")
    _, (problem,) = load_and_check(file, {"properties": {"a": {"uniqueItems": True}}}, "a.yaml")
    assert (problem.column, problem.message) == (4, '"a" can\'t be a list here')


def test_another_file_that_is_right(tmp_path: Path) -> None:
    file = write(tmp_path, "a.yaml", "source: a\n")
    assert load_and_check(file, SETTINGS, "a.yaml") == ({"source": "a"}, [])


def test_what_has_no_sentence_of_its_own_brings_one() -> None:
    """Only its author can describe a keyword about several conditions in words."""
    plain = [schemas.manifest_schema(*kind) for kind in schemas.KINDS]
    for schema in [*plain, schemas.document("config.schema.json")]:
        assert schema is not None
        for node in assertions(schema):
            if {"not", "anyOf", "oneOf", "multipleOf", "uniqueItems", "contains", "dependentRequired"} & set(
                node
            ):
                assert node.get("x-message"), node


def assertions(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the subschemas that a value must satisfy, without those that are only conditions."""
    yield schema
    parts = [schema.get(key) for key in ("then", "else", "items", "additionalProperties", "propertyNames")]
    parts += [*schema.get("allOf", ()), *schema.get("prefixItems", ())]
    parts += [*schema.get("properties", {}).values(), *schema.get("$defs", {}).values()]
    for part in parts:
        if isinstance(part, dict):
            yield from assertions(part)


# --- Loaded modules -------------------------------------------------------------------------------------


def test_validating_imports_nothing_slow() -> None:
    code = "import sys, reconciler.manifests.validate; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    imported = set(done.stdout.split())
    slow = {
        # Only files without a remembered result are parsed.
        "yaml",
        "jsonschema_rs",
        "googleapiclient",
        "google.auth",
        "structlog",
        "rich",
        "requests",
        "urllib3",
        "httplib2",
        "jsonschema",
    }
    assert not imported & slow


def test_a_valid_file_needs_no_places(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second reading is only for invalid files."""
    write(root, "jobs/job.yaml", CUSTOM_JOB)
    monkeypatch.setattr("reconciler.manifests.yaml_document._Loader", None)
    assert len(check(root).manifests) == 1


def test_documents_of_the_good_ones_are_what_they_were_written_from() -> None:
    for value in GOOD.values():
        (document,), problems = load_documents(json.dumps(value).encode(), "job.yaml")
        assert not problems
        assert document.value == value


def test_where_manifests_are_unless_paths_are_named(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs"
    assert manifest_paths(tmp_path, [Path("x")]) == ([Path("x")], ())
    assert manifest_paths(tmp_path, [jobs]) == ([jobs], ())
    assert validate(tmp_path, []) == Validation((), (), 0)
    jobs.symlink_to("gone")
    paths, _ = manifest_paths(tmp_path, [])
    assert [problem.path for problem in validate(tmp_path, paths).problems] == ["jobs"]
    jobs.unlink()
    jobs.mkdir()
    assert manifest_paths(tmp_path, []) == ([jobs], ())


def test_no_manifests_are_told_as_such() -> None:
    assert validation_text(0, []) == validation_github(0, []) == "No manifests found."
    assert validation_text(1, []) == "1 file valid."
