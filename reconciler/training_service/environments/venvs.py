"""Python environments in three layers: base, packages, and run.

The base environment holds the framework. The package layer holds a job's packages with their requirements,
cached by content: jobs, trials and retries with the same packages install nothing. Both are shared and never
change. The run's own environment is on top. It has copies of the job's packages, because a trainer may write
next to its modules, and receives the packages that a trainer installs while it runs.
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
from reconciler.training_service.environments.shared_caches import CachedFolder
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
    """A file named like a Python 3; it may be a shim that runs no Python."""

    path: Path
    minor: Minor


@dataclass(frozen=True, slots=True)
class Python:
    """A Python that runs here and can make virtual environments with pip."""

    path: Path
    minor: Minor
    version: str


def candidates(environ: Mapping[str, str]) -> tuple[Candidate, ...]:
    """Find Pythons on this machine by file name: the service's own, pyenv's and uv's, and those on PATH."""
    found: dict[Path, Candidate] = {}
    for candidate in (_own(), *_managed(environ), *_on_path(environ)):
        found.setdefault(candidate.path.resolve(), candidate)
    return tuple(found.values())


def by_distance(
    held: Iterable[Candidate], wanted: Minor, oldest: Minor, newest: Minor
) -> tuple[Candidate, ...]:
    """Return the candidates from `oldest` to `newest`, the nearest to `wanted` first; on a tie, the newer."""
    fitting = (candidate for candidate in held if oldest <= candidate.minor <= newest)
    return tuple(sorted(fitting, key=lambda c: (abs(c.minor[1] - wanted[1]), -c.minor[1])))


def working_pythons(held: Iterable[Candidate]) -> Iterator[Python]:
    """Probe the candidates in order; yield the first working Python of each minor version."""
    found = set()
    for candidate in held:
        python = probe(candidate.path) if candidate.minor not in found else None
        if python is not None and python.minor == candidate.minor:
            found.add(python.minor)
            yield python


@cache
def probe(path: Path) -> Python | None:
    """Run this Python once; return None if it doesn't run or can't make virtual environments.

    Raises:
        OSError: The machine can't start another process, so the result is unknown and must not be cached.
    """
    command = [str(path), "-I", "-c", _PROBE]
    try:
        done = subprocess.run(command, capture_output=True, timeout=_PROBE_LIMIT, stdin=subprocess.DEVNULL)
        if done.returncode == -signal.SIGKILL:  # the kernel kills processes this way when memory runs out
            raise OSError(errno.ENOMEM, "killed, for memory perhaps", str(path))
        minor, version = json.loads(done.stdout)
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise
        return None
    except (subprocess.TimeoutExpired, ValueError):
        return None
    return Python(path, (3, int(minor)), str(version))


def _own() -> Candidate:
    # The base interpreter: the service's virtual environment may be deleted before environments made from it.
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
# Building these needs compilers and many minutes: a version without a wheel counts as unavailable.
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
_LONGEST_FIRST_LINE = 126  # Linux cuts a script's "#!" line off after 127 bytes
_LAYER = "-"  # separates the base's key from the layer's own in a layer's name


class InstallError(Exception):
    """An installation failed; the message names the package and ends with pip's output."""


class NoDistributionError(InstallError):
    """Pip found no distribution of a requirement for this Python."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Exit code of a command and all its output."""

    code: int
    output: str


class Shell(Protocol):
    """Runner of installers; each method may raise an exception that ends the run."""

    def run(self, argv: Sequence[str], *, keep: Sequence[int] = ()) -> Outcome:
        """Run a command to its end; it inherits the descriptors in `keep`."""

    def pause(self) -> None:
        """Wait for a moment."""

    def say(self, severity: str, text: str) -> None:
        """Write into the run's log."""


@dataclass(frozen=True, slots=True)
class Base:
    """A base environment.

    Attributes:
        python: The Python that it was made with.
        made: A unique id that differs from that of a later environment of the same name.
        lock: A descriptor; the environment isn't removed while it is open.
    """

    path: Path
    python: Python
    made: str = ""
    lock: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class Layer:
    """A job's packages and their requirements on a base environment; `lock` as in `Base`."""

    path: Path
    base: Base
    lock: int = field(default=-1, compare=False)


def base_environment(
    folder: Path, python: Python, requirements: Sequence[str], constraints: Sequence[str], shell: Shell
) -> Base:
    """Return the base environment with these requirements, and build it if it is missing.

    Args:
        folder: The folder of all shared environments.
        constraints: Versions of the packages that the requirements depend on.

    Raises:
        NoDistributionError: This Python has no wheels of a requirement.
        InstallError: pip failed for another reason.
    """
    required, limits = sorted({*_BUILD_TOOLS, *requirements}), sorted(constraints)
    path = folder / _key(python, required, limits)

    def build(lock: int) -> None:
        _build(Base(path, python), required, limits, shell, lock)

    found = _get_or_build(path, build, shell, _MOST_BASES, lambda name: _LAYER not in name)
    return Base(path, python, found.made, found.lock)


def package_layer(folder: Path, base: Base, packages: Sequence[Path], shell: Shell) -> Layer:
    """Return the layer of these packages on a base environment; if missing, install them in order.

    Args:
        folder: The folder of all shared environments.
        packages: The archives, each in a folder of its own.

    Raises:
        InstallError: A package can't be installed.
    """
    path = folder / f"{base.path.name}{_LAYER}{_key_of_packages(base, packages)}"

    def build(lock: int) -> None:
        python = job_environment(path, base, shell, (lock,))
        for archive in packages:
            install_package(python, archive, archive.parent / _BUILT, shell, (lock,))
        names = [archives.distribution_of(_wheel_of(archive)) for archive in packages]
        (path / _PACKAGES).write_text(json.dumps(names), "utf-8")

    found = _get_or_build(path, build, shell, _MOST_LAYERS, lambda name: _LAYER in name)
    return Layer(path, base, found.lock)


def run_environment(path: Path, layer: Layer) -> Path:
    """Make a run's own environment, for the trainer to change freely; return its Python."""
    base = layer.base
    site = _site_packages(path, base.python)
    # The layer's `venv` files are copied, because running `venv` again would cost a process for each run.
    site.mkdir(parents=True)
    (path / "bin").mkdir()
    for name in ("pyvenv.cfg", "lib64"):
        if (layer.path / name).exists():
            shutil.copy2(layer.path / name, path / name, follow_symlinks=False)
    for python in (layer.path / "bin").glob("python*"):
        shutil.copy2(python, path / "bin" / python.name, follow_symlinks=False)
    (site / "reconciler-layer.pth").write_text(_pth_line(_site_packages(layer.path, base.python)), "utf-8")
    names = json.loads((layer.path / _PACKAGES).read_text("utf-8"))
    for file in _files_of(names, _site_packages(layer.path, base.python)):
        copy = path / file.relative_to(layer.path)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(file, copy)  # with its time, or Python ignores the compiled .pyc file
    # The programs of both environments below run their own Python, which doesn't see this environment.
    for below in (base.path, layer.path):
        for program in sorted((below / "bin").iterdir()):
            _copy_program(program, below, path)
    return path / "bin" / "python"


def job_environment(path: Path, base: Base, shell: Shell, keep: Sequence[int] = ()) -> Path:
    """Make an environment with the base environment's packages after its own; return its Python.

    Args:
        keep: Descriptors that every started process inherits.

    Raises:
        InstallError: `venv` failed.
    """
    _make_venv(["--without-pip", str(path)], base.python, shell, keep)
    pth = _site_packages(path, base.python) / "reconciler-base.pth"
    pth.write_text(_pth_line(_site_packages(base.path, base.python)), "utf-8")
    return path / "bin" / "python"


def install_package(
    python: Path, archive: Path, builds: Path, shell: Shell, keep: Sequence[int] = ()
) -> None:
    """Install a trainer's package as the cloud does: first it alone, by force, and then its requirements.

    Each step is tried twice. A source distribution is built once, for both steps.

    Args:
        python: The environment's Python.
        builds: The folder for the built wheel.
        keep: Descriptors that every started process inherits.

    Raises:
        InstallError: Building or installing failed twice.
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


def _get_or_build(
    path: Path, build: Callable[[int], None], shell: Shell, most: int, belongs: Callable[[str], bool]
) -> CachedFolder:
    built = False

    def build_noted(lock: int) -> None:
        nonlocal built
        built = True
        build(lock)

    found = shared_caches.get_or_build(path, build_noted, shell.pause)
    # Only a new environment can exceed the limit.
    if built:
        shared_caches.remove_unused(path.parent, most, belongs)
    return found


def _make_venv(arguments: Sequence[str], python: Python, shell: Shell, keep: Sequence[int]) -> None:
    made = shell.run([str(python.path), "-I", "-m", "venv", *arguments], keep=keep)
    if made.code != 0:
        raise InstallError(f"No Python environment could be made with {python.path}: {_tail(made.output)}")


def _build(
    base: Base, requirements: Sequence[str], constraints: Sequence[str], shell: Shell, lock: int
) -> None:
    _make_venv([str(base.path)], base.python, shell, (lock,))
    shell.say(INFO, f"Installing {', '.join(requirements)} for Python {base.python.version}")
    limits = base.path / "constraints.txt"
    limits.write_text("".join(f"{line}\n" for line in constraints))
    python = base.path / "bin" / "python"
    options = ["--prefer-binary", "--only-binary", _NEVER_BUILT, "--constraint", str(limits)]
    done = shell.run(_pip(python, "install", *options, *requirements), keep=(lock,))
    if done.code != 0:
        error = NoDistributionError if any(text in done.output for text in _NOT_FOUND) else InstallError
        raise error(f"{', '.join(requirements)} could not be installed: {_tail(done.output)}")


def _pth_line(site_packages: Path) -> str:
    # A plain path would be enough for its modules, but Python would ignore its own .pth files.
    return f"import site; site.addsitedir({str(site_packages)!r})\n"


def _files_of(names: Sequence[str], site_packages: Path) -> Iterator[Path]:
    """Yield the installed files of these distributions, without the programs in `bin`."""
    environment = site_packages.parents[2]
    for distribution in metadata.distributions(path=[str(site_packages)]):
        if normalised(distribution.metadata["Name"] or "") in names:
            for file in distribution.files or ():
                path = Path(os.path.normpath(site_packages / file))
                inside = path.is_relative_to(environment) and path.parent != environment / "bin"
                if inside and path.is_file():
                    yield path


def _copy_program(program: Path, environment: Path, path: Path) -> None:
    """Copy a program of an environment to the one in `path`, to run the latter's Python."""
    own, new = (str(folder / "bin" / "python").encode() for folder in (environment, path))
    with suppress(OSError), program.open("rb") as file:
        head = file.read(_HEAD)
        if not head.startswith(b"#!") or own not in head:
            return
        text = (head + file.read()).replace(own, new, 1)
        first, _, rest = text.partition(b"\n")
        if len(first) > _LONGEST_FIRST_LINE:
            # A shell starts the Python instead: pip writes the same lines, which are valid in both languages.
            text = b"#!/bin/sh\n'''exec' \"" + first[2:] + b'" "$0" "$@"\n\' \'\'\'\n' + rest
        (path / "bin" / program.name).write_bytes(text)
        shutil.copymode(program, path / "bin" / program.name)


def _wheel_of(archive: Path, builds: Path | None = None) -> Path:
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
    """Return the end of pip's output, from its first error on if it reports one."""
    lines = [line for line in output.splitlines() if line.strip()]
    errors = next((number for number, line in enumerate(lines) if line.startswith("ERROR:")), 0)
    return "\n".join(lines[errors:])[-_TAIL:]
