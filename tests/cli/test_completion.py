"""Suggestions that real shells offer when Tab is pressed."""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.repository import Repository

SHELLS = {
    "bash": ["bash", "--norc", "--noprofile", "-i"],
    "zsh": ["zsh", "-f", "-i"],
    "fish": ["fish", "--no-config", "-i"],
}
LOAD = {
    "bash": "source <(reconciler completion bash)",
    "zsh": "autoload -Uz compinit; compinit -u -D; source <(reconciler completion zsh)",
    "fish": "reconciler completion fish | source",
}
_ESCAPES = re.compile(r"\x1b(\[[0-9;?]*[ -/]*[@-~]|\][^\x07]*\x07|[()][A-Z0-9]|[=>])")


class Shell:
    """An interactive shell on a terminal, controlled by key presses."""

    def __init__(self, name: str, repository: Repository) -> None:
        self._terminal, inside = pty.openpty()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._process = subprocess.Popen(
            ["setsid", "--ctty", *SHELLS[name]],
            cwd=repository.root,
            env={
                **os.environ,
                "PATH": path,
                "TERM": "xterm",
                "COLUMNS": "200",
                "HOME": str(repository.root),
            },
            stdin=inside,
            stdout=inside,
            stderr=inside,
        )
        os.close(inside)
        self._shown = ""

    def type(self, keys: str) -> None:
        """Type keys, and forget the earlier output of the terminal."""
        self._shown = ""
        os.write(self._terminal, keys.encode())

    def shows(self, pattern: str, seconds: float = 60) -> str:
        """Wait until the terminal shows a pattern; return all output since the last keys."""
        while not re.search(pattern, self._shown):
            ready, _, _ = select.select([self._terminal], [], [], seconds)
            assert ready, f"the shell showed only {self._shown!r}"
            self._shown += _ESCAPES.sub("", os.read(self._terminal, 65536).decode(errors="replace"))
        return self._shown

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, repository: Repository) -> Iterator[Shell]:
    """Yield a shell with its script loaded, in a repository of a valid, an invalid and a hostile job."""
    repository.job("census-income")
    (repository.root / "jobs/hostile.yaml").write_text(
        (repository.root / "jobs/census-income.yaml")
        .read_text()
        .replace("name: census-income", 'name: "census-$(touch made)"')
    )
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is missing")
    shell = Shell(request.param, repository)
    shell.type(f"{LOAD[request.param]}; echo loa''ded\n")
    shell.shows("loaded")
    yield shell
    shell.end()


def test_commands_flags_and_names_of_valid_jobs_are_completed(shell: Shell, repository: Repository) -> None:
    shell.type("reconciler valid\t")
    shell.shows("reconciler validate")
    shell.type("--stri\t")
    shell.shows("--strict")
    shell.type("\x15")
    shell.type("reconciler show cens\t")
    shell.shows("reconciler show census-income ")
    shell.type("\x15")
    for command in ("fetch", "verify"):
        shell.type(f"reconciler {command} cens\t")
        shell.shows(f"reconciler {command} census-income ")
        shell.type("\x15")
    shell.type("reconciler --env local show cens\t")
    shell.shows("reconciler --env local show census-income ")
    assert not (repository.root / "made").exists()
    assert not repository.home.exists(), "no service is started"


def test_names_of_jobs_need_neither_git_nor_the_home_nor_valid_manifests(
    repository: Repository, tmp_path: Path
) -> None:
    repository.git("init", "-q")
    repository.write("jobs/trees.yaml", repository.job("census").read_text().replace("census", "trees"))
    repository.write("jobs/broken.yaml", repository.job("odd").read_text().replace("spec:", "spek:"))
    repository.write("jobs/other.yaml", "metadata: {name: other}\n")
    repository.write(".reconciler/service.json", "{}")  # may be a stranger's
    line, offered = "reconciler show ", tmp_path / "offered"
    done = repository.run(
        COMP_LINE=line,
        COMP_POINT=str(len(line)),
        _ARGCOMPLETE="1",
        _ARGCOMPLETE_IFS="\n",
        _ARGCOMPLETE_STDOUT_FILENAME=str(offered),
        PATH=str(tmp_path),
    )
    assert (done.out, done.err) == ("", "")
    assert offered.read_text().split() == ["odd", "census", "trees"]
    shutil.rmtree(repository.root / ".reconciler")


def test_mistakes_of_the_repository_offer_nothing_and_print_nothing(
    shell: Shell, repository: Repository
) -> None:
    (repository.root / "reconciler.yaml").write_text("environments: 3\n")
    shell.type("reconciler show cens\t; echo 'n'othing\n")
    assert "Traceback" not in shell.shows("\nnothing")


def test_an_unknown_shell_is_refused(repository: Repository) -> None:
    done = repository.run("completion", "tcsh")
    assert (done.code, "choose from" in done.err) == (64, True)
