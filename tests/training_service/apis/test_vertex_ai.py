"""Vertex AI's two collections over HTTP."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from urllib.parse import quote

import pytest

from reconciler.training_service.state.records import JobState, number_of
from reconciler.training_service.state.trial_records import Measurement, TrialState
from tests.support.training_service.bodies import VERTEX, custom_job, job_spec, tuning_job
from tests.support.training_service.served import Service

JOBS = f"{VERTEX}/customJobs"
COLLECTIONS = pytest.mark.parametrize(
    ("collection", "make"), [("customJobs", custom_job), ("hyperparameterTuningJobs", tuning_job)]
)


def create(service: Service, name: str = "census", **more: Any) -> str:
    answer = service.post(JOBS, custom_job(name, **more))
    assert answer.status == 200, answer.content
    return "/v1/" + str(answer.json["name"])


def move(service: Service, path: str, *states: JobState, code: int = 0, message: str = "") -> None:
    _, _, _, _, _, location, collection, job_id = path.split("/")
    job = service.store.find(collection, "demo", location, job_id)
    assert job
    for state in states:
        service.clock.advance(1)
        service.store.move(
            job.id,
            state,
            only_from=set(JobState),
            at=service.store.now(),
            error_code=code,
            error_message=message,
        )


def names(service: Service, query: str = "") -> list[str]:
    return [job["displayName"] for job in service.get(JOBS + query).json.get("customJobs", [])]


def filtered(service: Service, text: str) -> list[str]:
    return names(service, "?filter=" + quote(text))


@COLLECTIONS
def test_a_new_job_is_queued_and_keeps_what_it_was_given(
    service: Service, collection: str, make: Any
) -> None:
    body = make(labels={"team": "risk"}, encryptionSpec={"kmsKeyName": "k"})
    job = service.post(f"{VERTEX}/{collection}", body).json
    prefix, job_id = job["name"].rsplit("/", 1)
    assert prefix == f"projects/{number_of('demo')}/locations/us-central1/{collection}"
    assert len(job_id) == 19
    now = "2026-01-02T03:04:05.000000Z"
    assert job == body | {
        "name": job["name"],
        "state": "JOB_STATE_QUEUED",
        "createTime": now,
        "updateTime": now,
    }
    assert service.get(f"/v1/{job['name']}").json == job
    assert service.get(f"{VERTEX}/{collection}/{job_id}").json == job
    assert service.woken == [None]


def test_a_display_name_may_be_used_twice(service: Service) -> None:
    assert create(service) != create(service)
    assert names(service) == ["census", "census"]


def test_a_job_goes_through_its_states_with_their_times(service: Service) -> None:
    path = create(service)
    seen = []
    for state in (JobState.PREPARING, JobState.RUNNING, JobState.SUCCEEDED):
        move(service, path, state)
        seen.append(service.get(path).json)
    assert [job["state"] for job in seen] == ["JOB_STATE_PENDING", "JOB_STATE_RUNNING", "JOB_STATE_SUCCEEDED"]
    assert [job.get("startTime", "")[17:19] for job in seen] == ["", "07", "07"]
    assert [job.get("endTime", "")[17:19] for job in seen] == ["", "", "08"]
    assert [job["updateTime"][17:19] for job in seen] == ["06", "07", "08"]


def test_a_failed_job_has_its_error(service: Service) -> None:
    path = create(service)
    move(service, path, JobState.FAILED, code=3, message="The replica exited with 1.")
    job = service.get(path).json
    assert job["error"] == {"code": 3, "message": "The replica exited with 1."}


def test_a_queued_job_is_cancelled_at_once_and_a_running_one_when_it_is_dead(service: Service) -> None:
    queued, running = create(service), create(service)
    move(service, running, JobState.PREPARING, JobState.RUNNING)
    assert service.post(queued + ":cancel").json == {}
    assert service.post(running + ":cancel").json == {}
    job = service.get(queued).json
    assert (job["state"], job["error"]["code"]) == ("JOB_STATE_CANCELLED", 1)
    job = service.get(running).json
    assert (job["state"], "error" in job) == ("JOB_STATE_CANCELLING", False)
    assert service.post(running + ":cancel").status == 200
    move(service, running, JobState.CANCELLED, code=1, message="CANCELED")
    answer = service.post(running + ":cancel")
    assert (answer.status, answer.json["error"]["status"]) == (400, "FAILED_PRECONDITION")
    assert len(service.woken) == 5


@COLLECTIONS
def test_only_an_ended_job_is_deleted_and_the_answer_is_an_operation(
    service: Service, collection: str, make: Any
) -> None:
    path = "/v1/" + service.post(f"{VERTEX}/{collection}", make()).json["name"]
    assert service.call("DELETE", path).json["error"]["status"] == "FAILED_PRECONDITION"
    service.post(path + ":cancel")
    operation = service.call("DELETE", path).json
    assert operation["done"] is True
    assert operation["name"].startswith(f"projects/{number_of('demo')}/locations/us-central1/operations/")
    assert service.get(path).status == 404
    assert service.call("DELETE", path).status == 404


def test_a_deleted_job_leaves_nothing_of_its_runs(service: Service) -> None:
    path = create(service)
    (job,) = service.store.unfinished()
    folder = service.home / "runs" / service.store.add_run(job.id).run_id
    (folder / "work").mkdir(parents=True)
    (folder / "log.jsonl").touch()
    move(service, path, JobState.SUCCEEDED)
    assert service.call("DELETE", path).status == 200
    assert list((service.home / "runs").iterdir()) == []


def test_jobs_are_listed_by_place_newest_first(service: Service) -> None:
    for name in ("a", "b"):
        create(service, name)
    service.post(f"{VERTEX}/hyperparameterTuningJobs", tuning_job())
    service.post("/v1/projects/demo/locations/elsewhere/customJobs", custom_job("c"))
    service.post("/v1/projects/other/locations/us-central1/customJobs", custom_job("d"))
    assert names(service) == ["b", "a"]
    by_number = service.get(f"/v1/projects/{number_of('demo')}/locations/us-central1/customJobs").json
    assert [job["displayName"] for job in by_number["customJobs"]] == ["b", "a"]
    assert service.get("/v1/projects/demo/locations/nowhere/customJobs").json == {}


def test_pages_hold_all_jobs_once_though_jobs_come_and_go(service: Service) -> None:
    paths = [create(service, f"job-{number}") for number in range(7)]
    first = service.get(JOBS + "?pageSize=3").json
    create(service, "late")
    service.post(paths[4] + ":cancel")
    service.call("DELETE", paths[4])
    second = service.get(f"{JOBS}?pageSize=3&pageToken={first['nextPageToken']}").json
    third = service.get(f"{JOBS}?pageSize=3&pageToken={second['nextPageToken']}").json
    found = [job["displayName"] for page in (first, second, third) for job in page["customJobs"]]
    assert found == [f"job-{number}" for number in (6, 5, 4, 3, 2, 1, 0)]
    assert "nextPageToken" not in third
    assert "nextPageToken" not in service.get(JOBS + "?pageSize=7").json


def test_a_page_token_is_good_for_its_query_only(service: Service) -> None:
    for name in ("a", "b"):
        create(service, name)
    token = service.get(JOBS + "?pageSize=1").json["nextPageToken"]
    other = f"{VERTEX}/hyperparameterTuningJobs?pageToken={token}"
    filter_ = f"{JOBS}?pageToken={token}&filter={quote('display_name=a')}"
    for path in (
        other,
        filter_,
        f"{JOBS}?pageToken={token[:-2]}AA",
        f"{JOBS}?pageToken=%00",
        f"{JOBS}?pageToken=x",
    ):
        answer = service.get(path)
        assert (answer.status, answer.json["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert service.get(f"{JOBS}?pageSize=1&pageToken={token}").status == 200


def test_lists_are_filtered_as_documented(service: Service) -> None:
    create(service, "my_job_1", labels={"team": "risk"})
    service.clock.advance(3600)
    create(service, "my_job_2")
    move(service, create(service, "other"), JobState.FAILED)
    assert filtered(service, 'state="JOB_STATE_QUEUED" AND display_name:"my_job_*"') == [
        "my_job_2",
        "my_job_1",
    ]
    assert filtered(service, 'state!="JOB_STATE_FAILED" OR display_name="other"') == [
        "other",
        "my_job_2",
        "my_job_1",
    ]
    assert filtered(service, 'NOT display_name="my_job_1"') == ["other", "my_job_2"]
    assert filtered(service, 'create_time>"2026-01-02T03:30:00Z"') == ["other", "my_job_2"]
    assert filtered(service, 'create_time<="2026-01-02T04:04:05+01:00"') == ["my_job_1"]
    assert filtered(service, "labels.team=risk") == ["my_job_1"]
    assert filtered(service, "labels.team:*") == ["my_job_1"]
    assert filtered(service, "NOT labels.team:*") == ["other", "my_job_2"]
    assert filtered(service, 'display_name!="other"') == ["my_job_2", "my_job_1"]


@COLLECTIONS
def test_lists_are_filtered_by_several_labels(service: Service, collection: str, make: Any) -> None:
    marks = {"reconciler-source": "s", "reconciler-key": "k" * 52}
    for name, labels in (
        ("both", marks),
        ("other-key", marks | {"reconciler-key": "k" * 51}),
        ("other-source", marks | {"reconciler-source": "t"}),
        ("empty", {"reconciler-source": ""}),
        ("none", {}),
    ):
        assert service.post(f"{VERTEX}/{collection}", make(name, labels=labels)).status == 200

    def found(text: str) -> list[str]:
        answer = service.get(f"{VERTEX}/{collection}?filter={quote(text)}").json
        return [job["displayName"] for job in answer.get(collection, [])][::-1]

    key = "k" * 52
    assert found(f'labels.reconciler-key="{key}"') == ["both", "other-source"]
    assert found(f'labels.reconciler-source="s" AND labels.reconciler-key="{key}"') == ["both"]
    assert found('labels.reconciler-source="s" AND labels.reconciler-key:*') == ["both", "other-key"]
    assert found("labels.reconciler-source:*") == ["both", "other-key", "other-source", "empty"]
    assert found('labels.reconciler-source=""') == ["empty"]
    assert found('labels.reconciler-code:* AND labels.reconciler-source="s"') == []


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "displayName=x",
        "state:JOB_STATE_FAILED",
        "state=FAILED",
        "create_time>yesterday",
        "labels=x",
        "state=",
        "(",
        "x",
    ],
)
def test_a_filter_that_isnt_documented_is_refused(service: Service, text: str) -> None:
    assert service.get(f"{JOBS}?filter={quote(text)}").json["error"]["status"] == "INVALID_ARGUMENT"


def test_masks_leave_only_what_is_wanted(service: Service) -> None:
    create(service, "a", labels={"team": "risk", "x": "y"})
    page = service.get(JOBS + "?readMask=display_name,labels.team").json
    assert page == {"customJobs": [{"displayName": "a", "labels": {"team": "risk"}}]}
    page = service.get(
        JOBS + "?fields=customJobs(state,jobSpec/workerPoolSpecs/replicaCount),nextPageToken"
    ).json
    assert page == {
        "customJobs": [{"jobSpec": {"workerPoolSpecs": [{"replicaCount": "1"}]}, "state": "JOB_STATE_QUEUED"}]
    }
    assert service.get(JOBS + "?fields=customJobs(").status == 400


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "display_name"),
        ({"displayName": "x" * 129, "jobSpec": job_spec()}, "display_name"),
        ({"displayName": "x"}, "job_spec.worker_pool_specs"),
        (custom_job(labels={"Team": "x"}), "labels.Team"),
        (custom_job(labels={"team": "x y"}), "labels.team"),
        (custom_job(labels={"team": "x" * 65}), "labels.team"),
        (custom_job(labels={f"k{number}": "" for number in range(65)}), "labels"),
        (custom_job(jobSpec=job_spec(baseOutputDirectory={"outputUriPrefix": "/tmp"})), "output_uri_prefix"),
        (custom_job(jobSpec=job_spec(scheduling={"timeout": "-1s"})), "job_spec.scheduling.timeout"),
        (
            custom_job(jobSpec=job_spec(scheduling={"maxWaitDuration": "-1s"})),
            "job_spec.scheduling.max_wait_duration",
        ),
        (custom_job(jobSpec=job_spec(tensorboard="projects/1/t")), "job_spec.service_account"),
        (custom_job(jobSpec={"workerPoolSpecs": [{}]}), "worker_pool_specs[0].machine_spec.machine_type"),
        (
            custom_job(jobSpec={"workerPoolSpecs": job_spec()["workerPoolSpecs"] * 5}),
            "job_spec.worker_pool_specs",
        ),
        (custom_job(jobSpec={"workerPoolSpecs": [{"machineSpec": {"machineType": "m"}}]}), "[0].task"),
    ],
)
def test_what_a_custom_job_lacks_is_told(service: Service, body: dict[str, Any], field: str) -> None:
    answer = service.post(JOBS, body)
    assert (answer.status, answer.json["error"]["status"]) == (400, "INVALID_ARGUMENT")
    told = [each["field"] for each in answer.json["error"]["details"][0]["fieldViolations"]]
    assert any(each.endswith(field) for each in told)
    assert answer.json["error"]["message"].startswith("List of found errors:\t1.Field: ")
    assert service.store.unfinished() == []


def changed_pool(**changes: Any) -> dict[str, Any]:
    pool = job_spec()["workerPoolSpecs"][0] | changes
    return custom_job(jobSpec={"workerPoolSpecs": [pool]})


@pytest.mark.parametrize(
    ("pool", "field"),
    [
        ({"replicaCount": "2"}, "replica_count"),
        ({"containerSpec": {"imageUri": "i"}}, "task"),
        ({"pythonPackageSpec": {}}, "python_module"),
        (
            {"pythonPackageSpec": {"executorImageUri": "i", "pythonModule": "m", "packageUris": ["/x"]}},
            "package_uris[0]",
        ),
        ({"containerSpec": {"imageUri": "-v/:/host"}}, "container_spec.image_uri"),
        (
            {"pythonPackageSpec": {"executorImageUri": "https://i/j"}},
            "python_package_spec.executor_image_uri",
        ),
        ({"pythonPackageSpec": {"env": [{"value": "x"}]}}, "env[0].name"),
        ({"pythonPackageSpec": {"env": [{"name": "x"}] * 101}}, "env"),
        ({"pythonPackageSpec": {"packageUris": ["gs://b/x"] * 101}}, "package_uris"),
    ],
)
def test_what_a_worker_pool_lacks_is_told(service: Service, pool: dict[str, Any], field: str) -> None:
    details = service.post(JOBS, changed_pool(**pool)).json["error"]["details"]
    assert any(each["field"].endswith(field) for each in details[0]["fieldViolations"])


def test_later_worker_pools_may_be_empty(service: Service) -> None:
    spec = job_spec()
    assert (
        service.post(JOBS, custom_job(jobSpec={"workerPoolSpecs": [*spec["workerPoolSpecs"], {}]})).status
        == 200
    )


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"maxTrialCount": 0}, "max_trial_count"),
        ({"parallelTrialCount": 0}, "parallel_trial_count"),
        ({"maxFailedTrialCount": -1}, "max_failed_trial_count"),
        ({"studySpec": {}}, "study_spec.metrics"),
        ({"studySpec": {"metrics": [{}], "parameters": [{}]}}, "study_spec.parameters[0].parameter_id"),
        ({"trialJobSpec": {}}, "trial_job_spec.worker_pool_specs"),
    ],
)
def test_what_a_tuning_job_lacks_is_told(service: Service, changes: dict[str, Any], field: str) -> None:
    details = service.post(f"{VERTEX}/hyperparameterTuningJobs", tuning_job(**changes)).json["error"][
        "details"
    ]
    assert any(each["field"] == field for each in details[0]["fieldViolations"])


def with_trials(service: Service, values: list[float]) -> str:
    """Return a tuning job with a trial for each value."""
    path = "/v1/" + str(service.post(f"{VERTEX}/hyperparameterTuningJobs", tuning_job()).json["name"])
    job = service.store.unfinished()[-1]
    for value in values:
        trial = service.store.add_trial(job.id, {"lr": value})
        final = Measurement(3, 1.5, {"accuracy": value})
        state = TrialState.SUCCEEDED
        service.store.save_trial(replace(trial, state=state, measurements=(final,), final=final))
    return path


def test_a_tuning_job_has_its_trials(service: Service) -> None:
    path = with_trials(service, [0.25, 0.5])
    trials = service.get(path).json["trials"]
    assert [(trial["id"], trial["state"]) for trial in trials] == [("1", "SUCCEEDED"), ("2", "SUCCEEDED")]
    assert trials[1]["parameters"] == [{"parameterId": "lr", "value": 0.5}]
    assert trials[1]["finalMeasurement"]["metrics"] == [{"metricId": "accuracy", "value": 0.5}]
    assert trials[1]["finalMeasurement"]["stepCount"] == "3"
    (listed,) = service.get(f"{VERTEX}/hyperparameterTuningJobs").json["hyperparameterTuningJobs"]
    assert listed["trials"] == trials


@pytest.mark.parametrize(
    ("mask", "found"),
    [
        ("trials.id", {"trials": [{"id": "1"}]}),
        ("displayName,trials.state", {"displayName": "tuned", "trials": [{"state": "SUCCEEDED"}]}),
        ("displayName", {"displayName": "tuned"}),
    ],
)
def test_trials_are_read_only_where_they_are_wanted(
    service: Service, monkeypatch: pytest.MonkeyPatch, mask: str, found: dict[str, Any]
) -> None:
    with_trials(service, [0.25])
    reads: list[int] = []
    read = service.store.trials
    monkeypatch.setattr(service.store, "trials", lambda id: [reads.append(id), read(id)][1])
    listed = service.get(f"{VERTEX}/hyperparameterTuningJobs?readMask={mask}").json
    assert listed["hyperparameterTuningJobs"] == [found]
    assert len(reads) == ("trials" in mask)
    create(service)
    assert service.get(JOBS).status == 200
    assert len(reads) == ("trials" in mask)


def test_what_is_wrong_with_a_search_is_told_with_its_place(service: Service) -> None:
    study = tuning_job()["studySpec"]
    study["parameters"] = [
        {"parameterId": "lr", "doubleValueSpec": {"minValue": 1, "maxValue": 0}},
        {"parameterId": "n", "integerValueSpec": {"minValue": 0, "maxValue": 9}, "scaleType": 2},
    ]
    answer = service.post(f"{VERTEX}/hyperparameterTuningJobs", tuning_job(studySpec=study))
    assert answer.status == 400
    fields = [each["field"] for each in answer.json["error"]["details"][0]["fieldViolations"]]
    assert fields == [
        "study_spec.parameters[0].double_value_spec.max_value",
        "study_spec.parameters[1].integer_value_spec.min_value",
    ]
    assert service.store.unfinished() == []


def test_a_job_remembers_the_images_of_its_creation(service: Service) -> None:
    images = {"image": {"python": "3.11", "requirements": ["numpy"]}}
    assert service.call("PUT", "/_service/images", images).status == 200
    create(service)
    service.call("PUT", "/_service/images", {})
    assert service.store.unfinished()[0].images == images


def test_a_project_or_location_of_a_strange_form_is_refused(service: Service) -> None:
    for path in ("/v1/projects/a%2Fb/locations/l/customJobs", "/v1/projects/p/locations/%20/customJobs"):
        assert service.get(path).json["error"]["status"] == "INVALID_ARGUMENT"
    assert service.get("/v1/projects/%FF/locations/l/customJobs").status == 400
