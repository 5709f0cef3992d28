"""Traced secrets: repeated by servers in any form, they appear in no output.

The servers here repeat every request, headers and all, in their errors, as some proxies and debug pages do.
"""

from __future__ import annotations

import json
import re
import socket
import subprocess
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from reconciler.base.errors import ServiceError
from reconciler.base.http import DirectTransport, HttpRequest
from tests.support.google_place import HURRIED, google_place
from tests.support.held_service import HeldService
from tests.support.raw_server import Arrived, Behaviour, RawServer, answer, passing_on
from tests.support.repository import Repository, Result
from tests.support.tls import Loopback, server_tls
from tests.support.waiting import PATIENCE

GITHUB_TOKEN = "ghs_" + "CanaryOfGitHub0123456789abcdefghijkl"
ENV_VALUE = "canary-in-an-ordinary-variable"


def repeated(request: Arrived) -> str:
    """Return a request as a debug page shows it."""
    # Credentials first, because long text is cut.
    first = sorted(request.headers.items(), key=lambda header: header[0] != "authorization")
    headers = "\n".join(f"{name}: {value}" for name, value in first)
    return f"{headers}\n{request.method} {request.target}\n\n{request.body.decode('utf-8', 'replace')}"


def as_google(status: int, word: str) -> Behaviour:
    def behave(sock: socket.socket, request: Arrived) -> bool:
        told = {"code": status, "status": word, "message": f"bad request: {repeated(request)}"}
        return answer(status, json.dumps({"error": told}).encode())(sock, request)

    return behave


def as_github(status: int) -> Behaviour:
    def behave(sock: socket.socket, request: Arrived) -> bool:
        told = {"message": repeated(request), "errors": [{"message": repeated(request)}]}
        return answer(status, json.dumps(told).encode())(sock, request)

    return behave


def as_page(sock: socket.socket, request: Arrived) -> bool:
    """Answer with a proxy's page."""
    return answer(403, f"<html>{repeated(request)}</html>".encode(), content_type="text/html")(sock, request)


def as_redirect(sock: socket.socket, request: Arrived) -> bool:
    """Redirect to another server, with the token in the address."""
    where = f"http://localhost:1/?token={request.headers.get('authorization', '')[7:]}"
    return answer(302, repeated(request).encode(), location=where)(sock, request)


def as_nonsense(sock: socket.socket, request: Arrived) -> bool:
    """Answer with text that HTTP libraries quote in their errors."""
    sock.sendall(f"{request.headers.get('authorization', '')}\r\n{repeated(request)}\r\n\r\n".encode())
    return False


def as_headers(sock: socket.socket, request: Arrived) -> bool:
    """Answer with the request's headers, one of them broken."""
    token = request.headers.get("authorization", "")
    sock.sendall(f"HTTP/1.1 400 {token}\r\n{token}\r\ncontent-length: {token}\r\n\r\n".encode())
    return False


BEHAVIOURS = {
    "refusal": as_google(403, "PERMISSION_DENIED"),
    "page": as_page,
    "redirect": as_redirect,
}
BROKEN = {"nonsense": as_nonsense, "headers": as_headers}
REFUSED = ("refusal",)
REST = {"refusal": ("status --format json", "logs census", "cancel census --log-format json", "report")}


@contextmanager
def command_lines(process: subprocess.Popen[str]) -> Iterator[set[str]]:
    """Yield the command lines of a process and its descendants, watched until it ends."""
    seen: set[str] = set()
    ended = threading.Event()

    def look() -> None:
        while not ended.wait(0.05):
            with suppress(psutil.Error):
                whole = psutil.Process(process.pid)
                for one in (whole, *whole.children(recursive=True)):
                    with suppress(psutil.Error):
                        seen.add("\0".join(one.cmdline()))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield seen
    finally:
        ended.set()
        looking.join()


def run(repository: Repository, *arguments: str, program: str = "", **environ: str) -> tuple[Result, str]:
    """Run a command; return its result, and all its visible output."""
    process = repository.start(*arguments, program=program, **environ)
    with command_lines(process) as seen:
        out, err = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in out + err, out + err
    # A plan shows the whole spec of a new job; only there may an ordinary variable's value appear.
    shown = re.sub(rf"^ *\+ *value: {ENV_VALUE}$", "", out, flags=re.MULTILINE)
    return Result(process.returncode, out, err), "\n".join([shown, err, *sorted(seen)])


def left(folder: Path, *secret: Path) -> bytes:
    """Return the content of all files in a folder, except the files that are meant to hold a secret."""
    files = (file for file in sorted(folder.rglob("*")) if file.is_file() and file not in secret)
    return b"\n".join(file.read_bytes() for file in files)


def job(repository: Repository) -> None:
    """Commit a job with an ordinary value in a variable."""
    file = repository.job()
    text = file.read_text()
    first = "- {name: STARTS"
    file.write_text(text.replace(first, f"- {{name: MODE, value: {ENV_VALUE}}}\n          {first}"))
    repository.git("init", "-q")
    repository.git("add", "-A")
    repository.git("commit", "-q", "-m", "a job")


def test_the_fakes_repeat_what_they_are_sent() -> None:
    """All other tests here rely on this repetition."""
    request = Arrived(0, "GET", "/x", {"authorization": f"Bearer {GITHUB_TOKEN}"}, b"body")
    for behave in (*BEHAVIOURS.values(), *BROKEN.values(), as_github(422)):
        here, there = socket.socketpair()
        with here, there:
            behave(here, request)
            here.shutdown(socket.SHUT_WR)
            assert GITHUB_TOKEN.encode() in there.makefile("rb").read()


@pytest.mark.fault(46, 47)
@pytest.mark.parametrize("name", BEHAVIOURS)
def test_no_answer_of_google_brings_a_token_or_a_value_out(
    repository: Repository, tmp_path: Path, name: str
) -> None:
    """First only creates fail, or the making of tokens for them; then all requests fail."""
    job(repository)
    hurried = tmp_path / "hurried.py"
    hurried.write_text(HURRIED)
    is_bad: list[Callable[[Arrived], bool]] = [
        lambda request: (
            ("/customJobs" if name in REFUSED else ":generateAccessToken") in request.target
            and request.method == "POST"
        )
    ]
    with HeldService(repository.home).running() as service:
        behave = passing_on(service.url, BEHAVIOURS[name], lambda request: is_bad[0](request))
        with (
            RawServer([behave]).running() as server,
            google_place(repository, service, server.url, tmp_path, submitter=True) as environ,
        ):
            repository.git("commit", "-q", "-a", "-m", "settings")

            def shown_by(*arguments: str) -> str:
                return run(repository, *arguments, program=str(hurried), **environ)[1]

            shown = [shown_by("init", "--claims"), shown_by("apply", "-v", "--log-format", "json")]
            sent = any(ENV_VALUE.encode() in request.body for request in server.arrived)
            assert sent == (name in REFUSED)
            is_bad[0] = lambda request: True
            commands = ["plan", "apply -v", "init --claims", *REST.get(name, ())]
            shown += [shown_by(*command.split()) for command in commands]
        told = "\n".join(shown)
        tokens = {
            request.headers["authorization"].split()[-1]
            for request in server.arrived
            if "authorization" in request.headers
        }
        assert tokens
        kept = left(repository.root) + left(repository.home, repository.home / "service.json")
        key = json.loads((tmp_path / "key.json").read_text())["private_key"].splitlines()[1]
        for secret in (*tokens, key):
            assert secret not in told
        for secret in (*tokens - {service.token}, key):
            assert secret.encode() not in kept
        assert ENV_VALUE not in told
        assert ENV_VALUE.encode() not in left(repository.home)


@pytest.mark.fault(46)
@pytest.mark.parametrize(
    "behave",
    [
        as_github(403),
        as_github(422),
        as_page,
        as_redirect,
    ],
)
def test_no_answer_of_github_brings_the_token_out(repository: Repository, behave: Behaviour) -> None:
    job(repository)
    with HeldService(repository.home).running(), RawServer([behave], tls=server_tls()).running() as server:
        environ = {
            "GITHUB_ACTIONS": "true",
            "GITHUB_REPOSITORY": "acme/jobs",
            "GITHUB_API_URL": server.url,
            "GITHUB_TOKEN": GITHUB_TOKEN,
        }
        shown = [run(repository, "apply", "-v", "--log-format", "json", **environ)[1]]
        event = repository.root.parent / "event.json"
        event.write_text('{"pull_request": {"number": 7}}')
        environ |= {"GITHUB_EVENT_NAME": "pull_request", "GITHUB_EVENT_PATH": str(event)}
        comment = repository.root.parent / "comment.md"
        comment.write_text("Plan: nothing to do.\n")
        asked = len(server.arrived)
        shown.append(run(repository, "report", "--comment", str(comment), **environ)[1])
        assert len(server.arrived) > asked, shown[-1]
        assert any(GITHUB_TOKEN in request.headers["authorization"] for request in server.arrived)
        bodies = "".join(request.target + request.body.decode() for request in server.arrived)
    assert GITHUB_TOKEN not in "\n".join(shown) + bodies
    assert ENV_VALUE not in "\n".join(shown) + bodies
    assert GITHUB_TOKEN.encode() not in left(repository.root) + left(repository.home)


@pytest.mark.fault(46)
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize("name", BROKEN)
def test_no_broken_answer_brings_the_token_out(name: str, method: str) -> None:
    """HTTP libraries quote unreadable data in their errors."""
    with RawServer([BROKEN[name]]).running() as server:
        headers = {"Authorization": f"Bearer {GITHUB_TOKEN}"}
        with pytest.raises(ServiceError) as caught:
            DirectTransport(Loopback()).send(
                HttpRequest(method, server.url + "/x", headers, b"" if method == "POST" else None)
            )
    assert GITHUB_TOKEN not in "".join(traceback.format_exception(caught.value))


@pytest.mark.fault(46)
def test_the_server_that_gives_tokens_may_repeat_what_it_was_asked_with(
    repository: Repository, tmp_path: Path
) -> None:
    job(repository)

    def refuse(sock: socket.socket, request: Arrived) -> bool:
        told = {"error": "invalid_grant", "error_description": f"Invalid JWT: {repeated(request)}"}
        return answer(400, json.dumps(told).encode(), content_type="application/json")(sock, request)

    for behave in (refuse, as_page):
        with (
            HeldService(tmp_path / "service").running() as service,
            RawServer([behave], tls=server_tls()).running() as server,
        ):
            folder = tmp_path / "key"
            folder.mkdir(exist_ok=True)
            (service.home / "gcs").mkdir(exist_ok=True)
            settings = (repository.root / "reconciler.yaml").read_text()
            with google_place(repository, service, service.url, folder, submitter=False) as environ:
                key = folder / "key.json"
                key.write_text(json.dumps(json.loads(key.read_text()) | {"token_uri": server.url + "/token"}))
                done, shown = run(repository, "plan", **environ)
            (repository.root / "reconciler.yaml").write_text(settings)
            for bucket in (service.home / "gcs").iterdir():
                bucket.rmdir()
        assert done.code == 1
        assert "no usable Google credentials" in done.err
        (request, *_) = server.arrived
        assertion = request.body.decode().rpartition("assertion=")[2].partition("&")[0]
        assert len(assertion) > 300
        assert assertion[200:240] not in shown
        assert assertion[-40:] not in shown


@pytest.mark.fault(46)
def test_the_embedded_service_and_its_jobs_never_get_a_token(repository: Repository) -> None:
    job(repository)
    environ = {
        "GITHUB_TOKEN": GITHUB_TOKEN,
        "GOOGLE_APPLICATION_CREDENTIALS": "/canary/credentials.json",
        "ACTIONS_ID_TOKEN_REQUEST_TOKEN": GITHUB_TOKEN,
    }
    (repository.root / "trainer" / "task.py").write_text(
        "import os, pathlib\n"
        "print(dict(os.environ))\n"
        "for place in pathlib.Path('/proc').glob('[0-9]*/environ'):\n"
        "    try:\n"
        "        text = place.read_bytes()\n"
        "    except OSError:\n"
        "        continue\n"
        "    if b'RECONCILER_CANARY' in text:\n"
        "        print(text)\n"
    )
    done, shown = run(repository, "apply", RECONCILER_CANARY="1", **environ)
    assert done.code == 0, shown
    service = repository.service()
    lines = Path("/proc", str(service["pid"]), "environ").read_bytes().split(b"\0")
    assert b"RECONCILER_CANARY=1" in lines
    assert not [line for line in lines if GITHUB_TOKEN.encode() in line or b"/canary/" in line]
    done, waited = run(repository, "apply", "--wait", "-v")
    assert done.code == 0, waited
    logged, log = run(repository, "logs", "census")
    assert "RECONCILER_CANARY" in logged.out
    told = "\n".join([shown, waited, log])
    assert GITHUB_TOKEN not in told
    assert "/canary/" not in told
    assert service["token"] not in told
    repository.stop()
    kept = left(repository.home)
    assert GITHUB_TOKEN.encode() not in kept
    assert service["token"].encode() not in kept
    assert (repository.home / "state.db").stat().st_mode & 0o077 == 0
