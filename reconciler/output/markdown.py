"""Markdown of a plan for GitHub, with text of others escaped and long documents shortened by whole pieces.

GitHub looks for mentions, references to issues and commits, and emoji in the rendered page. Escapes by number
or backslash are already resolved there, so a zero-width space breaks these texts. In code, GitHub only turns
addresses into links, and only those are broken. Fenced blocks show everything as it is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import quote

from reconciler.base.diagnostics import WARNING, Problem, counted
from reconciler.base.sanitize import one_line
from reconciler.model.cause import with_name
from reconciler.model.diff import Comparison, FieldChange
from reconciler.model.plan import Action, Change, Edit, Plan
from reconciler.output.review import diff_lines, field_values, spec_lines
from reconciler.output.text import (
    SHOWN_OF_SHA,
    file_lines,
    matters,
    notes_below,
    own_notes,
    place,
    problem_count,
    shared_notes,
    summary_line,
    target_text,
)
from reconciler.planning.comparison import decides

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
_COMMANDS = re.compile(r"`((?:reconciler|--)[\w /.=-]+)`")

_FEW = 3
_Columns = Sequence[tuple[str, str]]
_Bodies = Mapping[int, str]
_SETTINGS: _Columns = (("setting", "---"), ("before", "---"), ("after", "---"), ("decides", "---"))
_COLUMNS: _Columns = (
    ("", "---"),
    ("job", "---"),
    ("why", "---"),
    ("accelerator-hours", "---:"),
    ("file", "---"),
)
_OFFLINE = "From the manifests alone, without asking the service. `apply` shows the actual plan."


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


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses in a rendered plan; "" for none.

    Attributes:
        files: The address that a commit and a file's path follow.
        commit: The commit of the work tree's files.
        folder: The folder of the manifests' root in the repository, with a slash at its end.
        run: The page of the workflow run.
    """

    files: str = ""
    commit: str = ""
    folder: str = ""
    run: str = ""

    def file(self, change: Change, base: str) -> str:
        """Return the place of a change's manifest, as code with a link; a removed one is in `base`."""
        shown, commit = code(place(change)), base if change.edit is Edit.REMOVED else self.commit
        if not (self.files and commit and change.path) or change.path.startswith("/"):
            return shown
        line = f"#L{change.line}" if change.line else ""
        return f'<a href="{self.files}/{commit}/{quote(self.folder + change.path)}{line}">{shown}</a>'


NO_LINKS = Links()


def plan_markdown(plan: Plan, limit: int | None = SUMMARY_LIMIT, links: Links = NO_LINKS) -> str:
    """Return the plan within a limit of bytes in UTF-8, at least 4,000, the most important parts first.

    Details are left out before rows, and the least important rows first; the number left out is shown. A
    comparison without changes results in a single line.
    """
    return plan_documents(plan, [limit], links)[0]


def plan_documents(plan: Plan, limits: Iterable[int | None], links: Links = NO_LINKS) -> list[str]:
    """Return the plan as `plan_markdown` does, within each of several limits."""
    # The details take most of the time, and are the same in all documents.
    bodies = {id(change): _body(change) for change in plan.changes if matters(change)}
    if plan.comparison is None:
        return [_plan_markdown(plan, bodies, limit, links) for limit in limits]
    return [_comparison_markdown(plan, plan.comparison, bodies, limit, links) for limit in limits]


def _plan_markdown(plan: Plan, bodies: _Bodies, limit: int | None, links: Links) -> str:
    changes = [change for change in plan.changes if matters(change)]
    drift = [f"| {found.kind} | {code(found.job_name)} | {text(found.detail)} |" for found in plan.drift]
    return document(
        joined(f"### Plan for {text(target_text(plan.target))}", summary_line(plan), *_refusals(plan)),
        [
            *_sections("changes", changes, bodies, links),
            Section("drift", [*map(Piece, drift)], "| drift | job | detail |\n|---|---|---|"),
        ],
        f"<sub>{_run(links)}</sub>" if links.run else "",
        rest="The plan is too long to show in full: `reconciler plan` shows the rest.",
        limit=limit,
    )


def _comparison_markdown(
    plan: Plan, compared: Comparison, bodies: _Bodies, limit: int | None, links: Links
) -> str:
    shown = sorted((change for change in plan.changes if matters(change)), key=_rank)
    counts = _counts(plan.changes)
    between = f"{code(plan.target.environment)} against {code(compared.base[:SHOWN_OF_SHA])}"
    base_note = ""
    if compared.base_problems:
        found = counted(compared.base_problems, "problem")
        base_note = f" The base has {found}: the jobs of its invalid manifests count as new."
    if not (shown or compared.problems or compared.warnings or compared.settings or compared.notes):
        return f"No changes for {between}: {counts}.{base_note}"
    top = [f"### Plan for {between}", *_refusals(plan)]
    if compared.settings:
        effects = dict.fromkeys(filter(None, (decides(field.pointer) for field in compared.settings)))
        decided = f"; they affect {', '.join(effects)}" if effects else ""
        top.append(f"**Settings change:** {len(compared.settings):,} in {code('reconciler.yaml')}{decided}.")
    top += map(text, compared.notes)
    if compared.problems:
        fixed = "it is" if len(compared.problems) == 1 else "they are"
        top.append(f"**{problem_count(compared.problems)}.** Nothing is applied until {fixed} fixed.")
    if compared.warnings:
        top.append(f"**{problem_count(compared.warnings)}.** Apply doesn't stop at warnings.")
    # With problems and no valid changes, counts of zero would be misleading.
    if plan.changes or not compared.problems:
        hours = _hours(plan.changes)
        most = f" At most {hours} accelerator-hours if each job runs once." if hours else ""
        top.append(f"{counts}.{most}{base_note}")
    # Comments are shorter than summaries, and only the artifact is unlimited.
    is_comment = limit is not None and limit <= COMMENT_LIMIT
    elsewhere = "summary has more" if is_comment else "artifact has all of it"
    return document(
        joined(*top),
        [
            _table("settings", _SETTINGS, [(_setting(field), "") for field in compared.settings]),
            Section("problems", [Piece(_problem(problem)) for problem in compared.problems], part=2),
            Section("warnings", [Piece(_problem(warning)) for warning in compared.warnings], part=2),
            *_sections("table", shown, bodies, links, compared.base),
        ],
        f"<sub>{_OFFLINE}{' ' if links.run else ''}{_run(links)}</sub>",
        rest=f"**The plan is too long to show in full:** the workflow run's {elsewhere}.",
        limit=limit,
    )


def _refusals(plan: Plan) -> list[str]:
    refused = [f"**Apply would refuse this plan:** {text(refusal)}." for refusal in plan.refusals]
    return [*refused, text(plan.tree.note)] if plan.tree and plan.tree.note else refused


def _run(links: Links) -> str:
    return f'<a href="{links.run}">Workflow run</a>' if links.run else ""


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


def _setting(field: FieldChange) -> tuple[str, ...]:
    return code(field.pointer), *map(code, field_values(field)), decides(field.pointer)


def _problem(problem: Problem) -> str:
    where = code(f"{problem.path}:{problem.line}:{problem.column}")
    field = f" ({code(problem.pointer)})" if problem.pointer else ""
    hint = f"<br>{text(' '.join(problem.hint.split()))}" if problem.hint else ""
    level = "warning: " if problem.level == WARNING else ""
    return f"- {where} {level}{text(problem.message)}{field}{hint}"


def _label(change: Change) -> str:
    return "blocked" if change.action is Action.BLOCKED else str(change.edit or change.action)


def _sections(
    name: str, changes: Sequence[Change], rendered: _Bodies, links: Links, base: str = ""
) -> list[Section]:
    """Return the table of changes, and the details of those with a spec or differences."""
    shared = shared_notes(changes)
    bodies = [rendered[id(change)] for change in changes]
    rows = [
        (_row(change, links.file(change, base), [] if body else own_notes(change, shared)), _label(change))
        for change, body in zip(changes, bodies, strict=True)
    ]
    few = len(changes) <= _FEW
    details = [
        Piece(_details(change, body, own_notes(change, shared), few and not change.spec), _label(change))
        for change, body in zip(changes, bodies, strict=True)
        if body
    ]
    common = [Piece(f"- {text(note)}") for note in notes_below(shared)]
    return [
        _table(name, _COLUMNS, rows),
        Section("notes", common),
        Section("details", details, spaced=True),
    ]


def _row(change: Change, file: str, notes: Sequence[str]) -> tuple[str, ...]:
    label = f"**{_label(change)}**" if change.action is Action.BLOCKED else _label(change)
    # The label says already that a job is new or removed.
    said = re.fullmatch(rf"{change.edit}(?: \((.*)\))?", change.reason)
    reason = said[1] or "" if said else change.reason
    why = "; ".join([with_name(reason, change.base_name)] * bool(reason) + [*notes])
    name = change.base_name if change.edit else change.job_name
    return label, code(name), text(why), _hours([change]), file


def _table(
    name: str, columns: Sequence[tuple[str, str]], rows: Sequence[tuple[Sequence[str], str]]
) -> Section:
    """Return a table of rows, each with its kind, without the columns that are empty in all rows."""
    used = [number for number in range(len(columns)) if any(cells[number] for cells, _ in rows)]
    pieces = [Piece(_cells(cells[number] for number in used), kind) for cells, kind in rows]
    head = _cells(columns[number][0] for number in used)
    return Section(name, pieces, f"{head}\n|{'|'.join(columns[number][1] for number in used)}|", part=2)


def _cells(cells: Iterable[str]) -> str:
    return "|" + "".join(f" {cell} |" if cell else " |" for cell in cells)


def _body(change: Change) -> str:
    """Return the spec or the differences of a change; "" for none."""
    files = [f"- {code(path)} {counts}".rstrip() for path, counts in file_lines(change.files)]
    return joined(
        fence(spec, "yaml") if (spec := spec_lines(change)) else "",
        fence(lines, "diff") if (lines := diff_lines(change)) else "",
        "\n".join(files),
    )


def _details(change: Change, body: str, notes: Sequence[str], is_open: bool) -> str:
    run = f" · run {code(change.job_name)}" if change.edit else ""
    head = f"{code(change.base_name)} · {text(change.kind)}{run}"
    return joined(
        f"<details{' open' if is_open else ''}><summary>{head}</summary>",
        "\n".join(f"- {text(note)}" for note in notes),
        body,
        "</details>",
    )


def text(raw: str) -> str:
    """Return at most 500 characters of a text by others, escaped, as a line of Markdown or HTML.

    Commands of this tool between backticks become code.
    """
    parts = _COMMANDS.split(one_line(cut(raw)).strip())
    return "".join(code(part) if number % 2 else _escaped(part) for number, part in enumerate(parts))


def _escaped(line: str) -> str:
    line = _COMMITS.sub(_broken, _REFERENCES.sub(_BREAK, _ADDRESSES.sub(_BREAK, line)))
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
        # A very large piece is skipped alone, as smaller ones may fit; else the rest is less important.
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
