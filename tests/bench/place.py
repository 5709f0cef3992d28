"""Place of a benchmark: a repository of manifests and its service, isolated from the machine's settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from . import manifests

TESTS = Path(__file__).resolve().parent.parent
RECONCILER = (sys.executable, "-m", "reconciler")

Cost = Mapping[str, float]
"""Costs of a run: `wall`, `cpu` in seconds, `peak` in bytes; see `launch`."""

_LAUNCH = (sys.executable, "-I", "-S", str(TESTS / "bench" / "launch.py"))
_OF_THE_MACHINE = ("RECONCILER_", "GITHUB_", "CLOUDSDK_", "GOOGLE_", "XDG_", "TF_", "PYTHON")
_STARTS_WITHIN = 60.0


class BenchmarkError(Exception):
    """A program did other work than the work to be measured."""


class Place:
    """Folder with a repository of `count` manifests, and the programs' files beside it.

    Attributes:
        root: The repository's root.
        home: RECONCILER_HOME.
        environ: The environment of every program.
        files: The manifests, sorted.
    """

    def __init__(self, folder: Path, count: int) -> None:
        self.folder = folder
        self.root = folder / "repository"
        self.home = folder / "home"
        self._user = folder / "user"
        self.environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith(_OF_THE_MACHINE)},
            "HOME": str(self._user),
            "XDG_CACHE_HOME": str(self._user / "cache"),
            "RECONCILER_HOME": str(self.home),
            "PYTHONPATH": str(TESTS.parent),
            "CHECKPOINT_DISABLE": "1",  # terraform doesn't check for a newer version
        }
        self._user.mkdir(parents=True)
        self.files = manifests.write(self.root, count)

    def run(self, command: Sequence[str], codes: Sequence[int] = (0,), folder: Path | None = None) -> Cost:
        """Return a program's costs; raise BenchmarkError for an exit code outside `codes`."""
        output = self.folder / "output"
        told = subprocess.run(
            [*_LAUNCH, str(output), *command],
            cwd=folder or self.root,
            env=self.environ,
            check=True,
            capture_output=True,
            text=True,
        )
        cost: dict[str, Any] = json.loads(told.stdout)
        if cost["code"] not in codes:
            said = output.read_text(errors="replace")[-2000:]
            raise BenchmarkError(f"{' '.join(command[:6])} ended with {cost['code']}:\n{said}")
        return cost

    def module(self, name: str, *arguments: str) -> Any:
        """Return the JSON that a module of the benchmark prints, run as a process of its own."""
        told = subprocess.run(
            [sys.executable, "-m", f"tests.bench.{name}", *arguments],
            cwd=TESTS.parent,
            env=self.environ,
            stdout=subprocess.PIPE,
            text=True,
        )
        if told.returncode:
            raise BenchmarkError(f"the module {name} ended with {told.returncode}")
        return json.loads(told.stdout)

    @contextmanager
    def served(self) -> Iterator[None]:
        """Run the embedded service of the home during the block."""
        with (self.folder / "service.log").open("wb") as log:
            service = subprocess.Popen(
                [*RECONCILER, "serve"], cwd=self.root, env=self.environ, stdout=log, stderr=log
            )
        try:
            until = time.monotonic() + _STARTS_WITHIN
            while not (self.home / "service.json").exists():
                if service.poll() is not None or time.monotonic() > until:
                    raise BenchmarkError("the embedded service didn't start")
                time.sleep(0.02)
            yield
        finally:
            service.terminate()
            service.wait()
