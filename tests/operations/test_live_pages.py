"""Live pages: who may see them, and for how long; what they show of real jobs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from repository import Repository
from waiting import PATIENCE, until

from reconciler.google.embedded import address_of
from reconciler.operations.watch.http import COOKIE_LASTS, LINK_LASTS, Access


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
    """A client with the cookie of a link, if it has one."""

    def __init__(self, link: str) -> None:
        parts = urlsplit(link)
        self.address = parts.hostname or "", parts.port or 0
        self.link = f"{parts.path}?{parts.query}"
        self.cookie = ""

    def get(self, path: str, method: str = "GET", **headers: str) -> HTTPResponse:
        connection = HTTPConnection(*self.address, timeout=PATIENCE)
        connection.request(method, path, headers={"Cookie": self.cookie, **headers})
        return connection.getresponse()

    def text(self, path: str) -> str:
        answer = self.get(path)
        assert answer.status == 200
        return answer.read().decode()

    def enter(self) -> Browser:
        answer = self.get(self.link)
        given = answer.getheader("Set-Cookie", "")
        assert "; HttpOnly; SameSite=Strict; Max-Age=43200" in given
        assert "Domain" not in given
        self.cookie = given.partition(";")[0]
        return self


@contextmanager
def opened(repository: Repository) -> Iterator[Browser]:
    process = repository.start("open", "--no-browser")
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
        assert refused.status == 401
        assert b"run `reconciler open`" in refused.read()
        assert browser.get(browser.link, "HEAD").status == 401
        browser.enter()
        assert Browser(f"http://127.0.0.1:{browser.address[1]}{browser.link}").get(browser.link).status == 401
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


def test_a_cookie_changes_nothing_and_opens_nothing_else(repository: Repository) -> None:
    repository.hold.touch()
    repository.job()
    assert repository.run("apply").code == 0
    address = address_of(repository.home)
    assert address
    with opened(repository) as browser:
        browser.enter()
        for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS"):
            assert browser.get("/index.html", method).status == 501
        assert browser.get("/index.html", Origin="http://127.0.0.1:1").status == 403
        assert browser.get("/index.html", Host="evil.test").status == 403
        service = Browser(address[0])
        service.cookie = browser.cookie
        for path in ("/v1/projects/local/locations/local/customJobs", "/storage/v1/b", "/_service/images"):
            assert service.get(path).status in (401, 403)
        # The service's own token is in no page.
        assert address[1] not in browser.text("/index.html")
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
        # The state of a moment ago is shown before.
        until(lambda: b"can't be read now" in browser.get("/").read())


def test_serve_shows_the_pages_until_it_ends(repository: Repository) -> None:
    repository.job()
    with repository.start("serve") as process:
        assert process.stderr
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, "serve has ended"
            found = re.search(r"pages: (http://\S+)", line)
        browser = Browser(found[1]).enter()
        assert "census" in browser.text("/")
        assert repository.run("serve", "--stop").code == 0
        process.wait(PATIENCE)

    def has_ended() -> bool:
        try:
            browser.get("/")
        except OSError:
            return True
        return False

    until(has_ended)


def test_watch_shows_the_pages_where_it_listens(repository: Repository, tmp_path: Path) -> None:
    repository.job()
    process = repository.start("watch", "--listen", "127.0.0.1:0", "--log-format", "json")
    try:
        assert process.stderr
        events = (json.loads(line) for line in process.stderr)
        event = next(event for event in events if event["event"] == "listening")
        browser = Browser(event["pages"])
        assert browser.get("/healthz").status == 200
        assert browser.get("/index.html").status == 401
        until(lambda: "census" in browser.text("/") if browser.cookie else bool(browser.enter()) and False)
    finally:
        process.terminate()
        process.communicate(timeout=PATIENCE)
