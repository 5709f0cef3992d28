"""Objects of public buckets, read from Google without a token and kept in the home.

The settings name these buckets. Files that lie in a public bucket's folder of the home come first: the user
has put them there. Nothing is written to a public bucket.

The home keeps contents by their generation, in `public/`, up to LARGEST bytes in all: the least recently used
are removed first. Where Google can't be reached, what the home keeps is served as the newest.

Sources: the methods objects.get and objects.list of Cloud Storage's JSON API; the page "Access public data".
"""

from __future__ import annotations

import hashlib
import json
import random
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import NoReturn
from urllib.parse import quote, urlencode
from weakref import WeakValueDictionary

from msgspec.structs import asdict

from reconciler.base.http import (
    DirectTransport,
    HttpRequest,
    HttpResponse,
    NoAnswerError,
    NotSentError,
    RetryingReads,
    Transport,
)
from reconciler.training_service.http.message import ApiError
from reconciler.training_service.state.database import Database, Store
from reconciler.training_service.state.records import Json, JsonObject
from reconciler.training_service.storage.incoming import Staged, Uploads
from reconciler.training_service.storage.index import StoredObject
from reconciler.training_service.storage.objects import ANY, Bucket, Conditions, Content, Objects
from reconciler.training_service.storage.resources import stored_of

PUBLIC = "public_buckets"
"""Setting with the names of the buckets that are read from Google."""

LARGEST = 5 * 1024**3
"""The limit of all kept contents, in bytes."""

_GOOGLE = "https://storage.googleapis.com"
_PIECE = 16 * 1024 * 1024  # bytes of one request, which the transport holds in memory
_FRESH = 30.0  # seconds in which an object's metadata isn't asked for again
_ATTEMPTS = 3


class UnreachableError(Exception):
    """Google can't be reached; the text gives the reason."""


class PublicBuckets:
    """Reader of public buckets; thread-safe.

    Args:
        names: Returns the buckets' names, as the settings are now.
    """

    def __init__(self, home: Path, names: Callable[[], Collection[str]], transport: Transport) -> None:
        self._home = home
        self._names = names
        self._transport = transport
        self._uploads = Uploads(home)
        self._known: dict[tuple[str, str], tuple[float, StoredObject]] = {}
        self._locks: WeakValueDictionary[Path, threading.Lock] = WeakValueDictionary()
        self._lock = threading.Lock()

    def has(self, bucket: str) -> bool:
        """Return whether the settings name the bucket."""
        return bucket in self._names()

    def find(self, bucket: str, name: str) -> StoredObject:
        """Return an object without its content.

        Raises:
            ApiError: NOT_FOUND; PERMISSION_DENIED: It isn't public; FAILED_PRECONDITION: Google can't be
                reached, and the home doesn't keep the object.
        """
        asked, known = self._known.get((bucket, name), (0.0, None))
        if known is not None and time.monotonic() < asked + _FRESH:
            return known
        try:
            response = self._get(f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}", {})
        except UnreachableError as error:
            kept = self._kept(bucket, name)
            if kept is None:
                self._refuse_unreachable(bucket, name, error)
            return kept
        if response.status == 404:
            raise ApiError("NOT_FOUND", f"No such object: {bucket}/{name}")
        found = stored_of(_resource(response, f"gs://{bucket}/{name}"))
        self._known[(bucket, name)] = time.monotonic(), found
        return found

    def open(self, bucket: str, name: str) -> Content:
        """Return an object with its content, which is fetched unless the home keeps this generation.

        Raises:
            ApiError: As `find`.
        """
        found = self.find(bucket, name)
        path = self._path(bucket, name, f".{found.generation}")
        with self._lock:
            lock = self._locks.setdefault(path, threading.Lock())
        with lock:
            if not path.exists():
                self._fetch(found, path)
            path.touch()  # the least recently used go first
            return Content(found, path.open("rb"))

    def listed(self, bucket: str, query: Mapping[str, str], start: str) -> Iterator[StoredObject | str]:
        """Yield the objects from the name `start` on, and the common prefixes as texts, in order.

        Args:
            query: The parameters of objects.list that choose names.

        Raises:
            UnreachableError: Google can't be reached.
            ApiError: NOT_FOUND: No such bucket; PERMISSION_DENIED: It isn't public.
        """
        asked = {**query, "startOffset": start}
        while True:
            response = self._get(f"/storage/v1/b/{quote(bucket, safe='')}/o", asked)
            if response.status == 404:
                raise ApiError("NOT_FOUND", "The specified bucket does not exist.")
            page = _resource(response, f"gs://{bucket}")
            objects = {item["name"]: stored_of(item) for item in page.get("items", ())}
            for name in sorted({*objects, *page.get("prefixes", ())}):
                yield objects.get(name, name)
            if "nextPageToken" not in page:
                return
            asked = {**asked, "pageToken": page["nextPageToken"]}

    def refuse_unlisted(self, bucket: str, error: UnreachableError) -> NoReturn:
        """Raise FAILED_PRECONDITION for a list that Google can't answer."""
        self._refuse_unreachable(bucket, "", error)

    def _refuse_unreachable(self, bucket: str, name: str, error: UnreachableError) -> NoReturn:
        place = self._home.joinpath("gcs", bucket, *name.split("/"))
        message = f"gs://{bucket}/{name} is read from Google, which can't be reached ({error})."
        # No status that clients repeat a request for.
        raise ApiError("FAILED_PRECONDITION", f"{message} Without a network, put the file here: {place}")

    def _get(self, path: str, query: Mapping[str, str], part: str = "") -> HttpResponse:
        """Return Google's answer; 404 and what is found are the caller's."""
        url = f"{_GOOGLE}{path}?{urlencode({key: value for key, value in query.items() if value})}"
        try:
            return self._transport.send(HttpRequest("GET", url, {"Range": part} if part else {}, timeout=60))
        except (NotSentError, NoAnswerError) as error:
            raise UnreachableError(str(error)) from None

    def _fetch(self, found: StoredObject, path: Path) -> None:
        """Fetch an object's content to its place among the kept ones."""
        place = f"gs://{found.bucket}/{found.name}"
        if found.size > LARGEST:
            message = f"{place} has {found.size} bytes, and objects of up to {LARGEST} bytes are fetched."
            by_hand = self._home.joinpath("gcs", found.bucket, *found.name.split("/"))
            raise ApiError("FAILED_PRECONDITION", f"{message} Put the file here: {by_hand}")
        try:
            with self._uploads.staged(self._pieces(found)) as staged:
                self._keep(found, staged, path)
        except UnreachableError as error:
            self._refuse_unreachable(found.bucket, found.name, error)

    def _pieces(self, found: StoredObject) -> Iterator[bytes]:
        path = f"/download/storage/v1/b/{quote(found.bucket, safe='')}/o/{quote(found.name, safe='')}"
        for first in range(0, found.size, _PIECE):
            query = {"alt": "media", "generation": str(found.generation)}
            response = self._get(path, query, f"bytes={first}-{min(first + _PIECE, found.size) - 1}")
            if response.status not in (200, 206):
                _refuse(response, f"gs://{found.bucket}/{found.name}")
            yield response.body
            if response.status == 200:
                return

    def _keep(self, found: StoredObject, staged: Staged, path: Path) -> None:
        if (staged.checksums.size, staged.checksums.crc32c) != (found.size, found.crc32c):
            # Also what Google stores compressed, and sends as if it weren't.
            message = f"The content of gs://{found.bucket}/{found.name} that Google sent isn't what it lists."
            raise ApiError("FAILED_PRECONDITION", message)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._make_room(found.size)
        staged.path.replace(path)
        about = self._path(found.bucket, found.name, ".json")
        part = about.with_suffix(f".{threading.get_ident()}.part")
        part.write_text(json.dumps(asdict(found)), encoding="utf-8")
        part.replace(about)

    def _make_room(self, size: int) -> None:
        """Remove the least recently used contents until one more of this size may be kept."""
        held = [(path.stat(), path) for path in self._home.glob("public/*/*") if path.suffix != ".json"]
        free = LARGEST - sum(status.st_size for status, _ in held)
        for status, path in sorted(held, key=lambda each: each[0].st_mtime):
            if free >= size:
                return
            path.unlink(missing_ok=True)
            free += status.st_size

    def _kept(self, bucket: str, name: str) -> StoredObject | None:
        """Return the last fetched generation of an object, if the home still keeps its content."""
        try:
            about = json.loads(self._path(bucket, name, ".json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        found = StoredObject(**about)
        return found if self._path(bucket, name, f".{found.generation}").exists() else None

    def _path(self, bucket: str, name: str, suffix: str) -> Path:
        return self._home / "public" / bucket / (hashlib.sha256(name.encode()).hexdigest() + suffix)


def set_public(store: Store, home: Path, names: Collection[str]) -> None:
    """Make these the public buckets, each with a folder in the home for files of the user's."""
    for name in names:
        (home / "gcs" / name).mkdir(parents=True, exist_ok=True)
    for name in set(store.setting(PUBLIC) or ()).difference(names):
        with suppress(OSError):  # also where the user has put files
            (home / "gcs" / name).rmdir()
    store.set_setting(PUBLIC, sorted(names))


def google() -> Transport:
    """Return the transport to Google: without a token, and with retries."""
    return RetryingReads(DirectTransport(), time.sleep, random.random, _ATTEMPTS)


def _resource(response: HttpResponse, place: str) -> JsonObject:
    if response.status != 200:
        _refuse(response, place)
    found: Json = json.loads(response.body)
    return dict(found)


def _refuse(response: HttpResponse, place: str) -> NoReturn:
    if response.status in (401, 403):
        message = f"Google doesn't give {place} to everybody: remove its bucket from publicBuckets."
        raise ApiError("PERMISSION_DENIED", message)
    raise ApiError("FAILED_PRECONDITION", f"Google answers {response.status} for {place}.")


class LayeredObjects(Objects):
    """Objects of the home and, behind them, those of public buckets, which nobody changes here."""

    def __init__(
        self, home: Path, database: Database, clock: Callable[[], datetime], public: PublicBuckets
    ) -> None:
        super().__init__(home, database, clock)
        self.public = public

    def get(self, bucket: str, name: str) -> StoredObject:
        """Return an object without its content, as `Objects.get` or `PublicBuckets.find`."""
        try:
            return super().get(bucket, name)
        except ApiError as error:
            if error.status != "NOT_FOUND" or not self.public.has(bucket):
                raise
        return self.public.find(bucket, name)

    def open(self, bucket: str, name: str) -> Content:
        """Return an object with its content, as `Objects.open` or `PublicBuckets.open`."""
        try:
            return super().open(bucket, name)
        except ApiError as error:
            if error.status != "NOT_FOUND" or not self.public.has(bucket):
                raise
        return self.public.open(bucket, name)

    def set_policy(self, name: str, policy_of: Callable[[Bucket], JsonObject]) -> Bucket:
        """Set a bucket's IAM policy, as `Objects.set_policy`; raise PERMISSION_DENIED for a public bucket."""
        self.refuse_write(name)
        return super().set_policy(name, policy_of)

    def delete_bucket(self, name: str, check: Callable[[Bucket], None]) -> None:
        """Delete a bucket, as `Objects.delete_bucket`; raise PERMISSION_DENIED for a public bucket."""
        self.refuse_write(name)
        super().delete_bucket(name, check)

    def put(
        self, bucket: str, name: str, staged: Staged, body: JsonObject, conditions: Conditions = ANY
    ) -> StoredObject:
        """Write an object, as `Objects.put`; raise PERMISSION_DENIED for a public bucket."""
        self.refuse_write(bucket)
        return super().put(bucket, name, staged, body, conditions)

    def patch(
        self, bucket: str, name: str, change: Callable[[JsonObject], JsonObject], conditions: Conditions
    ) -> StoredObject:
        """Change metadata, as `Objects.patch`; raise PERMISSION_DENIED for a public bucket."""
        self.refuse_write(bucket)
        return super().patch(bucket, name, change, conditions)

    def delete(self, bucket: str, name: str, generation: int | None, conditions: Conditions) -> None:
        """Delete an object, as `Objects.delete`; raise PERMISSION_DENIED for a public bucket."""
        self.refuse_write(bucket)
        super().delete(bucket, name, generation, conditions)

    def refuse_write(self, bucket: str) -> None:
        """Raise PERMISSION_DENIED for a public bucket."""
        if self.public.has(bucket):
            message = (
                f"The bucket {bucket} is Google's (publicBuckets in reconciler.yaml): it is only read here."
            )
            raise ApiError("PERMISSION_DENIED", message)
