"""Values of the ports: credentials, the bounds of at-most-once, and answers to a create."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from msgspec.structs import fields
from rich.pretty import pretty_repr

from reconciler.model.ports import (
    EMBEDDED_BOUNDS,
    GOOGLE_BOUNDS,
    NO_CURRENT,
    NO_METRICS,
    Bounds,
    Credential,
    HostedRepository,
    Place,
    Ports,
    Refused,
    Taken,
    Unknown,
    refusal,
)

PAGE = (Path(__file__).parents[2] / "docs" / "at-most-once.md").read_text("utf-8")
CREATES_A_MINUTE = 60


def test_printed_credential_shows_no_token() -> None:
    credential = Credential({"Authorization": "Bearer secret"}, datetime(2026, 1, 1, tzinfo=UTC))
    assert f"{credential}" == repr(credential) == "Credential(expires=2026-01-01 00:00:00+00:00)"
    # The form that rich shows in a traceback
    moment = "datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)"
    assert pretty_repr(credential, max_width=200) == f"Credential(expires={moment})"


def test_least_history_equals_documented_size() -> None:
    (least,) = re.findall(r"a repository with (\d+) claims and runs or more", PAGE)
    assert {field.name: field.default for field in fields(Ports)}["least_history"] == int(least)


def test_google_bounds_equal_documented_bounds() -> None:
    executes, visible = re.findall(r"within \*\*(\d+) minutes\*\*", PAGE)
    assert "ends at a known time, five minutes later" in PAGE
    assert (
        Bounds(
            executes=timedelta(minutes=int(executes)),
            visible=timedelta(minutes=int(visible)),
            look_again=5.0,
            lifetime=timedelta(minutes=5),
            pace=60 / CREATES_A_MINUTE,
        )
        == GOOGLE_BOUNDS
    )


def test_embedded_service_bounds_equal_documented_bounds() -> None:
    (executes,) = re.findall(r"embedded service the bounds are (\d+) seconds and none", PAGE)
    assert (
        Bounds(
            executes=timedelta(seconds=int(executes)),
            visible=timedelta(0),
            look_again=0.1,
            lifetime=timedelta(seconds=10),
            pace=0.0,
        )
        == EMBEDDED_BOUNDS
    )


# --- answers to a create ----------------------------------------------------------------------------------

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
def test_answer_is_refusal_when_status_and_reason_are_definite(status: int, reason: str) -> None:
    assert refusal(status, reason, "no", 3.0) == Refused(status, reason, "no", 3.0)


@pytest.mark.parametrize(("status", "reason"), DOUBTFUL)
def test_answer_is_unknown_when_status_or_reason_is_doubtful(status: int, reason: str) -> None:
    assert refusal(status, reason, "hm", 3.0) == Unknown("hm")


def test_answer_is_taken_when_name_already_exists() -> None:
    assert refusal(409, "ALREADY_EXISTS", "there is one") == Taken("there is one")


def test_refusal_has_no_retry_after_by_default() -> None:
    refused = refusal(403, "PERMISSION_DENIED", "no")
    assert isinstance(refused, Refused)
    assert refused.retry_after is None
    assert Refused(403, "PERMISSION_DENIED", "no").retry_after is None


def test_repository_is_same_by_server_and_number_alone() -> None:
    one = HostedRepository("https://github.com", "7", "acme/jobs")
    assert one.is_same(HostedRepository("https://github.com", "7"))
    assert not one.is_same(HostedRepository("https://github.com", "8", "acme/jobs"))
    assert not one.is_same(HostedRepository("https://git.acme.test", "7", "acme/jobs"))


def test_objects_that_are_missing_have_generation_0() -> None:
    assert (NO_METRICS.run, NO_METRICS.generation) == (None, 0)
    assert (NO_CURRENT.current, NO_CURRENT.generation) == (None, 0)


def test_place_has_no_instance_and_repository_no_name_by_default() -> None:
    assert Place("acme", "acme-ml", "here").instance == ""
    assert HostedRepository("https://github.com", "7").name == ""
