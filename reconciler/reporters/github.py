"""Commit statuses on GitHub: what is there is read, what changed is posted, what goes wrong is told."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

from reconciler.errors import ServiceError
from reconciler.reporters.refusal import RefusedError, refusal_of, seconds_to_wait
from reconciler.reporters.settings import GitHubSettings
from reconciler.reporters.status import CommitStatus, StatusState, is_news
from reconciler.transport import HttpRequest, HttpResponse, Transport, send_idempotent

PER_PAGE = 100
MAX_PAGES = 100
# GitHub asks for a second between writes where there are many of them.
FEW = 20
PAUSE = 1.0
TIMEOUT = 30.0
LONGEST_WAIT = 120.0

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
        self._transport = transport
        self._settings = settings
        self._sleep = sleep
        self._chance = chance

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
        if not self._settings.token:
            return [Failed(status, _UNAUTHORIZED) for status in wanted]
        distinct = {_key(status.context): status for status in reversed(wanted)}
        twice = [Failed(s, _TWICE) for s in wanted if distinct[_key(s.context)] is not s]
        try:
            there = self._newest(sha, distinct.keys())
        except RefusedError as refusal:
            return [Failed(status, refusal.message) for status in wanted]
        changed = [status for key, status in sorted(distinct.items()) if is_news(status, there.get(key))]
        return [*self._post_all(sha, changed), *twice]

    def _newest(self, sha: str, keys: Set[str]) -> dict[str, CommitStatus]:
        """The newest status of each context in `keys`; GitHub lists the newest first."""
        newest: dict[str, CommitStatus] = {}
        for number in range(1, MAX_PAGES + 1):
            page, more = self._page(sha, number)
            for status in page:
                newest.setdefault(_key(status.context), status)
            if not more or keys <= newest.keys():
                return newest
        raise RefusedError(f"the commit has more than {MAX_PAGES * PER_PAGE} statuses: more than are read")

    def _page(self, sha: str, number: int) -> tuple[list[CommitStatus], bool]:
        """One page, and whether another one follows."""
        request = self._request("GET", f"commits/{sha}/statuses?per_page={PER_PAGE}&page={number}")
        try:
            response = send_idempotent(self._transport, request, sleep=self._sleep, random=self._chance)
        except ServiceError as error:
            raise RefusedError(error.message) from None
        page = _json_list(response.body) if response.status == 200 else None
        if page is None:
            raise refusal_of(response, self._settings)
        link = response.headers.get("link", "")
        # A proxy may drop the header: then a full page means that there may be more.
        more = 'rel="next"' in link if link else len(page) == PER_PAGE
        return [status for item in page if (status := _status(item))], more

    def _post_all(self, sha: str, statuses: Sequence[CommitStatus]) -> Iterator[Posted | Failed]:
        pause = PAUSE if len(statuses) > FEW else 0.0
        patience = _Patience(self._sleep)
        refusal: RefusedError | None = None
        for number, status in enumerate(statuses):
            if refusal is None or not refusal.concerns_all:
                if number and pause:
                    self._sleep(pause)
                refusal = self._post(sha, status, patience)
            yield Failed(status, refusal.message) if refusal else Posted(status)

    def _post(self, sha: str, status: CommitStatus, patience: _Patience) -> RefusedError | None:
        request = self._request("POST", f"statuses/{sha}", _body(status))
        try:
            response = self._transport.send(request)
            if patience.waited_for(response):
                response = self._transport.send(request)
        except ServiceError as error:
            return RefusedError(error.message)
        return None if response.status == 201 else refusal_of(response, self._settings)

    def _request(self, method: str, path: str, body: bytes | None = None) -> HttpRequest:
        headers = {
            "Accept": "application/vnd.github+json",
            "Authorization": f"Bearer {self._settings.token}",
            "X-GitHub-Api-Version": "2022-11-28",
        }
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = f"{self._settings.api_url}/repos/{self._settings.repository}/{path}"
        return HttpRequest(method, url, headers, body, TIMEOUT)


class _Patience:
    """Waits when a limit asks for it, once in a report and not for long."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self._sleep = sleep
        self._spent = False

    def waited_for(self, response: HttpResponse) -> bool:
        """Whether the answer asked to come back later, and it is later now."""
        seconds = seconds_to_wait(response)
        if seconds is None or seconds > LONGEST_WAIT or self._spent:
            return False
        self._spent = True
        self._sleep(seconds)
        return True


def _key(context: str) -> str:
    return context.lower()


def _body(status: CommitStatus) -> bytes:
    body = {"state": status.state, "context": status.context, "description": status.description}
    if status.target_url:
        body["target_url"] = status.target_url
    return json.dumps(body).encode()


def _json_list(body: bytes) -> list[Any] | None:
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, list) else None


def _status(item: Any) -> CommitStatus | None:
    """A status as GitHub lists it; None for one that can't be ours."""
    match item:
        case {"state": str(state), "context": str(context)} if state in _STATES:
            description, url = item.get("description"), item.get("target_url")
            return CommitStatus(_STATES[state], context, str(description or ""), str(url or ""))
    return None
