"""Bearer tokens that end at a known time, made and known again by a secret that never leaves the home.

A token is `EXPIRY.RANDOM.SIGNATURE`; nothing of it is kept, so that it outlives the process that made it.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import secrets
from datetime import UTC, datetime, timedelta

from reconciler.localservice.message import ApiError
from reconciler.localservice.store import Store

_SECRET = "token_secret"  # noqa: S105 (the name of the setting that holds it)


class Tokens:
    """The expiring tokens of one home; those of another home are none."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def mint(self, lifetime: timedelta) -> tuple[str, datetime]:
        """A new token, and when it ends: after `lifetime`, rounded up to a whole second.

        A fraction of a second would be too much for google-auth, which takes only whole ones.
        """
        ends = math.ceil((self._store.clock() + lifetime).timestamp())
        secret = str(self._store.set_once(_SECRET, secrets.token_urlsafe(32)))
        signed = f"{ends}.{secrets.token_urlsafe(16)}"
        return f"{signed}.{_signature(secret, signed)}", datetime.fromtimestamp(ends, UTC)

    def expiry(self, token: str) -> datetime | None:
        """When the token ends, or has ended; None where it isn't a token of this home."""
        secret = self._store.setting(_SECRET)
        signed, _, signature = token.rpartition(".")
        if secret is None or not same(signature, _signature(str(secret), signed)):
            return None
        return datetime.fromtimestamp(int(signed.partition(".")[0]), UTC)


def same(one: str, other: str) -> bool:
    """Whether two secrets are equal, found out in a time that doesn't tell how far they are."""
    return hmac.compare_digest(one.encode(), other.encode())


def expired(ended: datetime) -> ApiError:
    """The refusal of a token that has ended."""
    return ApiError("UNAUTHENTICATED", f"The request's bearer token expired at {whole_seconds(ended)}.")


def whole_seconds(moment: datetime) -> str:
    """RFC 3339 without a fraction."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _signature(secret: str, signed: str) -> str:
    return hmac.new(secret.encode(), signed.encode(), hashlib.sha256).hexdigest()
