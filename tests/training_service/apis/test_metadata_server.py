"""Unmodified Google clients with a job's variables only."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from reconciler.training_service.jobs.environment_variables import for_google_clients
from reconciler.training_service.state.records import number_of
from tests.support.training_service import trainers
from tests.support.training_service.served import Service
from tests.support.waiting import PATIENCE

PROGRAM = """
import google.auth, google.auth.transport.requests
from google.cloud import storage
credentials, project = google.auth.default()
credentials.refresh(google.auth.transport.requests.Request())
print(project, credentials.token)
for client in (storage.Client(), storage.Client(project="1234"), storage.Client(credentials=credentials)):
    blob = client.bucket("out").blob("x/y")
    blob.upload_from_string("content")
    print(blob.download_as_text())
"""


@pytest.mark.slow
def test_clients_find_credentials_and_the_job_s_storage(service: Service) -> None:
    job = service.store.add_job(
        trainers.custom_job(spec={"baseOutputDirectory": {"outputUriPrefix": "gs://out"}})
    )
    (service.home / "gcs" / "out").mkdir(parents=True)
    env = {
        "PATH": os.defpath,
        "HOME": "/nowhere",
        **for_google_clients(f"{service.url}/jobs/{job.gcs_secret}"),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=env, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.stdout == "my-project worth-nothing\ncontent\ncontent\ncontent\n", done.stderr


def test_a_run_finds_its_project_and_its_region(service: Service) -> None:
    for job, region in (
        (trainers.custom_job(), "us-central1"),
        (trainers.ml_job(region="europe-west1"), "europe-west1"),
    ):
        record = service.store.add_job(replace(job, location="local" if job.location else ""))
        root = f"/jobs/{record.gcs_secret}/computeMetadata/v1/"
        number = number_of(record.project)
        for path, value in (
            ("project/project-id", record.project),
            ("project/numeric-project-id", number),
            ("instance/region", f"projects/{number}/regions/{region}"),
            ("instance/zone", f"projects/{number}/zones/{region}-a"),
        ):
            answer = service.call("GET", root + path, headers={"Metadata-Flavor": "Google"}, token="")
            assert (answer.status, answer.content.decode()) == (200, value)


@pytest.mark.parametrize(
    "path", ["computeMetadata/v1/instance/id", "computeMetadata/v1/x", "v1/projects/p/jobs"]
)
def test_nothing_else_is_there(path: str, service: Service) -> None:
    job = service.store.add_job(trainers.custom_job())
    assert service.call("GET", f"/jobs/{job.gcs_secret}/{path}", token="").status == 404
    assert service.call("GET", "/jobs/guessed/computeMetadata/v1/project/project-id", token="").status == 401
