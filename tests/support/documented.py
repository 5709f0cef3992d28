"""The client calls listed in docs/clients.md, and the code blocks of that page."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clients.md"


def snippets(language: str) -> list[str]:
    """Return the page's code blocks in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def documented(client: str) -> list[str]:
    """Return the calls in the client's row of the page."""
    (row,) = re.findall(rf"^\| {re.escape(client)} \|(.*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return re.findall(r"`([^`]+)`", row)
