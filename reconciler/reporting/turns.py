"""Turns of a content: its attempts for one commit after the other, between which apply cancelled its run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reconciler.model.claim import Claim
from reconciler.model.commit_record import CommitRecord, WantedJob
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


def turn_of(attempts: Attempts, record: CommitRecord, job: WantedJob) -> tuple[Claimed, bool]:
    """Return the attempts that a commit's statuses are about, and True if these are the content's last turn.

    A commit that began an earlier turn keeps the end of that one, until it is applied again after a later one
    began. So what it shows never goes back to an earlier turn.
    """
    turns = turns_of(job.keys, attempts)
    if not turns:
        return [], True
    began = [turn[0][0].commit for turn in turns]
    if record.sha not in began:
        return turns[-1], True
    index = len(turns) - 1 - began[::-1].index(record.sha)
    # Of a commit that began earlier turns too, it isn't known which of them it was applied for.
    applied = {*record.applied} - {*began[:index]}
    last = max(n for n, sha in enumerate(began) if n == index or (n > index and sha in applied))
    return turns[last], last == len(turns) - 1
