"""Admission of connections: judged by the head of their first request, few and short until then."""

from __future__ import annotations

import http.client
import resource
import select
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from reconciler.base.listener import server
from reconciler.base.listener.server import ListenerLimits
from reconciler.training_service.address import Address
from reconciler.training_service.state.records import JobState
from tests.support.training_service.bodies import ML
from tests.support.training_service.processes import Processes
from tests.support.training_service.served import TOKEN, Service, job_with, serving
from tests.support.training_service.tokens import mint
from tests.support.waiting import PATIENCE, patience, until

FILES = 1024
"""The soft limit of descriptors on most Linux systems, for the attacked service."""

HELD = 3000
UPLOAD = "/upload/storage/v1/b/bucket/o?uploadType=media&name=a"
LARGE = 300 * 2**20

FLOOD = """
import select, socket, sys
address, held = ("127.0.0.1", int(sys.argv[1])), int(sys.argv[2])
poll, opened = select.epoll(), {}
def open_one():
    each = socket.socket()
    each.setblocking(False)
    each.connect_ex(address)
    opened[each.fileno()] = each
    poll.register(each.fileno(), select.EPOLLIN | select.EPOLLRDHUP | select.EPOLLERR)
for _ in range(held):
    open_one()
print("flooding", flush=True)
while True:
    for number, _ in poll.poll():
        opened.pop(number).close()
        open_one()
"""


def port_of(url: str) -> int:
    return int(url.rsplit(":", 1)[1])


def connect(url: str) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port_of(url)), timeout=PATIENCE)


def head(token: str = TOKEN, method: str = "GET", path: str = ML, **headers: Any) -> bytes:
    lines = {"Host": "127.0.0.1", "Authorization": f"Bearer {token}", **headers}
    written = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in lines.items())
    return f"{method} {path} HTTP/1.1\r\n{written}\r\n".encode()


def rest(opened: socket.socket) -> bytes:
    """Return the remaining bytes until the service closes the connection."""
    return b"".join(iter(lambda: opened.recv(65536), b""))


def has_news(opened: socket.socket) -> bool:
    """Return whether data arrived or the connection ended; works for descriptors beyond `select` too."""
    poll = select.poll()
    poll.register(opened, select.POLLIN)
    return bool(poll.poll(0))


def is_served(opened: socket.socket) -> bool:
    """Return whether a small authorized request is answered on this connection."""
    opened.sendall(head())
    answer = b""
    while not answer.endswith(b"{}\n") and (more := opened.recv(65536)):
        answer += more
    return answer.startswith(b"HTTP/1.1 200 ")


def is_closed(opened: socket.socket) -> bool:
    """Return whether the service has closed its side without sending data."""
    if not has_news(opened):
        return False
    try:
        return opened.recv(1) == b""
    except ConnectionResetError:
        return True


@contextmanager
def many_files(count: int) -> Iterator[None]:
    """Raise the limit of open files to `count`; skip if the system's hard limit is lower."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < count:
        pytest.skip(f"a process may have only {hard} files here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, count), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def attacked(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Address]]:
    """Yield a service in a process of its own, with the usual limit of descriptors."""
    processes = Processes(tmp_path / "home")
    command = [sys.executable, "-P", "-m", "reconciler.training_service", "--home", str(processes.home)]
    process = processes.start(["sh", "-c", f'ulimit -n {FILES}; exec "$@"', "sh", *command])
    try:
        yield process, processes.served(process)
    finally:
        process.kill()
        process.communicate()


def answers(found: Address) -> int:
    """Return the status of an authorized request on a connection of its own."""
    with closing(http.client.HTTPConnection("127.0.0.1", port_of(found.url), timeout=PATIENCE)) as connection:
        connection.request("GET", "/_service/health", headers={"Authorization": f"Bearer {found.token}"})
        return connection.getresponse().status


@pytest.mark.slow
def test_request_is_answered_while_thousands_of_silent_connections_are_held(
    attacked: tuple[subprocess.Popen[str], Address],
) -> None:
    process, found = attacked
    with many_files(HELD + 256), ExitStack() as held:
        kept = http.client.HTTPConnection("127.0.0.1", port_of(found.url), timeout=PATIENCE)
        authorization = {"Authorization": f"Bearer {found.token}"}
        kept.request("GET", "/_service/health", headers=authorization)
        assert kept.getresponse().read()
        first = kept.sock
        silent = [held.enter_context(connect(found.url)) for _ in range(HELD)]
        began = time.monotonic()
        assert [answers(found) for _ in range(5)] == [200] * 5
        # Less than the silent connections' own deadline: no request waits for that.
        assert time.monotonic() - began < patience(server.HEAD_SECONDS)
        kept.request("GET", "/_service/health", headers=authorization)
        assert kept.getresponse().status == 200
        assert kept.sock is first
        kept.close()
        most = ListenerLimits.of_process().strangers
        until(lambda: sum(is_closed(each) for each in silent[:-most]) == HELD - most)
        assert psutil.Process(process.pid).num_fds() < FILES / 2


def answers_in_the_end(found: Address) -> int:
    """Return the status for a client that reconnects while its connections are closed without an answer.

    The service closes the connection that was silent for longest: on a busy machine, maybe a new connection.
    """
    for _ in range(20):
        with suppress(ConnectionError):
            return answers(found)
    return 0


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(select, "epoll"), reason="the flood is written for Linux")
def test_requests_are_answered_during_flood_of_connections_that_come_back(
    attacked: tuple[subprocess.Popen[str], Address],
) -> None:
    _, found = attacked
    arguments = [sys.executable, "-c", FLOOD, str(port_of(found.url)), "1500"]
    with many_files(2048), subprocess.Popen(arguments, stdout=subprocess.PIPE) as flood:
        try:
            assert flood.stdout
            assert flood.stdout.readline()
            assert [answers_in_the_end(found) for _ in range(20)] == [200] * 20
        finally:
            flood.kill()


@pytest.mark.slow
@pytest.mark.parametrize("sent", [b"", b"\r\n", b"G", b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: "])
def test_connection_without_whole_head_is_closed_in_time_whatever_it_sends(
    service: Service, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(server, "HEAD_SECONDS", 0.5)
    with connect(service.url) as opened:
        began = time.monotonic()
        while not is_closed(opened):
            assert time.monotonic() - began < PATIENCE, "it is still open"
            try:
                opened.sendall(sent)  # again and again: it is never idle
            except (BrokenPipeError, ConnectionResetError):
                break
            time.sleep(0.01)
    assert service.get(ML).status == 200


def test_oldest_silent_connection_makes_room_and_clients_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ListenerLimits, "of_process", lambda: ListenerLimits(strangers=3, clients=8))
    with serving(tmp_path / "home") as service, ExitStack() as held:
        client = held.enter_context(connect(service.url))
        assert is_served(client)
        silent = [held.enter_context(connect(service.url)) for _ in range(4)]
        until(lambda: is_closed(silent[0]))
        assert not any(is_closed(each) for each in silent[1:])
        assert is_served(client)
        assert is_served(silent[3])


def test_stalest_client_makes_room_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ListenerLimits, "of_process", lambda: ListenerLimits(strangers=8, clients=3))
    # A client has its answer a moment before its thread notes the time: a single thread notes times in order.
    monkeypatch.setattr(server, "THREADS", 1)
    with serving(tmp_path / "home") as service, ExitStack() as held:
        clients = [held.enter_context(connect(service.url)) for _ in range(4)]
        assert all(is_served(clients[each]) for each in (0, 1, 2, 0, 3))
        until(lambda: is_closed(clients[1]))
        assert all(is_served(clients[each]) for each in (0, 2, 3))


@pytest.mark.parametrize(
    ("files", "limits"),
    [
        (1024, ListenerLimits(128, 256)),
        (256, ListenerLimits(32, 64)),
        (2**20, ListenerLimits(128, 256)),
        (resource.RLIM_INFINITY, ListenerLimits(128, 256)),
    ],
)
def test_connections_leave_file_descriptors_for_everything_else(
    monkeypatch: pytest.MonkeyPatch, files: int, limits: ListenerLimits
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, files))
    assert ListenerLimits.of_process() == limits
    assert files == resource.RLIM_INFINITY or limits.strangers + 3 * limits.clients < files


REFUSED = {
    "no token": (401, {"Authorization": "none"}),
    "wrong token": (401, {"Authorization": "Bearer wrong"}),
    "foreign Origin": (403, {"Origin": "https://evil.example"}),
    "wrong Host": (403, {"Host": "evil.example"}),
}


def streamed(opened: socket.socket, sent: bytes, piece: bytes, most: int) -> tuple[int, bytes]:
    """Send a head, then pieces until the connection breaks; return the bytes sent, and the answer."""
    opened.sendall(sent)
    answer, length = b"", 0
    try:
        while length < most:
            if has_news(opened):
                answer += opened.recv(65536)
            opened.sendall(piece)
            length += len(piece)
    except (BrokenPipeError, ConnectionResetError):
        pass  # the answer came before
    return length, answer + rest(opened)


@pytest.mark.slow
@pytest.mark.skipif(
    not Path("/proc/self/io").exists(), reason="the bytes written are read from Linux's /proc"
)
@pytest.mark.parametrize("framing", ["length", "chunked"])
@pytest.mark.parametrize("why", [*REFUSED, "guessed storage URL"])
def test_refused_request_s_body_is_stored_nowhere(
    attacked: tuple[subprocess.Popen[str], Address], why: str, framing: str
) -> None:
    process, found = attacked
    status, headers = REFUSED.get(why, (401, {}))
    path = UPLOAD if why in REFUSED else f"/jobs/guessed{UPLOAD}"
    body = {"Content_Length": LARGE} if framing == "length" else {"Transfer_Encoding": "chunked"}
    content = b"x" * 2**20
    piece = content if framing == "length" else b"%x\r\n%b\r\n" % (len(content), content)
    sent = head(found.token, "POST", path, **{**headers, **body})
    seen = psutil.Process(process.pid)
    before, memory = seen.io_counters().write_chars, seen.memory_info().rss
    with connect(found.url) as opened:
        length, answer = streamed(opened, sent, piece, LARGE)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert b"\r\nConnection: close\r\n" in answer
    assert length < LARGE
    assert seen.io_counters().write_chars - before < 2**16
    assert seen.memory_info().rss - memory < 32 * 2**20
    assert answers(found) == 200


@pytest.mark.parametrize("why", REFUSED)
def test_refused_request_gets_no_100_continue(service: Service, why: str) -> None:
    status, headers = REFUSED[why]
    with connect(service.url) as opened:
        opened.sendall(head(method="POST", **headers, Content_Length=10, Expect="100-continue"))
        assert rest(opened).startswith(f"HTTP/1.1 {status} ".encode())


def test_admitted_request_gets_100_continue(service: Service) -> None:
    with connect(service.url) as opened:
        opened.sendall(head(method="POST", Content_Length=2, Expect="100-continue"))
        assert opened.recv(65536) == b"HTTP/1.1 100 Continue\r\n\r\n"


def test_client_that_sends_whole_body_sees_refusal_and_no_reset(service: Service) -> None:
    with connect(service.url) as opened:
        opened.sendall(head("wrong", "POST", Content_Length=2**19) + b"x" * 2**19)
        assert rest(opened).startswith(b"HTTP/1.1 401 ")


def test_body_of_refused_request_is_not_read_as_another_request(service: Service) -> None:
    inner = head(method="POST", path="/_service/stop")
    with connect(service.url) as opened:
        opened.sendall(head("wrong", "POST", Content_Length=len(inner)) + inner)
        assert rest(opened).count(b"HTTP/1.1 ") == 1
    assert service.stopped == []


def test_head_with_expired_token_is_refused_before_its_body(service: Service) -> None:
    token = mint(service)
    service.clock.advance(10)
    with connect(service.url) as opened:
        opened.sendall(head(token, "POST", Content_Length=100))
        answer = rest(opened)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"token expired at" in answer


def test_upload_goes_on_when_its_token_expires_after_the_head(service: Service) -> None:
    service.post("/storage/v1/b?project=p", {"name": "bucket"})
    token = mint(service)
    with connect(service.url) as opened:
        opened.sendall(head(token, "POST", UPLOAD, Content_Length=4, Expect="100-continue"))
        assert opened.recv(65536).startswith(b"HTTP/1.1 100 ")
        service.clock.advance(10)
        opened.sendall(b"data")
        assert opened.recv(65536).startswith(b"HTTP/1.1 200 ")
    assert service.get("/storage/v1/b/bucket/o/a?alt=media").content == b"data"


def test_job_that_ends_during_its_upload_writes_nothing(service: Service) -> None:
    service.post("/storage/v1/b?project=p", {"name": "staging"})
    job, url = job_with(service)
    path = url + UPLOAD.replace("bucket", "staging")
    with connect(service.url) as opened:
        opened.sendall(head("", "POST", path, Content_Length=4, Expect="100-continue"))
        assert opened.recv(65536).startswith(b"HTTP/1.1 100 ")
        service.store.move(job.id, JobState.SUCCEEDED, only_from=set(JobState), at=service.store.now())
        opened.sendall(b"data")
        assert opened.recv(65536).startswith(b"HTTP/1.1 401 ")
    assert service.get("/storage/v1/b/staging/o/a").status == 404


@pytest.mark.slow
def test_head_is_judged_while_another_thread_writes(
    attacked: tuple[subprocess.Popen[str], Address], tmp_path: Path
) -> None:
    _, found = attacked
    home = tmp_path / "home"
    locked, go_on = threading.Event(), threading.Event()

    def hold_lock() -> None:
        with closing(sqlite3.connect(home / "state.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            locked.set()
            go_on.wait(PATIENCE)
            other.execute("ROLLBACK")

    holder = threading.Thread(target=hold_lock)
    holder.start()
    assert locked.wait(PATIENCE)
    try:
        with connect(found.url) as waiting, connect(found.url) as opened:
            body = b'{"jobId": "a"}'
            waiting.sendall(head(found.token, "PUT", "/_service/images", Content_Length=2) + b"{}")
            opened.sendall(head("1.2.3", "POST", Content_Length=len(body)))
            assert rest(opened).startswith(b"HTTP/1.1 401 ")
            assert not has_news(waiting)
            go_on.set()
            assert waiting.recv(65536).startswith(b"HTTP/1.1 200 ")
    finally:
        go_on.set()
        holder.join()


@pytest.mark.parametrize(
    "sent",
    [
        b"GET http://[ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"x" * server.MAX_HEAD + b"\r\n\r\n",
    ],
    ids=["no URL", "no length", "long"],
)
def test_malformed_head_is_answered_and_not_logged(
    service: Service, caplog: pytest.LogCaptureFixture, sent: bytes
) -> None:
    with connect(service.url) as opened:
        opened.sendall(sent)
        assert rest(opened).startswith((b"HTTP/1.1 400 ", b"HTTP/1.0 400 ", b"HTTP/1.0 431 "))
    assert not caplog.records


def test_connection_with_urgent_data_is_closed(service: Service, caplog: pytest.LogCaptureFixture) -> None:
    with connect(service.url) as opened:
        opened.send(b"x", socket.MSG_OOB)
        until(lambda: is_closed(opened))
    assert not caplog.records


@pytest.mark.slow
def test_large_upload_in_chunks_takes_little_memory(
    attacked: tuple[subprocess.Popen[str], Address],
) -> None:
    process, found = attacked
    authorization = {"Authorization": f"Bearer {found.token}"}
    seen = psutil.Process(process.pid)
    with closing(http.client.HTTPConnection("127.0.0.1", port_of(found.url), timeout=PATIENCE)) as connection:
        connection.request("POST", "/storage/v1/b?project=p", b'{"name": "bucket"}', authorization)
        assert connection.getresponse().read()
        memory = seen.memory_info().rss
        pieces = (b"x" * 2**20 for _ in range(64))
        connection.request("POST", UPLOAD, pieces, authorization, encode_chunked=True)
        answer = connection.getresponse()
        assert (answer.status, b'"size": "67108864"' in answer.read()) == (200, True)
    assert seen.memory_info().rss - memory < 32 * 2**20
