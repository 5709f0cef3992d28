from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from reconciler.training_service.environments.prepare import by_distance, pythons
from reconciler.training_service.environments.venvs import Python

OWN = (3, sys.version_info[1])


def machine(*minors: int) -> list[Python]:
    return [Python(Path(f"/python3.{minor}"), (3, minor), f"3.{minor}.0") for minor in minors]


def order(held: list[Python], wanted: int, oldest: int = 0, newest: int = 99) -> list[int]:
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


def posing(path: Path, minor: int) -> Path:
    """A Python that gives itself out as another version."""
    own = f"{sys.version_info[0]}[.]{sys.version_info[1]}"
    running = f'"{sys._base_executable}" "$@"'  # type: ignore[attr-defined]
    return program(path, f"{running} | sed 's/{own}[.][0-9]*/3.{minor}.1/g; s/{own}/3.{minor}/g'")


def found(tmp_path: Path, **environ: str) -> dict[tuple[int, int], Path]:
    given = {"HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_NO_CONFIG": "1", **environ}
    return {python.minor: python.path for python in pythons(given)}


def test_the_service_s_own_python_is_found_and_preferred(tmp_path: Path) -> None:
    other = posing(tmp_path / "bin" / f"python3.{OWN[1]}", OWN[1])
    path = os.pathsep.join([str(other.parent), os.defpath])
    assert found(tmp_path, PATH=path)[OWN].resolve() == Path(sys.executable).resolve()


def test_pythons_are_found_where_they_are_kept(tmp_path: Path) -> None:
    uv = f"uv/cpython-3.12.1-{sys.platform}-x86_64-gnu/bin/python3.12"
    kept = {
        (3, 8): posing(tmp_path / "pyenv/versions/3.8.1/bin/python3.8", 8),
        (3, 9): posing(tmp_path / "path/python3.9", 9),
        (3, 12): posing(tmp_path / uv, 12),
    }
    posing(tmp_path / "pyenv/shims/python3.7", 7)
    listed = found(
        tmp_path,
        PATH=os.pathsep.join([str(tmp_path / "path"), str(tmp_path / "pyenv/shims"), os.defpath]),
        PYENV_ROOT=str(tmp_path / "pyenv"),
        UV_PYTHON_INSTALL_DIR=str(tmp_path / "uv"),
    )
    assert {minor: listed.get(minor) for minor in kept} == kept
    assert (3, 7) not in listed


@pytest.mark.parametrize(
    "body",
    ["echo 'pyenv: python3.9: command not found' >&2; exit 127", "echo", "echo '[9]'", "kill -9 $$"],
)
def test_program_that_is_no_python_is_skipped(body: str, tmp_path: Path) -> None:
    program(tmp_path / "bin" / "python3.9", body)
    assert [*found(tmp_path, PATH=os.pathsep.join([str(tmp_path / "bin"), "/none"]))] == [OWN]
