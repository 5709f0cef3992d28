"""The Pythons of this machine: where they are, and the nearest to a wanted one."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from reconciler.localservice.frameworks import Minor

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
