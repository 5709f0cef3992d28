"""Processes forked from the preloaded process behave like those of a new interpreter."""

from __future__ import annotations

import fcntl
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.support import preloaded
from tests.support.repository import Result
from tests.support.waiting import PATIENCE


def run(cwd: Path, *arguments: str, **environ: str) -> Result:
    process = preloaded.start(*arguments, cwd=cwd, env={**os.environ, **environ})
    assert is_forked(process)
    out, err = process.communicate(timeout=PATIENCE)
    return Result(process.returncode, out, err)


def run_real(cwd: Path, *arguments: str) -> Result:
    command = [sys.executable, "-m", "reconciler", *arguments]
    done = subprocess.run(command, cwd=cwd, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    return Result(done.returncode, done.stdout, done.stderr)


def start_writer(cwd: Path) -> subprocess.Popen[str]:
    """Start a command whose output doesn't fit into its pipe, and wait until it writes."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    process = preloaded.start("schema", "CustomJob", cwd=cwd, env=os.environ, stdout=writer)
    os.close(writer)
    process.stdout = os.fdopen(reader)
    process.stdout.readline()
    return process


def is_forked(process: subprocess.Popen[str]) -> bool:
    return type(process) is not subprocess.Popen


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "census.yaml").write_text("kind: CustomJob\n")
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("arguments", ["--help", "validate --format json", "plan --wrong"])
def test_forked_start_ends_and_prints_as_real_start(root: Path, arguments: str) -> None:
    assert run(root, *arguments.split()) == run_real(root, *arguments.split())


def test_forked_start_has_its_own_folder_and_variables(root: Path) -> None:
    empty = root / "empty"
    empty.mkdir()
    assert run(root, "validate").code == 3
    assert run(empty, "schema").code == 0
    assert run(empty, "status", RECONCILER_ENV="production").code == 64
    assert run(empty, "status").code == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGKILL, -9), (signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_forked_start_ends_by_signal_as_real_start(root: Path, number: signal.Signals, code: int) -> None:
    process = start_writer(root)
    process.send_signal(number)
    process.communicate(timeout=PATIENCE)
    assert process.returncode == code


def test_forked_start_has_no_other_descriptors_and_group_of_caller(root: Path) -> None:
    others = [start_writer(root) for _ in range(2)]
    process = start_writer(root)
    assert psutil.Process(process.pid).num_fds() == 3
    assert os.getpgid(process.pid) == os.getpgrp()
    for each in (*others, process):
        each.kill()
        each.communicate(timeout=PATIENCE)


def test_forked_start_writes_to_the_streams_it_is_given(root: Path) -> None:
    process = preloaded.start("plan", "--wrong", cwd=root, env=os.environ, stderr=subprocess.STDOUT)
    assert "has no flag --wrong" in process.communicate(timeout=PATIENCE)[0]
    master, slave = pty.openpty()
    variables = {**os.environ, "TERM": "xterm"}
    process = preloaded.start("--help", cwd=root, env=variables, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    assert os.read(master, 5) == b"usage"
    os.close(master)
    process.wait(timeout=PATIENCE)


@pytest.mark.parametrize("name", ["PYTHONUNBUFFERED", "LC_ALL", "NO_COLOR"])
def test_variable_that_is_read_before_main_gets_real_start(root: Path, name: str) -> None:
    process = preloaded.start("--help", cwd=root, env={**os.environ, name: "C"})
    process.communicate(timeout=PATIENCE)
    assert (process.returncode, is_forked(process)) == (0, False)


def test_preloaded_process_is_no_descendant_of_the_caller(root: Path) -> None:
    assert run(root, "validate").code == 3
    below = psutil.Process().children(recursive=True)
    assert not [process for process in below if "tests.support.preloaded" in process.cmdline()]
