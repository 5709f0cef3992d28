"""Calls of clients that docs/clients.md lists, and its code."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "clients.md"


def snippets(language: str) -> list[str]:
    """The page's blocks of code in a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)


def documented(client: str) -> list[str]:
    """The calls in the client's row of the page."""
    (row,) = re.findall(rf"^\| {re.escape(client)} \|(.*)\|$", PAGE.read_text("utf-8"), re.MULTILINE)
    return re.findall(r"`([^`]+)`", row)
