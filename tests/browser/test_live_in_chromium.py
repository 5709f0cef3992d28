"""Live pages in a real browser: a running job to its end, without a reload, a fault or a stray request."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.watched import Watched
from tests.support.repository import Repository
from tests.support.waiting import PATIENCE

WAIT = PATIENCE * 1000


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(timezone_id="Asia/Tokyo", viewport={"width": 1400, "height": 900})
    context.set_default_timeout(WAIT)
    yield context.new_page()
    context.close()


@pytest.fixture
def link(repository: Repository) -> Iterator[str]:
    """Return the link to pages over a repository with a job that runs until `hold` is deleted."""
    repository.hold.touch()
    repository.job("census", args=["--epochs", "3"])
    repository.job("other")
    assert repository.run("apply").code == 0
    process = repository.start("open", "--no-browser")
    assert process.stdout
    yield process.stdout.readline().strip()
    process.terminate()
    process.wait(PATIENCE)
    repository.hold.unlink(missing_ok=True)


def test_a_running_job_is_followed_to_its_end(page: Page, link: str, repository: Repository) -> None:
    origin = link.partition("/open")[0]
    watched = Watched(page, origin)
    page.goto(link)
    page.wait_for_url(f"{origin}/index.html")
    assert watched.findings() == []
    page.get_by_role("link", name="census").first.click()
    # The page changes by itself, without a reload.
    page.evaluate("window.stays = true")
    expect(page.locator("#lines")).to_contain_text("training with --epochs 3", timeout=WAIT)
    expect(page.locator("main .state").first).to_contain_text("RUNNING", timeout=WAIT)
    repository.hold.unlink()
    expect(page.locator("main .state").first).to_contain_text("SUCCEEDED", timeout=WAIT)
    expect(page.locator("#lines")).to_contain_text("done", timeout=WAIT)
    assert page.evaluate("window.stays") is True
    assert watched.findings() == []
    assert watched.trouble == []


def test_times_are_the_readers_with_utc_on_hover(page: Page, link: str) -> None:
    page.goto(link)
    page.wait_for_url("**/index.html")
    time = page.locator("main time").first
    expect(page.locator(".zone")).to_have_text("Asia/Tokyo", timeout=WAIT)
    utc = time.get_attribute("datetime") or ""
    assert time.get_attribute("title") == f"{utc.replace('T', ' ').removesuffix('Z')} UTC"
    hours = (int(time.inner_text()[11:13]) - int(utc[11:13])) % 24
    assert hours == 9


def test_pages_work_without_scripts(browser: Browser, link: str) -> None:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    watched = Watched(page, link.partition("/open")[0])
    page.goto(link)
    page.wait_for_url("**/index.html")
    page.get_by_label("Name contains").fill("cens")
    page.get_by_role("button", name="Filter").click()
    page.wait_for_url("**/index.html?q=cens")
    assert page.get_by_role("link", name="census").count() == 1
    assert page.get_by_role("link", name="other").count() == 0
    page.get_by_role("link", name="census").click()
    page.get_by_role("heading", name="Log").wait_for()
    assert watched.trouble == []
    context.close()


def test_a_reader_who_types_is_not_interrupted(page: Page, link: str) -> None:
    page.clock.install()
    page.goto(link)
    page.wait_for_url("**/index.html")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    box = page.get_by_label("Name contains")
    box.fill("cen")
    page.clock.run_for(10_000)
    assert (box.input_value(), asked) == ("cen", [])
    box.blur()
    with page.expect_response("**/index.html"):
        page.clock.run_for(4_000)


def test_another_browser_sees_nothing(browser: Browser, page: Page, link: str) -> None:
    page.goto(link)
    page.wait_for_url("**/index.html")
    other = browser.new_context()
    stranger = other.new_page()
    for address in (link, f"{link.partition('/open')[0]}/index.html"):
        answer = stranger.goto(address)
        assert answer
        assert answer.status == 404
        assert "census" not in stranger.content()
    other.close()


def test_the_end_of_the_server_is_told(page: Page, repository: Repository) -> None:
    process = repository.start("open", "--no-browser")
    assert process.stdout
    page.goto(process.stdout.readline().strip())
    page.wait_for_url("**/index.html")
    process.terminate()
    process.wait(PATIENCE)
    expect(page.get_by_role("status")).to_contain_text("doesn't answer", timeout=WAIT)


class Stranger(ThreadingHTTPServer):
    """Server of another user on another port: it records browsers' requests and serves its own page."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), StrangersHandler)
        self.page = ""
        self.sent: list[tuple[str, str]] = []


class StrangersHandler(BaseHTTPRequestHandler):
    server: Stranger

    def do_GET(self) -> None:
        self.server.sent.append((self.path, str(self.headers)))
        text = self.server.page.encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/html")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def stranger() -> Iterator[Stranger]:
    with Stranger() as server:
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


ATTACK = """
<!doctype html><title>attack</title>
<iframe src="{0}index.html"></iframe><img src="{0}index.html"><script src="{0}live.js"></script>
<form action="{0}index.html"><button>send</button></form><a id="link" href="{0}index.html">look</a>
<iframe src="{0}open?link=guess"></iframe>
<script>
window.got = []
const tries = [["{0}index.html", "no-cors"], ["{0}index.html", "cors"], ["{0}open?link=guess", "no-cors"]]
window.done = Promise.all(tries.map(([address, mode]) =>
  fetch(address, {{mode, credentials: "include"}}).then(answer => answer.text(), () => "").then(
    text => window.got.push(text))))
</script>
"""


# `localhost` is another site than 127.0.0.1, and another port of 127.0.0.1 is the same site.
@pytest.mark.parametrize("name", ["localhost", "127.0.0.1"])
@pytest.mark.parametrize("knows_the_folder", [False, True])
def test_a_foreign_page_gets_no_cookie_and_no_page(
    page: Page, link: str, stranger: Stranger, name: str, knows_the_folder: bool
) -> None:
    folder = link.partition("open?")[0]
    page.goto(link)
    page.wait_for_url(f"{folder}index.html")
    shown: list[str] = []
    root = folder if knows_the_folder else f"{folder.partition('//')[0]}//{urlsplit(folder).netloc}/"
    stranger.page = ATTACK.format(root)
    attacking = page.context.new_page()
    attacking.on(
        "response",
        lambda answer: shown.append(f"{answer.status} {answer.url}") if answer.url.startswith(root) else None,
    )
    foreign = f"http://{name}:{stranger.server_port}"
    attacking.goto(f"{foreign}/")
    attacking.evaluate("window.done")
    assert attacking.evaluate("window.got") == ["", "", ""]
    attacking.locator("#link").click()
    attacking.wait_for_url(f"{root}index.html")
    assert "census" not in attacking.content()
    attacking.goto(f"{foreign}/jobs/")
    attacking.get_by_role("button", name="send").click()
    attacking.wait_for_url(f"{root}index.html**")
    assert "census" not in attacking.content()
    assert {line.split()[0] for line in shown} == {"404"}, shown
    assert not [head for _, head in stranger.sent if "reconciler" in head]
    # The authorized page still has access.
    page.reload()
    assert "census" in page.content()


def test_the_cookie_goes_to_no_other_path_and_no_other_port(
    page: Page, link: str, stranger: Stranger
) -> None:
    folder = link.partition("open?")[0]
    page.goto(link)
    page.wait_for_url(f"{folder}index.html")
    (cookie,) = page.context.cookies(folder)
    assert cookie.get("path") == urlsplit(folder).path
    assert (cookie.get("httpOnly"), cookie.get("sameSite")) == (True, "Strict")
    assert page.context.cookies(f"{urlsplit(folder).scheme}://{urlsplit(folder).netloc}/") == []
    for path in ("/", "/index.html", "/open"):
        page.goto(f"http://127.0.0.1:{stranger.server_port}{path}")
    assert len(stranger.sent) >= 3
    assert not [head for _, head in stranger.sent if "ookie" in head]
    assert not [head for _, head in stranger.sent if urlsplit(folder).path in head]
