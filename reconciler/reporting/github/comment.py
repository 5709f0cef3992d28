"""Comments on pull requests, each kept up to date: an environment's plan, and the ends of a commit's jobs.

A marker at the comment's beginning and its author identify it; both are needed. Any user can write a comment
with the marker, and a token that may comment may also edit the comments of other users. GitHub returns the
user of a user's token. It refuses this to a workflow's token, which writes as `github-actions[bot]`: no user
can have that name, because user names contain no brackets. A comment with the marker by another author stays
unchanged, and doesn't prevent ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Any

from reconciler.reporting.github.api import GitHubApi, GitHubRefusedError, Purpose

MAX_COMMENT = 65_536
"""Longest comment in UTF-16 code units, of which a text never has fewer than GitHub counts characters."""

COMMENTS = Purpose(
    "comments on pull requests",
    "pull-requests: write",
    "Pull requests: write",
    "with that pull request",
    "the comment",
)
_WORKFLOWS = "github-actions[bot]"
# The time and the run of a plan. A later run with the same result leaves the comment as it is.
_OCCASION = re.compile(r"(?<=, planned )[-0-9]{10} [0-9]{2}:[0-9]{2} UTC|(?<=/actions/runs/)[0-9]+(?=\">)")
_REPLACED = "*Replaced by a newer comment.*"


class CommentResult(StrEnum):
    """Result of an update of the comment."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    UNNEEDED = "not needed, as no job and no setting differs"


def plan_marker(environment: str) -> str:
    """Return the first line of the comment with an environment's plan."""
    return f"<!-- reconciler plan of {environment} -->"


def ends_marker(environment: str, sha: str) -> str:
    """Return the first line of the comment with the ends of a commit's jobs in an environment."""
    return f"<!-- reconciler ends of {environment} at {sha} -->"


def comment_body(marker: str, text: str) -> str:
    """Return the comment's text below its marker."""
    return f"{marker}\n{_normalized(text)}"


def fits(body: str) -> bool:
    """Return True if the text isn't too long for a comment."""
    return len(body.encode("utf-16-le")) // 2 <= MAX_COMMENT


def keep_comment(
    api: GitHubApi,
    number: int,
    marker: str,
    text: str,
    *,
    create: bool = True,
    is_news: Callable[[str], bool] = lambda before: False,
) -> CommentResult:
    """Create or update the pull request's comment with a marker.

    A text that differs only in the time and the run of its plan is no update. Two runs at once may create two
    comments. The newest is kept up to date, the others are reduced to a line that refers to it. The API is
    for the purpose `COMMENTS`, and the `comment_body` of the text fits.

    Args:
        api: The repository's API.
        number: The pull request's number.
        marker: The comment's first line.
        text: The rest of it.
        create: False to update an existing comment only.
        is_news: Returns True if the text has news over that of the existing comment, so that a new comment
            takes its place: GitHub notifies nobody of an edit.

    Raises:
        GitHubRefusedError: GitHub refused a request, or the request failed.
    """
    body = comment_body(marker, text)
    author = _author(api)
    listed = [comment for comment in map(_comment, api.items(f"issues/{number}/comments")) if comment]
    marked = [comment for comment in listed if _normalized(comment["body"]).startswith(marker + "\n")]
    mine = sorted(
        (comment for comment in marked if _is_by(author, comment)), key=lambda comment: int(comment["id"])
    )
    is_replaced = bool(mine) and is_news(_normalized(mine[-1]["body"]))
    if mine and not is_replaced:
        newest = mine.pop()
        is_current = _OCCASION.sub("", _normalized(newest["body"])) == _OCCASION.sub("", body)
        if not is_current:
            api.write("PATCH", _path(newest), {"body": body})
        _retire(api, mine)
        return CommentResult.UNCHANGED if is_current else CommentResult.UPDATED
    # The comment of another App's token is known only after a new one is written.
    if not (create or any(map(_is_by_bot, marked))):
        return CommentResult.UNNEEDED
    created = api.write("POST", f"issues/{number}/comments", {"body": body})
    # The token of another App writes under a name that only this response contains.
    writer = _writer(created)
    _retire(api, [comment for comment in marked if writer is not None and _writer(comment) == writer])
    return CommentResult.CREATED


def _author(api: GitHubApi) -> int | None:
    """Return the user number of the token's comments; None for a workflow's token."""
    try:
        match api.read("/user"):
            case {"id": int(number)}:
                return number
    except GitHubRefusedError as refusal:
        # GitHub refuses this request to a workflow's token, and only to such a token.
        if not refusal.read_only:
            raise
    return None


def _is_by(author: int | None, comment: dict[str, Any]) -> bool:
    match comment.get("user"):
        case {"login": str(login), "type": "Bot"} if author is None:
            return login == _WORKFLOWS
    return author is not None and _writer(comment) == author


def _is_by_bot(comment: dict[str, Any]) -> bool:
    match comment.get("user"):
        case {"type": "Bot"}:
            return True
    return False


def _retire(api: GitHubApi, comments: Iterable[dict[str, Any]]) -> None:
    for comment in comments:
        api.write("PATCH", _path(comment), {"body": _REPLACED})


def _normalized(body: str) -> str:
    # GitHub's editor ends lines with \r\n.
    return body.replace("\r\n", "\n").strip()


def _comment(item: Any) -> dict[str, Any] | None:
    """Return the comment in an item of GitHub's listing; None for an item of another form."""
    match item:
        case {"id": int(), "body": str()}:
            return dict(item)
    return None


def _path(comment: dict[str, Any]) -> str:
    return f"issues/comments/{comment['id']:d}"


def _writer(comment: Any) -> int | None:
    """Return the user number of a comment's author."""
    match comment:
        case {"user": {"id": int(number)}}:
            return number
    return None
