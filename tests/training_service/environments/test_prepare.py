from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import tarfile
from pathlib import Path

import pytest

from reconciler.training_service.environments.prepare import (
    NoPythonError,
    by_distance,
    choose_or_install,
    pythons,
)
from reconciler.training_service.environments.venvs import Python
from reconciler.training_service.jobs.archives import Needs
from reconciler.training_service.state.run_folder import RunError
from reconciler.training_service.state.run_spec import PythonTask
from tests.support.training_service.shell import Shell

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
    """Write a Python that reports another version."""
    own = f"{sys.version_info[0]}[.]{sys.version_info[1]}"
    running = f'"{sys._base_executable}" "$@"'  # type: ignore[attr-defined]
    return program(path, f"{running} | sed 's/{own}[.][0-9]*/3.{minor}.1/g; s/{own}/3.{minor}/g'")


def found(tmp_path: Path, **environ: str) -> dict[tuple[int, int], Path]:
    given = {"HOME": str(tmp_path), "UV_CACHE_DIR": str(tmp_path / "cache"), "UV_NO_CONFIG": "1", **environ}
    return {python.minor: python.path for python in pythons(given)}


@pytest.mark.slow
def test_the_service_s_own_python_is_found_and_preferred(tmp_path: Path) -> None:
    other = posing(tmp_path / "bin" / f"python3.{OWN[1]}", OWN[1])
    path = os.pathsep.join([str(other.parent), os.defpath])
    assert found(tmp_path, PATH=path)[OWN].resolve() == Path(sys.executable).resolve()


@pytest.mark.slow
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
    assert next(iter(listed)) == OWN
    assert (3, 7) not in listed


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    ["echo 'pyenv: python3.9: command not found' >&2; exit 127", "echo", "echo '[9]'", "kill -9 $$"],
)
def test_program_that_is_no_python_is_skipped(body: str, tmp_path: Path) -> None:
    program(tmp_path / "bin" / "python3.9", body)
    assert [*found(tmp_path, PATH=os.pathsep.join([str(tmp_path / "bin"), "/none"]))] == [OWN]


# A missing Python

MISSING = 97
WANTS_IT = PythonTask("example.test/x:1", {"python": f"3.{MISSING}", "requirements": []}, "", (), "task", ())


@pytest.fixture
def offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a download list for uv with a Python from a file, on a machine that lacks this Python."""
    (tmp_path / "temp").mkdir()
    posing(tmp_path / "python" / "bin" / f"python3.{MISSING}", MISSING)
    library = tmp_path / "python" / "lib" / f"python3.{MISSING}"
    library.mkdir(parents=True)
    system = "" if sys.platform == "darwin" else f"{platform.machine()}-linux-gnu"
    (library / f"_sysconfigdata__{sys.platform}_{system}.py").write_text(
        "# system configuration generated and used by the sysconfig module\nbuild_time_vars = {}\n"
    )
    archive = tmp_path / "python.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "python", "python")
    is_mac = sys.platform == "darwin"
    entry = {
        "name": "cpython",
        "arch": {
            "family": "aarch64" if platform.machine() == "arm64" else platform.machine(),
            "variant": None,
        },
        "os": "darwin" if is_mac else "linux",
        "libc": "none" if is_mac else "gnu",
        "major": 3,
        "minor": MISSING,
        "patch": 1,
        "prerelease": "",
        "build": "20260101",
        "variant": None,
        "url": archive.as_uri(),
        "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
    }
    listed = tmp_path / "listed.json"
    listed.write_text(json.dumps({f"cpython-3.{MISSING}.1": entry}))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "pythons"))
    monkeypatch.setenv("UV_PYTHON_DOWNLOADS_JSON_URL", str(listed))
    return archive


@pytest.mark.slow
def test_missing_python_is_installed_where_the_user_allows_it(
    offered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECONCILER_INSTALL_PYTHON", "1")
    shell = Shell(tmp_path / "temp")
    choice = choose_or_install(WANTS_IT, Needs(), shell)
    assert [python.minor for python in choice.fitting] == [(3, MISSING)]
    assert choice.fitting[0].path.is_relative_to(tmp_path / "pythons")
    assert len(shell.ran) == 1
    assert choose_or_install(WANTS_IT, Needs(), shell) == choice
    assert len(shell.ran) == 1


@pytest.mark.slow
def test_missing_python_is_only_named_without_leave(offered: Path, tmp_path: Path) -> None:
    shell = Shell(tmp_path / "temp")
    with pytest.raises(NoPythonError, match="RECONCILER_INSTALL_PYTHON=1"):
        choose_or_install(WANTS_IT, Needs(), shell)
    assert shell.ran == []


@pytest.mark.slow
def test_python_that_uv_can_not_fetch_ends_the_run_with_its_reason(
    offered: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RECONCILER_INSTALL_PYTHON", "1")
    offered.unlink()
    with pytest.raises(RunError, match="uv could not install it: ") as raised:
        choose_or_install(WANTS_IT, Needs(), Shell(tmp_path / "temp"))
    assert f"is to run on Python 3.{MISSING}; this machine has Python" in raised.value.message
    assert str(offered) in raised.value.message
