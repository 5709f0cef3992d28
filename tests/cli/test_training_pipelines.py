"""Training pipelines as users run them: trained, registered, refused, and cancelled, on the real service."""

from __future__ import annotations

import json
from typing import Any

import pytest
import urllib3

from reconciler.model.manifest import TRAINING_PIPELINE
from tests.support.models import TRAINER, settings
from tests.support.repository import IMAGE, TASK, Repository
from tests.support.waiting import until

pytestmark = pytest.mark.slow

MODEL = "{displayName: census, containerSpec: {imageUri: example.test/serve:1}}"
TUNING_TASK = TASK.replace("custom_task", "hyperparameter_tuning_task")
POOL = """
      - machineSpec: {{machineType: n1-standard-1}}
        replicaCount: 1
        pythonPackageSpec:
          executorImageUri: {image}
          pythonModule: task
          args: {args}
"""
CUSTOM = """
apiVersion: aiplatform.googleapis.com/v1
kind: TrainingPipeline
metadata: {{name: census}}
package: {{path: ../trainer}}
{head}
spec:
  trainingTaskDefinition: {task}
  trainingTaskInputs:
    baseOutputDirectory: {{outputUriPrefix: gs://models/census}}
    workerPoolSpecs:{pools}
{more}
"""
TUNED = """
apiVersion: aiplatform.googleapis.com/v1
kind: TrainingPipeline
metadata: {{name: census}}
package: {{path: ../trainer}}
{head}
spec:
  trainingTaskDefinition: {task}
  trainingTaskInputs:
    maxTrialCount: 2
    parallelTrialCount: 1
    studySpec:
      metrics: [{{metricId: accuracy, goal: MAXIMIZE}}]
      parameters: [{{parameterId: lr, doubleValueSpec: {{minValue: 0.1, maxValue: 1}}}}]
    trialJobSpec:
      baseOutputDirectory: {{outputUriPrefix: gs://models/census}}
      workerPoolSpecs:{pools}
{more}
"""
TUNER = """
import argparse, hypertune, os, pathlib

parser = argparse.ArgumentParser()
parser.add_argument("--lr", type=float)
rate = parser.parse_args().lr
hypertune.HyperTune().report_hyperparameter_tuning_metric("accuracy", rate)
folder = pathlib.Path(os.environ["AIP_MODEL_DIR"].replace("gs://", "/gcs/"))
folder.mkdir(parents=True, exist_ok=True)
(folder / "rate.txt").write_text(str(rate))
"""


def write(
    repository: Repository,
    *args: str,
    model: str = MODEL,
    tuned: bool = False,
    head: str = "",
    **fields: str,
) -> None:
    """Write the pipeline's manifest; `head` is YAML beside `spec`, `fields` are values in it."""
    given = {"modelToUpload": model, **fields}
    more = "\n".join(f"  {name}: {value}" for name, value in given.items() if value)
    text, task = (TUNED, TUNING_TASK) if tuned else (CUSTOM, TASK)
    pools = POOL.format(image=IMAGE, args=json.dumps([*args])).rstrip()
    pools = pools.replace("\n", "\n  ") if tuned else pools
    repository.write("jobs/census.yaml", text.format(task=task, pools=pools, more=more, head=head))
    repository.has_jobs = True


def ask(repository: Repository, path: str, method: str = "GET", body: Any = None) -> Any:
    """Ask the repository's service for a resource below its project and location."""
    service = repository.service()
    answer = urllib3.request(
        method,
        f"{service['url']}/v1/projects/local/locations/local/{path}",
        headers={"Authorization": f"Bearer {service['token']}"},
        json=body,
        retries=False,
    )
    assert answer.status == 200, answer.data
    return answer.json()


def shown(repository: Repository, name: str = "census") -> Any:
    return repository.run("show", name, "--format", "json").json


@pytest.mark.parametrize("labels", [False, True])
def test_pipeline_registers_the_model_that_its_training_wrote(models: Repository, labels: bool) -> None:
    """Whether or not the backing job has the labels of the pipeline's request."""
    start_service(models)
    set_copied_labels(models, labels)
    write(models, "--accuracy=0.96")
    done = models.run("apply", "--wait")
    assert done.code == 0, done.out + done.err
    details = shown(models)
    assert (details["kind"], details["state"]) == ("TrainingPipeline", "SUCCEEDED")
    assert details["metrics"][0]["values"] == {"accuracy": 0.96}
    name, _, version = details["model"].rpartition("@")
    model = ask(models, f"models/{name.rpartition('/')[2]}")
    assert (model["displayName"], version) == ("census", "1")
    assert model["artifactUri"] == f"{details['output']['uri']}/model"
    backing = ask(models, "/".join(details["backing"].split("/")[-2:]))
    assert bool(backing.get("labels")) == labels
    rows = [
        row
        for row in models.run("status", "--all", "--format", "json").json["jobs"]
        if row["baseName"] == "census"
    ]
    assert {row["kind"] for row in rows} == {"TrainingPipeline"}
    plan = models.run("plan", "--detailed-exitcode", "--format", "json")
    assert (plan.code, plan.json["drift"]) == (0, []), plan.out
    log = models.run("logs", "census")
    assert log.code == 0, log.err


def start_service(repository: Repository) -> None:
    write(repository, head="reconcile: {suspend: true}")
    assert repository.run("apply").code == 0


def set_copied_labels(repository: Repository, value: bool) -> None:
    service = repository.service()
    answer = urllib3.request(
        "PUT",
        f"{service['url']}/_service/pipelines",
        headers={"Authorization": f"Bearer {service['token']}"},
        json={"labelsOnBackingJobs": value},
        retries=False,
    )
    assert answer.status == 200, answer.data


@pytest.mark.fault(74)
def test_model_that_is_not_written_cannot_be_registered(repository: Repository) -> None:
    repository.write("trainer/task.py", "print('trained, and wrote nothing')")
    write(repository)
    done = repository.run("apply", "--wait")
    assert done.code == 1
    said = done.out + done.err
    assert "the model could not be registered" in said
    assert "AIP_MODEL_DIR" in said
    assert "correct the code" not in said
    status = repository.run("status").out
    assert "the model could not be registered" in status
    details = shown(repository)
    assert (details["cause"]["class"], details["model"]) == ("model", None)


def test_failed_training_of_pipeline_has_the_cause_of_its_code(repository: Repository) -> None:
    repository.write("trainer/task.py", "raise ValueError('the loss is NaN')")
    write(repository)
    done = repository.run("apply", "--wait")
    assert done.code == 1
    assert "ValueError: the loss is NaN" in done.out + done.err
    assert shown(repository)["cause"]["class"] == "user-code"


@pytest.mark.fault(77)
def test_pipeline_whose_parent_model_is_missing_is_blocked_until_there_is_one(models: Repository) -> None:
    start_service(models)
    parent = "projects/local/locations/local/models/census"
    write(models, "--accuracy=0.95", parentModel=parent)
    plan = models.run("plan", "--format", "json").json
    (change,) = [one for one in plan["changes"] if one["baseName"] == "census"]
    assert (change["action"], change["reasonCode"]) == ("blocked", "parent-model-missing")
    assert f"there is no model {parent}" in models.run("plan").out
    assert models.run("apply").code != 0
    assert [*models.states().values()] == [None]
    upload = {"model": {"displayName": "census", "artifactUri": "gs://models/old"}, "modelId": "census"}
    ask(models, "models:upload", "POST", upload)
    done = models.run("apply", "--wait")
    assert done.code == 0, done.out + done.err
    assert shown(models)["model"].endswith("/models/census@2")
    write(models, "--accuracy=0.97", modelId="census")
    plan = models.run("plan").out
    assert f"there is a model {parent} already: write parentModel: {parent} in place of modelId" in plan


def test_tuning_pipeline_registers_the_model_of_its_best_trial(repository: Repository) -> None:
    repository.write("trainer/task.py", TUNER)
    repository.write("trainer/requirements.txt", "cloudml-hypertune\n")
    settings(repository, "outputs: own")
    write(
        repository, tuned=True, head="expect: {accuracy: {min: 0.0001}}\npublish: {to: gs://published/census}"
    )
    done = repository.run("apply", "--wait")
    assert done.code == 0, done.out + done.err
    details = shown(repository)
    trials = details["study"]["trials"]
    assert len(trials) == 2
    best = max(trials, key=lambda trial: trial["metrics"]["accuracy"])["id"]
    model = ask(repository, f"models/{details['model'].rpartition('@')[0].rpartition('/')[2]}")
    assert model["artifactUri"] == f"{details['output']['uri']}/{best}/model"
    assert details["publication"]["current"] == details["jobName"]
    assert repository.run("logs", "census", "--trial", best).code == 0


def test_pipeline_is_cancelled_with_its_training(models: Repository) -> None:
    models.write("trainer/task.py", TRAINER + "\nimport time\ntime.sleep(600)\n")
    write(models, "--accuracy=0.5")
    assert models.run("apply").code == 0
    until(lambda: [*models.states().values()] == ["RUNNING"])
    done = models.run("cancel", "census")
    assert done.code == 0, done.out + done.err
    assert [*models.states().values()] == ["CANCELLED"]
    backing = ask(models, "/".join(shown(models)["backing"].split("/")[-2:]))
    assert backing["state"] == "JOB_STATE_CANCELLED"


def test_log_of_pipeline_is_gone_with_the_job_that_trained(repository: Repository) -> None:
    repository.job("census", kind=TRAINING_PIPELINE)
    assert repository.run("apply", "--wait").code == 0
    assert "done" in repository.run("logs", "census").out
    (backing,) = ask(repository, "customJobs")["customJobs"]
    ask(repository, f"customJobs/{backing['name'].rpartition('/')[2]}", "DELETE")
    said = repository.run("logs", "census").out
    assert "is SUCCEEDED: its log is gone with the job that trained for it, which was deleted" in said


def test_failed_pipeline_is_tried_again_under_the_next_name(repository: Repository) -> None:
    repository.write("trainer/task.py", "raise SystemExit(3)")
    write(repository, head="reconcile: {attempts: 2}")
    for _ in range(2):
        assert repository.run("apply", "--wait").code == 1
    first, second = sorted(repository.states())
    assert second == f"{first}_2"
