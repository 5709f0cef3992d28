"""`import --live`: jobs of an environment that the tool hasn't submitted."""

from __future__ import annotations

import json
import urllib.request
from typing import Any

import yaml
from repository import Repository
from waiting import until

from tests.training_service.bodies import VERTEX, custom_job

# A job whose package is missing may have failed before it is cancelled.
ENDS = {"JOB_STATE_CANCELLED", "JOB_STATE_FAILED"}


def send(repository: Repository, method: str, path: str, body: Any = None) -> Any:
    """Call the embedded service's API as its owner."""
    told = repository.service()
    request = urllib.request.Request(
        told["url"] + path,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {told['token']}", "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as answer:
        return json.loads(answer.read())


def test_live_job_of_another_client_is_imported_suspended(repository: Repository) -> None:
    repository.run("apply")  # starts the service
    place = VERTEX.replace("demo", "local").replace("us-central1", "local")
    for name in ("other", "second"):
        send(repository, "POST", f"{place}/customJobs", {**custom_job(name), "labels": {"team": name}})
    jobs = send(repository, "GET", f"{place}/customJobs")["customJobs"]
    for job in jobs:
        send(repository, "POST", f"/v1/{job['name']}:cancel", {})
    until(lambda: _states(repository, place) <= ENDS)
    done = repository.run("import", "--live", "-l", "team=other")
    assert done.code == 0, done.err
    manifest = yaml.safe_load((repository.root / "jobs/other.yaml").read_text())
    assert manifest["reconcile"] == {"suspend": True}
    assert manifest["spec"] == yaml.safe_load(json.dumps(custom_job()["jobSpec"]).replace('"1"', "1"))
    assert not (repository.root / "jobs/second.yaml").exists()
    assert repository.run("import", "--live", "unknown").code == 1


def _states(repository: Repository, place: str) -> set[str]:
    return {job["state"] for job in send(repository, "GET", f"{place}/customJobs")["customJobs"]}
