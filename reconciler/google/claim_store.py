"""Claims in Cloud Storage: one object for each, changed only by who knows its generation.

    reconciler/claims/SOURCE/genesis                               says that claims are kept here
    reconciler/claims/SOURCE/PROJECT/LOCATION/KEY/ATTEMPT          one claim

An environment with an `instance` has both in a place of its own, so that it neither lists nor finds the
claims of another environment with the same project and location:

    reconciler/claims/SOURCE/_instances/INSTANCE/_genesis/PROJECT/LOCATION
    reconciler/claims/SOURCE/_instances/INSTANCE/PROJECT/LOCATION/KEY/ATTEMPT

No project's id has a "_", so that no other claim's name begins like this.

What is read is the entry `claim` (or `genesis`) of an object's custom metadata, so that one listing tells
all. The object's content is the same JSON: for people, and where an object was copied without its metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import Annotated

from msgspec import Meta, Struct

from reconciler.base.errors import ServiceError
from reconciler.base.http import HttpResponse
from reconciler.google.client import (
    ApiError,
    Connection,
    NotFoundAtServiceError,
    execute,
    object_of,
    text_of,
    typed_record,
)
from reconciler.google.incremental import KnownClaim, KnownClaims
from reconciler.google.listing import Pages, listing
from reconciler.model.claim import Claim, ClaimId, checked, claim_json, claim_of
from reconciler.model.manifest import JsonObject
from reconciler.model.ports import ClaimRead, Versioned

PREFIX = "reconciler/claims/"
"""What the name of every object begins with that claims are kept in."""

_FORMAT_VERSION = 1
_CLAIM = "claim"
_GENESIS = "genesis"
_CHANGED = 412
_PAGE_SIZE = 1000
_DIGITS = 19  # of a generation, which is an int64
_FIELDS = "name,generation,metadata"
_LIST = "storage.objects.list"


class _Metadata(Struct, frozen=True, gc=False):
    claim: str = ""
    genesis: str = ""


class _Object(Struct, frozen=True, gc=False):
    """The fields `_FIELDS` of an object."""

    name: Annotated[str, Meta(min_length=1)]
    generation: str = ""
    metadata: _Metadata = _Metadata()


_PAGES = Pages("items", _Object, ("name", "name"), partial(typed_record, _Object))


class ObjectClaims:
    """The port `ClaimStore` over one bucket, for one repository in one project and location.

    Args:
        connection: How Cloud Storage is reached.
        bucket: Without `gs://`.
        source: The repository's id.
        project, location: The target.
        instance: The environment's `instance`; "" for none.
        founds: Whether an empty store may be new: elsewhere a person prepares it first.
        environment: What commands that a person is told to run call the environment.
        known: What earlier looks have read; None where nothing is remembered.

    Attributes:
        folder: The beginning of all names of this store's objects.
    """

    def __init__(
        self,
        connection: Connection,
        bucket: str,
        source: str,
        project: str,
        location: str,
        *,
        founds: bool,
        instance: str = "",
        environment: str = "NAME",
        known: KnownClaims | None = None,
    ) -> None:
        self._connection = connection
        self._bucket = bucket
        self._source = source
        self._founds = founds
        self._known = known
        self._command = f"reconciler init --claims --env {environment}"
        self._instance = instance
        folder, place = f"{PREFIX}{source}/", f"{project}/{location}"
        if instance:
            folder += f"_instances/{instance}/"
        self.folder = folder
        self._genesis = f"{folder}_{_GENESIS}/{place}" if instance else f"{folder}{_GENESIS}"
        self._prefix = f"{folder}{place}/"

    def check(self, runs: int) -> None:
        """Check that this is the store that this repository began with; write nothing.

        Raises:
            ServiceError: It is another store, it was emptied, or nobody has prepared it.
        """
        with self._told():
            found = self._genesis_there()
            if found is not None:
                self._check_genesis(found)
            elif not self._founds or runs:
                raise self._no_genesis(runs)

    def _no_genesis(self, runs: int) -> ServiceError:
        if self._instance:
            return ServiceError(
                f'the instance "{self._instance}" of {self._source} has no claims in the bucket '
                f"{self._bucket}: it is new, its name is misspelt, or the bucket was emptied or is another "
                "one",
                hint=f'if "instance" and "claimsBucket" are right, run `{self._command}`',
            )
        return ServiceError(
            f"the bucket {self._bucket} holds no claims of {self._source}: it is not the one that "
            f"they were kept in, or it was emptied; the service has {_counted(runs)}",
            hint=f'if "claimsBucket" is right, run `{self._command}`: apply then adopts the runs '
            "that are there, after comparing them",
        )

    def found(self) -> None:
        """Make this the repository's store, where it is new; nothing where it is that already."""
        said = {"formatVersion": _FORMAT_VERSION, "source": self._source}
        with self._told():
            if self._insert(self._genesis, _GENESIS, said, 0) is None:
                found, _ = self._get(self._genesis)
                if found is not None:
                    self._check_genesis(found)

    def listed(self) -> Mapping[ClaimId, Versioned]:
        """Return every claim of this repository in this target; raises ServiceError rather than a part."""
        # Converted after the listing: an object that is deleted meanwhile is no missing bucket.
        objects = self._listed()
        with self._told():
            if self._known is not None:
                return self._looked_at(objects, self._known)
            return _by_id(map(self._versioned, objects))

    def _looked_at(self, objects: Iterable[_Object], before: KnownClaims) -> Mapping[ClaimId, Versioned]:
        """The claims, of which those that are as they were aren't read again."""

        def known(item: _Object) -> tuple[str, KnownClaim]:
            source = (item.generation, item.metadata.claim)
            claim = before.found.get(item.name)
            is_same = claim is not None and claim.source == source
            return item.name, claim if claim and is_same else KnownClaim(source, self._versioned(item))

        now = dict(map(known, objects))
        before.replace(now)
        return _by_id(claim.versioned for claim in now.values())

    def read(self, id: ClaimId) -> ClaimRead:
        """One claim as it is now."""
        name = self._name(id)
        with self._told():
            found, response = self._get(name)
            now = answered_at(response)
            return ClaimRead(self._versioned(found) if found is not None else None, now)

    def write(self, claim: Claim, generation: int) -> Versioned | None:
        """Replace the claim of this generation, 0 for none; None where that isn't what is there.

        Sent once. Where it raises ServiceError, it may have been written all the same.
        """
        with self._told():
            written = self._insert(self._name(claim.id), _CLAIM, claim_json(claim), generation)
        return Versioned(claim, written) if written is not None else None

    def now(self) -> datetime:
        """The store's own time, to the second, never ahead of it."""
        with self._told():
            return answered_at(self._get(self._genesis)[1])

    def _name(self, id: ClaimId) -> str:
        return f"{self._prefix}{id.key}/{id.attempt}"

    def _listed(self) -> list[_Object]:
        """Return every claim's object."""

        def ask(token: str | None) -> HttpResponse:
            return self._connection.get(
                _LIST,
                fresh=True,
                bucket=self._bucket,
                prefix=self._prefix,
                maxResults=_PAGE_SIZE,
                fields=f"items({_FIELDS}),nextPageToken",
                pageToken=token,
            )

        with self._told():
            try:
                return listing(ask, _PAGES, lambda found: found)
            except NotFoundAtServiceError:
                # Where nobody has to prepare a store, there is none before the first claim.
                if not self._founds:
                    raise
        return []

    def _genesis_there(self) -> _Object | None:
        """The genesis, None where there is none: in no bucket either, where nobody has to prepare one."""
        try:
            return self._get(self._genesis)[0]
        except NotFoundAtServiceError:
            if not self._founds:
                raise
            return None

    def _get(self, name: str) -> tuple[_Object | None, HttpResponse]:
        """An object as it is now, None where there is none, and the answer that says so.

        It is listed, as a missing object is told from a forbidden one only to who may list all of the bucket,
        and a permission for one folder is enough here. Of all names that begin with `name`, it comes first.
        """
        response = self._connection.get(
            _LIST,
            fresh=True,
            bucket=self._bucket,
            prefix=name,
            maxResults=1,
            fields=f"kind,items({_FIELDS})",
        )
        first = _first(object_of(response.body))
        return (
            typed_record(_Object, first) if first is not None and first.get("name") == name else None
        ), response

    def _insert(self, name: str, entry: str, said: JsonObject, generation: int) -> int | None:
        """Write an object in one request; its new generation, None where another one is there."""
        from googleapiclient.http import MediaInMemoryUpload

        content = json.dumps(said, ensure_ascii=False, indent=2) + "\n"
        # Not in ASCII, as there is room for 8 KiB; what UTF-8 can't carry is written as JSON's own escape.
        compact = json.dumps(said, ensure_ascii=False, separators=(",", ":"))
        compact = compact.encode("utf-8", "backslashreplace").decode()
        request = self._connection.client("storage.objects").insert(
            bucket=self._bucket,
            ifGenerationMatch=str(generation),
            fields="generation",
            body={"name": name, "metadata": {entry: compact}, "cacheControl": "no-store"},
            media_body=MediaInMemoryUpload(
                content.encode("utf-8", "backslashreplace"), mimetype="application/json"
            ),
        )
        try:
            answer = execute(request)
        except ApiError as error:
            if error.status != _CHANGED:
                raise
            return None
        return self._generation(name, text_of(answer, "generation"))

    def _versioned(self, found: _Object) -> Versioned:
        try:
            claim = claim_of(_object_in(found.metadata.claim or self._content(found), _CLAIM))
            if self._name(claim.id) != found.name:
                raise ValueError(f"it is the claim of {claim.id.key}/{claim.id.attempt}")
        except ValueError as error:
            raise ServiceError(
                f"gs://{self._bucket}/{found.name} can't be read as a claim: {error}",
                hint="nothing is submitted over a claim that can't be read: update the reconciler if a newer "
                "version wrote it; else bring back its earlier version (`gcloud storage ls -a`, then `cp`). "
                "Without its claim, a job is submitted again where the service has forgotten it",
            ) from None
        return Versioned(claim, self._generation(found.name, found.generation))

    def _generation(self, name: str, text: str) -> int:
        number = int(text) if len(text) <= _DIGITS and text.isdecimal() and text.isascii() else 0
        if not number:
            raise ServiceError(
                f"Cloud Storage gives no generation of gs://{self._bucket}/{name}",
                hint='check "endpoints" in reconciler.yaml, and any proxy between',
            )
        return number

    def _check_genesis(self, found: _Object) -> None:
        place = f"gs://{self._bucket}/{self._genesis}"
        try:
            said = _object_in(found.metadata.genesis or self._content(found), _GENESIS)
            version = said.get("formatVersion")
            if version != _FORMAT_VERSION:
                raise ValueError(f"it has format version {version!r}, not {_FORMAT_VERSION}")
        except ValueError as error:
            raise ServiceError(
                f"{place} can't be read: {error}",
                hint="update the reconciler if a newer version wrote it, else bring back its earlier version",
            ) from None
        if said.get("source") != self._source:
            raise ServiceError(
                f"{place} is of {said.get('source')!r}: these are the claims of another repository",
                hint='name another bucket under "claimsBucket" in reconciler.yaml, or correct "source"',
            )

    def _content(self, found: _Object) -> str:
        """What an object holds."""
        media = self._connection.get(
            "storage.objects.get",
            alt="media",
            bucket=self._bucket,
            object=found.name,
            generation=found.generation or None,
        )
        return media.body.decode(errors="replace")

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Says of every failure what it was about, and what to do."""
        try:
            yield
        except NotFoundAtServiceError as error:
            raise ServiceError(
                f"there is no claims bucket {self._bucket}: {error.message}",
                hint=f'run `{self._command}`, or correct "claimsBucket" and "project" in reconciler.yaml',
            ) from None
        except ApiError as error:
            raise ServiceError(
                f"the claims in gs://{self._bucket} can't be used: {error.message}",
                hint=self._hint(error),
            ) from None
        except ServiceError as error:
            error.hint = error.hint or 'check the network, and "endpoints" in reconciler.yaml'
            raise

    def _hint(self, error: ApiError) -> str:
        if error.status == 403 and "scope" in error.message.lower():
            return "they lack the cloud-platform scope: run `gcloud auth application-default login`"
        if error.status == 403:
            return (
                "who runs this needs the role roles/storage.objectUser on the bucket: "
                f"`{self._command}` prints the commands that give it"
            )
        return error.hint or "nothing is submitted without its claim: try again when Cloud Storage answers"


def _by_id(versions: Iterable[Versioned]) -> Mapping[ClaimId, Versioned]:
    return {version.claim.id: version for version in versions}


def answered_at(response: HttpResponse) -> datetime:
    """When Cloud Storage answered by its own clock, in UTC."""
    # It takes longer to load than a look that asks for no time.
    from email.utils import parsedate_to_datetime

    try:
        time = checked(parsedate_to_datetime(response.headers.get("date", "")))
    except (ValueError, OverflowError):
        time = None
    if time is None:
        raise ServiceError(
            "Cloud Storage's answer doesn't say when it was given",
            hint="check any proxy between: the Date header of answers must come through",
        )
    return time


def _first(listed: JsonObject) -> JsonObject | None:
    """The first object of a listing, None where it is empty; a page that is no listing is an error."""
    items = listed.get("items", [])
    usable = isinstance(items, list) and all(isinstance(item, dict) for item in items)
    if listed.get("kind") != "storage#objects" or not usable:
        raise ServiceError(
            "Cloud Storage's answer is no listing of objects",
            hint='check "endpoints" in reconciler.yaml, and any proxy between',
        )
    return items[0] if items else None


def _object_in(text: str, entry: str) -> JsonObject:
    """Return the JSON object in an entry of an object's metadata, or in its content; raise ValueError."""
    try:
        said = json.loads(text)
    except RecursionError:
        said = None
    if not isinstance(said, dict):
        raise ValueError(f'neither the entry "{entry}" of its metadata nor its content is a JSON object')
    return said


def _counted(runs: int) -> str:
    return f"{runs} run{'' if runs == 1 else 's'} of this repository"
