"""Claims as JSON: no loss, and unreadable claims are never taken for missing."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields

from reconciler.model.claim import (
    BY_COMMAND,
    Claim,
    ClaimId,
    ClaimState,
    by_apply,
    claim_json,
    claim_of,
    rerun_digest,
    time_of,
)
from reconciler.model.job import State

TIMES = st.datetimes(datetime(2020, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAME = TEXT.filter(bool)
CLAIMS = st.builds(
    Claim,
    id=st.builds(ClaimId, st.text("abcz234567", min_size=52, max_size=52), st.integers(1, 99)),
    state=st.sampled_from(ClaimState),
    job_name=NAME,
    base_name=NAME,
    api_version=NAME,
    kind=NAME,
    path=TEXT,
    on_delete=st.sampled_from(["keep", "cancel"]),
    commit=TEXT,
    request_ids=st.lists(TEXT, min_size=1, max_size=5).map(tuple),
    credential_expiry=TIMES,
    resource=st.text("abc/", min_size=1),
    ended=st.none() | st.sampled_from(State),
    gone=st.booleans(),
    labels=TEXT,
    error=TEXT,
    not_before=st.none() | TIMES,
    refusals=st.integers(0, 99),
    given_up=st.booleans(),
    owner=TEXT,
)
PENDING = {
    "format_version": 1,
    "key": "k",
    "attempt": 1,
    "state": "pending",
    "job_name": "n",
    "base_name": "b",
    "api_version": "v",
    "kind": "k",
    "tries": ["t"],
    "fence": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("key", [7, "", []]),
        ("attempt", ["1", True, 1.0, 0, -1, 10**9]),
        ("state", [["pending"], {}]),
        *((name, [7, "", [], {}]) for name in ("job_name", "base_name", "api_version", "kind")),
        *(
            (name, [7, [], {}])
            for name in ("path", "commit", "resource", "rerun", "labels", "error", "owner")
        ),
        ("odd", [7]),
        ("on_delete", ["delete", 7, ["keep"]]),
        ("tries", ["t", 7, [7], {"t": 1}]),
        ("fence", [7, "", None, ["2026-01-01T00:00:00Z"]]),
        ("not_before", [7, None, {}]),
        ("ended", [7, [], "", None]),
        ("gone", [1, "true"]),
        ("given_up", [1, "true"]),
        ("refusals", ["x", -1, True, 1.5, 10**9]),
        ("unanswered", ["x", -1, True]),
    ],
)
def test_claim_with_field_of_wrong_type_is_refused(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f'"{field}"'):
            claim_of({**PENDING, field: value})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda part: st.lists(part, max_size=2) | st.dictionaries(st.text(max_size=3), part, max_size=2),
    max_leaves=4,
)


@given(st.dictionaries(st.sampled_from([field.name for field in fields(Claim)] + ["key", "attempt"]), JSON))
def test_any_json_is_refused_or_read_as_stable_claim(change: dict[str, Any]) -> None:
    try:
        claim = claim_of({**PENDING, **change})
    except ValueError:
        return
    assert claim_of(claim_json(claim)) == claim


LONG = st.text(st.sampled_from('a/é📊\0\\"\udc80'), min_size=1).map(lambda text: (text * 5000)[:5000])


@given(LONG, LONG, LONG)
def test_longest_claim_fits_into_object_metadata(path: str, error: str, owner: str) -> None:
    """8 KiB for all entries of an object: https://cloud.google.com/storage/quotas."""
    time = datetime(2026, 11, 21, 13, 6, 11, 123456, tzinfo=UTC)
    claim = Claim(
        id=ClaimId("k" * 52, 10**9 - 1),
        state=ClaimState.REJECTED,
        job_name="n" * 128,
        base_name="b" * 100,
        api_version="aiplatform.googleapis.com/v1",
        kind="HyperparameterTuningJob",
        path=path,
        on_delete="cancel",
        commit="c" * 64,
        request_ids=("t" * 26,) * 20,
        credential_expiry=time,
        resource=f"projects/{'p' * 30}/locations/{'l' * 30}/hyperparameterTuningJobs/{'9' * 20}",
        ended=State.SUCCEEDED,
        gone=True,
        rerun="r" * 16,
        labels="l" * 16,
        odd=f"projects/{'p' * 30}/locations/{'l' * 30}/hyperparameterTuningJobs/{'9' * 20}",
        error=error,
        not_before=time,
        refusals=10**9 - 1,
        unanswered=10**9 - 1,
        given_up=True,
        owner=owner,
    )
    compact = json.dumps(claim_json(claim), ensure_ascii=False, separators=(",", ":"))
    assert len("claim") + len(compact.encode("utf-8", "backslashreplace")) < 8192
    assert claim_of(json.loads(compact)) == claim
    assert all(
        said.startswith(kept) and len(kept) >= 66
        for said, kept in ((path, claim.path), (error, claim.error), (owner, claim.owner))
    )


@given(CLAIMS)
def test_claim_survives_round_trip_through_json(claim: Claim) -> None:
    assert claim_of(json.loads(json.dumps(claim_json(claim)))) == claim


def test_claim_json_omits_empty_fields() -> None:
    assert claim_json(claim_of(PENDING)) == {**PENDING, "on_delete": "keep"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-01T02:00:00+02:00", datetime(2026, 1, 1, tzinfo=UTC)),
        ("2026-01-01T00:00:00", None),
        ("soon", None),
        ("9999-12-31T23:59:59-23:00", None),
        ("0001-01-01T00:00:00+23:00", None),
    ],
)
def test_time_is_none_when_it_has_no_zone_or_cannot_be_read(text: str, expected: datetime | None) -> None:
    assert time_of(text) == expected


def test_times_are_written_in_utc() -> None:
    east = datetime(2026, 1, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    claim = Claim(
        ClaimId("k"), ClaimState.REJECTED, "n", "b", "v", "k", credential_expiry=east, not_before=east
    )
    said = claim_json(claim)
    assert said["fence"] == said["not_before"] == "2026-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"format_version": 2}, "it has format version 2, not 1"),
        ({"format_version": None}, "it has format version None, not 1"),
        ({"key": None}, "a field is missing or unknown: 'key'"),
        ({"attempt": None}, "a field is missing or unknown: 'attempt'"),
        ({"state": None}, "a field is missing or unknown: 'state'"),
        ({"job_name": None}, "a field is missing or unknown"),
        ({"later": 1}, "a field is missing or unknown: 'later'"),
        ({"la\nter": 1}, "a field is missing or unknown: 'la\\nter'"),
        ({"state": "lost"}, "'lost' is not a valid ClaimState"),
        ({"ended": "EXPLODED"}, "'EXPLODED' is not a valid State"),
        ({"fence": "soon"}, "Invalid isoformat string: 'soon'"),
        ({"fence": "2026-01-01T00:00:00"}, "the time '2026-01-01T00:00:00' has no zone"),
        ({"fence": "9999-12-31T23:59:59-23:00"}, "the time '9999-12-31T23:59:59-23:00' is out of range"),
        ({"not_before": "9000-01-01T00:00:00Z"}, "the time '9000-01-01T00:00:00+00:00' is out of range"),
        ({"fence": "0001-01-01T00:00:00+23:00"}, "the time '0001-01-01T00:00:00+23:00' is out of range"),
        ({"fence": None}, "it is pending and names no request"),
        ({"tries": None}, "it is pending and names no request"),
        ({"state": "bound"}, "it is bound and names no job"),
    ],
)
def test_invalid_claim_is_refused_with_reason(change: dict[str, Any], said: str) -> None:
    document = {name: value for name, value in {**PENDING, **change}.items() if value is not None}
    with pytest.raises(ValueError, match="^" + re.escape(said)):
        claim_of(document)


@pytest.mark.parametrize(
    ("state", "ended", "reason", "stopped"),
    [
        (ClaimState.BOUND, State.CANCELLED, by_apply("superseded"), True),
        (ClaimState.BOUND, State.CANCELLED, "cancelled: superseded", False),
        (ClaimState.BOUND, State.CANCELLED, BY_COMMAND, False),
        (ClaimState.BOUND, State.SUCCEEDED, by_apply("superseded"), False),
        (ClaimState.BOUND, State.FAILED, by_apply("superseded"), False),
        (ClaimState.BOUND, None, by_apply("superseded"), False),
        (ClaimState.REJECTED, None, by_apply("said by the service"), False),
    ],
)
def test_claim_is_stopped_once_its_job_was_cancelled_for_a_reason_of_this_version(
    state: ClaimState, ended: State | None, reason: str, stopped: bool
) -> None:
    claim = Claim(ClaimId("k"), state, "n", "b", "v", "k", resource="r", ended=ended, error=reason)
    assert claim.is_stopped is stopped
    assert claim.may_be_followed is (stopped or ended is State.FAILED)


@pytest.mark.parametrize("state", [s for s in ClaimState if s is not ClaimState.BOUND])
def test_attempt_whose_claim_is_not_bound_may_not_be_followed(state: ClaimState) -> None:
    """Such a claim names no end. If one does all the same, one of its requests may still make a job."""
    claim = Claim(ClaimId("k"), state, "n", "b", "v", "k", resource="r", ended=State.FAILED)
    assert not claim.may_be_followed


def test_recorded_reason_of_cancel_by_apply_never_changes() -> None:
    """Claims have it: with another, content that an earlier version stopped would never come back."""
    assert by_apply("superseded") == "cancelled by apply: superseded"


# --- limits -----------------------------------------------------------------------------------------------

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


def make_claim(**fields: Any) -> Claim:
    return Claim(ClaimId("k"), ClaimState.REJECTED, "n", "b", "v", "k", **fields)


def test_names_of_claim_states_never_change() -> None:
    assert [str(state) for state in ClaimState] == ["pending", "bound", "rejected", "held"]


def test_json_of_minimal_claim_never_changes() -> None:
    assert claim_json(make_claim()) == REJECTED


def test_rerun_digest_never_changes() -> None:
    """A claim stores it: another way to compute it would report a change that was never made."""
    assert rerun_digest("2") == "d4735e3a265e16ee"


@pytest.mark.parametrize(("field", "size"), [("path", 2500), ("error", 2000), ("owner", 400)])
def test_long_text_is_cut_at_its_limit_in_bytes(field: str, size: int) -> None:
    for letter, width in (("a", 1), ("é", 2), ('"', 2), ("\0", 6)):
        most = size // width
        assert getattr(make_claim(**{field: letter * most}), field) == letter * most
        assert getattr(make_claim(**{field: letter * (most + 1)}), field) == letter * most


@pytest.mark.parametrize(("year", "known"), [(1900, False), (1901, True), (8999, True), (9000, False)])
def test_time_is_refused_outside_1901_to_8999(year: int, known: bool) -> None:
    said = {**REJECTED, "not_before": f"{year}-06-01T00:00:00Z"}
    if known:
        assert claim_json(claim_of(said)) == said
    else:
        with pytest.raises(ValueError, match="is out of range"):
            claim_of(said)


def test_refusals_may_be_zero_and_every_try_must_be_text() -> None:
    assert claim_of({**REJECTED, "refusals": 0}) == make_claim()
    with pytest.raises(ValueError, match='"tries"'):
        claim_of({**REJECTED, "tries": ["t", 7]})
