"""The record of the tree applied last, while other processes write theirs: in memory, at every moment."""

from __future__ import annotations

from datetime import timedelta

import pytest

from reconciler.base.errors import ServiceError
from reconciler.model.applied_tree import AppliedTree, Effect, Relation
from reconciler.operations.tree import OlderTreeError, TreeCheck
from reconciler.output.wording.plan import reason_text
from tests.support.memory_ports import Outside

FIRST, SECOND, THIRD, BESIDE = ("1" * 40, "2" * 40, "3" * 40, "b" * 40)
BEFORE = {FIRST: (), SECOND: (FIRST,), THIRD: (SECOND, FIRST), BESIDE: (FIRST,)}


class Clone:
    """A clone that has a single commit and its ancestors."""

    obstacle = remedy = ""
    is_shallow = False

    def __init__(self, head: str, *, is_published: bool = True, is_branch_head: bool = False) -> None:
        self.head = head
        self.is_published = is_published
        self.is_branch_head = is_branch_head

    def has(self, commit: str) -> bool:
        return commit in (self.head, *BEFORE[self.head])

    def is_ancestor(self, commit: str, of: str) -> bool:
        return self.has(commit) and commit in BEFORE.get(of, ())

    def is_on_branch(self, commit: str) -> bool:
        return True

    def shares(self, commits: tuple[str, ...]) -> bool:
        return any(map(self.has, commits))

    def ancestors(self, most: int) -> tuple[str, ...]:
        return BEFORE[self.head][:most]


def check_of(outside: Outside, clone: Clone, engine: str = "google", **options: bool) -> TreeCheck:
    options = {"whole": True, **options}
    return TreeCheck(outside.claims, lambda: clone, engine, "a test", **options)


def applied(outside: Outside, commit: str) -> None:
    """Record a commit as another process does."""
    tree = AppliedTree(commit, outside.time.now, "another", BEFORE[commit])
    assert outside.claims.write_applied_tree(tree, outside.claims.tree[1])


def recorded(outside: Outside) -> str:
    tree = outside.claims.applied_tree().tree
    return tree.commit if tree else ""


@pytest.mark.fault(57)
def test_a_newer_commit_between_the_comparison_and_the_record_stops_the_older() -> None:
    outside = Outside()
    applied(outside, FIRST)
    older = check_of(outside, Clone(SECOND))
    assert older.check().relation is Relation.NEWER
    applied(outside, THIRD)
    with pytest.raises(OlderTreeError, match=f"older than {THIRD[:7]}"):
        older.record()
    assert recorded(outside) == THIRD


def test_an_older_commit_between_the_comparison_and_the_record_is_recorded_over() -> None:
    outside = Outside()
    newer = check_of(outside, Clone(THIRD))
    assert newer.check().relation is Relation.NONE
    applied(outside, SECOND)
    newer.record()
    assert recorded(outside) == THIRD
    assert newer.finding.relation is Relation.NEWER


@pytest.mark.fault(57)
def withheld(check: TreeCheck) -> str:
    """Return the reason why the next cancel is withheld; "" if it is permitted."""
    reason = check.withheld()
    return reason_text(reason) if reason else ""


def test_on_the_embedded_service_a_race_withholds_the_cancels() -> None:
    outside = Outside()
    older = check_of(outside, Clone(SECOND), "local")
    older.check()
    applied(outside, THIRD)
    older.record()
    assert (recorded(outside), older.finding.effect) == (THIRD, Effect.WITHHOLD)
    assert withheld(older) == f"withheld: this checkout is older than {THIRD[:7]}, which was applied"


@pytest.mark.fault(57)
@pytest.mark.parametrize(
    ("later", "reason"),
    [(THIRD, "is older than"), (BESIDE, "has diverged from"), (FIRST, ""), (SECOND, "")],
)
def test_the_record_is_read_again_before_each_cancel(later: str, reason: str) -> None:
    outside = Outside()
    one = check_of(outside, Clone(SECOND))
    one.check()
    one.record()
    assert withheld(one) == ""
    applied(outside, later)
    assert reason in withheld(one)
    assert bool(withheld(one)) == bool(reason)


def test_what_a_person_asked_to_replace_is_no_permission_for_what_is_applied_since() -> None:
    outside = Outside()
    applied(outside, SECOND)
    one = check_of(outside, Clone(FIRST), allow_older=True)
    assert one.check().effect is Effect.APPLY
    assert one.replaced == SECOND
    one.record()
    assert (recorded(outside), withheld(one)) == (FIRST, "")
    applied(outside, THIRD)
    assert "older than" in withheld(one)


def test_a_commit_of_no_remote_isn_t_recorded_and_its_cancels_follow_what_is() -> None:
    outside = Outside()
    applied(outside, FIRST)
    one = check_of(outside, Clone(SECOND, is_published=False))
    one.check()
    one.record()
    assert (recorded(outside), withheld(one)) == (FIRST, "")
    applied(outside, BESIDE)
    assert "has diverged from" in withheld(one)
    assert check_of(outside, Clone(SECOND, is_published=False), "local").check().effect is Effect.WITHHOLD


def test_a_part_records_nothing() -> None:
    outside = Outside()
    one = check_of(outside, Clone(SECOND), whole=False)
    one.check()
    one.record()
    assert recorded(outside) == ""


def test_the_same_commit_keeps_its_record() -> None:
    outside = Outside()
    for _ in range(2):
        one = check_of(outside, Clone(SECOND))
        one.check()
        one.record()
        outside.time.now += timedelta(hours=1)
    tree = outside.claims.applied_tree().tree
    assert tree is not None
    assert (tree.ancestors, outside.time.now - tree.time) == ((FIRST,), timedelta(hours=2))


def test_where_nothing_is_recorded_and_nothing_is_to_be_the_history_isn_t_asked() -> None:
    def no_history() -> Clone:
        raise AssertionError("it was asked")

    one = TreeCheck(Outside().claims, no_history, "google", "a test", whole=False)
    assert one.check().relation is Relation.NONE
    one.record()
    assert withheld(one) == ""


def test_others_that_keep_recording_theirs_end_it() -> None:
    outside = Outside()
    one = check_of(outside, Clone(THIRD))
    one.check()
    write = outside.claims.write_applied_tree
    outside.claims.write_applied_tree = lambda tree, generation: False  # type: ignore[method-assign]
    with pytest.raises(ServiceError, match="keep recording theirs"):
        one.record()
    outside.claims.write_applied_tree = write  # type: ignore[method-assign]
    assert recorded(outside) == ""
