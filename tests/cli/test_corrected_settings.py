"""A job that the training service can't run is refused at its creation, and goes on after the correction."""

from __future__ import annotations

import sys

import pytest

from reconciler.base.errors import ExitCode
from tests.support.repository import Repository

NEW = "example.test/not-named:1"
VERSION = f"{sys.version_info.major}.{sys.version_info.minor}"


def with_image(repository: Repository, image: str, more: str = "") -> None:
    manifest = repository.job()
    text = manifest.read_text().replace("example.test/plain:1", image)
    manifest.write_text(text + more)


@pytest.mark.slow
def test_job_of_unknown_image_is_refused_and_trains_once_its_entry_is_there(repository: Repository) -> None:
    with_image(repository, NEW)
    refused = repository.run("apply", "--wait", "--format", "json")
    assert refused.code == ExitCode.FAILED
    (outcome,) = refused.json["outcomes"]
    assert (outcome["action"], outcome["status"], outcome["state"]) == ("submit", "failed", None)
    assert "executor_image_uri" in outcome["error"]
    assert f'say under images in reconciler.yaml what to run it as: "{NEW}": {{python:' in outcome["error"]
    (job,) = repository.run("status", "--format", "json").json["jobs"]
    assert (job["claim"], job["state"], job["attempt"]) == ("rejected", None, 1)

    plan = repository.run("plan", "--format", "json").json
    assert [change["action"] for change in plan["changes"]] == ["submit"]

    entry = f'  {NEW}: {{python: "{VERSION}", requirements: []}}\n'
    settings = repository.root / "reconciler.yaml"
    settings.write_text(settings.read_text() + entry)
    applied = repository.run("apply", "--wait", "--format", "json")
    assert applied.code == ExitCode.DONE, applied.out + applied.err
    (outcome,) = applied.json["outcomes"]
    assert (outcome["jobName"], outcome["state"]) == (job["jobName"], "SUCCEEDED")
    (job,) = repository.run("status", "--format", "json").json["jobs"]
    assert (job["claim"], job["attempt"]) == ("bound", 1)
    assert repository.starts.read_text().count("start") == 1


@pytest.mark.slow
def test_field_without_effect_is_one_line_of_the_log_and_unknown_machine_a_warning(
    repository: Repository,
) -> None:
    with_image(repository, "example.test/plain:1", '  network: "projects/1/global/networks/n"\n')
    manifest = repository.root / "jobs" / "census.yaml"
    manifest.write_text(manifest.read_text().replace("n1-standard-4", "n1-standart-4"))
    applied = repository.run("apply", "--wait")
    assert applied.code == ExitCode.DONE, applied.out + applied.err
    assert "warning: n1-standart-4 is not a known machine type" in applied.err
    logs = repository.run("logs", "census").out
    assert logs.count("network has no effect here") == 1


def test_warning_fails_validation_only_if_strict(repository: Repository) -> None:
    manifest = repository.job()
    manifest.write_text(manifest.read_text().replace("n1-standard-4", "n1-standart-4"))
    lenient, strict = repository.run("validate"), repository.run("validate", "--strict")
    assert (lenient.code, strict.code) == (ExitCode.DONE, ExitCode.INVALID)
    assert lenient.out == strict.out
    assert "n1-standart-4 is not a known machine type" in lenient.out
    assert "did you mean n1-standard-4?" in lenient.out
    planned = repository.run("plan", "--detailed-exitcode")
    assert planned.code == ExitCode.CHANGES_PENDING
    assert "did you mean n1-standard-4?" in planned.err
