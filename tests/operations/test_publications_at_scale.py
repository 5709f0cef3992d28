"""Many publications: what is in its place costs a plan no request."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reconciler.base.state_dir import home_of
from reconciler.manifests.settings import load_config
from reconciler.model.plan import Action, Plan
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
from tests.support.publishing import path_of, put

pytestmark = pytest.mark.slow

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
{publish}
spec:
  baseOutputDirectory: {{outputUriPrefix: "gs://models/{number}"}}
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      containerSpec: {{imageUri: "example.test/plain:1", args: ["{number}"]}}
"""


class Many:
    """A repository of many jobs, each of which publishes its model or not."""

    def __init__(self, root: Path) -> None:
        (root / "jobs").mkdir()
        (root / "reconciler.yaml").write_text(SETTINGS)
        self.root = root

    def write(self, publish: str) -> None:
        """Write all manifests, with a line of `publish` or without."""
        for number in range(MANY):
            text = MANIFEST.format(number=number, publish=publish)
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

    def end_runs(self, service: HeldService) -> None:
        """Have all runs leave a model and succeed."""
        with self.session() as (_, desired, _):
            for job in desired.jobs:
                folder = job.spec["baseOutputDirectory"]["outputUriPrefix"]
                put(service.home, f"{folder}/model/model.bin", job.job_name.encode())
        steps = (JobState.QUEUED, JobState.RUNNING), (JobState.RUNNING, JobState.SUCCEEDED)
        for record in service.store.unfinished():
            for before, after in steps:
                service.store.move(record.id, after, only_from={before}, at=service.store.now())

    def plan(self) -> tuple[list[tuple[str, str]], Plan]:
        """Return the requests of a plan, and the plan."""
        with self.session() as (session, desired, noted):
            seen = look(session.ports, wanted_of(desired.jobs))
            return noted.sent, plan_of(session, desired, state_of(session, desired, seen.observed))


def test_publications_in_their_places_cost_a_plan_no_request(tmp_path: Path) -> None:
    many = Many(tmp_path)
    with HeldService(home_of(tmp_path, os.environ)).running() as service:
        many.write("publish: {}")
        many.apply()
        many.end_runs(service)
        many.apply()
        places = [*path_of(service.home, "gs://risk-models").glob("*/current.json")]
        assert len(places) == MANY
        many.apply()  # the summary has an end that was recorded before
        sent, plan = many.plan()
        many.write("")
        sent_without, _ = many.plan()
        many.write("publish: {}")
        # What the summary doesn't know is read.
        path_of(service.home, "gs://risk-models/job-000/current.json").unlink()
        _, short = many.plan()
    assert {change.action for change in plan.changes} == {Action.NONE}
    assert len(plan.changes) == MANY
    assert sent == sent_without
    assert len(sent) < 10
    assert {change.action for change in short.changes} == {Action.NONE}, "a short look takes its word"
