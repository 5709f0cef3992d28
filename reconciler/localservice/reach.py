"""What a caller may do: everything, or less with a token that expires or with one job's storage URL."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from reconciler.localservice.message import ApiError
from reconciler.localservice.records import Json

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
