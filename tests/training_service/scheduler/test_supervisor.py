from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from reconciler.training_service.jobs.machines import Machine
from reconciler.training_service.runner.launcher import Runners
from reconciler.training_service.scheduler import jobs as attempts
from reconciler.training_service.scheduler.recovery import recover_states
from reconciler.training_service.scheduler.supervisor import Supervisor, lacking
from reconciler.training_service.state.database import rfc3339
from reconciler.training_service.state.records import UNFINISHED, JobRecord, JobState, details_of
from reconciler.training_service.state.run_folder import (
    FAILED,
    STOPPED,
    SUCCEEDED,
    Ending,
    locked,
    run_folder,
    write_json,
)
from reconciler.training_service.state.run_spec import RunSpec
from tests.support.training_service import trainers
from tests.support.training_service.served import Service
from tests.support.training_service.supervised import FOR_TWO, PATIENT, SUPERVISING, Bench, supervised, tuned
from tests.support.waiting import patience, until


@pytest.fixture
def bench(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, wheelhouse: Path) -> Iterator[Bench]:
    with supervised(tmp_path, trainers.shared_environments(tmp_path_factory)) as running:
        yield running


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


@pytest.mark.parametrize("shape", [lambda job: job, tuned(2)], ids=["job", "tuning job"])
def test_job_without_its_package_ends_at_once_behind_a_job_that_fills_the_machine(
    bench: Bench, shape: Callable[[JobRecord], JobRecord]
) -> None:
    bench.hold()
    first = bench.submit(name="first", spec={}, shape=lambda job: machine_of(job, "n1-standard-96"))
    bench.until(lambda: bench.running("first"))
    waiting = bench.submit(name="waiting", shape=shape)
    lost = bench.submit(job=shape(trainers.custom_job(packages=["gs://code/absent-1.0.tar.gz"])))
    bench.supervisor.tick()
    found = bench.now(lost)
    assert found.state is JobState.FAILED
    assert found.error_message == "The package gs://code/absent-1.0.tar.gz doesn't exist."
    assert found.error_details["reason"] == "PACKAGE_MISSING"
    assert [bench.state(job) for job in (first, waiting)] == [JobState.RUNNING, JobState.QUEUED]
    bench.release()
    assert bench.ended(first).state is JobState.SUCCEEDED


def machine_of(job: JobRecord, machine: str) -> JobRecord:
    (pool,) = job.body["jobSpec"]["workerPoolSpecs"]
    pool["machineSpec"]["machineType"] = machine
    return job


def test_a_failed_job_tells_why(bench: Bench) -> None:
    found = bench.ended(bench.submit("raise ValueError('the loss is NaN')"))
    assert (found.state, found.error_code) == (JobState.FAILED, 3)
    assert found.error_message.endswith("ValueError: the loss is NaN")


def test_what_can_t_run_here_fails_without_a_run(bench: Bench) -> None:
    job = bench.submit_ml_job(pythonModule="")
    found = bench.ended(job)
    assert (found.state, found.error_code) == (JobState.FAILED, 3)
    assert "pythonModule" in found.error_message
    assert bench.store.runs(job.id) == []


def test_an_output_bucket_s_name_leads_nowhere_else(bench: Bench) -> None:
    job = bench.submit("", spec={"baseOutputDirectory": {"outputUriPrefix": "gs://..models/x"}})
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert [path.name for path in (bench.home / "gcs").iterdir()] == ["code"]


def test_jobs_wait_for_room_first_come_first_served(bench: Bench) -> None:
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
def test_a_queued_job_says_what_it_waits_for(bench: Bench) -> None:
    def named(name: str) -> Callable[[JobRecord], JobRecord]:
        return lambda job: replace(job, body={**job.body, "displayName": name})

    def reasons() -> list[str]:
        waits = [bench.supervisor.wait_of(bench.now(job)) for job in jobs]
        return [wait.reason if wait else "" for wait in waits]

    bench.hold()
    jobs = [bench.submit(name=name, shape=named(name)) for name in ("a", "b", "c", "d", "e")]
    bench.until(lambda: bench.running("a") and bench.running("b"))
    needs = "needs 4 CPUs and 15.0 GiB of memory; held by a, b"
    assert reasons() == [
        "",
        "",
        f"Queued: {needs}",
        f"Queued: waits behind c, which {needs}",
        f"Queued: waits behind 2 jobs; the first is c, which {needs}",
    ]
    first = bench.supervisor.wait_of(jobs[2])
    bench.supervisor.tick()
    assert bench.supervisor.wait_of(jobs[2]) == first  # so that a follower of the log prints it once
    bench.cancel(jobs[0])
    bench.until(lambda: bench.running("c"))
    assert reasons()[2:4] == ["", "Queued: needs 4 CPUs and 15.0 GiB of memory; held by b, c"]
    bench.release()
    for job in jobs:
        bench.ended(job)
    bench.supervisor.tick()
    assert reasons() == [""] * 5


def test_many_holders_are_counted() -> None:
    holders = [(name, Machine(1, 0)) for name in "abcde"]
    assert lacking(Machine(8, 0), Machine(3, 10), holders) == "needs 8 CPUs; held by a, b, c and 2 other jobs"
    holders.append(("g", Machine(0, 0, 1)))
    assert lacking(Machine(2, 0, 1), Machine(3, 10), holders) == "needs 1 GPU; held by g"


def test_a_killed_supervisor_s_job_goes_on_and_is_taken_up_again(bench: Bench) -> None:
    bench.hold()
    job = bench.submit()
    with subprocess.Popen([sys.executable, "-c", SUPERVISING, str(bench.home)]) as former:
        try:
            until(bench.running)
        finally:
            former.send_signal(signal.SIGKILL)
    bench.new_supervisor()
    assert bench.state(job) is JobState.RUNNING
    bench.release()
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert len(bench.starts()) == 1
    assert len(bench.store.runs(job.id)) == 1
    until(lambda: bench.processes() == [])


def test_a_job_that_ended_while_no_supervisor_lived(bench: Bench) -> None:
    bench.hold()
    job = bench.submit()
    with subprocess.Popen([sys.executable, "-c", SUPERVISING, str(bench.home)]) as former:
        until(bench.running)
        former.kill()
    folder = bench.folder(job)
    bench.release()
    until(lambda: folder.ending() and folder.runner() is None)
    ending = folder.ending()
    bench.new_supervisor()
    found = bench.now(job)
    assert found.state is JobState.SUCCEEDED
    assert ending is not None
    assert found.end_time == ending.time


# The files that may exist, from the first intent to the end of the run, when the supervisor is killed.
MOMENTS = ["runs/*", "runs/*/run.json", "runs/*/runner.lock", "runs/*/started", "runs/*/phase",
           "runs/*/packages", "runs/*/environment", "runs/*/work", "runs/*/exit.json"]  # fmt: skip


@pytest.mark.fault(34)
@pytest.mark.parametrize("moments", [MOMENTS, MOMENTS[1::2], MOMENTS[-1:]], ids=["each", "some", "last"])
def test_supervisors_killed_at_any_moment_lose_and_double_no_job(bench: Bench, moments: list[str]) -> None:
    jobs = [bench.submit(name=str(number)) for number in range(2)]
    for moment in moments:
        with subprocess.Popen([sys.executable, "-c", SUPERVISING, str(bench.home)]) as former:
            until(lambda what=moment: [*bench.home.glob(what)])
            former.kill()
    bench.new_supervisor()
    assert [bench.ended(job).state for job in jobs] == [JobState.SUCCEEDED] * 2
    assert sorted(start.split()[1] for start in bench.starts()) == ["0", "1"]
    assert [len(bench.store.runs(job.id)) for job in jobs] == [1, 1]
    until(lambda: bench.processes() == [])


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
    job = bench.submit(source, spec={"network": "projects/1/global/networks/n"})
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
    assert bench.whole_log(job).count("network has no effect here: the job runs as if it weren't set.") == 1
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
    """The supervisor is killed between its intent and the start of the runner."""
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


def test_a_cancelled_job_ends_with_all_its_processes(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []

    def hurried(*arguments: Any) -> Any:
        spec = launch(*arguments)
        assert isinstance(spec, RunSpec)
        given.append(spec.grace)
        return replace(spec, grace=0.5)

    launch = attempts.launch
    monkeypatch.setattr(attempts, "launch", hurried)
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
    assert set(given) == {10.0}
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
    until(folder.ending)
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
    waiting = bench.submit_ml_job(**limits)
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


def test_a_job_that_is_prepared_for_too_long_is_cancelled(bench: Bench) -> None:
    waiting = {"scheduling": {"strategy": "FLEX_START", "maxWaitDuration": "1800s"}}
    job = bench.submit(spec=waiting)
    bench.hold()
    bench.store.move(job.id, JobState.PREPARING, only_from={JobState.QUEUED}, at=bench.store.now())
    bench.clock.ahead = timedelta(seconds=1810)
    found = bench.ended(job)
    assert (found.state, found.error_code) == (JobState.CANCELLED, 1)
    assert "scheduling.maxWaitDuration" in found.error_message
    assert bench.starts() == []


def test_a_job_with_a_higher_priority_begins_first(bench: Bench) -> None:
    """BASIC is an n1-standard-4: two jobs fit, and the next free place goes to the higher priority."""
    bench.hold()
    running = [bench.submit(name=str(number)) for number in range(2)]
    bench.until(lambda: bench.running("0") and bench.running("1"))
    low, high = (
        bench.submit_ml_job(runtimeVersion="unknown", scheduling={"priority": number}) for number in (1, 2)
    )
    for _ in range(3):
        bench.supervisor.tick()
    assert {bench.state(low), bench.state(high)} == {JobState.QUEUED}
    # Room for a single job: with room for both, either may end first.
    bench.cancel(running[0])
    ends = {job.id: bench.ended(job).end_time for job in (low, high)}
    assert ends[high.id] < ends[low.id]
    bench.release()
    assert bench.ended(running[1]).state is JobState.SUCCEEDED


def test_replicas_have_ports_that_no_other_run_has(bench: Bench) -> None:
    source = """
        import os, pathlib, socket, time
        out = pathlib.Path(os.environ["OUT"])
        with socket.create_server(("127.0.0.1", int(os.environ["MASTER_PORT"]))):
            (out / ("running" + os.environ["NAME"])).touch()
            while (out / "hold").exists():
                time.sleep(0.02)
    """
    bench.hold()
    jobs = [bench.submit(source, name=str(number)) for number in range(2)]
    bench.until(lambda: bench.running("0") and bench.running("1"))
    bench.new_supervisor(Machine(cpus=16, memory=64 * 2**30))
    jobs += [bench.submit(source, name="2")]
    bench.until(lambda: bench.running("2"))
    ports = [port for job in jobs for port in json.loads(bench.folder(job).spec.read_text())["ports"]]
    assert len(ports) == len(set(ports)) == 6
    bench.release()
    assert [bench.ended(job).state for job in jobs] == [JobState.SUCCEEDED] * 3


def test_one_job_s_trouble_is_not_the_others(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """An unforeseen error: here fields that the API would never have accepted."""
    nonsense: Callable[[JobRecord], JobRecord] = lambda job: replace(job, body={"jobSpec": ["nonsense"]})  # noqa: E731
    waiting, begun = bench.submit(shape=nonsense), bench.submit(shape=nonsense)
    # Its demand can be computed, but not its command.
    admitted = bench.submit(spec={"scheduling": {"timeout": "nonsense"}})
    bench.store.move(begun.id, JobState.RUNNING, only_from={JobState.QUEUED}, at=bench.store.now())
    run_folder(bench.home, bench.store.add_run(begun.id).run_id).path.mkdir(parents=True)
    good = bench.submit()
    assert bench.ended(good).state is JobState.SUCCEEDED
    for job in (waiting, begun, admitted):
        found = bench.ended(job)
        assert (found.state, found.error_code) == (JobState.FAILED, 13)
        assert "The service failed the job: " in found.error_message
    assert len(caplog.records) == 3
    assert bench.processes() == []


def test_a_job_that_is_given_up_ends_with_all_its_processes(bench: Bench) -> None:
    """As after an update of the service to a version that can't handle a running job."""
    bench.hold()
    job = bench.submit()
    bench.until(lambda: bench.running() and bench.state(job) is JobState.RUNNING)
    with bench.store.database.writing() as connection:
        connection.execute(
            "UPDATE jobs SET collection = ?, body = ?", ("hyperparameterTuningJobs", '{"studySpec": []}')
        )
    bench.new_supervisor()
    found = bench.ended(job)
    assert (found.state, found.error_code) == (JobState.FAILED, 13)
    assert bench.processes() == []


def test_the_time_limit_counts_while_something_runs(bench: Bench) -> None:
    """The time while the machine is off doesn't count: here four of five hours."""
    job = bench.submit(spec={"scheduling": {"timeout": "36000s"}})
    bench.store.move(job.id, JobState.RUNNING, only_from={JobState.QUEUED}, at=bench.store.now())
    now = bench.store.clock()
    for began, ended in [(-18000, -17000), (-3000, None), (-500, -300)]:
        folder = run_folder(bench.home, bench.store.add_run(job.id).run_id)
        folder.path.mkdir(parents=True)
        folder.claim()
        bench.has_run_for(folder, -began)
        if ended is None:  # lost: its last write shows how long it lived
            folder.log.touch()
            os.utime(folder.log, times=(now.timestamp() - 2000,) * 2)
        else:
            folder.end(Ending(STOPPED, time=rfc3339(now + timedelta(seconds=ended))))
    bench.until(lambda: len(bench.store.runs(job.id)) == 4 and bench.folder(job).spec.exists())
    limit = json.loads(bench.folder(job).spec.read_text())["time_limit"]
    assert limit == pytest.approx(36000 - 1000 - 1000 - 200, abs=10)
    assert bench.ended(job).state is JobState.SUCCEEDED


def test_what_runs_side_by_side_counts_once() -> None:
    moments = [datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in range(9)]
    spans = [(5, 6), (0, 3), (1, 2), (2, 4), (8, 7)]
    assert attempts._covered((moments[one], moments[two]) for one, two in spans) == 5 * 3600


def test_a_job_is_not_stopped_and_started_again_for_ever(bench: Bench) -> None:
    """The trainer sends SIGTERM to its parent process."""
    job = bench.submit(spec={"scheduling": {"disableRetries": True}})
    bench.store.move(job.id, JobState.RUNNING, only_from={JobState.QUEUED}, at=bench.store.now())
    for _ in range(21):
        folder = run_folder(bench.home, bench.store.add_run(job.id).run_id)
        folder.path.mkdir(parents=True)
        folder.claim()
        folder.end(Ending(STOPPED, time=bench.store.now()))
    bench.supervisor.tick()
    found = bench.now(job)
    assert (found.state, found.error_code) == (JobState.FAILED, 13)
    assert found.error_message == "The process that ran the job was ended by a signal, 21 times."


def program(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("ending", [None, Ending(SUCCEEDED, time="2026-01-01T00:00:00.000000Z")])
def test_an_engine_that_hangs_holds_up_its_own_job_only(bench: Bench, ending: Ending | None) -> None:
    """The rest of a container is removed before the job's end, also of a container that reported its end."""
    job = bench.submit()
    bench.store.move(job.id, JobState.RUNNING, only_from={JobState.QUEUED}, at=bench.store.now())
    folder = run_folder(bench.home, bench.store.add_run(job.id).run_id)
    folder.path.mkdir(parents=True)
    folder.claim()
    if ending is not None:
        folder.end(ending)
    (bench.out / "hung").touch()
    engine = program(
        bench.out / "engine",
        f'echo asked >> "{bench.out}/asked"; while [ -e "{bench.out}/hung" ]; do sleep 0.1; done',
    )
    write_json(folder.path / "engine", {"program": str(engine), "name": "podman"})
    other = bench.submit("")
    assert bench.ended(other).state is JobState.SUCCEEDED
    assert bench.state(job) is JobState.RUNNING
    assert (bench.out / "asked").read_text() == "asked\n"
    (bench.out / "hung").unlink()
    assert bench.ended(job).state is JobState.SUCCEEDED
    assert not (folder.path / "engine").exists()


def test_a_job_that_can_t_even_be_given_up_is_not_the_others_trouble(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    job = bench.submit(shape=tuned(2))
    bench.store.move(job.id, JobState.RUNNING, only_from={JobState.QUEUED}, at=bench.store.now())
    bench.store.add_trial(job.id, {})
    with bench.store.database.writing() as connection:
        connection.execute("UPDATE trials SET state = 'NONSENSE'")
    bench.until(lambda: "can't end job" in caplog.text)
    assert bench.ended(bench.submit("")).state is JobState.SUCCEEDED


def test_only_a_runner_is_killed_as_one(tmp_path: Path) -> None:
    """A service that gives a run up claims it, while a late runner holds its lock for a moment."""
    folder = run_folder(tmp_path, "1-1-abc")
    folder.path.mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as claimer:
        (folder.path / "started").write_text(str(claimer.pid))
        with locked(folder.runner_lock):
            assert not Runners(tmp_path).kill(folder)
        assert claimer.poll() is None
        claimer.kill()


def test_what_is_said_not_to_have_started_never_starts(bench: Bench) -> None:
    """A former service's runner may come late."""
    job = bench.submit()
    bench.store.move(job.id, JobState.PREPARING, only_from={JobState.QUEUED}, at=bench.store.now())
    folder = run_folder(bench.home, bench.store.add_run(job.id).run_id)
    (folder.path / "run.json.part").mkdir(parents=True)  # it can't be written
    bench.supervisor.tick()
    found = bench.now(job)
    assert (found.state, found.error_code) == (JobState.FAILED, 8)
    assert not folder.claim()


def test_what_a_late_runner_has_taken_up_has_started(bench: Bench) -> None:
    job = bench.submit()
    bench.store.move(job.id, JobState.PREPARING, only_from={JobState.QUEUED}, at=bench.store.now())
    folder = run_folder(bench.home, bench.store.add_run(job.id).run_id)
    (folder.path / "run.json.part").mkdir(parents=True)

    def url(job: JobRecord) -> str:
        folder.claim()  # the last moment for it
        return "http://x"

    bench.supervisor = Supervisor(bench.store, bench.home, storage_url=url, machine=FOR_TWO)
    bench.supervisor.tick()
    assert bench.state(job) is JobState.PREPARING


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
    assert time.monotonic() - started < patience(5)
    assert bench.processes() == []
    assert [bench.state(job) for job in jobs] == [JobState.RUNNING] * 2
    bench.release()
    bench.new_supervisor()
    assert [bench.ended(job).state for job in jobs] == [JobState.SUCCEEDED] * 2
    assert "The job was stopped together with the service: it starts again from the beginning." in bench.log(
        jobs[0]
    )


def test_stop_ends_what_doesn_t_listen(bench: Bench) -> None:
    """The runner hangs, and its trainer has a detached child."""
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
    assert time.monotonic() - started < patience(5)
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
    recover_states(bench.store, bench.home)
    found = bench.now(ended)
    assert (found.state, found.error_code, found.error_message) == (JobState.FAILED, 3, "no")
    assert found.end_time == "2026-01-01T00:00:00.000000Z"
    assert found.start_time
    assert bench.state(running) is JobState.RUNNING
    assert bench.state(stopped) is JobState.PREPARING
    assert bench.state(queued) is JobState.QUEUED
    assert sorted(path.name for path in bench.home.rglob("*")) == before
    recover_states(bench.store, bench.home)
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
    """The image's scikit-learn, the official storage client and a source distribution are all real."""
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
        service.store,
        service.home,
        storage_url=lambda job: f"{service.url}/jobs/{job.gcs_secret}",
        machine=FOR_TWO,
    )
    until(lambda: not supervisor.tick())
    found = service.store.job(job.id)
    assert found is not None
    assert (found.state, found.error_message) == (JobState.SUCCEEDED, "")
    folder = service.home / "gcs" / "models" / "wine" / "model"
    assert json.loads((folder / "metrics.json").read_text())["accuracy"] > 0.9
    assert (folder / "model.joblib").stat().st_size > 10_000
    log = run_folder(service.home, service.store.runs(job.id)[0].run_id).log.read_text()
    assert "saved ['wine/model/metrics.json', 'wine/model/model.joblib']" in log
    assert log.count("WARNING") == (0 if sys.version_info[:2] == (3, 10) else 1)


def test_supervisor_ends_what_it_can_not_read_and_goes_on_with_the_rest(bench: Bench) -> None:
    bench.hold()
    running, untouched, waiting = bench.submit(), bench.submit(), bench.submit()
    bench.until(lambda: bench.state(running) is bench.state(untouched) is JobState.RUNNING)
    with bench.store.database.writing() as connection:
        connection.execute("UPDATE jobs SET body = '{' WHERE id != ?", (untouched.id,))
    for job in (waiting, running):
        found = bench.ended(job)
        assert (found.state, found.error_code) == (JobState.FAILED, 15)
        assert found.error_details == details_of("UNREADABLE", columns="body")
        assert found.error_message.endswith("can't be read: body.\nSo the job was ended.")
    bench.release()
    assert bench.ended(untouched).state is JobState.SUCCEEDED
    assert bench.processes() == []


def test_supervisor_keeps_the_end_that_a_run_has_recorded(bench: Bench) -> None:
    job = bench.submit()
    assert bench.ended(job).state is JobState.SUCCEEDED
    with bench.store.database.writing() as connection:
        connection.execute("UPDATE jobs SET body = '{', state = 'RUNNING', end_time = ''")
    assert bench.ended(job).state is JobState.SUCCEEDED


def test_supervisor_neither_starts_nor_ends_a_job_of_unknown_state(bench: Bench) -> None:
    bench.hold()
    running = bench.submit()
    bench.until(lambda: bench.state(running) is JobState.RUNNING)
    with bench.store.database.writing() as connection:
        connection.execute("UPDATE jobs SET state = 'BROKEN'")
    for _ in range(3):
        bench.supervisor.tick()
    assert bench.processes() != []
    bench.store.move(running.id, JobState.CANCELLING, only_from=UNFINISHED, at=bench.store.now())
    assert bench.ended(running).state is JobState.CANCELLED
    assert bench.processes() == []
