"""Process of the service: one for each home, from its start to its end."""

from __future__ import annotations

import logging
import logging.handlers
import os
import secrets
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import FrameType

from reconciler.training_service import address
from reconciler.training_service.address import Address, HomeLock
from reconciler.training_service.application import Admin, Application
from reconciler.training_service.gate import Gate
from reconciler.training_service.http.server import Activity, Server
from reconciler.training_service.jobs.machines import gpu_ids, this_machine
from reconciler.training_service.scheduler.supervisor import Supervisor
from reconciler.training_service.state import database
from reconciler.training_service.state.database import DatabaseError, Store
from reconciler.training_service.storage.upload_sessions import Uploads

IDLE_SECONDS = 60.0

_TICK = 0.1
_IDLE_TICK = 1.0  # seconds between an idle service's checks of its home
_GRACE = 5.0  # for requests under way at the end
_PORT = "port"
_LOG_BYTES = 5 * 1024 * 1024

_log = logging.getLogger(__name__)


def serve(
    home: Path,
    *,
    stay: bool = False,
    idle_seconds: float = IDLE_SECONDS,
    port: int = 0,
) -> int:
    """Serve the home until no work is left, a request or signal ends the service, or the home is gone.

    The jobs go on after the service's end, but end with their home.

    Args:
        port: The only port to serve at; 0 for any.

    Returns:
        The exit code: 0 also if another process serves the home already; 1 if the state can't be read, or the
        port is in use.
    """
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    lock = address.await_lock(home)
    if lock is None:
        _print_address(home, address.usable_address(home))
        return 0
    _log_to(home / address.LOG)
    try:
        service = _Service(home, lock, port)
        # Before the address is written: a reader of the address may end the service at once.
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, service.on_signal)
        service.begin()
    except (DatabaseError, OSError) as error:
        _log.error("can't start: %s", error)
        sys.stderr.write(f"The embedded training service can't start in {home}: {error}\n")
        return 1
    return service.run(stay=stay, idle_seconds=idle_seconds)


class _Service:
    """Parts of a running service, held together by one loop in the main thread."""

    def __init__(self, home: Path, lock: HomeLock, port: int) -> None:
        self._home = home
        self._lock = lock
        self._wake = threading.Event()
        self._stopped = threading.Event()
        (home / address.ADDRESS).unlink(missing_ok=True)  # left by a service that was killed
        self._store = Store(database.open_file(home / "state.db"))
        Uploads(home).clean()
        token = secrets.token_urlsafe(32)
        self._activity = Activity()
        application = Application(
            self._store, home, wake=self._wake.set, wait_of=lambda job: self._supervisor.wait_of(job)
        )
        # The gate has its own connection: its thread serves every connection and mustn't wait for another
        # thread's write.
        self._gate_store = Store(database.open_file(home / "state.db"))
        gate = Gate(application, Admin(self._store, self._home, self.stop), self._gate_store, token)
        former = self._former_port()
        if port and former not in (0, port):
            raise OSError(f"jobs that haven't ended use the port {former}")
        self._server = Server(gate.admit, self._activity, port or former)
        if port and self._server.port != port:
            raise OSError(f"another program uses the port {port}")
        self._address = Address(os.getpid(), self._server.url, token, address.code_version())
        self._supervisor = Supervisor(
            self._store,
            home,
            storage_url=lambda job: f"{self._server.url}/jobs/{job.gcs_secret}",
            machine=this_machine(),
            gpus=gpu_ids(),
        )

    def stop(self) -> None:
        """End the service soon; callable from any thread."""
        self._stopped.set()
        self._wake.set()

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """End the service soon after a signal."""
        self.stop()

    def begin(self) -> None:
        """Take up the jobs of a former service, and accept requests."""
        self._supervisor.recover()
        self._store.set_setting(_PORT, self._server.port)
        self._server.start()
        address.write_address(self._home, self._address)
        _log.info("serving %s at %s", self._home, self._server.url)
        _print_address(self._home, self._address)

    def run(self, *, stay: bool, idle_seconds: float) -> int:
        """Serve until the end; return the exit code."""
        idle = None if stay else idle_seconds
        while not self._over(idle):
            self._wake.wait(_TICK if self._tick() else _IDLE_TICK)
            self._wake.clear()
        self._end()
        return 0

    def _tick(self) -> bool:
        busy = False
        try:
            busy = self._supervisor.tick()
        except (DatabaseError, OSError) as error:
            _log.error("can't supervise the jobs: %s", error)
        except Exception:  # one job's failure must not end the service for other jobs
            _log.exception("can't supervise the jobs")
        if busy:
            self._activity.note_work()
        return busy

    def _over(self, idle_seconds: float | None) -> bool:
        if self._stopped.is_set() or not self._lock.is_there():
            return True
        if idle_seconds is None:
            return False
        return self._activity.close_if_idle(idle_seconds, self._has_work)

    def _has_work(self) -> bool:
        try:
            return self._store.is_busy()
        except DatabaseError:
            return True  # unknown: stay alive

    def _end(self) -> None:
        if self._lock.is_there():
            _log.info("ending")
            (self._home / address.ADDRESS).unlink(missing_ok=True)
            self._activity.close(_GRACE)
            self._server.close(_GRACE)
        else:
            _log.info("ending: the home is gone")
            self._server.close(0)
            self._supervisor.stop()
        self._gate_store.database.close()
        self._store.database.close()
        self._lock.release()

    def _former_port(self) -> int:
        # Running jobs have the former service's URL: keep its port for them. 0 stands for any port.
        return int(self._store.setting(_PORT) or 0) if self._store.unfinished() else 0


def _print_address(home: Path, service_address: Address | None) -> None:
    by = f" by process {service_address.pid} at {service_address.url}" if service_address else ""
    text = f"The embedded training service of {home} is served{by}.\n"
    # Clients find the address in a file: a service whose message can't be printed serves them as well.
    with suppress(OSError):
        if sys.stdout is not None:
            os.write(sys.stdout.fileno(), os.fsencode(text))


def _log_to(path: Path) -> None:
    handler = logging.handlers.RotatingFileHandler(path, maxBytes=_LOG_BYTES, backupCount=1, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
