"""What a claim's JSON can hold: its words and digests, the longest texts, the earliest and latest times."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.model.claim import Claim, ClaimId, ClaimState, claim_json, claim_of, rerun_digest

REJECTED = {
    "format_version": 1,
    "key": "k",
    "attempt": 1,
    "state": "rejected",
    "job_name": "n",
    "base_name": "b",
    "api_version": "v",
    "kind": "k",
    "on_delete": "keep",
}


def claim(**fields: Any) -> Claim:
    return Claim(ClaimId("k"), ClaimState.REJECTED, "n", "b", "v", "k", **fields)


def test_the_words_for_the_states_never_change() -> None:
    assert [str(state) for state in ClaimState] == ["pending", "bound", "rejected", "held"]


def test_a_claim_is_written_as_ever() -> None:
    assert claim_json(claim()) == REJECTED


def test_the_digest_of_rerun_never_changes() -> None:
    """A claim keeps it: another way to compute it would tell of a change that nobody made."""
    assert rerun_digest("2") == "d4735e3a265e16ee"


@pytest.mark.parametrize(("field", "size"), [("path", 2500), ("error", 2000), ("owner", 400)])
def test_a_text_is_cut_at_its_bytes_and_not_before(field: str, size: int) -> None:
    for letter, width in (("a", 1), ("é", 2), ('"', 2), ("\0", 6)):
        most = size // width
        assert getattr(claim(**{field: letter * most}), field) == letter * most
        assert getattr(claim(**{field: letter * (most + 1)}), field) == letter * most


@pytest.mark.parametrize(("year", "known"), [(1900, False), (1901, True), (8999, True), (9000, False)])
def test_a_time_is_of_our_days(year: int, known: bool) -> None:
    said = {**REJECTED, "not_before": f"{year}-06-01T00:00:00Z"}
    if known:
        assert claim_json(claim_of(said)) == said
    else:
        with pytest.raises(ValueError, match="is out of range"):
            claim_of(said)


def test_a_number_may_be_none_and_every_try_is_a_text() -> None:
    assert claim_of({**REJECTED, "refusals": 0}) == claim()
    with pytest.raises(ValueError, match='"tries"'):
        claim_of({**REJECTED, "tries": ["t", 7]})
