"""Git objects that exist but are unreadable: every command reports them as corrupt."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.base.git_command import CorruptObjectError, Git
from reconciler.git.commit import commit_file, why_no_head
from reconciler.git.revision import merge_base, revision

IDENTITY = {f"GIT_{who}_{what}": "a" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda data: b"",
    "no compression": lambda data: b"\xff" * len(data),
    "half": lambda data: data[: len(data) // 2],
    "another checksum": lambda data: data[:-1] + bytes([data[-1] ^ 0xFF]),
}


def git(root: Path, *arguments: str) -> str:
    environ = {**os.environ, **IDENTITY}
    done = subprocess.run(
        ["git", *arguments], cwd=root, env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "jobs").mkdir()
    for text in ("one", "two"):
        (tmp_path / "jobs" / "a.yaml").write_text(text * 100)
        git(tmp_path, "add", ".")
        git(tmp_path, "commit", "-q", "-m", text)
    return tmp_path


def damage(root: Path, name: str, how: str) -> str:
    """Damage an object; return its hash."""
    sha = git(root, "rev-parse", name)
    file = root / ".git" / "objects" / sha[:2] / sha[2:]
    file.chmod(0o644)
    file.write_bytes(DAMAGES[how](file.read_bytes()))
    return sha


def lay_out_base(root: Path) -> None:
    """Write the manifests of the commit that `plan --base HEAD~1` compares with."""
    base = merge_base(root, "HEAD~1", os.environ)
    with revision(root, base, os.environ) as commit:
        commit.lay_out(("jobs",), lambda name: True)


@pytest.mark.slow
@pytest.mark.parametrize("how", DAMAGES)
@pytest.mark.parametrize("name", ["HEAD", "HEAD~1", "HEAD~1^{tree}", "HEAD~1:jobs", "HEAD~1:jobs/a.yaml"])
def test_object_that_git_can_not_read_is_called_corrupt(root: Path, name: str, how: str) -> None:
    sha = damage(root, name, how)
    with pytest.raises(CorruptObjectError, match=f"^git's object {sha} is corrupt$") as caught:
        lay_out_base(root)
    assert "`git fsck`" in caught.value.hint


def test_packed_object_is_called_corrupt(root: Path) -> None:
    sha = git(root, "rev-parse", "HEAD")
    git(root, "gc", "-q")
    (pack,) = (root / ".git" / "objects" / "pack").glob("*.pack")
    pack.chmod(0o644)
    data = pack.read_bytes()
    pack.write_bytes(data[:20] + bytes(byte ^ 0x5A for byte in data[20:-20]) + data[-20:])
    with pytest.raises(CorruptObjectError, match=r"^git's objects? .*(is|are) corrupt$"):
        merge_base(root, sha, os.environ)


def test_jobs_get_no_commit_of_a_corrupt_head_and_the_reason_says_so(root: Path) -> None:
    sha = damage(root, "HEAD", "half")
    assert why_no_head(root, os.environ) == f"git's object {sha} is corrupt"


def test_commit_of_a_file_says_so_and_leaves_the_file(root: Path) -> None:
    damage(root, "HEAD^{tree}", "empty")
    before = (root / "jobs" / "a.yaml").read_text()
    with pytest.raises(CorruptObjectError):
        commit_file(root, "jobs/a.yaml", b"three", "three")
    assert (root / "jobs" / "a.yaml").read_text() == before


@pytest.mark.parametrize("name", ["corrupt", "inflate: x"])
def test_words_of_a_name_make_no_object_corrupt(root: Path, name: str) -> None:
    assert Git(root).commit(name) is None
    Git(root).refuse_corrupt("rev-parse", "--verify", name)
