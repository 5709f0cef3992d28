from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
import trainers
from served import Service

from reconciler.localservice import database, process_tree
from reconciler.localservice.records import JobRecord, JobState
from reconciler.localservice.run_folder import FAILED, STOPPED, SUCCEEDED, Ending, RunFolder, run_folder
from reconciler.localservice.settling import settle
from reconciler.localservice.store import Store
from reconciler.localservice.supervisor import Supervisor

DEADLINE = 90.0

# Notes each start, then waits as long as the file `hold` is there.
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
from reconciler.localservice import database
from reconciler.localservice.store import Store
from reconciler.localservice.supervisor import Supervisor
home = Path(sys.argv[1])
store = Store(database.open_file(home / "state.db"))
supervisor = Supervisor(store, home, storage_url=lambda job: "http://x", slots=2)
supervisor.recover()
while True:
    supervisor.tick()
    time.sleep(0.02)
"""


class Clock:
    """The system's clock, but for what it is moved by."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def __call__(self) -> datetime:
        return datetime.now(UTC) + self.ahead


@dataclass
class Bench:
    """A home with its store, and a supervisor that the test lets tick."""

    home: Path
    out: Path
    store: Store
    clock: Clock
    supervisor: Supervisor

    def new_supervisor(self, slots: int = 2) -> Supervisor:
        """A supervisor that knows nothing of what the one before it has started."""
        self.supervisor = Supervisor(self.store, self.home, storage_url=lambda job: "http://x", slots=slots)
        self.supervisor.recover()
        return self.supervisor

    def submit(
        self, source: str = PATIENT, name: str = "", job: JobRecord | None = None, **given: Any
    ) -> JobRecord:
        """A new job of a trainer with this source."""
        number = time.time_ns()
        uri = f"gs://code/{number}/trainer-0.1-py3-none-any.whl"
        trainers.wheel(self.home / "gcs" / uri.removeprefix("gs://"), source)
        job = job or trainers.custom_job(packages=[uri], env={"OUT": str(self.out), "NAME": name}, **given)
        time_ = self.store.now()
        return self.store.add_job(
            replace(job, job_id=str(number), gcs_secret=f"s{number}", create_time=time_, update_time=time_)
        )

    def until(self, what: Callable[[], Any]) -> Any:
        """Let the supervisor tick until `what` is true, and give what it is."""
        give_up = time.monotonic() + DEADLINE
        while not (found := what()):
            assert time.monotonic() < give_up, "it didn't come true"
            self.supervisor.tick()
            time.sleep(0.01)
        return found

    def state(self, job: JobRecord) -> JobState:
        return self.now(job).state

    def now(self, job: JobRecord) -> JobRecord:
        found = self.store.job(job.id)
        assert found is not None
        return found

    def ended(self, job: JobRecord) -> JobRecord:
        """The job after its end."""
        self.until(lambda: self.state(job).ended)
        return self.now(job)

    def cancel(self, job: JobRecord, message: str = "Enough.") -> None:
        """As the API does it."""
        unfinished = {JobState.PREPARING, JobState.RUNNING}
        at = self.store.now()
        assert self.store.move(
            job.id, JobState.CANCELLING, only_from=unfinished, at=at, error_message=message
        )

    def folder(self, job: JobRecord) -> RunFolder:
        """The job's last run."""
        return run_folder(self.home, self.store.runs(job.id)[-1].run_id)

    def log(self, job: JobRecord) -> list[str]:
        return [json.loads(line)["m"] for line in self.folder(job).log.read_text().splitlines()]

    def starts(self) -> list[str]:
        path = self.out / "starts"
        return path.read_text().splitlines() if path.exists() else []

    def hold(self) -> None:
        """Make patient trainers wait."""
        (self.out / "hold").touch()

    def release(self) -> None:
        (self.out / "hold").unlink()

    def running(self, name: str = "") -> bool:
        return (self.out / f"running{name}").exists()

    def processes(self) -> list[psutil.Process]:
        """All that any run has started, runners too."""
        found = []
        for path in (self.home / "runs").glob("*"):
            found += process_tree.marked(path.name)
        for process in psutil.process_iter(["cmdline"]):
            if any(str(self.home) in word for word in process.info["cmdline"] or ()):
                found.append(process)
        return [process for process in found if process.pid != os.getpid()]


def wait_for(what: Callable[[], Any]) -> None:
    """Wait without ticking: another process is at work."""
    give_up = time.monotonic() + DEADLINE
    while not what():
        assert time.monotonic() < give_up, "it didn't come true"
        time.sleep(0.005)


@pytest.fixture
def bench(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> Iterator[Bench]:
    home, out = tmp_path / "home", tmp_path / "out"
    home.mkdir()
    out.mkdir()
    (home / "environments").symlink_to(trainers.shared_environments(tmp_path_factory))
    clock = Clock()
    store = Store(database.open_file(home / "state.db"), clock)
    supervisor = Supervisor(
        store, home, storage_url=lambda job: f"http://127.0.0.1:9/jobs/{job.gcs_secret}", slots=2
    )
    bench = Bench(home, out, store, clock, supervisor)
    yield bench
    for process in bench.processes():
        process.kill()
    for path in (home / "runs").glob("*"):
        RunFolder(path).clean()
    store.database.close()


def test_a_job_runs_to_its_end(bench: Bench) -> None:
    job = bench.submit(
        """
        import os, sys
        from pathlib import Path
        Path(os.environ["OUT"], "told").write_text(
            os.environ["STORAGE_EMULATOR_HOST"] + " " + str(os.listdir(os.environ["RECONCILER_GCS_DIR"])))
        """,
        spec={"baseOutputDirectory": {"outputUriPrefix": "gs://models/x"}},
    )
    seen = []

    def ended() -> bool:
        state = bench.state(job)
        if state not in seen:
            seen.append(state)
        return state.ended

    bench.until(ended)
    assert seen[0] is JobState.QUEUED
    assert seen[-1] is JobState.SUCCEEDED
    assert [state for state in JobState if state in seen] == seen
    found = bench.now(job)
    assert found.create_time < found.start_time < found.end_time == found.update_time
    assert (found.error_code, found.error_message) == (0, "")
    url, buckets = (bench.out / "told").read_text().split(" ", 1)
    assert url == f"http://127.0.0.1:9/jobs/{job.gcs_secret}"
    assert sorted(json.loads(buckets.replace("'", '"'))) == ["code", "models"]
    assert len(bench.store.runs(job.id)) == 1
    assert bench.processes() == []
    assert not bench.supervisor.tick()


def test_a_failed_job_tells_why(bench: Bench) -> None:
    found = bench.ended(bench.submit("raise ValueError('the loss is NaN')"))
    assert (found.state, found.error_code) == (JobState.FAILED, 3)
    assert found.error_message.endswith("ValueError: the loss is NaN")


def test_what_can_t_run_here_fails_without_a_run(bench: Bench) -> None:
    job = bench.submit(job=trainers.ml_job(scaleTier="PREMIUM_1"))
    found = bench.ended(job)
    assert (found.state, found.error_code) == (JobState.FAILED, 12)
    assert found.error_message == "The embedded training service doesn't run jobs of several replicas."
    assert bench.store.runs(job.id) == []


def test_an_output_bucket_s_name_leads_nowhere_else(bench: Bench) -> None:
    job = bench.submit("", spec={"baseOutputDirectory": {"outputUriPrefix": "gs://..models/x"}})
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert [path.name for path in (bench.home / "gcs").iterdir()] == ["code"]


def test_jobs_wait_for_a_slot_first_come_first_served(bench: Bench) -> None:
    bench.hold()
    jobs = [bench.submit(name=str(number)) for number in range(4)]
    bench.until(lambda: bench.running("0") and bench.running("1"))
    for _ in range(3):
        bench.supervisor.tick()
    assert [bench.state(job) for job in jobs] == [JobState.RUNNING] * 2 + [JobState.QUEUED] * 2
    bench.release()
    assert [bench.ended(job).state for job in jobs] == [JobState.SUCCEEDED] * 4
    assert [start.split()[1] for start in bench.starts()][2] in ("2", "3")
    assert len(bench.starts()) == 4


@pytest.mark.fault(34)
def test_a_killed_supervisor_s_job_goes_on_and_is_taken_up_again(bench: Bench) -> None:
    bench.hold()
    job = bench.submit()
    with subprocess.Popen([sys.executable, "-c", SUPERVISING, str(bench.home)]) as former:
        try:
            wait_for(bench.running)
        finally:
            former.send_signal(signal.SIGKILL)
    bench.new_supervisor()
    assert bench.state(job) is JobState.RUNNING
    bench.release()
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert len(bench.starts()) == 1
    assert len(bench.store.runs(job.id)) == 1
    wait_for(lambda: bench.processes() == [])


def test_a_job_that_ended_while_no_supervisor_lived(bench: Bench) -> None:
    bench.hold()
    job = bench.submit()
    with subprocess.Popen([sys.executable, "-c", SUPERVISING, str(bench.home)]) as former:
        wait_for(bench.running)
        former.kill()
    folder = bench.folder(job)
    bench.release()
    wait_for(lambda: folder.ending() and folder.runner() is None)
    ending = folder.ending()
    bench.new_supervisor()
    found = bench.now(job)
    assert found.state is JobState.SUCCEEDED
    assert ending is not None
    assert found.end_time == ending.time


# What is there, from the first intent to the end of the run, when the supervisor is killed.
MOMENTS = ["runs/*", "runs/*/run.json", "runs/*/runner.lock", "runs/*/started", "runs/*/phase",
           "runs/*/packages", "runs/*/environment", "runs/*/work", "runs/*/exit.json"]  # fmt: skip


@pytest.mark.fault(34)
@pytest.mark.parametrize("moments", [MOMENTS, MOMENTS[1::2], MOMENTS[-1:]], ids=["each", "some", "last"])
def test_supervisors_killed_at_any_moment_lose_and_double_no_job(bench: Bench, moments: list[str]) -> None:
    jobs = [bench.submit(name=str(number)) for number in range(2)]
    for moment in moments:
        with subprocess.Popen([sys.executable, "-c", SUPERVISING, str(bench.home)]) as former:
            wait_for(lambda what=moment: [*bench.home.glob(what)])
            former.kill()
    bench.new_supervisor()
    assert [bench.ended(job).state for job in jobs] == [JobState.SUCCEEDED] * 2
    assert sorted(start.split()[1] for start in bench.starts()) == ["0", "1"]
    assert [len(bench.store.runs(job.id)) for job in jobs] == [1, 1]
    wait_for(lambda: bench.processes() == [])


@pytest.mark.fault(35)
def test_a_lost_runner_s_job_starts_again_and_never_runs_twice_at_once(bench: Bench) -> None:
    source = """
        import os, pathlib, time
        out = pathlib.Path(os.environ["OUT"])
        def survivor():
            # Lives without its parent, and would work on beside the next run.
            while True:
                time.sleep(0.01)
        with (out / "starts").open("a") as starts:
            starts.write("start\\n")
        def lives(pid):
            try:
                return "State:\\tZ" not in pathlib.Path(f"/proc/{pid}/status").read_text()
            except FileNotFoundError:
                return False
        others = [path for path in out.glob("alive.*") if lives(path.suffix[1:])]
        (out / "overlap").open("a").write("".join(map(str, others)))
        if os.fork() == 0:
            (out / f"alive.{os.getpid()}").touch()
            survivor()
        while (out / "hold").exists():
            time.sleep(0.02)
    """
    bench.hold()
    job = bench.submit(source)
    for number in range(1, 4):
        bench.until(
            lambda wanted=number: (
                len(bench.starts()) == wanted and len([*bench.out.glob("alive.*")]) == wanted
            )
        )
        pid = bench.folder(job).runner()
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
    bench.until(lambda: len(bench.starts()) == 4)
    bench.release()
    found = bench.ended(job)
    assert found.state is JobState.SUCCEEDED
    assert (bench.out / "overlap").read_text() == ""
    assert len(bench.store.runs(job.id)) == 4
    assert "The process that ran the job was lost: it starts again from the beginning." in bench.log(job)
    assert bench.processes() == []


def test_a_job_is_not_started_again_for_ever(bench: Bench) -> None:
    source = """
        import os, pathlib, signal, time
        with pathlib.Path(os.environ["OUT"], "starts").open("a") as starts:
            starts.write("start\\n")
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(60)
    """
    found = bench.ended(bench.submit(source))
    assert (found.state, found.error_code) == (JobState.FAILED, 13)
    assert found.error_message == "The process that ran the job was lost, 6 times."
    assert len(bench.starts()) == 6


def test_disabled_retries_let_a_lost_job_fail(bench: Bench) -> None:
    source = "import os, signal, time; os.kill(os.getppid(), signal.SIGKILL); time.sleep(60)"
    found = bench.ended(bench.submit(source, spec={"scheduling": {"disableRetries": True}}))
    assert (found.state, found.error_code) == (JobState.FAILED, 13)
    assert "disableRetries" in found.error_message
    assert len(bench.store.runs(found.id)) == 1


def test_a_runner_that_can_t_even_start_fails_the_job(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(bench.out))
    (bench.out / "reconciler.py").write_text("raise SystemExit('a broken installation')")
    found = bench.ended(bench.submit())
    assert (found.state, found.error_code) == (JobState.FAILED, 13)
    assert found.error_message == "The process that ran the job was lost, 6 times. a broken installation"


@pytest.mark.fault(34)
def test_a_run_that_was_only_meant_is_started(bench: Bench) -> None:
    """A supervisor that is killed between its intent and the start of the runner."""
    job = bench.submit()
    bench.store.move(job.id, JobState.PREPARING, only_from={JobState.QUEUED}, at=bench.store.now())
    bench.store.add_run(job.id)
    bench.new_supervisor()
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert len(bench.starts()) == 1
    assert len(bench.store.runs(job.id)) == 1


def test_a_job_without_a_run_is_started(bench: Bench) -> None:
    job = bench.submit()
    bench.store.move(job.id, JobState.PREPARING, only_from={JobState.QUEUED}, at=bench.store.now())
    bench.new_supervisor()
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert len(bench.starts()) == 1


def test_a_cancelled_job_ends_with_all_its_processes(bench: Bench) -> None:
    source = """
        import os, pathlib, signal, time
        signal.signal(signal.SIGTERM, lambda *_: None)
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                os.closerange(0, 100)
        pathlib.Path(os.environ["OUT"], "running").touch()
        while True:
            time.sleep(60)
    """
    job = bench.submit(source)
    bench.until(bench.running)
    bench.until(lambda: bench.state(job) is JobState.RUNNING)
    spec = json.loads(bench.folder(job).spec.read_text())
    assert spec["grace"] == 10.0
    assert len(bench.processes()) >= 4
    bench.cancel(job, "The user has had enough.")
    found = bench.ended(job)
    assert (found.state, found.error_code) == (JobState.CANCELLED, 1)
    assert found.error_message == "The user has had enough."
    assert bench.processes() == []


def test_a_job_that_ends_before_its_cancellation_ends_as_it_did(bench: Bench) -> None:
    bench.hold()
    job = bench.submit()
    bench.until(lambda: bench.running() and bench.state(job) is JobState.RUNNING)
    bench.release()
    folder = bench.folder(job)
    wait_for(folder.ending)
    bench.cancel(job)
    assert bench.ended(job).state is JobState.SUCCEEDED


def test_a_cancelled_job_that_never_started(bench: Bench) -> None:
    jobs = [bench.submit(), bench.submit()]
    for job in jobs:
        bench.store.move(job.id, JobState.PREPARING, only_from={JobState.QUEUED}, at=bench.store.now())
        bench.cancel(job)
    bench.store.add_run(jobs[1].id)
    for job in jobs:
        found = bench.ended(job)
        assert (found.state, found.error_code, found.error_message) == (JobState.CANCELLED, 1, "Enough.")
    assert bench.starts() == []


def test_a_cancelled_job_whose_runner_is_lost(bench: Bench) -> None:
    bench.hold()
    job = bench.submit()
    bench.until(lambda: bench.running() and bench.state(job) is JobState.RUNNING)
    pid = bench.folder(job).runner()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    bench.cancel(job)
    assert bench.ended(job).state is JobState.CANCELLED
    assert len(bench.store.runs(job.id)) == 1


def test_a_job_that_waits_for_too_long_is_cancelled(bench: Bench) -> None:
    bench.hold()
    running = [bench.submit(name=str(number)) for number in range(2)]
    bench.until(lambda: bench.running("0") and bench.running("1"))
    limits = {"scheduling": {"maxWaitTime": "1800s"}}
    waiting = bench.submit(job=replace(trainers.ml_job(**limits)))
    bench.clock.ahead = timedelta(seconds=1790)
    bench.supervisor.tick()
    assert bench.state(waiting) is JobState.QUEUED
    bench.clock.ahead = timedelta(seconds=1810)
    found = bench.ended(waiting)
    assert (found.state, found.error_code) == (JobState.CANCELLED, 1)
    assert "scheduling.maxWaitTime" in found.error_message
    bench.clock.ahead = timedelta()
    bench.release()
    assert [bench.ended(job).state for job in running] == [JobState.SUCCEEDED] * 2


def test_the_time_limit_counts_from_the_first_start(bench: Bench) -> None:
    bench.hold()
    job = bench.submit(spec={"scheduling": {"timeout": "3600s"}})
    bench.until(lambda: bench.running() and bench.state(job) is JobState.RUNNING)
    bench.clock.ahead = timedelta(seconds=3590)
    pid = bench.folder(job).runner()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    bench.until(lambda: len(bench.store.runs(job.id)) == 2 and bench.folder(job).spec.exists())
    assert 0 < json.loads(bench.folder(job).spec.read_text())["time_limit"] < 11


def test_stop_ends_every_run_within_five_seconds(bench: Bench) -> None:
    bench.hold()
    jobs = [
        bench.submit(name="0"),
        bench.submit("import signal; signal.signal(signal.SIGTERM, lambda *_: None)" + PATIENT, name="1"),
    ]
    bench.until(lambda: bench.running("0") and bench.running("1"))
    bench.new_supervisor()
    started = time.monotonic()
    bench.supervisor.stop()
    assert time.monotonic() - started < 5
    assert bench.processes() == []
    assert [bench.state(job) for job in jobs] == [JobState.RUNNING] * 2
    bench.release()
    bench.new_supervisor()
    assert [bench.ended(job).state for job in jobs] == [JobState.SUCCEEDED] * 2
    assert "The job was stopped together with the service: it starts again from the beginning." in bench.log(
        jobs[0]
    )


def test_stop_ends_what_doesn_t_listen(bench: Bench) -> None:
    """A runner that hangs, with a trainer whose child has left it."""
    source = """
        import os, pathlib, time
        if os.fork() == 0:
            os.setsid()
        else:
            pathlib.Path(os.environ["OUT"], "running").touch()
        while True:
            time.sleep(60)
    """
    job = bench.submit(source)
    bench.until(lambda: bench.running() and bench.state(job) is JobState.RUNNING)
    pid = bench.folder(job).runner()
    assert pid is not None
    temp = bench.folder(job).temp()
    os.kill(pid, signal.SIGSTOP)
    started = time.monotonic()
    bench.supervisor.stop()
    assert time.monotonic() - started < 5
    assert bench.processes() == []
    assert not temp.exists()


def test_stop_ends_runs_whose_home_is_gone(bench: Bench) -> None:
    bench.hold()
    bench.submit()
    bench.until(bench.running)
    left = bench.processes()
    bench.home.rename(bench.home.with_name("gone"))
    bench.supervisor.stop()
    assert left
    assert not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in left)


@pytest.mark.fault(33)
def test_a_full_disk_fails_the_job_and_not_the_supervisor(bench: Bench) -> None:
    (bench.home / "runs").write_text("in the way of every run's folder")
    found = bench.ended(bench.submit())
    assert (found.state, found.error_code) == (JobState.FAILED, 8)
    assert "could not be started" in found.error_message


def test_settling_reads_the_folders_and_changes_nothing_else(bench: Bench) -> None:
    jobs = [bench.submit() for _ in range(4)]
    for job in jobs[:3]:
        bench.store.move(job.id, JobState.PREPARING, only_from={JobState.QUEUED}, at=bench.store.now())
        run_folder(bench.home, bench.store.add_run(job.id).run_id).path.mkdir(parents=True)
    ended, running, stopped, queued = jobs
    bench.folder(ended).set_phase("RUNNING")
    bench.folder(ended).end(Ending(FAILED, 3, "no", "2026-01-01T00:00:00.000000Z"))
    bench.folder(running).set_phase("RUNNING")
    bench.folder(stopped).end(Ending(STOPPED))
    before = sorted(path.name for path in bench.home.rglob("*"))
    settle(bench.store, bench.home)
    found = bench.now(ended)
    assert (found.state, found.error_code, found.error_message) == (JobState.FAILED, 3, "no")
    assert found.end_time == "2026-01-01T00:00:00.000000Z"
    assert found.start_time
    assert bench.state(running) is JobState.RUNNING
    assert bench.state(stopped) is JobState.PREPARING
    assert bench.state(queued) is JobState.QUEUED
    assert sorted(path.name for path in bench.home.rglob("*")) == before
    settle(bench.store, bench.home)
    assert bench.now(ended) == found
    assert SUCCEEDED == JobState.SUCCEEDED


TRAINER = """
import argparse, io, json, os
import hypertune
import joblib
from google.cloud import storage
from sklearn.datasets import load_wine
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split

parser = argparse.ArgumentParser()
parser.add_argument("--trees", type=int)
args = parser.parse_args()
x, x_test, y, y_test = train_test_split(*load_wine(return_X_y=True), random_state=0)
model = RandomForestClassifier(args.trees, random_state=0).fit(x, y)
accuracy = model.score(x_test, y_test)
hypertune.HyperTune().report_hyperparameter_tuning_metric("accuracy", accuracy)

bucket, _, folder = os.environ["AIP_MODEL_DIR"].removeprefix("gs://").partition("/")
client = storage.Client()
content = io.BytesIO()
joblib.dump(model, content)
client.bucket(bucket).blob(folder + "model.joblib").upload_from_string(content.getvalue())
client.bucket(bucket).blob(folder + "metrics.json").upload_from_string(json.dumps({"accuracy": accuracy}))
print("saved", sorted(blob.name for blob in client.list_blobs(bucket)))
"""


def test_a_cloud_trainer_trains_unmodified_and_saves_its_model(
    service: Service,
    tmp_path_factory: pytest.TempPathFactory,
    wheelhouse: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The image's scikit-learn, the official storage client, a source distribution: nothing is made up."""
    # The wheelhouse has wheels for this Python only.
    for name, value in {"PATH": os.defpath, "PYENV_ROOT": "/none", "UV_PYTHON_INSTALL_DIR": "/none"}.items():
        monkeypatch.setenv(name, value)
    (service.home / "environments").symlink_to(trainers.shared_environments(tmp_path_factory))
    trainers.source_distribution(
        service.home / "gcs" / "code" / "trainer-0.1.tar.gz",
        {"setup.py": trainers.SETUP, "trainer/__init__.py": "", "trainer/task.py": TRAINER},
    )
    job = service.store.add_job(
        trainers.custom_job(
            image="europe-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest",
            packages=["gs://code/trainer-0.1.tar.gz"],
            args=["--trees=20"],
            spec={"baseOutputDirectory": {"outputUriPrefix": "gs://models/wine"}},
        )
    )
    supervisor = Supervisor(
        service.store, service.home, storage_url=lambda job: f"{service.url}/jobs/{job.gcs_secret}"
    )
    give_up = time.monotonic() + 3 * DEADLINE
    while supervisor.tick():
        assert time.monotonic() < give_up
        time.sleep(0.02)
    found = service.store.job(job.id)
    assert found is not None
    assert (found.state, found.error_message) == (JobState.SUCCEEDED, "")
    folder = service.home / "gcs" / "models" / "wine" / "model"
    assert json.loads((folder / "metrics.json").read_text())["accuracy"] > 0.9
    assert (folder / "model.joblib").stat().st_size > 10_000
    log = run_folder(service.home, service.store.runs(job.id)[0].run_id).log.read_text()
    assert "saved ['wine/model/metrics.json', 'wine/model/model.joblib']" in log
    assert log.count("WARNING") == (0 if sys.version_info[:2] == (3, 10) else 1)
