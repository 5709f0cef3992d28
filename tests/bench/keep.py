"""Tables of one run, kept in the documentation."""

from __future__ import annotations

from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"


def into_docs(page: str, text: str, what: str = "tables") -> None:
    """Put a text between two marks of a page in docs/, such as `<!-- the tables begin -->`."""
    file = DOCS / page
    begin, end = f"<!-- the {what} begin -->\n", f"<!-- the {what} end -->\n"
    before, found, rest = file.read_text().partition(begin)
    assert found, f"{file} has no mark: {begin}"
    file.write_text(f"{before}{begin}\n{text}\n\n{end}{rest.partition(end)[2]}")
