"""One run's tables and picture, kept in the documentation."""

from __future__ import annotations

import shutil
from pathlib import Path

from .place import TESTS

_DOCS = TESTS.parent / "docs"
_BEGIN, _END = "<!-- the tables begin -->\n", "<!-- the tables end -->\n"


def into_docs(text: str, picture: Path | None) -> None:
    """Put the tables between their marks in docs/performance.md, and the picture beside it."""
    page = _DOCS / "performance.md"
    before, _, rest = page.read_text().partition(_BEGIN)
    page.write_text(f"{before}{_BEGIN}\n{text}\n\n{_END}{rest.partition(_END)[2]}")
    if picture:
        shutil.copyfile(picture, _DOCS / "performance.svg")
