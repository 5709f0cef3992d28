"""What `apply` shows in GitHub Actions: its plan and the ends of its jobs in the summary, and annotations."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from reconciler.base.diagnostics import in_checkout, path_in_checkout
from reconciler.base.errors import InvalidError, RefusedError
from reconciler.cli.actions import add_to_summary, annotate, has_summary, links
from reconciler.manifests.settings import find_root
from reconciler.model.cause import cause_of
from reconciler.model.job import ActualJob, State
from reconciler.model.plan import Action, Change, Plan
from reconciler.output.annotations import Annotation, annotation_lines
from reconciler.output.document import joined, text
from reconciler.output.ends import End, ends_markdown
from reconciler.output.markdown import plan_markdown, problems_markdown
from reconciler.output.problems import problem_annotations
from reconciler.output.text import matters, outcome_counts, outcome_reason
from reconciler.output.wording.cause import brief_cause
from reconciler.output.wording.plan import reason_text
from reconciler.planning.outcome import Outcome, Status

# Together they stay below GitHub's limit for a summary.
_PLAN_LIMIT = 600_000
_ENDS_LIMIT = 280_000
_REST = "the workflow run's summary lists them"

Failure = tuple[Change | None, str]
"""Sentence about a job that makes the command fail, and the job's change if that is known."""


def show_invalid(error: InvalidError, log_format: str) -> None:
    """Annotate invalid manifests or settings, and list them in the summary."""
    problems = in_checkout(error.problems, find_root(Path.cwd()))
    alone = [Annotation(f"{error.message}\n{error.hint}".strip(), "Invalid settings")]
    annotate(
        problem_annotations(problems) if problems else annotation_lines(alone, "problem", _REST), log_format
    )
    if has_summary():
        add_to_summary(problems_markdown(error.message, problems, _PLAN_LIMIT), log_format)


def show_refused(plan: Plan, error: RefusedError, log_format: str) -> None:
    """Annotate a refused plan, and add it to the summary."""
    said = f"{error.message}\n{error.hint}".strip()
    annotate(annotation_lines([Annotation(said, "Refused")], "refusal", _REST), log_format)
    show_plan(replace(plan, refusals=()), log_format, refusal=said.replace("\n", "; "))


def show_plan(plan: Plan, log_format: str, *, refusal: str = "") -> None:
    """Add a plan to the summary, if the job has one, below the reason why it wasn't carried out."""
    if has_summary():
        refused = f"**Apply refused this plan:** {text(refusal)}" if refusal else ""
        # The summary is on the page of the run.
        files = dataclasses.replace(links(), run="")
        add_to_summary(joined(refused, plan_markdown(plan, _PLAN_LIMIT, files)), log_format)


def show_ends(
    plan: Plan,
    outcomes: Sequence[Outcome],
    unsuccessful: Iterable[Failure],
    runs: Iterable[ActualJob],
    awaited: frozenset[str],
    log_format: str,
) -> None:
    """Annotate what makes the command fail, and add a table of the jobs to the summary.

    Args:
        plan: The plan that was carried out.
        outcomes: Its outcomes, with the ends of the jobs.
        unsuccessful: The jobs that didn't succeed.
        runs: The runs that are known, the newest states last.
        awaited: The resources of the jobs that were waited for.
        log_format: The format of the log.
    """
    failed = [*_failed(outcomes), *((change, line, "Not succeeded") for change, line in unsuccessful)]
    root = find_root(Path.cwd())
    annotations = [_annotation(root, change, message, title) for change, message, title in failed]
    annotate(annotation_lines(annotations, "job", _REST), log_format)
    if has_summary():
        by_resource = {job.resource: job for job in runs}
        ends = [*_ends(plan, outcomes, by_resource, awaited)]
        add_to_summary(ends_markdown(ends, outcome_counts(outcomes), _ENDS_LIMIT, links()), log_format)


def _failed(outcomes: Iterable[Outcome]) -> Iterator[tuple[Change | None, str, str]]:
    """Yield the change, a sentence and a title for each change that failed or is blocked."""
    for outcome in outcomes:
        said = f"{outcome.change.job_name}: {outcome_reason(outcome)}"
        if outcome.status is Status.FAILED:
            yield outcome.change, said, f"Failed to {outcome.change.action}"
        elif outcome.change.action is Action.BLOCKED:
            yield outcome.change, said, "Blocked"


def _annotation(root: Path, change: Change | None, message: str, title: str) -> Annotation:
    if change is None or not change.path:
        return Annotation(message, title)
    return Annotation(message, title, path_in_checkout(change.path, root), change.line)


def _ends(
    plan: Plan, outcomes: Iterable[Outcome], runs: Mapping[str, ActualJob], awaited: frozenset[str]
) -> Iterator[End]:
    """Yield the jobs that were changed or waited for, and those that are left alone without being in sync."""
    shown = set[int]()
    for outcome in outcomes:
        shown.add(id(outcome.change))
        job = runs.get(outcome.resource)
        url = job.url if job else ""
        yield End(outcome.change, outcome.status, outcome.state, outcome_reason(outcome), url)
    for change in plan.changes:
        if id(change) in shown or change.desired is None:
            continue
        job = runs.get(change.actual.resource, change.actual) if change.actual else None
        if matters(change) or (job and job.resource in awaited):
            yield End(change, None, job.state if job else None, _reason(change, job), job.url if job else "")


def _reason(change: Change, job: ActualJob | None) -> str:
    """Return why a job that was left alone isn't in sync; "" for a success."""
    if job is None or not job.state.ended or (job.state is State.SUCCEEDED and change.stuck):
        return reason_text(change.reason)
    cause = cause_of(job, change.base_name)
    return brief_cause(cause) if cause else ""
