"""Python environments in three layers: a base one, the packages' on it, and the run's own on both.

A base environment holds the framework. On it lies what a job's packages bring: kept by their content, so that
jobs, trials and retries with the same packages install nothing. Both are shared and never change. The run's
own environment is on top: it has copies of the job's packages, because a trainer may write next to its
modules, and takes what a trainer installs while it runs.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Protocol

from reconciler.training_service.environments import shared_caches
from reconciler.training_service.environments.shared_caches import Kept
from reconciler.training_service.jobs import archives
from reconciler.training_service.jobs.archives import normalised
from reconciler.training_service.jobs.images import Minor
from reconciler.training_service.state.run_folder import remove
from reconciler.training_service.state.run_log import INFO

_PROBE_LIMIT = 10.0
_PROBE = (
    "import ensurepip, json, platform, sys, venv;"
    "assert sys.implementation.name == 'cpython' and sys.version_info[0] == 3;"
    "print(json.dumps([sys.version_info[1], platform.python_version()]))"
)
_NO_ROOM = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
_NAME = re.compile(r"python3\.(\d+)")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A file that is a Python 3 by its name: a shim without a Python behind it, perhaps."""

    path: Path
    minor: Minor


@dataclass(frozen=True, slots=True)
class Python:
    """A Python that runs here and can make virtual environments with pip."""

    path: Path
    minor: Minor
    version: str


def candidates(environ: Mapping[str, str]) -> tuple[Candidate, ...]:
    """The Pythons of this machine by their names: the service's own, pyenv's and uv's, those on the PATH."""
    found: dict[Path, Candidate] = {}
    for candidate in (_own(), *_managed(environ), *_on_path(environ)):
        found.setdefault(candidate.path.resolve(), candidate)
    return tuple(found.values())


def by_distance(
    held: Iterable[Candidate], wanted: Minor, oldest: Minor, newest: Minor
) -> tuple[Candidate, ...]:
    """The candidates from `oldest` to `newest`, nearest to the wanted first; of two as near, the newer."""
    fitting = (candidate for candidate in held if oldest <= candidate.minor <= newest)
    return tuple(sorted(fitting, key=lambda candidate: _distance(candidate.minor, wanted)))


def running(held: Iterable[Candidate]) -> Iterator[Python]:
    """Those of the candidates that really are what their names say, one for each minor version."""
    seen = set()
    for candidate in held:
        python = probe(candidate.path) if candidate.minor not in seen else None
        if python is not None and python.minor == candidate.minor:
            seen.add(python.minor)
            yield python


@cache
def probe(path: Path) -> Python | None:
    """The Python in this file; None where it doesn't run, or can't make environments.

    Raises:
        OSError: The machine has no room for another process: whether it would run isn't known.
    """
    command = [str(path), "-I", "-c", _PROBE]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_LIMIT, stdin=subprocess.DEVNULL)
        if done.returncode == -signal.SIGKILL:  # that is how the kernel makes room
            raise OSError(errno.ENOMEM, "killed, for memory perhaps", str(path))
        minor, version = json.loads(done.stdout)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        return None
    except (subprocess.TimeoutExpired, ValueError):
        return None
    return Python(path, (3, int(minor)), str(version))


def _distance(minor: Minor, wanted: Minor) -> tuple[int, int]:
    return abs(minor[1] - wanted[1]), -minor[1]


def _own() -> Candidate:
    # The base one: a virtual environment may be gone before what was made from it.
    path = getattr(sys, "_base_executable", None) or sys.executable
    return Candidate(Path(path), (3, sys.version_info[1]))


def _managed(environ: Mapping[str, str]) -> Iterator[Candidate]:
    home = Path(environ.get("HOME") or Path.home())
    pyenv = Path(environ.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local" / "share")
    uv = Path(environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    for folder in (pyenv, uv):
        for path in sorted(folder.glob("*/bin/python3.[0-9]*"), reverse=True):
            yield from _named(path)


def _on_path(environ: Mapping[str, str]) -> Iterator[Candidate]:
    for folder in filter(None, environ.get("PATH", "").split(os.pathsep)):
        for path in sorted(Path(folder).glob("python3.[0-9]*")):
            yield from _named(path)


def _named(path: Path) -> Iterator[Candidate]:
    match = _NAME.fullmatch(path.name)
    if match and os.access(path, os.X_OK):
        yield Candidate(path, (3, int(match[1])))


_BUILD_TOOLS = ("setuptools", "wheel")
# Building these takes compilers and many minutes: no wheel means no such version for this Python.
_NEVER_BUILT = (
    "numpy,pandas,pyarrow,scikit-learn,scipy,tables,tensorflow,torch,torchaudio,torchvision,xgboost"
)
_NOT_FOUND = ("No matching distribution found", "ResolutionImpossible")
_TAIL = 2000
_MOST_BASES = 10
_MOST_LAYERS = 50
_PACKAGES = "packages.json"
_BUILT = "built"
_HEAD = 1024
_LONGEST_FIRST_LINE = 126
_LAYER = "-"  # in a layer's name, between its base's and its own


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
        made: Tells it from one that is made later under the same name.
        lock: A descriptor; as long as it is open, the environment stays.
    """

    path: Path
    python: Python
    made: str = ""
    lock: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class Layer:
    """A job's packages with what they require, on a base environment; `lock` as there."""

    path: Path
    base: Base
    lock: int = field(default=-1, compare=False)


def base_environment(
    folder: Path, python: Python, requirements: Sequence[str], constraints: Sequence[str], shell: Shell
) -> Base:
    """The base environment with these requirements, built where it isn't there.

    Args:
        folder: Where environments are kept.
        constraints: Versions that hold for what the requirements bring with them.

    Raises:
        NoDistributionError: This Python has no wheels of something.
        InstallError: pip failed otherwise.
    """
    wanted, limits = sorted({*_BUILD_TOOLS, *requirements}), sorted(constraints)
    path = folder / _key(python, wanted, limits)

    def make(lock: int) -> None:
        _build(Base(path, python), wanted, limits, shell, lock)

    found = _kept(path, make, shell, _MOST_BASES, lambda name: _LAYER not in name)
    return Base(path, python, found.made, found.lock)


def package_layer(folder: Path, base: Base, packages: Sequence[Path], shell: Shell) -> Layer:
    """The packages on this base environment, installed where nobody has yet: one after the other, in order.

    Args:
        folder: Where environments are kept.
        packages: The archives, each in a folder of its own.

    Raises:
        InstallError: A package can't be installed.
    """
    path = folder / f"{base.path.name}{_LAYER}{_key_of_packages(base, packages)}"

    def make(lock: int) -> None:
        python = job_environment(path, base, shell, (lock,))
        for archive in packages:
            install_package(python, archive, archive.parent / _BUILT, shell, (lock,))
        names = [archives.distribution_of(_wheel_of(archive)) for archive in packages]
        (path / _PACKAGES).write_text(json.dumps(names), "utf-8")

    def is_layer(name: str) -> bool:
        return _LAYER in name

    return Layer(path, base, _kept(path, make, shell, _MOST_LAYERS, is_layer).lock)


def run_environment(path: Path, layer: Layer) -> Path:
    """Make a run's own environment, in which a trainer may change whatever it likes; returns its Python.

    It costs no process: what `venv` has made for the layer is made again by hand, and so are the programs
    of the two environments below, which would run their own Python and so not see what is in this one.
    """
    base = layer.base
    site = _site_packages(path, base.python)
    site.mkdir(parents=True)
    (path / "bin").mkdir()
    for name in ("pyvenv.cfg", "lib64"):
        if (layer.path / name).exists():
            shutil.copy2(layer.path / name, path / name, follow_symlinks=False)
    for python in (layer.path / "bin").glob("python*"):
        shutil.copy2(python, path / "bin" / python.name, follow_symlinks=False)
    (site / "reconciler-layer.pth").write_text(_seeing(_site_packages(layer.path, base.python)), "utf-8")
    names = json.loads((layer.path / _PACKAGES).read_text("utf-8"))
    for file in _files_of(names, _site_packages(layer.path, base.python)):
        copy = path / file.relative_to(layer.path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, copy)  # with its time: else what was compiled of it doesn't count
    for below in (base.path, layer.path):
        for program in sorted((below / "bin").iterdir()):
            _adopt(program, below, path)
    return path / "bin" / "python"


def job_environment(path: Path, base: Base, shell: Shell, keep: Sequence[int] = ()) -> Path:
    """Make an environment that sees the base one's packages after its own; returns its Python.

    Args:
        keep: Descriptors that whatever is started inherits.

    Raises:
        InstallError: It can't be made.
    """
    command = [str(base.python.path), "-I", "-m", "venv", "--without-pip", str(path)]
    made = shell.run(command, keep=keep)
    if made.code != 0:
        raise InstallError(
            f"No Python environment could be made with {base.python.path}: {_tail(made.output)}"
        )
    pth = _site_packages(path, base.python) / "reconciler-base.pth"
    pth.write_text(_seeing(_site_packages(base.path, base.python)), "utf-8")
    return path / "bin" / "python"


def install_package(
    python: Path, archive: Path, builds: Path, shell: Shell, keep: Sequence[int] = ()
) -> None:
    """Install a trainer's package as the cloud does: alone, over whatever is there; then what it requires.

    Both steps are tried twice. A source distribution is built once, for both.

    Args:
        python: The environment's Python.
        builds: Where the built wheel goes.
        keep: Descriptors that whatever is started inherits.

    Raises:
        InstallError: Building or installing failed, the second time too.
    """

    def pip(command: str, *arguments: str) -> None:
        line = _pip(python, command, *arguments)
        done = shell.run(line, keep=keep)
        if done.code != 0:
            done = shell.run(line, keep=keep)
        if done.code != 0:
            raise InstallError(f"The package {archive.name} could not be installed: {_tail(done.output)}")

    if archive.suffix != ".whl":
        remove(builds)
        builds.mkdir(parents=True)
        isolation = ["--no-build-isolation"] if archives.builds_with_setuptools(archive) else []
        pip("wheel", "--no-deps", *isolation, "--wheel-dir", str(builds), str(archive))
    wheel = _wheel_of(archive, builds)
    pip("install", "--force-reinstall", "--no-deps", str(wheel))
    if archives.requires_others(wheel):
        pip("install", str(wheel))


def _kept(
    path: Path, make: Callable[[int], None], shell: Shell, most: int, belongs: Callable[[str], bool]
) -> Kept:
    """The environment; where one had to be made, those that nobody needs any more go."""
    made = []

    def noted(lock: int) -> None:
        made.append(path)
        make(lock)

    found = shared_caches.kept(path, noted, shell.pause)
    if made:
        shared_caches.remove_unused(path.parent, most, belongs)
    return found


def _build(
    base: Base, requirements: Sequence[str], constraints: Sequence[str], shell: Shell, lock: int
) -> None:
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
        error = NoDistributionError if any(text in done.output for text in _NOT_FOUND) else InstallError
        raise error(f"{', '.join(requirements)} could not be installed: {_tail(done.output)}")


def _seeing(site_packages: Path) -> str:
    """A .pth file's line. As a site folder, not as a mere path: its own .pth files count too."""
    return f"import site; site.addsitedir({str(site_packages)!r})\n"


def _files_of(names: Sequence[str], site_packages: Path) -> Iterator[Path]:
    """The installed files of these distributions, without the programs in `bin`."""
    environment = site_packages.parents[2]
    for distribution in metadata.distributions(path=[str(site_packages)]):
        if normalised(distribution.metadata["Name"] or "") in names:
            for file in distribution.files or ():
                path = Path(os.path.normpath(site_packages / file))
                inside = path.is_relative_to(environment) and path.parent != environment / "bin"
                if inside and path.is_file():
                    yield path


def _adopt(program: Path, environment: Path, path: Path) -> None:
    """Make a program of an environment run the Python of the one in `path` instead."""
    own, new = (str(folder / "bin" / "python").encode() for folder in (environment, path))
    with suppress(OSError), program.open("rb") as file:
        head = file.read(_HEAD)
        if not head.startswith(b"#!") or own not in head:
            return
        text = (head + file.read()).replace(own, new, 1)
        first, _, rest = text.partition(b"\n")
        if (
            len(first) > _LONGEST_FIRST_LINE
        ):  # what the system cuts off: a shell finds the Python, as pip does
            text = b"#!/bin/sh\n'''exec' \"" + first[2:] + b'" "$0" "$@"\n\' \'\'\'\n' + rest
        (path / "bin" / program.name).write_bytes(text)
        shutil.copymode(program, path / "bin" / program.name)


def _wheel_of(archive: Path, builds: Path | None = None) -> Path:
    """The archive itself, or the wheel that was built of it."""
    return archive if archive.suffix == ".whl" else next((builds or archive.parent / _BUILT).glob("*.whl"))


def _key(python: Python, requirements: Sequence[str], constraints: Sequence[str]) -> str:
    content = [str(python.path.resolve()), python.version, list(requirements), list(constraints)]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _key_of_packages(base: Base, packages: Sequence[Path]) -> str:
    content = [base.made]
    for archive in packages:
        with archive.open("rb") as file:
            content += [archive.name, hashlib.file_digest(file, "sha256").hexdigest()]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:32]


def _pip(python: Path, command: str, *arguments: str) -> list[str]:
    return [str(python), "-m", "pip", "--quiet", "--no-input", command, *arguments]


def _site_packages(environment: Path, python: Python) -> Path:
    return environment / "lib" / f"python3.{python.minor[1]}" / "site-packages"


def _tail(output: str) -> str:
    """The end of what pip has said, from its first error on, where it names one."""
    lines = [line for line in output.splitlines() if line.strip()]
    errors = next((number for number, line in enumerate(lines) if line.startswith("ERROR:")), 0)
    return "\n".join(lines[errors:])[-_TAIL:]
