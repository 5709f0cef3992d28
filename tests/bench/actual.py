"""`python -m tests.bench.actual ROOT HOME`: write the service's state after all manifests have run.

No job runs. The service's own handlers create the jobs in this process, from the bodies that `apply` sends;
then the jobs are moved to their end, and their claims are written as after the last pass. It prints the
number of jobs.
"""

from __future__ import annotations

import os
import sqlite3
import sys
from datetime import UTC, datetime
from pathlib import Path
from unittest import mock

from reconciler.base.http import HttpRequest, HttpResponse
from reconciler.base.listener.message import Request
from reconciler.base.state_dir import prepare_home
from reconciler.google.client import Connection, Endpoint
from reconciler.google.object_store import ensure_bucket
from reconciler.manifests.settings import load_config
from reconciler.model.claim import Claim, ClaimId, ClaimState, rerun_digest
from reconciler.model.fields import part_of
from reconciler.model.job import KEY, REQUEST_ID
from reconciler.model.naming import label_of
from reconciler.model.plan import DesiredJob
from reconciler.operations.execute import labels_of
from reconciler.operations.load_desired import load_desired
from reconciler.operations.plan import request_body, wanted_of
from reconciler.operations.session import Session
from reconciler.submission.look import keep_summary, look
from reconciler.submission.protocol import bound
from reconciler.training_service.application import IMAGES, Application
from reconciler.training_service.state.database import Database, Store, prepare
from reconciler.training_service.state.records import JobState

_ROOT = "http://embedded.invalid/"
_APIS = ("aiplatform", "ml", "storage", "logging", "iamcredentials")


class Handlers:
    """Transport to the service's handlers in this process."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def send(self, request: HttpRequest) -> HttpResponse:
        asked = Request.of(request.method, request.url, request.headers, request.body or b"")
        answer = self._application.handle(asked)
        headers = {name.lower(): value for name, value in answer.headers}
        return HttpResponse(answer.status, headers, answer.read())


def fill(root: Path, home: Path) -> int:
    """Fill the home of a stopped service; return its number of jobs."""
    config = load_config(root)
    environment = config.environment(None)
    desired = load_desired(config, environment, [])
    prepare_home(home)
    # Data lost with the machine's power is recreated: don't wait for the disk.
    database = Database(lambda: connected(home / "state.db"))
    store = Store(database)
    store.set_setting(IMAGES, config.images)
    roots = dict.fromkeys(_APIS, _ROOT)
    transport = Handlers(Application(store, home))
    connection = Connection(
        Endpoint(transport, dict, environment.project, environment.location, roots),
    )
    session = Session(config, environment, connection)
    with mock.patch("os.fsync"):
        ensure_bucket(connection, environment.claims_bucket)
        session.claims.prepare()
        claims: dict[str, Claim] = {}
        for job in desired.jobs:
            id = ClaimId(label_of(job.identity))
            mark = f"{len(claims):026}"
            labels = {**labels_of(job, config.source, "", id, ""), REQUEST_ID: mark}
            body = request_body(job, desired, environment.staging_bucket, job.job_name, labels)
            if job_dir := part_of(body, "trainingInput").get("jobDir"):
                # AI Platform's jobs need their bucket.
                ensure_bucket(connection, job_dir.removeprefix("gs://").partition("/")[0])
            session.engine(job.manifest.api_version).create(job.manifest.kind, body, {})
            claims[id.key] = claim_before(job, id, mark)
        for record in store.unfinished():
            store.move(record.id, JobState.RUNNING, only_from={JobState.QUEUED}, at=store.now())
            store.move(record.id, JobState.SUCCEEDED, only_from={JobState.RUNNING}, at=store.now())
        for run in session.runs():
            session.claims.write(bound(claims.pop(run.labels[KEY]), run), 0)
        # The state after an apply.
        wanted = wanted_of(desired.jobs)
        keep_summary(session.ports, look(session.ports, wanted), wanted)
    database.close()
    assert not claims, "every job is listed"
    return len(desired.jobs)


def claim_before(job: DesiredJob, id: ClaimId, mark: str) -> Claim:
    """Return the claim as it is before the request leaves."""
    manifest = job.manifest
    return Claim(
        id=id,
        state=ClaimState.PENDING,
        job_name=job.job_name,
        base_name=manifest.name,
        api_version=manifest.api_version,
        kind=manifest.kind,
        path=manifest.path,
        on_delete=manifest.reconcile.on_delete,
        request_ids=(mark,),
        credential_expiry=datetime.now(UTC),
        rerun=rerun_digest(manifest.reconcile.rerun),
        owner=f"process {os.getpid()} on a machine",
    )


def connected(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = OFF")
    prepare(connection)
    return connection


if __name__ == "__main__":
    print(fill(Path(sys.argv[1]), Path(sys.argv[2])))
