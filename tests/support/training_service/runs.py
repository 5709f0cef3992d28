"""Runs of trainers with runners of their own, for tests."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from reconciler.training_service.jobs.launch import Host, launch, ports_wanted
from reconciler.training_service.jobs.machines import Machine
from reconciler.training_service.processes import process_tree
from reconciler.training_service.state.run_folder import RunFolder, run_folder, write_json
from reconciler.training_service.state.run_spec import PythonTask, RunSpec
from tests.support.training_service import trainers
from tests.support.waiting import PATIENCE, until

KEPT = {"run.json", "log.jsonl", "exit.json", "phase", "started", "lock", "runner.lock", "cancel"} | {
    "measurements.json"
}
MACHINE = Machine(cpus=2, memory=4 * 1024**3)

# In a user namespace without nested namespaces and without the right to mount.
UNABLE = """
import ctypes, os, sys
libc = ctypes.CDLL(None)
user, group = os.geteuid(), os.getegid()
if libc.unshare(0x10000000) == 0:
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    with open("/proc/sys/user/max_user_namespaces", "w") as file:
        file.write("0")
    libc.prctl(24, 21, 0, 0, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


@dataclass
class Run:
    """A run with its runner.

    Attributes:
        through: The prefix of a command that starts the command after it.
    """

    folder: RunFolder
    out: Path
    runner: subprocess.Popen[bytes] | None = None
    environ: dict[str, str] = field(default_factory=dict)
    through: tuple[str, ...] = ()

    def start(self) -> Run:
        self.runner = subprocess.Popen(
            [
                *self.through,
                sys.executable,
                "-P",
                "-m",
                "reconciler.training_service.runner.main",
                str(self.folder.path),
            ],
            start_new_session=True,
            env={**os.environ, **self.environ},
        )
        return self

    def end(self) -> tuple[str, int, str]:
        """Wait for the end; return state, code and message."""
        assert self.runner is not None
        assert self.runner.wait(PATIENCE) == 0
        ending = self.folder.ending()
        assert ending is not None
        return ending.state, ending.code, ending.message

    def log(self) -> list[tuple[str, str]]:
        """Return severity and text of each line."""
        lines = self.folder.log.read_text("utf-8").splitlines()
        return [(entry["s"], entry["m"]) for entry in map(json.loads, lines)]

    def printed(self) -> list[str]:
        """Return the trainer's standard output."""
        texts = [text for severity, text in self.log() if severity == "INFO"]
        after = texts[texts.index("Installing trainer-0.1-py3-none-any.whl") + 1 :]
        return [text for text in after if not re.match("Install(ing|ed in) ", text)]

    def wrote(self, name: str) -> str:
        """Wait for this file of the trainer; return its content."""
        until(lambda: (self.out / name).exists() and (self.out / name).read_text())
        return (self.out / name).read_text()


Starter = Callable[..., Run]


@contextmanager
def starter(folder: Path, environments: Path) -> Iterator[Starter]:
    """Yield a function that makes runs of trainers with a given source; `spec` sets fields of the run's spec.

    Args:
        folder: An empty folder.
        environments: The folder of the Python environments of all tests.

    With `plain` no package is installed: installation takes most of a short run's time.
    """
    home, out = folder / "home", folder / "out"
    out.mkdir()
    home.mkdir(exist_ok=True)
    (home / "environments").symlink_to(environments)
    runs: list[Run] = []

    def make(
        source: str, *, requires: tuple[str, ...] = (), job: Any = None, plain: bool = False, **spec: Any
    ) -> Run:
        trainers.wheel(home / "gcs" / "code" / Path(trainers.URI).name, source, requires)
        job = job or trainers.custom_job(env={"OUT": str(out)})
        ports = tuple(range(4711, 4711 + ports_wanted(job)))
        launched = launch(job, Host("http://127.0.0.1:9/jobs/x", home / "gcs", MACHINE, ports))
        assert isinstance(launched, RunSpec), launched
        if plain:
            launched = _plain(launched, source, folder / f"plain-{len(runs)}")
        run = Run(run_folder(home, f"1-{len(runs) + 1}-{secrets.token_hex(4)}"), out)
        run.folder.path.mkdir(parents=True)
        write_json(run.folder.spec, replace(launched, **{"grace": 5.0, **spec}).to_json())
        runs.append(run)
        return run

    yield make
    for run in runs:
        if run.runner is not None:
            run.runner.kill()
            run.runner.wait()
        process_tree.kill_all(lambda run_id=run.folder.run_id: process_tree.marked(run_id), 5.0)
        run.folder.clean()


def _plain(spec: RunSpec, source: str, folder: Path) -> RunSpec:
    """Return the run with the trainer's module in a folder on its path, without an installation."""
    (folder / "trainer").mkdir(parents=True)
    (folder / "trainer" / "task.py").write_text(textwrap.dedent(source))
    return replace(
        spec,
        replicas=tuple(
            replace(each, task=replace(each.task, packages=()), env={**each.env, "PYTHONPATH": str(folder)})
            for each in spec.replicas
            if isinstance(each.task, PythonTask)
        ),
    )


def nothing_is_left_of(run: Run) -> bool:
    kept = {path.name for path in run.folder.path.iterdir()}
    assert kept <= KEPT
    assert not [*Path(tempfile.gettempdir()).glob(f"reconciler-{run.folder.run_id}-*")]
    return run.folder.over() and process_tree.marked(run.folder.run_id) == []


def lives(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False
