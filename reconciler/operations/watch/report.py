"""What the loop tells of its passes: each thing once, when it happens."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from reconciler.base.errors import InvalidError, ReconcilerError
from reconciler.model.job import State
from reconciler.model.plan import Action, Drift
from reconciler.operations.origin import Origin, uncarried
from reconciler.operations.watch.http import Metrics
from reconciler.operations.watch.state import Pass, Result
from reconciler.output.json import problem_json
from reconciler.output.text import short_error
from reconciler.planning.limits import SUBMISSIONS
from reconciler.planning.outcome import Outcome, Status
from reconciler.submission.observe import Observed

Said = tuple[tuple[str, Any], ...]
"""The fields of an event."""


_STATES = re.compile(rf"\b(?:{'|'.join(State)})\b", re.IGNORECASE)


def _as_it_is(said: Said) -> Said:
    return said


class Teller:
    """Turns passes into events and metrics.

    Args:
        events: The structlog logger.
        metrics: The figures.
    """

    def __init__(self, events: Any, metrics: Metrics) -> None:
        self._events = events
        self._metrics = metrics
        self._standing: dict[tuple[str, str], frozenset[Said]] = {}
        self._stopped = False
        self._live: frozenset[str] = frozenset()

    def listening(self, url: str) -> None:
        """Health and metrics are to be had."""
        self._events.info("listening", url=url)

    def waiting(self, line: str) -> None:
        """A pass waits for something."""
        self._events.info("waiting", message=line)

    def fetched(self, commit: str, error: ReconcilerError | None) -> None:
        """The remote branch was looked at."""
        if error:
            self._metrics.fetch_failed()
        failed_before = self._standing.get(("not-fetched", ""))
        self._stands("not-fetched", [_of_error(error)] if error else [])
        if failed_before and not error:
            self._events.info("goes-on", message="the branch can be fetched again")
        if commit:
            self._events.info("fetched", commit=commit)

    def not_watched(self, problem: str) -> None:
        """Why changes of some files aren't seen; "" where all are."""
        self._stands("not-watched", [(("message", problem),)] if problem else [])

    def ending(self) -> None:
        """The end was asked for."""
        self._events.info("ending")

    def carried_out(self, outcomes: Sequence[Outcome], origin: Origin) -> None:
        """Tell what came of a plan, and the commits that its jobs carry."""
        self._goes_on()
        applied = [outcome for outcome in outcomes if outcome.status is Status.APPLIED]
        submitted = [outcome for outcome in applied if outcome.change.action in SUBMISSIONS]
        self._metrics.submitted(len(submitted))
        for line in uncarried(origin, [o.change.desired for o in submitted if o.change.desired]):
            self._events.warning("no-commit", message=line)
        for outcome in submitted:
            desired = outcome.change.desired
            commit = origin.commit_of(desired) if desired else ""
            self._events.info("submitted", job=outcome.change.job_name, **_of_commit(commit))
        # One that is quick has ended before it is seen for the first time.
        self._live |= {outcome.resource for outcome in submitted}
        for outcome in applied:
            if outcome.change.action is Action.CANCEL:
                self._events.info("cancelled", job=outcome.change.job_name, state=str(outcome.state))

    def passed(self, result: Pass, seconds: float, commit: str) -> None:
        """A pass ended, and `carried_out` was told of what it did."""
        self._metrics.passed(result.result, seconds)
        self._wrong(result)
        self._stands("failed", _of_outcomes(result.outcomes, Status.FAILED))
        self._stands("blocked", _of_outcomes(result.outcomes, Status.SKIPPED))
        if result.plan:
            self._metrics.drifted(result.plan.drift)
            self._stands("drift", map(_of_drift, result.plan.drift), same=_but_for_states)
        if result.settled:
            self._metrics.unposted(result.settled.unposted)
            self._stands("not-kept", ((("message", problem),) for problem in result.settled.problems))
            if result.settled.observed:
                self._seen(result.settled.observed)
        done = any(outcome.status is Status.APPLIED for outcome in result.outcomes)
        told = self._events.info if done else self._events.debug
        told("pass", result=str(result.result), seconds=round(seconds, 3), **_of_commit(commit))

    def _wrong(self, result: Pass) -> None:
        """What keeps a pass from doing its work; what no longer does is told too."""
        problems = result.error.problems if isinstance(result.error, InvalidError) else ()
        invalid = [tuple(problem_json(problem).items()) for problem in problems]
        named = len({problem.path for problem in problems})
        self._metrics.invalid(max(named, 1) if result.result is Result.INVALID else 0)
        self._stands("invalid", invalid)
        for kind in (Result.FAILED, Result.INVALID, Result.REFUSED):
            # Mistakes that have a place say it all.
            error = result.error if result.result is kind and not problems else None
            self._stands(str(kind), [_of_error(error)] if error else [], about="pass")
        if result.error is None:
            self._goes_on()
        else:
            self._stopped = True

    def _goes_on(self) -> None:
        """Tell that what kept passes from their work no longer does."""
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

    def _stands(
        self, what: str, found: Iterable[Said], *, about: str = "", same: Callable[[Said], Said] = _as_it_is
    ) -> None:
        """Tell what is found and wasn't the last time; what is told `about` something else is apart.

        Those of which `same` makes the same are one.
        """
        now = {same(said): said for said in found}
        for identity, said in now.items():
            if identity not in self._standing.get((what, about), frozenset()):
                self._events.warning(what, **{key: value for key, value in said if value})
        self._standing[what, about] = frozenset(now)


def _of_commit(commit: str) -> dict[str, str]:
    return {"commit": commit} if commit else {}


def _of_error(error: ReconcilerError) -> Said:
    return ("message", error.message), ("hint", error.hint)


def _of_drift(found: Drift) -> Said:
    return ("job", found.job_name), ("kind", str(found.kind)), ("detail", found.detail)


def _but_for_states(said: Said) -> Said:
    """A finding without the states in its detail: a run that is superseded goes from one to the next."""
    return tuple((key, _STATES.sub("", value) if key == "detail" else value) for key, value in said)


def _of_outcomes(outcomes: Iterable[Outcome], status: Status) -> Iterable[Said]:
    return [
        (("job", outcome.change.job_name), ("error", outcome.error))
        for outcome in outcomes
        if outcome.status is status and outcome.error
    ]
