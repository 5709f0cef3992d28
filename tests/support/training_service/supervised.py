"""A home with a supervisor driven by the test, and jobs for it."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from reconciler.training_service.jobs.machines import Machine
from reconciler.training_service.processes import process_tree
from reconciler.training_service.scheduler.supervisor import Supervisor
from reconciler.training_service.state import database
from reconciler.training_service.state.database import Store, rfc3339
from reconciler.training_service.state.records import (
    ML_JOBS,
    PIPELINES,
    TUNING_JOBS,
    JobRecord,
    JobState,
    RunRecord,
)
from reconciler.training_service.state.run_folder import RUNNING, Phase, RunFolder, run_folder, write_json
from reconciler.training_service.state.trial_records import TrialRecord
from tests.support.training_service import trainers
from tests.support.waiting import until

FOR_TWO = Machine(cpus=8, memory=32 * 2**30)
"""Room for two n1-standard-4."""

# Notes each start, then waits while the file `hold` exists.
PATIENT = """
import os, pathlib, sys, time
out = pathlib.Path(os.environ["OUT"])
name = os.environ.get("NAME", "")
with (out / "starts").open("a") as starts:
    starts.write(f"start {name} {os.getpid()}\\n")
(out / f"running{name}").touch()
while (out / "hold").exists():
    time.sleep(0.02)
print("done", flush=True)
"""


# A supervisor in a process of its own, ticking until it is killed.
SUPERVISING = """
import sys, time
from pathlib import Path
from reconciler.training_service.state import database
from reconciler.training_service.jobs.machines import Machine
from reconciler.training_service.state.database import Store
from reconciler.training_service.scheduler.supervisor import Supervisor
home = Path(sys.argv[1])
store = Store(database.open_file(home / "state.db"))
machine = Machine(cpus=8, memory=32 * 2**30)
supervisor = Supervisor(store, home, storage_url=lambda job: "http://x", machine=machine)
supervisor.recover()
while True:
    supervisor.tick()
    time.sleep(0.02)
"""


class Clock:
    """The system's clock plus an offset."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@dataclass
class Bench:
    """A home with its store, and a supervisor driven by the test."""

    home: Path
    out: Path
    store: Store
    clock: Clock
    supervisor: Supervisor

    def new_supervisor(self, machine: Machine = FOR_TWO) -> Supervisor:
        """Return a supervisor without knowledge of the runs that its predecessor started."""
        self.supervisor = Supervisor(
            self.store, self.home, storage_url=lambda job: "http://x", machine=machine
        )
        self.supervisor.recover()
        return self.supervisor

    def submit(
        self,
        source: str = PATIENT,
        name: str = "",
        job: JobRecord | None = None,
        shape: Callable[[JobRecord], JobRecord] = lambda job: job,
        **given: Any,
    ) -> JobRecord:
        """Submit a job of a trainer with this source; `shape` turns its CustomJob into another kind."""
        return self.store.add_job(self._numbered(job or shape(self._custom_job(source, name, **given))))

    def submit_ml_job(self, **training_input: Any) -> JobRecord:
        """Submit a job of AI Platform whose package exists."""
        trainers.wheel(self.home / "gcs" / trainers.URI.removeprefix("gs://"), "")
        return self.submit(job=trainers.ml_job(**training_input))

    def submit_pipeline(
        self,
        source: str = PATIENT,
        shape: Callable[[JobRecord], JobRecord] = lambda job: job,
        spec: Any = None,
        **body: Any,
    ) -> JobRecord:
        """Submit a pipeline whose backing job is that of `submit`; `body` are the pipeline's own fields."""
        backing = self._numbered(shape(self._custom_job(source, spec=spec)))
        pipeline = replace(
            self._numbered(backing),
            collection=PIPELINES,
            body={"displayName": "census", "trainingTaskInputs": {}, **body},
            backing=f"{backing.collection}/{backing.job_id}",
        )
        return self.store.add_job(pipeline, backing=backing)

    def _custom_job(self, source: str, name: str = "", **given: Any) -> JobRecord:
        # Identical trainers share one folder, so that their environment is made once.
        uri = f"gs://code/{hashlib.sha256(source.encode()).hexdigest()}/trainer-0.1-py3-none-any.whl"
        trainers.wheel(self.home / "gcs" / uri.removeprefix("gs://"), source)
        return trainers.custom_job(packages=[uri], env={"OUT": str(self.out), "NAME": name}, **given)

    def _numbered(self, job: JobRecord) -> JobRecord:
        number, time_ = time.time_ns(), self.store.now()
        return replace(
            job, job_id=f"j{number}", gcs_secret=f"s{number}", create_time=time_, update_time=time_
        )

    def until(self, what: Callable[[], Any]) -> Any:
        """Tick the supervisor until `what` is true, and return its value."""
        return until(what, meanwhile=self.supervisor.tick)

    def state(self, job: JobRecord) -> JobState:
        return self.now(job).state

    def backing(self, pipeline: JobRecord) -> JobRecord:
        """Return the backing job of a pipeline, as it is now."""
        collection, _, job_id = pipeline.backing.partition("/")
        found = self.store.find(collection, pipeline.project, pipeline.location, job_id)
        assert found is not None
        return found

    def now(self, job: JobRecord) -> JobRecord:
        found = self.store.job(job.id)
        assert found is not None
        return found

    def ended(self, job: JobRecord) -> JobRecord:
        """Return the job after its end."""
        self.until(lambda: self.state(job).ended)
        return self.now(job)

    def cancel(self, job: JobRecord, message: str = "Enough.") -> None:
        """Cancel the job as the API does."""
        unfinished = {JobState.PREPARING, JobState.RUNNING}
        at = self.store.now()
        assert self.store.move(
            job.id, JobState.CANCELLING, only_from=unfinished, at=at, error_message=message
        )

    def folder(self, job: JobRecord) -> RunFolder:
        """Return the folder of the job's last run."""
        return run_folder(self.home, self.store.runs(job.id)[-1].run_id)

    def folder_of(self, run: RunRecord) -> RunFolder:
        return run_folder(self.home, run.run_id)

    def has_run_for(self, folder: RunFolder, seconds: float) -> None:
        """Set the run's record to RUNNING for this number of seconds."""
        began = rfc3339(datetime.now(UTC) - timedelta(seconds=seconds))
        write_json(folder.path / "phase", asdict(Phase(RUNNING, began)))

    def log(self, job: JobRecord) -> list[str]:
        return [json.loads(line)["m"] for line in self.folder(job).log.read_text().splitlines()]

    def whole_log(self, job: JobRecord) -> list[str]:
        """Return the lines of all runs, of trials too."""
        logs = [run_folder(self.home, run.run_id).log for run in self.store.runs(job.id)]
        return [json.loads(line)["m"] for log in logs for line in log.read_text().splitlines()]

    def starts(self) -> list[str]:
        path = self.out / "starts"
        return path.read_text().splitlines() if path.exists() else []

    def hold(self) -> None:
        """Make patient trainers wait."""
        (self.out / "hold").touch()

    def release(self) -> None:
        (self.out / "hold").unlink()

    def trials(self, job: JobRecord) -> list[TrialRecord]:
        return self.store.trials(job.id)

    def running(self, name: str = "") -> bool:
        return (self.out / f"running{name}").exists()

    def processes(self) -> list[psutil.Process]:
        """Return all processes of all runs, runners too."""
        found = []
        for path in (self.home / "runs").glob("*"):
            found += process_tree.marked(path.name)
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.home) in word for word in process.info["cmdline"] or ()):
                found.append(process)
        return [process for process in found if process.pid != os.getpid()]


@contextmanager
def supervised(tmp_path: Path, environments: Path, machine: Machine = FOR_TWO) -> Iterator[Bench]:
    """Yield a fresh home; stop all its processes afterwards."""
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    out.mkdir()
    (home / "environments").symlink_to(environments)
    clock = Clock()
    store = Store(database.open_file(home / "state.db"), clock)
    supervisor = Supervisor(
        store, home, storage_url=lambda job: f"http://127.0.0.1:9/jobs/{job.gcs_secret}", machine=machine
    )
    bench = Bench(home, out, store, clock, supervisor)
    yield bench
    for process in bench.processes():
        process.kill()
    for path in (home / "runs").glob("*"):
        RunFolder(path).clean()
    store.database.close()


def tuned(
    trials: int, parallel: int = 1, study: Any = None, **fields: Any
) -> Callable[[JobRecord], JobRecord]:
    """Return a maker of a tuning job of `trials` trials from a CustomJob: parameter `x`, metric `merit`."""
    spec = {
        "metrics": [{"metricId": "merit", "goal": "MAXIMIZE"}],
        "parameters": [{"parameterId": "x", "doubleValueSpec": {"minValue": 0.0, "maxValue": 1.0}}],
        "algorithm": "RANDOM_SEARCH",
        **(study or {}),
    }

    def shape(job: JobRecord) -> JobRecord:
        counts = {"maxTrialCount": trials, "parallelTrialCount": parallel}
        body = {"displayName": "tuned", "studySpec": spec, "trialJobSpec": job.body["jobSpec"], **counts}
        return replace(job, collection=TUNING_JOBS, body={**body, **fields})

    return shape


def tuned_ml(
    out: Path, trials: int, scheduling: Any = None, **fields: Any
) -> Callable[[JobRecord], JobRecord]:
    """Return the same for AI Platform, where a trainer gets the folder `out` as an argument."""
    search = {
        "params": [{"parameterName": "x", "type": "DOUBLE", "minValue": 0.0, "maxValue": 1.0}],
        "hyperparameterMetricTag": "merit",
        "maxTrials": trials,
        "algorithm": "RANDOM_SEARCH",
        **fields,
    }

    def shape(job: JobRecord) -> JobRecord:
        package = job.body["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]
        given = {
            "scaleTier": "BASIC",
            "region": "us-east1",
            "pythonModule": package["pythonModule"],
            "packageUris": package["packageUris"],
            "runtimeVersion": trainers.PLAIN,
            "args": ["--out", str(out)],
            "hyperparameters": search,
            "scheduling": scheduling or {},
        }
        return replace(job, collection=ML_JOBS, location="", body={"trainingInput": given})

    return shape
