"""The embedded training service: found, started, looked at while it is stopped, ended.

The only module that knows the service's package; everything else reaches it through its APIs.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from reconciler.config import Environment
from reconciler.engines.base import Endpoint, api_error
from reconciler.errors import ServiceError
from reconciler.localservice.address import Address, ServiceRunningError, read_address
from reconciler.localservice.application import Application
from reconciler.localservice.bucket_files import is_bucket_name, parts_of
from reconciler.localservice.message import ApiError, Request
from reconciler.manifest import JsonObject
from reconciler.transport import (
    READ_METHODS,
    HttpRequest,
    HttpResponse,
    NoAnswerError,
    NotSentError,
    Transport,
    UrllibTransport,
)

ROOT = "http://embedded.invalid/"
"""The root of every API's URLs; replaced by where the service really listens when a request is sent."""

_APIS = ("aiplatform", "ml", "storage", "logging", "iamcredentials")
_STARTS_WITHIN = 30.0
_STOPS_WITHIN = 30.0
_PAUSE = 0.02
_COPY_LASTS = 2.0
_SECRET_NAME = re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY", re.IGNORECASE)


def home_of(root: Path, environ: Mapping[str, str]) -> Path:
    """Where runs leave their things: `RECONCILER_HOME`, else `.reconciler/` at the repository's root."""
    named = environ.get("RECONCILER_HOME")
    return Path(named).absolute() if named else root / ".reconciler"


def folder_of(home: Path, uri: str) -> Path | None:
    """The folder of this machine that gs://BUCKET/… stands for; None where there can be none."""
    scheme, _, path = uri.partition("://")
    bucket, _, name = path.rstrip("/").partition("/")
    if scheme != "gs" or not is_bucket_name(bucket):
        return None
    try:
        return home.joinpath("gcs", bucket, *(parts_of(name) if name else ()))
    except ApiError:
        return None


class EmbeddedService:
    """The service of one home, as a transport: a request finds it, or starts it, or sees it stopped.

    Args:
        home: The service's folder.
        start: Whether it is started where it doesn't run. Without, a stopped service is asked in process,
            over a private copy of its state: nothing is started or written.
    """

    def __init__(self, home: Path, *, start: bool) -> None:
        self._home = home
        self._start = start
        self._http = UrllibTransport()
        self._running: Address | None = None
        self._stopped: Transport | None = None
        self._copied = 0.0
        self._resources = ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._resources.close()
        self._http.close()

    def endpoint(self, environment: Environment) -> Endpoint:
        """How the service's APIs are reached."""
        return Endpoint(
            transport=self,
            authorize=dict,
            project=environment.project,
            location=environment.location,
            roots=dict.fromkeys(_APIS, ROOT),
        )

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request to where the service is now.

        A service that ended since it was last asked is found or started again: a request that never left is
        sent there, and so is a read whose answer was lost.
        """
        try:
            return self._send(request)
        except NotSentError:
            self._running = None
        except NoAnswerError:
            if request.method not in READ_METHODS:
                raise
            self._running = None
        return self._send(request)

    def put_images(self, images: JsonObject) -> None:
        """Tell the service which images `reconciler.yaml` overrides."""
        self._put("images", images)

    def reserve(self, places: Collection[str]) -> None:
        """Keep `bucket` or `bucket/beginning of names` out of the reach of all jobs, and nothing else."""
        self._put("claims", {"reserved": sorted(places)})

    def stop(self) -> bool:
        """End the service; whether one ran. Its jobs go on, and the next service takes them over."""
        if not self._find():
            return False
        self._checked(HttpRequest("POST", ROOT + "_service/stop", body=b""))
        deadline = time.monotonic() + _STOPS_WITHIN
        while read_address(self._home) is not None:
            if time.monotonic() > deadline:
                raise ServiceError("the embedded service doesn't end", hint=self._see_log())
            time.sleep(_PAUSE)
        return True

    def _put(self, setting: str, value: JsonObject) -> None:
        headers = {"Content-Type": "application/json"}
        body = json.dumps(value).encode()
        self._checked(HttpRequest("PUT", f"{ROOT}_service/{setting}", headers, body))

    def _checked(self, request: HttpRequest) -> None:
        response = self.send(request)
        if response.status >= 300:
            raise api_error(response.status, response.body)

    def _send(self, request: HttpRequest) -> HttpResponse:
        if self._stopped is not None and time.monotonic() > self._copied + _COPY_LASTS:
            # Jobs go on without the service, and somebody may have started it.
            self._resources.close()
            self._stopped = None
        self._reach()
        if self._stopped is not None:
            return self._stopped.send(request)
        running = self._running
        assert running is not None, "found or started above"
        target = running.url + request.url.removeprefix(ROOT.rstrip("/"))
        headers = dict(request.headers)
        # A request that brings a credential of its own is sent with that one and no other.
        if "authorization" not in {name.lower() for name in headers}:
            headers["Authorization"] = f"Bearer {running.token}"
        return self._http.send(replace(request, url=target, headers=headers))

    def _reach(self) -> None:
        """Find the service, start it, or open what a stopped one left."""
        deadline = time.monotonic() + _STARTS_WITHIN
        while self._stopped is None and not self._find():
            if self._start:
                self._spawn()
                return
            try:
                self._stopped = self._resources.enter_context(_stopped_service(self._home))
                self._copied = time.monotonic()
            except ServiceRunningError:
                # It is just starting, and not listening yet; or just ending, and its state not at rest yet.
                if time.monotonic() > deadline:
                    raise ServiceError("the embedded service doesn't answer", hint=self._see_log()) from None
                time.sleep(_PAUSE)

    def _find(self) -> bool:
        """Whether a service runs; it is asked, because a killed one leaves its file behind."""
        if self._running is not None:
            return True
        told = read_address(self._home)
        if told is None:
            return False
        check = HttpRequest(
            "GET", f"{told.url}/_service/health", {"Authorization": f"Bearer {told.token}"}, timeout=10
        )
        try:
            alive = self._http.send(check).status == 200
        except (NotSentError, NoAnswerError):
            alive = False
        self._running = told if alive else None
        return alive

    def _spawn(self) -> None:
        """Start the service in a session of its own; where several start at once, one of them stays."""
        prepare_home(self._home)
        with (self._home / "service.log").open("ab") as log:
            process = subprocess.Popen(
                service_command(self._home, stay=False),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._home,
                env=_without_secrets(os.environ),
                start_new_session=True,
            )
        deadline = time.monotonic() + _STARTS_WITHIN
        while not self._find():
            if process.poll() not in (None, 0) or time.monotonic() > deadline:
                raise ServiceError("the embedded service didn't start", hint=self._see_log())
            time.sleep(_PAUSE)

    def _see_log(self) -> str:
        return f"see {self._home / 'service.log'}"


def _without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for the service, which outlives this process; jobs can read those of every process."""
    return {name: value for name, value in environ.items() if not _SECRET_NAME.search(name)}


class _StoppedService:
    """A transport to a stopped service's own handlers, in process."""

    def __init__(self, application: Application) -> None:
        self._application = application

    def send(self, request: HttpRequest) -> HttpResponse:
        asked = Request.of(request.method, request.url, request.headers, request.body or b"")
        answer = self._application.handle(asked)
        headers = {name.lower(): value for name, value in answer.headers}
        return HttpResponse(answer.status, headers, answer.read())


@contextmanager
def _stopped_service(home: Path) -> Iterator[Transport]:
    """Raises ServiceError where the state can't be read."""
    from reconciler.localservice.database import DatabaseError
    from reconciler.localservice.view import open_copy

    try:
        with open_copy(home) as application:
            yield _StoppedService(application)
    except (DatabaseError, OSError) as error:
        raise ServiceError(f"the embedded service's state in {home} can't be read: {error}") from None


def prepare_home(home: Path) -> None:
    """Make the folder, and have git ignore it: what lies there must not make a work tree count as changed.

    Raises ServiceError where there can be no such folder.
    """
    ignore = home / ".gitignore"
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not ignore.exists():
            ignore.write_text("*\n")
    except OSError as error:
        hint = "name another folder in RECONCILER_HOME"
        raise ServiceError(f"{home} can't be used: {error.strerror}", hint=hint) from None


def service_command(home: Path, *, stay: bool) -> list[str]:
    """The command that runs the service; with `stay` it doesn't end when there is nothing to do."""
    # -P: nothing that lies in the working directory is ever imported.
    command = [sys.executable, "-P", "-m", "reconciler.localservice", "--home", str(home)]
    return [*command, "--stay"] if stay else command
