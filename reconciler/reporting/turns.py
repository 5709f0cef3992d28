"""Turns of a content: its attempts for one commit after the other, between which apply cancelled its run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reconciler.model.claim import Claim, CommitRecord, WantedJob, time_of
from reconciler.planning.attempts import Attempt

Claimed = Sequence[tuple[Claim, Attempt]]
"""Attempts with their claims."""
Attempts = Mapping[str, Iterable[Attempt]]
"""All attempts, by key."""


def turns_of(keys: Sequence[str], attempts: Attempts) -> Sequence[Claimed]:
    """Return the attempts at exactly this content that have claims, newest last, in turns.

    A turn ends with a run that apply cancelled. Another commit that brings the content back begins the next.
    """
    mine = [(a.claim, a) for key in keys for a in attempts.get(key, ()) if a.claim]
    mine.sort(key=lambda pair: (pair[1].id.attempt, -keys.index(pair[1].id.key)))
    turns: list[list[tuple[Claim, Attempt]]] = []
    for claim, attempt in mine:
        if not turns or (turns[-1][-1][1].stopped and turns[-1][0][0].commit != claim.commit):
            turns.append([])
        turns[-1].append((claim, attempt))
    return turns


def turn_of(attempts: Attempts, record: CommitRecord, job: WantedJob) -> tuple[Claimed, Sequence[Claimed]]:
    """Return the attempts that a commit's statuses are about, and the content's later turns.

    It is the last turn that this commit began. Without one, it is the last that began before it was applied,
    or the next one if that had ended by then.
    """
    turns = turns_of(job.keys, attempts)
    if not turns:
        return [], []
    own = [n for n, turn in enumerate(turns) if turn[0][0].commit == record.sha]
    last = own[-1] if own else max(n for n, turn in enumerate(turns) if not n or _began_before(record, turn))
    while not own and last + 1 < len(turns) and _ended_before(record, turns[last]):
        last += 1
    return turns[last], turns[last + 1 :]


def _ended_before(record: CommitRecord, turn: Claimed) -> bool:
    run = turn[-1][1].run
    ended = time_of(run.end_time) if run and run.state.ended else None
    return ended is not None and ended < record.since


def _began_before(record: CommitRecord, turn: Claimed) -> bool:
    claim, attempt = turn[0]
    if claim.commit in record.applied:
        return True
    # A record lists a limited number of commits, and a changed work tree has none.
    made = time_of(attempt.run.create_time) if attempt.run else None
    return made is not None and made < record.since
