"""Python environments: base ones, kept by content and shared between jobs, and each job's own on top of one.

A base environment holds the framework. It is built once, under a lock that the installer inherits, and counts
only when its marker is there: an installer that is killed leaves nothing that is trusted. A job's own
environment sees the base one's packages after its own, and what the trainer's packages bring goes into it, so
the base one never changes.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from reconciler.localservice import archives
from reconciler.localservice.pythons import Python
from reconciler.localservice.run_folder import locked, remove
from reconciler.localservice.run_log import INFO

_COMPLETE = "complete"
_BUILD_TOOLS = ("setuptools", "wheel")
# Building these takes compilers and many minutes: no wheel means no such version for this Python.
_NEVER_BUILT = (
    "numpy,pandas,pyarrow,scikit-learn,scipy,tables,tensorflow,torch,torchaudio,torchvision,xgboost"
)
_NOT_FOUND = ("No matching distribution found", "ResolutionImpossible")
_TAIL = 2000


class InstallError(Exception):
    """Something couldn't be installed; the message names it and ends with what pip said."""


class NoDistributionError(InstallError):
    """There is no distribution of what is required for this Python, as far as pip can see."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a command: its exit code, and all that it printed."""

    code: int
    output: str


class Shell(Protocol):
    """Runs installers; each method may end in an exception where the run is to end."""

    def run(self, argv: Sequence[str], *, keep: Sequence[int] = ()) -> Outcome:
        """Run a command to its end; `keep` are descriptors that it inherits."""

    def pause(self) -> None:
        """Wait for a moment."""

    def say(self, severity: str, text: str) -> None:
        """Write into the run's log."""


@dataclass(frozen=True, slots=True)
class Base:
    """A base environment.

    Attributes:
        path: Its folder.
        python: What it is made with.
    """

    path: Path
    python: Python


def base_environment(
    folder: Path, python: Python, requirements: Sequence[str], constraints: Sequence[str], shell: Shell
) -> Base:
    """The base environment with these requirements, built where it isn't there.

    Args:
        folder: Where base environments are kept.
        constraints: Versions that hold for what the requirements bring with them.

    Raises:
        NoDistributionError: This Python has no wheels of something.
        InstallError: pip failed otherwise.
    """
    wanted = sorted({*_BUILD_TOOLS, *requirements})
    base = Base(folder / _key(python, wanted, sorted(constraints)), python)
    folder.mkdir(parents=True, exist_ok=True)
    while not _complete(base.path):
        try:
            with locked(base.path.with_suffix(".lock")) as lock:
                if not _complete(base.path):
                    _build(base, wanted, sorted(constraints), shell, lock)
        except BlockingIOError:
            shell.pause()  # another run builds it
    return base


def job_environment(path: Path, base: Base, shell: Shell) -> Path:
    """Make a job's own environment that sees the base one's packages; returns its Python.

    Raises:
        InstallError: It can't be made.
    """
    made = shell.run([str(base.python.path), "-I", "-m", "venv", "--without-pip", str(path)])
    if made.code != 0:
        raise InstallError(
            f"No Python environment could be made with {base.python.path}: {_tail(made.output)}"
        )
    # As a site folder, not as a mere path: its own .pth files count too.
    line = f"import site; site.addsitedir({str(_site_packages(base.path, base.python))!r})\n"
    (_site_packages(path, base.python) / "reconciler-base.pth").write_text(line)
    return path / "bin" / "python"


def install_package(python: Path, archive: Path, builds: Path, shell: Shell) -> None:
    """Install a trainer's package as the cloud does: alone, over whatever is there; then what it requires.

    Both steps are tried twice. A source distribution is built once, for both.

    Args:
        python: The job environment's Python.
        builds: Where the built wheel goes.

    Raises:
        InstallError: Building or installing failed, the second time too.
    """
    wheel = archive if archive.suffix == ".whl" else _built(python, archive, builds, shell)
    _tried_twice(_pip(python, "install", "--force-reinstall", "--no-deps", str(wheel)), archive.name, shell)
    if archives.requires_others(wheel):
        _tried_twice(_pip(python, "install", str(wheel)), archive.name, shell)


def _built(python: Path, archive: Path, builds: Path, shell: Shell) -> Path:
    remove(builds)
    builds.mkdir(parents=True)
    isolation = ["--no-build-isolation"] if archives.builds_with_setuptools(archive) else []
    command = _pip(python, "wheel", "--no-deps", *isolation, "--wheel-dir", str(builds), str(archive))
    _tried_twice(command, archive.name, shell)
    return next(builds.glob("*.whl"))


def _tried_twice(command: Sequence[str], name: str, shell: Shell) -> None:
    done = shell.run(command)
    if done.code != 0:
        done = shell.run(command)
    if done.code != 0:
        raise InstallError(f"The package {name} could not be installed: {_tail(done.output)}")


def _build(
    base: Base, requirements: Sequence[str], constraints: Sequence[str], shell: Shell, lock: int
) -> None:
    remove(base.path)
    made = shell.run([str(base.python.path), "-I", "-m", "venv", str(base.path)], keep=(lock,))
    if made.code != 0:
        raise InstallError(
            f"No Python environment could be made with {base.python.path}: {_tail(made.output)}"
        )
    shell.say(INFO, f"Installing {', '.join(requirements)} for Python {base.python.version}")
    limits = base.path / "constraints.txt"
    limits.write_text("".join(f"{line}\n" for line in constraints))
    python = base.path / "bin" / "python"
    options = ["--prefer-binary", "--only-binary", _NEVER_BUILT, "--constraint", str(limits)]
    done = shell.run(_pip(python, "install", *options, *requirements), keep=(lock,))
    if done.code != 0:
        remove(base.path)
        error = NoDistributionError if any(text in done.output for text in _NOT_FOUND) else InstallError
        raise error(f"{', '.join(requirements)} could not be installed: {_tail(done.output)}")
    os.sync()  # the marker must not outlive what it stands for when the power fails
    (base.path / _COMPLETE).touch()


def _complete(base: Path) -> bool:
    return (base / _COMPLETE).exists()


def _key(python: Python, requirements: Sequence[str], constraints: Sequence[str]) -> str:
    content = [str(python.path.resolve()), python.version, list(requirements), list(constraints)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _pip(python: Path, command: str, *arguments: str) -> list[str]:
    return [str(python), "-m", "pip", "--quiet", "--no-input", command, *arguments]


def _site_packages(environment: Path, python: Python) -> Path:
    return environment / "lib" / f"python3.{python.minor[1]}" / "site-packages"


def _tail(output: str) -> str:
    return re.sub(r"\n{2,}", "\n", output.strip())[-_TAIL:]
