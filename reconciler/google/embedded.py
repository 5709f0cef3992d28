"""The embedded training service: found, started, looked at while it is stopped, ended.

The only module that knows the service's package; everything else reaches it through its APIs.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Self

from msgspec import Struct

from reconciler.base.errors import ServiceError
from reconciler.base.http import (
    READ_METHODS,
    DirectTransport,
    HttpRequest,
    HttpResponse,
    NoAnswerError,
    NotSentError,
    Transport,
)
from reconciler.base.http.recipients import ThisMachine
from reconciler.base.state_dir import Home, prepare_home
from reconciler.google.client import Endpoint, api_error
from reconciler.manifests.settings import Environment
from reconciler.model.manifest import JsonObject
from reconciler.training_service.address import (
    ADDRESS,
    Address,
    ServiceRunningError,
    UntrustedAddressError,
    read_address,
    unserved,
)

if TYPE_CHECKING:
    from types import TracebackType

    from reconciler.training_service.contents import Contents as Contents

ROOT = "http://embedded.invalid/"
"""The root of every API's URLs; replaced by where the service really listens when a request is sent."""

_APIS = ("aiplatform", "ml", "storage", "logging", "iamcredentials")
_STARTS_WITHIN = 30.0
_STOPS_WITHIN = 30.0
_PAUSE = 0.02
_COPY_LASTS = 10.0
_STATE = (ADDRESS, "state.db", "state.db-wal")  # another one of these: a service is there, or was


def contents_of(home: Path) -> Contents:
    """Return a description of a home that may be another person's."""
    from reconciler.training_service import contents

    return contents.contents_of(home)


def folder_of(home: Path, uri: str) -> Path | None:
    """The folder of this machine that gs://BUCKET/… stands for; None where there can be none."""
    from reconciler.training_service.http.message import ApiError
    from reconciler.training_service.storage.files import is_bucket_name, parts_of

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

    Safe to use from several threads: one of them finds the service, or starts it, for all.

    Args:
        home: The service's folder.
        start: Whether it is started where it doesn't run. Without, a stopped service is asked in process,
            over a private copy of its state: nothing is started or written.
        checkout: The checkout that the home lies in, as in `reconciler.base.state_dir.Home`.
    """

    def __init__(self, home: Path, *, start: bool, checkout: Path | None) -> None:
        self._home = home
        self._checkout = checkout
        self._start = start
        self._http = DirectTransport(ThisMachine())
        self._reached: _Running | _Stopped | None = None
        self._reaching = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._reached = None
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
        reached = self._reach()
        try:
            return reached.send(request)
        except NotSentError:
            pass
        except NoAnswerError:
            if request.method not in READ_METHODS:
                raise
        return self._reach(lost=reached).send(request)

    def put_images(self, images: JsonObject) -> None:
        """Tell the service which images `reconciler.yaml` overrides."""
        self._put("images", images)

    def reserve(self, places: Collection[str]) -> None:
        """Keep `bucket` or `bucket/beginning of names` out of the reach of all jobs, and nothing else."""
        self._put("claims", {"reserved": sorted(places)})

    def stop(self) -> bool:
        """End the service; whether one ran. Its jobs go on, and the next service takes them over."""
        with self._reaching:
            self._reached = self._find()
            if self._reached is None:
                return False
        self._checked(HttpRequest("POST", ROOT + "_service/stop", body=b""))
        deadline = time.monotonic() + _STOPS_WITHIN
        while not self._has_ended():
            if time.monotonic() > deadline:
                raise ServiceError("the embedded service doesn't end", hint=self._see_log())
            time.sleep(_PAUSE)
        return True

    def _has_ended(self) -> bool:
        """Whether no service is there any more that may still write to the home."""
        if self._address() is not None:
            return False
        try:
            with unserved(self._home):
                return True
        except ServiceRunningError:
            return False

    def _put(self, setting: str, value: JsonObject) -> None:
        headers = {"Content-Type": "application/json"}
        body = json.dumps(value).encode()
        self._checked(HttpRequest("PUT", f"{ROOT}_service/{setting}", headers, body))

    def _checked(self, request: HttpRequest) -> None:
        response = self.send(request)
        if response.status >= 300:
            raise api_error(response.status, response.body)

    def _reach(self, lost: Transport | None = None) -> Transport:
        """What to send to: a service that runs, or what a stopped one left.

        Args:
            lost: What was reached before, and is there no more; another thread may have noticed already.
        """
        with self._reaching:
            reached = self._reached
            if reached is None or reached is lost or not reached.is_current:
                self._reached = reached = None  # first, as a copy may be large
                self._reached = reached = self._found()
            return reached

    def _found(self) -> _Running | _Stopped:
        """The service, found or started, or what a stopped one left."""
        deadline = time.monotonic() + _STARTS_WITHIN
        while True:
            # The state is looked at first: what changes from here on is seen by it.
            state = _state_of(self._home)
            if running := self._find():
                return running
            if self._start:
                return self._spawn()
            try:
                return _Stopped(self._home, state)
            except ServiceRunningError:
                # It is just starting, and not listening yet; or just ending, and its state not at rest yet.
                if time.monotonic() > deadline:
                    raise ServiceError("the embedded service doesn't answer", hint=self._see_log()) from None
                time.sleep(_PAUSE)

    def _find(self) -> _Running | None:
        """The service that runs; it is asked, as a killed one leaves its file behind."""
        address = self._address()
        if address is None:
            return None
        running = _Running(self._http, address)
        try:
            alive = running.send(HttpRequest("GET", f"{ROOT}_service/health", timeout=10)).status == 200
        except (NotSentError, NoAnswerError):
            return None
        return running if alive else None

    def _address(self) -> Address | None:
        try:
            return read_address(self._home)
        except UntrustedAddressError as error:
            file = self._home / ADDRESS
            hint = f"remove it, or if you made it, run: chmod 600 {file}"
            raise ServiceError(f"{file} isn't used: {error}", hint=hint) from None

    def _spawn(self) -> _Running:
        """Start the service in a session of its own; where several start at once, one of them stays."""
        import subprocess

        prepare_home(Home(self._home, self._checkout), os.environ)
        with (self._home / "service.log").open("ab") as log:
            process = subprocess.Popen(
                service_command(Home(self._home, self._checkout), stay=False),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._home,
                env=_without_secrets(os.environ),
                start_new_session=True,
            )
        deadline = time.monotonic() + _STARTS_WITHIN
        while not (running := self._find()):
            if process.poll() not in (None, 0) or time.monotonic() > deadline:
                raise ServiceError("the embedded service didn't start", hint=self._see_log())
            time.sleep(_PAUSE)
        return running

    def _see_log(self) -> str:
        return f"see {self._home / 'service.log'}"


def _without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for the service, which outlives this process; jobs can read those of every process."""
    return {name: value for name, value in environ.items() if not _secret_name().search(name)}


@cache
def _secret_name() -> re.Pattern[str]:
    return re.compile("TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY", re.IGNORECASE)


class _Running(Struct, frozen=True):
    """A transport to a service that runs; that it has ended is seen by who asks it."""

    http: Transport
    address: Address
    is_current = True

    def send(self, request: HttpRequest) -> HttpResponse:
        target = self.address.url + request.url.removeprefix(ROOT.rstrip("/"))
        headers = dict(request.headers)
        # A request that brings a credential of its own is sent with that one and no other.
        if "authorization" not in {name.lower() for name in headers}:
            headers["Authorization"] = f"Bearer {self.address.token}"
        return self.http.send(replace(request, url=target, headers=headers))


def _state_of(home: Path) -> object:
    return [_signature(home / name) for name in _STATE]


class _Stopped:
    """A transport to a stopped service's own handlers, in process, over a copy of its state.

    The copy is in memory alone, and ends with the last reference to this: who waits for an answer keeps it.

    Raises:
        ServiceRunningError: The service runs.
        ServiceError: The state can't be read.
    """

    def __init__(self, home: Path, state: object) -> None:
        from reconciler.training_service.state.database import DatabaseError
        from reconciler.training_service.stopped import open_copy

        self._home = home
        self._state = state
        self._made = time.monotonic()
        self._copy = ExitStack()
        try:
            self._application = self._copy.enter_context(open_copy(home))
        except (DatabaseError, OSError) as error:
            raise ServiceError(f"the embedded service's state in {home} can't be read: {error}") from None

    @property
    def is_current(self) -> bool:
        """Whether no service was there since, and it is young: runs may end without one."""
        return time.monotonic() < self._made + _COPY_LASTS and self._state == _state_of(self._home)

    def send(self, request: HttpRequest) -> HttpResponse:
        from reconciler.training_service.http.message import Request

        asked = Request.of(request.method, request.url, request.headers, request.body or b"")
        answer = self._application.handle(asked)
        headers = {name.lower(): value for name, value in answer.headers}
        return HttpResponse(answer.status, headers, answer.read())


def _signature(file: Path) -> object:
    try:
        told = file.stat()
    except OSError:
        return ()
    return told.st_dev, told.st_ino, told.st_size, told.st_mtime_ns, told.st_ctime_ns


def service_command(home: Home, *, stay: bool) -> list[str]:
    """The command that runs the service; with `stay` it doesn't end when there is nothing to do."""
    # -P: nothing that lies in the working directory is ever imported.
    command = [sys.executable, "-P", "-m", "reconciler.training_service", "--home", str(home.path)]
    if home.checkout is not None:
        command += ["--checkout", str(home.checkout)]
    return [*command, "--stay"] if stay else command
