"""Sizes and tokens of a list's pages."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import secrets

from reconciler.training_service.http.message import invalid
from reconciler.training_service.state.database import Store
from reconciler.training_service.state.records import Json


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
    """Issuer and reader of tokens of pages and copies; the key is a setting, so they survive a restart."""

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
            raise invalid("The token is invalid: it wasn't given for this request.")
        return json.loads(text)

    def _mac(self, text: bytes, query: Json) -> bytes:
        query_digest = hashlib.sha256(json.dumps(query, sort_keys=True).encode()).digest()
        return hmac.digest(self._key, query_digest + text, "sha256")[:_MAC_BYTES]
