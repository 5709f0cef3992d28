"""Reasons of blocked changes: each sentence says why a job isn't submitted, and how to go on.

`decide` chooses the reason. A blocked change sends no request and cancels nothing; apply reports it and ends
with a failure. The next plan decides anew, so that a job goes on as soon as its reason is gone.
"""

from __future__ import annotations

from enum import StrEnum

RERUN = 'change "rerun" to run it again'
"""The way to run a content again: a changed `rerun` is other content, with claims and a name of its own."""


class Blocked(StrEnum):
    """Sentences of the plan, with the places of their values."""

    HELD = '{error}; run "reconciler resolve {job_name} --resubmit" or "--give-up"'
    """The claim is HELD (docs/at-most-once.md). A person runs one of the commands."""

    STRANGER = "{resource} has this job's labels, and no recorded request made it; cancel it, or " + RERUN
    """A run may do the same work, and no claim proves its origin: a submission beside it could pay twice."""

    OTHER_INSTANCE = (
        "{resource} ({state}) has this content and was submitted under {instance}; it may be "
        "this environment's own, from before its instance changed: wait until it has ended, or cancel it, "
        "and apply again"
    )
    """A live run of this content has the label of another `instance` (`observe.Observed.doubtful`)."""

    NAME_OF_RUN = '{resource} has this name and other content; change "rerun" to get another name'
    """A name has 16 digits of the content's hash: two contents may have the same."""

    NAME_OF_CLAIM = 'a claim has the name {job_name} for other content; change "rerun" to get another name'
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
