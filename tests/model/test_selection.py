"""Selection of jobs by name and label."""

from __future__ import annotations

import re

import pytest

from reconciler.model.selection import Selection, label_terms

LABELS = {"team": "risk", "stage": "dev", "empty": ""}


@pytest.mark.parametrize(
    ("text", "matches"),
    [
        ("team=risk", True),
        ("team==risk", True),
        ("team=fraud", False),
        ("team!=fraud", True),
        ("team!=risk", False),
        ("owner!=x", True),
        ("team", True),
        ("owner", False),
        ("!owner", True),
        ("!team", False),
        ("empty=", True),
        ("team=risk,stage=dev", True),
        ("team=risk, stage=prod", False),
    ],
)
def test_selection_matches_labels_as_kubectl_does(text: str, matches: bool) -> None:
    selection = Selection(terms=label_terms(text))
    assert selection
    assert selection.has_labels(LABELS) is matches


@pytest.mark.parametrize("text", ["", "=x", "a=b=c", "!a=b", "a in (b)", "a=b,", "a b"])
def test_malformed_selector_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="^" + re.escape(text.split(",")[-1]) + "$"):
        label_terms(text)


def test_selection_matches_base_names_in_any_spelling_and_job_names() -> None:
    selection = Selection(names=("census-income", "b_0123456789abcdef"))
    assert selection.has_name("census_income", "census_income_0123456789abcdef")
    assert selection.has_name("b", "b_0123456789abcdef")
    assert not selection.has_name("b", "b_1123456789abcdef")
    assert not Selection()
    assert Selection().has_name("any", "any_1")
