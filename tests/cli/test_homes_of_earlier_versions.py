"""Homes written by earlier versions: their jobs and buckets stay unchanged."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import preloaded

HOMES = Path(__file__).parents[1] / "homes"


@pytest.fixture(params=sorted(path.name for path in HOMES.iterdir()))
def repository(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Restore a home and its repository; its jobs were submitted by an earlier version and have ended."""
    written = HOMES / request.param
    home, root = tmp_path / "home", tmp_path / "repository"
    shutil.copytree(written / "repository", root)
    home.mkdir(mode=0o700)
    shutil.copytree(written / "gcs", home / "gcs")
    with closing(sqlite3.connect(home / "state.db")) as connection:
        connection.executescript((written / "state.sql").read_text("utf-8"))
    monkeypatch.setenv("RECONCILER_HOME", str(home))
    return root


def reconciler(root: Path, *arguments: str) -> str:
    variables = {name: value for name, value in os.environ.items() if not name.startswith("GITHUB_")}
    done = preloaded.run(*arguments, cwd=root, env=variables)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_plan_finds_nothing_to_do_in_home_of_earlier_version(repository: Path) -> None:
    jobs = len([*(repository / "jobs").glob("*.yaml")])
    assert f"Nothing to do: {jobs} jobs" in reconciler(repository, "plan", "--detailed-exitcode")


def test_own_folders_and_expectations_run_nothing_of_earlier_version_again(repository: Path) -> None:
    names = [file.stem for file in (repository / "jobs").glob("*.yaml")]
    before = [json.loads(reconciler(repository, "show", name, "--format", "json")) for name in names]
    settings = repository / "reconciler.yaml"
    settings.write_text("outputs: own\n" + (settings.read_text() if settings.exists() else ""))
    for file in (repository / "jobs").glob("*.yaml"):
        file.write_text(file.read_text().replace("\nspec:", "\nexpect: {accuracy: {min: 0.9}}\nspec:", 1))
    plan = json.loads(reconciler(repository, "plan", "--format", "json"))
    assert {change["action"] for change in plan["changes"]} == {"none"}
    after = [json.loads(reconciler(repository, "show", name, "--format", "json")) for name in names]
    for was, now in zip(before, after, strict=True):
        assert (now["jobName"], now["output"]["uri"]) == (was["jobName"], was["output"]["uri"])


@pytest.mark.slow
def test_apply_submits_nothing_and_keeps_buckets_of_earlier_version(repository: Path) -> None:
    try:
        assert "1 applied" not in reconciler(repository, "apply")
        status = reconciler(repository, "status")
        assert status.count("SUCCEEDED") == len([*(repository / "jobs").glob("*.yaml")])
        model = Path(os.environ["RECONCILER_HOME"], "gcs", "models", "tiny", "model", "model.txt")
        assert model.read_text() == "weights\n"
    finally:
        reconciler(repository, "serve", "--stop")
