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
import os
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
    HttpRequest,
    HttpResponse,
    NoAnswerError,
    NotSentError,
    Transport,
)
from reconciler.base.http.retries import BUSY_STATUSES
from reconciler.training_service.http.message import ApiError
from reconciler.training_service.state.database import PUBLIC, Database, Store
from reconciler.training_service.state.records import Json, JsonObject
from reconciler.training_service.storage.index import StoredObject
from reconciler.training_service.storage.objects import ANY, Bucket, Conditions, Content, Objects
from reconciler.training_service.storage.resources import stored_of
from reconciler.training_service.storage.upload_sessions import Staged, Uploads

_MADE = "public_buckets_made"  # of these, the buckets whose folders didn't exist before

LARGEST = 5 * 1024**3
"""The limit of all kept contents, in bytes."""

_GOOGLE = "https://storage.googleapis.com"
_PIECE = 16 * 1024 * 1024  # bytes of one request, which the transport holds in memory
_FRESH = 30.0  # seconds in which an object's metadata isn't asked for again
_TRIES = 3
_PLACES = 4  # requests at once, of the service's eight threads
_WAITS_FOR_PLACE = 5.0  # seconds
_OUT_OF_REACH = 10.0  # seconds in which Google isn't asked again


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
        self._places = threading.BoundedSemaphore(_PLACES)
        self._out_of_reach = (0.0, "")

    def has(self, bucket: str) -> bool:
        """Return whether the settings name the bucket."""
        return bucket in self._names()

    def find(self, bucket: str, name: str) -> StoredObject:
        """Return an object without its content.

        Raises:
            ApiError: NOT_FOUND; PERMISSION_DENIED: It isn't public; FAILED_PRECONDITION: Google can't be
                reached, and the home doesn't keep the object.
        """
        asked, cached = self._known.get((bucket, name), (0.0, None))
        if cached is not None and time.monotonic() < asked + _FRESH:
            return cached
        try:
            response = self._get(f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}", {})
        except UnreachableError as error:
            kept = self._kept(bucket, name)
            if kept is None:
                self._refuse_unreachable(bucket, name, error)
            return kept
        if response.status in BUSY_STATUSES and (kept := self._kept(bucket, name)) is not None:
            return kept
        if response.status == 404:
            raise ApiError("NOT_FOUND", f"No such object: {bucket}/{name}")
        stored = stored_of(_resource(response, f"gs://{bucket}/{name}"))
        self._known[(bucket, name)] = time.monotonic(), stored
        return stored

    def open(self, bucket: str, name: str) -> Content:
        """Return an object with its content, which is fetched unless the home keeps this generation.

        Raises:
            ApiError: As `find`.
        """
        stored = self.find(bucket, name)
        path = self._path(bucket, name, f".{stored.generation}")
        with self._lock:
            lock = self._locks.setdefault(path, threading.Lock())
        with lock:
            for _ in range(_TRIES):
                try:
                    file = path.open("rb")
                except FileNotFoundError:  # not fetched yet, or removed just now to make room
                    self._fetch(stored, path)
                    continue
                os.utime(file.fileno())  # the least recently used go first
                return Content(stored, file)
        raise ApiError("UNAVAILABLE", f"gs://{bucket}/{name} is removed again and again to make room.")

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
        by_hand = self._by_hand(bucket, name)
        message = f"gs://{bucket}/{name} is read from Google, which can't be reached ({error})."
        # No status that clients repeat a request for.
        raise ApiError("FAILED_PRECONDITION", f"{message} Without a network, put the file here: {by_hand}")

    def _by_hand(self, bucket: str, name: str) -> Path:
        """Return the place in the home where the user may put an object's file."""
        return self._home.joinpath("gcs", bucket, *name.split("/"))

    def _get(self, path: str, query: Mapping[str, str], part: str = "") -> HttpResponse:
        """Return Google's answer; 404 and what is found are the caller's.

        The service has few threads: where Google was just out of reach, or too many wait for it already, the
        request fails at once.
        """
        if time.monotonic() < self._out_of_reach[0]:
            raise UnreachableError(self._out_of_reach[1])
        if not self._places.acquire(timeout=_WAITS_FOR_PLACE):
            raise ApiError("UNAVAILABLE", "Too many requests wait for Google.")
        url = f"{_GOOGLE}{path}?{urlencode({key: value for key, value in query.items() if value})}"
        try:
            return self._transport.send(HttpRequest("GET", url, {"Range": part} if part else {}, timeout=60))
        except (NotSentError, NoAnswerError) as error:
            self._out_of_reach = time.monotonic() + _OUT_OF_REACH, str(error)
            raise UnreachableError(str(error)) from None
        finally:
            self._places.release()

    def _fetch(self, stored: StoredObject, path: Path) -> None:
        """Fetch an object's content to its place among the kept ones."""
        url, by_hand = f"gs://{stored.bucket}/{stored.name}", self._by_hand(stored.bucket, stored.name)
        if stored.size > LARGEST:
            message = f"{url} has {stored.size} bytes, and objects of up to {LARGEST} bytes are fetched."
            raise ApiError("FAILED_PRECONDITION", f"{message} Put the file here: {by_hand}")
        if stored.body.get("contentEncoding") == "gzip":
            # Google sends it as if it weren't, and in no parts.
            message = f"{url} is stored compressed, and such objects aren't fetched."
            raise ApiError("FAILED_PRECONDITION", f"{message} Put the file here: {by_hand}")
        try:
            with self._uploads.staged(self._pieces(stored)) as staged:
                self._keep(stored, staged, path)
        except UnreachableError as error:
            self._refuse_unreachable(stored.bucket, stored.name, error)

    def _pieces(self, stored: StoredObject) -> Iterator[bytes]:
        path = f"/download/storage/v1/b/{quote(stored.bucket, safe='')}/o/{quote(stored.name, safe='')}"
        for first in range(0, stored.size, _PIECE):
            query = {"alt": "media", "generation": str(stored.generation)}
            response = self._get(path, query, f"bytes={first}-{min(first + _PIECE, stored.size) - 1}")
            if response.status not in (200, 206):
                _refuse(response, f"gs://{stored.bucket}/{stored.name}")
            yield response.body
            if response.status == 200:
                return

    def _keep(self, stored: StoredObject, staged: Staged, path: Path) -> None:
        if (staged.checksums.size, staged.checksums.crc32c) != (stored.size, stored.crc32c):
            message = (
                f"The content of gs://{stored.bucket}/{stored.name} that Google sent isn't what it lists."
            )
            raise ApiError("FAILED_PRECONDITION", message)
        path.parent.mkdir(parents=True, exist_ok=True)
        about = self._path(stored.bucket, stored.name, ".json")
        part = about.with_suffix(".part")
        with self._lock:
            self._make_room(stored.size)
            staged.path.replace(path)
            part.write_text(json.dumps(asdict(stored)), encoding="utf-8")
            part.replace(about)

    def _make_room(self, size: int) -> None:
        """Remove the least recently used contents until one more of this size may be kept."""
        paths = self._home.glob("public/*/*")
        held = [(path.stat(), path) for path in paths if path.suffix not in (".json", ".part")]
        free = LARGEST - sum(status.st_size for status, _ in held)
        for status, path in sorted(held, key=lambda file: file[0].st_mtime):
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
        stored = StoredObject(**about)
        return stored if self._path(bucket, name, f".{stored.generation}").exists() else None

    def _path(self, bucket: str, name: str, suffix: str) -> Path:
        return self._home / "public" / bucket / (hashlib.sha256(name.encode()).hexdigest() + suffix)


def set_public(store: Store, home: Path, names: Collection[str]) -> None:
    """Make these the public buckets, each with a folder in the home for files of the user's."""
    made = set(store.setting(_MADE) or ())
    for name in names:
        with suppress(FileExistsError):
            (home / "gcs" / name).mkdir(parents=True)
            made.add(name)
    for name in made.difference(names):
        with suppress(OSError):  # also where the user has put files
            (home / "gcs" / name).rmdir()
    store.set_setting(_MADE, sorted(made.intersection(names)))
    store.set_setting(PUBLIC, sorted(names))


def _resource(response: HttpResponse, url: str) -> JsonObject:
    if response.status != 200:
        _refuse(response, url)
    resource: Json = json.loads(response.body)
    return dict(resource)


def _refuse(response: HttpResponse, url: str) -> NoReturn:
    if response.status in (401, 403):
        message = (
            f"Google has no {url} for everybody: if none of its bucket is, remove it from publicBuckets."
        )
        raise ApiError("PERMISSION_DENIED", message)
    status = "UNAVAILABLE" if response.status in BUSY_STATUSES else "FAILED_PRECONDITION"
    raise ApiError(status, f"Google answers {response.status} for {url}.")


_NOT_HERE = ("NOT_FOUND", "INVALID_ARGUMENT")  # the second for a name that no file can have


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
            if error.status not in _NOT_HERE or not self.public.has(bucket):
                raise
        return self.public.find(bucket, name)

    def open(self, bucket: str, name: str) -> Content:
        """Return an object with its content, as `Objects.open` or `PublicBuckets.open`."""
        try:
            return super().open(bucket, name)
        except ApiError as error:
            if error.status not in _NOT_HERE or not self.public.has(bucket):
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
