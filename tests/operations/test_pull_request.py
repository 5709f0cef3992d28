"""`plan --base`: the manifests and the code of a commit against the work tree's, in real git repositories."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reconciler.base.errors import NotFoundError, ReconcilerError, UsageError
from reconciler.base.git_command import GitError
from reconciler.git import revision as revisions
from reconciler.manifests import schemas
from reconciler.model.diff import Comparison
from reconciler.model.plan import Action, Edit, Plan
from reconciler.operations.earlier_code import LineCounter
from reconciler.operations.pull_request import proposal_of
from reconciler.packaging.source_tree import SourceFile, SourceTree
from tests.support.planning import notes_of, reason_of
from tests.support.repository import MANIFEST, TRAINER, Repository

pytestmark = pytest.mark.slow

NEW, CHANGED, REMOVED, UNCHANGED = Edit


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the laid out commits."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    monkeypatch.setenv("TMPDIR", str(folder))
    return folder


@pytest.fixture
def repo(tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """Yield a repository with a job and a commit; check that all laid out files are removed."""
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.setenv("GIT_CONFIG_SYSTEM", os.devnull)
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    made = Repository(tmp_path / "repository")
    monkeypatch.chdir(made.root)
    made.git("init", "-b", "main")
    made.job()
    commit(made)
    yield made
    assert not list(temporary.iterdir())


def commit(repo: Repository) -> str:
    repo.git("add", "--all")
    repo.git("commit", "--allow-empty", "-m", "a commit")
    return repo.git("rev-parse", "HEAD")


def proposed(repo: Repository, base: str = "HEAD", *paths: Path, root: Path | None = None) -> Plan:
    return proposal_of(root or repo.root, None, base, paths, os.environ)


def compared(plan: Plan) -> Comparison:
    assert plan.comparison
    return plan.comparison


def edits(repo: Repository, base: str = "HEAD", *paths: Path, root: Path | None = None) -> dict[str, Edit]:
    found = proposed(repo, base, *paths, root=root)
    assert not compared(found).problems
    assert not compared(found).base_problems
    return {change.base_name: change.edit for change in found.changes}


def manifest(name: str, package: str = "../trainer") -> str:
    text = MANIFEST.format(
        kind="CustomJob",
        name=name,
        image="example.test/plain:1",
        args="[]",
        starts="/s",
        hold="/h",
        reconcile="",
    )
    return text.replace("../trainer", package)


@pytest.mark.slow
def test_the_same_is_one_line(repo: Repository) -> None:
    head = repo.git("rev-parse", "HEAD")
    done = repo.run("plan", "--base", "HEAD", "--detailed-exitcode")
    assert (done.code, done.err) == (0, "")
    assert done.out == (
        f"Plan for local (embedded service) against {head[:12]}: no job differs, 1 unchanged.\n"
    )


@pytest.mark.slow
def test_publication_alone_is_a_note_and_a_wrong_address_is_a_problem(repo: Repository) -> None:
    folder = "      baseOutputDirectory: {outputUriPrefix: gs://runs/NAME}\n"
    for name in ("one", "two"):
        repo.write(f"jobs/{name}.yaml", manifest(name) + folder.replace("NAME", name))
    settings = (repo.root / "reconciler.yaml").read_text()
    repo.write("reconciler.yaml", f"outputs: own\n{settings}")
    commit(repo)

    def publish(name: str, to: str) -> None:
        text = manifest(name).replace("    spec:", f"    publish: {{to: {to}}}\n    spec:", 1)
        repo.write(f"jobs/{name}.yaml", text + folder.replace("NAME", name))

    publish("one", "gs://models/one")
    found = proposed(repo)
    assert {change.base_name: (change.edit, change.action, notes_of(change)) for change in found.changes} == {
        "census": (UNCHANGED, Action.NONE, ()),
        "one": (CHANGED, Action.NONE, ("publish changed: nothing is trained again",)),
        "two": (UNCHANGED, Action.NONE, ()),
    }
    publish("two", "gs://models/one/two")
    found = proposed(repo)
    (problem,) = compared(found).problems
    assert (problem.path, problem.pointer) == ("jobs/two.yaml", "/publish/to")
    assert {change.base_name for change in found.changes} == {"census", "one"}
    # The base has the mistake as well now: it is told of the work tree alone.
    commit(repo)
    publish("two", "gs://models/two")
    assert not compared(proposed(repo)).problems


@pytest.mark.slow
def test_what_is_new_changed_and_removed(repo: Repository) -> None:
    repo.job("gone", reconcile="{onDelete: cancel}")
    base = commit(repo)
    (repo.root / "jobs/gone.yaml").unlink()
    repo.job(args=["--more"])
    repo.job("fresh")
    done = repo.run("plan", "--base", "HEAD", "--detailed-exitcode")
    assert done.code == 2
    lines = [line.strip() for line in done.out.splitlines()]
    assert lines[0].endswith(f"against {base[:12]}")
    assert "1 field changed" in lines
    assert lines[lines.index("-     args: []") + 1 :][:2] == ["+     args:", "+     - --more"]
    assert "if the run of the earlier content is still live, it continues alongside this one" in lines
    assert [line.split("_")[0] for line in lines if re.match("[+-] (submit|cancel)", line)] == [
        "+ submit census",
        "+ submit fresh",
        "- cancel gone",
    ]
    assert "1 new, 1 changed, 1 removed, 0 unchanged." in lines
    assert repo.run("plan", "--base", "HEAD").code == 0


@pytest.mark.slow
def test_json_is_a_plan_without_a_digest(repo: Repository) -> None:
    repo.job("fresh")
    told = repo.run("plan", "--base", "HEAD", "--format", "json").json
    jsonschema.validate(told, schemas.document("plan-output.schema.json"))
    assert told["digest"] is None
    counts = {"submit": 1, "retry": 0, "cancel": 0, "publish": 0, "none": 1, "blocked": 0, "drift": 0}
    assert told["summary"] == counts
    assert [(change["baseName"], change["action"]) for change in told["changes"]] == [
        ("census", "none"),
        ("fresh", "submit"),
    ]


def test_base_is_the_merge_base_when_the_other_branch_moved_on(repo: Repository) -> None:
    repo.git("checkout", "-b", "feature")
    repo.job("fresh")
    commit(repo)
    repo.git("checkout", "main")
    repo.job("other")
    repo.job(args=["--more"])
    commit(repo)
    repo.git("checkout", "feature")
    assert edits(repo, "main") == {"census": UNCHANGED, "fresh": NEW}


def test_base_without_a_common_commit_is_refused(repo: Repository) -> None:
    repo.git("checkout", "--orphan", "unrelated")
    repo.job("fresh")
    commit(repo)
    with pytest.raises(NotFoundError, match='"main" and HEAD have no common commit') as raised:
        proposed(repo, "main")
    assert "shares history" in raised.value.hint


@pytest.mark.slow
def test_changed_files_of_the_code_are_listed_with_their_lines(repo: Repository) -> None:
    repo.write("trainer/old.py", "a\nb\n")
    repo.write("trainer/same.py", "x\n")
    repo.write("trainer/data.bin", "\0")
    repo.job("other")
    commit(repo)
    task = repo.root / "trainer/task.py"
    task.write_text("# new\n" + task.read_text().replace("done", "finished"))
    (repo.root / "trainer/old.py").unlink()
    repo.write("trainer/data.bin", "\0\0")
    (repo.root / "trainer/same.py").chmod(0o755)
    told = repo.run("plan", "--base", "HEAD", "--format", "json").json
    jsonschema.validate(told, schemas.document("plan-output.schema.json"))
    expected = [
        {"path": "trainer/data.bin", "added": None, "removed": None},
        {"path": "trainer/old.py", "added": 0, "removed": 2},
        {"path": "trainer/same.py", "added": 0, "removed": 0},
        {"path": "trainer/task.py", "added": 2, "removed": 1},
    ]
    assert [change["files"] for change in told["changes"]] == [expected, expected]
    assert [change["spec"] for change in told["changes"]] == [None, None]
    assert "trainer/task.py  +2 -1" in repo.run("plan", "--base", "HEAD").out


def test_a_job_that_gets_a_package_lists_its_files_as_added(repo: Repository) -> None:
    text = manifest("plain").replace("    package:\n      path: ../trainer\n", "")
    container = "containerSpec: {imageUri: 'example.test/plain:1'}"
    repo.write("jobs/plain.yaml", text[: text.index("pythonPackageSpec")] + container + "\n")
    commit(repo)
    repo.write("jobs/plain.yaml", manifest("plain"))
    found = next(change for change in proposed(repo).changes if change.base_name == "plain")
    (file,) = found.files
    assert (file.path, file.added, file.removed) == ("trainer/task.py", TRAINER.count("\n"), 0)


@pytest.mark.slow
def test_hostile_files_take_bounded_time() -> None:
    old, new = (b"".join(b"%d\n" % (n * factor % 97) for n in range(50_000)) for factor in (31, 53))
    trees = [SourceTree((SourceFile("a.py", False, content),)) for content in (old, new)]
    counter = LineCounter()
    began = time.process_time()
    (found,) = counter.changed_files("trainer", *trees)
    assert time.process_time() - began < 20
    assert found.added is not None


@given(st.lists(st.sampled_from("abc")), st.lists(st.sampled_from("abc")))
def test_lines_are_counted_as_the_shortest_edit(old: list[str], new: list[str]) -> None:
    trees = [
        SourceTree((SourceFile("x", False, "".join(f"{line}\n" for line in lines).encode()),))
        for lines in (old, new)
    ]
    found = LineCounter().changed_files("t", *trees)
    common = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    for i, a in enumerate(old):
        for j, b in enumerate(new):
            longest = max(common[i][j + 1], common[i + 1][j])
            common[i + 1][j + 1] = common[i][j] + 1 if a == b else longest
    same = common[-1][-1]
    assert [(file.added, file.removed) for file in found] == (
        [] if old == new else [(len(new) - same, len(old) - same)]
    )


@pytest.mark.slow
def test_a_new_job_has_its_effective_spec(google: Repository) -> None:
    google.job("fresh")
    told = google.run("plan", "--base", "HEAD", "--env", "production", "--format", "json").json
    jsonschema.validate(told, schemas.document("plan-output.schema.json"))
    specs = {change["baseName"]: change["spec"] for change in told["changes"]}
    assert specs["census"] is None
    assert specs["fresh"]["scheduling"] == {"timeout": "3600s"}
    shown = google.run("plan", "--base", "HEAD", "--env", "production").out
    assert "      + scheduling:\n      +   timeout: 3600s\n" in shown


@pytest.mark.slow
def test_a_plan_says_that_apply_would_refuse_it_by_a_limit(google: Repository) -> None:
    reset(google, "acme-staging", "acme-staging\n    limits: {submissions: 1, acceleratorHours: 3}")
    commit(google)
    assert of_production(google).refusals == ()
    for number in range(2):
        google.job(f"fresh-{number}")
    file = google.root / "jobs/fresh-0.yaml"
    file.write_text(file.read_text().replace("{machineType: n1-standard-4}", GPU.replace("t: 2", "t: 4")))
    plan = ("plan", "--base", "HEAD", "--env", "production")
    done = google.run(*plan)
    assert done.code == 4
    lines = done.out.splitlines()
    first = lines.index("Merging submits 2 jobs, at most 4 accelerator-hours (T4).")
    assert [line for line in lines[first:] if line.startswith("Apply would refuse")] == [
        "Apply would refuse this plan: the plan has 2 submissions, but one apply may do at most 1.",
        "Apply would refuse this plan: the plan has 4 acceleratorHours, but one apply may do at most 3.",
    ]
    raised = ["environments:", "  production:", "    limits:", "      submissions: 2"]
    raised.append("      acceleratorHours: 4")
    assert lines[-5:] == raised
    shown = google.run(*plan, "--format", "markdown").out
    assert "\n```yaml\n" + "\n".join(raised) + "\n```\n" in shown
    told = google.run(*plan, "--format", "json")
    assert (told.code, told.json["summary"]["submit"]) == (4, 2)
    assert "{production: {limits: {submissions: 2, acceleratorHours: 4}}}" in told.err

    reset(google, "{submissions: 1, acceleratorHours: 3}", "\n".join(["", *raised[3:]]))
    done = google.run(*plan)
    assert (done.code, done.err) == (0, "")
    assert "/environments/production/limits/submissions: 1 → 2" in done.out
    assert google.run(*plan, "--detailed-exitcode").code == 2


@pytest.mark.slow
def test_limits_come_after_invalid_manifests_and_before_pending_changes(google: Repository) -> None:
    reset(google, "acme-staging", "acme-staging\n    limits: {submissions: 0}")
    google.job("fresh")
    plan = ("plan", "--base", "HEAD", "--env", "production", "--detailed-exitcode")
    assert google.run(*plan).code == 4
    google.write("jobs/bad.yaml", "kind: CustomJobb\n")
    assert google.run(*plan).code == 3


def test_each_replaced_run_counts_as_live_against_the_limit_of_cancels(google: Repository) -> None:
    """Apply would cancel it, and a plan without a service doesn't know that it has ended."""
    reset(google, "acme-staging", "acme-staging\n    limits: {cancels: 1}")
    for name in "abc":
        google.job(name, reconcile="{onChange: cancel}")
    commit(google)
    google.job("a", args=["--more"], reconcile="{onChange: cancel}")
    google.job("c", args=["--more"])
    assert of_production(google).refusals == ()
    google.job("b", args=["--more"], reconcile="{onChange: cancel}")
    found = of_production(google)
    assert found.refusals == ("the plan has 2 cancels, but one apply may do at most 1",)
    assert found.needed_limits == {"cancels": 2}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["local", "on", "no-1"])
def test_lines_that_raise_a_limit_are_valid_settings_that_permit_the_plan(
    name: str, google: Repository
) -> None:
    given = {"local": "", "on": "environments: {'on': {engine: local, project: other-jobs}}\n"}
    text = given.get(name, "environments: {no-1: {engine: local, project: other-jobs}}\n")
    google.write("reconciler.yaml", f"limits: {{submissions: 0}}\n{text}")
    commit(google)
    google.job("fresh")
    plan = ("plan", "--base", "HEAD", "--env", name, "--format", "markdown")
    (raised,) = re.findall("```yaml\n(environments:.*?)```", google.run(*plan).out, re.DOTALL)
    both = deep_merged(yaml.safe_load(text) or {}, yaml.safe_load(raised))
    google.write("reconciler.yaml", f"limits: {{submissions: 0}}\n{yaml.safe_dump(both)}")
    done = google.run(*plan)
    assert done.code == 0, done.err
    assert "Settings change" in done.out


def deep_merged(old: Any, new: Any) -> Any:
    """Return the settings with new values merged in, each key once."""
    if not isinstance(old, dict):
        return new
    return {**old, **{key: deep_merged(old.get(key), value) for key, value in new.items()}}


@pytest.mark.slow
def test_markdown_in_actions_links_files_at_the_commit_and_the_run(repo: Repository) -> None:
    base = repo.git("rev-parse", "HEAD")
    repo.job("gone")
    head = commit(repo)
    (repo.root / "jobs/gone.yaml").unlink()
    repo.job("fresh")
    actions = {"GITHUB_SERVER_URL": "https://github.com", "GITHUB_REPOSITORY": "acme/models"}
    plan = ("plan", "--base", "HEAD", "--format", "markdown")
    shown = repo.run(*plan, **actions, GITHUB_RUN_ID="42").out
    assert re.findall('<a href="(.*?)">', shown) == [
        f"https://github.com/acme/models/blob/{head}/jobs/gone.yaml",
        f"https://github.com/acme/models/blob/{head}/jobs/fresh.yaml#L3",
        "https://github.com/acme/models/actions/runs/42",
    ]
    assert base != head
    assert "href" not in repo.run(*plan, **{**actions, "GITHUB_REPOSITORY": '"><script>'}).out


@pytest.mark.slow
def test_json_has_the_problems_of_invalid_manifests(repo: Repository) -> None:
    file = repo.root / "jobs/census.yaml"
    file.write_text(file.read_text().replace("replicaCount: 1", "replicaCount: many"))
    for plan in (("plan",), ("plan", "--base", "HEAD")):
        done = repo.run(*plan, "--format", "json")
        jsonschema.validate(done.json, schemas.document("plan-output.schema.json"))
        assert done.code == 3
        assert [(p["path"], p["line"]) for p in done.json["problems"]] == [("jobs/census.yaml", 13)]
        assert done.json["target"]["engine"] == "local"
        assert "jobs/census.yaml:13:21:" in done.err
    repo.write("reconciler.yaml", "source: [")
    done = repo.run("plan", "--format", "json")
    assert (done.code, done.json["problems"][0]["path"]) == (3, "reconciler.yaml")
    assert repo.run("plan").out == ""


@pytest.mark.slow
def test_json_has_warnings_among_the_problems(repo: Repository) -> None:
    file = repo.root / "jobs/census.yaml"
    file.write_text(file.read_text().replace("n1-standard-4", "n1-standart-4"))
    for plan in (("plan",), ("plan", "--base", "HEAD")):
        done = repo.run(*plan, "--format", "json")
        jsonschema.validate(done.json, schemas.document("plan-output.schema.json"))
        assert done.code == 0
        assert [problem["level"] for problem in done.json["problems"]] == ["warning"]
        assert done.json["changes"][0]["action"] == "submit"


@pytest.mark.slow
def test_markdown_goes_to_stdout_and_into_a_folder(repo: Repository, tmp_path: Path) -> None:
    repo.job("fresh")
    folder = tmp_path / "a" / "b"
    done = repo.run("plan", "--base", "HEAD", "--format", "markdown", "--output-dir", str(folder))
    assert done.code == 0
    assert "fresh" in done.out
    texts = {file.name: file.read_text() for file in folder.iterdir()}
    assert set(texts) == {"comment.md", "summary.md", "plan.md"}
    assert texts["plan.md"] == done.out


PULL = {"pull_request": {"head": {"sha": "c" * 40}, "base": {"ref": "main"}}}
GROUP = {"merge_group": {"head_sha": "c" * 40, "base_ref": "refs/heads/main", "base_sha": "b" * 40}}
DEFAULT = {"repository": {"default_branch": "main"}}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "event"), [("pull_request", PULL), ("merge_group", GROUP)])
def test_markdown_in_actions_begins_with_the_merge_that_is_planned(
    name: str, event: dict[str, Any], repo: Repository, tmp_path: Path
) -> None:
    file, folder = tmp_path / "event.json", tmp_path / "out"
    actions = {"GITHUB_EVENT_NAME": name, "GITHUB_EVENT_PATH": str(file)}

    def first(event: object, *, changes: bool = False) -> str:
        file.write_text(json.dumps(event))
        done = repo.run("plan", "--base", "HEAD", "--output-dir", str(folder), **actions)
        assert done.code == 0, done.err
        texts = {file.name: file.read_text() for file in folder.iterdir()}
        assert texts["comment.md"] == "<!-- nothing changes -->\n" * (not changes) + texts["summary.md"]
        return texts["summary.md"].splitlines()[0]

    time = "[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9]{2}:[0-9]{2} UTC"
    said = f"<code>cccccccccccc</code> into <code>main</code>, planned {time}\\."
    assert re.fullmatch(said, first({**event, **DEFAULT}))
    assert re.fullmatch(said, first(event)), "the default branch is unknown"
    other = first({**event, "repository": {"default_branch": "trunk"}})
    assert "**Only <code>trunk</code> is applied:**" in other
    repo.job("fresh")
    assert re.fullmatch(said, first({**event, **DEFAULT}, changes=True))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        "",
        "[" * 100_000,
        "null",
        json.dumps({**PULL, "pull_request": None}),
        json.dumps({"pull_request": {"head": {"sha": "main"}, "base": {"ref": "main"}}}),
        json.dumps({"pull_request": {"head": {"sha": "c" * 40}, "base": {"ref": 7}}}),
    ],
)
def test_event_without_a_merge_leaves_its_line_out(text: str, repo: Repository, tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    file.write_text(text)
    for name in ("pull_request", "merge_group", "push"):
        actions = {"GITHUB_EVENT_NAME": name, "GITHUB_EVENT_PATH": str(file)}
        done = repo.run("plan", "--base", "HEAD", "--format", "markdown", **actions)
        assert done.out.startswith("No changes for"), done.err
    gone = {"GITHUB_EVENT_NAME": "pull_request", "GITHUB_EVENT_PATH": str(tmp_path / "missing")}
    assert repo.run("plan", "--base", "HEAD", "--format", "markdown", **gone).out.startswith("No changes")


def test_name_of_a_hostile_branch_is_inert(repo: Repository, tmp_path: Path) -> None:
    file = tmp_path / "event.json"
    base = "@octocat/</code><img/src=x>#1"
    event = {"pull_request": {"head": {"sha": "c" * 40}, "base": {"ref": base}}, **DEFAULT}
    file.write_text(json.dumps(event))
    actions = {"GITHUB_EVENT_NAME": "pull_request", "GITHUB_EVENT_PATH": str(file)}
    shown = repo.run("plan", "--base", "HEAD", "--format", "markdown", **actions).out
    assert "<img" not in shown
    assert "@octocat" not in shown


@pytest.mark.slow
def test_a_folder_that_cant_be_written_to_is_told(repo: Repository) -> None:
    done = repo.run("plan", "--base", "HEAD", "--output-dir", "reconciler.yaml")
    assert done.code == 1
    assert "can't write to reconciler.yaml" in done.err


@pytest.mark.slow
def test_output_goes_with_a_base(repo: Repository) -> None:
    done = repo.run("plan", "--output-dir", "x")
    assert done.code == 64
    assert "--output-dir needs --base" in done.err


@pytest.mark.slow
def test_invalid_manifests_are_told_after_the_output(repo: Repository, tmp_path: Path) -> None:
    repo.job("other")
    repo.job("moved")
    commit(repo)
    for name in ("census", "moved"):
        file = repo.root / "jobs" / f"{name}.yaml"
        file.write_text(file.read_text().replace("replicaCount: 1", "replicaCount: many"))
    (repo.root / "jobs/moved.yaml").rename(repo.root / "jobs/elsewhere.yaml")
    repo.job("fresh")
    done = repo.run("plan", "--base", "HEAD", "--format", "json", "--output-dir", str(tmp_path / "out"))
    assert done.code == 3
    assert [(c["baseName"], c["action"]) for c in done.json["changes"]] == [
        ("fresh", "submit"),
        ("other", "none"),
    ]
    assert "jobs/census.yaml:13:21:" in done.err
    assert "replicaCount" in (tmp_path / "out" / "plan.md").read_text()
    text = repo.run("plan", "--base", "HEAD")
    assert "2 problems in 2 files: invalid manifests aren't counted above." in text.out


def test_code_that_cant_be_staged_is_a_problem_of_its_job_alone(repo: Repository) -> None:
    repo.write("jobs/odd.yaml", manifest("odd", "../odd"))
    repo.write("odd/task.py", "")
    commit(repo)
    (repo.root / "odd/link").symlink_to("/etc/passwd")
    found = proposed(repo)
    assert [change.base_name for change in found.changes] == ["census"]
    assert [problem.path for problem in compared(found).problems] == ["jobs/odd.yaml"]


def test_jobs_of_invalid_manifests_of_the_base_are_new(repo: Repository) -> None:
    repo.write("jobs/odd.yaml", manifest("odd").replace("replicaCount: 1", "replicaCount: many"))
    commit(repo)
    repo.write("jobs/odd.yaml", manifest("odd"))
    found = proposed(repo)
    assert {change.base_name: change.edit for change in found.changes} == {
        "census": UNCHANGED,
        "odd": NEW,
    }
    assert (compared(found).base_problems, compared(found).problems) == (1, ())
    assert (
        "has 1 problem: the jobs of its invalid manifests count as new"
        in repo.run("plan", "--base", "HEAD").out
    )


def test_a_base_without_settings_and_jobs(repo: Repository) -> None:
    (repo.root / "reconciler.yaml").rename(repo.root.parent / "kept.yaml")
    shutil.rmtree(repo.root / "jobs")
    commit(repo)
    (repo.root.parent / "kept.yaml").rename(repo.root / "reconciler.yaml")
    repo.job()
    assert edits(repo) == {"census": NEW}


def test_an_emptied_folder_cancels_nothing(repo: Repository) -> None:
    repo.job(reconcile="{onDelete: cancel}")
    commit(repo)
    repo.git("mv", "jobs", "trainings")
    (found,) = proposed(repo).changes
    assert (found.edit, found.action) == (REMOVED, Action.NONE)
    assert "nothing is cancelled while there is no manifest at all" in notes_of(found)[0]


def test_no_manifests_on_either_side(repo: Repository) -> None:
    """Git keeps no empty folder."""
    shutil.rmtree(repo.root / "jobs")
    commit(repo)
    assert edits(repo) == {}
    (warning,) = compared(proposed(repo)).warnings
    assert (warning.path, warning.level) == ("jobs", "warning")


def test_folder_that_the_work_tree_alone_lacks_removes_no_job(repo: Repository) -> None:
    """The work tree may be a sparse checkout."""
    shutil.rmtree(repo.root / "jobs")
    with pytest.raises(UsageError, match="although git's index has 1 file of it"):
        proposed(repo)


SETTINGS = """
source: acme-models
environments:
  production:
    engine: google
    project: acme-ml
    location: us-central1
    stagingBucket: acme-staging
    defaults: {timeout: 3600s}
"""
GPU = "{machineType: n1-standard-4, acceleratorType: NVIDIA_TESLA_T4, acceleratorCount: 2}"


@pytest.fixture
def google(repo: Repository) -> Repository:
    """Return a repository of jobs with accelerators, and a time limit from the settings alone."""
    file = repo.root / "jobs/census.yaml"
    file.write_text(file.read_text().replace("{machineType: n1-standard-4}", GPU))
    repo.write("reconciler.yaml", SETTINGS)
    commit(repo)
    return repo


def of_production(repo: Repository) -> Plan:
    return proposal_of(repo.root, "production", "HEAD", [], os.environ)


def reset(repo: Repository, old: str, new: str) -> None:
    file = repo.root / "reconciler.yaml"
    assert old in file.read_text()
    file.write_text(file.read_text().replace(old, new))


@pytest.mark.slow
def test_settings_alone(google: Repository, tmp_path: Path) -> None:
    """Check that every plan shows the changed settings, and that they alone require no action."""
    reset(google, "us-central1", "us-east1")
    reset(google, "acme-models", "acme-more")
    plan = ("plan", "--base", "HEAD", "--env", "production", "--detailed-exitcode")
    done = google.run(*plan, "--output-dir", str(tmp_path / "out"))
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0].startswith("Plan for production (project acme-ml, us-east1)")
    assert lines[2:5] == [
        "Settings change, in reconciler.yaml:",
        '  ! /source: "acme-models" → "acme-more"  (which runs belong to this repository)',
        '  ! /environments/production/location: "us-central1" → "us-east1"  (where jobs run)',
    ]
    assert "Earlier runs aren't known" in lines[6]
    for name in ("comment.md", "summary.md", "plan.md"):
        shown = (tmp_path / "out" / name).read_text()
        assert "**Settings change:** 2 in" in shown
        assert "No changes" not in shown
    told = google.run(*plan, "--format", "json").json
    jsonschema.validate(told, schemas.document("plan-output.schema.json"))
    assert (told["target"]["location"], told["summary"]["none"]) == ("us-east1", 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "is_elsewhere"),
    [
        ("source: acme-models", "source: acme-more", True),
        ("project: acme-ml", "project: acme-other", True),
        ("acme-staging", "acme-bucket", True),
        ("acme-staging", "acme-bucket\n    claimsBucket: acme-staging", False),
        ("acme-staging", "acme-staging\n    claimsBucket: acme-claims", True),
        ("acme-staging", "acme-staging\n    endpoints: {aiplatform: 'https://x.test'}", True),
        ("acme-staging", "acme-staging\n    submitter: s@x.iam.gserviceaccount.com", False),
        ("acme-staging", "acme-staging\n    limits: {submissions: null}", False),
        ("source:", "github: {repository: a/b}\nsource:", False),
        ("acme-staging", "'gs://acme-staging/'", False),
    ],
)
def test_each_setting_counts(old: str, new: str, is_elsewhere: bool, google: Repository) -> None:
    reset(google, old, new)
    found = of_production(google)
    assert compared(found).settings
    assert [change.edit for change in found.changes] == [UNCHANGED]
    assert len(compared(found).notes) == is_elsewhere


def test_comments_and_order_of_settings_dont_count(google: Repository) -> None:
    reset(google, "source: acme-models", "# x")
    google.write("reconciler.yaml", (google.root / "reconciler.yaml").read_text() + "source: 'acme-models'\n")
    assert (compared(of_production(google)).settings, compared(of_production(google)).notes) == ((), ())


def test_each_sides_jobs_have_their_sides_defaults(google: Repository) -> None:
    reset(google, "3600s", "36000s")
    found = of_production(google)
    (job,) = found.changes
    assert (job.edit, *job.hours) == (UNCHANGED, 2.0, 20.0)
    assert [(c.pointer, c.before, c.after) for c in compared(found).settings] == [
        ("/environments/production/defaults/timeout", "3600s", "36000s")
    ]
    assert "accelerator-hours" not in google.run("plan", "--base", "HEAD", "--env=production").out


@pytest.mark.slow
@pytest.mark.parametrize("base", ["source: [", "sauce: x", None, "source: acme-models"])
def test_a_base_whose_settings_are_of_no_use(base: str | None, google: Repository) -> None:
    (google.root / "reconciler.yaml").unlink()
    if base:
        google.write("reconciler.yaml", base)
    commit(google)
    google.write("reconciler.yaml", SETTINGS)
    found = of_production(google)
    (job,) = found.changes
    assert (job.edit, *job.hours) == (UNCHANGED, 2.0, 2.0)
    assert len(compared(found).settings) == (5 if base == "source: acme-models" else 6)
    (note,) = compared(found).notes
    is_read = base in (None, "source: acme-models")
    assert ('no environment "production"' if is_read else "isn't valid") in note


def test_an_invalid_base_says_nothing_of_local_either(google: Repository) -> None:
    google.write("reconciler.yaml", "source: [")
    commit(google)
    google.write("reconciler.yaml", "environments: {local: {defaults: {timeout: 3600s}}}")
    found = proposed(google)
    assert [job.hours for job in found.changes] == [(2.0, 2.0)]
    assert "isn't valid" in compared(found).notes[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head", "target", "changes"),
    [("source: [", "acme-ml", 0), (None, "acme-ml", 6), ("source: acme-models", "acme-ml", 5)],
)
def test_settings_that_cant_be_used_are_told_after_the_output(
    head: str | None, target: str, changes: int, google: Repository, tmp_path: Path
) -> None:
    (google.root / "reconciler.yaml").unlink()
    if head:
        google.write("reconciler.yaml", head)
    plan = ("plan", "--base", "HEAD", "--env", "production", "--output-dir", str(tmp_path / "out"))
    done = google.run(*plan, "--format", "json")
    assert done.code == 3
    assert "reconciler: reconciler.yaml is not valid" in done.err
    jsonschema.validate(done.json, schemas.document("plan-output.schema.json"))
    assert (done.json["target"]["project"], done.json["changes"]) == (target, [])
    for name in ("comment.md", "summary.md", "plan.md"):
        shown = (tmp_path / "out" / name).read_text()
        assert "**1 problem in 1 file.**" in shown
        assert ("Settings change" in shown) == bool(changes)
    found = of_production(google)
    assert (len(compared(found).settings), [problem.path for problem in compared(found).problems]) == (
        changes,
        ["reconciler.yaml"],
    )


@pytest.mark.slow
def test_settings_that_were_never_of_use(repo: Repository) -> None:
    repo.write("reconciler.yaml", "source: [")
    commit(repo)
    found = of_production(repo)
    assert (found.target.project, len(compared(found).problems)) == ("", 1)
    assert repo.run("plan", "--base", "HEAD", "--env=x").out.startswith("Plan for x against ")
    (repo.root / "reconciler.yaml").unlink()
    assert len(compared(proposed(repo)).problems) == 1


def test_an_environment_of_neither_side_is_wrong_usage(google: Repository) -> None:
    with pytest.raises(UsageError, match='there is no environment "mistyped"'):
        proposal_of(google.root, "mistyped", "HEAD", [], os.environ)


@pytest.mark.parametrize("target", ["{outside}", "../../outside.yaml", "reconciler.yaml", "jobs"])
def test_settings_of_a_commit_lead_nowhere_outside(
    target: str, google: Repository, tmp_path: Path, temporary: Path
) -> None:
    (tmp_path / "outside.yaml").write_text(SETTINGS.replace("acme-ml", "acme-outside"))
    (temporary / "outside.yaml").symlink_to(tmp_path / "outside.yaml")
    (google.root / "reconciler.yaml").unlink()
    (google.root / "reconciler.yaml").symlink_to(target.format(outside=tmp_path / "outside.yaml"))
    commit(google)
    (google.root / "reconciler.yaml").unlink()
    google.write("reconciler.yaml", SETTINGS)
    found = of_production(google)
    assert "acme-outside" not in repr(found)
    assert {field.before for field in compared(found).settings} == {None}
    assert len(compared(found).notes) == 1
    (temporary / "outside.yaml").unlink()


def test_settings_behind_a_link(google: Repository) -> None:
    (google.root / "reconciler.yaml").rename(google.root / "real.yaml")
    (google.root / "reconciler.yaml").symlink_to("real.yaml")
    commit(google)
    assert compared(of_production(google)).settings == ()
    reset(google, "acme-ml", "acme-other")
    assert [field.before for field in compared(of_production(google)).settings] == ["acme-ml"]


def test_named_paths(repo: Repository) -> None:
    repo.job("other", reconcile="{onDelete: cancel}")
    commit(repo)
    census, other = repo.root / "jobs/census.yaml", Path("jobs/other.yaml")
    assert edits(repo, "HEAD", census) == {"census": UNCHANGED}
    assert edits(repo, "HEAD", repo.root / "jobs") == {"census": UNCHANGED, "other": UNCHANGED}
    (repo.root / other).unlink()
    (found,) = proposed(repo, "HEAD", other).changes
    assert (found.edit, found.action) == (REMOVED, Action.NONE)
    assert edits(repo, "HEAD", census, other) == {"census": UNCHANGED, "other": REMOVED}
    with pytest.raises(UsageError, match=r"no file or folder jobs/mistyped.yaml, nor was there one in HEAD"):
        proposed(repo, "HEAD", census, Path("jobs/mistyped.yaml"))
    with pytest.raises(UsageError, match=r"no manifest below .*trainer"):
        proposed(repo, "HEAD", repo.root / "trainer")
    with pytest.raises(UsageError, match="is outside the repository"):
        proposed(repo, "HEAD", repo.root / ".." / "elsewhere")


@pytest.mark.parametrize(
    "change",
    [
        lambda root: (root / "trainer/task.py").open("a").write("\n"),
        lambda root: (root / "trainer/task.py").chmod(0o755),
        lambda root: (root / "trainer/untracked.py").write_text(""),
        lambda root: (root / "trainer/task.py").rename(root / "trainer/__main__.py"),
    ],
    ids=["bytes", "mode", "untracked", "renamed"],
)
def test_changed_code_is_told(change: Callable[[Path], object], repo: Repository) -> None:
    repo.job("plain").write_text(manifest("plain").replace("pythonModule: task", "pythonModule: trainer"))
    (repo.root / "jobs/census.yaml").unlink()
    repo.write("trainer/trainer.py", "")
    commit(repo)
    change(repo.root)
    (found,) = proposed(repo).changes
    assert (found.edit, found.code_changed, reason_of(found)) == (CHANGED, True, "the code changed")
    assert found.fields == ()


def test_the_executable_bit_comes_along(repo: Repository) -> None:
    (repo.root / "trainer/task.py").chmod(0o755)
    commit(repo)
    assert edits(repo) == {"census": UNCHANGED}


def test_code_is_taken_as_git_keeps_it(repo: Repository) -> None:
    """Check that no attribute and no filter changes a byte: neither for archives nor for line ends."""
    repo.write(".gitattributes", "*.py export-subst\nhelper.py export-ignore\n*.txt -text\n")
    repo.write("trainer/helper.py", "VERSION = '$Format:%H$'\n")
    (repo.root / "trainer/crlf.txt").write_bytes(b"a\r\nb\r\n")
    commit(repo)
    assert edits(repo) == {"census": UNCHANGED}


def test_line_ends_of_a_manifest_dont_count(repo: Repository) -> None:
    file = repo.root / "jobs/census.yaml"
    file.write_bytes(file.read_bytes().replace(b"\n", b"\r\n"))
    assert edits(repo) == {"census": UNCHANGED}
    commit(repo)
    file.write_bytes(file.read_bytes().replace(b"\r\n", b"\n"))
    assert edits(repo) == {"census": UNCHANGED}


def test_what_a_gitignore_excludes_doesnt_count_on_either_side(repo: Repository) -> None:
    """Check .gitignore files at the root, between, and in the package; also for files that git tracks."""
    repo.write(".gitignore", ".reconciler/\n*.log\n")
    repo.write("code/.gitignore", "data/\n")
    repo.write("code/trainer/.gitignore", "*.bin\n")
    for name in ("task.py", "a.log", "data/b.csv", "c.bin", "kept.txt"):
        repo.write(f"code/trainer/{name}", "1")
    repo.write("jobs/census.yaml", manifest("census", "../code/trainer"))
    repo.git("add", "--force", "--all", "code")
    commit(repo)
    assert edits(repo) == {"census": UNCHANGED}
    for name in ("a.log", "data/b.csv", "c.bin", "data/untracked", "new.log"):
        repo.write(f"code/trainer/{name}", "2")
    assert edits(repo) == {"census": UNCHANGED}
    repo.write("code/.gitignore", "")
    assert edits(repo) == {"census": CHANGED}


def test_links_are_followed_as_in_the_work_tree(repo: Repository) -> None:
    """Check links to files and folders, in several steps, in manifests, in code and in their parents."""
    repo.write("elsewhere/linked.yml", manifest("linked", "../trainer"))
    repo.write("elsewhere/deep/deep.yaml", manifest("deep", "../../by-link"))
    repo.write("shared/lib.py", "x = 1")
    repo.write("shared/folder/more.py", "y = 1")
    links = {
        "jobs/linked.yaml": "../elsewhere/linked.yml",
        "jobs/deep": "../second",
        "jobs/README": "../trainer/task.py",
        "second": "elsewhere/deep",
        "by-link": "./trainer",
        "trainer/lib.py": "../shared/lib.py",
        "trainer/folder": "../third/folder",
        "third": "shared",
    }
    for place, target in links.items():
        (repo.root / place).symlink_to(target)
    commit(repo)
    names = {"census": UNCHANGED, "linked": UNCHANGED, "deep": UNCHANGED}
    assert edits(repo) == names
    repo.write("shared/folder/more.py", "y = 2")
    assert edits(repo) == dict.fromkeys(names, CHANGED)


def test_manifests_behind_a_link_that_is_named(repo: Repository) -> None:
    (repo.root / "jobs").rename(repo.root / "real")
    (repo.root / "jobs").symlink_to("real")
    commit(repo)
    assert edits(repo) == {"census": UNCHANGED}
    assert edits(repo, "HEAD", Path("jobs/census.yaml")) == {"census": UNCHANGED}


@pytest.mark.slow
@pytest.mark.parametrize("target", ["{outside}", "../../outside", "../loop", "../trainer/../../outside"])
def test_nothing_outside_is_read_or_written_by_a_link(
    target: str, repo: Repository, tmp_path: Path, temporary: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "task.py").write_text("")
    (outside / "out.yaml").write_text(manifest("out"))
    (temporary / "outside").symlink_to(outside)
    for place in ("jobs/out", "trainer/out", "loop"):
        (repo.root / place).symlink_to(target.format(outside=outside))
    commit(repo)
    for place in ("jobs/out", "trainer/out", "loop"):
        (repo.root / place).unlink()
    before = {file: file.stat().st_mtime_ns for file in outside.iterdir()}
    found = proposed(repo)
    assert {change.base_name: change.edit for change in found.changes} == {"census": NEW}
    assert compared(found).base_problems
    assert {file: file.stat().st_mtime_ns for file in outside.iterdir()} == before
    (temporary / "outside").unlink()


def test_submodules_are_left_out(repo: Repository, tmp_path: Path) -> None:
    inner = Repository(tmp_path / "inner")
    inner.git("init")
    commit(inner)
    repo.git("-c", "protocol.file.allow=always", "submodule", "add", str(inner.root), "trainer/inner")
    commit(repo)
    (repo.root / "trainer/inner/trainer/task.py").unlink()
    shutil.rmtree(repo.root / "trainer/inner")
    assert edits(repo) == {"census": UNCHANGED}


def test_a_repository_below_gits(repo: Repository) -> None:
    """A folder with settings is its own root; links out of it lead out of the repository."""
    shutil.copytree(repo.root / "trainer", repo.root / "a b/ml/trainer")
    repo.write("a b/ml/reconciler.yaml", "{}")
    repo.write("a b/ml/jobs/below.yaml", manifest("below"))
    root = repo.root / "a b/ml"
    assert edits(repo, root=root) == {"below": NEW}
    commit(repo)
    assert edits(repo, root=root) == {"below": UNCHANGED}
    assert edits(repo, "HEAD^1", root=root) == {"below": NEW}
    (root / "jobs/link.yaml").symlink_to("../../../jobs/census.yaml")
    commit(repo)
    (root / "jobs/link.yaml").unlink()
    found = proposed(repo, root=root)
    assert [change.base_name for change in found.changes] == ["below"]
    assert compared(found).base_problems == 1


def test_a_folder_that_looks_like_a_repository_is_none(repo: Repository) -> None:
    """A pull request could add such a folder, with its own settings and history."""
    root = repo.root / "ml"
    repo.write("ml/reconciler.yaml", "{}")
    repo.git("clone", "--bare", ".", "bare")
    for thing in (repo.root / "bare").iterdir():
        thing.rename(root / thing.name)
    assert repo.git("-C", "ml", "rev-parse", "--is-bare-repository") == "true"
    with pytest.raises(UsageError, match=r"safe\.bareRepository"):
        proposed(repo, root=root)


@pytest.mark.slow
def test_names_of_commits(repo: Repository) -> None:
    first = repo.git("rev-parse", "HEAD")
    repo.job("other")
    second = commit(repo)
    repo.git("tag", "v1", "HEAD^1")
    repo.git("tag", "-a", "-m", "x", "v2", "HEAD^1")
    repo.git("branch", "-m", "a/branch")
    for name in (first, first[:10], "HEAD^1", "HEAD~1", "v1", "v2", "a/branch^", "refs/heads/a/branch~1"):
        found = proposed(repo, name)
        assert (compared(found).base, [change.edit for change in found.changes]) == (
            first,
            [UNCHANGED, NEW],
        ), name
    for name in ("a/branch", "@", second.upper()):
        assert compared(proposed(repo, name)).base == second


@pytest.mark.parametrize(
    "name",
    ["main:jobs", "HEAD..HEAD", "^HEAD", "-x", "--all", "--output=x", "", " ", "f" * 40, "nowhere", "a\nb"],
)
def test_what_names_no_commit(name: str, repo: Repository) -> None:
    with pytest.raises(NotFoundError, match="there is no commit") as raised:
        proposed(repo, name)
    assert "git fetch" in raised.value.hint


@pytest.mark.slow
@pytest.mark.parametrize(("name", "code"), [("-x", 1), ("--output=x", 1), ("", 64)])
def test_what_names_no_commit_is_no_option(name: str, code: int, repo: Repository) -> None:
    done = repo.run("plan", f"--base={name}")
    assert (done.code, done.out) == (code, "")
    assert "commit" in done.err
    assert not (repo.root / "x").exists()


def test_a_shallow_clone_says_how_to_get_more(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.job("other")
    commit(repo)
    clone = Repository(tmp_path / "clone")
    shutil.rmtree(clone.root)
    repo.git("clone", "--depth", "1", f"file://{repo.root}", str(clone.root))
    monkeypatch.chdir(clone.root)
    with pytest.raises(NotFoundError) as raised:
        proposed(clone, "HEAD^1")
    assert "fetch-depth" in raised.value.hint
    clone.git("fetch", "--depth", "2")
    assert edits(clone, "HEAD^1") == {"census": UNCHANGED, "other": NEW}


def test_a_partial_clone_asks_for_nothing(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.git("config", "uploadpack.allowFilter", "true")
    repo.job(args=["changed"])
    commit(repo)
    clone = Repository(tmp_path / "clone")
    shutil.rmtree(clone.root)
    repo.git("clone", "--filter", "blob:none", f"file://{repo.root}", str(clone.root))
    monkeypatch.chdir(clone.root)
    assert edits(clone) == {"census": UNCHANGED}
    with pytest.raises(ReconcilerError) as raised:
        proposed(clone, "HEAD^1")
    assert "--filter" in raised.value.hint


def test_a_file_that_is_lost_is_told(repo: Repository) -> None:
    repo.job(args=["changed"])
    id = repo.git("rev-parse", "HEAD:jobs/census.yaml")
    (repo.root / ".git/objects" / id[:2] / id[2:]).unlink()
    with pytest.raises(NotFoundError, match=f"git has no object {id}"):
        proposed(repo)


def test_without_git_or_a_repository(
    repo: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(repo.root / ".git")
    with pytest.raises(UsageError, match="git finds no repository"):
        proposed(repo)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(GitError, match="git can't be run") as raised:
        proposed(repo)
    assert raised.value.hint == "install git"


def test_only_what_is_needed_is_read(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    repo.write("data/large.bin", "x" * 200_000)
    repo.write("jobs/notes.txt", "x" * 200_000)
    commit(repo)
    monkeypatch.setattr("reconciler.git.objects.MAX_BYTES", 50_000)
    assert edits(repo) == {"census": UNCHANGED}
    repo.write("trainer/large.bin", "x" * 100_000)
    commit(repo)
    with pytest.raises(ReconcilerError, match="the commit holds more than"):
        proposed(repo)


def test_a_package_that_holds_its_manifest_isnt_laid_out(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.write("data/large.bin", "x" * 200_000)
    repo.write("jobs/odd.yaml", manifest("odd", ".."))
    commit(repo)
    (repo.root / "jobs/odd.yaml").unlink()
    monkeypatch.setattr("reconciler.git.objects.MAX_BYTES", 50_000)
    found = proposed(repo)
    assert [(change.base_name, change.edit) for change in found.changes] == [("census", UNCHANGED)]
    assert compared(found).base_problems == 1


def test_more_files_than_can_be_meant_are_refused(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(revisions, "MAX_ENTRIES", 40)
    for number in range(60):
        repo.write(f"trainer/part{number}.py", "")
    commit(repo)
    with pytest.raises(ReconcilerError, match="the commit holds more than 40 files") as raised:
        proposed(repo)
    assert raised.value.hint


class Forge:
    """A writer of objects that git itself would refuse to create."""

    def __init__(self, repo: Repository) -> None:
        self.repo = repo

    def put(self, kind: str, data: bytes) -> bytes:
        whole = f"{kind} {len(data)}\0".encode() + data
        id = hashlib.sha1(whole).hexdigest()
        file = self.repo.root / ".git/objects" / id[:2] / id[2:]
        file.parent.mkdir(exist_ok=True)
        if not file.exists():
            file.write_bytes(zlib.compress(whole))
        return bytes.fromhex(id)

    def tree(self, *entries: tuple[str, str, bytes]) -> bytes:
        return self.put("tree", b"".join(f"{mode} {name}\0".encode() + id for mode, name, id in entries))

    def commit(self, *entries: tuple[str, str, bytes]) -> str:
        """Write a commit of these entries as the parent of HEAD."""
        who = "a <a@example.test> 0 +0000"
        tree, rest = self.tree(*entries).hex(), f"author {who}\ncommitter {who}\n\nx\n"
        forged = self.put("commit", f"tree {tree}\n{rest}".encode()).hex()
        head = self.put("commit", f"tree {tree}\nparent {forged}\n{rest}".encode()).hex()
        (self.repo.root / ".git/refs/heads/main").write_text(f"{head}\n")
        return forged


@pytest.fixture
def forge(repo: Repository) -> Forge:
    return Forge(repo)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["..", ".", "", "a/b", "../../escaped", "/etc/x"])
def test_names_that_lead_elsewhere_are_refused(
    name: str, forge: Forge, repo: Repository, tmp_path: Path, temporary: Path
) -> None:
    text = forge.put("blob", manifest("evil").encode())
    jobs = forge.tree(("100644", name, text), ("100644", f"{name}.yaml", text))
    with pytest.raises(GitError, match="the commit has an entry that git doesn't make"):
        proposed(repo, forge.commit(("40000", "jobs", jobs)))
    top = forge.tree(("40000", name, forge.tree(("100644", "evil.yaml", text))))
    with pytest.raises(GitError, match="the commit has an entry that git doesn't make"):
        proposed(repo, forge.commit(("40000", "jobs", top)))
    assert not list(tmp_path.rglob("evil*"))
    assert not (tmp_path / "escaped").exists()


def test_a_link_and_a_folder_of_one_name(forge: Forge, repo: Repository, tmp_path: Path) -> None:
    """Check that no file is written through the link, for either order of the entries."""
    text = forge.put("blob", manifest("evil").encode())
    (tmp_path / "outside").mkdir()
    link = forge.put("blob", str(tmp_path / "outside").encode())
    inner = forge.tree(("100644", "evil.yaml", text))
    for entries in (
        (("120000", "a", link), ("40000", "a", inner)),
        (("40000", "a", inner), ("120000", "a", link)),
    ):
        proposed(repo, forge.commit(("40000", "jobs", forge.tree(*entries))))
        assert not list((tmp_path / "outside").iterdir())


def test_a_link_that_is_put_in_a_folders_place_meanwhile(
    repo: Repository, tmp_path: Path, temporary: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    repo.job("other")
    repo.write(".gitignore", "*.log\n")
    commit(repo)
    with revisions.revision(repo.root, "HEAD", os.environ) as found:
        assert found.lay_out(("jobs", "census.yaml"), str.isprintable)
        assert (found.root.stat().st_mode & 0o777, found.root.parent) == (0o700, temporary)
        assert sorted(path.name for path in found.root.rglob("*")) == [".gitignore", "census.yaml", "jobs"]
        (found.root / "jobs").rename(found.root / "away")
        (found.root / "jobs").symlink_to(outside)
        with pytest.raises(NotADirectoryError):
            found.lay_out(("jobs",), str.isprintable)
        (found.root / "trainer").symlink_to(outside)
        with pytest.raises(FileExistsError):
            found.lay_out(("trainer",), str.isprintable)
    assert not list(outside.iterdir())


def test_folders_that_multiply_end_somewhere(
    forge: Forge, repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check ten names for a folder, ten times over: few objects, 10^10 files."""
    monkeypatch.setattr(revisions, "MAX_ENTRIES", 1_000)
    tree = forge.tree(("100644", "job.yaml", forge.put("blob", b"")))
    for _ in range(10):
        tree = forge.tree(*(("40000", f"f{n}", tree) for n in range(10)))
    with pytest.raises(ReconcilerError, match="more than 1,000 files"):
        proposed(repo, forge.commit(("40000", "jobs", tree)))


@pytest.mark.slow
def test_folders_that_are_too_deep_are_refused(forge: Forge, repo: Repository) -> None:
    tree = forge.tree(("100644", "job.yaml", forge.put("blob", b"")))
    for _ in range(3_000):
        tree = forge.tree(("40000", "f", tree))
    with pytest.raises(ReconcilerError, match="more than 256 nested folders"):
        proposed(repo, forge.commit(("40000", "jobs", tree)))


@pytest.mark.parametrize("data", [b"\0", b"100644 a", b"x a\0" + b"0" * 20, b"100644 a\0short"])
def test_a_damaged_folder_is_told(data: bytes, forge: Forge, repo: Repository) -> None:
    tree = forge.put("tree", data)
    with pytest.raises(ReconcilerError):
        proposed(repo, forge.commit(("40000", "jobs", tree)))


def test_what_isnt_what_its_folder_says_is_told(forge: Forge, repo: Repository) -> None:
    blob = forge.put("blob", b"x")
    with pytest.raises(GitError, match="is not a tree"):
        proposed(repo, forge.commit(("40000", "jobs", blob)))


def test_a_disk_that_is_full_is_told(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "mkdir", full)
    with pytest.raises(ReconcilerError, match="can't be written out: No space left on device") as raised:
        proposed(repo)
    assert "TMPDIR" in raised.value.hint


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in pairwise("abcdefghij")
)


@pytest.mark.slow
@pytest.mark.fault(37)
def test_bombs_in_the_base_cost_little(repo: Repository) -> None:
    repo.write("jobs/aliases.yaml", BOMB)
    repo.write("jobs/deep.yaml", "[" * 200_000)
    repo.write("jobs/huge.yaml", "# \n" * 4_000_000)
    repo.write("jobs/list.yaml", "- x\n" * 500_000)
    commit(repo)
    for name in ("aliases", "deep", "huge", "list"):
        (repo.root / f"jobs/{name}.yaml").unlink()

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_CPU, (10, 10))
        resource.setrlimit(resource.RLIMIT_AS, (400_000_000, 400_000_000))

    done = subprocess.run(
        [sys.executable, "-m", "reconciler", "plan", "--base", "HEAD", "--format", "json"],
        cwd=repo.root,
        preexec_fn=limited,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["summary"]["none"] == 1


@pytest.mark.slow
def test_selected_jobs_alone_are_compared_as_either_side_has_them(repo: Repository) -> None:
    repo.job("gone")
    repo.job("stays")
    commit(repo)
    (repo.root / "jobs/gone.yaml").unlink()
    repo.job("stays", args=["--new"])
    new = repo.job("added-later")
    new.write_text(new.read_text().replace("name: added-later", "name: added-later\n  labels: {team: risk}"))

    def compared(*arguments: str) -> list[str]:
        changes = repo.run("plan", "--base", "HEAD", *arguments, "--format", "json").json["changes"]
        return [change["baseName"] for change in changes]

    assert compared("--job", "gone", "--job", "added_later") == ["added-later", "gone"]
    assert compared("-l", "team=risk") == ["added-later"]
    misspelt = repo.run("plan", "--base", "HEAD", "--job", "stay")
    assert (misspelt.code, "did you mean stays?" in misspelt.err) == (1, True)
    repo.write("jobs/broken.yaml", "kind: CustomJob\n")
    assert repo.run("plan", "--base", "HEAD", "--job", "broken").code == 3
