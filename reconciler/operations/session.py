"""Session of an environment: its engines, jobs, claims and staging bucket.

The services are Google's, or the embedded training service, which a session can start.
"""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

from msgspec.structs import replace

from reconciler.base.concurrency import run_concurrently, run_in_order
from reconciler.base.http import HttpRequest
from reconciler.base.sanitize import is_on_runner
from reconciler.base.state_dir import home_of
from reconciler.engines.api.engine_client import CLIENTS, EngineClient, engine_client
from reconciler.engines.api.engine_jobs import EngineJobs
from reconciler.git.history import GitHistory
from reconciler.google.claim_store import PREFIX, ObjectClaims
from reconciler.google.client import API_VERSIONS, Connection, Endpoint
from reconciler.google.commit_store import ObjectCommits
from reconciler.google.credentials import (
    LOCAL_SUBMITTER,
    DefaultCredentials,
    GeneratedTokens,
    OwnToken,
    google_endpoint,
)
from reconciler.google.metrics_store import ObjectMetrics
from reconciler.google.object_store import ensure_bucket
from reconciler.google.publication_store import PublicationStore
from reconciler.google.responses import api_error
from reconciler.google.staging import Staging
from reconciler.manifests.settings import Config, Environment
from reconciler.model.job import ActualJob, is_of_other_instance
from reconciler.model.manifest import ML_V1
from reconciler.model.plan import DesiredJob
from reconciler.model.ports import (
    EMBEDDED_BOUNDS,
    GOOGLE_BOUNDS,
    LEAST_HISTORY,
    Bounds,
    CommitStore,
    CredentialSource,
    HostedRepository,
    MetricsStore,
    Ports,
)
from reconciler.operations.origin import origin_of
from reconciler.reporting.github.settings import actions_repository
from reconciler.submission.announcements import AnnouncedClaims
from reconciler.training_service.client import ROOT, EmbeddedService, buckets_of, folder_of

if TYPE_CHECKING:
    from reconciler.operations.load_desired import Desired

_LOCAL_PAUSE = 0.2
_GOOGLE_PAUSE = 15.0


class Session:
    """Access to an environment's services; each part is created at first use.

    `is_exported` is True if this process fetched the branch of its jobs and checked out its head.
    `repository` is the one that the claims have to belong to; None if unknown.
    """

    def __init__(
        self,
        config: Config,
        environment: Environment,
        connection: Connection,
        credentials: DefaultCredentials | None = None,
        *,
        is_exported: bool = False,
        repository: HostedRepository | None = None,
    ) -> None:
        self.repository = repository
        self.config = config
        self.is_exported = is_exported
        self.environment = environment
        self.connection = connection
        self._default_credentials = credentials
        self._engines: dict[str, EngineClient] = {}

    def engine(self, api_version: str) -> EngineClient:
        """Return the client of the service that runs jobs of an apiVersion."""
        if api_version not in self._engines:
            self._engines[api_version] = engine_client(api_version, self.connection)
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
        return EMBEDDED_BOUNDS if self.is_local else GOOGLE_BOUNDS

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
            repository=self.repository,
        )

    def now(self) -> datetime:
        """Return the time by Cloud Storage's clock."""
        return self.claims.now()

    def publications(self, to: str) -> PublicationStore:
        """Return the publications at an address (gs://…)."""
        return PublicationStore(self.connection, to)

    def history(self) -> GitHistory:
        """Return the history of the commit that is checked out now."""
        return GitHistory(self.config.root, os.environ, is_exported=self.is_exported)

    def is_committed(self, desired: Desired, job: DesiredJob) -> bool:
        """Return True if a job's files are those of the commit that is checked out."""
        origin = origin_of(self.config, desired, [job], os.environ, whole=False)
        return bool(origin.commit) and job.job_name in origin.made

    @cached_property
    def commits(self) -> CommitStore:
        """The commit records of this environment."""
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
    def metrics(self) -> MetricsStore:
        """The judged metrics of this repository's runs in this environment."""
        environment = self.environment
        return ObjectMetrics(
            self.connection,
            environment.claims_bucket,
            self.claims.folder,
            environment.project,
            environment.location,
        )

    @cached_property
    def jobs(self) -> EngineJobs:
        """The jobs of all engines."""
        return EngineJobs(self.config.source, self.engine, self.api_versions)

    @property
    def api_versions(self) -> list[str]:
        """The apiVersions of the services that the environment has."""
        # Google switched its ml service off: a request to it would fail every plan.
        gone = set() if self.is_local else {ML_V1}
        return [version for version in CLIENTS if version not in gone]

    @cached_property
    def credentials(self) -> CredentialSource:
        """The source of credentials for creates."""
        submitter = self.environment.submitter
        if self._default_credentials is not None and not submitter:
            return OwnToken(self._default_credentials, self.claims.now)
        connection = self.connection
        if self._default_credentials is not None:
            authorize = partial(self._default_credentials.headers_for, submitter)
            connection = Connection(replace(connection.endpoint, authorize=authorize))
        return GeneratedTokens(connection, submitter or LOCAL_SUBMITTER, self.bounds.lifetime)

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
    is_exported: bool = False,
    changes_owner: bool = False,
) -> Iterator[Session]:
    """Open a session; before its first use it reads no credentials, and sends requests only with `start`.

    Args:
        start: True for a command that writes: start the embedded service if it doesn't run, send it the
            settings, and create the environment's buckets. For Google Cloud in GitHub Actions, check that the
            claims belong to the repository.
        is_exported: True if this process fetched the branch and checked out its head.
        changes_owner: True to open the claims of another repository too.

    Raises:
        InvalidError: The settings name a host that may not get Google's token, or the embedded service is
            needed and not installed.
        ServiceError: The claims belong to another repository, or can't be read.
    """
    if environment.engine == "google":
        credentials = DefaultCredentials()
        endpoint = google_endpoint(config.root, environment, credentials, environ)
        session = Session(
            config,
            environment,
            Connection(endpoint),
            credentials,
            is_exported=is_exported,
            repository=actions_repository(environ) if start else None,
        )
        if not changes_owner:
            session.claims.check_owner()
        yield session
        return
    if environment.engine != "local":
        assert_never(environment.engine)
    home = home_of(config.root, environ)
    with EmbeddedService(home, start=start) as service:
        endpoint = embedded_endpoint(
            service, environment, on_runner=is_on_runner(environ), buckets=buckets_of(home)
        )
        connection = Connection(endpoint)
        session = Session(config, environment, connection, is_exported=is_exported)
        if start:
            _configure(service, config)
            for bucket in sorted(config.buckets_of(environment)):
                ensure_bucket(connection, bucket)
        yield session


def embedded_endpoint(
    service: EmbeddedService, environment: Environment, *, on_runner: bool = False, buckets: str = ""
) -> Endpoint:
    """Return the endpoint of the embedded service's APIs; `buckets` is the folder of its buckets."""
    return Endpoint(
        transport=service,
        authorize=dict,
        project=environment.project,
        location=environment.location,
        roots=dict.fromkeys(API_VERSIONS, ROOT),
        on_runner=on_runner,
        buckets=buckets,
    )


def _configure(service: EmbeddedService, config: Config) -> None:
    """Replace the service's settings by the repository's: its images, its buckets, and the hidden claims."""
    headers = {"Content-Type": "application/json"}
    local = (environment for environment in config.environments.values() if environment.engine == "local")
    reserved = sorted({f"{environment.claims_bucket}/{PREFIX}" for environment in local})
    buckets = {"reachable": list(config.buckets), "public": list(config.public_buckets)}
    for setting, value in (
        ("images", config.images),
        ("claims", {"reserved": reserved}),
        ("buckets", buckets),
    ):
        body = json.dumps(value).encode()
        response = service.send(HttpRequest("PUT", f"{ROOT}_service/{setting}", headers, body))
        if response.status >= 300:
            raise api_error(response.status, response.body)
