"""Commands that check a pull request run none of its code, open no socket and read no credentials.

Each command runs as its users run it, as a process, and records its actions: opened files, imports, executed
code, sockets and programs (Python's audit events). Git, started by it, records the programs that git itself
starts. The repository is full of traps: each executed part leaves a file behind.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.support.repository import Repository
from tests.support.waiting import PATIENCE

PROGRAM = Path(sys.executable).with_name("reconciler")

# Stands before any import of the command; os.write raises no event itself.
RECORDER = """
import json, os, sys

_told = os.open(os.environ["AUDIT_FILE"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
_events = ("open", "import", "exec", "subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty",
           "os.posix_spawn", "os.spawn", "socket.", "urllib.", "http.", "ftplib.", "smtplib.")

def _hook(event, arguments):
    if event.startswith(_events):
        said = [a.co_filename if hasattr(a, "co_filename") else repr(a) if not isinstance(a, str) else a
                for a in arguments]
        os.write(_told, (json.dumps([event, said]) + "\\n").encode())

sys.addaudithook(_hook)
"""

SETTINGS = """
source: acme
environments:
  prod: {engine: google, project: acme-ml, location: us-central1, stagingBucket: gs://acme-staging}
"""

# Each trap leaves the same file behind.
PYTHON_TRAP = """
import pathlib
pathlib.Path({trace!r}).touch()
"""
PYPROJECT_TRAP = """
[build-system]
requires = []
build-backend = "backend"
backend-path = ["."]
"""


@dataclass(frozen=True)
class Watched:
    """The output and the actions of a command.

    Attributes:
        events: Each with its arguments.
        by_git: The programs that git itself started.
    """

    code: int
    out: str
    err: str
    events: list[tuple[str, list[str]]]
    by_git: list[Any]

    def of(self, *events: str) -> list[list[str]]:
        """Return the arguments of the events with this prefix."""
        return [said for event, said in self.events if event.startswith(events)]


class Trapped:
    """A repository in which every executable part is a trap, and a home with credentials."""

    def __init__(self, folder: Path) -> None:
        self.home = folder / "home"
        self.trace = folder / "it-ran"
        self.repository = Repository(folder / "repository")
        self.root = self.repository.root
        self._recorder = folder / "recorder"
        self._audit = folder / "audit.jsonl"
        self._git = folder / "git.jsonl"
        self._done: dict[tuple[str, ...], Watched] = {}
        self._recorder.mkdir()
        (self._recorder / "sitecustomize.py").write_text(RECORDER)

    @property
    def environ(self) -> dict[str, str]:
        return {
            **os.environ,
            "HOME": str(self.home),
            "PYTHONPATH": str(self._recorder),
            "AUDIT_FILE": str(self._audit),
            "GIT_TRACE2_EVENT": str(self._git),
            "GOOGLE_APPLICATION_CREDENTIALS": str(self.home / "key.json"),
            "CLOUDSDK_CONFIG": str(self.home / "gcloud"),
            "GCE_METADATA_HOST": "127.0.0.1:9",
            "GITHUB_TOKEN": "canary-token",
            "ACTIONS_ID_TOKEN_REQUEST_URL": "http://127.0.0.1:9/token",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": "canary-token",
        }

    def watch(self, *command: str) -> Watched:
        """Run a command under watch."""
        for file in (self._audit, self._git):
            file.write_text("")
        done = subprocess.run(
            command, cwd=self.root, env=self.environ, capture_output=True, text=True, timeout=PATIENCE
        )
        events = [(event, said) for event, said in _json_lines(self._audit)]
        by_git = [
            said.get("argv") for said in _json_lines(self._git) if said["event"] in ("child_start", "exec")
        ]
        return Watched(done.returncode, done.stdout, done.stderr, events, by_git)

    def done(self, command: tuple[str, ...]) -> Watched:
        """Return a command's result, run once for all tests."""
        if command not in self._done:
            self._done[command] = self.watch(str(PROGRAM), *command)
            assert self._done[command].code == 0, self._done[command].err
        return self._done[command]


def _json_lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.fixture(scope="module")
def trapped(tmp_path_factory: pytest.TempPathFactory) -> Trapped:
    made = Trapped(tmp_path_factory.mktemp("trapped"))
    for file in ("key.json", "gcloud/application_default_credentials.json", ".netrc", ".boto"):
        credentials = made.home / file
        credentials.parent.mkdir(parents=True, exist_ok=True)
        credentials.write_text("canary")
    shutil.copytree(made.home / "gcloud", made.home / ".config/gcloud")
    repository = made.repository
    repository.write("reconciler.yaml", SETTINGS)
    repository.job()
    trap = PYTHON_TRAP.format(trace=str(made.trace))
    for name in ("yaml", "sitecustomize", "usercustomize", "conftest", "jsonschema", "reconciler/__init__"):
        repository.write(f"{name}.py", trap)
    for name in ("setup", "backend", "task", "__init__", "__main__"):
        repository.write(f"trainer/{name}.py", trap)
    repository.write("trainer/pyproject.toml", PYPROJECT_TRAP)
    script = repository.write("git", f"#!/bin/sh\ntouch '{made.trace}'\ncat\n")
    script.chmod(0o755)
    repository.write(".gitattributes", "* filter=trap diff=trap merge=trap\n")
    repository.git("init", "-b", "main")
    repository.git("add", "--all")
    repository.git("commit", "-m", "one")
    repository.job(args=["--more"])
    repository.job("fresh")
    repository.git("add", "--all")
    repository.git("commit", "-m", "two")
    _set_traps(repository, script)
    assert not made.trace.exists()
    return made


def _set_traps(repository: Repository, script: Path) -> None:
    """Set a trap in each git setting that runs a program."""
    for name in (
        "filter.trap.clean",
        "filter.trap.smudge",
        "filter.trap.process",
        "diff.trap.textconv",
        "diff.external",
        "core.fsmonitor",
        "core.pager",
        "pager.cat-file",
        "pager.rev-parse",
        "core.sshCommand",
        "core.gitProxy",
        "core.askPass",
        "credential.helper",
        "gpg.program",
        "uploadpack.packObjectsHook",
        "core.alternateRefsCommand",
        "alias.cat-file",
        "alias.rev-parse",
    ):
        repository.git("config", name, str(script) if "alias" not in name else f"!{script}")
    hooks = repository.root / ".git/hooks"
    hooks.mkdir(exist_ok=True)
    for name in (
        "post-index-change",
        "post-checkout",
        "pre-auto-gc",
        "reference-transaction",
        "fsmonitor-watchman",
    ):
        shutil.copy(script, hooks / name)


COMMANDS = [
    ("validate",),
    ("validate", "--format", "github", "--env", "prod"),
    ("plan", "--base", "HEAD^1"),
    ("plan", "--base", "HEAD^1", "--env", "prod", "--format", "markdown", "--output-dir", "../out"),
]
SOME = pytest.mark.parametrize("command", COMMANDS, ids=" ".join)


@pytest.mark.slow
@pytest.mark.fault(40)
@SOME
def test_none_of_the_repositorys_code_runs(command: tuple[str, ...], trapped: Trapped) -> None:
    done = trapped.done(command)
    assert not trapped.trace.exists()
    executed = [said[0] for said in done.of("exec")]
    assert any(name.endswith("reconciler/cli/__init__.py") for name in executed)
    assert not [name for name in executed if name.startswith(str(trapped.root))]
    imported = done.of("import")
    assert imported
    assert not [said for said in imported if str(trapped.root) in " ".join(said)]


@pytest.mark.slow
@pytest.mark.fault(40)
@SOME
def test_no_program_is_run_but_git_and_git_runs_none(command: tuple[str, ...], trapped: Trapped) -> None:
    done = trapped.done(command)
    started = done.of("subprocess.", "os.")
    assert {said[0] for said in started} == ({"git"} if command[0] == "plan" else set())
    assert all("core.fsmonitor=false" in said[1] for said in started)
    assert done.by_git == []


@pytest.mark.slow
@pytest.mark.fault(41)
@SOME
def test_no_socket_is_made_and_no_credentials_are_read(command: tuple[str, ...], trapped: Trapped) -> None:
    done = trapped.done(command)
    assert done.of("socket.", "http.", "urllib.", "ftplib.", "smtplib.") == []
    opened = [said[0] for said in done.of("open")]
    assert any(name.endswith("census.yaml") for name in opened)
    assert not [name for name in opened if str(trapped.home) in name]
    assert not [name for name in opened if "application_default" in name]
    modules = {said[0] for said in done.of("import")}
    assert not {name for name in modules if name.startswith(("google.auth", "googleapiclient", "urllib3"))}


@pytest.mark.slow
@pytest.mark.fault(41)
@SOME
def test_without_a_network_it_says_the_same(command: tuple[str, ...], trapped: Trapped) -> None:
    alone = ("unshare", "--map-root-user", "--net")
    if not shutil.which("unshare") or trapped.watch(*alone, "true").code != 0:
        pytest.skip("the system gives no process a network of its own")
    with_network, without = trapped.done(command), trapped.watch(*alone, str(PROGRAM), *command)
    assert (without.code, without.out, without.err) == (0, with_network.out, with_network.err)
    devices = trapped.watch(*alone, "cat", "/proc/net/dev").out.splitlines()[2:]
    assert [line.split(":")[0].strip() for line in devices] == ["lo"]


@pytest.mark.parametrize(
    "careless",
    [
        ["git", "status"],
        ["git", "diff", "HEAD^1"],
        [sys.executable, "-c", "import yaml"],
        [sys.executable, "trainer/setup.py"],
    ],
    ids=" ".join,
)
def test_whoever_isnt_careful_is_trapped(careless: list[str], trapped: Trapped) -> None:
    os.utime(trapped.root / "trainer/task.py", (1, 1))
    trapped.watch(*careless)
    assert trapped.trace.exists()
    trapped.trace.unlink()


def test_the_recorder_sees_what_a_careless_command_does(trapped: Trapped) -> None:
    code = (
        "import socket, subprocess, os, google.auth; socket.socket().close(); subprocess.run(['true']); "
        "open(os.environ['GOOGLE_APPLICATION_CREDENTIALS']).close(); exec(compile('0', 'a file', 'exec'))"
    )
    done = trapped.watch(sys.executable, "-P", "-c", code)
    assert done.code == 0, done.err
    assert done.of("socket.")
    assert [said[0] for said in done.of("subprocess.Popen")] == ["true"]
    assert any(said[0].endswith("/key.json") for said in done.of("open"))
    assert any(said[0] == "a file" for said in done.of("exec"))
    assert any(said[0] == "google.auth" for said in done.of("import"))
