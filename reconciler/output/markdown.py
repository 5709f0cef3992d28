"""Markdown of a plan for GitHub: a pull request's comment, and the summary of a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import quote

from reconciler.base.diagnostics import Problem, counted
from reconciler.base.sanitize import one_line
from reconciler.manifests.warnings import WarningGroup, problem_groups
from reconciler.model.diff import Comparison, FieldChange
from reconciler.model.plan import Action, Change, Edit, Plan
from reconciler.output.document import (
    COMMENT_LIMIT,
    SUMMARY_LIMIT,
    Columns,
    Piece,
    Row,
    Section,
    code,
    document,
    fence,
    joined,
    size_of,
    table,
    text,
)
from reconciler.output.groups import Group, by_importance, grouped
from reconciler.output.problems import others_text, problem_count
from reconciler.output.review import diff_lines, field_values, spec_lines
from reconciler.output.text import (
    SHOWN_OF_SHA,
    WAY_OUT,
    cost_sentences,
    file_lines,
    hours_text,
    matters,
    new_buckets_line,
    notes_below,
    own_notes,
    place,
    shared_notes,
    summary_line,
    target_text,
    way_out,
    writes_to,
)
from reconciler.output.wording.notes import note_text, setting_effect
from reconciler.output.wording.plan import reason_beside
from reconciler.output.wording.tree import tree_note
from reconciler.planning.planner import SUBMISSIONS

_FEW = 3
_Bodies = Mapping[int, str]
_SETTINGS: Columns = (("setting", "---"), ("before", "---"), ("after", "---"), ("decides", "---"))
_COLUMNS: Columns = (
    ("", "---"),
    ("job", "---"),
    ("why", "---"),
    ("accelerator-hours", "---:"),
    ("file", "---"),
)
_OFFLINE = "From the manifests alone, without asking the service. `apply` shows the actual plan."


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

    def to_commit(self, sha: str) -> str:
        """Return the short name of a commit, as code with a link."""
        shown, repository = code(sha[:SHOWN_OF_SHA]), self.files.removesuffix("/blob")
        return f'<a href="{repository}/commit/{sha}">{shown}</a>' if repository else shown

    def file(self, change: Change, base: str, shown: str = "") -> str:
        """Return the place of a change's manifest, or the text, as code with a link.

        A removed manifest is in the commit `base`.
        """
        shown, commit = code(shown or place(change)), base if change.edit is Edit.REMOVED else self.commit
        if not (self.files and commit and change.path) or change.path.startswith("/"):
            return shown
        line = f"#L{change.line}" if change.line else ""
        return f'<a href="{self.files}/{commit}/{quote(self.folder + change.path)}{line}">{shown}</a>'


NO_LINKS = Links()


@dataclass(frozen=True, slots=True)
class Merge:
    """Merge that a comparison is for.

    Attributes:
        head: The commit that is merged, 40 hex digits.
        base: The branch that it is merged into.
        applied: The branch that is applied; "" if unknown.
        time: The time of the plan.
    """

    head: str
    base: str
    applied: str
    time: datetime

    @property
    def is_applied(self) -> bool:
        """True if the branch is applied, or if it is unknown which one is."""
        return self.applied in ("", self.base)

    def line(self, links: Links) -> str:
        """Return the line that names all of it."""
        base, time = code(self.base), self.time.astimezone(UTC)
        said = f"{links.to_commit(self.head)} into {base}, planned {time:%Y-%m-%d %H:%M} UTC."
        if self.is_applied:
            return said
        only = f"**Only {code(self.applied)} is applied:** a merge into {base} starts and cancels no job."
        return f"{said} {only}"


def plan_markdown(
    plan: Plan, limit: int | None = SUMMARY_LIMIT, links: Links = NO_LINKS, merge: Merge | None = None
) -> str:
    """Return the plan within a limit of bytes in UTF-8, at least 4,000, the most important parts first.

    Details are left out before rows, and the least important rows first; the number left out is shown. A
    comparison without changes results in a single line.
    """
    return plan_documents(plan, [limit], links, merge)[0]


def plan_documents(
    plan: Plan, limits: Iterable[int | None], links: Links = NO_LINKS, merge: Merge | None = None
) -> list[str]:
    """Return the plan as `plan_markdown` does, within each of several limits."""
    # The details take most of the time, and are the same in all documents.
    bodies = {id(change): _body(change) for change in plan.changes if matters(change)}
    if plan.comparison is None:
        return [_plan_markdown(plan, bodies, limit, links) for limit in limits]
    return [_comparison_markdown(plan, plan.comparison, bodies, limit, links, merge) for limit in limits]


def changes_nothing(plan: Plan) -> bool:
    """Return True if a comparison has no changed or moved job, no changed setting and no problem."""
    compared = plan.comparison
    return not (
        compared is None
        or compared.problems
        or compared.settings
        or compared.notes
        or any(matters(change) or change.notes for change in plan.changes)
    )


def problems_markdown(message: str, problems: Sequence[Problem], limit: int | None) -> str:
    """Return a list of problems within a limit of bytes in UTF-8, under a message."""
    section = Section("problems", [Piece(_problem(problem)) for problem in problems])
    rest = "The workflow run's log has the rest."
    return document(f"### {text(message)}", [section], rest=rest, limit=limit)


def _plan_markdown(plan: Plan, bodies: _Bodies, limit: int | None, links: Links) -> str:
    changes = [change for change in plan.changes if matters(change)]
    drift_rows = [
        f"| {drift.kind} | {code(drift.job_name)} | {text(note_text(drift.detail))} |" for drift in plan.drift
    ]
    return document(
        joined(f"### Plan for {text(target_text(plan.target))}", summary_line(plan), *_refusals(plan)),
        [
            *_sections("changes", grouped(changes), bodies, links, limit=limit),
            Section("drift", [*map(Piece, drift_rows)], "| drift | job | detail |\n|---|---|---|"),
        ],
        f"<sub>{_run(links)}</sub>" if links.run else "",
        rest="The plan is too long to show in full: `reconciler plan` shows the rest.",
        limit=limit,
    )


def _comparison_markdown(
    plan: Plan,
    compared: Comparison,
    bodies: _Bodies,
    limit: int | None,
    links: Links,
    merge: Merge | None,
) -> str:
    shown = by_importance(grouped([change for change in plan.changes if matters(change)]))
    counts = _counts(plan.changes)
    between = f"{code(plan.target.environment)} against {code(compared.base[:SHOWN_OF_SHA])}"
    first = merge.line(links) if merge else ""
    base_note = ""
    if compared.base_problems:
        problems = counted(compared.base_problems, "problem")
        base_note = f" The base has {problems}: the jobs of its invalid manifests count as new."
    if not (shown or compared.problems or compared.warnings or compared.settings or compared.notes):
        return joined(first, f"No changes for {between}: {counts}.{base_note}")
    top = [first, f"### Plan for {between}", *_refusals(plan)]
    if compared.settings:
        effects = dict.fromkeys(filter(None, (setting_effect(field.pointer) for field in compared.settings)))
        decided = f"; affected: {', '.join(effects)}" if effects else ""
        top.append(f"**Settings change:** {len(compared.settings):,} in {code('reconciler.yaml')}{decided}.")
    top += map(text, compared.notes)
    if compared.problems:
        fixed = "it is" if len(compared.problems) == 1 else "they are"
        top.append(f"**{problem_count(compared.problems)}.** Nothing is applied until {fixed} fixed.")
    if compared.warnings:
        top.append(f"**{problem_count(compared.warnings)}.** Apply doesn't stop at warnings.")
    # With problems and no valid changes, counts of zero would be misleading.
    if plan.changes or not compared.problems:
        when = "Merging" if merge is None or merge.is_applied else f"Once it is in {merge.applied}, apply"
        left_out = ["Jobs of invalid manifests are not counted."] * bool(compared.problems)
        costs = [text(said) for said in cost_sentences(plan, when)]
        top.append(" ".join([f"{counts}.{base_note}", *left_out]))
        top += [f"**{costs[0]}** {' '.join(costs[1:])}".rstrip()] if costs else []
    # Comments are shorter than summaries, and only the artifact is unlimited.
    is_comment = limit is not None and limit <= COMMENT_LIMIT
    elsewhere = "summary has more" if is_comment else "artifact has all of it"
    return document(
        joined(*top),
        [
            table("settings", _SETTINGS, [Row(_setting(field)) for field in compared.settings]),
            Section("problems", [Piece(_problem(problem)) for problem in compared.problems], part=2),
            Section(
                "warnings", [Piece(_warning(group)) for group in problem_groups(compared.warnings)], part=2
            ),
            *_sections("table", shown, bodies, links, compared.base, limit),
        ],
        f"<sub>{_OFFLINE}{' ' if links.run else ''}{_run(links)}</sub>",
        rest=f"**The plan is too long to show in full:** the workflow run's {elsewhere}.",
        limit=limit,
    )


def _refusals(plan: Plan) -> list[str]:
    refused = [f"**Apply would refuse this plan:** {text(refusal)}." for refusal in plan.refusals]
    if raised := way_out(plan):
        refused += [text(WAY_OUT), fence([*map(one_line, raised)], "yaml")]
    if plan.new_buckets:
        refused.append(text(new_buckets_line(plan)))
    return [*refused, text(note)] if plan.tree and (note := tree_note(plan.tree)) else refused


def _run(links: Links) -> str:
    return f'<a href="{links.run}">Workflow run</a>' if links.run else ""


def _counts(changes: Sequence[Change]) -> str:
    edits = Counter(change.edit for change in changes)
    counts = [f"{edits[edit]:,} {edit}" for edit in Edit if edits[edit]]
    moved = sum(change.edit is Edit.UNCHANGED and bool(change.notes) for change in changes)
    blocked = sum(change.action is Action.BLOCKED for change in changes)
    more = [f"{moved:,} moved"] * bool(moved) + [f"**{blocked:,} blocked**"] * bool(blocked)
    return (", ".join(counts) or "no jobs") + (f" ({', '.join(more)})" if more else "")


def _hours(group: Group) -> str:
    """Return the hours that the submissions of a group add to the plan's; "" for none."""
    hours = sum(change.hours[1] for change in group if change.action in SUBMISSIONS)
    return hours_text(hours) if hours else ""


def _setting(field: FieldChange) -> tuple[str, ...]:
    return code(field.pointer), *map(code, field_values(field)), setting_effect(field.pointer)


def _problem(problem: Problem) -> str:
    return _warning(WarningGroup((problem,)))


def _warning(group: WarningGroup) -> str:
    problem = group.first[0]
    field = f" ({code(problem.pointer)})" if problem.pointer else ""
    level, kind = ("warning: ", f" {code(problem.kind)}") if problem.kind else ("", "")
    others = others_text(group, _where)
    lines = f"{level}{text(problem.message)}{field}{kind}", others, text(" ".join(problem.hint.split()))
    return f"- {_where(problem)} {'<br>'.join(filter(None, lines))}"


def _where(problem: Problem) -> str:
    return code(f"{problem.path}:{problem.line}:{problem.column}")


def _label(change: Change) -> str:
    return "blocked" if change.action is Action.BLOCKED else str(change.edit or change.action)


def _sections(
    name: str,
    groups: Sequence[Group],
    rendered: _Bodies,
    links: Links,
    base: str = "",
    limit: int | None = None,
) -> list[Section]:
    """Return the table of changes, and the details of those with a spec or differences."""
    shared = shared_notes(change for group in groups for change in group)
    rows, details = list[Row](), list[Piece]()
    for group in groups:
        first, label = group[0], _label(group[0])
        body = _common_body([rendered[id(change)] for change in group], first)
        notes = own_notes(first, shared)
        cells = _row(group, links, base, [] if body else notes, limit)
        rows.append(Row(cells, label, len(group)))
        if body:
            is_open = len(details) < _FEW and not first.spec
            details.append(Piece(_details(group, body, notes, is_open), label, len(group)))
    common = [Piece(f"- {text(note)}") for note in notes_below(shared)]
    return [
        table(name, _COLUMNS, rows),
        Section("notes", common),
        Section("details", details, spaced=True),
    ]


def _row(group: Group, links: Links, base: str, notes: Sequence[str], limit: int | None) -> tuple[str, ...]:
    change, names = group[0], [one.base_name if one.edit else one.job_name for one in group]
    label = f"**{_label(change)}**" if change.action is Action.BLOCKED else _label(change)
    # The label says already that a job is new or removed.
    why = "; ".join(filter(None, [reason_beside(change), *notes]))
    if len(group) == 1:
        name, file = code(names[0]), links.file(change, base)
    else:
        linked = [links.file(one, base, shown) for one, shown in zip(group, names, strict=True)]
        name, file = _folded(linked, limit), ""
    return label, name, text(why), _hours(group), file


def _folded(names: Sequence[str], limit: int | None) -> str:
    """Return the names as a folded list, which takes at most a quarter of a limited document."""
    shown, size = list[str](), 0
    for name in names:
        size += size_of(name)
        if limit is not None and size > limit // 4:
            shown.append(f"… and {len(names) - len(shown):,} more")
            break
        shown.append(name)
    return f"<details><summary>{counted(len(names), 'job')}</summary>{'<br>'.join(shown)}</details>"


def _body(change: Change) -> str:
    """Return the spec or the differences of a change; "" for none."""
    return joined(
        fence(spec, "yaml") if (spec := spec_lines(change)) else "",
        fence(lines, "diff") if (lines := diff_lines(change)) else "",
        _files(change),
    )


def _files(change: Change) -> str:
    return "\n".join(f"- {code(path)} {counts}".rstrip() for path, counts in file_lines(change.files))


def _common_body(bodies: Sequence[str], change: Change) -> str:
    """Return the body of a group; its fields if the lines around them differ from job to job."""
    if len(set(bodies)) == 1:
        return bodies[0]
    lines = [line for field in change.fields for line in _field_lines(field)]
    return joined(fence(lines, "diff"), _files(change))


def _field_lines(field: FieldChange) -> Iterator[str]:
    yield one_line(f"  {field.pointer}")
    for sign, value, shown in zip("-+", (field.before, field.after), field_values(field), strict=True):
        if value is not None:
            yield one_line(f"{sign} {shown}")


def _details(group: Group, body: str, notes: Sequence[str], is_open: bool) -> str:
    change, more = group[0], len(group) - 1
    run = f" · run {code(change.job_name)}" if change.edit else ""
    same = f" and {counted(more, 'more job')} with the same change" if more else ""
    folder = [writes_to(change)] if change.output and change.spec is None and not more else []
    head = f"{code(change.base_name)}{same} · {text(change.kind)}{'' if more else run}"
    return joined(
        f"<details{' open' if is_open else ''}><summary>{head}</summary>",
        "\n".join(f"- {text(note)}" for note in (*folder, *notes)),
        body,
        "</details>",
    )
