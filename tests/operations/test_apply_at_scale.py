"""Many jobs submitted at once to the embedded service over HTTP: each exactly once, despite other clients."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import urllib3

from reconciler.base.concurrency import MOST_THREADS
from reconciler.base.errors import ServiceError
from reconciler.base.state_dir import home_of
from reconciler.manifests.settings import load_config
from reconciler.manifests.warnings import Warnings
from reconciler.model.plan import DesiredJob, Plan
from reconciler.operations.apply import Applied, carry_out
from reconciler.operations.execute import Applier, applier_of
from reconciler.operations.follow_up import follow_up
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.observed_state import state_of
from reconciler.operations.origin import NO_ORIGIN
from reconciler.operations.plan import plan_of
from reconciler.operations.session import Session, open_session
from reconciler.output.wording.plan import outcome_error
from reconciler.planning.outcome import Outcome, Status
from reconciler.submission.observe import observe
from tests.support.fault_proxy import Fault, FaultProxy, Request, Rule
from tests.support.held_service import HeldService
from tests.support.waiting import PATIENCE

MANIFEST = """
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: job-{number:03}}}
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      containerSpec: {{imageUri: "example.test/plain:1", args: ["{number}"]}}
"""
MANY = 200


class Place:
    """A repository of a given number of manifests, and a service that runs none of them."""

    def __init__(self, root: Path, service: HeldService) -> None:
        self.root = root
        self.service = service
        self.config = load_config(root)
        self.environment = self.config.environment("local")
        self.desired = load_desired(self.config, self.environment, [])

    @contextmanager
    def session(self) -> Iterator[Session]:
        with open_session(self.config, self.environment, os.environ, start=True) as session:
            yield session

    def plan(self, session: Session) -> Plan:
        return plan_of(session, self.desired, state_of(session, self.desired, observe(session.ports)))

    def apply(self, change: Callable[[Applier], Applier] = lambda applier: applier) -> list[Outcome]:
        """Run a complete pass, and check that all its records are written."""
        with self.session() as session:
            plan = self.plan(session)
            applier = change(applier_of(session, self.desired, NO_ORIGIN.commit_of))
            outcomes = carry_out(session, applier, plan)
            after = follow_up(session, self.desired, Applied(plan, NO_ORIGIN, applier, outcomes))
            assert after.problems == ()
        return outcomes

    def is_at_rest(self) -> bool:
        with self.session() as session:
            return {change.action for change in self.plan(session).changes} == {"none"}

    def is_once(self, outcomes: list[Outcome]) -> bool:
        """Return True if the service has each job once, with a claim that is bound to it."""
        names = Counter(job.job_name for job in self.desired.jobs)
        resources = {claim["resource"] for claim in self.service.claims()}
        return (
            self.service.names() == names
            and {claim["state"] for claim in self.service.claims()} == {"bound"}
            and {outcome.resource for outcome in outcomes} <= resources
            and len(resources) == len(names)
        )


@contextmanager
def place(tmp_path: Path, count: int) -> Iterator[Place]:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "reconciler.yaml").write_text("limits: {submissions: 1000}\n")
    for number in range(count):
        (tmp_path / "jobs" / f"{number}.yaml").write_text(MANIFEST.format(number=number))
    with HeldService(home_of(tmp_path, os.environ)).running() as service:
        yield Place(tmp_path, service)


def told(outcomes: list[Outcome]) -> list[tuple[str, str]]:
    return [(outcome.change.base_name, str(outcome.status)) for outcome in outcomes]


@pytest.mark.slow
@pytest.mark.fault(49)
def test_each_of_many_is_submitted_once_and_told_in_the_plans_order(tmp_path: Path) -> None:
    with place(tmp_path, MANY) as there:
        outcomes = there.apply()
        assert told(outcomes) == [(f"job-{number:03}", "applied") for number in range(MANY)]
        assert there.is_once(outcomes)
        assert there.is_at_rest()


@pytest.mark.slow
@pytest.mark.fault(7)
def test_two_that_submit_the_same_at_once_submit_each_once(tmp_path: Path) -> None:
    with place(tmp_path, 20) as there:
        together = threading.Barrier(2)
        outcomes: list[list[Outcome]] = []

        def stage(job: DesiredJob) -> None:
            if job is there.desired.jobs[0]:
                together.wait(60)

        def apply() -> None:
            outcomes.append(there.apply(lambda applier: replace(applier, stage=stage, patience=60.0)))

        threads = [threading.Thread(target=apply) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert [told(one) for one in outcomes] == [[(f"job-{n:03}", "applied") for n in range(20)]] * 2
        assert there.is_once([outcome for one in outcomes for outcome in one])


@pytest.mark.slow
def test_one_that_fails_fails_alone(tmp_path: Path) -> None:
    def stage(job: DesiredJob) -> None:
        if job.manifest.name in ("job-000", "job-007"):
            raise ServiceError("no room", hint="make some")

    with place(tmp_path, 10) as there:
        outcomes = there.apply(lambda applier: replace(applier, stage=stage))
        failed = [outcome for outcome in outcomes if outcome.status is Status.FAILED]
        assert [(one.change.base_name, outcome_error(one)) for one in failed] == [
            ("job-000", "no room (make some)"),
            ("job-007", "no room (make some)"),
        ]
        assert len(outcomes) == 10
        assert sum(there.service.names().values()) == 8
        assert there.is_once(there.apply())


@pytest.mark.slow
@pytest.mark.fault(2, 4)
def test_many_whose_answers_get_lost_are_there_once(tmp_path: Path) -> None:
    """Check that lost, reset and halved answers lead to no second submission."""
    lies = dict.fromkeys((Fault.UNANSWERED, Fault.RESET, Fault.HALVED, Fault.PAGE_AFTER), 0.2)
    with place(tmp_path, 15) as there, FaultProxy(there.service.url, 1).running() as proxy:
        there.service.found_at(proxy.url)
        proxy.rules = [Rule("POST", "/customJobs", lies)]
        outcomes = there.apply()
        proxy.settle()
        assert told(outcomes) == [(f"job-{number:03}", "applied") for number in range(15)]
        assert there.is_once(outcomes)


class Held:
    """A rule that holds every create but the first, and signals when a given number are held."""

    def __init__(self, count: int) -> None:
        self.all_here = threading.Event()
        self.released = threading.Event()
        self.creates = 0
        self._count = count
        self._lock = threading.Lock()

    def __call__(self, request: Request, answered: bool) -> None:
        if answered or request.method != "POST" or not request.target.partition("?")[0].endswith("Jobs"):
            return
        with self._lock:
            self.creates += 1
            mine = self.creates > 1
            if self.creates == 1 + self._count:
                self.all_here.set()
        if mine:
            self.released.wait(120)


@pytest.mark.slow
@pytest.mark.fault(31)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
def test_an_interrupted_apply_of_many_ends_soon_and_sends_nothing_more(
    tmp_path: Path, number: signal.Signals
) -> None:
    with place(tmp_path, 20) as there, FaultProxy(there.service.url).running() as proxy:
        there.service.found_at(proxy.url)
        held = Held(3)
        proxy.watch(held)
        process = subprocess.Popen(
            [sys.executable, "-m", "reconciler", "apply"],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            assert held.all_here.wait(120)
            process.send_signal(number)
            # Their answers are held until the process has ended: it waits for none of them.
            out, err = process.communicate(timeout=PATIENCE)
            sent = held.creates
        finally:
            process.kill()
            held.released.set()
        proxy.settle()
        assert process.returncode == 128 + number, out + err
        assert "reconciler apply" in err
        assert "Traceback" not in err
        assert held.creates == sent <= 1 + MOST_THREADS
        states = Counter(claim["state"] for claim in there.service.claims())
        assert states["bound"] == 1
        assert 3 <= states["pending"] <= MOST_THREADS

        there.service.ahead += timedelta(hours=2)
        assert there.is_once(there.apply())


@pytest.mark.slow
def test_an_end_that_is_seen_of_many_is_kept_of_each(tmp_path: Path) -> None:
    with place(tmp_path, 15) as there:
        there.apply()
        cancel_all(there.service)
        there.apply()
        assert {claim["ended"] for claim in there.service.claims()} == {"CANCELLED"}
        assert len(there.service.claims()) == 15


def cancel_all(service: HeldService) -> None:
    headers = {"Authorization": f"Bearer {service.token}"}
    for claim in service.claims():
        answer = urllib3.request("POST", f"{service.url}/v1/{claim['resource']}:cancel", headers=headers)
        assert answer.status == 200, answer.data


def test_without_manifests_nothing_is_done(tmp_path: Path) -> None:
    with place(tmp_path, 0) as there:
        assert there.desired == Desired((), {}, warnings=Warnings(tmp_path))
        assert there.apply() == []
