"""The watch loop: passes with the steps of `apply`, and the waits between them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial

from msgspec.structs import replace as replaced

from reconciler.base.errors import InvalidError, ReconcilerError, UsageError, machine_error
from reconciler.git.commit import commit_of
from reconciler.model.plan import Action
from reconciler.operations.apply import ApplyListener, apply
from reconciler.operations.follow_up import FollowUp, follow_up, load_or_report
from reconciler.operations.load_desired import Desired
from reconciler.operations.observed_state import state_of
from reconciler.operations.origin import exported
from reconciler.operations.plan import plan_of, wanted_of
from reconciler.operations.report import post_statuses, record_keys, recorded_state, unposted_sentences
from reconciler.operations.session import Session, open_session
from reconciler.operations.watch.health import Health
from reconciler.operations.watch.report import PassReporter
from reconciler.operations.watch.source import Source
from reconciler.operations.watch.state import Checkout, LoopCache, Pass, PassInputs, Result
from reconciler.operations.watch.wakeups import LOOKS, Chance, Stopped, Wakes, due_after
from reconciler.planning.outcome import Status
from reconciler.planning.planner import SUBMISSIONS
from reconciler.submission.look import keep_summary, look
from reconciler.submission.observe import Observed

FULL_AFTER = timedelta(hours=1)
"""Age of the last full look from which a pass makes a new one."""


@dataclass(slots=True)
class Loop:
    """Loop that runs a pass on each change and at regular intervals until it is stopped.

    Attributes:
        source: The source of manifests.
        wakes: Events that end a wait.
        reporter: Reporter of each pass.
        health: Health check, updated after each pass.
        resync: Seconds between passes without an event.
        chance: Random numbers for the backoff.
    """

    source: Source
    wakes: Wakes
    reporter: PassReporter
    health: Health
    resync: float
    chance: Chance
    _cache: LoopCache = field(default_factory=LoopCache, init=False)
    _previous: Pass | None = field(default=None, init=False)
    _failures: int = field(default=0, init=False)
    _due: float = field(default=0.0, init=False)

    def run(self) -> None:
        """Run passes; return after a stop was requested."""
        changed = False
        with suppress(Stopped):
            while not self.wakes.stopping:
                if self.source.refresh(changed) or time.monotonic() >= self._due:
                    self._pass()
                changed = self.wakes.wait(min(self._due, self.source.due) - time.monotonic())
        self.reporter.ending()

    def _pass(self) -> None:
        began, commit = time.monotonic(), ""
        try:
            checkout = self.source.checkout()
        except _ERRORS as error:
            result = failed_pass(error)
        else:
            if checkout is None:
                # The source has no commit yet; its own due time wakes the loop.
                self._due = math.inf
                return
            commit = checkout.commit
            result = run_pass(
                checkout, self._cache, self._previous, lambda: not self.wakes.stopping, self.reporter
            )
        ended = time.monotonic()
        self.health.passed()
        self.reporter.passed(result, ended - began, commit)
        if result.jobs is not None:
            self.source.follow(result.jobs)
        self._failures = self._failures + 1 if result.result is Result.FAILED else 0
        look = LOOKS[result.engine]
        self._due = ended + due_after(
            self._failures, live=result.live, look=look, resync=self.resync, chance=self.chance
        )
        # An invalid manifest changes no job, so the pass after its correction compares with the one before.
        if result.result is not Result.INVALID:
            self._previous = result


def run_pass(
    checkout: Checkout,
    cache: LoopCache,
    previous: Pass | None,
    go_on: Callable[[], bool] = lambda: True,
    listener: ApplyListener | None = None,
) -> Pass:
    """Run one pass; errors of files and services become its result.

    `go_on` is called before each submission and each wait; False stops the pass.
    """
    try:
        return _run(checkout, cache, previous, go_on, listener or ApplyListener())
    except _ERRORS as error:
        return failed_pass(error)


_ERRORS = (ReconcilerError, MemoryError, OSError)


def failed_pass(error: ReconcilerError | MemoryError | OSError) -> Pass:
    """Return the result of a pass that an error of files, of a service or of this machine ended."""
    if isinstance(error, ReconcilerError):
        mistaken = isinstance(error, InvalidError | UsageError)
        return Pass(Result.INVALID if mistaken else Result.FAILED, error)
    return Pass(Result.FAILED, machine_error(error))


def _run(
    checkout: Checkout,
    cache: LoopCache,
    previous: Pass | None,
    go_on: Callable[[], bool],
    listener: ApplyListener,
) -> Pass:
    config = checkout.settings(checkout.root)
    environment = config.environment(checkout.environment)
    opened = partial(open_session, config, environment, checkout.environ, is_exported=checkout.is_exported)
    load = partial(cache.load_desired, checkout, config, environment)
    reports: list[FollowUp] = []
    try:
        desired = load_or_report(
            config, load, partial(opened, start=True), partial(_clean_commit, checkout), reports.append
        )
    except InvalidError as error:
        return Pass(Result.INVALID, error, after=reports[0] if reports else None)

    inputs: PassInputs | None = None
    # A stopped embedded service can be read without starting it; it is started only if there is work.
    if previous and previous.rests_locally:
        with opened(start=False) as session:
            inputs = _inputs(session, checkout, desired, full_after=None)
        if previous.holds_for(inputs):
            return previous
    with opened(start=True) as session:
        inputs = inputs or _inputs(session, checkout, desired, full_after=FULL_AFTER)
        if previous and previous.holds_for(inputs):
            return _repeat(session, desired, previous, inputs)
        if environment.engine == "google" and (reason := checkout.held(desired)):
            return _held(session, desired, previous, inputs, reason)
        origin = exported(checkout.commit, desired) if checkout.is_exported else None
        applied = apply(session, desired, inputs.observed, listener, origin=origin, go_on=go_on)
        if applied.is_older:
            # The claims and statuses are those of the newer commit, whose appliers keep them.
            after = FollowUp(inputs.observed)
        else:
            after = follow_up(session, desired, applied, full_after=FULL_AFTER)
    failed = after.observed is None or any(outcome.status is Status.FAILED for outcome in applied.outcomes)
    return Pass(
        Result.REFUSED if applied.refused else Result.FAILED if failed else Result.SUCCEEDED,
        applied.refused,
        environment.engine,
        desired.jobs,
        applied.plan,
        applied.outcomes,
        after,
        inputs,
        applied.origin,
        steady=previous is not None and previous.inputs == inputs,
        warnings=desired.warnings,
    )


def _inputs(
    session: Session, checkout: Checkout, desired: Desired, *, full_after: timedelta | None
) -> PassInputs:
    """Look at the target; `full_after` is that of `look`, None for a service that may be stopped."""
    # The keys of the records too: the look after a pass has them, and equal looks mean that nothing changed.
    wanted, also = wanted_of(desired.jobs), record_keys(session)
    seen = look(session.ports, wanted, also, full_after=full_after)
    # Here too: a pass without changes has no look after it, and the next one would be full again.
    if full_after and seen.full:
        keep_summary(session.ports, seen, wanted, also)
    return PassInputs(session.config, checkout.commit, desired.jobs, seen.observed)


def _clean_commit(checkout: Checkout) -> str | None:
    """Return the commit whose files the checkout has unchanged; None for none."""
    return checkout.commit if checkout.is_exported else commit_of(checkout.root, checkout.environ)


def _held(session: Session, desired: Desired, previous: Pass | None, inputs: PassInputs, reason: str) -> Pass:
    """Return the result of a pass that only posts statuses, as `report` does; `reason` is why."""
    plan = plan_of(session, desired, state_of(session, desired, inputs.observed))
    acting = (*SUBMISSIONS, Action.CANCEL, Action.PUBLISH)
    waits = any(change.action in acting for change in plan.changes)
    # What the tree lacks at this moment wasn't removed, and it is no commit's.
    after = _post(session, replaced(desired, whole=False), inputs.observed, "")
    return Pass(
        Result.SUCCEEDED,
        engine=session.environment.engine,
        jobs=desired.jobs,
        after=after,
        inputs=inputs,
        steady=previous is not None and previous.inputs == inputs,
        warnings=desired.warnings,
        held=reason if waits else "",
    )


def _repeat(session: Session, desired: Desired, previous: Pass, inputs: PassInputs) -> Pass:
    """Return the previous result again, after posting the statuses that are still due."""
    after = _post(session, desired, inputs.observed, previous.origin.exact)
    return replace(previous, after=after, inputs=inputs, steady=True)


def _post(session: Session, desired: Desired, observed: Observed, commit: str) -> FollowUp:
    """Post the statuses that are due; `commit` is the one with exactly the desired jobs, "" for none."""
    try:
        failed = post_statuses(session, desired, recorded_state(session, desired, observed), commit).failed
        return FollowUp(observed, tuple(unposted_sentences(failed)), len(failed))
    except ReconcilerError as error:
        return FollowUp(observed, (error.message,))
