"""Several replicas of a run, each a process of its own."""

from __future__ import annotations

import json
import os
import signal
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from reconciler.training_service.state.run_folder import read_measurements
from reconciler.training_service.state.run_spec import Role
from reconciler.training_service.state.trial_records import Measurement
from tests.support.training_service import trainers
from tests.support.training_service.runs import Run, Starter, lives, nothing_is_left_of
from tests.support.waiting import PATIENCE, until

WORKER: dict[str, Any] = {"replicaCount": "1"}
PRIMARY, FIRST, SECOND = "workerpool0-0", "workerpool1-0", "workerpool2-0"

# Every replica notes its start; `wait` ends once a file exists, or the sources end with the run.
COMMON = """
import json, os, pathlib, signal, sys, time
out = pathlib.Path(os.environ["OUT"])
task = json.loads(os.environ["CLUSTER_SPEC"])["task"]
me = f"{task['type']}-{task['index']}"
def note(name, text=None):
    part = out / f".{name}.{me}"
    part.write_text(str(os.getpid()) if text is None else text)
    part.rename(out / name)
def wait(*names):
    while not all((out / name).exists() for name in names):
        time.sleep(0.01)
def count(name):
    with (out / name).open("a") as file:
        file.write("x")
    return len((out / name).read_text())
starts = count(f"starts.{me}")
note(f"{me}.{starts}")
"""


class Cluster:
    """A factory of runs of several replicas with a single source."""

    def __init__(self, trainer: Starter, out: Path) -> None:
        self._trainer = trainer
        self._out = out

    def __call__(self, source: str, *pools: Mapping[str, Any], **spec: Any) -> Run:
        job = trainers.cluster_job(*(pools or (WORKER, WORKER)), env={"OUT": str(self._out)})
        return self._trainer(COMMON + textwrap.dedent(source), job=job, **{"plain": True, **spec})


@pytest.fixture
def cluster(trainer: Starter, tmp_path: Path) -> Cluster:
    return Cluster(trainer, tmp_path / "out")


def pid_of(run: Run, name: str) -> int:
    return int(run.wrote(name))


def printed_by(run: Run, replica: str) -> list[str]:
    entries = [json.loads(line) for line in run.folder.log.read_text().splitlines()]
    return [entry["m"] for entry in entries if entry.get("r") == replica]


def test_the_primary_s_end_is_the_run_s_end(cluster: Cluster) -> None:
    run = cluster(
        """
        print("I am", me)
        if me == "workerpool1-0":
            sys.exit(0)  # a worker may end before
        if me == "workerpool0-0":
            wait("workerpool1-0.1", "workerpool2-0.1")
            sys.exit(0)
        while True:
            time.sleep(60)  # as parameter servers do
        """
    ).start()
    assert run.end() == ("SUCCEEDED", 0, "")
    for replica in (PRIMARY, FIRST, SECOND):
        assert printed_by(run, replica) == [f"I am {replica}"]
        assert run.wrote(f"starts.{replica}") == "x"
    assert nothing_is_left_of(run)


def test_each_replica_has_a_session_and_folders_of_its_own(cluster: Cluster) -> None:
    run = cluster(
        """
        import tempfile
        told = [os.getsid(0) == os.getpid(), os.getcwd(), os.path.expanduser("~"), tempfile.gettempdir(),
                os.environ["CLOUD_ML_HP_METRIC_FILE"], os.listdir("."), os.listdir(os.path.expanduser("~"))]
        note(f"told.{me}", json.dumps(told))
        wait("told.workerpool0-0", "told.workerpool1-0", "told.workerpool2-0")
        """,
        plain=False,
    ).start()
    assert run.end()[0] == "SUCCEEDED"
    for replica in (PRIMARY, FIRST, SECOND):
        leads, cwd, home, temp, metrics, work, at_home = json.loads(run.wrote(f"told.{replica}"))
        assert leads
        assert (cwd, work) == (str(run.folder.work / replica), [])
        assert (home, at_home) == (str(run.folder.home / replica), [])
        assert Path(temp).name == replica
        assert metrics == f"{temp}/hypertune/output.metrics"
    assert run.log()[0] == ("INFO", "Installing trainer-0.1-py3-none-any.whl")
    assert [text for _, text in run.log() if "Installing" in text] == [run.log()[0][1]]


def test_a_failed_worker_fails_the_run_and_is_named(cluster: Cluster) -> None:
    """The other replicas fail as well, after the worker; but it failed first, and on its own."""
    run = cluster(
        """
        def leave(*_):
            note(f"left.{me}")
            sys.exit("the cluster is gone")
        signal.signal(signal.SIGTERM, leave)
        note(f"ready.{me}")
        if me == "workerpool2-0":
            wait("ready.workerpool0-0", "ready.workerpool1-0")
            raise ValueError("bad data")
        while True:
            time.sleep(60)
        """
    ).start()
    state, code, message = run.end()
    assert (state, code) == ("FAILED", 3)
    assert message.startswith(f"The replica {SECOND} exited with a non-zero status of 1.")
    assert message.endswith("ValueError: bad data")
    assert "the cluster is gone" not in message
    assert run.wrote(f"left.{PRIMARY}")
    assert run.wrote(f"left.{FIRST}")
    assert nothing_is_left_of(run)


def test_the_primary_fails_the_run_too(cluster: Cluster) -> None:
    run = cluster(
        """
        if me == "workerpool0-0":
            sys.exit(3)
        while True:
            time.sleep(60)
        """
    ).start()
    assert run.end()[2] == (
        f"The replica {PRIMARY} exited with a non-zero status of 3. Termination reason: Error."
    )


def test_a_killed_worker_fails_the_run(cluster: Cluster) -> None:
    run = cluster("while True: time.sleep(60)").start()
    os.kill(pid_of(run, f"{FIRST}.1"), signal.SIGKILL)
    state, code, message = run.end()
    assert (state, code) == ("FAILED", 8)
    assert (
        message == f"The replica {FIRST} was killed by signal 9 (SIGKILL): out of memory, or killed by hand."
    )


PREEMPTED = """
everybody = ("workerpool0-0", "workerpool1-0", "workerpool2-0")
wait(*(f"{other}.{starts if me == 'workerpool0-0' else 1}" for other in everybody))
if me == "workerpool1-0" and starts == 1:
    if os.fork() == 0:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note("child")
        while True:
            time.sleep(60)
    wait("child")
    os.kill(os.getpid(), signal.SIGTERM)
if me == "workerpool1-0":
    note("again", str(os.path.exists(f"/proc/{(out / 'child').read_text()}")))
wait("again")
if me != "workerpool0-0":
    while True:
        time.sleep(60)
"""


def test_a_replica_that_sigterm_ends_is_started_again_alone(cluster: Cluster) -> None:
    run = cluster(PREEMPTED).start()
    assert run.end()[0] == "SUCCEEDED"
    assert [len(run.wrote(f"starts.{name}")) for name in (PRIMARY, FIRST, SECOND)] == [1, 2, 1]
    assert run.wrote("again") == "False"  # its child processes had ended by then
    told = f"The replica {FIRST} was ended by SIGTERM: it is started again."
    assert [text for severity, text in run.log() if severity == "WARNING"] == [told]


def test_all_replicas_start_again_where_the_job_wants_it(cluster: Cluster) -> None:
    run = cluster(PREEMPTED, restarts_together=True).start()
    assert run.end()[0] == "SUCCEEDED"
    assert [len(run.wrote(f"starts.{name}")) for name in (PRIMARY, FIRST, SECOND)] == [2, 2, 2]
    told = f"The replica {FIRST} was ended by SIGTERM: all replicas are started again."
    assert [text for severity, text in run.log() if severity == "WARNING"] == [told]


def test_a_primary_that_succeeds_while_all_are_ended_isn_t_started_again(cluster: Cluster) -> None:
    source = """
        if starts > 1:
            sys.exit("once more")
        if me == "workerpool0-0":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
            note("ready")
        wait("ready")
        if me == "workerpool1-0":
            os.kill(os.getpid(), signal.SIGTERM)
        while True:
            time.sleep(60)
    """
    run = cluster(source, WORKER, restarts_together=True).start()
    assert run.end() == ("SUCCEEDED", 0, "")
    assert nothing_is_left_of(run)


@pytest.mark.parametrize(("restarts", "starts"), [(False, 1), (True, 5)])
def test_sigterm_is_a_failure_at_last(cluster: Cluster, restarts: bool, starts: int) -> None:
    source = """
        if me == "workerpool1-0":
            os.kill(os.getpid(), signal.SIGTERM)
        while True:
            time.sleep(60)
    """
    run = cluster(source, WORKER, restarts=restarts).start()
    assert run.end() == ("FAILED", 3, f"The replica {FIRST} was killed by signal 15 (SIGTERM).")
    assert len(run.wrote(f"starts.{FIRST}")) == starts


# Each ignores SIGTERM, and has a detached child.
STUBBORN = """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.closerange(0, 100)
        note(f"daemon.{me}")
        while True:
            time.sleep(60)
    os._exit(0)
os.wait()
"""


def test_a_cancel_ends_every_process_of_every_replica(cluster: Cluster) -> None:
    run = cluster(STUBBORN + "while True: time.sleep(60)", grace=0.5).start()
    pids = [pid_of(run, f"daemon.{replica}") for replica in (PRIMARY, FIRST, SECOND)]
    run.folder.ask_to_cancel("Enough.")
    assert run.end() == ("CANCELLED", 1, "Enough.")
    assert not any(map(lives, pids))
    assert nothing_is_left_of(run)


def test_a_killed_runner_takes_all_replicas_along(cluster: Cluster) -> None:
    run = cluster("while True: time.sleep(60)").start()
    pids = [pid_of(run, f"{replica}.1") for replica in (PRIMARY, FIRST, SECOND)]
    assert run.runner is not None
    run.runner.kill()
    run.runner.wait()
    until(lambda: not any(map(lives, pids)))
    until(run.folder.over)
    assert run.folder.ending() is None


def test_a_stop_while_the_others_end_doesn_t_undo_the_primary_s_success(cluster: Cluster) -> None:
    source = """
        def note_it(*_):
            note("told")
        signal.signal(signal.SIGTERM, note_it)
        note(f"ready.{me}")
        wait("ready.workerpool1-0")
        while me != "workerpool0-0":
            time.sleep(0.1)
    """
    run = cluster(source, WORKER, grace=2 * PATIENCE).start()
    run.wrote("told")
    assert run.runner is not None
    run.runner.send_signal(signal.SIGTERM)
    assert run.end()[0] == "SUCCEEDED"
    assert nothing_is_left_of(run)


def test_what_a_worker_leaves_behind_ends_with_it_while_the_others_go_on(cluster: Cluster) -> None:
    source = """
        def daemon():
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    note(f"daemon.{me}")
                    while True:
                        time.sleep(60)
                os._exit(0)
            os.wait()
        def lives(name):
            return os.path.exists("/proc/" + (out / name).read_text())
        daemon()
        wait("daemon.workerpool0-0", "daemon.workerpool1-0")
        while me == "workerpool0-0" and lives("daemon.workerpool1-0"):
            time.sleep(0.01)
        if me == "workerpool0-0":
            note("own", str(lives("daemon.workerpool0-0")))
    """
    run = cluster(source, WORKER).start()
    assert run.end()[0] == "SUCCEEDED"
    assert run.wrote("own") == "True"
    assert nothing_is_left_of(run)


def test_a_chatty_replica_doesn_t_hold_up_a_quiet_one(cluster: Cluster) -> None:
    source = """
        if me == "workerpool1-0":
            line = b"x" * 99 + b"\\n"
            while True:
                sys.stdout.buffer.write(line * 1000)
        wait("workerpool1-0.1")
        for number in range(20):
            print(number)
            time.sleep(0.001)
    """
    run = cluster(source, WORKER).start()
    assert run.end()[0] == "SUCCEEDED"
    assert printed_by(run, PRIMARY) == [str(number) for number in range(20)]
    assert set(printed_by(run, FIRST)[:-1]) == {"x" * 99}


def test_the_roles_reach_the_runner(cluster: Cluster) -> None:
    spec = json.loads(cluster("", WORKER, {}, WORKER).folder.spec.read_text())
    assert [replica["role"] for replica in spec["replicas"]] == [Role.PRIMARY, Role.WORKER, Role.EVALUATOR]


def test_a_trial_s_measurements_are_taken_while_it_runs(cluster: Cluster) -> None:
    """Each report rewrites the file, so only a concurrent reader sees them all; the worker's don't count."""
    source = """
        def report(step):
            path = pathlib.Path(os.environ["CLOUD_ML_HP_METRIC_FILE"])
            path.parent.mkdir(exist_ok=True)
            value = step / 10 if me == "workerpool0-0" else 99
            entry = {"accuracy": str(value), "global_step": str(step), "timestamp": time.time(), "trial": "1"}
            path.write_text(json.dumps(entry) + "\\n")
        report(1)
        note(f"reported.{me}")
        wait("reported.workerpool1-0", "seen")
        report(2)
    """
    run = cluster(source, WORKER, trial=1, metrics=("accuracy",)).start()
    first = until(lambda: read_measurements(run.folder))
    assert first == (Measurement(1, first[0].elapsed, {"accuracy": 0.1}),)
    (run.out / "seen").touch()
    assert run.end()[0] == "SUCCEEDED"
    found = read_measurements(run.folder)
    assert [(held.step, dict(held.metrics)) for held in found] == [
        (1, {"accuracy": 0.1}),
        (2, {"accuracy": 0.2}),
    ]
    assert 0 <= found[0].elapsed <= found[1].elapsed
    assert nothing_is_left_of(run)


def test_a_run_outside_of_trials_has_no_measurements(trainer: Starter) -> None:
    run = trainer("print('x')").start()
    assert run.end()[0] == "SUCCEEDED"
    assert read_measurements(run.folder) == ()


def test_a_replica_that_can_t_be_started_fails_the_run(cluster: Cluster) -> None:
    run = cluster("", WORKER)
    spec = json.loads(run.folder.spec.read_text())
    spec["replicas"][1]["task"]["args"] = ["x" * 3_000_000]  # more than a program may get
    run.folder.spec.write_text(json.dumps(spec))
    state, code, message = run.start().end()
    assert (state, code) == ("FAILED", 8)
    assert "Argument list too long" in message
    assert nothing_is_left_of(run)
