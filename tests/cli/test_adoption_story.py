"""Adopted live jobs among few and many claims: a short look plans the same as a full look."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.concurrency import run_concurrently
from reconciler.manifests.settings import load_config
from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.job import State
from reconciler.model.manifest import AIPLATFORM_V1
from reconciler.operations.session import open_session
from tests.support.live_jobs import PLACE, rows, send
from tests.support.repository import Repository
from tests.support.waiting import until

MANY = 600
FEW = 12


def remember(repository: Repository, count: int) -> None:
    """Write the claims of `count` contents that each ran once and have no job in the service any more."""
    config = load_config(repository.root)
    claims = [
        Claim(
            ClaimId(f"{number:052}"),
            ClaimState.BOUND,
            job_name=f"old_{number:016}",
            base_name="old",
            api_version=AIPLATFORM_V1,
            kind="CustomJob",
            request_ids=(f"{number:026}",),
            resource=f"projects/local/locations/local/customJobs/{number + 1}",
            ended=State.SUCCEEDED,
        )
        for number in range(count)
    ]
    with open_session(config, config.environment(None), os.environ, start=False) as session:
        store = session.claims
        written = run_concurrently([lambda claim=claim: store.write(claim, 0) for claim in claims])
        assert sum(1 for _ in written) == count


@pytest.fixture(params=[FEW, MANY])
def adopted(request: pytest.FixtureRequest, repository: Repository) -> Path:
    """Return the manifest of an adopted live job that runs until released, beside FEW or MANY claims."""
    repository.hold.touch()
    job = repository.job("census", args=["--staged"])
    repository.run("apply")
    body = send(repository, "GET", f"/v1/{rows(repository)['census']['resource']}")
    repository.run("cancel", "census")
    job.unlink()
    remember(repository, request.param)
    repository.job("beside", reconcile="{suspend: true}")
    assert repository.run("apply").code == 0
    body["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]["args"] = ["--other"]
    send(repository, "POST", f"{PLACE}/customJobs", {"displayName": "adopted", "jobSpec": body["jobSpec"]})
    done = repository.run("import", "--live", "--adopt", "adopted")
    assert done.code == 0, done.out + done.err
    until(lambda: states(repository)["adopted"] == "RUNNING")
    return repository.root / "jobs/adopted.yaml"


def plans(repository: Repository) -> list[Any]:
    """Return the changes and the findings of a plan; check that a full plan has the same.

    Two plans differ where a job gets from preparing to running between them.
    """
    until(lambda: {"QUEUED", "PREPARING"}.isdisjoint(states(repository).values()))
    short, full = (repository.run("plan", "--format", "json", *flags).json for flags in ([], ["--full"]))
    assert (short["changes"], short["drift"]) == (full["changes"], full["drift"])
    return [
        {change["baseName"]: change["action"] for change in short["changes"]},
        sorted(drift["kind"] for drift in short["drift"]),
    ]


def states(repository: Repository, *flags: str) -> dict[str, str]:
    """Return the states that `status` shows, by job name."""
    jobs = repository.run("status", "--format", "json", *flags).json["jobs"]
    return {job["jobName"]: job["state"] for job in jobs}


@pytest.mark.fault(54, 55)
def test_short_look_plans_what_a_full_one_plans_for_an_adopted_job(
    repository: Repository, adopted: Path
) -> None:
    text = adopted.read_text()
    assert plans(repository) == [{"adopted": "none", "beside": "none"}, []]
    adopted.write_text(text.replace("--other", "--new"))
    assert plans(repository) == [{"adopted": "submit", "beside": "none"}, ["superseded"]]
    adopted.write_text(text.replace("spec:", "reconcile: {suspend: true}\nspec:", 1))
    assert plans(repository) == [{"adopted": "none", "beside": "none"}, []]
    adopted.write_text(text.replace("spec:", "reconcile: {rerun: again}\nspec:", 1))
    assert plans(repository) == [{"adopted": "submit", "beside": "none"}, ["superseded"]]
    adopted.unlink()
    assert plans(repository) == [{"beside": "none"}, ["orphaned"]]
    adopted.write_text(text)
    assert plans(repository) == [{"adopted": "none", "beside": "none"}, []]


@pytest.mark.fault(54, 55)
def test_adopted_job_is_cancelled_for_edited_content_and_no_other_runs_beside_it(
    repository: Repository, adopted: Path
) -> None:
    text = adopted.read_text().replace("--other", "--new")
    adopted.write_text(text.replace("spec:", "reconcile: {onChange: cancel}\nspec:", 1))
    done = repository.run("apply")
    assert done.code == 0, done.err
    assert states(repository, "--all")["adopted"] == "CANCELLED"
    assert plans(repository)[1] == []


@pytest.mark.fault(54, 59)
def test_content_of_an_adopted_job_comes_back_as_a_job_of_this_tools_own(
    repository: Repository, adopted: Path
) -> None:
    text = adopted.read_text().replace("spec:", "reconcile: {onChange: cancel}\nspec:", 1)
    adopted.write_text(text.replace("--other", "--new"))
    assert repository.run("apply").code == 0
    adopted.write_text(text)
    planned = repository.run("plan", "--format", "json").json["changes"]
    assert sorted(change["action"] for change in planned) == ["cancel", "none", "retry"]
    done = repository.run("apply")
    assert done.code == 0, done.err
    found = states(repository, "--all")
    assert found["adopted"] == "CANCELLED"
    (own,) = (name for name in found if name.endswith("_2"))
    until(lambda: states(repository)[own] == "RUNNING")
    assert plans(repository) == [{"adopted": "none", "beside": "none"}, []]


def test_apply_of_a_part_shows_the_difference_after_an_edit_and_leaves_other_jobs(
    repository: Repository,
) -> None:
    repository.job("census")
    repository.job("fraud")
    assert repository.run("apply", "--wait").code == 0
    remember(repository, MANY)
    assert repository.run("apply").code == 0
    iris = repository.job("iris", args=["--epochs=1"])
    assert repository.run("apply", "--wait", "jobs/iris.yaml").code == 0
    iris.write_text(iris.read_text().replace("--epochs=1", "--epochs=2"))
    (submit,) = (
        change
        for change in repository.run("plan", "--format", "json").json["changes"]
        if change["action"] == "submit"
    )
    assert [(field["before"], field["after"]) for field in submit["fields"]] == [("--epochs=1", "--epochs=2")]
    assert plans(repository) == [{"census": "none", "fraud": "none", "iris": "submit"}, []]
