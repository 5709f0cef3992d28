"""Plan and outcomes as text for people; `markdown` serves GitHub, and `json` scripts.

All text from manifests and services goes through `sanitize`, so that it can't act on a terminal or on a
workflow's log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import ceil
from textwrap import wrap
from typing import TYPE_CHECKING

from reconciler.base.diagnostics import counted
from reconciler.base.sanitize import one_line
from reconciler.model.job import State
from reconciler.model.plan import Action, Change, Edit, NotDone, Plan, Target
from reconciler.model.reason import Note, ReasonCode, because
from reconciler.output.json import summary
from reconciler.output.problems import problem_count
from reconciler.output.review import diff_lines, field_values, spec_lines, yaml_lines
from reconciler.output.terminal import Paint, painter, width_of
from reconciler.output.wording.cause import cause_label
from reconciler.output.wording.notes import note_text, setting_effect
from reconciler.output.wording.plan import change_text, names_edit, reason_text
from reconciler.output.wording.tree import tree_note
from reconciler.planning.outcome import Outcome, Status

if TYPE_CHECKING:
    from reconciler.model.diff import Comparison, FieldChange, FileChange

MAX_FIELDS = 50
MAX_FILES = 20
"""Shown files of a job's code."""
MAX_DETAILED = 100
"""Jobs of a plan whose specs or differences the terminal shows."""
SHOWN_OF_SHA = 12
_LEAST_ROOM = 40  # columns of a reason
_NAMED = 5  # jobs in a sentence
_SHORT = 4  # lines of a change; blank lines surround longer ones
_SIGNS = {
    Action.SUBMIT: "+",
    Action.RETRY: "↻",
    Action.CANCEL: "-",
    Action.PUBLISH: "^",
    Action.BLOCKED: "!",
    Action.NONE: " ",
}


def plan_text(plan: Plan, *, verbose: bool = False, colour: bool = False, width: int | None = None) -> str:
    """Return the plan for a terminal, with the unchanged jobs only if `verbose`.

    Of a comparison's problems, only the number is included. If a job's first line is wider than `width`
    columns, its manifest's place moves to the next line.
    """
    paint = painter(colour=colour)
    compared = plan.comparison
    shown = [change for change in plan.changes if verbose or matters(change)]
    head = f"Plan for {target_text(plan.target)}"
    lines = [paint("head", head), ""]
    if compared is not None:
        head = one_line(f"{head} against {compared.base[:SHOWN_OF_SHA]}")
        settings = [*_settings_lines(compared)]
        if not (shown or settings or compared.base_problems or compared.problems or compared.warnings):
            return f"{head}: no job differs, {len(plan.changes)} unchanged{_moved(plan)}."
        lines = [paint("head", head), "", *(paint(line[2:3], line) for line in settings)]
    lines += _changes_lines(shown, paint, width) if shown else []
    refused = [f"Apply would refuse this plan: {one_line(refusal)}." for refusal in plan.refusals]
    if compared is not None:
        lines += [*_last_lines(plan, compared), *(paint("!", line) for line in refused)]
        raised = way_out(plan)
        return "\n".join([*lines, *(["", WAY_OUT, "", *map(one_line, raised)] if raised else [])])
    drift = (f"{finding.kind} {finding.job_name}: {note_text(finding.detail)}" for finding in plan.drift)
    lines += (paint("~", f"  ~ {one_line(line)}") for line in drift)
    if plan.drift:
        lines.append("")
    lines += [paint("head", summary_line(plan)), *(paint("!", line) for line in refused)]
    if plan.new_buckets:
        lines.append(paint("!", one_line(new_buckets_line(plan))))
    if plan.tree and (note := tree_note(plan.tree)):
        lines.append(paint("!", one_line(note)))
    # The digest is for `apply --plan-digest`, which needs it only if the plan does anything.
    if plan.digest and any(change.action is not Action.NONE for change in plan.changes):
        lines.append(f"Digest: {plan.digest}")
    return "\n".join(lines)


def _changes_lines(shown: Sequence[Change], paint: Paint, width: int | None) -> Iterator[str]:
    """Yield the lines of all changes, the notes of all of them, and the number of those cut short."""
    shared = shared_notes(shown)
    was_long = False
    for number, change in enumerate(shown):
        notes = own_notes(change, shared)
        lines = [*_head_lines(change, paint, width)]
        lines += _detail_lines(change, paint, notes, detailed=number < MAX_DETAILED)
        is_long = len(lines) > _SHORT
        yield from [""] * (number > 0 and (is_long or was_long))
        yield from lines
        was_long = is_long
    yield ""
    below = [*map(one_line, notes_below(shared))]
    if len(shown) > MAX_DETAILED:
        left = counted(len(shown) - MAX_DETAILED, "job")
        below.append(
            f"Details of the last {left} are left out: `reconciler plan PATH` shows them for fewer jobs."
        )
    yield from [*below, ""] if below else ()


def shared_notes(changes: Iterable[Change]) -> Mapping[Edit, Sequence[Note]]:
    """Return the notes that all changes of an edit have, by edit; none for an edit of a single change."""
    noted: dict[Edit, list[tuple[Note, ...]]] = {}
    for change in changes:
        if change.edit:
            noted.setdefault(change.edit, []).append(change.notes)
    return {
        edit: [note for note in all_notes[0] if all(note in notes for notes in all_notes)]
        for edit, all_notes in noted.items()
        if len(all_notes) > 1
    }


def own_notes(change: Change, shared: Mapping[Edit, Sequence[Note]]) -> list[str]:
    """Return the sentences of a change's notes, without the shared ones."""
    said = shared.get(change.edit, ()) if change.edit else ()
    return [note_text(note) for note in change.notes if note not in said]


def notes_below(shared: Mapping[Edit, Sequence[Note]]) -> list[str]:
    """Return the shared notes as sentences."""
    return [f"For each {edit} job: {note_text(note)}." for edit, notes in shared.items() for note in notes]


def _settings_lines(compared: Comparison) -> Iterator[str]:
    """Yield the lines of at most 50 changed settings, and the notes."""
    if compared.settings:
        yield "Settings change, in reconciler.yaml:"
        for field in compared.settings[:MAX_FIELDS]:
            effect = setting_effect(field.pointer)
            yield f"  ! {field_line(field)}  ({effect})" if effect else f"    {field_line(field)}"
        left = len(compared.settings) - MAX_FIELDS
        yield from [f"    … and {left} more"] * (left > 0)
        yield ""
    for note in compared.notes:
        yield from (one_line(note), "")


def _last_lines(plan: Plan, compared: Comparison) -> Iterator[str]:
    """Yield the lines that count edits, costs and problems."""
    if plan.changes or not compared.problems:
        edits = Counter(change.edit for change in plan.changes)
        yield f"{', '.join(f'{edits[edit]} {edit}' for edit in Edit)}{_moved(plan)}."
        yield from map(one_line, cost_sentences(plan))
    if compared.problems:
        yield f"{problem_count(compared.problems)}: invalid manifests aren't counted above."
    if compared.warnings:
        yield f"{problem_count(compared.warnings)}."
    if plan.changes or not compared.problems:
        if compared.base_problems:
            problems = counted(compared.base_problems, "problem")
            yield f"The base has {problems}: the jobs of its invalid manifests count as new."
        yield "This compares manifests only: `reconciler plan` asks the service and shows what apply submits."


def cost_sentences(plan: Plan, when: str = "Merging") -> Iterator[str]:
    """Yield sentences on what a comparison's submissions can cost, not sanitized; none without any change."""
    cost = plan.cost
    if cost is None or not any(map(matters, plan.changes)):
        return
    types = ", ".join(dict.fromkeys(map(_short_type, cost.accelerators)))
    hours = f"at most {hours_text(cost.hours)} accelerator-hours ({types})"
    jobs = counted(cost.submissions, "job") if cost.submissions else "no job"
    yield f"{when} submits {jobs}{f', {hours}' * (cost.hours > 0)}."
    if cost.untimed:
        yield f"Without a time limit, counted with the service's 168 hours: {_named(cost.untimed)}."
    if cost.unknown:
        yield f"On an unknown machine type, counted without accelerators: {_named(cost.unknown)}."


def hours_text(hours: float) -> str:
    """Return a number of hours, rounded up to tenths."""
    # Before it is rounded up, a sum's error of rounding is removed.
    return f"{ceil(round(hours * 10, 6)) / 10:,.1f}".removesuffix(".0")


def _short_type(accelerator: str) -> str:
    """Return the usual name of an accelerator: `T4` for `NVIDIA_TESLA_T4`."""
    return accelerator.removeprefix("NVIDIA_").removeprefix("TESLA_").replace("_", " ")


def _named(names: Sequence[str]) -> str:
    more = len(names) - _NAMED
    return ", ".join([*names[:_NAMED], *[f"{more} more"] * (more > 0)])


def new_buckets_line(plan: Plan) -> str:
    """Return the sentence about the buckets that a plan's runs would make, not sanitized."""
    plural, they = ("s", "they") if plan.new_buckets[1:] else ("", "it")
    return f"New bucket{plural} {', '.join(plan.new_buckets)}; in the cloud {they} must exist."


def way_out(plan: Plan) -> list[str]:
    """Return the lines of `reconciler.yaml` by which apply would carry out a refused comparison; or none."""
    if plan.comparison is None or not plan.needed_limits:
        return []
    return yaml_lines({"environments": {plan.target.environment: {"limits": dict(plan.needed_limits)}}})


WAY_OUT = (
    "If that is wanted, raise the limit in the same pull request, where the plan shows it as a settings "
    "change. `reconciler.yaml` then has these lines, each key once:"
)


def _moved(plan: Plan) -> str:
    moved = sum(change.edit is Edit.UNCHANGED and bool(change.notes) for change in plan.changes)
    return f" ({moved} moved)" if moved else ""


def short_error(text: str) -> str:
    """Return an error as one line: the first and the last line of a longer text."""
    # A traceback's first line names the failed program, its last line the reason.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return one_line(lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}") if lines else ""


def outcomes_text(outcomes: Sequence[Outcome]) -> str:
    """Return a line for each outcome, and a last line that counts them."""
    lines = []
    for outcome in outcomes:
        state = f"  {outcome.state}" if outcome.state else ""
        line = f"{outcome.status:8} {outcome.change.action:7} {one_line(outcome.change.job_name)}{state}"
        said = outcome_reason(outcome)
        lines.append(f"{line}: {one_line(said)}" if said else line)
    return "\n".join([*lines, f"{outcome_counts(outcomes)}."])


def outcome_counts(outcomes: Sequence[Outcome]) -> str:
    """Return the numbers of outcomes, and of jobs that ended other than SUCCEEDED, in one line."""
    totals = Counter(outcome.status for outcome in outcomes)
    counts = [f"{totals[status]} {status}" for status in Status if totals[status]]
    for state in (State.FAILED, State.CANCELLED):
        # A job that the plan cancels is no failure, and already counts as applied.
        ended = [
            outcome
            for outcome in outcomes
            if outcome.state is state and outcome.change.action != Action.CANCEL
        ]
        counts += [f"{counted(len(ended), 'job')} {state}"] if ended else []
    return f"Apply: {', '.join(counts) or 'nothing to do'}"


def outcome_reason(outcome: Outcome) -> str:
    """Return why a change failed, or why its job didn't succeed, in a few words; "" for neither."""
    # `apply --wait` says the whole cause and the next step in a sentence of its own.
    if outcome.cause:
        return cause_label(outcome.cause)
    return short_error(reason_text(outcome.reason, outcome.change.base_name)) if outcome.reason else ""


def target_text(target: Target) -> str:
    """Return the plan's environment, with its service if that is known."""
    if not target.engine:
        return target.environment
    if target.engine == "local":
        return f"{target.environment} (embedded service)"
    return f"{target.environment} (project {target.project}, {target.location})"


def _head_lines(change: Change, paint: Paint, width: int | None) -> Iterator[str]:
    """Yield the first lines of a change: its action, its job and manifest, and the reason."""
    # "none" would be odd beside a job that a pull request removes.
    is_removed = change.action is Action.NONE and change.edit is Edit.REMOVED
    sign, word = ("-", Edit.REMOVED) if is_removed else (_SIGNS[change.action], change.action)
    name, where = one_line(change.job_name), f"  {one_line(place(change))}"
    plain = f"  {sign} {word} {name}  {change.kind}"
    has_room = width is None or width_of(plain + where) <= width
    yield f"  {paint(sign, f'{sign} {word}')} {paint('head', name)}  {change.kind}{where * has_room}"
    if not has_room:
        yield f"    {where}"
    edit = f"{change.edit}: " if change.edit and not names_edit(change.reason, change.edit) else ""
    if not is_removed or change.reason.code is not ReasonCode.REMOVED:
        reason = f"{edit}{one_line(change_text(change))}"
        room = max(_LEAST_ROOM, width - 6) if width else len(reason)
        is_short = len(reason) <= room
        # A word stays whole, because a broken address can't be copied: the terminal wraps it.
        lines = [reason] if is_short else wrap(reason, room, break_on_hyphens=False, break_long_words=False)
        # A command of GitHub's runner may begin at a line's first visible character.
        yield from (one_line(f"      {line}") for line in lines)


def _detail_lines(change: Change, paint: Paint, notes: Sequence[str], *, detailed: bool) -> Iterator[str]:
    """Yield the other lines of a change: spec or differences, files and notes.

    Args:
        paint: Returns a text in the colour of a style.
        notes: The notes to show.
        detailed: True to include the spec or the differences.
    """
    if detailed:
        # A new job's spec shows the folder.
        if change.output and change.spec is None:
            yield f"      {one_line(writes_to(change))}"
        yield from (paint("+", f"      + {line}") for line in spec_lines(change))
        yield from (paint(line[0], f"      {line}") for line in diff_lines(change))
    yield from (f"      {one_line(path)}  {counts}".rstrip() for path, counts in file_lines(change.files))
    yield from (f"      {one_line(note)}" for note in notes)


def writes_to(change: Change) -> str:
    """Return where the run of a submission writes, as a clause."""
    return f"writes to {change.output}"


def file_lines(files: Sequence[FileChange]) -> list[tuple[str, str]]:
    """Return the path of each changed file with its added and removed lines, and a row for omitted files."""
    shown = [(file.path, _counts(file)) for file in files[:MAX_FILES]]
    left = len(files) - MAX_FILES
    return [*shown, (f"… and {counted(left, 'more file')}", "")] if left > 0 else shown


def _counts(file: FileChange) -> str:
    if file.added is None or file.removed is None:
        return file.about or "binary"
    return f"+{file.added} -{file.removed}" if file.added or file.removed else "mode"


def place(change: Change) -> str:
    """Return the manifest's path of a change, with the line if it is known."""
    return f"{change.path}:{change.line}" if change.line else change.path


def field_line(field: FieldChange) -> str:
    """Return a line with a changed field and both values."""
    before, after = field_values(field)
    return one_line(f"{field.pointer}: {before} → {after}")


def summary_line(plan: Plan) -> str:
    """Return a line with the numbers of changes and drift findings."""
    count = summary(plan)
    if not any(number for name, number in count.items() if name not in ("none", "drift")):
        in_sync = " is up to date" if count["none"] == 1 else " are up to date"
        done = f"Nothing to do: {counted(count['none'], 'job')}{_out_of_sync(plan) or in_sync}"
        return f"{done}, {counted(count['drift'], 'drift finding')}." if count["drift"] else f"{done}."
    published = f"{count['publish']} to publish, " if count["publish"] else ""
    return (
        f"{count['submit']} to submit, {count['retry']} to retry, {count['cancel']} to cancel, "
        f"{published}{count['none']} unchanged, {count['blocked']} blocked, "
        f"{counted(count['drift'], 'drift finding')}."
    )


def matters(change: Change) -> bool:
    """Return True if a change is shown by default: it acts or edits, or its job is not in sync."""
    if change.edit:
        return change.edit is not Edit.UNCHANGED
    if change.action is not Action.NONE or change.is_awaited:
        return True
    if change.stuck is NotDone.UNPUBLISHED:  # the publication is a change of its own
        return False
    # Of a suspended job only what goes on all the same.
    return change.stuck is not None and change.reason != because(ReasonCode.SUSPENDED)


def _out_of_sync(plan: Plan) -> str:
    """Return the numbers of unchanged jobs that are not in sync, by reason."""
    numbers = Counter(change.stuck for change in plan.changes if change.stuck)
    counts = [f"{numbers[reason]} {reason}" for reason in NotDone if numbers[reason]]
    if awaited := sum(change.is_awaited for change in plan.changes):
        counts.append(f"{awaited} to be submitted again")
    return f" ({', '.join(counts)})" if counts else ""
