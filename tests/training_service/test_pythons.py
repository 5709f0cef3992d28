from __future__ import annotations

import resource
import sys
from pathlib import Path

import pytest

from reconciler.training_service.environments import venvs
from reconciler.training_service.environments.venvs import (
    Candidate,
    Python,
    by_distance,
    candidates,
    probe,
    working_pythons,
)
from reconciler.training_service.jobs.images import NEWEST, OLDEST

OWN = (3, sys.version_info[1])


def machine(*minors: int) -> list[Candidate]:
    return [Candidate(Path(f"/python3.{minor}"), (3, minor)) for minor in minors]


def order(held: list[Candidate], wanted: int, oldest: int = 0, newest: int = 99) -> list[int]:
    return [found.minor[1] for found in by_distance(held, (3, wanted), (3, oldest), (3, newest))]


def test_the_nearest_comes_first_and_the_newer_of_two_as_near() -> None:
    assert order(machine(7, 9, 11, 13), 10) == [11, 9, 13, 7]
    assert order(machine(7, 10, 13), 10) == [10, 13, 7]


def test_those_without_wheels_are_left_out() -> None:
    assert order(machine(7, 9, 11, 13), 10, oldest=8, newest=10) == [9]
    assert order(machine(11, 12), 7, newest=10) == []


def program(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def test_pythons_are_found_where_they_are_kept(tmp_path: Path) -> None:
    program(tmp_path / "pyenv/versions/3.8.1/bin/python3.8", "exit 1")
    program(tmp_path / "uv/cpython-3.12.1-linux/bin/python3.12", "exit 1")
    program(tmp_path / "bin/python3.9", "exit 1")
    program(tmp_path / "bin/python3.9-config", "exit 1")
    program(tmp_path / "bin/python3", "exit 1")
    (tmp_path / "bin/python3.10").write_text("not to be run")
    found = candidates(
        {
            "PATH": f"{tmp_path / 'bin'}:{tmp_path / 'nothing'}:",
            "PYENV_ROOT": str(tmp_path / "pyenv"),
            "UV_PYTHON_INSTALL_DIR": str(tmp_path / "uv"),
        }
    )
    assert [candidate.minor for candidate in found] == [OWN, (3, 8), (3, 12), (3, 9)]


def test_pyenv_and_uv_are_looked_for_in_the_home_folder(tmp_path: Path) -> None:
    program(tmp_path / ".pyenv/versions/3.8.1/bin/python3.8", "exit 1")
    program(tmp_path / ".local/share/uv/python/cpython-3.12.1-linux/bin/python3.12", "exit 1")
    assert [found.minor for found in candidates({"HOME": str(tmp_path)})] == [OWN, (3, 8), (3, 12)]


def test_the_service_s_own_python_runs() -> None:
    own = candidates({"HOME": "/nowhere"})[0]
    found = probe(own.path)
    assert found is not None
    assert (found.minor, found.version) == (OWN, ".".join(map(str, sys.version_info[:3])))
    assert found.path.resolve() == Path(sys.executable).resolve()


@pytest.mark.parametrize(
    "body",
    [
        "echo 'pyenv: python3.9: command not found' >&2; exit 127",
        "echo",
        "echo '[9]'",
        "echo nonsense",
        # A Python whose ensurepip is in a package of its own, as on Debian.
        f"exec {sys.executable} -c 'import no_such_module'",
    ],
)
def test_what_is_no_python_with_pip_is_skipped(body: str, tmp_path: Path) -> None:
    assert probe(program(tmp_path / "python3.9", body)) is None


@pytest.mark.parametrize("cause", ["no descriptors", "killed"])
def test_a_machine_without_room_is_not_a_python_s_fault(cause: str, tmp_path: Path) -> None:
    killed = program(tmp_path / "python3.9", "kill -9 $$" if cause == "killed" else "echo '[9, \"3.9.18\"]'")
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    if cause != "killed":
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError, match=r"Too many open files|killed, for memory"):
            [*working_pythons([Candidate(killed, (3, 9))])]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    if cause != "killed":
        assert probe(killed), "it is asked again"


def test_a_program_that_hangs_is_no_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venvs, "_PROBE_LIMIT", 0.2)
    assert probe(program(tmp_path / "python3.9", "exec sleep 60")) is None


def test_of_several_with_one_version_the_first_that_runs_is_taken(tmp_path: Path) -> None:
    shim = program(tmp_path / "shim/python3.9", "exit 127")
    real = program(tmp_path / "real/python3.9", "echo '[9, \"3.9.18\"]'")
    second = program(tmp_path / "second/python3.9", "echo '[9, \"3.9.19\"]'")
    liar = program(tmp_path / "liar/python3.8", "echo '[12, \"3.12.0\"]'")
    held = [Candidate(path, (3, 9)) for path in (shim, real, second)]
    assert [*working_pythons([*held, Candidate(liar, (3, 8))])] == [Python(real, (3, 9), "3.9.18")]


def test_a_python_is_run_once_only(tmp_path: Path) -> None:
    count = tmp_path / "count"
    path = program(tmp_path / "python3.9", f"echo x >> {count}; echo '[9, \"3.9.18\"]'")
    assert [*working_pythons([Candidate(path, (3, 9))])] == [*working_pythons([Candidate(path, (3, 9))])]
    assert count.read_text() == "x\n"


def test_nothing_is_run_to_find_candidates(tmp_path: Path) -> None:
    program(tmp_path / "python3.9", f"touch {tmp_path / 'was-run'}")
    assert by_distance(candidates({"PATH": str(tmp_path)}), (3, 9), OLDEST, NEWEST)
    assert not (tmp_path / "was-run").exists()
