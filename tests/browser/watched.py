"""Observation of a page's actions in a browser."""

from __future__ import annotations

from pathlib import Path

from playwright.sync_api import Page

ROOT = Path(__file__).resolve().parent.parent.parent
AXE = ROOT / ".venv" / "browser" / "node_modules" / "axe-core" / "axe.min.js"


class Watched:
    """Page in a browser; `trouble` lists all its forbidden actions.

    Args:
        allowed: The prefix of the addresses that it may request.
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
        """Return axe-core's findings in the current page."""
        self.page.evaluate(AXE.read_text("utf-8"))
        found = self.page.evaluate("axe.run()")
        return [
            f"{rule['id']}: {node['html'][:200]} {node['failureSummary']}"
            for rule in found["violations"]
            for node in rule["nodes"]
        ]

    def overflow(self) -> int:
        """Return the pixels by which the document is wider than the screen, or a text than its card."""
        wide = self.page.evaluate(
            "Math.max(...[document.documentElement, ...document.querySelectorAll('.cards a')]"
            ".map(each => each.scrollWidth - each.clientWidth))"
        )
        return int(wide)
