"""Values that the ports hand over: a credential, and the bounds that at-most-once rests on."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from msgspec.structs import fields
from rich.pretty import pretty_repr

from reconciler.model.ports import EMBEDDED_BOUNDS, GOOGLE_BOUNDS, Bounds, Credential, Ports

PAGE = (Path(__file__).parents[2] / "docs" / "at-most-once.md").read_text("utf-8")
CREATES_A_MINUTE = 60


def test_credential_that_is_printed_shows_no_token() -> None:
    credential = Credential({"Authorization": "Bearer secret"}, datetime(2026, 1, 1, tzinfo=UTC))
    assert f"{credential}" == repr(credential) == "Credential(expires=2026-01-01 00:00:00+00:00)"
    # As rich shows it in a traceback.
    moment = "datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)"
    assert pretty_repr(credential, max_width=200) == f"Credential(expires={moment})"


def test_a_summary_is_kept_from_the_documented_size_of_a_history_on() -> None:
    (least,) = re.findall(r"a repository with (\d+) claims and runs or more", PAGE)
    assert {field.name: field.default for field in fields(Ports)}["least_history"] == int(least)


def test_googles_bounds_are_those_of_the_documentation() -> None:
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


def test_embedded_services_bounds_are_those_of_the_documentation() -> None:
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
