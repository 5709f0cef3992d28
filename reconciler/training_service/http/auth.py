"""What a caller may do: everything, or less with a token that expires or with one job's storage URL."""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from reconciler.training_service.http.message import ApiError
from reconciler.training_service.state.records import Json
from reconciler.training_service.state.store import Store

# A word that may be a bucket's name: trainers are also told of theirs as `--bucket=NAME`, or in variables.
_NAMED = re.compile(r"(?<![\w.-])[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](?![\w-])")


@dataclass(frozen=True, slots=True)
class Reach:
    """Some buckets, or all where `buckets` is None, but nothing below `reserved`.

    Attributes:
        reserved: "bucket", or "bucket/the beginning of names".
        mints: Whether it may have tokens made.
        until: When its own token expires; None for never.
    """

    buckets: frozenset[str] | None = None
    reserved: tuple[str, ...] = ()
    mints: bool = False
    until: datetime | None = None

    @property
    def limited(self) -> bool:
        """Whether there may be a bucket or an object that it doesn't see."""
        return self.buckets is not None or bool(self.reserved)

    def bucket(self, name: str) -> bool:
        """Whether the bucket may be seen."""
        return (self.buckets is None or name in self.buckets) and name not in self.reserved

    def object(self, bucket: str, name: str) -> bool:
        """Whether the object may be read, written or listed."""
        return self.bucket(bucket) and not f"{bucket}/{name}".startswith(tuple(_prefixes(self.reserved)))

    def places(self) -> tuple[str, ...]:
        """The buckets by their names, where not all may be seen; then what is reserved in them, as there."""
        seen = sorted(name for name in self.buckets or () if self.bucket(name))
        return (*seen, *(entry for entry in self.reserved if entry.partition("/")[0] in seen))

    def check_bucket(self, name: str) -> None:
        """Refuse a bucket that may not be seen.

        Raises:
            ApiError: PERMISSION_DENIED.
        """
        if not self.bucket(name):
            told = f"No access to the bucket {name}."
            if self.buckets is not None and name not in self.buckets:
                told += " A job reaches the buckets that it names: in its arguments, variables or folders."
            raise ApiError("PERMISSION_DENIED", told)

    def check_object(self, bucket: str, name: str) -> None:
        """Refuse an object that may not be touched.

        Raises:
            ApiError: PERMISSION_DENIED.
        """
        if not self.object(bucket, name):
            raise ApiError("PERMISSION_DENIED", f"No access to {bucket}/{name}.")

    def check_minting(self) -> None:
        """Refuse who may have no tokens made.

        Raises:
            ApiError: PERMISSION_DENIED.
        """
        if not self.mints:
            raise ApiError("PERMISSION_DENIED", "Only the token of service.json is good for making tokens.")


EVERYTHING = Reach(mints=True)


def of_job(body: Mapping[str, Json], reserved: Iterable[str]) -> Reach:
    """What a job may touch: the buckets that its resource names, as gs://BUCKET or by their names alone."""
    return Reach(frozenset(_NAMED.findall(json.dumps(body))), tuple(reserved))


def _prefixes(reserved: tuple[str, ...]) -> Iterable[str]:
    return (entry if "/" in entry else entry + "/" for entry in reserved)


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
