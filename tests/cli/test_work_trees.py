"""Real-life work trees: leftovers of editors, files that git leaves out, mounts that lose file attributes."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any, ClassVar

import pytest

from reconciler.git import index as git_index
from reconciler.git.index import GitIndex
from reconciler.google import claim_store
from reconciler.model.naming import VERSIONS
from reconciler.packaging.source_tree import read_source_tree
from tests.support.repository import Repository
from tests.support.team import Team

LEFT = [
    ".task.py.swp",
    ".swo",
    "4913",
    "task.py~",
    "#task.py#",
    ".task.py.kate-swp",
    ".~task.ipynb",
    "._task.py",
    ".goutputstream-A1B2C3",
    "task.py___jb_tmp___",
    ".nfs00000000042",
]

# The file reading of versions up to 0.2: every name counts, with the modes of the file system.
OLD = """
import sys
from reconciler.__main__ import main
from reconciler.git.index import GitIndex
from reconciler.model.tracking import COMMITTED

for name in ("left_out", "links"):
    setattr(GitIndex, name, ())
for name in ("tracks", "is_executable", "is_link"):
    setattr(GitIndex, name, staticmethod(getattr(COMMITTED, name)))
sys.exit(main())
"""

# A user that doesn't own the repository; only root could change the owner.
OF_ANOTHER = """
import sys
from reconciler.__main__ import main
from reconciler.git.index import GitIndex

GitIndex._is_own = property(lambda index: False)
sys.exit(main())
"""


@pytest.fixture
def committed(repository: Repository) -> Repository:
    """Return a repository in git with a submitted job that waits."""
    repository.hold.touch()
    repository.job("census", reconcile="{onChange: cancel, onDelete: cancel}")
    repository.git("init", "-q", "-b", "main")
    repository.git("add", ".")
    repository.git("commit", "-q", "-m", "a job")
    assert repository.run("apply").code == 0
    return repository


def actions(repository: Repository) -> list[tuple[str, str]]:
    """Return action and job name of each planned change."""
    planned = repository.run("plan", "--format", "json").json
    return [(change["action"], change["jobName"]) for change in planned["changes"]]


def old_tool(folder: Path) -> str:
    """Return a file that stands in for the command of an earlier version."""
    file = folder / "old.py"
    file.write_text(OLD)
    return str(file)


def test_what_editors_and_notebooks_leave_changes_no_job(committed: Repository) -> None:
    before = actions(committed)
    for folder in ("trainer", "jobs"):
        for name in LEFT:
            committed.write(f"{folder}/{name}", "left by an editor")
        committed.write(f"{folder}/.ipynb_checkpoints/census.yaml", "left: [by a notebook")
        # An emacs lock is a dangling link to the name of the locked file.
        for locked in ("task.py", "census.yaml"):
            (committed.root / folder / f".#{locked}").symlink_to("a@example.test.4711:1")
        committed.write(f"{folder}/._census.yaml", "\\x00")
    assert actions(committed) == before
    assert committed.run("validate").code == 0
    assert committed.run("apply").code == 0
    assert actions(committed) == before == [("none", before[0][1])]


def test_what_git_tracks_is_a_part_of_the_code_whatever_its_name(committed: Repository) -> None:
    ((_, first),) = actions(committed)
    committed.write("trainer/notes~", "kept on purpose")
    assert actions(committed) == [("none", first)]
    committed.git("add", ".")
    committed.git("commit", "-q", "-m", "notes")
    ((_, second),) = [one for one in actions(committed) if one[0] == "submit"]
    assert second != first
    # From the commit alone, the name is the same: in a clone, and for `--base`.
    assert f'"{second}"' in committed.run("plan", "--base", "HEAD~1", "--format", "json").out
    committed.write("trainer/.task.py.swp", "not tracked")
    assert ("submit", second) in actions(committed)


def test_a_job_under_the_name_of_the_old_reading_runs_on(repository: Repository, tmp_path: Path) -> None:
    repository.hold.touch()
    repository.job("census", reconcile="{onChange: cancel}")
    repository.git("init", "-q")
    repository.git("add", ".")
    repository.git("commit", "-q", "-m", "a job")
    repository.write("trainer/task.py~", "left")
    old = old_tool(tmp_path)
    assert run(repository, old, "apply").returncode == 0
    ((action, name),) = actions(repository)
    assert action == "none"
    for _ in range(2):
        assert repository.run("apply").code == 0
        assert run(repository, old, "apply").returncode == 0
    assert repository.states().keys() == {name}
    # Without the leftover file, the name is the same as in every other checkout.
    (repository.root / "trainer/task.py~").unlink()
    assert {action for action, _ in actions(repository)} == {"submit", "cancel"}


def test_executable_bits_are_those_of_git_where_a_mount_has_none(committed: Repository) -> None:
    before = actions(committed)
    for file in (committed.root / "trainer").iterdir():
        file.chmod(0o755)
    assert actions(committed) != before
    committed.git("config", "core.fileMode", "false")
    assert actions(committed) == before
    committed.git("update-index", "--chmod=+x", "trainer/task.py")
    for file in (committed.root / "trainer").iterdir():
        file.chmod(0o644)
    trainer = committed.root / "trainer"
    (file,) = read_source_tree(trainer, committed.root, GitIndex(committed.root, os.environ)).files
    assert file.executable


def test_what_a_submodule_has_is_as_it_is_there(committed: Repository, tmp_path: Path) -> None:
    library = tmp_path / "library"
    library.mkdir()
    for name in ("notes~", "run.sh"):
        (library / name).write_text("")
        (library / name).chmod(0o755)
    at = ["-C", str(library)]
    committed.git(*at, "init", "-q")
    committed.git(*at, "add", ".")
    committed.git(*at, "commit", "-q", "-m", "a library")
    from_file = ["-c", "protocol.file.allow=always"]
    committed.git(*from_file, "submodule", "--quiet", "add", str(library), "trainer/lib")
    committed.git("commit", "-q", "-m", "a submodule")
    committed.git("config", "core.fileMode", "false")
    index = GitIndex(committed.root, os.environ)
    files = read_source_tree(committed.root / "trainer", committed.root, index).files
    assert {file.path: file.executable for file in files} == {
        "lib/notes~": True,
        "lib/run.sh": True,
        "task.py": False,
    }


def test_a_folder_of_any_number_is_a_folder_of_manifests(committed: Repository) -> None:
    text = (committed.root / "jobs" / "census.yaml").read_text()
    text = text.replace("census", "x").replace("../trainer", "../../trainer")
    committed.write("jobs/4913/x.yaml", text)
    assert [action for action, _ in actions(committed)] == ["none", "submit"]


def test_the_text_of_a_link_is_not_sent_as_a_file(committed: Repository) -> None:
    link = committed.root / "trainer" / "more.py"
    link.symlink_to("task.py")
    committed.git("add", ".")
    committed.git("commit", "-q", "-m", "a link")
    assert committed.run("validate").code == 0
    link.unlink()
    link.write_text("task.py")
    committed.git("config", "core.symlinks", "false")
    assert committed.git("status", "--porcelain") == "", "git doesn't say"
    result = committed.run("apply")
    assert result.code == 3
    assert '"trainer/more.py" is a link in git, and here a file with the link\'s text' in result.err
    assert committed.run("validate").code == 3


def test_plan_names_code_that_only_an_exclude_file_of_one_s_own_hides(
    committed: Repository, tmp_path: Path
) -> None:
    committed.write("trainer/notes.txt", "of this clone")
    committed.write("trainer/draft.py", "of this user")
    committed.write("trainer/new.py", "of nobody")
    (committed.root / ".git" / "info" / "exclude").write_text("# mine\nnotes.txt\n")
    config = tmp_path / "config"
    (config / "git").mkdir(parents=True)
    (config / "git" / "ignore").write_text("draft.*\n")
    said = committed.run("plan", "--verbose", XDG_CONFIG_HOME=str(config)).err
    named = [line.partition(":")[0] for line in said.splitlines() if "git doesn't track this file" in line]
    assert named == ["trainer/draft.py", "trainer/notes.txt"]
    assert "`git add --force`" in said
    committed.git("add", "--force", "trainer")
    assert "git doesn't track" not in committed.run("plan", XDG_CONFIG_HOME=str(config)).err
    # A linked work tree has the exclude file of its repository.
    committed.git("worktree", "add", "-q", str(tmp_path / "linked"))
    linked = tmp_path / "linked"
    (linked / "trainer" / "notes.txt").write_text("")
    assert GitIndex(linked, os.environ).hidden(["trainer/notes.txt"]) == ["trainer/notes.txt"]
    assert GitIndex(linked, {"HOME": "/nowhere"}).hidden(["trainer/other.txt"]) == []


class TestLeftOut:
    """Manifests and code that git leaves out of the work tree."""

    def sparse(self, repository: Repository) -> None:
        repository.hold.touch()
        repository.job("census", reconcile="{onDelete: cancel}")
        for name in ("a", "b"):
            text = (repository.root / "jobs" / "census.yaml").read_text()
            repository.write(
                f"jobs/team/{name}.yaml",
                text.replace("census", name).replace("../trainer", "../../trainer"),
            )
        repository.git("init", "-q", "-b", "main")
        repository.git("add", ".")
        repository.git("commit", "-q", "-m", "jobs")
        assert repository.run("apply").code == 0
        repository.git("sparse-checkout", "set", "--no-cone", "/*", "!/jobs/team/")

    def live(self, repository: Repository) -> list[str]:
        states = repository.states()
        return sorted(name.rpartition("_")[0] for name, state in states.items() if state != "CANCELLED")

    def test_nothing_is_cancelled_for_a_manifest_that_a_sparse_checkout_leaves_out(
        self, repository: Repository
    ) -> None:
        self.sparse(repository)
        assert repository.git("status", "--porcelain") == ""
        assert not (repository.root / "jobs" / "team").exists()
        planned = repository.run("plan")
        assert "jobs/team/a.yaml:1:1: warning: " in planned.err
        assert "git leaves 2 manifests out of the work tree" in planned.err
        assert "`git sparse-checkout disable`" in planned.err
        assert repository.run("apply").code == 0
        assert self.live(repository) == ["a", "b", "census"]
        repository.git("sparse-checkout", "disable")
        assert "leaves" not in repository.run("plan").err
        (repository.root / "jobs" / "team" / "a.yaml").unlink()
        assert repository.run("apply").code == 0
        assert self.live(repository) == ["b", "census"]

    def test_a_proposal_removes_no_job_that_is_left_out(self, repository: Repository) -> None:
        self.sparse(repository)
        repository.job("census", args=["more"])
        proposed = repository.run("plan", "--base", "HEAD", "--format", "json")
        assert [change["baseName"] for change in proposed.json["changes"]] == ["census"]
        assert "git leaves 2 manifests out" in proposed.err

    def test_nothing_is_cancelled_for_a_manifest_with_the_skip_worktree_bit(
        self, committed: Repository
    ) -> None:
        committed.job("other")
        committed.git("update-index", "--skip-worktree", "jobs/census.yaml")
        (committed.root / "jobs" / "census.yaml").unlink()
        assert committed.run("apply").code == 0
        assert self.live(committed) == ["census", "other"]
        # A manifest that exists in the work tree counts like any other.
        committed.git("update-index", "--no-skip-worktree", "jobs/census.yaml")
        committed.git("restore", "jobs/census.yaml")
        committed.git("update-index", "--skip-worktree", "jobs/census.yaml")
        assert "leaves" not in committed.run("plan").err
        (committed.root / "jobs" / "other.yaml").unlink()
        assert committed.run("plan", "--format", "json").json["drift"][0]["kind"] == "orphaned"

    def test_nothing_is_cancelled_for_manifests_behind_a_link_that_are_left_out(
        self, repository: Repository
    ) -> None:
        self.sparse(repository)
        repository.git("sparse-checkout", "disable")
        repository.git("mv", "jobs/team", "team")
        (repository.root / "jobs" / "linked").symlink_to("../team")
        for file in (repository.root / "team").iterdir():
            file.write_text(file.read_text().replace("../../trainer", "../trainer"))
        repository.git("add", ".")
        repository.git("commit", "-q", "-m", "a link")
        assert repository.run("apply").code == 0
        for left_out in ("!/team/", "!/team/a.yaml"):
            repository.git("sparse-checkout", "set", "--no-cone", "/*", left_out)
            assert repository.run("apply").code == 0
            assert self.live(repository) == ["a", "b", "census"]
        repository.git("sparse-checkout", "disable")
        # Some mounts have a text file in place of a link.
        (repository.root / "jobs" / "linked").unlink()
        repository.write("jobs/linked", "../team")
        repository.git("config", "core.symlinks", "false")
        result = repository.run("apply")
        assert "git leaves 1 manifest out" in result.err
        assert self.live(repository) == ["a", "b", "census"]

    def test_nothing_is_cancelled_where_git_can_t_say_what_it_leaves_out(
        self, repository: Repository, tmp_path: Path
    ) -> None:
        self.sparse(repository)
        result = repository.run("apply", PATH=str(tmp_path))
        assert result.code == 0
        said = "git can't read this repository, so jobs carry no commit, and none counts as removed"
        assert said in result.err
        assert self.live(repository) == ["a", "b", "census"]

    def test_rules_that_are_left_out_are_an_error(self, committed: Repository) -> None:
        committed.write("trainer/.env", "A=1")
        committed.write(".gitignore", ".reconciler/\n.env\n")
        committed.git("add", ".gitignore")
        committed.git("commit", "-q", "-m", "rules")
        committed.git("update-index", "--skip-worktree", ".gitignore")
        (committed.root / ".gitignore").unlink()
        result = committed.run("apply")
        assert result.code == 3
        assert '".gitignore", which git leaves out of the work tree' in result.err

    def test_code_behind_a_link_that_is_left_out_is_an_error_too(self, committed: Repository) -> None:
        committed.write("common/util/a.py", "")
        committed.write("common/util/b.py", "")
        (committed.root / "trainer" / "util").symlink_to("../common/util")
        committed.git("add", ".")
        committed.git("commit", "-q", "-m", "a link")
        committed.git("sparse-checkout", "set", "--no-cone", "/*", "!/common/util/b.py")
        result = committed.run("apply")
        assert result.code == 3
        assert '"trainer/util/b.py" is left out of the work tree by git' in result.err

    def test_code_that_is_left_out_is_an_error_and_no_smaller_package(self, committed: Repository) -> None:
        committed.write("trainer/deep/model.py", "")
        committed.write("trainer/deep/notes.txt", "")
        committed.write(".gitignore", ".reconciler/\nnotes.txt\n")
        committed.git("add", "-f", ".gitignore", "trainer")
        committed.git("commit", "-q", "-m", "more")
        committed.git("sparse-checkout", "set", "--no-cone", "/*", "!/trainer/deep/")
        result = committed.run("apply")
        assert result.code == 3
        assert '"trainer/deep/model.py" is left out of the work tree by git' in result.err
        assert "notes.txt" not in result.err, "a file that .gitignore excludes is no part of the code"


class TestRefused:
    """A repository that git doesn't read."""

    DUBIOUS: ClassVar = {"GIT_TEST_ASSUME_DIFFERENT_OWNER": "1"}
    ACTIONS: ClassVar = {"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": "acme/jobs", "GITHUB_TOKEN": "unused"}

    def test_in_actions_nothing_is_submitted(self, committed: Repository) -> None:
        committed.job("other")
        result = committed.run("apply", **self.DUBIOUS, **self.ACTIONS)
        assert result.code == 1
        assert "detected dubious ownership" in result.err
        command = f"git config --global --add safe.directory {committed.root}"
        assert f"if you trust it, run `{command}`" in result.err
        assert len([*filter(None, committed.states().values())]) == 1

    def test_in_actions_a_missing_git_is_an_error(self, committed: Repository, tmp_path: Path) -> None:
        committed.job("other")
        (committed.root / ".git").rename(tmp_path / "elsewhere")
        result = committed.run("apply", PATH=str(tmp_path), **self.ACTIONS)
        assert result.code == 1
        assert "git can't be run" in result.err
        assert len([*filter(None, committed.states().values())]) == 1
        assert committed.run("apply").code == 0, "a folder without git is as good as any other"

    def test_a_repository_of_another_user_is_named_with_the_command(
        self, committed: Repository, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        environ = {**os.environ, **self.DUBIOUS}
        assert GitIndex(committed.root, environ).refusal is None, "git is asked only where the owner differs"
        monkeypatch.setattr(git_index.os, "geteuid", lambda: os.getuid() + 1)
        refusal = GitIndex(committed.root, environ).refusal
        assert refusal is not None
        assert "dubious ownership" in refusal.message
        assert "safe.directory" in refusal.hint
        assert GitIndex(committed.root, {**os.environ}).refusal is None, "the user has said so"

    def test_a_checkout_of_another_user_is_told_at_a_desk(
        self, committed: Repository, tmp_path: Path
    ) -> None:
        program = tmp_path / "of_another.py"
        program.write_text(OF_ANOTHER)
        process = committed.start("apply", program=str(program), **self.DUBIOUS)
        _, err = process.communicate()
        assert process.returncode == 0, err
        assert "git can't read this repository, so jobs carry no commit" in err
        assert "safe.directory" in err


def test_git_is_asked_only_where_the_repository_says_that_it_matters(
    committed: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(index: GitIndex) -> Any:
        raise AssertionError("git is asked")

    monkeypatch.setattr(GitIndex, "_git", property(ask))
    index = GitIndex(committed.root, {})
    assert (index.left_out, index.refusal) == ((), None)
    assert (index.is_executable("trainer/task.py"), index.is_link("trainer/task.py")) == (None, False)
    for setting, value in (("core.fileMode", "false"), ("core.symlinks", "false"), ("include.path", "more")):
        committed.git("config", setting, value)
        with pytest.raises(AssertionError, match="git is asked"):
            GitIndex(committed.root, {}).is_link("trainer/task.py")
        committed.git("config", setting, "true")
        committed.git("config", "--unset", setting)
    for number, option in enumerate(("--index-version=4", "--split-index")):
        committed.git("update-index", option)
        assert bool([*(committed.root / ".git").glob("sharedindex.*")]) == bool(number)
        with pytest.raises(AssertionError, match="git is asked"):
            _ = GitIndex(committed.root, {}).left_out


def test_a_second_hash_version_needs_a_store_that_earlier_versions_refuse() -> None:
    """An earlier version takes a job under the new name for missing, and submits it again."""
    assert len(VERSIONS) == 1 or claim_store._FORMAT_VERSION > 1


def run(repository: Repository, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command of another version to its end."""
    process = repository.start(*arguments, program=program)
    out, err = process.communicate()
    return subprocess.CompletedProcess(arguments, process.returncode, out, err)


class TestLineEnds:
    """A checkout with line ends converted by git, and a clean `git status`."""

    def converted(self, team: Team) -> None:
        team.push(args=["1"])
        team.author.git("config", "core.autocrlf", "true")
        for path in team.author.git("ls-files").splitlines():
            (team.author.root / path).unlink()
        team.author.git("restore", ".")
        assert b"\r\n" in (team.author.root / "trainer" / "task.py").read_bytes()
        assert team.author.git("status", "--porcelain") == ""

    def test_nothing_is_submitted_to_the_cloud_until_the_printed_command_was_run(self, cloud: Team) -> None:
        self.converted(cloud)
        (change,) = cloud.run(cloud.author, "plan", "--format", "json").json["changes"]
        assert (change["action"], "has other line ends than in commit" in change["reason"]) == (
            "blocked",
            True,
        )
        result = cloud.run(cloud.author, "apply")
        assert (result.code, cloud.runs()) == (1, [])
        _, command, _ = change["reason"].split("`")
        assert command in result.out
        assert "commit these line ends, or restore the commit's with" in change["reason"]
        # Other rules of the repository don't break the command, nor does a missing line end.
        (cloud.author.root / ".gitattributes").write_text("* text=auto eol=crlf")
        (cloud.author.root / ".git" / "info" / "attributes").write_text("*.py text")
        subprocess.run(["bash", "-c", command], cwd=cloud.author.root, check=True)
        assert cloud.run(cloud.author, "apply").code == 0
        assert cloud.runs() == [("1", "QUEUED")]

    def test_a_live_job_under_the_common_name_is_not_cancelled(self, cloud: Team) -> None:
        cloud.push_and_apply(args=["1"])
        self.converted(cloud)
        assert cloud.run(cloud.author, "apply").code == 1
        assert cloud.runs() == [("1", "QUEUED")]

    def test_what_differs_otherwise_too_is_another_job(self, cloud: Team) -> None:
        self.converted(cloud)
        with (cloud.author.root / "trainer" / "task.py").open("ab") as file:
            file.write(b"\r\n# more\r\n")
        assert cloud.run(cloud.author, "apply").code == 0
        assert cloud.runs() == [("1", "QUEUED")]

    @pytest.mark.slow
    def test_the_embedded_service_runs_it_and_says_so(self, local: Team) -> None:
        self.converted(local)
        result = local.run(local.author, "apply")
        assert (result.code, local.runs()) == (0, [("1", "QUEUED")])
        assert "has other line ends than in commit" in result.err


@pytest.mark.slow
def test_base_in_a_partial_clone_prints_the_command_that_completes_it(local: Team) -> None:
    local.push(args=["1"])
    local.push(args=["2"])
    for setting in ("allowFilter", "allowAnySHA1InWant"):
        local.author.git("config", "--file", str(local.origin / "config"), f"uploadpack.{setting}", "true")
    clone = local.clone("partial", "--filter=blob:none")
    result = local.run(clone, "plan", "--base", "HEAD~1")
    assert result.code != 0
    command = "git fetch --refetch --no-filter"
    assert f"run `{command}`" in result.err
    clone.git(*command.split()[1:])
    assert "+ submit census" in local.run(clone, "plan", "--base", "HEAD~1").out
