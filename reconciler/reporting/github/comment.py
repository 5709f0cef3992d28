"""One comment on a pull request, kept up to date.

It is found again by what it begins with and by who wrote it; neither alone will do. Anybody can write a
comment that begins alike, and a token that may comment may also edit what others wrote. Who the token is,
GitHub tells where it is a user's. A workflow's own token is refused that, and writes as
`github-actions[bot]`: no user can have that name, as brackets aren't allowed in theirs. A comment that begins
alike and is somebody else's is left alone, and doesn't keep ours from being written.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from reconciler.reporting.github.api import GitHubApi
from reconciler.reporting.github.refusals import Purpose, RefusedError

MAX_COMMENT = 65_536
"""Characters of a comment, counted here as UTF-16 does, which never counts fewer than GitHub."""

COMMENTS = Purpose(
    "comments on pull requests",
    "pull-requests: write",
    "Pull requests: write",
    "with that pull request",
    "the comment",
)
_WORKFLOWS = "github-actions[bot]"
_REPLACED = "*Replaced by a newer comment.*"


class Kept(StrEnum):
    """What was done to keep the comment up to date."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, slots=True)
class Author:
    """Who a token writes as: the number of a user, or None for a workflow's token."""

    number: int | None

    def wrote(self, comment: dict[str, Any]) -> bool:
        """Whether it is the author of a comment."""
        match comment.get("user"):
            case {"id": int(number)} if self.number is not None:
                return number == self.number
            case {"login": str(login), "type": "Bot"} if self.number is None:
                return login == _WORKFLOWS
        return False


def comment_body(environment: str, said: str) -> str:
    """The comment's whole text, for which there is one comment of each environment."""
    return f"{_marker(environment)}\n{_plain(said)}"


def fits(body: str) -> bool:
    """Whether GitHub takes a comment so long."""
    return len(body.encode("utf-16-le")) // 2 <= MAX_COMMENT


def keep_comment(api: GitHubApi, number: int, environment: str, said: str) -> Kept:
    """Make the pull request's comment of an environment say `said`.

    Where there are several, as two runs at once may make them, the newest is kept up to date, and the others
    are cut down to a line that says so.

    Args:
        api: Of the repository, for the purpose `COMMENTS`.
        number: The pull request's.
        environment: The environment's name.
        said: The text, of which `comment_body` fits.

    Raises:
        RefusedError: GitHub refused something, or couldn't be asked.
    """
    body = comment_body(environment, said)
    author = _author(api)
    alike = [found for found in map(_comment, api.items(f"issues/{number}/comments")) if found]
    alike = [found for found in alike if _plain(found["body"]).startswith(_marker(environment) + "\n")]
    mine = sorted((found for found in alike if author.wrote(found)), key=_number)
    if mine:
        newest = mine.pop()
        same = _plain(newest["body"]) == body
        if not same:
            api.write("PATCH", _path(newest), {"body": body})
        _retire(api, mine)
        return Kept.UNCHANGED if same else Kept.UPDATED
    made = api.write("POST", f"issues/{number}/comments", {"body": body})
    # Another App's token writes under another name, which only this answer tells.
    _retire(api, [found for found in alike if _writer(made) is not None and _writer(found) == _writer(made)])
    return Kept.CREATED


def _author(api: GitHubApi) -> Author:
    try:
        match api.read("/user"):
            case {"id": int(number)}:
                return Author(number)
    except RefusedError as refusal:
        if not refusal.read_only:
            raise
    return Author(None)


def _retire(api: GitHubApi, comments: Iterable[dict[str, Any]]) -> None:
    for comment in comments:
        api.write("PATCH", _path(comment), {"body": _REPLACED})


def _marker(environment: str) -> str:
    return f"<!-- reconciler plan of {environment} -->"


def _plain(body: str) -> str:
    # GitHub's own editor ends lines with both.
    return body.replace("\r\n", "\n").strip()


def _comment(item: Any) -> dict[str, Any] | None:
    """A comment as GitHub lists it; None for one that can't be ours."""
    match item:
        case {"id": int(), "body": str()}:
            return dict(item)
    return None


def _number(comment: dict[str, Any]) -> int:
    return int(comment["id"])


def _path(comment: dict[str, Any]) -> str:
    return f"issues/comments/{_number(comment)}"


def _writer(comment: Any) -> int | None:
    """The number of who wrote a comment."""
    match comment:
        case {"user": {"id": int(number)}}:
            return number
    return None
