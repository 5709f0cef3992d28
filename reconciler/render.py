"""Plan, status and problems as text for people; what scripts read is in `jsonforms`.

Everything that a manifest or a service wrote goes through `inert`, so that it can't act on a terminal, on a
workflow's log or in Markdown.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from reconciler.diagnostics import MAX_QUOTED, Problem
from reconciler.inert import one_line, workflow_command
from reconciler.job import State
from reconciler.jsonforms import summary
from reconciler.plan import Action, Change, Drift, FieldChange, Plan, Stuck
from reconciler.planning.outcome import JobStatus, Outcome, Recorded, Status

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
        where = f"{one_line(problem.path)}:{problem.line}:{problem.column}"
        field = f" ({one_line(problem.pointer)})" if problem.pointer else ""
        lines.append(f"{where}: {one_line(problem.message)}{field}")
        if problem.hint:
            lines += (f"    {one_line(line)}" for line in problem.hint.splitlines())
    return "\n".join(lines)


def validation_text(files: int, problems: Sequence[Problem]) -> str:
    """The mistakes, and a last line that counts them."""
    if not problems:
        return f"{_count(files, 'file')} valid."
    wrong = len({problem.path for problem in problems})
    last = f"{_count(len(problems), 'problem')} in {_count(wrong, 'file')} of {files}."
    return f"{problems_text(problems)}\n\n{last}"


def validation_github(files: int, problems: Sequence[Problem]) -> str:
    """Workflow commands that GitHub shows as annotations at file and line.

    GitHub keeps ten of one kind a step and drops the rest unsaid, so the tenth says how many there are.
    """
    shown = problems if len(problems) <= _MAX_ANNOTATIONS else problems[: _MAX_ANNOTATIONS - 1]
    lines = [_annotation(problem) for problem in shown]
    if len(shown) < len(problems):
        left = len(problems) - len(shown)
        said = f"{_count(left, 'more problem')}; run `reconciler validate`"
        lines.append(workflow_command("error", said, title=_ANNOTATION_TITLE))
    return "\n".join(lines or [validation_text(files, problems)])


def _annotation(problem: Problem) -> str:
    said = f"{problem.message}\n{problem.hint}" if problem.hint else problem.message
    return workflow_command(
        "error", said, file=problem.path, line=problem.line, col=problem.column, title=_ANNOTATION_TITLE
    )


def plan_text(plan: Plan, *, verbose: bool = False) -> str:
    """The plan for a terminal: what changes, and only with `verbose` what doesn't."""
    lines = [f"Plan for {_target(plan)}", ""]
    shown = [change for change in plan.changes if verbose or _matters(change)]
    for change in shown:
        lines += _change_lines(change)
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
    """The plan for a pull request or a job summary."""
    lines = [f"### Plan for {_target(plan)}", "", _summary_line(plan)]
    changes = [change for change in plan.changes if _matters(change)]
    if changes:
        lines += ["", "| | job | why | file |", "|---|---|---|---|"]
        lines += (
            f"| {change.action} | `{change.job_name}` | {_cell(change.reason)} | {_code(_place(change))} |"
            for change in changes
        )
    for change in changes:
        if change.fields:
            lines += ["", f"`{change.job_name}`", "", *_fence("\n".join(_field_lines(change)), "diff")]
    if plan.drift:
        lines += ["", "| drift | job | detail |", "|---|---|---|"]
        lines += (
            f"| {finding.kind} | {_code(finding.job_name)} | {_cell(finding.detail)} |"
            for finding in plan.drift
        )
    return "\n".join(lines)


def short_error(text: str) -> str:
    """An error in one line: a traceback's first line says what ended, its last one why."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return one_line(lines[0] if len(lines) == 1 else f"{lines[0]} … {lines[-1]}") if lines else ""


def outcomes_text(outcomes: Sequence[Outcome]) -> str:
    """What came of each change, and a last line that counts."""
    lines, told = [], dict.fromkeys(Status, 0)
    for outcome in outcomes:
        told[outcome.status] += 1
        state = f"  {outcome.state}" if outcome.state else ""
        line = f"{outcome.status:8} {outcome.change.action:7} {outcome.change.job_name}{state}"
        lines.append(line + (f": {short_error(outcome.error)}" if outcome.error else ""))
    counts = [f"{number} {status}" for status, number in told.items() if number]
    failed = sum(outcome.state is State.FAILED for outcome in outcomes)
    counts += [f"{_count(failed, 'job')} FAILED"] if failed else []
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
            job.create_time or "-",
            job.end_time or "-",
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


def _target(plan: Plan) -> str:
    target = plan.target
    if target.engine == "local":
        return f"{target.environment} (embedded service)"
    return f"{target.environment} (project {target.project}, {target.location})"


def _change_lines(change: Change) -> Iterator[str]:
    sign, place = _SIGNS[change.action], one_line(_place(change))
    yield f"  {sign} {change.action} {change.job_name}  {change.kind}  {place}"
    yield f"      {one_line(change.reason)}"
    yield from (f"      {line}" for line in _field_lines(change))


def _place(change: Change) -> str:
    return f"{change.path}:{change.line}" if change.line else change.path


def _field_lines(change: Change) -> Iterator[str]:
    for field in change.fields[:_MAX_FIELDS]:
        yield _field_line(field)
    if len(change.fields) > _MAX_FIELDS:
        yield f"… and {len(change.fields) - _MAX_FIELDS} more fields"


def _field_line(field: FieldChange) -> str:
    before, after = _value(field.before), _value(field.after)
    # Long values that begin alike are shown from where they differ.
    common = next((n for n, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), 0)
    start = common if max(len(before), len(after)) > MAX_QUOTED and common > MAX_QUOTED // 2 else 0
    return one_line(f"{field.pointer}: {_cut(before, start)} → {_cut(after, start)}")


def _value(value: Any) -> str:
    return _NOTHING if value is None else json.dumps(value, ensure_ascii=False, sort_keys=True)


def _cut(text: str, start: int) -> str:
    shown = text[start : start + MAX_QUOTED]
    return ("…" if start else "") + shown + ("…" if start + len(shown) < len(text) else "")


def _drift_line(finding: Drift) -> str:
    return one_line(f"{finding.kind} {finding.job_name}: {finding.detail}")


def _summary_line(plan: Plan) -> str:
    count = summary(plan)
    if not any(number for name, number in count.items() if name not in ("none", "drift")):
        stuck = _stuck(plan)
        done = f"Nothing to do: {_count(count['none'], 'job')}{stuck or ' as wanted'}"
        return f"{done}, {_count(count['drift'], 'finding')}." if count["drift"] else f"{done}."
    return (
        f"{count['submit']} to submit, {count['retry']} to retry, {count['cancel']} to cancel, "
        f"{count['none']} unchanged, {count['blocked']} blocked, {_count(count['drift'], 'finding')}."
    )


def _matters(change: Change) -> bool:
    """Whether a change is shown unasked: what is to be done, and what isn't as wanted."""
    return change.action is not Action.NONE or (change.stuck is not None and change.reason != "suspended")


def _stuck(plan: Plan) -> str:
    """The jobs that are left alone without having done what is wanted of them, counted by why."""
    why = Counter(change.stuck for change in plan.changes if change.stuck)
    told = [f"{why[stuck]} {stuck}" for stuck in Stuck if why[stuck]]
    return f" ({', '.join(told)})" if told else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _cell(text: str) -> str:
    """Untrusted text in a table's cell: what Markdown or HTML could act on is written by its number."""
    return "".join(c if c.isalnum() or c in " ,.;:()_-" else f"&#{ord(c)};" for c in one_line(text))


def _code(text: str) -> str:
    return f"<code>{_cell(text)}</code>"


def _fence(text: str, language: str) -> list[str]:
    """A fenced block that its content can't close."""
    longest = max((len(run) for run in _runs(text, "`")), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}{language}", text, fence]


def _runs(text: str, char: str) -> Iterator[str]:
    run = ""
    for c in text:
        if c == char:
            run += c
        elif run:
            yield run
            run = ""
    if run:
        yield run
