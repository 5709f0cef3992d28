"""Random kills of the service, runners, replicas, trials and installers: every job ends as it should.

A pipeline's model is registered once, also if the service is killed right after the training.

`make kills KILLS=100 SEED=7` does more of it; each failure prints its seed.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import urllib3

from reconciler.training_service import address
from reconciler.training_service.address import Address
from reconciler.training_service.processes import process_tree
from reconciler.training_service.state import database
from reconciler.training_service.state.database import Store
from reconciler.training_service.state.records import (
    PIPELINES,
    TUNING_JOBS,
    JobRecord,
    JobState,
    resource_name,
)
from reconciler.training_service.state.run_folder import run_folder
from reconciler.training_service.state.trial_records import TrialState
from tests.support.training_service import bodies, trainers
from tests.support.training_service.supervised import tuned
from tests.support.waiting import PATIENCE

KILLS = int(os.environ.get("SERVICE_KILLS", "12"))
SEED = int(os.environ.get("SERVICE_SEED", "1"))
AT_ONCE = 3
"""The number of unfinished jobs below which more are submitted."""
LOST = 4
"""The number of runners of a job that may be killed: the job is given up after the sixth."""
PLACE = "/v1/projects/my-project/locations/us-central1"

# Runs once at a time for each job, trial and replica, or records the violation; records its end. It leaves a
# model if it is told where.
TRAINER = """
import argparse, fcntl, json, os, pathlib, time
parser = argparse.ArgumentParser()
parser.add_argument("--x", default="")
args = parser.parse_args()
out, trial = pathlib.Path(os.environ["OUT"]), os.environ.get("CLOUD_ML_TRIAL_ID", "0")
task = json.loads(os.environ["CLUSTER_SPEC"])["task"]
own = f"{os.environ['NAME']}-{trial}-{task['type']}-{task['index']}"
lock = open(out / f"{own}.lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    (out / f"{own}.twice").touch()
    raise
if (out / f"{own}.end").exists():
    (out / f"{own}.again").touch()
for step in range(20):
    time.sleep(0.03)
    if "CLOUD_ML_HP_METRIC_FILE" in os.environ:
        file = pathlib.Path(os.environ["CLOUD_ML_HP_METRIC_FILE"])
        file.parent.mkdir(parents=True, exist_ok=True)
        line = {"merit": str(step), "global_step": str(step + 1), "trial": trial}
        file.write_text(json.dumps(line) + "\\n")
if "AIP_MODEL_DIR" in os.environ:
    model = os.environ["AIP_MODEL_DIR"].removeprefix("gs://")
    folder = pathlib.Path(os.environ["RECONCILER_GCS_DIR"], model)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "saved").touch()
(out / f"{own}.end").touch()
"""


@dataclass
class Victim:
    """A process to kill, and its job; None for the service."""

    process: psutil.Process
    job: JobRecord | None = None
    trial: int = 0


@dataclass
class Storm:
    """Jobs of all kinds under a service that is killed, as are its jobs' processes.

    Attributes:
        out: The folder of the trainers' marks.
        store: The service's own state, seen from outside.
        names: The name of each job by its row number; of a pipeline's job the pipeline's.
        pipelines: The row number of each pipeline by that of its backing job.
        struck: The (job, trial) pairs with a killed replica, trial 0 for a job without trials.
        killed: The number of killed processes of each kind.
        unregistered: The number of kills between the end of a training and the record of its model.
        installers: The jobs with a killed installer.
        lost: The number of killed runners of each job.
    """

    home: Path
    out: Path
    chance: random.Random
    store: Store
    service: subprocess.Popen[bytes] | None = None
    names: dict[int, str] = field(default_factory=dict)
    pipelines: dict[int, int] = field(default_factory=dict)
    unregistered: int = 0
    struck: set[tuple[int, int]] = field(default_factory=set)
    killed: Counter[str] = field(default_factory=Counter)
    installers: set[int] = field(default_factory=set)
    lost: Counter[int] = field(default_factory=Counter)
    starts: int = 0

    def serve(self) -> Address:
        """Return the address of a live service; start the service if none is live."""
        if self.service is None or self.service.poll() is not None:
            command = [
                sys.executable,
                "-P",
                "-m",
                "reconciler.training_service",
                "--home",
                str(self.home),
                "--stay",
            ]
            self.service = subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True)
            self.starts += 1
        give_up = time.monotonic() + PATIENCE
        while (found := address.read_address(self.home)) is None or found.pid != self.service.pid:
            assert self.service.poll() is None, "the service doesn't start"
            assert time.monotonic() < give_up, "the service doesn't come up"
            time.sleep(0.01)
        return found

    def blow(self, kills: int) -> None:
        """Kill processes until `kills` of them were killed."""
        kinds: dict[str, Callable[[], list[Victim]]] = {
            "service": self._services,
            "runner": self._runners,
            "replica": lambda: self._programs(tuning=False),
            "trial": lambda: self._programs(tuning=True),
            "installer": self._installers,
            "service after a training": self._services_after_a_training,
        }
        give_up = time.monotonic() + PATIENCE + 10 * kills
        while self.killed.total() < kills:
            assert time.monotonic() < give_up, f"only {self.killed} were killed"
            found = self.serve()
            if len(self.store.unfinished()) < AT_ONCE:
                self._submit_set(found)
            time.sleep(self.chance.uniform(0, 0.3))  # the random moment
            # Among the kinds alive at this moment, choose the kind with the fewest kills.
            fewest = sorted(kinds, key=lambda kind: (self.killed[kind], self.chance.random()))
            for kind in fewest[:3]:
                if victims := kinds[kind]():
                    self._kill(kind, self.chance.choice(victims))
                    break

    def calm(self) -> None:
        """Wait for the end of all jobs, and end the service."""
        self.serve()
        give_up = time.monotonic() + PATIENCE
        while left := [*self.store.unfinished(), *self.store.unfinished_pipelines()]:
            assert time.monotonic() < give_up, f"they don't end: {[(job.id, job.state) for job in left]}"
            time.sleep(0.05)
        assert self.service is not None
        self.service.terminate()
        assert self.service.wait(PATIENCE) == 0

    def _submit_set(self, found: Address) -> None:
        """Submit a tuning job and, in random order, a job of each other kind and a pipeline."""
        round_ = len(self.names)
        for kind in ("tuning", *self.chance.sample(["plain", "installing", "cluster", "pipeline"], 4)):
            name = f"{kind}{round_}"
            job = self._job(kind, name)
            collection, body = job.collection, {**job.body, "displayName": name}
            if kind == "pipeline":
                output = {"outputUriPrefix": f"gs://models/{name}"}
                inputs = {**job.body["jobSpec"], "baseOutputDirectory": output}
                model = {"displayName": name}
                collection = PIPELINES
                body = bodies.pipeline(displayName=name, trainingTaskInputs=inputs, modelToUpload=model)
            created = self._found(self._post(found, f"{PLACE}/{collection}", body)["name"])
            if kind == "pipeline":
                backing = self._backing(created)
                self.pipelines[backing.id] = created.id
                created = backing
            self.names[created.id] = name

    def _found(self, name: str) -> JobRecord:
        job = self.store.newest_named("my-project", name.rpartition("/")[2])
        assert job is not None
        return job

    def _backing(self, pipeline: JobRecord) -> JobRecord:
        return self._found(pipeline.backing)

    def _job(self, kind: str, name: str) -> JobRecord:
        requires, source, folder = [], TRAINER, "code"
        if kind == "installing":
            # A unique requirement, so that no earlier installation can serve it.
            requires, source, folder = ["cloudml-hypertune"], f"# {name}\n{TRAINER}", name
        uri = f"gs://{folder}/trainer-0.1-py3-none-any.whl"
        path = self.home / "gcs" / uri.removeprefix("gs://")
        if not path.exists():
            trainers.wheel(path, source, requires)
        env = {"OUT": str(self.out), "NAME": name}
        job = trainers.custom_job(packages=[uri], env=env)
        (pool,) = job.body["jobSpec"]["workerPoolSpecs"]
        pool["machineSpec"]["machineType"] = "n1-standard-1"
        if kind == "cluster":
            job.body["jobSpec"]["workerPoolSpecs"].append({**pool, "replicaCount": "2"})
        if kind == "tuning":
            job = replace(tuned(3, parallel=2, maxFailedTrialCount=3)(job))
        return job

    def _post(self, found: Address, path: str, body: Any) -> Any:
        headers = {"Authorization": f"Bearer {found.token}"}
        answer = urllib3.request("POST", found.url + path, json=body, headers=headers, retries=False)
        assert answer.status == 200, answer.data
        return answer.json()

    def _kill(self, kind: str, victim: Victim) -> None:
        with suppress(psutil.Error):
            victim.process.kill()
            self.killed[kind] += 1
            if victim.job is None:
                assert self.service is not None
                self.service.wait()
                self.unregistered += sum(
                    self._backing(pipeline).state is JobState.SUCCEEDED
                    for pipeline in self.store.unfinished_pipelines()
                )
            elif kind == "runner":
                self.lost[victim.job.id] += 1
            elif kind == "installer":
                self.installers.add(victim.job.id)
            else:
                self.struck.add((victim.job.id, victim.trial))

    def _services(self) -> list[Victim]:
        assert self.service is not None
        return [Victim(psutil.Process(self.service.pid))]

    def _services_after_a_training(self) -> list[Victim]:
        """Return the service at the moment in which a pipeline's training has ended; it waits for that."""
        pipelines = self.store.unfinished_pipelines()
        give_up = time.monotonic() + 2
        while pipelines and time.monotonic() < give_up:
            if any(self._backing(pipeline).state.ended for pipeline in pipelines):
                return self._services()
        return []

    def _runners(self) -> list[Victim]:
        return [
            Victim(process, job)
            for process in psutil.process_iter()
            for job, run_id, _trial in self._runs()
            if self.lost[job.id] < LOST and process_tree.is_runner(process.pid, run_id)
        ]

    def _programs(self, *, tuning: bool) -> list[Victim]:
        return [
            Victim(process, job, trial)
            for job, process, trial in self._marked("trainer.task")
            if (job.collection == TUNING_JOBS) is tuning
        ]

    def _installers(self) -> list[Victim]:
        # An installation is tried twice: the second try is not killed.
        return [
            Victim(process, job)
            for job, process, _ in self._marked("install")
            if job.id not in self.installers
        ]

    def _marked(self, word: str) -> Iterator[tuple[JobRecord, psutil.Process, int]]:
        for job, run_id, trial in self._runs():
            for process in process_tree.marked(run_id):
                with suppress(psutil.Error):
                    if word in process.cmdline():
                        yield job, process, trial

    def _runs(self) -> list[tuple[JobRecord, str, int]]:
        last = {
            (job.id, run.trial): (job, run)
            for job in self.store.unfinished()
            for run in self.store.runs(job.id)
        }
        return [(job, run.run_id, run.trial) for job, run in last.values()]

    def left(self) -> list[str]:
        """Return the processes and temporary folders of any run."""
        found = []
        runs = [path.name for path in (self.home / "runs").iterdir()]
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and (
                    process.environ().get(process_tree.MARK) in runs or str(self.home) in process.cmdline()
                ):
                    found.append(str(process.cmdline()))
        for run in runs:
            found += map(str, Path(tempfile.gettempdir()).glob(f"reconciler-{run}-*"))
        return found

    def wrong(self) -> list[str]:
        """Return jobs with a wrong end, and trainers that ran concurrently or without need."""
        jobs = [text for id, name in self.names.items() for text in self._wrong(id, name)]
        lost = {self.names[id] for id in self.lost}
        again = [path.name for path in self.out.glob("*.again") if path.name.partition("-")[0] not in lost]
        return jobs + again + [path.name for path in self.out.glob("*.twice")]

    def _wrong(self, id: int, name: str) -> Iterator[str]:
        job = self.store.job(id)
        assert job is not None
        told = f"{name} ({id}): {job.state} {job.error_message!r}"
        if job.collection == TUNING_JOBS:
            trials = self.store.trials(id)
            for trial in trials:
                if not self._as_it_should(name, id, trial.number, str(trial.state), trial.message):
                    yield f"{told}: trial {trial.number}: {trial.state} {trial.message!r}"
            all_failed = all(trial.state is TrialState.FAILED for trial in trials)
            if [trial.number for trial in trials] != [1, 2, 3] or not all(
                trial.state.ended for trial in trials
            ):
                yield f"{told}: {trials}"
            if job.state is not (JobState.FAILED if all_failed else JobState.SUCCEEDED):
                yield told
        elif not self._as_it_should(name, id, 0, str(job.state), job.error_message):
            yield told
        if id in self.pipelines:
            yield from self._wrong_of_pipeline(self.pipelines[id], job)

    def _wrong_of_pipeline(self, id: int, backing: JobRecord) -> Iterator[str]:
        pipeline = self.store.job(id)
        assert pipeline is not None
        with self.store.database.reading() as connection:
            query = "SELECT count(*) FROM model_versions WHERE pipeline = ?"
            (versions,) = connection.execute(query, (resource_name(pipeline),)).fetchone()
        if (pipeline.state, versions) != (backing.state, int(backing.state is JobState.SUCCEEDED)):
            yield f"{pipeline.name} ({id}): {pipeline.state} {pipeline.error_message!r}: {versions} versions"

    def _as_it_should(self, name: str, id: int, trial: int, state: str, message: str) -> bool:
        done = (self.out / f"{name}-{trial}-workerpool0-0.end").exists()
        if state == "FAILED":
            return (id, trial) in self.struck and "killed by signal 9" in message
        # A killed trainer may have been run again, with its runner killed as well; or it was done already.
        return state == "SUCCEEDED" and done


@pytest.fixture
def storm(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> Iterator[Storm]:
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    out.mkdir()
    (home / "environments").symlink_to(trainers.shared_environments(tmp_path_factory))
    store = Store(database.open_file(home / "state.db"))
    store.set_setting("images", trainers.IMAGES)
    blowing = Storm(home, out, random.Random(SEED), store)
    yield blowing
    if blowing.service is not None and blowing.service.poll() is None:
        blowing.service.send_signal(signal.SIGKILL)
        blowing.service.wait()
    for path in (home / "runs").glob("*"):
        process_tree.kill_all(lambda run=path.name: process_tree.marked(run), 5.0)
        for process in psutil.process_iter():
            if process_tree.is_runner(process.pid, path.name):
                process.kill()
        run_folder(home, path.name).clean()
    store.database.close()


@pytest.mark.fault(34)
@pytest.mark.fault(35)
@pytest.mark.fault(75)
def test_whatever_is_killed_every_job_comes_to_its_end(storm: Storm) -> None:
    storm.blow(KILLS)
    storm.calm()
    runs = sum(len(storm.store.runs(id)) for id in storm.names)
    print(
        f"\nseed {SEED}: killed {dict(storm.killed)}; {len(storm.names)} jobs in {runs} runs,"
        f" {storm.starts} services; {storm.unregistered} kills before a model was registered"
    )
    assert storm.wrong() == [], SEED
    assert storm.left() == [], SEED
    with closing(sqlite3.connect(storm.home / "state.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
