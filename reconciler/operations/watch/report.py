"""Events and metrics of the watch loop; a standing problem is reported once."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from reconciler.base.errors import InvalidError, ReconcilerError
from reconciler.base.sanitize import one_line
from reconciler.manifests.warnings import Warnings
from reconciler.model.applied_tree import TreeFinding
from reconciler.model.plan import Action, Drift
from reconciler.operations.apply import ApplyListener
from reconciler.operations.origin import Origin, uncarried
from reconciler.operations.watch.metrics import Metrics
from reconciler.operations.watch.state import Pass, Result
from reconciler.output.problems import problem_json
from reconciler.output.text import short_error
from reconciler.output.wording.notes import note_text
from reconciler.output.wording.plan import outcome_error, reason_text
from reconciler.output.wording.tree import tree_line
from reconciler.planning.decide import problems_of_results
from reconciler.planning.outcome import Outcome, Status
from reconciler.planning.planner import SUBMISSIONS
from reconciler.planning.state import TargetState
from reconciler.submission.observe import Observed

Fields = tuple[tuple[str, Any], ...]
"""Fields of an event."""


_AGO = re.compile(r", applied [a-z0-9 ]+ ago\b")


class PassReporter(ApplyListener):
    """Reporter that turns passes into events of a structlog logger and into metrics."""

    def __init__(self, events: Any, metrics: Metrics) -> None:
        self._events = events
        self._metrics = metrics
        self._standing: dict[tuple[str, str], frozenset[object]] = {}
        self._stopped = False
        self._live: frozenset[str] = frozenset()
        self._held = ""

    def listening(self, url: str, pages: str) -> None:
        """Report the URL of the health and metrics endpoints, and where the pages are."""
        self._events.info("listening", url=url, pages=pages)

    def waiting(self, line: str) -> None:
        """Report a wait within a pass."""
        self._events.info("waiting", message=line)

    def held(self, reason: str, file: str = "") -> None:
        """Report once why submissions and cancels wait, and which file changed; "" once they don't."""
        if reason and reason != self._held:
            about = {"file": one_line(file)} if file else {}
            self._events.info("waiting", message=reason, **about)
        self._held = reason

    def fetched(self, commit: str, error: ReconcilerError | None) -> None:
        """Report a fetch of the remote branch: the new commit, "" for none, or the error."""
        if error:
            self._metrics.fetch_failures.inc()
        failed_before = self._standing.get(("not-fetched", ""))
        self._report_new("not-fetched", [_of_error(error)] if error else [])
        if failed_before and not error:
            self._events.info("goes-on", message="the branch can be fetched again")
        if commit:
            self._events.info("fetched", commit=commit)

    def not_watched(self, problem: str) -> None:
        """Report why changes of some files are not detected; "" if all files are watched."""
        self._report_new("not-watched", [(("message", problem),)] if problem else [])

    def ending(self) -> None:
        """Report that the loop is ending."""
        self._events.info("ending")

    def compared(self, tree: TreeFinding) -> None:
        """Report what a person should know of the checkout's commit."""
        # A checkout stays as old as it is, however long ago the newer commit was applied.
        identity = tree.relation, tree.effect, tree.commit, tree.remedy
        line = tree_line(tree)
        self._report_changes("warning", {identity: (("message", line),)} if line else {}, about="tree")

    def carried_out(self, outcomes: Sequence[Outcome], origin: Origin) -> None:
        """Report the outcomes of a plan, and the submitted jobs without a commit."""
        self._recovered()
        applied = [outcome for outcome in outcomes if outcome.status is Status.APPLIED]
        submitted = [outcome for outcome in applied if outcome.change.action in SUBMISSIONS]
        self._metrics.submissions.inc(len(submitted))
        for line in uncarried(origin, [o.change.desired for o in submitted if o.change.desired]):
            self._events.warning("no-commit", message=line)
        for outcome in submitted:
            desired = outcome.change.desired
            commit = origin.commit_of(desired) if desired else ""
            self._events.info("submitted", job=outcome.change.job_name, **_of_commit(commit))
        # A short job may end before the first observation; its end is reported all the same.
        self._live |= {outcome.resource for outcome in submitted}
        for outcome in applied:
            if outcome.change.action is Action.CANCEL:
                self._events.info("cancelled", job=outcome.change.job_name, state=str(outcome.state))
            if outcome.change.action is Action.PUBLISH and (publication := outcome.change.publication):
                self._events.info("published", job=outcome.change.job_name, to=publication.publish.to)

    def passed(self, result: Pass, seconds: float, commit: str) -> None:
        """Report the end of a pass; `carried_out` has reported its outcomes.

        The event `blocked` is about any skipped change, not only about those with `Action.BLOCKED`: also a
        submission that the quota held back, and a cancel whose successor was not submitted.
        """
        self._metrics.passed(result.result, seconds)
        self._report_errors(result)
        self.held(result.held)
        self._report_new("failed", _of_outcomes(result.outcomes, Status.FAILED))
        self._report_new("blocked", _of_outcomes(result.outcomes, Status.SKIPPED))
        if result.jobs is not None:
            self._report_warnings(result.warnings)
        if result.plan:
            self._metrics.drifted(result.plan.drift)
            self._report_changes("drift", {_identity(drift): _of_drift(drift) for drift in result.plan.drift})
        if result.after:
            self._metrics.unposted.set(result.after.unposted)
            self._report_new("not-kept", ((("message", problem),) for problem in result.after.problems))
            if result.after.state:
                self._report_new("result", _of_results(result.after.state))
        if result.observed:
            self._seen(result.observed)
        done = any(outcome.status is Status.APPLIED for outcome in result.outcomes)
        # A pass without a change is logged at debug level, so that an idle loop is quiet.
        log = self._events.info if done else self._events.debug
        log("pass", result=str(result.result), seconds=round(seconds, 3), **_of_commit(commit))

    def _report_warnings(self, warnings: Warnings) -> None:
        """Report the warnings that the previous pass did not have; only their places are looked up."""
        standing = self._standing.get(("warning", ""), frozenset())
        new = tuple(warning for warning in warnings.items if warning not in standing)
        for problem in replace(warnings, items=new).placed():
            self._warn("warning", problem_json(problem).items())
        self._standing["warning", ""] = frozenset(warnings.items)

    def _report_errors(self, result: Pass) -> None:
        """Report the errors of a pass, and the recovery from earlier errors."""
        problems = result.error.problems if isinstance(result.error, InvalidError) else ()
        invalid = [tuple(problem_json(problem).items()) for problem in problems]
        named = len({problem.path for problem in problems})
        self._metrics.invalid.set(max(named, 1) if result.result is Result.INVALID else 0)
        self._report_new("invalid", invalid)
        for kind in (Result.FAILED, Result.INVALID, Result.REFUSED):
            # Problems with a position are reported as "invalid" events already.
            error = result.error if result.result is kind and not problems else None
            errors = [_of_error(error)] if error else []
            self._report_new(str(kind), errors, about="pass", same=_without_times)
        if result.error is None:
            self._recovered()
        else:
            self._stopped = True

    def _recovered(self) -> None:
        if self._stopped:
            self._stopped = False
            self._events.info("goes-on")

    def _seen(self, observed: Observed) -> None:
        self._metrics.seen(observed)
        for run in observed.runs:
            if run.resource in self._live and run.state.ended:
                error = {"error": short_error(run.error)} if run.error else {}
                self._events.info("ended", job=run.job_name, state=str(run.state), **error)
        self._live = frozenset(run.resource for run in observed.runs if not run.state.ended)

    def _report_new(
        self,
        event: str,
        findings: Iterable[Fields],
        *,
        about: str = "",
        same: Callable[[Fields], Fields] = lambda fields: fields,
    ) -> None:
        """Report the findings that the previous call with these arguments did not have.

        Args:
            event: The name of the event.
            about: A second key, for findings with the same event name and another subject.
            same: Returns the identity of a finding; findings with equal identities are the same.
        """
        self._report_changes(event, {same(fields): fields for fields in findings}, about)

    def _report_changes(self, event: str, now: Mapping[object, Fields], about: str = "") -> None:
        """Report the findings, by identity, that the previous call with these arguments did not have."""
        for identity, fields in now.items():
            if identity not in self._standing.get((event, about), frozenset()):
                self._warn(event, fields)
        self._standing[event, about] = frozenset(now)

    def _warn(self, event: str, fields: Iterable[tuple[str, Any]]) -> None:
        self._events.warning(event, **{key: value for key, value in fields if value})


def _of_commit(commit: str) -> dict[str, str]:
    return {"commit": commit} if commit else {}


def _of_error(error: ReconcilerError) -> Fields:
    return ("message", error.message), ("hint", error.hint)


def _of_drift(drift: Drift) -> Fields:
    return ("job", drift.job_name), ("kind", str(drift.kind)), ("detail", note_text(drift.detail))


def _of_results(state: TargetState) -> Iterator[Fields]:
    """Yield the jobs whose results aren't good, or aren't in their place."""
    for name, reason, _ in problems_of_results(state):
        if name.last_wanted:
            yield ("job", name.last_wanted.name), ("reason", reason_text(reason, name.name))


def _identity(drift: Drift) -> object:
    # A superseded run changes its state several times; its finding stays the same.
    values = tuple((name, value) for name, value in drift.detail.values.items() if name != "state")
    return drift.kind, drift.job_name, drift.detail.code, values


def _without_times(fields: Fields) -> Fields:
    # As above, of an apply that is refused for its checkout's commit.
    return tuple((key, _AGO.sub("", value) if isinstance(value, str) else value) for key, value in fields)


def _of_outcomes(outcomes: Iterable[Outcome], status: Status) -> Iterable[Fields]:
    return [
        (("job", outcome.change.job_name), ("error", error))
        for outcome in outcomes
        if outcome.status is status and (error := outcome_error(outcome))
    ]
