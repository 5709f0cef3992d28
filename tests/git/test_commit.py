"""Commit of a work tree; reading it runs none of the repository's code."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from reconciler.base.git_command import GitError
from reconciler.git.commit import Head, commit_file, commit_of, head_of
from reconciler.git.history import GitHistory
from tests.support.waiting import PATIENCE


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return a git command in a new repository with a single commit, without the user's settings."""
    settings = tmp_path / "gitconfig"
    settings.write_text("[user]\nname = Test\nemail = test@localhost\n[init]\ndefaultBranch = main\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    root = tmp_path / "repository"
    root.mkdir()

    def run(*arguments: str, cwd: Path = root) -> str:
        done = subprocess.run(["git", *arguments], cwd=cwd, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    run("init")
    (root / "job.yaml").write_text("a\n")
    (root / ".gitignore").write_text("*.log\n")
    (root / "jobs").mkdir()
    (root / "jobs" / "b.yaml").write_text("b\n")
    run("add", ".")
    run("commit", "-m", "one")
    return run


@pytest.fixture
def root(tmp_path: Path, git: Callable[..., str]) -> Path:
    return tmp_path / "repository"


def test_a_clean_checkout_is_its_commit(root: Path, git: Callable[..., str]) -> None:
    assert commit_of(root) == git("rev-parse", "HEAD")
    assert commit_of(root / "jobs") == git("rev-parse", "HEAD")


def test_what_is_checked_out_is_known_whatever_the_files_are_like(
    root: Path, git: Callable[..., str]
) -> None:
    (root / "job.yaml").write_text("changed")
    head = git("rev-parse", "HEAD")
    assert head_of(root, os.environ) == Head(head, head)
    assert head_of(root, actions(root, git, PULL)) == Head(head, PULL_HEAD)


def test_ignored_files_dont_count(root: Path, git: Callable[..., str]) -> None:
    (root / "x.log").write_text("x")
    assert commit_of(root) == git("rev-parse", "HEAD")


def test_times_alone_dont_count(root: Path, git: Callable[..., str]) -> None:
    os.utime(root / "job.yaml", (1, 1))
    assert commit_of(root) == git("rev-parse", "HEAD")


def write(path: str) -> Callable[[Path, Callable[..., str]], object]:
    return lambda root, git: (root / path).write_text("changed")


@pytest.mark.parametrize(
    "change",
    [
        write("job.yaml"),
        write("new.yaml"),
        write("jobs/new.yaml"),
        lambda root, git: (root / "job.yaml").unlink(),
        lambda root, git: (root / "job.yaml").chmod(0o755),
        lambda root, git: (root / "job.yaml").rename(root / "moved.yaml"),
        lambda root, git: (write("job.yaml")(root, git), git("add", ".")),
        lambda root, git: (git("config", "status.showUntrackedFiles", "no"), write("new.yaml")(root, git)),
    ],
    ids=["changed", "new", "new below", "deleted", "mode", "moved", "staged", "untracked hidden"],
)
def test_a_changed_tree_is_no_commit(
    change: Callable[[Path, Callable[..., str]], object], root: Path, git: Callable[..., str]
) -> None:
    change(root, git)
    assert commit_of(root) is None
    assert commit_of(root / "jobs") is None


@pytest.mark.slow
def test_a_changed_submodule_is_a_change(tmp_path: Path, root: Path, git: Callable[..., str]) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    git("init", cwd=inner)
    (inner / "train.py").write_text("x = 1\n")
    git("add", ".", cwd=inner)
    git("commit", "-m", "inner", cwd=inner)
    git("-c", "protocol.file.allow=always", "submodule", "add", str(inner), "trainer")
    git("config", "-f", ".gitmodules", "submodule.trainer.ignore", "all")
    git("add", ".")
    git("commit", "-m", "two")
    assert commit_of(root) == git("rev-parse", "HEAD")
    (root / "trainer" / "train.py").write_text("x = 2\n")
    assert commit_of(root) is None


@pytest.mark.slow
def test_file_of_a_submodule_is_refused_with_its_folder(
    tmp_path: Path, root: Path, git: Callable[..., str]
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    git("init", cwd=inner)
    (inner / "a.yaml").write_text("a\n")
    git("add", ".", cwd=inner)
    git("commit", "-m", "inner", cwd=inner)
    git("-c", "protocol.file.allow=always", "submodule", "add", str(inner), "jobs/more")
    git("commit", "-m", "two")
    with pytest.raises(GitError, match=r"a\.yaml is in jobs/more, a repository of its own") as caught:
        commit_file(root, "jobs/more/a.yaml", b"changed\n", "changed")
    assert caught.value.hint == "leave out --commit, and commit it in jobs/more, and then jobs/more here"
    assert (root / "jobs" / "more" / "a.yaml").read_text() == "a\n"
    assert git("status", "--porcelain") == ""


def test_no_repository_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert commit_of(tmp_path) is None
    assert commit_of(tmp_path / "missing") is None


def test_a_repository_without_a_commit_has_none(tmp_path: Path, git: Callable[..., str]) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git("init", cwd=empty)
    assert commit_of(empty) is None


def test_without_git_there_is_no_commit(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit_of(root) is None


def test_a_git_that_fails_gives_none(root: Path) -> None:
    (root / ".git" / "index").write_bytes(b"not an index")
    assert commit_of(root) is None


def test_a_hook_that_calls_us_doesnt_lead_elsewhere(
    root: Path, tmp_path: Path, git: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    git("init", cwd=other)
    git("commit", "--allow-empty", "-m", "other", cwd=other)
    head = git("rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(other / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(other))
    monkeypatch.setenv("GIT_INDEX_FILE", str(other / ".git" / "index"))
    assert commit_of(root) == head


@pytest.fixture
def canary(tmp_path: Path) -> tuple[str, Path]:
    """Return a command that creates a file when it runs, and the file."""
    script, trace = tmp_path / "canary.sh", tmp_path / "it-ran"
    script.write_text(f"#!/bin/sh\ntouch '{trace}'\ncat\n")
    script.chmod(0o755)
    return str(script), trace


# Ways to make `git status` run code.
@pytest.mark.parametrize("how", ["fsmonitor", "hook", "hooksPath", "filter", "process", "included", "odd"])
def test_none_of_the_repositorys_code_runs(
    how: str, root: Path, tmp_path: Path, git: Callable[..., str], canary: tuple[str, Path]
) -> None:
    command, trace = canary
    (root / ".gitattributes").write_text("*.yaml filter=mine\n")
    git("add", ".")
    git("commit", "-m", "two")
    match how:
        case "fsmonitor":
            git("config", "core.fsmonitor", command)
        case "hook":
            hook = root / ".git" / "hooks" / "post-index-change"
            hook.parent.mkdir(exist_ok=True)
            hook.write_text(Path(command).read_text())
            hook.chmod(0o755)
        case "hooksPath":
            (tmp_path / "hooks").mkdir()
            Path(command).rename(tmp_path / "hooks" / "post-index-change")
            git("config", "core.hooksPath", str(tmp_path / "hooks"))
        case "filter":
            git("config", "filter.mine.clean", command)
            git("config", "filter.mine.required", "true")
        case "process":
            git("config", "filter.mine.process", command)
        case "included":
            (root / ".git" / "more").write_text(f'[filter "mine"]\nclean = {command}\n')
            git("config", "include.path", "more")
        case "odd":
            (root / ".git" / "config").open("a").write(f'[filter "a=b"]\nclean = {command}\n')
            (root / ".gitattributes").write_text("*.yaml filter=a=b\n")
            git("-c", "filter.a=b.clean=", "add", ".gitattributes")
            git("commit", "-m", "three")
    trace.unlink(missing_ok=True)

    make_git_read(root, time=1)
    commit_of(root)
    assert not trace.exists()

    make_git_read(root, time=2)
    subprocess.run(["git", "status"], cwd=root, check=False, capture_output=True, timeout=PATIENCE)
    assert trace.exists(), "plain git doesn't run it either: this test shows nothing"


def make_git_read(root: Path, time: int) -> None:
    """Give the files other times than in git's index, so that git must compare their contents."""
    for file in (root / "job.yaml", root / "jobs" / "b.yaml"):
        os.utime(file, (time, time))


def test_the_users_own_filters_stay(root: Path, git: Callable[..., str]) -> None:
    """Filters such as the user's Git LFS: a clean tree has other bytes than its commit."""
    git("config", "--global", "filter.mine.clean", "tr A-Z a-z")
    git("config", "--global", "filter.mine.smudge", "tr a-z A-Z")
    (root / ".gitattributes").write_text("*.big filter=mine\n")
    (root / "data.big").write_text("LARGE\n")
    git("add", ".")
    git("commit", "-m", "two")
    os.utime(root / "data.big", (1, 1))
    assert git("show", "HEAD:data.big") == "large"
    assert commit_of(root) == git("rev-parse", "HEAD")


def actions(root: Path, git: Callable[..., str], event: object, **more: str) -> dict[str, str]:
    path = root.parent / "event.json"
    path.write_text(event if isinstance(event, str) else json.dumps(event))
    found = {
        "GITHUB_ACTIONS": "true",
        "GITHUB_EVENT_NAME": "pull_request",
        "GITHUB_EVENT_PATH": str(path),
        "GITHUB_SHA": git("rev-parse", "HEAD"),
    }
    return {**os.environ, **found, **more}


PULL_HEAD = "0123456789abcdef0123456789abcdef01234567"
PULL = {"pull_request": {"head": {"sha": PULL_HEAD}}}


def test_a_pull_requests_merge_commit_stands_for_its_head(root: Path, git: Callable[..., str]) -> None:
    assert commit_of(root, actions(root, git, PULL)) == PULL_HEAD
    (root / "job.yaml").write_text("changed")
    assert commit_of(root, actions(root, git, PULL)) is None


def test_a_pull_requests_head_that_is_checked_out_is_itself(root: Path, git: Callable[..., str]) -> None:
    environ = actions(root, git, PULL, GITHUB_SHA="f" * 40)
    assert commit_of(root, environ) == git("rev-parse", "HEAD")


@pytest.mark.parametrize("name", ["push", "pull_request_target", "schedule", ""])
def test_other_events_change_nothing(name: str, root: Path, git: Callable[..., str]) -> None:
    environ = actions(root, git, PULL, GITHUB_EVENT_NAME=name)
    assert commit_of(root, environ) == git("rev-parse", "HEAD")


@pytest.mark.parametrize(
    "event",
    ["", "[]", "{}", "null", "\xff", '{"pull_request": null}', {"pull_request": {"head": {"sha": "main"}}}],
)
def test_an_event_that_doesnt_say_which_commit_gives_none(
    event: object, root: Path, git: Callable[..., str]
) -> None:
    assert commit_of(root, actions(root, git, event)) is None
    missing = actions(root, git, PULL, GITHUB_EVENT_PATH=str(root / "missing"))
    assert commit_of(root, missing) is None


class TestPassedOver:
    """Commits between the last applied commit and the checkout."""

    def commits(self, git: Callable[..., str], count: int) -> list[str]:
        """Make commits; return all commits, newest last."""
        for number in range(count):
            git("commit", "-q", "--allow-empty", "-m", str(number))
        return git("rev-list", "--reverse", "HEAD").split()

    @pytest.mark.fault(29)
    def test_those_since_the_newest_known_one(self, root: Path, git: Callable[..., str]) -> None:
        first, second, third, fourth = self.commits(git, 3)
        history = GitHistory(root, {})
        assert history.head == fourth
        assert history.since(first, 9) == [third, second]
        assert history.since(first, 1) == [third]
        assert history.since(third, 9) == []
        assert history.since(fourth, 9) == []

    def test_common_ancestor_is_the_commit_or_the_fork_and_none_of_another_history(
        self, root: Path, git: Callable[..., str]
    ) -> None:
        first, fork, left = self.commits(git, 2)
        git("checkout", "-q", "-B", "other", fork)
        *_, head = self.commits(git, 2)
        history = GitHistory(root, {})
        assert history.nearest_common([left]) == history.nearest_common([left, first]) == fork
        assert history.nearest_common([first]) == first
        assert history.nearest_common([head]) == head
        assert history.nearest_common(["0" * 40, "not a commit", "--all"]) == ""
        git("checkout", "-q", "--orphan", "forced")
        git("commit", "-q", "-m", "forced")
        assert GitHistory(root, {}).nearest_common([head]) == ""

    def test_of_a_merged_branch_only_the_merge_counts(self, root: Path, git: Callable[..., str]) -> None:
        (first,) = self.commits(git, 0)
        git("switch", "-q", "-c", "branch")
        self.commits(git, 3)
        git("switch", "-q", "main")
        git("merge", "-q", "--no-ff", "-m", "merge", "branch")
        merge = git("rev-parse", "HEAD")
        self.commits(git, 1)
        assert GitHistory(root, {}).since(first, 9) == [merge]
