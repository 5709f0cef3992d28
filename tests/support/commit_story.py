"""A repository on GitHub: commits, applies in its workflow, and the statuses of each commit."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import urllib3
from github import Auth, Github

from tests.support.github_server import GitHubServer
from tests.support.repository import Repository, Result
from tests.support.waiting import until

TOKEN = "ghs_a-token-of-the-story"


@dataclass
class Story:
    """A repository on GitHub; GitHub knows the pushed commits only."""

    repository: Repository
    github: GitHubServer

    @property
    def environ(self) -> dict[str, str]:
        return {
            "GITHUB_ACTIONS": "true",
            "GITHUB_REPOSITORY": self.github.repository,
            "GITHUB_API_URL": self.github.url,
            "GITHUB_TOKEN": TOKEN,
        }

    def run(self, *arguments: str, **environ: str) -> Result:
        return self.repository.run(*arguments, **{**self.environ, **environ})

    def push(self, message: str) -> str:
        """Commit everything, and push it to GitHub."""
        self.repository.git("add", "-A")
        self.repository.git("commit", "-q", "--allow-empty", "-m", message)
        sha = self.repository.git("rev-parse", "HEAD")
        self.github.commits.add(sha)
        return sha

    def push_job(self, message: str, *arguments: str, **options: Any) -> str:
        """Write a job's manifest, and push it."""
        self.repository.job(*arguments, **options)
        return self.push(message)

    def push_words(self, words: str) -> str:
        """Push a change that concerns no job."""
        self.repository.write("README.md", words)
        return self.push(words)

    def shown(self, sha: str) -> dict[str, str]:
        """Return the newest state of each context, as a third-party client reads it."""
        newest: dict[str, str] = {}
        for status in self.client.get_repo(self.github.repository).get_commit(sha).get_statuses():
            newest.setdefault(status.context, status.state)
        return newest

    @cached_property
    def client(self) -> Github:
        auth = Auth.Token(TOKEN)
        return Github(
            base_url=self.github.plain_url, auth=auth, lazy=True, retry=None, seconds_between_requests=0
        )

    def cancel_outside(self) -> None:
        """Cancel each live job as another client of the service does, and wait until it has ended."""
        service = self.repository.service()
        headers = {"Authorization": f"Bearer {service['token']}"}
        for job in self._live():
            url = f"{service['url']}/v1/{job['resource']}:cancel"
            assert urllib3.request("POST", url, headers=headers).status == 200
        until(lambda: not self._live())

    def _live(self) -> list[dict[str, Any]]:
        jobs = self.repository.run("status", "--format", "json").json["jobs"]
        return [job for job in jobs if job["state"] in ("QUEUED", "PREPARING", "RUNNING", "CANCELLING")]

    def said(self, sha: str, context: str) -> str:
        """Return the description of the newest status."""
        of_context = [s for s in self.github.statuses.get(sha, []) if s["context"] == context]
        return str(of_context[0]["description"])
