"""GitHub Actions on this machine: nektos/act, without Docker and without a network but loopback.

The workflows and actions are the real ones. `actions/` stands in for three third-party actions. Links to the
tool as installed here stand in for its installation, which has a test of its own.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.github_server import GitHubServer
from tests.support.repository import Repository
from tests.support.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
ACT = Path(sys.executable).parent / "act"
STAND_INS = ROOT / "tests" / "actions"
TOOL = "acme/reconciler"
PIN = "1" * 40
TOKEN = "ghs_of_the_run"
INSTALL = f"""#!/bin/sh
mkdir -p "$RUNNER_TEMP/reconciler/bin"
ln -sf "{Path(sys.executable).parent}/reconciler" "$RUNNER_TEMP/reconciler/bin/reconciler"
echo "$RUNNER_TEMP/reconciler/bin" >>"$GITHUB_PATH"
echo "RECONCILER_HOME=${{KEPT_HOME:-$RUNNER_TEMP/reconciler/home}}" >>"$GITHUB_ENV"
"""
OWN_SOURCE = {"workflow_repository": TOOL, "workflow_sha": "main"}


@dataclass(frozen=True)
class Run:
    """A run of a workflow.

    Attributes:
        jobs: The conclusion of each job, by the name of its check.
        log: The output of the steps, with act's own messages.
        summary: The content of the job summaries.
        commands: The runner commands in the output of the steps.
    """

    jobs: dict[str, str]
    log: str
    summary: str
    commands: tuple[dict[str, Any], ...] = ()


def copy_workflows(to: Path) -> None:
    """Copy this repository's workflows and actions, with the values that GitHub sets and act doesn't."""
    shutil.copytree(ROOT / ".github", to / ".github")
    (to / ".github/actions/install").write_text(INSTALL)
    for workflow in (to / ".github/workflows").iterdir():
        text = workflow.read_text()
        for name, value in OWN_SOURCE.items():
            text = text.replace("${{ fromJSON(toJSON(job))." + name + " }}", value)
        workflow.write_text(text)


class Actions:
    """A repository on GitHub, and runs of its workflows.

    Args:
        folder: The folder for all files that it creates.
        server: The API.
        repository: The content of `server.repository` on GitHub.

    Attributes:
        keeps: True if the service and its records outlast a run, as in Google Cloud.
    """

    keeps = False

    def __init__(self, folder: Path, server: GitHubServer, repository: Repository) -> None:
        self.folder = folder
        self.server = server
        self.repository = repository
        self.remotes = folder / "remotes"
        self.artifacts = folder / "artifacts"
        server.tokens[TOKEN] = "write"
        (self.remotes / "acme").mkdir(parents=True)
        (self.remotes / server.repository).symlink_to(repository.root)
        self.tool = Repository(self.remotes / TOOL)
        copy_workflows(self.tool.root)
        self.commit(self.tool, "the tool")

    def commit(self, repository: Repository, message: str = "a change") -> str:
        """Commit everything to the current branch; return the commit's name."""
        if not (repository.root / ".git").exists():
            repository.git("init", "--quiet", "-b", "main")
        repository.git("add", "--all")
        repository.git("commit", "--quiet", "--allow-empty", "-m", message)
        sha = repository.git("rev-parse", "HEAD")
        self.server.commits.add(sha)
        return sha

    def push(self, workflow: str, sha: str = "main") -> Run:
        """Return the run for a push of that commit to the default branch."""
        after = self.repository.git("rev-parse", sha)
        return self.run(workflow, "push", after, {"ref": "refs/heads/main", "after": after})

    def pull_request(
        self,
        workflow: str,
        branch: str,
        *,
        source: str = "acme/models",
        into: str = "main",
        action: str = "opened",
    ) -> Run:
        """Return the run for a pull request of that branch, from the repository itself or a fork."""
        git = self.repository.git
        merge = self._merged(branch, into=into)
        git("update-ref", "refs/pull/7/merge", merge)
        head = {"ref": branch, "sha": git("rev-parse", branch), "repo": {"full_name": source}}
        base = {"ref": into, "sha": git("rev-parse", into), "repo": {"full_name": self.server.repository}}
        self.server.commits.add(head["sha"])
        self.server.comments.setdefault(7, [])
        about = {"action": action, "number": 7, "pull_request": {"number": 7, "head": head, "base": base}}
        return self.run(workflow, "pull_request", merge, about)

    def merge_group(self, workflow: str, *branches: str) -> Run:
        """Return the run for a merge-queue group into main, with a pull request of each branch."""
        base, head = self.repository.git("rev-parse", "main"), self._merged(*branches)
        queue = f"refs/heads/gh-readonly-queue/main/pr-7-{base}"
        self.repository.git("update-ref", queue, head)
        group = {"head_sha": head, "head_ref": queue, "base_sha": base, "base_ref": "refs/heads/main"}
        return self.run(workflow, "merge_group", head, {"action": "checks_requested", "merge_group": group})

    def _merged(self, *branches: str, into: str = "main") -> str:
        """Return the commit that merges each branch in turn, on no branch itself."""
        git = self.repository.git
        git("checkout", "--quiet", "--detach", into)
        for branch in branches:
            git("merge", "--quiet", "--no-ff", "-m", f"merge {branch}", branch)
        merged = git("rev-parse", "HEAD")
        git("checkout", "--quiet", "main")
        return merged

    def run(self, workflow: str, event: str, sha: str, about: dict[str, Any]) -> Run:
        """Return the run of a workflow's text for an event at a commit."""
        place = self.folder / "checked-out"
        shutil.rmtree(place, ignore_errors=True)
        self.repository.git("worktree", "prune")
        self.repository.git("worktree", "add", "--quiet", "--detach", str(place), sha)
        file = self.folder / "workflow.yml"
        file.write_text(workflow)
        owner, _, name = self.server.repository.partition("/")
        told = {"default_branch": "main", "full_name": self.server.repository, "name": name}
        event_file = self.folder / "event.json"
        event_file.write_text(json.dumps({**about, "repository": {**told, "owner": {"login": owner}}}))
        done = subprocess.run(
            [ACT, event, *self._options(file, event_file)],
            cwd=place,
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
        )
        return _run(done.stdout)

    def _options(self, workflow: Path, event: Path) -> list[str]:
        environ = {
            "ARTIFACTS": self.artifacts,
            "GITHUB_API_URL": self.server.url,
            "GITHUB_REPOSITORY": self.server.repository,
            "REMOTES": self.remotes,
            **({"KEPT_HOME": self.folder / "home"} if self.keeps else {}),
            "SSL_CERT_FILE": os.environ["SSL_CERT_FILE"],
            **{name: value for name, value in os.environ.items() if name.startswith("PIP_")},
        }
        stand_ins = {
            **{f"{action}@{pin}": STAND_INS / Path(action).name for action, pin in pins()},
            f"{TOOL}@{PIN}": self.tool.root,
        }
        return [
            *("--workflows", str(workflow), "--eventpath", str(event), "--json"),
            *("--platform", "ubuntu-latest=-self-hosted", "--pull=false", "--action-offline-mode"),
            *("--no-skip-checkout", "--use-new-action-cache", "--no-cache-server", "--concurrent-jobs", "1"),
            *("--action-cache-path", str(self.folder / "act"), "--secret", f"GITHUB_TOKEN={TOKEN}"),
            *(word for name, path in stand_ins.items() for word in ("--local-repository", f"{name}={path}")),
            *(word for name, value in environ.items() for word in ("--env", f"{name}={value}")),
        ]


def pins() -> set[tuple[str, str]]:
    """Return each third-party action that the workflows use, with its commit."""
    files = [*(ROOT / ".github").rglob("*.yml")]
    lines = [line for file in files for line in file.read_text().splitlines() if "uses:" in line]
    words = [line.split("uses:")[1].split()[0] for line in lines]
    return {(action, pin) for action, _, pin in (word.partition("@") for word in words) if pin}


def _run(output: str) -> Run:
    entries = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    jobs = {_check(e["job"]): e["jobResult"] for e in entries if "jobResult" in e}
    log = "".join(e["msg"].rstrip("\n") + "\n" for e in entries)
    summary = "".join(e["content"] for e in entries if e.get("command") == "summary")
    return Run(jobs, log, summary, tuple(e for e in entries if "command" in e))


def _check(job: str) -> str:
    """Return `calling / called` for act's `calling/Workflow/called`, or `job` for its `Workflow/job`."""
    *calling, _, name = (part.strip() for part in job.split("/"))
    return " / ".join((*calling, name))
