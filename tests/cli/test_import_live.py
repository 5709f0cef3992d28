"""`import --live`: jobs of an environment that the tool hasn't submitted."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.live_jobs import PLACE, rows, send
from tests.support.manifests import with_inputs_in_snake_case
from tests.support.repository import Repository
from tests.support.training_service.bodies import DEFINITIONS, custom_job
from tests.support.waiting import until

VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"
# The packages of these jobs are missing.
ENDS = {"JOB_STATE_FAILED"}


def test_live_job_of_another_client_is_imported_suspended(repository: Repository) -> None:
    (repository.root / "jobs").mkdir()
    repository.run("apply")  # starts the service
    place = PLACE
    for name in ("other", "second"):
        send(repository, "POST", f"{place}/customJobs", {**custom_job(name), "labels": {"team": name}})
    until(lambda: _states(repository, place) <= ENDS)
    done = repository.run("import", "--live", "-l", "team=other")
    assert done.code == 0, done.err
    manifest = yaml.safe_load((repository.root / "jobs/other.yaml").read_text())
    assert manifest["reconcile"] == {"suspend": True}
    assert manifest["spec"] == yaml.safe_load(json.dumps(custom_job()["jobSpec"]).replace('"1"', "1"))
    assert not (repository.root / "jobs/second.yaml").exists()
    assert repository.run("import", "--live", "unknown").code == 1


def test_filter_of_the_service_chooses_the_jobs(repository: Repository) -> None:
    (repository.root / "jobs").mkdir()
    repository.run("apply")  # starts the service
    for name in ("first-a", "first-b", "second"):
        send(repository, "POST", f"{PLACE}/customJobs", custom_job(name))
    done = repository.run(
        "import", "--live", "--filter", 'display_name:"first*" AND NOT display_name=first-b'
    )
    assert done.code == 0, done.err
    assert sorted(file.name for file in (repository.root / "jobs").iterdir()) == ["first-a.yaml"]
    refused = repository.run("import", "--live", "--filter", "display_name=")
    assert refused.code == 1, refused.err
    assert "filter" in refused.err
    assert repository.run("import", "--filter", "state=1", "reconciler.yaml").code == 64
    assert repository.run("import", "--adopt", "reconciler.yaml").code == 64
    assert repository.run("import", "--live", "--adopt", "--dry-run").code == 64


def _states(repository: Repository, place: str) -> set[str]:
    return {job["state"] for job in send(repository, "GET", f"{place}/customJobs")["customJobs"]}


@pytest.fixture
def live(repository: Repository) -> dict[str, Any]:
    """Submit a job of another client that runs until released, with code that was staged before."""
    repository.hold.touch()
    job = repository.job("census", args=["--staged"])
    repository.run("apply")
    body = send(repository, "GET", f"/v1/{rows(repository)['census']['resource']}")
    repository.run("cancel", "census")
    job.unlink()
    body["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]["args"] = ["--other"]
    sent = {"displayName": "Other job 7", "jobSpec": body["jobSpec"]}
    made: dict[str, Any] = send(repository, "POST", f"{PLACE}/customJobs", sent)
    return made


def adopt(repository: Repository, code: int = 0) -> str:
    done = repository.run("import", "--live", "--adopt", "Other job 7")
    assert done.code == code, done.out + done.err
    return done.out


def planned(repository: Repository) -> tuple[list[tuple[str, str]], list[Any]]:
    """Return the plan's actions with their reasons, and its findings."""
    plan = repository.run("plan", "--format", "json").json
    return [(change["action"], change["reason"]) for change in plan["changes"]], plan["drift"]


def starts(repository: Repository) -> int:
    return repository.starts.read_text().count("--other")


@pytest.mark.fault(54)
def test_adopted_job_is_the_manifests_job_until_its_end_and_after(
    repository: Repository, live: dict[str, Any]
) -> None:
    told = adopt(repository)
    assert f"adopted: its job is {live['name']}" in told
    assert told.endswith("The next apply submits none of these jobs.\n")
    assert "reconcile" not in yaml.safe_load((repository.root / "jobs/Other-job-7.yaml").read_text())
    until(lambda: repository.starts.exists() and starts(repository) == 1)
    until(lambda: rows(repository)["Other-job-7"]["state"] == "RUNNING")
    assert planned(repository) == ([("none", "running")], [])
    shown = repository.run("show", "Other-job-7", "--format", "json").json
    assert (shown["resource"], shown["state"]) == (live["name"], "RUNNING")
    by_name = repository.run("show", "Other job 7", "--format", "json").json
    assert (by_name["resource"], by_name["manifest"]["path"]) == (live["name"], "jobs/Other-job-7.yaml")
    assert "unchanged" in adopt(repository)
    repository.hold.unlink()
    assert repository.run("apply", "--wait").code == 0
    assert planned(repository) == ([("none", "succeeded")], [])
    assert rows(repository)["Other-job-7"]["state"] == "SUCCEEDED"
    assert "done" in repository.run("logs", "Other-job-7").out
    assert repository.run("import", "--live", "Other job 7").code == 1
    assert starts(repository) == 1


def test_manifest_stays_suspended_when_nothing_can_be_adopted(
    repository: Repository, live: dict[str, Any]
) -> None:
    bad = repository.write("jobs/bad.yaml", "kind: CustomJob\n")
    done = repository.run("import", "--live", "--adopt", "Other job 7")
    assert done.code == 3
    assert "jobs/Other-job-7.yaml: written" in done.out
    assert "some manifests are not valid" in done.err
    manifest = repository.root / "jobs/Other-job-7.yaml"
    assert yaml.safe_load(manifest.read_text())["reconcile"] == {"suspend": True}
    bad.unlink()
    adopt(repository)
    assert "reconcile" not in yaml.safe_load(manifest.read_text())


def test_adopted_job_is_cancelled_by_command_without_drift(
    repository: Repository, live: dict[str, Any]
) -> None:
    adopt(repository)
    assert repository.run("cancel", "Other-job-7").code == 0
    (change,), drift = planned(repository)
    assert (change[0], drift) == ("none", [])
    assert change[1].startswith("cancelled by `reconciler cancel`")
    assert rows(repository)["Other-job-7"]["resource"] == live["name"]


def test_job_of_the_older_service_is_adopted_and_ends(repository: Repository) -> None:
    settings = repository.root / "reconciler.yaml"
    settings.write_text(settings.read_text() + f'  "2.11": {{python: "{VERSION}", requirements: []}}\n')
    code = "import os, time\nwhile os.path.exists({!r}):\n    time.sleep(0.02)\n"
    repository.write("trainer/held.py", code.format(str(repository.hold)))
    repository.hold.touch()
    repository.job("census")
    repository.run("apply")
    body = send(repository, "GET", f"/v1/{rows(repository)['census']['resource']}")
    repository.run("cancel", "census")
    (repository.root / "jobs/census.yaml").unlink()
    uris = body["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]["packageUris"]
    training = {"region": "us-east1", "runtimeVersion": "2.11", "pythonModule": "held", "packageUris": uris}
    place = "/v1/projects/local/jobs"
    send(repository, "POST", place, {"jobId": "old_7", "trainingInput": training})
    done = repository.run("import", "--live", "--adopt", "old_7")
    assert done.code == 0, done.out + done.err
    assert "adopted: its job is projects/local/jobs/old_7" in done.out
    ((action, _),), drift = planned(repository)
    assert (action, drift) == ("none", [])
    repository.hold.unlink()
    assert repository.run("apply", "--wait").code == 0
    assert planned(repository) == ([("none", "succeeded")], [])
    assert rows(repository)["old_7"]["state"] == "SUCCEEDED"
    assert repository.run("show", "old_7", "--format", "json").json["state"] == "SUCCEEDED"


SERVED = {"displayName": "census", "containerSpec": {"imageUri": "example.com/serve:1"}}


def send_pipeline(
    repository: Repository, live: dict[str, Any], model: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Submit a pipeline of another client in place of the live job; return its answer, and its spec."""
    send(repository, "POST", f"/v1/{live['name']}:cancel", {})
    spec = {
        "trainingTaskDefinition": f"{DEFINITIONS}custom_task_1.0.0.yaml",
        "trainingTaskInputs": {
            **live["jobSpec"],
            "baseOutputDirectory": {"outputUriPrefix": "gs://runs/adopted"},
        },
        "modelToUpload": model,
        "modelId": "census",
    }
    sent = with_inputs_in_snake_case({"spec": spec})["spec"]
    body = {"displayName": "sent by the SDK", "labels": {"team": "risk"}, **sent}
    return send(repository, "POST", f"{PLACE}/trainingPipelines", body), spec


def test_container_of_a_model_is_no_field_to_add_to_an_adopted_pipeline_and_one_to_add_to_a_copy(
    repository: Repository, live: dict[str, Any]
) -> None:
    send_pipeline(repository, live, SERVED)
    manifest = repository.root / "jobs/sent-by-the-SDK.yaml"
    assert repository.run("import", "--live", "sent by the SDK").code == 0
    assert "The service doesn't return the model's containerSpec: add it." in manifest.read_text()
    manifest.unlink()
    assert repository.run("import", "--live", "--adopt", "sent by the SDK").code == 0
    text = manifest.read_text()
    assert "add it." not in text
    assert "may have had a containerSpec for its model" in text
    assert "Adding one here makes other content, which trains again" in text


def test_adoption_says_that_it_did_not_compare_the_container_which_the_service_does_not_return(
    repository: Repository, live: dict[str, Any]
) -> None:
    _, spec = send_pipeline(repository, live, SERVED)
    content = {
        "apiVersion": "aiplatform.googleapis.com/v1",
        "kind": "TrainingPipeline",
        "metadata": {"name": "sent-by-the-SDK"},
        "reconcile": {"suspend": True},
        "spec": spec,
    }
    repository.write("jobs/sent-by-the-SDK.yaml", yaml.safe_dump(content))
    done = repository.run("import", "--live", "--adopt", "sent by the SDK")
    assert done.code == 0, done.out + done.err
    told = "note: the service's answer lacks modelToUpload.containerSpec, so the adoption didn't compare it"
    assert told in done.out


@pytest.mark.parametrize("labelled", [False, True])
def test_pipeline_is_adopted_with_its_model_and_its_backing_job_is_left_out(
    repository: Repository, live: dict[str, Any], labelled: bool
) -> None:
    send(repository, "PUT", "/_service/pipelines", {"labelsOnBackingJobs": labelled})
    made, spec = send_pipeline(repository, live, {"displayName": "census"})
    backing = send(repository, "GET", f"/v1/{made['name']}")["trainingTaskMetadata"]["backingCustomJob"]
    refused = repository.run("import", "--live", backing.rpartition("/")[2])
    assert refused.code == 1, refused.out
    done = repository.run("import", "--live", "--adopt", "sent by the SDK")
    assert done.code == 0, done.out + done.err
    assert f"adopted: its job is {made['name']}" in done.out
    manifest = yaml.safe_load((repository.root / "jobs/sent-by-the-SDK.yaml").read_text())
    assert (manifest["kind"], manifest["metadata"]["labels"]) == ("TrainingPipeline", {"team": "risk"})
    assert manifest["spec"].keys() == spec.keys()
    assert "workerPoolSpecs" in manifest["spec"]["trainingTaskInputs"]
    assert planned(repository)[1] == []
    repository.hold.unlink()
    # The trainer writes no model that could be registered.
    ended = repository.run("apply", "--wait")
    assert (ended.code, "model" in ended.err) == (1, True), ended.err
    (change,), drift = planned(repository)
    assert (change[0], change[1].partition(";")[0], drift) == ("none", "failed", [])


def test_adopted_job_is_replaced_when_its_manifest_changes(
    repository: Repository, live: dict[str, Any]
) -> None:
    adopt(repository)
    file = repository.root / "jobs/Other-job-7.yaml"
    text = (
        file.read_text()
        .replace("--other", "--new")
        .replace("spec:", "reconcile: {onChange: cancel}\nspec:", 1)
    )
    file.write_text(text)
    assert repository.run("apply").code == 0
    runs = repository.run("status", "--all", "--format", "json").json["jobs"]
    assert {run["jobName"]: run["state"] for run in runs}["Other job 7"] == "CANCELLED"
    assert planned(repository)[1] == []


def test_job_that_differs_from_its_manifest_is_not_adopted(
    repository: Repository, live: dict[str, Any]
) -> None:
    file = repository.job("Other-job-7", args=["--wanted"])
    before = file.read_text()
    told = adopt(repository, code=1)
    assert f"not adopted: {live['name']} differs from the manifest's job" in told
    assert '/pythonPackageSpec/args/0: "--other" → "--wanted"' in told
    assert file.read_text() == before
    ((action, _),), _ = planned(repository)
    assert action == "submit"


def test_package_of_adopted_job_has_the_staged_bytes(repository: Repository, live: dict[str, Any]) -> None:
    repository.job("Other-job-7", args=["--other"])
    trainer = repository.root / "trainer/task.py"
    text = trainer.read_text()
    trainer.write_text(text + "# edited")
    assert "/pythonPackageSpec/packageUris/0: " in adopt(repository, code=1)
    trainer.write_text(text)
    staged = stored(repository, live)
    content = staged.read_bytes()
    staged.write_bytes(content[:-1] + b"!")
    assert '/package: "gs://' in adopt(repository, code=1)
    staged.write_bytes(content)
    assert "adopted: " in adopt(repository)
    until(lambda: rows(repository)["Other-job-7"]["state"] == "RUNNING")
    assert planned(repository)[0] == [("none", "running")]


def stored(repository: Repository, job: dict[str, Any]) -> Path:
    """Return the file of a job's package in the embedded service's bucket."""
    (uri,) = job["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]["packageUris"]
    name = Path(uri).name
    (found,) = [file for file in repository.home.rglob(name) if file.is_file() and "gcs" in file.parts]
    return found
