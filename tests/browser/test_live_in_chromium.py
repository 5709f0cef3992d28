"""Live pages in a real browser: a running job to its end, without a reload, a fault or a stray request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect
from repository import Repository
from waiting import PATIENCE
from watched import Watched

WAIT = PATIENCE * 1000


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(timezone_id="Asia/Tokyo", viewport={"width": 1400, "height": 900})
    context.set_default_timeout(WAIT)
    yield context.new_page()
    context.close()


@pytest.fixture
def link(repository: Repository) -> Iterator[str]:
    """The link of pages over a repository with a job that runs until `hold` is gone."""
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
    # The page changes by itself: it is never loaded again.
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
        assert answer.status == 401
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
