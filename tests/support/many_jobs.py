"""A repository of many jobs, and its service: what a plan asks of the service, noted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from reconciler.manifests.settings import load_config
from reconciler.model.plan import Plan
from reconciler.operations.apply import ApplyListener, apply
from reconciler.operations.follow_up import follow_up
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.observed_state import state_of
from reconciler.operations.origin import NO_ORIGIN
from reconciler.operations.plan import plan_of, wanted_of
from reconciler.operations.session import Session, open_session
from reconciler.submission.look import look
from reconciler.training_service.state.records import JobState
from tests.support.held_service import HeldService
from tests.support.noted_requests import NotedRequests, noting_session
from tests.support.publishing import put

MANY = 300
SETTINGS = """
limits: {submissions: 1000}
outputs: own
environments: {local: {defaults: {publish: gs://risk-models}}}
"""
MANIFEST = """
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: job-{number:03}}}
{line}
spec:
  baseOutputDirectory: {{outputUriPrefix: "gs://models/{number}"}}
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      containerSpec: {{imageUri: "example.test/plain:1", args: ["{number}"]}}
"""


class ManyJobs:
    """A repository of `MANY` jobs below a folder, without git."""

    def __init__(self, root: Path) -> None:
        (root / "jobs").mkdir()
        (root / "reconciler.yaml").write_text(SETTINGS)
        self.root = root

    def write(self, line: str) -> None:
        """Write all manifests, with one more line such as `publish: {}`, or "" for none."""
        for number in range(MANY):
            text = MANIFEST.format(number=number, line=line)
            (self.root / "jobs" / f"{number}.yaml").write_text(text)

    @contextmanager
    def session(self) -> Iterator[tuple[Session, Desired, NotedRequests]]:
        config = load_config(self.root)
        environment = config.environment("local")
        desired = load_desired(config, environment, [])
        with open_session(config, environment, os.environ, start=True) as session:
            noting, noted = noting_session(session)
            yield noting, desired, noted

    def apply(self) -> None:
        with self.session() as (session, desired, _):
            seen = look(session.ports, wanted_of(desired.jobs))
            applied = apply(session, desired, seen.observed, ApplyListener(), origin=NO_ORIGIN)
            assert follow_up(session, desired, applied).problems == ()

    def end_runs(self, service: HeldService, file: str, content: Callable[[int], str]) -> None:
        """Have all runs leave a file, whose content depends on the job's number, and succeed."""
        with self.session() as (_, desired, _):
            for job in desired.jobs:
                folder = job.spec["baseOutputDirectory"]["outputUriPrefix"]
                number = int(job.manifest.name.removeprefix("job-"))
                put(service.home, f"{folder}/{file}", content(number).encode())
        # At once: a file of long after the end is another run's.
        steps = (JobState.QUEUED, JobState.RUNNING), (JobState.RUNNING, JobState.SUCCEEDED)
        for record in service.store.unfinished():
            for before, after in steps:
                service.store.move(record.id, after, only_from={before}, at=service.store.now())

    def plan(self) -> tuple[list[tuple[str, str]], Plan]:
        """Return the requests of a plan, and the plan."""
        with self.session() as (session, desired, noted):
            seen = look(session.ports, wanted_of(desired.jobs))
            return noted.sent, plan_of(session, desired, state_of(session, desired, seen.observed))
