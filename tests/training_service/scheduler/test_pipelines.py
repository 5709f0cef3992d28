from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from reconciler.training_service.scheduler.recovery import recover_states
from reconciler.training_service.state.database import PUBLIC
from reconciler.training_service.state.models import ModelName, ModelStore, ModelVersion
from reconciler.training_service.state.records import (
    UNFINISHED,
    Code,
    JobRecord,
    JobState,
    details_of,
    resource_name,
)
from reconciler.training_service.state.trial_records import Measurement, TrialState
from tests.support.training_service import trainers
from tests.support.training_service.supervised import SUPERVISING, Bench, supervised, tuned
from tests.support.waiting import PATIENCE

OUTPUT = {"baseOutputDirectory": {"outputUriPrefix": "gs://out/census"}}
MODEL = {"displayName": "census", "containerSpec": {"imageUri": "us-docker.pkg.dev/demo/images/serve:1"}}

# Writes a model by its files, as below /gcs; a trial reports its number as the metric.
SAVES = """
import json, os, pathlib
folder = pathlib.Path(os.environ["RECONCILER_GCS_DIR"], os.environ["AIP_MODEL_DIR"].removeprefix("gs://"))
folder.mkdir(parents=True)
(folder / "saved").write_text("a model")
if "CLOUD_ML_TRIAL_ID" in os.environ:
    trial = os.environ["CLOUD_ML_TRIAL_ID"]
    file = pathlib.Path(os.environ["CLOUD_ML_HP_METRIC_FILE"])
    file.parent.mkdir(parents=True, exist_ok=True)
    merit = str(-abs(int(trial) - 2))  # of the second trial the highest
    file.write_text(json.dumps({"merit": merit, "global_step": "1", "trial": trial}) + "\\n")
"""


@pytest.fixture
def bench(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> Iterator[Bench]:
    with supervised(tmp_path, trainers.shared_environments(tmp_path_factory)) as running:
        yield running


@pytest.fixture
def models(bench: Bench) -> ModelStore:
    return ModelStore(bench.store.database, bench.clock)


def registered(models: ModelStore) -> list[ModelVersion]:
    """Return all versions of all models."""
    listed = models.defaults("my-project", "us-central1")
    return [
        version
        for each in listed
        for version in models.versions(ModelName("my-project", "us-central1", each.model_id))
    ]


def trained(bench: Bench, state: JobState = JobState.SUCCEEDED, **body: Any) -> JobRecord:
    """Return a pipeline whose backing job has ended without a run, with a file of a model if it succeeded."""
    pipeline = bench.submit_pipeline(spec=OUTPUT, **body)
    move(bench, bench.backing(pipeline), JobState.RUNNING)
    if state is JobState.SUCCEEDED:
        folder = bench.home / "gcs/out/census/model"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "saved").touch()
    move(bench, bench.backing(pipeline), state)
    return pipeline


def move(bench: Bench, job: JobRecord, *states: JobState, **error: Any) -> None:
    for state in states:
        assert bench.store.move(job.id, state, only_from=UNFINISHED, at=bench.store.now(), **error)


def test_pipeline_goes_through_the_states_of_its_backing_job_and_registers_the_model(
    bench: Bench, models: ModelStore
) -> None:
    pipeline = bench.submit_pipeline(SAVES, spec=OUTPUT, modelToUpload=MODEL, modelId="census")
    seen = []

    def has_ended() -> bool:
        state = bench.state(pipeline)
        if state not in seen:
            seen.append(state)
        return state.ended

    bench.until(has_ended)
    assert seen[0] is JobState.QUEUED
    assert seen[-1] is JobState.SUCCEEDED
    assert [state for state in JobState if state in seen] == seen
    found, backing = bench.now(pipeline), bench.backing(pipeline)
    assert (found.start_time, found.error_code) == (backing.start_time, 0)
    assert backing.end_time <= found.end_time == found.update_time
    (version,) = registered(models)
    assert f"{version.name}@{version.version_id}" == found.model
    assert (version.model_id, version.pipeline) == ("census", resource_name(pipeline))
    assert version.body == MODEL | {"artifactUri": "gs://out/census/model"}
    assert bench.supervisor.tick() is False


def test_tuning_pipeline_registers_the_model_of_the_best_trial(bench: Bench, models: ModelStore) -> None:
    pipeline = bench.submit_pipeline(SAVES, tuned(3, parallel=2), spec=OUTPUT, modelToUpload=MODEL)
    assert bench.ended(pipeline).state is JobState.SUCCEEDED
    (version,) = registered(models)
    assert version.body["artifactUri"] == "gs://out/census/2/model"
    assert len(version.model_id) == 19


def test_pipeline_without_a_model_succeeds_with_its_training(bench: Bench, models: ModelStore) -> None:
    pipeline = trained(bench)
    bench.supervisor.tick()
    found, backing = bench.now(pipeline), bench.backing(pipeline)
    assert (found.state, found.model, found.end_time) == (JobState.SUCCEEDED, "", backing.end_time)
    assert registered(models) == []


def test_pipeline_has_the_error_of_its_backing_job(bench: Bench, models: ModelStore) -> None:
    pipeline = bench.submit_pipeline("raise SystemExit(3)", spec=OUTPUT, modelToUpload=MODEL)
    found, backing = bench.ended(pipeline), bench.backing(pipeline)
    assert (found.state, found.error_code) == (JobState.FAILED, Code.INVALID_ARGUMENT)
    assert found.error_details["reason"] == "NON_ZERO_EXIT"
    assert (found.error_message, found.end_time) == (backing.error_message, backing.end_time)
    assert registered(models) == []


def test_cancelled_pipeline_ends_after_the_processes_of_its_backing_job(
    bench: Bench, models: ModelStore
) -> None:
    bench.hold()
    pipeline = bench.submit_pipeline(spec=OUTPUT, modelToUpload=MODEL)
    bench.until(lambda: bench.state(pipeline) is JobState.RUNNING)
    bench.cancel(pipeline)
    found = bench.ended(pipeline)
    assert (found.state, found.error_code) == (JobState.CANCELLED, Code.CANCELLED)
    assert found.error_details == details_of("REQUESTED")
    assert bench.backing(pipeline).state is JobState.CANCELLED
    assert bench.processes() == []
    assert registered(models) == []


def test_pipeline_ends_cancelled_if_its_backing_job_is_cancelled(bench: Bench) -> None:
    pipeline = bench.submit_pipeline()
    move(bench, bench.backing(pipeline), JobState.RUNNING, JobState.CANCELLING, error_message="Enough.")
    bench.new_supervisor()
    found = bench.ended(pipeline)
    assert (found.state, found.error_code, found.error_message) == (JobState.CANCELLED, 1, "Enough.")


def test_pipeline_ends_if_its_backing_job_is_deleted(bench: Bench, models: ModelStore) -> None:
    pipeline = trained(bench, modelToUpload=MODEL)
    bench.store.delete(bench.backing(pipeline).id)
    bench.supervisor.tick()
    found = bench.now(pipeline)
    assert (found.state, found.error_code) == (JobState.FAILED, Code.NOT_FOUND)
    assert found.error_message.startswith(f"The pipeline's backing job {pipeline.backing} was deleted")
    assert registered(models) == []


def test_pipeline_that_is_cancelled_after_its_training_registers_no_model(
    bench: Bench, models: ModelStore
) -> None:
    pipeline = trained(bench, modelToUpload=MODEL)
    move(bench, pipeline, JobState.CANCELLING, error_message="Enough.")
    bench.supervisor.tick()
    found = bench.now(pipeline)
    assert (found.state, found.error_code) == (JobState.CANCELLED, Code.CANCELLED)
    assert registered(models) == []


def test_cancel_that_comes_while_a_model_is_registered_is_too_late_or_prevents_it(
    bench: Bench, models: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = trained(bench, modelToUpload=MODEL)
    finish = bench.store.finish_pipeline

    def cancelled_first(*arguments: Any) -> JobRecord | None:
        move(bench, pipeline, JobState.CANCELLING)
        return finish(*arguments)

    monkeypatch.setattr(bench.store, "finish_pipeline", cancelled_first)
    bench.supervisor.tick()
    assert (bench.state(pipeline), registered(models)) == (JobState.CANCELLING, [])
    bench.supervisor.tick()
    assert (bench.state(pipeline), registered(models)) == (JobState.CANCELLED, [])


def fail_of(bench: Bench, pipeline: JobRecord) -> str:
    """Return the message of a pipeline that couldn't register its model."""
    bench.supervisor.tick()
    found = bench.now(pipeline)
    assert (found.state, found.error_details["reason"]) == (JobState.FAILED, "MODEL_NOT_REGISTERED")
    assert bench.backing(pipeline).state is JobState.SUCCEEDED
    return found.error_message.removeprefix("The training succeeded, but the model could not be registered: ")


@pytest.mark.fault(74)
def test_folder_without_files_fails_the_pipeline_in_registering(bench: Bench, models: ModelStore) -> None:
    for uri in ("gs://out/none", "gs://none/model"):
        pipeline = trained(bench, modelToUpload=MODEL | {"artifactUri": uri}, modelId="census")
        assert fail_of(bench, pipeline) == f"{uri} holds no files. Correct or remove artifactUri."
        details = bench.now(pipeline).error_details
        assert (details["model"], details["folder"]) == ("census", uri)
    assert registered(models) == []


@pytest.mark.fault(74)
def test_folder_that_holds_files_of_an_earlier_run_alone_fails_the_pipeline_in_registering(
    bench: Bench, models: ModelStore
) -> None:
    own, other = "gs://out/census/model", "gs://out/base/model"
    for folder in (own, other):
        (bench.home / "gcs" / folder.removeprefix("gs://")).mkdir(parents=True)
        (bench.home / "gcs" / folder.removeprefix("gs://") / "saved").touch()
    bench.clock.ahead = timedelta(minutes=1)

    def trained_silently(**model: str) -> JobRecord:
        pipeline = bench.submit_pipeline(spec=OUTPUT, modelToUpload=MODEL | model)
        move(bench, bench.backing(pipeline), JobState.RUNNING, JobState.SUCCEEDED)
        return pipeline

    said = "holds only files from before this training. The trainer has to write its model there."
    assert fail_of(bench, trained_silently()) == f"{own} {said}"
    assert fail_of(bench, trained_silently(artifactUri=f"{own}/")) == f"{own}/ {said}"
    assert registered(models) == []
    # Files that the trainer isn't to write may be as old as they like.
    trained_silently(artifactUri=other)
    bench.supervisor.tick()
    assert [version.body["artifactUri"] for version in registered(models)] == [other]


def test_folder_of_a_bucket_of_google_is_registered_unread(bench: Bench, models: ModelStore) -> None:
    bench.store.set_setting(PUBLIC, ["samples"])
    trained(bench, modelToUpload=MODEL | {"artifactUri": "gs://samples/model"})
    bench.supervisor.tick()
    assert [version.body["artifactUri"] for version in registered(models)] == ["gs://samples/model"]


def test_model_id_that_another_pipeline_took_meanwhile_fails_the_second(
    bench: Bench, models: ModelStore
) -> None:
    first, second = (trained(bench, modelToUpload=MODEL, modelId="census") for _ in range(2))
    name = ModelName("my-project", "us-central1", "census")
    said = "the modelId census is used by now. Take another, or write parentModel:"
    assert fail_of(bench, second) == f"{said} {name}"
    assert bench.state(first) is JobState.SUCCEEDED
    assert [version.pipeline for version in registered(models)] == [resource_name(first)]


def test_parent_model_gets_a_version_of_each_pipeline_and_fails_them_once_it_is_deleted(
    bench: Bench, models: ModelStore
) -> None:
    trained(bench, modelToUpload=MODEL, modelId="census")
    bench.supervisor.tick()
    name = ModelName("my-project", "us-central1", "census")
    second = trained(bench, modelToUpload=MODEL | {"versionAliases": ["best"]}, parentModel=str(name))
    bench.supervisor.tick()
    assert bench.now(second).model.endswith("/models/census@2")
    assert [version.aliases for version in registered(models)] == [("best",), ("default",)]
    models.delete(name)
    third = trained(bench, modelToUpload=MODEL, parentModel=str(name))
    assert fail_of(bench, third) == f"the parentModel {name} doesn't exist any more."


def test_model_of_a_pipeline_with_a_key_has_the_key_unless_it_has_one_of_its_own(
    bench: Bench, models: ModelStore
) -> None:
    own = {"kmsKeyName": "own"}
    for model, model_id in ((MODEL, "a"), (MODEL | {"encryptionSpec": own}, "b")):
        trained(bench, modelToUpload=model, modelId=model_id, encryptionSpec={"kmsKeyName": "k"})
    bench.supervisor.tick()
    keys = {version.model_id: version.body["encryptionSpec"] for version in registered(models)}
    assert keys == {"a": {"kmsKeyName": "k"}, "b": own}


def test_tuning_pipeline_without_a_result_of_a_trial_fails_in_registering(bench: Bench) -> None:
    def without_results(job: JobRecord) -> JobRecord:
        return tuned(2, study={"algorithm": "RANDOM_SEARCH"})(job)

    pipeline = bench.submit_pipeline(shape=without_results, spec=OUTPUT, modelToUpload=MODEL)
    backing = bench.backing(pipeline)
    move(bench, backing, JobState.RUNNING, JobState.SUCCEEDED)
    assert fail_of(bench, pipeline) == "no trial has reported the metric."


def test_tuning_pipeline_takes_the_best_trial_by_the_first_metrics_goal(
    bench: Bench, models: ModelStore
) -> None:
    metrics = [{"metricId": "loss", "goal": "MINIMIZE"}, {"metricId": "accuracy", "goal": "MAXIMIZE"}]
    pipeline = bench.submit_pipeline(
        shape=tuned(3, study={"metrics": metrics}), spec=OUTPUT, modelToUpload=MODEL
    )
    backing = bench.backing(pipeline)
    move(bench, backing, JobState.RUNNING)
    states = (TrialState.SUCCEEDED, TrialState.SUCCEEDED, TrialState.FAILED)
    for loss, state in zip((3.0, 2.0, 1.0), states, strict=True):
        trial = bench.store.add_trial(backing.id, {"x": loss})
        final = Measurement(1, 1.0, {"loss": loss, "accuracy": loss})
        bench.store.save_trial(replace(trial, state=state, final=final))
        (bench.home / f"gcs/out/census/{trial.number}/model").mkdir(parents=True)
        (bench.home / f"gcs/out/census/{trial.number}/model/saved").touch()
    move(bench, backing, JobState.SUCCEEDED)
    bench.supervisor.tick()
    assert [version.body["artifactUri"] for version in registered(models)] == ["gs://out/census/2/model"]


def damage(bench: Bench, job: JobRecord, column: str, value: str = "{") -> None:
    with bench.store.database.writing() as connection:
        connection.execute(f"UPDATE jobs SET {column} = ? WHERE id = ?", (value, job.id))


def test_pipeline_that_cant_be_read_is_ended_with_its_backing_job(bench: Bench, models: ModelStore) -> None:
    bench.hold()
    pipeline = bench.submit_pipeline(spec=OUTPUT, modelToUpload=MODEL)
    bench.until(lambda: bench.state(pipeline) is JobState.RUNNING)
    damage(bench, pipeline, "body")
    found = bench.ended(pipeline)
    assert (found.state, found.error_code) == (JobState.FAILED, Code.DATA_LOSS)
    assert found.error_message.endswith("So the pipeline was ended.")
    assert bench.backing(pipeline).state is JobState.CANCELLED
    assert bench.processes() == []
    assert registered(models) == []


@pytest.mark.parametrize("value", [b"customJobs/1", "customJobs/\udcff"])
def test_pipeline_whose_backing_job_is_unknown_is_ended_with_the_reason(
    bench: Bench, value: str | bytes
) -> None:
    pipeline = bench.submit_pipeline()
    with bench.store.database.writing() as connection:
        text = value if isinstance(value, bytes) else value.encode(errors="surrogateescape")
        kind = "blob" if isinstance(value, bytes) else "text"
        connection.execute(f"UPDATE jobs SET backing = CAST(? AS {kind}) WHERE id = ?", (text, pipeline.id))
    recover_states(bench.store, bench.home)
    found = bench.now(pipeline)
    assert (found.state, found.error_code) == (JobState.FAILED, Code.DATA_LOSS)
    assert found.error_details == details_of("UNREADABLE", columns="backing")


def test_pipeline_of_a_backing_job_that_cant_be_read_has_the_reason(bench: Bench) -> None:
    pipeline = bench.submit_pipeline()
    damage(bench, bench.backing(pipeline), "body")
    found = bench.ended(pipeline)
    assert (found.state, found.error_code) == (JobState.FAILED, Code.DATA_LOSS)
    assert found.error_details == details_of("UNREADABLE", columns="body")


def test_pipeline_of_a_backing_job_in_an_unknown_state_waits_until_it_is_cancelled(bench: Bench) -> None:
    # The backing job may still run: a pipeline that ended now would be submitted again beside it.
    pipeline = bench.submit_pipeline()
    damage(bench, bench.backing(pipeline), "state", "BROKEN")
    for _ in range(3):
        assert bench.supervisor.tick() is True
    assert bench.state(pipeline) is JobState.RUNNING
    bench.cancel(pipeline)
    assert bench.ended(pipeline).state is JobState.CANCELLED


def test_trial_that_cant_be_read_fails_the_pipeline_in_registering(bench: Bench) -> None:
    pipeline = bench.submit_pipeline(shape=tuned(1), spec=OUTPUT, modelToUpload=MODEL)
    backing = bench.backing(pipeline)
    bench.store.add_trial(backing.id, {"x": 1.0})
    with bench.store.database.writing() as connection:
        connection.execute("UPDATE trials SET final = '{'")
    move(bench, backing, JobState.RUNNING, JobState.SUCCEEDED)
    assert fail_of(bench, pipeline).startswith("the best trial isn't known: the trial 1 can't be read")


def test_state_of_a_stopped_service_shows_a_pipelines_end_unless_a_model_is_left_to_register(
    bench: Bench, models: ModelStore
) -> None:
    failed = trained(bench, JobState.FAILED, modelToUpload=MODEL)
    plain, with_model = trained(bench), trained(bench, modelToUpload=MODEL)
    recover_states(bench.store, bench.home)
    states = [bench.state(each) for each in (failed, plain, with_model)]
    assert states == [JobState.FAILED, JobState.SUCCEEDED, JobState.RUNNING]
    assert registered(models) == []


# Killed within the transaction in which the model is registered, or right after it.
KILLED = """
import os, signal
from contextlib import contextmanager
from reconciler.training_service.state.database import Database
from reconciler.training_service.state.models import ModelStore
register, writing, registered = ModelStore.register, Database.writing, []
def noted(*arguments, **named):
    registered.append(register(*arguments, **named))
    return registered[-1]
@contextmanager
def killing(self):
    with writing(self) as connection:
        yield connection
        if registered and {is_early}:
            os.kill(os.getpid(), signal.SIGKILL)
    if registered:
        os.kill(os.getpid(), signal.SIGKILL)
ModelStore.register, Database.writing = noted, killing
"""


@pytest.mark.fault(75)
@pytest.mark.parametrize("is_early", [True, False])
def test_service_that_is_killed_while_it_registers_leaves_one_version(
    bench: Bench, models: ModelStore, is_early: bool
) -> None:
    pipeline = trained(bench, modelToUpload=MODEL)
    program = KILLED.format(is_early=is_early) + SUPERVISING
    killed = subprocess.run([sys.executable, "-c", program, str(bench.home)], timeout=PATIENCE)
    assert killed.returncode == -signal.SIGKILL
    versions = [version.pipeline for version in registered(models)]
    assert versions == ([] if is_early else [resource_name(pipeline)])
    assert bench.state(pipeline) is (JobState.RUNNING if is_early else JobState.SUCCEEDED)
    bench.new_supervisor()
    assert bench.ended(pipeline).state is JobState.SUCCEEDED
    bench.supervisor.tick()
    assert [version.pipeline for version in registered(models)] == [resource_name(pipeline)]
