"""Metrics that are compared with those of the model in place, before a model is published."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.model.applied_tree import Relation
from reconciler.model.expectation import Expectation, Judged, Judgement, Measured, Uncompared
from reconciler.model.job import State
from reconciler.model.manifest import Publish
from reconciler.model.plan import Action, DesiredJob, NotDone
from reconciler.model.publication import CurrentModel
from reconciler.model.reason import ReasonCode, because
from reconciler.model.standing import Publication, Standing
from reconciler.output.wording.plan import reason_text
from reconciler.planning.planner import make_plan
from reconciler.planning.publishing import Descent, Publisher, Stored, has_rival, publication_of
from reconciler.planning.state import NameState
from tests.support.planning import LOCAL, bound_to, run_of, state_of, wanted
from tests.support.publishing import JOB, TO, current_model, published_model

PUBLISH = Publish(TO)
US = Publisher("acme-jobs", "local")
AHEAD = Descent(Relation.NEWER)
WORSE = Expectation("accuracy", min=0.9, worse=0.01, goal="max")
BEFORE = current_model(published_model())


def name_of(accuracy: float = 0.93, expectation: Expectation = WORSE) -> NameState:
    """Return the state of a job whose run has this accuracy."""
    job = replace(wanted("census"), publish=PUBLISH)
    job = replace(job, manifest=replace(job.manifest, publish=PUBLISH, expect=(expectation,)))
    run = run_of(job, State.SUCCEEDED)
    name = state_of([job], [run], [bound_to(job, run)]).names["census"]
    return replace(name, judgement=Judgement((Judged(expectation, Measured(accuracy)),)))


NAME = name_of()


def stored(current: CurrentModel | None = BEFORE, accuracy: float | None = 0.95, **fields: Any) -> Stored:
    """Return what the address has, with the accuracy of the model in place."""
    metrics = {"loss": 1.0} if accuracy is None else {"accuracy": accuracy, "loss": 1.0}
    return Stored(current, 7, rival_metrics=metrics, **fields)


def standing_of(stored: Stored, name: NameState = NAME, **options: Any) -> Publication:
    return publication_of(name, PUBLISH, stored, US, options.pop("checkout", AHEAD), **options)


def own_current() -> CurrentModel:
    assert NAME.last_wanted is not None
    return replace(BEFORE, job_name=NAME.last_wanted.name, folder=f"{TO}/{NAME.last_wanted.name}")


@pytest.mark.parametrize(("accuracy", "is_due"), [(0.93, False), (0.94, True), (0.99, True)])
def test_model_is_published_unless_it_is_worse_than_the_one_in_place(accuracy: float, is_due: bool) -> None:
    found = standing_of(stored(), name_of(accuracy))
    assert found.standing is (Standing.DUE if is_due else Standing.REFUSED)
    assert found.reason is not None
    assert found.reason.code is (ReasonCode.PUBLISH if is_due else ReasonCode.WORSE_THAN_PUBLISHED)
    (judged,) = found.reason.values["judgement"].judged
    assert (judged.published, judged.uncompared) == (0.95, None)
    assert f"0.01 below the published 0.95{'' if is_due else f' ({JOB})'}" in reason_text(found.reason)


@pytest.mark.parametrize(
    ("found", "uncompared"),
    [
        (stored(None), Uncompared.NOTHING_PUBLISHED),
        (stored(accuracy=None), Uncompared.NOT_RECORDED),
        (Stored(BEFORE, 7), Uncompared.NOT_RECORDED),
        (stored(is_written=True), Uncompared.PUBLISHED_BEFORE),
        (stored(is_written=True, missing=("model.txt",)), Uncompared.PUBLISHED_BEFORE),
    ],
    ids=["nothing published", "metric not recorded", "record gone", "published before", "copies gone"],
)
def test_model_that_is_not_compared_is_due_and_tells_why(found: Stored, uncompared: Uncompared) -> None:
    publication = standing_of(found)
    assert publication.standing is Standing.DUE
    assert publication.reason is not None
    (judged,) = publication.reason.values["judgement"].judged
    assert judged.uncompared is uncompared
    assert publication.was_published is (uncompared is Uncompared.PUBLISHED_BEFORE)


def test_model_in_its_place_is_compared_with_nothing() -> None:
    for changed in ({}, {"is_first": True}):
        found = standing_of(stored(own_current(), is_written=True, **changed))
        assert found.standing is Standing.IN_PLACE
    repaired = standing_of(stored(own_current(), is_written=True, missing=("model.txt",)))
    assert (repaired.standing, repaired.reason and repaired.reason.code) == (
        Standing.DUE,
        ReasonCode.PUBLICATION_INCOMPLETE,
    )


def test_record_that_this_publication_wrote_spares_no_comparison() -> None:
    found = standing_of(stored(is_written=True, is_first=True))
    assert (found.standing, found.was_published) == (Standing.REFUSED, False)
    assert found.is_copied


def test_other_refusals_come_first() -> None:
    older = standing_of(stored(), checkout=Descent(Relation.OLDER))
    other = standing_of(stored(replace(BEFORE, environment="production")))
    changed = standing_of(stored(changed=("model.txt",)))
    codes = [found.reason.code for found in (older, other, changed) if found.reason]
    assert codes == [
        ReasonCode.PUBLISHED_BY_NEWER,
        ReasonCode.PUBLISHED_BY_OTHER,
        ReasonCode.PUBLICATION_CHANGED,
    ]
    worse = standing_of(stored(), obstacle=because(ReasonCode.FOLDER_UNKNOWN))
    assert worse.reason is not None
    assert worse.reason.code is ReasonCode.WORSE_THAN_PUBLISHED


def test_record_of_the_model_in_place_is_read_only_for_a_comparison() -> None:
    assert has_rival(NAME, Stored(BEFORE), US)
    assert has_rival(NAME, Stored(BEFORE, is_written=True, is_first=True), US)
    for found in (
        Stored(),
        Stored(own_current()),
        Stored(BEFORE, is_written=True),
        Stored(BEFORE, unread="away"),
        Stored(replace(BEFORE, source="others")),
    ):
        assert not has_rival(NAME, found, US)
    assert not has_rival(name_of(expectation=Expectation("accuracy", min=0.9)), Stored(BEFORE), US)
    assert not has_rival(replace(NAME, judgement=None), Stored(BEFORE), US)


def test_plan_blocks_the_publication_of_a_worse_model() -> None:
    name = replace(NAME, publication=standing_of(stored()))
    job = name.desired
    assert isinstance(job, DesiredJob)
    state = state_of([job], [], [])
    plan = make_plan(LOCAL, replace(state, names={"census": name}), whole=True)
    own, publication = sorted(plan.changes, key=lambda change: change.publication is not None)
    assert (own.action, own.stuck, own.reason.code) == (
        Action.NONE,
        NotDone.UNPUBLISHED,
        ReasonCode.NOT_PUBLISHED,
    )
    expected = f"accuracy 0.93, expected at most 0.01 below the published 0.95 ({JOB})"
    assert reason_text(own.reason, "census") == f"succeeded; not published: {expected}"
    assert publication.action is Action.BLOCKED
    assert reason_text(publication.reason, "census") == expected
