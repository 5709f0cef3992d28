"""The watch loop: passes with the steps of `apply`, and the waits between them."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from reconciler.base.errors import InvalidError, ReconcilerError, RefusedError, ServiceError, UsageError
from reconciler.git.commit import commit_of
from reconciler.google.session import Session, open_session
from reconciler.operations.apply import Settled, carry_out, check_limits, invalid, origin_for, refused, settle
from reconciler.operations.execute import PATIENCE, applier_of
from reconciler.operations.load_desired import Desired
from reconciler.operations.origin import Origin, exported
from reconciler.operations.plan import plan_of
from reconciler.operations.report import post_statuses, unposted_sentences
from reconciler.operations.watch.http import Health
from reconciler.operations.watch.report import Teller
from reconciler.operations.watch.source import Source
from reconciler.operations.watch.state import Checkout, LoopCache, Pass, PassInputs, Result
from reconciler.operations.watch.wakeups import LOOKS, Chance, Stopped, Wakes, due_after
from reconciler.planning.outcome import Outcome, Status
from reconciler.reporting.github.settings import github_settings
from reconciler.submission.observe import observe

Done = Callable[[Sequence[Outcome], Origin], None]


@dataclass(slots=True)
class Loop:
    """Loop that runs a pass on each change and at regular intervals until it is stopped.

    Attributes:
        source: The source of manifests.
        wakes: Events that end a wait.
        teller: Reporter of each pass.
        health: Health check, updated after each pass.
        resync: Seconds between passes without an event.
        chance: Random numbers for the backoff.
    """

    source: Source
    wakes: Wakes
    teller: Teller
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
                if self.source.refresh() or changed or time.monotonic() >= self._due:
                    self._pass(self.source.checkout())
                changed = self.wakes.wait(min(self._due, self.source.due) - time.monotonic())
        self.teller.ending()

    def _pass(self, checkout: Checkout | None) -> None:
        if checkout is None:
            # The source has no commit yet; its own due time wakes the loop.
            self._due = math.inf
            return
        began = time.monotonic()
        result = run_pass(
            checkout,
            self._cache,
            self._previous,
            lambda: not self.wakes.stopping,
            self.teller.waiting,
            self.teller.carried_out,
        )
        ended = time.monotonic()
        self.health.passed()
        self.teller.passed(result, ended - began, checkout.commit)
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
    go_on: Callable[[], bool],
    tell: Callable[[str], None],
    done: Done = lambda outcomes, origin: None,
) -> Pass:
    """Run one pass; errors of files and services become its result.

    Args:
        checkout: The files to apply.
        cache: The loop's caches.
        previous: The previous pass.
        go_on: Called before each submission and each wait; False stops the pass.
        tell: Called with a line about each wait.
        done: Called with the plan's outcomes and the jobs' commit before the state is observed again.
    """
    try:
        return _run(checkout, cache, previous, go_on, tell, done)
    except (InvalidError, UsageError) as error:
        return Pass(Result.INVALID, error)
    except ReconcilerError as error:
        return Pass(Result.FAILED, error)
    except OSError as error:
        named = f": {error.filename}" if error.filename else ""
        return Pass(Result.FAILED, ServiceError(f"{error.strerror or error}{named}"))


def _run(
    checkout: Checkout,
    cache: LoopCache,
    previous: Pass | None,
    go_on: Callable[[], bool],
    tell: Callable[[str], None],
    done: Done,
) -> Pass:
    config = checkout.settings(checkout.root)
    posts_statuses = github_settings(config.github, os.environ, config.root) is not None
    # An invalid manifest is reported to the commit only if the files matched it before and after loading.
    commit_before = _clean_commit(checkout) if posts_statuses else None
    environment = config.environment(checkout.environment)
    opened = partial(open_session, config, environment, checkout.environ, memory=cache.service)
    try:
        desired = cache.load_desired(checkout, config, environment)
    except InvalidError as error:
        if not posts_statuses:
            raise
        commit = commit_before if commit_before == _clean_commit(checkout) else None
        with opened(start=True) as session:
            problems = invalid(session, commit or "", error)
        return Pass(Result.INVALID, error, settled=Settled(None, tuple(problems), len(problems)))

    inputs: PassInputs | None = None
    # A stopped embedded service can be read without starting it; it is started only if there is work.
    if previous and previous.rests_locally:
        with opened(start=False) as session:
            inputs = PassInputs(config, checkout.commit, desired.jobs, observe(session.ports))
        if previous.holds_for(inputs):
            return previous
    with opened(start=True) as session:
        inputs = inputs or PassInputs(config, checkout.commit, desired.jobs, observe(session.ports))
        if previous and previous.holds_for(inputs):
            return _repeat(session, desired, previous, inputs)
        return _apply(session, checkout, desired, inputs, previous, go_on, tell, done)


def _clean_commit(checkout: Checkout) -> str | None:
    """Return the commit whose files the checkout has unchanged; None for none."""
    return checkout.commit if checkout.is_exported else commit_of(checkout.root, checkout.environ)


def _repeat(session: Session, desired: Desired, previous: Pass, inputs: PassInputs) -> Pass:
    """Return the previous result again, after posting the statuses that are still due."""
    try:
        failed = post_statuses(session, desired, inputs.observed, previous.origin.exact)
        settled = Settled(inputs.observed, tuple(unposted_sentences(failed)), len(failed))
    except ReconcilerError as error:
        settled = Settled(inputs.observed, (error.message,))
    return replace(previous, settled=settled, inputs=inputs, steady=True)


def _apply(
    session: Session,
    checkout: Checkout,
    desired: Desired,
    inputs: PassInputs,
    previous: Pass | None,
    go_on: Callable[[], bool],
    tell: Callable[[str], None],
    done: Done,
) -> Pass:
    plan = plan_of(session, desired, inputs.observed, whole=True)
    if checkout.is_exported:
        origin = exported(checkout.commit, desired)
    else:
        origin = origin_for(session, desired, plan)
    applier = applier_of(session, desired, origin.commit_of, PATIENCE, tell, go_on)
    stop: RefusedError | None = None
    outcomes: list[Outcome] = []
    try:
        check_limits(session, plan)
        outcomes = carry_out(session, applier, plan, origin)
        done(outcomes, origin)
        settled = settle(session, applier, desired, plan, outcomes, origin)
    except RefusedError as error:
        stop, settled = error, refused(session, applier, desired, plan, error, origin)
    failed = settled.observed is None or any(outcome.status is Status.FAILED for outcome in outcomes)
    result = Result.REFUSED if stop else Result.FAILED if failed else Result.SUCCEEDED
    steady = previous is not None and previous.inputs == inputs
    engine = session.environment.engine
    return Pass(result, stop, engine, desired.jobs, plan, outcomes, settled, inputs, origin, steady)
