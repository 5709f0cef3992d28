"""Live pages: access, its duration, and the shown state of real jobs."""

from __future__ import annotations

import os
import re
import socket
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from email.message import Message
from functools import partial
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from subprocess import Popen
from types import SimpleNamespace
from typing import TextIO
from urllib.parse import urlsplit

import pytest

from reconciler.base.listener.message import Request, Response
from reconciler.manifests.settings import Config, Environment, load_config
from reconciler.operations.load_desired import load_desired
from reconciler.operations.session import Session, open_session
from reconciler.pages import live
from reconciler.pages.listener import listening
from reconciler.pages.live import COOKIE_LASTS, LINK_LASTS, Access, LiveJobs, LivePages
from reconciler.pages.rendering import Pages
from reconciler.pages.snapshot import LIMIT, snapshot, with_details
from reconciler.pages.template import PageContent
from reconciler.training_service.client import locate
from tests.support.in_memory import CONFIG, session_over
from tests.support.memory_ports import Outside
from tests.support.repository import IMAGE, Repository
from tests.support.waiting import PATIENCE, until


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_link_works_once() -> None:
    access = Access()
    word = access.link()
    assert access.redeemed(word)
    assert access.redeemed(word) is None
    assert access.redeemed("") is None
    assert access.redeemed("\udcff") is None


def test_a_link_works_for_two_minutes_and_a_cookie_for_twelve_hours() -> None:
    access = Access(clock := Clock())
    late, word = access.link(), access.link()
    clock.now = LINK_LASTS
    cookie = access.redeemed(word)
    assert cookie
    clock.now = LINK_LASTS + 0.1
    assert access.redeemed(late) is None
    clock.now = LINK_LASTS + COOKIE_LASTS
    assert access.is_open(cookie)
    clock.now += 0.1
    assert not access.is_open(cookie)


def test_no_other_word_is_a_cookie() -> None:
    access = Access()
    word = access.link()
    cookie = access.redeemed(word)
    assert cookie
    assert not any(access.is_open(each) for each in ("", word, cookie[:-1], cookie + "x", "é"))


class Browser:
    """A client with the cookie of a link, if it has a cookie; paths are below the folder of the pages."""

    def __init__(self, link: str) -> None:
        parts = urlsplit(link)
        self.address = parts.hostname or "", parts.port or 0
        self.folder, _, name = parts.path.rpartition("/")
        self.link = f"/{name}?{parts.query}"
        self.cookie = ""

    def ask(self, target: str, method: str = "GET", **headers: str) -> HTTPResponse:
        """Return the answer for any path, without the cookie."""
        connection = HTTPConnection(*self.address, timeout=PATIENCE)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, target, headers=named)
        return connection.getresponse()

    def get(self, path: str, method: str = "GET", **headers: str) -> HTTPResponse:
        return self.ask(self.folder + path, method, **{"Cookie": self.cookie, **headers})

    def text(self, path: str) -> str:
        answer = self.get(path)
        assert answer.status == 200
        return answer.read().decode()

    def enter(self) -> Browser:
        answer = self.get(self.link)
        given = answer.getheader("Set-Cookie", "")
        assert f"; Path={self.folder}/; HttpOnly; SameSite=Strict; Max-Age=43200" in given
        assert "Domain" not in given
        self.cookie = given.partition(";")[0]
        return self


@contextmanager
def opened(repository: Repository, *arguments: str) -> Iterator[Browser]:
    process = repository.start("open", "--no-browser", *arguments)
    try:
        assert process.stdout
        yield Browser(process.stdout.readline().strip())
    finally:
        process.terminate()
        process.wait(PATIENCE)


def test_pages_open_by_the_link_alone(repository: Repository) -> None:
    repository.job("census", args=["--epochs", "3"])
    assert repository.run("apply", "--wait").code == 0
    with opened(repository) as browser:
        refused = browser.get("/index.html")
        assert refused.status == 404
        assert b"run `reconciler open`" in refused.read()
        assert browser.get(browser.link, "HEAD").status == 404
        browser.enter()
        assert browser.ask(browser.folder + browser.link).status == 404
        overview = browser.text("/")
        assert "census" in overview
        (path,) = re.findall(r'href="(jobs/[^"]+)"', overview)
        shown = browser.text(f"/{path}")
        assert "training with --epochs 3" in shown
        assert "STARTS=" in shown
        timeline = browser.text("/timeline.html")
        assert [*re.findall(r'<rect class="(\w+)" x=', timeline)] == [
            "queued",
            "preparing",
            "running",
            "ended",
        ]
        policy = browser.get("/index.html").getheader("Content-Security-Policy", "")
        assert policy.startswith("default-src 'none'; ")
        assert "frame-ancestors 'none'" in policy
        assert browser.get("/live.js").getheader("Content-Type") == "text/javascript; charset=utf-8"


@pytest.mark.parametrize("path", ["/../reconciler.yaml", "/jobs/x.html", "/%2e%2e/x", "/style.css"])
def test_other_paths_are_no_pages(repository: Repository, path: str) -> None:
    with opened(repository) as browser:
        assert browser.enter().get(path).status == 404


def whole(answer: HTTPResponse) -> tuple[int, list[tuple[str, str]], bytes]:
    """Return the complete answer except for the time."""
    headers = [(name, value) for name, value in answer.getheaders() if name != "Date"]
    return answer.status, headers, answer.read()


def test_all_paths_without_a_page_get_the_same_answer(repository: Repository) -> None:
    """Guessing reveals neither the folder's name, nor a valid cookie, nor the existing pages."""
    with opened(repository) as browser:
        browser.enter()
        nothing = whole(browser.ask("/"))
        assert nothing[0] == 404
        folder, cookie = browser.folder, browser.cookie
        others = (
            "/index.html",
            "/open",
            "/open?link=x",
            browser.link,
            f"/x{folder}",
            "//",
            "/%2e/",
            "/live.js",
        )
        assert {path: whole(browser.ask(path)) for path in others} == dict.fromkeys(others, nothing)
        inside = ("", "/", "/index.html", browser.link, "/open?link=x", "/live.js", "/jobs/x.html")
        assert {path: whole(browser.ask(folder + path)) for path in inside} == dict.fromkeys(inside, nothing)
        wrong = f"{cookie[:-1]}{'A' if cookie[-1] != 'A' else 'B'}"
        for headers in (
            {"Cookie": wrong},
            {"Cookie": cookie, "Origin": "http://127.0.0.1:1"},
            {"Cookie": cookie, "Host": "evil.test"},
            {"Cookie": cookie, "Sec_Fetch_Site": "same-site"},
            {"Cookie": cookie, "Sec_Fetch_Site": "cross-site"},
        ):
            assert whole(browser.ask(f"{folder}/index.html", **headers)) == nothing, headers
        assert whole(browser.ask("/index.html", Cookie=cookie)) == nothing
        assert whole(browser.get("/jobs/x.html"))[::2] == nothing[::2]
        for method in ("POST", "PUT", "DELETE", "OPTIONS"):
            assert whole(browser.ask(f"{folder}/index.html", method, Content_Length="0")) == nothing, method
        assert browser.get("/index.html", Sec_Fetch_Site="same-origin").status == 200


def test_access_ends_with_the_process_and_each_process_has_a_folder_of_its_own(
    repository: Repository,
) -> None:
    with opened(repository) as first:
        first.enter()
        port = str(first.address[1])
    with opened(repository, "--port", port) as second:
        assert second.address == first.address
        assert second.folder != first.folder
        assert len(second.folder.removeprefix("/")) * 6 >= 128
        assert first.get("/index.html").status == 404
        assert second.get("/index.html", Cookie=first.cookie).status == 404
        # Cookies set by other ports of the machine don't hide it.
        both = f"reconciler=x; {second.enter().cookie}; reconciler=y"
        assert second.get("/index.html", Cookie=both).status == 200


SAFE = {
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def answer_to(address: tuple[str, int], sent: bytes) -> tuple[int, Message]:
    with socket.create_connection(address, PATIENCE) as connection:
        connection.sendall(sent)
        answer = HTTPResponse(connection)
        answer.begin()
        return answer.status, answer.headers


def test_every_answer_has_the_headers_of_a_page(repository: Repository) -> None:
    with opened(repository) as browser:
        link, cookie = browser.link, browser.enter().cookie
        assert link
        request = f"GET {browser.folder}/index.html HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: {cookie}\r\n"
        sent = {
            200: request + "\r\n",
            400: f"GET {browser.folder}/index.html HTTP/1.1\r\nno header\r\n\r\n",
            404: "GET /healthz HTTP/1.1\r\n\r\n",
            405: request.replace("GET", "POST") + "\r\n",
            413: request + "Content-Length: 1\r\n\r\n",
            431: request + f"X: {'x' * 2**16}\r\n\r\n",
            501: request + "Transfer-Encoding: gzip\r\n\r\n",
        }
        for status, text in sent.items():
            got, headers = answer_to(browser.address, text.encode())
            assert got == status
            assert {name: headers[name] for name in SAFE} == SAFE, status
            assert headers["Content-Security-Policy"].startswith("default-src 'none'; "), status


def test_a_cookie_changes_nothing_and_opens_nothing_else(repository: Repository) -> None:
    repository.hold.touch()
    repository.job()
    assert repository.run("apply").code == 0
    address = locate(repository.home)
    assert address
    with opened(repository) as browser:
        browser.enter()
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert browser.get("/index.html", method).status == 405
        service = Browser(address.url)
        for path in ("/v1/projects/local/locations/local/customJobs", "/storage/v1/b", "/_service/images"):
            assert service.ask(path, Cookie=browser.cookie).status in (401, 403)
        # No page contains the service's own token.
        assert address.token not in browser.text("/index.html")
    repository.hold.unlink()


def test_a_filter_shows_jobs_by_a_part_of_their_name(repository: Repository) -> None:
    for name in ("census-a", "census-b", "other"):
        repository.job(name)
    with opened(repository) as browser:
        page = browser.enter().text("/index.html?q=CENSUS")
        assert "2 jobs" in page
        assert "other" not in page
        hostile = browser.text("/index.html?q=%22%3E%3Cscript%3Ealert(1)%3C/script%3E%ff")
        assert "<script>alert" not in hostile
        assert "No jobs." in hostile


def test_an_invalid_manifest_hides_no_page_and_invalid_settings_say_so(repository: Repository) -> None:
    repository.write("jobs/bad.yaml", "kind: Nothing\n")
    with opened(repository) as browser:
        browser.enter()
        assert "Manifests are invalid" in browser.text("/")
        repository.write("reconciler.yaml", "environments: 3\n")
        # Pages show the last state until then.
        until(lambda: b"can't be read now" in browser.get("/").read())


@contextmanager
def on_terminal(repository: Repository, *arguments: str) -> Iterator[tuple[Popen[str], TextIO]]:
    """Run a command with errors on a terminal; yield it and the terminal's output."""
    ours, its = os.openpty()
    process = repository.start(*arguments, stderr=its)
    os.close(its)
    with open(ours) as shown:  # noqa: PTH123 - a descriptor
        try:
            yield process, shown
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


def link_on(shown: TextIO) -> str:
    for line in shown:
        if found := re.search(r"http://\S+/open\?link=[\w-]+", line):
            return found[0]
    raise AssertionError("no link was shown")


def test_serve_shows_the_pages_on_a_terminal_until_it_ends(repository: Repository) -> None:
    repository.job()
    with on_terminal(repository, "serve") as (process, shown):
        browser = Browser(link_on(shown)).enter()
        assert "census" in browser.text("/")
        until(lambda: repository.run("serve", "--stop").out.startswith("the embedded service has stopped"))
        process.wait(PATIENCE)

        def has_ended() -> bool:
            try:
                browser.get("/")
            except OSError:
                return True
            return False

        until(has_ended)


def test_watch_shows_the_pages_on_a_terminal(repository: Repository) -> None:
    repository.job()
    with on_terminal(repository, "watch", "--listen", "127.0.0.1:0") as (_, shown):
        browser = Browser(link_on(shown))
        assert browser.ask("/healthz").status == 200
        assert browser.get("/index.html").status == 404
        browser.enter()
        until(lambda: "census" in browser.text("/"))


@pytest.mark.parametrize("log_format", ["json", "text"])
def test_no_link_and_no_folder_gets_into_a_log(repository: Repository, log_format: str) -> None:
    repository.job()
    written = ["--log-format", log_format]
    for command in (["serve"], ["watch", "--listen", "127.0.0.1:0", "-v"]):
        with repository.start(*command, *written) as process:
            assert process.stderr
            line = next(line for line in process.stderr if "pages" in line)
            until(lambda: (repository.home / "service.json").exists())
            process.terminate()
            logged = line + process.stderr.read()
        assert "run `reconciler open`" in line
        assert "link=" not in logged
        assert not re.search(r"http://[\w.:]+/\w", logged)


def test_an_error_of_a_page_brings_its_path_into_no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG")

    def failing(request: Request) -> Response:
        raise ValueError("it fails")

    with listening(("127.0.0.1", 0), {}, lambda head: failing) as url:
        browser = Browser(f"{url}/the-folder/open?link=the-word")
        for path in ("/index.html", browser.link):
            assert browser.get(path).status == 500
        with socket.create_connection(browser.address, PATIENCE) as connection:
            connection.sendall(b"GET /the-folder/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n" * 2)
    assert "it fails" in caplog.text
    assert "the-folder" not in caplog.text
    assert "the-word" not in caplog.text


def test_pages_list_ended_runs_once_an_hour(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    outside, clock, listings = Outside(), Clock(), list[float]()

    @contextmanager
    def opened(
        config: Config, environment: Environment, environ: object, *, start: bool
    ) -> Iterator[Session]:
        yield session_over(outside, config, environment)

    monkeypatch.setattr(live, "open_session", opened)
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=clock))
    monkeypatch.setattr(outside.jobs, "runs", lambda: listings.append(clock.now) or ())
    monkeypatch.setattr(outside.jobs, "live", lambda: ())
    (tmp_path / "reconciler.yaml").write_text(textwrap.dedent(CONFIG))
    pages = LivePages(lambda: tmp_path, {}, "prod")
    entered = pages.answer(Request.of("GET", link := pages.link("")))
    assert isinstance(entered, Response)
    cookie = dict(entered.headers)["Set-Cookie"].partition(";")[0]
    page = Request.of("GET", link.partition("open")[0] + "index.html", {"Cookie": cookie})
    for clock.now in (0.0, 1.0, 10.0, 3000.0, 3599.0, 3610.0, 4000.0):
        made = pages.answer(page)
        assert callable(made)
        assert made(page).status == 200
    assert listings == [0.0, 3610.0]


TRAINER_WITH_METRICS = """
import os, sys, urllib.parse, urllib.request

if "--fail" in sys.argv:
    raise ValueError(os.environ["MODE"])
bucket, _, path = os.environ["AIP_MODEL_DIR"].removeprefix("gs://").partition("/")
query = urllib.parse.urlencode({"uploadType": "media", "name": path + "metrics.json"})
url = f"{os.environ['STORAGE_EMULATOR_HOST']}/upload/storage/v1/b/{bucket}/o?{query}"
urllib.request.urlopen(urllib.request.Request(url, data=b'{"accuracy": 0.75}', method="POST")).read()
"""
WITH_OUTPUT = """
apiVersion: aiplatform.googleapis.com/v1
kind: CustomJob
metadata: {{name: {name}}}
package: {{path: ../trainer}}
spec:
  workerPoolSpecs:
    - machineSpec: {{machineType: n1-standard-4}}
      replicaCount: 1
      pythonPackageSpec:
        executorImageUri: {image}
        pythonModule: task
        args: {args}
        env: [{{name: MODE, value: only-in-the-spec}}]
  baseOutputDirectory: {{outputUriPrefix: gs://models/{name}/}}
"""


def test_open_and_report_show_same_pages_of_one_snapshot(repository: Repository) -> None:
    repository.write("trainer/task.py", TRAINER_WITH_METRICS)
    for name, args in {"good": "[]", "bad": "[--fail]"}.items():
        repository.write(f"jobs/{name}.yaml", WITH_OUTPUT.format(name=name, image=IMAGE, args=args))
    repository.has_jobs = True
    assert repository.run("apply", "--wait").code == 1
    repository.job("waiting", reconcile="{suspend: true}")

    config = load_config(repository.root)
    environment = config.environment(None)
    with open_session(config, environment, os.environ, start=False) as session:
        content = PageContent(logs=True, env_values=True)
        taken = snapshot(session, load_desired(config, environment, []), content, os.environ)
        written = Pages(with_details(session, taken, os.environ, LIMIT))
        opened = partial(nullcontext, session)
        served = Pages(taken.site, LiveJobs(opened, taken, os.environ, {}))
        assert [*served.paths()] == [*written.paths()]
        for path in written.paths():
            assert served.page(path) == written.page(path), path
        overview = served.page("index.html")
    assert overview is not None
    assert "accuracy 0.75" in overview
    assert "only-in-the-spec" not in overview
