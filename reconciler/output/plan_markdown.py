"""Markdown of a plan for GitHub, for job summaries and comments on pull requests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from reconciler.base.diagnostics import MAX_QUOTED, Problem
from reconciler.base.sanitize import one_line
from reconciler.model.plan import Action, Change, Comparison, Edit, FieldChange, Plan
from reconciler.output.markdown import (
    COMMENT_LIMIT,
    SUMMARY_LIMIT,
    Piece,
    Section,
    code,
    cut,
    document,
    fence,
    joined,
    text,
)
from reconciler.output.text import (
    MAX_FIELDS,
    SHOWN_OF_SHA,
    counted,
    field_values,
    matters,
    more_fields,
    place,
    summary_line,
    target_text,
)
from reconciler.planning.proposal import decides


def plan_markdown(plan: Plan, limit: int | None = SUMMARY_LIMIT) -> str:
    """Return the plan within a limit, the most important parts first.

    Details are left out before rows, and the least important rows first; the number left out is shown.

    Args:
        plan: The plan; a comparison with a commit that has no changes results in a single line.
        limit: Bytes in UTF-8, at least 4,000; None for no limit.
    """
    if plan.comparison is not None:
        return _comparison_markdown(plan, plan.comparison, limit)
    changes = [change for change in plan.changes if matters(change)]
    rows = [
        f"| {change.action} | {code(change.job_name)} | {text(change.reason)} | {code(place(change))} |"
        for change in changes
    ]
    drift = [f"| {found.kind} | {code(found.job_name)} | {text(found.detail)} |" for found in plan.drift]
    details = [
        f"{code(change.job_name)}\n\n{fence(_field_diff(change), 'diff')}"
        for change in changes
        if change.fields
    ]
    return document(
        f"### Plan for {text(target_text(plan.target))}\n\n{summary_line(plan)}",
        [
            Section("changes", [*map(Piece, rows)], "| | job | why | file |\n|---|---|---|---|", part=2),
            Section("drift", [*map(Piece, drift)], "| drift | job | detail |\n|---|---|---|"),
            Section("details", [*map(Piece, details)], spaced=True),
        ],
        rest="Not all of it fits here: `reconciler plan` tells the rest.",
        limit=limit,
    )


_FEW = 3
_SETTINGS = "| setting | before | after | decides |\n|---|---|---|---|"
_TABLE = "| | job | why | accelerator-hours | file |\n|---|---|---|---:|---|"
_OFFLINE = (
    "<sub>From the manifests alone: no service was asked what runs. `apply` shows the actual plan.</sub>"
)


def _comparison_markdown(plan: Plan, compared: Comparison, limit: int | None) -> str:
    shown = sorted((change for change in plan.changes if matters(change)), key=_rank)
    counts = _counts(plan.changes)
    between = f"{code(plan.target.environment)} against {code(compared.base[:SHOWN_OF_SHA])}"
    base_note = ""
    if compared.base_problems:
        found = counted(compared.base_problems, "problem")
        base_note = f" The base has {found}: the jobs of its invalid manifests count as new."
    if not (shown or compared.problems or compared.settings or compared.notes):
        return f"No changes for {between}: {counts}.{base_note}"
    top = [f"### Plan for {between}"]
    if compared.settings:
        effects = dict.fromkeys(filter(None, (decides(field.pointer) for field in compared.settings)))
        decided = f"; they decide {', '.join(effects)}" if effects else ""
        top.append(f"**Settings change:** {len(compared.settings):,} in {code('reconciler.yaml')}{decided}.")
    top += map(text, compared.notes)
    if compared.problems:
        files = counted(len({problem.path for problem in compared.problems}), "file")
        found = counted(len(compared.problems), "problem")
        top.append(f"**{found} in {files}:** nothing is applied until they are mended.")
    # With problems and no valid changes, counts of zero would be misleading.
    if plan.changes or not compared.problems:
        hours = _hours(plan.changes)
        most = f" At most {hours} accelerator-hours if each job runs once." if hours else ""
        top.append(f"{counts}.{most}{base_note}")
    details = [Piece(_details(c, is_open=len(shown) <= _FEW), _label(c)) for c in shown if _differs(c)]
    # Comments are shorter than summaries, and only the artifact is unlimited.
    is_comment = limit is not None and limit <= COMMENT_LIMIT
    elsewhere = "summary has more" if is_comment else "artifact has all of it"
    return document(
        "\n\n".join(top),
        [
            Section("settings", [Piece(_setting(field)) for field in compared.settings], _SETTINGS, part=2),
            Section("problems", [Piece(_problem(problem)) for problem in compared.problems], part=2),
            Section("table", [Piece(_row(change), _label(change)) for change in shown], _TABLE, part=2),
            Section("details", details, spaced=True),
        ],
        _OFFLINE,
        rest=f"**Not all of it fits here:** the workflow run's {elsewhere}.",
        limit=limit,
    )


def _rank(change: Change) -> int:
    # The document leaves out the last rows first, so changes that need a person's attention come first.
    if change.action in (Action.BLOCKED, Action.CANCEL):
        return [Action.BLOCKED, Action.CANCEL].index(change.action)
    return 2 + [Edit.REMOVED, Edit.CHANGED, Edit.NEW].index(change.edit or Edit.NEW)


def _counts(changes: Sequence[Change]) -> str:
    edits = Counter(change.edit for change in changes)
    counts = [f"{edits[edit]:,} {edit}" for edit in Edit if edits[edit]]
    moved = sum(change.edit is Edit.UNCHANGED and bool(change.notes) for change in changes)
    blocked = sum(change.action is Action.BLOCKED for change in changes)
    more = [f"{moved:,} moved"] * bool(moved) + [f"**{blocked:,} blocked**"] * bool(blocked)
    return (", ".join(counts) or "no jobs") + (f" ({', '.join(more)})" if more else "")


def _hours(changes: Sequence[Change]) -> str:
    """Return the sums of the hours before and after, a single sum if they are equal, or "" for none."""
    sums = [sum(change.hours[side] for change in changes) for side in (0, 1)]
    shown = [f"{hours:,.1f}".removesuffix(".0") for hours in sums]
    return " → ".join(dict.fromkeys(shown)) if any(sums) else ""


def _setting(field: FieldChange) -> str:
    before, after = map(code, field_values(field))
    return f"| {code(field.pointer)} | {before} | {after} | {decides(field.pointer)} |"


def _problem(problem: Problem) -> str:
    where = code(f"{problem.path}:{problem.line}:{problem.column}")
    field = f" ({code(problem.pointer)})" if problem.pointer else ""
    hint = f"<br>{text(' '.join(problem.hint.split()))}" if problem.hint else ""
    return f"- {where} {text(problem.message)}{field}{hint}"


def _label(change: Change) -> str:
    return "blocked" if change.action is Action.BLOCKED else str(change.edit)


def _row(change: Change) -> str:
    label = "**blocked**" if change.action is Action.BLOCKED else _label(change)
    why = "" if change.reason == change.edit else text(change.reason)
    return f"| {label} | {code(change.base_name)} | {why} | {_hours([change])} | {code(place(change))} |"


def _differs(change: Change) -> bool:
    """Return True if a change has more to show than its row."""
    return bool(change.notes or change.fields or change.code_changed)


def _details(change: Change, *, is_open: bool) -> str:
    differing = [counted(len(change.fields), "field")] * bool(change.fields)
    differing += ["the code"] * change.code_changed
    head = f"{_label(change)} {code(change.base_name)}" + (
        f": {' and '.join(differing)}" if differing else ""
    )
    notes = ["- the code changed"] * change.code_changed + [f"- {text(note)}" for note in change.notes]
    return joined(
        f"<details{' open' if is_open else ''}><summary>{head}</summary>",
        f"{text(change.kind)}, run {code(change.job_name)}",
        "\n".join(notes),
        fence(_field_diff(change), "diff") if change.fields else "",
        "</details>",
    )


def _field_diff(change: Change) -> list[str]:
    """Return at most 50 field differences as lines of a diff."""
    lines = []
    for field in change.fields[:MAX_FIELDS]:
        before, after = field_values(field)
        pointer = cut(field.pointer, MAX_QUOTED)
        lines += [f"- {pointer}: {before}"] * (field.before is not None)
        lines += [f"+ {pointer}: {after}"] * (field.after is not None)
    return [one_line(line) for line in (*lines, *more_fields(change))]
