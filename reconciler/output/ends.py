"""Table of the jobs of an apply in a job's summary: their actions and how they ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import quote

from reconciler.model.job import State
from reconciler.model.plan import Action, Change
from reconciler.output.document import Columns, Row, code, document, table, text
from reconciler.output.markdown import NO_LINKS, Links
from reconciler.planning.outcome import Status

_NAMES = ("job", "action", "result", "state", "why", "file")
_COLUMNS: Columns = tuple((name, "---") for name in _NAMES)
_REST = "The table is too long to show in full: the workflow run's log has the rest."


@dataclass(frozen=True, slots=True)
class End:
    """Job at the end of an apply.

    Attributes:
        change: Its change in the plan.
        status: The result of the change; None for a change without an action.
        state: The job's last known state; None without a job.
        reason: Why the change failed, or the job didn't succeed; "" for neither.
        url: The job's page; "" for none.
    """

    change: Change
    status: Status | None
    state: State | None
    reason: str = ""
    url: str = ""

    @property
    def is_bad(self) -> bool:
        """True if the change failed or was left out, or the job failed or was cancelled otherwise."""
        is_unsuccessful = self.state is State.FAILED or (
            self.state is State.CANCELLED and self.change.action is not Action.CANCEL
        )
        return self.status in (Status.FAILED, Status.SKIPPED) or is_unsuccessful


def ends_markdown(ends: Sequence[End], summary: str, limit: int | None, links: Links = NO_LINKS) -> str:
    """Return the table within a limit of bytes in UTF-8, those that need attention first.

    Args:
        ends: The jobs.
        summary: A line that counts them.
        limit: Bytes; None for no limit.
        links: The addresses of the manifests.
    """
    ordered = sorted(ends, key=lambda end: not end.is_bad)
    rows = [Row(_cells(end, links), _word(end)) for end in ordered]
    return document(f"### {text(summary)}", [table("table", _COLUMNS, rows)], rest=_REST, limit=limit)


def _cells(end: End, links: Links) -> tuple[str, ...]:
    change, word, state = end.change, _word(end), str(end.state or "")
    name = code(change.job_name)
    if end.url.startswith("https://"):
        name = f'<a href="{quote(end.url, safe=":/?&=%")}">{name}</a>'
    action = "" if change.action is Action.NONE else str(change.action)
    file = links.file(change, "") if change.path else ""
    # The job's state is what is wrong if its change was applied.
    if end.is_bad and end.status in (Status.APPLIED, None):
        state = f"**{state}**"
    elif end.is_bad:
        word = f"**{word}**"
    return name, action, word, state, text(end.reason), file


def _word(end: End) -> str:
    if end.change.action is Action.BLOCKED:
        return "blocked"
    return str(end.status or "")
