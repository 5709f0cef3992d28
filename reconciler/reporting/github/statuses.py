"""Commit statuses on GitHub: what is there is read, what changed is posted, what goes wrong is told."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from reconciler.base.http import Transport
from reconciler.reporting.github.api import GitHubApi
from reconciler.reporting.github.refusals import RefusedError
from reconciler.reporting.github.settings import GitHubSettings
from reconciler.reporting.status import CommitStatus, News, StatusState, news

# GitHub asks for a second between writes where there are many of them.
FEW = 20
PAUSE = 1.0
# GitHub takes so many of one context on one commit, and the last of them are kept for how jobs end.
MAX_STATUSES = 1000
KEPT_FOR_ENDS = 10

_STATES: dict[str, StatusState] = {
    "pending": "pending",
    "success": "success",
    "failure": "failure",
    "error": "error",
}
_UNAUTHORIZED = (
    "there is no token to post commit statuses with: set GITHUB_TOKEN (in a workflow, `env: "
    "{GITHUB_TOKEN: ${{ github.token }}}` and `permissions: {statuses: write}`)"
)
_TWICE = "another job has this context, as GitHub takes capital and small letters for the same: rename one"


@dataclass(frozen=True, slots=True)
class Posted:
    """A status that GitHub took."""

    status: CommitStatus


@dataclass(frozen=True, slots=True)
class Outdated:
    """A status that wasn't posted, as the one that is there knew more."""

    status: CommitStatus


@dataclass(frozen=True, slots=True)
class Failed:
    """A status that GitHub didn't take.

    Attributes:
        message: A sentence that says why, and what to do.
        sha: The commit.
        unknown_commit: Whether GitHub has no such commit: not pushed yet, or pushed away.
    """

    status: CommitStatus
    message: str
    sha: str = ""
    unknown_commit: bool = False


class GitHubReporter:
    """Posts commit statuses, one request at a time.

    Args:
        transport: What sends.
        settings: Where to, and with what token.
        sleep: Waits for a number of seconds.
        chance: Gives a number from 0 to below 1.
    """

    def __init__(
        self,
        transport: Transport,
        settings: GitHubSettings,
        *,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._has_token = bool(settings.token)
        self._sleep = sleep
        self._api = GitHubApi(transport, settings, sleep=sleep, chance=chance)
        self._writes = 0
        self._refusal: RefusedError | None = None

    def report(self, sha: str, statuses: Iterable[CommitStatus]) -> list[Posted | Outdated | Failed]:
        """Post those of `statuses` that say something new about the commit; no outcome for the others.

        Nothing that GitHub, the network or the token does raises. After a refusal that concerns all statuses,
        neither the rest nor another commit is tried any more: it comes with the same message, and the next
        reporter posts it.

        Args:
            sha: The commit, 40 hex digits.
        """
        wanted = sorted(statuses, key=lambda status: status.context)
        if not wanted:
            return []
        if not self._has_token:
            return [Failed(status, _UNAUTHORIZED, sha) for status in wanted]
        if self._refusal:
            return [_failed(status, sha, self._refusal) for status in wanted]
        distinct = {_key(status.context): status for status in reversed(wanted)}
        twice = [Failed(s, _TWICE, sha) for s in wanted if distinct[_key(s.context)] is not s]
        try:
            there = _there(self._api, sha)
        except RefusedError as refusal:
            self._remember(refusal)
            return [_failed(status, sha, refusal) for status in wanted]
        changed = [status for _, status in sorted(distinct.items()) if there.lacks(status)]
        outdated = [Outdated(status) for _, status in sorted(distinct.items()) if there.knows_more(status)]
        return [*self._post_all(sha, changed), *outdated, *twice]

    def _post_all(self, sha: str, statuses: Sequence[CommitStatus]) -> Iterator[Posted | Failed]:
        refusal: RefusedError | None = None
        for number, status in enumerate(statuses):
            if refusal is None or not refusal.concerns_all:
                if (number and len(statuses) > FEW) or self._writes >= FEW:
                    self._sleep(PAUSE)
                refusal = self._post(sha, status)
            yield _failed(status, sha, refusal) if refusal else Posted(status)

    def _post(self, sha: str, status: CommitStatus) -> RefusedError | None:
        self._writes += 1
        try:
            self._api.write("POST", f"statuses/{sha}", _body(status))
        except RefusedError as refusal:
            self._remember(refusal)
            return refusal
        return None

    def _remember(self, refusal: RefusedError) -> None:
        if refusal.concerns_all and not refusal.unknown_commit:
            self._refusal = refusal


@dataclass(slots=True)
class _There:
    """The statuses that a commit has.

    Attributes:
        newest: By context in small letters.
        number: How many there are of each context.
    """

    newest: dict[str, CommitStatus] = field(default_factory=dict)
    number: Counter[str] = field(default_factory=Counter)

    def lacks(self, wanted: CommitStatus) -> bool:
        """Whether a status is to be posted; near GitHub's limit only what isn't pending."""
        key = _key(wanted.context)
        has_room = wanted.state != "pending" or self.number[key] < MAX_STATUSES - KEPT_FOR_ENDS
        return has_room and news(wanted, self.newest.get(key)) is News.NEW

    def knows_more(self, wanted: CommitStatus) -> bool:
        """Whether what is there is ahead of a status."""
        return news(wanted, self.newest.get(_key(wanted.context))) is News.OLD


def _there(api: GitHubApi, sha: str) -> _There:
    """All of a commit's statuses; GitHub lists the newest first."""
    there = _There()
    for item in api.items(f"commits/{sha}/statuses"):
        status = _status(item)
        if status:
            key = _key(status.context)
            there.newest.setdefault(key, status)
            there.number[key] += 1
    return there


def _failed(status: CommitStatus, sha: str, refusal: RefusedError) -> Failed:
    return Failed(status, refusal.message, sha, refusal.unknown_commit)


def _key(context: str) -> str:
    return context.lower()


def _body(status: CommitStatus) -> dict[str, str]:
    body = {"state": status.state, "context": status.context, "description": status.description}
    if status.target_url:
        body["target_url"] = status.target_url
    return body


def _status(item: Any) -> CommitStatus | None:
    """A status as GitHub lists it; None for one that can't be ours."""
    match item:
        case {"state": str(state), "context": str(context)} if state in _STATES:
            description, url = item.get("description"), item.get("target_url")
            return CommitStatus(_STATES[state], context, str(description or ""), str(url or ""))
    return None
