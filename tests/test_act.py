"""Workflows and actions, run from end to end by nektos/act in a real git repository."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import unescape
from pathlib import Path

import pytest

from tests.support import models
from tests.support.act import PIN, TOKEN, TOOL, Actions, Run, copy_workflows, pins
from tests.support.github_server import GitHubServer
from tests.support.repository import Repository
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[1]
JOBS = (ROOT / ".github" / "workflows" / "jobs.yml").read_text()
JOBS_PLAN = (ROOT / ".github" / "workflows" / "jobs-plan.yml").read_text()
PLAN = f"""
on:
  pull_request:
    types: [opened, synchronize, reopened, edited]
  merge_group:
jobs:
  reconciler:
    name: reconciler plan
    runs-on: ubuntu-latest
    steps:
      - uses: {TOOL}/.github/actions/plan@{PIN}
"""
APPLY = f"""
on: [push, pull_request, workflow_dispatch, schedule]
jobs:
  apply:
    runs-on: ubuntu-latest
    steps:
      - uses: {TOOL}/.github/actions/apply@{PIN}
        with:
          wait: true
"""
SCHEDULED = f"""
on: [push, schedule]
jobs:
  apply:
    runs-on: ubuntu-latest
    steps:
      - uses: {TOOL}/.github/actions/apply@{PIN}
        with:
          environment: local
          workload-identity-provider: projects/1/locations/global/workloadIdentityPools/p/providers/github
          report: false
"""
CHECKOUT = next(f"{action}@{pin}" for action, pin in pins() if action == "actions/checkout")
SHALLOW = f"""
on: push
jobs:
  apply:
    runs-on: ubuntu-latest
    steps:
      - uses: {TOOL}/.github/actions/reconciler@{PIN}
        with:
          local: true
      - uses: {CHECKOUT}
        with:
          fetch-depth: 1
          path: repository
          persist-credentials: false
      - run: reconciler apply --wait
        working-directory: repository
"""
IN_THE_CLOUD = f"""
on: push
jobs:
  jobs:
    permissions: {{contents: read, id-token: write, statuses: write}}
    uses: {TOOL}/.github/workflows/apply.yml@{PIN}
    with:
      environment: local
      workload-identity-provider: projects/1/locations/global/workloadIdentityPools/p/providers/github
      service-account: submitter@my-project.iam.gserviceaccount.com
"""
SUSPENDED = "{suspend: true}"
# Modules that the interpreter, pip or the tool would import if they searched the current folder.
IMPORTED = ("venv", "pip", "site", "sitecustomize", "reconciler", "yaml", "json", "task", "setup")


@pytest.fixture
def github(repository: Repository, tmp_path: Path) -> Iterator[Actions]:
    with GitHubServer().running() as server:
        made = Actions(tmp_path / "github", server, repository)
        repository.job("first", reconcile=SUSPENDED)
        made.commit(repository, "nothing to train yet")
        yield made
        assert not server.violations


def latest(github: Actions, sha: str) -> dict[str, str]:
    """Return the newest state of each context of a commit."""
    return {s["context"]: s["state"] for s in reversed(github.server.statuses.get(sha, []))}


def pages(github: Actions) -> list[str]:
    """Return the pages that the run kept."""
    report = github.artifacts / "reconciler-report-local" / "report"
    return [page.read_text() for page in report.rglob("*.html")]


def branch(github: Actions, name: str = "feature") -> Repository:
    github.repository.git("checkout", "--quiet", "-b", name)
    return github.repository


# Merged changes


def test_this_repositorys_workflow_applies_a_push(github: Actions) -> None:
    copy_workflows(github.repository.root)
    github.repository.job("census")
    sha = github.commit(github.repository)
    run = github.push(JOBS)
    assert run.jobs["apply"] == "success", run.log
    states = latest(github, sha)
    assert states["reconciler/local/census"] == states["reconciler"] == "success"
    # Pages about the run are kept, with the trainer's output, and the summary links to them.
    assert any("training with" in page for page in pages(github))
    assert "(https://github.example/artifacts/reconciler-report-local)" in run.summary


def test_pages_and_the_runs_log_have_no_jobs_log_unless_the_workflow_asks_for_it(github: Actions) -> None:
    github.repository.job("census", args=["--fail"])
    github.commit(github.repository)
    run = github.push(APPLY)
    assert run.jobs == {"apply": "failure"}, run.log
    assert "exit code 1" in run.log
    assert "training with" not in run.log
    assert any("census" in page for page in pages(github))
    assert not any("training with" in page for page in pages(github))


@pytest.mark.fault(45)
def test_log_of_a_failed_job_stands_in_the_runs_log_and_commands_nothing(github: Actions) -> None:
    copy_workflows(github.repository.root)
    hostile = "::error::nobody's\\n::add-path::/evil\\n##[error]nobody's\\nx\\r::set-env name=EVIL::yes"
    github.repository.write("trainer/task.py", f'print("training with\\n{hostile}", flush=True)\nexit(1)\n')
    github.repository.job("census")
    sha = github.commit(github.repository)
    run = github.push(JOBS)
    assert run.jobs == {"apply": "failure"}, run.log
    shown = run.log[run.log.index("training with") :]
    assert "nobody's" in shown
    assert not [line for line in run.log.splitlines() if line.lstrip().startswith(("::error", "::add-path"))]
    assert not [each for each in run.commands if "nobody's" in str(each) or "evil" in str(each).lower()]
    assert any("training with" in page for page in pages(github))
    # The machine is gone: no status links to it.
    job = next(s for s in github.server.statuses[sha] if s["context"] == "reconciler/local/census")
    assert "see its log in the workflow's run" in job["description"]
    assert "reconciler logs" not in run.log


def test_proof_shows_the_log_of_a_failed_job(github: Actions) -> None:
    copy_workflows(github.repository.root)
    github.commit(github.repository)
    branch(github).job("census", args=["--fail"])
    github.commit(github.repository)
    run = github.pull_request(JOBS_PLAN, "feature", source="stranger/models")
    assert run.jobs == {"plan / reconciler plan": "success", "plan / proof": "failure"}, run.log
    assert "ValueError: the loss is NaN" in run.log
    assert "see its log in the workflow's run" in run.log
    assert not github.server.requests


# Permissions that a workflow lacks


def test_missing_permission_for_statuses_is_a_warning_and_a_line_of_the_summary(github: Actions) -> None:
    github.server.tokens[TOKEN] = "read"
    run = github.push(APPLY)
    assert run.jobs == {"apply": "success"}, run.log
    (warning,) = [each for each in run.commands if each["command"] == "warning"]
    assert "statuses: write" in warning["msg"]
    assert "permissions: {statuses: write}" in unescape(run.summary)


def test_missing_permission_for_comments_is_a_warning_and_a_line_of_the_summary(github: Actions) -> None:
    github.server.tokens[TOKEN] = "read"
    branch(github).job("census")
    github.commit(github.repository)
    run = github.pull_request(PLAN, "feature")
    assert run.jobs == {"reconciler plan": "success"}, run.log
    (warning,) = [each for each in run.commands if each["command"] == "warning"]
    assert "pull-requests: write" in warning["msg"]
    assert "permissions: {pull-requests: write}" in unescape(run.summary)


@pytest.mark.fault(29)
def test_a_run_that_waited_applies_the_head_of_its_branch(github: Actions) -> None:
    """Check that the last run applies all commits, although GitHub doesn't order the runs.

    This holds if records are kept, as they are with every identity.
    """
    waited = github.repository.git("rev-parse", "HEAD")
    for name in ("census", "rainfall"):
        github.repository.job(name, reconcile=SUSPENDED)
        head = github.commit(github.repository)
    run = github.push(IN_THE_CLOUD, waited)
    assert run.jobs["jobs / apply"] == "success", run.log
    assert "3 jobs (3 suspended)" in run.log
    assert latest(github, head)["reconciler"] == "success"


@dataclass
class Branch:
    """Default branch, to which several authors push; its runs find the records of earlier runs."""

    github: Actions

    @property
    def repository(self) -> Repository:
        return self.github.repository

    def job(self, name: str, args: list[str]) -> str:
        self.repository.job(name, args=args)
        return self.github.commit(self.repository, f"{name} {args}")

    def words(self) -> str:
        self.repository.write("README.md", f"words after {self.repository.git('rev-parse', 'HEAD')}\n")
        return self.github.commit(self.repository, "words alone")

    def merge(self, name: str, args: list[str]) -> str:
        """Merge a pull request whose branch began at the previous commit."""
        git = self.repository.git
        git("checkout", "--quiet", "-b", f"pull-{name}")
        self.job(name, args)
        git("checkout", "--quiet", "main")
        git("merge", "--quiet", "--no-ff", "-m", f"merge {name}", f"pull-{name}")
        sha = git("rev-parse", "HEAD")
        self.github.server.commits.add(sha)
        return sha

    def settle(self) -> None:
        """Run the workflow for the push, and on its schedule until the jobs have ended."""
        self.github.push(SCHEDULED)
        sha = self.repository.git("rev-parse", "HEAD")
        environ = {"RECONCILER_HOME": str(self.github.folder / "home")}

        def is_settled() -> bool:
            jobs = self.repository.run("status", "--format", "json", **environ).json["jobs"]
            return all(job["state"] in ("SUCCEEDED", "FAILED", None) for job in jobs)

        until(is_settled)
        self.github.run(SCHEDULED, "schedule", sha, {"ref": "refs/heads/main"})

    def said(self, sha: str, context: str = "reconciler") -> tuple[str, str]:
        """Return the state and the text of a commit's newest status."""
        found = [one for one in self.github.server.statuses.get(sha, []) if one["context"] == context]
        return (found[0]["state"], found[0]["description"].partition(" · update")[0]) if found else ("", "")


@pytest.mark.fault(22, 29)
def test_each_of_the_commits_that_one_run_applies_shows_its_own_jobs(github: Actions) -> None:
    github.keeps = True
    main = Branch(github)
    first = main.job("census", ["--good"])
    main.settle()
    assert main.said(first) == ("success", "1 of 1 succeeded")

    # Two authors merge before the first run checks out its commit.
    failing = main.merge("fraud", ["--fail"])
    good = main.merge("iris", ["--good"])
    main.settle()
    assert main.said(failing) == ("failure", "failed: fraud · 0 of 1 succeeded")
    assert main.said(failing, "reconciler/local/fraud")[0] == "failure"
    assert main.said(good) == ("success", "1 of 1 succeeded · earlier: 1 failed")
    assert main.said(good, "reconciler/local/fraud") == ("", "")

    # Three commits in one push: a mistake, its revert, and words.
    mistake = main.job("census", ["--fail"])
    revert = main.job("census", ["--good"])
    words = main.words()
    main.settle()
    assert main.said(mistake) == ("success", f"replaced by {revert[:7]} before it ran · earlier: 1 failed")
    assert main.said(revert) == ("success", "1 of 1 succeeded · earlier: 1 failed")
    assert main.said(words) == ("success", "no job of its own · earlier: 1 failed")

    # A merge queue's group of two pull requests arrives as a single push.
    group = [main.merge("ranker", ["--good"]), main.merge("sales", ["--fail"])]
    main.settle()
    assert main.said(group[0]) == ("success", "1 of 1 succeeded · earlier: 1 failed")
    assert main.said(group[1]) == ("failure", "failed: sales · 0 of 1 succeeded · earlier: 1 failed")
    starts = github.repository.starts.read_text()
    assert (starts.count("--good"), starts.count("--fail")) == (3, 2)


def test_published_model_follows_a_revert_and_needs_the_whole_history(github: Actions) -> None:
    github.keeps = True
    repository = github.repository
    models.settings(repository, "outputs: own")
    repository.write("trainer/task.py", models.TRAINER)

    def push(accuracy: str, workflow: str = APPLY) -> tuple[str, Run]:
        models.write(repository, f"--accuracy={accuracy}", publish="{to: gs://risk-models/census}")
        sha = github.commit(repository, f"accuracy {accuracy}")
        return sha, github.push(workflow, sha)

    def in_place() -> tuple[str, str]:
        """Return the commit in current.json, and the metrics of the model in place."""
        buckets = github.folder / "home" / "gcs"
        current = json.loads((buckets / "risk-models/census/current.json").read_text())
        folder = buckets / current["folder"].removeprefix("gs://")
        return current["commit"], (folder / "metrics.json").read_text()

    for accuracy in ("0.9", "0.8", "0.9"):
        sha, run = push(accuracy)
        assert run.jobs == {"apply": "success"}, run.log
        assert in_place() == (sha, f'{{"accuracy": {accuracy}}}')
        assert latest(github, sha)["reconciler/local/census"] == "success"
    assert run.log.count("applied  publish") == 1
    assert "+ submit" not in run.log, "a revert trains nothing"

    reverting, run = push("0.8", SHALLOW)
    assert run.jobs == {"apply": "failure"}, run.log
    assert f"this checkout's history doesn't have {sha[:7]}, which published last" in run.log
    assert "fetch the history: give actions/checkout a `fetch-depth` of 0" in run.log
    assert in_place()[0] == sha, "it stays"
    run = github.push(APPLY, reverting)
    assert run.jobs == {"apply": "success"}, run.log
    assert in_place() == (reverting, '{"accuracy": 0.8}')


@pytest.mark.fault(29)
def test_where_nothing_is_kept_each_run_applies_its_own_commit(github: Actions) -> None:
    """No other run would give the commit its verdict."""
    pushed = [github.repository.git("rev-parse", "HEAD")]
    github.repository.job("census", reconcile=SUSPENDED)
    pushed.append(github.commit(github.repository))
    for wanted, sha in reversed([*enumerate(pushed, 1)]):
        run = github.push(APPLY, sha)
        assert run.jobs == {"apply": "success"}, run.log
        assert f"{wanted} jobs ({wanted} suspended)".replace("1 jobs", "1 job") in run.log
        assert latest(github, sha)["reconciler"] == "success"
        github.server.statuses.clear()


def test_the_reusable_workflow_asks_for_an_identity_and_keeps_the_work_tree_clean(github: Actions) -> None:
    sha = github.repository.git("rev-parse", "HEAD")
    run = github.push(IN_THE_CLOUD)
    assert run.jobs["jobs / apply"] == "success", run.log
    assert "identity of submitter@my-project.iam.gserviceaccount.com at projects/1/" in run.log
    assert latest(github, sha)["reconciler"] == "success"


@pytest.mark.fault(42)
@pytest.mark.parametrize(
    ("event", "ref"),
    [
        ("workflow_dispatch", "refs/heads/feature"),
        ("push", "refs/heads/feature"),
        ("push", "refs/tags/main"),
    ],
)
def test_what_is_not_the_default_branch_is_not_applied(github: Actions, event: str, ref: str) -> None:
    sha = github.repository.git("rev-parse", "HEAD")
    run = github.run(APPLY, event, sha, {"ref": ref})
    assert run.jobs == {"apply": "failure"}
    # On a busy machine act loses the output of a step that ends immediately.
    assert "Failure - Main Refuse what isn't merged" in run.log
    assert not github.artifacts.exists()
    assert not github.server.requests


@pytest.mark.fault(42)
def test_a_pull_request_is_not_applied(github: Actions) -> None:
    branch(github).job("census")
    github.commit(github.repository)
    run = github.pull_request(APPLY, "feature")
    assert run.jobs == {"apply": "failure"}
    # As above: the output of such a step may be lost.
    assert "Failure - Main Refuse what isn't merged" in run.log
    assert not github.server.requests


# Proposed changes


def test_a_pull_request_gets_a_summary_and_a_comment(github: Actions) -> None:
    branch(github).job("census")
    github.commit(github.repository)
    run = github.pull_request(PLAN, "feature")
    assert run.jobs == {"reconciler plan": "success"}, run.log
    assert "census" in run.summary
    (comment,) = github.server.comments[7]
    assert "census" in comment["body"]
    assert not github.artifacts.exists()


@pytest.mark.fault(40, 41, 42)
def test_a_forks_pull_request_runs_nothing_and_asks_nobody(github: Actions, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    fork = branch(github)
    fork.job("census")
    for module in IMPORTED:
        for folder in ("", "trainer/", "jobs/"):
            fork.write(f"{folder}{module}.py", f"open({str(ran)!r}, 'a').write({module!r})\n")
    fork.write("trainer/pyproject.toml", "[build-system]\nrequires = []\nbuild-backend = 'setup'\n")
    github.commit(fork)
    run = github.pull_request(PLAN, "feature", source="stranger/models")
    assert run.jobs == {"reconciler plan": "success"}, run.log
    assert "census" in run.summary
    assert not github.server.requests
    assert not ran.exists(), ran.read_text()


def test_invalid_manifests_are_annotated_and_fail_the_check(github: Actions) -> None:
    branch(github).write("jobs/bad.yaml", "apiVersion: aiplatform.googleapis.com/v1\nkind: CustomJobb\n")
    github.commit(github.repository)
    run = github.pull_request(PLAN, "feature")
    assert run.jobs == {"reconciler plan": "failure"}
    assert "jobs/bad.yaml" in run.log
    assert "CustomJobb" in run.summary
    (comment,) = github.server.comments[7]
    assert "CustomJobb" in comment["body"]


def over_a_limit(github: Actions) -> Repository:
    """Propose a branch over the limit of submissions; return its repository."""
    settings = github.repository.root / "reconciler.yaml"
    settings.write_text(f"{settings.read_text()}limits: {{submissions: 1}}\n")
    github.commit(github.repository, "a limit")
    proposing = branch(github)
    for name in ("census", "rainfall"):
        proposing.job(name)
    github.commit(proposing)
    return proposing


def test_plan_over_a_limit_fails_until_the_pull_request_raises_it(github: Actions) -> None:
    """Check that the comment's advice makes the check green, and that the next apply submits both jobs."""
    proposing = over_a_limit(github)
    run = github.pull_request(PLAN, "feature")
    assert run.jobs == {"reconciler plan": "failure"}
    assert "apply would refuse this plan, and after the merge every apply" in run.log
    (comment,) = github.server.comments[7]
    for shown in (run.summary, comment["body"]):
        assert "the plan has 2 submissions, but one apply may do at most 1" in shown
    (lines,) = re.findall("```yaml\n(environments:.*?)```", comment["body"], re.DOTALL)

    proposing.git("checkout", "--quiet", "feature")
    settings = proposing.root / "reconciler.yaml"
    settings.write_text(f"{settings.read_text()}{lines}")
    github.commit(proposing, "the limit that the comment asks for")
    run = github.pull_request(PLAN, "feature")
    assert run.jobs == {"reconciler plan": "success"}, run.log
    assert "Settings change" in comment["body"]
    assert "would refuse" not in comment["body"]

    proposing.git("merge", "--quiet", "--no-ff", "-m", "merge", "feature")
    run = github.push(APPLY)
    assert run.jobs == {"apply": "success"}, run.log
    assert proposing.starts.read_text().count("start") == 2


@pytest.mark.parametrize(("limits", "ended"), [("warn", "success"), ("off", "failure")])
def test_input_limits_decides_about_a_plan_over_a_limit(github: Actions, limits: str, ended: str) -> None:
    over_a_limit(github)
    run = github.pull_request(f"{PLAN}        with:\n          limits: {limits}\n", "feature")
    assert run.jobs == {"reconciler plan": ended}, run.log
    assert ("Apply would refuse this plan" in run.summary) == (limits == "warn")
    assert ("the input limits is neither" in run.log) == (limits == "off")


def test_pull_request_without_a_changed_job_gets_no_comment(github: Actions) -> None:
    branch(github).write("README.md", "about the models")
    github.commit(github.repository)
    run = github.pull_request(PLAN, "feature")
    assert run.jobs == {"reconciler plan": "success"}, run.log
    assert "No changes for" in run.summary
    assert " into <code>main</code>, planned " in run.summary
    assert github.server.comments[7] == []


def test_comment_names_the_branch_that_is_applied_where_the_base_is_another_one(github: Actions) -> None:
    branch(github).job("census")
    head = github.commit(github.repository)
    github.repository.git("branch", "release", "main")
    run = github.pull_request(PLAN, "feature", into="release")
    assert run.jobs == {"reconciler plan": "success"}, run.log
    (comment,) = github.server.comments[7]
    first = comment["body"].splitlines()[1]
    assert f"<code>{head[:12]}</code>" in first
    assert " into <code>release</code>, planned " in first
    assert "**Only <code>main</code> is applied:**" in first
    assert "**Once it is in main, apply submits 1 job" in comment["body"]


def test_this_repositorys_workflow_proves_a_pull_request(github: Actions) -> None:
    """Check that the proof trains the jobs, and reports to GitHub only by its check."""
    copy_workflows(github.repository.root)
    github.commit(github.repository)
    branch(github).job("census")
    github.commit(github.repository)
    run = github.pull_request(JOBS_PLAN, "feature", source="stranger/models")
    checks = ("plan / reconciler plan", "plan / proof", "reconciler plan")
    assert run.jobs == dict.fromkeys(checks, "success"), run.log
    assert github.repository.starts.read_text().count("start") == 1
    assert not github.server.requests


def test_what_is_invalid_fails_the_called_workflow(github: Actions) -> None:
    """act ends a run at this point; on GitHub the dependent job continues, and fails too."""
    copy_workflows(github.repository.root)
    github.commit(github.repository)
    branch(github).write("jobs/bad.yaml", "kind: CustomJob\n")
    github.commit(github.repository)
    run = github.pull_request(JOBS_PLAN, "feature")
    assert run.jobs == dict.fromkeys(("plan / reconciler plan", "plan / proof"), "failure"), run.log


def test_edit_of_a_title_after_a_red_plan_leaves_the_check_red(github: Actions) -> None:
    """A job skipped by a condition would be green, under the same name."""
    branch(github).write("jobs/bad.yaml", "kind: CustomJob\n")
    github.commit(github.repository)
    for action in ("opened", "edited"):
        run = github.pull_request(PLAN, "feature", action=action)
        assert run.jobs == {"reconciler plan": "failure"}, run.log


def test_pull_request_to_another_base_gets_the_plan_for_that_base(github: Actions) -> None:
    git = github.repository.git
    git("branch", "release")
    github.repository.job("merged-already", reconcile=SUSPENDED)
    github.commit(github.repository)
    branch(github).job("census")
    github.commit(github.repository)
    run = github.pull_request(PLAN, "feature")
    assert "census" in run.summary
    assert "merged-already" not in run.summary
    run = github.pull_request(PLAN, "feature", into="release", action="edited")
    assert run.jobs == {"reconciler plan": "success"}, run.log
    assert "merged-already" in run.summary
    (comment,) = github.server.comments[7]
    assert "merged-already" in comment["body"]


def test_plan_of_a_merge_group_shows_the_jobs_of_each_pull_request_in_it(github: Actions) -> None:
    for name in ("census", "rainfall"):
        branch(github, name).job(name)
        github.commit(github.repository)
        github.repository.git("checkout", "--quiet", "main")
    run = github.merge_group(PLAN, "census", "rainfall")
    assert run.jobs == {"reconciler plan": "success"}, run.log
    assert "census" in run.summary
    assert "rainfall" in run.summary
    # A group isn't a pull request: there is nowhere to comment.
    assert not github.server.requests


def test_invalid_manifest_in_a_merge_group_fails_the_check(github: Actions) -> None:
    branch(github, "bad").write("jobs/bad.yaml", "kind: CustomJob\n")
    github.commit(github.repository)
    github.repository.git("checkout", "--quiet", "main")
    branch(github, "good").job("census")
    github.commit(github.repository)
    run = github.merge_group(PLAN, "bad", "good")
    assert run.jobs == {"reconciler plan": "failure"}, run.log


def test_this_repositorys_workflow_proves_a_merge_group(github: Actions) -> None:
    copy_workflows(github.repository.root)
    github.commit(github.repository)
    branch(github).job("census")
    github.commit(github.repository)
    run = github.merge_group(JOBS_PLAN, "feature")
    checks = ("plan / reconciler plan", "plan / proof", "reconciler plan")
    assert run.jobs == dict.fromkeys(checks, "success"), run.log
    assert github.repository.starts.read_text().count("start") == 1
    assert not github.server.requests


# Files that a checkout may lack


def test_file_in_git_lfs_is_planned_by_its_pointer_and_applied_with_lfs(github: Actions) -> None:
    weights = b"weights\0"
    digest = hashlib.sha256(weights).hexdigest()
    (github.remotes / "lfs").mkdir()
    (github.remotes / "lfs" / digest).write_bytes(weights)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(weights)}\n"
    branch(github).write("trainer/model.bin", pointer)
    github.repository.job("census")
    sha = github.commit(github.repository)
    run = github.pull_request(PLAN, "feature")
    assert run.jobs == {"reconciler plan": "success"}, run.log
    (comment,) = github.server.comments[7]
    name = re.search("census_[0-9a-f]{16}", comment["body"])
    assert name
    assert '"trainer/model.bin" is a Git LFS pointer' in unescape(comment["body"])
    github.repository.git("merge", "--quiet", "feature")
    run = github.push(APPLY)
    assert run.jobs == {"apply": "failure"}
    assert '"trainer/model.bin" is a Git LFS pointer, and not the file itself' in run.log
    assert "`lfs: true` of the apply action" in run.log
    run = github.push(APPLY + "          lfs: true\n")
    assert run.jobs == {"apply": "success"}, run.log
    assert name[0] in run.log, "the plan has the job's name"
    assert latest(github, sha)["reconciler/local/census"] == "success"


def test_submodule_is_planned_by_its_commit_and_applied_with_submodules(
    github: Actions, tmp_path: Path
) -> None:
    library = Repository.__new__(Repository)
    library.root = tmp_path / "library"
    library.write("shared.py", "")
    github.commit(library)
    from_file = ("-c", "protocol.file.allow=always")
    branch(github).git(*from_file, "submodule", "--quiet", "add", f"file://{library.root}", "trainer/lib")
    github.repository.job("census")
    sha = github.commit(github.repository)
    run = github.pull_request(PLAN, "feature")
    assert run.jobs == {"reconciler plan": "success"}, run.log
    (comment,) = github.server.comments[7]
    assert "name known at apply" in comment["body"]
    assert "::error" not in run.log
    github.repository.git("merge", "--quiet", "feature")
    run = github.push(APPLY)
    assert run.jobs == {"apply": "failure"}
    assert '"trainer/lib" is a submodule that isn\'t fetched' in run.log
    assert "`submodules: true` of the apply action" in run.log
    run = github.push(APPLY + "          submodules: true\n")
    assert run.jobs == {"apply": "success"}, run.log
    assert latest(github, sha)["reconciler/local/census"] == "success"
