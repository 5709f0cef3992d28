"""What GitHub means when it doesn't do what it was asked, and what the user can do about it."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from reconciler.diagnostics import MAX_QUOTED
from reconciler.inert import one_line
from reconciler.reporters.settings import GitHubSettings
from reconciler.transport import HttpResponse, retry_after

# GitHub's documentation: a secondary limit that names no time lasts a minute.
SECONDARY_LIMIT_WAIT = 60.0


class RefusedError(Exception):
    """GitHub didn't do it.

    Attributes:
        message: One inert sentence without the token.
        concerns_all: Whether every further status of the same report would be refused too.
    """

    def __init__(self, message: str, *, concerns_all: bool = True) -> None:
        super().__init__(message)
        self.message = message
        self.concerns_all = concerns_all


def refusal_of(response: HttpResponse, settings: GitHubSettings) -> RefusedError:
    """What an answer that isn't the wanted one says."""
    status, told = response.status, _told(response)
    if status == 422 and not told.startswith("No commit found"):
        return RefusedError(_quoting(_rejected(told), told, settings), concerns_all=False)
    return RefusedError(_quoting(f"{_meaning(response, told, settings)} (HTTP {status})", told, settings))


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


def _meaning(response: HttpResponse, told: str, settings: GitHubSettings) -> str:
    match response.status:
        case 401:
            return "GitHub doesn't know the token in GITHUB_TOKEN: it is wrong, or has expired"
        case 403 | 429 if _is_limited(response):
            return f"GitHub takes no more requests{_until(response)}; the next report posts what is left"
        case 403:
            return (
                f"the token may not write commit statuses of {settings.repository}: a workflow needs "
                '`permissions: {statuses: write}`, any other token the permission "Commit statuses: write"'
            )
        case 404:
            return (
                f"GitHub shows this token no repository {settings.repository} with that commit: check "
                "`github.repository` in reconciler.yaml, and what the token may write to"
            )
        case 422:
            return "GitHub doesn't have this commit: push it first"
        case 301 | 302 | 307 | 308:
            return f"{settings.repository} has moved: write its new name as `github.repository`"
        case status if status >= 500:
            return "GitHub is out of order; the next report posts what is left"
    return f"what answers at {settings.api_url} doesn't answer as GitHub does"


def _rejected(told: str) -> str:
    if "maximum number of statuses" in told:
        return "GitHub takes no more than 1,000 statuses for one commit and context (HTTP 422)"
    return "GitHub refused the status (HTTP 422)"


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
