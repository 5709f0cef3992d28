"""Two concurrent reconcilers, killed, stopped and misled by the network: one job a manifest, none lost.

`make chaos KILLS=200 SEED=7` runs more of it; each failure prints its seed.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest

from reconciler.model.job import KEY
from reconciler.model.manifest import TRAINING_PIPELINE
from reconciler.training_service.state.database import COPIED_LABELS
from tests.support.connect_proxy import BadProxy, unreliable
from tests.support.fault_proxy import Fault, FaultProxy, Request, Rule
from tests.support.google_place import HURRIED, LOCATION, PROJECT, google_place
from tests.support.held_service import HeldService, job_names
from tests.support.repository import Repository, Result
from tests.support.waiting import PATIENCE

KILLS = int(os.environ.get("CHAOS_KILLS", "12"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
JOBS = 20
PASSES = 6
LONGEST = 8.0
"""Seconds after which a waiting process is killed too."""
LOOKS = 6
LATER = timedelta(hours=2)
"""Duration after which any outcome is known, whatever the credentials."""

RULES = (
    Rule(
        "POST",
        "/customJobs|/trainingPipelines",
        {
            Fault.DROPPED: 0.05,
            Fault.UNANSWERED: 0.06,
            Fault.RESET: 0.06,
            Fault.HALVED: 0.06,
            Fault.LATE: 0.05,
            Fault.PAGE: 0.02,
            Fault.PAGE_AFTER: 0.06,
            Fault.BUSY: 0.03,
            Fault.QUOTA: 0.02,
            Fault.DRIPPED: 0.1,
        },
    ),
    Rule(
        "POST",
        "/claims|generateAccessToken|/upload/",
        {Fault.DROPPED: 0.01, Fault.UNANSWERED: 0.03, Fault.HALVED: 0.01, Fault.BUSY: 0.01, Fault.LATE: 0.01},
    ),
    Rule(
        "GET",
        "/storage/|/customJobs|/trainingPipelines",
        {Fault.HALVED: 0.01, Fault.BUSY: 0.005, Fault.DRIPPED: 0.02},
    ),
)


class Nap:
    """Stop and continuation of a process, in this order whenever the two are called."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self._lock = threading.Lock()
        self._over = False

    def begin(self) -> bool:
        """Stop the process; return False if the nap is over or the process has ended."""
        with self._lock:
            if self._over or self._process.poll() is not None:
                return False
            self._process.send_signal(signal.SIGSTOP)
            return True

    def end(self) -> None:
        with self._lock:
            self._over = True
            self._process.send_signal(signal.SIGCONT)


@dataclass
class Storm:
    """Pairs of `apply` over a repository, with random fates from a seed, until enough were killed.

    Attributes:
        start: Callback that starts a `reconciler` process with arguments.
        between: A proxy between the processes and the service's, with faults of its own.
        place: The project and location of the jobs.
        jobs: The number of manifests.
        names: The names of all jobs ever desired.
        killed: The number of processes killed before their end.
        stopped: The number of processes stopped and continued.
    """

    repository: Repository
    service: HeldService
    proxy: FaultProxy
    chance: random.Random
    start: Callable[..., subprocess.Popen[str]]
    between: BadProxy | None = None
    place: tuple[str, str] = ("local", "local")
    jobs: int = JOBS
    names: set[str] = field(default_factory=set)
    killed: int = 0
    stopped: int = 0
    rounds: int = 0

    def blow(self, kills: int) -> None:
        """Run pairs until enough processes were killed; change all manifests whenever all jobs exist."""
        self.new_round()
        for _ in range(50 + 10 * kills):
            self.pair()
            if self.killed >= kills:
                break
            if len(self.service.names(*self.place)) >= len(self.names) + self.jobs:
                self.converge()
                self.new_round()
        self.converge()
        assert self.killed >= kills, self.told()

    def new_round(self) -> None:
        self.rounds += 1
        write_jobs(self.repository, self.jobs, f"round {self.rounds}")
        self.proxy.rules = RULES
        if self.between:
            self.between.behaviour = unreliable(self.chance)

    def pair(self) -> None:
        """Run two processes at once, each with its fate."""
        self.service.ahead += timedelta(seconds=self.chance.choice((0, 0, 0, 5, 20, 600)))
        pair = [self.start("apply") for _ in range(2)]
        timers = [timer for process in pair for timer in self._doom(process)]
        for process in pair:
            code = finished(process).code
            self.killed += code == -signal.SIGKILL
        for timer in timers:
            timer.cancel()

    def _doom(self, process: subprocess.Popen[str]) -> list[threading.Timer]:
        """Choose the fate of a process, and its moment: an event of the proxy, or a time."""
        fate = self.chance.random()
        moment = self.chance.randrange(1, 120)
        seconds = self.chance.uniform(0.1, 2.5)
        end = later(LONGEST, process.kill)
        if fate < 0.55:
            self.proxy.after(moment, process.kill)
        elif fate < 0.75:
            return [end, later(seconds, process.kill)]
        elif fate < 0.95:
            nap = Nap(process)
            asleep = timedelta(seconds=self.chance.choice((0, 15, 3000)))
            self.proxy.after(moment, lambda: self._stop(nap, asleep))
            return [end, later(seconds + 1.0, nap.end)]
        return [end]

    def _stop(self, nap: Nap, asleep: timedelta) -> None:
        """Stop a process, for a duration by the service's clock."""
        self.stopped += nap.begin()
        self.service.ahead += asleep

    def converge(self) -> None:
        """Run passes without faults; check that the plan becomes empty, and that each job exists once."""
        self.proxy.calm()
        if self.between:
            self.between.calm()
        self.proxy.settle()
        for _ in range(PASSES):
            self.service.ahead += LATER
            applied = finished(self.start("apply"))
            plan = finished(self.start("plan", "--detailed-exitcode", "--format", "json"))
            if plan.code == 0:
                break
        assert plan.code == 0, self.told(applied, plan)
        again = finished(self.start("apply"))
        assert again.code == 0, self.told(applied, again)
        self.names |= {change["jobName"] for change in plan.json["changes"]}
        assert self.service.names(*self.place) == Counter(self.names), self.told(applied, plan)
        assert {finding["kind"] for finding in plan.json["drift"]} <= {"superseded"}, self.told(plan)

    def told(self, *results: Result) -> str:
        ended = "\n".join(f"{result.code}\n{result.out}\n{result.err}" for result in results)
        counts = f"{self.rounds} rounds, {self.killed} killed, {self.stopped} stopped"
        return f"{counts}\n{self.proxy.report()}\n{ended}"


def write_jobs(repository: Repository, jobs: int, rerun: str) -> None:
    for number in range(jobs):
        # Every third one is a pipeline, whose resource comes back with another body.
        kind = "CustomJob" if number % 3 else TRAINING_PIPELINE
        repository.job(f"job-{number}", reconcile=f'{{rerun: "{rerun}"}}', kind=kind)


def later(seconds: float, act: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    return timer


def finished(process: subprocess.Popen[str]) -> Result:
    """Return the process's result; fail on a traceback."""
    out, err = process.communicate(timeout=PATIENCE)
    assert not re.search("^Traceback", out + err, re.MULTILINE), out + err
    return Result(process.returncode, out, err)


@contextmanager
def local(repository: Repository, *, rate: float = 1.0) -> Iterator[tuple[HeldService, FaultProxy]]:
    """Run the embedded service for the repository's commands, behind a proxy without faults."""
    with (
        HeldService(repository.home, rate=rate).running() as service,
        FaultProxy(service.url, SEED).running() as proxy,
    ):
        service.found_at(proxy.url)
        yield service, proxy


@pytest.mark.fault(2, 6, 7, 8, 72, 73)
@pytest.mark.parametrize("labels", [False, True], ids=["", "labels on backing jobs"])
def test_kills_and_lies_leave_one_job_a_manifest(repository: Repository, labels: bool) -> None:
    with local(repository, rate=10.0) as (service, proxy):
        service.store.set_setting(COPIED_LABELS, labels)
        storm = Storm(repository, service, proxy, random.Random(SEED), repository.start)
        storm.blow(KILLS // 2)
        print(storm.told())


@pytest.mark.fault(2, 6, 7, 8, 73)
@pytest.mark.parametrize("submitter", [True, False], ids=["own token for each create", "one token"])
def test_kills_and_lies_on_the_road_to_google(
    repository: Repository, tmp_path: Path, submitter: bool
) -> None:
    hurried = tmp_path / "hurried.py"
    hurried.write_text(HURRIED)
    with (
        local(repository) as (service, proxy),
        google_place(repository, service, proxy.url, tmp_path, submitter=submitter) as environ,
    ):
        blow_at_google(repository, service, proxy, hurried, environ)


@pytest.mark.fault(1, 2, 3)
def test_kills_and_lies_behind_an_unreliable_proxy(repository: Repository, tmp_path: Path) -> None:
    """Use a proxy that breaks its tunnels, answers late, twice, partially or not at all."""
    hurried = tmp_path / "hurried.py"
    hurried.write_text(HURRIED)
    between = BadProxy(unreliable(random.Random(SEED)))
    with (
        closing(between),
        local(repository) as (service, proxy),
        google_place(repository, service, proxy.url, tmp_path, submitter=True, proxy=between.url) as environ,
    ):
        blow_at_google(repository, service, proxy, hurried, environ, between)
        assert len(between.heads) > 100


def blow_at_google(
    repository: Repository,
    service: HeldService,
    proxy: FaultProxy,
    hurried: Path,
    environ: dict[str, str],
    between: BadProxy | None = None,
) -> None:
    start = partial(repository.start, program=str(hurried), **environ)
    while finished(start("init", "--claims")).code != 0:
        pass  # a proxy may fail it
    chance, place = random.Random(SEED), (PROJECT, LOCATION)
    storm = Storm(repository, service, proxy, chance, start, between, place, jobs=8)
    storm.blow(KILLS // 3)
    print(storm.told())


@pytest.mark.fault(6, 7)
def test_kills_with_a_service_that_runs_the_jobs(repository: Repository) -> None:
    """Use no proxy and no other clock; wait for unknown outcomes."""
    chance = random.Random(SEED)
    write_jobs(repository, JOBS, "")
    repository.hold.touch()
    killed = 0
    while killed < KILLS // 6:
        pair = [repository.start("apply") for _ in range(2)]
        timers = [later(chance.uniform(0.2, 2.0), process.kill) for process in pair]
        killed += sum(finished(process).code == -signal.SIGKILL for process in pair)
        for timer in timers:
            timer.cancel()
        if repository.run("plan", "--detailed-exitcode").code == 0:
            break
    applied = repository.run("apply")
    assert applied.code == 0, applied.out + applied.err
    plan = repository.run("plan", "--detailed-exitcode", "--format", "json")
    assert plan.code == 0
    names = {change["jobName"] for change in plan.json["changes"]}
    service = repository.service()
    assert job_names(service["url"], service["token"]) == Counter(names)
    assert len(names) == JOBS


def is_create_at(target: str) -> bool:
    return target.partition("?")[0].endswith(("/customJobs", "/trainingPipelines"))


def is_create(request: Request) -> bool:
    return request.method == "POST" and is_create_at(request.target)


def is_look(request: Request) -> bool:
    """Return True for a search for the jobs of a key."""
    return request.method == "GET" and is_create_at(request.target) and KEY in request.target


class Nth:
    """Filter for the n-th of the matching requests."""

    def __init__(self, wanted: Callable[[Request], bool], number: int) -> None:
        self._wanted, self._left = wanted, number

    def __call__(self, request: Request) -> bool:
        self._left -= self._wanted(request)
        return self._left == 0


def is_pending_claim(request: Request) -> bool:
    return request.method == "POST" and "/upload/" in request.target and b'"pending"' in request.body


@dataclass
class Watch:
    """Watch for the first request of a kind, which it can hold."""

    wanted: Callable[[Request], bool]
    answered: bool
    act: Callable[[], None]
    hold: bool
    came: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, request: Request, answered: bool) -> None:
        with self.lock:
            mine = answered is self.answered and self.wanted(request) and not self.came.is_set()
            if mine:
                self.act()
                self.came.set()
        if mine and self.hold:
            self.released.wait(PATIENCE)


@pytest.mark.fault(7)
def test_of_two_that_found_no_claim_one_submits(repository: Repository) -> None:
    """Hold a process's claim in flight while the other process writes its own claim and submits."""
    repository.job("census")
    with local(repository) as (service, proxy):
        slower = repository.start("apply")
        writing = Watch(is_pending_claim, False, lambda: None, hold=True)
        proxy.watch(writing)
        assert writing.came.wait(PATIENCE)
        assert repository.run("apply").code == 0
        writing.released.set()
        assert finished(slower).code == 0
        assert list(service.names().values()) == [1]
        assert sum(is_create_at(post.target) for post in proxy.posts) == 1


@pytest.mark.fault(7)
def test_while_a_create_may_still_leave_nobody_else_sends_one(repository: Repository) -> None:
    """Hold a process between its claim and its create, with time left, while the other looks twice."""
    repository.job("census")
    with local(repository) as (service, proxy):
        first = repository.start("apply")
        claimed = Watch(is_pending_claim, True, lambda: first.send_signal(signal.SIGSTOP), hold=False)
        proxy.watch(claimed)
        assert claimed.came.wait(PATIENCE)
        second = repository.start("apply")
        looked = Watch(Nth(is_look, LOOKS), True, lambda: None, hold=False)
        proxy.watch(looked)
        while not looked.came.wait(0.1):
            assert second.poll() is None, "it sent one instead of waiting"

        first.send_signal(signal.SIGCONT)
        assert [finished(process).code for process in (first, second)] == [0, 0]
        assert list(service.names().values()) == [1]
        assert sum(is_create_at(post.target) for post in proxy.posts) == 1


@pytest.mark.fault(8)
@pytest.mark.parametrize("where", ["before its create", "with its create under way"])
@pytest.mark.parametrize("kind", ["CustomJob", TRAINING_PIPELINE])
def test_a_reconciler_that_wakes_after_it_was_replaced_makes_no_second_job(
    repository: Repository, where: str, kind: str
) -> None:
    repository.job("census", kind=kind)
    under_way = where == "with its create under way"
    with local(repository) as (service, proxy):
        zombie = repository.start("apply")
        watch = Watch(
            is_create if under_way else is_pending_claim,
            answered=not under_way,
            act=lambda: zombie.send_signal(signal.SIGSTOP),
            hold=under_way,
        )
        proxy.watch(watch)
        assert watch.came.wait(PATIENCE)
        service.ahead += timedelta(minutes=1)
        replacing = repository.run("apply")
        assert replacing.code == 0, replacing.out + replacing.err
        assert list(service.names().values()) == [1]

        zombie.send_signal(signal.SIGCONT)
        watch.released.set()
        finished(zombie)
        proxy.settle()
        assert sum(is_create_at(post.target) for post in proxy.posts) == 2, "both sent one"
        assert list(service.names().values()) == [1]
        (claim,) = service.claims()
        assert (claim["state"], len(claim["tries"])) == ("bound", 2)
        assert repository.run("plan", "--detailed-exitcode").code == 0


@pytest.mark.fault(31)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize(
    ("wanted", "answered"),
    [(is_pending_claim, True), (is_create, False), (is_create, True)],
    ids=["claim written", "create on its way", "create answered"],
)
def test_an_interrupted_apply_ends_soon_and_says_what_it_leaves(
    repository: Repository, number: signal.Signals, wanted: Callable[[Request], bool], answered: bool
) -> None:
    repository.job("census")
    with local(repository) as (service, proxy):
        process = repository.start("apply")
        watch = Watch(wanted, answered, lambda: process.send_signal(number), hold=True)
        proxy.watch(watch)
        assert watch.came.wait(PATIENCE)
        try:
            # The request is held until the process has ended: the process doesn't wait for its answer.
            ended = finished(process)
        finally:
            watch.released.set()
        proxy.settle()
        assert ended.code == 128 + number, ended
        assert "reconciler apply" in ended.err, ended
        (claim,) = service.claims()
        assert claim["state"] == "pending"

        service.ahead += LATER
        assert repository.run("apply").code == 0
        assert list(service.names().values()) == [1]
        assert repository.run("plan", "--detailed-exitcode").code == 0
