"""Unmarked processes of a killed run: found by their session, while other processes are kept."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from reconciler.training_service.processes import process_tree
from reconciler.training_service.runner.launcher import Runners
from tests.support.training_service.runs import Starter, lives
from tests.support.waiting import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="sessions are noted on Linux alone"),
]

WAITS = "print(flush=True); input()"
# A program that leaves its session's number to a child, and ends.
LEAVES = "import os\nif os.fork() == 0:\n    os.setpgid(0, 0); print(os.getpid(), flush=True); input()"


@pytest.fixture
def noted(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Yield a function that starts a Python program in a session recorded in `tmp_path`."""
    started: list[subprocess.Popen[str]] = []

    def start(source: str) -> subprocess.Popen[str]:
        child = subprocess.Popen(
            [sys.executable, "-c", source],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={},
            start_new_session=True,
            preexec_fn=partial(process_tree.record_session, tmp_path),
        )
        started.append(child)
        return child

    yield start
    for child in started:
        child.communicate("\n")


def line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def found(folder: Path) -> list[int]:
    return [process.pid for process in process_tree.session_members(folder, "1-1-a")]


def test_what_a_killed_run_leaves_without_a_mark_is_ended(trainer: Starter) -> None:
    """The process has an environment of its own, and none of the runner's descriptors."""
    run = trainer(
        """
        import os, pathlib, subprocess, sys
        child = subprocess.Popen([sys.executable, "-c", "while True: __import__('time').sleep(60)"],
                                 env={}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        part = pathlib.Path(os.environ["OUT"], "part")
        part.write_text(f"{os.getpid()} {child.pid}")
        part.rename(part.with_name("pids"))
        child.wait()
        """
    ).start()
    program, child = map(int, run.wrote("pids").split())
    assert run.runner is not None
    run.runner.kill()
    run.runner.wait()
    until(lambda: not lives(program))
    assert lives(child)
    assert process_tree.marked(run.folder.run_id) == []
    assert Runners(run.folder.service_home).kill_remains(run.folder)
    assert not lives(child)
    assert not run.folder.sessions.exists()


def test_a_session_holds_its_program_and_what_that_leaves(
    noted: Callable[[str], subprocess.Popen[str]], tmp_path: Path
) -> None:
    program, gone = noted(WAITS), noted(LEAVES)
    line(program)
    left = int(line(gone))
    until(lambda: not lives(gone.pid))
    assert sorted(found(tmp_path)) == sorted([program.pid, left])
    process_tree.forget_session(tmp_path, program.pid)
    assert found(tmp_path) == [left]


@pytest.mark.parametrize("earlier", [0, 1])
def test_whoever_has_the_number_anew_is_left_alone(
    noted: Callable[[str], subprocess.Popen[str]], tmp_path: Path, earlier: int
) -> None:
    """The session of a process that reuses the number began later than the run's session."""
    program = noted(WAITS)
    line(program)
    note = tmp_path / str(program.pid)
    start, _, system = note.read_text().partition(" ")
    note.write_text(f"{int(start) - earlier} {system}")
    assert found(tmp_path) == ([] if earlier else [program.pid])


@pytest.mark.parametrize("text", ["", "12", "{start} another system"])
def test_a_note_from_before_the_machine_s_start_or_half_a_note_counts_for_nothing(
    noted: Callable[[str], subprocess.Popen[str]], tmp_path: Path, text: str
) -> None:
    program = noted(WAITS)
    line(program)
    note = tmp_path / str(program.pid)
    note.write_text(text.format(start=note.read_text().partition(" ")[0]))
    assert found(tmp_path) == []


def test_another_run_s_program_is_left_alone(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", WAITS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={process_tree.MARK: "2-1-b"},
        start_new_session=True,
        preexec_fn=partial(process_tree.record_session, tmp_path),
    ) as program:
        line(program)
        assert found(tmp_path) == []
        assert [process.pid for process in process_tree.session_members(tmp_path, "2-1-b")] == [program.pid]
        program.communicate("\n")
