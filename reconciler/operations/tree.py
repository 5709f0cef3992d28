"""Comparison of a checkout with the tree that was applied last, and the record of the one that is applied."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from reconciler.base.errors import RefusedError, ServiceError
from reconciler.model.applied_tree import (
    MOST_ANCESTORS,
    NOT_COMPARED,
    AppliedTree,
    Effect,
    History,
    Relation,
    TreeFinding,
    effect_of,
    finding_of,
    is_recorded,
    relation_of,
    withheld_reason,
)
from reconciler.model.ports import ClaimStore, StoredTree
from reconciler.model.reason import Reason
from reconciler.output.wording.tree import tree_hint, tree_message

if TYPE_CHECKING:
    from reconciler.operations.load_desired import Desired
    from reconciler.operations.session import Session

_TRIES = 5
_NOT_IN_ORDER = (Relation.OLDER, Relation.DIVERGED, Relation.UNKNOWN)


class CheckedOut(History, Protocol):
    """History of a checkout that also says how more of it is fetched."""

    @property
    def remedy(self) -> str:
        """What makes an unknown relation known, as a clause."""


class OlderTreeError(RefusedError):
    """Error for an apply that stopped before its first write because of its checkout's commit."""


class TreeCheck:
    """Check of one apply's checkout against the tree that was applied last.

    Args:
        claims: The store that has the record.
        open_history: Returns the checkout's history; called only to compare or to record.
        engine: The environment's engine.
        owner: The applying process, for people.
        whole: True if it applies all jobs of the repository, or would but for those that git leaves out.
        is_partial: True if git leaves some out: then it records nothing.
        allow_older: True if a person asked to apply the checkout all the same.

    Attributes:
        finding: The last comparison.
    """

    def __init__(
        self,
        claims: ClaimStore,
        open_history: Callable[[], CheckedOut],
        engine: str,
        owner: str,
        *,
        whole: bool,
        is_partial: bool = False,
        allow_older: bool = False,
    ) -> None:
        self._is_partial = is_partial
        self._claims = claims
        self._open_history = open_history
        self._engine = engine
        self._owner = owner
        self._whole = whole
        self._allow_older = allow_older
        self._stored = StoredTree(None, 0, None)
        self.finding = NOT_COMPARED

    @cached_property
    def _history(self) -> CheckedOut:
        return self._open_history()

    def compare(self) -> TreeFinding:
        """Read the record and compare the checkout with it; raise ServiceError if it can't be read."""
        self._stored = stored = self._claims.applied_tree()
        tree = stored.tree
        if tree is None:
            self.finding = NOT_COMPARED
            return self.finding
        history = self._history
        relation = relation_of(tree, history)
        is_head = relation is Relation.DIVERGED and history.is_branch_head
        effect = effect_of(
            relation, self._engine, whole=self._whole, is_branch_head=is_head, allow_older=self._allow_older
        )
        remedy = history.remedy if relation is Relation.UNKNOWN else ""
        now = stored.now or datetime.now(UTC)
        self.finding = finding_of(relation, effect, tree if history.head or remedy else None, now, remedy)
        return self.finding

    def check(self) -> TreeFinding:
        """Compare, and raise OlderTreeError if nothing may be done."""
        finding = self.compare()
        if finding.effect is Effect.REFUSE:
            raise OlderTreeError(tree_message(finding), hint=tree_hint(finding))
        return finding

    def record(self) -> None:
        """Record the checkout's commit as the one that was applied last, where `check` permits it.

        Raises:
            OlderTreeError: Another apply has recorded another commit since, and nothing may be done.
            ServiceError: The record can't be read or written.
        """
        for _ in range(_TRIES):
            stored = self._stored
            if (stored.tree and stored.tree.commit == self._history.head) or not self._is_recorded():
                return
            # A store that was just made has no time before it is asked again.
            now = stored.now or self._claims.applied_tree().now or datetime.now(UTC)
            ancestors = self._history.ancestors(MOST_ANCESTORS)
            tree = AppliedTree(self._history.head, now, self._owner, ancestors)
            if self._claims.write_applied_tree(tree, stored.generation):
                self._stored = StoredTree(tree, 0, now)
                return
            self.check()
        raise ServiceError(
            "the commit that is applied can't be recorded: other processes keep recording theirs",
            hint="try again",
        )

    def _is_recorded(self) -> bool:
        # git is asked last, as few applies need it.
        whole = self._whole and not self._is_partial
        if not is_recorded(self.finding.effect, self._engine, whole=whole, is_published=True):
            return False
        return bool(self._history.head) and (self._engine == "local" or self._history.is_published)

    @property
    def applied(self) -> AppliedTree | None:
        """The record of the tree that was applied last, as last read or written."""
        return self._stored.tree

    def withheld(self) -> Reason | None:
        """Return why the next cancel or return is withheld, None if it is permitted; raise ServiceError.

        The record is read again: another apply may have recorded a commit since, whose jobs must live.
        """
        if self.finding.effect is Effect.WITHHOLD:
            return withheld_reason(self.finding.relation, self.finding.commit)
        earlier, tree = self._stored.tree, self._claims.applied_tree().tree
        if tree is None or (earlier and tree.commit == earlier.commit):
            return None
        return withheld_reason(relation_of(tree, self._history), tree.commit)

    @property
    def replaced(self) -> str:
        """The other commit that a person asked to replace by this checkout; "" for none."""
        is_asked = self._allow_older and self._whole and self.finding.relation in _NOT_IN_ORDER
        return self.finding.commit if is_asked else ""


def tree_check(session: Session, desired: Desired, *, allow_older: bool = False) -> TreeCheck:
    """Return the check of a session's checkout.

    Args:
        session: The environment.
        desired: The jobs that are applied.
        allow_older: True if a person asked to apply the checkout, whatever was applied.
    """
    ports = session.ports
    return TreeCheck(
        ports.claims,
        session.history,
        session.environment.engine,
        ports.owner,
        whole=not desired.is_part,
        is_partial=not desired.whole,
        allow_older=allow_older,
    )
