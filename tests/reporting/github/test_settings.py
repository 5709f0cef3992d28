"""The settings of GitHub's API: read from the environment of a run."""

from __future__ import annotations

import os
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


def settings_with(file: Path, **environ: str) -> GitHubSettings:
    environ = {**RUN_OF_ACTIONS, "GITHUB_ACTIONS": "true", "GITHUB_TOKEN_FILE": str(file), **environ}
    settings = github_settings(None, environ, file.parent)
    assert settings
    return settings


def test_token_in_a_file_goes_before_the_variable_and_is_read_each_time(tmp_path: Path) -> None:
    file, link = tmp_path / "token", tmp_path / "link"
    link.symlink_to(file)
    for token in ("ghs_first", "ghs_second"):
        file.write_text(f"{token}\n")
        file.chmod(0o600)
        for path in (file, link):
            settings = settings_with(path, GITHUB_TOKEN="of-the-variable")
            assert settings.token == token
            assert token not in repr(settings)


@pytest.mark.parametrize(
    ("content", "mode", "reason"),
    [
        (None, 0, "can't be read: No such file or directory"),
        ("ghs_secret", 0o640, "others can read or write: run `chmod 600` on it"),
        ("ghs_secret", 0o604, "others can read or write"),
        ("ghs_secret", 0o620, "others can read or write"),
        ("", 0o600, "has no token"),
        ("ghs_secret ghs_other", 0o600, "has no token: write it there, alone, on one line"),
        ("ghs_secret\nghs_other", 0o600, "has no token"),
        ("ghs_secret\x00", 0o600, "has no token"),
        ("ghs_größe", 0o600, "has no token"),
    ],
)
def test_unusable_file_is_named_and_no_other_token_taken(
    tmp_path: Path, content: str | None, mode: int, reason: str
) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_text(content)
        file.chmod(mode)
    settings = settings_with(file, GITHUB_TOKEN="of-the-variable")
    assert settings.token == ""
    assert settings.no_token.startswith(f'GITHUB_TOKEN_FILE names "{file}", which ')
    assert reason in settings.no_token
    assert "ghs_" not in settings.no_token


def test_folder_or_fifo_in_place_of_a_file_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo", 0o600)
    assert "is a fifo in place of a regular file" in settings_with(tmp_path / "fifo").no_token
    assert "in place of a regular file" in settings_with(tmp_path).no_token


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
