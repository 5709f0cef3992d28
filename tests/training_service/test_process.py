"""The service's process: a single process for each home, found by service.json, ended by any cause."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import urllib3

from reconciler.training_service import address
from reconciler.training_service.__main__ import main
from reconciler.training_service.address import Address, ServiceRunningError
from reconciler.training_service.state import database
from reconciler.training_service.state.database import Store
from reconciler.training_service.state.records import JobRecord
from tests.support.training_service import trainers
from tests.support.training_service.bodies import ML, ml_job
from tests.support.training_service.processes import Processes, command
from tests.support.waiting import PATIENCE, patience, until

pytestmark = pytest.mark.slow


def is_served(home: Path) -> bool:
    try:
        with address.unserved(home):
            return False
    except ServiceRunningError:
        return True


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    running = Processes(tmp_path / "folder" / "home")
    yield running
    for process in running.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def call(found: Address, method: str, path: str, body: Any = None) -> Any:
    answer = urllib3.request(
        method,
        found.url + path,
        body=None if body is None else json.dumps(body).encode(),
        headers={"Authorization": f"Bearer {found.token}"},
        retries=False,
        timeout=PATIENCE,
    )
    assert answer.status == 200, answer.data
    return answer.json()


def ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    out, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, err
    return out, err


def test_service_json_says_where_the_service_is(processes: Processes) -> None:
    process, found = processes.start_and_wait()
    assert call(found, "GET", "/_service/health") == {"version": found.version, "pid": process.pid}
    assert (processes.home / "service.json").stat().st_mode & 0o777 == 0o600
    assert len(found.token) >= 32
    assert found.token not in (processes.home / "service.log").read_text()
    assert is_served(processes.home)


@pytest.mark.slow
def test_a_second_service_says_who_serves_and_leaves(processes: Processes) -> None:
    process, found = processes.start_and_wait()
    out, err = ended(processes.start())
    who = f"process {process.pid} at {found.url}"
    assert out == f"The embedded training service of {processes.home} is served by {who}.\n"
    assert err == ""
    assert call(found, "GET", "/_service/health")
    assert address.read_address(processes.home) == found


@pytest.mark.slow
def test_of_many_started_at_once_one_serves(processes: Processes) -> None:
    many = [processes.start() for _ in range(6)]
    until(lambda: sum(process.poll() is None for process in many) == 1)
    (serving,) = (process for process in many if process.poll() is None)
    assert {process.returncode for process in many} == {None, 0}
    assert call(processes.served(serving), "GET", "/_service/health")["pid"] == serving.pid


@pytest.mark.slow
def test_a_service_waits_for_one_that_is_just_ending(processes: Processes) -> None:
    processes.home.mkdir(parents=True)
    ending = address.lock_home(processes.home)  # as a service that has removed its service.json already
    assert ending
    process = processes.start()
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)
    ending.release()
    assert call(processes.served(process), "GET", "/_service/health")


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, None])
def test_it_ends_cleanly_when_it_is_told_to(processes: Processes, how: signal.Signals | None) -> None:
    process, found = processes.start_and_wait()
    if how is None:
        assert call(found, "POST", "/_service/stop") == {}
    else:
        process.send_signal(how)
    _, err = ended(process)
    assert err == ""
    assert sorted(path.name for path in processes.home.iterdir()) == [
        "service.lock",
        "service.log",
        "state.db",
    ]
    assert not is_served(processes.home)


@pytest.mark.slow
@pytest.mark.fault(34)
def test_what_was_answered_is_there_after_a_kill(processes: Processes) -> None:
    process, found = processes.start_and_wait()
    created = call(found, "POST", ML, ml_job())
    process.kill()
    process.wait()
    assert not is_served(processes.home)
    _, again = processes.start_and_wait()
    assert again.token != found.token
    assert call(again, "GET", ML + "/census_1")["createTime"] == created["createTime"]


def test_a_service_takes_over_the_port_that_running_jobs_know(processes: Processes) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes.home.mkdir(parents=True)
    store = Store(database.open_file(processes.home / "state.db"))
    store.set_setting("port", port)
    now = store.now()
    store.add_job(JobRecord("jobs", "demo", "", "a", ml_job("a"), "secret", now, now))
    store.database.close()
    _, found = processes.start_and_wait()
    assert found.url == f"http://127.0.0.1:{port}"


def serving_for(home: Path, seconds: float) -> list[str]:
    text = (
        "import sys; from pathlib import Path; from reconciler.training_service.process import serve;"
        f"sys.exit(serve(Path({str(home)!r}), idle_seconds={seconds}))"
    )
    return [sys.executable, "-c", text]


@pytest.mark.slow
def test_with_nothing_to_do_it_ends(processes: Processes) -> None:
    process = processes.start(serving_for(processes.home, 0.2))
    out, err = ended(process)
    assert "is served by" in out
    assert err == ""
    assert not (processes.home / "service.json").exists()


@pytest.mark.slow
def test_told_to_stay_it_stays(processes: Processes) -> None:
    arguments = serving_for(processes.home, 0.0)
    arguments[-1] = arguments[-1].replace("idle_seconds", "stay=True, idle_seconds")
    process = processes.start(arguments)
    found = processes.served(process)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(1.0)  # without `stay` it would have ended at once
    assert call(found, "GET", "/_service/health")


def test_command_passes_port_and_stay_to_the_service() -> None:
    given: list[object] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "reconciler.training_service.__main__.serve",
            lambda home, **options: given.append((home, *options.values())) or 0,
        )
        assert main(["--home", "x"]) == main(["--home", "x", "--stay", "--port", "8090"]) == 0
    assert given == [(Path("x"), False, 0), (Path("x"), True, 8090)]


@pytest.mark.slow
@pytest.mark.parametrize("made_anew", [False, True])
def test_it_ends_soon_when_its_home_is_gone(processes: Processes, made_anew: bool) -> None:
    process, _ = processes.start_and_wait()
    shutil.rmtree(processes.home)
    if made_anew:
        other, found = processes.start_and_wait()
    process.communicate(timeout=patience(5.0))
    assert process.returncode == 0
    if made_anew:
        assert address.read_address(processes.home) == found
        assert call(found, "GET", "/_service/health")["pid"] == other.pid
    else:
        assert not processes.home.exists()


@pytest.mark.fault(36)
def test_a_state_that_cant_be_read_is_told_without_a_traceback(processes: Processes) -> None:
    processes.home.mkdir(parents=True)
    (processes.home / "state.db").write_bytes(b"no database" * 1000)
    process = processes.start()
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert err.startswith(f"The embedded training service can't start in {processes.home}: ")
    assert err.count("\n") == 1
    assert "can't start" in (processes.home / "service.log").read_text()


def test_a_module_in_the_working_folder_is_not_taken_for_ours(processes: Processes, tmp_path: Path) -> None:
    (tmp_path / "waitress.py").write_text("raise SystemExit('the wrong one')")
    process = subprocess.Popen(command(processes.home), cwd=tmp_path, start_new_session=True)
    processes.started.append(process)  # type: ignore[arg-type]
    assert processes.served(process)  # type: ignore[arg-type]


TRAINER = """
import os, time, urllib.request

base = os.environ["STORAGE_EMULATOR_HOST"]

def ask(path, data=None):
    while True:
        try:
            return urllib.request.urlopen(urllib.request.Request(base + path, data)).read()
        except OSError:
            time.sleep(0.05)

ask("/upload/storage/v1/b/code/o?uploadType=media&name=started", b"x")
ask("/storage/v1/b/code/o/go")
ask("/upload/storage/v1/b/code/o?uploadType=media&name=done&ifGenerationMatch=0", b"done")
"""


@pytest.mark.slow
def test_a_running_job_goes_on_through_a_kill_of_the_service_and_reaches_storage_after_it(
    processes: Processes,
) -> None:
    process, found = processes.start_and_wait()
    bucket = processes.home / "gcs" / "code"
    trainers.wheel(bucket / trainers.URI.rsplit("/", 1)[1], TRAINER)
    call(found, "PUT", "/_service/images", trainers.IMAGES)
    path = "/v1/projects/demo/locations/us-central1/customJobs"
    name = call(found, "POST", path, trainers.custom_job().body)["name"]
    until((bucket / "started").exists)
    until(lambda: call(found, "GET", f"/v1/{name}")["state"] == "JOB_STATE_RUNNING")
    process.kill()
    process.wait()

    _, again = processes.start_and_wait()
    assert again.url == found.url
    (bucket / "go").touch()
    until(lambda: "endTime" in call(again, "GET", f"/v1/{name}"))
    job = call(again, "GET", f"/v1/{name}")
    assert job["state"] == "JOB_STATE_SUCCEEDED", job
    assert (bucket / "done").read_text() == "done"


@pytest.mark.slow
def test_jobs_go_on_when_the_service_is_stopped_and_end_with_their_home(processes: Processes) -> None:
    process, found = processes.start_and_wait()
    bucket = processes.home / "gcs" / "code"
    pid_file = processes.home.parent / "pid"
    source = f"""
        import os, pathlib, time
        pathlib.Path({str(pid_file)!r}).write_text(str(os.getpid()))
        time.sleep(600)
    """
    trainers.wheel(bucket / trainers.URI.rsplit("/", 1)[1], source)
    call(found, "PUT", "/_service/images", trainers.IMAGES)
    call(found, "POST", "/v1/projects/demo/locations/l/customJobs", trainers.custom_job().body)
    trainer = psutil.Process(int(until(lambda: pid_file.exists() and pid_file.read_text())))
    call(found, "POST", "/_service/stop")
    ended(process)
    assert trainer.is_running()
    process, _ = processes.start_and_wait()
    shutil.rmtree(processes.home, ignore_errors=True)
    process.communicate(timeout=PATIENCE)
    until(lambda: not trainer.is_running() or trainer.status() == psutil.STATUS_ZOMBIE)


def test_service_is_served_at_the_port_that_was_asked_for(processes: Processes) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
        refused = processes.start(command(processes.home, "--port", port))
        assert f"another program uses the port {port}" in refused.communicate()[1]
        assert refused.returncode == 1
    served = processes.served(processes.start(command(processes.home, "--port", port)))
    assert served.url == f"http://127.0.0.1:{port}"
