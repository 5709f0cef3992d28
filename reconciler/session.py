"""One environment, opened: its engines, its runs, its staging bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from reconciler.config import Config, Environment
from reconciler.engines import api_versions, engine_class
from reconciler.engines.base import Connection, Engine
from reconciler.job import ActualJob
from reconciler.labels import SOURCE
from reconciler.manifest import ML_V1
from reconciler.storage import Staging


class Session:
    """What commands ask a service through.

    Attributes:
        config: The repository's settings.
        environment: Where the jobs run.
        staging: Where packages go.
    """

    def __init__(self, config: Config, environment: Environment, connection: Connection) -> None:
        self.config = config
        self.environment = environment
        self.connection = connection
        self.staging = Staging(connection, environment.staging_bucket)
        self._engines: dict[str, Engine] = {}

    def engine(self, api_version: str) -> Engine:
        """The engine of an apiVersion, made when first asked for."""
        if api_version not in self._engines:
            self._engines[api_version] = engine_class(api_version)(self.connection)
        return self._engines[api_version]

    def runs(self) -> tuple[ActualJob, ...]:
        """All runs that this repository owns, without their specs."""
        # Google's ml service is gone: asking it would fail every plan.
        gone = {ML_V1} if self.environment.engine == "google" else set()
        label = (SOURCE, self.config.source)
        asked = (version for version in api_versions() if version not in gone)
        return tuple(job for version in asked for job in self.engine(version).jobs(label))

    def read(self, job: ActualJob) -> ActualJob:
        """The job as it is now, with its spec."""
        return self.engine(job.api_version).read(job)


@contextmanager
def open_session(
    config: Config, environment: Environment, environ: Mapping[str, str], *, start: bool
) -> Iterator[Session]:
    """A session; with `start`, the embedded service is started where it doesn't run.

    No service is asked, and no credentials are read, before the first request.
    """
    if environment.engine == "google":
        from reconciler.credentials import google_endpoint

        yield Session(config, environment, Connection(google_endpoint(environment)))
        return
    from reconciler.embedded import EmbeddedService, home_of

    with EmbeddedService(home_of(config.root, environ), start=start) as service:
        session = Session(config, environment, Connection(service.endpoint(environment)))
        if start:
            service.put_images(config.images)
            session.staging.ensure_bucket()
        yield session
