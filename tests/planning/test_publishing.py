"""Publication of a model: what is in its place, what is put there, and what may not be."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.model.applied_tree import Relation
from reconciler.model.expectation import Expectation, Judged, Judgement, Measured, Missing
from reconciler.model.job import ActualJob, State
from reconciler.model.manifest import Publish
from reconciler.model.plan import DesiredJob
from reconciler.model.publication import CurrentModel, InPlace, model_folder
from reconciler.model.reason import Reason, ReasonCode, because
from reconciler.model.standing import Publication, Standing
from reconciler.planning.publishing import (
    NOT_COMPARED,
    Descent,
    Publisher,
    Stored,
    asks_for_publication,
    compares,
    is_known_in_place,
    may_be_replaced,
    publication_of,
)
from reconciler.planning.state import NameState, Overwriting
from tests.support.planning import bound_to, claim_on, run_of, state_of, wanted

TO = "gs://risk-models/census"
PUBLISH = Publish(TO)
SOURCE, ENVIRONMENT = "acme-jobs", "production"
US = Publisher(SOURCE, ENVIRONMENT)
COMMIT = "c" * 40
OBSTACLE = because(ReasonCode.FOLDER_UNKNOWN)
GOOD = Expectation("accuracy", min=0.95)
LOSS = Expectation("loss", max=1.0)


def published(name: str = "census", content: str = "a", **changed: Any) -> DesiredJob:
    """Return a wanted job whose manifest asks for a publication."""
    job = wanted(name, content, **changed)
    return replace(job, manifest=replace(job.manifest, publish=PUBLISH), publish=PUBLISH)


JOB = published()
OTHER = published(content="b")
TIMES = [datetime(2026, 1, day, tzinfo=UTC) for day in range(1, 6)]


def name_of(
    job: DesiredJob = JOB, state: State = State.SUCCEEDED, *, other: int = 0, **fields: Any
) -> NameState:
    """Return the state of a job whose run was submitted on 1 January, and other content on day `other`."""
    runs = [run_of(job, state)]
    claims = [bound_to(job, runs[0])]
    if other:
        runs.append(run_of(OTHER, State.RUNNING, number=other))
        claims.append(bound_to(OTHER, runs[1]))
    name = state_of([job], runs, claims).names[job.manifest.base_name]
    return replace(name, **fields) if fields else name


def current_of(job: DesiredJob = JOB, **changed: Any) -> CurrentModel:
    """Return what `current.json` says of a job's model, which was published on 2 January."""
    current = CurrentModel(
        folder=model_folder(TO, job.job_name),
        job_name=job.job_name,
        base_name=job.manifest.name,
        hash=job.identity,
        source=SOURCE,
        environment=ENVIRONMENT,
        commit=COMMIT,
        time=TIMES[1],
    )
    return replace(current, **changed)


def standing_of(stored: Stored, name: NameState | None = None, **options: Any) -> Publication:
    """Return the standing of the model of a run; `options` are those of `publication_of`."""
    given_options = {"publisher": US, **options}
    return publication_of(name or name_of(), PUBLISH, stored, **given_options)


def refusal_of(stored: Stored, name: NameState | None = None, **options: Any) -> ReasonCode:
    """Return why a model is refused."""
    found = standing_of(stored, name, **options)
    assert found.standing is Standing.REFUSED
    assert found.reason is not None
    assert found.mark is None
    return found.reason.code


def due_for(stored: Stored, name: NameState | None = None, **options: Any) -> Reason:
    """Return why a model is due."""
    found = standing_of(stored, name, **options)
    assert found.standing is Standing.DUE
    assert found.reason is not None
    assert found.mark is None
    return found.reason


def test_publication_is_asked_for_only_by_good_result_whose_manifest_has_one() -> None:
    assert asks_for_publication(name_of())
    assert not asks_for_publication(name_of(wanted("census")))
    for state in set(State) - {State.SUCCEEDED}:
        assert not asks_for_publication(name_of(JOB, state)), state
    assert not asks_for_publication(name_of(published(suspend=True)))
    assert not asks_for_publication(name_of(overwriting=Overwriting(run_of(OTHER, State.RUNNING), "gs://m")))
    assert not asks_for_publication(NameState("census"))
    assert not asks_for_publication(NameState("census", JOB))
    assert not asks_for_publication(replace(name_of(), desired=None))


@pytest.mark.parametrize(
    ("judgement", "asks"),
    [
        (None, False),
        (Judgement((Judged(GOOD, Measured(0.96)), Judged(LOSS, Measured(0.5)))), True),
        (Judgement((Judged(GOOD, Measured(0.94)), Judged(LOSS, Measured(0.5)))), False),
        (Judgement((Judged(GOOD, Measured(0.96)),)), False),
        (Judgement((Judged(GOOD, Measured(0.96)), Judged(LOSS, Measured(missing=Missing.NOT_NAMED)))), False),
        (Judgement((), unread="the bucket is away"), False),
    ],
    ids=["not judged", "met", "missed", "half judged", "missing", "unread"],
)
def test_publication_is_asked_for_only_when_every_expectation_is_met(
    judgement: Judgement | None, asks: bool
) -> None:
    job = replace(JOB, manifest=replace(JOB.manifest, expect=(GOOD, LOSS)))
    assert asks_for_publication(name_of(job, judgement=judgement)) is asks


def test_model_is_due_at_empty_address() -> None:
    found = standing_of(Stored())
    assert (found.standing, found.current, found.generation) == (Standing.DUE, None, 0)
    about = {"ended": None, "judgement": None, "replaces": "", "taken_from": ""}
    assert found.reason == because(ReasonCode.PUBLISH, to=TO, **about)
    assert not found.is_copied


def test_reason_of_due_model_has_end_of_its_run_while_service_has_it() -> None:
    ended = run_of(JOB, State.SUCCEEDED, end_time="2026-01-02T00:00:00Z")
    claim = bound_to(JOB, ended)
    there, gone = (state_of([JOB], runs, [claim]).names["census"] for runs in ([ended], []))
    assert due_for(Stored(), there).values["ended"] == TIMES[1]
    assert due_for(Stored(), gone).values["ended"] is None


def test_model_in_its_place_is_marked_with_address_and_time() -> None:
    found = standing_of(Stored(current_of(), 7, is_written=True))
    assert (found.standing, found.reason, found.generation) == (Standing.IN_PLACE, None, 7)
    assert found.mark == InPlace(TO, TIMES[1])
    assert found.is_copied


def test_model_published_before_needs_neither_copy_nor_run() -> None:
    stored = Stored(current_of(OTHER), 3, is_written=True)
    found = standing_of(stored, checkout=Descent(Relation.NEWER), obstacle=OBSTACLE)
    assert (found.standing, found.is_copied) == (Standing.DUE, True)
    assert found.reason is not None
    assert found.reason.values["replaces"] == OTHER.job_name


@pytest.mark.parametrize(
    "stored",
    [Stored(), Stored(current_of(OTHER), 3), Stored(current_of(), 3, is_written=True, missing=("a",))],
    ids=["first", "replaces", "incomplete"],
)
def test_model_that_must_be_copied_is_refused_when_its_files_are_not_known(stored: Stored) -> None:
    newer = Descent(Relation.NEWER)
    assert refusal_of(stored, checkout=newer, obstacle=OBSTACLE) is ReasonCode.FOLDER_UNKNOWN
    assert standing_of(stored, checkout=newer).standing is Standing.DUE


def test_address_that_cannot_be_read_is_refused_with_the_reason() -> None:
    found = standing_of(Stored(unread="gs://risk-models can't be read"))
    assert found.reason == because(ReasonCode.PUBLICATION_UNREAD, why="gs://risk-models can't be read")
    assert found.standing is Standing.REFUSED


@pytest.mark.parametrize(
    ("changed", "other", "same_source"),
    [
        ({"environment": "staging"}, "staging", True),
        ({"source": "risk-team"}, "risk-team", False),
        ({"source": "risk-team", "environment": "staging"}, "risk-team", False),
    ],
)
@pytest.mark.parametrize("job", [JOB, OTHER], ids=["same content", "other content"])
def test_model_of_other_publisher_stays(
    changed: dict[str, str], other: str, same_source: bool, job: DesiredJob
) -> None:
    found = standing_of(Stored(current_of(job, **changed), 3, is_written=True))
    about = {"to": TO, "other": other, "same_source": same_source}
    assert found.reason == because(ReasonCode.PUBLISHED_BY_OTHER, **about)
    assert found.standing is Standing.REFUSED


@pytest.mark.parametrize("relation", [Relation.OLDER, Relation.UNKNOWN, Relation.DIVERGED])
def test_checkout_that_is_behind_puts_no_other_content_in_the_place(relation: Relation) -> None:
    checkout = Descent(relation, remedy="fetch it")
    found = standing_of(Stored(current_of(OTHER), 3, is_written=True), checkout=checkout)
    about = {"commit": COMMIT, "relation": relation, "remedy": "fetch it"}
    assert found.reason == because(ReasonCode.PUBLISHED_BY_NEWER, **about)
    assert found.standing is Standing.REFUSED


@pytest.mark.parametrize(
    "checkout",
    [
        NOT_COMPARED,
        Descent(Relation.SAME),
        Descent(Relation.NEWER),
        Descent(Relation.DIVERGED, is_branch_head=True),
    ],
    ids=str,
)
def test_checkout_that_is_not_behind_replaces_the_model(checkout: Descent) -> None:
    reason = due_for(Stored(current_of(OTHER), 3), checkout=checkout)
    assert (reason.code, reason.values["replaces"]) == (ReasonCode.PUBLISH, OTHER.job_name)


def test_head_of_branch_alone_makes_no_checkout_newer() -> None:
    for relation in (Relation.OLDER, Relation.UNKNOWN):
        checkout = Descent(relation, is_branch_head=True)
        found = standing_of(Stored(current_of(OTHER), 3), checkout=checkout)
        about = {"commit": COMMIT, "relation": relation, "remedy": ""}
        assert found.reason == because(ReasonCode.PUBLISHED_BY_NEWER, **about)


def test_other_job_that_publishes_there_keeps_the_place() -> None:
    stored = Stored(current_of(OTHER, base_name="census-two"), 3)
    others = replace(US, others={"census_two"})
    newer = Descent(Relation.NEWER)
    about = {"to": TO, "other": "census-two"}
    refused = standing_of(stored, publisher=others, checkout=newer)
    assert refused.reason == because(ReasonCode.PUBLISHED_BY_OTHER_JOB, **about)
    part = replace(US, is_whole=False)
    refused = standing_of(stored, publisher=part, checkout=newer)
    assert refused.reason == because(ReasonCode.PUBLISHED_BY_UNKNOWN_JOB, **about)
    reason = due_for(stored, publisher=US, checkout=newer)
    assert reason.values["taken_from"] == "census-two"


def test_part_of_jobs_replaces_model_of_the_same_name() -> None:
    part = replace(US, is_whole=False)
    stored = Stored(current_of(OTHER, base_name="census"), 3)
    assert due_for(stored, publisher=part, checkout=Descent(Relation.NEWER)).values["taken_from"] == ""


@pytest.mark.parametrize("current", [None, current_of(), current_of(OTHER)], ids=["none", "own", "other"])
def test_folder_that_somebody_wrote_to_is_refused(current: CurrentModel | None) -> None:
    stored = Stored(current, 3, is_written=True, missing=("b",), changed=("a", "c"))
    found = standing_of(stored, checkout=Descent(Relation.NEWER))
    about = {"to": TO, "job_name": JOB.job_name, "files": ("a", "c")}
    assert found.reason == because(ReasonCode.PUBLICATION_CHANGED, **about)
    assert found.standing is Standing.REFUSED
    is_own = current is not None and current.job_name == JOB.job_name
    assert found.damaged == (("b", "a", "c") if is_own else ())


def test_missing_files_of_model_in_place_are_due() -> None:
    found = standing_of(Stored(current_of(), 3, is_written=True, missing=("a",)))
    assert found.reason == because(ReasonCode.PUBLICATION_INCOMPLETE, files=("a",))
    assert (found.standing, found.is_copied, found.damaged) == (Standing.DUE, False, ("a",))


@pytest.mark.parametrize("is_bringer", [False, True])
@pytest.mark.parametrize("other", [1, 3], ids=["before", "since"])
def test_model_in_place_is_recorded_with_commit_that_brought_it_back(is_bringer: bool, other: int) -> None:
    name = name_of(other=other)
    stored = Stored(current_of(), 3, is_written=True)
    publisher = replace(US, is_bringer=is_bringer)
    is_again = is_bringer or other == 3
    assert compares(name, stored, publisher) is is_again
    for checkout in (Descent(Relation.NEWER), Descent(Relation.DIVERGED, is_branch_head=True)):
        found = standing_of(stored, name, publisher=publisher, checkout=checkout)
        assert found.standing is (Standing.DUE if is_again else Standing.IN_PLACE)
        assert found.reason == (because(ReasonCode.PUBLISHED_BEFORE_OTHER) if is_again else None)
    for relation in (Relation.NONE, Relation.SAME, Relation.OLDER, Relation.DIVERGED, Relation.UNKNOWN):
        found = standing_of(stored, name, publisher=publisher, checkout=Descent(relation))
        assert found.standing is Standing.IN_PLACE, relation


def test_commits_are_compared_only_when_they_decide() -> None:
    name = name_of()
    assert compares(name, Stored(current_of(OTHER), 3), US)
    for stored in (
        Stored(),
        Stored(current_of(), 3),
        Stored(current_of(OTHER, commit=""), 3),
        Stored(current_of(OTHER, environment="staging"), 3),
        Stored(current_of(OTHER, source="theirs"), 3),
        Stored(current_of(OTHER), 3, unread="the record can't be used"),
    ):
        assert not compares(name, stored, US), stored
    for commit in ("", COMMIT):
        assert compares(name, Stored(current_of(commit=commit), 3), replace(US, is_bringer=True))
        assert compares(name_of(other=3), Stored(current_of(commit=commit), 3), US)


def test_mark_counts_until_address_changes_or_other_content_is_submitted() -> None:
    mark = InPlace(TO, TIMES[1])
    assert is_known_in_place(name_of(), mark)
    assert is_known_in_place(name_of(other=1), mark)
    assert is_known_in_place(name_of(other=2), mark), "at the very time of the publication"
    assert not is_known_in_place(name_of(other=3), mark)
    assert not is_known_in_place(name_of(), replace(mark, to="gs://risk-models/other"))
    assert not is_known_in_place(name_of(wanted("census")), mark)
    assert not is_known_in_place(replace(name_of(), desired=None), mark)


def name_with_other(run: ActualJob | None) -> NameState:
    """Return the state of a job whose model is in its place, beside an attempt at other content."""
    own = run_of(JOB, State.SUCCEEDED)
    claims = [bound_to(JOB, own), bound_to(OTHER, run) if run else claim_on(OTHER, ended=State.SUCCEEDED)]
    name = state_of([JOB], [own, run] if run else [own], claims).names["census"]
    return replace(name, publication=Publication(PUBLISH, Standing.IN_PLACE))


def test_mark_counts_beside_other_content_without_run_or_without_time_of_its_submission() -> None:
    mark = InPlace(TO, TIMES[1])
    assert is_known_in_place(name_with_other(None), mark)
    assert is_known_in_place(name_with_other(run_of(OTHER, State.RUNNING, number=3, create_time="")), mark)


@pytest.mark.parametrize("state", State)
def test_model_in_its_place_may_be_replaced_by_other_run_that_is_live_or_succeeded(state: State) -> None:
    name = name_with_other(run_of(OTHER, state, number=3))
    assert may_be_replaced(name) is (not state.ended or state is State.SUCCEEDED)
    for standing in (Standing.DUE, Standing.REFUSED):
        assert not may_be_replaced(replace(name, publication=Publication(PUBLISH, standing)))
    assert not may_be_replaced(replace(name, publication=None))


def test_model_in_its_place_is_not_replaced_by_other_content_whose_run_is_gone() -> None:
    assert not may_be_replaced(name_with_other(None))


def test_one_of_several_other_runs_is_enough_to_replace_model() -> None:
    name = name_with_other(run_of(OTHER, State.SUCCEEDED, number=3))
    third = published(content="c")
    failed = run_of(third, State.FAILED, number=4)
    attempts = state_of([], [failed], [bound_to(third, failed)]).names["census"].attempts
    assert may_be_replaced(replace(name, attempts=(*name.attempts, *attempts)))


currents = st.none() | st.builds(
    lambda job, changed: current_of(job, **changed),
    st.sampled_from([JOB, OTHER]),
    st.fixed_dictionaries(
        {
            "source": st.sampled_from([SOURCE, SOURCE, "theirs"]),
            "environment": st.sampled_from([ENVIRONMENT, ENVIRONMENT, "staging"]),
            "base_name": st.sampled_from(["census", "census-two", "gone"]),
            "commit": st.sampled_from(["", COMMIT]),
            "time": st.sampled_from(TIMES),
        }
    ),
)
files = st.sampled_from([(), (), ("a",), ("a", "b")])
stores = st.builds(
    Stored,
    currents,
    st.integers(0, 3),
    st.booleans(),
    files,
    files,
    st.sampled_from(["", "", "", "away"]),
)
publishers = st.builds(
    Publisher,
    st.just(SOURCE),
    st.just(ENVIRONMENT),
    st.sampled_from([(), ("census_two",)]),
    st.booleans(),
    st.booleans(),
)
checkouts = st.builds(Descent, st.sampled_from(Relation), st.booleans())


@given(st.integers(0, 5), stores, publishers, checkouts, st.sampled_from([None, OBSTACLE]))
def test_standing_is_safe_whatever_is_stored(
    other: int, stored: Stored, publisher: Publisher, checkout: Descent, obstacle: Reason | None
) -> None:
    name = name_of(other=other)
    if not compares(name, stored, publisher):
        checkout = NOT_COMPARED  # as the reader does
    found = publication_of(name, PUBLISH, stored, publisher, checkout, obstacle)
    current = stored.current
    is_ours = current is None or (current.source, current.environment) == (SOURCE, ENVIRONMENT)
    names_run = current is not None and current.job_name == JOB.job_name
    assert (found.reason is None) is (found.standing is Standing.IN_PLACE)
    assert (found.mark is not None) is (found.standing is Standing.IN_PLACE)
    assert (found.current, found.generation) == (current, stored.generation)
    if stored.unread or not is_ours or stored.changed:
        assert found.standing is Standing.REFUSED
    is_damaged = bool(names_run and is_ours and (stored.missing or stored.changed))
    assert bool(found.damaged) is is_damaged
    if found.standing is Standing.IN_PLACE:
        assert names_run
        assert not stored.missing
    if found.standing is Standing.DUE and current is not None and not names_run:
        is_moved = checkout.relation is Relation.DIVERGED and checkout.is_branch_head
        allowed = (Relation.SAME, Relation.NEWER) if current.commit else (Relation.NONE,)
        assert checkout.relation in (*allowed, Relation.NONE) or is_moved
        assert current.base_name not in publisher.others
    if found.standing is Standing.DUE and not found.is_copied:
        assert obstacle is None
    if found.is_copied:
        assert stored.is_written
        assert not stored.missing
