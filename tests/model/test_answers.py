"""Which answers to a create say for certain that there is no job."""

from __future__ import annotations

import pytest

from reconciler.model.ports import Refused, Taken, Unknown, refusal

pytestmark = pytest.mark.fault(3)

DEFINITE = [
    (400, "INVALID_ARGUMENT"),
    (400, "FAILED_PRECONDITION"),
    (400, "OUT_OF_RANGE"),
    (401, "UNAUTHENTICATED"),
    (403, "PERMISSION_DENIED"),
    (404, "NOT_FOUND"),
    (412, "FAILED_PRECONDITION"),
    (413, "INVALID_ARGUMENT"),
    (429, "RESOURCE_EXHAUSTED"),
]
DOUBTFUL = [
    (400, ""),  # a proxy's page
    (403, ""),
    (404, ""),
    (429, ""),
    (400, "ABORTED"),
    (403, "Forbidden"),
    (408, "DEADLINE_EXCEEDED"),
    (408, "INVALID_ARGUMENT"),
    (409, "ABORTED"),
    (409, ""),
    (499, "CANCELLED"),
    (500, "INTERNAL"),
    (500, "INVALID_ARGUMENT"),
    (502, ""),
    (503, "UNAVAILABLE"),
    (504, "DEADLINE_EXCEEDED"),
    (200, "PERMISSION_DENIED"),
    (302, ""),
    (400, "ALREADY_EXISTS"),
]


@pytest.mark.parametrize(("status", "reason"), DEFINITE)
def test_a_refusal_is_one_by_status_and_word(status: int, reason: str) -> None:
    assert refusal(status, reason, "no", 3.0) == Refused(status, reason, "no", 3.0)


@pytest.mark.parametrize(("status", "reason"), DOUBTFUL)
def test_everything_else_leaves_it_open(status: int, reason: str) -> None:
    assert refusal(status, reason, "hm", 3.0) == Unknown("hm")


def test_a_taken_name_is_an_answer_of_its_own() -> None:
    assert refusal(409, "ALREADY_EXISTS", "there is one") == Taken("there is one")
