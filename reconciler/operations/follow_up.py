"""Updates of claims and commit statuses after an apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from datetime import timedelta

from msgspec.structs import replace as replaced

from reconciler.base.errors import InvalidError, ReconcilerError
from reconciler.manifests.settings import Config
from reconciler.model.claim import ClaimId
from reconciler.model.plan import Action
from reconciler.operations.apply import Applied
from reconciler.operations.load_desired import Desired
from reconciler.operations.plan import plan_of, wanted_of
from reconciler.operations.report import (
    Reported,
    post_invalid,
    post_reason,
    post_statuses,
    posts_statuses,
    record_keys,
    recorded_state,
    report_problems,
)
from reconciler.operations.session import Session
from reconciler.output.wording.plan import outcome_error
from reconciler.planning.attempts import keys_of
from reconciler.planning.outcome import Status
from reconciler.planning.state import TargetState
from reconciler.submission.claims_upkeep import newly_failed
from reconciler.submission.look import FULL_AFTER, keep_summary, look
from reconciler.submission.observe import Observed


@dataclass(frozen=True, slots=True)
class FollowUp:
    """State after an apply.

    Attributes:
        observed: Claims and runs; None if the service could not be read.
        problems: Claims and statuses that could not be updated, a sentence for each.
        unposted: The number of commit statuses that could not be posted.
        denied: Those problems whose reason is a permission that the workflow lacks.
        state: What exists under each base name then; None if it could not be read.
        failures: The names of the runs whose failed end was news, sorted.
    """

    observed: Observed | None
    problems: tuple[str, ...] = ()
    unposted: int = 0
    denied: tuple[str, ...] = ()
    state: TargetState | None = None
    failures: tuple[str, ...] = ()


def load_or_report(
    config: Config,
    load: Callable[[], Desired],
    open_session: Callable[[], AbstractContextManager[Session]],
    commit_of_files: Callable[[], str | None],
    reported: Callable[[FollowUp], None],
) -> Desired:
    """Load the desired jobs; if statuses are posted, report invalid manifests to their commit.

    Args:
        open_session: Opens the environment, only for a report.
        commit_of_files: Returns the commit that equals the files; None for none.
        reported: Called after a report.

    Raises:
        InvalidError: The manifests, or the settings for GitHub, are invalid.
    """
    # Checked first, so that an invalid setting stops an apply before its first write.
    if not posts_statuses(config):
        return load()
    before = commit_of_files()
    try:
        return load()
    except InvalidError as error:
        with open_session() as session:
            # Files that could not be read completely can't be compared: the commit before and after loading
            # reveals a switch of branches.
            commit = before if before and commit_of_files() == before else ""
            try:
                report = _with_reported(FollowUp(None), post_invalid(session, commit, error))
            except ReconcilerError as other:
                report = FollowUp(None, (other.message,), 1)
        reported(report)
        raise


def _with_reported(report: FollowUp, reported: Reported) -> FollowUp:
    """Add what could not be posted, and what was news."""
    problems, denied = report_problems(reported)
    return replace(
        report,
        problems=(*report.problems, *problems),
        unposted=report.unposted + len(reported.failed),
        denied=(*report.denied, *denied),
        failures=tuple(sorted({*report.failures, *reported.failures.names})),
    )


def follow_up(
    session: Session,
    desired: Desired,
    applied: Applied,
    *,
    full: bool = False,
    full_after: timedelta | None = FULL_AFTER,
    comments: bool = False,
) -> FollowUp:
    """Update claims and commit statuses with the observed state; post the reason for a refused plan.

    Errors become problems of the result, since the jobs are not affected; the next pass tries again. A plan
    that was refused for its checkout's commit leaves everything as it is: the claims and statuses are those
    of the newer commit.

    Args:
        full, full_after: As for `look`.
        comments: As for `post_statuses`.
    """
    if applied.is_older:
        return FollowUp(None)
    state = _update(session, desired, applied, full, full_after, comments)
    if applied.refused is None:
        return state
    refused = f"refused: {applied.refused.message}"
    return _with_reported(state, Reported(post_reason(session, applied.origin.exact, refused)))


def _update(
    session: Session,
    desired: Desired,
    applied: Applied,
    full: bool,
    full_after: timedelta | None,
    comments: bool,
) -> FollowUp:
    errors = {
        outcome.change.base_name: error
        for outcome in applied.outcomes
        if outcome.status is not Status.APPLIED
        and (outcome.change.desired or outcome.change.publication)
        and (error := outcome_error(outcome, outcome.change.base_name))
    }
    observed = state = None
    try:
        # Observed again after the changes: a claim must not get a state from before them.
        wanted, also = wanted_of(desired.jobs), record_keys(session)
        seen = look(session.ports, wanted, also, full=full, full_after=full_after)
        state = recorded_state(session, desired, seen.observed)
        # The summary keeps what a plan had to read.
        in_place = state.in_place
        observed = replaced(seen.observed, folders=state.folders, metrics=state.metrics, in_place=in_place)
        seen = replaced(seen, observed=observed)
        ended = newly_failed(observed, wanted)
        not_updated = applied.applier.upkeep(desired.jobs, observed)
        keep_summary(session.ports, seen, wanted, also, whole=applied.plan.whole)
        # The statuses of a checkout that is behind are those of the newer commit.
        reported = Reported()
        if not applied.tree.is_behind:
            reported = post_statuses(session, desired, state, applied.origin.exact, errors, comments=comments)
    except ReconcilerError as error:
        said = f"{error.message} ({error.hint})" if error.hint else error.message
        return FollowUp(observed, (said,), state=state)
    posts = posts_statuses(session.config)
    unposted = {id: name for id, name in ended.items() if not posts or id in reported.failures.unposted}
    failures = () if not unposted else _unretried(session, desired, state, unposted)
    return _with_reported(FollowUp(observed, (*not_updated,), state=state, failures=failures), reported)


def _unretried(
    session: Session, desired: Desired, state: TargetState, failed: Mapping[ClaimId, str]
) -> tuple[str, ...]:
    """Return the names of those failed runs that no further attempt follows."""
    changes = (c for c in plan_of(session, desired, state).changes if c.action is Action.RETRY)
    retried = {key for change in changes if change.desired for key in keys_of(change.desired)}
    return tuple(name for id, name in failed.items() if id.key not in retried)
