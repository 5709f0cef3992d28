"""What a change of manifests would mean, for a pull request's comment and for a job summary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

from reconciler.diagnostics import Problem
from reconciler.markdown import COMMENT_LIMIT, Piece, Section, code, document, fence, text
from reconciler.plan import Action, FieldChange
from reconciler.planning.proposal import Edit, Proposal, ProposedChange
from reconciler.planning.settings import decides
from reconciler.render import counted, field_diff, field_values, place

_FEW = 3
_COMMENT_REST = "**Not all of it fits here:** the workflow run's summary has more."
_SUMMARY_REST = "**Not all of it fits here:** the workflow run's artifact has all of it."
_OFFLINE = (
    "<sub>From the manifests alone: no service was asked what runs. `apply` shows the actual plan.</sub>"
)
_SHORT_COMMIT = 12


def proposal_markdown(proposal: Proposal, limit: int | None = None) -> str:
    """All that differs, the settings first, and what matters most of each; one line where nothing does.

    Where it doesn't fit, details are left out first and then rows, the least important ones; how many there
    are is always said.

    Args:
        limit: Bytes in UTF-8, at least 4,000; None for no limit.
    """
    shown = sorted((change for change in proposal.changes if change.edit is not Edit.UNCHANGED), key=_rank)
    if not (shown or proposal.problems or proposal.settings or proposal.notes):
        return f"No changes for {_between(proposal)}: {_counts(proposal.changes)}.{_of_base(proposal)}"
    return document(
        _top(proposal),
        [
            Section("settings", [Piece(_setting(field)) for field in proposal.settings], _SETTINGS, part=2),
            Section("problems", [Piece(_problem(problem)) for problem in proposal.problems], part=2),
            Section("table", _pieces(shown, _row), _TABLE, part=2),
            Section("details", _pieces(shown, _Details(shown)), spaced=True),
        ],
        _OFFLINE,
        rest=_COMMENT_REST if limit is not None and limit <= COMMENT_LIMIT else _SUMMARY_REST,
        limit=limit,
    )


_SETTINGS = "| setting | before | after | decides |\n|---|---|---|---|"
_TABLE = "| | job | why | accelerator-hours | file |\n|---|---|---|---:|---|"


def _rank(change: ProposedChange) -> int:
    if change.change.action is Action.BLOCKED:
        return 0
    if change.change.action is Action.CANCEL:
        return 1
    return 2 + [Edit.REMOVED, Edit.CHANGED, Edit.NEW].index(change.edit)


def _top(proposal: Proposal) -> str:
    lines = [f"### Plan for {_between(proposal)}", ""]
    if proposal.settings:
        what = ", ".join(dict.fromkeys(filter(None, (decides(field.pointer) for field in proposal.settings))))
        said = f"; they decide {what}" if what else ""
        lines += [f"**Settings change:** {len(proposal.settings):,} in {code('reconciler.yaml')}{said}.", ""]
    for note in proposal.notes:
        lines += [text(note), ""]
    if proposal.problems:
        wrong = counted(len({problem.path for problem in proposal.problems}), "file")
        problems = counted(len(proposal.problems), "problem")
        lines += [f"**{problems} in {wrong}:** nothing is applied until they are mended.", ""]
    if proposal.changes or not proposal.problems:
        lines += [f"{_totals(proposal.changes)}{_of_base(proposal)}", ""]
    return "\n".join(lines[:-1])


def _between(proposal: Proposal) -> str:
    return f"{code(proposal.target.environment)} against {code(proposal.base[:_SHORT_COMMIT])}"


def _of_base(proposal: Proposal) -> str:
    if not proposal.base_problems:
        return ""
    problems = counted(proposal.base_problems, "problem")
    return f" The base has {problems}: the jobs of its invalid manifests count as new."


def _totals(changes: Sequence[ProposedChange]) -> str:
    hours = (
        _before_after(*(sum(hours) for hours in zip(*map(_hours, changes), strict=True))) if changes else ""
    )
    return f"{_counts(changes)}." + (
        f" At most {hours} accelerator-hours if each job runs once." if hours else ""
    )


def _counts(changes: Sequence[ProposedChange]) -> str:
    edits = Counter(change.edit for change in changes)
    counts = [f"{edits[edit]:,} {edit}" for edit in Edit if edits[edit]]
    moved = sum(change.edit is Edit.UNCHANGED and bool(change.notes) for change in changes)
    blocked = sum(change.change.action is Action.BLOCKED for change in changes)
    more = [f"{moved:,} moved"] * bool(moved) + [f"**{blocked:,} blocked**"] * bool(blocked)
    return (", ".join(counts) or "no jobs") + (f" ({', '.join(more)})" if more else "")


def _hours(change: ProposedChange) -> tuple[float, float]:
    return change.hours_before, change.hours_after


def _before_after(before: float, after: float) -> str:
    shown = [f"{hours:,.1f}".removesuffix(".0") for hours in (before, after)]
    return " → ".join(dict.fromkeys(shown)) if before or after else ""


def _setting(field: FieldChange) -> str:
    before, after = map(code, field_values(field))
    return f"| {code(field.pointer)} | {before} | {after} | {decides(field.pointer)} |"


def _problem(problem: Problem) -> str:
    where = code(f"{problem.path}:{problem.line}:{problem.column}")
    field = f" ({code(problem.pointer)})" if problem.pointer else ""
    hint = f"<br>{text(' '.join(problem.hint.split()))}" if problem.hint else ""
    return f"- {where} {text(problem.message)}{field}{hint}"


def _pieces(changes: Sequence[ProposedChange], shown: Callable[[ProposedChange], str]) -> list[Piece]:
    pieces = [Piece(shown(change), _label(change)) for change in changes]
    return [piece for piece in pieces if piece.text]


def _label(change: ProposedChange) -> str:
    return "blocked" if change.change.action is Action.BLOCKED else str(change.edit)


def _row(change: ProposedChange) -> str:
    about, label = change.change, _label(change)
    label = f"**{label}**" if about.action is Action.BLOCKED else label
    hours = _before_after(*_hours(change))
    why = "" if about.reason == change.edit else text(about.reason)
    return f"| {label} | {code(about.base_name)} | {why} | {hours} | {code(place(about))} |"


class _Details:
    """What differs of one job, "" where the row says it all; open where there are few."""

    def __init__(self, shown: Sequence[ProposedChange]) -> None:
        self._open = " open" if len(shown) <= _FEW else ""

    def __call__(self, change: ProposedChange) -> str:
        if not (change.notes or change.change.fields or change.code_changed):
            return ""
        about = change.change
        what = [counted(len(about.fields), "field")] * bool(about.fields)
        what += ["the code"] * change.code_changed
        differs = f": {' and '.join(what)}" if what else ""
        blocks = [
            f"<details{self._open}><summary>{_label(change)} {code(about.base_name)}{differs}</summary>",
            f"{text(about.kind)}, run {code(about.job_name)}",
            "\n".join(
                [*["- the code changed"] * change.code_changed, *(f"- {text(n)}" for n in change.notes)]
            ),
            fence(field_diff(about), "diff") if about.fields else "",
            "</details>",
        ]
        return "\n\n".join(block for block in blocks if block)
