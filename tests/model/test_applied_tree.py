"""The record of the tree applied last, a checkout's relation to it, and the permissions that follow."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest

from reconciler.model.applied_tree import (
    MAX_BYTES,
    MOST_ANCESTORS,
    AppliedTree,
    Effect,
    Relation,
    effect_of,
    finding_of,
    is_recorded,
    relation_of,
    tree_json,
    tree_of,
    withheld_reason,
)
from reconciler.output.wording.plan import reason_text
from reconciler.output.wording.tree import tree_hint, tree_line, tree_message, tree_note

A, B, C, D, E = (letter * 40 for letter in "abcde")
TIME = datetime(2026, 11, 21, 13, 6, 11, tzinfo=UTC)
TREE = AppliedTree(C, TIME, "process 7 on laptop", (B, A))
STORED = (
    f'{{"formatVersion": 1, "commit": "{C}", "time": "2026-11-21T13:06:11+00:00", '
    f'"who": "process 7 on laptop", "ancestors": ["{B}", "{A}"]}}'
)


@dataclass
class Clone:
    """A clone with these commits and their parents.

    `branches` are the commits of branches and tags, `logged` those that were checked out or on a branch.
    """

    head: str
    parents: dict[str, tuple[str, ...]]
    branches: tuple[str, ...] = ()
    logged: tuple[str, ...] = ()
    obstacle: str = ""
    is_shallow: bool = False
    is_published: bool = True
    is_branch_head: bool = False

    def has(self, commit: str) -> bool:
        return commit in self.parents

    def _all(self, commit: str) -> set[str]:
        found = {commit} & self.parents.keys()
        for parent in self.parents.get(commit, ()):
            found |= self._all(parent)
        return found

    def is_ancestor(self, commit: str, of: str) -> bool:
        return self.has(commit) and commit in self._all(of)

    def was_left(self, commit: str) -> bool:
        is_on_branch = any(self.is_ancestor(commit, branch) for branch in self.branches)
        return commit in self.logged and not is_on_branch

    def shares(self, commits: tuple[str, ...]) -> bool:
        return any(self._all(commit) & self._all(self.head) for commit in commits)

    def ancestors(self, most: int) -> tuple[str, ...]:
        return ()


LINE = {A: (), B: (A,), C: (B,)}
UP_TO_A, UP_TO_B = {A: ()}, {A: (), B: (A,)}
FORKED = {A: (), B: (A,), D: (A,)}


@pytest.mark.parametrize(
    ("clone", "relation"),
    [
        (Clone("", {}), Relation.NONE),
        (Clone("", {}, obstacle="git is missing"), Relation.UNKNOWN),
        (Clone(C, LINE), Relation.SAME),
        (Clone(C, {C: ()}, is_shallow=True), Relation.SAME),
        (Clone(D, {**LINE, D: (C,)}), Relation.NEWER),
        (Clone(D, {C: (), D: (C,)}, is_shallow=True), Relation.NEWER),
        (Clone(E, {**LINE, D: (A,), E: (D, C)}), Relation.NEWER),  # by a merge
        # Behind: with the commit, without it, and in a clone that has only its head
        (Clone(B, LINE, (C,)), Relation.OLDER),
        (Clone(A, UP_TO_A, (A,)), Relation.OLDER),
        (Clone(B, {B: ()}, (B,), is_shallow=True), Relation.OLDER),
        # Beside: with the commit on a branch, and without it
        (Clone(D, {**LINE, D: (A,)}, (C, D)), Relation.DIVERGED),
        (Clone(D, FORKED, (D,)), Relation.DIVERGED),
        # Rewritten: no branch has it any more
        (Clone(D, {**LINE, D: (B,)}, (D,), (C,)), Relation.NONE),
        (Clone(B, LINE, (B,), (C,)), Relation.NONE),
        # Only the object is here, borrowed or fetched without a branch
        (Clone(D, {**LINE, D: (B,)}, (D,)), Relation.DIVERGED),
        (Clone(B, LINE, (B,)), Relation.OLDER),
        # A shallow clone may lack the path to the commit, or the common ancestor
        (Clone(D, {C: (), D: ()}, (D,), is_shallow=True), Relation.UNKNOWN),
        (Clone(D, {D: ()}, (D,), is_shallow=True), Relation.UNKNOWN),
        (Clone(D, {**FORKED}, (D,), is_shallow=True), Relation.UNKNOWN),
        (Clone(D, {C: (), D: ()}, (D,), (C,), is_shallow=True), Relation.UNKNOWN),
        # Another history, or more than a thousand commits behind
        (Clone(E, {E: ()}, (E,)), Relation.UNKNOWN),
        (Clone(E, {**LINE, E: ()}, (C, E)), Relation.UNKNOWN),
    ],
)
def test_relation_follows_from_history_of_clone(clone: Clone, relation: Relation) -> None:
    assert relation_of(TREE, clone) is relation


IN_ORDER = {Relation.NONE, Relation.SAME, Relation.NEWER}
CASES = [*itertools.product(Relation, ("google", "local"), (True, False), (True, False), (True, False))]


@pytest.mark.parametrize(("relation", "engine", "whole", "is_branch_head", "allow_older"), CASES)
def test_effect_follows_from_relation_engine_and_options(
    relation: Relation, engine: str, whole: bool, is_branch_head: bool, allow_older: bool
) -> None:
    """Check the table of the documentation, row by row."""
    expected = {
        (Relation.OLDER, "google"): Effect.REFUSE,
        (Relation.DIVERGED, "google"): Effect.APPLY if is_branch_head else Effect.REFUSE,
        (Relation.OLDER, "local"): Effect.WITHHOLD,
        (Relation.DIVERGED, "local"): Effect.WITHHOLD,
    }.get((relation, engine), Effect.WITHHOLD)
    if not whole:
        expected = Effect.WITHHOLD
    if relation in IN_ORDER or allow_older:
        expected = Effect.APPLY
    found = effect_of(relation, engine, whole=whole, is_branch_head=is_branch_head, allow_older=allow_older)
    assert found is expected
    for is_published in (True, False):
        records = is_recorded(found, engine, whole=whole, is_published=is_published)
        assert records == (whole and found is Effect.APPLY and (engine == "local" or is_published))


@pytest.mark.parametrize("effect", Effect)
@pytest.mark.parametrize("relation", Relation)
def test_checkout_is_behind_when_it_is_older_or_beside_and_not_applied(
    relation: Relation, effect: Effect
) -> None:
    is_other = relation in {Relation.OLDER, Relation.DIVERGED}
    found = finding_of(relation, effect, TREE, TIME, "")
    assert found.is_behind is (is_other and effect is not Effect.APPLY)


def test_stored_form_of_applied_tree_stays_same() -> None:
    assert tree_json(TREE).decode() == STORED
    assert tree_of(STORED.encode()) == TREE


def test_longest_record_can_be_read() -> None:
    ancestors = tuple(f"{number:040x}" for number in range(MOST_ANCESTORS))
    tree = AppliedTree(C, TIME, "é" * 500, ancestors)
    assert len(tree_json(tree)) < MAX_BYTES / 2
    assert tree_of(tree_json(tree)).ancestors == ancestors


@pytest.mark.parametrize(
    "change",
    [
        {"formatVersion": 2},
        {"formatVersion": None},
        {"commit": "c0ffee"},
        {"commit": C.upper()},
        {"commit": f"{C}\n"},
        {"commit": "--output=/tmp/x"},
        {"time": "yesterday"},
        {"time": "2026-11-21T13:06:11"},
        {"time": "0001-01-01T00:00:00Z"},
        {"who": 7},
        {"who": "x" * 201},
        {"ancestors": [B, "HEAD"]},
        {"ancestors": [B] * (MOST_ANCESTORS + 1)},
        {"ancestors": B},
        {"more": True},
    ],
)
def test_record_with_wrong_value_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        tree_of(json.dumps(json.loads(STORED) | change).encode())


@pytest.mark.parametrize("content", [b"", b"null", b"[]", b"\xff", b"[" * 50_000, b" " * (MAX_BYTES + 1)])
def test_content_without_valid_json_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"^[^\n]+$"):
        tree_of(content)


@pytest.mark.parametrize(
    ("passed", "said"),
    [
        (timedelta(seconds=-5), "less than a minute ago"),
        (timedelta(seconds=59), "less than a minute ago"),
        (timedelta(minutes=1), "1 minute ago"),
        (timedelta(minutes=3, seconds=20), "3 minutes ago"),
        (timedelta(hours=23, minutes=59), "23 hours ago"),
        (timedelta(days=2), "2 days ago"),
    ],
)
def test_message_names_time_since_apply(passed: timedelta, said: str) -> None:
    found = finding_of(Relation.OLDER, Effect.REFUSE, TREE, TIME + passed, "")
    assert tree_line(found) == (
        f"this checkout is older than ccccccc, applied {said}: pull, or use `reconciler apply --allow-older`"
    )
    assert tree_note(found) == "", "it is among the refusals"


def test_note_depends_on_relation_and_effect() -> None:
    def write_note(relation: Relation, effect: Effect) -> str:
        return tree_note(finding_of(relation, effect, TREE, TIME, "run `git fetch`"))

    assert write_note(Relation.SAME, Effect.APPLY) == write_note(Relation.NEWER, Effect.APPLY) == ""
    assert write_note(Relation.NONE, Effect.APPLY) == (
        "No branch has ccccccc, applied less than a minute ago, any more."
    )
    assert write_note(Relation.DIVERGED, Effect.APPLY) == (
        "This checkout has diverged from ccccccc, applied less than a minute ago, and is applied all the "
        "same."
    )
    assert write_note(Relation.UNKNOWN, Effect.WITHHOLD) == (
        "This checkout's history doesn't show if it is newer than ccccccc, applied less than a minute ago, "
        "so it cancels nothing: run `git fetch`, or use `reconciler apply --allow-older`."
    )


@pytest.mark.parametrize("relation", Relation)
def test_cancels_are_withheld_when_checkout_is_not_known_to_be_current(relation: Relation) -> None:
    reason = withheld_reason(relation, C)
    assert (reason is None) == (relation in IN_ORDER)
    said = reason_text(reason) if reason else "withheld: ccccccc"
    assert said.startswith("withheld: ")
    assert "ccccccc" in said


def test_words_of_relations_and_effects_stay_same() -> None:
    """Readers of `plan --format json` rely on them."""
    assert [*Relation] == ["none", "same", "newer", "older", "diverged", "unknown"]
    assert [*Effect] == ["apply", "withhold", "refuse"]


def test_checkout_without_recorded_ancestors_is_older_or_diverged_when_it_has_commit() -> None:
    far = AppliedTree(C, TIME, "a test")
    assert relation_of(far, Clone(A, LINE, (C,))) is Relation.OLDER
    assert relation_of(far, Clone(D, {**LINE, D: (B,)}, (C, D))) is Relation.DIVERGED


def test_record_is_limited_to_thousand_ancestors_and_two_hundred_characters_of_writer() -> None:
    assert MOST_ANCESTORS == 1000
    assert MAX_BYTES == 100_000
    stored = json.loads(tree_json(AppliedTree(C, TIME, "x" * 300)))
    assert stored["who"] == "x" * 200


def test_refusal_of_record_names_size_or_format_version() -> None:
    longest = STORED.encode() + b" " * (MAX_BYTES - len(STORED.encode()))
    assert tree_of(longest) == TREE
    with pytest.raises(ValueError, match=r"it has 100,001 bytes, and the longest record has 100,000"):
        tree_of(longest + b" ")
    with pytest.raises(ValueError, match="it has format version 2, not 1"):
        tree_of(STORED.replace('"formatVersion": 1', '"formatVersion": 2').encode())
    with pytest.raises(ValueError, match="it has format version None, not 1"):
        tree_of(b"[]")


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(3599, "59 minutes"), (3600, "1 hour"), (86_399, "23 hours"), (86_400, "1 day")],
)
def test_message_changes_its_unit_at_full_hour_and_full_day(seconds: int, said: str) -> None:
    finding = finding_of(Relation.OLDER, Effect.REFUSE, TREE, TIME + timedelta(seconds=seconds), "")
    assert f"applied {said} ago" in tree_message(finding)


def test_finding_without_record_has_no_message() -> None:
    found = finding_of(Relation.NONE, Effect.APPLY, None, TIME, "")
    assert (found.relation, found.effect) == (Relation.NONE, Effect.APPLY)
    assert (found.commit, found.time, found.age, found.remedy) == ("", None, 0.0, "")
    assert tree_message(found) == tree_hint(found) == tree_note(found) == ""


def test_finding_of_same_commit_has_commit_and_time() -> None:
    found = finding_of(Relation.SAME, Effect.APPLY, TREE, TIME, "")
    assert (found.commit, found.time, tree_line(found)) == (C, TIME, "")
