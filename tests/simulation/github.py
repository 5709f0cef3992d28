"""Simulated GitHub: commit statuses that are only added, of which the newest counts."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any
from urllib.parse import parse_qs, urlsplit

from reconciler.base.http import HttpRequest, HttpResponse, NoAnswerError

from .process import Process
from .world import World

API = "https://api.github.com"
REPOSITORY = "acme/models"


class Statuses:
    """All statuses of all commits.

    Attributes:
        away_until: The end of GitHub's outage, in the service's time.
    """

    def __init__(self) -> None:
        self.away_until = 0.0
        self._of_commit: dict[str, list[dict[str, Any]]] = defaultdict(list)

    def add(self, sha: str, status: dict[str, Any]) -> None:
        """Append a status."""
        self._of_commit[sha].append(status)

    def newest_first(self, sha: str) -> list[dict[str, Any]]:
        """Return the statuses in GitHub's order."""
        return self._of_commit[sha][::-1]

    def last(self, sha: str, context: str) -> dict[str, Any] | None:
        """Return the status that a commit shows."""
        return newest(self.newest_first(sha), context)


def newest(listed: list[dict[str, Any]], context: str) -> dict[str, Any] | None:
    """Return the newest status of a context, ignoring case."""
    return next((status for status in listed if status["context"].lower() == context.lower()), None)


class GitHubPort:
    """Transport to GitHub for a single reconciler."""

    def __init__(self, process: Process, world: World, statuses: Statuses) -> None:
        self._process = process
        self._world = world
        self._statuses = statuses
        self._known: dict[str, list[dict[str, Any]]] = {}

    def send(self, request: HttpRequest) -> HttpResponse:
        """Answer a request."""
        faults = self._world.faults
        address = urlsplit(request.url)
        self._process.turn(f"{request.method} {address.path}")
        if self._world.now < self._statuses.away_until or faults.happens("status not posted"):
            raise NoAnswerError("GitHub doesn't answer")
        if request.method == "GET":
            return self._listed(address.path.split("/")[-2], parse_qs(address.query))
        sha, status = address.path.split("/")[-1], json.loads(request.body or b"")
        self._statuses.add(sha, status)
        there = newest(self._known.get(sha, []), status["context"])
        self._world.checker.posted(sha, status, self._process.name, there)
        self._process.turn(f"posted {status['state']}: {status['description']}")
        if faults.happens("status posted, answer lost"):
            raise NoAnswerError("GitHub's answer got lost")
        return _answer(201, status)

    def _listed(self, sha: str, query: dict[str, list[str]]) -> HttpResponse:
        size, page = int(query["per_page"][0]), int(query["page"][0])
        found = self._statuses.newest_first(sha)[(page - 1) * size : page * size]
        self._known.setdefault(sha, []).extend(found)
        self._process.turn(f"got {len(found)} statuses")
        return _answer(200, found)


def _answer(status: int, body: Any) -> HttpResponse:
    return HttpResponse(status, {"content-type": "application/json"}, json.dumps(body).encode())
