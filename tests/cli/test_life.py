"""The life of a desired job after it was submitted: reverts, deletions, disasters."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import urllib3

from tests.support.repository import Repository
from tests.support.waiting import PATIENCE, until


def call(repository: Repository, method: str, path: str, body: Any = None) -> Any:
    """Send a request to the embedded service by its own API."""
    service = repository.service()
    answer = urllib3.request(
        method,
        f"{service['url']}/{path}",
        body=json.dumps(body) if body is not None else None,
        headers={"Authorization": f"Bearer {service['token']}", "Content-Type": "application/json"},
        retries=False,
    )
    assert answer.status == 200, answer.data
    return json.loads(answer.data)


def jobs(repository: Repository) -> list[Any]:
    """Return all jobs of the service."""
    found = call(repository, "GET", "v1/projects/local/locations/local/customJobs?pageSize=100")
    return list(found.get("customJobs", []))


def change(repository: Repository, name: str = "census") -> Any:
    changes = repository.run("plan", "--format", "json").json["changes"]
    (found,) = (change for change in changes if change["baseName"] == name)
    return found


def drift(repository: Repository) -> list[str]:
    return [finding["kind"] for finding in repository.run("plan", "--format", "json").json["drift"]]


@pytest.mark.fault(22)
def test_a_revert_does_not_run_again_and_says_how_to(repository: Repository) -> None:
    repository.job("census", args=["a"])
    assert repository.run("apply", "--wait").code == 0
    first = change(repository)["jobName"]
    repository.job("census", args=["b"])
    assert repository.run("apply", "--wait").code == 0
    repository.job("census", args=["a"])
    reverted = change(repository)
    assert (reverted["action"], reverted["jobName"]) == ("none", first)
    assert reverted["reason"] == f"already ran as {first} (succeeded); run it again with `reconciler rerun`"
    assert repository.run("apply", "--wait").code == 0
    assert len(jobs(repository)) == 2
    repository.job("census", args=["a"], reconcile="{rerun: once more}")
    assert change(repository)["action"] == "submit"


@pytest.mark.fault(23)
def test_a_deleted_job_is_told_and_not_made_again(repository: Repository) -> None:
    repository.hold.touch()
    repository.job("census")
    assert repository.run("apply").code == 0
    (job,) = jobs(repository)
    call(repository, "POST", f"v1/{job['name']}:cancel", {})
    until(lambda: jobs(repository)[0]["state"] == "JOB_STATE_CANCELLED")
    assert drift(repository) == ["cancelled-outside"]
    call(repository, "DELETE", f"v1/{job['name']}")
    for _ in range(2):
        assert repository.run("apply").code == 0
        assert jobs(repository) == []
    assert change(repository)["action"] == "none"


def test_an_orphan_is_cancelled_as_its_manifest_wished(repository: Repository) -> None:
    repository.hold.touch()
    repository.job("census", reconcile="{onDelete: cancel}")
    repository.job("other")
    assert repository.run("apply").code == 0
    (repository.root / "jobs" / "census.yaml").unlink()
    planned = repository.run("plan", "--format", "json").json
    assert [c["action"] for c in planned["changes"]] == ["cancel", "none"]
    applied = repository.run("apply", "--format", "json").json
    assert [(o["action"], o["status"], o["state"]) for o in applied["outcomes"]] == [
        ("cancel", "applied", "CANCELLED")
    ]


@pytest.mark.fault(21)
def test_an_emptied_folder_cancels_nothing(repository: Repository) -> None:
    repository.hold.touch()
    repository.job("census", reconcile="{onDelete: cancel}")
    assert repository.run("apply").code == 0
    shutil.move(repository.root / "jobs", repository.root / "elsewhere")
    repository.git("init", "-q")  # an index without files of the folder
    live = {"JOB_STATE_QUEUED", "JOB_STATE_PENDING", "JOB_STATE_RUNNING"}
    for _ in range(2):
        assert repository.run("apply").code == 0
        assert len(jobs(repository)) == 1
        assert {job["state"] for job in jobs(repository)} <= live
        assert drift(repository) == ["orphaned"]
        (repository.root / "jobs").mkdir(exist_ok=True)


def test_the_last_manifest_can_be_removed(repository: Repository) -> None:
    """Git keeps no empty folder."""
    repository.job("census")
    repository.git("init", "-q")
    repository.git("add", ".")
    repository.git("commit", "-q", "-m", "a job")
    repository.git("rm", "-q", "-r", "jobs")
    assert not (repository.root / "jobs").exists()
    said = "jobs:1:1: warning: there is no such folder, and git has no file of it"
    for command in (
        ["validate"],
        ["plan", "--detailed-exitcode"],
        ["plan", "--base", "HEAD"],
        ["apply"],
        ["migrate"],
        ["report"],
    ):
        done = repository.run(*command)
        assert done.code == 0, done
        assert (done.out + done.err).count(said) == (command != ["report"]), done
    assert repository.run("validate").out.endswith("No manifests found; 1 warning in 1 file.\n")
    (problem,) = repository.run("validate", "--format", "json").json["problems"]
    assert problem["level"] == "warning"


COMMANDS = (["validate"], ["plan"], ["apply"], ["migrate"], ["render", "census"])


@pytest.mark.parametrize("how", ["removed", "sparse", "no repository", "no git"])
def test_missing_folder_is_an_error_where_its_manifests_are_elsewhere(
    repository: Repository, tmp_path: Path, how: str
) -> None:
    """Check that the message gives the command that restores them."""
    repository.job("census")
    remedies = {
        "removed": "`git restore jobs` brings it back; `git rm -r jobs` removes it for good",
        "sparse": "the checkout is sparse: run `git sparse-checkout add jobs`",
    }
    if how != "no repository":
        repository.git("init", "-q")
        repository.git("add", ".")
        repository.git("commit", "-q", "-m", "a job")
    environ = {"GIT_CEILING_DIRECTORIES": str(tmp_path)}
    if how == "sparse":
        repository.git("sparse-checkout", "set", "--no-cone", "/*", "!/jobs")
    else:
        shutil.rmtree(repository.root / "jobs")
    if how == "no git":
        environ["PATH"] = str(tmp_path)
    for command in COMMANDS if how != "no git" else (["validate"], ["render", "census"]):
        done = repository.run(*command, **environ)
        assert (done.code, done.out) == (64, "")
        assert f"there is no folder {repository.root / 'jobs'}" in done.err
        assert remedies.get(how, "or name the files or folders that hold them") in done.err
    assert repository.run("plan", "jobs").code == 64
    if how == "sparse":
        repository.git("sparse-checkout", "add", "jobs")
    elif how == "removed":
        repository.git("restore", "jobs")
    if how in remedies:
        assert repository.run("validate").code == 0


@pytest.mark.fault(11)
def test_emptied_claims_stop_everything_until_a_person_says_so(repository: Repository) -> None:
    repository.job("census")
    assert repository.run("apply", "--wait").code == 0
    repository.run("serve", "--stop")
    shutil.rmtree(repository.home / "gcs" / "reconciler-staging" / "reconciler" / "claims")
    for command in ("plan", "apply"):
        refused = repository.run(command)
        assert refused.code == 1
        assert "the service has 1 run of this repository" in refused.err
        assert "run `reconciler init --claims --env local`" in refused.err
    assert repository.run("init", "--claims").code == 0
    assert change(repository)["reason"] == "found without a claim: adopted if it is the same job"
    adopted = repository.run("apply", "--format", "json")
    assert (adopted.code, adopted.json["outcomes"][0]["state"]) == (0, "SUCCEEDED")
    assert len(jobs(repository)) == 1
    assert repository.run("plan", "--detailed-exitcode").code == 0


@pytest.mark.fault(33)
@pytest.mark.parametrize("blocks", [4, 48, 160])
def test_a_full_disk_stops_and_loses_nothing(repository: Repository, blocks: int) -> None:
    """Limit the files of the service to some kilobytes: it fails at its start or later."""
    repository.job("census")
    repository.job("other")
    limited = subprocess.run(
        ["bash", "-c", f"ulimit -f {blocks}; exec {sys.executable} -m reconciler apply"],
        cwd=repository.root,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    log = repository.home / "service.log"
    said = limited.stdout + limited.stderr + (log.read_text() if log.exists() else "")
    assert "Traceback" not in said
    # A retry may have succeeded after a first failure.
    assert limited.returncode in (0, 1), said
    repository.run("serve", "--stop")
    applied = repository.run("apply", "--wait")
    found = jobs(repository)
    assert len({job["displayName"] for job in found}) == len(found)
    # A job that began while the disk was full may have failed for this reason, before its start or after.
    succeeded = {job["displayName"][:5] for job in found if job["state"] == "JOB_STATE_SUCCEEDED"}
    assert {job["displayName"][:5] for job in found} == {"censu", "other"}
    assert applied.code == (0 if len(succeeded) == 2 else 1), applied.out + applied.err
    starts = repository.starts.read_text().splitlines() if repository.starts.exists() else []
    assert len(succeeded) <= len(starts) <= 2


@pytest.mark.fault(36)
def test_a_locked_state_stops_clearly_and_makes_nothing_twice(repository: Repository) -> None:
    repository.hold.touch()
    repository.job("census")
    assert repository.run("apply").code == 0
    repository.job("other")
    lock = sqlite3.connect(repository.home / "state.db", isolation_level=None, timeout=PATIENCE)
    try:
        lock.execute("BEGIN EXCLUSIVE")
        refused = repository.run("apply")
    finally:
        lock.close()
    assert refused.code == 1
    assert "state" in refused.out + refused.err
    assert repository.run("apply").code == 0
    assert len(jobs(repository)) == 2


@pytest.mark.fault(36)
def test_a_corrupt_state_is_not_taken_for_an_empty_one(repository: Repository) -> None:
    repository.job("census")
    assert repository.run("apply", "--wait").code == 0
    repository.run("serve", "--stop")
    state = repository.home / "state.db"
    whole = state.read_bytes()
    state.write_bytes(whole[:50] + b"\xff" * 200 + whole[250:])
    for command in ("plan", "apply", "status"):
        refused = repository.run(command)
        assert refused.code == 1, refused
        assert str(repository.home) in refused.err
    state.write_bytes(whole)
    assert repository.run("plan", "--detailed-exitcode").code == 0
    assert len(repository.starts.read_text().splitlines()) == 1


@pytest.mark.fault(31)
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_an_apply_that_is_told_to_end_ends(repository: Repository, how: signal.Signals) -> None:
    repository.hold.touch()
    repository.job("census")
    process = repository.start("apply", "--wait", "--log-format", "json")
    assert process.stderr is not None
    assert process.stderr.readline()
    process.send_signal(how)
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode not in (0, 2, 3, 4, 64)
    assert "Traceback" not in out + err
    repository.hold.unlink()
    assert repository.run("apply", "--wait").code == 0
    assert len(repository.starts.read_text().splitlines()) == 1
