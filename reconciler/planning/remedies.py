"""Reasons why a job is blocked or was given up, each with its remedy, in the words of every output."""

from __future__ import annotations

from enum import StrEnum

from reconciler.model.claim import Claim

RERUN = 'change "rerun" to run it again'
"""The way to run a content again: a changed `rerun` is other content, with claims and a name of its own."""
OTHER_NAME = 'change "rerun" to get another name'
MORE_ATTEMPTS = f'raise "attempts" or {RERUN}'
GIVEN_UP = f"given up; {RERUN}"


class Blocked(StrEnum):
    """Reasons why a job isn't submitted, with the places of their values; `held` returns one more.

    A blocked change sends no request and cancels nothing; apply reports it and ends with a failure. The next
    plan decides anew, so that a job goes on as soon as its reason is gone.
    """

    STRANGER = "{resource} has this job's labels, and no recorded request made it; cancel it, or " + RERUN
    """A run may do the same work, and no claim proves its origin: a submission beside it could pay twice."""

    OTHER_INSTANCE = (
        "{resource} ({state}) has this content and was submitted under {instance}; it may be "
        "this environment's own, from before its instance changed: wait until it has ended, or cancel it, "
        "and apply again"
    )
    """A live run of this content has the label of another `instance` (`observe.Observed.doubtful`)."""

    NAME_OF_RUN = "{resource} has this name and other content; " + OTHER_NAME
    """A name has 16 digits of the content's hash: two contents may have the same."""

    NAME_OF_CLAIM = "a claim has the name {job_name} for other content; " + OTHER_NAME
    """As above, and the service no longer has the run."""

    ML_IS_SHARED = (
        "the environment {environment} has the project {project} too, and AI "
        "Platform does not tell their jobs apart: write a project of its own in the environment that is new"
    )
    """AI Platform lists jobs by project, whatever their location: both environments would own each run."""

    ML_IS_GONE = (
        "Google switched AI Platform Training off on 2025-01-31; "
        "write the job as an aiplatform.googleapis.com/v1 CustomJob"
    )
    """Only the embedded service still runs jobs of ml.googleapis.com/v1."""


def held(claim: Claim) -> str:
    """Return the reason and the remedy for a HELD claim (docs/at-most-once.md): a person runs a command."""
    reason = claim.error or "held"
    return f"{reason}; run `reconciler resolve {claim.job_name} --resubmit` or `--give-up`"


def held_short(claim: Claim) -> str:
    """Return remedy and reason for a held submission; the remedy comes first, as the end may be cut off."""
    return f"held, see `reconciler resolve {claim.base_name}`: {claim.error or 'no reason given'}"
