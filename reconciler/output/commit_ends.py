"""Comment on the pull request that brought a commit's jobs: how each ended."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from urllib.parse import quote

from msgspec import Struct

from reconciler.output.document import COMMENT_LIMIT, Columns, Row, code, document, table, text
from reconciler.output.text import SHOWN_OF_SHA

_COLUMNS: Columns = (("job", "---"), ("end", "---"), ("", "---"), ("model", "---"), ("files", "---"))
_FAILED = re.compile(r"^<!-- failed: ([\w ,-]*) -->$", re.MULTILINE)
_REST = "The table is too long to show in full: `reconciler status` has the rest."


class CommitEnd(Struct, frozen=True):
    """End of one of a commit's jobs; all text is escaped where it is shown.

    Attributes:
        name: The name of its run; that of its manifest before one.
        word: The end in a word or two, or what the job waits for.
        why: The cause and the remedy, or the duration and the metrics.
        failed: True if it failed.
        open: True if it hasn't ended.
        url: The run's page; "" for none.
        model: The address where its model is in place (gs://…); "" for none.
        files: Its output folder (gs://…); "" for none.
    """

    name: str
    word: str
    why: str = ""
    failed: bool = False
    open: bool = False
    url: str = ""
    model: str = ""
    files: str = ""


def commit_ends_text(ends: Sequence[CommitEnd], sha: str, environment: str) -> str:
    """Return the comment in Markdown, the jobs that failed first."""
    ordered = sorted(ends, key=lambda end: (not end.failed, end.open))
    counts = Counter(end.word for end in ordered)
    summary = ", ".join(f"{number} {word}" for word, number in counts.items())
    top = f"### Training for {sha[:SHOWN_OF_SHA]} in {text(environment)}: {text(summary)}"
    rest = "\n\nThis comment shows the others once they have ended." if any(end.open for end in ends) else ""
    rows = [Row(_cells(end), "job") for end in ordered]
    failed = f"<!-- failed: {', '.join(end.name for end in ordered if end.failed)} -->"
    shown = document(f"{top}{rest}", [table("table", _COLUMNS, rows)], rest=_REST, limit=COMMENT_LIMIT)
    return f"{failed}\n{shown}"


def has_new_failure(ends: Sequence[CommitEnd], before: str) -> bool:
    """Return True if a job has failed that hadn't in an earlier comment's text."""
    listed = _FAILED.search(before)
    known = set(listed[1].split(", ")) if listed else set()
    return not {end.name for end in ends if end.failed} <= known


def _cells(end: CommitEnd) -> Sequence[str]:
    name = code(end.name)
    if end.url.startswith("https://"):
        name = f'<a href="{quote(end.url, safe=":/?&=%")}">{name}</a>'
    word = text(end.word)
    return (
        name,
        f"**{word}**" if end.failed else word,
        text(end.why),
        code(end.model) if end.model else "",
        code(end.files) if end.files else "",
    )
