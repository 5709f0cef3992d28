"""Client of GitHub's REST API, and its settings: repository, address, token, contexts of commit statuses.

The client repeats reads, waits once if a limit refuses a write, and explains refusals.
"""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from reconciler.base.diagnostics import MAX_QUOTED, quote
from reconciler.base.errors import InvalidError, ServiceError
from reconciler.base.http import (
    DirectTransport,
    HttpRequest,
    HttpResponse,
    RetryingReads,
    Transport,
    retry_after,
)
from reconciler.base.http.destination import GITHUB, OwnerHosts, destination_of
from reconciler.base.sanitize import one_line
from reconciler.manifests.settings import LOCAL, Config
from reconciler.manifests.token_hosts import token_hosts

DEFAULT_API_URL = "https://api.github.com"

REPOSITORY = re.compile(r"[A-Za-z0-9_-]+/(?!\.{1,2}\Z)[A-Za-z0-9._-]+")
"""OWNER/NAME."""
_SERVER = re.compile(r"https?://[A-Za-z0-9.:/_-]+")
_EACH = {"jobs": True, "summary": False}


@dataclass(frozen=True, slots=True)
class GitHubSettings:
    """Repository and token for commit statuses.

    Attributes:
        repository: `owner/name`.
        api_url: The API's address, without a slash at its end.
        token: The token, "" for none; left out of the text form.
        each: True for a status per job, False for the overall status only, None to decide by their number.
        recipients: The hosts that may get the token.
        run_url: The page of this run of GitHub Actions, to which statuses without a page link; "" for none.
    """

    repository: str
    api_url: str
    token: str = field(repr=False)
    each: bool | None = None
    recipients: OwnerHosts = GITHUB
    run_url: str = ""

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
        environ: GITHUB_ACTIONS, GITHUB_REPOSITORY, GITHUB_API_URL, GITHUB_TOKEN and GH_TOKEN count, those of
            `run_url`, and those that allow further hosts.

    Raises:
        InvalidError: The repository is missing or malformed, the address or an allowed host is malformed, or
            the token may not be sent to the address.
    """
    in_actions = environ.get("GITHUB_ACTIONS") == "true"
    if config is None and not in_actions:
        return None
    written = config or {}
    repository = _checked_repository(written.get("repository") or environ.get("GITHUB_REPOSITORY") or "")
    token = (environ.get("GITHUB_TOKEN") or environ.get("GH_TOKEN") or "").strip()
    each, run = _EACH.get(written.get("statuses") or ""), run_url(environ)
    if given := environ.get("GITHUB_API_URL"):
        url = _checked_api_url(given, "GITHUB_API_URL")
        to = destination_of(url)
        return GitHubSettings(repository, url, token, each, GITHUB.also({(to.host, to.port)}), run)
    url = _checked_api_url(written.get("apiUrl") or DEFAULT_API_URL, "github.apiUrl in reconciler.yaml")
    if not token:
        return GitHubSettings(repository, url, token, each, run_url=run)
    hosts = token_hosts(root, environ)
    hosts.check(hosts.github, root, url, ("github", "apiUrl"))
    return GitHubSettings(repository, url, token, each, hosts.github, run)


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


OVERALL = "reconciler"


@dataclass(frozen=True, slots=True)
class Contexts:
    """Contexts of an environment's commit statuses.

    `overall` is the context of the status over all jobs.
    """

    environment: str
    overall: str = OVERALL

    def of_job(self, base_name: str) -> str:
        """Return the context of a job's status."""
        return f"{OVERALL}/{self.environment}/{base_name}"

    @property
    def drift(self) -> str:
        """The context of the drift status."""
        # No job's context contains a blank, so that this is never the context of a job.
        return f"{self.overall} drift"


def contexts_of(config: Config, environment: str) -> Contexts:
    """Return the contexts; with several environments, the overall status's context names the environment."""
    others = set(config.environments) - {environment, LOCAL}
    return Contexts(environment, f"{OVERALL}/{environment}" if others else OVERALL)


PER_PAGE = 100
MAX_PAGES = 100
TIMEOUT = 30.0
LONGEST_WAIT = 120.0

# GitHub's documentation: after a secondary limit without `retry-after`, wait at least a minute.
SECONDARY_LIMIT_WAIT = 60.0
_READ_ONLY = "Resource not accessible by integration"


@dataclass(frozen=True, slots=True)
class Purpose:
    """Kind of reports, in the words of the messages.

    Attributes:
        things: The reports, in the plural.
        permission: The permission that a workflow grants.
        named: The same permission in the settings of any other token.
        place: The commit or pull request that may be missing if GitHub doesn't find the repository.
        item: A single report.
    """

    things: str
    permission: str
    named: str
    place: str
    item: str


STATUSES = Purpose(
    "commit statuses", "statuses: write", "Commit statuses: write", "with that commit", "the status"
)


class GitHubRefusedError(Exception):
    """Refused or failed request to GitHub.

    Attributes:
        message: A sanitized sentence without the token.
        concerns_all: True if GitHub would refuse every further status of the report too.
        unknown_commit: True if GitHub has no such commit.
        read_only: True if the token is a workflow's without the permission, like those of forks.
    """

    def __init__(
        self,
        message: str,
        *,
        concerns_all: bool = True,
        unknown_commit: bool = False,
        read_only: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.concerns_all = concerns_all
        self.unknown_commit = unknown_commit
        self.read_only = read_only


class GitHubApi:
    """API of a repository; all failures are GitHubRefusedError, worded for a kind of reports (`purpose`)."""

    def __init__(
        self,
        transport: Transport,
        settings: GitHubSettings,
        purpose: Purpose = STATUSES,
        *,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._transport = RetryingReads(transport, sleep, chance)
        self._settings = settings
        self._purpose = purpose
        self._waited = False
        self.sleep = sleep

    def items(self, path: str) -> Iterator[Any]:
        """Yield the items of all pages of a listing; raise GitHubRefusedError after 100 pages."""
        for number in range(1, MAX_PAGES + 1):
            page, more = self._page(path, number)
            yield from page
            if not more:
                return
        raise GitHubRefusedError(f"{path}: there are more than {MAX_PAGES * PER_PAGE}, more than are read")

    def read(self, path: str) -> Any:
        """Return a resource of the repository, or of the API if the path begins with "/"."""
        return _json(self._read(path).body)

    def write(self, method: str, path: str, body: Mapping[str, Any]) -> Any:
        """Create or change a resource; return the response's JSON."""
        request = self._request(method, path, json.dumps(body).encode())
        try:
            response = self._transport.send(request)
            # A request that a limit refused had no effect, so that a second one duplicates nothing.
            if self._waited_for(response):
                response = self._transport.send(request)
        except ServiceError as error:
            raise GitHubRefusedError(error.message) from None
        if response.status not in (200, 201):
            raise _refusal_of(response, self._settings, self._purpose)
        return _json(response.body)

    def _page(self, path: str, number: int) -> tuple[list[Any], bool]:
        """Return a page's items, and True if a page follows."""
        response = self._read(f"{path}?per_page={PER_PAGE}&page={number}")
        page = _json(response.body)
        if not isinstance(page, list):
            raise _refusal_of(response, self._settings, self._purpose)
        link = response.headers.get("link", "")
        # A proxy may drop the header: then a page may follow any full page.
        return page, 'rel="next"' in link if link else len(page) == PER_PAGE

    def _read(self, path: str) -> HttpResponse:
        request = self._request("GET", path)
        try:
            response = self._transport.send(request)
        except ServiceError as error:
            raise GitHubRefusedError(error.message) from None
        if response.status != 200:
            raise _refusal_of(response, self._settings, self._purpose)
        return response

    def _waited_for(self, response: HttpResponse) -> bool:
        """Wait if the response asks for it; return True after waiting."""
        # Once per report: a job that waits for hours costs more than a status that the next report posts.
        seconds = _seconds_to_wait(response)
        if seconds is None or seconds > LONGEST_WAIT or self._waited:
            return False
        self._waited = True
        self.sleep(seconds)
        return True

    def _request(self, method: str, path: str, body: bytes | None = None) -> HttpRequest:
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self._settings.token}",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        if body is not None:
            headers["Content-Type"] = "application/json"
        below = path if path.startswith("/") else f"/repos/{self._settings.repository}/{path}"
        url = f"{self._settings.api_url}{below}"
        return HttpRequest(method, url, headers, body, TIMEOUT)


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _refusal_of(response: HttpResponse, settings: GitHubSettings, purpose: Purpose) -> GitHubRefusedError:
    """Return the error for an unsuccessful response."""
    status, text = response.status, _error_text(response)
    # Any other validation error concerns only this status, such as its address or its number.
    if status == 422 and not text.startswith("No commit found"):
        return GitHubRefusedError(_quoting(_rejected(text, purpose), text, settings), concerns_all=False)
    message = _quoting(f"{_meaning(response, settings, purpose)} (HTTP {status})", text, settings)
    read_only = status == 403 and text.startswith(_READ_ONLY)
    return GitHubRefusedError(message, unknown_commit=status == 422, read_only=read_only)


def _seconds_to_wait(response: HttpResponse) -> float | None:
    """Return the seconds to wait before the same request again; None if waiting doesn't help.

    The result is a number only for a 403 or 429, by which the request had no effect. A response for a used-up
    hourly limit has no `retry-after`.
    """
    if response.status not in (403, 429):
        return None
    seconds = retry_after(response)
    if seconds is None and "secondary rate limit" in _error_text(response):
        return SECONDARY_LIMIT_WAIT
    return seconds


def _meaning(response: HttpResponse, settings: GitHubSettings, purpose: Purpose) -> str:
    match response.status:
        case 401:
            return "GitHub rejects the token in GITHUB_TOKEN: it is wrong or has expired"
        case 403 | 429 if _is_limited(response):
            return f"GitHub accepts no more requests{_until(response)}; the next report posts what is left"
        case 403:
            return (
                f"the token may not write {purpose.things} of {settings.repository}: a workflow needs "
                f"`permissions: {{{purpose.permission}}}`, any other token the permission "
                f'"{purpose.named}"'
            )
        case 404:
            return (
                f"this token can't see a repository {settings.repository} {purpose.place}: check "
                "`github.repository` in reconciler.yaml, and the token's permissions"
            )
        case 422:
            return "GitHub doesn't have this commit: push it first"
        case 301 | 302 | 307 | 308:
            return f"{settings.repository} has moved: write its new name as `github.repository`"
        case status if status >= 500:
            return "GitHub is unavailable; the next report posts what is left"
    return f"the server at {settings.api_url} doesn't answer like GitHub"


def _rejected(text: str, purpose: Purpose) -> str:
    if "maximum number of statuses" in text:
        return "GitHub accepts no more than 1,000 statuses for one commit and context (HTTP 422)"
    return f"GitHub refused {purpose.item} (HTTP 422)"


def _is_limited(response: HttpResponse) -> bool:
    used_up = response.headers.get("x-ratelimit-remaining") == "0"
    return response.status == 429 or used_up or _seconds_to_wait(response) is not None


def _until(response: HttpResponse) -> str:
    seconds = _seconds_to_wait(response)
    if seconds is not None:
        return f" for {seconds:g} s"
    try:
        reset = datetime.fromtimestamp(int(response.headers.get("x-ratelimit-reset", "")), UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return f" until {reset:%H:%M} UTC"


def _quoting(meaning: str, text: str, settings: GitHubSettings) -> str:
    # Some servers repeat the request, with the token in it, in their errors.
    safe = text.replace(settings.token, "***") if settings.token else text
    return one_line(f"{meaning}; GitHub says: {safe[:MAX_QUOTED]}" if safe else meaning)


def _error_text(response: HttpResponse) -> str:
    """Return GitHub's message and details; "" if the response isn't GitHub's JSON.

    `errors` is a list of objects (in GitHub's description of the API) or, for statuses, a text.
    """
    try:
        answer = json.loads(response.body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(answer, dict) or not isinstance(answer.get("message"), str):
        return ""
    errors = answer.get("errors")
    details = filter(None, map(_detail, errors if isinstance(errors, list) else [errors]))
    return ": ".join([answer["message"], *details])


def _detail(error: Any) -> str:
    if isinstance(error, dict):
        error = error.get("message") or error.get("code")
    return error if isinstance(error, str) else ""
