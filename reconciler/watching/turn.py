"""One pass of the loop: like one `apply`, but whatever ends it is a value."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from reconciler.apply import PATIENCE, applier_of
from reconciler.claim import ClaimState
from reconciler.config import Config, Environment, load_config
from reconciler.desired import Desired
from reconciler.errors import InvalidError, ReconcilerError, RefusedError, ServiceError, UsageError
from reconciler.onepass import Settled, brake, carry_out, invalid, refused, settle
from reconciler.plan import Action, DesiredJob, Plan
from reconciler.planning.outcome import Outcome, Status
from reconciler.reconcile import plan_of, wanted
from reconciler.reporters.settings import github_settings
from reconciler.session import Session, open_session
from reconciler.submission.observation import Observed, observe


class Result(StrEnum):
    """How a pass ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INVALID = "invalid"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class Checkout:
    """What a pass is about.

    Attributes:
        root: The repository's root.
        commit: What is checked out there; "" where that isn't exactly a commit.
        environ: The environment variables.
        environment: The environment's name; None for the one that is there without being written.
        settings: Reads the settings at the root; raises InvalidError.
    """

    root: Path
    commit: str
    environ: Mapping[str, str]
    environment: str | None
    settings: Callable[[Path], Config] = load_config


@dataclass(frozen=True, slots=True)
class Seen:
    """All that a pass decides by, but for the time."""

    commit: str
    jobs: tuple[DesiredJob, ...]
    observed: Observed


@dataclass(frozen=True, slots=True)
class Turn:
    """What came of one pass.

    Attributes:
        result: How it ended.
        error: What ended it before its time; None where nothing did.
        engine: The environment's.
        jobs: The wanted jobs; None where they weren't read.
        plan: What was decided; None where nothing was.
        outcomes: What came of it.
        settled: What there was afterwards; None where nobody looked.
        seen: What it was decided by.
        steady: Whether the pass before had decided by the same.
    """

    result: Result
    error: ReconcilerError | None = None
    engine: str = "local"
    jobs: tuple[DesiredJob, ...] | None = None
    plan: Plan | None = None
    outcomes: Sequence[Outcome] = ()
    settled: Settled | None = None
    seen: Seen | None = None
    steady: bool = False

    @property
    def live(self) -> bool:
        """Whether the next pass may soon see more: of a job, of a submission, or of what this one did."""
        observed = self.settled.observed if self.settled else None
        if observed is None:
            return False
        pending = any(claim.state is ClaimState.PENDING for claim in observed.known.values())
        return pending or not self.steady or any(not run.state.ended for run in observed.runs)

    @property
    def at_rest(self) -> bool:
        """Whether nothing is left to do or to tell until something else changes."""
        done = self.plan is not None and all(c.action is Action.NONE for c in self.plan.changes)
        kept = self.settled is not None and not self.settled.problems
        return self.result is Result.SUCCEEDED and done and kept and not self.live


def one_turn(
    checkout: Checkout, before: Turn | None, go_on: Callable[[], bool], tell: Callable[[str], None]
) -> Turn:
    """One pass; nothing that a file or a service says raises.

    Args:
        checkout: What is wanted.
        before: The last pass.
        go_on: Asked before each submission and each wait.
        tell: Gets a line about what is waited for.
    """
    try:
        return _turn(checkout, before, go_on, tell)
    except (InvalidError, UsageError) as error:
        return Turn(Result.INVALID, error)
    except ReconcilerError as error:
        return Turn(Result.FAILED, error)
    except OSError as error:
        named = f": {error.filename}" if error.filename else ""
        return Turn(Result.FAILED, ServiceError(f"{error.strerror or error}{named}"))


def _turn(
    checkout: Checkout, before: Turn | None, go_on: Callable[[], bool], tell: Callable[[str], None]
) -> Turn:
    config = checkout.settings(checkout.root)
    github_settings(config.github, os.environ)
    environment = config.environment(checkout.environment)
    try:
        desired = wanted(config, environment, [])
    except InvalidError as error:
        if github_settings(config.github, os.environ):
            with open_session(config, environment, checkout.environ, start=True) as session:
                problems = invalid(session, checkout.commit, error)
            return Turn(Result.INVALID, error, settled=Settled(None, tuple(problems), len(problems)))
        raise
    if before and before.at_rest and environment.engine == "local":
        # A service that rests is looked at and not woken.
        with open_session(config, environment, checkout.environ, start=False) as session:
            if Seen(checkout.commit, desired.jobs, observe(session.ports)) == before.seen:
                return before
    with open_session(config, environment, checkout.environ, start=True) as session:
        return _carried_out(session, environment, desired, checkout.commit, before, go_on, tell)


def _carried_out(
    session: Session,
    environment: Environment,
    desired: Desired,
    commit: str,
    before: Turn | None,
    go_on: Callable[[], bool],
    tell: Callable[[str], None],
) -> Turn:
    seen = Seen(commit, desired.jobs, observe(session.ports))
    plan = plan_of(session, desired, seen.observed, whole=True)
    applier = applier_of(session, desired, commit, PATIENCE, tell, go_on)
    stop: RefusedError | None = None
    outcomes: list[Outcome] = []
    try:
        brake(session, plan)
        outcomes = carry_out(session, applier, plan)
        settled = settle(session, applier, desired, plan, outcomes)
    except RefusedError as error:
        stop, settled = error, refused(session, applier, desired, plan, error)
    failed = settled.observed is None or any(outcome.status is Status.FAILED for outcome in outcomes)
    result = Result.REFUSED if stop else Result.FAILED if failed else Result.SUCCEEDED
    steady = before is not None and before.seen == seen
    return Turn(result, stop, environment.engine, desired.jobs, plan, outcomes, settled, seen, steady)
