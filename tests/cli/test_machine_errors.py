"""Errors of this machine while files are read: the command fails, and reports no file as invalid."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reconciler.cli import run

MANIFEST = """
    apiVersion: aiplatform.googleapis.com/v1
    kind: CustomJob
    metadata: {name: census}
    package: {path: ../trainer}
    spec:
      workerPoolSpecs:
        - machineSpec: {machineType: n1-standard-4}
          replicaCount: 1
          pythonPackageSpec: {executorImageUri: "example.test/plain:1", pythonModule: task}
"""
OF_MACHINE = [
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EIO,
    errno.ESTALE,
    errno.ENOSPC,
    errno.ETIMEDOUT,
]
OF_FILE = [errno.EACCES, errno.EPERM, errno.ELOOP, errno.ENOENT]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "repository"
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    settings = f'images:\n  example.test/plain:1: {{python: "{version}", requirements: []}}\n'
    for path, text in {
        "reconciler.yaml": settings,
        "jobs/census.yaml": textwrap.dedent(MANIFEST),
        "trainer/task.py": "",
        "trainer/deep/more.py": "",
        "trainer/.gitignore": "*.log\n",
    }.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    monkeypatch.chdir(root)
    return root


def fails_at(monkeypatch: pytest.MonkeyPatch, name: str, error: Exception) -> None:
    """Raise `error` on each opening or listing of an entry with this name."""

    def failing(real: Callable[..., Any]) -> Callable[..., Any]:
        def called(path: Any = ".", *more: Any, **named: Any) -> Any:
            if not isinstance(path, int) and os.path.basename(os.fspath(path)) == name:  # noqa: PTH119
                raise error
            return real(path, *more, **named)

        return called

    for function in ("open", "scandir"):
        monkeypatch.setattr(os, function, failing(getattr(os, function)))


NAMES = ["jobs", "census.yaml", "task.py", "deep", ".gitignore", "reconciler.yaml"]


@pytest.mark.parametrize("command", ["validate", "plan"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("number", OF_MACHINE, ids=errno.errorcode.get)
def test_an_error_of_the_machine_is_no_mistake_of_a_file(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: str,
    name: str,
    number: int,
) -> None:
    fails_at(monkeypatch, name, OSError(number, os.strerror(number)))
    assert run([command]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert f"can't be read: {os.strerror(number)}" in err
    assert ("trainer" if name == ".gitignore" else name) in err
    assert "permissions" not in err
    assert len(err.splitlines()) <= 2


@pytest.mark.parametrize("name", NAMES[:-1])
@pytest.mark.parametrize("number", OF_FILE, ids=errno.errorcode.get)
def test_an_error_of_the_file_stays_its_mistake(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, number: int
) -> None:
    fails_at(monkeypatch, name, OSError(number, os.strerror(number)))
    assert run(["validate"]) == 3
    out, err = capsys.readouterr()
    assert os.strerror(number) in out + err


@pytest.mark.parametrize("name", NAMES)
def test_a_machine_without_memory_is_told_in_a_line(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    fails_at(monkeypatch, name, MemoryError())
    assert run(["validate"]) == 1
    assert capsys.readouterr().err.startswith("reconciler: this machine has no memory left")


@pytest.mark.slow
@pytest.mark.parametrize("command", ["validate", "plan", "render"])
def test_however_few_files_may_be_open_none_is_called_wrong(root: Path, command: str) -> None:
    """Check with limits from too few open files for Python's start to enough for all."""
    arguments = [command, "census"] if command == "render" else [command]
    assert run(arguments) == 0
    codes = set()
    for files in range(4, 26):
        done = subprocess.run(
            [sys.executable, "-m", "reconciler", *arguments],
            cwd=root,
            capture_output=True,
            text=True,
            preexec_fn=lambda files=files: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
        )
        codes.add(done.returncode)
        assert done.returncode in (0, 1), (files, done.stdout, done.stderr)
        if done.stderr.startswith("reconciler: "):
            assert "Too many open files" in done.stderr or "descriptor" in done.stderr, (files, done.stderr)
    assert codes == {0, 1}
