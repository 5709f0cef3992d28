"""What GitHub means when it doesn't do what it was asked, and what the user can do about it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from reconciler.base.diagnostics import MAX_QUOTED
from reconciler.base.http import HttpResponse, retry_after
from reconciler.base.sanitize import one_line
from reconciler.reporting.github.settings import GitHubSettings

# GitHub's documentation: a secondary limit that names no time lasts a minute.
SECONDARY_LIMIT_WAIT = 60.0
_READ_ONLY = "Resource not accessible by integration"


@dataclass(frozen=True, slots=True)
class Purpose:
    """What is written to GitHub, in the words of its refusals.

    Attributes:
        things: What the token may not write.
        permission: What a workflow has to grant; any other token needs it by the name `named`.
        place: What else there may not be where there is no such repository.
        one: What GitHub refused.
    """

    things: str
    permission: str
    named: str
    place: str
    one: str


STATUSES = Purpose(
    "commit statuses", "statuses: write", "Commit statuses: write", "with that commit", "the status"
)


class RefusedError(Exception):
    """GitHub didn't do it.

    Attributes:
        message: One inert sentence without the token.
        concerns_all: Whether every further status of the same report would be refused too.
        unknown_commit: Whether it has no such commit.
        read_only: Whether the token is a workflow's that may not do this, as no fork's may.
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


def refusal_of(response: HttpResponse, settings: GitHubSettings, purpose: Purpose = STATUSES) -> RefusedError:
    """What an answer that isn't the wanted one says."""
    status, told = response.status, _told(response)
    if status == 422 and not told.startswith("No commit found"):
        return RefusedError(_quoting(_rejected(told, purpose), told, settings), concerns_all=False)
    said = _quoting(f"{_meaning(response, told, settings, purpose)} (HTTP {status})", told, settings)
    read_only = status == 403 and told.startswith(_READ_ONLY)
    return RefusedError(said, unknown_commit=status == 422, read_only=read_only)


def seconds_to_wait(response: HttpResponse) -> float | None:
    """How long GitHub's limits ask to wait before the same request again; None where waiting doesn't help.

    Only for a 403 or 429: the request had no effect. A used-up hourly limit names no `retry-after`.
    """
    if response.status not in (403, 429):
        return None
    asked = retry_after(response)
    if asked is None and "secondary rate limit" in _told(response):
        return SECONDARY_LIMIT_WAIT
    return asked


def _meaning(response: HttpResponse, told: str, settings: GitHubSettings, purpose: Purpose) -> str:
    match response.status:
        case 401:
            return "GitHub doesn't know the token in GITHUB_TOKEN: it is wrong, or has expired"
        case 403 | 429 if _is_limited(response):
            return f"GitHub takes no more requests{_until(response)}; the next report posts what is left"
        case 403:
            return (
                f"the token may not write {purpose.things} of {settings.repository}: a workflow needs "
                f"`permissions: {{{purpose.permission}}}`, any other token the permission "
                f'"{purpose.named}"'
            )
        case 404:
            return (
                f"GitHub shows this token no repository {settings.repository} {purpose.place}: check "
                "`github.repository` in reconciler.yaml, and what the token may write to"
            )
        case 422:
            return "GitHub doesn't have this commit: push it first"
        case 301 | 302 | 307 | 308:
            return f"{settings.repository} has moved: write its new name as `github.repository`"
        case status if status >= 500:
            return "GitHub is out of order; the next report posts what is left"
    return f"what answers at {settings.api_url} doesn't answer as GitHub does"


def _rejected(told: str, purpose: Purpose) -> str:
    if "maximum number of statuses" in told:
        return "GitHub takes no more than 1,000 statuses for one commit and context (HTTP 422)"
    return f"GitHub refused {purpose.one} (HTTP 422)"


def _is_limited(response: HttpResponse) -> bool:
    used_up = response.headers.get("x-ratelimit-remaining") == "0"
    return response.status == 429 or used_up or seconds_to_wait(response) is not None


def _until(response: HttpResponse) -> str:
    asked = seconds_to_wait(response)
    if asked is not None:
        return f" for {asked:g} s"
    try:
        reset = datetime.fromtimestamp(int(response.headers.get("x-ratelimit-reset", "")), UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return f" until {reset:%H:%M} UTC"


def _quoting(meaning: str, told: str, settings: GitHubSettings) -> str:
    # Some servers repeat the request in their errors.
    safe = told.replace(settings.token, "***") if settings.token else told
    return one_line(f"{meaning}; GitHub says: {safe[:MAX_QUOTED]}" if safe else meaning)


def _told(response: HttpResponse) -> str:
    """GitHub's own words; "" where the answer isn't GitHub's JSON.

    `errors` is a list of objects (as GitHub's description of the API has it) or, for statuses, one text.
    """
    try:
        answer = json.loads(response.body)
    except (ValueError, RecursionError):
        return ""
    if not isinstance(answer, dict) or not isinstance(answer.get("message"), str):
        return ""
    details = [text for text in map(_detail, _listed(answer.get("errors"))) if text]
    return ": ".join([answer["message"], *details])


def _listed(errors: Any) -> list[Any]:
    return errors if isinstance(errors, list) else [errors]


def _detail(error: Any) -> str:
    if isinstance(error, dict):
        error = error.get("message") or error.get("code")
    return error if isinstance(error, str) else ""
