"""Vertex AI's client: training pipelines, and the jobs that train for them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from reconciler.base.errors import NotFoundError
from reconciler.engines.api.vertex_ai import VertexAi
from reconciler.model.job import KEY, ActualJob, State
from reconciler.model.manifest import TRAINING_PIPELINE, JsonObject
from reconciler.model.reason import ReasonCode, because
from tests.support.opened import LOCATION, PROJECT, connected
from tests.support.raw_server import Arrived, Behaviour, RawServer, answer

PARENT = f"projects/123456/locations/{LOCATION}"
PIPELINE, BACKING, OTHER = (
    f"{PARENT}/{name}" for name in ("trainingPipelines/1", "customJobs/2", "customJobs/3")
)
LABELS = {KEY: "k1"}
INPUTS = {"worker_pool_specs": [{"container_spec": {"image_uri": "image"}}]}


def job(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "displayName": "census_1", "labels": LABELS, "state": "JOB_STATE_RUNNING", **more}


def pipeline(state: str = "PIPELINE_STATE_RUNNING", **more: Any) -> dict[str, Any]:
    metadata = {"trainingTaskMetadata": {"backingCustomJob": BACKING}}
    return job(PIPELINE, trainingTaskInputs=INPUTS, **metadata, **more) | {"state": state}


class Service:
    """Vertex AI with these resources, which answers each read from them."""

    def __init__(self, *resources: JsonObject) -> None:
        self._resources = resources
        self.server = RawServer([self._behave])

    def ask(self, question: Callable[[VertexAi], Any]) -> Any:
        with self.server.running():
            return question(VertexAi(connected(self.server.url)))

    @property
    def queries(self) -> list[dict[str, list[str]]]:
        return [parse_qs(urlsplit(request.target).query) for request in self.server.arrived]

    def _behave(self, sock: Any, request: Arrived) -> bool:
        path = urlsplit(request.target).path.removeprefix("/v1/")
        collection = path.rpartition("/")[2]
        listed = [one for one in self._resources if one["name"].split("/")[-2] == collection]
        named = next((one for one in self._resources if one["name"] == path), None)
        if path.startswith(f"projects/{PROJECT}/") and collection.isalpha():
            return _said({collection: listed})(sock, request)
        missing = {"error": {"code": 404, "status": "NOT_FOUND", "message": "none"}}
        return (_said(named) if named else _said(missing, 404))(sock, request)


def _said(body: Any, status: int = 200) -> Behaviour:
    return answer(status, json.dumps(body).encode())


def runs_of(*resources: JsonObject) -> list[str]:
    jobs: list[ActualJob] = Service(*resources).ask(lambda client: client.jobs(LABELS))
    return [one.resource for one in jobs]


@pytest.mark.fault(72)
def test_a_job_that_a_listed_pipeline_names_is_no_run_though_it_has_its_labels() -> None:
    assert runs_of(job(BACKING), job(OTHER), pipeline()) == [OTHER, PIPELINE]


def test_the_backing_job_is_known_by_its_id_under_either_name_of_the_project() -> None:
    by_id = pipeline() | {"trainingTaskMetadata": {"backingCustomJob": BACKING.replace("123456", PROJECT)}}
    assert runs_of(job(BACKING), by_id) == [PIPELINE]


def test_a_job_of_another_collection_with_the_same_id_is_a_run() -> None:
    tuning = BACKING.replace("customJobs", "hyperparameterTuningJobs")
    assert runs_of(job(BACKING), job(tuning), pipeline()) == [tuning, PIPELINE]


@pytest.mark.parametrize("metadata", [None, "odd", {"backingCustomJob": 5}, {"other": {}}])
def test_metadata_of_another_form_name_no_backing_job(metadata: Any) -> None:
    assert runs_of(job(BACKING), pipeline() | {"trainingTaskMetadata": metadata}) == [BACKING, PIPELINE]


@pytest.mark.parametrize(
    ("word", "state"),
    [
        ("PIPELINE_STATE_QUEUED", State.QUEUED),
        ("PIPELINE_STATE_PENDING", State.PREPARING),
        ("PIPELINE_STATE_RUNNING", State.RUNNING),
        ("PIPELINE_STATE_SUCCEEDED", State.SUCCEEDED),
        ("PIPELINE_STATE_FAILED", State.FAILED),
        ("PIPELINE_STATE_CANCELLING", State.CANCELLING),
        ("PIPELINE_STATE_CANCELLED", State.CANCELLED),
        ("PIPELINE_STATE_PAUSED", State.RUNNING),
        ("PIPELINE_STATE_NEW_IN_2030", State.RUNNING),
        ("", State.RUNNING),
        ("JOB_STATE_SUCCEEDED", State.RUNNING),
    ],
)
def test_only_a_known_end_of_a_pipeline_is_an_end(word: str, state: State) -> None:
    (run,) = Service(pipeline(word)).ask(lambda client: client.jobs(LABELS))
    assert (run.state, run.service_state, run.backing) == (state, word, BACKING)


def test_live_pipelines_are_asked_for_by_their_own_states() -> None:
    service = Service(pipeline())
    service.ask(lambda client: client.jobs(LABELS, live=True))
    of_jobs, of_tuning, of_pipelines = (query["filter"][0] for query in service.queries)
    assert of_jobs == of_tuning == of_pipelines.replace("PIPELINE_STATE_", "JOB_STATE_")
    assert 'state!="PIPELINE_STATE_SUCCEEDED"' in of_pipelines


def test_a_pipeline_is_read_with_its_backing_job_and_with_the_apis_keys() -> None:
    trained = job(BACKING, state="JOB_STATE_SUCCEEDED")
    run = Service(trained, pipeline()).ask(lambda client: client.read(TRAINING_PIPELINE, PIPELINE))
    assert run.backing_body == trained
    assert run.spec == {"trainingTaskInputs": {"workerPoolSpecs": [{"containerSpec": {"imageUri": "image"}}]}}
    assert run.body["trainingTaskInputs"] == run.spec["trainingTaskInputs"]


def test_a_pipeline_is_read_though_somebody_has_deleted_its_backing_job() -> None:
    run = Service(pipeline()).ask(lambda client: client.read(TRAINING_PIPELINE, PIPELINE))
    assert (run.resource, run.backing_body) == (PIPELINE, {})


def test_a_missing_pipeline_is_not_found() -> None:
    with pytest.raises(NotFoundError):
        Service(job(BACKING)).ask(lambda client: client.read(TRAINING_PIPELINE, PIPELINE))


MODEL = f"{PARENT}/models/census_5"
OWN = f"projects/{PROJECT}/locations/{LOCATION}/models/census_5"


@pytest.mark.fault(77)
@pytest.mark.parametrize(
    ("fields", "exists", "code"),
    [
        ({"parentModel": MODEL}, True, None),
        ({"parentModel": MODEL}, False, ReasonCode.PARENT_MODEL_MISSING),
        ({"parentModel": MODEL, "modelId": "census_5"}, True, None),
        ({"modelId": "census_5"}, True, ReasonCode.MODEL_ID_TAKEN),
        ({"modelId": "census_5"}, False, None),
    ],
)
def test_a_model_can_be_registered_beside_those_that_exist(
    fields: dict[str, str], exists: bool, code: ReasonCode | None
) -> None:
    service = Service(*([{"name": MODEL}, {"name": OWN}] if exists else []))
    spec = {"modelToUpload": {"displayName": "census"}, **fields}
    found = service.ask(lambda client: client.obstacle(TRAINING_PIPELINE, spec))
    assert (found.code if found else None) == code
    assert len(service.server.arrived) == 1


@pytest.mark.parametrize("spec", [{"modelToUpload": {}}, {"modelId": "census_5"}, {"parentModel": MODEL}, {}])
def test_no_model_is_looked_for_if_none_is_registered_or_a_new_one(spec: dict[str, Any]) -> None:
    service = Service()
    assert service.ask(lambda client: client.obstacle(TRAINING_PIPELINE, spec)) is None
    assert service.server.arrived == []


@pytest.mark.parametrize("parent", ["../models/5", f"{PARENT}/models/5/../6", f"{PARENT}/models/5?x=y"])
def test_an_odd_name_of_a_parent_model_becomes_no_part_of_an_address(parent: str) -> None:
    service = Service({"name": MODEL})
    spec = {"modelToUpload": {"displayName": "census"}, "parentModel": parent}
    found = service.ask(lambda client: client.obstacle(TRAINING_PIPELINE, spec))
    assert found == because(ReasonCode.PARENT_MODEL_MISSING, model=parent)
    assert service.server.arrived == []
