"""From a failed set-up to a trained model: output and remedy, without an edited manifest."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from tests.support.repository import IMAGE, Repository

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def requires(repository: Repository, *requirements: str) -> None:
    """Set the requirements of the jobs' image in reconciler.yaml."""
    lines = "".join(f"\n      - {line}" for line in requirements)
    text = f'images:\n  {IMAGE}:\n    python: "{PYTHON}"\n    requirements:{lines or " []"}\n'
    repository.write("reconciler.yaml", text)


def status(repository: Repository) -> list[Any]:
    jobs: list[Any] = repository.run("status", "--all", "--format", "json").json["jobs"]
    return jobs


@pytest.mark.fault(53)
def test_a_corrected_entry_under_images_lets_the_job_train(repository: Repository) -> None:
    manifest = repository.job("census")
    before = manifest.read_bytes()
    requires(repository, "no-such-package==1")
    done = repository.run("apply", "--wait")
    assert done.code == 1
    (failed,) = status(repository)
    assert failed["cause"]["class"] == "set-up"
    remedy = (
        "correct the package's requirements (another version), or set the image's entry under \"images\" in "
        'reconciler.yaml (another "python"), then run `reconciler apply`'
    )
    assert failed["cause"]["remedy"] == remedy
    assert f"{failed['jobName']} failed, set-up: " in done.err
    assert remedy in done.err
    assert "set-up: " in repository.run("status").out

    log = repository.run("logs", "census")
    assert log.code == 0
    assert "no-such-package" in log.out
    assert f"{failed['jobName']} failed, set-up: " in log.err

    # In CI, apply waits before it tries again, and prints the time of the next try.
    again = repository.run("apply", "--wait", CI="true")
    assert again.code == 1
    assert "its set-up failed a moment ago; it is tried again after" in again.out
    assert len(status(repository)) == 1

    requires(repository)
    done = repository.run("apply", "--wait", CI="true")
    assert done.code == 0, done.out + done.err
    assert repository.states() == {failed["jobName"]: "FAILED", f"{failed['jobName']}_2": "SUCCEEDED"}
    assert manifest.read_bytes() == before
    assert repository.run("apply", "--wait").code == 0


@pytest.mark.fault(53)
def test_an_index_that_can_be_reached_again_lets_the_job_train(repository: Repository) -> None:
    repository.job("census")
    requires(repository, "scipy")
    away = {"PIP_NO_INDEX": "", "PIP_FIND_LINKS": "", "PIP_INDEX_URL": "http://127.0.0.1:9/simple"}
    done = repository.run("apply", "--wait", **away)
    assert done.code == 1
    assert "set-up: " in done.err
    assert "make it reachable, or correct its address" in done.err
    assert repository.run("serve", "--stop").code == 0
    assert repository.run("apply", "--wait").code == 0
    second, first = status(repository)
    assert (first["cause"]["class"], second["state"], second["cause"]) == ("set-up", "SUCCEEDED", None)
    assert second["jobName"] == f"{first['jobName']}_2"


def test_a_failed_trainer_uses_up_its_attempt(repository: Repository) -> None:
    repository.job("census", args=["--fail"])
    done = repository.run("apply", "--wait")
    assert done.code == 1
    (job,) = status(repository)
    assert job["cause"] == {
        "class": "user-code",
        "message": "exit code 1: ValueError: the loss is NaN",
        "remedy": "see `reconciler logs census` and correct the code",
    }
    assert (
        "failed, user code: exit code 1: ValueError: the loss is NaN; see `reconciler logs census`"
        in done.err
    )
    again = repository.run("apply", "--wait")
    assert again.code == 1
    assert "failed, user code: exit code 1" in again.err
    assert len(status(repository)) == 1


def test_a_job_cancelled_on_purpose_fails_the_wait_and_names_the_two_ways_out(repository: Repository) -> None:
    repository.hold.touch()
    repository.job("census")
    assert repository.run("apply").code == 0
    assert repository.run("cancel", "census").code == 0
    assert repository.run("apply").code == 0
    done = repository.run("apply", "--wait")
    assert done.code == 1
    assert (
        'was cancelled by `reconciler cancel`; set "suspend: true" to leave it stopped, '
        "or run it again with `reconciler rerun census`" in done.err
    )
    assert (
        "cancelled by `reconciler cancel`"
        in repository.run("logs", "census").out + repository.run("logs", "census").err
    )
    repository.job("census", reconcile="{suspend: true}")
    assert repository.run("apply", "--wait").code == 0
    repository.job("census")
    repository.hold.unlink()
    assert repository.run("rerun", "census").code == 0
    assert repository.run("apply", "--wait").code == 0
