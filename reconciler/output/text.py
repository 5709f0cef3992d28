"""Plan, status and problems as text for people; `markdown` serves GitHub, and `json` scripts.

All text from manifests and services goes through `sanitize`, so that it can't act on a terminal or on a
workflow's log.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from reconciler.base.diagnostics import ERROR, MAX_QUOTED, WARNING, Level, Problem, counted
from reconciler.base.sanitize import one_line, workflow_command
from reconciler.model.job import State
from reconciler.model.plan import Action, Change, Comparison, Edit, FieldChange, Plan, Stuck, Target
from reconciler.output.json import summary

# Imported late, because `validate` prints with this module and needs no planning.
if TYPE_CHECKING:
    from reconciler.planning.outcome import JobStatus, Outcome

MAX_FIELDS = 50
SHOWN_OF_SHA = 12
_SIGNS = {Action.SUBMIT: "+", Action.RETRY: "↻", Action.CANCEL: "-", Action.BLOCKED: "!", Action.NONE: " "}
_WITHOUT_STATE = {
    "none": "not submitted",
    "pending": "outcome unknown",
    "bound": "gone",
    "rejected": "refused",
    "held": "held",
}
_NOTHING = "nothing"
_MAX_ERROR = 300
_MAX_ANNOTATIONS = 10
_ANNOTATIONS: dict[Level, tuple[str, str]] = {
    ERROR: ("problem", "Invalid manifest"),
    WARNING: ("warning", "Probably a mistake"),
}
"""Level -> noun and title."""


def problems_text(problems: Sequence[Problem]) -> str:
    """Return a line for each problem, in the format of compilers, with the hint below."""
    lines = []
    for problem in problems:
        field = f" ({problem.pointer})" if problem.pointer else ""
        where = f"{problem.path}:{problem.line}:{problem.column}"
        level = "warning: " if problem.level == WARNING else ""
        lines.append(one_line(f"{where}: {level}{problem.message}{field}"))
        if problem.hint:
            lines += (f"    {one_line(line)}" for line in problem.hint.splitlines())
    return "\n".join(lines)


def validation_text(files: int, problems: Sequence[Problem]) -> str:
    """Return the problems, and a last line that counts them."""
    valid = f"{counted(files, 'file')} valid" if files else "There are no manifests"
    if not problems:
        return f"{valid}."
    if all(problem.level == WARNING for problem in problems):
        return f"{problems_text(problems)}\n\n{valid}; {problem_count(problems)}."
    return f"{problems_text(problems)}\n\n{problem_count(problems)} of {files}."


def validation_github(files: int, problems: Sequence[Problem]) -> str:
    """Return workflow commands, which GitHub shows as annotations at file and line."""
    lines = [line for level in _ANNOTATIONS for line in _annotations(problems, level)]
    return "\n".join(lines or [validation_text(files, problems)])


def _annotations(problems: Sequence[Problem], level: Level) -> Iterator[str]:
    # GitHub silently drops annotations after the tenth of a step and level: the tenth counts the rest.
    found = [problem for problem in problems if problem.level == level]
    shown = found if len(found) <= _MAX_ANNOTATIONS else found[: _MAX_ANNOTATIONS - 1]
    yield from map(_annotation, shown)
    if left := len(found) - len(shown):
        noun, title = _ANNOTATIONS[level]
        message = f"{counted(left, f'more {noun}')}; run `reconciler validate`"
        yield workflow_command(level, message, title=title)


def _annotation(problem: Problem) -> str:
    message = f"{problem.message}\n{problem.hint}" if problem.hint else problem.message
    _, title = _ANNOTATIONS[problem.level]
    return workflow_command(
        problem.level, message, file=problem.path, line=problem.line, col=problem.column, title=title
    )


def plan_text(plan: Plan, *, verbose: bool = False) -> str:
    """Return the plan for a terminal, with the unchanged jobs only if `verbose`.

    Of a comparison's problems, only the number is included.
    """
    compared = plan.comparison
    shown = [change for change in plan.changes if verbose or matters(change)]
    head = f"Plan for {target_text(plan.target)}"
    lines = [head, ""]
    if compared is not None:
        head = one_line(f"{head} against {compared.base[:SHOWN_OF_SHA]}")
        settings = [*_settings_lines(compared)]
        if not (shown or settings or compared.base_problems or compared.problems or compared.warnings):
            return f"{head}: no job differs, {len(plan.changes)} unchanged{_moved(plan)}."
        lines = [head, "", *settings]
    for change in shown:
        lines += _change_lines(change)
    if shown:
        lines.append("")
    if compared is not None:
        return "\n".join([*lines, *_last_lines(plan, compared)])
    drift = (f"{finding.kind} {finding.job_name}: {finding.detail}" for finding in plan.drift)
    lines += (f"  ~ {one_line(line)}" for line in drift)
    if plan.drift:
        lines.append("")
    lines.append(summary_line(plan))
    # The digest is for `apply --plan-digest`, which needs it only if the plan does anything.
    if plan.digest and any(change.action is not Action.NONE for change in plan.changes):
        lines.append(f"Digest: {plan.digest}")
    return "\n".join(lines)


def _settings_lines(compared: Comparison) -> Iterator[str]:
    """Yield the lines of at most 50 changed settings, and the notes."""
    from reconciler.planning.proposal import decides

    if compared.settings:
        yield "Settings change, in reconciler.yaml:"
        for field in compared.settings[:MAX_FIELDS]:
            effect = decides(field.pointer)
            yield f"  ! {_field_line(field)}  ({effect})" if effect else f"    {_field_line(field)}"
        left = len(compared.settings) - MAX_FIELDS
        yield from [f"    … and {left} more"] * (left > 0)
        yield ""
    for note in compared.notes:
        yield from (one_line(note), "")


def _last_lines(plan: Plan, compared: Comparison) -> Iterator[str]:
    """Yield the lines that count edits, hours and problems."""
    if plan.changes or not compared.problems:
        edits = Counter(change.edit for change in plan.changes)
        before, after = (sum(change.hours[side] for change in plan.changes) for side in (0, 1))
        hours = f"; at most {before:.10g} → {after:.10g} accelerator-hours" if before or after else ""
        yield f"{', '.join(f'{edits[edit]} {edit}' for edit in Edit)}{_moved(plan)}{hours}."
    if compared.problems:
        yield f"{problem_count(compared.problems)}: what can't be read isn't counted above."
    if compared.warnings:
        yield f"{problem_count(compared.warnings)}."
    if plan.changes or not compared.problems:
        if compared.base_problems:
            found = counted(compared.base_problems, "problem")
            yield f"The manifests that are compared with have {found}: jobs of invalid ones count as new."
        yield "No service was asked what ran before: `reconciler plan` tells what is submitted."


def _moved(plan: Plan) -> str:
    moved = sum(change.edit is Edit.UNCHANGED and bool(change.notes) for change in plan.changes)
    return f" ({moved} in another place)" if moved else ""


def short_error(text: str) -> str:
    """Return an error as one line: the first and the last line of a longer text."""
    # A traceback's first line names the failed program, its last line the reason.
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return one_line(lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}") if lines else ""


def outcomes_text(outcomes: Sequence[Outcome]) -> str:
    """Return a line for each outcome, and a last line that counts them."""
    from reconciler.planning.outcome import Status

    lines, totals = [], dict.fromkeys(Status, 0)
    for outcome in outcomes:
        totals[outcome.status] += 1
        state = f"  {outcome.state}" if outcome.state else ""
        line = f"{outcome.status:8} {outcome.change.action:7} {one_line(outcome.change.job_name)}{state}"
        lines.append(line + (f": {short_error(outcome.error)}" if outcome.error else ""))
    counts = [f"{number} {status}" for status, number in totals.items() if number]
    for state in (State.FAILED, State.CANCELLED):
        # A job that the plan cancels is no failure, and already counts as applied.
        ended = [each for each in outcomes if each.state is state and each.change.action != Action.CANCEL]
        counts += [f"{counted(len(ended), 'job')} {state}"] if ended else []
    return "\n".join([*lines, f"Apply: {', '.join(counts) or 'nothing to do'}."])


def status_text(jobs: Sequence[JobStatus]) -> str:
    """Return a table of jobs and states."""
    if not jobs:
        return "No jobs."
    head = ("JOB", "KIND", "STATE", "CLAIM", "ATTEMPT", "CREATED", "ENDED", "ERROR")
    rows = [
        (
            one_line(job.job_name),
            job.kind,
            _state(job),
            job.claim,
            str(job.attempt),
            one_line(job.create_time) or "-",
            one_line(job.end_time) or "-",
            short_error(job.error)[:_MAX_ERROR] or "-",
        )
        for job in jobs
    ]
    return "\n".join(_table([head, *rows]))


def _table(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def _state(job: JobStatus) -> str:
    if job.state is None:
        return _WITHOUT_STATE[job.claim]
    # The service's own state is shown only if it says more than ours.
    own = job.service_state.removeprefix("JOB_STATE_")
    detail = f" ({own})" if own and own not in (str(job.state), "PENDING") else ""
    return one_line(f"{job.state}{detail}")


def target_text(target: Target) -> str:
    """Return the plan's environment, with its service if that is known."""
    if not target.engine:
        return target.environment
    if target.engine == "local":
        return f"{target.environment} (embedded service)"
    return f"{target.environment} (project {target.project}, {target.location})"


def _change_lines(change: Change) -> Iterator[str]:
    """Yield the lines of a change: action, reason, changed fields and notes."""
    sign, where = _SIGNS[change.action], one_line(place(change))
    yield f"  {sign} {change.action} {one_line(change.job_name)}  {change.kind}  {where}"
    edit = f"{change.edit}: " if change.edit and not change.reason.startswith(change.edit) else ""
    yield f"      {edit}{one_line(change.reason)}"
    yield from (f"      {_field_line(field)}" for field in change.fields[:MAX_FIELDS])
    yield from (f"      {line}" for line in (*more_fields(change), *map(one_line, change.notes)))


def place(change: Change) -> str:
    """Return the manifest's path of a change, with the line if it is known."""
    return f"{change.path}:{change.line}" if change.line else change.path


def more_fields(change: Change) -> list[str]:
    """Return the line that counts the fields beyond the shown ones."""
    left = len(change.fields) - MAX_FIELDS
    return [f"… and {left} more fields"] if left > 0 else []


def _field_line(field: FieldChange) -> str:
    before, after = field_values(field)
    return one_line(f"{field.pointer}: {before} → {after}")


def field_values(field: FieldChange) -> tuple[str, str]:
    """Return both values as JSON, cut and not sanitized."""
    before, after = _value(field.before), _value(field.after)
    # Long values with the same beginning are shown from their first difference on.
    common = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    start = common if max(len(before), len(after)) > MAX_QUOTED and common > MAX_QUOTED // 2 else 0
    return _part(before, start), _part(after, start)


def _value(value: Any) -> str:
    return _NOTHING if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _part(text: str, start: int) -> str:
    shown = text[start : start + MAX_QUOTED]
    return ("…" if start else "") + shown + ("…" if start + len(shown) < len(text) else "")


def summary_line(plan: Plan) -> str:
    """Return a line with the numbers of changes and drift findings."""
    count = summary(plan)
    if not any(number for name, number in count.items() if name not in ("none", "drift")):
        out_of_sync = _out_of_sync(plan)
        done = f"Nothing to do: {counted(count['none'], 'job')}{out_of_sync or ' as wanted'}"
        return f"{done}, {counted(count['drift'], 'finding')}." if count["drift"] else f"{done}."
    return (
        f"{count['submit']} to submit, {count['retry']} to retry, {count['cancel']} to cancel, "
        f"{count['none']} unchanged, {count['blocked']} blocked, {counted(count['drift'], 'finding')}."
    )


def matters(change: Change) -> bool:
    """Return True if a change is shown by default: it acts or edits, or its job is not in sync."""
    if change.edit:
        return change.edit is not Edit.UNCHANGED
    return change.action is not Action.NONE or (change.stuck is not None and change.reason != "suspended")


def _out_of_sync(plan: Plan) -> str:
    """Return the numbers of unchanged jobs that are not in sync, by reason."""
    numbers = Counter(change.stuck for change in plan.changes if change.stuck)
    counts = [f"{numbers[reason]} {reason}" for reason in Stuck if numbers[reason]]
    return f" ({', '.join(counts)})" if counts else ""


def problem_count(problems: Sequence[Problem]) -> str:
    """Return the numbers of problems and warnings, and of files with any."""
    files = len({problem.path for problem in problems})
    numbers = Counter(problem.level for problem in problems)
    counts = [counted(numbers[level], noun) for level, (noun, _) in _ANNOTATIONS.items() if numbers[level]]
    return f"{' and '.join(counts)} in {counted(files, 'file')}"
