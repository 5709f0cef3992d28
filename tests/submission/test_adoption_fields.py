"""Every field that a request may decide counts when a found job is compared with it, on either side."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.model.diff import FieldChange, is_spelling
from reconciler.model.job import COMMIT, KEY, State
from reconciler.submission.adoption import differences
from tests.support.planning import run_of, wanted

FIELDS = [
    "displayName",
    "jobId",
    "encryptionSpec",
    "jobSpec",
    "maxFailedTrialCount",
    "maxTrialCount",
    "parallelTrialCount",
    "studySpec",
    "trainingInput",
    "trialJobSpec",
]


def pointers(body: dict[str, Any], resource: dict[str, Any]) -> list[str]:
    job = run_of(wanted(), State.RUNNING, body=resource)
    return [change.pointer for change in differences(body, job)]


@pytest.mark.parametrize("field", FIELDS)
def test_a_field_that_only_the_found_job_has_is_a_difference(field: str) -> None:
    assert pointers({}, {field: "set"}) == [f"/{field}"]
    assert pointers({field: "set"}, {}) == [f"/{field}"]
    assert pointers({field: "set"}, {field: "set"}) == []


def test_a_field_that_only_a_request_can_have_is_a_difference_too() -> None:
    assert pointers({"newField": "set"}, {}) == ["/newField"]
    assert pointers({}, {"newField": "set"}) == []


def test_of_the_labels_only_those_count_that_say_which_job_it_is() -> None:
    assert pointers({"labels": {COMMIT: "1", KEY: "k"}}, {"labels": {COMMIT: "2", KEY: "k"}}) == []
    assert pointers({"labels": {KEY: "k"}}, {"labels": {KEY: "l"}}) == [f"/labels/{KEY}"]


@pytest.mark.parametrize(
    ("asked", "there"),
    [({"replicaCount": 2}, {"replicaCount": "2"}), ({"args": []}, {}), ({}, {"args": []})],
    ids=["another spelling", "left out", "filled in"],
)
def test_what_a_service_writes_in_its_own_way_is_no_difference(asked: object, there: object) -> None:
    assert pointers({"jobSpec": asked}, {"jobSpec": there}) == []


@pytest.mark.parametrize(
    ("before", "after", "one"),
    [
        (3600, "3600s", True),
        ("3600s", "3600.0s", True),
        (2**70, 2**71, False),
        ("٣s", "3s", False),
        ("soon", "soon", False),
    ],
)
def test_a_duration_has_several_spellings(before: object, after: object, one: bool) -> None:
    assert is_spelling(FieldChange("/timeout", before, after)) is one
    assert is_spelling(FieldChange("/timeout", after, before)) is one
