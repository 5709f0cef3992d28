"""A plan sees every change of manifests, of settings and of the service."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import urllib3
from msgspec.structs import replace

from reconciler.base.errors import ExitCode
from reconciler.base.http import DirectTransport
from reconciler.base.state_dir import home_of
from reconciler.cli import run
from reconciler.manifests.settings import load_config
from reconciler.model.claim import ClaimState
from reconciler.operations.session import open_session
from reconciler.training_service.state.records import JobState
from tests.support.held_service import HeldService
from tests.support.in_memory import MANIFEST

pytestmark = pytest.mark.slow

ML_MANIFEST = """
    apiVersion: ml.googleapis.com/v1
    kind: Job
    metadata: {name: legacy}
    spec:
      trainingInput:
        scaleTier: BASIC
        region: us-central1
        masterConfig: {imageUri: "example.test/plain:1"}
"""
TWO = "environments: {local: {engine: local%s}, other: {engine: local, project: other-jobs}}\nsource: %s\n"

Told = tuple[int, str, str]


@dataclass
class Place:
    """A repository with only submitted jobs, and a service that runs none of them."""

    root: Path
    service: HeldService
    read: Callable[[], Any]

    def job(self, name: str, *args: str, reconcile: str = "") -> None:
        file = self.root / "jobs" / f"{name}.yaml"
        file.write_text(textwrap.dedent(MANIFEST % (name, reconcile, ", ".join(map(json.dumps, args)))))

    def run(self, *arguments: str) -> Told:
        code = run([*arguments, "-q"])
        out, err = self.read()
        return code, out, err

    def plan(self, *arguments: str) -> Told:
        return self.run("plan", "--detailed-exitcode", *arguments)

    def session(self) -> Any:
        config = load_config(self.root)
        return open_session(config, config.environment(None), os.environ, start=False)

    def becomes(self, name: str, state: JobState) -> None:
        store = self.service.store
        for job in store.unfinished():
            if name in json.dumps(job.body):
                store.move(job.id, JobState.RUNNING, only_from={JobState.QUEUED}, at=store.now())
                if state is not JobState.RUNNING:
                    store.move(job.id, state, only_from={JobState.RUNNING}, at=store.now())

    def forgets(self, name: str) -> None:
        """Delete a job from the service."""
        store = self.service.store
        for job in store.unfinished():
            if name in json.dumps(job.body):
                store.delete(job.id)

    def claim_becomes(self, **fields: Any) -> None:
        with self.session() as opened:
            found, *_ = opened.claims.listed().values()
            assert opened.claims.write(replace(found.claim, **fields), found.generation)

    def store_is_emptied(self) -> None:
        """Delete the marker of the claims' owner, and keep the claims."""
        address = f"{self.service.url}/storage/v1/b/reconciler-staging/o/reconciler%2Fclaims%2Facme%2Fgenesis"
        headers = {"Authorization": f"Bearer {self.service.token}"}
        assert urllib3.request("DELETE", address, headers=headers, retries=False).status == 204


@pytest.fixture
def place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Place]:
    for name in ("XDG_STATE_HOME", "RECONCILER_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    root = tmp_path / "repository"
    (root / "jobs").mkdir(parents=True)
    (tmp_path / "user").mkdir()
    (root / "reconciler.yaml").write_text(TWO % ("", "acme"))
    monkeypatch.chdir(root)
    with HeldService(home_of(root, os.environ)).running() as service:
        made = Place(root, service, capsys.readouterr)
        for name in ("census", "trees"):
            made.job(name)
        (root / "jobs" / "legacy.yaml").write_text(textwrap.dedent(ML_MANIFEST))
        assert made.run("apply")[0] == 0
        yield made


def rewritten(place: Place, old: str, new: str) -> None:
    """Write other content of the same length and with the same times: only reading the file shows it."""
    file = place.root / "jobs" / "census.yaml"
    status = file.stat()
    file.write_text(file.read_text().replace(old, new))
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


CHANGES: dict[str, Callable[[Place], object]] = {
    "an argument": lambda place: place.job("census", "--more"),
    "a byte": lambda place: rewritten(place, "plain:1", "plain:2"),
    "another file": lambda place: place.job("new"),
    "a file less": lambda place: (place.root / "jobs" / "census.yaml").unlink(),
    "a comment": lambda place: rewritten(place, "kind: CustomJob", "kind: CustomJob # more"),
    "suspended": lambda place: place.job("census", reconcile="suspend: true"),
    "suspended, with another content": lambda place: place.job("census", "--more", reconcile="suspend: true"),
    "attempts": lambda place: (
        place.becomes("census", JobState.FAILED),
        place.job("census", reconcile="attempts: 2"),
    ),
    "broken": lambda place: (place.root / "jobs" / "census.yaml").write_text("- broken\n"),
    "running": lambda place: place.becomes("census", JobState.RUNNING),
    "succeeded": lambda place: place.becomes("legacy", JobState.SUCCEEDED),
    "failed": lambda place: place.becomes("census", JobState.FAILED),
    "gone": lambda place: place.forgets("census"),
    "gone, of ml": lambda place: place.forgets("legacy"),
    "a claim held": lambda place: place.claim_becomes(state=ClaimState.HELD, error="odd"),
    "a claim's labels": lambda place: place.claim_becomes(labels="0" * 16),
    "the store": lambda place: place.store_is_emptied(),
    "the source": lambda place: (place.root / "reconciler.yaml").write_text(TWO % ("", "acmf")),
    "defaults": lambda place: (place.root / "reconciler.yaml").write_text(
        TWO % (", defaults: {network: projects/1/global/networks/n}", "acme")
    ),
}
NO_NEWS = ("a comment", "defaults", "running", "succeeded")
"""Changes that leave the text of a plan as it was."""


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_plan_shows_every_change(place: Place, change: str) -> None:
    before = place.plan()
    CHANGES[change](place)
    after = place.plan()
    assert after == place.plan()
    assert (after == before) == (change in NO_NEWS)


PACKAGE_MANIFEST = """
    apiVersion: aiplatform.googleapis.com/v1
    kind: CustomJob
    metadata: {name: packed}
    package: {path: ../trainer}
    spec:
      workerPoolSpecs:
        - machineSpec: {machineType: n1-standard-4}
          replicaCount: 1
          pythonPackageSpec:
            executorImageUri: "us-docker.pkg.dev/vertex-ai/training/scikit-learn-cpu.0-23:latest"
            pythonModule: task
            args: [%s]
"""


@pytest.mark.slow
def test_plan_lists_the_changed_files_of_code_if_git_has_the_commit_of_the_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)

    def git(*arguments: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@example.test")
        subprocess.run(["git", *who, *arguments], cwd=place.root, check=True, capture_output=True)

    task = place.root / "trainer" / "task.py"
    task.parent.mkdir()
    task.write_text("a\nb\n")
    (place.root / "jobs" / "packed.yaml").write_text(textwrap.dedent(PACKAGE_MANIFEST % ""))
    (place.root / ".gitignore").write_text(".reconciler/\n")
    with (place.root / "reconciler.yaml").open("a") as settings:
        settings.write('images: {"example.test/plain:1": {python: "3.11", requirements: []}}\n')
    git("init")
    git("add", "--all")
    git("commit", "-m", "first")
    assert place.run("apply")[0] == 0
    task.write_text("a\nc\nd\n")
    (place.root / "jobs" / "packed.yaml").write_text(textwrap.dedent(PACKAGE_MANIFEST % "--more"))
    (place.root / "trainer" / "new.py").write_text("x\n")
    _, out, _ = place.run("plan", "--format", "json")
    (change,) = [change for change in json.loads(out)["changes"] if change["action"] == "submit"]
    assert change["reason"] == "1 field changed and the code changed"
    assert change["files"] == [
        {"path": "trainer/new.py", "added": 1, "removed": 0},
        {"path": "trainer/task.py", "added": 2, "removed": 1},
    ]
    lines = place.run("plan")[1].splitlines()
    assert "      trainer/task.py  +2 -1" in lines
    assert "      +     - --more" in lines
    assert not [line for line in lines if "/package" in line]
    shutil.rmtree(place.root / ".git")
    _, out, _ = place.run("plan")
    assert "the code changed" in out
    assert "task.py" not in out


def test_drift_counts_as_a_pending_change_only_on_request(place: Place) -> None:
    (place.root / "jobs" / "census.yaml").unlink()
    code, out, _ = place.plan()
    assert (code, "orphaned" in out) == (ExitCode.DONE, True)
    assert place.plan("--drift")[0] == ExitCode.CHANGES_PENDING
    assert place.run("plan", "--drift")[0] == ExitCode.DONE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("environ", "coloured"),
    [({}, False), ({"FORCE_COLOR": "1"}, True), ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False)],
)
def test_plan_has_colours_off_a_terminal_only_if_forced(
    environ: dict[str, str], coloured: bool, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    place.job("new")
    assert ("\x1b[32m+ submit" in place.plan()[1]) == coloured
    assert "\x1b" not in place.plan("--format", "markdown")[1]


def test_plan_reports_a_mistake_without_asking_the_service(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    place.job("broken", reconcile="suspend: often")
    monkeypatch.setattr(DirectTransport, "send", lambda *_: pytest.fail("the service was asked"))
    code, out, err = place.plan()
    assert (code, out) == (ExitCode.INVALID, "")
    assert "jobs/broken.yaml" in err


def test_plan_goes_on_beside_claim_with_unknown_api_version(place: Place) -> None:
    """A newer version wrote the claim."""
    place.claim_becomes(state=ClaimState.HELD, error="odd", api_version="batch/v1", kind="Batch")
    code, out, err = place.plan()
    assert (code, err) == (ExitCode.CHANGES_PENDING, "")
    assert "! blocked census_" in out
