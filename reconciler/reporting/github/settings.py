"""Settings for GitHub: the repository, the API's address and the token."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from reconciler.base.diagnostics import quote
from reconciler.base.errors import InvalidError
from reconciler.base.http import (
    DirectTransport,
)
from reconciler.base.http.destination import GITHUB, OwnerHosts, destination_of
from reconciler.base.safe_files import IrregularFileError, kind_of, read_file
from reconciler.manifests.token_hosts import token_hosts
from reconciler.model.ports import HostedRepository

DEFAULT_API_URL = "https://api.github.com"

REPOSITORY = re.compile(r"[A-Za-z0-9_-]+/(?!\.{1,2}\Z)[A-Za-z0-9._-]+")
"""OWNER/NAME."""
_SERVER = re.compile(r"https?://[A-Za-z0-9.:/_-]+")
_OTHERS = 0o077
_LONGEST_TOKEN = 4096
_PRINTABLE = re.compile(rb"[!-~]+")
UNAUTHORIZED = (
    "there is no token for GitHub: set GITHUB_TOKEN (in a workflow, `env: "
    "{GITHUB_TOKEN: ${{ github.token }}}` and `permissions: {statuses: write}`)"
)
_EACH = {"jobs": True, "summary": False}


@dataclass(frozen=True, slots=True)
class GitHubSettings:
    """Repository and token for commit statuses.

    Attributes:
        repository: `owner/name`.
        api_url: The API's address, without a slash at its end.
        token: The token, "" for none; left out of the text form.
        no_token: Why there is no token, and what to do, if there is none.
        per_job: True for a status per job, False for the overall status only, None to decide by their number.
        recipients: The hosts that may get the token.
        run_url: The page of this run of GitHub Actions, to which statuses without a page link; "" for none.
    """

    repository: str
    api_url: str
    token: str = field(repr=False)
    per_job: bool | None = None
    recipients: OwnerHosts = GITHUB
    run_url: str = ""
    no_token: str = UNAUTHORIZED

    def transport(self) -> DirectTransport:
        """Return a transport that sends the token to its recipients only."""
        return DirectTransport(self.recipients)


def github_settings(
    config: Mapping[str, Any] | None, environ: Mapping[str, str], root: Path
) -> GitHubSettings | None:
    """Return the settings from `reconciler.yaml` and the environment; None to post no statuses.

    Statuses are posted if `github` exists, even empty, or inside GitHub Actions. GITHUB_API_URL, which
    Actions sets, has precedence over `apiUrl`, and its host may get the token, because the user's
    environment names it. A host in the file may get the token only if it is GitHub's or the user allowed it.

    Args:
        config: `github` of the file; None if the file doesn't contain it.
        environ: GITHUB_ACTIONS, GITHUB_REPOSITORY, GITHUB_API_URL, GITHUB_TOKEN_FILE, GITHUB_TOKEN and
            GH_TOKEN count, those of `run_url`, and those that allow further hosts.

    Raises:
        InvalidError: The repository is missing or malformed, the address or an allowed host is malformed, or
            the token may not be sent to the address.
    """
    in_actions = environ.get("GITHUB_ACTIONS") == "true"
    if config is None and not in_actions:
        return None
    written = config or {}
    repository = _checked_repository(written.get("repository") or environ.get("GITHUB_REPOSITORY") or "")
    token, no_token = _token(environ)
    per_job, run = _EACH.get(written.get("statuses") or ""), run_url(environ)
    if given := environ.get("GITHUB_API_URL"):
        url = _checked_api_url(given, "GITHUB_API_URL")
        to = destination_of(url)
        recipients = GITHUB.also({(to.host, to.port)})
        return GitHubSettings(repository, url, token, per_job, recipients, run, no_token)
    url = _checked_api_url(written.get("apiUrl") or DEFAULT_API_URL, "github.apiUrl in reconciler.yaml")
    if not token:
        return GitHubSettings(repository, url, token, per_job, run_url=run, no_token=no_token)
    hosts = token_hosts(root, environ)
    hosts.check(hosts.github, root, url, ("github", "apiUrl"))
    return GitHubSettings(repository, url, token, per_job, hosts.github, run)


def _token(environ: Mapping[str, str]) -> tuple[str, str]:
    """Return the token, "" for none, and why there is none if so.

    A file is read at each call: the token of an App lasts an hour, and another program replaces it.
    """
    if name := environ.get("GITHUB_TOKEN_FILE"):
        try:
            return _token_in(Path(name)), UNAUTHORIZED
        except ValueError as error:
            return "", f"GITHUB_TOKEN_FILE names {quote(name)}, which {error}"
    token = (environ.get("GITHUB_TOKEN") or environ.get("GH_TOKEN") or "").strip()
    return token, UNAUTHORIZED


def _token_in(file: Path) -> str:
    """Return the token in a file; raise ValueError with a clause that never quotes the content."""
    try:
        content, status = read_file(file, _LONGEST_TOKEN, follow=True)
    except IrregularFileError as error:
        raise ValueError(f"is {kind_of(error.mode)} in place of a regular file") from None
    except OSError as error:
        raise ValueError(f"can't be read: {error.strerror}") from None
    if status.st_mode & _OTHERS:
        raise ValueError("others can read or write: run `chmod 600` on it")
    token = content.strip()
    if not _PRINTABLE.fullmatch(token):
        raise ValueError("has no token: write it there, alone, on one line")
    return token.decode("ascii")


def actions_repository(environ: Mapping[str, str]) -> HostedRepository | None:
    """Return the repository that GitHub Actions runs for; None outside of Actions, or without its number."""
    server, number = environ.get("GITHUB_SERVER_URL", ""), environ.get("GITHUB_REPOSITORY_ID", "")
    is_usable = _SERVER.fullmatch(server) and number.isascii() and number.isdigit()
    if environ.get("GITHUB_ACTIONS") != "true" or not is_usable:
        return None
    return HostedRepository(server.rstrip("/").lower(), number, environ.get("GITHUB_REPOSITORY", ""))


def repository_url(environ: Mapping[str, str]) -> str:
    """Return the page of the repository that GitHub Actions runs for; "" outside of Actions."""
    server, repository = environ.get("GITHUB_SERVER_URL", ""), environ.get("GITHUB_REPOSITORY", "")
    is_usable = _SERVER.fullmatch(server) and REPOSITORY.fullmatch(repository)
    return f"{server.rstrip('/')}/{repository}" if is_usable else ""


def run_url(environ: Mapping[str, str]) -> str:
    """Return the page of this run of GitHub Actions; "" outside of Actions."""
    repository, run = repository_url(environ), environ.get("GITHUB_RUN_ID", "")
    return f"{repository}/actions/runs/{run}" if repository and run.isascii() and run.isdigit() else ""


def _checked_repository(name: str) -> str:
    if not name:
        hint = "write `github: {repository: OWNER/NAME}` in reconciler.yaml"
        raise InvalidError("commit statuses are enabled, but no repository is configured", hint=hint)
    if not REPOSITORY.fullmatch(name):
        raise InvalidError(f"{quote(name)} is not a GitHub repository", hint="write OWNER/NAME")
    return name


def _checked_api_url(url: str, setting: str) -> str:
    try:
        usable = destination_of(url).scheme == "https" and not {"?", "#"} & set(url)
    except ValueError:
        usable = False
    if not usable:
        raise InvalidError(
            f"{setting}: {quote(url)} is not the address of a GitHub API",
            hint="write an address that begins with https://; the token is never sent by plain http",
        )
    return url.rstrip("/")
