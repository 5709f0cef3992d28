"""The `.reconciler/` of earlier versions: no command reads it, and the user's files in it can be moved."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.repository import IMAGE, Repository

OLD = ".reconciler"
USING_A_PACKAGE = """
import os
import decorator
open(os.environ["STARTS"], "a").write(f"start {decorator.__version__}\\n")
"""


@pytest.fixture
def place(repository: Repository) -> Repository:
    """Return a repository under git, with a home of an earlier version."""
    repository.git("init", "-q", "-b", "main")
    repository.git("add", "-A")
    repository.git("commit", "-qm", "one")
    (repository.root / OLD).mkdir()
    (repository.root / OLD / "state.db").touch()
    return repository


def notes(place: Repository, *command: str, **environ: str) -> list[str]:
    """Return the stderr lines of a command about the folder."""
    return [line for line in place.run(*command, **environ).err.splitlines() if OLD in line]


def moves(place: Repository, **environ: str) -> str:
    """Return the command that the note names, or "" without a note."""
    _, *hints = notes(place, "validate", **environ)
    return "".join(hints).partition("and then: ")[2]


def test_note_names_command_that_moves_home_which_only_user_can_have_made(place: Repository) -> None:
    shutil.rmtree(place.home, ignore_errors=True)
    first, hint = notes(place, "status")
    assert first == f"reconciler: {place.root / OLD} is ignored: state is kept outside of the repository"
    assert "run `reconciler serve --stop` with that version" in hint
    home = place.home
    assert moves(place) == f"mkdir -p {home} && rmdir {home} && mv {place.root / OLD} {home}"
    subprocess.run(moves(place), shell=True, check=True)
    assert (place.home / "state.db").exists()
    assert notes(place, "status") == []


def test_command_of_note_works_when_new_place_is_an_empty_folder_with_spaces(
    place: Repository, tmp_path: Path
) -> None:
    named = tmp_path / "my state"
    named.mkdir()
    subprocess.run(moves(place, RECONCILER_HOME=str(named)), shell=True, check=True)
    assert [path.name for path in named.iterdir()] == ["state.db"]


def test_command_of_note_moves_nothing_when_the_home_was_made_meanwhile(place: Repository) -> None:
    shutil.rmtree(place.home, ignore_errors=True)
    move = moves(place)
    in_use(place)
    assert subprocess.run(move, shell=True, stderr=subprocess.DEVNULL).returncode != 0
    assert (place.root / OLD / "state.db").exists()


def odd_name(place: Repository) -> None:
    """Return a name that a terminal doesn't show unchanged."""
    place.root = place.root.rename(place.root.parent / "re\tpository")


def no_folder(place: Repository) -> None:
    shutil.rmtree(place.root / OLD)
    (place.root / OLD).touch()


def in_use(place: Repository) -> None:
    place.home.mkdir(parents=True)
    (place.home / "state.db").touch()


def linked(place: Repository) -> None:
    (place.root / OLD).rename(place.root.parent / "elsewhere")
    (place.root / OLD).symlink_to("../elsewhere")


def track(place: Repository, path: str = f"{OLD}/state.db") -> None:
    (place.root / path).parent.mkdir(exist_ok=True)
    (place.root / path).touch()
    place.git("add", "-f", path)


def track_from_above(place: Repository) -> None:
    track(place)
    (place.root / ".git").rename(place.root.parent / ".git")
    (place.root.parent / ".git" / "index").unlink()
    above = Repository.__new__(Repository)
    above.root = place.root.parent
    above.git("add", "-f", f"{place.root.name}/{OLD}/state.db")


def submodule(place: Repository) -> None:
    shutil.rmtree(place.root / OLD)
    place.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", f"file://{place.root}", OLD)


NO_MOVES: dict[str, Callable[[Repository], None]] = {
    "the new place is in use": in_use,
    "a link": linked,
    "a file": no_folder,
    "an odd name": odd_name,
    "git tracks it": track,
    "git tracks it in other letters": lambda place: track(place, ".Reconciler/x"),
    "the repository around tracks it": track_from_above,
    "a submodule": submodule,
    "no git": lambda place: shutil.rmtree(place.root / ".git"),
    "a broken git": lambda place: (place.root / ".git" / "index").write_text("no index"),
}


@pytest.mark.parametrize("prepare", NO_MOVES.values(), ids=NO_MOVES.keys())
def test_note_is_one_line_without_a_move_when(
    place: Repository, prepare: Callable[[Repository], None]
) -> None:
    prepare(place)
    for environ in ({}, {"GIT_LITERAL_PATHSPECS": "1"}):
        (line,) = notes(place, "validate", **environ)
        assert line.endswith("/.reconciler is ignored: state is kept outside of the repository")


def test_note_is_inert_and_of_the_format_of_the_log(place: Repository, tmp_path: Path) -> None:
    evil = tmp_path / "\x1b[2J##[error]\u202e"
    root, place.root = place.root, place.root.rename(evil)
    (line,) = place.run("serve", "--stop").err.splitlines()
    assert not any(text in line for text in ("\x1b", "\u202e", "##["))
    place.root = place.root.rename(root)
    record = json.loads(place.run("serve", "--stop", "--log-format", "json").err)
    assert record["message"].endswith("is ignored: state is kept outside of the repository")
    assert " && mv " in record["hint"]


@pytest.mark.parametrize(
    "command", ["completion bash", "schema", "--help", "plan --help", "--version", "status -q"]
)
def test_no_note_of(command: str, place: Repository) -> None:
    assert notes(place, *command.split()) == []


def test_git_is_asked_only_if_the_folder_exists(place: Repository, tmp_path: Path) -> None:
    git, trace = tmp_path / "bin" / "git", tmp_path / "trace"
    git.parent.mkdir()
    git.write_text(f'#!/bin/sh\necho "$@" >>{trace}\nexec {shutil.which("git")} "$@"\n')
    git.chmod(0o755)
    path = f"{git.parent}{os.pathsep}{os.environ['PATH']}"
    place.run("serve", "--stop", PATH=path)
    assert trace.read_text().count("ls-files") == 1
    trace.unlink()
    shutil.rmtree(place.root / OLD)
    place.run("serve", "--stop", PATH=path)
    assert not trace.exists()


def test_moved_home_of_earlier_version_trains_nothing_again_and_goes_on(
    repository: Repository, tmp_path: Path
) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    images = f'images:\n  {IMAGE}: {{python: "{version}", requirements: [decorator]}}\n'
    repository.write("reconciler.yaml", images)
    repository.write("trainer/task.py", USING_A_PACKAGE)
    repository.write(".gitignore", f"{OLD}/\n")
    repository.job("census")
    repository._environments = None  # the home has its own environments, with its path in them
    repository.git("init", "-q")
    before = tmp_path / "before"
    assert repository.run("apply", "--wait", RECONCILER_HOME=str(before)).code == 0
    assert repository.run("serve", "--stop", RECONCILER_HOME=str(before)).code == 0
    old = before.rename(repository.root / OLD)
    old.chmod(0o755)
    for name, text in {
        "mark": "reconciler home 1\n",
        ".gitignore": "*\n",
        "cache/manifests.bin": "x",
    }.items():
        repository.write(f"{OLD}/{name}", text)

    subprocess.run(moves(repository), shell=True, check=True)

    planned = repository.run("plan", "--detailed-exitcode")
    assert (planned.code, planned.out.splitlines()[-1]) == (0, "Nothing to do: 1 job is up to date.")
    assert repository.run("apply", "--wait").code == 0
    assert len(repository.starts.read_text().splitlines()) == 1
    assert repository.home.stat().st_mode & 0o777 == 0o700
    repository.job("census", args=["--again"])
    applied = repository.run("apply", "--wait")
    assert applied.code == 0, applied.err + repository.run("logs", "census").out
    assert len(repository.starts.read_text().splitlines()) == 2
