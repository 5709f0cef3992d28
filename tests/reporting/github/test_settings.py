"""The settings of GitHub's API: read from the environment of a run."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.base.errors import InvalidError
from reconciler.base.http.destination import GITHUB, OwnerHosts
from reconciler.model.ports import HostedRepository
from reconciler.reporting.github.settings import (
    GitHubSettings,
    actions_repository,
    github_settings,
    run_url,
)
from tests.support.statuses import TOKEN

RUN_OF_ACTIONS = {
    "GITHUB_SERVER_URL": "https://github.com",
    "GITHUB_REPOSITORY": "acme/models",
    "GITHUB_RUN_ID": "42",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, HostedRepository("https://github.com", "7", "acme/models")),
        (
            {"GITHUB_SERVER_URL": "https://GHE.example.com/"},
            HostedRepository("https://ghe.example.com", "7", "acme/models"),
        ),
        ({"GITHUB_ACTIONS": ""}, None),
        ({"GITHUB_SERVER_URL": ""}, None),
        ({"GITHUB_SERVER_URL": "javascript:alert(1)"}, None),
        ({"GITHUB_REPOSITORY_ID": ""}, None),
        ({"GITHUB_REPOSITORY_ID": "7a"}, None),
        ({"GITHUB_REPOSITORY_ID": "²"}, None),
    ],
)
def test_repository_of_the_run_is_known_by_server_and_number(
    changed: dict[str, str], expected: HostedRepository | None
) -> None:
    environ = {**RUN_OF_ACTIONS, "GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY_ID": "7", **changed}
    assert actions_repository(environ) == expected


@pytest.mark.parametrize(
    ("changed", "url"),
    [
        ({}, "https://github.com/acme/models/actions/runs/42"),
        (
            {"GITHUB_SERVER_URL": "https://ghe.example.com/"},
            "https://ghe.example.com/acme/models/actions/runs/42",
        ),
        ({"GITHUB_SERVER_URL": ""}, ""),
        ({"GITHUB_SERVER_URL": "javascript:alert(1)"}, ""),
        ({"GITHUB_REPOSITORY": 'acme/"><b>'}, ""),
        ({"GITHUB_RUN_ID": ""}, ""),
        ({"GITHUB_RUN_ID": "1/2"}, ""),
    ],
)
def test_the_page_of_the_run_is_that_of_actions(changed: dict[str, str], url: str, tmp_path: Path) -> None:
    environ = {**RUN_OF_ACTIONS, "GITHUB_ACTIONS": "true", **changed}
    assert run_url(environ) == url
    if environ["GITHUB_REPOSITORY"] == "acme/models":
        settings = github_settings(None, environ, tmp_path)
        assert settings
        assert settings.run_url == url


ACTIONS = {
    "GITHUB_ACTIONS": "true",
    "GITHUB_REPOSITORY": "acme/models",
    "GITHUB_API_URL": "https://github.example.com/api/v3",
    "GITHUB_TOKEN": TOKEN,
}


def allowing(host: str) -> OwnerHosts:
    return GITHUB.also({(host, 443)})


IN_ACTIONS = GitHubSettings(
    "acme/models", "https://github.example.com/api/v3", TOKEN, recipients=allowing("github.example.com")
)


@pytest.mark.parametrize(
    ("config", "environ", "settings"),
    [
        (None, {}, None),
        (None, {**ACTIONS, "GITHUB_ACTIONS": "false"}, None),
        (None, ACTIONS, IN_ACTIONS),
        ({}, {"GITHUB_REPOSITORY": "a/b"}, GitHubSettings("a/b", "https://api.github.com", "")),
        ({"repository": "a/b"}, {}, GitHubSettings("a/b", "https://api.github.com", "")),
        ({"repository": "a/b"}, {"GH_TOKEN": "t"}, GitHubSettings("a/b", "https://api.github.com", "t")),
        (
            {"repository": "a/b"},
            {"GH_TOKEN": "t", "GITHUB_TOKEN": " u\n"},
            GitHubSettings("a/b", "https://api.github.com", "u"),
        ),
        (
            {"repository": "a_corp/b.c", "apiUrl": "https://ghe.example.com/api/v3/"},
            {},
            GitHubSettings("a_corp/b.c", "https://ghe.example.com/api/v3", ""),
        ),
        (
            {"repository": "a/b", "apiUrl": "https://ghe.example.com/api/v3/"},
            {"GITHUB_API_URL": "https://other.example.com"},
            GitHubSettings("a/b", "https://other.example.com", "", recipients=allowing("other.example.com")),
        ),
        ({"repository": "a/b"}, ACTIONS, replace(IN_ACTIONS, repository="a/b")),
    ],
)
def test_settings(
    config: dict[str, str] | None, environ: dict[str, str], settings: GitHubSettings | None
) -> None:
    assert github_settings(config, environ, Path.cwd()) == settings


def test_a_pull_requests_file_cant_send_the_runs_token_elsewhere() -> None:
    settings = github_settings({"apiUrl": "https://evil.example.com"}, ACTIONS, Path.cwd())
    assert settings is not None
    assert settings.api_url == ACTIONS["GITHUB_API_URL"]


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({}, "no repository is configured"),
        ({"repository": "models"}, '"models" is not a GitHub repository'),
        ({"repository": "acme/.."}, "is not a GitHub repository"),
        ({"repository": "acme/models/../../other"}, "is not a GitHub repository"),
        ({"repository": "acme/models\n"}, "is not a GitHub repository"),
        ({"repository": "a/b", "apiUrl": "http://github.example.com"}, "is not the address of a GitHub API"),
        ({"repository": "a/b", "apiUrl": "https://"}, "is not the address of a GitHub API"),
        ({"repository": "a/b", "apiUrl": "https://x/?y"}, "is not the address of a GitHub API"),
        ({"repository": "a/b", "apiUrl": "https://[::1"}, "is not the address of a GitHub API"),
        ({"repository": "a/b", "apiUrl": "http://localhost:8080"}, "is not the address of a GitHub API"),
        ({"repository": "a/b", "apiUrl": "localhost"}, "is not the address of a GitHub API"),
    ],
)
def test_settings_that_cant_be(config: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidError, match=said) as caught:
        github_settings(config, {"GITHUB_TOKEN": TOKEN}, Path.cwd())
    assert caught.value.hint


def test_the_text_form_of_the_settings_holds_no_token() -> None:
    assert TOKEN not in repr(github_settings(None, ACTIONS, Path.cwd()))
