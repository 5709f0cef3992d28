"""One pass of the loop: like one `apply`, but whatever ends it is a value."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from reconciler.base.errors import InvalidError, ReconcilerError, RefusedError, ServiceError, UsageError
from reconciler.git.commit import commit_of
from reconciler.google.incremental import Memory
from reconciler.google.session import Session, open_session
from reconciler.manifests.cache import ManifestCache
from reconciler.manifests.cache import Memory as ManifestMemory
from reconciler.manifests.settings import Config, Environment, load_config
from reconciler.model.claim import ClaimState
from reconciler.model.plan import Action, DesiredJob, Plan
from reconciler.operations.apply import (
    Settled,
    brake,
    carry_out,
    invalid,
    origin_for,
    refused,
    settle,
    tell_commits,
    unposted,
)
from reconciler.operations.execute import PATIENCE, applier_of
from reconciler.operations.load_desired import Desired, load_desired
from reconciler.operations.origin import NO_ORIGIN, Origin, exported
from reconciler.operations.plan import plan_of
from reconciler.planning.outcome import Outcome, Status
from reconciler.reporting.github.settings import github_settings
from reconciler.submission.observe import Observed, observe

Done = Callable[[Sequence[Outcome], Origin], None]


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
        commit: The commit that is checked out there, whatever its files are like now; "" for none.
        environ: The environment variables.
        environment: The environment's name; None for the one that is there without being written.
        settings: Reads the settings at the root; raises InvalidError.
        is_exported: Whether this process laid the files out from the commit, in a folder of its own: then
            they are the commit's by construction, and are not compared with it.
    """

    root: Path
    commit: str
    environ: Mapping[str, str]
    environment: str | None
    settings: Callable[[Path], Config] = load_config
    is_exported: bool = False


@dataclass(frozen=True, slots=True)
class Seen:
    """All that a pass decides by, but for the time."""

    config: Config
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
        origin: The commit of its jobs.
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
    origin: Origin = NO_ORIGIN
    steady: bool = False

    @property
    def live(self) -> bool:
        """Whether the next pass may soon see more: of a job, of a submission, or of what this one did."""
        observed = self.settled.observed if self.settled else None
        if observed is None:
            return False
        return not self.steady or self._is_pending or any(not run.state.ended for run in observed.runs)

    @property
    def at_rest(self) -> bool:
        """Whether nothing is left to do or to tell until something else changes."""
        return self._is_done and not self.live

    @property
    def rests_locally(self) -> bool:
        """Whether the embedded service is only looked at, and isn't woken for it."""
        return self.at_rest and self.engine == "local"

    def holds_for(self, seen: Seen) -> bool:
        """Whether a pass that decides by this would, like this one, do nothing, and leave the same behind."""
        as_left = self.settled is not None and self.settled.observed == seen.observed
        # What isn't known yet may be found out by waiting alone.
        # The reason for a missing commit may be temporary: compare again.
        is_known = not self._is_pending and not self.origin.reason
        return self._is_done and is_known and as_left and self.seen == seen

    @property
    def _is_done(self) -> bool:
        planned = self.plan is not None and all(c.action is Action.NONE for c in self.plan.changes)
        kept = self.settled is not None and not self.settled.problems
        return self.result is Result.SUCCEEDED and planned and kept

    @property
    def _is_pending(self) -> bool:
        observed = self.settled.observed if self.settled else None
        claims = observed.known.values() if observed else ()
        return any(claim.state is ClaimState.PENDING for claim in claims)


class Remembered:
    """What a loop remembers from one pass to the next, so that a pass reads and asks only for what is news.

    It is about one root and one environment; where those turn out to be others, they are read anew. What it
    holds is bounded by what is there.

    Attributes:
        service: What was seen of claims and runs.
        manifests: The known manifests; None before the first pass.
        ahead: What `look_ahead` saw, and by which settings; None where it didn't.
    """

    def __init__(self) -> None:
        self.service = Memory()
        self.ahead: tuple[Config, Observed] | None = None
        self.manifests: ManifestMemory | None = None

    def load_desired(self, checkout: Checkout, config: Config, environment: Environment) -> Desired:
        """Return the jobs that the checkout's manifests ask for; raises InvalidError with every problem.

        The first pass loads the cache on disk and updates it for later commands.
        """
        if self.manifests is not None:
            return load_desired(config, environment, [], self.manifests)
        cache = ManifestCache(config.root, frozenset(environment.defaults), checkout.environ)
        self.manifests = cache.load()
        try:
            return load_desired(config, environment, [], self.manifests)
        finally:
            cache.save(self.manifests)


def one_turn(
    checkout: Checkout,
    remembered: Remembered,
    before: Turn | None,
    go_on: Callable[[], bool],
    tell: Callable[[str], None],
    done: Done = lambda outcomes, origin: None,
) -> Turn:
    """One pass; nothing that a file or a service says raises.

    Args:
        checkout: What is wanted.
        remembered: What the passes before have left.
        before: The last pass.
        go_on: Asked before each submission and each wait.
        tell: Gets a line about what is waited for.
        done: Gets what came of the plan, and the commit of its jobs, before the service is observed again.
    """
    try:
        return _turn(checkout, remembered, before, go_on, tell, done)
    except (InvalidError, UsageError) as error:
        return Turn(Result.INVALID, error)
    except ReconcilerError as error:
        return Turn(Result.FAILED, error)
    except OSError as error:
        named = f": {error.filename}" if error.filename else ""
        return Turn(Result.FAILED, ServiceError(f"{error.strerror or error}{named}"))


def look_ahead(checkout: Checkout, remembered: Remembered, before: Turn) -> None:
    """Look at the service for the next pass, which may follow soon; nothing that the service says raises.

    Args:
        checkout: That of the last pass.
        remembered: What the passes before have left, and where what is seen is put.
        before: The last pass.
    """
    if before.seen is None or before.result is not Result.SUCCEEDED:
        return
    config = before.seen.config
    environment = config.environment(checkout.environment)
    start = not before.rests_locally
    # Where it fails, the pass looks by itself, and tells why it can't.
    with (
        suppress(ReconcilerError, OSError),
        open_session(
            config, environment, checkout.environ, start=start, memory=remembered.service
        ) as session,
    ):
        remembered.ahead = config, observe(session.ports)


def _turn(
    checkout: Checkout,
    remembered: Remembered,
    before: Turn | None,
    go_on: Callable[[], bool],
    tell: Callable[[str], None],
    done: Done,
) -> Turn:
    ahead, remembered.ahead = remembered.ahead, None
    config = checkout.settings(checkout.root)
    is_told = github_settings(config.github, os.environ, config.root) is not None
    before_reading = _clean_commit(checkout) if is_told else None
    environment = config.environment(checkout.environment)

    def opened(*, start: bool) -> AbstractContextManager[Session]:
        return open_session(config, environment, checkout.environ, start=start, memory=remembered.service)

    try:
        desired = remembered.load_desired(checkout, config, environment)
    except InvalidError as error:
        if is_told:
            commit = before_reading if before_reading == _clean_commit(checkout) else None
            with opened(start=True) as session:
                problems = invalid(session, commit or "", error)
            return Turn(Result.INVALID, error, settled=Settled(None, tuple(problems), len(problems)))
        raise

    def seen_in(session: Session) -> Seen:
        return Seen(config, checkout.commit, desired.jobs, observe(session.ports))

    seen: Seen | None = None
    if ahead and ahead[0] == config:
        seen = Seen(config, checkout.commit, desired.jobs, ahead[1])
    if before and before.rests_locally:
        if seen is None:
            with opened(start=False) as session:
                seen = seen_in(session)
        if before.holds_for(seen):
            return before
    with opened(start=True) as session:
        seen = seen or seen_in(session)
        if before and before.holds_for(seen):
            return _again(session, desired, before, seen)
        return _carried_out(session, checkout, desired, seen, before, go_on, tell, done)


def _clean_commit(checkout: Checkout) -> str | None:
    """Return the commit that the files are exactly; None for none."""
    return checkout.commit if checkout.is_exported else commit_of(checkout.root, checkout.environ)


def _again(session: Session, desired: Desired, before: Turn, seen: Seen) -> Turn:
    """The last pass once more: there is nothing to decide, to do or to keep, and no need of a second look."""
    try:
        unsaid = tell_commits(session, desired, seen.observed, before.origin.exact)
        settled = Settled(seen.observed, tuple(unposted(unsaid)), len(unsaid))
    except ReconcilerError as error:
        settled = Settled(seen.observed, (error.message,))
    return replace(before, settled=settled, seen=seen, steady=True)


def _carried_out(
    session: Session,
    checkout: Checkout,
    desired: Desired,
    seen: Seen,
    before: Turn | None,
    go_on: Callable[[], bool],
    tell: Callable[[str], None],
    done: Done,
) -> Turn:
    plan = plan_of(session, desired, seen.observed, whole=True)
    if checkout.is_exported:
        origin = exported(checkout.commit, desired)
    else:
        origin = origin_for(session, desired, plan)
    applier = applier_of(session, desired, origin.commit_of, PATIENCE, tell, go_on)
    stop: RefusedError | None = None
    outcomes: list[Outcome] = []
    try:
        brake(session, plan)
        outcomes = carry_out(session, applier, plan, origin)
        done(outcomes, origin)
        settled = settle(session, applier, desired, plan, outcomes, origin)
    except RefusedError as error:
        stop, settled = error, refused(session, applier, desired, plan, error, origin)
    failed = settled.observed is None or any(outcome.status is Status.FAILED for outcome in outcomes)
    result = Result.REFUSED if stop else Result.FAILED if failed else Result.SUCCEEDED
    steady = before is not None and before.seen == seen
    engine = session.environment.engine
    return Turn(result, stop, engine, desired.jobs, plan, outcomes, settled, seen, origin, steady)
