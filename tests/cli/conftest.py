"""Fixtures: teams with jobs at Google, on the embedded service or on both; commands in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.commit_story import TOKEN, Story
from tests.support.github_server import GitHubServer
from tests.support.held_service import HeldService
from tests.support.in_memory import Commands, commands_in
from tests.support.models import TRAINER
from tests.support.repository import Repository
from tests.support.team import Team, team_of


@pytest.fixture(params=["google", "local"])
def team(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Team]:
    with team_of(tmp_path, request.param) as made:
        yield made


@pytest.fixture
def cloud(tmp_path: Path) -> Iterator[Team]:
    with team_of(tmp_path, "google") as made:
        yield made


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Team]:
    with team_of(tmp_path, "local") as made:
        yield made


@pytest.fixture
def models(repository: Repository) -> Repository:
    """Return a repository whose trainer writes to the folders that the service gives it."""
    repository.write("trainer/task.py", TRAINER)
    return repository


@pytest.fixture
def story(repository: Repository) -> Iterator[Story]:
    repository.git("init", "-q", "-b", "main")
    with GitHubServer(tokens={TOKEN: "write"}).running() as github:
        yield Story(repository, github)
        assert github.violations == []


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    return commands_in(tmp_path, monkeypatch, capsys.readouterr)


@pytest.fixture
def service(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> Iterator[HeldService]:
    repository.root.mkdir(exist_ok=True)
    monkeypatch.chdir(repository.root)
    with HeldService(repository.home).running() as running:
        yield running
