"""Markdown of a plan for GitHub, with text of others escaped and long documents shortened by whole pieces.

GitHub looks for mentions, references to issues and commits, and emoji in the rendered page. Escapes by number
or backslash are already resolved there, so a zero-width space breaks these texts. In code, GitHub only turns
addresses into links, and only those are broken. Fenced blocks show everything as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from reconciler.base.diagnostics import MAX_QUOTED, WARNING, Problem, counted
from reconciler.base.sanitize import one_line
from reconciler.model.plan import Action, Change, Comparison, Edit, FieldChange, Plan
from reconciler.output.text import (
    MAX_FIELDS,
    SHOWN_OF_SHA,
    field_values,
    matters,
    more_fields,
    place,
    problem_count,
    summary_line,
    target_text,
)
from reconciler.planning.proposal import decides

SUMMARY_LIMIT = 900_000
"""Bytes of a job summary: GitHub rejects a summary above 1 MiB."""

COMMENT_LIMIT = 60_000
"""Bytes of a comment. GitHub accepts 65,536 characters; a limit in bytes holds however it counts them."""

LONGEST = 500
"""Shown characters of a text."""

# A zero-width space. `one_line` removes it from text of others, so a break is always ours.
_BREAK = "\u200b"
_ADDRESSES = re.compile(r"(?<=@)(?=\S)|(?<=:)(?=/)|(?<=www)(?=\.)|(?=\$)|(?<=\$)", re.IGNORECASE)
_REFERENCES = re.compile(r"(?<=[#:])(?=[^\s/])|(?<=\bgh)(?=-)", re.IGNORECASE)
_COMMITS = re.compile(r"(?<![0-9a-z])[0-9a-f]{7,}(?![0-9a-z])", re.IGNORECASE)
_LIVE = re.compile(r"(?<=[A-Za-z0-9])[-._/](?=[A-Za-z0-9])|([^\w ,;(]|_)")

_FEW = 3
_SETTINGS = "| setting | before | after | decides |\n|---|---|---|---|"
_TABLE = "| | job | why | accelerator-hours | file |\n|---|---|---|---:|---|"
_OFFLINE = (
    "<sub>From the manifests alone: no service was asked what runs. `apply` shows the actual plan.</sub>"
)


@dataclass(frozen=True, slots=True)
class Piece:
    """Lines that are shown or left out together; `kind` names them in the count of left out pieces."""

    text: str
    kind: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """A list of similar pieces, the most important first.

    Attributes:
        name: The name of the pieces, for the line that counts those left out.
        pieces: Without the end of their last line.
        head: The lines before the pieces.
        part: The guaranteed share of a limited document, in proportion to the other sections'; the section
            also gets the room that they don't need.
        spaced: True for blank lines between the pieces.
    """

    name: str
    pieces: Sequence[Piece]
    head: str = ""
    part: int = 1
    spaced: bool = False


def plan_markdown(plan: Plan, limit: int | None = SUMMARY_LIMIT) -> str:
    """Return the plan within a limit of bytes in UTF-8, at least 4,000, the most important parts first.

    Details are left out before rows, and the least important rows first; the number left out is shown. A
    comparison without changes results in a single line.
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


def _comparison_markdown(plan: Plan, compared: Comparison, limit: int | None) -> str:
    shown = sorted((change for change in plan.changes if matters(change)), key=_rank)
    counts = _counts(plan.changes)
    between = f"{code(plan.target.environment)} against {code(compared.base[:SHOWN_OF_SHA])}"
    base_note = ""
    if compared.base_problems:
        found = counted(compared.base_problems, "problem")
        base_note = f" The base has {found}: the jobs of its invalid manifests count as new."
    if not (shown or compared.problems or compared.warnings or compared.settings or compared.notes):
        return f"No changes for {between}: {counts}.{base_note}"
    top = [f"### Plan for {between}"]
    if compared.settings:
        effects = dict.fromkeys(filter(None, (decides(field.pointer) for field in compared.settings)))
        decided = f"; they decide {', '.join(effects)}" if effects else ""
        top.append(f"**Settings change:** {len(compared.settings):,} in {code('reconciler.yaml')}{decided}.")
    top += map(text, compared.notes)
    if compared.problems:
        top.append(f"**{problem_count(compared.problems)}:** nothing is applied until they are mended.")
    if compared.warnings:
        top.append(f"**{problem_count(compared.warnings)}:** what is probably a mistake is applied as it is.")
    # With problems and no valid changes, counts of zero would be misleading.
    if plan.changes or not compared.problems:
        hours = _hours(plan.changes)
        most = f" At most {hours} accelerator-hours if each job runs once." if hours else ""
        top.append(f"{counts}.{most}{base_note}")
    # Of the other changes, the row shows everything.
    differing = [change for change in shown if change.notes or change.fields or change.code_changed]
    details = [Piece(_details(c, is_open=len(shown) <= _FEW), _label(c)) for c in differing]
    # Comments are shorter than summaries, and only the artifact is unlimited.
    is_comment = limit is not None and limit <= COMMENT_LIMIT
    elsewhere = "summary has more" if is_comment else "artifact has all of it"
    return document(
        "\n\n".join(top),
        [
            Section("settings", [Piece(_setting(field)) for field in compared.settings], _SETTINGS, part=2),
            Section("problems", [Piece(_problem(problem)) for problem in compared.problems], part=2),
            Section("warnings", [Piece(_problem(warning)) for warning in compared.warnings], part=2),
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
    level = "warning: " if problem.level == WARNING else ""
    return f"- {where} {level}{text(problem.message)}{field}{hint}"


def _label(change: Change) -> str:
    return "blocked" if change.action is Action.BLOCKED else str(change.edit)


def _row(change: Change) -> str:
    label = "**blocked**" if change.action is Action.BLOCKED else _label(change)
    why = "" if change.reason == change.edit else text(change.reason)
    return f"| {label} | {code(change.base_name)} | {why} | {_hours([change])} | {code(place(change))} |"


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


def text(raw: str) -> str:
    """Return at most 500 characters of a text by others, escaped, as a line of Markdown or HTML."""
    line = _ADDRESSES.sub(_BREAK, one_line(cut(raw)).strip())
    line = _COMMITS.sub(_broken, _REFERENCES.sub(_BREAK, line))
    return _LIVE.sub(_by_number, line)


def code(raw: str) -> str:
    """Return at most 500 characters of a name or path by others, escaped, as code."""
    return f"<code>{_LIVE.sub(_by_number, _ADDRESSES.sub(_BREAK, one_line(cut(raw))))}</code>"


def fence(lines: Sequence[str], language: str = "") -> str:
    """Return a fenced block; its fence is longer than any backticks in the lines, so they can't close it."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    ticks = "`" * max(3, longest + 1)
    return "\n".join([f"{ticks}{language}", *lines, ticks])


def cut(raw: str, longest: int = LONGEST) -> str:
    """Return a text of at most `longest` characters, with an ellipsis if it was longer."""
    return raw if len(raw) <= longest else raw[: longest - 1] + "…"


def document(top: str, sections: Sequence[Section], bottom: str = "", *, rest: str, limit: int | None) -> str:
    """Return the document, with as many pieces as fit; each section counts the pieces that were left out.

    Args:
        top: The text before the sections; always shown, like `bottom`.
        rest: A sentence on where to find the pieces that were left out; shown below `top`.
        limit: Bytes in UTF-8, including the end of the last line; None for no limit. It must be enough for
            `top`, `bottom`, `rest` and the counts.
    """
    sections = [section for section in sections if section.pieces]
    whole = joined(top, *(_section(section, section.pieces) for section in sections), bottom)
    if limit is None or _size(whole) < limit:
        return whole
    # The counts are longest in a document without any pieces, so this size is an upper bound.
    none = joined(top, rest, *(_section(section, ()) for section in sections), bottom)
    shown = _shared(sections, limit - 1 - _size(none))
    return joined(top, rest, *map(_section, sections, shown), bottom)


def _shared(sections: Sequence[Section], room: int) -> Iterator[Sequence[Piece]]:
    """Yield the pieces that fit, section by section."""
    needs = [sum(_cost(section, piece) for piece in section.pieces) for section in sections]
    for number, section in enumerate(sections):
        parts = sum(after.part for after in sections[number:])
        # Its share, or more if the sections after it need less than theirs.
        available = max(room * section.part // parts, room - sum(needs[number + 1 :]))
        shown = _first(section, available)
        room -= sum(_cost(section, piece) for piece in shown)
        yield shown


def _first(section: Section, room: int) -> Sequence[Piece]:
    """Return the first pieces that fit."""
    shown, left = [], room
    for piece in section.pieces:
        cost = _cost(section, piece)
        if cost <= left:
            shown.append(piece)
            left -= cost
        # A very large piece is skipped; after an ordinary one, the rest is less important and left out.
        elif cost <= room // 4:
            break
    return shown


def _section(section: Section, shown: Sequence[Piece]) -> str:
    left = Counter(piece.kind for piece in section.pieces)
    left.subtract(piece.kind for piece in shown)
    counts = ", ".join(f"{number:,} {kind}".rstrip() for kind, number in left.items() if number)
    between = "\n\n" if section.spaced else "\n"
    listed = between.join([section.head] * bool(section.head) + [piece.text for piece in shown])
    return joined(listed, f"*Not shown of the {section.name}: {counts}.*" if counts else "")


def _cost(section: Section, piece: Piece) -> int:
    return _size(piece.text) + (2 if section.spaced else 1)


def joined(*blocks: str) -> str:
    """Return the blocks that have text, with blank lines between them."""
    return "\n\n".join(block for block in blocks if block)


def _size(shown: str) -> int:
    return len(shown.encode())


def _broken(commit: re.Match[str]) -> str:
    # GitHub links 7 or more hexadecimal digits as a commit.
    return _BREAK.join(re.findall(".{1,6}", commit[0]))


def _by_number(live: re.Match[str]) -> str:
    return f"&#{ord(live[1])};" if live[1] else live[0]
