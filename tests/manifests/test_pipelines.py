"""Training pipelines in manifests: one form of their inputs, and what every rule about jobs says of them."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from reconciler.manifests.fast_validate import check_files
from reconciler.manifests.pipelines import definition_of
from reconciler.manifests.publications import OWN_FOLDERS
from reconciler.manifests.rules import python_modules
from reconciler.manifests.schemas import document
from reconciler.manifests.validate import Validation, validate
from reconciler.model.manifest import Manifest
from tests.support.manifests import PIPELINE, TASKS, TUNING_PIPELINE, with_inputs_in_snake_case, write

FOLDER = {"outputUriPrefix": "gs://my-bucket/census"}
OWN = frozenset({OWN_FOLDERS})


def checked(root: Path, value: Any, filled: frozenset[str] = frozenset()) -> Validation:
    """Return the result for a repository with the code of `PIPELINE` and one manifest."""
    write(root, "trainers/census/task.py", "")
    write(root, "jobs/job.yaml", value)
    return validate(root, [root / "jobs"], filled)


def edited(change: Callable[[Any], Any], pipeline: dict[str, Any] = PIPELINE) -> dict[str, Any]:
    """Return a pipeline after a change of its spec."""
    value = copy.deepcopy(pipeline)
    change(value["spec"])
    return value


def manifest_of(value: dict[str, Any]) -> Manifest:
    """Return the manifest of a file that the fast check accepts."""
    return check_files({b"": json.dumps(value).encode()})[b""].manifests[0]


@pytest.mark.parametrize("pipeline", [PIPELINE, TUNING_PIPELINE])
def test_inputs_in_snake_case_give_the_manifest_of_camel_case(pipeline: dict[str, Any]) -> None:
    plain, other = manifest_of(pipeline), manifest_of(with_inputs_in_snake_case(pipeline))
    assert "worker_pool_specs" in json.dumps(with_inputs_in_snake_case(pipeline))
    assert (other.spec, other.identities, other.python_modules) == (
        plain.spec,
        plain.identities,
        plain.python_modules,
    )


def test_other_forms_in_snake_case_give_the_manifest_of_the_plain_form() -> None:
    def write_otherwise(spec: Any) -> None:
        inputs = spec["trainingTaskInputs"]
        (inputs["worker_pool_specs"],) = inputs["worker_pool_specs"]
        inputs["worker_pool_specs"]["disk_spec"] = None
        inputs["worker_pool_specs"]["machine_spec"]["accelerator_type"] = "ACCELERATOR_TYPE_UNSPECIFIED"

    other = edited(write_otherwise, with_inputs_in_snake_case(PIPELINE))
    assert manifest_of(other).identities == manifest_of(PIPELINE).identities
    assert manifest_of(other).spec == manifest_of(PIPELINE).spec


def test_null_below_a_map_of_the_model_counts_as_absent() -> None:
    def explain(spec: Any, **more: Any) -> None:
        spec["modelToUpload"]["explanationSpec"] = {
            "parameters": {"topK": 1},
            "metadata": {"inputs": {"age": {"encoding": "IDENTITY", **more}}, "outputs": {}},
        }

    plain, other = edited(explain), edited(lambda spec: explain(spec, visualization=None))
    assert manifest_of(other).spec == manifest_of(plain).spec
    published = document("training-pipeline.schema.json")
    assert Draft202012Validator(published).is_valid(other)


def test_value_that_cannot_be_read_is_one_problem_in_snake_case_too(tmp_path: Path) -> None:
    text = json.dumps(with_inputs_in_snake_case(PIPELINE)).replace(
        '"replica_count": 1', '"replica_count": 010'
    )
    (problem,) = checked(tmp_path, text).problems
    assert text[problem.column - 1 :].startswith("010")


def test_names_in_snake_case_that_are_values_stay() -> None:
    def name_variable(spec: Any) -> None:
        pool = spec["trainingTaskInputs"]["workerPoolSpecs"][0]["pythonPackageSpec"]
        pool["env"] = [{"name": "batch_size", "value": "learning_rate"}]

    pipeline = edited(name_variable)
    assert manifest_of(with_inputs_in_snake_case(pipeline)).spec == manifest_of(pipeline).spec


def test_snake_case_outside_the_inputs_is_unknown(tmp_path: Path) -> None:
    value = edited(
        lambda spec: spec["modelToUpload"].update(display_name=spec["modelToUpload"].pop("displayName"))
    )
    problems = checked(tmp_path, value).problems
    assert [(each.pointer, each.hint) for each in problems] == [
        ("/spec/modelToUpload/display_name", 'did you mean "displayName"?')
    ]


def test_python_modules_of_pools_in_the_inputs_have_their_path() -> None:
    keys = ("spec", "trainingTaskInputs", "workerPoolSpecs", 0, "pythonPackageSpec", "pythonModule")
    assert [*python_modules(PIPELINE)] == [(keys, "census.task")]
    assert manifest_of(PIPELINE).python_modules == ("census.task",)


def test_misspelt_module_of_a_pipeline_is_found_in_its_package(tmp_path: Path) -> None:
    def misspell(spec: Any) -> None:
        spec["trainingTaskInputs"]["workerPoolSpecs"][0]["pythonPackageSpec"]["pythonModule"] = "census.taks"

    (problem,) = checked(tmp_path, with_inputs_in_snake_case(edited(misspell))).problems
    assert (problem.message, problem.hint) == (
        'the package "../trainers" has no module "census.taks"',
        'did you mean "census.task"?',
    )
    assert (
        (tmp_path / "jobs/job.yaml")
        .read_text()
        .splitlines()[problem.line - 1][problem.column - 1 :]
        .startswith('"census.taks"')
    )


def test_secret_in_the_inputs_is_exempt_by_its_place_in_the_plain_form(tmp_path: Path) -> None:
    def add_secret(spec: Any) -> None:
        pool = spec["trainingTaskInputs"]["workerPoolSpecs"][0]["pythonPackageSpec"]
        pool["env"] = [{"name": "API_KEY", "value": "s3cr3t-9f8e7d6c5b4a"}]

    value = with_inputs_in_snake_case(edited(add_secret))
    (problem,) = checked(tmp_path, value).problems
    place = "/spec/trainingTaskInputs/workerPoolSpecs/0/pythonPackageSpec/env/0/value"
    assert (problem.pointer, "looks like a secret" in problem.message) == (place, True)
    assert checked(tmp_path, value | {"reconcile": {"notSecret": [place]}}).problems == ()


def test_image_of_training_is_noted_and_that_of_the_model_is_not() -> None:
    pool = ("spec", "trainingTaskInputs", "workerPoolSpecs", 0)
    for value in (PIPELINE, with_inputs_in_snake_case(PIPELINE)):
        (image,) = manifest_of(value).images
        assert image.keys == (*pool, "pythonPackageSpec", "executorImageUri")


def test_metric_of_a_tuning_pipeline_is_that_of_its_study(tmp_path: Path) -> None:
    assert checked(tmp_path, TUNING_PIPELINE).problems == ()
    (problem,) = checked(tmp_path, TUNING_PIPELINE | {"expect": {"rmse": {"max": 3}}}).problems
    assert (problem.pointer, problem.hint) == (
        "/expect/rmse",
        'add "baseOutputDirectory": the trainer writes metrics.json there; the study gives "accuracy"',
    )


def test_study_with_two_metrics_has_no_best_trial_to_publish(tmp_path: Path) -> None:
    def add_metric(spec: Any) -> None:
        study = spec["trainingTaskInputs"]["studySpec"]
        study["metrics"].append({"metricId": "loss", "goal": "MINIMIZE"})
        spec["trainingTaskInputs"]["trialJobSpec"]["baseOutputDirectory"] = FOLDER

    value = edited(add_metric, TUNING_PIPELINE) | {"publish": {"to": "gs://models/census"}}
    (problem,) = checked(tmp_path, value, OWN).problems
    assert problem.message == "the study has 2 metrics, so no trial is the best one"


@pytest.mark.parametrize(
    ("pipeline", "folder", "filled", "is_own"),
    [
        (PIPELINE, "gs://my-bucket/census/model", frozenset(), True),
        (PIPELINE, "gs://my-bucket/census/model/", frozenset(), True),
        (PIPELINE, "gs://my-bucket/census", frozenset(), False),
        (PIPELINE, "gs://my-bucket/other/model", frozenset(), False),
        # The run writes to a folder with its name.
        (PIPELINE, "gs://my-bucket/census/model", OWN, False),
        # The best trial's folder is not known before.
        (TUNING_PIPELINE, "gs://my-bucket/census/1/model", frozenset(), False),
    ],
)
def test_written_artifacts_of_another_run_are_doubtful(
    pipeline: dict[str, Any], folder: str, filled: frozenset[str], is_own: bool, tmp_path: Path
) -> None:
    def name_artifacts(spec: Any) -> None:
        inputs = spec["trainingTaskInputs"]
        inputs.get("trialJobSpec", inputs)["baseOutputDirectory"] = FOLDER
        spec["modelToUpload"] = {**PIPELINE["spec"]["modelToUpload"], "artifactUri": folder}
        spec["parentModel"] = PIPELINE["spec"]["parentModel"]

    found = checked(tmp_path, edited(name_artifacts, pipeline), filled)
    assert found.problems == ()
    assert [each.pointer for each in found.warnings] == (
        [] if is_own else ["/spec/modelToUpload/artifactUri"]
    )


def test_model_needs_a_folder_of_the_manifest_or_the_environment(tmp_path: Path) -> None:
    value = edited(lambda spec: spec["trainingTaskInputs"].pop("baseOutputDirectory"))
    value.pop("expect")
    (problem,) = checked(tmp_path, value).problems
    assert (problem.pointer, "output folder" in problem.message) == ("/spec/trainingTaskInputs", True)
    assert checked(tmp_path, value, frozenset({"baseOutputDirectory"})).problems == ()


def test_other_task_is_the_only_problem_of_its_pipeline(tmp_path: Path) -> None:
    value = edited(lambda spec: spec.update(trainingTaskDefinition=f"{TASKS}/automl_tabular_1.0.0.yaml"))
    value["spec"]["trainingTaskInputs"] = {"targetColumn": "income"}
    (problem,) = checked(tmp_path, value).problems
    assert problem.message == 'the pipeline\'s task is "automl_tabular"'


def test_example_of_the_documentation_is_valid_without_warnings(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "pipelines.md").read_text("utf-8")
    (example,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    write(tmp_path, "trainers/census/trainer/task.py", "")
    write(tmp_path, "jobs/job.yaml", example)
    found = validate(tmp_path, [tmp_path / "jobs"])
    assert (len(found.manifests), found.problems, found.warnings) == (1, (), ())


@pytest.mark.parametrize(
    "spec", [None, [], "x", {}, {"trainingTaskDefinition": 1}, {"trainingTaskInputs": []}]
)
def test_spec_of_any_shape_is_no_failure(spec: Any, tmp_path: Path) -> None:
    assert checked(tmp_path, PIPELINE | {"spec": spec}).problems


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        (f"{TASKS}/custom_task_1.0.0.yaml", f"{TASKS}/custom_task_1.0.0.yaml"),
        ("https://storage.example.com/x/custom_task_1.2.yaml?generation=7", f"{TASKS}/custom_task_1.2.yaml"),
        (
            "gs://other/hyperparameter_tuning_task_1.0.0.yaml-0001",
            f"{TASKS}/hyperparameter_tuning_task_1.0.0.yaml",
        ),
        ("gs://other/automl_tabular_1.0.0.yaml", "gs://other/automl_tabular_1.0.0.yaml"),
    ],
)
def test_definition_in_an_answer_becomes_that_of_a_request(uri: str, expected: str) -> None:
    assert definition_of(uri) == expected
