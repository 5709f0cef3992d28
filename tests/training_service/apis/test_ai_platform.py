"""AI Platform Training's jobs over HTTP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from reconciler.model.cause import marked_info
from reconciler.training_service.state.records import JobState, details_of, number_of
from reconciler.training_service.state.trial_records import Measurement, TrialState
from tests.support.training_service.bodies import ML, ml_job
from tests.support.training_service.served import Service


def create(service: Service, job_id: str = "census_1", **more: Any) -> dict[str, Any]:
    answer = service.post(ML, ml_job(job_id, **more))
    assert answer.status == 200, answer.content
    job: dict[str, Any] = answer.json
    return job


def move(service: Service, job_id: str, state: JobState, message: str = "") -> None:
    job = service.store.find("jobs", "demo", "", job_id)
    assert job
    service.store.move(job.id, state, only_from=set(JobState), at=service.store.now(), error_message=message)


def filtered(service: Service, text: str) -> list[str]:
    return [job["jobId"] for job in service.get(f"{ML}?filter={quote(text)}").json.get("jobs", [])]


def test_a_new_job_is_queued_and_keeps_what_it_was_given(service: Service) -> None:
    job = create(
        service,
        labels={"team": "risk"},
        trainingOutput={"consumedMLUnits": 3},
        predictionOutput={},
        state="RUNNING",
    )
    outputs = {"createTime": "2026-01-02T03:04:05.000000Z", "state": "QUEUED", "trainingOutput": {}}
    assert job == ml_job(labels={"team": "risk"}) | outputs | {"etag": job["etag"]}
    assert service.get(ML + "/census_1").json == job
    assert service.get(f"/v1/projects/{number_of('demo')}/jobs/census_1").json == job


def test_job_without_a_scale_tier_is_accepted_and_stays_without(service: Service) -> None:
    body = ml_job()
    del body["trainingInput"]["scaleTier"]
    answer = service.post(ML, body)
    assert answer.status == 200, answer.content
    assert "scaleTier" not in answer.json["trainingInput"]


@pytest.mark.slow
def test_a_job_id_is_used_up_for_ever(service: Service) -> None:
    create(service)
    service.post(ML + "/census_1:cancel")
    answer = service.post(ML, ml_job())
    assert (answer.status, answer.json["error"]["status"]) == (409, "ALREADY_EXISTS")
    by_number = service.post(f"/v1/projects/{number_of('demo')}/jobs", ml_job())
    assert by_number.status == 409
    assert service.call("DELETE", ML + "/census_1").status == 404
    assert service.post("/v1/projects/other/jobs", ml_job()).status == 200


def test_the_states_of_a_job(service: Service) -> None:
    create(service)
    for state in (JobState.PREPARING, JobState.RUNNING):
        move(service, "census_1", state)
    assert service.post(ML + "/census_1:cancel").json == {}
    job = service.get(ML + "/census_1").json
    assert (job["state"], job["errorMessage"]) == ("CANCELLING", "The job was cancelled by the user.")
    move(service, "census_1", JobState.FAILED, "It broke.")
    job = service.get(ML + "/census_1").json
    assert (job["state"], job["errorMessage"]) == ("FAILED", "It broke.")
    assert job["endTime"]
    assert service.post(ML + "/census_1:cancel").json["error"]["status"] == "FAILED_PRECONDITION"


def tuning(service: Service, job_id: str = "tuned_1", **more: Any) -> Any:
    body = ml_job(job_id)
    rate = {"parameterName": "rate", "type": "DOUBLE", "minValue": 0.1, "maxValue": 1}
    body["trainingInput"]["hyperparameters"] = {"goal": "MAXIMIZE", "params": [rate], **more}
    return service.post(ML, body)


def test_a_tuning_job_says_so(service: Service) -> None:
    assert tuning(service).json["trainingOutput"] == {
        "isHyperparameterTuningJob": True,
        "hyperparameterMetricTag": "training/hptuning/metric",
    }


def test_a_tuning_job_has_its_trials_the_best_first(service: Service) -> None:
    tuning(service, hyperparameterMetricTag="accuracy")
    (job,) = service.store.unfinished()
    for value in (0.25, 0.5):
        trial = service.store.add_trial(job.id, {"rate": value})
        final = Measurement(3, 1.5, {"accuracy": value})
        service.store.save_trial(replace(trial, state=TrialState.SUCCEEDED, final=final))
    output = service.get(ML + "/tuned_1").json["trainingOutput"]
    assert output["completedTrialCount"] == "2"
    assert [each["trialId"] for each in output["trials"]] == ["2", "1"]
    assert output["trials"][0]["finalMetric"] == {"trainingStep": "3", "objectiveValue": 0.5}
    assert output["trials"][0]["hyperparameters"] == {"rate": "0.5"}
    assert service.get(ML).json["jobs"][0]["trainingOutput"] == output
    labels = service.call("PATCH", ML + "/tuned_1?updateMask=labels", {"labels": {"a": "b"}})
    assert labels.json["trainingOutput"] == output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "reads"),
    [
        ("jobs(jobId,state),nextPageToken", 0),
        ("nextPageToken", 0),
        ("jobs/trainingOutput/trials", 1),
        ("jobs", 1),
        ("*", 1),
        ("", 1),
    ],
)
def test_trials_are_read_only_where_they_are_wanted(
    service: Service, monkeypatch: pytest.MonkeyPatch, fields: str, reads: int
) -> None:
    tuning(service)
    read: list[int] = []
    trials = service.store.trials
    monkeypatch.setattr(service.store, "trials", lambda id: [read.append(id), trials(id)][1])
    listed = service.get(f"{ML}?fields={quote(fields)}").json
    assert len(read) == reads
    assert ("jobs" in listed) == (fields != "nextPageToken")


def test_a_tuning_job_may_go_on_from_an_earlier_one_only(service: Service) -> None:
    create(service, "census_1")
    for previous in ("tuned_1", "census_1"):
        answer = tuning(service, "tuned_2", resumePreviousJobId=previous)
        assert answer.status == 400
        assert "training_input.hyperparameters.resume_previous_job_id" in answer.error
    assert tuning(service).status == 200
    assert tuning(service, "tuned_2", resumePreviousJobId="tuned_1").status == 200


@pytest.mark.parametrize("bucket", ["risk-modles", "Risk_Models", "..models"])
def test_create_with_job_dir_in_missing_bucket_is_refused(service: Service, bucket: str) -> None:
    (service.home / "gcs" / "risk-models").mkdir(parents=True)
    answer = service.post(ML, changed(jobDir=f"gs://{bucket}/census"))
    assert answer.json["error"]["status"] == "INVALID_ARGUMENT"
    what = f"There is no bucket {bucket}: correct its name, or create it first."
    assert answer.json["error"]["message"] == f"Field: training_input.job_dir Error: {what}"
    (violation,) = answer.json["error"]["details"][0]["fieldViolations"]
    assert violation["field"] == "training_input.job_dir"
    assert service.post(ML, changed(jobDir="gs://risk-models/census")).status == 200


def test_what_is_wrong_with_a_search_is_told_with_its_place(service: Service) -> None:
    answer = tuning(service, params=[{"parameterName": "n", "type": "INTEGER", "minValue": 2, "maxValue": 1}])
    assert answer.status == 400
    assert "training_input.hyperparameters.params[0].max_value" in answer.error


@pytest.mark.slow
def test_a_page_has_twenty_jobs_or_a_hundred_at_most(service: Service) -> None:
    for number in range(103):
        create(service, f"job_{number}")
    first = service.get(ML).json
    assert [job["jobId"] for job in first["jobs"]] == [f"job_{number}" for number in range(102, 82, -1)]
    assert len(service.get(ML + "?pageSize=1000").json["jobs"]) == 100
    second = service.get(f"{ML}?pageSize=100&pageToken={first['nextPageToken']}").json
    assert [job["jobId"] for job in second["jobs"]][-1] == "job_0"
    assert "nextPageToken" not in second
    assert service.get(ML + "?pageSize=-1").status == 400
    assert service.get(ML + "?pageSize=x").status == 400


def test_lists_are_filtered_as_documented(service: Service) -> None:
    create(service, "census_1", labels={"team": "risk"})
    create(service, "census_2")
    create(service, "rnn_1")
    move(service, "census_2", JobState.FAILED)
    assert filtered(service, "jobId:census*") == ["census_2", "census_1"]
    assert filtered(service, "jobId:census* AND state:FAILED") == ["census_2"]
    assert filtered(service, "state=QUEUED OR state=FAILED") == ["rnn_1", "census_2", "census_1"]
    assert filtered(service, "labels.team=risk") == ["census_1"]
    assert filtered(service, 'createTime>="2027-01-01T00:00:00Z"') == []
    assert service.get(f"{ML}?filter=colour%3Dred").status == 400


def test_lists_are_filtered_by_several_labels(service: Service) -> None:
    key = "k" * 52
    create(service, "both", labels={"reconciler-source": "s", "reconciler-key": key})
    create(service, "other", labels={"reconciler-source": "s", "reconciler-key": key[1:]})
    create(service, "none")
    assert filtered(service, f'labels.reconciler-key="{key}"') == ["both"]
    assert filtered(service, f'labels.reconciler-source="s" AND labels.reconciler-key="{key}"') == ["both"]
    assert filtered(service, 'labels.reconciler-source="s" AND labels.reconciler-key:*') == ["other", "both"]
    assert filtered(service, f'labels.reconciler-source="t" AND labels.reconciler-key="{key}"') == []
    assert filtered(service, "labels.reconciler-source:*") == ["other", "both"]


def patch(service: Service, mask: str, body: dict[str, Any]) -> Any:
    return service.call("PATCH", f"{ML}/census_1?updateMask={mask}", body)


def test_labels_are_patched_and_nothing_else(service: Service) -> None:
    before = create(service, labels={"team": "risk"})
    after = patch(service, "labels", {"labels": {"owner": "me"}, "trainingInput": {"region": "x"}}).json
    assert after == before | {"labels": {"owner": "me"}, "etag": after["etag"]}
    assert after["etag"] != before["etag"]
    assert "labels" not in patch(service, "labels", {}).json
    for mask in ("", "trainingInput", "labels,state"):
        assert patch(service, mask, {"labels": {}}).json["error"]["status"] == "INVALID_ARGUMENT"
    assert patch(service, "labels", {"labels": {"A": "b"}}).status == 400


def test_an_etag_in_the_mask_must_be_the_jobs(service: Service) -> None:
    etag = create(service)["etag"]
    changed = patch(service, "labels,etag", {"labels": {"a": "1"}, "etag": etag})
    assert changed.status == 200
    late = patch(service, "labels,etag", {"labels": {"a": "2"}, "etag": etag})
    assert (late.status, late.json["error"]["status"]) == (409, "ABORTED")
    assert service.get(ML + "/census_1").json["labels"] == {"a": "1"}


def changed(**changes: Any) -> dict[str, Any]:
    body = ml_job()
    body["trainingInput"] = {k: v for k, v in (body["trainingInput"] | changes).items() if v is not None}
    return body


def custom(**changes: Any) -> dict[str, Any]:
    return changed(scaleTier="CUSTOM", masterType="standard", **changes)


PYTORCH = "us-docker.pkg.dev/vertex-ai/training/pytorch-gpu.1-10:latest"


def in_image(args: list[str], **config: list[str]) -> dict[str, Any]:
    return changed(args=args, masterConfig={"imageUri": PYTORCH, **config})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "field"),
    [
        (ml_job(""), "job_id"),
        (ml_job("1job"), "job_id"),
        (ml_job("a-b"), "job_id"),
        (ml_job("a" * 129), "job_id"),
        (ml_job("a\n"), "job_id"),
        ({"jobId": "a"}, "training_input"),
        (ml_job(labels={"A": "b"}), "labels.A"),
        (changed(region=None), "training_input.region"),
        (changed(scaleTier="CUSTOM"), "training_input.master_type"),
        (changed(runtimeVersion=None), "training_input.runtime_version"),
        (changed(packageUris=[]), "training_input.package_uris"),
        (changed(packageUris=["http://x"]), "training_input.package_uris[0]"),
        (changed(pythonModule=""), "training_input.python_module"),
        (changed(jobDir="/tmp"), "training_input.job_dir"),
        (custom(workerType="standard", workerCount="-2"), "training_input.worker_count"),
        (custom(workerCount="2"), "training_input.worker_type"),
        (custom(parameterServerCount=1), "training_input.parameter_server_type"),
        (custom(evaluatorCount="1"), "training_input.evaluator_type"),
        (changed(workerCount="2"), "training_input.worker_count"),
        (changed(evaluatorType="standard"), "training_input.evaluator_type"),
        (changed(scheduling={"maxWaitTime": "10s"}), "training_input.scheduling.max_wait_time"),
        (changed(scheduling={"maxWaitTime": "-1s"}), "training_input.scheduling.max_wait_time"),
        (changed(scheduling={"maxRunningTime": "-0.5s"}), "training_input.scheduling.max_running_time"),
        (in_image(args=["a"], containerArgs=["b"]), "training_input.master_config.container_args"),
        (in_image(args=["a"], containerCommand=["b"]), "training_input.master_config.container_command"),
        (changed(masterConfig={"containerArgs": ["b"]}), "training_input.master_config.container_args"),
        (changed(workerConfig={"containerCommand": ["b"]}), "training_input.worker_config.container_command"),
        (changed(masterConfig={"imageUri": "--privileged"}), "training_input.master_config.image_uri"),
        (changed(workerConfig={"imageUri": "dir:/etc"}), "training_input.worker_config.image_uri"),
    ],
)
def test_what_a_job_lacks_is_told(service: Service, body: dict[str, Any], field: str) -> None:
    answer = service.post(ML, body)
    assert answer.json["error"]["status"] == "INVALID_ARGUMENT"
    assert [each["field"] for each in answer.json["error"]["details"][0]["fieldViolations"]] == [field]
    assert answer.json["error"]["message"].startswith(f"Field: {field} Error: ")


def test_a_container_needs_neither_package_nor_runtime(service: Service) -> None:
    body = changed(
        runtimeVersion=None, packageUris=None, pythonModule=None, masterConfig={"imageUri": "image"}
    )
    assert service.post(ML, body).status == 200


@pytest.mark.parametrize(
    "body",
    [
        changed(workerCount="0"),
        custom(workerType="standard", workerCount="2", evaluatorCount="0"),
        changed(scheduling={"maxWaitTime": "1800s", "maxRunningTime": "10s"}),
        changed(masterConfig={"imageUri": PYTORCH}, workerConfig={"containerArgs": ["b"]}),
        in_image(args=["a"]),
        in_image(args=[], containerArgs=["b"]),
    ],
)
def test_what_a_job_may_have_is_taken(service: Service, body: dict[str, Any]) -> None:
    answer = service.post(ML, body)
    assert answer.status == 200, answer.content


def test_unknown_fields_are_refused_and_names_may_be_in_snake_case(service: Service) -> None:
    answer = service.post(ML, {"job_id": "a", "training_input": ml_job()["trainingInput"], "colour": "red"})
    assert answer.error.endswith("Unknown name \"colour\" at 'job': Cannot find field.")
    assert service.post(ML, {"job_id": "a", "training_input": ml_job()["trainingInput"]}).status == 200


@pytest.mark.parametrize(
    ("state", "details", "message"),
    [
        (
            JobState.FAILED,
            details_of("PACKAGES_NOT_RESOLVED", image="2.11", entry="0a1b"),
            "Set-up failed (PACKAGES_NOT_RESOLVED; image=2.11; entry=0a1b): It broke.",
        ),
        (JobState.FAILED, details_of("ENGINE_MISSING"), "Set-up failed (ENGINE_MISSING): It broke."),
        (JobState.FAILED, details_of("NON_ZERO_EXIT", exitCode="1"), "It broke."),
        (JobState.CANCELLED, details_of("REQUESTED"), "It broke."),
        (JobState.FAILED, {}, "It broke."),
    ],
)
def test_the_message_of_a_failed_set_up_begins_with_its_cause(
    service: Service, state: JobState, details: dict[str, str], message: str
) -> None:
    service.post(ML, ml_job())
    (job,) = service.store.unfinished()
    service.store.move(
        job.id,
        state,
        only_from={JobState.QUEUED},
        at=service.store.now(),
        error_code=3,
        error_message="It broke.",
        error_details=details,
    )
    found = service.get(ML + "/census_1").json["errorMessage"]
    assert found == message
    assert marked_info(found)[1] == "It broke."
