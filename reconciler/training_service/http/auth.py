"""Access rights of callers: full, limited by an expiring token, or limited to one job's buckets."""

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
from reconciler.training_service.state.database import Store
from reconciler.training_service.state.records import Json, number_of

# Matches any bucket name: trainers also receive bucket names as `--bucket=NAME` or in variables.
_BUCKET_NAME = re.compile(r"(?<![\w.-])[a-z0-9][a-z0-9._-]{1,220}[a-z0-9](?![\w-])")
_SECRET = "token_secret"  # noqa: S105 (the name of the setting that holds it)


@dataclass(frozen=True, slots=True)
class Access:
    """Access to some buckets, or to all if `buckets` is None, but not to names below `reserved`.

    Attributes:
        reserved: Inaccessible names: "bucket", or "bucket/prefix of object names".
        mints: Whether the caller may create access tokens.
        until: Expiry of the caller's own token; None for never.
        project: The only project that the caller may write log entries for; "" for any.
        job_id: The job that the caller's log entries belong to; "" for the resource that they name.
    """

    buckets: frozenset[str] | None = None
    reserved: tuple[str, ...] = ()
    mints: bool = False
    until: datetime | None = None
    project: str = ""
    job_id: str = ""

    @property
    def limited(self) -> bool:
        """Return whether some buckets or objects may be inaccessible."""
        return self.buckets is not None or bool(self.reserved)

    def bucket(self, name: str) -> bool:
        """Return whether the bucket is accessible."""
        return (self.buckets is None or name in self.buckets) and name not in self.reserved

    def object(self, bucket: str, name: str) -> bool:
        """Return whether the object may be read, written and listed."""
        return self.bucket(bucket) and not f"{bucket}/{name}".startswith(tuple(_prefixes(self.reserved)))

    def places(self) -> tuple[str, ...]:
        """Return the accessible buckets (none if all are), then the reserved entries inside them."""
        accessible = sorted(name for name in self.buckets or () if self.bucket(name))
        return (*accessible, *(entry for entry in self.reserved if entry.partition("/")[0] in accessible))

    def check_bucket(self, name: str) -> None:
        """Check access to a bucket.

        Raises:
            ApiError: PERMISSION_DENIED.
        """
        if not self.bucket(name):
            message = f"No access to the bucket {name}."
            if self.buckets is not None and name not in self.buckets:
                message += " A job reaches the buckets that it names: in its arguments, variables or folders."
            raise ApiError("PERMISSION_DENIED", message)

    def check_object(self, bucket: str, name: str) -> None:
        """Check access to an object.

        Raises:
            ApiError: PERMISSION_DENIED.
        """
        if not self.object(bucket, name):
            raise ApiError("PERMISSION_DENIED", f"No access to {bucket}/{name}.")

    def check_logs(self, project: str) -> None:
        """Check the right to write log entries for a project.

        Raises:
            ApiError: PERMISSION_DENIED.
        """
        if self.project and number_of(self.project) != number_of(project):
            raise ApiError("PERMISSION_DENIED", f"A job of {self.project} can't write logs of {project}.")

    def check_minting(self) -> None:
        """Check the right to create access tokens.

        Raises:
            ApiError: PERMISSION_DENIED.
        """
        if not self.mints:
            raise ApiError("PERMISSION_DENIED", "Only the token of service.json is good for making tokens.")


EVERYTHING = Access(mints=True)


def job_access(
    body: Mapping[str, Json],
    reserved: Iterable[str],
    others: Iterable[str] = (),
    project: str = "",
    job_id: str = "",
) -> Access:
    """Return a job's access: the buckets that its resource names, with gs:// or not, but no `reserved`.

    Args:
        others: Buckets that it may access without naming them.
    """
    buckets = frozenset(_BUCKET_NAME.findall(json.dumps(body))).union(others)
    return Access(buckets, tuple(reserved), project=project, job_id=job_id)


def _prefixes(reserved: tuple[str, ...]) -> Iterable[str]:
    # The final "/" keeps a reserved bucket from matching another bucket whose name starts with its name.
    return (entry if "/" in entry else entry + "/" for entry in reserved)


class Tokens:
    """Expiring access tokens of one service home; tokens of other homes are invalid."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def mint(self, lifetime: timedelta) -> tuple[str, datetime]:
        """Return a new token and its expiry: after `lifetime`, rounded up to a whole second."""
        # google-auth refuses an expiry with a fraction of a second.
        ends = math.ceil((self._store.clock() + lifetime).timestamp())
        secret = str(self._store.set_once(_SECRET, secrets.token_urlsafe(32)))
        signed = f"{ends}.{secrets.token_urlsafe(16)}"
        return f"{signed}.{_signature(secret, signed)}", datetime.fromtimestamp(ends, UTC)

    def expiry(self, token: str) -> datetime | None:
        """Return the token's expiry, which may be past; None if this home didn't issue the token."""
        secret = self._store.setting(_SECRET)
        signed, _, signature = token.rpartition(".")
        if secret is None or not same(signature, _signature(str(secret), signed)):
            return None
        return datetime.fromtimestamp(int(signed.partition(".")[0]), UTC)


def same(one: str, other: str) -> bool:
    """Return whether two secrets are equal, in a time that doesn't depend on their common prefix."""
    return hmac.compare_digest(one.encode(), other.encode())


def expired(ended: datetime) -> ApiError:
    """Return the error for an expired token."""
    return ApiError("UNAUTHENTICATED", f"The request's bearer token expired at {whole_seconds(ended)}.")


def whole_seconds(moment: datetime) -> str:
    """Return the moment in RFC 3339 without a fraction."""
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _signature(secret: str, signed: str) -> str:
    return hmac.new(secret.encode(), signed.encode(), hashlib.sha256).hexdigest()
