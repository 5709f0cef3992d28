"""GitHub's REST API, one request at a time: reads are repeated, writes wait once where a limit asks."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from reconciler.base.errors import ServiceError
from reconciler.base.http import HttpRequest, HttpResponse, Transport, send_idempotent
from reconciler.reporting.github.refusals import STATUSES, Purpose, RefusedError, refusal_of, seconds_to_wait
from reconciler.reporting.github.settings import GitHubSettings

PER_PAGE = 100
MAX_PAGES = 100
TIMEOUT = 30.0
LONGEST_WAIT = 120.0


class GitHubApi:
    """The API of one repository; what it raises is RefusedError.

    Args:
        transport: What sends.
        settings: Where to, and with what token.
        purpose: What it is for.
        sleep: Waits for a number of seconds.
        chance: Gives a number from 0 to below 1.
    """

    def __init__(
        self,
        transport: Transport,
        settings: GitHubSettings,
        purpose: Purpose = STATUSES,
        *,
        sleep: Callable[[float], None] = time.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._transport = transport
        self._settings = settings
        self._purpose = purpose
        self._chance = chance
        self._waited = False
        self.sleep = sleep

    def items(self, path: str) -> Iterator[Any]:
        """The items of all pages of a listing, as they are read; more than 100 pages are refused."""
        for number in range(1, MAX_PAGES + 1):
            page, more = self._page(path, number)
            yield from page
            if not more:
                return
        raise RefusedError(f"{path}: there are more than {MAX_PAGES * PER_PAGE}, more than are read")

    def read(self, path: str) -> Any:
        """One resource; a path that begins with "/" is not the repository's, but below the API's address."""
        return _json(self._read(path).body)

    def write(self, method: str, path: str, body: Mapping[str, Any]) -> Any:
        """Create or change a resource; sent a second time only where a limit refused the first."""
        request = self._request(method, path, json.dumps(body).encode())
        try:
            response = self._transport.send(request)
            if self._waited_for(response):
                response = self._transport.send(request)
        except ServiceError as error:
            raise RefusedError(error.message) from None
        if response.status not in (200, 201):
            raise refusal_of(response, self._settings, self._purpose)
        return _json(response.body)

    def _page(self, path: str, number: int) -> tuple[list[Any], bool]:
        """One page, and whether another one follows."""
        response = self._read(f"{path}?per_page={PER_PAGE}&page={number}")
        page = _json(response.body)
        if not isinstance(page, list):
            raise refusal_of(response, self._settings, self._purpose)
        link = response.headers.get("link", "")
        # A proxy may drop the header: then a full page means that there may be more.
        return page, 'rel="next"' in link if link else len(page) == PER_PAGE

    def _read(self, path: str) -> HttpResponse:
        request = self._request("GET", path)
        try:
            response = send_idempotent(self._transport, request, sleep=self.sleep, random=self._chance)
        except ServiceError as error:
            raise RefusedError(error.message) from None
        if response.status != 200:
            raise refusal_of(response, self._settings, self._purpose)
        return response

    def _waited_for(self, response: HttpResponse) -> bool:
        """Whether the answer asked to come back later, and it is later now: once, and not for long."""
        seconds = seconds_to_wait(response)
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
