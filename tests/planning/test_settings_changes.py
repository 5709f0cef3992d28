"""Differences of settings: each is reported, the most important first."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.output.wording.notes import setting_effect
from reconciler.planning.settings_changes import changed_settings


def make_settings(**of_environment: Any) -> dict[str, Any]:
    return {"source": "acme", "environments": {"prod": {"engine": "google", **of_environment}}}


def test_settings_are_compared_field_by_field() -> None:
    before = make_settings(project="a", limits={"submissions": 20, "cancels": 5}, defaults={"timeout": "1s"})
    after = make_settings(project="b", limits={"submissions": None, "cancels": 5}, defaults={"network": "n"})
    told = changed_settings(before, after, "prod")
    assert [(c.pointer, c.before, c.after) for c in told] == [
        ("/environments/prod/project", "a", "b"),
        ("/environments/prod/limits/submissions", 20, "no limit"),
        ("/environments/prod/defaults/network", None, "n"),
        ("/environments/prod/defaults/timeout", "1s", None),
    ]


def test_null_setting_differs_from_missing_setting() -> None:
    (told,) = changed_settings(make_settings(), make_settings(limits={"cancels": None}), "prod")
    assert (told.pointer, told.before, told.after) == ("/environments/prod/limits/cancels", None, "no limit")
    (told,) = changed_settings({"limits": {"cancels": None}}, {}, "prod")
    assert (told.pointer, told.before, told.after) == ("/limits/cancels", "no limit", None)


@pytest.mark.parametrize(
    ("before", "after"),
    [({"a": 1}, {"a": True}), ({"a": 0}, {"a": False}), ({}, {"a": {}}), ({"a": [1]}, {"a": [1, 2]})],
)
def test_changed_settings_list_every_difference(before: dict[str, Any], after: dict[str, Any]) -> None:
    for old, new in ((before, after), (after, before)):
        assert [c.pointer for c in changed_settings(old, new, "prod")] == ["/a"]


def test_changed_settings_are_sorted_by_importance() -> None:
    before = {"images": {"a/b": {"python": "3.11"}}}
    after = {
        "images": {"a/b": {"python": "3.12"}},
        "environments": {
            "other": {"engine": "google", "submitter": "x"},
            "prod": {
                "endpoints": {"ml": "https://x.test"},
                "claimsBucket": "b",
                "project": "p",
                "location": "l",
                "instance": "blue",
                "stagingBucket": "s",
                "defaults": {"serviceAccount": "a@b", "publish": "gs://models"},
                "outputs": "gs://runs",
                "images": {"c": {"python": "3.12"}},
            },
        },
        "github": {"apiUrl": "https://x.test"},
        "limits": {"acceleratorHours": 5},
        "source": "acme",
    }
    assert [(c.pointer, setting_effect(c.pointer)) for c in changed_settings(before, after, "prod")] == [
        ("/source", "which runs belong to this repository"),
        ("/environments/prod/project", "where jobs run"),
        ("/environments/prod/location", "where jobs run"),
        ("/environments/prod/instance", "which runs and claims belong to the environment"),
        ("/environments/prod/claimsBucket", "where claims are kept"),
        ("/environments/prod/stagingBucket", "where code is uploaded"),
        ("/limits/acceleratorHours", "the limits of each apply"),
        ("/github/apiUrl", "where results are posted"),
        ("/environments/prod/endpoints/ml", "which services replace Google's"),
        ("/environments/prod/defaults/publish", "where models are published"),
        ("/environments/prod/defaults/serviceAccount", "the settings of jobs"),
        ("/environments/prod/outputs", "the folders that runs write to"),
        ("/environments/other/engine", "where jobs run"),
        ("/environments/other/submitter", "which account submits jobs"),
        ("/environments/prod/images/c/python", ""),
        ("/images/a~1b/python", ""),
    ]


@pytest.mark.parametrize(
    "pointer", ["", "/environments", "/environments/source", "/images/source", "/x", "/x/source"]
)
def test_setting_without_known_effect_has_no_text(pointer: str) -> None:
    assert setting_effect(pointer) == ""


values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "a"]) | st.just([1]),
    lambda inner: st.dictionaries(st.sampled_from(["source", "environments", "a/b", "~", "limits"]), inner),
    max_leaves=6,
)

documents = st.dictionaries(st.sampled_from(["source", "environments", "limits", "x"]), values)


@given(documents)
def test_equal_settings_have_no_changes(document: dict[str, Any]) -> None:
    assert changed_settings(document, document, "a/b") == ()


@given(documents, documents)
def test_changed_settings_swap_values_when_sides_swap(before: dict[str, Any], after: dict[str, Any]) -> None:
    there, back = changed_settings(before, after, "prod"), changed_settings(after, before, "prod")
    assert [(c.pointer, c.before, c.after) for c in there] == [(c.pointer, c.after, c.before) for c in back]
    assert bool(there) == (json.dumps(before, sort_keys=True) != json.dumps(after, sort_keys=True))
