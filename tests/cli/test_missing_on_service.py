"""Manifests that name what the service doesn't have: buckets of outputs, and jobs to go on from."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.repository import IMAGE, Repository

pytestmark = pytest.mark.slow

ML_JOB = """
apiVersion: ml.googleapis.com/v1
kind: Job
metadata: {{name: census}}
package: {{path: ../trainer}}
spec:
  trainingInput:
    region: us-central1
    scaleTier: BASIC
    masterConfig: {{imageUri: {image}}}
    pythonModule: task
{fields}
"""
NEW = "New bucket gs://risk-modles; in the cloud it must exist."


@pytest.fixture
def trained(repository: Repository) -> Repository:
    """Return a repository whose trainer ends at once."""
    repository.write("trainer/task.py", "print('trained')")
    return repository


def write_custom_job(repository: Repository, bucket: str) -> None:
    text = repository.job().read_text()
    output = f"spec:\n  baseOutputDirectory: {{outputUriPrefix: gs://{bucket}/census}}\n"
    repository.write("jobs/census.yaml", text.replace("spec:\n", output))


def write_ml_job(repository: Repository, *fields: str) -> None:
    repository.write(
        "jobs/census.yaml",
        ML_JOB.format(image=IMAGE, fields="\n".join(f"    {field}" for field in fields)),
    )


def add_settings(repository: Repository, line: str) -> None:
    file = repository.root / "reconciler.yaml"
    file.write_text(f"{file.read_text()}{line}\n")


def planned(repository: Repository) -> Any:
    """Return the JSON of a plan, and its single change."""
    plan = repository.run("plan", "--format", "json").json
    (change,) = plan["changes"]
    return plan, change


def test_plan_and_apply_name_the_bucket_that_a_run_would_make(trained: Repository) -> None:
    write_custom_job(trained, "risk-modles")
    assert NEW in trained.run("plan").out.splitlines()
    assert "risk-modles</code>; in the cloud it must exist" in trained.run("plan", "--format", "markdown").out
    assert planned(trained)[0]["newBuckets"] == ["gs://risk-modles"]
    assert not (trained.home / "gcs/risk-modles").exists()
    done = trained.run("apply", "--wait")
    assert done.code == 0, done.out + done.err
    assert NEW in done.out + done.err
    assert (trained.home / "gcs/risk-modles").is_dir()
    assert "bucket" not in trained.run("plan").out


@pytest.mark.parametrize(
    "settings",
    [
        "buckets: [risk-models]",
        "environments: {local: {stagingBucket: risk-models}}",
        "environments: {local: {defaults: {baseOutputDirectory: gs://risk-models/out}}}",
    ],
)
def test_buckets_that_the_settings_name_exist(trained: Repository, settings: str) -> None:
    add_settings(trained, settings)
    write_custom_job(trained, "risk-models")
    assert planned(trained)[0]["newBuckets"] == []
    write_ml_job(trained, "jobDir: gs://risk-models/census")
    assert planned(trained)[1]["action"] == "submit"
    done = trained.run("apply", "--wait")
    assert done.code == 0, done.out + done.err


def test_job_dir_in_missing_bucket_is_blocked(trained: Repository) -> None:
    write_ml_job(trained, "jobDir: gs://risk-modles/census")
    plan, change = planned(trained)
    assert (change["action"], change["reasonCode"]) == ("blocked", "job-dir-bucket-missing")
    assert "there is no bucket gs://risk-modles: correct it in jobDir" in trained.run("plan").out
    assert plan["newBuckets"] == []
    assert trained.run("apply").code != 0
    assert [*trained.states().values()] == [None]


def test_tuning_job_is_blocked_until_the_job_exists_that_it_goes_on_from(trained: Repository) -> None:
    tuning = "params: [{parameterName: rate, type: DOUBLE, minValue: 0, maxValue: 1}]"
    write_ml_job(trained)
    assert trained.run("apply", "--wait").code == 0
    untuned = planned(trained)[1]["jobName"]
    for previous in ("census_0", untuned, "../models/5"):
        write_ml_job(trained, f"hyperparameters: {{{tuning}, resumePreviousJobId: {previous}}}")
        change = planned(trained)[1]
        assert (change["action"], change["reasonCode"]) == ("blocked", "resumed-job-missing")
        assert f"there is no tuning job {previous}: write the whole name" in trained.run("plan").out
    write_ml_job(trained, f"hyperparameters: {{{tuning}}}")
    trained.run("apply", "--wait")
    tuned = planned(trained)[1]["jobName"]
    write_ml_job(trained, f"hyperparameters: {{{tuning}, resumePreviousJobId: {tuned}}}")
    assert planned(trained)[1]["action"] == "submit"
