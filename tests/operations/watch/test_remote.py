"""The clone of a watched branch: exactly the commit, without running any of its code."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.errors import InvalidError, ServiceError, UsageError
from reconciler.base.git_command import Git, GitError
from reconciler.operations.watch.loop import run_pass
from reconciler.operations.watch.remote import Clone, RemoteBranch, checked_branch, checked_url
from reconciler.operations.watch.state import LoopCache
from reconciler.operations.watch.wakeups import Wakes
from tests.support.repository import Repository
from tests.support.watching import Told


@pytest.mark.parametrize(
    "url",
    ["https://example.com/a/b.git", "ssh://git@example.com/a", "ssh://example.com:22/a",
     "git@example.com:a/b.git", "file:///srv/a.git"],
)  # fmt: skip
def test_addresses_of_remotes(url: str) -> None:
    assert checked_url(url) == url


@pytest.mark.parametrize(
    "url",
    ["", "-x", "--upload-pack=touch x", "ext::sh -c 'touch x'", "git::x", "fd::3", "/srv/a.git", "../a", "a",
     "http://example.com/a", "git://example.com/a", "https://example.com", "file://host/a",
     "ssh://-oProxyCommand=x/a", "ssh://-x@example.com/a", "-x@example.com:a", "-x:a",
     "https://u:p@example.com/a", "https://t0ken@example.com/a", "ssh://u:p@example.com/a",
     "https://[::1/a", "https://example.com/a\nb", "https:/a"],
)  # fmt: skip
def test_what_is_no_address_of_a_remote_or_holds_a_secret_is_refused(url: str) -> None:
    with pytest.raises(UsageError) as refused:
        checked_url(url)
    assert "t0ken" not in refused.value.message


@pytest.mark.parametrize("name", ["", "-x", "a..b", "a b", "a:b", "a^", "refs/heads/*"])
def test_what_is_no_branch_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        checked_branch(name)
    assert checked_branch("team/main") == "team/main"


class Remote:
    """A bare repository, and a work tree that pushes to it."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "work"
        self.bare = folder / "bare.git"
        self.work.mkdir()
        self.git("init", "-q", "-b", "main")
        self.git("init", "-q", "--bare", "-b", "main", str(self.bare))

    def git(self, *arguments: str) -> str:
        settings = (
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@example.test",
            "-c",
            "protocol.file.allow=always",
        )
        environ = {**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull}
        done = subprocess.run(
            ["git", *settings, *arguments],
            cwd=self.work,
            env=environ,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def push(self, *options: str) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", "more", *options)
        self.git("push", "-q", "--force", str(self.bare), "main")
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def remote(tmp_path: Path) -> Remote:
    return Remote(tmp_path)


@pytest.fixture
def cloned(tmp_path: Path, remote: Remote) -> Callable[..., Clone]:
    def make(**environ: str) -> Clone:
        clone = Clone(tmp_path / "home", f"file://{remote.bare}", "main", {**os.environ, **environ})
        clone.open()
        return clone

    return make


def files_of(tree: Path) -> set[str]:
    found = (path.relative_to(tree).as_posix() for path in tree.rglob("*") if path.is_file())
    return {path for path in found if path != ".git"}


class TestClone:
    @pytest.mark.slow
    def test_the_tree_is_exactly_the_commit_whatever_was_there(
        self, remote: Remote, cloned: Callable[..., Clone]
    ) -> None:
        (remote.work / "a").write_text("1")
        first = remote.push()
        clone = cloned()
        assert clone.refresh()
        assert (clone.commit, files_of(clone.tree)) == (first, {"a"})
        assert not clone.refresh()
        (clone.tree / "left").write_text("by somebody")
        (remote.work / "a").rename(remote.work / "b")
        second = remote.push("--amend")
        assert clone.refresh()
        assert (clone.commit, files_of(clone.tree)) == (second, {"b"})
        assert Git(clone.tree).commit("HEAD") == second
        assert Git(clone.tree).is_clean()
        clone.close()

    def test_a_branch_that_is_gone_leaves_what_was_fetched(
        self, remote: Remote, cloned: Callable[..., Clone]
    ) -> None:
        (remote.work / "a").write_text("1")
        first = remote.push()
        clone = cloned()
        clone.refresh()
        remote.git("--git-dir", str(remote.bare), "update-ref", "-d", "refs/heads/main")
        with pytest.raises(GitError, match="refs/heads/main"):
            clone.refresh()
        assert (clone.commit, files_of(clone.tree)) == (first, {"a"})
        clone.close()

    @pytest.mark.slow
    def test_what_a_killed_one_left_is_in_nobodys_way(
        self, remote: Remote, cloned: Callable[..., Clone], tmp_path: Path
    ) -> None:
        (remote.work / "a").write_text("1")
        remote.push()
        clone = cloned()
        clone.refresh()
        with pytest.raises(ServiceError, match="already being watched"):
            cloned()
        clone.close()
        git_folder = next((tmp_path / "home/watch").glob("*/git"))
        for left in (
            "index.lock",
            "HEAD.lock",
            "config.lock",
            "shallow.lock",
            "refs/watched.lock",
            "packed-refs.lock",
        ):
            (git_folder / left).touch()
        (git_folder.parent / "tree.new/half").mkdir(parents=True)
        (clone.tree / "a").write_text("changed")
        (remote.work / "b").write_text("2")
        remote.push()
        again = cloned()
        assert again.refresh()
        assert files_of(again.tree) == {"a", "b"}
        assert (again.tree / "a").read_text() == "1"
        again.close()
        shutil.rmtree(git_folder / "objects")
        (git_folder / "HEAD").unlink()
        broken = cloned()
        assert broken.refresh(), "a clone that never came to be is made anew"
        broken.close()

    @pytest.mark.slow
    def test_nothing_that_a_repository_or_the_settings_name_runs(
        self, remote: Remote, cloned: Callable[..., Clone], tmp_path: Path
    ) -> None:
        ran = tmp_path / "ran"
        canary = tmp_path / "canary"
        canary.write_text(f'#!/bin/sh\necho "$0 $@" >> {ran}\ncat\n')
        canary.chmod(0o755)
        hooks = tmp_path / "template/hooks"
        hooks.mkdir(parents=True)
        names = (
            "post-checkout",
            "reference-transaction",
            "post-merge",
            "post-index-change",
            "fsmonitor-watchman",
        )
        for name in names:
            shutil.copy(canary, hooks / name)
        settings = tmp_path / "gitconfig"
        settings.write_text(
            f"[core]\n\thooksPath = {hooks}\n\tfsmonitor = {canary}\n[init]\n\ttemplateDir = {hooks.parent}\n"
            "[submodule]\n\trecurse = true\n[fetch]\n\trecurseSubmodules = true\n"
            "[protocol]\n\tallow = always\n"
            + "".join(
                f'[filter "{name}"]\n\tsmudge = {canary}\n\tclean = {canary}\n\trequired = true\n'
                for name in ("lfs", "evil")
            )
            + f'[filter "lfs"]\n\tprocess = {canary}\n'
        )
        other = tmp_path / "other"
        other.mkdir()
        module = Remote(other)
        (module.work / "inner").write_text("1")
        module.push()
        remote.git("submodule", "add", "-q", f"file://{module.bare}", "module")
        (remote.work / ".gitattributes").write_text(
            "*.bin filter=lfs diff=lfs merge=lfs\n*.txt filter=evil\n"
        )
        pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
        (remote.work / "model.bin").write_text(pointer)
        (remote.work / "a.txt").write_text("as it is")
        remote.push()
        clone = cloned(GIT_CONFIG_GLOBAL=str(settings), GIT_TEMPLATE_DIR=str(hooks.parent))
        assert clone.refresh()
        assert (clone.tree / "model.bin").read_text() == pointer
        assert (clone.tree / "a.txt").read_text() == "as it is"
        assert list((clone.tree / "module").iterdir()) == []
        remote.push()
        assert clone.refresh()
        clone.close()
        assert not ran.exists(), ran.read_text()
        assert not list((tmp_path / "home").rglob("hooks"))

    def test_a_protocol_that_runs_programs_is_not_spoken_whatever_the_settings_make_of_an_address(
        self, remote: Remote, cloned: Callable[..., Clone], tmp_path: Path
    ) -> None:
        settings = tmp_path / "gitconfig"
        settings.write_text(
            f'[url "ext::touch {tmp_path}/ran "]\n\tinsteadOf = file://\n[protocol]\n\tallow = always\n'
        )
        clone = cloned(GIT_CONFIG_GLOBAL=str(settings))
        with pytest.raises(GitError, match="ext"):
            clone.refresh()
        assert not (tmp_path / "ran").exists()
        clone.close()

    def test_a_remote_that_cannot_be_reached_is_told_once_and_tried_later(
        self, remote: Remote, cloned: Callable[..., Clone], told: Told
    ) -> None:
        clone = cloned()
        branch = RemoteBranch(clone, os.environ, None, 60.0, Wakes(), told.reporter, lambda: 0.5)
        assert not branch.refresh(changed=False)
        assert branch.checkout() is None
        first = branch.due
        assert not branch.refresh(changed=False), "not before it is due"
        assert branch.due == first
        branch.due = 0.0
        branch.refresh(changed=False)
        (line,) = told.lines()
        assert line["event"] == "not-fetched"
        assert "couldn't find remote ref" in line["message"]
        assert branch.due - first > 0
        remote.push()
        branch.due = 0.0
        assert branch.refresh(changed=False)
        assert told.names() == ["goes-on", "fetched"]
        branch.due = 0.0
        assert not branch.refresh(changed=False)
        assert told.names() == []
        checkout = branch.checkout()
        assert checkout is not None
        assert checkout.commit == remote.git("rev-parse", "HEAD")
        assert checkout.is_exported
        clone.close()

    @pytest.mark.slow
    def test_pass_of_a_branch_refuses_code_in_git_lfs_and_in_submodules(
        self, remote: Remote, cloned: Callable[..., Clone], told: Told, tmp_path: Path
    ) -> None:
        """It fetches neither, and must not take a pointer or an empty folder for the code."""
        library = tmp_path / "library"
        library.mkdir()
        module = Remote(library)
        (module.work / "shared.py").write_text("")
        module.push()
        Repository(remote.work).job("census")
        remote.git("submodule", "add", "-q", f"file://{module.bare}", "trainer/lib")
        digest = hashlib.sha256(b"weights").hexdigest()
        pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize 7\n"
        (remote.work / "trainer" / "model.bin").write_text(pointer)
        remote.push()
        clone = cloned()
        branch = RemoteBranch(clone, os.environ, None, 60.0, Wakes(), told.reporter, lambda: 0.5)
        assert branch.refresh(changed=False)
        checkout = branch.checkout()
        assert checkout is not None
        error = run_pass(checkout, LoopCache(), None).error
        assert isinstance(error, InvalidError)
        assert [problem.message for problem in error.problems] == [
            '"trainer/lib" is a submodule that isn\'t fetched',
            '"trainer/model.bin" is a Git LFS pointer, and not the file itself',
        ]
        assert all("`watch --remote` gets none" in problem.hint for problem in error.problems)
        clone.close()

    def test_a_full_disk_is_told_and_the_branch_is_tried_later(
        self, remote: Remote, cloned: Callable[..., Clone], told: Told, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        remote.push()
        clone = cloned()
        branch = RemoteBranch(clone, os.environ, None, 60.0, Wakes(), told.reporter, lambda: 0.5)

        def full(*arguments: Any, **more: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as broken:
            broken.setattr(Path, "mkdir", full)
            assert not branch.refresh(changed=False)
        (line,) = told.lines()
        assert (line["event"], line["message"]) == ("not-fetched", "No space left on device")
        branch.due = 0.0
        assert branch.refresh(changed=False)
        assert told.names() == ["goes-on", "fetched"]
        clone.close()

    def test_why_it_cannot_be_fetched_is_gits_own_reason_and_not_its_advice(self, tmp_path: Path) -> None:
        url = f"file://{tmp_path}/none.git"
        clone = Clone(tmp_path / "home", url, "main", os.environ)
        clone.open()
        with pytest.raises(GitError) as raised:
            clone.refresh()
        clone.close()
        assert raised.value.message.startswith(
            f"{url} can't be fetched: fatal: '{tmp_path}/none.git' does not"
        )
        assert "credential helper" in raised.value.hint
