"""Cache of list answers, for clients that list everything again and again: a plan, a pass of `watch`.

It saves a warm plan of 10,000 jobs 0.6 s of the 0.8 s that the service computes, of 1.6 s in all: a list
builds a resource for each job and each claim, and a plan reads all of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from reconciler.training_service.http.message import Request, Response
from reconciler.training_service.state.records import JsonObject

_LARGEST = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Listing:
    """A list answer that may be in the cache.

    Attributes:
        version: The state that the answer depends on, read before `message` is called: equal versions of one
            request have equal answers. None if the answer must not be kept.
        message: Builds the answer.
    """

    version: Hashable | None
    message: Callable[[], JsonObject]


class ListCache:
    """Answers by request, the least recently used dropped first; thread-safe.

    Args:
        largest: The limit of all answers' size in bytes.
    """

    def __init__(self, largest: int = _LARGEST) -> None:
        self._largest = largest
        self._lock = threading.Lock()
        self._kept: dict[Hashable, tuple[Hashable, Response]] = {}
        self._size = 0

    def answer(
        self, request: Request, listing: Listing, respond: Callable[[JsonObject], Response]
    ) -> Response:
        """Return the cached answer of the listing's version, or build and keep it."""
        key = (request.path, request.query, request.base)
        with self._lock:
            version, response = self._take(key)
        if response is None or listing.version is None or version != listing.version:
            response = respond(listing.message())
        if listing.version is not None:
            with self._lock:
                self._take(key)
                self._keep(key, listing.version, response)
        return response

    def _take(self, key: Hashable) -> tuple[Hashable, Response | None]:
        version, response = self._kept.pop(key, (None, None))
        self._size -= len(response.content) if response else 0
        return version, response

    def _keep(self, key: Hashable, version: Hashable, response: Response) -> None:
        self._kept[key] = version, response
        self._size += len(response.content)
        while self._size > self._largest:
            self._take(next(iter(self._kept)))
