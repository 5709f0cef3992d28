"""The run that a claim stands for, among the runs of its attempt.

The request ids of a claim decide which of an attempt's duplicate jobs to keep: a job without a recorded
request is never cancelled, even with the right labels. The one exception is a job that a person had adopted:
its claim names it and has no request id.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from reconciler.model.claim import Claim
from reconciler.model.job import KEY, REQUEST_ID, SOURCE, ActualJob, State, attempt_of

_NUMBER = re.compile("[0-9]{1,100}")  # Python refuses to convert thousands of digits
_IN_VAIN = (State.FAILED, State.CANCELLED)


def age(run: ActualJob) -> tuple[str, int, str]:
    """Return a sort key: time of creation, then the service's number, then the name."""
    number = run.resource.rpartition("/")[2]
    return _moment(run.create_time), int(number) if _NUMBER.fullmatch(number) else 0, run.resource


def start_order(run: ActualJob) -> tuple[str, str, int, str]:
    """Return a sort key: time of the start, or of the creation if that is unknown, then as `age`."""
    return _moment(run.start_time or run.create_time), *age(run)


def wrote_last(run: ActualJob, other: ActualJob) -> bool:
    """Return True if a run may have written after another one: it started later, or ended later.

    A run that hasn't started writes nothing.
    """
    if not run.start_time:
        return False
    if start_order(run) > start_order(other):
        return True
    return other.state.ended and (not run.state.ended or _moment(run.end_time) > _moment(other.end_time))


def may_write_last(run: ActualJob, other: ActualJob) -> bool:
    """Return the same, also if it will show only by the other run's end, which a listing may show late."""
    is_beside = bool(run.start_time) and _moment(run.end_time) > _moment(other.start_time)
    return wrote_last(run, other) or (not other.state.ended and is_beside)


def _moment(time: str) -> str:
    return time.removesuffix("Z")  # "…00Z" is before "…00.5Z", but sorts after it as text


def elder(runs: Iterable[ActualJob]) -> ActualJob:
    """Return the run to keep: the oldest that neither failed nor was cancelled, else the oldest."""
    # The runs alone decide, so that two reconcilers at the same time keep the same run and cancel the other.
    return min(runs, key=lambda run: (run.state in _IN_VAIN, *age(run)))


def kept(claim: Claim | None, runs: Iterable[ActualJob]) -> ActualJob | None:
    """Return the run to bind an attempt's claim to, if any.

    Args:
        claim: The attempt's claim; None if it has none: then every run counts.
        runs: Runs with the attempt's key and number.
    """
    own_runs = [run for run in runs if claim is None or made(claim, run)]
    if len(own_runs) > 1:
        return elder(own_runs)
    return own_runs[0] if own_runs else None


def made(claim: Claim, run: ActualJob) -> bool:
    """Return True if the claim names the run or recorded its request."""
    if (run.api_version, run.kind) != (claim.api_version, claim.kind):
        return False
    return run.resource == claim.resource or has_recorded_request(claim, run)


def may_cancel(claim: Claim | None, run: ActualJob) -> bool:
    """Return True if a run may be cancelled: it is live, and its labels and its claim prove its origin.

    An adopted run has none of our labels. A person has named it, so the claim alone is the proof.
    """
    if claim is None or run.state.ended or run.state is State.CANCELLING:
        return False
    if claim.is_adopted and claim.resource == run.resource and KEY not in run.labels:
        return True
    # Both the label and the recorded request: a copied label or a stale claim alone is no proof.
    return SOURCE in run.labels and made(claim, run) and has_recorded_request(claim, run)


def has_recorded_request(claim: Claim, run: ActualJob) -> bool:
    """Return True if the run's labels name this claim and the id of a recorded request."""
    labelled = (run.labels.get(KEY), attempt_of(run)) == (claim.id.key, claim.id.attempt)
    return labelled and run.labels.get(REQUEST_ID) in claim.request_ids
