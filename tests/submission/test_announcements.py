"""Announcements of new claims: their time, their remains, and the consequences of a failure."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest

from reconciler.base.errors import ServiceError
from reconciler.model.applied_tree import AppliedTree
from reconciler.model.claim import ClaimId, ClaimState
from reconciler.model.ports import Announcement, Ports
from reconciler.submission.look import keep_summary, look
from reconciler.submission.summary import read_preface
from tests.support.memory_ports import Outside
from tests.support.planning import claim_on, wanted

CENSUS = wanted("census")
CLAIM = claim_on(CENSUS, ClaimState.HELD)
OTHER = claim_on(wanted("other"), ClaimState.HELD)


@pytest.fixture
def outside() -> Outside:
    return Outside(least_history=0)


def get_announced_ids(outside: Outside) -> list[tuple[ClaimId, ...]]:
    preface = read_preface(outside.claims.summary())
    return [one.ids for one in preface.announced] if preface else []


def store_look(ports: Ports, *, full: bool = False) -> None:
    """Take a look, and store its summary."""
    keep_summary(ports, look(ports, {}, full=full), {})


def test_new_claim_is_announced_before_it_is_written(outside: Outside) -> None:
    seen: list[Any] = []
    outside.claims.before_write = lambda claim: seen.append(get_announced_ids(outside))
    outside.ports.claims.write(CLAIM, 0)
    assert seen == [[(CLAIM.id,)]]


def test_announcement_names_process_by_random_text_and_time_of_newest_claim(outside: Outside) -> None:
    claims = outside.ports.claims
    for id in (CLAIM.id, OTHER.id):
        outside.time.now += timedelta(seconds=1)
        claims.announce([id])
        preface = read_preface(outside.claims.summary())
        assert preface
        (announcement,) = preface.announced
        assert re.fullmatch("[a-z2-7]{16}", announcement.by)
        assert announcement.at == outside.time.now


def test_claim_that_is_replaced_is_not_announced(outside: Outside) -> None:
    written = outside.claims.write(CLAIM, 0)
    assert written
    outside.ports.claims.write(CLAIM, written.generation)
    assert get_announced_ids(outside) == []


def test_several_claims_are_announced_in_single_write(outside: Outside) -> None:
    claims = outside.ports.claims
    claims.announce([CLAIM.id, OTHER.id])
    generation = outside.claims.stored[1]
    claims.write(CLAIM, 0)
    claims.write(OTHER, 0)
    assert get_announced_ids(outside) == [tuple(sorted((CLAIM.id, OTHER.id)))]
    assert outside.claims.stored[1] == generation


def test_claim_that_was_read_is_not_announced(outside: Outside) -> None:
    outside.claims.write(CLAIM, 0)
    for read in ("listed", "of_key"):
        claims = outside.ports.claims
        claims.listed() if read == "listed" else claims.of_key(CLAIM.id.key)
        claims.announce([CLAIM.id])
        assert get_announced_ids(outside) == []


def test_announcements_of_several_processes_stand_beside_each_other(outside: Outside) -> None:
    outside.ports.claims.announce([CLAIM.id])
    outside.ports.claims.announce([OTHER.id])
    assert sorted(get_announced_ids(outside)) == sorted([(CLAIM.id,), (OTHER.id,)])


def test_announcement_leaves_the_summary(outside: Outside) -> None:
    outside.claims.write(CLAIM, 0)
    store_look(outside.ports)
    before = look(outside.ports, {}).summary
    outside.ports.claims.announce([OTHER.id])
    after = look(outside.ports, {})
    assert before
    assert (after.summary, after.full, len(after.announced)) == (before, False, 1)


def test_small_store_has_no_announcements() -> None:
    outside = Outside(least_history=12)
    for count, is_announced in ((1, False), (2, False), (3, True)):
        outside.claims.write(claim_on(wanted("old", str(count)), ClaimState.HELD), 0)
        claims = outside.ports.claims
        claims.listed()
        claims.announce([CLAIM.id])
        assert bool(get_announced_ids(outside)) is is_announced


def test_announced_claim_is_read_until_a_summary_knows_it(outside: Outside) -> None:
    store_look(outside.ports)
    writer = outside.ports
    writer.claims.announce([CLAIM.id])
    store_look(outside.ports)
    assert get_announced_ids(outside) == [(CLAIM.id,)], "another process saw no claim of it yet"
    writer.claims.write(CLAIM, 0)
    assert CLAIM.id in look(outside.ports, {}).observed.versions
    store_look(outside.ports)
    assert get_announced_ids(outside) == []
    assert CLAIM.id in look(outside.ports, {}).observed.versions


def test_process_drops_announcement_of_claim_that_it_never_wrote(outside: Outside) -> None:
    ports = outside.ports
    ports.claims.announce([CLAIM.id])
    store_look(ports)
    assert get_announced_ids(outside) == []


def test_process_keeps_the_announcement_of_a_write_that_may_still_arrive(outside: Outside) -> None:
    outside.claims.faults = ["failed"]
    ports = outside.ports
    with pytest.raises(ServiceError):
        ports.claims.write(CLAIM, 0)
    store_look(ports)
    assert get_announced_ids(outside) == [(CLAIM.id,)]


def test_only_full_look_drops_announcement_older_than_week(outside: Outside) -> None:
    outside.ports.claims.announce([CLAIM.id])
    outside.time.now += timedelta(days=7)
    store_look(outside.ports, full=True)
    assert get_announced_ids(outside) == [(CLAIM.id,)]
    outside.time.now += timedelta(seconds=1)
    store_look(outside.ports)
    assert get_announced_ids(outside) == [(CLAIM.id,)]
    store_look(outside.ports, full=True)
    assert get_announced_ids(outside) == []


def test_lost_answer_to_announcement_is_not_failure(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = outside.claims.write_summary

    def lose_answer(content: bytes, generation: int) -> bool:
        write(content, generation)
        raise ServiceError("no answer")

    monkeypatch.setattr(outside.claims, "write_summary", lose_answer)
    outside.ports.claims.write(CLAIM, 0)
    assert get_announced_ids(outside) == [(CLAIM.id,)]


def test_claim_that_cannot_be_announced_is_not_written(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside.claims, "write_summary", lambda content, generation: False)
    with pytest.raises(ServiceError, match="keeps changing") as raised:
        outside.ports.claims.write(CLAIM, 0)
    assert raised.value.hint == "nothing was submitted: apply again"
    assert outside.claims.held == {}
    assert outside.time.slept == [1.0, 2.0, 4.0, 8.0]


def test_announcement_replaces_a_spoiled_object(outside: Outside) -> None:
    outside.claims.stored = b"spoiled", 7
    outside.ports.claims.announce([CLAIM.id])
    assert get_announced_ids(outside) == [(CLAIM.id,)]


def test_second_announcement_of_a_process_is_added_to_its_first(outside: Outside) -> None:
    ids = sorted((CLAIM.id, OTHER.id))
    beside = outside.ports.claims
    beside.announce([ClaimId("beside")])
    claims = outside.ports.claims
    claims.announce([ids[1]])
    claims.announce([ids[0]])
    assert get_announced_ids(outside) == [(ClaimId("beside"),), tuple(ids)]
    beside.announce([ClaimId("another")])
    assert get_announced_ids(outside) == [(ClaimId("another"), ClaimId("beside")), tuple(ids)]


def test_announced_claim_is_announced_once(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    claims = outside.ports.claims
    claims.announce([CLAIM.id])
    monkeypatch.setattr(outside.claims, "summary", lambda: pytest.fail("read again"))
    claims.announce([CLAIM.id])


def test_announcement_is_repeated_when_other_write_overtakes_it(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, answers = outside.claims.write_summary, [False, True]

    def refuse_once(content: bytes, generation: int) -> bool:
        return answers.pop(0) and write(content, generation)

    monkeypatch.setattr(outside.claims, "write_summary", refuse_once)
    outside.ports.claims.announce([CLAIM.id])
    assert (get_announced_ids(outside), outside.time.slept) == ([(CLAIM.id,)], [1.0])


def test_announcement_is_repeated_after_failure(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    write, errors = outside.claims.write_summary, [ServiceError("away")]

    def fail_once(content: bytes, generation: int) -> bool:
        if errors:
            raise errors.pop()
        return write(content, generation)

    monkeypatch.setattr(outside.claims, "write_summary", fail_once)
    outside.ports.claims.announce([CLAIM.id])
    assert (get_announced_ids(outside), outside.time.slept) == ([(CLAIM.id,)], [1.0])


def test_store_without_a_bucket_takes_no_announcement(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outside.claims, "summary", lambda: None)
    outside.ports.claims.announce([CLAIM.id])
    assert (outside.claims.stored, outside.time.slept) == ((b"", 0), [])


@pytest.mark.parametrize(("marked", "later", "expected"), [(3, 9, 3), (0, 9, 9)])
def test_announcement_names_the_genesis_that_was_read_with_the_summary(
    outside: Outside, monkeypatch: pytest.MonkeyPatch, marked: int, later: int, expected: int
) -> None:
    outside.claims.marked = marked
    monkeypatch.setattr(outside.claims, "genesis_generation", lambda: later)
    outside.ports.claims.announce([CLAIM.id])
    outside.claims.marked = expected
    assert get_announced_ids(outside) == [(CLAIM.id,)]


def test_announcement_keeps_only_the_claims_that_a_look_did_not_find(outside: Outside) -> None:
    claims = outside.ports.claims
    ids = tuple(ClaimId(f"key-{number}") for number in range(6))
    (left,) = claims.still_announced(
        [Announcement("other", outside.time.now, ids)], {ids[2], ids[4]}, outdated=None
    )
    assert left.ids == (ids[0], ids[1], ids[3], ids[5])


def test_store_is_checked_and_prepared_through_its_announcements(outside: Outside) -> None:
    outside.claims.genesis = False
    with pytest.raises(ServiceError, match="genesis"):
        outside.ports.claims.check(1)
    outside.ports.claims.prepare()
    outside.ports.claims.check(1)


def test_applied_tree_is_kept_through_the_announcements(outside: Outside) -> None:
    claims = outside.ports.claims
    tree = AppliedTree("1" * 40, outside.time.now, "a test")
    assert claims.write_applied_tree(tree, 0)
    assert claims.applied_tree().tree == tree
