"""Two jobs of one attempt: which of them stays, and which may be cancelled for it.

A claim's tries decide what is ours: a job that no recorded request made is nobody's to cancel, whatever its
labels say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from reconciler.model.claim import Claim
from reconciler.model.job import KEY, SOURCE, TRY, ActualJob, State, attempt_of

_NUMBER = re.compile("[0-9]{1,100}")
_IN_VAIN = (State.FAILED, State.CANCELLED)


def age(run: ActualJob) -> tuple[str, str, int, str]:
    """Sorts runs by when they were made; those of one moment by the service's number, then by name."""
    # "…00Z" is before "…00.5Z", and as text it would be behind.
    moment, _, fraction = run.create_time.removesuffix("Z").partition(".")
    number = run.resource.rpartition("/")[2]
    return moment, fraction, int(number) if _NUMBER.fullmatch(number) else 0, run.resource


def elder(runs: Iterable[ActualJob]) -> ActualJob:
    """The run that stays: the oldest that neither failed nor was cancelled, else the oldest.

    It depends on nothing but the runs, so that two reconcilers that look at once keep the same one.
    """
    return min(runs, key=lambda run: (run.state in _IN_VAIN, *age(run)))


def kept(claim: Claim | None, runs: Iterable[ActualJob]) -> ActualJob | None:
    """The run that an attempt's claim is to be bound to; None where there is none that it could be.

    Args:
        claim: The attempt's; None where it has none: then every run may be the one.
        runs: Runs with the attempt's key and number.
    """
    own = [run for run in runs if claim is None or made(claim, run)]
    return elder(own) if own else None


def made(claim: Claim, run: ActualJob) -> bool:
    """Whether the run is a job of this claim: the one it names, or one that a recorded request made."""
    if (run.api_version, run.kind) != (claim.api_version, claim.kind):
        return False
    return run.resource == claim.resource or marked(claim, run)


def may_cancel(claim: Claim | None, run: ActualJob) -> bool:
    """Whether a run may be cancelled at all: it is live, and ours by its labels and by its claim."""
    live = not run.state.ended and run.state is not State.CANCELLING
    return live and claim is not None and SOURCE in run.labels and made(claim, run) and marked(claim, run)


def marked(claim: Claim, run: ActualJob) -> bool:
    """Return whether the run's labels name this claim and the mark of one of its requests."""
    labelled = (run.labels.get(KEY), attempt_of(run)) == (claim.id.key, claim.id.attempt)
    return labelled and run.labels.get(TRY) in claim.tries
