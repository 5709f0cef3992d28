from __future__ import annotations

import json
import os
import signal
import tempfile
import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from reconciler.training_service.environments import venvs
from reconciler.training_service.environments.pip_settings import uv_settings
from reconciler.training_service.processes import process_tree
from reconciler.training_service.processes.programs import Programs
from reconciler.training_service.state.run_folder import locked, write_json
from reconciler.training_service.state.run_log import LINE_LIMIT
from tests.support.training_service import trainers
from tests.support.training_service.runs import Run, Starter, lives, nothing_is_left_of
from tests.support.waiting import PATIENCE, until


def test_a_trainer_runs_to_its_end(trainer: Starter) -> None:
    run = trainer(
        """
        import os, sys
        print("training", *sys.argv[1:])
        print("careful", file=sys.stderr)
        print("work folder holds", os.listdir("."))
        """,
        job=trainers.custom_job(args=["--epochs=3", "a b"]),
    ).start()
    assert run.end() == ("SUCCEEDED", 0, "")
    assert run.printed() == ["training --epochs=3 a b", "work folder holds []"]
    assert ("ERROR", "careful") in run.log()
    assert nothing_is_left_of(run)


def test_its_times_are_told_in_order(trainer: Starter) -> None:
    run = trainer("print('x')").start()
    run.end()
    phase, ending = run.folder.phase(), run.folder.ending()
    assert phase is not None
    assert ending is not None
    assert phase.phase == "RUNNING"
    assert phase.time < ending.time
    times = [json.loads(line)["t"] for line in run.folder.log.read_text().splitlines()]
    assert times == sorted(times)


def test_a_trainer_finds_its_own_surroundings(trainer: Starter) -> None:
    run = trainer(
        """
        import json, os, pathlib, sys, tempfile
        seen = dict(os.environ)
        told = {"home": os.path.expanduser("~"), "temp": tempfile.gettempdir(), "cwd": os.getcwd(),
                "env": seen, "unbuffered": sys.stdout.write_through}
        pathlib.Path(os.environ["OUT"], "told.json").write_text(json.dumps(told))
        """
    )
    run.environ = {
        "GITHUB_TOKEN": "ghp_secret",
        "GOOGLE_APPLICATION_CREDENTIALS": "/key.json",
        "LANG": "C.UTF-8",
    }
    assert run.start().end()[0] == "SUCCEEDED"
    told = json.loads(run.wrote("told.json"))
    assert told["home"] == str(run.folder.home / "workerpool0-0")
    assert told["cwd"] == str(run.folder.work / "workerpool0-0")
    assert f"reconciler-{run.folder.run_id}-" in told["temp"]
    assert told["env"]["CLOUD_ML_JOB_ID"] == "4242424242424242424"
    assert told["env"]["PATH"].startswith(f"{run.folder.environment}/")
    assert told["unbuffered"]
    assert not {"GITHUB_TOKEN", "GOOGLE_APPLICATION_CREDENTIALS", "PIP_NO_INDEX"} & {*told["env"]}


@pytest.mark.parametrize("status", [1, 2, 127])
def test_a_failed_trainer_s_message_ends_in_its_traceback(trainer: Starter, status: int) -> None:
    source = f"""
        import sys
        print("noise " * 1000, file=sys.stderr)
        try:
            raise ValueError("the loss is NaN")
        except ValueError:
            import traceback
            traceback.print_exc()
            sys.exit({status})
    """
    run = trainer(source).start()
    state, code, message = run.end()
    assert (state, code) == ("FAILED", 3)
    first, second, *_, last = message.splitlines()
    assert first == (
        f"The replica workerpool0-0 exited with a non-zero status of {status}. Termination reason: Error."
    )
    assert (second, last) == ("Traceback (most recent call last):", "ValueError: the loss is NaN")
    assert len(message) < 2500
    assert run.log()[-1] == ("ERROR", first)


def test_a_long_traceback_is_cut_to_its_end(trainer: Starter) -> None:
    message = trainer("raise ValueError('x' * 5000 + 'the end')").start().end()[2]
    assert message.endswith("xthe end")
    assert 2048 < len(message) < 2300


def test_the_ml_replica_is_called_as_there(trainer: Starter) -> None:
    job = replace(trainers.ml_job(runtimeVersion="mine"), images={"mine": {"python": trainers.OWN_PYTHON}})
    message = trainer("raise SystemExit(5)", job=job).start().end()[2]
    assert message.startswith("The replica master 0 exited with a non-zero status of 5.")


def test_a_module_that_isn_t_there(trainer: Starter) -> None:
    run = trainer("", job=trainers.custom_job(pythonModule="trainer.nothing")).start()
    state, _, message = run.end()
    assert state == "FAILED"
    assert "No module named trainer.nothing" in message


def test_a_module_of_the_image_that_nothing_imports_plainly(
    trainer: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.defpath)
    monkeypatch.setenv("PYENV_ROOT", "/none")
    image = "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest"
    run = trainer(
        "import importlib; importlib.import_module('sklearn.svm')", job=trainers.custom_job(image=image)
    )
    state, _, message = run.start().end()
    assert state == "FAILED"
    assert "ModuleNotFoundError: No module named 'sklearn'" in message
    assert "The image has scikit-learn==1.6.*, but no import statement" in message


@pytest.mark.parametrize(
    ("source", "package"),
    [("import hypertune", "cloudml-hypertune"), ("from google.cloud import logging", "google-cloud-logging")],
)
def test_a_package_of_the_image_that_its_entry_leaves_out_is_named_with_the_entry(
    trainer: Starter, source: str, package: str
) -> None:
    image = "us-docker.pkg.dev/vertex-ai/training/sklearn-cpu.1-6:latest"
    entry = {"python": trainers.OWN_PYTHON, "requirements": ["google-cloud-storage"]}
    run = trainer(source, job=replace(trainers.custom_job(image=image), images={image: entry}))
    state, _, message = run.start().end()
    assert state == "FAILED"
    assert f"The image has {package}, and the entry for it under images in reconciler.yaml" in message


def test_trainer_that_breaks_the_image_is_told_the_package_and_the_entry(
    trainer: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    links = tmp_path / "links"
    check = "import dep\nif dep.VERSION != '1.0':\n    raise TypeError('dep is too new')\n"
    trainers.library(links, "framework", "1.0", ["dep<2"], check)
    trainers.library(links, "dep", "1.0")
    trainers.library(links, "dep", "2.0")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{os.environ['PIP_FIND_LINKS']} {links}")
    images = {trainers.PLAIN: {"python": trainers.OWN_PYTHON, "requirements": ["framework==1.*"]}}
    job = replace(trainers.custom_job(), images=images)
    run = trainer("import framework", requires=("dep>=2",), job=job).start()
    state, _, message = run.end()
    replaced = (
        "The image has dep 1.0, and the trainer's packages require another: they got 2.0."
        " framework of the image requires dep<2."
    )
    entry = f'{{python: "{trainers.OWN_PYTHON}", requirements: ["framework", "dep==2.0"]}}'
    assert state == "FAILED"
    assert "TypeError: dep is too new" in message
    assert message.splitlines()[-2] == replaced
    assert message.endswith(f'say under images in reconciler.yaml: "{trainers.PLAIN}": {entry}')
    assert ("WARNING", replaced) in run.log()
    assert "images:" not in trainer("raise ValueError('x')", requires=("dep>=2",), job=job).start().end()[2]


def test_unreachable_index_fails_the_run_at_once(trainer: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    images = {trainers.PLAIN: {"python": ">=3.6", "requirements": ["not-installed-yet"]}}
    state, code, message = trainer("", job=replace(trainers.custom_job(), images=images)).start().end()
    assert (state, code) == ("FAILED", 14)
    assert "cannot reach the package index at http://127.0.0.1:9/simple: " in message


def test_setting_of_pip_without_translation_fails_the_run(
    trainer: Starter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_PREFER_BINARY", "1")
    state, code, message = trainer("").start().end()
    assert (state, code) == ("FAILED", 9)
    assert "pip's setting prefer-binary" in message


def test_a_package_that_isn_t_there(trainer: Starter) -> None:
    run = trainer("", job=trainers.custom_job(packages=["gs://code/absent-1.0.tar.gz"])).start()
    assert run.end() == ("FAILED", 5, "The package gs://code/absent-1.0.tar.gz doesn't exist.")
    assert nothing_is_left_of(run)


@pytest.mark.parametrize("uri", ["gs://code/../../secret", "gs://../secret", "/etc/passwd", "gs://code"])
def test_a_package_s_name_leads_out_of_no_bucket(trainer: Starter, uri: str) -> None:
    run = trainer("", job=trainers.custom_job(packages=[uri]))
    (run.folder.service_home / "secret").write_text("x")
    assert run.start().end() == ("FAILED", 5, f"The package {uri} doesn't exist.")


def test_a_package_that_is_none(trainer: Starter) -> None:
    run = trainer("")
    (run.folder.service_home / "gcs" / "code" / Path(trainers.URI).name).write_bytes(b"not a wheel")
    state, code, message = run.start().end()
    assert (state, code) == ("FAILED", 3)
    assert message.startswith("The package trainer-0.1-py3-none-any.whl could not be installed: ")


def test_a_requirement_that_can_t_be_had(trainer: Starter) -> None:
    state, code, message = trainer("", requires=("no-such-thing",)).start().end()
    assert (state, code) == ("FAILED", 3)
    assert "trainer-0.1-py3-none-any.whl" in message
    assert "no-such-thing" in message


def test_no_python_that_the_override_wants(trainer: Starter) -> None:
    job = replace(trainers.custom_job(), images={trainers.PLAIN: {"python": ">=3.98", "requirements": []}})
    state, code, message = trainer("", job=job).start().end()
    assert (state, code) == ("FAILED", 9)
    assert f"{trainers.PLAIN} is to run on Python >=3.98; this machine has Python " in message
    assert trainers.OWN_PYTHON in message
    assert "`uv python install VERSION`" in message


def test_ten_megabytes_of_output_are_kept_whole_and_in_order(trainer: Starter) -> None:
    run = trainer("for number in range(100_000): print(f'{number:099d}')").start()
    assert run.end()[0] == "SUCCEEDED"
    assert [int(line) for line in run.printed()] == [*range(100_000)]


def test_output_of_any_kind(trainer: Starter) -> None:
    run = trainer(
        f"""
        import sys
        out = sys.stdout.buffer
        out.write("grüß\\n".encode() + b"bad \\xff byte\\n\\n")
        out.write(b"x" * {LINE_LIMIT + 10} + b"\\n" + b"the end")
        """
    ).start()
    assert run.end()[0] == "SUCCEEDED"
    assert run.printed() == ["grüß", "bad \ufffd byte", "", "x" * LINE_LIMIT, "x" * 10, "the end"]


def test_a_trainer_that_is_ended_by_sigterm_starts_again(trainer: Starter) -> None:
    run = trainer(
        """
        import os, pathlib, signal, subprocess
        starts = pathlib.Path(os.environ["OUT"], "starts")
        count = len(starts.read_text().splitlines()) if starts.exists() else 0
        helpers = pathlib.Path(os.environ["OUT"]).glob("helper.*")
        alive = [helper for helper in helpers if os.path.exists(f"/proc/{helper.suffix[1:]}")]
        with starts.open("a") as file:
            print(os.listdir("."), alive, file=file)
        pathlib.Path("checkpoint").touch()
        if count < 2:
            helper = subprocess.Popen(["sleep", "600"])
            pathlib.Path(os.environ["OUT"], f"helper.{helper.pid}").touch()
            os.kill(os.getpid(), signal.SIGTERM)
        """
    ).start()
    assert run.end()[0] == "SUCCEEDED"
    assert run.wrote("starts") == "[] []\n" * 3
    assert len([text for severity, text in run.log() if severity == "WARNING" and "SIGTERM" in text]) == 2


def test_a_trainer_that_always_ends_itself_fails_at_last(trainer: Starter) -> None:
    source = """
        import os, pathlib, signal
        with pathlib.Path(os.environ["OUT"], "starts").open("a") as file:
            file.write("x")
        os.kill(os.getpid(), signal.SIGTERM)
    """
    run = trainer(source).start()
    assert run.end() == ("FAILED", 3, "The replica workerpool0-0 was killed by signal 15 (SIGTERM).")
    assert run.wrote("starts") == "xxxxx"


def test_a_trainer_killed_for_its_memory(trainer: Starter) -> None:
    run = trainer("import os, signal; os.kill(os.getpid(), signal.SIGKILL)").start()
    state, code, message = run.end()
    assert (state, code) == ("FAILED", 8)
    assert message == (
        "The replica workerpool0-0 was killed by signal 9 (SIGKILL): out of memory, or killed by hand."
    )


# Leaves a process behind that only SIGKILL ends, in a session of its own, without its parent's files.
DAEMON = """
import os, signal, sys, time
def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.closerange(0, 100)
            with open(os.path.join(os.environ["OUT"], "daemon.part"), "w") as file:
                file.write(str(os.getpid()))
            os.rename(file.name, os.path.join(os.environ["OUT"], "daemon"))
            while True:
                time.sleep(60)
        os._exit(0)
    os.wait()
    while not os.path.exists(os.path.join(os.environ["OUT"], "daemon")):
        time.sleep(0.01)
"""


def test_what_a_trainer_leaves_behind_ends_with_it(trainer: Starter) -> None:
    run = trainer(f"{DAEMON}\ndaemon()\nprint('done')").start()
    daemon = int(run.wrote("daemon"))
    assert run.end()[0] == "SUCCEEDED"
    assert not lives(daemon)
    assert run.printed() == ["done"]
    assert nothing_is_left_of(run)


def test_a_cancel_ends_also_what_ignores_it(trainer: Starter) -> None:
    source = DAEMON + textwrap.dedent(
        """
        signal.signal(signal.SIGTERM, lambda *_: print("ignored", flush=True))
        daemon()
        while True:
            time.sleep(60)
        """
    )
    run = trainer(source)
    write_json(run.folder.spec, {**json.loads(run.folder.spec.read_text()), "grace": 0.5})
    run.start()
    daemon = int(run.wrote("daemon"))
    run.folder.ask_to_cancel("The user has had enough.")
    assert run.end() == ("CANCELLED", 1, "The user has had enough.")
    assert run.printed() == ["ignored"]
    assert not lives(daemon)
    assert nothing_is_left_of(run)


def test_a_cancel_leaves_time_to_save_the_work(trainer: Starter) -> None:
    run = trainer(
        """
        import os, pathlib, signal, sys, time
        out = pathlib.Path(os.environ["OUT"])
        def save(*_):
            print("saving")
            (out / "saved").write_text("x")
            sys.exit(0)
        signal.signal(signal.SIGTERM, save)
        (out / "ready").write_text("x")
        while True:
            time.sleep(60)
        """
    ).start()
    run.wrote("ready")
    run.folder.ask_to_cancel("Enough.")
    assert run.end() == ("CANCELLED", 1, "Enough.")
    assert run.wrote("saved") == "x"
    assert run.printed() == ["saving"]


def test_a_cancel_before_the_trainer_runs(trainer: Starter) -> None:
    run = trainer("import os, pathlib; pathlib.Path(os.environ['OUT'], 'ran').touch()")
    run.folder.ask_to_cancel("Never mind.")
    assert run.start().end() == ("CANCELLED", 1, "Never mind.")
    assert not (run.out / "ran").exists()
    assert nothing_is_left_of(run)


def test_a_job_over_its_time_is_cancelled(trainer: Starter) -> None:
    run = trainer("import time; time.sleep(600)", time_limit=0.2).start()
    message = "The job was cancelled: it ran for longer than scheduling.timeout."
    assert run.end() == ("CANCELLED", 1, message)
    assert run.log().count(("WARNING", message)) == 1


def test_a_runner_that_is_told_to_end_stops_the_run(trainer: Starter) -> None:
    run = trainer(f"{DAEMON}\ndaemon()\nwhile True: time.sleep(60)").start()
    daemon = int(run.wrote("daemon"))
    assert run.runner is not None
    run.runner.send_signal(signal.SIGTERM)
    assert run.end()[0] == "STOPPED"
    assert not lives(daemon)


def test_a_runner_ends_with_the_home(trainer: Starter, tmp_path: Path) -> None:
    run = trainer(f"{DAEMON}\ndaemon()\nwhile True: time.sleep(60)").start()
    daemon = int(run.wrote("daemon"))
    (tmp_path / "home").rename(tmp_path / "moved")
    assert run.runner is not None
    assert run.runner.wait(5.0) == 0
    assert not lives(daemon)
    assert not [*Path(tempfile.gettempdir()).glob(f"reconciler-{run.folder.run_id}-*")]


def test_a_killed_runner_takes_the_trainer_along(trainer: Starter) -> None:
    source = """
        import os, pathlib, time
        pathlib.Path(os.environ["OUT"], "pid").write_text(str(os.getpid()))
        while True:
            time.sleep(60)
    """
    run = trainer(source).start()
    pid = int(run.wrote("pid"))
    assert run.runner is not None
    assert run.folder.runner() == run.runner.pid
    run.runner.kill()
    run.runner.wait()
    assert run.folder.runner() is None
    until(lambda: not lives(pid))
    until(run.folder.over)
    assert run.folder.ending() is None


@pytest.mark.fault(35)
def test_a_trainer_that_outlives_its_runner_holds_the_lock(trainer: Starter) -> None:
    """The trainer's children hold it by its descriptor: no run may start while they live."""
    source = """
        import os, pathlib, time
        if os.fork() == 0:
            pathlib.Path(os.environ["OUT"], "pid").write_text(str(os.getpid()))
        while True:
            time.sleep(60)
    """
    run = trainer(source).start()
    pid = int(run.wrote("pid"))
    assert run.runner is not None
    run.runner.kill()
    run.runner.wait()
    assert run.folder.runner() is None
    assert not run.folder.over()
    assert [process.pid for process in until(lambda: process_tree.marked(run.folder.run_id))][-1] == pid
    os.kill(pid, signal.SIGKILL)
    until(run.folder.over)


@pytest.mark.fault(34)
def test_a_run_is_carried_out_once(trainer: Starter) -> None:
    source = "import os, pathlib; pathlib.Path(os.environ['OUT'], 'starts').open('a').write('x')"
    run = trainer(source).start()
    first = run.runner
    second = Run(run.folder, run.out).start()
    assert second.runner is not None
    assert second.runner.wait(PATIENCE) == 0
    assert first is not None
    assert first.wait(PATIENCE) == 0
    third = Run(run.folder, run.out).start()
    assert third.end()[0] == "SUCCEEDED"
    assert run.wrote("starts") == "x"


def test_a_run_that_was_claimed_is_not_carried_out(trainer: Starter) -> None:
    run = trainer("")
    assert run.folder.claim()
    run.start()
    assert run.runner is not None
    assert run.runner.wait(PATIENCE) == 0
    assert run.folder.ending() is None


@pytest.mark.fault(35)
def test_a_lock_that_another_holds_is_left_alone(trainer: Starter) -> None:
    run = trainer("")
    with locked(run.folder.runner_lock):
        run.start()
        assert run.runner is not None
        assert run.runner.wait(PATIENCE) == 0
    assert not run.folder.started()


@pytest.mark.fault(33)
def test_a_log_that_can_t_be_written_fails_the_job(trainer: Starter) -> None:
    run = trainer("print('x' * 1000, flush=True)")
    run.folder.log.symlink_to("/dev/full")
    state, code, message = run.start().end()
    assert (state, code) == ("FAILED", 8)
    assert "No space left on device" in message


def test_long_installation_reports_its_progress(
    trainer: Starter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uv = tmp_path / "uv"
    uv.write_text(
        f"#!/bin/sh\necho ' Downloading much (1 GiB)'\nwhile [ ! -e {tmp_path}/go ]; do sleep 0.01; done\n"
    )
    uv.chmod(0o755)
    monkeypatch.setattr(venvs, "find_uv_bin", lambda: str(uv))
    monkeypatch.setattr(venvs, "_REPORT_EVERY", 0.2)
    said: list[str] = []

    def say(_severity: str, text: str) -> None:
        said.append(text)
        (tmp_path / "go").touch()

    run = trainer("")
    programs = Programs(run.folder.run_id, run.folder.sessions, 0, lambda: None)
    installer = venvs.Uv(uv_settings(os.environ), os.environ, tmp_path, programs, say)
    installer.run("resolving requirements", ["x"], 0, {})
    assert said[0] == "Still resolving requirements after 0 s: Downloading much (1 GiB)"
