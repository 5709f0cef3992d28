"""Statuses of commits about their jobs: by claims, by the runs of claims, and by the plan."""

from __future__ import annotations

import itertools
import json
import unicodedata
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from reconciler.manifests.settings import from_document
from reconciler.model.claim import BY_COMMAND, Claim, ClaimState, by_apply
from reconciler.model.commit_record import CommitRecord, WantedJob, record_json
from reconciler.model.commit_record import record_of as record_of_json
from reconciler.model.expectation import (
    Expectation,
    Judged,
    Judgement,
    Measured,
    Missing,
    Rival,
    RunMetrics,
)
from reconciler.model.job import ActualJob, State
from reconciler.model.manifest import Publish, Reconcile
from reconciler.model.plan import DesiredJob, Drift, DriftKind
from reconciler.model.reason import Reason, ReasonCode, because
from reconciler.model.standing import Publication, Standing
from reconciler.planning.attempts import keys_of
from reconciler.planning.overwriting import with_overwriting
from reconciler.planning.planner import make_plan
from reconciler.reporting.commit_record import record_for
from reconciler.reporting.github.contexts import Contexts, contexts_of
from reconciler.reporting.status import CommitStatus, Freshness, Over, freshness
from reconciler.reporting.status_rules import (
    DueStatuses,
    View,
    drift_status,
    due_statuses,
    duplicate_statuses,
    reopened,
)
from tests.support.inert import ACTED_ON, runner_finds_command
from tests.support.planning import LOCAL, bound_to, claim_on, noting, plan, run_of, state_of, wanted

JOB = wanted(attempts=2)
ASKED = "a" * 40
OTHER = "b" * 40
CONTEXT = "reconciler/prod/census"
HASH = JOB.job_name.removeprefix("census_")


CONTEXTS = Contexts("prod")
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def view_of(
    runs: Iterable[ActualJob],
    claims: Iterable[Claim],
    desired: Iterable[DesiredJob] = (JOB,),
    *,
    problems: Mapping[str, str] | None = None,
    commit: str = OTHER,
    whole: bool = True,
    each: bool | None = None,
) -> View:
    world = [*desired], [*runs], [*claims]
    return View(CONTEXTS, commit, state_of(*world), plan(*world, whole=whole), problems or {}, each)


def record_of(*jobs: DesiredJob, sha: str = OTHER, number: int = 1, **fields: Any) -> CommitRecord:
    """Return the record of a commit that has these jobs, brought by an earlier commit."""
    wants = {job.manifest.name: WantedJob(keys_of(job), brought=False) for job in jobs}
    return CommitRecord(**{"sha": sha, "since": NOW, "number": number, "jobs": wants, **fields})


def bringing(*jobs: DesiredJob, **fields: Any) -> CommitRecord:
    """Return the record of a commit that brought these jobs."""
    record = record_of(*jobs, **fields)
    wants = {name: structs.replace(job, brought=True) for name, job in record.jobs.items()}
    return structs.replace(record, jobs=wants)


def told(
    runs: Iterable[ActualJob],
    claims: Iterable[Claim],
    problem: str = "",
    record: CommitRecord | None = None,
) -> dict[str, list[CommitStatus]]:
    """Return the statuses of single jobs, by commit, without those that only replace an earlier status."""
    found = due_statuses(
        view_of(runs, claims, problems={"census": problem} if problem else None), record or record_of(JOB)
    )
    single = {
        sha: [s for s in of_sha if s.context == CONTEXT and s.over is not Over.SOMETHING]
        for sha, of_sha in found.by_commit.items()
    }
    return {sha: of_sha for sha, of_sha in single.items() if of_sha}


def status(runs: Iterable[ActualJob], *claims: Claim, problem: str = "") -> CommitStatus | None:
    """Return the only status of the claims' commit, or None."""
    found = told(runs, [structs.replace(claim, commit=ASKED) for claim in claims], problem)
    assert found.keys() <= {ASKED}
    return found[ASKED][0] if found else None


def state(runs: Iterable[ActualJob], *claims: Claim, problem: str = "") -> str | None:
    found = status(runs, *claims, problem=problem)
    return found.state if found else None


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (State.RUNNING, "pending"),
        (State.SUCCEEDED, "success"),
        (State.FAILED, "failure"),
        (State.CANCELLED, "error"),
    ],
)
def test_the_run_that_the_claim_is_bound_to_says_how_the_job_stands(end: State, expected: str) -> None:
    run = run_of(JOB, end)
    assert state([run], bound_to(JOB, run)) == expected


def test_the_first_submissions_commit_is_told() -> None:
    first, second = run_of(JOB, State.FAILED), run_of(JOB, State.RUNNING, 2, number=2)
    claims = [bound_to(JOB, first, commit=ASKED), bound_to(JOB, second, attempt=2, commit=OTHER)]
    (asked,) = told([first, second], claims)
    assert asked == ASKED
    assert told([first], [bound_to(JOB, first, commit="")]) == {}, "submitted from a dirty work tree"


def test_a_commit_that_waited_for_a_submission_is_told_of_the_one_by_another_commit() -> None:
    """Its own status would stay at "not submitted yet", or at a reason, for ever."""
    waiting = CommitStatus("pending", CONTEXT, "not submitted yet")
    for end, dropped in itertools.product((State.RUNNING, State.SUCCEEDED, State.FAILED), (False, True)):
        run = run_of(JOB, end)
        for commit in (ASKED, ""):
            claim = bound_to(JOB, run, commit=commit, ended=end if end.ended else None)
            found = due_statuses(view_of([] if dropped else [run], [claim]), record_of(JOB))
            (update,) = [status for status in found.by_commit[OTHER] if status.context == CONTEXT]
            assert freshness(update, None) is Freshness.KNOWN, "one that only found the job shows no status"
            assert freshness(update, waiting) is Freshness.NEW
    ended = structs.replace(update, description=f"failed after 5 s, exit code 3 · run {HASH}")
    assert freshness(update, ended) is Freshness.KNOWN, "the end from the run itself has more detail"


def test_adopted_job_is_shown_at_the_commit_that_brought_its_manifest() -> None:
    run = structs.replace(run_of(JOB, State.SUCCEEDED), labels={}, job_name="census by hand")
    claim = bound_to(JOB, run, commit="", request_ids=())
    assert told([run], [claim]) == {}, "an earlier commit brought it"
    ((sha, (found,)),) = told([run], [claim], record=bringing(JOB)).items()
    assert (sha, found.state, found.description) == (OTHER, "success", "succeeded")
    cancelled = structs.replace(run, state=State.CANCELLED)
    ((_, (found,)),) = told([cancelled], [claim], record=bringing(JOB)).items()
    assert "`reconciler rerun census`" in found.description


def test_without_a_claim_the_commit_that_is_checked_out_is_told_that_it_waits_or_why() -> None:
    waiting = CommitStatus("pending", CONTEXT, "not submitted yet", over=Over.NOTHING)
    assert told([], []) == {OTHER: [waiting]}
    found = {OTHER: [CommitStatus("error", CONTEXT, "it can't be staged")]}
    assert told([], [], problem="it can't be staged") == found


UNSETTLED: list[tuple[ClaimState, dict[str, Any], str, str]] = [
    (ClaimState.REJECTED, {"error": "a quota is exhausted"}, "error", "refused: a quota is exhausted"),
    (ClaimState.REJECTED, {}, "error", "refused: no reason given"),
    (
        ClaimState.HELD,
        {"error": "another job has the name"},
        "error",
        "held, see `reconciler resolve census`: another job has the name",
    ),
    (
        ClaimState.HELD,
        {"error": "old", "given_up": True},
        "error",
        f"given up; run it again with `reconciler rerun census` · run {HASH}",
    ),
]


@pytest.mark.parametrize(("claimed", "fields", "expected", "said"), UNSETTLED)
@pytest.mark.parametrize("problem", ["", "what this apply says"])
def test_a_submission_that_is_not_settled_is_told_by_its_claim(
    claimed: ClaimState, fields: dict[str, Any], expected: str, said: str, problem: str
) -> None:
    """Apply and report make the same status, so that neither replaces the other's words each time."""
    assert status([], claim_on(JOB, claimed, **fields), problem=problem) == CommitStatus(
        expected,  # type: ignore[arg-type]
        CONTEXT,
        said,
    )


@pytest.mark.fault(2)
def test_an_unknown_outcome_is_pending_whatever_is_there() -> None:
    claim = claim_on(JOB, ClaimState.PENDING)
    unknown = CommitStatus("pending", CONTEXT, f"not known yet whether a job was created · run {HASH}")
    assert status([], claim) == unknown
    assert status([], claim, problem="no token") == unknown
    assert status([run_of(JOB, State.SUCCEEDED)], claim) == unknown, "no claim is bound to it"


def test_unknown_outcome_of_an_attempt_that_is_not_wanted_any_more_is_an_error() -> None:
    """After the record of a failed set-up was deleted, the set-up counts as an attempt."""
    once = wanted(attempts=1)
    first = claim_on(once, resource="jobs/9", ended=State.FAILED)
    claims = [structs.replace(one, commit=ASKED) for one in (first, claim_on(once, ClaimState.PENDING, 2))]
    found = due_statuses(view_of([], claims, [once]), record_of(once))
    said = 'attempt 2 is no longer needed: "attempts" is 1'
    assert found.by_commit[ASKED] == [CommitStatus("error", CONTEXT, said)]
    assert not found.final


@pytest.mark.parametrize(
    ("claimed", "expected"),
    [(ClaimState.PENDING, "pending"), (ClaimState.REJECTED, "error"), (ClaimState.HELD, "error")],
)
def test_the_newest_attempt_decides_and_replaces_the_failure_before_it(
    claimed: ClaimState, expected: str
) -> None:
    failed = run_of(JOB, State.FAILED)
    first, second = bound_to(JOB, failed), claim_on(JOB, claimed, attempt=2)
    before, after = status([failed], first), status([failed], first, second)
    assert before
    assert after
    assert (before.state, after.state) == ("failure", expected)
    assert freshness(after, before) is Freshness.NEW
    assert not (expected == "pending" and freshness(before, after) is Freshness.NEW), (
        "older news of a slower report"
    )
    retried = run_of(JOB, State.SUCCEEDED, 2, number=2)
    green = status([failed, retried], first, bound_to(JOB, retried, attempt=2))
    assert green
    assert green.state == "success"
    assert freshness(green, after) is Freshness.NEW


def test_why_a_failed_attempt_is_not_followed_by_another() -> None:
    failed = run_of(JOB, State.FAILED)
    assert status([failed], bound_to(JOB, failed), problem="blocked") == CommitStatus(
        "error", CONTEXT, "blocked"
    )
    run = run_of(JOB, State.SUCCEEDED)
    assert state([run], bound_to(JOB, run), problem="out of date") == "success"


@pytest.mark.fault(18)
def test_only_a_run_that_a_claim_is_bound_to_makes_a_status_green() -> None:
    ran = run_of(JOB, State.SUCCEEDED)
    others = [
        claim_on(JOB, ClaimState.REJECTED),
        claim_on(JOB, ClaimState.HELD),
        claim_on(JOB, resource="projects/1/locations/l/customJobs/7", request_ids=("other",)),
    ]
    for claim in others:
        assert state([ran], claim) != "success"


@pytest.mark.fault(23)
def test_a_job_that_was_deleted_before_its_end_was_seen_does_not_stay_pending() -> None:
    run = run_of(JOB, State.RUNNING)
    found = status([], bound_to(JOB, run))
    assert found
    assert found.state == "error"
    assert found.description.startswith("deleted outside")
    assert found.description.endswith(f"its final state is unknown · run {HASH}")


@pytest.mark.parametrize(("end", "expected"), [(State.SUCCEEDED, "success"), (State.FAILED, "failure")])
def test_an_end_that_was_seen_is_told_also_when_the_service_has_forgotten_it(
    end: State, expected: str
) -> None:
    """A killed report may not have posted the end; a complete report posted more about it."""
    run = run_of(JOB, end)
    found = status([], bound_to(JOB, run))
    assert found
    assert (found.state, found.over) == (expected, Over.NO_END)
    running, ended = (
        status([structs.replace(run, state=State.RUNNING)], bound_to(JOB, run)),
        status([run], bound_to(JOB, run)),
    )
    assert freshness(found, running) is Freshness.NEW
    assert freshness(found, ended) is Freshness.KNOWN
    refused = CommitStatus(
        "error", found.context, "refused: it was paused for longer than its credential lasts"
    )
    assert freshness(found, refused) is Freshness.NEW, "that is no end of the run"


class TestTwice:
    """Two jobs of an attempt are an error as long as both are visible."""

    @pytest.mark.fault(13)
    @pytest.mark.parametrize("one", State)
    @pytest.mark.parametrize("other", State)
    def test_however_they_stand(self, one: State, other: State) -> None:
        runs = [run_of(JOB, one, number=9), run_of(JOB, other, number=10)]
        found = status(runs, bound_to(JOB, runs[0]))
        assert found == CommitStatus("error", CONTEXT, "attempt 1 has 2 jobs: 10, 9")
        assert status(runs[::-1], bound_to(JOB, runs[1])) == found
        assert state(runs[:1], bound_to(JOB, runs[0])) != "error" or one is State.CANCELLED

    def test_also_of_an_attempt_before(self) -> None:
        runs = [run_of(JOB, State.FAILED, number=1), run_of(JOB, State.FAILED, number=2)]
        last = run_of(JOB, State.SUCCEEDED, 2, number=3)
        assert state([*runs, last], bound_to(JOB, runs[0]), bound_to(JOB, last, attempt=2)) == "error"

    @pytest.mark.fault(16, 18)
    def test_a_run_that_no_recorded_request_made_is_no_second_one(self) -> None:
        run = run_of(JOB, State.SUCCEEDED)
        for beside in (
            run_of(JOB, State.RUNNING, number=2, mark="unknown"),
            run_of(JOB, State.RUNNING, number=2, kind="HyperparameterTuningJob"),
            run_of(wanted(content="b"), State.RUNNING, number=2),
            structs.replace(run, state=State.RUNNING),
        ):
            assert state([run, beside], bound_to(JOB, run)) == "success"


TREES = wanted("trees")


def overall_status(view: View, record: CommitRecord, newest: CommitRecord | None = None) -> CommitStatus:
    (found,) = [
        s for s in due_statuses(view, record, newest).by_commit[record.sha] if s.context == "reconciler"
    ]
    return found


class TestOverwritten:
    """A result whose folder a later run of other content wrote to."""

    bad = wanted(content="bad")
    runs = tuple(
        structs.replace(run, start_time=run.create_time)
        for run in (run_of(JOB, State.SUCCEEDED, number=1), run_of(bad, State.SUCCEEDED, number=2))
    )

    def view(self) -> View:
        first, later = self.runs
        claims = [bound_to(JOB, first, commit=ASKED), bound_to(self.bad, later, commit="c" * 40)]
        folders = {run.resource: "gs://models/census" for run in self.runs}
        state = with_overwriting(state_of([JOB], self.runs, claims), folders)
        return View(CONTEXTS, OTHER, state, make_plan(LOCAL, state))

    def test_commit_that_brings_content_back_is_red_and_first_commit_keeps_its_status(self) -> None:
        record = bringing(JOB, number=3, since=NOW + timedelta(days=5))
        due = due_statuses(self.view(), record)
        assert {sha for sha, of_sha in due.by_commit.items() if of_sha} == {OTHER}
        (own,) = (s for s in due.by_commit[OTHER] if s.context == CONTEXT)
        assert (own.state, due.final) == ("error", False)
        assert own.description.startswith(f"overwritten: {self.bad.job_name} wrote to its folder")
        overall = overall_status(self.view(), record)
        assert (overall.state, overall.description) == (
            "error",
            "overwritten: census · 0 of 1 succeeded · update 3",
        )

    def test_commit_from_before_the_later_run_stays_green(self) -> None:
        before = bringing(JOB, sha=ASKED, number=1, since=NOW)
        newest = bringing(JOB, number=3, since=NOW + timedelta(days=5))
        assert overall_status(self.view(), before, newest).state == "success"

    def test_older_commit_leaves_the_status_of_the_commit_that_submitted_the_run(self) -> None:
        first, later = self.runs
        claims = [bound_to(JOB, first, commit=OTHER), bound_to(self.bad, later, commit="c" * 40)]
        folders = {run.resource: "gs://models/census" for run in self.runs}
        state = with_overwriting(state_of([JOB], self.runs, claims), folders)
        view = View(CONTEXTS, OTHER, state, make_plan(LOCAL, state))
        newest = bringing(JOB, number=3, since=NOW + timedelta(days=5))
        (shown,) = (s for s in due_statuses(view, newest, newest).by_commit[OTHER] if s.context == CONTEXT)
        assert shown.state == "error"
        before = bringing(JOB, sha=ASKED, number=1, since=NOW)
        assert OTHER not in due_statuses(view, before, newest).by_commit

    def test_commit_without_a_job_of_its_own_counts_it_as_earlier(self) -> None:
        record = record_of(JOB, number=4, since=NOW + timedelta(days=6))
        overall = overall_status(self.view(), record)
        assert (overall.state, overall.description) == (
            "success",
            "no job of its own · earlier: 1 overwritten · update 3",
        )


class TestUnpublished:
    """A run that succeeded, whose model isn't in its place any more."""

    run = run_of(JOB, State.SUCCEEDED)

    def view(self, standing: Standing) -> View:
        reason = because(ReasonCode.FOLDER_UNKNOWN) if standing is Standing.REFUSED else None
        state = state_of([JOB], [self.run], [bound_to(JOB, self.run, commit=OTHER)])
        name = state.names["census"]
        publication = Publication(Publish(to="gs://risk-models/census"), standing, reason)
        names = {"census": structs.replace(name, publication=publication)}
        state = structs.replace(state, names=names)
        return View(CONTEXTS, OTHER, state, make_plan(LOCAL, state))

    @pytest.mark.parametrize(("standing", "state"), [(Standing.DUE, "pending"), (Standing.REFUSED, "error")])
    def test_its_commit_that_was_green_shows_it(self, standing: Standing, state: str) -> None:
        green = overall_status(self.view(Standing.IN_PLACE), bringing(JOB))
        assert green.state == "success"
        unpublished = overall_status(self.view(standing), bringing(JOB))
        assert unpublished.state == state
        assert freshness(unpublished, green) is Freshness.NEW
        assert freshness(green, unpublished) is Freshness.NEW

    def test_plan_without_the_job_makes_nothing_green(self) -> None:
        publish = Publish(to="gs://risk-models/census")
        record = bringing(JOB)
        jobs = {n: structs.replace(job, publish=publish) for n, job in record.jobs.items()}
        record = structs.replace(record, jobs=jobs)
        view = view_of([self.run], [bound_to(JOB, self.run, commit=OTHER)], [TREES], whole=False)
        due = due_statuses(view, record)
        assert {status.state for status in due.by_commit[OTHER]} == {"pending"}
        assert not due.final
        (red,) = (
            status
            for status in due_statuses(self.view(Standing.REFUSED), record).by_commit[OTHER]
            if status.context == CONTEXT
        )
        assert red.state == "error"
        (own,) = (status for status in due.by_commit[OTHER] if status.context == CONTEXT)
        assert freshness(own, red) is Freshness.OLD, "the red one stays"


GOOD, LOOSE = Expectation("accuracy", min=0.95), Expectation("accuracy", min=0.85)
LOSS = Expectation("loss", max=1.0)


class TestExpectations:
    """A run that succeeded, judged by what each commit expects of its metrics."""

    run = run_of(JOB, State.SUCCEEDED, start_time="2026-01-01T00:00:00Z", end_time="2026-01-01T00:01:05Z")
    claim = bound_to(JOB, run, commit=ASKED)

    def view(
        self,
        *,
        unread: str = "",
        desired: DesiredJob = JOB,
        runs: Iterable[ActualJob] = (run,),
        claims: Iterable[Claim] = (claim,),
        **values: float | Missing,
    ) -> View:
        """Return the view after the run has these metrics."""
        metrics = {
            name: Measured(missing=value) if isinstance(value, Missing) else Measured(value)
            for name, value in values.items()
        }
        state = structs.replace(
            state_of([desired], runs, claims),
            metrics={self.run.resource: RunMetrics(JOB.job_name, self.run.resource, metrics=metrics)},
            unread={self.run.resource: unread} if unread else {},
        )
        return View(CONTEXTS, OTHER, state, make_plan(LOCAL, state))

    def record(self, *expect: Expectation, sha: str = ASKED, **fields: Any) -> CommitRecord:
        """Return the record of a commit that brought the job and expects this."""
        record = bringing(JOB, sha=sha, **fields)
        jobs = {name: structs.replace(job, expect=expect) for name, job in record.jobs.items()}
        return structs.replace(record, jobs=jobs)

    def single(
        self, view: View, record: CommitRecord, newest: CommitRecord | None = None
    ) -> tuple[CommitStatus, CommitStatus, bool]:
        """Return the job's status, the overall one, and True if both are final."""
        due = due_statuses(view, record, newest)
        assert {sha for sha, statuses in due.by_commit.items() if statuses} == {record.sha}
        (found,) = (s for s in due.by_commit[record.sha] if s.context == CONTEXT)
        return found, overall_status(view, record, newest), due.final

    def test_missed_expectation_is_final_failure_with_both_figures(self) -> None:
        found, overall, final = self.single(self.view(accuracy=0.9, loss=0.5), self.record(LOSS, GOOD))
        said = f"succeeded, accuracy 0.9, expected at least 0.95 · run {HASH}"
        assert found == CommitStatus("failure", CONTEXT, said)
        said = "below expectations: census · 0 of 1 succeeded · update 3"
        assert overall == CommitStatus("failure", "reconciler", said)
        assert final

    def test_worse_than_published_is_failure_with_both_figures_until_it_is_published(self) -> None:
        worse = Expectation("accuracy", min=0.85, worse=0.01, goal="max")
        publish = Publish("gs://risk-models/census")
        manifest = structs.replace(JOB.manifest, expect=(worse,))
        job = structs.replace(JOB, manifest=manifest, publish=publish)
        view = self.view(desired=job, accuracy=0.93)
        judgement = Judgement((Judged(worse, Measured(0.93), Rival("census_1163", {"accuracy": 0.95})),))
        why = because(ReasonCode.WORSE_THAN_PUBLISHED, judgement=judgement)

        def shown(standing: Standing, reason: Reason | None) -> tuple[CommitStatus, CommitStatus, bool]:
            publication = Publication(publish, standing, reason)
            named = structs.replace(view.state.names["census"], publication=publication)
            state = structs.replace(view.state, names={"census": named})
            return self.single(View(CONTEXTS, OTHER, state, make_plan(LOCAL, state)), self.record(worse))

        found, overall, final = shown(Standing.REFUSED, why)
        said = "succeeded, accuracy 0.93, expected at most 0.01 below the published 0.95 (census_1163)"
        assert found == CommitStatus("failure", CONTEXT, f"{said} · run {HASH}")
        said = "below expectations: census · 0 of 1 succeeded · update 3"
        assert overall == CommitStatus("failure", "reconciler", said)
        assert not final, "the model in place may become a worse one"
        published, after, final = shown(Standing.IN_PLACE, None)
        assert (published.state, after.state, final) == ("success", "success", True)
        assert freshness(published, found) is freshness(after, overall) is Freshness.NEW

    def test_metric_without_value_is_missed(self) -> None:
        found, overall, final = self.single(self.view(accuracy=Missing.NO_FILE), self.record(GOOD))
        assert (found.state, overall.state, final) == ("failure", "failure", True)
        said = f"succeeded, accuracy is missing (the run wrote no metrics file) · run {HASH}"
        assert found.description == said

    def test_met_expectations_are_success_with_their_figures(self) -> None:
        found, overall, final = self.single(self.view(accuracy=0.95, loss=0.5), self.record(LOSS, GOOD))
        said = f"succeeded after 1 min 5 s, loss 0.5 (at most 1); accuracy 0.95 (at least 0.95) · run {HASH}"
        assert found == CommitStatus("success", CONTEXT, said)
        said = "1 of 1 succeeded · update 3"
        assert overall == CommitStatus("success", "reconciler", said)
        assert final

    def test_unread_metrics_are_pending_with_reason_until_they_are_read(self) -> None:
        record = self.record(LOSS, GOOD)
        for values in ({}, {"loss": 0.5}):
            found, overall, final = self.single(self.view(unread="no permission", **values), record)
            said = "succeeded, not judged yet: its metrics can't be read: no permission"
            assert found == CommitStatus("pending", CONTEXT, f"{said} · run {HASH}")
            said = "0 of 1 succeeded, 1 not judged yet · update 2"
            assert overall == CommitStatus("pending", "reconciler", said)
            assert not final
        unknown, _, final = self.single(self.view(), record)
        said = f"succeeded, not judged yet · run {HASH}"
        assert (unknown, final) == (CommitStatus("pending", CONTEXT, said), False)
        for accuracy in (0.9, 0.99):
            judged, after, _ = self.single(self.view(accuracy=accuracy, loss=0.5), record)
            assert freshness(judged, found) is freshness(after, overall) is Freshness.NEW
            assert freshness(found, judged) is freshness(overall, after) is Freshness.OLD

    def test_miss_is_final_though_another_metric_is_unread(self) -> None:
        view = self.view(unread="no permission", accuracy=0.9)
        found, _, final = self.single(view, self.record(LOSS, GOOD))
        assert (found.state, final) == ("failure", True)

    def test_commit_is_judged_by_its_own_expectation(self) -> None:
        newest = self.record(LOOSE, sha=OTHER, number=2)
        for accuracy, first, second in ((0.9, "failure", "success"), (0.99, "success", "success")):
            view = self.view(accuracy=accuracy)
            for record, state in ((self.record(GOOD), first), (newest, second)):
                found, overall, final = self.single(view, record, newest)
                assert (found.state, overall.state, final) == (state, state, True)
        found, _, _ = self.single(self.view(accuracy=0.1), self.record(), newest)
        assert (found.state, found.description) == ("success", f"succeeded after 1 min 5 s · run {HASH}")

    def test_job_of_earlier_commit_counts_behind_and_leaves_the_state(self) -> None:
        record = self.record(GOOD, sha=OTHER, number=2)
        job = structs.replace(record.jobs["census"], brought=False)
        record = structs.replace(record, jobs={"census": job})
        view = self.view(accuracy=0.9)
        due = due_statuses(view, record)
        assert due.by_commit.keys() == {OTHER}, "the commit that brought it isn't judged by this one"
        assert [s.over for s in due.by_commit[OTHER] if s.context == CONTEXT] == [Over.SOMETHING]
        overall = overall_status(view, record)
        said = "no job of its own · earlier: 1 below expectations · update 3"
        assert overall == CommitStatus("success", "reconciler", said)

    @pytest.mark.parametrize(
        ("accuracy", "expected", "said"),
        [
            (0.9, "failure", "superseded, succeeded, accuracy 0.9, expected at least 0.95"),
            (0.99, "success", "superseded, succeeded after 1 min 5 s, accuracy 0.99 (at least 0.95)"),
        ],
    )
    def test_superseded_content_keeps_its_verdict(self, accuracy: float, expected: str, said: str) -> None:
        other = wanted(content="b")
        view = self.view(desired=other, accuracy=accuracy)
        before = self.single(self.view(accuracy=accuracy), self.record(GOOD))
        found, overall, final = self.single(view, self.record(GOOD), bringing(other, number=2))
        assert (found.state, found.description) == (expected, f"{said} · run {HASH}")
        assert (overall.state, final) == (expected, True)
        assert [before[0].state, before[1]] == [expected, overall]

    def test_superseded_content_is_pending_until_it_is_judged(self) -> None:
        view = self.view(desired=wanted(content="b"), unread="no permission")
        found, _, final = self.single(view, self.record(GOOD), record_of(wanted(content="b"), number=2))
        said = "superseded, succeeded, not judged yet: its metrics can't be read: no permission"
        assert found == CommitStatus("pending", CONTEXT, f"{said} · run {HASH}")
        assert not final

    def test_job_that_was_suspended_since_keeps_its_verdict(self) -> None:
        view = self.view(desired=wanted(suspend=True), accuracy=0.9)
        found, _, _ = self.single(view, self.record(GOOD), record_of(number=2))
        said = f"succeeded, accuracy 0.9, expected at least 0.95 · run {HASH}"
        assert found == CommitStatus("failure", CONTEXT, said)

    @pytest.mark.parametrize(("accuracy", "expected"), [(0.9, "failure"), (0.99, "success")])
    def test_run_that_the_service_dropped_is_judged_by_its_recorded_metrics(
        self, accuracy: float, expected: str
    ) -> None:
        view = self.view(runs=(), accuracy=accuracy)
        found, overall, final = self.single(view, self.record(GOOD))
        assert (found.state, overall.state, final) == (expected, expected, True)
        listed, _, _ = self.single(self.view(accuracy=accuracy), self.record(GOOD))
        assert freshness(found, listed) is Freshness.KNOWN, "the run itself told more"
        assert freshness(found, structs.replace(listed, state="pending")) is Freshness.NEW

    @pytest.mark.parametrize("end", [State.RUNNING, State.FAILED, State.CANCELLED])
    def test_run_that_did_not_succeed_is_not_judged(self, end: State) -> None:
        run = structs.replace(self.run, state=end)
        view = self.view(runs=[run], claims=[bound_to(JOB, run, commit=ASKED)], accuracy=0.9)
        found = due_statuses(view, self.record(GOOD)).by_commit[ASKED]
        assert found == due_statuses(view, self.record()).by_commit[ASKED]

    @pytest.mark.parametrize(
        "text",
        [
            "\x1b[2J\x1b]0;t\x07a",
            "a\n::error::owned",
            "::error::owned",
            "`reconciler rm` @octocat #1",
            "\u202e\u2066\u200b\ud800\U0001f389",
            "m" * 1000,
            "é" * 1000,
            "\U0001f389" * 1000,
        ],
    )
    @pytest.mark.parametrize("is_met", [True, False])
    def test_hostile_names_leave_short_inert_statuses_with_mark_of_run(self, text: str, is_met: bool) -> None:
        files = Measured(None, Missing.TWO_VALUES, (text, text))
        metrics = {text: Measured(0.5), "accuracy": Measured(0.99) if is_met else files}
        view = self.view(unread=text)
        state = structs.replace(
            view.state, metrics={self.run.resource: RunMetrics("", self.run.resource, "", metrics)}
        )
        for seen in (replace(view, state=state), view):
            record = self.record(Expectation(text, max=1.0), GOOD)
            due = due_statuses(seen, record)
            (found,) = (s for s in due.by_commit[ASKED] if s.context == CONTEXT)
            assert found.state == ("pending" if seen is view else "success" if is_met else "failure")
            for said in (found, overall_status(seen, record)):
                assert 0 < len(said.description) <= 140
                assert not [
                    c for c in said.description if unicodedata.category(c) in ACTED_ON or c > "\uffff"
                ]
                assert not runner_finds_command(said.description)
            assert found.description.endswith(f" · run {HASH}")
            if len(text) == 1000:
                assert len(found.description) == 140

    def test_record_of_plan_has_what_manifests_expect(self) -> None:
        job = structs.replace(JOB, manifest=structs.replace(JOB.manifest, expect=(GOOD,)))
        blank = CommitRecord(OTHER, NOW, 5)
        first = record_for(plan([job]), blank, None, ["census"])
        assert first.jobs["census"].expect == (GOOD,)
        lower = structs.replace(JOB, manifest=structs.replace(JOB.manifest, expect=(LOOSE,)))
        assert record_for(plan([lower]), blank, first, ["census"]).jobs["census"].expect == (LOOSE,)

    def test_record_of_plan_has_where_jobs_are_published(self) -> None:
        publish = Publish("gs://models/census")
        blank = CommitRecord(OTHER, NOW, 5)
        first = record_for(plan([structs.replace(JOB, publish=publish)]), blank, None, ["census"])
        assert first.jobs["census"].publish == publish
        assert record_for(plan([JOB]), blank, first, ["census"]).jobs["census"].publish is None


class TestRollUp:
    """A single verdict over all jobs of a commit."""

    @pytest.mark.parametrize(
        ("census", "trees", "expected", "said"),
        [
            (State.SUCCEEDED, State.SUCCEEDED, "success", "2 of 2 succeeded · update 6"),
            (State.SUCCEEDED, State.RUNNING, "pending", "1 of 2 succeeded, 1 running · update 5"),
            (State.QUEUED, State.RUNNING, "pending", "0 of 2 succeeded, 1 queued, 1 running · update 4"),
            (
                State.RUNNING,
                State.FAILED,
                "failure",
                "failed: trees · 0 of 2 succeeded, 1 running · update 5",
            ),
            (
                State.FAILED,
                State.CANCELLED,
                "failure",
                "cancelled: trees; failed: census · 0 of 2 succeeded · update 6",
            ),
            (
                State.SUCCEEDED,
                State.CANCELLED,
                "error",
                "cancelled: trees · 1 of 2 succeeded · update 6",
            ),
        ],
    )
    def test_it_is_green_only_when_all_succeeded_and_red_as_soon_as_one_is(
        self, census: State, trees: State, expected: str, said: str
    ) -> None:
        job = structs.replace(JOB, manifest=structs.replace(JOB.manifest, reconcile=Reconcile()))
        runs = [run_of(job, census), run_of(TREES, trees, number=2)]
        claims = [bound_to(job, runs[0], commit=OTHER), bound_to(TREES, runs[1], commit=OTHER)]
        found = overall_status(view_of(runs, claims, [job, TREES]), bringing(job, TREES))
        assert (found.state, found.description) == (expected, said)

    def test_failed_job_of_an_earlier_commit_is_counted_behind_and_leaves_the_state(self) -> None:
        runs = [run_of(JOB, State.SUCCEEDED), run_of(TREES, State.FAILED, number=2)]
        claims = [bound_to(JOB, runs[0], commit=OTHER), bound_to(TREES, runs[1], commit=ASKED)]
        record = bringing(JOB)
        record = structs.replace(record, jobs={**record.jobs, **record_of(TREES).jobs})
        found = overall_status(view_of(runs, claims, [JOB, TREES]), record)
        assert (found.state, found.description) == (
            "success",
            "1 of 1 succeeded · earlier: 1 failed · update 6",
        )
        none = overall_status(view_of(runs, claims, [TREES]), record_of(TREES))
        assert (none.state, none.description.partition(" · update")[0]) == (
            "success",
            "no job of its own · earlier: 1 failed",
        )

    def test_reverted_job_is_shown_at_the_commit_that_brought_it_back_with_its_run(self) -> None:
        run = run_of(JOB, State.SUCCEEDED)
        found = due_statuses(view_of([run], [bound_to(JOB, run, commit=ASKED)]), bringing(JOB))
        shown = {
            sha: [(status.context, status.state) for status in statuses if status.over is not Over.SOMETHING]
            for sha, statuses in found.by_commit.items()
        }
        assert shown == {
            OTHER: [(CONTEXT, "success"), ("reconciler", "success")],
            ASKED: [(CONTEXT, "success")],
        }

    def test_job_that_was_replaced_before_it_ran_is_green_at_the_commit_that_brought_it(self) -> None:
        jobs = {
            "census": WantedJob(keys_of(JOB), replaced_by="c" * 40),
            "trees": WantedJob(keys_of(TREES)),
        }
        alone = CommitRecord(OTHER, NOW, jobs={"census": jobs["census"]})
        found = due_statuses(view_of([], [], [JOB]), alone, bringing(JOB, sha=ASKED, number=2))
        said = [(status.context, status.state, status.description) for status in found.by_commit[OTHER]]
        text = "replaced by ccccccc before it ran"
        assert said == [(CONTEXT, "success", text), ("reconciler", "success", text)]
        assert found.final
        run = run_of(TREES, State.SUCCEEDED)
        both = CommitRecord(OTHER, NOW, jobs=jobs)
        seen = view_of([run], [bound_to(TREES, run, commit=OTHER)], [TREES])
        verdict = overall_status(seen, both, bringing(TREES, sha=ASKED, number=2))
        assert verdict.state == "success"
        assert verdict.description.startswith("1 of 2 succeeded, 1 replaced by ccccccc before it ran")

    def test_passed_over_commit_with_invalid_manifests_has_its_own_error(self) -> None:
        record = CommitRecord(OTHER, NOW, problem="some manifests are not valid: 1")
        found = due_statuses(view_of([], []), record, bringing(JOB, sha=ASKED))
        (status,) = found.by_commit[OTHER]
        assert (status.state, status.context) == ("error", "reconciler")
        assert status.description == "some manifests are not valid: 1"

    def test_without_a_job_it_is_green(self) -> None:
        """Branch protection may require the status."""
        assert overall_status(view_of([], [], []), bringing()) == CommitStatus(
            "success", "reconciler", "no job of its own"
        )

    def test_a_failure_that_is_followed_by_another_attempt_is_not_the_end(self) -> None:
        failed = run_of(JOB, State.FAILED)
        found = due_statuses(view_of([failed], [bound_to(JOB, failed, commit=OTHER)]), bringing(JOB))
        single, verdict = found.by_commit[OTHER]
        assert (single.state, verdict.state, found.final) == ("failure", "pending", False)
        assert verdict.description == "0 of 1 succeeded, 1 to be retried · update 2"
        blocked = view_of([failed], [bound_to(JOB, failed, commit=OTHER)], problems={"census": "no quota"})
        assert overall_status(blocked, bringing(JOB)).description.startswith("not retried: census")

    @pytest.mark.fault(26)
    def test_it_never_goes_back(self) -> None:
        states = [State.QUEUED, State.RUNNING, State.SUCCEEDED]
        found = []
        for there in [[TREES], [TREES, JOB]]:
            for seen in states:
                runs = [run_of(job, seen, number=n) for n, job in enumerate(there, 1)]
                claims = [bound_to(j, r, commit=OTHER) for j, r in zip(there, runs, strict=True)]
                found.append(overall_status(view_of(runs, claims, [JOB, TREES]), bringing(JOB, TREES)))
        assert freshness(found[0], found[-1]) is Freshness.KNOWN, (
            "a job that waits says nothing over what is there"
        )
        for earlier in found[3:-1]:
            assert freshness(earlier, found[-1]) is Freshness.OLD
            assert freshness(found[-1], earlier) is Freshness.NEW

    def test_names_that_do_not_fit_are_counted(self) -> None:
        jobs = [wanted(f"a-job-with-a-rather-long-name-{n}") for n in range(9)]
        runs = [run_of(job, State.CANCELLED, number=n) for n, job in enumerate(jobs, 1)]
        claims = [bound_to(job, run, commit=OTHER) for job, run in zip(jobs, runs, strict=True)]
        found = overall_status(view_of(runs, claims, jobs), bringing(*jobs))
        assert found.description == "9 cancelled · 0 of 9 succeeded · update 27"

    def test_there_is_none_where_only_some_jobs_were_looked_at(self) -> None:
        found = due_statuses(view_of([], [], whole=False), bringing(JOB, whole=False))
        assert [status.context for status in found.by_commit[OTHER]] == [CONTEXT]

    def test_a_job_that_is_not_begun_hides_no_failure(self) -> None:
        failed = run_of(TREES, State.FAILED, number=2)
        seen = view_of([failed], [bound_to(TREES, failed, commit=OTHER)], [JOB, TREES])
        found = overall_status(seen, bringing(JOB, TREES))
        assert (found.state, found.over) == ("failure", Over.ANYTHING)

    def test_a_failure_is_not_the_end_where_nobody_looked_at_its_attempts(self) -> None:
        failed = run_of(JOB, State.FAILED)
        seen = view_of([failed], [bound_to(JOB, failed, commit=OTHER)], [TREES], whole=False)
        assert not due_statuses(seen, bringing(JOB)).final
        seen = replace(seen, plan=structs.replace(seen.plan, whole=True))
        assert due_statuses(seen, bringing(JOB)).final


class TestSuperseded:
    """Statuses of jobs that a later commit replaced."""

    OLDER = wanted(content="older")
    RECORD = record_of(OLDER, sha=ASKED)
    NEWEST = record_of(JOB, number=2)

    def single(self, runs: Iterable[ActualJob], claims: Iterable[Claim]) -> tuple[CommitStatus, bool]:
        found = due_statuses(view_of(runs, claims), self.RECORD, self.NEWEST)
        return found.by_commit[ASKED][0], found.final

    def test_before_it_was_submitted(self) -> None:
        found, final = self.single([], [])
        assert (found.state, found.description) == ("error", "superseded before it was submitted")
        assert final
        claim = claim_on(self.OLDER, ClaimState.REJECTED, commit=ASKED, error="no quota")
        found, final = self.single([], [claim])
        assert found.description.startswith("superseded before it was submitted · run ")
        assert final

    @pytest.mark.parametrize(
        ("state", "expected", "said"),
        [
            (State.RUNNING, "pending", "superseded, running"),
            (State.CANCELLED, "error", "superseded, cancelled on request"),
            (State.SUCCEEDED, "success", "superseded, succeeded"),
        ],
    )
    def test_its_run_is_followed_to_the_end(self, state: State, expected: str, said: str) -> None:
        run = run_of(self.OLDER, state)
        found, final = self.single([run], [bound_to(self.OLDER, run, commit=ASKED)])
        assert (found.state, found.description.partition(" · ")[0]) == (expected, said)
        assert final == state.ended

    def test_an_older_checkout_calls_nothing_newer_superseded(self) -> None:
        """The older checkout may be slow: its manifests aren't the desired state now."""
        view = view_of([], [], [self.OLDER], commit=ASKED)
        single = due_statuses(view, self.NEWEST, self.NEWEST).by_commit[OTHER][0]
        assert (single.state, single.over) == ("pending", Over.NOTHING)

    def test_a_commit_that_was_passed_over_is_told_by_which(self) -> None:
        record = CommitRecord(ASKED, NOW, superseded_by=OTHER)
        found = due_statuses(view_of([], []), record, self.NEWEST)
        said = "applied as part of bbbbbbb"
        status = CommitStatus("success", "reconciler", said, over=Over.NOTHING)
        assert found.by_commit == {ASKED: [status]}
        assert found.final

    def test_a_job_that_was_suspended_since(self) -> None:
        suspended = wanted(suspend=True)
        same = structs.replace(self.RECORD, jobs={"census": WantedJob(keys_of(suspended))})
        found = due_statuses(view_of([], [], [suspended]), same, record_of(number=2))
        assert found.by_commit[ASKED][0].description == "suspended before it was submitted"

    def test_an_older_checkout_calls_nothing_newer_suspended(self) -> None:
        suspended = wanted(suspend=True)
        view = view_of([], [], [suspended], commit=ASKED)
        single = due_statuses(view, self.NEWEST, self.NEWEST).by_commit[OTHER][0]
        assert (single.state, single.over) == ("pending", Over.NOTHING)


class TestStopped:
    """Content that apply stopped for another commit, and that a third commit brought back."""

    BY = by_apply("superseded by census_0123456789abcdef (onChange: cancel)")
    GOOD, BAD, REVERT = (letter * 40 for letter in "abc")
    FIRST = run_of(JOB, State.CANCELLED, cancelled=BY)
    CLAIM = bound_to(JOB, FIRST, commit=GOOD, error=BY)

    def second(self, state: State) -> tuple[list[ActualJob], list[Claim]]:
        run = run_of(JOB, state, 2, number=2)
        return [self.FIRST, run], [self.CLAIM, bound_to(JOB, run, 2, commit=self.REVERT)]

    def records(self) -> tuple[CommitRecord, CommitRecord]:
        """Return the records of the first commit, and of the commit that wants its content again."""
        good = bringing(JOB, sha=self.GOOD)
        return good, bringing(JOB, sha=self.REVERT, number=3, applied=(self.GOOD, self.BAD))

    def shown(
        self,
        record: CommitRecord,
        runs: list[ActualJob],
        claims: list[Claim],
        newest: CommitRecord | None = None,
        before: Collection[tuple[str, str]] = (),
        **view: Any,
    ) -> dict[tuple[str, str], tuple[str, str]]:
        """Return state and description by commit and context; contexts in `before` have earlier statuses."""
        due = due_statuses(view_of(runs, claims, **view), record, newest or self.records()[1])
        return {
            (sha, status.context): (status.state, status.description.partition(" · ")[0])
            for sha, statuses in due.by_commit.items()
            for status in statuses
            if status.over is not Over.SOMETHING or (sha, status.context) in before
        }

    def test_the_first_commit_keeps_its_end_and_the_other_waits(self) -> None:
        good, revert = self.records()
        stopped = ("error", f"superseded, {self.BY}")
        assert self.shown(good, [self.FIRST], [self.CLAIM]) == {
            (self.GOOD, CONTEXT): stopped,
            (self.GOOD, "reconciler"): ("error", "cancelled: census"),
        }
        assert self.shown(revert, [self.FIRST], [self.CLAIM]) == {
            (self.REVERT, CONTEXT): ("pending", "not submitted yet"),
            (self.REVERT, "reconciler"): ("pending", "0 of 1 succeeded, 1 not submitted yet"),
        }

    @pytest.mark.parametrize(
        ("state", "expected"),
        [(State.RUNNING, "pending"), (State.SUCCEEDED, "success"), (State.FAILED, "failure")],
    )
    def test_the_new_attempt_is_told_to_the_commit_that_brought_it_back(
        self, state: State, expected: str
    ) -> None:
        good, revert = self.records()
        runs, claims = self.second(state)
        told = self.shown(good, runs, claims)
        assert told.keys() == {(self.GOOD, CONTEXT), (self.GOOD, "reconciler")}
        assert {state for state, _ in told.values()} == {"error"}
        told = self.shown(revert, runs, claims, desired=[wanted()])
        assert told.keys() == {(self.REVERT, CONTEXT), (self.REVERT, "reconciler")}
        assert {state for state, _ in told.values()} == {expected}

    def test_a_later_commit_with_the_content_shows_the_new_attempt(self) -> None:
        runs, claims = self.second(State.SUCCEEDED)
        later = bringing(JOB, sha="d" * 40, number=4, applied=(self.GOOD, self.BAD, self.REVERT))
        told = self.shown(later, runs, claims)
        assert told["d" * 40, "reconciler"][0] == "success"
        # The same holds if its list of earlier commits is cut off, or the attempt carries no commit.
        claims[1] = structs.replace(claims[1], commit="")
        later = structs.replace(later, applied=(), since=NOW + timedelta(days=9))
        assert self.shown(later, runs, claims)["d" * 40, "reconciler"][0] == "success"
        # A claim without a run has no time.
        pending = claim_on(JOB, ClaimState.PENDING, 2, commit=self.REVERT)
        later = structs.replace(later, applied=(self.REVERT,))
        told = self.shown(later, [self.FIRST], [self.CLAIM, pending])
        assert told["d" * 40, "reconciler"][0] == "pending"

    def test_a_commit_whose_content_a_later_one_brought_back_follows_it(self) -> None:
        """Its own apply submitted no job: for example, the run was still being cancelled."""
        waited = bringing(JOB, sha="d" * 40, number=2, applied=(self.GOOD, self.BAD))
        single, verdict = ("d" * 40, CONTEXT), ("d" * 40, "reconciler")
        cancelling = structs.replace(self.FIRST, state=State.CANCELLING)
        told = self.shown(waited, [cancelling], [self.CLAIM])
        assert told[verdict] == ("pending", "0 of 1 succeeded, 1 cancelling")
        told = self.shown(waited, [self.FIRST], [self.CLAIM])
        assert told[single] == ("pending", "not submitted yet")
        assert told[verdict] == ("pending", "0 of 1 succeeded, 1 not submitted yet")
        runs, claims = self.second(State.SUCCEEDED)
        told = self.shown(waited, runs, claims, before=[single])
        assert told[single] == ("success", "succeeded")
        assert told[verdict] == ("success", "1 of 1 succeeded")

    def test_a_commit_that_waited_is_red_once_another_one_wants_other_content(self) -> None:
        waited = bringing(JOB, sha="d" * 40, number=2, applied=(self.GOOD, self.BAD))
        newest = bringing(wanted(content="b"), sha="e" * 40, number=4)
        told = self.shown(waited, [self.FIRST], [self.CLAIM], newest, before=[("d" * 40, CONTEXT)])
        assert told["d" * 40, CONTEXT] == ("error", f"superseded, {self.BY}")
        assert told["d" * 40, "reconciler"] == ("error", "cancelled: census")

    def test_the_newest_commit_shows_the_newest_turn_though_an_earlier_one_was_its_own(self) -> None:
        runs, claims = self.second(State.RUNNING)
        again = bringing(JOB, sha=self.GOOD, number=4, applied=(self.BAD, self.REVERT))
        told = self.shown(again, runs, claims, again, before=[(self.GOOD, CONTEXT)])
        assert {state for state, _ in told.values()} == {"pending"}
        assert told.keys() == {
            (self.REVERT, CONTEXT),
            (self.GOOD, CONTEXT),
            (self.GOOD, "reconciler"),
        }
        # Replaced in its turn, it doesn't go back to its earlier end.
        newest = bringing(wanted(content="b"), sha="e" * 40, number=5)
        told = self.shown(again, *self.second(State.SUCCEEDED), newest, before=[(self.GOOD, CONTEXT)])
        assert told[self.GOOD, CONTEXT] == ("success", "superseded, succeeded")
        assert told[self.GOOD, "reconciler"] == ("success", "1 of 1 succeeded")

    def test_a_commit_that_began_a_turn_keeps_its_end_when_an_older_one_is_applied_again(self) -> None:
        stopped = run_of(JOB, State.CANCELLED, 2, number=2, cancelled=self.BY)
        third = run_of(JOB, State.SUCCEEDED, 3, number=3)
        claims = [
            self.CLAIM,
            bound_to(JOB, stopped, 2, commit=self.REVERT, error=self.BY),
            bound_to(JOB, third, 3, commit=self.GOOD),
        ]
        again, revert = self.records()
        again = structs.replace(again, number=4)
        runs = [self.FIRST, stopped, third]
        assert self.shown(revert, runs, claims, again)[self.REVERT, "reconciler"][0] == "error"
        assert self.shown(again, runs, claims, again)[self.GOOD, "reconciler"][0] == "success"

    def test_an_apply_of_other_jobs_leaves_it_open(self) -> None:
        _, revert = self.records()
        told = self.shown(revert, [self.FIRST], [self.CLAIM], desired=[TREES], whole=False)
        assert {sha for sha, _ in told} == {self.REVERT}
        assert {state for state, _ in told.values()} == {"pending"}

    def test_content_that_does_not_come_back_is_red_at_the_commit_that_wants_it(self) -> None:
        _, revert = self.records()
        by_hand = [structs.replace(self.CLAIM, error=BY_COMMAND)]
        run = structs.replace(self.FIRST, cancelled=BY_COMMAND)
        assert self.shown(revert, [run], by_hand)[self.REVERT, "reconciler"] == (
            "error",
            "cancelled: census",
        )

    def test_a_blocked_return_is_told_with_its_reason(self) -> None:
        _, revert = self.records()
        stranger = run_of(JOB, State.RUNNING, number=5, mark="unknown")
        told = self.shown(revert, [self.FIRST, stranger], [self.CLAIM])
        state, said = told[self.REVERT, CONTEXT]
        assert (state, self.GOOD in {sha for sha, _ in told}) == ("error", False)
        assert "no recorded request" in said

    def test_duplicates_of_the_new_attempt_are_told_to_its_commit(self) -> None:
        runs, claims = self.second(State.SUCCEEDED)
        view = view_of([*runs, run_of(JOB, State.CANCELLED, 2, number=3)], claims)
        assert duplicate_statuses(view).keys() == {self.REVERT}
        good, revert = (structs.replace(record, closed=True) for record in self.records())
        assert reopened(view, good, revert) == good
        assert not reopened(view, revert, revert).closed


class TestManyJobs:
    """Above a number of jobs, or by the settings, there is only the verdict."""

    @pytest.mark.parametrize(
        ("count", "each", "expected"),
        [(20, None, True), (21, None, False), (1, False, False), (21, True, True)],
    )
    def test_only_what_was_begun_is_followed(self, count: int, each: bool | None, expected: bool) -> None:
        jobs = [wanted(f"job-{n}") for n in range(count)]
        runs = [run_of(job, State.RUNNING, number=n % 28 + 1) for n, job in enumerate(jobs)]
        runs = [structs.replace(run, resource=f"{run.resource}-{n}") for n, run in enumerate(runs)]
        claims = [bound_to(job, run, commit=OTHER) for job, run in zip(jobs, runs, strict=True)]
        found = due_statuses(view_of(runs, claims, jobs, each=each), record_of(*jobs)).by_commit[OTHER]
        singles = [status for status in found if status.context != "reconciler"]
        assert len(singles) == count
        assert all((status.over is Over.ANYTHING) == expected for status in singles)
        begun = structs.replace(singles[0], description="begun")
        assert freshness(singles[0], None) is (Freshness.NEW if expected else Freshness.KNOWN)
        assert freshness(singles[0], begun) is Freshness.NEW


def test_settled_jobs_of_earlier_commits_are_left_to_those() -> None:
    run = run_of(JOB, State.SUCCEEDED)
    claim = bound_to(JOB, run, commit=ASKED)
    settled = structs.replace(record_of(JOB), jobs={"census": WantedJob(keys_of(JOB), settled=True)})
    assert due_statuses(view_of([run], [claim]), record_of(JOB)).by_commit.keys() == {ASKED, OTHER}
    assert due_statuses(view_of([run], [claim]), settled).by_commit.keys() == {OTHER}


def test_the_drift_is_told_with_its_first_findings() -> None:
    assert drift_status(CONTEXTS, []) == CommitStatus("success", "reconciler drift", "no drift")
    findings = [Drift(DriftKind.ORPHANED, f"census_{n}", "census", noting("")) for n in range(20)]
    one, many = drift_status(CONTEXTS, findings[:1]), drift_status(CONTEXTS, findings)
    assert (one.state, one.description) == ("failure", "1 finding: orphaned census_0")
    assert many.description.startswith("20 findings: orphaned census_0; orphaned census_1; ")
    assert len(many.description) <= 140


@pytest.mark.parametrize(
    ("written", "environment", "overall", "drift"),
    [
        ({}, "local", "reconciler", "reconciler drift"),
        ({"prod": {}}, "prod", "reconciler", "reconciler drift"),
        ({"prod": {}}, "local", "reconciler/local", "reconciler/local drift"),
        ({"prod": {}, "test": {}}, "test", "reconciler/test", "reconciler/test drift"),
    ],
)
def test_one_environment_has_the_plain_context(
    written: dict[str, Any], environment: str, overall: str, drift: str
) -> None:
    found = contexts_of(from_document(Path(), {"environments": written}), environment)
    assert (found.overall, found.drift) == (overall, drift)


ALL = ("census", "trees", "asleep")
"""The commit brought all of its jobs."""


class TestRecord:
    """The statuses due for a commit, as recorded before its plan is carried out."""

    BLANK = CommitRecord(OTHER, NOW, number=5)

    def test_it_holds_the_wanted_jobs_and_what_is_over_already(self) -> None:
        ended, live = run_of(JOB, State.SUCCEEDED), run_of(TREES, State.RUNNING, number=2)
        asleep = wanted("asleep", suspend=True)
        found = record_for(
            plan([JOB, TREES, asleep], [ended, live], [bound_to(JOB, ended), bound_to(TREES, live)]),
            self.BLANK,
            None,
            ALL,
        )
        assert found == CommitRecord(
            OTHER, NOW, 5, {"census": WantedJob(keys_of(JOB), True), "trees": WantedJob(keys_of(TREES))}
        )

    def test_what_is_still_owed_is_not_settled_by_having_ended_meanwhile(self) -> None:
        first = record_for(plan([JOB]), self.BLANK, None, ALL)
        ended = run_of(JOB, State.SUCCEEDED)
        again = plan([JOB], [ended], [bound_to(JOB, ended)])
        assert record_for(again, self.BLANK, first, ALL) == first
        closed = structs.replace(first, closed=True)
        assert record_for(again, self.BLANK, closed, ALL) == closed, "nothing is owed any more"
        assert not record_for(plan([JOB]), self.BLANK, closed, ALL).closed, "it is submitted once more"

    def test_it_moves_to_the_front_when_it_is_applied_again(self) -> None:
        older = record_for(plan([JOB]), structs.replace(self.BLANK, number=2), None, ALL)
        assert record_for(plan([JOB]), self.BLANK, older, ALL).number == 5
        passed_over = CommitRecord(OTHER, NOW, superseded_by=ASKED, closed=True)
        applied = record_for(plan([JOB]), self.BLANK, passed_over, ALL)
        assert (applied.superseded_by, applied.closed, applied.whole) == ("", False, True)

    def test_job_that_the_commit_brought_counts_for_it_when_it_is_applied_again(self) -> None:
        first = record_for(plan([JOB]), self.BLANK, None, ALL)
        for before in (first, structs.replace(first, closed=True)):
            again = record_for(plan([JOB]), structs.replace(self.BLANK, number=7), before, ())
            assert again.jobs["census"].brought

    def test_part_of_a_commit_that_was_passed_over_is_not_all_of_it(self) -> None:
        passed_over = CommitRecord(OTHER, NOW, superseded_by=ASKED)
        assert not record_for(plan([JOB], whole=False), self.BLANK, passed_over, ALL).whole

    def test_parts_of_the_jobs_are_added_to_the_others(self) -> None:
        part = record_for(plan([JOB], whole=False), self.BLANK, None, ALL)
        assert not part.whole
        both = record_for(plan([TREES], whole=False), self.BLANK, part, ALL)
        assert both.jobs.keys() == {"census", "trees"}
        whole = record_for(plan([TREES]), self.BLANK, both, ALL)
        assert (whole.jobs.keys(), whole.whole) == ({"trees"}, True)
        assert record_for(plan([JOB], whole=False), self.BLANK, whole, ALL).whole

    def test_it_is_read_back_as_it_was_written(self) -> None:
        found = record_for(plan([JOB, TREES]), self.BLANK, None, ALL)
        assert record_of_json(json.loads(json.dumps(record_json(found)))) == found

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("formatVersion", 2),
            ("sha", 1),
            ("since", "2026-01-01"),
            ("number", True),
            ("jobs", []),
            ("closed", None),
        ],
    )
    def test_what_is_no_record_is_an_error(self, field: str, value: Any) -> None:
        said = {**record_json(self.BLANK), field: value}
        if field == "closed":
            del said["closed"]
        with pytest.raises(ValueError, match=r"version|field|zone|date"):
            record_of_json(said)


class TestSubmittedTwice:
    """Duplicate jobs are reported even if no status was due any more."""

    RUNS = (run_of(JOB, State.SUCCEEDED, number=1), run_of(JOB, State.CANCELLED, number=2))

    def test_the_commit_that_asked_for_it_is_told(self) -> None:
        view = view_of(self.RUNS, [bound_to(JOB, self.RUNS[0], commit=ASKED)])
        said = CommitStatus("error", CONTEXT, "attempt 1 has 2 jobs: 1, 2")
        assert duplicate_statuses(view) == {ASKED: [said]}
        assert duplicate_statuses(view_of(self.RUNS, [bound_to(JOB, self.RUNS[0], commit="")])) == {}
        assert duplicate_statuses(view_of(self.RUNS[:1], [bound_to(JOB, self.RUNS[0], commit=ASKED)])) == {}
        assert duplicate_statuses(view_of(self.RUNS, [])) == {}, "nobody knows which requests were ours"

    def test_overall_status_names_the_job_that_was_submitted_twice(self) -> None:
        view = view_of(self.RUNS, [bound_to(JOB, self.RUNS[0], commit=ASKED)], [JOB])
        found = overall_status(view, bringing(JOB))
        assert found.state == "error"
        assert found.description.startswith("submitted twice: census")

    def test_the_newest_record_is_opened_again_for_it_alone(self) -> None:
        jobs = {"census": WantedJob(keys_of(JOB), True), "trees": WantedJob(keys_of(TREES), True)}
        record = CommitRecord(OTHER, NOW, 1, jobs, closed=True)
        trees = run_of(TREES, State.SUCCEEDED, number=3)
        claims = [bound_to(JOB, self.RUNS[0], commit=ASKED), bound_to(TREES, trees, commit=ASKED)]
        twice = view_of([*self.RUNS, trees], claims, [JOB, TREES])
        opened = {**jobs, "census": WantedJob(keys_of(JOB))}
        assert reopened(twice, record, record) == structs.replace(record, jobs=opened, closed=False)
        once = view_of([self.RUNS[0], trees], claims, [JOB, TREES])
        assert reopened(once, record, record) == record
        assert reopened(once, structs.replace(record, closed=False), record) == structs.replace(
            record, closed=False
        )


def test_the_digest_of_what_is_told_changes_with_each_part_of_it() -> None:
    said = CommitStatus("pending", CONTEXT, "running", "https://x")
    others = [
        structs.replace(said, **{name: "error"}) for name in ("state", "context", "description", "target_url")
    ]
    due = [DueStatuses({ASKED: [status]}, final=False) for status in (said, *others)]
    due += [DueStatuses({OTHER: [said]}, final=False), DueStatuses({ASKED: [said, said]}, final=False)]
    assert len({each.digest for each in due}) == len(due)
    assert (
        DueStatuses({ASKED: [said], OTHER: []}, False).digest
        == DueStatuses({OTHER: [], ASKED: [said]}, True).digest
    )


def test_a_commit_is_told_in_full_only_when_each_of_its_jobs_is() -> None:
    done, running = run_of(JOB, State.SUCCEEDED), run_of(TREES, State.RUNNING, number=2)
    claims = [bound_to(JOB, done, commit=OTHER), bound_to(TREES, running, commit=OTHER)]
    assert not due_statuses(view_of([done, running], claims, [JOB, TREES]), record_of(JOB, TREES)).final
