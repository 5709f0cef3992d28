"""Claims whose new ones are announced, so that no look without the history misses them.

Each process announces its new claims in the object of the summary, before it writes them: several at once,
because Cloud Storage accepts one write per second and object. A short look reads announced claims one by one.
Only a new claim needs this, and a publication: the summary says which model is in its place at an address.
A claim that changes was open at every look before, and a summary that leaves it out is of a look that saw a
later generation. A settled claim opens again only for a second job of its request, which every look finds
while it is live.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime

from msgspec.structs import replace

from reconciler.base.errors import ReconcilerError, ServiceError
from reconciler.model.applied_tree import AppliedTree
from reconciler.model.claim import Claim, ClaimId
from reconciler.model.ports import (
    Announcement,
    ClaimRead,
    ClaimStore,
    Clock,
    StoredSummary,
    StoredTree,
    Versioned,
)
from reconciler.submission.summary import Preface, read_preface, with_preface

_PAUSES = (1.0, 2.0, 4.0, 8.0)
"""Seconds between two tries to announce."""
_ID_BYTES = 10
_SMALL = 4
"""A store with this part of the claims and runs that a summary begins with has none, and gets none soon."""


class AnnouncedClaims:
    """Implementation of the port `Claims` by a `ClaimStore`; safe for several threads.

    Args:
        store: The claims.
        clock: For pauses.
        chance: Returns the given number of random bytes.
        least_history: Number of claims and runs from which there is a summary.
    """

    def __init__(
        self, store: ClaimStore, clock: Clock, chance: Callable[[int], bytes], least_history: int
    ) -> None:
        self._store = store
        self._clock = clock
        self._by = base64.b32encode(chance(_ID_BYTES)).decode("ascii").lower()
        self._small = least_history // _SMALL
        self._listed: int | None = None
        self._existing: set[ClaimId] = set()
        self._announced: set[ClaimId] = set()
        self._uncertain: set[ClaimId] = set()

    def check(self, runs: int) -> None:
        """Check the store, as `ClaimStore.check`."""
        self._store.check(runs)

    def prepare(self) -> None:
        """Write the genesis of a new store, as `ClaimStore.prepare`."""
        self._store.prepare()

    def listed(self) -> Mapping[ClaimId, Versioned]:
        """Return every claim, as `ClaimStore.listed`."""
        claims = self._store.listed()
        self._listed = len(claims)
        self._existing.update(claims)
        return claims

    def of_key(self, key: str) -> Mapping[ClaimId, Versioned]:
        """Return the claims of a content, as `ClaimStore.of_key`."""
        claims = self._store.of_key(key)
        self._existing.update(claims)
        return claims

    def read(self, id: ClaimId) -> ClaimRead:
        """Return the current claim, as `ClaimStore.read`."""
        return self._store.read(id)

    def summary(self) -> StoredSummary | None:
        """Return the summary, as `ClaimStore.summary`."""
        return self._store.summary()

    def genesis_generation(self) -> int:
        """Return the generation of the genesis, as `ClaimStore.genesis_generation`."""
        return self._store.genesis_generation()

    def write_summary(self, content: bytes, generation: int) -> bool:
        """Replace the summary of this generation, as `ClaimStore.write_summary`."""
        return self._store.write_summary(content, generation)

    def applied_tree(self) -> StoredTree:
        """Return the tree that was applied last, as `ClaimStore.applied_tree`."""
        return self._store.applied_tree()

    def write_applied_tree(self, tree: AppliedTree, generation: int) -> bool:
        """Replace the record of this generation, as `ClaimStore.write_applied_tree`."""
        return self._store.write_applied_tree(tree, generation)

    def write(self, claim: Claim, generation: int) -> Versioned | None:
        """Replace the claim of this generation, as `ClaimStore.write`; announce a new claim first."""
        if generation:
            return self._store.write(claim, generation)
        self.announce([claim.id])
        try:
            return self._store.write(claim, generation)
        except ReconcilerError:
            # The store may still take it.
            self._uncertain.add(claim.id)
            raise

    def announce(self, ids: Iterable[ClaimId]) -> None:
        """Announce new claims; raise ServiceError if that failed, after which none of them may be written.

        Leave out claims that exist, by what this object has read.
        """
        new = {*ids} - self._announced - self._existing
        if not self._try_to_announce(new):
            raise ServiceError(
                "the summary of ended runs keeps changing, so no new claim can be announced in it",
                hint="nothing was submitted: apply again",
            )
        self._announced |= new

    def announce_publications(self, addresses: Iterable[str]) -> None:
        """Announce publications, as `Claims.announce_publications`.

        Until this process has looked after them, no short look takes the summary's word for what is in its
        place at these addresses.
        """
        if not self._try_to_announce(set(), {*addresses}):
            raise ServiceError(
                "the summary of ended runs keeps changing, so no publication can be announced in it",
                hint="nothing was published: apply again",
            )

    def _try_to_announce(self, new: set[ClaimId], addresses: Collection[str] = frozenset()) -> bool:
        """Announce claims and publications where there is a summary; return False if it keeps changing."""
        if not (new or addresses) or (self._listed is not None and self._listed < self._small):
            return True
        for pause in _PAUSES:
            if self._announce(new, addresses):
                return True
            self._clock.sleep(pause)
        return False

    def _announce(self, new: set[ClaimId], addresses: Collection[str]) -> bool:
        stored = self._store.summary()
        if stored is None:
            return True  # Without a bucket, the write of the claim fails and explains why.
        preface = read_preface(stored)
        content = stored.content if preface else b""
        if preface is None:
            genesis = stored.genesis or self._store.genesis_generation()
            preface = Preface(stored.place, genesis)
        none = Announcement(self._by, stored.now, ())
        mine = next((one for one in preface.announced if one.by == self._by), none)
        if new <= {*mine.ids} and {*addresses} <= {*mine.publications}:
            return True  # The answer to an earlier write was lost.
        ids = tuple(sorted({*new, *mine.ids}))
        publications = tuple(sorted({*addresses, *mine.publications}))
        others = [one for one in preface.announced if one.by != self._by]
        own = replace(mine, at=stored.now, ids=ids, publications=publications)
        announced = sorted([*others, own], key=lambda one: one.by)
        content = with_preface(content, replace(preface, announced=tuple(announced)))
        try:
            return self._store.write_summary(content, stored.generation)
        except ServiceError:
            return False

    def still_announced(
        self, announced: Iterable[Announcement], seen: Collection[ClaimId], outdated: datetime | None
    ) -> tuple[Announcement, ...]:
        """Return the announcements that a summary still needs, as `Claims.still_announced`."""
        left = []
        for one in announced:
            missing, publications = {*one.ids} - {*seen}, one.publications
            if one.by == self._by:
                missing, publications = missing & self._uncertain, ()
            elif outdated is not None and one.at < outdated:
                missing, publications = set(), ()
            if missing or publications:
                left.append(replace(one, ids=tuple(sorted(missing)), publications=publications))
        return tuple(left)
