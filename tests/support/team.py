"""A team: a repository on a server, its clones, GitHub, and the service that all of them share."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.support.github_server import GitHubServer
from tests.support.google_place import google_place
from tests.support.held_service import HeldService
from tests.support.repository import Repository, Result

TOKEN = "ghs_a-token-of-the-team"
RECONCILE = "{onChange: cancel, onDelete: cancel}"


class Clone(Repository):
    """A clone of the team's repository, unchanged since `git clone`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.starts = root.parent / "starts.txt"
        self.hold = root.parent / "hold"


class Team:
    """A repository on a server, its clones, and the service that all of them share.

    Attributes:
        author: The clone that pushes.
    """

    def __init__(
        self, folder: Path, service: HeldService, github: GitHubServer, environ: dict[str, str]
    ) -> None:
        self.folder = folder
        self.service = service
        self.github = github
        self.environ = environ
        self.origin = folder / "origin.git"
        self.author = Repository(folder / "author")
        self.author.git("init", "-q", "-b", "main")
        self.author.git("init", "-q", "--bare", "-b", "main", str(self.origin))
        self.author.git("remote", "add", "origin", f"file://{self.origin}")
        settings = self.author.root / "reconciler.yaml"
        settings.write_text(f"{settings.read_text()}github: {{repository: {github.repository}}}\n")

    @property
    def is_cloud(self) -> bool:
        return "RECONCILER_ENV" in self.environ

    @property
    def place(self) -> tuple[str, str]:
        """Return the project and the location of its jobs."""
        return ("acme-ml", "us-central1") if self.is_cloud else ("local", "local")

    def commit(self, *options: str, clone: Repository | None = None) -> str:
        """Commit all changes; GitHub knows the commit, as after a push to any branch."""
        clone = clone or self.author
        clone.git("add", "-A")
        clone.git("commit", "-q", "--allow-empty", "-m", "more", *options)
        sha = clone.git("rev-parse", "HEAD")
        self.github.commits.add(sha)
        return sha

    def push(self, *options: str, args: list[str] | None = None, name: str = "census") -> str:
        """Commit a job with these arguments, and push the branch."""
        self.author.job(name, args=args, reconcile=RECONCILE)
        sha = self.commit(*options)
        self.send()
        return sha

    def push_and_apply(self, *options: str, args: list[str] | None = None, name: str = "census") -> str:
        """Push a job, and apply it from the author's clone."""
        sha = self.push(*options, args=args, name=name)
        done = self.run(self.author, "apply")
        assert done.code == 0, done.err
        return sha

    def send(self, branch: str = "main") -> None:
        self.author.git("push", "-q", "--force", "origin", branch)

    def clone(self, name: str, *options: str) -> Clone:
        """Return a new clone of the pushed repository, made as a person makes it."""
        self.author.git("clone", "-q", *options, f"file://{self.origin}", str(self.folder / name))
        return Clone(self.folder / name)

    def run(self, clone: Repository, *arguments: str, **environ: str) -> Result:
        told = {"GITHUB_TOKEN": TOKEN, "GITHUB_API_URL": self.github.url, **self.environ, **environ}
        return clone.run(*arguments, **told)

    def ci(self, clone: Repository, *arguments: str, branch: str = "main") -> Result:
        """Run a command in GitHub Actions, on a branch whose head was just fetched."""
        ref, sha = f"refs/heads/{branch}", clone.git("rev-parse", "HEAD")
        told = {"GITHUB_ACTIONS": "true", "GITHUB_REPOSITORY": self.github.repository, "CI": "true"}
        return self.run(clone, *arguments, GITHUB_REF=ref, GITHUB_SHA=sha, **told)

    def states(self) -> dict[str, str]:
        """Return the state of each run, by its argument."""
        return dict(self.runs())

    def runs(self) -> list[tuple[str, str]]:
        """Return the argument and the state of each run, the oldest first."""
        return [
            (
                job["jobSpec"]["workerPoolSpecs"][0]["pythonPackageSpec"]["args"][0],
                job["state"].removeprefix("JOB_STATE_"),
            )
            for job in reversed(self.service.jobs(*self.place))
        ]

    def claims(self) -> list[dict[str, Any]]:
        """Return every claim as stored."""
        return self.service.claims("acme-claims" if self.is_cloud else "reconciler-staging")

    def record(self) -> dict[str, Any] | None:
        """Return the record of the last apply."""
        found = [*self.service.home.glob("gcs/*/reconciler/claims/*/_applied/*/*")]
        return json.loads(found[0].read_text()) if found else None

    def recorded(self) -> str:
        record = self.record()
        return str(record["commit"]) if record else ""

    def said(self, sha: str, context: str = "reconciler") -> tuple[str, str]:
        """Return state and description of a commit's newest status; of its verdict by default."""
        found = [one for one in self.github.statuses.get(sha, []) if one["context"] == context]
        return (found[0]["state"], found[0]["description"]) if found else ("", "")


@contextmanager
def team_of(folder: Path, engine: str) -> Iterator[Team]:
    with (
        HeldService(folder / "home").running() as service,
        GitHubServer(tokens={TOKEN: "write"}).running() as github,
    ):
        # A separate folder, because the author's clone is a checkout with an unused home.
        team = Team(folder, service, github, {"RECONCILER_HOME": str(service.home)})
        if engine == "local":
            settings = team.author.root / "reconciler.yaml"
            settings.write_text(f"source: acme-jobs\n{settings.read_text()}")
            yield team
            return
        with google_place(team.author, service, service.url, folder, submitter=False) as environ:
            team.environ = {**environ}
            assert team.run(team.author, "init", "--claims").code == 0
            yield team
