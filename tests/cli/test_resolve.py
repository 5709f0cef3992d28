"""`reconciler resolve`: a submission that a person has to settle, with the command line and real claims."""

from __future__ import annotations

import json
from typing import Any

import pytest
import urllib3

from tests.support.repository import Repository


@pytest.fixture
def body(repository: Repository) -> dict[str, Any]:
    """Return the body that apply would send, after another client made another job with the same labels."""
    repository.hold.touch()
    repository.job("other")
    assert repository.run("apply").code == 0
    repository.job("census")
    body: dict[str, Any] = repository.run("render", "census").json
    forged = {**body, "jobSpec": {**body["jobSpec"], "workerPoolSpecs": [pool(body, "--fail")]}}
    service = repository.service()
    answer = urllib3.request(
        "POST",
        f"{service['url']}/v1/projects/local/locations/local/customJobs",
        body=json.dumps(forged),
        headers={"Authorization": f"Bearer {service['token']}", "Content-Type": "application/json"},
    )
    assert answer.status == 200, answer.data
    return body


def pool(body: dict[str, Any], argument: str) -> dict[str, Any]:
    first: dict[str, Any] = body["jobSpec"]["workerPoolSpecs"][0]
    return {**first, "pythonPackageSpec": {**first["pythonPackageSpec"], "args": [argument]}}


def row(repository: Repository, name: str) -> list[tuple[str, str | None]]:
    """Return claim and state of each row of a job."""
    jobs = repository.run("status", "--format", "json").json["jobs"]
    return [(job["claim"], job["state"]) for job in jobs if job["jobName"] == name]


@pytest.mark.fault(18)
def test_a_foreign_job_is_not_adopted_and_a_person_decides(
    repository: Repository, body: dict[str, Any]
) -> None:
    name = body["displayName"]
    applied = repository.run("apply", "--format", "json")
    assert applied.code == 1
    (outcome,) = applied.json["outcomes"]
    assert (outcome["jobName"], outcome["status"]) == (name, "failed")
    assert (
        "is another job: it differs at /jobSpec/workerPoolSpecs/0/pythonPackageSpec/args" in outcome["error"]
    )
    assert f"run `reconciler resolve {name} --resubmit` or `--give-up`" in outcome["error"]

    planned = repository.run("plan", "--detailed-exitcode")
    assert planned.code == 2
    assert f"run `reconciler resolve {name} --resubmit` or `--give-up`" in " ".join(planned.out.split())
    assert ("held", None) in row(repository, name)

    settled = repository.run("resolve", "census", "--resubmit")
    assert settled.code == 0
    assert settled.out.startswith(f"{name} is projects/")
    assert "bound" in dict(row(repository, name))
    again = repository.run("resolve", "census", "--give-up")
    assert (again.code, again.err) == (
        1,
        'reconciler: "census" has nothing to resolve: its job is known\n',
    )


def test_what_is_given_up_is_not_submitted(repository: Repository, body: dict[str, Any]) -> None:
    name = body["displayName"]
    assert repository.run("apply").code == 1
    given_up = repository.run("resolve", name, "--give-up")
    assert (given_up.code, given_up.out) == (
        0,
        f'{name} is given up: it is submitted again only when its content or "rerun" changes\n',
    )
    assert repository.run("plan", "--detailed-exitcode").code == 0
    assert repository.run("apply").code == 0
    repository.job("census", reconcile="{rerun: again}")
    assert repository.run("apply", "--format", "json").json["outcomes"][0]["status"] == "applied"


def test_without_its_manifest_it_can_only_be_given_up(repository: Repository, body: dict[str, Any]) -> None:
    assert repository.run("apply").code == 1
    (repository.root / "jobs" / "census.yaml").unlink()
    refused = repository.run("resolve", "census", "--resubmit")
    assert refused.code == 1
    assert f"no manifest holds the content of {body['displayName']} any more" in refused.err
    assert repository.run("resolve", "census", "--give-up").code == 0


def test_a_name_that_nothing_was_submitted_as(repository: Repository) -> None:
    repository.job("census")
    refused = repository.run("resolve", "census", "--give-up")
    assert (refused.code, refused.out) == (1, "")
    assert refused.err.startswith('reconciler: nothing was ever submitted as "census"')
    assert repository.run("resolve", "census").code == 64
