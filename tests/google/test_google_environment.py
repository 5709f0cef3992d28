"""An environment with `engine: google`: the same code, real credentials of google-auth, other addresses.

The embedded service stands in for Google's services; a token server gives out its token for a service
account's key, as Google's does.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.support.raw_server import RawServer, answer
from tests.support.repository import Repository
from tests.support.tls import behind_tls, server_tls
from tests.support.token_server import private_key, token_server

CONFIG = """
source: acme-jobs
environments:
  prod:
    engine: google
    project: acme-ml
    location: us-central1
    stagingBucket: acme-staging
    claimsBucket: acme-claims
    endpoints: {{aiplatform: "{url}", ml: "{url}", storage: "{url}", logging: "{url}"}}
"""
ML_JOB = """
apiVersion: ml.googleapis.com/v1
kind: Job
metadata: {name: old}
spec:
  trainingInput:
    {region: us-central1, scaleTier: BASIC, runtimeVersion: "2.11", pythonModule: task,
     packageUris: ["gs://acme/task.tar.gz"]}
"""


@pytest.fixture(scope="module")
def key() -> str:
    return private_key()


@pytest.fixture
def cloud(repository: Repository, tmp_path: Path, key: str) -> Iterator[dict[str, str]]:
    """Yield the variables of Application Default Credentials, with the services up."""
    repository.job("first")
    assert repository.run("apply", "--wait").code == 0
    service = repository.service()
    config = repository.root / "reconciler.yaml"
    (repository.home / "gcs" / "acme-claims").mkdir()
    with token_server(lambda: service["token"]) as token_uri, behind_tls(service["url"]) as url:
        config.write_text(CONFIG.format(url=url) + config.read_text())
        told = {
            "type": "service_account",
            "client_email": "submitter@acme-ml.iam.gserviceaccount.com",
            "private_key": key,
            "private_key_id": "1",
            "project_id": "acme-ml",
            "token_uri": token_uri,
        }
        (tmp_path / "key.json").write_text(json.dumps(told))
        yield {
            "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "key.json"),
            "RECONCILER_ENV": "prod",
            "RECONCILER_TOKEN_HOSTS": urlsplit(url).netloc,
        }


@pytest.mark.fault(11)
def test_nothing_is_planned_without_a_prepared_claims_bucket(
    repository: Repository, cloud: dict[str, str]
) -> None:
    for command in ("plan", "apply", "status"):
        refused = repository.run(command, **cloud)
        assert refused.code == 1
        assert "run `reconciler init --claims --env prod`" in refused.err


def test_the_same_repository_on_google_cloud(repository: Repository, cloud: dict[str, str]) -> None:
    assert repository.run("init", "--claims", **cloud).code == 0
    plan = repository.run("plan", "--format", "json", **cloud).json
    assert plan["target"] == {
        "environment": "prod",
        "engine": "google",
        "project": "acme-ml",
        "location": "us-central1",
    }
    assert [change["action"] for change in plan["changes"]] == ["submit"]

    # In the cloud only its owner makes a bucket.
    refused = repository.run("apply", **cloud)
    assert refused.code == 1
    assert "there is no bucket acme-staging" in refused.out

    (repository.home / "gcs" / "acme-staging").mkdir()
    applied = repository.run("apply", "--format", "json", **cloud)
    assert [outcome["status"] for outcome in applied.json["outcomes"]] == ["applied"], applied.out
    (job,) = repository.run("status", "--format", "json", **cloud).json["jobs"]
    assert job["resource"].startswith("projects/")
    assert "/locations/us-central1/customJobs/" in job["resource"]
    assert repository.run("plan", "--detailed-exitcode", **cloud).code == 0


def test_an_ml_job_is_blocked_and_fails_the_apply(repository: Repository, cloud: dict[str, str]) -> None:
    assert repository.run("init", "--claims", **cloud).code == 0
    repository.write("jobs/old.yaml", ML_JOB)
    repository.job("first", reconcile="{suspend: true}")
    assert repository.run("plan", "--detailed-exitcode", **cloud).code == 2
    applied = repository.run("apply", "--format", "json", **cloud)
    assert applied.code == 1
    (outcome,) = applied.json["outcomes"]
    assert (outcome["action"], outcome["status"]) == ("blocked", "skipped")
    assert "reconciler migrate" in outcome["error"]


def test_googles_limits_are_on_without_being_written(repository: Repository, cloud: dict[str, str]) -> None:
    assert repository.run("init", "--claims", **cloud).code == 0
    for number in range(21):
        repository.job(f"job-{number}")
    refused = repository.run("apply", **cloud)
    assert refused.code == 4
    assert "one apply may do at most 20" in refused.err


def test_a_page_in_place_of_a_token_is_told(
    repository: Repository, cloud: dict[str, str], tmp_path: Path
) -> None:
    """A hotel's network answers every request with its own page and status 200."""
    page = answer(200, b"<html>welcome, sign in</html>", content_type="text/html")
    with RawServer([page], tls=server_tls()).running() as hotel:
        key = json.loads((tmp_path / "key.json").read_text())
        (tmp_path / "key.json").write_text(json.dumps({**key, "token_uri": f"{hotel.url}/token"}))
        for command in ("status", "plan", "apply"):
            refused = repository.run(command, **cloud)
            assert refused.code == 1
            assert "no usable Google credentials" in refused.err


def test_missing_and_refused_credentials_are_told_with_what_to_do(
    repository: Repository, cloud: dict[str, str], tmp_path: Path
) -> None:
    nowhere = {**cloud, "GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "none.json")}
    missing = repository.run("plan", **nowhere)
    assert missing.code == 1
    assert "gcloud auth application-default login" in missing.err
    with token_server(lambda: "another") as token_uri:
        key = json.loads((tmp_path / "key.json").read_text())
        (tmp_path / "key.json").write_text(json.dumps({**key, "token_uri": token_uri}))
        refused = repository.run("plan", **cloud)
    assert refused.code == 1
    assert "credentials are missing or expired" in refused.err
    assert "another" not in refused.err
