"""Plan, status and problems as text for people; what scripts read is in `jsonforms`.

Everything that a manifest or a service wrote goes through `inert`, so that it can't act on a terminal, on a
workflow's log or in Markdown.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from reconciler.diagnostics import MAX_QUOTED, Problem
from reconciler.inert import one_line, workflow_command
from reconciler.job import State
from reconciler.jsonforms import summary
from reconciler.plan import Action, Change, Drift, FieldChange, Plan, Stuck, Target

# `validate` prints by this module, and a plan as text needs no Markdown: neither loads what it doesn't need.
if TYPE_CHECKING:
    from reconciler.markdown import Piece
    from reconciler.planning.outcome import JobStatus, Outcome, Recorded

_SIGNS = {Action.SUBMIT: "+", Action.RETRY: "↻", Action.CANCEL: "-", Action.BLOCKED: "!", Action.NONE: " "}
_WITHOUT_STATE: dict[Recorded, str] = {
    "none": "not submitted",
    "pending": "outcome unknown",
    "bound": "gone",
    "rejected": "refused",
    "held": "held",
}
_NOTHING = "nothing"
_MAX_FIELDS = 50
_MAX_ERROR = 300
_MAX_ANNOTATIONS = 10
_ANNOTATION_TITLE = "Invalid manifest"


def problems_text(problems: Sequence[Problem]) -> str:
    """One mistake a line, as compilers write them, with the remedy below."""
    lines = []
    for problem in problems:
        field = f" ({problem.pointer})" if problem.pointer else ""
        where = f"{problem.path}:{problem.line}:{problem.column}"
        lines.append(one_line(f"{where}: {problem.message}{field}"))
        if problem.hint:
            lines += (f"    {one_line(line)}" for line in problem.hint.splitlines())
    return "\n".join(lines)


def validation_text(files: int, problems: Sequence[Problem]) -> str:
    """The mistakes, and a last line that counts them."""
    if not problems:
        return f"{counted(files, 'file')} valid." if files else "There are no manifests."
    wrong = len({problem.path for problem in problems})
    last = f"{counted(len(problems), 'problem')} in {counted(wrong, 'file')} of {files}."
    return f"{problems_text(problems)}\n\n{last}"


def validation_github(files: int, problems: Sequence[Problem]) -> str:
    """Workflow commands that GitHub shows as annotations at file and line.

    GitHub keeps ten of one kind a step and drops the rest unsaid, so the tenth says how many there are.
    """
    shown = problems if len(problems) <= _MAX_ANNOTATIONS else problems[: _MAX_ANNOTATIONS - 1]
    lines = [_annotation(problem) for problem in shown]
    if len(shown) < len(problems):
        left = len(problems) - len(shown)
        said = f"{counted(left, 'more problem')}; run `reconciler validate`"
        lines.append(workflow_command("error", said, title=_ANNOTATION_TITLE))
    return "\n".join(lines or [validation_text(files, problems)])


def _annotation(problem: Problem) -> str:
    said = f"{problem.message}\n{problem.hint}" if problem.hint else problem.message
    return workflow_command(
        "error", said, file=problem.path, line=problem.line, col=problem.column, title=_ANNOTATION_TITLE
    )


def plan_text(plan: Plan, *, verbose: bool = False) -> str:
    """The plan for a terminal: what changes, and only with `verbose` what doesn't."""
    lines = [f"Plan for {target_text(plan.target)}", ""]
    shown = [change for change in plan.changes if verbose or _matters(change)]
    for change in shown:
        lines += change_lines(change)
    if shown:
        lines.append("")
    lines += (f"  ~ {_drift_line(finding)}" for finding in plan.drift)
    if plan.drift:
        lines.append("")
    lines.append(_summary_line(plan))
    if plan.digest and any(change.action is not Action.NONE for change in plan.changes):
        lines.append(f"Digest: {plan.digest}")
    return "\n".join(lines)


def plan_markdown(plan: Plan) -> str:
    """The plan for a job summary, within its limit; what is to be done and the drift go before details."""
    from reconciler.markdown import SUMMARY_LIMIT, Section, code, document, fence, text

    changes = [change for change in plan.changes if _matters(change)]
    rows = [
        f"| {change.action} | {code(change.job_name)} | {text(change.reason)} | {code(place(change))} |"
        for change in changes
    ]
    drift = [
        f"| {finding.kind} | {code(finding.job_name)} | {text(finding.detail)} |" for finding in plan.drift
    ]
    details = [
        f"{code(change.job_name)}\n\n{fence(field_diff(change), 'diff')}"
        for change in changes
        if change.fields
    ]
    return document(
        f"### Plan for {text(target_text(plan.target))}\n\n{_summary_line(plan)}",
        [
            Section("changes", _pieces(rows), "| | job | why | file |\n|---|---|---|---|", part=2),
            Section("drift", _pieces(drift), "| drift | job | detail |\n|---|---|---|"),
            Section("details", _pieces(details), spaced=True),
        ],
        rest="Not all of it fits here: `reconciler plan` tells the rest.",
        limit=SUMMARY_LIMIT,
    )


def _pieces(texts: Sequence[str]) -> list[Piece]:
    from reconciler.markdown import Piece

    return [Piece(one) for one in texts]


def short_error(text: str) -> str:
    """An error in one line: a traceback's first line says what ended, its last one why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return one_line(lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}") if lines else ""


def outcomes_text(outcomes: Sequence[Outcome]) -> str:
    """What came of each change, and a last line that counts."""
    from reconciler.planning.outcome import Status

    lines, told = [], dict.fromkeys(Status, 0)
    for outcome in outcomes:
        told[outcome.status] += 1
        state = f"  {outcome.state}" if outcome.state else ""
        line = f"{outcome.status:8} {outcome.change.action:7} {one_line(outcome.change.job_name)}{state}"
        lines.append(line + (f": {short_error(outcome.error)}" if outcome.error else ""))
    counts = [f"{number} {status}" for status, number in told.items() if number]
    for state in (State.FAILED, State.CANCELLED):
        # A job that apply itself was to cancel counts as applied.
        ended = [each for each in outcomes if each.state is state and each.change.action != Action.CANCEL]
        counts += [f"{counted(len(ended), 'job')} {state}"] if ended else []
    return "\n".join([*lines, f"Apply: {', '.join(counts) or 'nothing to do'}."])


def status_text(jobs: Sequence[JobStatus]) -> str:
    """A table of jobs and states."""
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
    own = job.service_state.removeprefix("JOB_STATE_")
    said = f" ({own})" if own and own not in (str(job.state), "PENDING") else ""
    return one_line(f"{job.state}{said}")


def target_text(target: Target) -> str:
    """Where a plan is for; of a place that isn't known, the environment."""
    if not target.engine:
        return target.environment
    if target.engine == "local":
        return f"{target.environment} (embedded service)"
    return f"{target.environment} (project {target.project}, {target.location})"


def change_lines(change: Change) -> Iterator[str]:
    """A change for a terminal: what is done, why, and the fields that differ."""
    sign, where = _SIGNS[change.action], one_line(place(change))
    yield f"  {sign} {change.action} {one_line(change.job_name)}  {change.kind}  {where}"
    yield f"      {one_line(change.reason)}"
    yield from (f"      {line}" for line in _field_lines(change))


def place(change: Change) -> str:
    """The manifest of a change, with its line where it is known."""
    return f"{change.path}:{change.line}" if change.line else change.path


def _field_lines(change: Change) -> Iterator[str]:
    for field in change.fields[:_MAX_FIELDS]:
        yield field_line(field)
    yield from _more_fields(change)


def field_diff(change: Change) -> list[str]:
    """The field differences as lines of a diff, each one line; at most 50 fields."""
    from reconciler.markdown import cut

    lines = []
    for field in change.fields[:_MAX_FIELDS]:
        before, after = field_values(field)
        pointer = cut(field.pointer, MAX_QUOTED)
        lines += [f"- {pointer}: {before}"] * (field.before is not None)
        lines += [f"+ {pointer}: {after}"] * (field.after is not None)
    lines += _more_fields(change)
    return [one_line(line) for line in lines]


def _more_fields(change: Change) -> list[str]:
    left = len(change.fields) - _MAX_FIELDS
    return [f"… and {left} more fields"] if left > 0 else []


def field_line(field: FieldChange) -> str:
    """A field for a terminal, with both values."""
    before, after = field_values(field)
    return one_line(f"{field.pointer}: {before} → {after}")


def field_values(field: FieldChange) -> tuple[str, str]:
    """Both values as JSON, not made inert; long ones that begin alike from where they differ."""
    before, after = _value(field.before), _value(field.after)
    common = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    start = common if max(len(before), len(after)) > MAX_QUOTED and common > MAX_QUOTED // 2 else 0
    return _part(before, start), _part(after, start)


def _value(value: Any) -> str:
    return _NOTHING if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _part(text: str, start: int) -> str:
    shown = text[start : start + MAX_QUOTED]
    return ("…" if start else "") + shown + ("…" if start + len(shown) < len(text) else "")


def _drift_line(finding: Drift) -> str:
    return one_line(f"{finding.kind} {finding.job_name}: {finding.detail}")


def _summary_line(plan: Plan) -> str:
    count = summary(plan)
    if not any(number for name, number in count.items() if name not in ("none", "drift")):
        stuck = _stuck(plan)
        done = f"Nothing to do: {counted(count['none'], 'job')}{stuck or ' as wanted'}"
        return f"{done}, {counted(count['drift'], 'finding')}." if count["drift"] else f"{done}."
    return (
        f"{count['submit']} to submit, {count['retry']} to retry, {count['cancel']} to cancel, "
        f"{count['none']} unchanged, {count['blocked']} blocked, {counted(count['drift'], 'finding')}."
    )


def _matters(change: Change) -> bool:
    """Whether a change is shown unasked: what is to be done, and what isn't as wanted."""
    return change.action is not Action.NONE or (change.stuck is not None and change.reason != "suspended")


def _stuck(plan: Plan) -> str:
    """The jobs that are left alone without having done what is wanted of them, counted by why."""
    why = Counter(change.stuck for change in plan.changes if change.stuck)
    told = [f"{why[stuck]} {stuck}" for stuck in Stuck if why[stuck]]
    return f" ({', '.join(told)})" if told else ""


def counted(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
