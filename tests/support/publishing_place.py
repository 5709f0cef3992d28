"""A place that a job publishes at: real buckets, and runs in memory whose metrics are read from them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base.http import HttpRequest, HttpResponse, Transport
from reconciler.google.client import Connection
from reconciler.manifests.settings import load_config
from reconciler.model.job import ActualJob, State
from reconciler.model.plan import Change, DesiredJob, Plan
from reconciler.model.publication import CurrentModel, current_of, published_of
from reconciler.model.reason import Reason
from reconciler.operations.judgements import with_judgements
from reconciler.operations.load_desired import load_desired
from reconciler.operations.origin import NO_ORIGIN
from reconciler.operations.publications import with_publications
from reconciler.operations.publish import PublicationApplier
from reconciler.operations.session import Session
from reconciler.output.text import outcomes_text, plan_text
from reconciler.output.wording.plan import reason_text
from reconciler.planning.outcome import Outcome
from reconciler.planning.planner import make_plan
from reconciler.planning.state import TargetState
from tests.support import planning
from tests.support.held_service import HeldService
from tests.support.memory_ports import Jobs, Time
from tests.support.planning import bound_to, run_of
from tests.support.publishing import TO, path_of, publish, published_model, put

SETTINGS = """
source: acme-jobs
outputs: own
environments: {local: {defaults: {publish: "gs://risk-models"}}}
"""
MANIFEST = """
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: census}}
publish: {{}}
expect: {expect}
spec:
  baseOutputDirectory: {{outputUriPrefix: "gs://models/census"}}
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      containerSpec: {{imageUri: "example.test/plain:1", args: ["{accuracy}"]}}
"""
WORSE = "{accuracy: {min: 0.5, worse: 0.01}}"
CURRENT = f"{TO}/current.json"


@dataclass
class Wire:
    """A transport that intervenes once before a write below the address, and notes what is read there."""

    transport: Transport
    read: list[str] = field(default_factory=list)
    before: dict[str, Callable[[], object]] = field(default_factory=dict)

    def send(self, request: HttpRequest) -> HttpResponse:
        is_write = request.method == "POST" and "/b/risk-models/" in request.url
        for part in [*self.before] if is_write else []:
            if part in request.url or part.encode() in (request.body or b""):
                self.before.pop(part)()
        if request.method == "GET" and "risk-models" in request.url:
            self.read.append(request.url)
        return self.transport.send(request)


@dataclass
class Done:
    """What one pass planned and did."""

    plan: Plan
    state: TargetState
    change: Change | None
    outcome: Outcome | None
    text: str

    @property
    def reason(self) -> Reason | None:
        """Why nothing was published; None if something was, or was there."""
        if self.outcome:
            return self.outcome.reason
        return self.change.reason if self.change else None

    @property
    def said(self) -> str:
        return reason_text(self.reason) if self.reason else ""


@dataclass
class Place:
    """A repository without git, with runs in memory and buckets of the embedded service."""

    service: HeldService
    session: Session
    wire: Wire
    jobs: Jobs
    wanted: dict[str, DesiredJob] = field(default_factory=dict)

    def want(self, accuracy: float, expect: str = WORSE) -> ActualJob:
        """Ask for content with this accuracy; return its run, which succeeds if it is new."""
        path = self.session.config.root / "jobs/census.yaml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(MANIFEST.format(accuracy=accuracy, expect=expect))
        job = self._desired().jobs[0]
        earlier = [run for run in self.jobs.jobs if self.wanted[run.resource].job_name == job.job_name]
        if earlier:
            return earlier[0]
        number = len(self.jobs.jobs) + 1
        run = run_of(
            job, State.SUCCEEDED, number=number, spec=job.spec, create_time=f"2020-01-{number:02}T00:00:00Z"
        )
        self.jobs.jobs.append(run)
        self.wanted[run.resource] = job
        folder = job.spec["baseOutputDirectory"]["outputUriPrefix"]
        put(self.service.home, f"{folder}/model/metrics.json", f'{{"accuracy": {accuracy}}}'.encode())
        return run

    def publish(self, **before: Callable[[], object]) -> Done:
        """Plan and publish; `before` is done once before the write of that object, or of a copy."""
        desired = self._desired()
        claims = [bound_to(self.wanted[run.resource], run) for run in self.jobs.jobs]
        state = planning.state_of(desired.jobs, [replace(run, spec={}) for run in self.jobs.jobs], claims)
        state = with_judgements(self.session, state, {}, may_record=True)
        state = with_publications(self.session, desired, state, {}, is_full=False)
        plan = make_plan(planning.LOCAL, state, whole=True)
        self.wire.before = {
            {"current": "current.json", "record": "manifest.json", "copy": "/rewriteTo/"}[name]: act
            for name, act in before.items()
        }
        outcomes = [*PublicationApplier(self.session, desired, state, NO_ORIGIN, (), lambda: None).run(plan)]
        assert not self.wire.before, "it was never written"
        change = next((change for change in plan.changes if change.publication), None)
        text = f"{plan_text(plan)}\n{outcomes_text(outcomes)}"
        return Done(plan, state, change, outcomes[0] if outcomes else None, text)

    def _desired(self) -> Any:
        return load_desired(self.session.config, self.session.environment, [])

    @property
    def current(self) -> CurrentModel:
        return current_of(path_of(self.service.home, CURRENT).read_bytes(), TO)

    def metrics(self, run: ActualJob) -> Any:
        """Return the metrics in the record of a published run; None without a record."""
        path = path_of(self.service.home, f"{TO}/{run.job_name}/manifest.json")
        return published_of(path.read_bytes(), run.job_name).metrics if path.exists() else None

    def put_other(self, accuracy: float, number: int = 1) -> str:
        """Have another job, whose manifest is gone, take the place; return its run's name."""
        name = f"old_{number:016}"
        model = published_model(job_name=name, base_name="old", metrics={"accuracy": accuracy})
        publish(self.service.home, model)
        return name


@pytest.fixture(name="place")
def publishing_place(service: HeldService, session: Session) -> Place:
    root = service.home.parent
    (root / "reconciler.yaml").write_text(SETTINGS)
    (service.home / "gcs/models").mkdir(parents=True)
    config = load_config(root)
    wire = Wire(session.connection.endpoint.transport)
    connection = Connection(replace(session.connection.endpoint, transport=wire))
    own = Session(config, config.environment("local"), connection)
    jobs = Jobs(Time())
    vars(own)["jobs"] = jobs  # in the place of a cached property
    own.ports.claims.prepare()
    return Place(service, own, wire, jobs)
