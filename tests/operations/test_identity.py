"""From files to a name: another spelling is the same job, any other content is another job."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.manifests.settings import Environment
from reconciler.manifests.validate import validate
from reconciler.operations import staged_code
from reconciler.operations.load_desired import Desired, desired_jobs
from reconciler.packaging.sdist import Sdist, build_sdist
from tests.support.yaml_styles import written

CONTENT: dict[str, Any] = {
    "apiVersion": "aiplatform.googleapis.com/v1",
    "kind": "HyperparameterTuningJob",
    "metadata": {"name": "census-income"},
    "package": {"path": "../trainer"},
    "reconcile": {"rerun": "again"},
    "spec": {
        "maxTrialCount": 4,
        "parallelTrialCount": 2,
        "studySpec": {
            "metrics": [{"metricId": "loss", "goal": "MINIMIZE"}],
            "parameters": [
                {"parameterId": "rate", "doubleValueSpec": {"minValue": 0.0001, "maxValue": 1.0}},
                {"parameterId": "depth", "integerValueSpec": {"minValue": "1", "maxValue": "8"}},
            ],
        },
        "trialJobSpec": {
            "scheduling": {"timeout": "3600s", "disableRetries": True},
            "workerPoolSpecs": [
                {
                    "machineSpec": {"machineType": "n1-standard-4"},
                    "replicaCount": "1",
                    "pythonPackageSpec": {
                        "executorImageUri": "example.test/i:1",
                        "pythonModule": "task",
                        "args": ["--epochs=3", "no", "010", "", "a\nb", "é☃😀", "#", "a: b", "--epochs=3"],
                        "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "1"}],
                    },
                }
            ],
        },
    },
}
CODE = {"task.py": b"import model\n", "model.py": b"RATE = 1\r\n", "data/weights.bin": bytes(range(256))}
ENVIRONMENT = Environment("local", "local", "p", "us-central1", "b", "b")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with a trainer; each test adds its own manifest."""
    root = tmp_path_factory.mktemp("repository")
    write_code(root, CODE)
    return root


def write_code(root: Path, code: dict[str, bytes]) -> None:
    for path, content in code.items():
        file = root / "trainer" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)


def wanted(root: Path, text: str, file: str = "jobs/census.yaml") -> Desired:
    """Return the desired job of a repository with a single manifest."""
    shutil.rmtree(root / "jobs", ignore_errors=True)
    manifest = root / file
    manifest.parent.mkdir(parents=True)
    manifest.write_bytes(text.encode("utf-8"))
    validation = validate(root, [root / "jobs"])
    assert not validation.problems, (text, validation.problems)
    return desired_jobs(root, validation.manifests, ENVIRONMENT)


def name_of(root: Path, content: Any) -> str:
    """Return the job name of a manifest, written as JSON, a subset of YAML."""
    (job,) = wanted(root, json.dumps(content, ensure_ascii=False)).jobs
    return job.job_name


NAME = "census_income_a79ee36ab133327e"
"""Written down: what the content above was called when this test was written."""


@st.composite
def spelt_otherwise(draw: st.DrawFn) -> dict[str, Any]:
    """Draw the same content with numbers in other spellings, and with fields that don't count."""
    content = copy.deepcopy(CONTENT)
    spec = content["spec"]
    study, trial = spec["studySpec"], spec["trialJobSpec"]
    spec["maxTrialCount"] = draw(st.sampled_from([4, 4.0]))
    study["parameters"][0]["doubleValueSpec"]["maxValue"] = draw(st.sampled_from([1, 1.0]))
    study["parameters"][1]["integerValueSpec"]["maxValue"] = draw(st.sampled_from([8, "8", 8.0]))
    trial["workerPoolSpecs"][0]["replicaCount"] = draw(st.sampled_from([1, "1"]))
    if draw(st.booleans()):
        content["metadata"]["name"] = "census_income"
    if draw(st.booleans()):
        content["metadata"]["labels"] = {"team": "risk"}
    if draw(st.booleans()):
        content["reconcile"] |= {"attempts": 3, "onDelete": "cancel", "onChange": "cancel", "suspend": True}
    return content


# Differences that keep the job's name


@pytest.mark.slow
@pytest.mark.fault(20)
@settings(max_examples=150)
@given(st.data())
def test_how_a_manifest_is_written_makes_no_other_job(root: Path, data: st.DataObject) -> None:
    """Check order, quotes, indentation, comments, anchors, line ends, byte order mark, and the path."""
    text = data.draw(spelt_otherwise().flatmap(written))
    file = data.draw(st.sampled_from(["jobs/census.yaml", "jobs/a.yml", "jobs-of-ours/../jobs/x.yaml"]))
    (root / "jobs-of-ours").mkdir(exist_ok=True)
    (job,) = wanted(root, text, file).jobs
    assert job.job_name == NAME, text


@pytest.mark.fault(20)
def test_an_archive_of_other_bytes_makes_no_other_job(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Packages may be built in another way some day: then they are staged again, under the same names."""

    def other_archive(*arguments: Any) -> Sdist:
        built = build_sdist(*arguments)
        return replace(built, data=built.data + b"\0")

    text = json.dumps(CONTENT, ensure_ascii=False)
    before = wanted(root, text).archives
    monkeypatch.setattr(staged_code, "build_sdist", other_archive)
    after = wanted(root, text).archives
    assert [*before] == [*after] == [NAME]
    assert before[NAME]().data != after[NAME]().data


# Differences that change the job's name: all others


def leaves(value: Any, keys: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the keys that lead to each scalar value."""
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from leaves(part, (*keys, key))
    else:
        yield keys


OTHER_VALUES: dict[str, Any] = {
    "'MINIMIZE'": "MAXIMIZE",
    "'1'": "2",
    "'8'": "9",
    "'3600s'": "3601s",
    "'n1-standard-4'": "n1-standard-8",
    "'task'": "model",
    "True": False,
    "4": 5,
    "2": 3,
    "0.0001": 0.00010000000000000002,
    "1.0": 1.0000000000000002,
}
"""By a value's repr, another that is valid in its place too; a text that isn't here gets a letter more."""


def other_contents() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each content that differs from CONTENT in a single value of its spec."""
    for keys in leaves(CONTENT["spec"]):
        content = copy.deepcopy(CONTENT)
        place = content["spec"]
        for key in keys[:-1]:
            place = place[key]
        value = place[keys[-1]]
        place[keys[-1]] = OTHER_VALUES.get(repr(value), f"{value}x")
        if keys[-3:-1] == ("workerPoolSpecs", 0) and keys[-1] == "replicaCount":
            continue  # the first pool has a single replica
        yield "/".join(map(str, keys)), content


@pytest.mark.fault(20)
def test_every_value_of_the_spec_makes_another_job(root: Path) -> None:
    names = {name_of(root, content): place for place, content in other_contents()}
    assert len(names) == len([*other_contents()]) > 20
    assert NAME not in names


@pytest.mark.fault(20)
@pytest.mark.parametrize(
    "changed",
    [
        {"metadata": {"name": "census-incomes"}},
        {"metadata": {"name": "Census-income"}},
        {"reconcile": {"rerun": "again "}},
        {"reconcile": {"rerun": ""}},
        {"reconcile": {}},
        {"kind": "CustomJob", "spec": CONTENT["spec"]["trialJobSpec"]},
    ],
    ids=str,
)
def test_what_else_makes_another_job(root: Path, changed: dict[str, Any]) -> None:
    assert name_of(root, CONTENT | changed) != NAME


TEXTS = st.lists(st.text(st.characters(categories=["L", "N", "P", "Zs"]), max_size=3), max_size=3)


@pytest.mark.slow
@pytest.mark.fault(20)
@settings(max_examples=100)
@given(one=TEXTS, other=TEXTS)
def test_two_lists_of_arguments_are_the_same_job_only_if_they_are_equal(
    root: Path, one: list[str], other: list[str]
) -> None:
    def named(arguments: list[str]) -> str:
        content = copy.deepcopy(CONTENT)
        content["spec"]["trialJobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]["args"] = arguments
        return name_of(root, content)

    assert (named(one) == named(other)) == (one == other)


@pytest.mark.slow
@pytest.mark.fault(20)
@settings(max_examples=60)
@given(st.data())
def test_every_byte_of_the_code_makes_another_job(tmp_path_factory: Any, data: st.DataObject) -> None:
    path = data.draw(st.sampled_from(sorted(CODE)))
    place = data.draw(st.integers(0, len(CODE[path]) - 1))
    bit = 1 << data.draw(st.integers(0, 7))
    code = CODE | {path: bytes(byte ^ bit if at == place else byte for at, byte in enumerate(CODE[path]))}
    root = tmp_path_factory.mktemp("repository")
    write_code(root, code)
    assert name_of(root, CONTENT) != NAME


@pytest.mark.fault(20)
def test_every_change_of_the_tree_makes_another_job(tmp_path: Path) -> None:
    names = []
    for number, code in enumerate(
        [
            CODE | {"empty.py": b""},
            CODE | {"data/weights.bin": b""},
            {("data/weight.bin" if path == "data/weights.bin" else path): CODE[path] for path in CODE},
            {path: content for path, content in CODE.items() if path != "model.py"},
            CODE | {"task.py": CODE["model.py"], "model.py": CODE["task.py"]},
        ]
    ):
        write_code(tmp_path / str(number), code)
        names.append(name_of(tmp_path / str(number), CONTENT))
    write_code(tmp_path / "executable", CODE)
    (tmp_path / "executable" / "trainer" / "task.py").chmod(0o755)
    names.append(name_of(tmp_path / "executable", CONTENT))
    write_code(tmp_path / "same", CODE)
    assert name_of(tmp_path / "same", CONTENT) == NAME
    assert len({*names, NAME}) == len(names) + 1
