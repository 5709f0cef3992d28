"""Slow connections to `watch --listen` and `open`, possible for any user of the machine, block neither."""

from __future__ import annotations

import resource
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from http.client import HTTPConnection
from threading import Thread
from urllib.parse import urlsplit
from urllib.request import urlopen

import psutil
import pytest

from tests.support.held_service import HeldService
from tests.support.repository import Repository
from tests.support.waiting import PATIENCE, patience, until
from tests.support.watching import watching

FILES = 128
"""The attacked command's limit of descriptors."""

SLOW = 400
MANY = 100
"""So many are connected when the requests begin."""


@contextmanager
def files(count: int) -> Iterator[None]:
    """Limit the number of open files of this process or of a program that it starts."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextmanager
def slow_connections(url: str) -> Iterator[None]:
    """Open connections that send the bytes of a head slowly."""
    address = "127.0.0.1", urlsplit(url).port
    stop = threading.Event()
    slow: list[socket.socket] = []

    def connect() -> None:
        while len(slow) < SLOW and not stop.is_set():
            with suppress(TimeoutError):
                slow.append(socket.create_connection(address, 1.0))

    def drip() -> None:
        while not stop.wait(0.05):
            for each in [*slow]:
                with suppress(OSError):  # closed by the server to make room
                    each.send(b"G")

    with files(SLOW + 512), ExitStack() as end:
        for each in (Thread(target=connect), Thread(target=drip)):
            each.start()
            end.callback(each.join)
        end.callback(stop.set)
        until(lambda: len(slow) >= MANY)
        yield
    for each in slow:
        each.close()


def seconds_to_answer(url: str, path: str, cookie: str = "") -> float:
    connection = HTTPConnection("127.0.0.1", urlsplit(url).port, timeout=PATIENCE)
    began = time.monotonic()
    connection.request("GET", path, headers={"Cookie": cookie})
    answer = connection.getresponse()
    assert answer.status == 200
    assert answer.read()
    connection.close()
    return time.monotonic() - began


@pytest.fixture
def service(repository: Repository) -> Iterator[HeldService]:
    with HeldService(repository.home).running() as running:
        yield running


@pytest.mark.usefixtures("service")
def test_watch_answers_probes_and_goes_on_with_its_passes(repository: Repository) -> None:
    repository.job("census")
    with files(FILES), watching(repository, "--listen", "127.0.0.1:0", "--resync", "1") as watch:
        watch.awaits("submitted")
        url = watch.awaits("listening")["url"]
        with slow_connections(url):
            repository.job("other")
            for path in ("/healthz", "/metrics") * 3:
                assert seconds_to_answer(url, path) < patience(1.0)
            watch.awaits("submitted", 2)
            watch.awaits_rest()
            assert psutil.Process(watch.process.pid).num_fds() < FILES / 2
        assert watch.end() == 0
    assert not watch.told("invalid")
    assert not watch.told("failed")


@pytest.mark.usefixtures("service")
def test_open_answers_its_user(repository: Repository) -> None:
    repository.job("census")
    with files(FILES), ExitStack() as end:
        process = end.enter_context(repository.start("open", "--no-browser"))
        end.callback(process.terminate)
        assert process.stdout
        link = urlsplit(process.stdout.readline().strip())
        url = f"{link.scheme}://{link.netloc}"
        with urlopen(link.geturl()) as welcome:
            cookie = welcome.headers["Set-Cookie"].partition(";")[0]
        page = f"{link.path.removesuffix('open')}index.html"
        seconds_to_answer(url, page, cookie)  # reads the jobs
        with slow_connections(url):
            for _ in range(6):
                assert seconds_to_answer(url, page, cookie) < patience(1.0)
            assert psutil.Process(process.pid).num_fds() < FILES / 2
