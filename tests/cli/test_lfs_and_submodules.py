"""Files missing from a checkout: files in Git LFS, replaced by a pointer, and files of submodules."""

from __future__ import annotations

import hashlib
import os
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.errors import InvalidError
from reconciler.base.git_command import Git
from reconciler.git.index import GitIndex
from reconciler.manifests.settings import load_config
from reconciler.model.plan import Edit
from reconciler.model.stand_ins import CodeUse
from reconciler.operations.load_desired import load_desired
from reconciler.operations.origin import Origin, origin_of, uncarried
from reconciler.operations.pull_request import proposal_of
from reconciler.operations.watch.loop import run_pass
from reconciler.operations.watch.state import Checkout, LoopCache
from reconciler.packaging.sdist import build_code, build_sdist
from reconciler.packaging.source_tree import SourceFile, SourceTree, SourceTreeError
from tests.support.repository import Repository, Result

WEIGHTS = bytes(range(256)) * 8
BASE = ("plan", "--base", "HEAD~1")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Return a committed repository with a single job."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    made = Repository(tmp_path / "repository")
    monkeypatch.chdir(made.root)
    made.job("census")
    commit(made)
    return made


def commit(tree: Repository) -> str:
    if not (tree.root / ".git").exists():
        tree.git("init", "-q", "-b", "main")
    tree.git("add", "-A")
    tree.git("commit", "-q", "--allow-empty", "-m", "more")
    return tree.git("rev-parse", "HEAD")


def pointer(content: bytes = WEIGHTS) -> str:
    """Return the text that git-lfs writes for a file."""
    digest = hashlib.sha256(content).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n"


def planned(tree: Repository, *arguments: str) -> Any:
    """Return the only change of a plan."""
    done = tree.run(*(arguments or ("plan",)), "--format", "json")
    assert done.code == 0, done.err
    (change,) = done.json["changes"]
    return change


def words(done: Result) -> str:
    return " ".join(done.err.split())


# Git LFS


@pytest.mark.slow
def test_pointer_in_a_package_gives_the_job_the_name_of_the_real_file(tree: Repository) -> None:
    (tree.root / "trainer/model.bin").write_bytes(WEIGHTS)
    name = planned(tree)["jobName"]
    tree.write("trainer/model.bin", pointer())
    assert planned(tree)["jobName"] == name
    tree.write("trainer/model.bin", pointer(b"other weights"))
    assert planned(tree)["jobName"] != name
    tree.write("trainer/model.bin", pointer())
    (tree.root / "trainer/model.bin").chmod(0o755)
    assert planned(tree)["jobName"] != name, "the bit counts as ever"


@pytest.mark.slow
def test_plan_with_pointers_warns_once_and_has_no_digest(tree: Repository) -> None:
    tree.job("second")
    whole = tree.run("plan", "--format", "json").json
    assert whole["digest"]
    for name in ("a.bin", "b.bin"):
        tree.write(f"trainer/{name}", pointer(name.encode()))
    done = tree.run("plan")
    assert done.code == 0
    assert done.err.count("Git LFS pointer") == 1
    assert "trainer/a.bin:1:1: warning: this is a Git LFS pointer" in done.err
    assert (
        "as 1 more file of the code: apply needs the file, for which its action has `lfs: true`" in done.err
    )
    assert "Digest" not in done.out
    found = tree.run("plan", "--format", "json").json
    assert found["digest"] is None
    (warning,) = found["problems"]
    assert (warning["path"], warning["level"]) == ("trainer/a.bin", "warning")
    assert tree.run("validate").code == 0, "nothing is staged"
    assert tree.run("status").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("command", [("apply",), ("render", "census")], ids=" ".join)
def test_command_that_stages_refuses_a_pointer(tree: Repository, command: tuple[str, ...]) -> None:
    for name in ("model.bin", "tokens.bin", "vocabulary.bin"):
        tree.write(f"trainer/{name}", pointer(name.encode()))
    done = tree.run(*command)
    assert done.code == 3
    assert "jobs/census.yaml:8:9: " in done.err
    said = '"trainer/model.bin" is a Git LFS pointer, and not the file itself, as 2 more files of the package'
    assert said in done.err
    assert "get it by `git lfs pull`, in GitHub Actions by `lfs: true` of the apply action" in words(done)


def test_pass_of_watch_refuses_a_pointer(tree: Repository) -> None:
    tree.write("trainer/model.bin", pointer())
    done = run_pass(Checkout(tree.root, "", os.environ, None), LoopCache(), None)
    assert isinstance(done.error, InvalidError)
    assert "Git LFS pointer" in done.error.problems[0].message


def test_archive_is_never_built_without_a_file() -> None:
    missing = SourceFile("m.bin", False, b"", pointer=hashlib.sha256(b"").hexdigest())
    code = SourceTree((SourceFile("task.py", False, b""), missing))
    for build in (build_sdist, build_code):
        with pytest.raises(SourceTreeError, match=r'"m\.bin" is not here'):
            build(code, "task")


def test_lock_and_build_files_in_git_lfs_are_left_unchecked_by_a_plan(tree: Repository) -> None:
    for name in ("requirements.txt", "setup.cfg", "pyproject.toml"):
        tree.write(f"trainer/{name}", pointer(name.encode()))
    assert planned(tree)["action"] == "submit"


@pytest.mark.slow
def test_text_like_a_pointer_is_an_ordinary_file(tree: Repository) -> None:
    tree.write("trainer/model.bin", pointer() + "\n")
    assert "pointer" not in tree.run("plan").err
    assert tree.run("render", "census").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("path", ["jobs/census.yaml", "jobs/second.yml", "reconciler.yaml"])
def test_pointer_in_the_place_of_what_is_read_as_text_is_an_error(tree: Repository, path: str) -> None:
    tree.write(path, pointer())
    for command in (("validate",), ("plan",), ("apply",), ("plan", "--base", "HEAD")):
        done = tree.run(*command)
        assert done.code == 3, command
        both = done.out + done.err
        assert f"{path}:1:1: this is a Git LFS pointer, and not the file itself" in both, command
        assert "`git lfs pull`, in GitHub Actions by `lfs: true` of the apply action" in " ".join(
            both.split()
        )


@pytest.mark.slow
def test_plan_against_a_base_compares_pointers_by_what_they_stand_for(tree: Repository) -> None:
    tree.write("trainer/model.bin", pointer())
    tree.write("trainer/other.bin", pointer(b"as ever"))
    commit(tree)
    # Neither a pointer nor the file that it stands for is a change.
    assert tree.run("plan", "--base", "HEAD").out.endswith("no job differs, 1 unchanged.\n")
    (tree.root / "trainer/model.bin").write_bytes(WEIGHTS)
    assert tree.run("plan", "--base", "HEAD").out.endswith("no job differs, 1 unchanged.\n")
    tree.write("trainer/model.bin", pointer(b"other weights"))
    tree.write("trainer/task.py", "print()\n")
    commit(tree)
    change = planned(tree, *BASE)
    assert [file["path"] for file in change["files"]] == ["trainer/model.bin", "trainer/task.py"]
    assert (change["files"][0]["added"], change["files"][0]["removed"]) == (None, None)
    text = tree.run(*BASE).out
    assert "trainer/model.bin  Git LFS\n" in text
    note = (
        '"trainer/model.bin" is a Git LFS pointer, and not the file itself, as 1 more file of the code: '
        "apply needs the file, for which its action has `lfs: true`."
    )
    assert text.count(note) == 1
    (tree.root / "trainer/model.bin").write_bytes(b"other weights")
    (tree.root / "trainer/other.bin").write_bytes(b"as ever")
    assert planned(tree)["jobName"] == change["jobName"], "the name that apply gives"


@pytest.mark.slow
def test_plan_against_a_base_has_no_note_where_no_job_with_a_pointer_changes(tree: Repository) -> None:
    tree.write("trainer/model.bin", pointer())
    commit(tree)
    assert "Git LFS" not in tree.run("plan", "--base", "HEAD").out


def test_name_without_pointers_is_that_of_earlier_versions(tree: Repository) -> None:
    code = SourceTree((SourceFile("a.py", False, b"1"), SourceFile("é/b", True, b"2")))
    assert code.digest == "2e4af4753b52907c4acb5117cc5b0325752137626cd6733d63bececaf48f307a"


# Submodules


@pytest.fixture
def library(tmp_path: Path) -> Repository:
    """Return a separate repository for code that others share."""
    made = Repository.__new__(Repository)
    made.root = tmp_path / "library"
    made.write("common/task.py", "print('common')\n")
    made.write("common/data.txt", "1\n")
    made.write(".gitignore", "*.log\n")
    commit(made)
    return made


@pytest.fixture
def nested(tree: Repository, library: Repository) -> Repository:
    """Return a repository with a submodule in a job's package, fetched and committed."""
    add(tree, library, "trainer/lib")
    commit(tree)
    return tree


def add(tree: Repository, library: Repository, path: str) -> None:
    tree.git("-c", "protocol.file.allow=always", "submodule", "--quiet", "add", str(library.root), path)


def use(tree: Repository, package: str, module: str = "common.task") -> None:
    """Set the job's package to another folder."""
    manifest = tree.job("census")
    text = manifest.read_text().replace("../trainer", f"../{package}")
    manifest.write_text(text.replace("pythonModule: task", f"pythonModule: {module}"))


def move(tree: Repository, library: Repository, path: str = "trainer/lib") -> str:
    """Commit to the library, and check this commit out in the submodule."""
    library.write("common/task.py", "print('moved')\n")
    sha = commit(library)
    tree.git("-C", path, "fetch", "-q", str(library.root), "main")
    tree.git("-C", path, "checkout", "-q", sha)
    return sha


def cloned(tree: Repository, to: Path) -> Repository:
    """Return a clone without files of submodules, as `git clone` and actions/checkout create it."""
    tree.git("clone", "-q", str(tree.root), str(to))
    made = Repository.__new__(Repository)
    made.root = to
    made.starts, made.hold = tree.root.parent / "starts.txt", tree.root.parent / "hold"
    return made


def edits(tree: Repository, base: str = "HEAD~1") -> dict[str, Edit | None]:
    found = proposal_of(tree.root, None, base, (), os.environ)
    assert found.comparison
    assert not found.comparison.problems
    assert not found.comparison.base_problems
    return {change.base_name: change.edit for change in found.changes}


PLACES = {
    "in the package": ("trainer/lib", "trainer", "task"),
    "the package itself": ("code", "code", "common.task"),
    "around the package": ("vendor/lib", "vendor/lib/common", "task"),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("is_gone", [False, True], ids=["empty", "missing"])
def test_unfetched_submodule_of_a_package_is_refused_with_a_remedy_that_helps(
    tree: Repository, library: Repository, tmp_path: Path, place: tuple[str, str, str], is_gone: bool
) -> None:
    path, package, module = place
    add(tree, library, path)
    use(tree, package, module)
    commit(tree)
    name = planned(tree)["jobName"]
    clone = cloned(tree, tmp_path / "clone")
    if is_gone:
        (clone.root / path).rmdir()
    for command in (("plan",), ("apply",), ("render", "census")):
        done = clone.run(*command)
        assert done.code == 3, command
        assert f'"{path}" is a submodule that isn\'t fetched' in done.err
        assert "no module" not in done.err
        assert "in GitHub Actions by `submodules: true` of the apply action" in words(done)
    assert clone.run("validate").code == 0, "the manifest is right"
    follow(clone, done)
    assert planned(clone)["jobName"] == name


def follow(tree: Repository, done: Result) -> None:
    """Run the git command that an error names; a test's remotes are folders."""
    command = re.search("`git ([^`]+)`", done.err)
    assert command
    tree.git("-c", "protocol.file.allow=always", *shlex.split(command[1]))


@pytest.mark.slow
def test_unfetched_submodule_in_a_submodule_is_refused_with_a_remedy_that_helps(
    nested: Repository, library: Repository, tmp_path: Path
) -> None:
    inner = cloned(library, tmp_path / "inner")
    add(library, inner, "common/deep")
    move(nested, library)
    commit(nested)
    assert not any((nested.root / "trainer/lib/common/deep").iterdir())
    done = nested.run("plan")
    assert done.code == 3
    assert '"trainer/lib/common/deep" is a submodule that isn\'t fetched' in done.err
    assert "`submodules: recursive`" in done.err
    follow(nested, done)
    assert planned(nested)["action"] == "submit"


@pytest.mark.slow
def test_unfetched_submodule_behind_a_link_is_refused(
    tree: Repository, library: Repository, tmp_path: Path
) -> None:
    add(tree, library, "vendor/lib")
    (tree.root / "trainer/common").symlink_to("../vendor/lib/common")
    commit(tree)
    planned(tree)
    clone = cloned(tree, tmp_path / "clone")
    done = clone.run("plan")
    assert done.code == 3
    assert '"vendor/lib" is a submodule that isn\'t fetched' in done.err


@pytest.mark.slow
def test_submodule_elsewhere_concerns_no_job(tree: Repository, library: Repository, tmp_path: Path) -> None:
    add(tree, library, "vendor/lib")
    commit(tree)
    clone = cloned(tree, tmp_path / "clone")
    assert planned(clone)["jobName"] == planned(tree)["jobName"]
    assert edits(clone) == {"census": Edit.UNCHANGED}


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
@pytest.mark.parametrize("is_fetched", [False, True], ids=["unfetched", "fetched"])
def test_plan_against_a_base_compares_recorded_commits(
    tree: Repository, library: Repository, tmp_path: Path, place: tuple[str, str, str], is_fetched: bool
) -> None:
    path, package, module = place
    add(tree, library, path)
    use(tree, package, module)
    first = library.git("rev-parse", "HEAD")
    commit(tree)
    tree.write("notes.txt", "")
    commit(tree)
    second = move(tree, library, path)
    commit(tree)
    tree = tree if is_fetched else cloned(tree, tmp_path / "clone")
    assert edits(tree) == {"census": Edit.CHANGED}
    change = planned(tree, *BASE)
    assert change["jobName"] == "census (name known at apply)"
    assert change["reason"] == "the code changed"
    text = tree.run(*BASE).out
    assert "+ submit census (name known at apply)  CustomJob  jobs/census.yaml:" in text
    assert f"  submodule {first[:7]} → {second[:7]}\n" in text
    assert "name known at apply" in tree.run(*BASE, "--format", "markdown").out
    tree.git("checkout", "-q", "HEAD~1")
    assert edits(tree) == {"census": Edit.UNCHANGED}
    tree.git("checkout", "-q", "HEAD~1")
    assert planned(tree, *BASE)["jobName"] == "census (name known at apply)"


@pytest.mark.slow
def test_plan_against_a_base_sees_other_changes_beside_a_submodule(
    nested: Repository, tmp_path: Path
) -> None:
    nested.write("trainer/task.py", "print()\n")
    commit(nested)
    clone = cloned(nested, tmp_path / "clone")
    change = planned(clone, *BASE)
    assert [file["path"] for file in change["files"]] == ["trainer/task.py"]
    (clone.root / "jobs/census.yaml").unlink()
    commit(clone)
    assert planned(clone, *BASE)["jobName"] == "census"


@pytest.mark.slow
def test_package_that_moves_within_a_submodule_is_a_change(
    tree: Repository, library: Repository, tmp_path: Path
) -> None:
    library.write("other/task.py", "print('other')\n")
    commit(library)
    add(tree, library, "vendor/lib")
    use(tree, "vendor/lib/common", "task")
    commit(tree)
    use(tree, "vendor/lib/other", "task")
    commit(tree)
    assert edits(cloned(tree, tmp_path / "clone")) == {"census": Edit.CHANGED}


@pytest.mark.slow
def test_validate_in_a_checkout_without_submodules_takes_a_module_that_may_be_there(
    tree: Repository, library: Repository, tmp_path: Path
) -> None:
    add(tree, library, "trainer/lib")
    use(tree, "trainer", "lib.common.score")
    commit(tree)
    clone = cloned(tree, tmp_path / "clone")
    assert clone.run("validate").code == 0
    assert edits(clone) == {"census": Edit.CHANGED}
    use(clone, "trainer/../jobs/nowhere", "task")
    assert clone.run("validate").code == 3, "any other package is checked as ever"


@pytest.mark.slow
def test_manifests_of_an_unfetched_submodule_count_as_left_out(
    tree: Repository, library: Repository, tmp_path: Path
) -> None:
    shared = tree.job("shared").read_text()
    (tree.root / "jobs/shared.yaml").unlink()
    library.write("shared.yaml", shared.replace("../trainer", "../../trainer"))
    commit(library)
    add(tree, library, "jobs/more")
    commit(tree)
    clone = cloned(tree, tmp_path / "clone")
    config = load_config(clone.root)
    desired = load_desired(config, config.environment(None), [])
    assert not desired.whole
    done = clone.run("plan")
    assert (
        "jobs/more:1:1: warning: this submodule's manifests aren't read, so no job counts as removed"
        in done.err
    )
    assert edits(clone) == edits(tree) == {"census": Edit.UNCHANGED}


# The commit that jobs carry


def origin(tree: Repository) -> tuple[Origin, list[str]]:
    config = load_config(tree.root)
    desired = load_desired(config, config.environment(None), [], use=CodeUse.STAGED)
    found = origin_of(config, desired, desired.jobs, os.environ, whole=True)
    return found, uncarried(found, desired.jobs)


@pytest.mark.slow
def test_submodule_at_its_recorded_commit_counts_as_committed(nested: Repository) -> None:
    head = nested.git("rev-parse", "HEAD")
    assert origin(nested)[0].exact == head
    # Files excluded by the submodule's .gitignore, and byte code, aren't part of the package.
    nested.write("trainer/lib/run.log", "")
    nested.write("trainer/lib/__pycache__/task.pyc", "")
    assert origin(nested)[0].exact == head


@pytest.mark.slow
@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_submodule_anywhere_in_or_around_a_package_counts_as_committed(
    tree: Repository, library: Repository, place: tuple[str, str, str]
) -> None:
    path, package, module = place
    add(tree, library, path)
    use(tree, package, module)
    assert origin(tree)[0].exact == "", "the manifest isn't committed"
    head = commit(tree)
    assert origin(tree)[0].exact == head


@pytest.mark.slow
def test_submodule_at_another_commit_is_named(nested: Repository, library: Repository) -> None:
    head, recorded = nested.git("rev-parse", "HEAD"), library.git("rev-parse", "HEAD")
    move(nested, library)
    found, lines = origin(nested)
    assert found.exact == ""
    said = (
        f"trainer/lib is a submodule at another commit than {recorded[:7]}, which commit {head[:7]} records"
    )
    assert lines == [f"{said}: census carries no commit"]
    nested.git("add", "trainer/lib")
    assert origin(nested)[0].exact == "", "the index is not the commit"
    head = commit(nested)
    assert origin(nested)[0].exact == head


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "path", "how"),
    [
        (lambda at: (at / "common/task.py").write_text("print()\n"), "common/task.py", "differs from"),
        (lambda at: (at / "new.py").write_text(""), "new.py", "is not in"),
        (lambda at: (at / "common/data.txt").unlink(), "common/data.txt", "is only in"),
        (
            lambda at: (at / "common/task.py").chmod(0o755),
            "common/task.py",
            "has a different executable bit than in",
        ),
        (
            lambda at: (at / "common/data.txt").write_text("1\r\n"),
            "common/data.txt",
            "differs from",
        ),
    ],
    ids=["changed", "new", "deleted", "mode", "line ends"],
)
def test_changed_file_of_a_submodule_is_named(
    nested: Repository, library: Repository, change: Callable[[Path], object], path: str, how: str
) -> None:
    head, recorded = nested.git("rev-parse", "HEAD"), library.git("rev-parse", "HEAD")
    change(nested.root / "trainer/lib")
    found, lines = origin(nested)
    (line,) = lines
    said = f"commit {recorded[:7]} of the submodule trainer/lib, which commit {head[:7]} records"
    assert line == f"trainer/lib/{path} {how} {said}: census carries no commit"
    assert not found.line_ends, "git restore reaches no file of a submodule"


@pytest.mark.slow
def test_manifest_of_a_submodule_carries_the_commit_around_it(tree: Repository, library: Repository) -> None:
    shared = tree.job("shared").read_text()
    (tree.root / "jobs/shared.yaml").unlink()
    library.write("shared.yaml", shared.replace("../trainer", "../../trainer"))
    commit(library)
    add(tree, library, "jobs/more")
    head = commit(tree)
    assert origin(tree)[0].exact == head
    (tree.root / "jobs/more/shared.yaml").unlink()
    found, _ = origin(tree)
    assert found.exact == ""
    assert "jobs/more/shared.yaml is only in commit" in found.elsewhere[0]


@pytest.mark.slow
def test_no_program_of_a_submodule_runs(nested: Repository, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    inner = nested.root / "trainer/lib"
    for name, value in {
        "core.fsmonitor": f"touch {ran}",
        "core.hooksPath": str(tmp_path),
        "filter.lfs.clean": f"touch {ran}; cat",
        "filter.lfs.smudge": f"touch {ran}; cat",
        "filter.lfs.process": f"touch {ran}",
    }.items():
        nested.git("-C", str(inner), "config", name, value)
    (inner / ".gitattributes").write_text("* filter=lfs\n")
    os.utime(inner / "common/task.py", (1, 1))
    origin(nested)
    planned(nested)
    planned(nested, "plan", "--base", "HEAD")
    assert not ran.exists()


# Programs


@pytest.mark.slow
def test_git_is_asked_for_submodules_only_where_the_index_has_one(
    tree: Repository, library: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(Git, "run", _noting(asked, Git.run))
    config = load_config(tree.root)
    load_desired(config, config.environment(None), [])
    assert asked == []
    for version in ("2", "3", "4"):
        tree.git("update-index", "--index-version", version)
        assert GitIndex(tree.root, os.environ).submodules == {}
    assert asked == []
    add(tree, library, "trainer/lib")
    sha = library.git("rev-parse", "HEAD")
    for version in ("2", "3", "4"):
        tree.git("update-index", "--index-version", version)
        assert GitIndex(tree.root, os.environ).submodules == {"trainer/lib": sha}
    tree.git("update-index", "--split-index")
    assert GitIndex(tree.root, os.environ).submodules == {"trainer/lib": sha}


def _noting(asked: list[tuple[str, ...]], run: Callable[..., bytes]) -> Callable[..., bytes]:
    def noting(git: Git, *arguments: str, **options: Any) -> bytes:
        asked.append(arguments)
        return run(git, *arguments, **options)

    return noting
