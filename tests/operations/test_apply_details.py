"""A plan carried out, in its corners: what an applier is made of, older claims, what each outcome says."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from reconciler.base.concurrency import run_concurrently
from reconciler.base.errors import NotFoundError, ServiceError
from reconciler.google.session import Session
from reconciler.manifests.settings import Config, Environment
from reconciler.model.claim import Claim, ClaimId, ClaimState
from reconciler.model.job import COMMIT, REQUEST_ID, ActualJob, State
from reconciler.model.naming import label_of
from reconciler.model.plan import DesiredJob
from reconciler.model.reason import unsettled_reason
from reconciler.operations.execute import Applier, applier_of
from reconciler.operations.load_desired import Desired
from reconciler.operations.origin import NO_ORIGIN
from reconciler.operations.wait import awaited, wait
from reconciler.output.wording.plan import reason_text
from reconciler.packaging.sdist import Sdist
from reconciler.planning.outcome import Outcome
from reconciler.submission.observe import observe
from tests.operations.test_apply import applier, apply, body_of, claim_of_job, plan_of, told
from tests.support.in_memory import session_over
from tests.support.memory_ports import BOUNDS, Outside
from tests.support.planning import wanted

HIDDEN = "projects/acme/locations/here/customJobs/1"
OLD = "0" * 64
RUN = f"{HIDDEN[:-1]}7"


@pytest.fixture
def outside() -> Outside:
    return Outside()


def moved(job: DesiredJob) -> DesiredJob:
    return replace(job, manifest=replace(job.manifest, path="jobs/new.yaml"))


def bound_claim(outside: Outside, job: DesiredJob, id: ClaimId, **fields: object) -> Claim:
    """A claim that is bound to a job of the service's that may be there or not."""
    manifest = job.manifest
    claim = Claim(
        id, ClaimState.BOUND, "a_run", manifest.name, manifest.api_version, manifest.kind, resource=RUN
    )
    claim = replace(claim, **fields)  # type: ignore[arg-type]
    assert outside.claims.write(claim, 0)
    return claim


def running(outside: Outside, job: DesiredJob) -> None:
    """The service has the job that `bound_claim` names."""
    made = outside.jobs.add(body_of(job, "a_run", {}))
    outside.jobs.jobs = [replace(made, resource=RUN, state=State.RUNNING)]


class TestUpkeep:
    """What a claim says of its manifest, and jobs that are only like its own."""

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
        """Its trials may carry a tuning job's labels."""
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
    """Content that an older version of the hash named is that content."""

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
        """What is told of a job that somebody bound under its older name after the plan was made."""
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
    """Why a submission isn't bound."""

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
    """A staging bucket that remembers what it was given."""

    def __init__(self) -> None:
        self.archives: list[Sdist] = []

    def put(self, archive: Sdist) -> str:
        self.archives.append(archive)
        return ""


class TestApplierOfASession:
    """An applier has all that a command's session has."""

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
