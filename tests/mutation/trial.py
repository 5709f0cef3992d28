"""Run of a module's tests in a process of its own, with or without a mutant."""

from __future__ import annotations

import ast
import os
import pickle
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from .loading import replace_module

ROOT = Path(__file__).resolve().parents[2]

_SECONDS = 120
"""Maximum seconds for the tests of a mutant, which detects a mutant that never ends."""
_CPU_SECONDS = 60
_MEMORY = 4 << 30

# The same examples in every try, no example database, and no time spent on shrinking.
settings.register_profile(
    "mutation",
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


@dataclass(slots=True)
class Baseline:
    """Results of the tests without a mutant.

    Attributes:
        failed: pytest's exit status.
        seconds: The duration by test.
        reached: By function of the module, the tests that call it.
        loaded: The names of the imported modules outside the project.
    """

    failed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    reached: dict[str, set[str]] = field(default_factory=dict)
    loaded: list[str] = field(default_factory=list)


class _Chosen:
    """Pytest plugin that selects tests and sets their order."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._order = {test: index for index, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        chosen = [item for item in items if item.nodeid in self._order]
        items[:] = sorted(chosen, key=lambda item: self._order[item.nodeid])


class _Recorder:
    """Pytest plugin that records each test's duration and the functions of a file that it calls."""

    def __init__(self, path: Path, into: Baseline) -> None:
        self._file, self._into = str(path), into

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        begun = time.perf_counter()
        codes: set[CodeType] = set()

        def profile(frame: FrameType, event: str, _: Any) -> None:
            if event == "call" and frame.f_code.co_filename == self._file:
                codes.add(frame.f_code)

        sys.setprofile(profile)
        try:
            return (yield)
        finally:
            sys.setprofile(None)
            self._into.seconds[item.nodeid] = time.perf_counter() - begun
            for code in codes:
                function = code.co_qualname.split(".<locals>")[0]
                self._into.reached.setdefault(function, set()).add(item.nodeid)


def baseline(name: str, path: Path, files: Sequence[str]) -> Baseline:
    """Return the results of the tests in `files` for the unchanged module `name`."""
    reading, writing = os.pipe()

    def work() -> int:
        found = Baseline()
        found.failed = _pytest(files, [_Recorder(path, found)])
        found.loaded = [name for name, module in sys.modules.items() if not _is_own(module)]
        with os.fdopen(writing, "wb") as out:
            pickle.dump(found, out)
        return 0

    child = fork(work)
    os.close(writing)
    with os.fdopen(reading, "rb") as answer:
        said = answer.read()
    os.waitpid(child, 0)
    if not said:
        raise SystemExit(f"the tests of {name} end without a result: {' '.join(files)}")
    found: Baseline = pickle.loads(said)
    return found


def _is_own(module: Any) -> bool:
    """Return True for a module of this project: each try imports those anew."""
    file = Path(getattr(module, "__file__", None) or "/")
    return file.is_relative_to(ROOT) and "site-packages" not in file.parts


def start(name: str, path: Path, tree: ast.Module, apply: Callable[[], None], tests: Sequence[str]) -> int:
    """Start the tests against a mutant; return the process's id. Exit status 0 means undetected."""

    def work() -> int:
        apply()
        replace_module(name, path, tree)
        status = _pytest(sorted({test.partition("::")[0] for test in tests}), [_Chosen(tests)])
        return 0 if status in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) else 1

    return fork(work)


def fork(work: Callable[[], int]) -> int:
    """Run `work` in a fork of this process, without output and with limits; return its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in range(3):
            os.dup2(quiet, stream)
        resource.setrlimit(resource.RLIMIT_CPU, (_CPU_SECONDS, _CPU_SECONDS))
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        signal.alarm(_SECONDS)
        status = work()
    finally:
        os._exit(status)


def _pytest(files: Sequence[str], plugins: list[Any]) -> int:
    settings.load_profile("mutation")
    options = ["-x", "-q", "-pno:cacheprovider", "-pno:xdist", "--assert=plain", "--import-mode=importlib"]
    return int(
        pytest.main(
            [*options, "--override-ini=addopts=", "--strict-markers", "--strict-config", *files],
            plugins=plugins,
        )
    )
