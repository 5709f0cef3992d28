"""The stored form of a commit's record: later versions must read records of this version."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from msgspec import Struct, convert
from msgspec.structs import replace

from reconciler.model.commit_record import CommitRecord, WantedJob, record_json, record_of
from reconciler.model.expectation import Expectation
from reconciler.model.manifest import Publish

SINCE = datetime(2026, 11, 21, 13, 6, 11, tzinfo=UTC)
RECORD = CommitRecord(
    sha="a" * 40,
    since=SINCE,
    number=3,
    jobs={"tags": WantedJob(("m" * 52,)), "ranker": WantedJob(("k" * 52, "l" * 52), settled=True)},
    whole=False,
    superseded_by="b" * 40,
    closed=True,
    told="d" * 16,
    seen=SINCE + timedelta(hours=1),
    applied=("c" * 40, "e" * 40),
)
STORED = (
    '{"formatVersion": 1, "sha": "' + "a" * 40 + '", "since": "2026-11-21T13:06:11+00:00", "number": 3, '
    '"jobs": {"ranker": {"keys": ["' + "k" * 52 + '", "' + "l" * 52 + '"], "settled": true}, '
    '"tags": {"keys": ["' + "m" * 52 + '"], "settled": false}}, "whole": false, '
    '"supersededBy": "' + "b" * 40 + '", "closed": true, "told": "' + "d" * 16 + '", '
    '"seen": "2026-11-21T14:06:11+00:00", "applied": ["' + "c" * 40 + '", "' + "e" * 40 + '"]}'
)
LEAST = CommitRecord("a" * 40, SINCE)


def test_stored_form_of_commit_record_stays_same() -> None:
    assert json.dumps(record_json(RECORD)) == STORED
    assert record_of(json.loads(STORED)) == RECORD


def test_record_with_only_commit_and_time_has_empty_fields() -> None:
    stored = record_json(LEAST)
    assert stored == {
        "formatVersion": 1,
        "sha": "a" * 40,
        "since": "2026-11-21T13:06:11+00:00",
        "number": 0,
        "jobs": {},
        "whole": True,
        "supersededBy": "",
        "closed": False,
        "told": "",
        "seen": None,
        "applied": [],
    }
    assert record_of(json.loads(json.dumps(stored))) == LEAST


EXPECTING = replace(
    LEAST,
    jobs={
        "ranker": WantedJob(
            ("k" * 52,), expect=(Expectation("accuracy", 0.1 + 0.2), Expectation("loss", max=2.0))
        ),
        "tags": WantedJob(("m" * 52,), expect=(Expectation("a\x1b\n", -1.0, 1.0),)),
    },
)


def test_stored_form_of_what_jobs_expect_stays_same() -> None:
    stored = json.loads(json.dumps(record_json(EXPECTING)))
    assert stored["jobs"] == {
        "ranker": {
            "keys": ["k" * 52],
            "settled": False,
            "expect": [["accuracy", 0.30000000000000004, None], ["loss", None, 2.0]],
        },
        "tags": {"keys": ["m" * 52], "settled": False, "expect": [["a\x1b\n", -1.0, 1.0]]},
    }
    assert record_of(stored) == EXPECTING


def test_stored_form_of_a_comparison_is_read_by_earlier_versions_too() -> None:
    worse = Expectation("accuracy", 0.9, None, 0.01, "max")
    record = replace(LEAST, jobs={"ranker": WantedJob(("k" * 52,), expect=(worse,))})
    stored = json.loads(json.dumps(record_json(record)))
    assert stored["jobs"]["ranker"]["expect"] == [["accuracy", 0.9, None, 0.01, "max"]]
    assert record_of(stored) == record
    earlier = convert(stored["jobs"]["ranker"]["expect"], list[_BoundsAlone])
    assert earlier == [_BoundsAlone("accuracy", 0.9, None)]


class _BoundsAlone(Struct, frozen=True, array_like=True):
    """`Expectation` as versions before `worse` have it."""

    metric: str
    min: float | None = None
    max: float | None = None


def test_stored_form_of_passed_over_commit_stays_same() -> None:
    jobs = {"ranker": WantedJob(("k",), brought=False), "tags": WantedJob(("m",), replaced_by="b" * 40)}
    record = replace(LEAST, jobs=jobs, problem="invalid", told_apart=True, replaced_by="c" * 40)
    stored = json.loads(json.dumps(record_json(record)))
    assert stored["jobs"] == {
        "ranker": {"keys": ["k"], "settled": False, "brought": False},
        "tags": {"keys": ["m"], "settled": False, "replacedBy": "b" * 40},
    }
    assert (stored["problem"], stored["toldApart"], stored["replacedBy"]) == ("invalid", True, "c" * 40)
    assert record_of(stored) == record


@pytest.mark.parametrize(
    ("whole", "told_apart", "expected"),
    [(True, False, True), (False, True, True), (True, True, True), (False, False, False)],
)
def test_commit_has_verdict_if_all_jobs_that_it_brought_are_known(
    whole: bool, told_apart: bool, expected: bool
) -> None:
    assert replace(LEAST, whole=whole, told_apart=told_apart).has_verdict is expected


def test_record_without_expectations_is_read_as_of_jobs_that_expect_nothing() -> None:
    stored = json.loads(json.dumps(record_json(EXPECTING)))
    for job in stored["jobs"].values():
        del job["expect"]
    assert [job.expect for job in record_of(stored).jobs.values()] == [(), ()]


def test_stored_form_of_where_jobs_are_published_stays_same() -> None:
    publish = Publish("gs://models/census", "export")
    record = replace(LEAST, jobs={"tags": WantedJob(("m" * 52,), publish=publish)})
    stored = json.loads(json.dumps(record_json(record)))
    expected = {"keys": ["m" * 52], "settled": False, "publish": ["gs://models/census", "export"]}
    assert stored["jobs"] == {"tags": expected}
    assert record_of(stored) == record
    del stored["jobs"]["tags"]["publish"]
    assert record_of(stored).jobs["tags"].publish is None


@pytest.mark.parametrize("field", ["since", "seen"])
def test_times_are_converted_to_utc(field: str) -> None:
    elsewhere = SINCE.astimezone(timezone(timedelta(hours=2)))
    read = getattr(record_of(record_json(RECORD) | {field: elsewhere.isoformat()}), field)
    assert read == SINCE
    assert read.utcoffset() == timedelta(0)


@pytest.mark.parametrize("field", sorted(record_json(RECORD)))
def test_record_with_missing_field_is_refused(field: str) -> None:
    stored = json.loads(STORED)
    del stored[field]
    with pytest.raises(ValueError, match=f"a field is missing or wrong: '{field}'"):
        record_of(stored)


@pytest.mark.parametrize("version", [0, 2, "1"])
def test_record_of_other_version_is_refused_with_its_version(version: Any) -> None:
    with pytest.raises(ValueError, match=f"^it has format version {version!r}, not 1$"):
        record_of(json.loads(STORED) | {"formatVersion": version})


@pytest.mark.parametrize(
    "wrong",
    [
        {"since": None},
        {"since": 5},
        {"seen": 5},
        {"jobs": []},
        {"jobs": {"tags": "m"}},
        {"jobs": {"tags": {"keys": ["m"], "expect": [["accuracy", "0.9"]]}}},
        {"jobs": {"tags": {"keys": ["m"], "expect": [[]]}}},
        {"jobs": {"tags": {"keys": ["m"], "publish": "gs://models/tags"}}},
        {"jobs": {"tags": {"keys": ["m"], "publish": ["gs://models/tags", 7]}}},
        {"number": "3"},
        {"applied": None},
    ],
    ids=str,
)
def test_record_with_wrong_value_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"^a field is missing or wrong: "):
        record_of(json.loads(STORED) | wrong)


@pytest.mark.parametrize(
    ("time", "why"),
    [("yesterday", "isoformat"), ("2026-11-21T13:06:11", "no zone"), ("9999-01-01T00:00Z", "range")],
)
def test_record_with_unusable_time_is_refused(time: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        record_of(json.loads(STORED) | {"seen": time})


@pytest.mark.parametrize("said", [None, [], "", 7], ids=repr)
def test_json_that_is_not_object_is_refused(said: Any) -> None:
    with pytest.raises(ValueError, match="a field is missing or wrong"):
        record_of(said)
