"""`reconciler env`, and the snippets of docs/clients.md run with its output."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.support.documented import snippets
from tests.support.repository import Repository, environ
from tests.support.unpacked import unpack


def status(url: str, token: str = "") -> int:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"} if token else {})
    try:
        with urllib.request.urlopen(request) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def test_env_prints_url_and_token_of_running_service(repository: Repository) -> None:
    found = repository.run("env", "--format", "json").json
    address = json.loads((repository.home / "service.json").read_text())
    assert (found["url"], found["token"]) == (address["url"], address["token"])
    assert (found["project"], found["location"]) == ("local", "local")
    variables = found["variables"]
    buckets = "/storage/v1/b?project=local"
    assert status(found["url"] + buckets, found["token"]) == 200
    assert status(variables["STORAGE_EMULATOR_HOST"] + buckets) == 200
    assert status(variables["STORAGE_EMULATOR_HOST"] + "/v1/projects/local/jobs") == 404
    assert status(found["url"] + "/jobs/other" + buckets) == 401
    for name in ("credentials.json", "token"):
        assert (repository.home / name).stat().st_mode & 0o777 == 0o600


def test_env_prints_the_same_variables_for_a_shell(repository: Repository) -> None:
    found = repository.run("env", "--format", "json").json["variables"]
    shell = repository.run("env")
    done = subprocess.run(
        ["/bin/sh", "-c", f"{shell.out}\nenv -0"],
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
    )
    exported = dict(line.split("=", 1) for line in done.stdout.split("\0") if line)
    assert {name: exported.get(name) for name in found} == found


def test_env_of_google_is_refused(repository: Repository) -> None:
    google = "{engine: google, project: acme-ml, location: us-central1, stagingBucket: gs://acme-staging}"
    repository.write("reconciler.yaml", f"source: env-test-7f3a\nenvironments:\n  production: {google}\n")
    refused = repository.run("env", "--env", "production")
    assert refused.code == 64
    assert "engine: local" in refused.err
    assert not (repository.home / "service.json").exists()


def test_python_of_the_page_runs(repository: Repository, tmp_path: Path, wheelhouse: Path) -> None:
    blocks = snippets("python")
    assert len(blocks) == 4
    (repository.root / "local_service.py").write_text(repository.run("env", "--format", "python").out)
    (repository.root / "task.py").write_text("print('training')\n")
    for number, block in enumerate(blocks):
        (repository.root / f"snippet_{number}.py").write_text(block)
    program = f"import runpy\nfor number in range({len(blocks)}): runpy.run_path(f'snippet_{{number}}.py')"
    packages = f"{unpack(wheelhouse, tmp_path / 'packages')}{os.pathsep}."
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=repository.root,
        env=environ(PYTHONPATH=packages),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "census_by_hand" in done.stdout
    assert "a line of my own" in done.stdout
    assert "['census']" in done.stdout


def test_rclone_of_the_page_runs(repository: Repository) -> None:
    if shutil.which("rclone") is None:
        pytest.skip("rclone is missing")
    (block,) = (each for each in snippets("sh") if "rclone" in each)
    done = subprocess.run(
        ["/bin/sh", "-ec", block],
        cwd=repository.root,
        env=environ(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "0 differences found" in done.stderr
    assert (repository.home / "gcs/my-copies/trainer/task.py").is_file()
