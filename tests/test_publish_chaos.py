"""Applies of two commits at once, killed, stopped and misled, while a reader follows what is in the place.

`make chaos KILLS=60 SEED=7` runs more of it; each failure prints its seed.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from reconciler.model.publication import CurrentModel, current_of, model_folder, published_of
from reconciler.training_service.state.records import JobState
from tests.support.fault_proxy import Fault, FaultProxy, Request, Rule
from tests.support.held_service import HeldService
from tests.support.publishing import crc32c_of, path_of, put
from tests.support.repository import Repository, Result
from tests.support.waiting import PATIENCE

KILLS = int(os.environ.get("CHAOS_KILLS", "12"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
JOBS = 3
FILES = 3
KILLS_OF_ROUND = 6
NAP = 1.0
LONGEST = 8.0
"""Seconds after which a waiting process is killed too."""
RULES = (
    Rule(
        "POST",
        "rewriteTo|/b/risk-models/",
        {Fault.DROPPED: 0.02, Fault.UNANSWERED: 0.04, Fault.HALVED: 0.03, Fault.LATE: 0.03, Fault.BUSY: 0.02},
    ),
)
SETTINGS = """
source: acme-jobs
outputs: own
limits: {submissions: 1000}
environments: {local: {defaults: {publish: gs://risk-models}}}
"""
MANIFEST = """
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: job-{number}}}
publish: {{}}
spec:
  baseOutputDirectory: {{outputUriPrefix: "gs://models/{number}"}}
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      containerSpec: {{imageUri: "example.test/plain:1", args: ["{content}"]}}
"""
ADDRESSES = [f"gs://risk-models/job-{number}" for number in range(JOBS)]
PATHS = [f"jobs/{number}.yaml" for number in range(JOBS)]


@dataclass
class Reader:
    """A reader of every place, who reads all files that it names, over and over.

    Attributes:
        home: The embedded service's folder.
        seen: The commits in each place, in their order.
        wrong: What wasn't as recorded.
    """

    home: Path
    seen: dict[str, list[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    reads: int = 0

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join(PATIENCE)

    def _follow(self) -> None:
        while not self._over.is_set():
            for to in ADDRESSES:
                try:
                    self.read(to)
                except (OSError, ValueError, msgspec.MsgspecError) as error:
                    self.wrong.append(f"{to}: {error}")
                    return
            self._over.wait(0.002)

    def read(self, to: str) -> None:
        """Read the model in a place, if there is one."""
        place = path_of(self.home, f"{to}/current.json")
        if not place.exists():
            return
        current = current_of(place.read_bytes(), to)
        commits = self.seen.setdefault(to, [])
        if commits[-1:] != [current.commit]:
            commits.append(current.commit)
        folder = path_of(self.home, model_folder(to, current.job_name))
        model = published_of((folder / "manifest.json").read_bytes(), current.job_name)
        if len(model.files) != FILES:
            self.wrong.append(f"{current.job_name} has {len(model.files)} files")
        for file in model.files:
            content = (folder / file.name).read_bytes()
            if (len(content), crc32c_of(content)) != (file.size, file.crc32c):
                self.wrong.append(f"{current.job_name}/{file.name} isn't as recorded")
        self.reads += 1


@dataclass
class Race:
    """Applies of an older and a newer commit at once, with random fates from a seed.

    Attributes:
        older, newer: Clones of one repository, with these commits checked out.
        killed: The number of processes killed before their end.
    """

    older: Repository
    newer: Repository
    service: HeldService
    proxy: FaultProxy
    chance: random.Random
    killed: int = 0
    rounds: int = 0

    def run(self, kills: int) -> None:
        for _ in range(10 + kills):
            self.round()
            if self.killed >= kills:
                break
        assert self.killed >= kills, self.told()

    def round(self) -> None:
        """Train the jobs of two new commits, and apply both at once until nothing is left to kill."""
        self.rounds += 1
        commits = [self.commit(f"older {self.rounds}"), self.commit(f"newer {self.rounds}")]
        for clone, sha in zip((self.older, self.newer), commits, strict=True):
            self.check_out(clone, sha)
            self.train(clone)
        # An apply of all jobs also records its commit; of some, only the places tell which one is newer.
        paths = PATHS if self.rounds % 2 else []
        reader, before = Reader(self.service.home), self.killed
        try:
            self.proxy.rules = RULES
            while self.killed < before + KILLS_OF_ROUND:
                if not self.pair(paths):
                    break
            self.proxy.calm()
            self.proxy.settle()
            ended = [finished(process) for process in self.started(paths)]
            said = self.told(*ended)
            for to in ADDRESSES:
                reader.read(to)
        finally:
            reader.end()
        assert reader.wrong == [], said
        assert reader.reads > 10, said
        older, newer = commits
        for to in ADDRESSES:
            seen = reader.seen[to]
            assert seen[-1] == newer, (to, seen, commits, said)
            assert older not in seen[seen.index(newer) :], (to, seen, commits, said)

    def commit(self, content: str) -> str:
        source = Repository(self.older.root.parent / "source")
        for number, path in enumerate(PATHS):
            source.write(path, MANIFEST.format(number=number, content=content))
        source.write("reconciler.yaml", SETTINGS)
        source.git("add", "-A")
        source.git("commit", "-q", "-m", content)
        return source.git("rev-parse", "HEAD")

    def check_out(self, clone: Repository, sha: str) -> None:
        clone.git("fetch", "-q", "origin")
        clone.git("checkout", "-q", "--detach", sha)

    def in_place(self) -> list[str]:
        """Return the names of the models' jobs in the places."""
        return [self.current(to).job_name for to in ADDRESSES]

    def commits_in_place(self) -> set[str]:
        return {self.current(to).commit for to in ADDRESSES}

    def current(self, to: str) -> CurrentModel:
        return current_of(path_of(self.service.home, f"{to}/current.json").read_bytes(), to)

    def train(self, clone: Repository) -> None:
        """Submit the jobs of a clone, and have them succeed, without recording its commit."""
        applied = finished(clone.start("apply", *PATHS))
        assert applied.code == 0, applied.out + applied.err
        plan = finished(clone.start("plan", "--format", "json")).json
        for change in plan["changes"]:
            for number in range(FILES):
                folder = f"gs://models/{change['baseName'].removeprefix('job-')}/{change['jobName']}/model"
                put(self.service.home, f"{folder}/{number}.bin", f"{change['jobName']} {number}".encode())
        steps = (JobState.QUEUED, JobState.RUNNING), (JobState.RUNNING, JobState.SUCCEEDED)
        for record in self.service.store.unfinished():
            for state, after in steps:
                self.service.store.move(record.id, after, only_from={state}, at=self.service.store.now())

    def started(self, paths: list[str]) -> list[subprocess.Popen[str]]:
        clones = [self.older, self.newer]
        self.chance.shuffle(clones)
        return [clone.start("apply", *paths) for clone in clones]

    def pair(self, paths: list[str]) -> bool:
        """Run both applies at once, each with its fate; return False if none was killed."""
        pair, before = self.started(paths), self.killed
        timers = [timer for process in pair for timer in self.doom(process)]
        for process in pair:
            self.killed += finished(process).code == -signal.SIGKILL
        for timer in timers:
            timer.cancel()
        return self.killed > before

    def doom(self, process: subprocess.Popen[str]) -> list[threading.Timer]:
        """Choose the moment of a process's end, or of a pause: an event of the proxy."""
        moment = self.chance.randrange(1, 100)
        end = later(LONGEST, process.kill)
        if self.chance.random() < 0.75:
            self.proxy.after(moment, process.kill)
            return [end]
        self.proxy.after(moment, lambda: process.send_signal(signal.SIGSTOP))
        return [end, later(NAP, lambda: process.send_signal(signal.SIGCONT))]

    def told(self, *results: Result) -> str:
        ended = "\n".join(f"{result.code}\n{result.out}\n{result.err}" for result in results)
        return f"{self.rounds} rounds, {self.killed} killed\n{self.proxy.report()}\n{ended}"


def later(seconds: float, act: object) -> threading.Timer:
    assert callable(act)
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
    return timer


def finished(process: subprocess.Popen[str]) -> Result:
    """Return the process's result; fail on a traceback."""
    out, err = process.communicate(timeout=PATIENCE)
    assert not re.search("^Traceback", out + err, re.MULTILINE), out + err
    return Result(process.returncode, out, err)


@pytest.fixture
def race(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Race]:
    home = tmp_path / "home"
    monkeypatch.setenv("RECONCILER_HOME", str(home))
    source = Repository(tmp_path / "source")
    source.write("reconciler.yaml", SETTINGS)
    source.git("init", "-q", "-b", "main")
    source.git("add", "-A")
    source.git("commit", "-q", "-m", "first")
    for name in ("older", "newer"):
        source.git("clone", "-q", str(source.root), str(tmp_path / name))
    older, newer = (Repository(tmp_path / name) for name in ("older", "newer"))
    for clone in (older, newer):
        clone.git("checkout", "-q", ".")
    with (
        HeldService(home).running() as service,
        FaultProxy(service.url, SEED).running() as proxy,
    ):
        service.found_at(proxy.url)
        (home / "gcs/models").mkdir(parents=True)
        yield Race(older, newer, service, proxy, random.Random(SEED))


@pytest.mark.slow
def test_reader_sees_whole_models_and_the_older_commit_never_wins_last(race: Race) -> None:
    race.run(KILLS)
    print(race.told())


@pytest.mark.slow
def test_slow_apply_of_reverted_commit_loses_although_both_models_were_published_before(
    race: Race,
) -> None:
    """Stop an apply right before its last write, and let the revert's apply run from start to end."""
    for content in ("b", "a"):
        race.check_out(race.newer, race.commit(content))
        race.train(race.newer)
        assert finished(race.newer.start("apply")).code == 0
    race.check_out(race.older, race.commit("b"))
    sha = race.commit("a")
    race.check_out(race.newer, sha)
    good = race.in_place()
    overtaken: list[Result] = []

    def overtake(request: Request, answered: bool) -> None:
        is_last_write = request.method == "POST" and b"current.json" in request.body
        if is_last_write and not answered and not overtaken:
            overtaken.append(Result(-1, "", ""))
            overtaken.append(finished(race.newer.start("apply")))

    race.proxy.watch(overtake)
    slow = finished(race.older.start("apply"))
    told = race.told(slow, *overtaken)
    assert overtaken[1].code == 0, told
    assert race.in_place() == good, told
    assert race.commits_in_place() == {sha}, told
    assert (slow.code, "pull" in slow.out + slow.err) == (1, True), told
