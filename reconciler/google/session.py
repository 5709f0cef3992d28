"""Session of an environment: its engines, jobs, claims and staging bucket; and the log of a job."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from reconciler.base.concurrency import run_concurrently, run_in_order
from reconciler.base.sanitize import is_on_runner
from reconciler.google.claim_store import PREFIX, ObjectClaims
from reconciler.google.client import Connection, part_of, parts_of, text_of
from reconciler.google.engines import BUILT_IN, Engine, EngineJobs, api_versions, engine_class
from reconciler.google.listing import TargetMemory
from reconciler.google.object_store import Staging, ensure_bucket
from reconciler.manifests.settings import Config, Environment
from reconciler.model.job import ActualJob, LogEntry, is_of_other_instance
from reconciler.model.manifest import ML_V1, JsonObject
from reconciler.model.ports import (
    EMBEDDED_BOUNDS,
    GOOGLE_BOUNDS,
    LEAST_HISTORY,
    Bounds,
    CommitStore,
    CredentialSource,
    Ports,
)
from reconciler.submission.announcements import AnnouncedClaims

if TYPE_CHECKING:
    from reconciler.google.credentials import DefaultCredentials


_LOCAL_PAUSE = 0.2
_GOOGLE_PAUSE = 15.0


class Session:
    """Access to an environment's services; each part is created at first use."""

    def __init__(
        self,
        config: Config,
        environment: Environment,
        connection: Connection,
        credentials: DefaultCredentials | None = None,
        memory: TargetMemory | None = None,
    ) -> None:
        self.config = config
        self.environment = environment
        self.connection = connection
        self._default_credentials = credentials
        self._memory = memory
        self._engines: dict[str, Engine] = {}

    def engine(self, api_version: str) -> Engine:
        """Return the engine of an apiVersion."""
        if api_version not in self._engines:
            self._engines[api_version] = engine_class(api_version)(self.connection)
        return self._engines[api_version]

    def runs(self) -> tuple[ActualJob, ...]:
        """Return all runs of this environment by their labels, without their specs."""
        return self.own(self.jobs.runs())

    def own(self, runs: Iterable[ActualJob]) -> tuple[ActualJob, ...]:
        """Return the runs without those of the repository's other instances."""
        source, instance = self.config.source, self.environment.instance
        return tuple(run for run in runs if not is_of_other_instance(run, source, instance))

    def read(self, job: ActualJob) -> ActualJob:
        """Read a job again, with its spec."""
        return self.jobs.read(job.api_version, job.kind, job.resource)

    def folder_of(self, uri: str, environ: Mapping[str, str]) -> Path | None:
        """Return the folder of this machine that gs://BUCKET/… is at the embedded service; None for none."""
        if not self.is_local:
            return None
        from reconciler.base.state_dir import home_of
        from reconciler.google.embedded import folder_of

        return folder_of(home_of(self.config.root, environ), uri)

    @property
    def is_local(self) -> bool:
        """True if the embedded service runs the jobs."""
        return self.environment.engine == "local"

    @property
    def pause(self) -> float:
        """Seconds between two polls."""
        return _LOCAL_PAUSE if self.is_local else _GOOGLE_PAUSE

    @cached_property
    def bounds(self) -> Bounds:
        """The longest delays of the environment's services."""
        # An engine of another package may run jobs elsewhere than the embedded service. With that service's
        # short delays, a create whose answer was lost would be sent again before its job can be seen.
        others = set(self._api_versions) - set(BUILT_IN)
        return EMBEDDED_BOUNDS if self.is_local and not others else GOOGLE_BOUNDS

    @cached_property
    def _api_versions(self) -> list[str]:
        return api_versions()

    @cached_property
    def staging(self) -> Staging:
        """The store of staged packages."""
        return Staging(self.connection, self.environment.staging_bucket)

    @cached_property
    def claims(self) -> ObjectClaims:
        """The claims of this repository in this environment."""
        environment = self.environment
        return ObjectClaims(
            self.connection,
            environment.claims_bucket,
            self.config.source,
            environment.project,
            environment.location,
            instance=environment.instance,
            may_be_new=self.is_local,
            environment=environment.name,
            known=self._memory.claims if self._memory else None,
        )

    @cached_property
    def commits(self) -> CommitStore:
        """The commit records of this environment."""
        from reconciler.google.claim_store import ObjectCommits

        environment = self.environment
        return ObjectCommits(
            self.connection,
            environment.claims_bucket,
            self.config.source,
            environment.project,
            environment.location,
            environment.name,
        )

    @cached_property
    def jobs(self) -> EngineJobs:
        """The jobs of all engines."""
        # Google switched its ml service off: a request to it would fail every plan.
        gone = set() if self.is_local else {ML_V1}
        versions = (version for version in self._api_versions if version not in gone)
        return EngineJobs(self.config.source, self.engine, versions, self._memory, self.bounds)

    @cached_property
    def credentials(self) -> CredentialSource:
        """The source of credentials for creates."""
        from reconciler.google.credentials import LOCAL_SUBMITTER, GeneratedTokens, OwnToken

        submitter = self.environment.submitter
        if self._default_credentials is not None and not submitter:
            return OwnToken(self._default_credentials, self.claims.now)
        return GeneratedTokens(self.connection, submitter or LOCAL_SUBMITTER, self.bounds.lifetime)

    @cached_property
    def ports(self) -> Ports:
        """The ports of planning and submission."""
        clock = _Clock()
        return Ports(
            source=self.config.source,
            claims=AnnouncedClaims(self.claims, clock, os.urandom, LEAST_HISTORY),
            jobs=self.jobs,
            credentials=self.credentials,
            clock=clock,
            chance=os.urandom,
            bounds=self.bounds,
            owner=f"process {os.getpid()} on {platform.node()}",
            instance=self.environment.instance,
            neighbours=self.config.neighbours(self.environment),
            together=run_concurrently if self.connection.endpoint.distant else run_in_order,
        )


class _Clock:
    def monotonic(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@contextmanager
def open_session(
    config: Config,
    environment: Environment,
    environ: Mapping[str, str],
    *,
    start: bool,
    memory: TargetMemory | None = None,
) -> Iterator[Session]:
    """Open a session; before its first use it reads no credentials, and sends requests only with `start`.

    Args:
        start: True to start the embedded service if it doesn't run, to send it the settings, and to create
            the environment's buckets; without effect for Google Cloud.
        memory: The memory of earlier sessions, updated by this session; None for none.

    Raises:
        InvalidError: The settings name a host that may not get Google's token, or the embedded service is
            needed and not installed.
    """
    if environment.engine == "google":
        from reconciler.google.credentials import DefaultCredentials, google_endpoint

        credentials = DefaultCredentials()
        endpoint = google_endpoint(config.root, environment, credentials, environ)
        connection = Connection(endpoint)
        memory = memory and memory.of((config.source, environment))
        yield Session(config, environment, connection, credentials, memory)
        return
    if environment.engine != "local":
        assert_never(environment.engine)
    from reconciler.base.state_dir import home_of
    from reconciler.google.embedded import EmbeddedService

    home = home_of(config.root, environ)
    with EmbeddedService(home, start=start) as service:
        memory = memory and memory.of((config.source, environment, home))
        connection = Connection(service.endpoint(environment, on_runner=is_on_runner(environ)))
        session = Session(config, environment, connection, memory=memory)
        if start:
            local = (each for each in config.environments.values() if each.engine == "local")
            service.configure(config, {f"{each.claims_bucket}/{PREFIX}" for each in local})
            for bucket in {environment.staging_bucket, environment.claims_bucket}:
                ensure_bucket(connection, bucket)
        yield session


_PAGE_SIZE = 1000
_LIST_ENTRIES = "logging.entries.list"
_TRIAL_LABEL = "ml.googleapis.com/trial_id"


class JobLog:
    """Log of a job, a replica or a trial.

    Both training services write the output of replicas to the resource type `ml_job`. Its label `job_id` is
    the last part of the job's resource name, and `task_name` is the replica. The trial is a label of entries.

    Args:
        replica: The task name of a replica; "" for all.
        trial: The id of a trial; "" for all.
    """

    def __init__(self, connection: Connection, job: ActualJob, replica: str = "", trial: str = "") -> None:
        self._connection = connection
        terms = [
            'resource.type="ml_job"',
            f"resource.labels.job_id={_quoted(job.resource.rpartition('/')[2])}",
            f"resource.labels.task_name={_quoted(replica)}" if replica else "",
            f"labels.{_quoted(_TRIAL_LABEL)}={_quoted(trial)}" if trial else "",
        ]
        self._filter = " AND ".join(filter(None, terms))

    def entries(self, since: str = "") -> Iterator[LogEntry]:
        """Yield all entries from `since` (RFC 3339) on, oldest first."""
        body = self._query("timestamp asc", _PAGE_SIZE, since)
        while True:
            answer = self._connection.post(_LIST_ENTRIES, body)
            yield from map(_log_entry, parts_of(answer, "entries"))
            if not answer.get("nextPageToken"):
                return
            body = {**body, "pageToken": answer["nextPageToken"]}

    def last(self, most: int = 1) -> list[LogEntry]:
        """Return the newest entries, oldest first."""
        return self._page("timestamp desc", most)[::-1]

    def first(self) -> LogEntry | None:
        """Return the oldest entry; None for an empty log."""
        return next(iter(self._page("timestamp asc", 1)), None)

    def _page(self, order: str, size: int) -> list[LogEntry]:
        answer = self._connection.post(_LIST_ENTRIES, self._query(order, size, ""))
        return [_log_entry(entry) for entry in parts_of(answer, "entries")]

    def _query(self, order: str, size: int, since: str) -> JsonObject:
        return {
            "resourceNames": [f"projects/{self._connection.endpoint.project}"],
            "filter": f"{self._filter} AND timestamp>={_quoted(since)}" if since else self._filter,
            "orderBy": order,
            "pageSize": size,
        }


def _quoted(text: str) -> str:
    """Return the text as a string literal of the filter language."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _payload_text(payload: JsonObject) -> str:
    if not payload:
        return ""
    return str(payload["message"]) if "message" in payload else json.dumps(payload, ensure_ascii=False)


def _log_entry(entry: JsonObject) -> LogEntry:
    payload = part_of(entry, "jsonPayload")
    return LogEntry(
        timestamp=text_of(entry, "timestamp"),
        severity=text_of(entry, "severity") or "DEFAULT",
        text=text_of(entry, "textPayload") or _payload_text(payload),
        insert_id=text_of(entry, "insertId"),
        replica=text_of(part_of(part_of(entry, "resource"), "labels"), "task_name"),
        trial=text_of(part_of(entry, "labels"), _TRIAL_LABEL),
    )
