"""Reports on GitHub: commit statuses, posted where they change, and the comment on a pull request.

A marker at the comment's beginning and its author identify it; both are needed. Any user can write a comment
with the marker, and a token that may comment may also edit the comments of other users. GitHub returns the
user of a user's token. It refuses this to a workflow's token, which writes as `github-actions[bot]`: no user
can have that name, because user names contain no brackets. A comment with the marker by another author stays
unchanged, and doesn't prevent ours.
"""

from __future__ import annotations

import random
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, get_args

from reconciler.base.http import Transport
from reconciler.base.http.connections import time_since_boot
from reconciler.reporting.github.api import GitHubApi, GitHubRefusedError, GitHubSettings, Purpose
from reconciler.reporting.status import CommitStatus, Freshness, StatusState, freshness

# Number of statuses that are posted without pauses: a short series needs none.
FEW = 20
# GitHub asks for a second between the writes of a longer series.
PAUSE = 1.0
# Seconds for which a commit's statuses count as known: after them, others may have posted newer ones.
FRESH = 300.0
# GitHub accepts 1,000 statuses of a context and commit. The last ten are reserved for the ends of jobs.
MAX_STATUSES = 1000
KEPT_FOR_ENDS = 10

_STATES: dict[str, StatusState] = {state: state for state in get_args(StatusState)}
_UNAUTHORIZED = (
    "there is no token to post commit statuses with: set GITHUB_TOKEN (in a workflow, `env: "
    "{GITHUB_TOKEN: ${{ github.token }}}` and `permissions: {statuses: write}`)"
)
_TWICE = "another job has this context, because GitHub ignores upper and lower case: rename one"


@dataclass(frozen=True, slots=True)
class Posted:
    """A status that GitHub accepted."""

    status: CommitStatus


@dataclass(frozen=True, slots=True)
class Outdated:
    """A status that wasn't posted because the existing status is ahead."""

    status: CommitStatus


@dataclass(frozen=True, slots=True)
class Failed:
    """A status that GitHub refused.

    Attributes:
        message: A sentence with the reason and the remedy.
        unknown_commit: True if GitHub has no such commit: not pushed yet, or removed by a forced push.
        read_only: True if the token is a workflow's without the permission.
    """

    status: CommitStatus
    message: str
    sha: str = ""
    unknown_commit: bool = False
    read_only: bool = False


class GitHubReporter:
    """Poster of commit statuses, with a single request at a time; `sleep` and `chance` as in `GitHubApi`.

    `clock` goes on while the machine sleeps.
    """

    def __init__(
        self,
        transport: Transport,
        settings: GitHubSettings,
        *,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
        clock: Callable[[], float] = time_since_boot,
    ) -> None:
        self._clock = clock
        self._has_token = bool(settings.token)
        self._run_url = settings.run_url
        self._sleep = sleep
        self._api = GitHubApi(transport, settings, sleep=sleep, chance=chance)
        self._writes = 0
        self._refusal: GitHubRefusedError | None = None

    def report(self, sha: str, statuses: Iterable[CommitStatus]) -> list[Posted | Outdated | Failed]:
        """Post new or changed statuses of a commit (40 hex digits); return no outcome for unchanged ones.

        Failures of GitHub, the network or the token raise no exception. After a refusal that concerns all
        statuses, this reporter sends no further request: each further status fails with the same message.
        """
        ordered = sorted(statuses, key=lambda status: status.context)
        if not ordered:
            return []
        if not self._has_token:
            return [Failed(status, _UNAUTHORIZED, sha) for status in ordered]
        if self._refusal:
            return [_failed(status, sha, self._refusal) for status in ordered]
        # Reversed, so that the first of two contexts that differ only in case is posted.
        distinct = {_key(status.context): status for status in reversed(ordered)}
        twice = [Failed(s, _TWICE, sha) for s in ordered if distinct[_key(s.context)] is not s]
        try:
            existing = self._existing(sha)
        except GitHubRefusedError as refusal:
            self._remember(refusal)
            return [_failed(status, sha, refusal) for status in ordered]
        unique = [status for _, status in sorted(distinct.items())]
        changed = [status for status in unique if existing.lacks(status)]
        outdated = [Outdated(status) for status in unique if existing.is_ahead_of(status)]
        return [*self._post_all(sha, changed, existing), *outdated, *twice]

    def _existing(self, sha: str) -> _Existing:
        # The time before the read: what others post during it may be missing.
        existing = _Existing(self._clock())
        for item in self._api.items(f"commits/{sha}/statuses"):
            if status := _status(item):
                key = _key(status.context)
                # GitHub lists the newest first.
                existing.newest.setdefault(key, status)
                existing.number[key] += 1
        return existing

    def _post_all(
        self, sha: str, statuses: Sequence[CommitStatus], existing: _Existing
    ) -> Iterator[Posted | Outdated | Failed]:
        refusal: GitHubRefusedError | None = None
        for number, status in enumerate(statuses):
            if refusal is None or not refusal.concerns_all:
                if (number and len(statuses) > FEW) or self._writes >= FEW:
                    self._sleep(PAUSE)
                try:
                    # A process may stand still here: its news are old then, and who wakes may die at once.
                    if self._clock() - existing.read_at > FRESH:
                        existing = self._existing(sha)
                    if not existing.lacks(status):
                        yield Outdated(status)
                        continue
                    self._writes += 1
                    self._api.write("POST", f"statuses/{sha}", _body(status, self._run_url))
                    refusal = None
                except GitHubRefusedError as error:
                    self._remember(error)
                    refusal = error
            yield _failed(status, sha, refusal) if refusal else Posted(status)

    def _remember(self, refusal: GitHubRefusedError) -> None:
        # A commit that GitHub doesn't have says nothing about other commits.
        if refusal.concerns_all and not refusal.unknown_commit:
            self._refusal = refusal


@dataclass(slots=True)
class _Existing:
    """Statuses that a commit has on GitHub.

    Attributes:
        read_at: When they were read, by the reporter's clock.
        newest: The newest status of each context in small letters.
        number: The number of statuses of each context.
    """

    read_at: float
    newest: dict[str, CommitStatus] = field(default_factory=dict)
    number: Counter[str] = field(default_factory=Counter)

    def lacks(self, status: CommitStatus) -> bool:
        """Return True if a status is to be posted; near GitHub's limit, no pending status is posted."""
        key = _key(status.context)
        has_room = status.state != "pending" or self.number[key] < MAX_STATUSES - KEPT_FOR_ENDS
        return has_room and freshness(status, self.newest.get(key)) is Freshness.NEW

    def is_ahead_of(self, status: CommitStatus) -> bool:
        """Return True if the existing status comes from a better informed report."""
        return freshness(status, self.newest.get(_key(status.context))) is Freshness.OLD


def _failed(status: CommitStatus, sha: str, refusal: GitHubRefusedError) -> Failed:
    return Failed(status, refusal.message, sha, refusal.unknown_commit, refusal.read_only)


def _key(context: str) -> str:
    return context.lower()


def _body(status: CommitStatus, run_url: str) -> dict[str, str]:
    body = {"state": status.state, "context": status.context, "description": status.description}
    url = status.target_url or run_url
    return {**body, "target_url": url} if url else body


def _status(item: Any) -> CommitStatus | None:
    """Return the status in an item of GitHub's listing; None for an item of another form."""
    match item:
        case {"state": str(state), "context": str(context)} if state in _STATES:
            description, url = item.get("description"), item.get("target_url")
            return CommitStatus(_STATES[state], context, str(description or ""), str(url or ""))
    return None


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


class Kept(StrEnum):
    """Result of an update of the comment."""

    CREATED = "created"
    UPDATED = "updated"
    UNCHANGED = "unchanged"
    UNNEEDED = "not needed, as no job and no setting differs"


def comment_body(environment: str, text: str) -> str:
    """Return the comment's text with the marker of its environment."""
    return f"{_marker(environment)}\n{_normalized(text)}"


def fits(body: str) -> bool:
    """Return True if the text isn't too long for a comment."""
    return len(body.encode("utf-16-le")) // 2 <= MAX_COMMENT


def keep_comment(api: GitHubApi, number: int, environment: str, text: str, *, create: bool = True) -> Kept:
    """Create or update the pull request's comment of an environment; without `create`, only update one.

    A text that differs only in the time and the run of its plan is no update. Two runs at once may create two
    comments. The newest is kept up to date, the others are reduced to a line that refers to it. The API is
    for the purpose `COMMENTS`, and the `comment_body` of the text fits.

    Raises:
        GitHubRefusedError: GitHub refused a request, or the request failed.
    """
    body = comment_body(environment, text)
    author = _author(api)
    listed = [found for found in map(_comment, api.items(f"issues/{number}/comments")) if found]
    marked = [found for found in listed if _normalized(found["body"]).startswith(_marker(environment) + "\n")]
    mine = sorted((found for found in marked if _is_by(author, found)), key=lambda found: int(found["id"]))
    if mine:
        newest = mine.pop()
        is_current = _OCCASION.sub("", _normalized(newest["body"])) == _OCCASION.sub("", body)
        if not is_current:
            api.write("PATCH", _path(newest), {"body": body})
        _retire(api, mine)
        return Kept.UNCHANGED if is_current else Kept.UPDATED
    # The comment of another App's token is known only after a new one is written.
    if not (create or any(map(_is_by_bot, marked))):
        return Kept.UNNEEDED
    created = api.write("POST", f"issues/{number}/comments", {"body": body})
    # The token of another App writes under a name that only this response contains.
    writer = _writer(created)
    _retire(api, [found for found in marked if writer is not None and _writer(found) == writer])
    return Kept.CREATED


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


def _marker(environment: str) -> str:
    return f"<!-- reconciler plan of {environment} -->"


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
