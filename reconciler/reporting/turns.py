"""Turns of a content: its attempts for one commit after the other, between which apply cancelled its run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from reconciler.model.claim import Claim, CommitRecord, WantedJob
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


def turn_of(
    attempts: Attempts, record: CommitRecord, job: WantedJob, *, is_newest: bool
) -> tuple[Claimed, bool]:
    """Return the attempts that a commit's statuses are about, and True if these are the content's last turn.

    A commit that began an earlier turn keeps the end of that one, unless it is the newest commit.
    """
    turns = turns_of(job.keys, attempts)
    if not turns:
        return [], True
    own = [turn for turn in turns if turn[0][0].commit == record.sha]
    turn = own[-1] if own and not is_newest else turns[-1]
    return turn, turn is turns[-1]
