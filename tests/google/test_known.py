"""What a long-running process remembers: the next look costs less, and sees the same."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from held_service import HeldService
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from msgspec.structs import replace
from opened import opened

from reconciler.base.errors import ServiceError
from reconciler.base.http import HttpRequest, HttpResponse
from reconciler.google.claim_store import ObjectClaims
from reconciler.google.client import ApiError, Connection, Endpoint
from reconciler.google.engines import EngineJobs
from reconciler.google.listing import LASTS, LEAST_MARGIN, KnownRuns, TargetMemory
from reconciler.google.session import Session, open_session
from reconciler.manifests.settings import from_document
from reconciler.model.claim import Claim, ClaimId, ClaimState, claim_json
from reconciler.model.job import KEY, SOURCE, ActualJob, State
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1
from reconciler.model.ports import GOOGLE_BOUNDS, Bounds

START = datetime(2026, 1, 1, tzinfo=UTC)
MARGIN = timedelta(minutes=12)


def run(
    number: int, created: datetime | str, state: State = State.SUCCEEDED, version: str = "v1"
) -> ActualJob:
    time = created if isinstance(created, str) else created.isoformat().replace("+00:00", "Z")
    return ActualJob(
        f"jobs/{number}", f"job_{number}", version, "Job", state, str(state), {}, create_time=time
    )


@dataclass
class Service:
    """Runs, each with when it was created and from when on listings show it.

    Attributes:
        listings: The `since` of each listing, with the apiVersion.
    """

    runs: dict[str, ActualJob] = field(default_factory=dict)
    visible: dict[str, datetime] = field(default_factory=dict)
    now: datetime = START
    listings: list[tuple[str, str]] = field(default_factory=list)
    error: ServiceError | None = None

    def lister(self, version: str, since: str) -> Iterable[ActualJob]:
        self.listings.append((version, since))
        if self.error and since:
            raise self.error
        shown = [job for job in self.shown() if job.api_version == version]
        if not since:
            return shown
        begin = datetime.fromisoformat(since)
        return [job for job in shown if datetime.fromisoformat(job.create_time) >= begin]

    def shown(self) -> list[ActualJob]:
        """What a whole listing shows now, newest first."""
        visible = (job for name, job in self.runs.items() if self.visible[name] <= self.now)
        return sorted(visible, key=lambda job: job.create_time, reverse=True)

    def add(self, state: State, version: str = "v1", late: timedelta = timedelta()) -> None:
        made = run(len(self.runs), self.now, state, version)
        self.runs[made.resource] = made
        self.visible[made.resource] = self.now + late


LIVE = [State.QUEUED, State.RUNNING, State.CANCELLING]


class Looks(RuleBasedStateMachine):
    """However runs come, show themselves late and end, each look sees what a whole listing would show."""

    def __init__(self) -> None:
        super().__init__()
        self.service = Service()
        self.known = KnownRuns()
        self.clock = 0.0

    @rule(
        state=st.sampled_from([State.SUCCEEDED, State.FAILED, *LIVE]),
        version=st.sampled_from(["v1", "v2"]),
        late=st.sampled_from([0, 1, 5, 11]).map(lambda minutes: timedelta(minutes=minutes)),
    )
    def create(self, state: State, version: str, late: timedelta) -> None:
        self.service.add(state, version, late)

    @rule(minutes=st.sampled_from([0.001, 1, 5, 11, 13, 100]))
    def wait(self, minutes: float) -> None:
        self.service.now += timedelta(minutes=minutes)
        self.clock += minutes * 60

    @rule(which=st.integers(0, 30), state=st.sampled_from([State.RUNNING, State.FAILED, State.CANCELLED]))
    def go_on(self, which: int, state: State) -> None:
        live = [job for job in self.service.runs.values() if not job.state.ended]
        if live:
            job = live[which % len(live)]
            self.service.runs[job.resource] = replace(job, state=state, service_state=str(state))

    @invariant()
    def look(self) -> None:
        seen = self.known.look(["v1", "v2"], self.service.lister, now=self.clock, margin=MARGIN)
        by_name = {job.resource: job for job in seen}
        assert len(by_name) == len(seen)
        assert by_name == {job.resource: job for job in self.service.shown()}


TestLooks = Looks.TestCase
TestLooks.settings = settings(max_examples=40, stateful_step_count=25)


@pytest.fixture
def service() -> Service:
    """With two runs that have ended long ago, one that has just, and one that is live."""
    made = Service()
    for state in (State.SUCCEEDED, State.FAILED):
        made.add(state)
        made.now += timedelta(hours=1)
    made.add(State.RUNNING)
    made.now += timedelta(hours=1)
    made.add(State.SUCCEEDED)
    return made


class Looker:
    """Looks at a service by one clock."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.known = KnownRuns()
        self.now = 0.0

    def __call__(self, named: Iterable[str] = (), versions: Iterable[str] = ("v1",)) -> list[str]:
        jobs = {("v1", resource) for resource in named}
        seen = self.known.look(
            list(versions), self.service.lister, now=self.now, margin=timedelta(), named=jobs
        )
        return [job.resource for job in seen]

    def begins(self) -> list[str]:
        """Where the listings since the last call began."""
        listings, self.service.listings = self.service.listings, []
        return [since for _, since in listings]


def test_only_what_may_have_changed_is_listed_again(service: Service) -> None:
    look = Looker(service)
    everything = look()
    assert everything == ["jobs/0", "jobs/1", "jobs/2", "jobs/3"]
    assert look() == everything
    service.runs["jobs/2"] = replace(service.runs["jobs/2"], state=State.SUCCEEDED)
    assert look() == look() == everything
    live, newest = START + timedelta(hours=2), START + timedelta(hours=3)
    assert look.begins() == ["", *[_text(live)] * 2, _text(newest - LEAST_MARGIN)]


def _text(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")


def test_a_later_look_begins_before_what_a_listing_may_have_lacked(service: Service) -> None:
    service.runs.pop("jobs/2")
    known = KnownRuns()
    for _ in range(2):
        known.look(["v1"], service.lister, now=0.0, margin=timedelta(minutes=40))
    assert service.listings[1] == ("v1", _text(START + timedelta(hours=3) - timedelta(minutes=40)))


def test_everything_is_listed_again_after_an_hour(service: Service) -> None:
    look = Looker(service)
    look()
    service.runs.pop("jobs/0")  # deleted
    look.now = LASTS - 1
    assert look()[0] == "jobs/0"
    look.now = LASTS
    assert look()[0] == "jobs/1"
    look.now = LASTS + 1
    look()
    assert [bool(since) for since in look.begins()] == [False, True, False, True]


def test_a_run_that_is_deleted_while_it_is_listed_is_not_seen(service: Service) -> None:
    look = Looker(service)
    look()
    service.runs.pop("jobs/3")
    assert look() == ["jobs/0", "jobs/1", "jobs/2"]


def test_each_run_is_seen_once_also_where_the_newest_was_deleted() -> None:
    service = Service()
    for minutes in (0, 7, 15, 20):
        service.now = START + timedelta(minutes=minutes)
        service.add(State.SUCCEEDED)
    look = Looker(service)
    look()
    service.runs.pop("jobs/3")
    assert look() == look() == look() == ["jobs/0", "jobs/1", "jobs/2"]
    assert look.begins() == ["", *[_text(START + timedelta(minutes=10))] * 3]


def test_a_claims_job_that_isnt_there_has_everything_listed(service: Service) -> None:
    look = Looker(service)
    look()
    assert look(["jobs/0", "jobs/2"]) == look()
    assert all(look.begins()[1:])
    # Another process has labelled an old run as ours, and bound a claim to it.
    service.runs["jobs/9"] = run(9, START)
    service.visible["jobs/9"] = START
    assert "jobs/9" in look(["jobs/9"])
    assert [bool(since) for since in look.begins()] == [True, False]
    # A job that is gone, until its claim says so.
    look(["jobs/8"])
    assert [bool(since) for since in look.begins()] == [True, False]
    # A service that isn't asked.
    look.known.look(["v1"], service.lister, now=0.0, margin=MARGIN, named={("v2", "jobs/8")})
    assert [bool(since) for since in look.begins()] == [True]


@pytest.mark.parametrize(
    "time", ["", "yesterday", "2026-01-01T00:00:00", "99999-01-01T00:00:00Z", "0001-01-01T00:00:00Z"]
)
def test_a_run_that_doesnt_say_when_it_was_created_has_everything_listed(service: Service, time: str) -> None:
    look = Looker(service)
    look()
    odd = run(7, time)
    service.lister = lambda version, since: [*Service.lister(service, version, since), odd]  # type: ignore[method-assign]
    for _ in range(2):
        assert sorted(look()) == ["jobs/0", "jobs/1", "jobs/2", "jobs/3", "jobs/7"]
    assert [bool(since) for since in look.begins()] == [False, True, False, False]


def test_a_service_that_ignores_the_time_is_listed_as_a_whole(service: Service) -> None:
    look = Looker(service)
    service.lister = lambda version, since: Service.lister(service, version, "")  # type: ignore[method-assign]
    assert look() == look() == ["jobs/0", "jobs/1", "jobs/2", "jobs/3"]


def test_a_service_that_refuses_the_filter_is_listed_as_a_whole(service: Service) -> None:
    look = Looker(service)
    everything = look()
    service.error = ApiError("no such field", status=400, reason="INVALID_ARGUMENT")
    assert look() == everything


def test_a_look_that_fails_fails_and_the_next_one_is_whole(service: Service) -> None:
    look = Looker(service)
    everything = look()
    service.error = ApiError("away", status=503, reason="UNAVAILABLE")
    with pytest.raises(ApiError, match="away"):
        look()
    assert look() == everything
    assert [bool(since) for since in look.begins()] == [False, True, False]


def test_a_service_without_runs_is_listed_as_a_whole() -> None:
    look = Looker(Service())
    assert look() == look() == []
    look.service.add(State.SUCCEEDED)
    assert look() == look() == ["jobs/0"]
    assert [bool(since) for since in look.begins()] == [False, False, False, True]


CLAIM = Claim(
    id=ClaimId("k" * 52),
    state=ClaimState.BOUND,
    job_name="census_0011",
    base_name="census",
    api_version=AIPLATFORM_V1,
    kind="CustomJob",
    request_ids=("t" * 26,),
    resource="projects/1/locations/l/customJobs/2",
)
FOLDER = "reconciler/claims/acme-jobs/p/l/"


@dataclass
class Bucket:
    """A transport to a bucket with these claims."""

    items: dict[ClaimId, tuple[int, str]] = field(default_factory=dict)

    def send(self, request: HttpRequest) -> HttpResponse:
        items = [
            {"name": f"{FOLDER}{id.key}/{id.attempt}", "generation": str(number), "metadata": {"claim": text}}
            for id, (number, text) in self.items.items()
        ]
        return HttpResponse(200, {}, json.dumps({"items": items}).encode())

    def put(self, claim: Claim, generation: int) -> None:
        self.items[claim.id] = generation, json.dumps(claim_json(claim))


def test_each_listing_remembers_the_runs_that_must_exist_and_missing_claims() -> None:
    bucket, memory = Bucket(), TargetMemory()
    connection = Connection(Endpoint(bucket, dict, "p", "l", {"storage": "http://localhost/"}))
    claims = ObjectClaims(connection, "b", "acme-jobs", "p", "l", may_be_new=True, known=memory.claims)
    ended = replace(CLAIM, id=ClaimId("e" * 52), ended=State.FAILED)
    adopted = replace(CLAIM, id=ClaimId("z" * 52), request_ids=(), resource="jobs/by-hand")
    for claim in (CLAIM, ended, adopted):
        bucket.put(claim, 1)
    first = claims.listed()
    assert [found.claim for found in first.values()] == [CLAIM, ended, adopted]
    assert memory.claims.named == {(AIPLATFORM_V1, CLAIM.resource)}
    assert claims.listed() == first
    changed = replace(CLAIM, owner="another")
    for generation in (2, 2):  # and once where somebody has changed no more than what the metadata says
        bucket.put(changed, generation)
        assert claims.listed()[CLAIM.id].claim == changed
        changed = replace(changed, gone=True)
    assert memory.claims.named == frozenset()
    assert not memory.claims.vanished
    bucket.items.pop(ended.id)
    assert list(claims.listed()) == [CLAIM.id, adopted.id]
    assert memory.claims.vanished


@pytest.fixture
def held(tmp_path: Path) -> Iterator[HeldService]:
    with HeldService(tmp_path / "home").running() as running:
        yield running


def test_both_services_list_by_time(held: HeldService, monkeypatch: pytest.MonkeyPatch) -> None:
    filters: list[str] = []
    get = Connection.get

    def noting(self: Connection, method: str, **asked: Any) -> HttpResponse:
        if method.endswith("obs.list"):
            filters.append(str(asked["filter"]))
        return get(self, method, **asked)

    monkeypatch.setattr(Connection, "get", noting)
    with opened(held) as session:
        memory = TargetMemory()
        jobs = EngineJobs("acme-jobs", session.engine, [AIPLATFORM_V1, ML_V1], memory, session.bounds)
        labels = {SOURCE: "acme-jobs", KEY: "k"}
        _create(session, labels)
        held.ahead += timedelta(hours=1)
        first = jobs.runs()
        assert len(first) == 2
        for job in first:
            jobs.cancel(job)
        assert {job.state for job in jobs.runs()} == {State.CANCELLED}
        held.ahead += timedelta(hours=1)
        _create(session, labels, "new")
        filters.clear()
        assert len(jobs.runs()) == len(session.runs()) == 4
        assert sorted(jobs.runs(), key=_name) == sorted(session.runs(), key=_name)
        memory.claims.vanished = True
        filters.clear()
        jobs.runs()
        memory.claims.vanished = False
        jobs.runs()
    assert ["create_time" in asked for asked in filters] == [False] * 3 + [True] * 3


def _name(job: ActualJob) -> str:
    return job.resource


def _create(session: Session, labels: dict[str, str], name: str = "old") -> None:
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": "1",
        "containerSpec": {"imageUri": "i"},
    }
    custom = {"displayName": name, "labels": labels, "jobSpec": {"workerPoolSpecs": [pool]}}
    training = {"region": "l", "scaleTier": "BASIC", "pythonModule": "m", "runtimeVersion": "2.11"}
    training["packageUris"] = ["gs://acme/task.tar.gz"]  # type: ignore[assignment]
    credential = session.credentials.mint()
    session.jobs.create(AIPLATFORM_V1, "CustomJob", custom, credential)
    session.jobs.create(
        ML_V1, "Job", {"jobId": name, "trainingInput": training, "labels": labels}, credential
    )


class Engine:
    """An engine with one run."""

    def __init__(self) -> None:
        self.begins: list[str] = []

    def jobs(self, labels: dict[str, str], since: str = "") -> tuple[ActualJob, ...]:
        self.begins.append(since)
        return (run(1, START, version=AIPLATFORM_V1),)


def jobs_of(engine: Any, version: str, bounds: Bounds = GOOGLE_BOUNDS) -> EngineJobs:
    return EngineJobs("acme-jobs", lambda _: engine, [version], TargetMemory(), bounds)


def test_a_run_may_appear_as_late_as_its_service_says() -> None:
    engine = Engine()
    bounds = replace(GOOGLE_BOUNDS, executes=timedelta(hours=1), visible=timedelta(hours=2))
    jobs = jobs_of(engine, AIPLATFORM_V1, bounds)
    jobs.runs()
    jobs.runs()
    assert engine.begins == ["", _text(START - timedelta(hours=3))]


@contextmanager
def opened_memory(
    root: Path, memory: TargetMemory, source: str = "acme-jobs", home: str = "home"
) -> Iterator[Session]:
    config = from_document(root, {"source": source})
    environ = {"RECONCILER_HOME": str(root / home)}
    with open_session(config, config.environment(None), environ, start=False, memory=memory) as session:
        yield session


def test_sessions_of_one_target_share_what_they_have_seen(held: HeldService) -> None:
    memory, root = TargetMemory(), held.home.parent
    with opened(held) as session:
        session.claims.prepare()
        session.claims.write(CLAIM, 0)
    with opened_memory(root, memory) as session:
        first = session.ports.claims.listed()
        assert session.ports.jobs.runs() == ()
    with opened_memory(root, memory) as session:
        assert memory.claims.ids == {CLAIM.id}
        assert session.ports.claims.listed() == first
    for others in ({"source": "other-jobs"}, {"home": "elsewhere"}):
        with opened_memory(root, memory, **others) as session:
            assert session.claims.listed() == {}
        assert not memory.claims.vanished, "another target's claims were never there"
