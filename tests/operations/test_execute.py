"""Execution of a plan: order, pace, unknown outcomes, checked cancels, and the resulting claims."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base.concurrency import run_concurrently
from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.manifests.settings import Config, Environment
from reconciler.model import claim
from reconciler.model.claim import BY_COMMAND, Claim, ClaimId, ClaimState, rerun_digest
from reconciler.model.job import ATTEMPT, COMMIT, INSTANCE, REQUEST_ID, ActualJob, State, labels_digest
from reconciler.model.manifest import Reconcile
from reconciler.model.naming import label_of
from reconciler.model.plan import DesiredJob, DriftKind
from reconciler.model.ports import NotSent, Refused, Unknown
from reconciler.model.reason import Reason, ReasonCode, because, unsettled_reason
from reconciler.operations.execute import Applier, applier_of
from reconciler.operations.load_desired import Desired
from reconciler.operations.origin import NO_ORIGIN
from reconciler.operations.session import Session
from reconciler.operations.wait import awaited, wait
from reconciler.output.wording.plan import outcome_error, reason_text
from reconciler.packaging.sdist import Sdist
from reconciler.planning import attempts as attempts_of
from reconciler.planning.outcome import Outcome, Status, SubmitProgress
from reconciler.submission import claims_upkeep
from reconciler.submission.claims_upkeep import record_cancel
from reconciler.submission.observe import observe
from tests.support.applying import body_of, plan_of
from tests.support.in_memory import session_over
from tests.support.memory_ports import BOUNDS, Outside
from tests.support.planning import reason_of, wanted

OLDER = because(ReasonCode.WITHHELD, relation="older", commit="c" * 40)


@pytest.fixture
def outside() -> Outside:
    return Outside()


def applier(outside: Outside, **settings: Any) -> Applier:
    return Applier(outside.ports, body_of, **{"commit_of": lambda job: "c0ffee", "patience": 0.0, **settings})


def apply(outside: Outside, *jobs: DesiredJob, **settings: Any) -> list[Outcome]:
    """Run a complete pass."""
    acts = applier(outside, **settings)
    outcomes = list(acts.run(plan_of(outside, jobs)))
    acts.upkeep(jobs, observe(outside.ports))
    return outcomes


def told(outcomes: Iterable[Outcome]) -> list[tuple[str, str, str | None]]:
    return [(str(o.change.action), str(o.status), o.state and str(o.state)) for o in outcomes]


def claim_of_job(outside: Outside, job: DesiredJob, attempt: int = 1) -> Claim:
    return outside.claims.held[ClaimId(label_of(job.identity), attempt)].claim


def job_of(outside: Outside, job: DesiredJob) -> ActualJob:
    resource = claim_of_job(outside, job).resource
    return next(run for run in outside.jobs.jobs if run.resource == resource)


def test_a_submission_is_claimed_with_all_that_the_manifest_says(outside: Outside) -> None:
    job = wanted(attempts=2, rerun="x", on_delete="cancel")
    (outcome,) = apply(outside, job)
    assert told([outcome]) == [("submit", "applied", "QUEUED")]
    claim = claim_of_job(outside, job)
    assert (claim.job_name, claim.base_name, claim.path) == (job.job_name, "census", "jobs/census.yaml")
    assert (claim.api_version, claim.kind) == (job.manifest.api_version, "CustomJob")
    assert (claim.on_delete, claim.commit, claim.rerun) == ("cancel", "c0ffee", rerun_digest("x"))
    labels = job_of(outside, job).labels
    assert labels == {
        "reconciler-source": "acme",
        "reconciler-key": label_of(job.identity),
        "reconciler-attempt": "1",
        "reconciler-commit": "c0ffee",
        "reconciler-try": claim.request_ids[0],
    }


def test_a_second_pass_does_nothing(outside: Outside) -> None:
    jobs = [wanted("a"), wanted("b")]
    apply(outside, *jobs)
    assert apply(outside, *jobs) == []
    assert plan_of(outside, jobs).drift == ()
    assert len(outside.jobs.sent) == 2


def test_code_and_no_commit_are_in_the_labels(outside: Outside) -> None:
    job = wanted(code="def f(): ...")
    apply(outside, job, commit_of=lambda job: "")
    labels = job_of(outside, job).labels
    assert labels["reconciler-code"] == label_of(job.code)
    assert "reconciler-commit" not in labels


def test_submissions_of_one_apply_are_announced_in_a_single_write() -> None:
    outside = Outside(least_history=0)
    apply(outside, wanted("a"), wanted("b"))
    assert len(outside.jobs.sent) == 2
    assert outside.claims.stored[1] == 1


def test_what_cannot_be_staged_is_not_claimed(outside: Outside) -> None:
    def stage(job: DesiredJob) -> None:
        if job.manifest.name == "a":
            raise ServiceError("no bucket", hint="make one")

    first, second = apply(outside, wanted("a"), wanted("b"), stage=stage)
    assert (first.status, outcome_error(first)) == (Status.FAILED, "no bucket (make one)")
    assert second.status is Status.APPLIED
    assert len(outside.claims.held) == 1


@pytest.mark.fault(49)
def test_a_quota_that_ends_in_the_middle_leaves_the_rest_to_be_seen(outside: Outside) -> None:
    jobs = [wanted(f"job-{number}") for number in range(10)]
    quota = Refused(429, "RESOURCE_EXHAUSTED", "60 submissions a minute")
    outside.jobs.answers = ["", "", "", *[quota] * 7]
    outcomes = apply(outside, *jobs)
    assert [outcome.status for outcome in outcomes] == [
        *[Status.APPLIED] * 3,
        *[Status.SKIPPED] * 6,
        Status.FAILED,
    ]
    assert {outcome_error(outcome) for outcome in outcomes[3:9]} == {
        "not submitted, as the service accepts no more now: 60 submissions a minute"
    }
    assert outcome_error(outcomes[-1]) == "60 submissions a minute; not submitted again before 00:00:30 UTC"
    # The quota is shared: no other job was sent or claimed.
    assert (len(outside.jobs.sent), len(outside.claims.held)) == (4, 4)
    # A refused job isn't sent too early; later the rest is sent, under the same names.
    assert apply(outside, *jobs)[-1].status is Status.FAILED
    assert len(outside.jobs.sent) == 5
    outside.time.now += timedelta(hours=1)
    outside.jobs.answers = []
    assert [outcome.status for outcome in apply(outside, *jobs)] == [Status.APPLIED] * 7
    assert len({run.job_name for run in outside.jobs.jobs}) == len(outside.jobs.jobs) == 10


@pytest.mark.fault(4)
def test_a_quota_is_waited_for_within_patience(outside: Outside) -> None:
    jobs = [wanted(f"job-{number}") for number in range(4)]
    outside.jobs.answers = ["", Refused(429, "RESOURCE_EXHAUSTED", "60 submissions a minute")]
    lines: list[str] = []
    outcomes = apply(outside, *jobs, patience=60.0, pause=15.0, on_wait=lines.append)
    assert [outcome.status for outcome in outcomes] == [Status.APPLIED] * 4
    assert [body["displayName"] for body, _ in outside.jobs.sent] == [
        job.job_name for job in (*jobs, jobs[1])
    ]
    assert sum(outside.time.slept) == 30.0
    assert lines == [
        "the service accepts no more submissions now (60 submissions a minute); trying again in 30 s"
    ]


def test_a_quota_that_stays_used_up_is_asked_for_more_and_more_seldom(outside: Outside) -> None:
    moments = []
    quota = Refused(429, "RESOURCE_EXHAUSTED", "60 submissions a minute")

    def create(*request: Any) -> Any:
        moments.append(outside.time.monotonic())
        return quota

    outside.jobs.create = create  # type: ignore[method-assign]
    lines: list[str] = []
    outcomes = apply(outside, *[wanted(f"job-{n}") for n in range(8)], patience=300.0, on_wait=lines.append)
    assert {outcome.status for outcome in outcomes} == {Status.FAILED, Status.SKIPPED}
    # The wait applies to all jobs, independent of the job that is next.
    assert [round(moment - moments[0]) for moment in moments] == [0, 30, 90, 210]
    assert lines[-1].endswith("; the next apply submits the rest")


def test_what_is_refused_for_itself_holds_up_nothing(outside: Outside) -> None:
    outside.jobs.answers = [Refused(400, "INVALID_ARGUMENT", "no such machine"), Refused(403, "", "no")]
    outcomes = apply(outside, *[wanted(f"job-{number}") for number in range(4)], patience=60.0)
    assert sorted(outcome.status for outcome in outcomes) == ["applied", "applied", "failed", "failed"]
    assert outside.time.slept == []


def test_many_unknown_outcomes_are_waited_for_at_once(outside: Outside) -> None:
    """The later jobs aren't delayed until the patience for the first is over."""
    jobs = [wanted(f"job-{number}") for number in range(20)]
    outside.jobs.answers = ["lost"] * 20
    outside.jobs.hidden = {f"projects/acme/locations/here/customJobs/{number}" for number in range(1, 21)}

    def sleep(seconds: float) -> None:
        outside.time.now += timedelta(seconds=seconds)
        outside.time.slept.append(seconds)
        if len(outside.time.slept) == 2:
            outside.jobs.hidden = {"projects/acme/locations/here/customJobs/1"}

    outside.time.sleep = sleep  # type: ignore[method-assign]
    outcomes = apply(outside, *jobs, patience=60.0, pause=15.0)
    assert [outcome.status for outcome in outcomes] == [*[Status.APPLIED] * 19, Status.FAILED]
    assert outside.time.slept == [15.0] * 4
    assert len(outside.jobs.sent) == 20


def test_how_far_they_have_come_is_told(outside: Outside) -> None:
    seen: list[SubmitProgress] = []
    outside.jobs.answers = ["", Refused(400, "INVALID_ARGUMENT", "no"), "lost"]
    outside.jobs.hidden.add("projects/acme/locations/here/customJobs/2")
    ports = replace(outside.ports, bounds=replace(BOUNDS, pace=2.0))
    acts = dataclasses.replace(applier(outside, listener=seen.append), ports=ports)
    list(acts.run(plan_of(outside, [wanted(f"job-{number}") for number in range(3)])))
    assert [(one.done, one.failed, one.open) for one in seen] == [
        (0, 0, 0),
        (1, 0, 0),
        (2, 1, 0),
        (2, 1, 1),
        (2, 1, 1),
        (3, 2, 0),
    ]
    assert {one.total for one in seen} == {3}
    assert (seen[0].left, seen[1].left, seen[-1].left) == (6.0, 4.0, 0.0)


def test_creates_keep_their_pace(outside: Outside) -> None:
    jobs = [wanted("a"), wanted("b"), wanted("c")]
    ports = replace(outside.ports, bounds=replace(BOUNDS, pace=1.5))
    list(dataclasses.replace(applier(outside), ports=ports).run(plan_of(outside, jobs)))
    assert outside.time.slept == [1.5, 1.5]


@pytest.mark.fault(2)
def test_an_unknown_outcome_is_waited_for_as_long_as_patience_lasts(outside: Outside) -> None:
    outside.jobs.answers = ["lost"]
    outside.jobs.hidden.add("projects/acme/locations/here/customJobs/1")
    (outcome,) = apply(outside, wanted(), patience=60.0, pause=15.0)
    assert outside.time.slept == [15.0] * 4
    assert outcome.status is Status.FAILED
    assert outcome_error(outcome) == (
        "it is not known whether a job was created: the next apply after 00:03:00 UTC finds out"
    )
    outside.jobs.hidden.clear()
    assert told(apply(outside, wanted())) == [("submit", "applied", "QUEUED")]
    assert len(outside.jobs.sent) == 1


def test_with_patience_it_is_settled_at_once(outside: Outside) -> None:
    outside.jobs.answers = [Unknown("?")]
    lines: list[str] = []
    outcomes = apply(outside, wanted(), patience=3600.0, pause=15.0, on_wait=lines.append)
    assert told(outcomes) == [("submit", "applied", "QUEUED")]
    assert len(outside.jobs.sent) == 2
    said = "its request may have created a job; looking for it until 00:03:00 UTC at the latest"
    assert lines == [f"{wanted().job_name}: {said}"]


def test_a_store_that_fails_while_waiting_fails_that_submission_only(outside: Outside) -> None:
    outside.jobs.answers = [Unknown("?"), Unknown("?")]
    times = iter([ServiceError("the store is away")])
    original = outside.claims.read

    def read(id: ClaimId) -> Any:
        if len(outside.jobs.sent) == 2 and (error := next(times, None)):
            raise error
        return original(id)

    outside.claims.read = read  # type: ignore[method-assign]
    first, second = apply(outside, wanted("a"), wanted("b"))
    assert {first.status, second.status} == {Status.FAILED}
    assert outcome_error(first) == "the store is away"
    assert outcome_error(second).startswith("it is not known whether a job was created")


def test_what_a_held_submission_needs_is_said(outside: Outside) -> None:
    job = wanted()
    made = body_of(job, job.job_name, {"reconciler-source": "acme", "reconciler-key": label_of(job.identity)})
    outside.jobs.add({**made, "jobSpec": {"args": ["other"]}})
    (outcome,) = apply(outside, job)
    assert outcome.status is Status.FAILED
    assert outcome_error(outcome).endswith(
        f"run `reconciler resolve {job.job_name} --resubmit` or `--give-up`"
    )
    (change,) = plan_of(outside, [job]).changes
    assert change.action == "blocked"
    (skipped,) = apply(outside, job)
    assert (skipped.status, outcome_error(skipped)) == (Status.SKIPPED, reason_of(change))


def test_a_blocked_submission_says_when_it_may_go_on(outside: Outside) -> None:
    outside.jobs.answers = [NotSent("it can't be reached")] * 3
    (outcome,) = apply(outside, wanted())
    assert outcome_error(outcome) == "it can't be reached"


class TestCancel:
    """Old runs are cancelled once their replacement exists; the observed end is reported."""

    def replaced(self, outside: Outside) -> tuple[DesiredJob, DesiredJob]:
        old, new = wanted(content="a"), wanted(content="b", on_change="cancel")
        apply(outside, old)
        return old, new

    def test_it_follows_the_submission(self, outside: Outside) -> None:
        old, new = self.replaced(outside)
        assert told(apply(outside, new)) == [
            ("submit", "applied", "QUEUED"),
            ("cancel", "applied", "CANCELLED"),
        ]
        assert outside.jobs.cancelled == [job_of(outside, old).resource]
        assert claim_of_job(outside, old).ended is State.CANCELLED
        # Without this record, the run would count as cancelled outside.
        superseded = f"superseded by {new.job_name} (onChange: cancel)"
        assert claim_of_job(outside, old).error == f"cancelled by apply: {superseded}"

    @pytest.mark.parametrize("answer", [Refused(400, "INVALID_ARGUMENT", "no"), Unknown("?")])
    def test_nothing_is_cancelled_without_what_replaces_it(self, outside: Outside, answer: Any) -> None:
        _, new = self.replaced(outside)
        outside.jobs.answers = [answer]
        submit, cancel = apply(outside, new)
        assert submit.status is Status.FAILED
        assert (cancel.status, outcome_error(cancel)) == (Status.SKIPPED, "its replacement was not submitted")
        assert outside.jobs.cancelled == []

    @pytest.mark.fault(56, 57)
    def test_a_withheld_cancel_is_skipped_and_leaves_no_reason(self, outside: Outside) -> None:
        old, new = self.replaced(outside)
        submit, cancel = apply(outside, new, withheld=lambda: OLDER)
        assert submit.status is Status.APPLIED
        assert (cancel.status, outcome_error(cancel)) == (Status.SKIPPED, reason_text(OLDER))
        assert outside.jobs.cancelled == []
        assert claim_of_job(outside, old).error == "", "a person's cancel would count as the tool's"

    @pytest.mark.fault(59)
    def test_what_it_stopped_comes_back_and_carries_the_commit_that_wants_it(self, outside: Outside) -> None:
        old, new = self.replaced(outside)
        apply(outside, new)
        back = wanted(content="a", on_change="cancel")
        outcomes = apply(outside, back, commit_of=lambda job: "0ff1ce")
        assert told(outcomes) == [("retry", "applied", "QUEUED"), ("cancel", "applied", "CANCELLED")]
        claims = [claim_of_job(outside, old, attempt) for attempt in (1, 2)]
        assert [(claim.commit, claim.ended) for claim in claims] == [
            ("c0ffee", State.CANCELLED),
            ("0ff1ce", None),
        ]

    @pytest.mark.fault(59)
    def test_a_return_is_withheld_as_a_cancel_is(self, outside: Outside) -> None:
        _, new = self.replaced(outside)
        apply(outside, new)
        retry, cancel = apply(outside, wanted(content="a", on_change="cancel"), withheld=lambda: OLDER)
        assert (retry.status, outcome_error(retry)) == (Status.SKIPPED, reason_text(OLDER))
        assert (cancel.status, outcome_error(cancel)) == (Status.SKIPPED, "its replacement was not submitted")
        assert len(outside.jobs.sent) == 2

    @pytest.mark.fault(19, 59)
    @pytest.mark.parametrize("attempts", [1, 3])
    @pytest.mark.parametrize("answer", [None, Unknown("?"), "lost"])
    def test_an_earlier_version_beside_submits_no_second_job(
        self, outside: Outside, monkeypatch: pytest.MonkeyPatch, answer: Any, attempts: int
    ) -> None:
        """An earlier version takes the cancelled run as final, and a later attempt as unrequested."""
        old, new = self.replaced(outside)
        apply(outside, new)
        back = wanted(content="a", on_change="cancel", attempts=attempts)
        outside.jobs.answers = [answer] if answer else []
        apply(outside, back)
        before = len(outside.jobs.sent)
        with monkeypatch.context() as earlier:
            for module in (claim, attempts_of, claims_upkeep):
                earlier.setattr(module, "is_by_apply", lambda reason: False)
            for _ in range(3):
                apply(outside, back)
                outside.time.now += BOUNDS.executes + BOUNDS.visible + timedelta(seconds=1)
        jobs = [run for run in outside.jobs.jobs if run.job_name == f"{old.job_name}_2"]
        assert len(jobs) <= 1
        if answer is None or attempts == 1:
            assert len(outside.jobs.sent) == before
        # This version goes on, and the result is a single job.
        for _ in range(3):
            apply(outside, back)
            outside.time.now += BOUNDS.executes + BOUNDS.visible + timedelta(seconds=1)
        jobs = [run for run in outside.jobs.jobs if run.job_name == f"{old.job_name}_2"]
        assert len(jobs) == 1

    @pytest.mark.fault(59)
    def test_a_return_that_waits_for_the_end_of_its_job_is_not_withheld_before(
        self, outside: Outside
    ) -> None:
        old, new = self.replaced(outside)
        apply(outside, new)
        outside.jobs.becomes(job_of(outside, old), State.CANCELLING)
        (change,) = [change for change in plan_of(outside, [old]).changes if change.desired]
        assert change.is_awaited
        assert [o for o in apply(outside, old, withheld=lambda: OLDER) if o.change.desired] == []

    @pytest.mark.fault(59)
    def test_a_return_that_was_refused_is_withheld_too(self, outside: Outside) -> None:
        _, new = self.replaced(outside)
        apply(outside, new)
        back = wanted(content="a", on_change="cancel")
        outside.jobs.answers = [Refused(400, "INVALID_ARGUMENT", "no")]
        apply(outside, back)
        sent = len(outside.jobs.sent)
        retry, _ = apply(outside, back, withheld=lambda: OLDER)
        assert (retry.status, outcome_error(retry)) == (Status.SKIPPED, reason_text(OLDER))
        assert len(outside.jobs.sent) == sent
        assert told(apply(outside, back))[0] == ("retry", "applied", "QUEUED")

    def test_a_reason_that_another_apply_cleared_before_the_cancel_is_recorded_again(
        self, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old, new = self.replaced(outside)
        cancel = outside.jobs.cancel

        def meanwhile(run: ActualJob) -> None:
            applier(outside).upkeep([old], observe(outside.ports))
            assert claim_of_job(outside, old).error == "", "to that apply the run is wanted and alive"
            cancel(run)

        monkeypatch.setattr(outside.jobs, "cancel", meanwhile)
        apply(outside, new)
        assert claim_of_job(outside, old).error.startswith("cancelled by apply: superseded by ")

    def test_the_reason_is_recorded_before_the_cancel(
        self, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A process that dies in between leaves no run that seems cancelled outside."""
        old, new = self.replaced(outside)
        cancel, recorded = outside.jobs.cancel, list[str]()

        def cancel_noting_claim(run: ActualJob) -> None:
            recorded.append(claim_of_job(outside, old).error)
            cancel(run)

        monkeypatch.setattr(outside.jobs, "cancel", cancel_noting_claim)
        apply(outside, new)
        assert recorded == [f"cancelled by apply: superseded by {new.job_name} (onChange: cancel)"]

    def test_a_person_s_cancel_stays_the_reason(
        self, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        old, new = self.replaced(outside)
        cancel = outside.jobs.cancel

        def meanwhile(run: ActualJob) -> None:
            record_cancel(outside.ports, run, BY_COMMAND)
            cancel(run)

        monkeypatch.setattr(outside.jobs, "cancel", meanwhile)
        apply(outside, new)
        assert claim_of_job(outside, old).error == BY_COMMAND
        assert told(apply(outside, old)) == [], "it stays cancelled"

    def test_what_withholds_cancels_may_fail_for_each_of_them(self, outside: Outside) -> None:
        _, new = self.replaced(outside)

        def withheld() -> Reason:
            raise ServiceError("the store is away")

        _, cancel = apply(outside, new, withheld=withheld)
        assert (cancel.status, outcome_error(cancel)) == (Status.FAILED, "the store is away")
        assert outside.jobs.cancelled == []

    @pytest.mark.fault(17)
    @pytest.mark.parametrize("end", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
    def test_a_cancel_is_waited_for_and_its_end_is_told(self, outside: Outside, end: State) -> None:
        old, new = self.replaced(outside)
        resource = claim_of_job(outside, old).resource

        def cancel(job: ActualJob) -> None:
            outside.jobs.becomes(job, State.CANCELLING)

        def sleep(seconds: float) -> None:
            outside.time.slept.append(seconds)
            if len(outside.time.slept) == 2:
                outside.jobs.becomes(outside.jobs.read("", "", resource), end)

        outside.jobs.cancel = cancel  # type: ignore[method-assign]
        outside.time.sleep = sleep  # type: ignore[method-assign]
        assert told(apply(outside, new, patience=60.0))[1] == ("cancel", "applied", str(end))
        assert outside.time.slept == [2.0, 2.0]
        assert claim_of_job(outside, old).ended is end

    def test_a_cancel_that_takes_longer_is_told_as_it_is(self, outside: Outside) -> None:
        _, new = self.replaced(outside)
        outside.jobs.cancel = lambda job: outside.jobs.becomes(job, State.CANCELLING)  # type: ignore[method-assign]
        assert told(apply(outside, new))[1] == ("cancel", "applied", "CANCELLING")
        # The cancel is under way: no second request is sent.
        assert apply(outside, new) == []

    @pytest.mark.parametrize(("state", "status"), [(State.SUCCEEDED, "applied"), (State.RUNNING, "failed")])
    def test_a_refused_cancel_is_fine_if_the_job_has_ended(
        self, outside: Outside, state: State, status: str
    ) -> None:
        _, new = self.replaced(outside)

        def cancel(job: ActualJob) -> None:
            outside.jobs.becomes(job, state)
            raise ServiceError("it has ended", hint="look")

        outside.jobs.cancel = cancel  # type: ignore[method-assign]
        outcome = apply(outside, new)[1]
        assert (outcome.status, outcome.state) == (status, state if status == "applied" else None)
        assert outcome_error(outcome) == ("" if status == "applied" else "it has ended (look)")

    def test_an_end_that_cannot_be_seen_is_a_failure(self, outside: Outside) -> None:
        _, new = self.replaced(outside)

        def cancel(job: ActualJob) -> None:
            outside.jobs.jobs = [run for run in outside.jobs.jobs if run.resource != job.resource]

        outside.jobs.cancel = cancel  # type: ignore[method-assign]
        outcome = apply(outside, new)[1]
        assert outcome.status is Status.FAILED


class TestAwaitedEnd:
    """Content that comes back while its job is still being cancelled is submitted after that job's end."""

    def await_ends(
        self, outside: Outside, *, steady: tuple[str, ...] = (), **settings: Any
    ) -> tuple[list[Outcome], list[str]]:
        """Cancel a job, want its content again, and wait; return the outcomes, and the lines of the wait."""
        old, beside = wanted(content="a"), [wanted(name) for name in steady]
        apply(outside, old, *beside)
        apply(outside, wanted(content="b", on_change="cancel"), *beside)
        outside.jobs.becomes(job_of(outside, old), State.CANCELLING)
        plan = plan_of(outside, [old, *beside, *(wanted(f"{name}-2") for name in steady)])
        lines: list[str] = []
        return list(applier(outside, on_wait=lines.append, **settings).await_ends(plan)), lines

    def test_its_end_is_waited_for_and_told(self, outside: Outside) -> None:
        def sleep(seconds: float) -> None:
            outside.time.slept.append(seconds)
            for run in outside.jobs.jobs:
                if run.state is State.CANCELLING:
                    outside.jobs.becomes(run, State.CANCELLED)

        outside.time.sleep = sleep  # type: ignore[method-assign]
        outcomes, lines = self.await_ends(outside, steady=("steady",), patience=60.0)
        assert told(outcomes) == [("none", "applied", "CANCELLED")]
        name = wanted(content="a").job_name
        assert lines == [f"{name}: it is being cancelled; waiting for its end to submit it again"]
        assert outside.time.slept == [2.0]

    def test_content_is_not_submitted_while_its_job_goes_on(self, outside: Outside) -> None:
        outcomes, _ = self.await_ends(outside)
        assert [(outcome.status, outcome.reason) for outcome in outcomes] == [
            (Status.SKIPPED, because(ReasonCode.STILL_CANCELLING))
        ]

    def test_end_that_cannot_be_read_is_failure(
        self, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        read = outside.jobs.read

        def read_live(api_version: str, kind: str, resource: str) -> ActualJob:
            run = read(api_version, kind, resource)
            if run.state is State.CANCELLING:
                raise ServiceError("the service is away")
            return run

        monkeypatch.setattr(outside.jobs, "read", read_live)
        (outcome,), _ = self.await_ends(outside)
        assert (outcome.status, outcome_error(outcome)) == (Status.FAILED, "the service is away")

    @pytest.mark.fault(59)
    def test_return_that_checkout_does_not_permit_is_not_waited_for(self, outside: Outside) -> None:
        outcomes, lines = self.await_ends(outside, steady=("steady",), withheld=lambda: OLDER)
        assert [(outcome.status, outcome.reason) for outcome in outcomes] == [(Status.SKIPPED, OLDER)]
        assert lines == []

    def test_check_of_return_may_fail(self, outside: Outside) -> None:
        def withheld() -> Reason:
            raise ServiceError("the store is away")

        (outcome,), lines = self.await_ends(outside, withheld=withheld)
        assert (outcome.status, outcome_error(outcome)) == (Status.FAILED, "the store is away")
        assert lines == []


class TestTwice:
    """Two jobs of a single attempt, beyond the bounds."""

    def doubled(self, outside: Outside) -> tuple[DesiredJob, ActualJob, ActualJob]:
        """Make an older job that appears only after the claim was bound to a younger job."""
        job = wanted()
        outside.jobs.answers = [Unknown("?")]
        apply(outside, job)
        outside.time.now += BOUNDS.lifetime + BOUNDS.executes + BOUNDS.visible + timedelta(seconds=1)
        apply(outside, job)
        younger = job_of(outside, job)
        first, _ = claim_of_job(outside, job).request_ids
        elder = outside.jobs.add({**younger.body, "labels": {**younger.labels, REQUEST_ID: first}})
        elder = replace(elder, create_time="2025-12-31T00:00:00Z")
        outside.jobs.jobs[-1] = elder
        return job, elder, younger

    @pytest.mark.fault(13)
    def test_the_younger_is_cancelled_and_the_claim_names_the_elder(self, outside: Outside) -> None:
        job, elder, younger = self.doubled(outside)
        plan = plan_of(outside, [job])
        assert [finding.kind for finding in plan.drift] == [DriftKind.DUPLICATE]
        assert told(apply(outside, job)) == [("cancel", "applied", "CANCELLED")]
        assert outside.jobs.cancelled == [younger.resource]
        recorded = [claim.error for claim in outside.claims.history if claim.error]
        assert recorded
        assert all(error.startswith("cancelled: ") for error in recorded), "its content must not come back"
        claim = claim_of_job(outside, job)
        assert (claim.resource, claim.ended) == (elder.resource, None)
        assert claim.labels == labels_digest(elder.labels)
        assert apply(outside, job) == []

    def test_it_is_repaired_also_where_another_submission_of_the_name_fails(self, outside: Outside) -> None:
        job, _, younger = self.doubled(outside)
        outside.jobs.answers = [Unknown("?")]
        outcomes = apply(outside, wanted(content="b"))
        assert [o.status for o in outcomes if o.change.repair] == [Status.APPLIED]
        assert outside.jobs.cancelled == [younger.resource]
        assert claim_of_job(outside, job).ended is None


class TestUpkeep:
    """The fields of a claim that follow-up keeps up to date."""

    @pytest.mark.parametrize("state", [State.SUCCEEDED, State.FAILED, State.CANCELLED])
    def test_how_the_job_ended_also_when_the_service_has_forgotten_it(
        self, outside: Outside, state: State
    ) -> None:
        job = wanted()
        apply(outside, job)
        outside.jobs.becomes(job_of(outside, job), state)
        apply(outside, job)
        assert claim_of_job(outside, job).ended is state
        outside.jobs.jobs.clear()
        assert apply(outside, job) == []
        assert (claim_of_job(outside, job).ended, claim_of_job(outside, job).gone) == (state, False)
        assert len(outside.jobs.sent) == 1

    @pytest.mark.fault(23)
    def test_that_it_was_deleted_before_its_end(self, outside: Outside) -> None:
        job = wanted()
        apply(outside, job)
        outside.jobs.jobs.clear()
        assert apply(outside, job) == []
        assert claim_of_job(outside, job).gone
        plan = plan_of(outside, [job])
        assert [finding.kind for finding in plan.drift] == [DriftKind.DELETED_OUTSIDE]
        assert len(outside.jobs.sent) == 1

    def test_a_job_that_lost_its_labels_is_not_gone(self, outside: Outside) -> None:
        job = wanted()
        apply(outside, job)
        outside.jobs.jobs = [replace(run, labels={}) for run in outside.jobs.jobs]
        assert apply(outside, job) == []
        assert not claim_of_job(outside, job).gone
        assert [finding.kind for finding in plan_of(outside, [job]).drift] == [DriftKind.MODIFIED]

    def test_where_the_manifest_is_and_what_it_wishes(self, outside: Outside) -> None:
        job = wanted()
        apply(outside, job)
        moved = replace(
            job.manifest, path="jobs/new.yaml", reconcile=replace(job.manifest.reconcile, on_delete="cancel")
        )
        apply(outside, replace(job, manifest=moved))
        claim = claim_of_job(outside, job)
        assert (claim.path, claim.on_delete, claim.state) == ("jobs/new.yaml", "cancel", ClaimState.BOUND)
        # With the manifest removed and another added, the job is cancelled, as its claim's `onDelete` says.
        assert told(apply(outside, wanted("other")))[-1] == ("cancel", "applied", "CANCELLED")

    def test_nothing_is_written_where_nothing_is_news(self, outside: Outside) -> None:
        job = wanted()
        apply(outside, job)
        before = len(outside.claims.history)
        apply(outside, job)
        assert len(outside.claims.history) == before

    def test_a_job_that_shows_up_after_it_was_given_up(self, outside: Outside) -> None:
        job = wanted()
        outside.jobs.answers = ["lost"]
        outside.jobs.hidden.add("projects/acme/locations/here/customJobs/1")
        apply(outside, job)
        from reconciler.submission.protocol import Submitter

        Submitter(outside.ports).give_up(ClaimId(label_of(job.identity)))
        assert apply(outside, job) == []
        outside.jobs.hidden.clear()
        (change,) = plan_of(outside, [job]).changes
        assert reason_of(change) == "its job was found: the claim is bound to it"
        assert told(apply(outside, job)) == [("submit", "applied", "QUEUED")]
        assert len(outside.jobs.sent) == 1
        assert claim_of_job(outside, job).state is ClaimState.BOUND

    def lost(self, outside: Outside) -> DesiredJob:
        """Make a submission with a lost answer that no apply continues before its job is seen."""
        job = wanted(content="a")
        outside.jobs.answers = ["lost"]
        outside.jobs.hidden.add("projects/acme/locations/here/customJobs/1")
        apply(outside, job)
        outside.jobs.hidden.clear()
        return job

    def test_the_job_of_a_suspended_manifest(self, outside: Outside) -> None:
        job = self.lost(outside)
        resting = replace(job, manifest=replace(job.manifest, reconcile=Reconcile(suspend=True)))
        assert apply(outside, resting) == []
        assert claim_of_job(outside, job).state is ClaimState.BOUND
        outside.jobs.becomes(job_of(outside, job), State.SUCCEEDED)
        apply(outside, resting)
        outside.jobs.jobs.clear()
        assert apply(outside, job) == []
        assert len(outside.jobs.sent) == 1

    def test_the_job_of_content_that_nothing_wants_any_more(self, outside: Outside) -> None:
        job = self.lost(outside)
        apply(outside, wanted(content="b"))
        assert claim_of_job(outside, job).state is ClaimState.BOUND
        outside.jobs.becomes(job_of(outside, job), State.SUCCEEDED)
        apply(outside, wanted(content="b"))
        assert claim_of_job(outside, job).ended is State.SUCCEEDED
        outside.jobs.jobs = [run for run in outside.jobs.jobs if not run.state.ended]
        assert apply(outside, job) == []
        assert len(outside.jobs.sent) == 2

    def test_one_claim_that_cannot_be_written_keeps_no_other_from_it(self, outside: Outside) -> None:
        jobs = [wanted("a"), wanted("b")]
        apply(outside, *jobs)
        for job in jobs:
            outside.jobs.becomes(job_of(outside, job), State.SUCCEEDED)
        outside.claims.faults = ["failed"]
        failed = applier(outside).upkeep(jobs, observe(outside.ports))
        assert len(failed) == 1
        assert failed[0].endswith("is not up to date: the store is away")
        assert sorted(str(claim_of_job(outside, job).ended) for job in jobs) == ["None", "SUCCEEDED"]

    def test_claims_that_cannot_be_written_are_told_in_one_order_however_they_are_listed(
        self, outside: Outside
    ) -> None:
        jobs = [wanted("a"), wanted("b")]
        apply(outside, *jobs)
        for job in jobs:
            outside.jobs.becomes(job_of(outside, job), State.SUCCEEDED)
        failures = []
        for _ in range(2):
            outside.claims.faults = ["failed"] * 2
            failures.append(applier(outside).upkeep(jobs, observe(outside.ports)))
            outside.claims.held = dict(reversed(outside.claims.held.items()))
        assert failures[0] == failures[1]
        assert len({*failures[0]}) == 2

    def test_many_claims_are_written_side_by_side_and_failures_told_in_order(self, outside: Outside) -> None:
        jobs = [wanted(f"job-{number:02}") for number in range(20)]
        apply(outside, *jobs)
        for job in jobs:
            outside.jobs.becomes(job_of(outside, job), State.SUCCEEDED)
        met = threading.Barrier(3)

        def before_write(claim: Claim) -> None:
            if claim.base_name in ("job-01", "job-02", "job-03"):
                met.wait(60)
            if claim.base_name in ("job-03", "job-17"):
                raise ServiceError("the store is away")

        outside.claims.before_write = before_write
        acts = applier(outside, together=partial(run_concurrently, most=3))
        failed = acts.upkeep(jobs, observe(outside.ports))
        assert failed == [
            f"the claim of {jobs[number].job_name} is not up to date: the store is away" for number in (3, 17)
        ]
        ended = [str(claim_of_job(outside, job).ended) for job in jobs]
        assert ended == ["None" if number in (3, 17) else "SUCCEEDED" for number in range(20)]

    def test_an_attempt_that_nothing_calls_for_any_more_is_ended_by_the_same_look(
        self, outside: Outside
    ) -> None:
        job = wanted(attempts=2)
        apply(outside, job)
        outside.jobs.becomes(job_of(outside, job), State.FAILED)
        outside.jobs.answers = [Unknown("?")]
        apply(outside, job)
        assert claim_of_job(outside, job, 2).state is ClaimState.PENDING
        outside.time.now += BOUNDS.lifetime + BOUNDS.executes + BOUNDS.visible + timedelta(seconds=1)
        # In the end it succeeded.
        outside.jobs.becomes(job_of(outside, job), State.SUCCEEDED)
        assert applier(outside).upkeep([job], observe(outside.ports)) == []
        assert claim_of_job(outside, job).ended is State.SUCCEEDED
        assert claim_of_job(outside, job, 2).state is ClaimState.REJECTED

    def test_what_is_no_news_is_not_even_run(self, outside: Outside) -> None:
        apply(outside, wanted())
        tasks: list[Any] = []

        def together(given: Any) -> Any:
            tasks.extend(given)
            return iter(())

        applier(outside, together=together).upkeep([wanted()], observe(outside.ports))
        assert tasks == []


def test_a_second_job_is_cancelled_before_anything_is_waited_for(outside: Outside) -> None:
    job, _, younger = TestTwice().doubled(outside)
    outside.jobs.answers = [Unknown("?")]
    cancelled: list[float] = []

    def cancel(run: ActualJob) -> None:
        cancelled.append(sum(outside.time.slept))
        outside.jobs.becomes(run, State.CANCELLED)

    outside.jobs.cancel = cancel  # type: ignore[method-assign]
    before = sum(outside.time.slept)
    apply(outside, job, wanted("other"), patience=60.0)
    assert cancelled == [before]
    assert outside.jobs.read("", "", younger.resource).state is State.CANCELLED


def test_a_second_job_is_cancelled_from_any_tree(outside: Outside) -> None:
    job, _, younger = TestTwice().doubled(outside)
    apply(outside, job, withheld=lambda: OLDER)
    assert outside.jobs.cancelled == [younger.resource]


def test_what_is_replaced_goes_on_until_what_replaces_it_is_known(outside: Outside) -> None:
    apply(outside, wanted(content="a"))
    outside.jobs.answers = [Unknown("?")]
    new = wanted(content="b", on_change="cancel")
    outcomes = apply(outside, new, patience=3600.0, pause=15.0)
    assert told(outcomes) == [("submit", "applied", "QUEUED"), ("cancel", "applied", "CANCELLED")]
    assert [outcome.resource for outcome in outcomes] == [
        job_of(outside, new).resource,
        job_of(outside, wanted(content="a")).resource,
    ]


@pytest.mark.parametrize("settings", [{"suspend": True}, {}])
def test_nothing_is_cancelled_for_content_that_is_not_run(outside: Outside, settings: Any) -> None:
    apply(outside, wanted(content="a"))
    new = wanted(content="b", on_change="cancel", **settings)
    if not settings:
        outside.jobs.answers = [Refused(403, "PERMISSION_DENIED", "no")]
        apply(outside, new)
        from reconciler.submission.protocol import Submitter

        Submitter(outside.ports).give_up(ClaimId(label_of(new.identity)))
    assert apply(outside, new) == []
    assert outside.jobs.cancelled == []


def test_an_attempt_that_is_not_wanted_any_more_is_not_sent(outside: Outside) -> None:
    job = wanted(attempts=2)
    apply(outside, job)
    outside.jobs.becomes(job_of(outside, job), State.FAILED)
    outside.jobs.answers = [Refused(403, "PERMISSION_DENIED", "no")]
    apply(outside, job)
    once = replace(job, manifest=replace(job.manifest, reconcile=Reconcile(attempts=1)))
    (change,) = plan_of(outside, [once]).changes
    assert (change.action, reason_of(change)) == (
        "none",
        'attempt 2 is no longer needed: "attempts" is 1',
    )
    assert apply(outside, once) == []
    assert told(apply(outside, job)) == [("retry", "applied", "QUEUED")]


def test_found_attempt_beyond_the_limit_is_not_sent_when_its_job_is_gone(outside: Outside) -> None:
    job = wanted(attempts=1)
    apply(outside, job)
    failed = job_of(outside, job)
    outside.jobs.becomes(failed, State.FAILED)
    clone = outside.jobs.add({**failed.body, "labels": {**failed.labels, ATTEMPT: "2", REQUEST_ID: "other"}})
    plan = plan_of(outside, [job])
    assert [change.action for change in plan.changes] == ["retry"]
    outside.jobs.hidden.add(clone.resource)
    (outcome,) = applier(outside).run(plan)
    assert outcome_error(outcome).startswith('attempt 2 is not sent: its job is gone, and "attempts" is 1')
    assert "run `reconciler plan` again" in outcome_error(outcome)
    assert len(outside.jobs.sent) == 1


def test_found_attempt_after_too_many_failed_set_ups_is_not_sent_when_its_job_is_gone(
    outside: Outside,
) -> None:
    job = wanted(attempts=2)
    apply(outside, job)
    failed = job_of(outside, job)
    outside.jobs.becomes(failed, State.FAILED)
    labels = {**failed.labels, ATTEMPT: "2", REQUEST_ID: "other"}
    clone = outside.jobs.add({**failed.body, "displayName": f"{job.job_name}_2", "labels": labels})
    plan = plan_of(outside, [job])
    plan = replace(plan, changes=tuple(replace(change, binds_only=True) for change in plan.changes))
    outside.jobs.hidden.add(clone.resource)
    (outcome,) = applier(outside).run(plan)
    assert outcome_error(outcome).startswith("attempt 2 is not sent: its job is gone, and its set-up has")
    assert len(outside.jobs.sent) == 1
    outside.jobs.hidden.clear()
    assert told(applier(outside).run(plan)) == [("retry", "applied", "QUEUED")]
    assert len(outside.jobs.sent) == 1


def test_attempt_after_one_that_used_up_none_is_sent(outside: Outside) -> None:
    apply(outside, wanted())
    outside.jobs.becomes(job_of(outside, wanted()), State.FAILED)
    plan = plan_of(outside, [wanted(attempts=2)])
    (change,) = plan.changes
    plan = replace(plan, changes=(replace(change, desired=wanted(attempts=1), free=1),))
    assert told(applier(outside).run(plan)) == [("retry", "applied", "QUEUED")]


def test_attempt_is_not_sent_before_its_time(outside: Outside) -> None:
    plan = plan_of(outside, [wanted()])
    (change,) = plan.changes
    plan = replace(plan, changes=(replace(change, not_before=outside.time.now + timedelta(hours=1)),))
    (outcome,) = applier(outside).run(plan)
    assert "it is tried again after 01:00:00 UTC" in outcome_error(outcome)
    assert outside.jobs.sent == []
    outside.time.now += timedelta(hours=1)
    (outcome,) = applier(outside).run(plan)
    assert (outcome.status, len(outside.jobs.sent)) == (Status.APPLIED, 1)


def test_a_stop_ends_the_wait_for_a_cancelled_run(outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
    apply(outside, wanted("a", on_delete="cancel"), stays := wanted("b"))
    monkeypatch.setattr(outside.jobs, "cancel", lambda job: None)
    list(applier(outside, patience=60.0, go_on=lambda: False).run(plan_of(outside, [stays])))
    assert outside.time.slept == []
    list(applier(outside, patience=60.0).run(plan_of(outside, [stays])))
    assert sum(outside.time.slept) == 60.0


@pytest.mark.fault(15)
def test_submission_is_not_sent_again_while_search_leaves_out_other_job(outside: Outside) -> None:
    jobs = [wanted("a"), wanted("b")]
    outside.jobs.answers = ["", Unknown("?")]
    list(applier(outside).run(plan_of(outside, jobs)))
    plan = plan_of(outside, jobs)
    outside.time.now += timedelta(hours=1)
    outside.jobs.hidden |= {job.resource for job in outside.jobs.jobs}
    (outcome,) = applier(outside).run(plan)
    assert "listing leaves out" in outcome_error(outcome)
    assert len(outside.jobs.sent) == 2


@pytest.mark.fault(15)
def test_nobody_sends_a_submission_again_by_hand_while_search_leaves_out_other_job(outside: Outside) -> None:
    other, job = wanted("a"), wanted("b")
    outside.jobs.answers = ["", Unknown("?")]
    apply(outside, other, job)
    runs, claim = observe(outside.ports).runs, claim_of_job(outside, job)
    outside.time.now += timedelta(hours=1)
    outside.jobs.hidden |= {run.resource for run in outside.jobs.jobs}
    with pytest.raises(ServiceError, match="listing leaves out"):
        applier(outside).resubmit(job, claim, runs)
    assert len(outside.jobs.sent) == 2
    outside.jobs.hidden.clear()
    assert applier(outside).resubmit(job, claim, runs).claim.state is ClaimState.BOUND


@pytest.mark.fault(15)
@pytest.mark.parametrize(
    ("state", "later"), [(State.RUNNING, timedelta(minutes=1)), (State.SUCCEEDED, timedelta(minutes=-1))]
)
def test_search_that_leaves_out_the_oldest_live_job_is_not_believed_for_finding_another(
    outside: Outside, state: State, later: timedelta
) -> None:
    *others, job = wanted("a"), wanted("b"), wanted("c")
    outside.jobs.answers = ["", "", Unknown("?")]
    apply(outside, *others, job)
    found, left_out = observe(outside.ports).runs
    found = replace(found, state=state, create_time=(outside.time.now + later).isoformat())
    outside.time.now += timedelta(hours=1)
    outside.jobs.hidden.add(left_out.resource)
    with pytest.raises(ServiceError, match=f"leaves out {left_out.resource}"):
        applier(outside).resubmit(job, claim_of_job(outside, job), (found, left_out))


def test_run_has_the_label_of_its_environments_instance(outside: Outside) -> None:
    acts = dataclasses.replace(applier(outside), ports=replace(outside.ports, instance="blue"))
    list(acts.run(plan_of(outside, [wanted()])))
    assert outside.jobs.jobs[0].labels[INSTANCE] == "blue"


def test_what_is_held_says_when_it_can_be_sent_again(outside: Outside) -> None:
    job = wanted()
    outside.jobs.answers = [Unknown("?")]
    apply(outside, job)
    from reconciler.submission.protocol import Submitter

    held = Submitter(outside.ports).give_up(ClaimId(label_of(job.identity)))
    assert held is not None
    lines: list[str] = []
    waiting = applier(outside, patience=60.0, pause=15.0, on_wait=lines.append).resubmit(job, held, ())
    assert lines == [
        f"{job.job_name}: its request may have created a job; looking for it until 00:03:00 UTC at the latest"
    ]
    assert reason_text(unsettled_reason(waiting.claim, waiting.until, waiting.cause)) == (
        "an earlier request may still create a job: it can be submitted again after 00:03:00 UTC"
    )
    assert sum(outside.time.slept) == 60.0


def test_a_stop_ends_the_wait_before_it_is_sent_again(outside: Outside) -> None:
    job = wanted()
    outside.jobs.answers = [Unknown("?")]
    apply(outside, job)
    stopped = applier(outside, patience=60.0, go_on=lambda: False)
    assert stopped.resubmit(job, claim_of_job(outside, job), ()).claim.state is ClaimState.PENDING
    assert outside.time.slept == []


@pytest.mark.parametrize("staged", ["", "gs://staging/reconciler/packages/0/x.tar.gz"])
def test_live_job_of_a_person_is_bound_to_the_same_job(outside: Outside, staged: str) -> None:
    job = wanted()
    theirs = {"packageUris": ["gs://theirs/code.tar.gz"]} if staged else {}
    ours = {"packageUris": [staged]} if staged else {}

    def body(desired: DesiredJob, job_name: str, labels: Any) -> dict[str, Any]:
        found = body_of(desired, job_name, labels)
        return {**found, "jobSpec": {**desired.spec, **ours}}

    sent = {**body_of(job, "by hand", {"team": "risk"}), "jobSpec": {**job.spec, **theirs}}
    run = outside.jobs.add(sent)
    asked: list[str] = []

    def holds(uri: str) -> bool:
        asked.append(uri)
        return True

    acts = Applier(outside.ports, body, commit_of=lambda job: "c0ffee", patience=0.0)
    result = acts.adopt(job, run.resource, observe(outside.ports), staged, holds)
    assert (result.why, result.claim) == ("", claim_of_job(outside, job))
    assert claim_of_job(outside, job).resource == run.resource
    assert asked == theirs.get("packageUris", [])


def test_resubmitting_says_how_it_went(outside: Outside) -> None:
    job = wanted()
    outside.jobs.answers = [Unknown("the proxy's page")]
    apply(outside, job)
    waiting = applier(outside).resubmit(job, claim_of_job(outside, job), ())
    assert (
        reason_text(unsettled_reason(waiting.claim, waiting.until, waiting.cause))
        == "it is not known whether a job was created: the next apply after 00:03:00 UTC finds out"
    )
    settled = applier(outside, patience=3600.0).resubmit(job, claim_of_job(outside, job), ())
    assert settled.claim.state is ClaimState.BOUND


# --- corners ----------------------------------------------------------------------------------------------

HIDDEN = "projects/acme/locations/here/customJobs/1"
OLD = "0" * 64
RUN = f"{HIDDEN[:-1]}7"


def moved(job: DesiredJob) -> DesiredJob:
    return replace(job, manifest=replace(job.manifest, path="jobs/new.yaml"))


def bound_claim(outside: Outside, job: DesiredJob, id: ClaimId, **fields: object) -> Claim:
    """Write a claim that is bound to a job; the service may lack the job."""
    manifest = job.manifest
    claim = Claim(
        id, ClaimState.BOUND, "a_run", manifest.name, manifest.api_version, manifest.kind, resource=RUN
    )
    claim = replace(claim, **fields)  # type: ignore[arg-type]
    assert outside.claims.write(claim, 0)
    return claim


def running(outside: Outside, job: DesiredJob) -> None:
    """Add the job that `bound_claim` names to the service."""
    made = outside.jobs.add(body_of(job, "a_run", {}))
    outside.jobs.jobs = [replace(made, resource=RUN, state=State.RUNNING)]


class TestUpkeepOfOtherJobs:
    """The manifest's fields in a claim, and jobs that only resemble its own."""

    def test_a_manifest_that_moved_before_its_job_was_seen(self, outside: Outside) -> None:
        outside.jobs.answers = ["lost"]
        outside.jobs.hidden.add(HIDDEN)
        apply(outside, job := wanted())
        assert applier(outside).upkeep([moved(job)], observe(outside.ports)) == []
        claim = claim_of_job(outside, job)
        assert (claim.path, claim.state) == ("jobs/new.yaml", ClaimState.PENDING)

    def test_a_strangers_job_is_not_looked_at(self, outside: Outside) -> None:
        outside.jobs.answers = ["lost"]
        apply(outside, job := wanted())
        (mine,) = outside.jobs.jobs
        outside.claims.held.clear()
        outside.claims.write(replace(outside.claims.history[0], request_ids=("another",)), 0)
        assert applier(outside).upkeep([job], observe(outside.ports)) == []
        assert mine.labels[REQUEST_ID] != "another"
        assert claim_of_job(outside, job).state is ClaimState.PENDING

    def test_a_job_of_another_kind_with_its_mark_when_nothing_wants_it(self, outside: Outside) -> None:
        """A tuning job's trials may carry its labels."""
        outside.jobs.answers = ["lost"]
        apply(outside, job := wanted())
        outside.claims.held.clear()
        outside.claims.write(outside.claims.history[0], 0)
        outside.jobs.jobs = [replace(run, kind="HyperparameterTuningJob") for run in outside.jobs.jobs]
        before = dict(outside.claims.held)
        assert applier(outside).upkeep([], observe(outside.ports)) == []
        assert outside.claims.held == before
        assert claim_of_job(outside, job).state is ClaimState.PENDING


def test_a_claim_has_the_manifests_place_and_wish_from_the_beginning(outside: Outside) -> None:
    job = wanted(on_delete="cancel")
    list(applier(outside).run(plan_of(outside, [job])))
    first = outside.claims.history[0]
    assert (first.path, first.on_delete) == (job.manifest.path, "cancel")


def test_without_a_commit_none_is_told(outside: Outside) -> None:
    job = wanted()
    list(Applier(outside.ports, body_of).run(plan_of(outside, [job])))
    (run,) = outside.jobs.jobs
    assert (COMMIT in run.labels, claim_of_job(outside, job).commit) == (False, "")


@pytest.mark.parametrize(("takes", "waits"), [(0.75, [0.75, 0.75]), (2.0, [])])
def test_the_time_that_a_create_takes_counts_for_the_pace(
    outside: Outside, takes: float, waits: list[float]
) -> None:
    jobs = [wanted("a"), wanted("b"), wanted("c")]
    ports = replace(outside.ports, bounds=replace(BOUNDS, pace=1.5))

    def stage(job: DesiredJob) -> None:
        outside.time.sleep(takes)
        outside.time.slept.pop()

    list(dataclasses.replace(applier(outside, stage=stage), ports=ports).run(plan_of(outside, jobs)))
    assert outside.time.slept == waits


def test_what_is_sent_again_is_staged_again(outside: Outside) -> None:
    staged: list[str] = []
    outside.jobs.answers = ["lost"]
    apply(outside, job := wanted())
    applier(outside, stage=lambda job: staged.append(job.job_name)).resubmit(
        job, claim_of_job(outside, job), ()
    )
    assert staged == [job.job_name]


def test_nothing_is_told_and_waited_for_where_the_outcome_is_known(outside: Outside) -> None:
    lines: list[str] = []
    job = wanted()
    outside.jobs.answers = ["lost"]
    apply(outside, job)
    settled = applier(outside, patience=60.0, on_wait=lines.append).resubmit(
        job, claim_of_job(outside, job), ()
    )
    assert (settled.claim.state, lines, outside.time.slept) == (ClaimState.BOUND, [], [])


def test_what_is_waited_for_is_told_once(outside: Outside) -> None:
    lines: list[str] = []
    outside.jobs.answers = ["lost"]
    outside.jobs.hidden.add(HIDDEN)
    apply(outside, wanted(), patience=60.0, pause=15.0, on_wait=lines.append)
    assert len(lines) == 1
    assert len(outside.time.slept) == 4


class TestOlderVersions:
    """Content named by an older version of the hash is the same content."""

    def job(self) -> DesiredJob:
        return replace(wanted(), earlier=(OLD,))

    def test_the_claim_that_the_plan_names_is_gone_on_with(self, outside: Outside) -> None:
        job = self.job()
        (change,) = plan_of(outside, [job]).changes
        plan = replace(plan_of(outside, [job]), changes=(replace(change, key=label_of(OLD)),))
        list(applier(outside).run(plan))
        assert [*outside.claims.held] == [ClaimId(label_of(OLD), 1)]

    def test_without_a_key_it_is_the_newest_versions(self, outside: Outside) -> None:
        job = self.job()
        (change,) = plan_of(outside, [job]).changes
        plan = replace(plan_of(outside, [job]), changes=(replace(change, key=""),))
        list(applier(outside).run(plan))
        assert [*outside.claims.held] == [ClaimId(label_of(job.identity), 1)]

    def test_what_was_claimed_since_the_plan_is_not_sent(self, outside: Outside) -> None:
        outcome = self.outcome(outside)
        assert outcome.resource == RUN
        assert outside.jobs.sent == []

    def test_of_a_further_attempt_the_same_attempt_counts(self, outside: Outside) -> None:
        job = self.job()
        bound_claim(outside, job, ClaimId(label_of(job.identity), 1), ended=State.FAILED)
        older = bound_claim(outside, job, ClaimId(label_of(OLD), 2))
        asked = replace(older, id=ClaimId(label_of(job.identity), 2))
        assert applier(outside).resubmit(job, asked, ()).claim == older
        assert outside.jobs.sent == []

    def outcome(self, outside: Outside, **fields: object) -> Outcome:
        """Return the outcome for a job that was bound under its older name after the plan was made."""
        job = self.job()
        plan = plan_of(outside, [job])
        bound_claim(outside, job, ClaimId(label_of(OLD)), **fields)
        (outcome,) = applier(outside).run(plan)
        return outcome

    def test_its_state_is_the_jobs(self, outside: Outside, monkeypatch: pytest.MonkeyPatch) -> None:
        running(outside, job := self.job())
        read = outside.jobs.read

        def strictly(api_version: str, kind: str, resource: str) -> ActualJob:
            asked = (api_version, kind) == (job.manifest.api_version, job.manifest.kind)
            return read(api_version, kind, resource if asked else "")

        monkeypatch.setattr(outside.jobs, "read", strictly)
        assert told([self.outcome(outside)]) == [("submit", "applied", "RUNNING")]

    @pytest.mark.parametrize("error", [ServiceError("away"), NotFoundError("gone")])
    def test_it_is_as_it_ended_where_it_cannot_be_asked(
        self, outside: Outside, monkeypatch: pytest.MonkeyPatch, error: Exception
    ) -> None:
        def read(api_version: str, kind: str, resource: str) -> ActualJob:
            raise error

        monkeypatch.setattr(outside.jobs, "read", read)
        assert told([self.outcome(outside, ended=State.SUCCEEDED)]) == [("submit", "applied", "SUCCEEDED")]


def test_a_job_that_was_made_just_now_is_not_asked_for_its_state(
    outside: Outside, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(api_version: str, kind: str, resource: str) -> ActualJob:
        raise ServiceError("away")

    plan = plan_of(outside, [wanted()])
    monkeypatch.setattr(outside.jobs, "read", read)
    assert told(applier(outside).run(plan)) == [("submit", "applied", "QUEUED")]


class TestSaid:
    """The reason that a submission isn't bound."""

    CLAIM = Claim(ClaimId("k" * 52), ClaimState.PENDING, "census_1", "census", "v1", "CustomJob", error="odd")

    def test_what_is_known_of_an_unknown_outcome(self) -> None:
        assert reason_text(unsettled_reason(self.CLAIM, cause="no answer came")) == (
            "it is not known whether a job was created (no answer came): the next apply finds out"
        )

    def test_what_is_held_and_waits_for_nothing(self) -> None:
        held = replace(self.CLAIM, state=ClaimState.HELD)
        said = reason_text(unsettled_reason(held))
        assert said == "odd; run `reconciler resolve census_1 --resubmit` or `--give-up`"


class Uploads:
    """A staging bucket that records its uploads."""

    def __init__(self) -> None:
        self.archives: list[Sdist] = []

    def put(self, archive: Sdist) -> str:
        self.archives.append(archive)
        return ""


class TestApplierOfASession:
    """An applier has all parts of a command's session."""

    ARCHIVE = Sdist("census.tar.gz", b"code", "a" * 64, "b" * 32)
    POOL: Mapping[str, object] = {"pythonPackageSpec": {"pythonModule": "trainer.task"}}

    def job(self, name: str) -> DesiredJob:
        return replace(wanted(name), packed={"workerPoolSpecs": [dict(self.POOL)]})

    def session(self, outside: Outside) -> tuple[Session, Uploads]:
        environment = Environment("prod", "google", "acme-ml", "us-central1", "staged-here", "claims")
        config = Config(Path(), "acme", {"prod": environment}, {}, None)
        uploads = Uploads()
        return session_over(outside, config, environment, staging=uploads), uploads

    def test_packages_are_staged_where_the_body_says(self, outside: Outside) -> None:
        plain, packed = self.job("a"), self.job("b")
        desired = Desired((plain, packed), {packed.job_name: lambda: self.ARCHIVE})
        session, uploads = self.session(outside)
        list(applier_of(session, desired, lambda job: "c0ffee").run(plan_of(outside, desired.jobs)))
        assert uploads.archives == [self.ARCHIVE]
        bodies = {body["displayName"]: body for body, _ in outside.jobs.sent}
        assert [*bodies] == [plain.job_name, packed.job_name]
        uri = f"gs://staged-here/reconciler/packages/{'a' * 64}/census.tar.gz"
        (pool,) = bodies[packed.job_name]["jobSpec"]["workerPoolSpecs"]
        assert pool["pythonPackageSpec"]["packageUris"] == [uri]
        assert bodies[plain.job_name]["jobSpec"]["workerPoolSpecs"] == [self.POOL]
        assert {body["labels"][COMMIT] for body in bodies.values()} == {"c0ffee"}

    def test_what_several_jobs_share_is_uploaded_once(self, outside: Outside) -> None:
        jobs = tuple(self.job(f"job-{number}") for number in range(12))
        desired = Desired(jobs, dict.fromkeys((job.job_name for job in jobs), lambda: self.ARCHIVE))
        session, uploads = self.session(outside)
        made = applier_of(session, desired, NO_ORIGIN.commit_of)
        list(made.together([partial(made.stage, job) for job in jobs]))
        assert uploads.archives == [self.ARCHIVE]

    def test_what_could_not_be_uploaded_is_tried_by_the_next(
        self, outside: Outside, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        jobs = tuple(self.job(name) for name in "ab")
        desired = Desired(jobs, dict.fromkeys((job.job_name for job in jobs), lambda: self.ARCHIVE))
        session, uploads = self.session(outside)
        put = uploads.put
        answers = iter([ServiceError("away"), None])

        def once_away(archive: Sdist) -> str:
            if error := next(answers):
                raise error
            return put(archive)

        monkeypatch.setattr(uploads, "put", once_away)
        made = applier_of(session, desired, NO_ORIGIN.commit_of)
        with pytest.raises(ServiceError):
            made.stage(jobs[0])
        made.stage(jobs[1])
        assert uploads.archives == [self.ARCHIVE]

    def test_it_submits_side_by_side(self, outside: Outside) -> None:
        session, _ = self.session(outside)
        assert applier_of(session, Desired((), {}), NO_ORIGIN.commit_of).together is run_concurrently

    def test_it_waits_and_stops_as_it_is_told(self, outside: Outside) -> None:
        lines: list[str] = []
        session, _ = self.session(outside)
        made = applier_of(session, Desired((), {}), NO_ORIGIN.commit_of, 7.0, lines.append, lambda: False)
        made.on_wait("wait")
        assert (made.patience, made.pause, lines) == (7.0, session.pause, ["wait"])
        assert not made.go_on()
        assert session.pause != Applier(outside.ports, body_of).pause


@pytest.mark.parametrize(("waited", "listings"), [(2, 0), (11, 1)])
def test_a_wait_for_few_jobs_reads_these_alone(outside: Outside, waited: int, listings: int) -> None:
    runs = [outside.jobs.add(body_of(wanted(), f"run_{n}", {})) for n in range(waited)]
    for run in runs:
        outside.jobs.becomes(run, State.SUCCEEDED)
    asked: list[None] = []
    listed = outside.jobs.runs

    def counted() -> tuple[ActualJob, ...]:
        asked.append(None)
        return listed()

    outside.jobs.runs = counted  # type: ignore[method-assign]
    ended = wait(outside.ports, [awaited(run) for run in runs], lambda jobs: None, 1.0)
    assert {job.resource for job in ended} == {run.resource for run in runs}
    assert len(asked) == listings
