"""Replacement of files in a work tree: whole or not at all, and without a trace that git would add."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from reconciler.base import replaced_files
from reconciler.base.replaced_files import replace_files, write_file
from reconciler.base.safe_files import open_folder

# Replaces jobs/a/1.yaml, jobs/a/2.yaml and jobs/b/1.yaml; killed before the call with a given number.
KILLED = """
import os, signal, sys
from pathlib import Path
from reconciler.base.replaced_files import replace_files

calls = iter(range(int(sys.argv[1]), -1, -1))
def counted(function):
    def call(*arguments, **more):
        if next(calls) == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more)
    return call
os.chmod, os.replace = counted(os.chmod), counted(os.replace)
root = Path(sys.argv[2])
replace_files({root / "jobs" / name: b"new" for name in ("a/1.yaml", "a/2.yaml", "b/1.yaml")})
"""
HELD = """
import sys
from pathlib import Path
from reconciler.base.replaced_files import _Writer

with _Writer() as writer:
    writer.write(Path(sys.argv[1]) / "jobs/a/1.yaml", b"held")
    print("written", flush=True)
    sys.stdin.readline()
    writer.move_all()
"""
NAMES = ("a/1.yaml", "a/2.yaml", "b/1.yaml")

pytestmark = pytest.mark.slow


def git(root: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.test")
    done = subprocess.run(
        ["git", *identity, *arguments], cwd=root, capture_output=True, text=True, check=True
    )
    return done.stdout


@pytest.fixture(params=["checkout", "worktree", "submodule", "settings alone", "folder alone"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a folder with three files, as users have it."""
    top = tmp_path / "top"
    for name in NAMES:
        file = top / "jobs" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("old")
    if request.param in ("settings alone", "folder alone"):
        if request.param == "settings alone":
            (top / "reconciler.yaml").touch()
        return top
    git(top, "init", "-q")
    git(top, "add", ".")
    git(top, "commit", "-q", "-m", "old")
    if request.param == "worktree":
        git(top, "worktree", "add", "-q", str(tmp_path / "tree"))
        return tmp_path / "tree"
    if request.param == "submodule":
        (tmp_path / "outer").mkdir()
        git(tmp_path / "outer", "init", "-q")
        git(
            tmp_path / "outer",
            "-c",
            "protocol.file.allow=always",
            "submodule",
            "--quiet",
            "add",
            str(top),
            "sub",
        )
        return tmp_path / "outer" / "sub"
    return top


def texts(root: Path) -> dict[str, str]:
    return {name: (root / "jobs" / name).read_text() for name in NAMES}


def added(root: Path) -> set[str]:
    """Return the files that `git add .` would add from a folder, in a new repository if it has none."""
    if not (root / ".git").exists():
        git(root, "init", "-q")
    return set(git(root, "ls-files", "--others", "--modified", "--exclude-standard").splitlines())


def scratches(root: Path) -> list[Path]:
    return [path for path in root.parent.rglob("*reconciler-writes") if path.is_dir()]


def test_files_are_replaced_and_nothing_else_is_left(root: Path) -> None:
    (root / "jobs" / "a" / "1.yaml").chmod(0o600)
    new = root / "jobs" / "c" / "new.yaml"
    assert replace_files({new: b"new", root / "jobs" / "a" / "1.yaml": b"changed"}) == set()
    assert (new.read_text(), stat.S_IMODE(new.stat().st_mode)) == ("new", 0o644)
    changed = root / "jobs" / "a" / "1.yaml"
    assert (changed.read_text(), stat.S_IMODE(changed.stat().st_mode)) == ("changed", 0o600)
    assert scratches(root) == []


@pytest.mark.parametrize("number", range(6))
def test_killed_write_leaves_whole_files_and_nothing_that_git_adds(root: Path, number: int) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(number), str(root)])
    assert done.returncode == -9
    moved = max(0, number - 3)
    assert sorted(texts(root).values()) == ["new"] * moved + ["old"] * (3 - moved)
    files = [
        path
        for path in (root / "jobs").rglob("*")
        if path.is_file() and ".reconciler-writes" not in path.parts
    ]
    assert len(files) == 3
    assert {name for name in added(root) if "writes" in name or "lock" in name} == set()
    # The next write of any file removes them; without a checkout, the next write in the folder does.
    names = [path for scratch in scratches(root) for path in scratch.glob("*.yaml.*")]
    written = NAMES[moved:] if number >= 3 else NAMES[: number + 1]
    assert len(names) == len(written)
    others = [root / "jobs" / folder / "other.yaml" for folder in ("a", "b")]
    assert replace_files(dict.fromkeys(others, b"other")) == {Path(name).name for name in written}
    assert scratches(root) == []
    assert texts(root)["a/1.yaml"] == ("new" if moved else "old")


def test_temporary_files_of_a_process_that_still_writes_stay(root: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HELD, str(root)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin
        assert other.stdout
        assert other.stdout.readline() == "written\n"
        assert replace_files({root / "jobs" / "a" / "2.yaml": b"mine"}) == set()
        (scratch,) = scratches(root)
        assert len([*scratch.glob("1.yaml.*")]) == 1
        other.stdin.write("\n")
        other.stdin.close()
        assert other.wait() == 0
    assert texts(root) == {"a/1.yaml": "held", "a/2.yaml": "mine", "b/1.yaml": "old"}
    assert scratches(root) == []


def test_many_processes_write_at_once(root: Path) -> None:
    program = """
import sys
from pathlib import Path
from reconciler.base.replaced_files import replace_files
for number in range(50):
    replace_files({Path(sys.argv[1]) / "jobs/a/1.yaml": sys.argv[2].encode() * 1000})
"""
    writers = [subprocess.Popen([sys.executable, "-c", program, str(root), text]) for text in "abcd"]
    assert [writer.wait() for writer in writers] == [0, 0, 0, 0]
    assert texts(root)["a/1.yaml"] in {text * 1000 for text in "abcd"}
    assert scratches(root) == []


def test_folder_that_another_process_removes_before_it_is_opened_is_made_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed: list[Path] = []

    def open_removed(place: Path) -> int:
        if place not in removed:
            removed.append(place)
            place.rmdir()
        return open_folder(place)

    monkeypatch.setattr(replaced_files, "open_folder", open_removed)
    replace_files({root / "jobs" / "a" / "1.yaml": b"new"})
    assert (len(removed), texts(root)["a/1.yaml"], scratches(root)) == (1, "new", [])


def test_failed_write_changes_no_file(root: Path) -> None:
    (root / "jobs" / "a" / "2.yaml").unlink()
    (root / "jobs" / "a" / "2.yaml").mkdir()
    with pytest.raises(OSError, match="directory"):
        replace_files({root / "jobs" / "a" / "2.yaml": b"new"})
    assert scratches(root) == []


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    (tmp_path / "jobs").mkdir()
    git(tmp_path, "init", "-q")
    return tmp_path


def test_files_go_beside_the_file_where_no_rename_leads_from_git_s_folder(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As between two mounts of a file system."""
    rename, seen = os.replace, []

    def across(source: str, target: str, **more: Any) -> None:
        folder = Path(f"/proc/self/fd/{more['src_dir_fd']}").readlink()
        seen.append(folder)
        if ".git" in folder.parts:
            raise OSError(18, "Invalid cross-device link")
        rename(source, target, **more)

    monkeypatch.setattr(os, "replace", across)
    replace_files({checkout / "jobs" / "a.yaml": b"new"})
    assert seen == [checkout / ".git" / "reconciler-writes", checkout / "jobs" / ".reconciler-writes"]
    assert [path.name for path in (checkout / "jobs").iterdir()] == ["a.yaml"]


@pytest.mark.parametrize("kind", ["file", "link", "elsewhere"])
def test_unusable_folder_in_git_s_own_is_passed_over(checkout: Path, tmp_path: Path, kind: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    place = checkout / ".git" / "reconciler-writes"
    if kind == "file":
        place.touch()
    elif kind == "link":
        place.symlink_to(elsewhere)
    else:  # a malicious archive can bring a file with the name of git's folder
        (checkout / ".git").rename(tmp_path / "kept")
        (checkout / ".git").write_text(f"gitdir: {elsewhere}\n")
    replace_files({checkout / "jobs" / "a.yaml": b"new"})
    assert (checkout / "jobs" / "a.yaml").read_text() == "new"
    assert [*elsewhere.iterdir()] == []
    assert not (checkout / ".reconciler-writes").exists()


def test_what_killed_processes_of_earlier_versions_left_is_removed(checkout: Path) -> None:
    jobs = checkout / "jobs"
    names = [".a.yaml.0123456789abcdef", "a.yaml.0123456789abcdef"]
    kept = [".b.yaml.0123456789abcdef", ".a.yaml.0123", "a.yaml.0123456789abcdeg", ".a.yaml.fedcba9876543210"]
    for name in (*names, *kept):
        (jobs / name).touch()
        os.utime(jobs / name, (0, 0))
    os.utime(jobs / kept[-1])  # a process may still write it
    assert replace_files({jobs / "a.yaml": b"new"}) == {"a.yaml"}
    assert {path.name for path in jobs.iterdir()} == {"a.yaml", *kept}


def test_no_link_is_written_through(checkout: Path) -> None:
    target, link = checkout / "target", checkout / "jobs" / "a.yaml"
    target.write_text("old")
    link.symlink_to(target)
    with pytest.raises(OSError, match="symbolic links"):
        write_file(link, b"new")
    assert target.read_text() == "old"
