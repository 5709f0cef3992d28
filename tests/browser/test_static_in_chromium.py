"""Pages of a report in a real browser, opened from disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace
from playwright.sync_api import Browser

from reconciler.model.details import Goal, MetricsFile, Output, OutputFile
from reconciler.model.job import LogEntry
from reconciler.model.plan import Drift, DriftKind, Plan
from reconciler.pages.folder import write_site
from reconciler.pages.rendering import Pages
from reconciler.pages.site import Site, row_key
from reconciler.pages.template import PageContent
from tests.browser.watched import Watched
from tests.support.planning import noting
from tests.support.sites import PAYLOADS, TARGET, details_of, hostile_site, large_site, study_of

LOOKS = [("light", 1400), ("dark", 360), ("light", 360), ("dark", 1400)]
LONG = "a-very-long-name-that-goes-on-and-on-" * 3


def rich_site() -> Site:
    """Return a site with all parts of pages: long names, drift, notes, charts, files and logs."""
    site = large_site(230, 12)
    rows = [replace(site.rows[0], base_name=LONG), *site.rows[1:]]
    (key, _), *others = site.details.items()
    files = (OutputFile("model/model.bin", 5000), OutputFile(f"{LONG}.bin", 3))
    tuned = replace(
        details_of(rows[0], study=study_of(40)),
        output=Output("gs://bucket/out", "", files),
        labels={LONG: LONG},
    )
    wide = study_of(5)
    renamed = [replace(each, parameters={f"{LONG}{n}": n / 7 for n in range(20)}) for each in wide.trials]
    second = details_of(
        rows[1],
        study=replace(wide, trials=tuple(renamed), goals=(*wide.goals, Goal(LONG, is_maximum=False))),
        metrics=(MetricsFile(f"{LONG}.json", {LONG.replace("-", "_"): 1e-9, "rows": 1e12}),),
        log=(LogEntry("2026-01-02T10:00:00Z", "ERROR", LONG.replace("-", "_") * 3),),
    )
    drift = tuple(Drift(DriftKind.ORPHANED, LONG, f"job-{n}", noting("here")) for n in range(30))
    plan = Plan(TARGET, (), drift, None)
    return replace(
        site,
        rows=rows,
        plan=plan,
        notes=["A note about something."],
        details={**dict(others), key: tuned, row_key(rows[1]): second},
        content=PageContent(logs=True, env_values=True),
    )


def written(site: Site, folder: Path) -> list[str]:
    pages = Pages(site)
    made = {path: text for path in pages.paths() if (text := pages.page(path))}
    write_site(folder, made.items(), force=False)
    return [*made]


def of_each_kind(paths: list[str], most: int = 3) -> list[str]:
    """Return the top-level pages, and the first pages of each folder."""
    kinds: dict[str, list[str]] = {}
    for path in paths:
        kinds.setdefault(path.rpartition("/")[0] or path, []).append(path)
    return [path for found in kinds.values() for path in found[:most]]


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_pages_are_accessible_quiet_and_as_wide_as_the_screen(
    browser: Browser, tmp_path: Path, scheme: str, width: int
) -> None:
    paths = written(rich_site(), tmp_path / "site")
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    watched = Watched(context.new_page(), (tmp_path / "site").as_uri())
    for path in of_each_kind(paths):
        watched.page.goto((tmp_path / "site" / path).as_uri())
        assert watched.findings() == [], path
        assert watched.overflow() <= 0, path
    assert watched.trouble == []
    context.close()


def test_a_reader_clicks_through_all_kinds_of_pages(browser: Browser, tmp_path: Path) -> None:
    written(rich_site(), tmp_path / "site")
    page = browser.new_page()
    watched = Watched(page, (tmp_path / "site").as_uri())
    page.goto((tmp_path / "site" / "index.html").as_uri())
    page.get_by_role("link", name=LONG).first.click()
    assert page.get_by_role("heading", level=1).inner_text() == LONG
    assert page.get_by_role("img", name="Best so far").is_visible()
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Commits").click()
    page.get_by_role("rowheader").first.get_by_role("link").click()
    assert page.get_by_role("heading", level=1).inner_text().startswith("Commit ")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Runs").click()
    page.get_by_role("link", name="Next").click()
    assert "Page 2 of 3" in page.inner_text("main")
    page.get_by_role("navigation", name="Pages").get_by_role("link", name="Labels").click()
    page.get_by_role("link", name="team-3").click()
    assert page.get_by_role("heading", level=1).inner_text() == "Label team=team-3"
    assert watched.trouble == []
    page.close()


def test_the_keyboard_reaches_content_first_and_every_chart(browser: Browser, tmp_path: Path) -> None:
    paths = written(rich_site(), tmp_path / "site")
    page = browser.new_page()
    page.goto((tmp_path / "site" / next(path for path in paths if path.startswith("jobs/"))).as_uri())
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "Skip to content"
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.getAttribute('role')"))
    assert "region" in reached
    page.close()


@pytest.mark.parametrize("payload", PAYLOADS)
def test_hostile_text_does_nothing(browser: Browser, tmp_path: Path, payload: str) -> None:
    paths = written(hostile_site(payload, 1.0), tmp_path / "site")
    page = browser.new_page()
    watched = Watched(page, (tmp_path / "site").as_uri())
    for path in paths:
        page.goto((tmp_path / "site" / path).as_uri())
        assert page.evaluate("document.scripts.length + document.images.length + document.forms.length") == 0
    assert watched.trouble == []
    page.close()


def test_the_policy_stops_what_an_escape_would_let_through(browser: Browser, tmp_path: Path) -> None:
    written(rich_site(), tmp_path / "site")
    index = tmp_path / "site" / "index.html"
    added = (
        "<script>document.title = 'taken'</script><img src='https://evil.test/x'><p style='color:red'>x</p>"
    )
    index.write_text(index.read_text().replace("</main>", f"{added}</main>"))
    page = browser.new_page()
    watched = Watched(page, index.as_uri())
    page.goto(index.as_uri())
    assert page.title() != "taken"
    refused = [each for each in watched.trouble if "Content Security Policy" in each]
    assert len(refused) == 3
    # The checks of the other tests detect faults.
    assert any(finding.startswith("image-alt") for finding in watched.findings())
    page.close()
