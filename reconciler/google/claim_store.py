"""Claims in Cloud Storage, each an object that is written only by its generation.

    reconciler/claims/SOURCE/genesis                               marks a prepared store
    reconciler/claims/SOURCE/PROJECT/LOCATION/KEY/ATTEMPT          one claim

An environment with an `instance` has a separate folder, so that it never lists the claims of another
environment with the same project and location:

    reconciler/claims/SOURCE/_instances/INSTANCE/_genesis/PROJECT/LOCATION
    reconciler/claims/SOURCE/_instances/INSTANCE/PROJECT/LOCATION/KEY/ATTEMPT

The summary of ended runs is beside them:

    reconciler/claims/SOURCE/_summary/PROJECT/LOCATION
    reconciler/claims/SOURCE/_instances/INSTANCE/_summary/PROJECT/LOCATION

So is the record of the tree that was applied last, of which `reconciler.model.applied_tree` says more:

    reconciler/claims/SOURCE/_applied/PROJECT/LOCATION
    reconciler/claims/SOURCE/_instances/INSTANCE/_applied/PROJECT/LOCATION

Project ids contain no "_", so that no claim's name begins like these, nor like the commit records of
`commit_store.py`, which are in the same folder.

The genesis names the repository on GitHub that the claims belong to, once a command of its workflows has
written it there. Earlier versions ignore the fields `repository` and `rewritten`, and rewrite no genesis.

A claim is read from the entry `claim` (or `genesis`) of the object's custom metadata, so that a listing
contains all claims. The object's content is the same JSON, for people and for copies without metadata.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import msgspec
from msgspec import Struct, convert, to_builtins

from reconciler.base.concurrency import call_all
from reconciler.base.errors import ServiceError
from reconciler.base.sanitize import one_line
from reconciler.google.client import Connection
from reconciler.google.object_store import ObjectStore, StoredObject, answered_at
from reconciler.google.responses import ApiError, NotFoundAtServiceError
from reconciler.model.applied_tree import AppliedTree, tree_json, tree_of
from reconciler.model.claim import Claim, ClaimId, claim_json, claim_of
from reconciler.model.manifest import JsonObject
from reconciler.model.ports import (
    ClaimRead,
    HostedRepository,
    Place,
    StoredSummary,
    StoredTree,
    Versioned,
)

PREFIX = "reconciler/claims/"
"""Beginning of the names of all objects with claims."""

_FORMAT_VERSION = 1
_CLAIM = "claim"
_GENESIS = "genesis"
_DIGITS = 19  # of a generation, which is an int64
_WRITES = 5
_FIELDS = "name,generation,metadata"
_json = msgspec.json.Decoder()


class _Genesis(Struct, frozen=True):
    """What is read of a genesis, besides its version.

    Attributes:
        source: The repository's id in its settings.
        repository: The repository that the claims belong to; None if no workflow has recorded it.
        rewritten: The generations that this genesis had before it was rewritten.
    """

    source: str | None = None
    repository: HostedRepository | None = None
    rewritten: tuple[int, ...] = ()


class ObjectClaims:
    """Implementation of the port `ClaimStore` by a bucket, for a repository in a project and location.

    Args:
        bucket: Without `gs://`.
        source: The repository's id.
        instance: The environment's `instance`; "" for none.
        may_be_new: True if an empty store may be new; otherwise a person prepares each store.
        environment: The environment's name in suggested commands.
        repository: The repository that the claims have to belong to; None if unknown.

    Attributes:
        folder: The beginning of the names of all objects in this store.
    """

    def __init__(
        self,
        connection: Connection,
        bucket: str,
        source: str,
        project: str,
        location: str,
        *,
        may_be_new: bool,
        instance: str = "",
        environment: str = "NAME",
        repository: HostedRepository | None = None,
    ) -> None:
        # Fresh: a cached listing may lack the claim of a job that was just submitted.
        self._store = ObjectStore(connection, bucket, _FIELDS, fresh=True)
        self._bucket = bucket
        self._source = source
        self._may_be_new = may_be_new
        self._command = f"reconciler init --claims --env {environment}"
        self._instance = instance
        self._repository = repository
        folder, project_path = f"{PREFIX}{source}/", f"{project}/{location}"
        if instance:
            folder += f"_instances/{instance}/"
        self.folder = folder
        self._genesis = f"{folder}_{_GENESIS}/{project_path}" if instance else f"{folder}{_GENESIS}"
        self._prefix = f"{folder}{project_path}/"
        self._summary = f"{folder}_summary/{project_path}"
        self._place = Place(source, project, location, instance)
        self._applied = f"{folder}_applied/{project_path}"
        self._read_tree: tuple[str, AppliedTree] | None = None

    def check(self, runs: int) -> None:
        """Check that this is the repository's store; write nothing.

        Raises:
            ServiceError: It is another repository's store, it was emptied, or it isn't prepared.
        """
        with self._explained():
            try:
                genesis = self._store.find(self._genesis)[0]
            except NotFoundAtServiceError:
                # A store that needs no preparation has no bucket before the first claim.
                if not self._may_be_new:
                    raise
                genesis = None
            if genesis is not None:
                self._check_genesis(genesis)
            elif not self._may_be_new or runs:
                raise self._missing_genesis(runs)

    def _missing_genesis(self, runs: int) -> ServiceError:
        if self._instance:
            return ServiceError(
                f'the instance "{self._instance}" of {self._source} has no claims in the bucket '
                f"{self._bucket}: it is new, its name is misspelt, or the bucket was emptied or is the "
                f"wrong one",
                hint=f'if "instance" and "claimsBucket" are right, run `{self._command}`',
            )
        if not runs:
            return ServiceError(
                f"the bucket {self._bucket} isn't prepared for the claims of {self._source}, or was emptied",
                hint=f'if "claimsBucket" is right, run `{self._command}`',
            )
        return ServiceError(
            f"the bucket {self._bucket} holds no claims of {self._source}: it is the wrong bucket, or it "
            f"was emptied; the service has {runs} run{'' if runs == 1 else 's'} "
            "of this repository",
            hint=f'if "claimsBucket" is right, run `{self._command}`: apply then adopts the existing '
            "runs, after comparing them",
        )

    def prepare(self) -> None:
        """Write the genesis of a new store; check that of an existing one."""
        with self._explained():
            if self._write(self._genesis, _GENESIS, self._genesis_json(), 0) is None:
                stored_object, _ = self._store.find(self._genesis)
                if stored_object is not None:
                    self._check_genesis(stored_object)

    def check_owner(self) -> None:
        """Check that the claims belong to the repository; record it in a genesis that names none.

        Without a repository, a bucket or a genesis, do nothing: `check` reports what is missing.

        Raises:
            ServiceError: The genesis names another repository.
        """
        if self._repository is None:
            return
        with self._explained():
            try:
                self._record_owner(may_change=False)
            except NotFoundAtServiceError:
                return

    def change_owner(self) -> None:
        """Record the repository in place of the one that the genesis names; none if it is unknown."""
        with self._explained():
            self._record_owner(may_change=True)

    def _record_owner(self, *, may_change: bool) -> None:
        repository = self._repository
        for _ in range(_WRITES):
            stored_object = self._store.find(self._genesis)[0]
            if stored_object is None:
                return
            owner = self._check_genesis(stored_object).repository
            if owner.is_same(repository) if owner and repository else owner is repository:
                return
            if owner and repository and not may_change:
                raise self._copied(owner, repository)
            if self._rewrite(stored_object):
                return
        raise ServiceError(
            f"gs://{self._bucket}/{self._genesis} keeps changing", hint="another process writes it: try again"
        )

    def _rewrite(self, stored_object: StoredObject) -> bool:
        """Write the genesis again with the repository; return False if it has changed since it was read."""
        replaced = self._generation(self._genesis, stored_object.generation)
        rewritten = (*self._check_genesis(stored_object).rewritten, replaced)
        genesis = self._genesis_json() | {"rewritten": list(rewritten)}
        return self._write(self._genesis, _GENESIS, genesis, replaced) is not None

    def _genesis_json(self) -> dict[str, Any]:
        named = {} if self._repository is None else {"repository": to_builtins(self._repository)}
        return {"formatVersion": _FORMAT_VERSION, "source": self._source, **named}

    def _copied(self, owner: HostedRepository, repository: HostedRepository) -> ServiceError:
        return ServiceError(
            f'the claims of "{self._source}" in the bucket {self._bucket} belong to {_named(owner)}, and '
            f"this is {_named(repository)}: `source` was copied from there",
            hint='write another "source" into reconciler.yaml: all jobs are new to it, and are trained '
            "again. If this is the same repository, and was moved, imported or made anew, run "
            f"`{self._command} --this-repository`",
        )

    def listed(self) -> Mapping[ClaimId, Versioned]:
        """Return all claims of this repository in this target; raise ServiceError instead of a part."""
        return self._below(self._prefix)

    def of_key(self, key: str) -> Mapping[ClaimId, Versioned]:
        """Return the claims of all attempts at a content."""
        return self._below(f"{self._prefix}{key}/")

    def _below(self, prefix: str) -> Mapping[ClaimId, Versioned]:
        # Parse after the listing: the 404 of an object that was deleted since is no missing bucket.
        with self._explained():
            try:
                objects = self._store.list_objects(prefix)
            except NotFoundAtServiceError:
                if not self._may_be_new:
                    raise
                objects = []
        with self._explained():
            return {versioned.claim.id: versioned for versioned in map(self._versioned, objects)}

    def summary(self) -> StoredSummary | None:
        """Return the summary of ended runs; None if there is no bucket yet."""
        with self._explained():
            try:
                stored_object, response = self._store.find(self._summary)
            except NotFoundAtServiceError:
                if not self._may_be_new:
                    raise
                return None
            now = answered_at(response)
            if stored_object is None:
                return StoredSummary(self._place, b"", 0, 0, now)
            number = self._generation(stored_object.name, stored_object.generation)
            genesis, content = call_all(
                [lambda: self._store.find(self._genesis)[0], lambda: self._content(stored_object)]
            )
            if not isinstance(genesis, StoredObject):
                raise self._missing_genesis(0)
            rewritten = self._check_genesis(genesis).rewritten
            marked = self._generation(self._genesis, genesis.generation)
            read = content if isinstance(content, bytes) else b""
            return StoredSummary(self._place, read, number, marked, now, rewritten)

    def _content(self, stored_object: StoredObject) -> bytes:
        try:
            return self._store.read(stored_object)
        except NotFoundAtServiceError:
            # Replaced or deleted since it was found.
            return b""

    def genesis_generation(self) -> int:
        """Return the generation of the genesis; 0 if it is missing."""
        with self._explained():
            genesis = self._store.find(self._genesis)[0]
            return self._generation(self._genesis, genesis.generation) if genesis else 0

    def write_summary(self, content: bytes, generation: int) -> bool:
        """Replace the summary of this generation, 0 for none; return False if the store has another one."""
        with self._explained():
            return self._store.write(self._summary, content, generation) is not None

    def applied_tree(self) -> StoredTree:
        """Return the record of the tree that was applied last; None in it for none, or without a bucket.

        The content is only read if the generation is another one than at the last read.
        """
        with self._explained():
            try:
                stored_object, response = self._store.find(self._applied)
            except NotFoundAtServiceError:
                if not self._may_be_new:
                    raise
                return StoredTree(None, 0, None)
            now = answered_at(response)
            if stored_object is None:
                return StoredTree(None, 0, now)
            number = self._generation(stored_object.name, stored_object.generation)
            if self._read_tree is None or self._read_tree[0] != stored_object.generation:
                content = self._content(stored_object)
                if not content:  # replaced since it was found
                    return self.applied_tree()
                self._read_tree = stored_object.generation, self._tree(stored_object, content)
            return StoredTree(self._read_tree[1], number, now)

    def _tree(self, stored_object: StoredObject, content: bytes) -> AppliedTree:
        try:
            return tree_of(content)
        except ValueError as error:
            raise ServiceError(
                f"gs://{self._bucket}/{stored_object.name}, the record of what was applied last, can't be "
                f"read: {error}",
                hint="update the reconciler if a newer version wrote it, else delete it: the next apply is "
                "then as the first one, and compares its commit with none",
            ) from None

    def write_applied_tree(self, tree: AppliedTree, generation: int) -> bool:
        """Replace the record of this generation, 0 for none; return False if the store has another one."""
        with self._explained():
            return self._store.write(self._applied, tree_json(tree), generation) is not None

    def read(self, id: ClaimId) -> ClaimRead:
        """Return a claim, None if it is missing, with the store's time."""
        with self._explained():
            stored_object, response = self._store.find(self._name(id))
            now = answered_at(response)
            return ClaimRead(self._versioned(stored_object) if stored_object is not None else None, now)

    def write(self, claim: Claim, generation: int) -> Versioned | None:
        """Replace the claim of this generation, 0 for none; return None if the store has another generation.

        The request is sent once. After a ServiceError, the claim may have been written.
        """
        with self._explained():
            written = self._write(self._name(claim.id), _CLAIM, claim_json(claim), generation)
        return Versioned(claim, written) if written is not None else None

    def now(self) -> datetime:
        """Return the store's time in whole seconds, never ahead of its clock."""
        with self._explained():
            return answered_at(self._store.find(self._genesis)[1])

    def _name(self, id: ClaimId) -> str:
        return f"{self._prefix}{id.key}/{id.attempt}"

    def _write(self, name: str, entry: str, document: JsonObject, generation: int) -> int | None:
        """Write an object in one request; return its generation, None if the store has another generation."""
        content = json.dumps(document, ensure_ascii=False, indent=2) + "\n"
        # Metadata is limited to 8 KiB, hence no ASCII escapes. Only what UTF-8 can't encode is escaped.
        compact = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        metadata = {entry: compact.encode("utf-8", "backslashreplace").decode()}
        written = self._store.write(name, content.encode("utf-8", "backslashreplace"), generation, metadata)
        return self._generation(name, written) if written is not None else None

    def _versioned(self, stored_object: StoredObject) -> Versioned:
        try:
            claim = claim_of(self._document(stored_object, _CLAIM))
            if self._name(claim.id) != stored_object.name:
                raise ValueError(f"it is the claim of {claim.id.key}/{claim.id.attempt}")
        except ValueError as error:
            raise ServiceError(
                f"gs://{self._bucket}/{stored_object.name} can't be read as a claim: {error}",
                hint="nothing is submitted over a claim that can't be read: update the reconciler if a newer "
                "version wrote it; else restore its earlier version (`gcloud storage ls -a`, then `cp`). "
                "Without its claim, a job is submitted again where the service has forgotten it",
            ) from None
        return Versioned(claim, self._generation(stored_object.name, stored_object.generation))

    def _generation(self, name: str, text: str) -> int:
        number = int(text) if len(text) <= _DIGITS and text.isdecimal() and text.isascii() else 0
        if not number:
            raise ServiceError(
                f"Cloud Storage gives no generation of gs://{self._bucket}/{name}",
                hint='check "endpoints" in reconciler.yaml, and any proxy between',
            )
        return number

    def _check_genesis(self, stored_object: StoredObject) -> _Genesis:
        uri = f"gs://{self._bucket}/{self._genesis}"
        try:
            document = self._document(stored_object, _GENESIS)
            version = document.get("formatVersion")
            if version != _FORMAT_VERSION:
                raise ValueError(f"it has format version {version!r}, not {_FORMAT_VERSION}")
            genesis = convert(document, _Genesis)
        except ValueError as error:
            raise ServiceError(
                f"{uri} can't be read: {error}",
                hint="update the reconciler if a newer version wrote it, else restore its earlier version",
            ) from None
        if genesis.source != self._source:
            raise ServiceError(
                f"{uri} belongs to {genesis.source!r}: these are the claims of another repository",
                hint='name another bucket under "claimsBucket" in reconciler.yaml, or correct "source"',
            )
        return genesis

    def _document(self, stored_object: StoredObject, entry: str) -> JsonObject:
        """Return the JSON object in an entry of the metadata, else in the content; raise ValueError."""
        text = stored_object.metadata.get(entry) or self._store.read(stored_object).decode(errors="replace")
        try:
            document: Any = _json.decode(text)
        except (ValueError, RecursionError):
            document = _read_leniently(text)
        if not isinstance(document, dict):
            raise ValueError(f'neither the entry "{entry}" of its metadata nor its content is a JSON object')
        return document

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Add the bucket and a remedy to every failure."""
        try:
            yield
        except NotFoundAtServiceError as error:
            raise ServiceError(
                f"there is no claims bucket {self._bucket}: {error.message}",
                hint='correct "claimsBucket" and "project" in reconciler.yaml; if it was deleted, restore it '
                "while Cloud Storage's soft delete keeps it: `gcloud storage buckets list --soft-deleted`, "
                f"`gcloud storage restore gs://{self._bucket}#GENERATION`, and then its objects, `gcloud "
                f"storage restore 'gs://{self._bucket}/**'`; only for a new one run `{self._command}`",
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
        if error.status == 403 and not error.remedy:
            return (
                "the account that runs this needs the role roles/storage.objectUser on the bucket: "
                f"`{self._command}` prints the commands that give it"
            )
        return error.hint or (
            "nothing is submitted without its claim: correct this, or wait until Cloud Storage answers, "
            "then run `reconciler apply`"
        )


def _named(repository: HostedRepository) -> str:
    return one_line(
        f"{repository.name or 'a repository'} (number {repository.number} on {repository.server})"
    )


def _read_leniently(text: str) -> Any:
    """Return the value of JSON that may have half of a surrogate pair, which msgspec refuses."""
    try:
        return json.loads(text)
    except RecursionError:
        return None
