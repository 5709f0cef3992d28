"""Judgements of runs that succeeded: measured once, recorded for all, and judged by each expectation."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base.state_dir import home_of
from reconciler.model.claim import Claim
from reconciler.model.expectation import Expectation, Judged, Measured, Missing, RunMetrics
from reconciler.model.job import ActualJob, State
from reconciler.model.plan import DesiredJob, NotDone
from reconciler.operations.judgements import with_judgements
from reconciler.operations.session import Session
from reconciler.planning.attempts import keys_of
from reconciler.planning.decide import problem_of_result
from reconciler.planning.state import TargetState
from tests.support import planning
from tests.support.held_service import HeldService
from tests.support.many_jobs import MANY, ManyJobs
from tests.support.memory_ports import Jobs, Time
from tests.support.metrics_files import FOLDER, put_file
from tests.support.noted_requests import NotedRequests, noting_session
from tests.support.planning import bound_to, run_of, wanted

GOOD = Expectation("accuracy", min=0.95)
LOSS = Expectation("loss", max=1.0)
VERDICTS = "_verdicts/"


def expecting(*expect: Expectation, name: str = "census", **reconcile: Any) -> DesiredJob:
    """Return a wanted job with these expectations."""
    job = wanted(name, **reconcile)
    return replace(job, manifest=replace(job.manifest, expect=expect))


def ended(job: DesiredJob, number: int = 1, *, folder: str = FOLDER, **fields: Any) -> ActualJob:
    """Return a run of a job that succeeded before all files were written."""
    spec = {"baseOutputDirectory": {"outputUriPrefix": folder}}
    known = {"spec": spec, "create_time": f"2020-01-{number:02}T00:00:00Z", **fields}
    return run_of(job, State.SUCCEEDED, number=number, **known)


@dataclass
class Place:
    """Runs in memory, with their files and recorded metrics in real buckets; requests are noted."""

    session: Session
    noted: NotedRequests
    service: HeldService
    jobs: Jobs

    def add(self, *runs: ActualJob) -> None:
        """Have the service know these runs."""
        self.jobs.jobs += runs

    def judged(
        self,
        jobs: DesiredJob | list[DesiredJob],
        *runs: ActualJob,
        claims: list[Claim] | None = None,
        recorded: Mapping[str, RunMetrics] | None = None,
        may_record: bool = True,
        **options: Any,
    ) -> TargetState:
        """Return the judged state of a world with these runs, listed without their specs."""
        desired = jobs if isinstance(jobs, list) else [jobs]
        bound = claims or [bound_to(job, run) for job, run in zip(desired, runs, strict=True)]
        state = planning.state_of(desired, [replace(run, spec={}) for run in runs], bound)
        return with_judgements(self.session, state, recorded or {}, may_record=may_record, **options)

    def stored(self, job: DesiredJob) -> RunMetrics | None:
        """Return what is recorded of a job's content."""
        return self.session.metrics.read(keys_of(job)[0]).run

    def writes(self) -> list[tuple[str, str]]:
        """Return the requests that aren't reads."""
        return [(method, url) for method, url in self.noted.sent if method != "GET"]


@pytest.fixture
def place(service: HeldService, session: Session) -> Place:
    (service.home / "gcs/models").mkdir(parents=True)
    noting, noted = noting_session(session)
    jobs = Jobs(Time())
    vars(noting)["jobs"] = jobs  # in the place of a cached property
    return Place(noting, noted, service, jobs)


def values(state: TargetState, name: str = "census") -> dict[str, float | Missing | None]:
    """Return what each judged metric has: its value, or why there is none."""
    judgement = state.names[name].judgement
    assert judgement is not None
    return {
        judged.expectation.metric: judged.measured.missing or judged.measured.value
        for judged in judgement.judged
    }


def test_metrics_are_measured_recorded_and_judged(place: Place) -> None:
    job = expecting(GOOD, LOSS)
    run = ended(job)
    place.add(run)
    put_file(place.service, "metrics.json", '{"accuracy": 0.9, "loss": 0.5, "rows": 7}')
    state = place.judged(job, run)
    judgement = state.names["census"].judgement
    assert judgement is not None
    assert judgement.misses == [Judged(GOOD, judgement.judged[0].measured)]
    assert values(state) == {"accuracy": 0.9, "loss": 0.5}
    recorded = place.stored(job)
    assert recorded == state.metrics[run.resource]
    assert recorded is not None
    assert (recorded.job_name, recorded.resource, recorded.folder) == (job.job_name, run.resource, FOLDER)
    assert recorded.metrics.keys() == {"accuracy", "loss"}, "only what is expected"


def test_plan_writes_nothing(place: Place) -> None:
    job = expecting(GOOD)
    run = ended(job)
    place.add(run)
    put_file(place.service, "metrics.json", '{"accuracy": 0.9}')
    assert values(place.judged(job, run, may_record=False)) == {"accuracy": 0.9}
    assert place.writes() == []
    assert place.stored(job) is None


def test_recorded_value_stays_when_files_change_and_metrics_are_only_added(place: Place) -> None:
    job = expecting(GOOD)
    run = ended(job)
    place.add(run)
    put_file(place.service, "metrics.json", '{"accuracy": 0.99}')
    place.judged(job, run)
    first = place.stored(job)
    put_file(place.service, "metrics.json", '{"accuracy": 0.1, "loss": 0.5}')
    assert values(place.judged(expecting(GOOD, LOSS), run)) == {"accuracy": 0.99, "loss": 0.5}
    assert values(place.judged(expecting(LOSS), run)) == {"loss": 0.5}
    both = place.stored(job)
    assert first is not None
    assert both is not None
    assert both.metrics.keys() == {"accuracy", "loss"}
    assert both.metrics["accuracy"] == first.metrics["accuracy"]


def test_first_writer_of_metric_decides(place: Place, session: Session) -> None:
    job = expecting(GOOD, LOSS)
    run, key = ended(job), keys_of(job)[0]
    place.add(run)
    put_file(place.service, "metrics.json", '{"accuracy": 0.99, "loss": 0.5}')
    other = {"accuracy": Measured(0.1), "rows": Measured(7.0)}

    def record_first(method: str, url: str) -> None:
        if method == "POST":
            place.noted.before = lambda *_: None
            assert session.metrics.write(key, RunMetrics(job.job_name, run.resource, FOLDER, other), 0)

    place.noted.before = record_first
    assert values(place.judged(job, run)) == {"accuracy": 0.1, "loss": 0.5}
    recorded = place.stored(job)
    assert recorded is not None
    found = {name: measured.value for name, measured in recorded.metrics.items()}
    assert found == {"accuracy": 0.1, "loss": 0.5, "rows": 7.0}
    assert len(place.writes()) == 2


def test_second_writer_writes_nothing_when_first_recorded_all(place: Place, session: Session) -> None:
    job = expecting(GOOD)
    run, key = ended(job), keys_of(job)[0]
    place.add(run)
    put_file(place.service, "metrics.json", '{"accuracy": 0.99}')

    def record_first(method: str, url: str) -> None:
        if method == "POST":
            record = RunMetrics(job.job_name, run.resource, FOLDER, {"accuracy": Measured(0.1)})
            assert session.metrics.write(key, record, 0)

    place.noted.before = record_first
    assert values(place.judged(job, run)) == {"accuracy": 0.1}
    assert len(place.writes()) == 1


def test_metrics_are_unread_when_others_keep_recording(place: Place, session: Session) -> None:
    job = expecting(GOOD)
    run, key = ended(job), keys_of(job)[0]
    place.add(run)
    put_file(place.service, "metrics.json", '{"accuracy": 0.99}')

    def record_other(method: str, url: str) -> None:
        if method == "POST":
            there = session.metrics.read(key)
            names = {f"other_{n}": Measured(1.0) for n in range(len(place.writes()))}
            record = RunMetrics(job.job_name, run.resource, FOLDER, names)
            assert session.metrics.write(key, record, there.generation)

    place.noted.before = record_other
    state = place.judged(job, run)
    assert values(state) == {}
    assert state.unread == {run.resource: "other processes keep recording the run's metrics"}
    place.noted.before = lambda *_: None
    assert values(place.judged(job, run)) == {"accuracy": 0.99}


def test_recorded_metrics_of_summary_spare_every_request(place: Place) -> None:
    job = expecting(GOOD)
    run = ended(job)
    recorded = RunMetrics(job.job_name, run.resource, FOLDER, {"accuracy": Measured(0.97)})
    assert values(place.judged(job, run, recorded={run.resource: recorded})) == {"accuracy": 0.97}
    assert place.noted.sent == []


def test_recorded_metrics_in_store_spare_the_files(place: Place) -> None:
    job = expecting(GOOD)
    run = ended(job)
    place.add(run)
    put_file(place.service, "metrics.json", '{"accuracy": 0.99}')
    place.judged(job, run)
    place.noted.sent.clear()
    assert values(place.judged(job, run)) == {"accuracy": 0.99}
    assert len(place.noted.sent) == len(place.noted.of(VERDICTS)) == 2
    assert place.writes() == []


def test_run_of_other_resource_is_judged_anew(place: Place) -> None:
    job = expecting(GOOD)
    first, second = ended(job), ended(job, 2, folder="gs://models/census/2")
    place.add(first, second)
    put_file(place.service, "metrics.json", '{"accuracy": 0.1}')
    put_file(place.service, "2/metrics.json", '{"accuracy": 0.99}')
    assert values(place.judged(job, first)) == {"accuracy": 0.1}
    assert values(place.judged(job, second)) == {"accuracy": 0.99}
    recorded = place.stored(job)
    assert recorded is not None
    assert (recorded.resource, recorded.folder) == (second.resource, "gs://models/census/2")


def test_dropped_run_keeps_its_recorded_value(place: Place) -> None:
    job = expecting(GOOD)
    run = ended(job)
    place.add(run)
    put_file(place.service, "metrics.json", '{"accuracy": 0.99, "loss": 0.5}')
    place.judged(job, run)
    before = place.stored(job)
    place.jobs.jobs.clear()
    both = expecting(GOOD, LOSS)
    expected = {"accuracy": 0.99, "loss": Missing.RECORD_GONE}
    dropped = place.judged([both], claims=[bound_to(job, run)])
    deleted = place.judged([both], run, claims=[bound_to(job, run)])
    assert values(dropped) == values(deleted) == expected
    assert place.stored(job) == before, "an expectation added later may be withdrawn"


def test_dropped_run_is_a_miss_when_nothing_was_recorded(place: Place) -> None:
    job = expecting(GOOD)
    put_file(place.service, "metrics.json", '{"accuracy": 0.99}')
    state = place.judged([job], claims=[bound_to(job, ended(job))])
    assert values(state) == {"accuracy": Missing.RECORD_GONE}
    assert place.stored(job) is None


def test_failure_of_one_run_leaves_others_judged(place: Place) -> None:
    jobs = [expecting(GOOD, name=name) for name in ("a", "b", "c")]
    runs = [ended(job, n, folder=f"{FOLDER}/{n}") for n, job in enumerate(jobs, 1)]
    place.add(*runs)
    for number in (1, 2, 3):
        put_file(place.service, f"{number}/metrics.json", f'{{"accuracy": 0.9{number}}}')
    place.noted.refused = {"census/2/": 403}
    state = place.judged(jobs, *runs)
    assert [values(state, name) for name in "abc"] == [{"accuracy": 0.91}, {}, {"accuracy": 0.93}]
    need = "whoever applies needs roles/storage.objectViewer for gs://models"
    why = f"gs://models/census/2: refused with 403; {need}"
    assert state.unread == {runs[1].resource: why}
    assert state.unread_names == {jobs[1].job_name: why}
    assert place.stored(jobs[1]) is None
    kinds = [problem[1] if (problem := problem_of_result(state.names[name])) else None for name in "abc"]
    assert kinds == [NotDone.MISSED, NotDone.UNJUDGED, NotDone.MISSED]


def test_unreadable_record_leaves_run_unread_until_it_is_readable(place: Place) -> None:
    job = expecting(GOOD)
    run = ended(job)
    place.add(run)
    put_file(place.service, "metrics.json", '{"accuracy": 0.99}')
    for status in (403, 503):
        place.noted.refused = {VERDICTS: status}
        state = place.judged(job, run)
        assert values(state) == {}
        assert f"refused with {status}" in state.unread[run.resource]
    place.noted.refused.clear()
    assert values(place.judged(job, run)) == {"accuracy": 0.99}


@pytest.mark.parametrize(
    ("job", "state"),
    [
        (expecting(GOOD, suspend=True), State.SUCCEEDED),
        (expecting(), State.SUCCEEDED),
        (expecting(GOOD), State.FAILED),
        (expecting(GOOD), State.RUNNING),
    ],
    ids=["suspended", "nothing expected", "failed", "running"],
)
def test_run_is_not_judged_without_request(place: Place, job: DesiredJob, state: State) -> None:
    run = replace(ended(job), state=state)
    place.add(run)
    put_file(place.service, "metrics.json", '{"accuracy": 0.99}')
    found = place.judged(job, run)
    assert found.names["census"].judgement is None
    assert (found.metrics, place.noted.sent) == ({}, [])


def test_metrics_that_commits_expect_are_measured_beside_those_of_manifest(place: Place) -> None:
    job, gone = expecting(GOOD, suspend=True), expecting(name="gone")
    runs = [ended(job), ended(gone, 2)]
    place.add(*runs)
    put_file(place.service, "metrics.json", '{"accuracy": 0.9, "loss": 0.5, "rows": 7}')
    asked = {keys_of(job)[0]: {"loss"}, keys_of(gone)[0]: {"rows"}, "k" * 52: {"accuracy"}}
    claims = [bound_to(job, runs[0]), bound_to(gone, runs[1])]
    state = place.judged([job], *runs, claims=claims, asked=asked)
    found = {resource: [*run.metrics] for resource, run in state.metrics.items()}
    assert found == {runs[0].resource: ["loss"], runs[1].resource: ["rows"]}
    assert state.names["census"].judgement is None


def test_change_of_judged_file_is_found_only_when_asked_for(place: Place) -> None:
    job = expecting(GOOD)
    run = ended(job)
    place.add(run)
    path = put_file(place.service, "metrics.json", '{"accuracy": 0.99}')
    assert place.judged(job, run, with_changes=True).changed_files == {}
    path.write_text("{}")
    assert place.judged(job, run).changed_files == {}
    assert place.judged(job, run, with_changes=True).changed_files == {run.resource: ("metrics.json",)}


def test_judged_run_stays_judged_when_its_files_cannot_be_listed(place: Place) -> None:
    job = expecting(GOOD)
    run = ended(job)
    place.add(run)
    put_file(place.service, "metrics.json", '{"accuracy": 0.99}')
    place.judged(job, run)
    place.noted.refused = {"/b/models/": 403}
    state = place.judged(job, run, with_changes=True)
    assert values(state) == {"accuracy": 0.99}
    assert (state.unread, state.changed_files) == ({}, {})
    assert place.noted.of("/b/models/"), "they were asked for"


@pytest.mark.slow
def test_expectations_cost_no_request_when_summary_has_the_metrics(tmp_path: Path) -> None:
    many = ManyJobs(tmp_path)
    with HeldService(home_of(tmp_path, os.environ)).running() as service:
        many.write("expect: {accuracy: {min: 0.1}}")
        many.apply()
        many.end_runs(service, "metrics.json", lambda number: f'{{"accuracy": 0.{number:03}}}')
        many.apply()
        many.apply()  # the summary has an end that was recorded before
        assert len([*(service.home / "gcs").rglob("_verdicts/*/*/*")]) == MANY
        sent, plan = many.plan()
        many.write("")
        sent_without, without = many.plan()
    missed = [sum(change.stuck is NotDone.MISSED for change in one.changes) for one in (plan, without)]
    assert missed == [100, 0]
    assert sent == sent_without
    assert len(sent) < 10
