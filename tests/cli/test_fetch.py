"""`reconciler fetch`: what a name means, where its files go, and what is printed."""

from __future__ import annotations

import io
import os
import signal
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from reconciler import cli
from reconciler.cli import fetch as command
from reconciler.manifests import schemas
from reconciler.training_service.state.records import UNFINISHED, JobState
from tests.support.held_service import HeldService
from tests.support.publishing import FILES, JOB, TO, crc32c_of, publish, published_model, put
from tests.support.raw_server import RawServer, passing_on, silence
from tests.support.repository import Repository, Result
from tests.support.waiting import until

MANIFEST = """
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: census}}
{publish}
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      containerSpec: {{imageUri: "example.test/plain:1", args: [{args}]}}
  baseOutputDirectory: {{outputUriPrefix: gs://runs/census}}
"""
NAMES = sorted(FILES)
SIZE = sum(map(len, FILES.values()))


def job(
    repository: Repository, args: str = "", publish: str = "publish: {to: gs://risk-models/census}"
) -> None:
    """Write the manifest, in a repository whose runs have folders of their own."""
    settings = repository.root / "reconciler.yaml"
    if "outputs" not in settings.read_text():
        settings.write_text("outputs: own\n" + settings.read_text())
    repository.write("jobs/census.yaml", MANIFEST.format(args=args, publish=publish))


def run(*arguments: str) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.run(arguments)
    return Result(code, out.getvalue(), err.getvalue())


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def trained(service: HeldService, state: JobState = JobState.SUCCEEDED) -> str:
    """Apply, let the run come to a state, and write its files; return its name."""
    applied = run("apply", "-q")
    assert applied.code == 0, applied.err
    (record,) = service.store.unfinished()
    service.store.move(record.id, JobState.RUNNING, only_from=UNFINISHED, at="2026-01-01T00:00:00Z")
    if state is not JobState.RUNNING:
        service.store.move(record.id, state, only_from=UNFINISHED, at="2026-01-01T00:00:01Z")
    name = str(run("show", "census", "--format", "json").json["jobName"])
    for file, content in FILES.items():
        put(service.home, f"gs://runs/census/{name}/model/{file}", content)
    return name


def test_published_model_is_fetched_into_folder_of_its_name(
    repository: Repository, service: HeldService
) -> None:
    job(repository)
    publish(service.home, published_model(commit="a" * 40))
    done = run("fetch", "census")
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        f"{JOB}, published 2026-11-20 09:00 UTC by acme-jobs, environment local, commit aaaaaaaaaaaa",
        f"3 files, {SIZE} bytes, from {TO}/{JOB}",
        f"3 files, {SIZE} bytes: {repository.root / 'census'}",
    ]
    assert done.err == ""
    assert contents(repository.root / "census") == FILES


def test_fetched_model_is_told_as_json(repository: Repository, service: HeldService, tmp_path: Path) -> None:
    job(repository)
    publish(service.home, published_model())
    done = run("fetch", "census", str(tmp_path / "größe"), "--format", "json")
    assert done.code == 0, done.err
    Draft202012Validator(schemas.document("fetch-output.schema.json")).validate(done.json)
    assert done.json == {
        "formatVersion": 1,
        "jobName": JOB,
        "uri": f"{TO}/{JOB}",
        "published": {
            "baseName": "census",
            "source": "acme-jobs",
            "environment": "local",
            "commit": None,
            "time": "2026-11-20T09:00:00Z",
        },
        "folder": str(tmp_path / "größe"),
        "size": SIZE,
        "files": [{"name": n, "size": len(FILES[n]), "crc32c": crc32c_of(FILES[n])} for n in NAMES],
    }


def test_service_that_does_not_run_is_not_started(repository: Repository) -> None:
    job(repository)
    publish(repository.home, published_model())
    assert repository.run("env").code == 0  # makes the state
    repository.stop()
    done = repository.run("fetch", "census")
    assert done.code == 0, done.err
    assert contents(repository.root / "census") == FILES
    assert not (repository.home / "service.json").exists()


def test_name_without_publication_is_the_run_of_its_content(
    repository: Repository, service: HeldService
) -> None:
    job(repository, publish="")
    name = trained(service)
    done = run("fetch", "census")
    assert done.code == 0, done.err
    assert done.out.splitlines()[:2] == [
        f"{name}, the files of a run",
        f"3 files, {SIZE} bytes, from gs://runs/census/{name}",
    ]
    assert contents(repository.root / "census/model") == FILES
    told = run("fetch", name, "other", "--format", "json").json
    assert (told["jobName"], told["published"]) == (name, None)
    assert contents(repository.root / "other/model") == FILES


def test_nothing_published_yet_is_no_reason_to_take_a_run(
    repository: Repository, service: HeldService
) -> None:
    job(repository)
    name = trained(service)
    done = run("fetch", "census")
    assert done.code == 1
    assert f"nothing is published at {TO} yet" in done.err
    assert not (repository.root / "census").exists()
    assert run("fetch", "census", "--run", name).code == 0
    assert contents(repository.root / "census/model") == FILES


def test_run_that_is_not_whole_is_only_fetched_by_its_name(
    repository: Repository, service: HeldService
) -> None:
    job(repository, publish="")
    name = trained(service, JobState.RUNNING)
    done = run("fetch", "census")
    assert done.code == 1
    assert f"{name} is RUNNING" in done.err
    assert f"--run {name}" in done.err
    assert run("fetch", "census", "--run", name).code == 0
    assert contents(repository.root / "census/model") == FILES


def test_run_of_other_content_is_only_fetched_by_its_name(
    repository: Repository, service: HeldService
) -> None:
    job(repository, publish="")
    name = trained(service)
    job(repository, "--changed", publish="")
    done = run("fetch", "census")
    assert done.code == 1
    assert f'no manifest asks for the newest run of "census", {name}' in done.err
    assert f"--run {name}" in done.err
    assert not (repository.root / "census").exists()
    assert run("fetch", "census", "--run", name).code == 0
    assert contents(repository.root / "census/model") == FILES


def test_run_of_another_name_is_refused(repository: Repository, service: HeldService) -> None:
    job(repository, publish="")
    name = trained(service)
    done = run("fetch", "other", "--run", name)
    assert done.code == 64
    assert f"{name} is no run of other" in done.err


def test_job_that_never_ran_and_unknown_name_are_told(repository: Repository, service: HeldService) -> None:
    job(repository, publish="")
    never = run("fetch", "census")
    assert never.code == 1
    assert 'the service has no run of "census"' in never.err
    unknown = run("fetch", "cencus")
    assert unknown.code == 1
    assert "did you mean census?" in unknown.err
    outside = run("fetch", "../census")
    assert outside.code == 64
    assert "is no name of a job" in outside.err


def test_folder_that_is_not_new_is_refused_before_any_request(
    repository: Repository, service: HeldService, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(repository)
    publish(service.home, published_model())
    repository.write("census/notes.txt", "mine")
    monkeypatch.setattr(command, "find_folder", lambda *_: pytest.fail("it asked"))
    done = run("fetch", "census")
    assert done.code == 64
    assert "census is not empty" in done.err
    assert contents(repository.root / "census") == {"notes.txt": b"mine"}
    linked = repository.root / "linked"
    linked.symlink_to("census")
    assert run("fetch", "census", "linked").code == 64
    assert run("fetch", "census", "missing/model").code == 64


def test_empty_folder_is_taken(repository: Repository, service: HeldService) -> None:
    job(repository)
    publish(service.home, published_model())
    (repository.root / "model").mkdir()
    assert run("fetch", "census", "model/").code == 0
    assert contents(repository.root / "model") == FILES


HOSTILE = "\x1b]0;title\x07\n::error::x\u202e.bin"


def test_hostile_names_are_shown_inert(repository: Repository, service: HeldService) -> None:
    job(repository)
    publish(service.home, published_model({HOSTILE: b""}), {})
    done = run("fetch", "census")
    assert done.code == 1
    assert "it has control characters" in done.err
    lines = (done.out + done.err).splitlines()
    assert all(line.isprintable() and not line.lstrip().startswith("::") for line in lines)
    assert not (repository.root / "census").exists()


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"folder": f"gs://other-bucket/census/{JOB}"}, "below the address"),
        ({"folder": f"gs://risk-models/other/{JOB}"}, "below the address"),
        ({"job_name": "../../other"}, "jobName"),
        ({"base_name": "x" * 2000}, "baseName"),
    ],
)
def test_publication_by_somebody_else_is_refused(
    repository: Repository, service: HeldService, changed: dict[str, str], why: str
) -> None:
    job(repository)
    publish(service.home, published_model(), **changed)
    done = run("fetch", "census")
    assert done.code == 1
    assert f"{TO}/current.json can't be used: " in done.err
    assert why in done.err
    assert not (repository.root / "census").exists()


def test_progress_is_printed_while_it_takes_long(
    repository: Repository, service: HeldService, monkeypatch: pytest.MonkeyPatch
) -> None:
    job(repository)
    publish(service.home, published_model())
    monkeypatch.setattr(command, "_EVERY", 0.0)
    done = run("fetch", "census")
    assert done.err.splitlines()[-1] == f"  3 of 3 files, {SIZE} bytes of {SIZE} bytes"
    assert run("fetch", "census", "quiet", "-q").err == ""


def test_killed_fetch_leaves_a_temporary_folder_that_the_next_one_removes(
    repository: Repository, service: HeldService
) -> None:
    job(repository)
    publish(service.home, published_model())
    incomplete = repository.root / ".census.incomplete"
    behave = passing_on(service.url, silence, lambda request: ".bin" in request.target)
    with RawServer([behave]).running() as server:
        service.found_at(f"http://127.0.0.1:{server.port}")
        process = repository.start("fetch", "census")
        until(lambda: (incomplete / "files/variables").exists())
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert not (repository.root / "census").exists()
    assert contents(incomplete / "files")["model.txt"] == FILES["model.txt"]
    service.found_at(service.url)
    done = run("fetch", "census")
    assert done.code == 0, done.err
    assert contents(repository.root / "census") == FILES
    assert not os.path.lexists(incomplete)
