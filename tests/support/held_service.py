"""The embedded service in this process, without a supervisor and with a clock that can be put forward.

Submitted jobs stay queued, and each submission is in the history. `reconciler`, as a process or in this
process, finds the service by `service.json`, as it finds any embedded service.
"""

from __future__ import annotations

import json
import os
import secrets
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import urllib3

from reconciler.base.state_dir import prepare_home
from reconciler.training_service.address import Address, code_version, lock_home, write_address
from reconciler.training_service.application import IMAGES, Admin, Application
from reconciler.training_service.gate import Gate
from reconciler.training_service.http.auth import Tokens
from reconciler.training_service.http.server import Activity, Server
from reconciler.training_service.state import database
from reconciler.training_service.state.database import Store
from tests.support.repository import IMAGE


class HeldService:
    """The service of one home.

    Attributes:
        url, token: The address of the service, and its token.
        ahead: The offset of its clock.

    Args:
        home: Its folder.
        rate: The speed of its clock relative to this machine's.
    """

    def __init__(self, home: Path, *, rate: float = 1.0) -> None:
        if not home.exists():
            prepare_home(home)
        self.home = home
        self.token = secrets.token_urlsafe(16)
        self.ahead = timedelta()
        self._rate = rate
        self._began, self._began_at = time.monotonic(), datetime.now(UTC)
        self._lock = lock_home(home)
        assert self._lock is not None
        self.store = Store(database.open_file(home / "state.db"), self.now)
        self.store.set_setting(IMAGES, {IMAGE: {}})  # until a command of the local environment sets it
        application = Application(self.store, home)
        gate = Gate(application, Admin(self.store, home, lambda: None), self.store, self.token)
        self._server = Server(gate.admit, Activity())
        self.url = self._server.url
        self.found_at(self.url)

    def now(self) -> datetime:
        gone = timedelta(seconds=self._rate * (time.monotonic() - self._began))
        return self._began_at + gone + self.ahead

    def found_at(self, url: str) -> None:
        """Write another address into `service.json`, for example a proxy's."""
        write_address(self.home, Address(os.getpid(), url, self.token, code_version()))

    def token_for(self, lifetime: timedelta) -> str:
        """Return a token that expires by this service's clock."""
        return Tokens(self.store).mint(lifetime)[0]

    def names(self, project: str = "local", location: str = "local") -> Counter[str]:
        """Return the number of jobs of each name."""
        return job_names(self.url, self.token, project, location)

    def jobs(self, project: str, location: str) -> list[dict[str, Any]]:
        """Return every custom job, as its service returns it."""
        url = f"{self.url}/v1/projects/{project}/locations/{location}/customJobs"
        return [*_listed(url, self.token, "customJobs")]

    def claims(self, bucket: str = "reconciler-staging") -> list[dict[str, Any]]:
        """Return the metadata of every claim object in a bucket."""
        objects = _listed(f"{self.url}/storage/v1/b/{bucket}/o", self.token, "items")
        told = (item.get("metadata", {}).get("claim") for item in objects)
        return [json.loads(claim) for claim in told if claim]

    @contextmanager
    def running(self) -> Iterator[HeldService]:
        self._server.start()
        try:
            yield self
        finally:
            self._server.close(5.0)
            self.store.database.close()
            (self.home / "service.json").unlink(missing_ok=True)
            self._lock.release()


def job_names(url: str, token: str, project: str = "local", location: str = "local") -> Counter[str]:
    """Return the number of jobs of each name in the whole history of a service, read through its API.

    A pipeline and the job that trains for it are one.
    """
    parent = f"{url}/v1/projects/{project}/locations/{location}"
    before: set[str] | None = None
    while True:
        pipelines = [*_listed(f"{parent}/trainingPipelines", token, "trainingPipelines")]
        # Another client may make a pipeline between two listings.
        if before == (before := {pipeline["name"] for pipeline in pipelines}):
            break
        custom = [*_listed(f"{parent}/customJobs", token, "customJobs")]
    backing = {pipeline["trainingTaskMetadata"]["backingCustomJob"] for pipeline in pipelines}
    runs = [job for job in custom if job["name"] not in backing]
    assert len(custom) == len(runs) + len(pipelines), "each pipeline has one backing job"
    named = _listed(f"{url}/v1/projects/{project}/jobs", token, "jobs")
    return Counter([*(job["displayName"] for job in [*runs, *pipelines]), *(job["jobId"] for job in named)])


def _listed(url: str, token: str, key: str) -> Iterator[dict[str, Any]]:
    page = ""
    while True:
        answer = urllib3.request(
            "GET",
            f"{url}?{'maxResults' if '/storage/' in url else 'pageSize'}=100&pageToken={page}",
            headers={"Authorization": f"Bearer {token}"},
            retries=False,
        )
        assert answer.status == 200, answer.data
        told = json.loads(answer.data)
        yield from told.get(key, [])
        page = told.get("nextPageToken", "")
        if not page:
            return
