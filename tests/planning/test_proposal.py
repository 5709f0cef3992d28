"""Changes of manifests, computed only from the jobs of both sides."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.base.diagnostics import Problem
from reconciler.model.diff import Comparison, FieldChange
from reconciler.model.expectation import Expectation
from reconciler.model.manifest import ML_V1, Publish
from reconciler.model.plan import Action, Change, DesiredJob, Edit, NotDone, Plan
from reconciler.planning.proposal import only_of, propose
from tests.support.planning import GOOGLE, LOCAL, notes_of, reason_of, wanted

BASE = "0123456789abcdef0123456789abcdef01234567"


def compute_hours(jobs: list[DesiredJob]) -> dict[str, float]:
    """Return a different number for each content."""
    return {job.manifest.base_name: 1.0 + len(job.spec["args"][0]) for job in jobs}


def make_proposal(before: list[DesiredJob], after: list[DesiredJob], **options: Any) -> Plan:
    comparison = Comparison(BASE, tuple(options.pop("problems", ())))
    target = options.pop("target", LOCAL)
    return propose(
        target, comparison, before, after, (compute_hours(before), compute_hours(after)), **options
    )


def propose_change(before: list[DesiredJob], after: list[DesiredJob], **options: Any) -> Change:
    (found,) = make_proposal(before, after, **options).changes
    return found


def test_proposal_has_given_comparison() -> None:
    comparison = Comparison(BASE, (Problem("x", 1, 1, "", "wrong"),), 3)
    assert propose(GOOGLE, comparison, [], [], ({}, {})) == Plan(GOOGLE, (), (), None, comparison=comparison)


JOB = wanted()
NOT_ASKED = "submitted unless this content already ran"
GOES_ON = "if the run of the earlier content is still live, it continues"


def test_new_job_is_submitted() -> None:
    found = propose_change([], [JOB])
    assert (found.edit, found.action, reason_of(found)) == (Edit.NEW, Action.SUBMIT, "new")
    assert (found.path, found.line, found.job_name) == (
        "jobs/census.yaml",
        3,
        JOB.job_name,
    )
    assert (*found.hours, notes_of(found)) == (0.0, 2.0, (NOT_ASKED,))


def test_changed_job_is_submitted_with_its_changed_fields() -> None:
    found = propose_change([JOB], [wanted(content="bb")])
    assert (found.edit, found.action, reason_of(found)) == (
        Edit.CHANGED,
        Action.SUBMIT,
        "1 field changed",
    )
    assert found.fields == (FieldChange("/args/0", "a", "bb"),)
    assert (found.fields[0].before, found.fields[0].after) == ("a", "bb")
    assert notes_of(found) == (f"{GOES_ON} alongside this one", NOT_ASKED)
    assert (*found.hours, found.code_changed, found.is_new) == (2.0, 3.0, False, False)


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        (wanted(code="x"), "the code changed"),
        (replace(wanted(content="b"), packed={"args": ["new", "a"]}), "1 field changed"),
        (wanted(rerun="again"), "rerun changed"),
        (wanted(content="b", code="x"), "1 field changed and the code changed"),
        (
            wanted(content="b", code="x", rerun="again"),
            "1 field changed, the code changed and rerun changed",
        ),
        (replace(JOB, identity="f" * 64), "only a default was added or removed"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_reason_names_changes_that_make_new_content(after: DesiredJob, reason: str) -> None:
    found = propose_change([JOB], [after])
    assert reason_of(found) == reason
    assert found.code_changed == ("the code" in reason)


def test_plan_of_chosen_jobs_has_only_their_changes() -> None:
    jobs = [wanted("census-eu"), wanted("census_us"), wanted("iris")]
    found = only_of(make_proposal([], jobs, whole=True), jobs[:2])
    assert ([change.base_name for change in found.changes], found.whole) == (
        ["census-eu", "census_us"],
        False,
    )


def test_comparison_ignores_differences_in_job_name_alone() -> None:
    """An example is the output folder that an environment fills in."""
    before, after = (
        replace(job, packed={**job.spec, "folder": f"gs://b/{job.job_name}"})
        for job in (JOB, wanted(content="b"))
    )
    assert [field.pointer for field in propose_change([before], [after]).fields] == ["/args/0"]
    for value in ("gs://elsewhere", 1, None):
        other = replace(after, packed={**after.spec, "folder": value})
        for sides in ([before], [other]), ([other], [before]):
            assert [field.pointer for field in propose_change(*sides).fields] == ["/args/0", "/folder"]


def test_on_change_cancel_is_noted_for_earlier_run() -> None:
    found = propose_change([JOB], [wanted(content="b", on_change="cancel")])
    assert notes_of(found) == (
        "if the run of the earlier content is still live, it is cancelled once this one is submitted",
        "onChange: keep → cancel",
        NOT_ASKED,
    )


@pytest.mark.parametrize(
    ("before", "after", "cancels"),
    [
        (JOB, wanted(content="bb", on_change="cancel"), True),
        (JOB, wanted(content="bb"), False),
        (JOB, wanted(on_change="cancel"), False),
        (wanted(suspend=True), wanted(on_change="cancel"), False),
        (JOB, wanted(content="bb", on_change="cancel", suspend=True), False),
    ],
    ids=["other content", "goes on alongside", "same content", "no longer suspended", "suspended"],
)
def test_submission_of_other_content_alone_cancels_earlier_run_by_its_on_change(
    before: DesiredJob, after: DesiredJob, cancels: bool
) -> None:
    assert propose_change([before], [after]).cancels_earlier is cancels


def test_job_has_the_name_that_is_known_of_it() -> None:
    unnamed = replace(JOB, job_name="census (name known at apply)")
    assert propose_change([], [unnamed]).job_name == unnamed.job_name


def test_earlier_run_is_not_cancelled_when_changed_job_is_suspended() -> None:
    found = propose_change([JOB], [wanted(content="b", on_change="cancel", suspend=True)])
    assert notes_of(found)[0] == GOES_ON
    assert (found.edit, found.action, found.stuck) == (
        Edit.CHANGED,
        Action.NONE,
        NotDone.SUSPENDED,
    )
    assert found.fields


def test_removed_job_is_kept_or_cancelled_by_its_on_delete() -> None:
    kept = propose_change(
        [JOB], [wanted("other")][:0], whole=True, problems=[Problem("x", 1, 1, "", "wrong")]
    )
    assert (kept.edit, kept.action, reason_of(kept)) == (Edit.REMOVED, Action.NONE, "removed")
    assert notes_of(kept) == ("if its run is still live, it continues, and is reported as orphaned",)
    cancelled, new = make_proposal([wanted(on_delete="cancel")], [wanted("other")]).changes
    assert (cancelled.action, cancelled.desired) == (Action.CANCEL, None)
    assert reason_of(cancelled) == "removed (onDelete: cancel)"
    assert (cancelled.path, cancelled.line) == ("jobs/census.yaml", 0)
    assert notes_of(cancelled) == ("if its run is still live, it is cancelled",)
    assert cancelled.hours == (2.0, 0.0)
    assert new.edit is Edit.NEW


def test_removed_job_is_not_cancelled_when_no_manifest_is_left() -> None:
    found = propose_change([wanted(on_delete="cancel")], [])
    assert found.action is Action.NONE
    assert "nothing is cancelled while there is no manifest at all" in notes_of(found)[0]


def test_removed_job_is_not_cancelled_when_paths_are_named() -> None:
    for after in ([wanted("other")], []):
        found = make_proposal([wanted(on_delete="cancel")], after, whole=False).changes[0]
        assert (found.action, reason_of(found)) == (Action.NONE, "removed")
        assert "may have moved elsewhere" in notes_of(found)[0]


def test_job_is_not_removed_when_its_manifest_becomes_invalid() -> None:
    other = wanted("other", on_delete="cancel")
    problems = [Problem("jobs/census.yaml", 1, 1, "", "wrong")]
    assert make_proposal([JOB, other], [other], problems=problems).comparison == Comparison(
        BASE, tuple(problems)
    )
    assert [c.base_name for c in make_proposal([JOB, other], [other], problems=problems).changes] == ["other"]
    moved = [Problem("jobs/elsewhere.yaml", 1, 1, "", "wrong")]
    found = make_proposal([JOB, other], [other], problems=moved, invalid={"census"})
    assert [change.base_name for change in found.changes] == ["other"]


def test_suspended_job_is_submitted_when_suspension_ends() -> None:
    suspended = wanted(suspend=True)
    found = propose_change([JOB], [suspended])
    assert (found.edit, found.action, reason_of(found)) == (
        Edit.CHANGED,
        Action.NONE,
        "suspended",
    )
    assert notes_of(found) == ("suspended from now on; a live run continues",)
    assert found.hours == (2.0, 0.0)
    found = propose_change([suspended], [JOB])
    assert (found.edit, found.action, reason_of(found)) == (
        Edit.CHANGED,
        Action.SUBMIT,
        "no longer suspended",
    )
    assert found.hours == (0.0, 2.0)
    found = propose_change([suspended], [suspended])
    assert (found.edit, reason_of(found), notes_of(found)) == (Edit.UNCHANGED, "suspended", ())


@pytest.mark.parametrize(
    ("before", "after", "note"),
    [
        ({}, {"attempts": 3}, "attempts: 1 → 3; if the last attempt failed, the job is retried"),
        ({"attempts": 3}, {}, "attempts: 3 → 1"),
        ({}, {"on_change": "cancel"}, "onChange: keep → cancel"),
        ({"on_delete": "cancel"}, {}, "onDelete: cancel → keep"),
    ],
)
def test_changed_reconcile_settings_are_noted(
    before: dict[str, Any], after: dict[str, Any], note: str
) -> None:
    found = propose_change([wanted(**before)], [wanted(**after)])
    assert notes_of(found) == (note,)
    assert (found.edit, found.action, reason_of(found)) == (
        Edit.CHANGED,
        Action.NONE,
        "the same content",
    )


def test_attempts_note_omits_retry_when_content_changes() -> None:
    assert notes_of(propose_change([JOB], [wanted(content="b", attempts=3)]))[1:] == (
        "attempts: 1 → 3",
        NOT_ASKED,
    )


def test_changed_expectations_are_noted() -> None:
    good, better = Expectation("accuracy", min=0.9), Expectation("accuracy", min=0.95)
    loss = Expectation("loss", max=1.0)
    was, again = change_manifest(JOB, expect=(good,)), "expect changed: the run is judged again"
    for before, expect in ((JOB, (good,)), (was, (better,)), (was, (good, loss))):
        found = propose_change([before], [change_manifest(JOB, expect=expect)])
        assert (found.edit, found.action, notes_of(found)) == (Edit.CHANGED, Action.NONE, (again,))
    found = propose_change([was], [JOB])
    assert (found.edit, notes_of(found)) == (Edit.CHANGED, ("expect changed",))


def test_expectations_note_names_no_run_when_content_changes() -> None:
    other = change_manifest(wanted(content="b"), expect=(Expectation("accuracy", min=0.9),))
    assert notes_of(propose_change([JOB], [other]))[1:] == ("expect changed", NOT_ASKED)


def test_other_order_of_expectations_is_no_change() -> None:
    expect = Expectation("accuracy", min=0.9), Expectation("loss", max=1.0)
    found = propose_change([change_manifest(JOB, expect=expect)], [change_manifest(JOB, expect=expect[::-1])])
    assert (found.edit, notes_of(found)) == (Edit.UNCHANGED, ())


def change_manifest(job: DesiredJob, **fields: Any) -> DesiredJob:
    return replace(job, manifest=replace(job.manifest, **fields))


def test_changed_publication_is_noted_and_trains_nothing() -> None:
    here, there = Publish("gs://models/census"), Publish("gs://models/other")
    again = "publish changed: nothing is trained again"
    was = change_manifest(JOB, publish=here)
    exported = Publish(here.to, "export")
    for before, publish in ((JOB, here), (JOB, Publish()), (was, there), (was, exported)):
        found = propose_change([before], [change_manifest(JOB, publish=publish)])
        assert (found.edit, found.action, notes_of(found)) == (Edit.CHANGED, Action.NONE, (again,))
    found = propose_change([was], [JOB])
    gone = "no longer published; what was published stays"
    assert (found.edit, found.action, notes_of(found)) == (Edit.CHANGED, Action.NONE, (gone,))
    found = propose_change([was], [was])
    assert (found.edit, notes_of(found)) == (Edit.UNCHANGED, ())


def test_note_on_publication_says_nothing_of_training_when_content_changes() -> None:
    other = change_manifest(wanted(content="b"), publish=Publish())
    assert notes_of(propose_change([JOB], [other]))[1:] == ("publish changed", NOT_ASKED)


def test_changed_labels_path_spelling_and_kind_are_noted() -> None:
    found = propose_change([JOB], [change_manifest(JOB, labels={"team": "b"})])
    assert (found.edit, notes_of(found)) == (
        Edit.CHANGED,
        ("the labels changed; an existing run keeps its own",),
    )
    found = propose_change([JOB], [change_manifest(wanted(content="b"), labels={"team": "b"})])
    assert notes_of(found)[1:] == ("the labels changed", NOT_ASKED)
    found = propose_change([JOB], [change_manifest(JOB, path="jobs/moved.yaml")])
    assert (found.edit, notes_of(found)) == (Edit.UNCHANGED, ("moved from jobs/census.yaml",))
    found = propose_change([wanted("a-b")], [change_manifest(wanted("a-b"), name="a_b")])
    assert (found.edit, notes_of(found)) == (Edit.UNCHANGED, ('it was written "a-b"',))
    found = propose_change([JOB], [change_manifest(wanted(content="b"), kind="Job")])
    assert notes_of(found)[1:] == ("kind: CustomJob → Job", NOT_ASKED)


def test_ml_job_is_blocked_when_target_is_google() -> None:
    gone = change_manifest(wanted(content="b"), api_version=ML_V1)
    assert propose_change([], [gone], target=GOOGLE).action is Action.BLOCKED
    assert propose_change([], [gone], target=LOCAL).action is Action.SUBMIT
    found = propose_change([JOB], [gone], target=GOOGLE)
    assert (found.action, notes_of(found)) == (Action.BLOCKED, (GOES_ON,))
    assert "shut down AI Platform Training" in reason_of(found)
    resumed = propose_change(
        [change_manifest(wanted(suspend=True), api_version=ML_V1)], [change_manifest(JOB, api_version=ML_V1)]
    )
    assert resumed.action is Action.SUBMIT
    before, after = (change_manifest(job, api_version=ML_V1) for job in (wanted(suspend=True), JOB))
    found = propose_change([before], [after], target=GOOGLE)
    assert found.action is Action.BLOCKED
    assert "shut down AI Platform Training" in reason_of(found)
    assert propose_change([after], [after], target=GOOGLE).action is Action.NONE


jobs = st.builds(
    wanted,
    st.sampled_from(["a", "b-c", "d_e", "f"]),
    st.sampled_from(["1", "22"]),
    code=st.sampled_from(["", "x"]),
    suspend=st.booleans(),
    attempts=st.sampled_from([1, 3]),
    rerun=st.sampled_from(["", "r"]),
    on_change=st.sampled_from(["keep", "cancel"]),
    on_delete=st.sampled_from(["keep", "cancel"]),
)
sides = st.lists(jobs, unique_by=lambda job: job.manifest.base_name)
targets = st.sampled_from([LOCAL, GOOGLE])
SWAPPED = {
    Edit.NEW: Edit.REMOVED,
    Edit.REMOVED: Edit.NEW,
    Edit.CHANGED: Edit.CHANGED,
    Edit.UNCHANGED: Edit.UNCHANGED,
}


@given(sides, targets)
def test_proposal_is_unchanged_when_both_sides_are_equal(side: list[DesiredJob], target: Any) -> None:
    found = make_proposal(side, side, target=target)
    assert {change.edit for change in found.changes} <= {Edit.UNCHANGED}
    for change in found.changes:
        assert (change.action, notes_of(change), change.code_changed) == (Action.NONE, (), False)
        assert change.hours[0] == change.hours[1]


@pytest.mark.slow
@given(sides, sides, targets)
def test_proposal_has_each_base_name_once_in_order(
    before: list[DesiredJob], after: list[DesiredJob], target: Any
) -> None:
    names = [c.base_name.replace("-", "_") for c in make_proposal(before, after, target=target).changes]
    assert names == sorted({job.manifest.base_name for job in [*before, *after]})
    assert max(Counter(names).values(), default=1) == 1


@given(sides, sides)
def test_edits_and_hours_swap_when_sides_swap(before: list[DesiredJob], after: list[DesiredJob]) -> None:
    there, back = make_proposal(before, after).changes, make_proposal(after, before).changes
    assert [SWAPPED[change.edit] for change in there] == [change.edit for change in back]
    assert [c.hours for c in there] == [c.hours[::-1] for c in back]
    assert [c.code_changed for c in there] == [c.code_changed for c in back]


@given(sides, sides, targets, st.booleans())
def test_removed_jobs_alone_are_cancelled_and_wanted_jobs_alone_are_submitted(
    before: list[DesiredJob], after: list[DesiredJob], target: Any, whole: bool
) -> None:
    for change in make_proposal(before, after, target=target, whole=whole).changes:
        assert change.actual is None
        if change.action is Action.SUBMIT:
            assert change.desired in after
            assert not change.desired.manifest.reconcile.suspend
        if change.action is Action.CANCEL:
            assert whole
            assert after
            assert change.edit is Edit.REMOVED
        if change.edit is Edit.UNCHANGED:
            assert change.action is Action.NONE
        if change.hours[1]:
            assert change.desired in after


@given(sides, sides)
def test_proposal_is_same_for_any_order_of_jobs(before: list[DesiredJob], after: list[DesiredJob]) -> None:
    assert make_proposal(before, after) == make_proposal(before[::-1], after[::-1])


# Settings.
