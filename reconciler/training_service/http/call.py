"""Calls of API methods, the type of their handlers, and lists: their page tokens, and a cache of answers.

The cache is for clients that list everything again and again: looks without a summary, full looks, the live
pages. It saves a full look at 10,000 jobs 0.6 s of the 0.8 s that the service computes, of 1.6 s in all: a
list builds a resource for each job and each claim.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets
import threading
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass

from reconciler.training_service.http.auth import Access
from reconciler.training_service.http.discovery import Form, Method
from reconciler.training_service.http.message import Request, Response, invalid
from reconciler.training_service.state.records import Json, JsonObject
from reconciler.training_service.state.store import Store


@dataclass(frozen=True, slots=True)
class Call:
    """A decoded request for one method.

    Attributes:
        path: The variable parts of the path, decoded.
        parameters: The query parameters by name, converted to their types.
        body: The request message; {} if the method takes none, or takes media.
        access: The caller's access rights.
    """

    request: Request
    method: Method
    form: Form
    path: Mapping[str, str]
    parameters: JsonObject
    body: JsonObject
    access: Access

    def text(self, parameter: str) -> str:
        """Return a parameter's text, "" if missing."""
        return str(self.parameters.get(parameter, ""))

    def number(self, parameter: str) -> int | None:
        """Return a parameter's number, None if missing."""
        found = self.parameters.get(parameter)
        return None if found is None else int(found)


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


Handler = Callable[[Call], Response | JsonObject | Listing]
"""Function that answers calls of one method: with a message to send as JSON, a list, or a whole response."""


def page_size(asked: Json, name: str, default: int, largest: int) -> int:
    """Return the size of a list's pages; `name` names the field `asked` in errors."""
    size = int(asked or 0)
    if size < 0:
        raise invalid(f"{name} must not be negative.")
    # Google's APIs cut a too large size down instead of refusing it.
    return min(size or default, largest)


_PAGE_KEY = "page_key"
_MAC_BYTES = 16


class Pages:
    """Issuer and reader of page tokens; the key is a setting, so tokens survive a restart."""

    def __init__(self, store: Store) -> None:
        key = store.setting(_PAGE_KEY)
        if key is None:
            key = secrets.token_hex(16)
            store.set_setting(_PAGE_KEY, key)
        self._key = bytes.fromhex(key)

    def token(self, position: Json, query: Json) -> str:
        """Return the token of `position` in the results of `query`, both any JSON value."""
        text = json.dumps(position, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(self._mac(text, query) + text).decode().rstrip("=")

    def position(self, token: str, query: Json) -> Json:
        """Return the position of a token.

        Raises:
            ApiError: INVALID_ARGUMENT: The token is not this service's, or belongs to another query.
        """
        try:
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            raw = b""
        mac, text = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(text, query)):
            raise invalid("The page token is invalid: it wasn't given for this query.")
        return json.loads(text)

    def _mac(self, text: bytes, query: Json) -> bytes:
        query_digest = hashlib.sha256(json.dumps(query, sort_keys=True).encode()).digest()
        return hmac.digest(self._key, query_digest + text, "sha256")[:_MAC_BYTES]


_LARGEST = 64 * 1024 * 1024


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
