"""Commit statuses on GitHub, posted where they change."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from reconciler.base.http import Transport
from reconciler.base.http.connections import time_since_boot
from reconciler.reporting.github.api import GitHubApi, GitHubRefusedError
from reconciler.reporting.github.settings import GitHubSettings
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
_archived: dict[tuple[str, str], GitHubRefusedError] = {}
"""Refusals of archived repositories, by API and name: this process asks them no more."""
_TWICE = "another job has this context, because GitHub ignores upper and lower case: rename one"


@dataclass(frozen=True, slots=True)
class Posted:
    """A status that GitHub accepted; `before` is the one that it replaces, None for none."""

    status: CommitStatus
    before: CommitStatus | None = field(default=None, compare=False)


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
        self._no_token = "" if settings.token else settings.no_token
        self._run_url = settings.run_url
        self._sleep = sleep
        self._api = GitHubApi(transport, settings, sleep=sleep, chance=chance)
        self._writes = 0
        self._place = settings.api_url, settings.repository
        self._refusal = _archived.get(self._place)

    def report(self, sha: str, statuses: Iterable[CommitStatus]) -> list[Posted | Outdated | Failed]:
        """Post new or changed statuses of a commit (40 hex digits); return no outcome for unchanged ones.

        Failures of GitHub, the network or the token raise no exception. After a refusal that concerns all
        statuses, this reporter sends no further request: each further status fails with the same message.
        """
        ordered = sorted(statuses, key=lambda status: status.context)
        if not ordered:
            return []
        if self._no_token:
            return [Failed(status, self._no_token, sha) for status in ordered]
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
            yield _failed(status, sha, refusal) if refusal else Posted(status, existing.of(status))

    def _remember(self, refusal: GitHubRefusedError) -> None:
        # A commit that GitHub doesn't have says nothing about other commits.
        if refusal.concerns_all and not refusal.unknown_commit:
            self._refusal = refusal
        if refusal.archived:
            _archived[self._place] = refusal


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

    def of(self, status: CommitStatus) -> CommitStatus | None:
        """Return the newest status of a status's context; None for none."""
        return self.newest.get(_key(status.context))

    def lacks(self, status: CommitStatus) -> bool:
        """Return True if a status is to be posted; near GitHub's limit, no pending status is posted."""
        key = _key(status.context)
        has_room = status.state != "pending" or self.number[key] < MAX_STATUSES - KEPT_FOR_ENDS
        return has_room and freshness(status, self.of(status)) is Freshness.NEW

    def is_ahead_of(self, status: CommitStatus) -> bool:
        """Return True if the existing status comes from a better informed report."""
        return freshness(status, self.of(status)) is Freshness.OLD


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
