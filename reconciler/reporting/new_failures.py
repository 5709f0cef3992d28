"""Failed ends that a report is the first to post: the run of the workflow that finds one is red, once."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from reconciler.model.claim import ClaimId
from reconciler.reporting.github.statuses import Failed, Outdated, Posted
from reconciler.reporting.status import run_of
from reconciler.reporting.status_rules import DueStatuses


class NewFailures(Struct, frozen=True):
    """Failed ends of one report.

    Attributes:
        names: The names of the runs whose failure it was the first to post.
        unposted: The attempts whose failure could not be posted: it isn't known if it is new.
    """

    names: frozenset[str] = frozenset()
    unposted: frozenset[ClaimId] = frozenset()


def new_failures(
    due: Iterable[tuple[str, DueStatuses]],
    outcomes: Mapping[str, Sequence[Posted | Outdated | Failed]],
    overall: str,
) -> NewFailures:
    """Return the failed ends that were news.

    Such an end is news if its status was posted where the commit showed no failure of the same run. A commit
    with too many jobs for a status of each shows its overall status alone: its turn to red is the news.

    Args:
        due: The commits with their statuses.
        outcomes: What became of the statuses, by commit; unchanged ones have no outcome.
        overall: The context of overall statuses.
    """
    names, unposted = set[str](), set[ClaimId]()
    for sha, statuses in due:
        by_context = {outcome.status.context: outcome for outcome in outcomes.get(sha, ())}
        for verdict in statuses.own:
            attempt = verdict.attempt
            if attempt is None or not verdict.is_failed_end:
                continue
            outcome = by_context.get(verdict.status.context if statuses.shows_each else overall)
            if isinstance(outcome, Posted) and _is_first(outcome):
                names.add(attempt.name)
            elif isinstance(outcome, Failed):
                unposted.add(attempt.id)
    return NewFailures(frozenset(names), frozenset(unposted))


def _is_first(posted: Posted) -> bool:
    status, before = posted.status, posted.before
    if status.state != "failure":
        return False  # another commit's record had more recent news
    return before is None or before.state != "failure" or run_of(before) != run_of(status)
