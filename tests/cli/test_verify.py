"""`reconciler verify`: a publication against the repository at its commit, and against what lies there."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from jsonschema import Draft202012Validator

from reconciler import cli
from reconciler.manifests import schemas
from reconciler.manifests.settings import load_config
from reconciler.model.plan import DesiredJob
from reconciler.model.publication import PublishedModel, current_json, published_json
from reconciler.operations.load_desired import load_desired
from reconciler.output.publication import UNSIGNED
from tests.support.held_service import HeldService
from tests.support.publishing import FILES, TO, current_model, path_of, publish, published_model, put
from tests.support.raw_server import RawServer, passing_on, silence
from tests.support.repository import Repository, Result

MANIFEST = """
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: census-income}}
package: {{path: ../trainer}}
publish: {{to: gs://risk-models/census}}
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      pythonPackageSpec: {{executorImageUri: "example.test/plain:1", pythonModule: task, args: [{args}]}}
  baseOutputDirectory: {{outputUriPrefix: gs://runs/census}}
"""
CURRENT = f"{TO}/current.json"


def run(*arguments: str) -> Result:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = cli.run(arguments)
    return Result(code, out.getvalue(), err.getvalue())


def commit(repository: Repository, *args: str) -> str:
    """Commit the repository with these arguments of the job; return the commit."""
    settings = repository.root / "reconciler.yaml"
    if "source" not in settings.read_text():
        settings.write_text("source: acme-jobs\noutputs: own\n" + settings.read_text())
        repository.git("init", "-q", "-b", "main")
    repository.write("jobs/census.yaml", MANIFEST.format(args=", ".join(map(json.dumps, args))))
    repository.git("add", "-A")
    repository.git("commit", "-qm", "change")
    return repository.git("rev-parse", "HEAD")


def desired(repository: Repository) -> DesiredJob:
    config = load_config(repository.root)
    (job,) = load_desired(config, config.environment(None), []).jobs
    return job


def published(service: HeldService, repository: Repository, sha: str, **changed: Any) -> PublishedModel:
    """Publish the repository's present job under a commit, with some fields of its record changed."""
    job = desired(repository)
    fields = {"base_name": "census-income", "job_name": job.job_name, "hash": job.identity, "commit": sha}
    model = published_model(**{**fields, **changed})
    publish(service.home, model)
    return model


def kinds(*arguments: str) -> list[str]:
    """Return the kinds of differences that `verify` finds; check the JSON, the text and the exit codes."""
    told = run("verify", *(arguments or ("census-income",)), "--format", "json")
    assert told.out, told.err
    Draft202012Validator(schemas.document("verify-output.schema.json")).validate(told.json)
    found = told.json["differences"]
    assert told.json["verified"] == (not found)
    assert (told.json["signed"], told.json["notice"]) == (False, UNSIGNED)
    text = run("verify", *(arguments or ("census-income",)))
    assert (told.code, text.code) == ((1, 1) if found else (0, 0))
    lines = text.out.splitlines()
    assert [line[2:] for line in lines if line.startswith("✗ ")] == [one["message"] for one in found]
    assert any(line.startswith("✓ ") for line in lines) == (not found)
    assert lines[-1] == UNSIGNED
    return [one["kind"] for one in found]


def test_publication_that_agrees_is_verified(repository: Repository, service: HeldService) -> None:
    sha = commit(repository)
    model = published(service, repository, sha)
    done = run("verify", "census-income")
    assert done.code == 0, done.out + done.err
    size = sum(map(len, FILES.values()))
    assert done.out.splitlines() == [
        f"{model.job_name}, published 2026-11-20 09:00 UTC by acme-jobs, environment local, "
        f"commit {sha[:12]}",
        f"in {TO}/{model.job_name}",
        f"✓ its name is that of census-income at commit {sha[:12]}",
        f"✓ 3 files, {size} bytes: sizes and checksums are the recorded ones",
        UNSIGNED,
    ]
    assert kinds() == kinds("census_income") == kinds(CURRENT) == []


def test_nothing_is_downloaded_but_the_records(repository: Repository, service: HeldService) -> None:
    model = published(service, repository, commit(repository))
    with RawServer([passing_on(service.url, silence, lambda request: False)]).running() as server:
        service.found_at(f"http://127.0.0.1:{server.port}")
        assert run("verify", "census-income").code == 0
        service.found_at(service.url)
    targets = [unquote(urlsplit(request.target).path) for request in server.arrived]
    read = [target.partition("/o/")[2] for target in targets if "/o/" in target]
    assert read == ["census/current.json", f"census/{model.job_name}/manifest.json"]
    assert len([target for target in targets if target.endswith("/o")]) == 3


@pytest.mark.parametrize("arguments", [("census-income",), (CURRENT,)])
def test_earlier_content_is_verified_by_its_own_commit(
    repository: Repository, service: HeldService, arguments: tuple[str, ...]
) -> None:
    """Also where the work tree has another job, and changes that aren't committed."""
    published(service, repository, commit(repository))
    commit(repository, "--epochs=3")
    repository.write("trainer/task.py", "raise SystemExit(3)\n")
    assert kinds(*arguments) == []


def test_earlier_code_is_part_of_the_name(repository: Repository, service: HeldService) -> None:
    first = commit(repository)
    repository.write("trainer/task.py", "print(1)\n")
    second = commit(repository)
    published(service, repository, first)
    assert kinds() == ["other-hash", "other-name"]
    published(service, repository, second)
    assert kinds() == []


def test_further_attempt_is_of_the_same_content(repository: Repository, service: HeldService) -> None:
    sha = commit(repository)
    published(service, repository, sha, job_name=f"{desired(repository).job_name}_12")
    assert kinds() == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"hash": "f" * 64}, ["other-hash"]),
        ({"job_name": "census_income_0011223344556677"}, ["other-name"]),
        ({"job_name": "other_0011223344556677", "hash": "f" * 64}, ["other-hash", "other-name"]),
        ({"base_name": "other"}, ["no-job"]),
        ({"source": "others-jobs"}, ["other-source"]),
        ({"environment": "prod"}, ["not-computed"]),
    ],
)
def test_record_of_another_job_is_told(
    repository: Repository, service: HeldService, changed: Mapping[str, str], expected: list[str]
) -> None:
    published(service, repository, commit(repository), **changed)
    assert kinds() == expected


def test_commit_that_the_clone_lacks_is_told_with_the_remedy(
    repository: Repository, service: HeldService
) -> None:
    commit(repository)
    published(service, repository, "a" * 40)
    assert kinds() == ["commit-missing"]
    assert f"`git fetch origin {'a' * 40}`" in run("verify", "census-income").out


def test_publication_without_commit_has_no_computable_name(
    repository: Repository, service: HeldService
) -> None:
    commit(repository)
    published(service, repository, "")
    assert kinds() == ["no-commit"]
    assert "can't be computed" in run("verify", "census-income").out


def test_commit_whose_manifest_is_invalid_is_told(repository: Repository, service: HeldService) -> None:
    sha = commit(repository)
    published(service, repository, sha)
    repository.write("jobs/census.yaml", "kind: nothing\n")
    repository.git("commit", "-qam", "worse")
    head = repository.git("rev-parse", "HEAD")
    model = published_model(base_name="census-income", commit=head)
    publish(service.home, model)
    assert kinds(CURRENT) == ["no-job"]
    assert "keep manifests from being read" in run("verify", CURRENT).out


def test_commit_whose_settings_are_invalid_is_told(repository: Repository, service: HeldService) -> None:
    sha = commit(repository)
    model = published(service, repository, sha)
    good = (repository.root / "reconciler.yaml").read_text()
    repository.write("reconciler.yaml", "nonsense: true\n")
    repository.git("commit", "-qam", "worse")
    head = repository.git("rev-parse", "HEAD")
    repository.write("reconciler.yaml", good)
    put(service.home, CURRENT, current_json(current_model(model, commit=head)))
    assert kinds() == ["not-computed"]


def spoiled(service: HeldService, folder: str, name: str, content: bytes | None) -> None:
    if content is None:
        path_of(service.home, f"{folder}/{name}").unlink()
    else:
        put(service.home, f"{folder}/{name}", content)


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        ("model.txt", b"WEIGHTS", "file-changed"),
        ("model.txt", b"longer weights", "file-changed"),
        ("empty", b"x", "file-changed"),
        ("model.txt", None, "file-missing"),
        ("strange/new.bin", b"x", "file-unknown"),
        ("manifest.json.bak", b"x", "file-unknown"),
        ("manifest.json", None, "no-record"),
    ],
)
def test_objects_that_are_not_as_recorded_are_told(
    repository: Repository, service: HeldService, name: str, content: bytes | None, kind: str
) -> None:
    model = published(service, repository, commit(repository))
    spoiled(service, f"{TO}/{model.job_name}", name, content)
    assert kinds() == [kind]
    assert name in run("verify", "census-income").out


def test_record_that_differs_from_what_is_in_place_is_told(
    repository: Repository, service: HeldService
) -> None:
    model = published(service, repository, commit(repository))
    other = published_model(job_name=model.job_name, base_name="other", hash="f" * 64, source="others")
    put(service.home, f"{TO}/{model.job_name}/manifest.json", published_json(other))
    assert kinds() == ["other-record"] * 3


def test_hostile_texts_are_shown_inert(repository: Repository, service: HeldService) -> None:
    hostile = "\x1b]0;title\x07\n::error::x\u202e"
    sha = commit(repository)
    model = published(service, repository, sha, source=hostile, environment=hostile, base_name=hostile)
    put(service.home, f"{TO}/{model.job_name}/\x1b[2J::error::", b"")
    done = run("verify", CURRENT)
    lines = (done.out + done.err).splitlines()
    assert all(line.isprintable() and not line.lstrip().startswith("::") for line in lines)
    assert done.code == 1


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"{" * 70_000, "larger than 65,536 bytes"),
        (b'{"formatVersion":1,"folder":' + b"[" * 60_000, "can't be used"),
        (current_json(current_model(published_model(), folder="gs://other/census/x")), "below the address"),
    ],
)
def test_publication_by_somebody_else_is_refused(
    repository: Repository, service: HeldService, content: bytes, why: str
) -> None:
    commit(repository)
    put(service.home, CURRENT, content)
    for name in ("census-income", CURRENT):
        done = run("verify", name)
        assert (done.code, done.out) == (1, "")
        assert f"{CURRENT} can't be used: " in done.err
        assert why in done.err


@pytest.mark.parametrize(
    ("name", "code", "said"),
    [
        ("census-income", 1, f"nothing is published at {TO}"),
        (f"{TO}/other/current.json", 1, f"nothing is published at {TO}/other"),
        ("cencus-income", 1, "did you mean census-income?"),
        ("unpublished", 1, "unpublished isn't published"),
        (TO, 64, "is no current.json"),
        ("gs://current.json", 64, "is no current.json"),
        ("gs:///current.json", 64, "is no current.json"),
        ("gs://a//current.json", 64, "is no current.json"),
        (f"{TO}/manifest.json", 64, "is no current.json"),
    ],
)
def test_what_cannot_be_verified_is_told(
    repository: Repository, service: HeldService, name: str, code: int, said: str
) -> None:
    commit(repository)
    repository.job("unpublished")
    done = run("verify", name)
    assert (done.code, done.out) == (code, "")
    assert said in done.err


def test_folder_without_git_is_told(repository: Repository, service: HeldService) -> None:
    sha = commit(repository)
    published(service, repository, sha)
    (repository.root / ".git").rename(repository.root.parent / "git")
    done = run("verify", "census-income")
    assert (done.code, done.out) == (64, "")
    assert "run it in a git checkout" in done.err


def test_commit_is_read_without_running_anything(
    repository: Repository, service: HeldService, tmp_path: Path
) -> None:
    """Filters, hooks and attributes of the repository stay unused, and the work tree as it is."""
    ran = tmp_path / "ran"
    commit(repository)
    repository.write(".gitattributes", "*.py filter=evil\n")
    repository.git("config", "filter.evil.smudge", f"touch {ran}")
    repository.git("config", "filter.evil.clean", "cat")
    repository.git("config", "core.fsmonitor", f"touch {ran}")
    sha = commit(repository)
    ran.unlink(missing_ok=True)
    published(service, repository, sha)
    ran.unlink(missing_ok=True)
    before = sorted(repository.root.rglob("*"))
    assert kinds() == []
    assert not ran.exists()
    assert sorted(repository.root.rglob("*")) == before


def test_code_in_a_submodule_is_read_at_its_recorded_commit(
    repository: Repository, service: HeldService, tmp_path: Path
) -> None:
    commit(repository)
    library = Repository(tmp_path / "library")
    library.git("init", "-q", "-b", "main")
    library.git("add", "-A")
    library.git("commit", "-qm", "trainer")
    repository.git("-c", "protocol.file.allow=always", "submodule", "-q", "add", str(library.root), "lib")
    file = repository.write("jobs/census.yaml", MANIFEST.format(args=""))
    text = file.read_text().replace("../trainer", "../lib/trainer")
    file.write_text(text)
    repository.git("add", "-A")
    repository.git("commit", "-qm", "use it")
    published(service, repository, repository.git("rev-parse", "HEAD"))
    (repository.root / "lib/trainer/task.py").write_text("raise SystemExit(3)\n")
    assert kinds() == []
