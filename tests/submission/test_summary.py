"""The summary of ended runs: its content, the copies that count, and contradictions found by a full look."""

from __future__ import annotations

import gzip
import tracemalloc
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from reconciler.model.claim import Claim, ClaimId, ClaimState, by_apply
from reconciler.model.expectation import Measured, Missing, RunMetrics
from reconciler.model.job import KEY, ActualJob, ErrorInfo, State
from reconciler.model.naming import label_of
from reconciler.model.plan import DesiredJob
from reconciler.model.ports import Announcement, Place, StoredSummary, Versioned
from reconciler.submission import summary as summary_of_ended
from reconciler.submission.observe import Observed
from reconciler.submission.summary import (
    Kept,
    Preface,
    Summary,
    contradictions,
    encoded,
    is_spoiled,
    keys_in,
    may_go_on,
    read_preface,
    read_summary,
    settled_by_key,
    summarize,
    with_preface,
)
from tests.support.planning import bound_to, claim_on, run_of, wanted

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PREFACE = Preface(Place("acme", "acme-ml", "here"), genesis=3)
EMPTY = Summary(NOW, size=7, oldest="2025-12-01T00:00:00+00:00")
JOB = wanted("census")
KEY_OF_JOB = label_of(JOB.identity)
RUN = run_of(JOB, State.SUCCEEDED)
CLAIM = bound_to(JOB, RUN)


def make_observed(*claims: Claim, runs: tuple[ActualJob, ...] = ()) -> Observed:
    return Observed({claim.id: Versioned(claim, n) for n, claim in enumerate(claims, 1)}, runs)


def index_by_key(*jobs: DesiredJob) -> dict[str, DesiredJob]:
    return {label_of(job.identity): job for job in jobs}


def make_summary(
    claims: list[Claim],
    runs: list[ActualJob],
    *jobs: DesiredJob,
    also: tuple[str, ...] = (),
    before: Summary = EMPTY,
) -> Summary:
    return summarize(make_observed(*claims, runs=tuple(runs)), before, index_by_key(*jobs), also)


def list_kept_runs(summary: Summary) -> list[tuple[ClaimId, str]]:
    return [(each.versioned.claim.id, each.run.resource if each.run else "") for each in summary.kept]


def make_stored_summary(content: bytes, **fields: Any) -> StoredSummary:
    known = {"place": PREFACE.place, "generation": 1, "genesis": PREFACE.genesis, "now": NOW}
    return StoredSummary(content=content, **{**known, **fields})


def get_summary(stored: StoredSummary | None) -> Summary | None:
    preface, summary = read_summary(stored)
    assert preface or not summary
    return summary


def pack_parts(*parts: bytes) -> bytes:
    """Return the stored form of a preface, and of the lines of a summary."""
    return b"".join(gzip.compress(part, compresslevel=1) for part in parts)


FIRST = msgspec.json.encode(PREFACE) + b"\n"


def test_stored_summary_is_read_back_with_all_its_fields() -> None:
    summary = make_summary([CLAIM, claim_on(wanted("b"), ClaimState.PENDING)], [RUN], JOB)
    assert get_summary(make_stored_summary(encoded(PREFACE, summary))) == summary
    lines = gzip.decompress(encoded(PREFACE, summary)).splitlines()
    preface, facts, *kept = map(msgspec.json.decode, lines)
    assert (preface["format"], preface["place"]["location"], preface["genesis"]) == (4, "here", 3)
    assert (facts["bases"], len(facts["open"]), facts["kept"]) == (["census"], 1, [])
    assert [attempt["run"]["job_name"] for attempt in kept] == [RUN.job_name]


def test_summary_is_unusable_when_it_is_missing_or_cannot_be_decoded() -> None:
    whole = encoded(PREFACE, make_summary([CLAIM], [RUN], JOB))
    assert get_summary(make_stored_summary(whole))
    facts = msgspec.json.encode(EMPTY) + b"\n"
    assert get_summary(make_stored_summary(pack_parts(FIRST, facts))) == EMPTY
    nested = facts + b'{"more":' + b"[" * 100_000 + b"\n"
    broken = whole.replace(whole[-8:], b"\0" * 8)
    undeflatable = whole[:-40] + b"\xff" * 8 + whole[-32:]
    contents = [b"", b"{", b"forged by hand", whole[:-1], whole[: len(whole) // 2], broken, undeflatable]
    contents += map(pack_parts, [b"", b"{", FIRST, FIRST + facts, facts])
    contents += [pack_parts(b'{"place":{"more":' + b"[" * 100_000), pack_parts(FIRST)[:-1]]
    contents += [
        pack_parts(FIRST, rest) for rest in (b"", b"{", facts[:-1], facts + b"{}", facts + b"\n", nested)
    ]
    assert [get_summary(make_stored_summary(content)) for content in contents] == [None] * len(contents)
    assert read_summary(None) == (None, None)
    assert read_preface(None) is None


@pytest.mark.parametrize(
    ("rewritten", "is_read"), [((3,), True), ((2, 3), True), ((2, 4), False), ((), False)]
)
def test_summary_is_read_when_its_genesis_was_rewritten(rewritten: tuple[int, ...], is_read: bool) -> None:
    content = encoded(PREFACE, EMPTY)
    preface, summary = read_summary(make_stored_summary(content, genesis=9, rewritten=rewritten))
    assert (preface, summary) == ((replace(PREFACE, genesis=9), EMPTY) if is_read else (None, None))


@pytest.mark.parametrize(
    "field",
    [
        *({"format": 3}, {"format": 5}, {"genesis": 2}, {"genesis": -1}, {"genesis": 2**63}, {"added": 1}),
        {"announced": [{"by": "a", "at": "1800-01-01T00:00:00Z", "ids": []}]},
        {"announced": [{"by": "a", "at": "2026-01-01T00:00:00", "ids": []}]},
    ],
)
def test_object_is_unusable_when_its_preface_is_of_another_format_or_store(field: dict[str, Any]) -> None:
    preface, facts = msgspec.json.decode(FIRST), msgspec.json.encode(EMPTY) + b"\n"
    changed = make_stored_summary(pack_parts(msgspec.json.encode({**preface, **field}) + b"\n", facts))
    assert read_summary(changed) == (None, None)


@pytest.mark.fault(55)
@pytest.mark.parametrize("field", ["source", "project", "location", "instance"])
def test_object_is_unusable_when_it_is_of_other_claims(field: str) -> None:
    other = replace(PREFACE, place=replace(PREFACE.place, **{field: "other"}))
    assert read_summary(make_stored_summary(encoded(other, EMPTY))) == (None, None)


@pytest.mark.parametrize(
    "field",
    [
        {"taken": NOW.replace(tzinfo=None)},
        {"taken": NOW.replace(year=1800)},
        {"size": -1},
        {"size": 10**30},
        {"oldest": "x" * 1001},
        {"open": ["x" * 1001]},
        {"bases": ["x"] * 200_001},
        {"added": 1},
    ],
)
def test_summary_is_unusable_when_any_fact_is_out_of_bounds(field: dict[str, Any]) -> None:
    facts = msgspec.json.decode(msgspec.json.encode(EMPTY))
    content = pack_parts(FIRST, msgspec.json.encode({**facts, **field}) + b"\n")
    assert read_summary(make_stored_summary(content)) == (PREFACE, None)


@pytest.mark.slow
@pytest.mark.fault(55)
def test_summary_of_excessive_size_is_unusable_and_takes_little_memory() -> None:
    facts = msgspec.json.encode(EMPTY) + b"\n"
    huge = b'{"place":"' + b"x" * (200 * 2**20)
    contents = [pack_parts(huge), pack_parts(FIRST, huge), pack_parts(FIRST, facts + huge)]
    tracemalloc.start()
    for content in (*contents, FIRST * (16 * 2**20 // len(FIRST) + 1)):
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        assert get_summary(make_stored_summary(content)) is None
        assert tracemalloc.get_traced_memory()[1] - before < 100 * 2**20
    tracemalloc.stop()


SECOND_RUN = run_of(JOB, State.SUCCEEDED, 2, number=22)
TWO_COPIES = replace(
    EMPTY,
    kept=(Kept(Versioned(CLAIM, 1), RUN), Kept(Versioned(bound_to(JOB, SECOND_RUN, 2), 10), SECOND_RUN)),
)
FIRST_LINE, FACTS, *ATTEMPTS = gzip.decompress(encoded(PREFACE, TWO_COPIES)).splitlines()
LIMITS = {
    "_PACKED": len(encoded(PREFACE, TWO_COPIES)),
    "_FACTS": len(FACTS),
    "_ATTEMPTS": len(ATTEMPTS),
    "_UNPACKED": sum(len(attempt) + 1 for attempt in ATTEMPTS),
}


@pytest.mark.parametrize(("name", "limit"), [*LIMITS.items(), ("_LINE", max(map(len, ATTEMPTS)))])
def test_summary_is_read_up_to_its_limits(name: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    stored = make_stored_summary(encoded(PREFACE, TWO_COPIES))
    monkeypatch.setattr(f"reconciler.submission.summary.{name}", limit)
    assert get_summary(stored) == TWO_COPIES
    monkeypatch.setattr(f"reconciler.submission.summary.{name}", limit - 1)
    assert get_summary(stored) is None


def test_limits_of_the_stored_object_never_change() -> None:
    """Several versions share the object: what one of them can't read makes all of its looks full."""
    names = ("_PACKED", "_PREFACE", "_FACTS", "_UNPACKED")
    assert [getattr(summary_of_ended, name) // 2**20 for name in names] == [16, 8, 32, 64]
    assert all(getattr(summary_of_ended, name) % 2**20 == 0 for name in names)
    assert (summary_of_ended._LINE, summary_of_ended._ATTEMPTS, summary_of_ended._KEYS) == (
        262_144,
        50_000,
        200_000,
    )
    longest = replace(EMPTY, size=2**63 - 1, oldest="x" * 1000)
    assert get_summary(make_stored_summary(encoded(PREFACE, longest))) == longest


def test_preface_beyond_its_limit_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = make_stored_summary(encoded(PREFACE, TWO_COPIES))
    monkeypatch.setattr("reconciler.submission.summary._PREFACE", len(FIRST_LINE))
    assert read_summary(stored) == (None, None)


@pytest.mark.parametrize(("name", "limit"), LIMITS.items())
def test_summary_is_stored_up_to_its_limits(name: str, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = encoded(PREFACE, TWO_COPIES)
    monkeypatch.setattr(f"reconciler.submission.summary.{name}", limit)
    assert encoded(PREFACE, TWO_COPIES) == whole
    monkeypatch.setattr(f"reconciler.submission.summary.{name}", limit - 1)
    assert encoded(PREFACE, TWO_COPIES) == with_preface(b"", PREFACE)


@pytest.mark.parametrize("field", ["bases", "former", "open"])
def test_summary_is_stored_up_to_its_limit_of_keys(field: str, monkeypatch: pytest.MonkeyPatch) -> None:
    summary = replace(EMPTY, **{field: ("a", "b", "c")})
    monkeypatch.setattr("reconciler.submission.summary._KEYS", 3)
    assert get_summary(make_stored_summary(encoded(PREFACE, summary))) == summary
    monkeypatch.setattr("reconciler.submission.summary._KEYS", 2)
    assert encoded(PREFACE, summary) == with_preface(b"", PREFACE)


@pytest.mark.slow
def test_summary_beyond_the_limits_is_stored_without_its_second_part() -> None:
    for large in (
        replace(EMPTY, open=tuple(f"{n}" for n in range(200_001))),
        replace(EMPTY, kept=(Kept(Versioned(CLAIM, 1), RUN),) * 50_001),
    ):
        assert read_summary(make_stored_summary(encoded(PREFACE, large))) == (PREFACE, None)


def test_stored_form_is_the_same_at_any_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a preface alone would look spoiled a second later."""
    before = encoded(PREFACE, TWO_COPIES), encoded(PREFACE, None)
    monkeypatch.setattr("time.time", lambda: 2e9)
    assert (encoded(PREFACE, TWO_COPIES), encoded(PREFACE, None)) == before


def test_announcement_replaces_the_preface_and_leaves_the_summary() -> None:
    summary = make_summary([CLAIM], [RUN], JOB)
    announced = replace(PREFACE, announced=(Announcement("a", NOW, (ClaimId("key"),)),))
    for content, expected in ((encoded(PREFACE, summary), summary), (b"", None)):
        changed = make_stored_summary(with_preface(content, announced))
        assert read_summary(changed) == (announced, expected)
        assert is_spoiled(changed, announced) is bool(expected)


@pytest.mark.parametrize("spoiled", [b"\x1f\x8b cut", b"{"])
def test_spoiled_summary_leaves_its_announcements(spoiled: bytes) -> None:
    content = make_stored_summary(encoded(PREFACE, None) + spoiled)
    assert read_summary(content) == (PREFACE, None)
    assert is_spoiled(content, PREFACE)


def test_summary_is_unusable_when_it_is_newer_than_the_clock_of_the_store() -> None:
    assert get_summary(make_stored_summary(encoded(PREFACE, EMPTY), now=NOW)) == EMPTY
    assert (
        get_summary(make_stored_summary(encoded(PREFACE, EMPTY), now=NOW - timedelta(microseconds=1))) is None
    )


def test_ended_run_of_wanted_job_is_kept_beside_facts_of_last_full_look() -> None:
    summary = make_summary([CLAIM], [RUN], JOB)
    expected = replace(EMPTY, bases=("census",), kept=(Kept(Versioned(CLAIM, 1), RUN),))
    assert summary == expected


def test_bases_open_contents_and_copies_are_in_a_fixed_order() -> None:
    jobs = [wanted(name) for name in ("b-2", "c", "a", "f", "e", "h", "d", "g")]
    moving = [wanted(name) for name in ("m", "n", "o", "p")]
    runs = [run_of(job, State.FAILED, number=n) for n, job in enumerate(jobs, 1)]
    ended = [bound_to(job, run) for job, run in zip(jobs, runs, strict=True)]
    second_run = run_of(jobs[0], State.SUCCEEDED, 2, number=29)
    second = bound_to(jobs[0], second_run, attempt=2)
    pending = [claim_on(job, ClaimState.PENDING) for job in moving]
    summary = make_summary([second, *ended, *pending], [*runs, second_run], *jobs)
    assert summary.bases == ("a", "b_2", "c", "d", "e", "f", "g", "h")
    assert summary.open == tuple(sorted(label_of(job.identity) for job in moving))
    ids = [each.versioned.claim.id for each in summary.kept]
    assert ids == sorted(claim.id for claim in (second, *ended))


def test_base_names_without_manifest_are_former_until_full_look() -> None:
    gone = claim_on(wanted("b-2"), ClaimState.REJECTED)
    summary = make_summary([CLAIM, gone], [RUN], JOB)
    assert (summary.bases, summary.former) == (("census",), ("b_2",))
    removed = make_summary([], [], before=summary)
    assert (removed.bases, removed.former) == ((), ("b_2", "census"))
    full = make_summary([CLAIM, gone], [RUN], JOB)
    assert (full.bases, full.former) == (("census",), ("b_2",))


def test_history_of_other_contents_is_left_out_unless_a_look_needs_it() -> None:
    other = wanted("census-2")
    ended = run_of(other, State.SUCCEEDED, number=2)
    claims, runs = [CLAIM, bound_to(other, ended)], [RUN, ended]
    assert list_kept_runs(make_summary(claims, runs, JOB)) == [(CLAIM.id, RUN.resource)]
    also = make_summary(claims, runs, JOB, also=(label_of(other.identity),))
    assert set(list_kept_runs(also)) == {(CLAIM.id, RUN.resource), (claims[1].id, ended.resource)}


def test_newest_run_with_other_content_is_kept_for_each_desired_base_name() -> None:
    """A changed job is compared with it. The base name in a claim is written as in the manifest."""
    job, run = wanted("a-b"), run_of(wanted("a-b"), State.SUCCEEDED, number=9)
    older = [wanted("a-b", content) for content in ("x", "y", "z")]
    numbers = (2, 4, 3)
    runs = [run_of(each, State.FAILED, number=n) for each, n in zip(older, numbers, strict=True)]
    claims = [bound_to(each, old) for each, old in zip(older, runs, strict=True)]
    gone = bound_to(wanted("a-b", "gone"), run_of(job, State.RUNNING, number=8), gone=True)
    foreign = run_of(wanted("c"), State.FAILED, number=7)
    beside = bound_to(wanted("c"), foreign)
    for order in (claims, claims[::-1]):
        own = [bound_to(job, run), *order, gone, beside]
        summary = make_summary(own, [run, *runs, foreign], job)
        assert set(list_kept_runs(summary)) == {(own[0].id, run.resource), (claims[1].id, runs[1].resource)}


def test_contents_that_started_after_known_one_are_kept_and_those_before_it_are_not() -> None:
    names = ("long before", "before", "later", "never started", "newest")
    contents = [wanted("census", content) for content in names]
    starts = ("2025-12-31T00:00:00Z", "2026-01-01T00:00:00Z", "2026-01-01T02:00:00Z", "", "")
    runs = [
        replace(run_of(content, State.CANCELLED, number=n), start_time=start)
        for n, (content, start) in enumerate(zip(contents, starts, strict=True), 2)
    ]
    run = replace(RUN, start_time="2026-01-01T01:00:00Z")
    # Of a base name that no manifest has, nothing is needed.
    gone = replace(run_of(wanted("b"), State.FAILED, number=9), start_time="2026-01-01T03:00:00Z")
    claims = [bound_to(content, each) for content, each in zip(contents, runs, strict=True)]
    every = [CLAIM, *claims, bound_to(wanted("b"), gone)]
    summary = make_summary(every, [run, *runs, gone], JOB)
    assert {resource for _, resource in list_kept_runs(summary)} == {
        each.resource for each in (run, runs[2], runs[4])
    }


def test_run_that_has_not_started_has_written_before_no_other_one() -> None:
    queued = run_of(JOB, State.QUEUED, number=9)
    older = [wanted("census", content) for content in ("older", "newest")]
    runs = [run_of(job, State.SUCCEEDED, number=n, **_times(n)) for n, job in enumerate(older, 1)]
    claims = [bound_to(job, run) for job, run in zip(older, runs, strict=True)]
    summary = make_summary([bound_to(JOB, queued), *claims], [queued, *runs], JOB)
    assert list_kept_runs(summary) == [(claims[1].id, runs[1].resource)], "the predecessor alone"


def test_folder_of_run_is_kept_once_a_plan_has_read_it() -> None:
    observed = replace(make_observed(CLAIM, runs=(RUN,)), folders={RUN.resource: "gs://models/census"})
    known = summarize(observed, EMPTY, index_by_key(JOB))
    assert [kept.folder for kept in known.kept] == ["gs://models/census"]
    assert get_summary(make_stored_summary(encoded(PREFACE, known))) == known
    again = make_summary([CLAIM], [RUN], JOB, before=known)
    assert [kept.folder for kept in again.kept] == ["gs://models/census"]


NOT_THERE = Measured(missing=Missing.NO_FILE)


def test_recorded_metrics_of_run_are_kept_once_a_look_has_read_them() -> None:
    values = {
        "accuracy": Measured(0.1 + 0.2, None, ("metrics.json",), ("7",)),
        "": Measured(None, Missing.NO_FILE),
    }
    metrics = RunMetrics(CLAIM.job_name, RUN.resource, "gs://models/census", values)
    observed = replace(make_observed(CLAIM, runs=(RUN,)), metrics={RUN.resource: metrics})
    known = summarize(observed, EMPTY, index_by_key(JOB))
    assert [kept.metrics for kept in known.kept] == [metrics]
    assert get_summary(make_stored_summary(encoded(PREFACE, known))) == known
    again = make_summary([CLAIM], [RUN], JOB, before=known)
    assert [kept.metrics for kept in again.kept] == [metrics]
    dropped = make_summary([CLAIM], [], JOB, before=known)
    assert [(kept.run, kept.metrics) for kept in dropped.kept] == [(None, metrics)]
    more = replace(metrics, metrics={**values, "loss": Measured(1.0)})
    later = summarize(replace(observed, metrics={RUN.resource: more}), known, index_by_key(JOB))
    assert [kept.metrics for kept in later.kept] == [more]


def test_summary_of_earlier_version_has_no_metrics() -> None:
    known = make_summary([CLAIM], [RUN], JOB)
    first = with_preface(b"", PREFACE)
    lines = gzip.decompress(encoded(PREFACE, known)).removeprefix(gzip.decompress(first))
    assert b',"metrics":null' in lines
    earlier = first + gzip.compress(lines.replace(b',"metrics":null', b""))
    assert get_summary(make_stored_summary(earlier)) == known


def test_run_without_its_claim_is_open_if_it_has_a_key() -> None:
    labelled = run_of(wanted("a"), State.FAILED, number=2)
    bare = replace(run_of(wanted("b"), State.FAILED, number=3), labels={})
    assert make_summary([], [labelled, bare], JOB).open == (labelled.labels[KEY],)


def test_content_is_open_without_copies_while_any_attempt_may_change() -> None:
    second = claim_on(JOB, ClaimState.PENDING, 2)
    summary = make_summary([bound_to(JOB, replace(RUN, state=State.FAILED)), second], [RUN], JOB)
    assert (summary.open, summary.kept) == ((KEY_OF_JOB,), ())


def test_trial_with_the_labels_of_its_tuning_job_leaves_the_attempt_settled() -> None:
    trial = replace(RUN, kind="Trial", resource="trials/1", state=State.RUNNING)
    summary = make_summary([CLAIM], [trial, RUN], JOB)
    assert list_kept_runs(summary) == [(CLAIM.id, RUN.resource)]


def test_attempt_whose_run_the_service_dropped_is_settled_without_a_run() -> None:
    for claim in (CLAIM, bound_to(JOB, RUN, ended=None, gone=True)):
        assert make_summary([claim], [], JOB).kept == (Kept(Versioned(claim, 1), None),)


YOUNGER = run_of(JOB, State.SUCCEEDED, number=2)


@pytest.mark.parametrize(
    ("claim", "runs"),
    [
        pytest.param(claim_on(JOB, ClaimState.PENDING), [], id="pending"),
        pytest.param(claim_on(JOB, ClaimState.HELD, ended=State.FAILED), [], id="not bound"),
        pytest.param(replace(CLAIM, ended=None), [RUN], id="end not recorded"),
        pytest.param(replace(CLAIM, ended=State.FAILED), [RUN], id="another end recorded"),
        pytest.param(replace(CLAIM, gone=True), [RUN], id="gone and there"),
        pytest.param(CLAIM, [replace(RUN, state=State.RUNNING)], id="live"),
        pytest.param(CLAIM, [RUN, YOUNGER], id="a duplicate"),
        pytest.param(CLAIM, [run_of(JOB, State.SUCCEEDED, number=5, mark="unknown")], id="not made by it"),
        pytest.param(replace(CLAIM, path="old.yaml"), [RUN], id="moved"),
    ],
)
def test_attempt_is_not_settled_while_its_claim_or_runs_may_change(
    claim: Claim, runs: list[ActualJob]
) -> None:
    summary = make_summary([claim], runs, JOB)
    assert (summary.open, summary.kept) == ((KEY_OF_JOB,), ())


def make_summary_of_copies(*kept: Kept) -> Summary:
    return replace(EMPTY, kept=kept)


def make_copy(claim: Claim, run: ActualJob | None = None) -> Kept:
    return Kept(Versioned(claim, 1), run)


def test_copies_of_a_content_count_only_if_none_of_its_attempts_needs_an_update() -> None:
    failed = run_of(JOB, State.FAILED)
    first, second = make_copy(bound_to(JOB, failed), failed), run_of(JOB, State.SUCCEEDED, 2, number=2)
    other = wanted("other")
    beside = make_copy(bound_to(other, run_of(other, State.FAILED, number=3)))
    right = make_copy(bound_to(JOB, second, attempt=2), second)
    wrong = make_copy(bound_to(JOB, second, attempt=2, ended=None), second)
    key, key_of_other = KEY_OF_JOB, label_of(other.identity)
    found = settled_by_key(make_summary_of_copies(first, right, beside), index_by_key(JOB))
    assert found == {key: [first, right], key_of_other: [beside]}
    assert settled_by_key(make_summary_of_copies(first, wrong, beside), index_by_key(JOB)) == {
        key_of_other: [beside]
    }
    moved = replace(JOB, manifest=replace(JOB.manifest, path="moved.yaml"))
    assert settled_by_key(make_summary_of_copies(first, right, beside), index_by_key(moved)) == {
        key_of_other: [beside]
    }


@pytest.mark.parametrize(
    "run", [replace(RUN, state=State.RUNNING), replace(RUN, resource="jobs/9", labels={})]
)
def test_copy_with_a_run_that_is_live_or_not_of_its_claim_does_not_count(run: ActualJob) -> None:
    assert settled_by_key(make_summary_of_copies(make_copy(CLAIM, run)), index_by_key(JOB)) == {}


def test_further_attempt_may_be_due_only_after_failed_last_attempt() -> None:
    job = wanted("census", attempts=3)
    failed = [run_of(job, State.FAILED, n, number=n) for n in (1, 2, 3)]
    attempts = [make_copy(bound_to(job, run, n), run) for n, run in enumerate(failed, 1)]
    assert may_go_on(job, attempts[:2])
    assert not may_go_on(job, attempts)
    assert not may_go_on(job, attempts[::-1])
    ended = run_of(job, State.SUCCEEDED, 2, number=2)
    done = make_copy(bound_to(job, ended, 2), ended)
    assert not may_go_on(job, [attempts[0], done])
    assert not may_go_on(job, [done, attempts[0]])


def test_failed_set_up_uses_up_no_attempt() -> None:
    job = wanted("census", attempts=1)
    failed = run_of(job, State.FAILED)
    set_up = replace(failed, info=ErrorInfo("SET_UP", {"class": "set-up"}))
    for run in (failed, None):
        assert not may_go_on(job, [make_copy(bound_to(job, failed), run)])
    assert may_go_on(job, [make_copy(bound_to(job, set_up), set_up)])
    second = run_of(job, State.FAILED, 2, number=2)
    assert may_go_on(
        job, [make_copy(bound_to(job, set_up), set_up), make_copy(bound_to(job, second, 2), second)]
    )


@pytest.mark.parametrize(("stops", "expected"), [(1, True), (3, True), (4, False)])
def test_stopped_content_may_return_until_it_returned_three_times(stops: int, expected: bool) -> None:
    assert may_go_on(JOB, [make_stopped_copy(attempt) for attempt in range(1, stops + 1)]) is expected


def test_stops_use_up_no_attempt_of_content_that_failed_later() -> None:
    failed = run_of(JOB, State.FAILED, 2)
    after = make_copy(bound_to(JOB, failed, 2), failed)
    assert not may_go_on(JOB, [make_stopped_copy(1), after])
    assert may_go_on(wanted("census", attempts=2), [make_stopped_copy(1), after])


def make_stopped_copy(attempt: int) -> Kept:
    run = run_of(JOB, State.CANCELLED, attempt)
    return make_copy(bound_to(JOB, run, attempt, error=by_apply("superseded")), run)


WRONG = "the summary of ended runs was wrong (`reconciler apply --full` corrects it): "


def test_full_look_reports_no_contradiction_when_it_agrees_with_summary() -> None:
    unknown = bound_to(wanted("old"), run_of(wanted("old"), State.FAILED, number=4))
    dropped = bound_to(wanted("gone"), run_of(wanted("gone"), State.RUNNING, number=5), gone=True)
    open_ = claim_on(wanted("open"), ClaimState.PENDING)
    desired = wanted("new")
    summary = replace(make_summary_of_copies(make_copy(CLAIM, RUN), make_copy(dropped)), open=(open_.id.key,))
    seen = make_observed(CLAIM, unknown, dropped, open_, claim_on(desired, ClaimState.PENDING), runs=(RUN,))
    assert contradictions(summary, seen, index_by_key(desired)) == []
    # The service drops old runs: a missing run is no contradiction.
    assert contradictions(summary, replace(seen, runs=()), index_by_key(desired)) == []


@pytest.mark.parametrize(
    ("claim", "run", "said"),
    [
        (None, RUN, "has no claim any more"),
        (replace(CLAIM, ended=State.FAILED), RUN, "is FAILED, not SUCCEEDED"),
        (replace(CLAIM, ended=None), RUN, "is bound, not SUCCEEDED"),
        (replace(CLAIM, gone=True), RUN, "is SUCCEEDED, not SUCCEEDED"),
        (replace(CLAIM, resource="jobs/9"), RUN, "is SUCCEEDED, not SUCCEEDED"),
        (CLAIM, replace(RUN, state=State.FAILED), "is FAILED, not SUCCEEDED"),
    ],
)
def test_full_look_reports_a_copy_that_differs_from_the_claim_or_the_run(
    claim: Claim | None, run: ActualJob, said: str
) -> None:
    seen = make_observed(*([claim] if claim else []), runs=(run,))
    found = contradictions(make_summary_of_copies(make_copy(CLAIM, RUN)), seen, {})
    assert found == [f"{WRONG}{CLAIM.job_name} {said}"]


def test_full_look_reports_open_claims_missing_in_summary_sorted_by_name() -> None:
    lost = [claim_on(wanted(name), ClaimState.HELD) for name in ("c", "a", "b")]
    ended = bound_to(wanted("d"), run_of(wanted("d"), State.FAILED))
    dropped = bound_to(wanted("e"), run_of(wanted("e"), State.RUNNING), gone=True)
    found = contradictions(
        make_summary_of_copies(make_copy(replace(CLAIM, ended=None, gone=True))),
        make_observed(*lost, ended, dropped),
        {},
    )
    names = sorted(claim.job_name for claim in lost)
    expected = [f"{WRONG}{name} is held and wasn't listed as open" for name in names]
    assert found == sorted([*expected, f"{WRONG}{CLAIM.job_name} has no claim any more"])
    assert len(found) == 4


def test_copy_without_an_end_is_named_by_its_state() -> None:
    summary = make_summary_of_copies(make_copy(replace(CLAIM, ended=None, gone=True)))
    (found,) = contradictions(summary, make_observed(CLAIM, runs=(RUN,)), {})
    assert found == f"{WRONG}{CLAIM.job_name} is SUCCEEDED, not bound"


def test_keys_come_from_labelled_runs() -> None:
    assert keys_in([RUN, replace(RUN, labels={}), replace(RUN, labels={KEY: ""})]) == {KEY_OF_JOB}


def test_partial_summary_updates_only_entries_of_its_jobs() -> None:
    other, older, old = wanted("other"), wanted("census", "older"), wanted("old")
    runs = [run_of(job, State.SUCCEEDED, number=n) for n, job in enumerate((other, older, old), 11)]
    claims = [bound_to(job, run) for job, run in zip((other, older, old), runs, strict=True)]
    moving = claim_on(wanted("moving"), ClaimState.HELD)
    before = make_summary([*claims, moving], runs, other, wanted("moving"))
    assert (before.bases, before.former) == (("moving", "other"), ("census", "old"))
    seen = make_observed(*claims, CLAIM, runs=(*runs, RUN))
    after = summarize(seen, before, index_by_key(JOB), whole=False)
    assert (after.bases, after.former, after.open) == (("census", "moving", "other"), ("old",), before.open)
    assert {id.key for id, _ in list_kept_runs(after)} == {
        label_of(job.identity) for job in (other, older, JOB)
    }, "its predecessor too"
    assert summarize(seen, before, index_by_key(JOB)).bases == ("census",)


def test_partial_summary_replaces_copies_that_it_read() -> None:
    before = make_summary([CLAIM], [RUN], JOB)
    moved = replace(CLAIM, path="other.yaml")
    again = summarize(make_observed(moved, runs=(RUN,)), before, {}, whole=False)
    assert again == before, "not of this part"
    pending = make_observed(CLAIM, claim_on(JOB, ClaimState.HELD, attempt=2), runs=(RUN,))
    after = summarize(pending, before, index_by_key(JOB), whole=False)
    assert (after.open, after.kept) == ((KEY_OF_JOB,), ())


def test_summary_keeps_each_later_run_that_may_have_overwritten_a_kept_result() -> None:
    """Of three contents the first is desired again: each of the two later ones wrote to its folder."""
    contents = [JOB, wanted(content="b"), wanted(content="c")]
    runs = [
        run_of(job, State.SUCCEEDED, number=number, **_times(number))
        for number, job in enumerate(contents, 1)
    ]
    claims = [bound_to(job, run) for job, run in zip(contents, runs, strict=True)]
    summary = make_summary(claims, runs, JOB)
    kept = {one.versioned.claim.id.key for one in summary.kept}
    assert kept == {label_of(job.identity) for job in contents}


def _times(number: int) -> dict[str, str]:
    return {f"{name}_time": f"2026-01-0{number}T00:00:00Z" for name in ("create", "start", "end")}
