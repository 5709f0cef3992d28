"""A user's repository: manifests, a trainer, git, and the command as users run it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reconciler.base.state_dir import location_of, prepare_home
from reconciler.model.manifest import TRAINING_PIPELINE
from tests.support import preloaded
from tests.support.waiting import PATIENCE

IMAGE = "example.test/plain:1"
TASK = "gs://google-cloud-aiplatform/schema/trainingjob/definition/custom_task_1.0.1.yaml"
"""A version that the service answers with another one for, as Google says that it does."""

# Writes a line to its output folder for each start, so that a test can count the starts.
TRAINER = """
import os, sys, time
from pathlib import Path

out = Path(os.environ["STARTS"])
with out.open("a") as starts:
    starts.write(f"start {sys.argv[1:]}\\n")
print("training with", *sys.argv[1:], flush=True)
if "--fail" in sys.argv:
    raise ValueError("the loss is NaN")
hold = Path(os.environ["HOLD"])
while hold.exists():
    time.sleep(0.02)
print("done", flush=True)
"""

MANIFEST = """
    # a job
    apiVersion: aiplatform.googleapis.com/v1
    kind: {kind}
    metadata:
      name: {name}
    package:
      path: ../trainer
    {reconcile}
    spec:
      workerPoolSpecs:
        - machineSpec: {{machineType: n1-standard-4}}
          replicaCount: 1
          pythonPackageSpec:
            executorImageUri: {image}
            pythonModule: task
            args: {args}
            env:
              - {{name: STARTS, value: "{starts}"}}
              - {{name: HOLD, value: "{hold}"}}
"""


def environ(**more: str) -> dict[str, str]:
    """Return the variables of a shell that finds the command."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, **more}


@dataclass(frozen=True)
class Result:
    """The result of a command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


class Repository:
    """A repository below a temporary folder; its embedded service is stopped at the end.

    Args:
        root: Its folder.
        environments: The folder of the environments that jobs share, so that each is built once for many
            repositories; None for the service's own folder.
    """

    _environments: Path | None = None
    has_jobs = False

    def __init__(self, root: Path, environments: Path | None = None) -> None:
        self.root = root
        self._environments = environments
        self.starts = root.parent / "starts.txt"
        self.hold = root.parent / "hold"
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        self.write("reconciler.yaml", f'images:\n  {IMAGE}: {{python: "{version}", requirements: []}}\n')
        self.write("trainer/task.py", TRAINER)

    @property
    def home(self) -> Path:
        """Return the folder of its service's state."""
        return location_of(self.root, os.environ)

    def write(self, path: str, text: str) -> Path:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def job(
        self,
        name: str = "census",
        *,
        args: list[str] | None = None,
        reconcile: str = "",
        kind: str = "CustomJob",
    ) -> Path:
        """Write a manifest of a job, or a pipeline, that runs the trainer."""
        head, mark, pools = textwrap.dedent(MANIFEST).partition("spec:\n")
        if kind == TRAINING_PIPELINE:
            pools = f"  trainingTaskDefinition: {TASK}\n  trainingTaskInputs:\n{textwrap.indent(pools, '  ')}"
        text = f"{head}{mark}{pools}".format(
            kind=kind,
            name=name,
            image=IMAGE,
            args=json.dumps(args or []),
            starts=self.starts,
            hold=self.hold,
            reconcile=f"reconcile: {reconcile}" if reconcile else "",
        )
        self.has_jobs = True
        return self.write(f"jobs/{name}.yaml", text)

    def git(self, *arguments: str) -> str:
        """Run git with no settings but its own; return its output."""
        environ = {
            **{name: value for name, value in os.environ.items() if not name.startswith("GIT_")},
            "GIT_CONFIG_GLOBAL": os.devnull,
            "GIT_CONFIG_SYSTEM": os.devnull,
            "GIT_AUTHOR_NAME": "a",
            "GIT_AUTHOR_EMAIL": "a@example.test",
            "GIT_COMMITTER_NAME": "a",
            "GIT_COMMITTER_EMAIL": "a@example.test",
        }
        done = subprocess.run(
            ["git", *arguments], cwd=self.root, env=environ, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def start(
        self, *arguments: str, program: str = "", stderr: int = subprocess.PIPE, **environ: str
    ) -> subprocess.Popen[str]:
        """Start `reconciler …` as a background process; `program` is a file to run instead of the command."""
        if arguments[:1] in (("apply",), ("serve",), ("watch",)):
            self._share_environments()
        variables = {**os.environ, **environ}
        if not program:
            return preloaded.start(*arguments, cwd=self.root, env=variables, stderr=stderr)
        return subprocess.Popen(
            [sys.executable, program, *arguments],
            cwd=self.root,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def _share_environments(self) -> None:
        link = self.home / "environments"
        if self._environments and self.has_jobs and not link.exists():
            prepare_home(self.home)
            link.symlink_to(self._environments)

    def run(self, *arguments: str, **environ: str) -> Result:
        """Run `reconciler …` to its end; a traceback fails the test, whatever the exit code."""
        process = self.start(*arguments, **environ)
        out, err = process.communicate(timeout=PATIENCE)
        assert not re.search("^Traceback", err + out, re.MULTILINE), err + out
        return Result(process.returncode, out, err)

    def service(self) -> dict[str, Any]:
        """Return the content of `service.json` of the running service."""
        told: dict[str, Any] = json.loads((self.home / "service.json").read_text())
        return told

    def states(self) -> dict[str, str | None]:
        """Return the state of each job by name."""
        return {
            job["jobName"]: job["state"]
            for job in self.run("status", "--all", "--format", "json").json["jobs"]
        }

    def stop(self) -> None:
        """Stop the service and release held trainers."""
        self.hold.unlink(missing_ok=True)
        if self.home.exists():
            self.run("serve", "--stop")


_SWITCHING = """#!{python}
import os, subprocess, sys

calls = int(open({count!r}).read()) if os.path.exists({count!r}) else 0
def switch_at(number):
    if number == {at}:
        environ = {{name: value for name, value in os.environ.items() if not name.startswith("GIT_")}}
        subprocess.run([{git!r}, "switch", "-q", {branch!r}], check=True, env=environ, cwd={root!r})
open({count!r}, "w").write(str(calls + 1))
if not calls:
    switch_at(0)
code = subprocess.run([{git!r}, *sys.argv[1:]]).returncode
switch_at(calls + 1)
sys.exit(code)
"""
"""A git that switches the branch before its first call, or after the call of a given number."""


def switching_git(repository: Repository, folder: Path, branch: str, at: int) -> str:
    """Return a PATH whose git switches to `branch` after its call number `at`, or before the first with 0."""
    git = folder / "bin" / "git"
    git.parent.mkdir()
    settings = {"git": shutil.which("git"), "count": str(folder / "count"), "branch": branch, "at": at}
    git.write_text(_SWITCHING.format(python=sys.executable, root=str(repository.root), **settings))
    git.chmod(0o755)
    return f"{git.parent}{os.pathsep}{os.environ['PATH']}"
