"""A job carries the commit of its files, despite any change of the work tree."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from reconciler.base.git_command import Git
from reconciler.manifests.checked_files import CheckedFiles
from reconciler.manifests.settings import Config, load_config
from reconciler.operations import origin as origin_module
from reconciler.operations.apply import ApplyListener
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.origin import MAX_LINES, Origin, exported, origin_of, uncarried
from reconciler.operations.watch.loop import run_pass
from reconciler.operations.watch.remote import Clone
from reconciler.operations.watch.state import Checkout, LoopCache
from reconciler.packaging.source_tree import SourceFile, SourceTree
from reconciler.planning.outcome import Outcome
from tests.support.repository import Repository, switching_git

Change = Callable[[Repository], object]


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repository:
    """Return a clean checkout: census and trees with the trainer's code, plain without code."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    made = Repository(tmp_path / "repository")
    made.job("census")
    made.job("trees", args=["--depth=1"])
    made.write("jobs/plain.yaml", PLAIN)
    made.write("trainer/data/numbers.csv", "1,2\n")
    made.write("trainer/.gitignore", "*.log\n")
    made.git("init", "-q", "-b", "main")
    commit(made)
    return made


PLAIN = textwrap.dedent("""
    apiVersion: aiplatform.googleapis.com/v1
    kind: CustomJob
    metadata: {name: plain}
    spec:
      workerPoolSpecs:
        - machineSpec: {machineType: n1-standard-4}
          replicaCount: 1
          containerSpec: {imageUri: "example.test/plain:1"}
""")


def commit(tree: Repository, *options: str) -> str:
    tree.git("add", "-A")
    tree.git("commit", "-q", "--allow-empty", "-m", "more", *options)
    return tree.git("rev-parse", "HEAD")


def read(tree: Repository, checked: CheckedFiles | None = None) -> tuple[Config, Desired]:
    config = load_config(tree.root)
    return config, load_desired(config, config.environment(None), [], checked)


def origin(tree: Repository, seen: tuple[Config, Desired] | None = None, *, whole: bool = True) -> Origin:
    config, desired = seen or read(tree)
    return origin_of(config, desired, desired.jobs, os.environ, whole=whole)


def carried(tree: Repository, seen: tuple[Config, Desired] | None = None) -> dict[str, str]:
    """Return the commit that each job carries, by base name."""
    _, desired = seen = seen or read(tree)
    found = origin(tree, seen)
    return {job.manifest.name: found.commit_of(job) for job in desired.jobs}


def lines(tree: Repository, seen: tuple[Config, Desired] | None = None) -> list[str]:
    _, desired = seen = seen or read(tree)
    return uncarried(origin(tree, seen), desired.jobs)


def test_each_job_of_a_clean_checkout_carries_its_commit(tree: Repository) -> None:
    head = tree.git("rev-parse", "HEAD")
    assert carried(tree) == dict.fromkeys(("census", "trees", "plain"), head)
    assert origin(tree).exact == head
    assert lines(tree) == []


def test_the_root_may_be_a_folder_of_the_repository(tree: Repository) -> None:
    (tree.root / ".git").rename(tree.root.parent / ".git")
    shutil.rmtree(tree.home, ignore_errors=True)
    above = Repository.__new__(Repository)
    above.root = tree.root.parent
    head = commit(above)
    assert set(carried(tree).values()) == {head}
    assert origin(tree).exact == head


def write(path: str, text: str = "changed = True\n") -> Change:
    return lambda tree: tree.write(path, text)


def linked(tree: Repository) -> None:
    """Replace a file by a link to other content of the repository."""
    (tree.root / "trainer" / "data" / "numbers.csv").unlink()
    (tree.root / "trainer" / "data" / "numbers.csv").symlink_to("../../reconciler.yaml")


def converted(tree: Repository) -> None:
    """Write a file as `core.autocrlf` checks it out; `git status` stays clean."""
    tree.git("config", "core.autocrlf", "true")
    (tree.root / "trainer" / "task.py").unlink()
    tree.git("checkout", "--", "trainer/task.py")
    assert b"\r\n" in (tree.root / "trainer" / "task.py").read_bytes()
    assert tree.git("status", "--porcelain") == ""


CODE = {"census", "trees"}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("change", "without", "named"),
    [
        (lambda t: t.job("census", args=["--new"]), {"census"}, "jobs/census.yaml differs from"),
        (lambda t: t.job("fresh"), {"fresh"}, "jobs/fresh.yaml is not in"),
        (lambda t: (t.root / "trainer/task.py").open("a").write("#"), CODE, "trainer/task.py differs from"),
        (write("trainer/new.py"), CODE, "trainer/new.py is not in"),
        (write("trainer/data/new.csv"), CODE, "trainer/data/new.csv is not in"),
        (
            lambda t: (t.root / "trainer/data/numbers.csv").unlink(),
            CODE,
            "trainer/data/numbers.csv is only in",
        ),
        (
            lambda t: (t.root / "trainer/task.py").chmod(0o755),
            CODE,
            "trainer/task.py has a different executable",
        ),
        (linked, CODE, "trainer/data/numbers.csv differs from"),
        (converted, CODE, "trainer/task.py has other line ends than in"),
        (write("trainer/.gitignore", "*.log\n*.csv\n"), CODE, "trainer/.gitignore differs from"),
        (write(".gitignore", ".reconciler/\n*.csv\n"), CODE, "trainer/data/numbers.csv is only in"),
        (
            lambda t: (t.root / "reconciler.yaml").open("a").write("# a comment\n"),
            {*CODE, "plain"},
            "reconciler.yaml differs from",
        ),
        (lambda t: (t.root / "reconciler.yaml").unlink(), {*CODE, "plain"}, "reconciler.yaml is only in"),
    ],
    ids=[
        "manifest",
        "new manifest",
        "code",
        "new code",
        "new data",
        "deleted data",
        "mode",
        "link",
        "line ends",
        "rules",
        "rules above",
        "settings",
        "no settings",
    ],
)
def test_only_jobs_made_of_a_file_that_differs_carry_no_commit(
    tree: Repository, change: Change, without: set[str], named: str
) -> None:
    head = tree.git("rev-parse", "HEAD")
    change(tree)
    found = carried(tree)
    assert {name for name, sha in found.items() if not sha} == without
    assert set(found.values()) <= {head, ""}
    (line,) = lines(tree)
    assert line.startswith(f"{named} "), line
    assert f"commit {head[:7]}: " in line
    assert origin(tree).exact == ""
    assert origin(tree).commit == head


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        write("notes.txt"),
        write("jobs/notes.txt"),
        write("other/code.py"),
        write("trainer/run.log"),
        write("trainer/__pycache__/task.pyc"),
        write("jobs/.hidden/job.yaml"),
        lambda tree: os.utime(tree.root / "trainer" / "task.py", (1, 1)),
        lambda tree: tree.git("rm", "-q", "--cached", "trainer/task.py"),
        lambda tree: (tree.root / "jobs" / "census.yaml").chmod(0o755),
    ],
    ids=["beside", "no manifest", "other", "ignored", "byte code", "hidden", "times", "index", "mode"],
)
def test_what_no_job_is_made_of_takes_no_commit_away(tree: Repository, change: Change) -> None:
    change(tree)
    assert origin(tree).exact == tree.git("rev-parse", "HEAD")


def test_a_manifest_that_only_the_commit_has_keeps_the_tree_from_being_the_commit(tree: Repository) -> None:
    head = tree.git("rev-parse", "HEAD")
    (tree.root / "jobs" / "plain.yaml").unlink()
    found = origin(tree)
    assert carried(tree) == dict.fromkeys(CODE, head)
    assert (found.exact, found.elsewhere) == ("", (f"jobs/plain.yaml is only in commit {head[:7]}",))
    assert origin(tree, whole=False).exact == head, "paths were named: other manifests don't count"


def test_the_last_manifest_that_only_the_commit_has_is_noticed_too(tree: Repository) -> None:
    shutil.rmtree(tree.root / "jobs")
    (tree.root / "jobs").mkdir()
    assert len(origin(tree).elsewhere) == 3
    assert origin(tree).exact == ""
    head = commit(tree)
    assert origin(tree).exact == head, "a commit without jobs"


def test_a_file_below_a_package_is_no_manifest_that_was_left_out(tree: Repository) -> None:
    tree.write("jobs/code/task.py", "")
    tree.write("jobs/code/settings.yaml", "learning: 1\n")
    manifest = tree.job("near")
    manifest.write_text(manifest.read_text().replace("../trainer", "code"))
    assert origin(tree, None).exact == ""
    head = commit(tree)
    assert origin(tree).exact == head


def test_manifests_in_hidden_folders_of_the_commit_are_none(tree: Repository) -> None:
    tree.write("jobs/.hidden/job.yaml", PLAIN)
    head = commit(tree)
    assert origin(tree).exact == head


@pytest.mark.slow
def test_links_are_followed_in_the_commit_as_in_the_work_tree(tree: Repository) -> None:
    tree.write("shared/linked.yaml", PLAIN.replace("plain", "linked"))
    (tree.root / "jobs" / "linked.yaml").symlink_to("../shared/linked.yaml")
    (tree.root / "jobs" / "more").symlink_to("../more")
    tree.write("more/deep.yaml", PLAIN.replace("plain", "deep"))
    (tree.root / "now").symlink_to("trainer")
    manifest = tree.job("census")
    manifest.write_text(manifest.read_text().replace("../trainer", "../now"))
    head = commit(tree)
    assert origin(tree).exact == head
    assert set(carried(tree)) == {"census", "trees", "plain", "linked", "deep"}

    # The manifest and the code are the same, but in the commit the link leads to other code.
    shutil.copytree(tree.root / "trainer", tree.root / "later")
    tree.write("later/task.py", "print('later')\n")
    (tree.root / "now").unlink()
    (tree.root / "now").symlink_to("later")
    head = commit(tree)
    (tree.root / "now").unlink()
    (tree.root / "now").symlink_to("trainer")
    assert carried(tree)["census"] == ""
    assert carried(tree)["trees"] == head
    assert lines(tree) == [f"trainer/task.py differs from commit {head[:7]}: census carries no commit"]


def test_files_of_git_lfs_are_compared_by_their_pointers_and_no_filter_runs(
    tree: Repository, tmp_path: Path
) -> None:
    content = os.urandom(4096)
    pointer = (
        "version https://git-lfs.github.com/spec/v1\n"
        f"oid sha256:{hashlib.sha256(content).hexdigest()}\nsize {len(content)}\n"
    )
    tree.write("trainer/data/model.bin", pointer)
    tree.git("config", "filter.lfs.clean", f"touch {tmp_path}/ran; cat")
    tree.git("config", "filter.lfs.smudge", f"touch {tmp_path}/ran; cat")
    head = commit(tree)
    tree.write(".gitattributes", "*.bin filter=lfs\n")
    (tree.root / "trainer" / "data" / "model.bin").write_bytes(content)
    assert origin(tree).exact == head
    (tree.root / "trainer" / "data" / "model.bin").write_bytes(content + b"!")
    assert carried(tree)["census"] == ""
    assert not (tmp_path / "ran").exists()


def test_differing_files_are_named_up_to_a_limit_and_then_counted(tree: Repository) -> None:
    head = tree.git("rev-parse", "HEAD")
    for number in range(MAX_LINES + 2):
        tree.job(f"fresh_{number}")
    tree.write("trainer/task.py", "print()\n")
    said = lines(tree)
    assert said[0] == f"trainer/task.py differs from commit {head[:7]}: census and 1 more job carry no commit"
    assert said[1] == f"jobs/fresh_0.yaml is not in commit {head[:7]}: fresh_0 carries no commit"
    assert said[-1] == "3 more files differ: fresh_4 and 2 more jobs carry no commit"
    assert len(said) == MAX_LINES + 1


def test_files_as_they_were_read_count_and_not_as_they_are_now(tree: Repository) -> None:
    head = tree.git("rev-parse", "HEAD")
    as_committed = read(tree)
    for path in ("jobs/census.yaml", "trainer/task.py", "reconciler.yaml"):
        (tree.root / path).open("a").write("# later\n")
    assert set(carried(tree, as_committed).values()) == {head}
    edited = read(tree)
    tree.git("checkout", "-q", "--", ".")
    assert tree.git("status", "--porcelain") == ""
    assert set(carried(tree, edited).values()) == {""}


def test_files_that_were_checked_before_count_as_read(tree: Repository) -> None:
    """HEAD moves, as in a branch switch, and no file changes."""
    first = tree.git("rev-parse", "HEAD")
    tree.git("switch", "-q", "-c", "other")
    tree.job("trees", args=["--depth=2"])
    second = commit(tree)
    tree.git("switch", "-q", "main")
    checked = CheckedFiles()
    for _ in range(2):
        assert set(carried(tree, read(tree, checked)).values()) == {first}
    tree.git("symbolic-ref", "HEAD", "refs/heads/other")
    assert carried(tree, read(tree, checked)) == {"census": second, "plain": second, "trees": ""}


def test_a_job_whose_digest_is_not_known_carries_no_commit(tree: Repository) -> None:
    config, desired = read(tree)
    jobs = tuple(replace(job, manifest=replace(job.manifest, digest=b"")) for job in desired.jobs)
    assert set(carried(tree, (config, replace(desired, jobs=jobs))).values()) == {""}


def test_without_a_commit_there_is_none_and_no_complaint(
    tree: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(tree.root / ".git")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    assert (origin(tree).commit, lines(tree)) == ("", [])
    tree.git("init", "-q")
    assert (origin(tree).commit, lines(tree)) == ("", [])


def test_a_repository_of_sha256_objects_gives_no_commit_and_says_why(tree: Repository) -> None:
    shutil.rmtree(tree.root / ".git")
    tree.git("init", "-q", "--object-format=sha256")
    commit(tree)
    assert set(carried(tree).values()) == {""}
    (line,) = lines(tree)
    assert "carry no commit: the repository uses SHA-256 object names" in line


def test_a_commit_that_is_not_all_here_gives_none_and_says_why(tree: Repository) -> None:
    blob = tree.git("rev-parse", "HEAD:trainer/task.py")
    (tree.root / ".git" / "objects" / blob[:2] / blob[2:]).unlink()
    assert set(carried(tree).values()) == {""}
    (line,) = lines(tree)
    assert "can't be compared: git has no object" in line


def pull_request(tree: Repository, monkeypatch: pytest.MonkeyPatch) -> tuple[str, Path]:
    """Check out the merge of a pull request that changes census, as its base has changed plain since.

    Returns:
        The pull request's head, and the event's file.
    """
    tree.git("switch", "-q", "-c", "proposed")
    tree.job("census", args=["--proposed"])
    head = commit(tree)
    tree.git("switch", "-q", "main")
    tree.write("jobs/plain.yaml", PLAIN.replace("plain:1", "plain:2"))
    commit(tree)
    tree.git("merge", "-q", "--no-ff", "-m", "merge", "proposed")
    event = tree.root.parent / "event.json"
    event.write_text(json.dumps({"pull_request": {"head": {"sha": head}}}))
    monkeypatch.setenv("GITHUB_EVENT_NAME", "pull_request")
    monkeypatch.setenv("GITHUB_EVENT_PATH", str(event))
    monkeypatch.setenv("GITHUB_SHA", tree.git("rev-parse", "HEAD"))
    return head, event


@pytest.mark.slow
def test_in_a_pull_request_jobs_carry_its_head_only_if_their_files_are_its_own(
    tree: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, event = pull_request(tree, monkeypatch)
    assert carried(tree) == {"census": head, "trees": head, "plain": ""}
    assert lines(tree) == [f"jobs/plain.yaml differs from commit {head[:7]}: plain carries no commit"]
    assert origin(tree).exact == ""
    event.write_text("{}")
    assert set(carried(tree).values()) == {""}
    assert "GITHUB_EVENT_PATH" in lines(tree)[0]


@pytest.mark.slow
def test_in_a_checkout_without_the_pull_requests_head_jobs_carry_no_commit(
    tree: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A depth of 1 is the default of actions/checkout; a depth of 2 fetches the head too."""
    head, _ = pull_request(tree, monkeypatch)
    clones = []
    for depth in (1, 2):
        clone = Repository.__new__(Repository)
        clone.root = tree.root.parent / f"clone-{depth}"
        tree.git("clone", "-q", f"--depth={depth}", f"file://{tree.root}", str(clone.root))
        clones.append(clone)
    shallow, deeper = clones
    assert set(carried(shallow).values()) == {""}
    (line,) = lines(shallow)
    assert f"commit {head[:7]}, the pull request's head, is not in this checkout of its merge" in line
    assert "give actions/checkout a fetch-depth of 2, or check out the head" in line
    assert carried(deeper) == {"census": head, "trees": head, "plain": ""}


def test_jobs_of_a_fetched_branch_carry_its_commit_whatever_its_attributes_convert(
    tree: Repository, tmp_path: Path
) -> None:
    """The files were laid out from the commit in a separate folder: they need no comparison."""
    tree.write(".gitattributes", "*.py text eol=crlf\n")
    tree.git("add", "-A")
    head = commit(tree)
    clone = Clone(tmp_path / "home", f"file://{tree.root}", "main", os.environ)
    clone.open()
    try:
        assert clone.refresh()
        assert clone.commit == head
        config = load_config(clone.tree)
        desired = load_desired(config, config.environment(None), [])
        found = exported(clone.commit, desired)
        assert {found.commit_of(job) for job in desired.jobs} == {head}
        assert found.exact == head
        assert Git(clone.tree).commit("HEAD") == head
    finally:
        clone.close()


# Tests with the whole command, against the embedded service


@pytest.mark.parametrize("at", [0, 1, 2, 3], ids="after call {}".format)
def test_switching_branches_during_apply_labels_no_job_with_another_commit(
    repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    """The branch is switched before, between or after apply's calls of git."""
    wanted_by: dict[str, set[str]] = {}
    repository.git("init", "-q", "-b", "main")
    for branch in ("main", "other"):
        if branch == "other":
            repository.git("switch", "-q", "-c", "other")
        for name in ("one", "two"):
            repository.job(name, args=[f"--on={branch}"])
        sha = commit(repository)
        plan = repository.run("plan", "--format", "json").json
        wanted_by[sha] = {change["jobName"] for change in plan["changes"]}
    repository.git("switch", "-q", "main")
    path = switching_git(repository, tmp_path, "other", at)
    applied = repository.run("apply", PATH=path)
    assert applied.code == 0, applied.err
    assert repository.git("branch", "--show-current") == "other", "the branch was switched meanwhile"
    jobs = [j for j in repository.run("status", "--all", "--format", "json").json["jobs"] if j["state"]]
    assert len(jobs) == 2
    for job in jobs:
        assert not job["commit"] or job["jobName"] in wanted_by[job["commit"]], job
    if any(not job["commit"] for job in jobs):
        assert "carr" in applied.err, "apply says why"


def test_apply_and_render_give_each_job_its_own_commit_and_name_the_file(repository: Repository) -> None:
    repository.job("census")
    repository.write("second/task.py", (repository.root / "trainer" / "task.py").read_text())
    second = repository.job("second")
    second.write_text(second.read_text().replace("../trainer", "../second"))
    repository.git("init", "-q", "-b", "main")
    head = commit(repository)
    repository.write("second/notes.txt", "not committed\n")
    applied = repository.run("apply", "--wait")
    assert applied.code == 0, applied.err
    assert f"second/notes.txt is not in commit {head[:7]}: second carries no commit\n" in applied.err
    jobs = repository.run("status", "--all", "--format", "json").json["jobs"]
    assert {job["baseName"]: job["commit"] for job in jobs} == {"census": head, "second": None}
    labels = {name: repository.run("render", name).json["labels"] for name in ("census", "second")}
    assert labels["census"]["reconciler-commit"] == head
    assert "reconciler-commit" not in labels["second"]
    again = repository.run("apply")
    assert "no commit" not in again.err, "nothing is submitted"


def test_watch_gives_each_job_its_own_commit(repository: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository.root)
    repository.job("census")
    repository.git("init", "-q", "-b", "main")
    head = commit(repository)
    repository.job("trees")
    checkout = Checkout(repository.root, head, os.environ, None)
    done: list[str] = []

    class Listener(ApplyListener):
        def carried_out(self, outcomes: Sequence[Outcome], origin: Origin) -> None:
            done.extend(uncarried(origin, [one.change.desired for one in outcomes if one.change.desired]))

    turn = run_pass(checkout, LoopCache(), None, listener=Listener())
    assert done == [f"jobs/trees.yaml is not in commit {head[:7]}: trees carries no commit"]
    assert turn.jobs is not None
    assert {job.manifest.name: turn.origin.commit_of(job) for job in turn.jobs} == {
        "census": head,
        "trees": "",
    }
    jobs = repository.run("status", "--all", "--format", "json").json["jobs"]
    assert {job["baseName"]: job["commit"] for job in jobs} == {"census": head, "trees": None}


def test_line_ends_alone_are_told_beside_a_file_in_git_lfs() -> None:
    large = b"1\r\n2"
    pointed = SourceFile("m.bin", False, b"", pointer=hashlib.sha256(large).hexdigest())
    kept = SourceTree((SourceFile("a.py", False, b"x\n"), pointed))
    read = SourceTree((SourceFile("a.py", False, b"x\r\n"), SourceFile("m.bin", False, large)))
    assert origin_module._converted(read, kept) == ["a.py"]
    other = SourceTree((SourceFile("a.py", False, b"x\r\n"), SourceFile("m.bin", False, b"3")))
    assert origin_module._converted(other, kept) == []
