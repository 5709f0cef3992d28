"""The listener: prompt answers, the headers of every answer, and a process without descriptors."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from typing import Any

import psutil
import pytest

from reconciler.base.listener import server
from reconciler.base.listener.message import Admit, Request, Responder, Response
from reconciler.base.listener.server import Listener, ListenerLimits
from tests.support.waiting import PATIENCE

MARK = (("X-Mark", "ours"),)


@contextmanager
def listening(admit: Admit) -> Iterator[int]:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    listener = Listener(bound, admit, max_body=1, headers=MARK)
    listener.start()
    try:
        yield listener.port
    finally:
        listener.close(PATIENCE)


@contextmanager
def asked(port: int, line: str = "GET / HTTP/1.1", *more: str) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        connection.sendall("\r\n".join([line, "Host: 127.0.0.1", *more, "", ""]).encode())
        yield connection


def answer(connection: socket.socket, method: str = "GET") -> HTTPResponse:
    response = HTTPResponse(connection, method=method)
    response.begin()
    return response


def test_an_answer_at_once_waits_for_no_request_that_is_being_answered() -> None:
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def slow(request: Request) -> Response:
        begun.release()
        assert go_on.wait(PATIENCE)
        return Response(200, content=b"slow")

    def admit(head: Request) -> Response | Responder:
        return Response(200, content=b"at once") if head.path == "/probe" else slow

    with listening(admit) as port, ExitStack() as held:
        waiting = [held.enter_context(asked(port)) for _ in range(server.THREADS + 2)]
        for _ in range(server.THREADS):
            assert begun.acquire(timeout=PATIENCE)
        with asked(port, "GET /probe HTTP/1.1") as connection:
            assert answer(connection).read() == b"at once"
        go_on.set()
        assert {answer(each).read() for each in waiting} == {b"slow"}


def test_connections_of_one_turn_close_those_before_them_and_not_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ListenerLimits, "of_process", lambda: ListenerLimits(strangers=3, clients=8))
    begun, go_on = threading.Event(), threading.Event()

    def admit(head: Request) -> Response | Responder:
        begun.set()
        assert go_on.wait(PATIENCE)
        return lambda request: Response(200, content=b"served")

    with listening(admit) as port, ExitStack() as held:

        def silent() -> socket.socket:
            return held.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))

        first, second = silent(), silent()
        # The reading thread stands still, so that the next two connections are accepted together.
        client = held.enter_context(asked(port))
        assert begun.wait(PATIENCE)
        third, fourth = silent(), silent()
        go_on.set()
        assert answer(client).read() == b"served"
        assert first.recv(1) == b""
        for each in (second, third, fourth):
            each.setblocking(False)
            with pytest.raises(BlockingIOError):
                each.recv(1)


def test_a_listener_ends_whole_when_its_thread_is_quicker_than_its_caller() -> None:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    listener = Listener(bound, lambda head: Response(200), max_body=1)
    listener.start()
    trigger, pulled = listener._server.trigger, []
    pull = trigger._physical_pull

    def late() -> None:
        if trigger.thunks and not pulled:
            pulled.append(True)
            pull()
            listener._thread.join(PATIENCE)
        pull()

    trigger._physical_pull = late
    listener.close(PATIENCE)
    assert pulled
    assert not listener._thread.is_alive()


@pytest.mark.parametrize("admitted", [True, False])
def test_head_gets_all_but_the_content(admitted: bool) -> None:
    response = Response(200, (("Content-Type", "text/plain"),), b"some")
    with listening(lambda head: (lambda request: response) if admitted else response) as port:
        found = []
        for method in ("GET", "HEAD"):
            with asked(port, f"{method} / HTTP/1.1", "Connection: close") as connection:
                got = answer(connection, method)
                headers = {name: value for name, value in got.getheaders() if name != "Date"}
                found.append((got.status, headers, got.read()))
                assert connection.recv(1) == b""
    (status, headers, content), other = found
    assert headers["Content-Length"] == "4"
    assert content == b"some"
    assert other == (status, headers, b"")


@pytest.mark.parametrize(
    ("line", "more", "status"),
    [
        ("GET / HTTP/1.1", [], 200),
        ("GET /at-once HTTP/1.1", [], 200),
        ("GET /fails HTTP/1.1", [], 500),
        ("GET /", [], 200),
        ("nonsense", [], 400),
        ("get / HTTP/1.1", [], 400),
        ("GET / HTTP/1.1", ["no header"], 400),
        ("GET / HTTP/1.1", ["Content-Length: x"], 400),
        ("GET http://[ HTTP/1.1", [], 400),
        ("POST / HTTP/1.1", ["Content-Length: 1"], 413),
        ("GET / HTTP/1.1", [f"X: {'x' * server.MAX_HEAD}"], 431),
        ("GET / HTTP/1.1", ["Transfer-Encoding: gzip"], 501),
    ],
)
def test_every_answer_has_the_listeners_headers(line: str, more: list[str], status: int) -> None:
    def respond(request: Request) -> Response:
        assert request.path != "/fails"
        return Response(200)

    with (
        listening(lambda head: Response(200) if head.path == "/at-once" else respond) as port,
        asked(port, line, *more) as connection,
    ):
        got = answer(connection)
        assert (got.status, got.getheader("X-Mark")) == (status, "ours")


def test_a_head_is_answered_however_many_connections_come_behind_it() -> None:
    go_on, held_up = threading.Event(), threading.Event()

    def admit(head: Request) -> Response:
        if head.path == "/first":
            held_up.set()
            assert go_on.wait(PATIENCE)
        return Response(200, content=head.path.encode())

    with listening(admit) as port, ExitStack() as held:
        first = held.enter_context(asked(port, "GET /first HTTP/1.1"))
        assert held_up.wait(PATIENCE)  # no connection is accepted now
        silent = [held.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(200)]
        wanted = held.enter_context(asked(port, "GET /wanted HTTP/1.1"))
        silent += [held.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(300)]
        go_on.set()
        assert answer(wanted).read() == b"/wanted"
        assert answer(first).read() == b"/first"
        assert silent[0].recv(1) == b"", "the oldest without a whole head makes room"


def test_a_connection_for_which_there_is_no_memory_ends_no_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    made, errors = server.Channel.__init__, iter([MemoryError(), OSError(), None])

    def failing(*arguments: Any, **named: Any) -> None:
        if error := next(errors):
            raise error
        made(*arguments, **named)

    monkeypatch.setattr(server.Channel, "__init__", failing)
    with listening(lambda head: Response(200, content=b"here")) as port:
        for _ in range(2):
            with asked(port) as connection, pytest.raises(OSError):  # noqa: PT011 - as the system has it
                answer(connection)
        with asked(port) as connection:
            assert answer(connection).read() == b"here"


def test_nothing_is_left_of_a_listener_that_was_closed() -> None:
    before = threading.active_count()
    with listening(lambda head: Response(200)) as port, asked(port) as connection:
        assert answer(connection).status == 200
    assert threading.active_count() == before
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), PATIENCE)


WITHOUT_FILES = """
import resource, socket, sys
from reconciler.base.listener.message import Response
from reconciler.base.listener.server import Listener

bound = socket.socket()
bound.bind(("127.0.0.1", 0))
listener = Listener(bound, lambda head: Response(200, content=b"here"), max_body=1)
listener.start()
with open("/dev/null") as last:
    resource.setrlimit(resource.RLIMIT_NOFILE, (last.fileno() + 1 + int(sys.argv[1]),) * 2)
    print(listener.port, flush=True)
    sys.stdin.readline()
print("more", flush=True)
sys.stdin.readline()
"""


def cpu(process: subprocess.Popen[str]) -> float:
    times = psutil.Process(process.pid).cpu_times()
    return float(times.user + times.system)


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 2])
def test_a_process_without_descriptors_answers_when_it_has_some_and_does_not_spin(left: int) -> None:
    """`left` descriptors are free when connections come; then one more is."""
    command = [sys.executable, "-c", WITHOUT_FILES, str(left)]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process,
        ExitStack() as held,
    ):
        assert process.stdin
        assert process.stdout
        address = "127.0.0.1", int(process.stdout.readline())
        for _ in range(left + 3):
            held.enter_context(socket.create_connection(address, PATIENCE))
        connection = held.enter_context(asked(address[1]))
        if left:
            assert answer(connection).read() == b"here"
        else:
            began = cpu(process)
            connection.settimeout(1.0)
            with pytest.raises(TimeoutError):
                answer(connection)
            assert cpu(process) - began < 0.5
            connection.settimeout(PATIENCE)
        process.stdin.write("\n")
        process.stdin.flush()
        assert process.stdout.readline() == "more\n"
        if not left:
            assert answer(connection).read() == b"here"
        process.stdin.close()
