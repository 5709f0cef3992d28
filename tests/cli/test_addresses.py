"""What commands say of the addresses that manifests publish to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.repository import Repository

pytestmark = pytest.mark.slow

JOB = """\
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: {name}}}
publish: {publish}
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      containerSpec: {{imageUri: "example.com/trainer@sha256:{digest}"}}
  baseOutputDirectory: {{outputUriPrefix: gs://runs/{name}}}
"""


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Return a repository whose service is never started."""
    return Repository(tmp_path / "repository")


def write(repository: Repository, name: str, publish: str) -> None:
    repository.write(f"jobs/{name}.yaml", JOB.format(name=name, publish=publish, digest="0" * 64))


def test_commands_refuse_address_and_validate_warns_of_bucket(repository: Repository) -> None:
    settings = repository.root / "reconciler.yaml"
    settings.write_text(f"outputs: own\n{settings.read_text()}")
    write(repository, "census", "{to: gs://runs/published/census}")
    write(repository, "wine", "{to: gs://models/wine}")
    lenient, strict = repository.run("validate"), repository.run("validate", "--strict")
    assert (lenient.code, strict.code) == (0, 3)
    place = 'jobs/census.yaml:4:15: warning: the output folder "gs://runs/census"'
    assert place in lenient.out
    assert "1 warning" in lenient.out
    write(repository, "wine", "{to: gs://runs/published/census/wine}")
    for command in ("validate", "plan", "apply"):
        done = repository.run(command)
        assert done.code == 3, done.out + done.err
        assert 'jobs/wine.yaml:4:15: "gs://runs/published/census/wine" lies in' in done.out + done.err
    assert not (repository.home / "gcs").exists()


def test_address_of_the_environment_counts_for_that_environment(repository: Repository) -> None:
    settings = repository.root / "reconciler.yaml"
    dev = "dev: {engine: local, project: local-dev, defaults: {publish: gs://models}}"
    settings.write_text(f"outputs: own\nenvironments: {{{dev}}}\n{settings.read_text()}")
    write(repository, "census", "{}")
    here, there = repository.run("validate"), repository.run("validate", "--env", "dev")
    assert (here.code, there.code) == (3, 0), there.out
    assert "jobs/census.yaml:4:1: neither the manifest nor the environment has an address" in here.out
    rendered = repository.run("render", "census", "--env", "dev")
    assert rendered.code == 0, rendered.err
    assert "gs://runs/census/census_" in rendered.out
    assert "publish" not in rendered.out
    assert "gs://models" not in rendered.out
