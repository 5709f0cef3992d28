"""The commit that brought each job, along the commits that an apply passes over."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.model.claim import Claim, ClaimState, by_apply
from reconciler.model.commit_record import CommitRecord, WantedJob
from reconciler.model.expectation import Expectation
from reconciler.model.job import State
from reconciler.model.manifest import Publish
from reconciler.planning.attempts import keys_of
from reconciler.planning.lineage import (
    CommitTree,
    Lineage,
    PassedOver,
    WantedContent,
    applied_before,
    applied_last,
    bringers,
    brought_since,
    known_lineage,
    lineage_of,
    newest_of,
    newest_whole,
    tree_of_record,
    with_verdicts,
)
from tests.support.planning import bound_to, claim_on, plan, run_of, wanted

NOW = datetime(2026, 1, 1, tzinfo=UTC)
BASE, FIRST, SECOND, HEAD = (letter * 40 for letter in "0abf")


def make_tree(sha: str, *jobs: str, problem: str = "", invalid: tuple[str, ...] = ()) -> CommitTree:
    """Return a commit with a file per job; jobs are written as `name:content` or `name:content:attempts`."""
    files: dict[str, tuple[WantedContent, ...] | None] = dict.fromkeys(invalid)
    for job in jobs:
        name, content, *attempts = job.split(":")
        files[name] = (WantedContent(name, (f"{name}-{content}",), int(attempts[0]) if attempts else 1),)
    return CommitTree(sha, files, problem)


def get_brought_jobs(lineage: Lineage, sha: str) -> dict[str, str]:
    """Return the jobs that a passed-over commit brought, each with the commit that replaced it."""
    return {name: job.replaced_by for name, job in lineage.passed_over[sha].jobs.items()}


def test_lineage_that_tells_no_jobs_apart_brings_every_job() -> None:
    assert Lineage().brought("a")
    assert not Lineage(frozenset("b")).brought("a")
    assert Lineage(frozenset("a")).brought("a")


def test_commit_and_content_have_neither_problem_nor_further_attempts_by_default() -> None:
    content = WantedContent("a", ("a-1",))
    assert content == make_tree(BASE, "a:1:1").files["a"][0]  # type: ignore[index]
    assert CommitTree(BASE, {}) == CommitTree(BASE, {}, problem="")
    assert PassedOver({}) == PassedOver({}, problem="")


def test_parts_before_the_compared_commits_are_handed_on() -> None:
    assert lineage_of([make_tree(BASE), make_tree(HEAD)], [SECOND]).parts == [SECOND]


def test_own_names_are_base_names() -> None:
    assert lineage_of([make_tree(BASE), make_tree(HEAD, "a-b:1")]).own_names == {"a_b"}


def test_jobs_of_passed_over_commit_are_sorted_into_brought_and_standing_ones() -> None:
    trees = [make_tree(BASE, "d:1", "a:1"), make_tree(FIRST, "d:1", "c:1", "b:1", "a:1"), make_tree(HEAD)]
    passed = lineage_of(trees).passed_over[FIRST]
    assert ([*passed.jobs], [*passed.standing]) == (["b", "c"], ["a", "d"])


def test_standing_job_names_commit_that_replaced_it() -> None:
    trees = [make_tree(BASE), *(make_tree(sha, "a:1") for sha in (FIRST, SECOND)), make_tree(HEAD, "a:2")]
    standing = lineage_of(trees).passed_over[SECOND].standing
    assert standing == {"a": WantedJob(("a-1",), brought=False, replaced_by=HEAD)}


def test_manifest_that_is_invalid_from_the_start_has_no_jobs() -> None:
    broken = make_tree(BASE, invalid=("a", "b"))
    found = lineage_of([broken, make_tree(FIRST, invalid=("a", "c")), make_tree(HEAD, "a:1")])
    assert (found.own_names, found.passed_over[FIRST].standing) == ({"a"}, {})


def test_commit_that_cannot_be_applied_removes_no_job() -> None:
    found = lineage_of([make_tree(BASE, "a:1"), make_tree(FIRST, problem="invalid"), make_tree(HEAD, "a:1")])
    assert (found.own_names, found.carriers) == (frozenset(), {})


def test_merge_brings_nothing_that_applied_commit_had() -> None:
    """The jobs of both parents stand; what only the merge has is its own."""
    applied = make_tree(SECOND, "a:2", "b:1", "e:1", invalid=("broken",))
    merge = replace(make_tree(HEAD, "a:2", "b:1", "c:1", "d:1", "e:2"), joined=applied)
    found = lineage_of([make_tree(BASE, "a:1", "d:1", "e:0"), merge])
    assert (found.own_names, found.carriers) == ({"c", "e"}, {"c": HEAD, "e": HEAD})


def test_commit_brings_content_that_its_parent_lacks() -> None:
    found = lineage_of(
        [
            make_tree(BASE, "a:1"),
            make_tree(FIRST, "a:2"),
            make_tree(SECOND, "a:2"),
            make_tree(HEAD, "a:2", "b:1"),
        ]
    )
    assert (get_brought_jobs(found, FIRST), get_brought_jobs(found, SECOND), found.own_names) == (
        {"a": ""},
        {},
        {"b"},
    )
    assert found.carriers == {"a": FIRST, "b": HEAD}


def test_content_has_no_carrier_when_later_commit_replaces_it() -> None:
    found = lineage_of(
        [make_tree(BASE), make_tree(FIRST, "a:1", "b:1"), make_tree(SECOND, "a:2"), make_tree(HEAD, "a:2")]
    )
    assert get_brought_jobs(found, FIRST) == {"a": SECOND, "b": SECOND}
    assert (found.carriers, found.own_names) == ({"a": SECOND}, frozenset())


def test_reverting_commit_brings_content_again() -> None:
    found = lineage_of(
        [make_tree(BASE, "a:1"), make_tree(FIRST, "a:2"), make_tree(SECOND, "a:1"), make_tree(HEAD, "a:1")]
    )
    assert (get_brought_jobs(found, FIRST), get_brought_jobs(found, SECOND)) == ({"a": SECOND}, {"a": ""})
    assert found.carriers == {"a": SECOND}


def test_commit_brings_job_when_suspension_ends_or_attempts_increase() -> None:
    suspended = CommitTree(BASE, {"a": (), "b": make_tree(BASE, "b:1").files["b"]})
    found = lineage_of([suspended, make_tree(FIRST, "a:1", "b:1"), make_tree(HEAD, "a:1", "b:1:3")])
    assert (get_brought_jobs(found, FIRST), found.own_names) == ({"a": ""}, {"b"})
    assert found.carriers == {"a": FIRST}, "more attempts change no content"


def test_commit_brings_no_job_when_attempts_decrease() -> None:
    assert lineage_of([make_tree(BASE, "a:1:3"), make_tree(HEAD, "a:1")]).own_names == frozenset()


def test_commit_brings_no_job_when_file_or_dash_is_renamed() -> None:
    moved = CommitTree(HEAD, {"elsewhere": (WantedContent("a_b", ("a-b-1",)),)})
    before = CommitTree(BASE, {"a": (WantedContent("a-b", ("a-b-1",)),)})
    assert lineage_of([before, moved]).own_names == frozenset()


def test_content_with_earlier_key_counts_as_same_content() -> None:
    old = CommitTree(BASE, {"a": (WantedContent("a", ("old",)),)})
    assert (
        lineage_of([old, CommitTree(HEAD, {"a": (WantedContent("a", ("new", "old")),)})]).own_names
        == frozenset()
    )


def test_invalid_manifest_keeps_jobs_of_earlier_commit() -> None:
    broken = make_tree(SECOND, "b:1", problem="invalid", invalid=("a",))
    found = lineage_of([make_tree(BASE), make_tree(FIRST, "a:1"), broken, make_tree(HEAD, "a:1", "b:1")])
    assert found.carriers == {"a": FIRST, "b": SECOND}
    assert (found.passed_over[SECOND].problem, get_brought_jobs(found, SECOND)) == ("invalid", {"b": ""})
    mended = lineage_of([make_tree(BASE), make_tree(FIRST, "a:1"), broken, make_tree(HEAD, "a:2", "b:1")])
    assert (get_brought_jobs(mended, FIRST), mended.own_names) == ({"a": HEAD}, {"a"})


def test_applied_commit_keeps_jobs_that_it_brought() -> None:
    done = replace(make_tree(FIRST, "a:1"), has_verdict=True)
    found = lineage_of(
        [make_tree(BASE), done, make_tree(SECOND, "a:1", "b:1"), make_tree(HEAD, "a:1", "b:1")]
    )
    assert (found.carriers, [*found.passed_over]) == ({"b": SECOND}, [SECOND])
    assert get_brought_jobs(found, SECOND) == {"b": ""}


JOBS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("12"), max_size=3)


@given(st.lists(JOBS, min_size=2, max_size=6))
def test_each_content_of_last_commit_has_single_bringer_unless_first_commit_has_it(
    history: list[dict[str, str]],
) -> None:
    shas = [f"{number:040}" for number in range(len(history))]
    trees = [
        make_tree(sha, *(":".join(job) for job in jobs.items()))
        for sha, jobs in zip(shas, history, strict=True)
    ]
    found = lineage_of(trees)
    last = history[-1]
    for name, content in last.items():
        stands_since = len(history) - 1
        while stands_since and history[stands_since - 1].get(name) == content:
            stands_since -= 1
        expected = shas[stands_since] if stands_since else None
        assert found.carriers.get(name) == expected
        for sha, passed in found.passed_over.items():
            stands = name in passed.jobs and not passed.jobs[name].replaced_by
            assert stands == (sha == expected)
    assert found.carriers.keys() <= last.keys()
    for sha, jobs in zip(shas[1:-1], history[1:-1], strict=True):
        passed = found.passed_over[sha]
        assert {*passed.jobs, *passed.standing} == jobs.keys()


GOOD, LOW = Expectation("accuracy", min=0.9), Expectation("loss", max=1.0)


def expecting_tree(sha: str, *expect: Expectation, content: str = "1") -> CommitTree:
    """Return a commit with a single job, which expects this."""
    return CommitTree(sha, {"a": (WantedContent("a", (f"a-{content}",), expect=expect),)})


@pytest.mark.parametrize(
    ("before", "after"),
    [((), (GOOD,)), ((GOOD,), (Expectation("accuracy", min=0.8),)), ((GOOD, LOW), (GOOD,)), ((GOOD,), ())],
    ids=["added", "changed", "one removed", "removed"],
)
def test_commit_brings_job_when_expect_alone_changes(
    before: tuple[Expectation, ...], after: tuple[Expectation, ...]
) -> None:
    trees = [expecting_tree(sha, *before) for sha in (BASE, FIRST)]
    found = lineage_of([*trees, expecting_tree(SECOND, *after), expecting_tree(HEAD, *after)])
    assert (found.own_names, found.carriers) == (frozenset(), {}), "the content stays"
    assert found.passed_over[FIRST].jobs == {}
    assert found.passed_over[SECOND].jobs == {"a": WantedJob(("a-1",), expect=after)}
    assert lineage_of([trees[0], expecting_tree(HEAD, *after)]).own_names == {"a"}


def test_commit_brings_no_job_when_order_of_expectations_changes() -> None:
    assert lineage_of([expecting_tree(BASE, GOOD, LOW), expecting_tree(HEAD, LOW, GOOD)]).own_names == set()


def test_standing_job_of_passed_over_commit_keeps_what_it_expects() -> None:
    found = lineage_of([expecting_tree(sha, GOOD) for sha in (BASE, FIRST, HEAD)])
    assert found.passed_over[FIRST].standing == {"a": WantedJob(("a-1",), brought=False, expect=(GOOD,))}


def test_content_that_is_replaced_keeps_what_its_commit_expected() -> None:
    trees = [expecting_tree(BASE), expecting_tree(FIRST, GOOD), expecting_tree(HEAD, LOW, content="2")]
    found = lineage_of(trees)
    assert found.passed_over[FIRST].jobs == {"a": WantedJob(("a-1",), replaced_by=HEAD, expect=(GOOD,))}


def publishing_tree(sha: str, publish: Publish | None, content: str = "1") -> CommitTree:
    """Return a commit with a single job, which is published there."""
    return CommitTree(sha, {"a": (WantedContent("a", (f"a-{content}",), publish=publish),)})


HERE, THERE = Publish("gs://models/a"), Publish("gs://models/b")


@pytest.mark.parametrize(
    ("before", "after", "own"),
    [
        (None, HERE, {"a"}),
        (HERE, THERE, {"a"}),
        (HERE, Publish(HERE.to, "export"), {"a"}),
        (HERE, HERE, set()),
        (HERE, None, set()),
        (None, None, set()),
    ],
)
def test_commit_brings_job_that_it_publishes_elsewhere(
    before: Publish | None, after: Publish | None, own: set[str]
) -> None:
    found = lineage_of([publishing_tree(BASE, before), publishing_tree(HEAD, after)])
    assert (found.own_names, found.carriers) == (own, {}), "the content keeps its commit"
    # So it does where only the record of the earlier commit is known.
    record = CommitRecord(BASE, NOW, 1, {"a": WantedJob(("a-1",), publish=before)})
    assert lineage_of([tree_of_record(record), publishing_tree(HEAD, after)]).own_names == own


def test_passed_over_commit_keeps_where_it_published() -> None:
    trees = [publishing_tree(BASE, None), publishing_tree(FIRST, HERE), publishing_tree(HEAD, THERE, "2")]
    assert lineage_of(trees).passed_over[FIRST].jobs == {
        "a": WantedJob(("a-1",), replaced_by=HEAD, publish=HERE)
    }


JOB = wanted()


def test_record_of_earlier_commit_supplies_expectations_when_git_cannot() -> None:
    record = CommitRecord(BASE, NOW, 1, {"a": WantedJob(("a-1",), expect=(GOOD,))})
    before = tree_of_record(record)
    assert lineage_of([before, expecting_tree(HEAD, GOOD)]).own_names == frozenset()
    assert lineage_of([before, expecting_tree(HEAD, GOOD, LOW)]).own_names == {"a"}


def test_record_of_earlier_commit_supplies_contents_when_git_cannot() -> None:
    record = CommitRecord(BASE, NOW, 1, {"census": WantedJob(keys_of(JOB))})
    here = CommitTree(HEAD, {"": (WantedContent("census", keys_of(JOB), 9), WantedContent("trees", ("t",)))})
    assert lineage_of([tree_of_record(record), here]).own_names == {"trees"}


def test_commit_applied_again_brings_jobs_that_its_record_names() -> None:
    jobs = {"census": WantedJob(keys_of(JOB)), "c": WantedJob(("l",), brought=False)}
    record = CommitRecord(HEAD, NOW, 2, jobs)
    found = known_lineage({HEAD: record}, HEAD, [JOB])
    assert found == Lineage(own_names=frozenset({"census"}))
    assert known_lineage({}, HEAD, [JOB]) is None
    assert known_lineage({HEAD: replace(record, whole=False)}, HEAD, [JOB]) is None
    other = CommitRecord(SECOND, NOW, 3, jobs)
    assert known_lineage({HEAD: record, SECOND: other}, HEAD, [JOB]) is None, "another one came in between"
    assert known_lineage({HEAD: record}, HEAD, [JOB, wanted("trees")]) is None, "only a part was applied"
    assert known_lineage({HEAD: record}, HEAD, [JOB, wanted("trees", suspend=True)]) == found


def test_commit_applied_again_brings_jobs_by_their_base_names() -> None:
    job = wanted("a-b")
    record = CommitRecord(HEAD, NOW, 2, {"a-b": WantedJob(keys_of(job))})
    assert known_lineage({HEAD: record}, HEAD, [job]) == Lineage(own_names=frozenset({"a_b"}))


def record_of(sha: str, number: int, *applied: str, **fields: Any) -> CommitRecord:
    """Return the record of a commit that was applied as number `number`, after these commits."""
    return CommitRecord(sha, NOW, number, applied=applied, **fields)


def by_commit(*records: CommitRecord) -> dict[str, CommitRecord]:
    return {record.sha: record for record in records}


def test_newest_commit_has_highest_number_then_latest_time_then_last_id() -> None:
    later = NOW + timedelta(seconds=1)
    records = [
        CommitRecord("c" * 40, NOW, 2),
        CommitRecord("a" * 40, later, 2),
        CommitRecord("b" * 40, later, 2),
        CommitRecord("d" * 40, later, 1),
        CommitRecord("e" * 40, later, superseded_by="a" * 40),
    ]
    for given_records in (records, records[::-1]):
        found = newest_of(given_records)
        assert found
        assert found.sha == "b" * 40
    assert newest_of(records[-1:]) is newest_of([]) is None


def test_newest_whole_commit_is_one_all_of_whose_jobs_were_applied() -> None:
    whole = record_of(FIRST, 1)
    assert newest_whole([whole, record_of(SECOND, 2, whole=False)]) == whole
    assert newest_whole([record_of(SECOND, 2, whole=False)]) is None


def test_commit_applied_last_stands_alone_unless_another_was_applied_beside_it() -> None:
    assert applied_last(None, {}) == ()
    newest = record_of(HEAD, 5, BASE, FIRST)
    records = by_commit(record_of(BASE, 1), record_of(FIRST, 4), newest, record_of("c" * 40, 0))
    assert applied_last(newest, records) == (HEAD,)
    assert applied_last(newest, {**records, SECOND: record_of(SECOND, 1)}) == (SECOND, HEAD)


@pytest.mark.parametrize(("number", "is_concurrent"), [(20, False), (21, True)])
def test_commit_that_newest_record_has_forgotten_was_not_applied_beside_it(
    number: int, is_concurrent: bool
) -> None:
    """The record lists 20 commits, of which half may be of another branch."""
    newest = record_of(HEAD, 30)
    found = applied_last(newest, by_commit(record_of(FIRST, number), newest))
    assert found == ((FIRST, HEAD) if is_concurrent else (HEAD,))


def test_commit_applied_again_follows_what_its_record_says_was_applied_before() -> None:
    earlier, head = (record_of(FIRST, 1), record_of(SECOND, 2)), record_of(HEAD, 3, BASE, FIRST, SECOND)
    assert applied_before(by_commit(*earlier, head), HEAD) == (SECOND,)
    assert applied_before(by_commit(head), HEAD) == (SECOND,), "of records that are gone"
    assert applied_before(by_commit(replace(head, applied=())), HEAD) == ()


@pytest.mark.parametrize(
    "head",
    [None, record_of(HEAD, 1), record_of(HEAD, 9, BASE, whole=False), record_of(HEAD, 0, BASE)],
    ids=["not recorded", "not the newest", "only a part of its jobs", "passed over"],
)
def test_other_commit_follows_last_one_all_of_whose_jobs_were_applied(head: CommitRecord | None) -> None:
    records = by_commit(
        record_of(FIRST, 2),
        record_of(SECOND, 3, FIRST),
        record_of("c" * 40, 4, FIRST, SECOND, whole=False),
        record_of("d" * 40, 0),
        *([head] if head else []),
    )
    assert applied_before(records, HEAD) == (SECOND,)


def test_commit_follows_each_commit_that_was_applied_in_parts_where_none_was_whole() -> None:
    """The newest one comes last."""
    first, second = record_of(SECOND, 1, whole=False), record_of(FIRST, 2, whole=False)
    passed = record_of("d" * 40, 0, whole=False)
    for records in ((first, second, passed), (passed, second, first)):
        assert applied_before(by_commit(*records), HEAD) == (SECOND, FIRST)
    assert applied_before({}, HEAD) == ()


def test_commits_have_verdicts_once_all_of_their_jobs_were_applied() -> None:
    """The newest record lists commits whose own records are gone."""
    newest = record_of(HEAD, 3, BASE, FIRST, SECOND)
    parts = record_of(FIRST, 2, whole=False)
    passed = record_of("d" * 40, 0)
    assert with_verdicts(by_commit(newest, parts, passed)) == {BASE, SECOND, HEAD}
    assert with_verdicts(by_commit(newest, replace(parts, told_apart=True))) == {BASE, FIRST, SECOND, HEAD}
    assert with_verdicts(by_commit(passed)) == with_verdicts({}) == set()


@pytest.mark.fault(71)
def test_content_that_passed_over_commit_brings_back_is_brought_since() -> None:
    passed = CommitRecord(FIRST, NOW, 0, {"census": WantedJob(keys_of(JOB))})
    applied = CommitRecord(HEAD, NOW, 2, {"census": WantedJob(keys_of(JOB), brought=False)})
    jobs = [JOB, wanted("trees")]
    lineage = Lineage(own_names=frozenset({"trees"}), carriers={"census": FIRST})
    assert brought_since(lineage, [], jobs) == {"census", "trees"}
    # Its apply was killed before it published, so that the commit is applied again.
    again = known_lineage({HEAD: applied, FIRST: passed}, HEAD, [JOB])
    assert again is not None
    assert brought_since(again, [applied, passed], jobs) == {"census"}
    assert brought_since(again, [applied], jobs) == set()
    brought, standing = ({"census": WantedJob(keys_of(JOB), brought=is_own)} for is_own in (True, False))
    assert brought_since(again, [applied, CommitRecord(SECOND, NOW, 1, brought)], jobs) == set()
    assert brought_since(again, [applied, CommitRecord(SECOND, NOW, 0, standing)], jobs) == set()
    assert brought_since(again, [applied, passed], [wanted(content="b")]) == set(), "other content"


class TestBringers:
    """The commit that a submitted job carries."""

    NOTHING = Lineage(own_names=frozenset())

    def find_bringers(self, lineage: Lineage, *records: CommitRecord, **fields: object) -> dict[str, str]:
        claims: list[Claim] = fields.pop("claims", [])  # type: ignore[assignment]
        runs = fields.pop("runs", [])
        made = plan([JOB], runs, claims)  # type: ignore[arg-type]
        return bringers(made, lineage, HEAD, records, {claim.id: claim for claim in claims})

    def test_bringer_is_commit_that_introduced_content(self) -> None:
        assert self.find_bringers(Lineage(frozenset(), {"census": FIRST})) == {"census": FIRST}

    def test_bringer_is_applied_commit_when_lineage_is_unknown(self) -> None:
        assert self.find_bringers(Lineage()) == {"census": HEAD}

    def test_bringer_of_retry_is_commit_of_earlier_attempt(self) -> None:
        job = wanted(attempts=2)
        failed = run_of(job, State.FAILED)
        claims = [bound_to(job, failed, commit=FIRST)]
        made = plan([job], [failed], claims)
        found = bringers(made, self.NOTHING, HEAD, (), {claim.id: claim for claim in claims})
        assert found == {"census": FIRST}

    def test_bringer_is_commit_of_refused_submission(self) -> None:
        claims = [claim_on(JOB, ClaimState.REJECTED, commit=FIRST)]
        assert self.find_bringers(self.NOTHING, claims=claims) == {"census": FIRST}

    def test_bringer_is_recorded_commit_whose_apply_wrote_no_claim(self) -> None:
        older = CommitRecord(FIRST, NOW, 1, {"census": WantedJob(keys_of(JOB))})
        found = CommitRecord(SECOND, NOW, 2, {"census": WantedJob(keys_of(JOB), brought=False)})
        assert self.find_bringers(self.NOTHING, older, found) == {"census": FIRST}

    def test_bringer_is_newest_of_recorded_commits(self) -> None:
        jobs = {"census": WantedJob(keys_of(JOB))}
        records = [CommitRecord(sha, NOW, number, jobs) for number, sha in ((1, FIRST), (2, SECOND))]
        for given_records in (records, records[::-1]):
            assert self.find_bringers(self.NOTHING, *given_records) == {"census": SECOND}

    def test_claim_counts_above_records_unless_it_names_no_commit(self) -> None:
        record = CommitRecord(FIRST, NOW, 1, {"census": WantedJob(keys_of(JOB))})
        for commit, bringer in ((SECOND, SECOND), ("", FIRST)):
            claims = [claim_on(JOB, ClaimState.REJECTED, commit=commit)]
            assert self.find_bringers(self.NOTHING, record, claims=claims) == {"census": bringer}

    def test_bringer_is_commit_of_last_attempt(self) -> None:
        claims = [claim_on(JOB, ClaimState.REJECTED, n, commit=c) for n, c in ((1, FIRST), (2, SECOND))]
        for order in (claims, claims[::-1]):
            found = bringers(plan([JOB]), self.NOTHING, HEAD, (), {claim.id: claim for claim in order})
            assert found == {"census": SECOND}

    def test_commit_of_own_key_counts_above_commit_of_older_version_of_hash(self) -> None:
        job = replace(JOB, earlier=("0" * 64,))
        own, older = keys_of(job)
        records = [
            CommitRecord(SECOND, NOW, 1, {"census": WantedJob((own,))}),
            CommitRecord(FIRST, NOW, 2, {"census": WantedJob((older,))}),
        ]
        assert bringers(plan([job]), self.NOTHING, HEAD, records, {}) == {"census": SECOND}

    def test_job_that_is_not_submitted_has_no_bringer(self) -> None:
        run, gone = run_of(JOB, State.RUNNING), wanted("gone", on_delete="cancel")
        orphan = run_of(gone, State.RUNNING, number=2)
        claims = [bound_to(JOB, run), bound_to(gone, orphan)]
        assert self.find_bringers(self.NOTHING, runs=[run, orphan], claims=claims) == {}

    def test_content_whose_job_is_being_cancelled_belongs_to_commit_that_brings_it_again(self) -> None:
        run = run_of(JOB, State.CANCELLING)
        claim = bound_to(JOB, run, commit=FIRST, error=by_apply("superseded by census_0 (onChange: cancel)"))
        assert self.find_bringers(self.NOTHING, runs=[run], claims=[claim]) == {"census": HEAD}

    @pytest.mark.parametrize("carriers", [{}, {"census": SECOND}])
    def test_bringer_of_returning_content_is_commit_that_brings_it_again(
        self, carriers: dict[str, str]
    ) -> None:
        reason = by_apply("superseded by census_0 (onChange: cancel)")
        run = run_of(JOB, State.CANCELLED, cancelled=reason)
        claim = replace(bound_to(JOB, run, commit=FIRST), error=reason, ended=State.CANCELLED)
        found = self.find_bringers(Lineage(frozenset(), carriers), runs=[run], claims=[claim])
        assert found == {"census": carriers.get("census", HEAD)}
