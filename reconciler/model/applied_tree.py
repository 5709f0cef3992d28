"""The record of the tree that was applied last, a checkout's relation to it, and what that permits an apply.

The record is one object beside the claims. It names the commit with its newest ancestors, so that a clone
that never fetched the commit still knows that it is older. It is not a commit record: the numbers of those
are the order of applies, and an older checkout may be applied after a newer one.
"""

from __future__ import annotations

import json
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Protocol

from msgspec import Meta, Struct, ValidationError, convert

from reconciler.model.claim import checked
from reconciler.model.reason import Reason, ReasonCode, because

MOST_ANCESTORS = 1000
"""Number of ancestors that a record names, the newest ones."""

MAX_BYTES = 100_000
"""Longest record that is read: twice the longest that is written."""

_FORMAT = 1
_Commit = Annotated[str, Meta(pattern=r"\A[0-9a-f]{40}\Z")]
_Who = Annotated[str, Meta(max_length=200)]
_Ancestors = Annotated[tuple[_Commit, ...], Meta(max_length=MOST_ANCESTORS)]


class AppliedTree(Struct, frozen=True, forbid_unknown_fields=True):
    """Record of the tree that was applied last in a place of claims.

    Attributes:
        commit: The commit, 40 hex digits.
        time: When it was applied first, by the store's clock.
        who: The process that applied it, for people to read.
        ancestors: The newest ancestors of the commit that its clone had, newest first.
    """

    commit: _Commit
    time: datetime
    who: _Who
    ancestors: _Ancestors = ()


def tree_json(tree: AppliedTree) -> bytes:
    """Return the record as it is stored."""
    said = {"commit": tree.commit, "time": tree.time.isoformat(), "who": tree.who[:200]}
    return json.dumps({"formatVersion": _FORMAT, **said, "ancestors": tree.ancestors}).encode()


def tree_of(content: bytes) -> AppliedTree:
    """Return the record that `tree_json` wrote.

    Raises:
        ValueError: The content is no record, is too long for one, or needs a newer version.
    """
    if len(content) > MAX_BYTES:
        raise ValueError(f"it has {len(content):,} bytes, and the longest record has {MAX_BYTES:,}")
    try:
        said: Any = json.loads(content)
        if not isinstance(said, dict) or said.get("formatVersion") != _FORMAT:
            version = said.get("formatVersion") if isinstance(said, dict) else None
            raise ValueError(f"it has format version {version!r}, not {_FORMAT}")
        del said["formatVersion"]
        tree = convert(said, AppliedTree)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except ValidationError as error:
        raise ValueError(str(error)) from None
    return AppliedTree(tree.commit, checked(tree.time), tree.who, tree.ancestors)


class Relation(StrEnum):
    """Relation of a checkout to the tree that was applied last."""

    NONE = "none"
    """Nothing was applied yet, or no branch has it any more, or there is no commit to compare."""
    SAME = "same"
    NEWER = "newer"
    OLDER = "older"
    DIVERGED = "diverged"
    """Each has commits that the other lacks."""
    UNKNOWN = "unknown"
    """The checkout's history can't tell."""


class History(Protocol):
    """History of a checkout."""

    @property
    def head(self) -> str:
        """The commit that is checked out, 40 hex digits; "" for none, or if nothing is to be compared."""

    @property
    def obstacle(self) -> str:
        """The reason why a commit must be there and can't be read, as a clause; "" for none."""

    @property
    def is_shallow(self) -> bool:
        """True if older commits are missing."""

    @property
    def is_published(self) -> bool:
        """True if a remote's branch has the checked-out commit."""

    @property
    def is_branch_head(self) -> bool:
        """True if the checked-out commit is the head of its remote's branch, as just fetched."""

    def has(self, commit: str) -> bool:
        """Return True if the commit is here."""

    def is_ancestor(self, commit: str, of: str) -> bool:
        """Return True if the commit is here and an ancestor of another one."""

    def was_left(self, commit: str) -> bool:
        """Return True if the clone had the commit on a branch or checked out, and has it on neither now."""

    def shares(self, commits: tuple[str, ...]) -> bool:
        """Return True if HEAD and any of these commits that are here have a common ancestor."""

    def ancestors(self, most: int) -> tuple[str, ...]:
        """Return the newest ancestors of HEAD, newest first, without HEAD."""


def relation_of(tree: AppliedTree, history: History) -> Relation:
    """Compare the checked-out commit with the tree that was applied last."""
    head, commit = history.head, tree.commit
    if not head:
        return Relation.UNKNOWN if history.obstacle else Relation.NONE
    if commit == head:
        return Relation.SAME
    if history.is_ancestor(commit, head):
        return Relation.NEWER
    is_here, is_shallow = history.has(commit), history.is_shallow
    # Amended, rebased or reset: nobody's work is lost with it. A shallow clone may only lack the way to it.
    if is_here and not is_shallow and history.was_left(commit):
        return Relation.NONE
    # The record's own list, so that a clone knows that never fetched the commit.
    if head in tree.ancestors or (is_here and history.is_ancestor(head, commit)):
        return Relation.OLDER
    # In a whole clone, a commit that isn't here is no ancestor of HEAD.
    if not is_shallow and history.shares((commit, *tree.ancestors)):
        return Relation.DIVERGED
    return Relation.UNKNOWN


class Effect(StrEnum):
    """Effect of a relation on an apply."""

    APPLY = "apply"
    WITHHOLD = "withhold"
    """Submissions go on, and nothing is cancelled."""
    REFUSE = "refuse"
    """Nothing is done."""


_IN_ORDER = (Relation.NONE, Relation.SAME, Relation.NEWER)


def effect_of(
    relation: Relation, engine: str, *, whole: bool, is_branch_head: bool, allow_older: bool
) -> Effect:
    """Return what a relation permits an apply.

    Args:
        relation: The relation of its checkout.
        engine: The environment's engine.
        whole: True if it applies all jobs of the repository.
        is_branch_head: True if the checkout is the head of its remote's branch, as just fetched.
        allow_older: True if a person asked to apply the checkout all the same.
    """
    if relation in _IN_ORDER or allow_older:
        return Effect.APPLY
    if relation is Relation.UNKNOWN or engine == "local" or not whole:
        return Effect.WITHHOLD
    # Force pushes, squashes and release branches go on.
    is_followed = relation is Relation.DIVERGED and is_branch_head
    return Effect.APPLY if is_followed else Effect.REFUSE


def is_recorded(effect: Effect, engine: str, *, whole: bool, is_published: bool) -> bool:
    """Return True if an apply records its commit as the one that was applied last.

    With `engine: google` only a commit that a remote has, so that a private one never holds up the team.
    """
    return effect is Effect.APPLY and whole and (engine == "local" or is_published)


class TreeFinding(Struct, frozen=True):
    """Comparison of a checkout with the tree that was applied last; `output/wording/tree.py` has its words.

    Attributes:
        relation: The relation of the checkout.
        effect: What it permits.
        commit: The commit that was applied last; "" for none.
        time: When that was applied first; None for none.
        age: Seconds since then.
        remedy: How the history is fetched, as a clause; "" if it is known.
    """

    relation: Relation
    effect: Effect
    commit: str = ""
    time: datetime | None = None
    age: float = 0.0
    remedy: str = ""

    @property
    def is_behind(self) -> bool:
        """True if another commit's jobs are newer, so that the statuses are left to that commit."""
        return self.effect is not Effect.APPLY and self.relation in (Relation.OLDER, Relation.DIVERGED)


NOT_COMPARED = TreeFinding(Relation.NONE, Effect.APPLY)
"""Finding before the first apply, or where nothing is compared."""


def finding_of(
    relation: Relation, effect: Effect, tree: AppliedTree | None, now: datetime, remedy: str
) -> TreeFinding:
    """Return the finding.

    Args:
        relation: The relation of the checkout.
        effect: What it permits.
        tree: The tree that was applied last.
        now: The store's time.
        remedy: How the history is fetched, as a clause.
    """
    if tree is None:
        return TreeFinding(relation, effect)
    age = (now - tree.time).total_seconds()
    return TreeFinding(relation, effect, tree.commit, tree.time, age, remedy)


def withheld_reason(relation: Relation, commit: str) -> Reason | None:
    """Return why a cancel is withheld, for its outcome; None if the relation permits it."""
    is_permitted = relation in _IN_ORDER
    return None if is_permitted else because(ReasonCode.WITHHELD, relation=relation, commit=commit)
