"""Commit statuses on GitHub: what is there is read, what changed is posted, what goes wrong is told."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Any

from reconciler.reporters.api import GitHubApi
from reconciler.reporters.refusal import RefusedError
from reconciler.reporters.settings import GitHubSettings
from reconciler.reporters.status import CommitStatus, StatusState, is_news
from reconciler.transport import Transport

# GitHub asks for a second between writes where there are many of them.
FEW = 20
PAUSE = 1.0

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
class Failed:
    """A status that GitHub didn't take, with a sentence that says why and what to do."""

    status: CommitStatus
    message: str


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
        self._api = partial(GitHubApi, transport, settings, sleep=sleep, chance=chance)

    def report(self, sha: str, statuses: Iterable[CommitStatus]) -> list[Posted | Failed]:
        """Post those of `statuses` that say something new about the commit; no outcome for the others.

        Nothing that GitHub, the network or the token does raises. After a refusal that concerns all statuses,
        the rest isn't tried: it comes with the same message, and the next report posts it.

        Args:
            sha: The commit, 40 hex digits.
        """
        wanted = sorted(statuses, key=lambda status: status.context)
        if not wanted:
            return []
        if not self._has_token:
            return [Failed(status, _UNAUTHORIZED) for status in wanted]
        distinct = {_key(status.context): status for status in reversed(wanted)}
        twice = [Failed(s, _TWICE) for s in wanted if distinct[_key(s.context)] is not s]
        api = self._api()
        try:
            there = _newest(api, sha, distinct.keys())
        except RefusedError as refusal:
            return [Failed(status, refusal.message) for status in wanted]
        changed = [status for key, status in sorted(distinct.items()) if is_news(status, there.get(key))]
        return [*self._post_all(api, sha, changed), *twice]

    def _post_all(
        self, api: GitHubApi, sha: str, statuses: Sequence[CommitStatus]
    ) -> Iterator[Posted | Failed]:
        pause = PAUSE if len(statuses) > FEW else 0.0
        refusal: RefusedError | None = None
        for number, status in enumerate(statuses):
            if refusal is None or not refusal.concerns_all:
                if number and pause:
                    self._sleep(pause)
                refusal = _post(api, sha, status)
            yield Failed(status, refusal.message) if refusal else Posted(status)


def _newest(api: GitHubApi, sha: str, keys: Set[str]) -> dict[str, CommitStatus]:
    """The newest status of each context in `keys`; GitHub lists the newest first."""
    newest: dict[str, CommitStatus] = {}
    for item in api.items(f"commits/{sha}/statuses"):
        status = _status(item)
        if status:
            newest.setdefault(_key(status.context), status)
        if keys <= newest.keys():
            break
    return newest


def _post(api: GitHubApi, sha: str, status: CommitStatus) -> RefusedError | None:
    try:
        api.write("POST", f"statuses/{sha}", _body(status))
    except RefusedError as refusal:
        return refusal
    return None


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
