"""A real Chromium, and a watch over all that a page does in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parent.parent.parent
AXE = ROOT / ".venv" / "browser" / "node_modules" / "axe-core" / "axe.min.js"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Debian's Chromium; a missing one fails the test, for `make browser` installs it."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    assert program, "there is no chromium: run the tests by `make browser`"
    with sync_playwright() as playwright:
        # Chromium's own sandbox doesn't start as root, as in a container.
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        yield browser
        browser.close()


class Watched:
    """Page in a browser; `trouble` has everything that it must not do.

    Args:
        allowed: The beginning of the addresses that it may ask for.
    """

    def __init__(self, page: Page, allowed: str) -> None:
        self.page = page
        self.trouble: list[str] = []
        page.on("console", lambda message: self.trouble.append(f"console: {message.text}"))
        page.on("pageerror", lambda error: self.trouble.append(f"error: {error}"))
        page.on("dialog", lambda dialog: self.trouble.append(f"dialog: {dialog.message}"))
        page.on(
            "request",
            lambda request: (
                None if request.url.startswith(allowed) else self.trouble.append(f"request: {request.url}")
            ),
        )

    def findings(self) -> list[str]:
        """What axe-core finds in the page as it is now."""
        self.page.evaluate(AXE.read_text("utf-8"))
        found = self.page.evaluate("axe.run()")
        return [
            f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}"
            for rule in found["violations"]
            for node in rule["nodes"]
        ]

    def overflow(self) -> int:
        """The pixels by which the document is wider than the screen."""
        wide = self.page.evaluate(
            "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        return int(wide)
