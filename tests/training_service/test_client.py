"""Discovery and reading of the embedded service in all its phases."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack
from datetime import timedelta
from email.utils import parsedate_to_datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler import __version__
from reconciler.base.concurrency import call_all
from reconciler.base.errors import ServiceError
from reconciler.base.http import DirectTransport, HttpRequest, HttpResponse, NotSentError
from reconciler.base.listener.message import Request, Response
from reconciler.base.state_dir import prepare_home
from reconciler.training_service import address, application, client
from reconciler.training_service.address import Address, code_version, lock_home, read_address, write_address
from reconciler.training_service.application import Application
from reconciler.training_service.client import ROOT, EmbeddedService
from tests.support.held_service import HeldService
from tests.support.noted_locks import Meeting
from tests.support.waiting import PATIENCE

DAY = timedelta(days=1)
LISTING = HttpRequest("GET", ROOT + "v1/projects/local/jobs")


def test_a_home_that_is_not_there_is_an_empty_service_and_stays_away(tmp_path: Path) -> None:
    with EmbeddedService(tmp_path / "home", start=False) as service:
        assert service.send(LISTING).status == 200
        assert not service.stop()
    assert list(tmp_path.iterdir()) == []


def test_a_service_that_is_just_starting_or_ending_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = lock_home(tmp_path)
    assert lock is not None
    waited: list[float] = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            lock.release()

    monkeypatch.setattr("reconciler.training_service.client.time.sleep", sleep)
    with EmbeddedService(tmp_path, start=False) as service:
        assert service.send(LISTING).status == 200
    assert len(waited) == 3


def test_a_state_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "state.db").write_bytes(b"this is no database" * 100)
    with (
        EmbeddedService(tmp_path, start=False) as service,
        pytest.raises(ServiceError, match="can't be read"),
    ):
        service.send(LISTING)


@pytest.mark.parametrize("mode", [None, 0o755, 0o2750, 0o711, 0o700])
def test_home_is_for_its_user_only_whoever_could_read_it_before(tmp_path: Path, mode: int | None) -> None:
    home = tmp_path / "home"
    if mode is not None:
        home.mkdir()
        home.chmod(mode)
    prepare_home(home)
    assert home.stat().st_mode & 0o777 == 0o700


def test_folder_that_home_is_linked_to_keeps_its_mode(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    (tmp_path / "home").symlink_to(shared)
    prepare_home(tmp_path / "home")
    assert shared.stat().st_mode & 0o777 == 0o755


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as entered:
        yield entered


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Return the home of a service that has ended."""
    with HeldService(tmp_path / "home").running() as service:
        return service.home


class Copies:
    """The number of copies of a stopped service's state."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.made = 0
        self.now = 0.0
        self._open = application.open_copy
        monkeypatch.setattr(application, "open_copy", self._opened)
        told = SimpleNamespace(monotonic=lambda: self.now, sleep=lambda _: pytest.fail("waits"))
        monkeypatch.setattr(client, "time", told)

    def _opened(self, home: Path) -> AbstractContextManager[Application]:
        self.made += 1
        return self._open(home)


def test_a_copy_is_made_anew_for_what_jobs_do_without_a_service(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = Copies(monkeypatch)
    with EmbeddedService(home, start=False) as service:
        for now, made in ((0, 1), (9.9, 1), (10, 2), (19.9, 2), (30, 3)):
            copies.now = now
            assert service.send(LISTING).status == 200
            assert copies.made == made


def test_a_service_that_was_started_meanwhile_is_asked_at_once(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = Copies(monkeypatch)
    with EmbeddedService(home, start=False) as service:
        dates = [service.send(LISTING).headers["date"]]
        with HeldService(home).running() as started:
            started.ahead += 1000 * DAY
            dates.append(service.send(LISTING).headers["date"])
        assert copies.made == 1
        # After the end of that service, its last state.
        dates.append(service.send(LISTING).headers["date"])
    before, meanwhile, after = map(parsedate_to_datetime, dates)
    assert min(meanwhile - before, meanwhile - after) > 999 * DAY
    assert copies.made == 2


def test_a_copy_that_another_thread_reads_stays(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies, handle = Copies(monkeypatch), Application.handle
    begun, renewed = threading.Event(), threading.Event()

    def handled(application: Application, request: Request) -> Response:
        if not begun.is_set():
            begun.set()
            assert renewed.wait(PATIENCE)
        return handle(application, request)

    monkeypatch.setattr(Application, "handle", handled)

    def renew() -> int:
        assert begun.wait(PATIENCE)
        copies.now += 100
        try:
            return service.send(LISTING).status
        finally:
            renewed.set()

    with EmbeddedService(home, start=False) as service:
        assert call_all([lambda: service.send(LISTING).status, renew]) == [200, 200]
    assert copies.made == 2


def test_a_copy_ends_when_nobody_reads_it_any_more(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies, ended = Copies(monkeypatch), list[int]()
    opened = application.open_copy

    class Noted(ExitStack):
        def __init__(self, home: Path) -> None:
            super().__init__()
            self.application = self.enter_context(opened(home))

        def __enter__(self) -> Any:
            return self.application

        def __del__(self) -> None:
            ended.append(copies.made)

    monkeypatch.setattr(application, "open_copy", Noted)
    with EmbeddedService(home, start=False) as service:
        service.send(LISTING)
        copies.now += 100
        service.send(LISTING)
        assert ended == [1]
    assert ended == [1, 2]


def test_two_threads_start_one_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack
) -> None:
    meeting, begun = Meeting(), list[str]()

    def start(*_: object, **__: object) -> SimpleNamespace:
        begun.append(threading.current_thread().name)
        meeting.pause()
        if len(begun) == 1:
            stack.enter_context(HeldService(tmp_path / "home").running())
        return SimpleNamespace(poll=lambda: 1)

    monkeypatch.setattr("subprocess.Popen", start)
    meeting.notes_locks_of(client, monkeypatch)
    with EmbeddedService(tmp_path / "home", start=True) as service:
        found = meeting.hold(lambda: service.send(LISTING).status, lambda: service.send(LISTING).status)
    assert found == [200, 200]
    assert len(begun) == 1


def test_a_service_that_another_thread_has_found_is_not_looked_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stack: ExitStack
) -> None:
    """Otherwise a thread that is about to ask the service would find no service."""
    send, asked = DirectTransport.send, list[str]()
    both, first_done = threading.Barrier(2, timeout=PATIENCE), threading.Event()

    def sending(transport: DirectTransport, request: HttpRequest) -> HttpResponse:
        asked.append(request.url)
        if not request.url.startswith(gone.url):
            return send(transport, request)
        who = request.headers.get("x-who")
        if who is None:
            return HttpResponse(200, {}, b"{}")
        both.wait()
        if who == "late":
            assert first_done.wait(PATIENCE)
        raise NotSentError("nobody is there any more")

    def ask(who: str) -> int:
        status = service.send(replace(LISTING, headers={"x-who": who})).status
        first_done.set()
        return status

    monkeypatch.setattr(DirectTransport, "send", sending)
    gone = Address(os.getpid(), "http://127.0.0.1:1", "token", "1")
    write_address(tmp_path, gone)
    with EmbeddedService(tmp_path, start=False) as service:
        service.send(LISTING)
        started = stack.enter_context(HeldService(tmp_path).running())
        assert call_all([lambda: ask("early"), lambda: ask("late")]) == [200, 200]
    assert asked.count(f"{started.url}/_service/health") == 1


def test_stop_reports_service_that_refuses_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(_: DirectTransport, request: HttpRequest) -> HttpResponse:
        return HttpResponse(401 if request.url.endswith("/stop") else 200, {}, b"{}")

    monkeypatch.setattr(DirectTransport, "send", answer)
    write_address(tmp_path, Address(os.getpid(), "http://127.0.0.1:1", "token", "1"))
    with (
        EmbeddedService(tmp_path, start=False) as service,
        pytest.raises(ServiceError, match="doesn't stop: it answers 401") as raised,
    ):
        service.stop()
    assert raised.value.hint == f"see {tmp_path / 'service.log'}"


def test_reader_says_what_to_do_if_a_service_of_other_code_does_not_serve_it(
    home: Path, stack: ExitStack
) -> None:
    # This service has no pipelineJobs, as one of earlier code has no trainingPipelines.
    listing = HttpRequest("GET", ROOT + "v1/projects/local/locations/local/pipelineJobs")
    older = stack.enter_context(HeldService(home).running())
    with EmbeddedService(home, start=False) as service:
        assert service.send(listing).status == 501
    write_address(home, Address(os.getpid(), older.url, older.token, __version__))
    with EmbeddedService(home, start=False) as service:
        assert service.send(LISTING).status == 200
        with pytest.raises(ServiceError, match="runs is of another version") as raised:
            service.send(listing)
    assert "`reconciler apply` replaces it" in raised.value.hint


def test_version_of_code_changes_with_every_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "__file__", str(tmp_path / "address.py"))
    seen = [code_version.__wrapped__()]
    for name in ("address.py", "state/rows.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("a = 1")
        seen.append(code_version.__wrapped__())
    assert len({*seen}) == 3


OLDER = """
import sys
import reconciler
from reconciler.training_service import address
address.code_version = lambda: reconciler.__version__  # as code told it that had no digest
from reconciler.training_service.__main__ import main
sys.exit(main(["--home", sys.argv[1], "--stay"]))
"""


@pytest.mark.slow
def test_service_of_other_code_of_the_same_release_is_replaced_before_it_gets_a_job(tmp_path: Path) -> None:
    home = tmp_path / "home"
    prepare_home(home)
    older = subprocess.Popen([sys.executable, "-c", OLDER, str(home)], stdout=subprocess.PIPE, text=True)
    try:
        assert older.stdout is not None
        assert "is served" in older.stdout.readline()
        with EmbeddedService(home, start=False) as reader:
            assert reader.send(LISTING).status == 200
            assert older.poll() is None, "reading needs no other service"
        with EmbeddedService(home, start=True) as service:
            assert service.send(LISTING).status == 200
            assert older.wait(30) == 0
            found = read_address(home)
            assert found is not None
            assert found.version == code_version() != __version__
            assert service.stop()
    finally:
        older.kill()
        older.wait()
