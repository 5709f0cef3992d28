"""Tables of a run, inserted into the documentation."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def into_docs(page: str, text: str, what: str = "tables") -> None:
    """Insert a text between two markers of a page in docs/, such as `<!-- the tables begin -->`."""
    file = DOCS / page
    begin, end = f"<!-- the {what} begin -->\n", f"<!-- the {what} end -->\n"
    before, found, rest = file.read_text().partition(begin)
    assert found, f"{file} has no mark: {begin}"
    file.write_text(f"{before}{begin}\n{text}\n\n{end}{rest.partition(end)[2]}")
