"""Client of GitHub's REST API: repeats reads, and waits once if a limit refuses a write."""

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
    """API of a repository; all failures are RefusedError.

    Args:
        transport: Sends the requests.
        settings: The repository and the token.
        purpose: The kind of reports, for messages.
        sleep: Waits for a number of seconds.
        chance: Returns a random number from 0 to below 1.
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
        """Yield the items of all pages of a listing; raise RefusedError after 100 pages."""
        for number in range(1, MAX_PAGES + 1):
            page, more = self._page(path, number)
            yield from page
            if not more:
                return
        raise RefusedError(f"{path}: there are more than {MAX_PAGES * PER_PAGE}, more than are read")

    def read(self, path: str) -> Any:
        """Return a resource of the repository, or of the API if the path begins with "/"."""
        return _json(self._read(path).body)

    def write(self, method: str, path: str, body: Mapping[str, Any]) -> Any:
        """Create or change a resource; return the response's JSON."""
        request = self._request(method, path, json.dumps(body).encode())
        try:
            response = self._transport.send(request)
            # A request that a limit refused had no effect, so that a second one duplicates nothing.
            if self._waited_for(response):
                response = self._transport.send(request)
        except ServiceError as error:
            raise RefusedError(error.message) from None
        if response.status not in (200, 201):
            raise refusal_of(response, self._settings, self._purpose)
        return _json(response.body)

    def _page(self, path: str, number: int) -> tuple[list[Any], bool]:
        """Return a page's items, and True if a page follows."""
        response = self._read(f"{path}?per_page={PER_PAGE}&page={number}")
        page = _json(response.body)
        if not isinstance(page, list):
            raise refusal_of(response, self._settings, self._purpose)
        link = response.headers.get("link", "")
        # A proxy may drop the header: then a page may follow any full page.
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
        """Wait if the response asks for it; return True after waiting."""
        # Once per report: a job that waits for hours costs more than a status that the next report posts.
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
