"""Every word that a service may have for a job's state, and the resulting commit status."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.engines.api.ai_platform import AiPlatformTraining
from reconciler.engines.api.vertex_ai import VertexAi
from reconciler.manifests import schemas
from reconciler.model.job import ActualJob, State
from reconciler.reporting.status import status_of
from tests.support.opened import connected

pytestmark = pytest.mark.fault(25)

VERTEX = {
    "JOB_STATE_UNSPECIFIED": State.RUNNING,
    "JOB_STATE_QUEUED": State.QUEUED,
    "JOB_STATE_PENDING": State.PREPARING,
    "JOB_STATE_RUNNING": State.RUNNING,
    "JOB_STATE_SUCCEEDED": State.SUCCEEDED,
    "JOB_STATE_FAILED": State.FAILED,
    "JOB_STATE_CANCELLING": State.CANCELLING,
    "JOB_STATE_CANCELLED": State.CANCELLED,
    "JOB_STATE_PAUSED": State.RUNNING,
    "JOB_STATE_EXPIRED": State.FAILED,
    "JOB_STATE_UPDATING": State.RUNNING,
    "JOB_STATE_PARTIALLY_SUCCEEDED": State.FAILED,
}
ML = {"STATE_UNSPECIFIED": State.RUNNING, **{str(state): state for state in State}}
ENDED = {"JOB_STATE_SUCCEEDED", "SUCCEEDED"}


def read_enum(name: str, schema: str) -> set[str]:
    """Return the words in the API's own description."""
    return set(schemas.discovery(name)["schemas"][schema]["properties"]["state"]["enum"])


def read_vertex_job(word: Any) -> ActualJob:
    engine = VertexAi(connected("http://127.0.0.1:9"))
    return engine._read("CustomJob", {"name": "projects/1/locations/l/customJobs/7", "state": word})


def read_ml_job(word: Any) -> ActualJob:
    return AiPlatformTraining(connected("http://127.0.0.1:9"))._read({"jobId": "census_1", "state": word})


def test_job_ends_only_as_succeeded_failed_or_cancelled() -> None:
    assert {state for state in State if state.ended} == {State.SUCCEEDED, State.FAILED, State.CANCELLED}


@pytest.mark.parametrize(("word", "state"), VERTEX.items())
def test_vertex_ai_state_is_mapped_to_state(word: str, state: State) -> None:
    assert (read_vertex_job(word).state, read_vertex_job(word).service_state) == (state, word)
    assert read_vertex_job(word).cancelled is None


@pytest.mark.parametrize(("word", "state"), ML.items())
def test_ai_platform_training_state_is_mapped_to_state(word: str, state: State) -> None:
    assert (read_ml_job(word).state, read_ml_job(word).service_state) == (state, word)


def test_ai_platform_training_reports_no_error_code() -> None:
    assert "error" not in schemas.discovery("ml.v1")["schemas"]["GoogleCloudMlV1__Job"]["properties"]
    assert (read_ml_job("FAILED").error_code, read_vertex_job("JOB_STATE_FAILED").error_code) == (0, 0)


def test_mapped_states_cover_every_state_of_apis() -> None:
    assert set(VERTEX) == read_enum("aiplatform.v1", "GoogleCloudAiplatformV1CustomJob")
    assert set(VERTEX) == read_enum("aiplatform.v1", "GoogleCloudAiplatformV1HyperparameterTuningJob")
    assert set(ML) == read_enum("ml.v1", "GoogleCloudMlV1__Job")


@given(
    word=st.text(max_size=40) | st.sampled_from(["job_state_succeeded", "JOB_STATE_SUCCEEDED ", "DONE", "OK"])
)
def test_unknown_state_does_not_count_as_ended(word: str) -> None:
    for job in (read_vertex_job(word), read_ml_job(word)):
        if word in VERTEX or word in ML:
            continue
        assert job.state is State.RUNNING
        assert status_of("reconciler/local/census", job).state == "pending"


@pytest.mark.parametrize("word", sorted({*VERTEX, *ML}))
def test_commit_status_is_success_only_for_succeeded_state(word: str) -> None:
    job = read_vertex_job(word) if word in VERTEX else read_ml_job(word)
    assert (status_of("reconciler/local/census", job).state == "success") == (word in ENDED)
