"""Simulated store of claims: linearizable, behind an unreliable network."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from reconciler.base.errors import ServiceError
from reconciler.model.applied_tree import AppliedTree, tree_json, tree_of
from reconciler.model.claim import Claim, ClaimId, claim_json, claim_of
from reconciler.model.commit_record import CommitRecord, record_json, record_of
from reconciler.model.ports import (
    ClaimRead,
    Place,
    StoredSummary,
    StoredTree,
    Versioned,
    VersionedRecord,
)
from reconciler.submission.summary import read_summary

from .model import OURS, short_id
from .model import Place as Environment
from .process import Process
from .world import World


def place_of(environment: Environment) -> Place:
    """Return the location of an environment's claims."""
    return Place(OURS, "acme-ml", "us-central1", environment.instance)


class Claims:
    """All claims of a repository, as the service stores them: JSON and a generation.

    Args:
        compares: True if a write checks the generation.
        marked: True if an emptied store can be distinguished from the repository's original store.

    Attributes:
        genesis: True if the object exists that marks the store as this repository's.
        marks: The generation of that object.
        summary: The summary of ended runs, and its generation.
        forgotten: The claims whose announcement was lost with a summary.
        tree: The record of the last applied tree, and its generation.
        watch: Callback for each effective write, with the old and the new claim.
    """

    def __init__(self, *, compares: bool = True, marked: bool = True) -> None:
        self.genesis = True
        self.marks = 1
        self.summary = b"", 0
        self.tree = b"", 0
        self.watch: Callable[[Claim | None, Claim], None] = lambda before, after: None
        self._compares = compares
        self._marked = marked
        self._objects: dict[ClaimId, tuple[str, Versioned]] = {}
        self._generation = 0
        self._summaries = [b""]
        self.forgotten: set[ClaimId] = set()

    def get(self, id: ClaimId) -> Versioned | None:
        """Return the stored claim."""
        return self._objects[id][1] if id in self._objects else None

    def all(self) -> dict[ClaimId, Versioned]:
        """Return every stored claim."""
        return {id: found for id, (_, found) in self._objects.items()}

    def put(self, claim: Claim, generation: int) -> Versioned | None:
        """Compare and set a claim, in a single step."""
        found = self.get(claim.id)
        if self._compares and (found.generation if found else 0) != generation:
            return None
        self._generation += 1
        text = json.dumps(claim_json(claim), sort_keys=True)
        # A round trip through JSON, as in the product: data missing from a claim's text is lost here too.
        written = Versioned(claim_of(json.loads(text)), self._generation)
        self._objects[claim.id] = (text, written)
        self.watch(found.claim if found else None, written.claim)
        return written

    def put_summary(self, content: bytes, generation: int) -> bool:
        """Compare and set the summary."""
        if self.summary[1] != generation:
            return False
        self._generation += 1
        self.summary = content, self._generation
        self._summaries.append(content)
        return True

    def spoil(self, content: bytes) -> None:
        """Replace the summary, with its announcements, by other content; b"" deletes it."""
        announced = _preface(self.summary[0])["announced"]
        self.forgotten |= {ClaimId(**id) for each in announced for id in each["ids"]}
        self._generation += 1
        self.summary = content, self._generation if content else 0

    def put_tree(self, content: bytes, generation: int) -> bool:
        """Compare and set the record of the last applied tree."""
        if self.tree[1] != generation:
            return False
        self._generation += 1
        self.tree = content, self._generation
        return True

    def empty(self) -> dict[ClaimId, tuple[str, Versioned]]:
        """Delete all objects, genesis included; return them for `restore`."""
        lost, self._objects = self._objects, {}
        self.summary = self.tree = b"", 0
        self.genesis = not self._marked
        return lost

    def restore(self, lost: dict[ClaimId, tuple[str, Versioned]]) -> None:
        """Restore all deleted objects."""
        self._objects = {**self._objects, **lost}
        self.genesis = True
        self.marks += 1
        self._generation += 1
        # The summary may come from an older backup than the claims.
        self.summary = self._summaries[len(self._summaries) // 2], self._generation


class StorePort:
    """Port to the store for a single reconciler."""

    def __init__(self, process: Process, world: World, claims: Claims, environment: Environment) -> None:
        self._process = process
        self._world = world
        self._claims = claims
        self._place = place_of(environment)

    def check(self, runs: int) -> None:
        """Raise an error if the store isn't the repository's original store."""
        self._reached("check the claim store")
        genesis = self._claims.genesis
        self._process.turn("checked the claim store")
        if not genesis:
            raise ServiceError("the claims bucket has no genesis")

    def prepare(self) -> None:
        """Do nothing: only a person dedicates a cloud store to the repository."""

    def listed(self) -> Mapping[ClaimId, Versioned]:
        """Return every claim."""
        self._reached("list claims")
        found = self._claims.all()
        self._world.checker.listed_claims(found, self._process.name)
        self._process.turn(f"listed {len(found)} claims")
        return found

    def of_key(self, key: str) -> Mapping[ClaimId, Versioned]:
        """Return the claims of a content."""
        self._reached(f"read claims {key[:6]}")
        found = {id: one for id, one in self._claims.all().items() if id.key == key}
        self._world.checker.listed_claims(found, self._process.name, part=True)
        self._process.turn(f"read {len(found)} claims of {key[:6]}")
        return found

    def summary(self) -> StoredSummary | None:
        """Return the summary of ended runs."""
        self._reached("read the summary")
        claims, now = self._claims, self._now()
        content, generation = claims.summary
        if content and not claims.genesis:
            raise ServiceError("the claims bucket has no genesis")
        stored = StoredSummary(self._place, content, generation, claims.marks, now)
        if self._process.looks and (summary := read_summary(stored)[1]):
            kept = {each.versioned.claim.id: each.versioned for each in summary.kept}
            self._world.checker.remembers(kept, genesis_of(content), self._process.name)
        self._process.turn("read the summary")
        return stored

    def genesis_generation(self) -> int:
        """Return the generation of the genesis object."""
        self._reached("read the genesis")
        return self._claims.marks

    def write_summary(self, content: bytes, generation: int) -> bool:
        """Compare and set the summary; the answer may be lost."""
        self._reached("write the summary")
        if self._world.faults.happens("summary not written"):
            raise ServiceError("the claim store doesn't answer")
        written = self._claims.put_summary(content, generation)
        self._process.turn("wrote the summary" if written else "did not write the summary")
        if written and self._world.faults.happens("acknowledgement lost"):
            raise ServiceError("the claim store doesn't answer")
        return written

    def applied_tree(self) -> StoredTree:
        """Return the record of the last applied tree."""
        self._reached("read what was applied")
        content, generation = self._claims.tree
        tree, now = tree_of(content) if content else None, self._now()
        self._world.checker.read_tree(tree.commit if tree else "", self._process.name)
        self._process.turn(f"read that {tree.commit[:7] if tree else 'nothing'} was applied")
        return StoredTree(tree, generation, now)

    def write_applied_tree(self, tree: AppliedTree, generation: int) -> bool:
        """Compare and set the record of the last applied tree; the answer may be lost."""
        self._reached(f"write that {tree.commit[:7]} is applied")
        before = self._claims.tree[0]
        written = self._claims.put_tree(tree_json(tree), generation)
        if written:
            last = tree_of(before).commit if before else ""
            self._world.checker.wrote_tree(tree.commit, last, self._process.name)
        self._process.turn(f"{'wrote' if written else 'did not write'} that {tree.commit[:7]} is applied")
        if written and self._world.faults.happens("acknowledgement lost"):
            raise ServiceError("the claim store doesn't answer")
        return written

    def read(self, id: ClaimId) -> ClaimRead:
        """Return a claim, and the answer's time in whole seconds, as in a Date header."""
        self._reached(f"read claim {_short(id)}")
        found, now = self._claims.get(id), self._now()
        self._process.turn(f"read claim {_short(id)}: {found.claim.state if found else 'none'}")
        return ClaimRead(found, now)

    def write(self, claim: Claim, generation: int) -> Versioned | None:
        """Compare and set a claim; the answer may be lost, or be a 412 to the retry of a successful write."""
        faults = self._world.faults
        said = f"{_short(claim.id)} as {claim.state}, over {generation}"
        self._process.turn(f"write claim {said}")
        if self._away() or faults.happens("claim not written"):
            self._process.turn("couldn't write the claim")
            raise ServiceError("the claim store doesn't answer")
        if faults.happens("claim written late"):
            self._world.at(
                self._world.now + self._world.rng.choice((0.5, 30.0, 900.0)),
                lambda: self._late(claim, generation),
            )
            self._process.turn("gave up waiting for the claim store")
            raise ServiceError("the claim store doesn't answer")
        written = self._claims.put(claim, generation)
        self._process.turn(f"wrote claim {said}" if written else f"didn't write claim {said}")
        if written and faults.happens("acknowledgement lost"):
            raise ServiceError("the claim store doesn't answer")
        if written and faults.happens("412 to its own winner"):
            return None
        return written

    def _late(self, claim: Claim, generation: int) -> None:
        written = self._claims.put(claim, generation)
        self._world.trace("store", f"{'wrote' if written else 'refused'} {_short(claim.id)}, late")

    def _reached(self, doing: str) -> None:
        self._process.turn(doing)
        if self._away() or self._world.faults.happens("claim not read"):
            self._process.turn(f"couldn't {doing}")
            raise ServiceError("the claim store doesn't answer")

    def _away(self) -> bool:
        return self._world.now < self._world.store_away_until

    def _now(self) -> datetime:
        return self._world.time(self._world.now).replace(microsecond=0)


class Records:
    """Records of pending commit statuses, as the service stores them."""

    def __init__(self) -> None:
        self._objects: dict[str, VersionedRecord] = {}
        self._generation = 0

    def all(self) -> dict[str, VersionedRecord]:
        """Return every stored record."""
        return dict(self._objects)

    def put(self, record: CommitRecord, generation: int) -> bool:
        """Compare and set a record, in a single step."""
        if not self._is(record.sha, generation):
            return False
        self._generation += 1
        kept = record_of(json.loads(json.dumps(record_json(record))))
        self._objects[record.sha] = VersionedRecord(kept, self._generation)
        return True

    def remove(self, sha: str, generation: int) -> None:
        """Compare and delete a record, in a single step."""
        if self._is(sha, generation):
            self._objects.pop(sha, None)

    def _is(self, sha: str, generation: int) -> bool:
        found = self._objects.get(sha)
        return (found.generation if found else 0) == generation


def genesis_of(content: bytes) -> int:
    """Return the generation of the genesis that a stored summary names, without the product's checks."""
    genesis: int = _preface(content)["genesis"]
    return genesis


def _preface(content: bytes) -> Any:
    """Return the preface of a stored summary; without announcements if it isn't a summary."""
    try:
        return json.loads(zlib.decompressobj(wbits=zlib.MAX_WBITS | 16).decompress(content, 1_000_000))
    except (zlib.error, ValueError):
        return {"announced": []}


class RecordsPort:
    """Port to the records for a single reconciler."""

    def __init__(self, process: Process, world: World, records: Records) -> None:
        self._process = process
        self._world = world
        self._records = records

    def all(self) -> Mapping[str, VersionedRecord]:
        """Return every record."""
        self._reached("list records")
        found = self._records.all()
        self._process.turn(f"listed {len(found)} records")
        return found

    def write(self, record: CommitRecord, generation: int) -> bool:
        """Compare and set a record; the answer may be lost."""
        said = f"record {record.sha[:7]}{', closed' if record.closed else ''}"
        self._reached(f"write {said}")
        written = self._records.put(record, generation)
        self._process.turn(f"{'wrote' if written else 'did not write'} {said}")
        if written and self._world.faults.happens("commit record written, answer lost"):
            raise ServiceError("the store of records doesn't answer")
        return written

    def remove(self, sha: str, generation: int) -> None:
        """Delete a record."""
        self._reached(f"remove record {sha[:7]}")
        self._records.remove(sha, generation)
        self._process.turn(f"removed record {sha[:7]}")

    def now(self) -> datetime:
        """Return the store's time in whole seconds."""
        return self._world.time(self._world.now).replace(microsecond=0)

    def _reached(self, doing: str) -> None:
        self._process.turn(doing)
        away = self._world.now < self._world.store_away_until
        if away or self._world.faults.happens("commit record not reached"):
            raise ServiceError("the store of records doesn't answer")


def _short(id: ClaimId) -> str:
    return short_id(id.key, id.attempt)
