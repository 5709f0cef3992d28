"""Client of GitHub's REST API.

It repeats reads, waits once if a limit refuses a write, and explains refusals.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from reconciler.base.diagnostics import MAX_QUOTED
from reconciler.base.errors import ServiceError
from reconciler.base.http import (
    HttpRequest,
    HttpResponse,
    RetryingReads,
    Transport,
    retry_after,
)
from reconciler.base.sanitize import one_line
from reconciler.reporting.github.settings import GitHubSettings

PER_PAGE = 100
MAX_PAGES = 100
TIMEOUT = 30.0
LONGEST_WAIT = 120.0

# GitHub's documentation: after a secondary limit without `retry-after`, wait at least a minute.
SECONDARY_LIMIT_WAIT = 60.0
_READ_ONLY = "Resource not accessible by integration"
_ARCHIVED = "Repository was archived"


@dataclass(frozen=True, slots=True)
class Purpose:
    """Kind of reports, in the words of the messages.

    Attributes:
        things: The reports, in the plural.
        permission: The permission that a workflow grants.
        named: The same permission in the settings of any other token.
        qualifier: The commit or pull request that may be missing if GitHub doesn't find the repository.
        item: A single report.
    """

    things: str
    permission: str
    named: str
    qualifier: str
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
        archived: True if the repository is archived, so that the same request is always refused.
    """

    def __init__(
        self,
        message: str,
        *,
        concerns_all: bool = True,
        unknown_commit: bool = False,
        read_only: bool = False,
        archived: bool = False,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.concerns_all = concerns_all
        self.unknown_commit = unknown_commit
        self.read_only = read_only
        self.archived = archived


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
    return GitHubRefusedError(
        message,
        unknown_commit=status == 422,
        read_only=status == 403 and text.startswith(_READ_ONLY),
        archived=status == 403 and text.startswith(_ARCHIVED),
    )


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
            return (
                "GitHub rejects the token in GITHUB_TOKEN, or the file GITHUB_TOKEN_FILE: it is wrong or has "
                "expired"
            )
        case 403 | 429 if _is_limited(response):
            return f"GitHub accepts no more requests{_until(response)}; the next report posts what is left"
        case 403 if reason := _denial(_error_text(response), settings):
            return reason
        case 403:
            return (
                f"the token may not write {purpose.things} of {settings.repository}: a workflow needs "
                f"`permissions: {{{purpose.permission}}}`, any other token the permission "
                f'"{purpose.named}"'
            )
        case 404:
            return (
                f"this token can't see a repository {settings.repository} {purpose.qualifier}: check "
                "`github.repository` in reconciler.yaml, and the token's permissions"
            )
        case 422:
            return "GitHub doesn't have this commit: push it first"
        case 301 | 302 | 307 | 308:
            return f"{settings.repository} has moved: write its new name as `github.repository`"
        case status if status >= 500:
            return "GitHub is unavailable; the next report posts what is left"
    return f"the server at {settings.api_url} doesn't answer like GitHub"


def _denial(text: str, settings: GitHubSettings) -> str:
    """Return why GitHub refuses a request that the token's permissions allow; "" if they don't."""
    if text.startswith(_ARCHIVED):
        return (
            f"{settings.repository} is archived, so nothing can be written there: unarchive it, then start "
            "the reconciler again"
        )
    if "SAML" in text:
        return (
            "the organization demands single sign-on: authorize the token for it, on GitHub under Settings, "
            "Developer settings, Personal access tokens, Configure SSO; the token of an App needs none"
        )
    if "IP allow list" in text:
        return (
            "the organization's IP allow list lacks this machine's address: have an owner add it, or run on "
            "a machine whose address it has"
        )
    return ""


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
