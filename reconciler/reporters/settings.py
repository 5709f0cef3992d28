"""Where commit statuses are posted, and with what token."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from reconciler.diagnostics import quote
from reconciler.errors import InvalidError

DEFAULT_API_URL = "https://api.github.com"

_REPOSITORY = re.compile(r"[A-Za-z0-9_-]+/(?!\.{1,2}\Z)[A-Za-z0-9._-]+")
_EACH = {"jobs": True, "summary": False}
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@dataclass(frozen=True, slots=True)
class GitHubSettings:
    """Where commit statuses go.

    Attributes:
        repository: `owner/name`.
        api_url: Without a slash at its end.
        token: "" where there is none; left out of the text form.
        each: Whether each job has a status of its own; None leaves it to how many they are.
    """

    repository: str
    api_url: str
    token: str = field(repr=False)
    each: bool | None = None


def github_settings(config: Mapping[str, Any] | None, environ: Mapping[str, str]) -> GitHubSettings | None:
    """The settings from `github` of `reconciler.yaml` and from the environment; None where nothing is posted.

    Something is posted where `github` is there, even empty, or inside GitHub Actions. The API's address is
    the one that the environment gives, as Actions does: the file may be somebody else's, and must not send
    the token elsewhere.

    Args:
        config: `github`; None where the file has none.
        environ: GITHUB_ACTIONS, GITHUB_REPOSITORY, GITHUB_API_URL, GITHUB_TOKEN and GH_TOKEN count.

    Raises:
        InvalidError: There is no repository, or an address that a token can't be sent to.
    """
    in_actions = environ.get("GITHUB_ACTIONS") == "true"
    if config is None and not in_actions:
        return None
    written = config or {}
    given_url = environ.get("GITHUB_API_URL")
    api_url = given_url or written.get("apiUrl") or DEFAULT_API_URL
    repository = written.get("repository") or environ.get("GITHUB_REPOSITORY") or ""
    token = environ.get("GITHUB_TOKEN") or environ.get("GH_TOKEN") or ""
    each = _EACH.get(written.get("statuses") or "")
    return GitHubSettings(_repository(repository), _api_url(api_url), token.strip(), each)


def _repository(name: str) -> str:
    if not name:
        hint = "write `github: {repository: OWNER/NAME}` in reconciler.yaml"
        raise InvalidError("commit statuses are wanted, but not said of which repository", hint=hint)
    if not _REPOSITORY.fullmatch(name):
        raise InvalidError(f"{quote(name)} is no GitHub repository", hint="write OWNER/NAME")
    return name


def _api_url(url: str) -> str:
    try:
        address = urlsplit(url)
        usable = address.scheme == "https" or (address.scheme == "http" and address.hostname in _LOOPBACK)
        usable = usable and bool(address.hostname) and not (address.query or address.fragment)
    except ValueError:
        usable = False
    if not usable:
        raise InvalidError(
            f"{quote(url)} is no GitHub API", hint="write an address that begins with https://"
        )
    return url.rstrip("/")
