"""Door of the training service: everything that the rest of the reconciler uses of it.

Begin at `EmbeddedService`, which sends requests to the service of a home: it starts and stops the service, or
reads the state of a stopped one. `locate` finds a service, `service_command` runs one in the foreground, and
`check_installed` checks that this installation has what it needs. Other programs reach a service by
`client_settings` and `redirect_program`; `folder_of` finds a bucket's files.

Most of the service is imported late: to reach a running one takes none of it.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.errors import InvalidError, ServiceError, UsageError
from reconciler.base.http import (
    READ_METHODS,
    DirectTransport,
    HttpRequest,
    HttpResponse,
    NoAnswerError,
    NotSentError,
    Transport,
)
from reconciler.base.http.destination import ThisMachine
from reconciler.base.listener.message import Request
from reconciler.base.state_dir import prepare_home
from reconciler.training_service.address import (
    ADDRESS,
    LOG,
    Address,
    ServiceRunningError,
    UntrustedAddressError,
    code_version,
    read_address,
    unserved,
)

ROOT = "http://embedded.invalid/"
"""Root of the URLs in requests to `EmbeddedService`, which replaces it by the service's present address."""

_DISTRIBUTION = "mljob-reconciler"
_EXTRA = ("cryptography", "optuna", "psutil", "uv")
_NEVER = "2099-12-31T00:00:00Z"  # the expiry of a token that ends with its service
_STARTS_WITHIN = 30.0
_STOPS_WITHIN = 30.0
_PAUSE = 0.02
_ASKED_EVERY = 15.0  # seconds, well below the minute after which an idle service ends
_COPY_LASTS = 10.0
_SENSITIVE = "(?i)TOKEN|SECRET|PASSW|CREDENTIAL|API_?KEY|ACCESS_?KEY|EMULATOR"
_NOT_SERVED = 501
_INTERNAL = 500  # an error of the service that it has no message for
_STATE = (ADDRESS, "state.db", "state.db-wal")  # a running service changes at least one of these files


def check_installed() -> None:
    """Raise InvalidError if this environment lacks what the service needs."""
    if all(find_spec(package) for package in _EXTRA):
        return
    raise InvalidError(
        "the embedded training service is not installed", hint=f"install it: {_install_command()}"
    )


def _install_command() -> str:
    """Return the command that adds the service to this installation, by the program that made it."""
    from importlib.metadata import Distribution, distributions

    installed = next(iter(distributions(name=_DISTRIBUTION)), None)
    recorded = installed.read_text("direct_url.json") if isinstance(installed, Distribution) else None
    package = _package(json.loads(recorded) if recorded else {})
    prefix, python = Path(sys.prefix), shlex.quote(sys.executable)
    if (prefix / "uv-receipt.toml").exists():
        return f"uv tool install {package}"
    if (prefix / "pipx_metadata.json").exists():
        return f"pipx install --force {package}"
    installer = f"{python} -m pip install" if find_spec("pip") else f"uv pip install --python {python}"
    return f"{installer} {package}"


def _package(origin: Mapping[str, Any]) -> str:
    """Return the requirement with the extra; `origin` is what the installer recorded: PEP 610."""
    url = origin.get("url")
    if not url:
        return shlex.quote(f"{_DISTRIBUTION}[local]")
    if origin.get("dir_info", {}).get("editable"):
        return f"--editable {shlex.quote(url.removeprefix('file://') + '[local]')}"
    git = origin.get("vcs_info", {})
    scheme = f"{git['vcs']}+" if git else ""
    revision = f"@{git['requested_revision']}" if git.get("requested_revision") else ""
    return shlex.quote(f"{_DISTRIBUTION}[local] @ {scheme}{url}{revision}")


def locate(home: Path) -> Address | None:
    """Return the address of a home's service; None if none runs. A killed service leaves its address behind.

    Raises:
        ServiceError: The address may be another person's; send no request there.
    """
    try:
        return read_address(home)
    except UntrustedAddressError as error:
        file = home / ADDRESS
        hint = f"remove it, or if you made it, run: chmod 600 {shlex.quote(str(file))}"
        raise ServiceError(f"{file} isn't used: {error}", hint=hint) from None


class EmbeddedService:
    """Transport to the service of a home, which finds or starts it or reads its state while it is stopped.

    Thread-safe: a single thread finds or starts the service for all.

    Args:
        home: The service's folder.
        start: True to start a stopped service. If false, reads are answered in this process from a private
            copy of its state: no process is started, and nothing is written into the home.

    Raises:
        InvalidError: The extra `local` is missing.
    """

    def __init__(self, home: Path, *, start: bool) -> None:
        check_installed()
        self._home = home
        self._start = start
        self._http = DirectTransport(ThisMachine())
        self._reached: _Running | _Stopped | None = None
        self._reaching = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._reached = None
        self._http.close()

    def send(self, request: HttpRequest) -> HttpResponse:
        """Send a request to the service's present address.

        If the service ended since the last request, find or start it again and repeat a request that never
        left this machine, or a read without a response.
        """
        reached = self._reach()
        try:
            return reached.send(request)
        except NotSentError:
            pass
        except NoAnswerError:
            # The service may have carried out a write before it ended.
            if request.method not in READ_METHODS:
                raise
        return self._reach(lost=reached).send(request)

    def stop(self) -> bool:
        """Stop the service, but not its jobs, which the next service takes over; return True if it ran."""
        with self._reaching:
            running = self._find()
            if running is not None:
                self._end(running)
            return running is not None

    def _end(self, running: _Running) -> None:
        # Another process may be ending it too: it then answers 503, or no more at all.
        with suppress(NotSentError, NoAnswerError):
            response = running.send(HttpRequest("POST", ROOT + "_service/stop", body=b""))
            if response.status >= 300 and response.status != 503:
                raise ServiceError(
                    f"the embedded service doesn't stop: it answers {response.status}", hint=self._see_log()
                )
        deadline = time.monotonic() + _STOPS_WITHIN
        while not self._has_ended():
            if time.monotonic() > deadline:
                raise ServiceError("the embedded service doesn't stop", hint=self._see_log())
            time.sleep(_PAUSE)

    def _has_ended(self) -> bool:
        """Return True if no service may write to the home any more."""
        # A service whose address file is gone may still write until it releases its lock.
        if locate(self._home) is not None:
            return False
        try:
            with unserved(self._home):
                return True
        except ServiceRunningError:
            return False

    def _reach(self, lost: Transport | None = None) -> Transport:
        """Return the transport to a running service, or to the state of a stopped service.

        `lost` is the transport that failed; another thread may have replaced it already.
        """
        with self._reaching:
            reached = self._reached
            if reached is None or reached is lost or not reached.is_current:
                # Release the old copy first: two copies of a large state may need too much memory.
                self._reached = reached = None
                self._reached = reached = self._find_or_start()
            return reached

    def _find_or_start(self) -> _Running | _Stopped:
        deadline = time.monotonic() + _STARTS_WITHIN
        while True:
            # Note the state first, so that any later change makes a copy out of date.
            state = _state_of(self._home)
            if running := self._find():
                # After an upgrade, the modules that an older service would load for its next job may be gone.
                if not self._start or running.is_of_this_code:
                    return running
                self._end(running)
            if self._start:
                return self._spawn()
            try:
                return _Stopped(self._home, state)
            except ServiceRunningError:
                # It is starting and doesn't listen yet, or it is ending and may still write its state.
                if time.monotonic() > deadline:
                    raise ServiceError("the embedded service doesn't answer", hint=self._see_log()) from None
                time.sleep(_PAUSE)

    def _find(self) -> _Running | None:
        """Return the running service; None if no service responds."""
        address = locate(self._home)
        if address is None:
            return None
        # A killed service leaves its address file behind: only a response proves that it runs.
        running = _Running(self._http, address)
        try:
            alive = running.send(HttpRequest("GET", f"{ROOT}_service/health", timeout=10)).status == 200
        except (NotSentError, NoAnswerError):
            return None
        return running if alive else None

    def _spawn(self) -> _Running:
        """Start the service in a new session; of several that start at once, all but one end."""
        import subprocess

        prepare_home(self._home)
        with (self._home / LOG).open("ab") as log:
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
        while not (running := self._find()):
            # Exit code 0: another service runs already.
            if process.poll() not in (None, 0) or time.monotonic() > deadline:
                raise ServiceError("the embedded service didn't start", hint=self._see_log())
            time.sleep(_PAUSE)
        return running

    def _see_log(self) -> str:
        return f"see {self._home / LOG}"


def _without_secrets(environ: Mapping[str, str]) -> dict[str, str]:
    # The service outlives this process, and jobs of the same user can read the variables of its processes.
    return {name: value for name, value in environ.items() if not re.search(_SENSITIVE, name)}


class _Running(Struct, frozen=True):
    """Transport to a running service; it doesn't notice the service's end until a request fails."""

    http: Transport
    address: Address
    is_current = True

    @property
    def is_of_this_code(self) -> bool:
        """True unless the service was started by another version of the code."""
        return self.address.version == code_version()

    def send(self, request: HttpRequest) -> HttpResponse:
        target = self.address.url + request.url.removeprefix(ROOT.rstrip("/"))
        headers = dict(request.headers)
        # A create brings its own credential, which must not be replaced by one without its expiry.
        if "authorization" not in {name.lower() for name in headers}:
            headers["Authorization"] = f"Bearer {self.address.token}"
        response = self.http.send(replace(request, url=target, headers=headers))
        if response.status == _NOT_SERVED and not self.is_of_this_code:
            # Its own message would be about the request, which is right for a service of this code.
            raise ServiceError(
                "the embedded service that runs is of another version, and doesn't serve what this one asks",
                hint="`reconciler apply` replaces it, and `reconciler serve --stop` stops it; its jobs go on",
            )
        return response


def _state_of(home: Path) -> object:
    return [_signature(home / name) for name in _STATE]


class _Stopped:
    """Transport to the service's handlers in this process, over a copy of a stopped service's state.

    The copy is in memory, until the last reference to this object; only while it is made do copied files lie
    in a temporary folder outside the home.

    Raises:
        ServiceRunningError: The service runs.
        ServiceError: The state can't be read.
    """

    def __init__(self, home: Path, state: object) -> None:
        from reconciler.training_service.application import open_copy
        from reconciler.training_service.state.database import DatabaseError

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
        """True for a young copy, if no service has run since."""
        # Runs go on without a service and may end, hence the age.
        return time.monotonic() < self._made + _COPY_LASTS and self._state == _state_of(self._home)

    def send(self, request: HttpRequest) -> HttpResponse:
        translated = Request.of(request.method, request.url, request.headers, request.body or b"")
        answer = self._application.handle(translated)
        if answer.status == _INTERNAL:
            hint = f"start it with `reconciler serve`, and see {self._home / LOG} after another try"
            raise ServiceError(f"the embedded service's state in {self._home} can't be read", hint=hint)
        headers = {name.lower(): value for name, value in answer.headers}
        return HttpResponse(answer.status, headers, answer.read())


def _signature(file: Path) -> object:
    try:
        status = file.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def service_command(home: Path, *, stay: bool, port: int | None = None) -> list[str]:
    """Return the command that runs the service; `stay` keeps it running while it is idle."""
    # -P: don't import modules from the working directory.
    command = [sys.executable, "-P", "-m", "reconciler.training_service", "--home", str(home)]
    if port is not None:
        command += ["--port", str(port)]
    return [*command, "--stay"] if stay else command


class ClientSettings(Struct, frozen=True):
    """Settings of other clients of the service, beside its URL and its token.

    Attributes:
        storage: The URL of its storage, which contains the token: clients of an emulator send none.
        variables: The environment variables of clients of Cloud Storage.
        credentials: The content of a file of application default credentials. Its "expiry" is for clients
            that insist on one: the token ends with the service.
        region: A region of Google's for clients that take no other location.
    """

    storage: str
    variables: Mapping[str, str]
    credentials: Mapping[str, str]
    region: str


def client_settings(url: str, token: str, location: str) -> ClientSettings:
    """Return the settings of other clients of the service at a URL."""
    from reconciler.training_service.apis.credentials import TOKEN_PATH, refresh_token_of
    from reconciler.training_service.jobs.environment_variables import for_storage_clients
    from reconciler.training_service.state.records import google_region

    storage = f"{url}/jobs/{token}"
    credentials = {
        "type": "authorized_user",
        "token": token,
        "expiry": _NEVER,
        # google-auth sends these nowhere, as the token doesn't expire. Google's C++ client sends them first.
        "token_uri": f"{storage}{TOKEN_PATH}",
        "client_id": "reconciler",
        "client_secret": "none",
        "refresh_token": refresh_token_of(token),
    }
    return ClientSettings(storage, for_storage_clients(storage), credentials, google_region(location))


@contextmanager
def redirect_program(home: Path, url: str, token: str, folder: Path) -> Iterator[dict[str, str]]:
    """Redirect a program's requests to Google to a running service, and keep it from ending for idleness.

    Args:
        folder: A private folder for files that the program reads.

    Yields the environment variables for the program.

    Raises:
        UsageError: The user's own settings name a proxy that no other one can stand before.
    """
    from reconciler.training_service.jobs.environment_variables import obstacle_to_proxy
    from reconciler.training_service.runner.proxy import serving

    if obstacle := obstacle_to_proxy(os.environ):
        raise UsageError(
            f"{obstacle}, and the program needs one before it", hint="name an http proxy instead"
        )
    done = threading.Event()
    service = _Running(DirectTransport(ThisMachine()), Address(0, url, token, ""))

    def ask() -> None:
        while not done.wait(_ASKED_EVERY):
            with suppress(NotSentError, NoAnswerError):  # it was stopped, or ends just now
                service.send(HttpRequest("GET", f"{ROOT}_service/health"))

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    try:
        with serving(home, url, token, folder) as variables:
            yield variables
    finally:
        done.set()
        asking.join()


def unknown_image(image: str, images: Mapping[str, Any], *, is_runtime: bool) -> tuple[str, str] | None:
    """Return that the service doesn't know an executor image or a runtime version, and the remedy; else None.

    `images` is the setting of that name.
    """
    from reconciler.training_service.jobs.images import unknown_image as unknown

    return unknown(image, images, is_runtime=is_runtime)


def buckets_of(home: Path) -> str:
    """Return the folder that has a folder for each bucket."""
    return str(home / "gcs")


def folder_of(home: Path, uri: str) -> Path | None:
    """Return the local folder of gs://BUCKET/…; None for an invalid name."""
    from reconciler.training_service.storage.files import is_bucket_name, is_object_name

    scheme, _, path = uri.partition("://")
    bucket, _, name = path.rstrip("/").partition("/")
    if scheme != "gs" or not is_bucket_name(bucket) or (name and not is_object_name(name)):
        return None
    return home.joinpath("gcs", bucket, *name.split("/"))
