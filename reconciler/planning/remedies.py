"""Remedies for jobs that no apply submits by itself, in the words of every output."""

from __future__ import annotations

from reconciler.model.claim import Claim

RERUN = 'change "rerun" to run it again'
OTHER_NAME = 'change "rerun" to get another name'
MORE_ATTEMPTS = f'raise "attempts" or {RERUN}'
GIVEN_UP = f"given up; {RERUN}"


def held(claim: Claim) -> str:
    """Return the reason and the remedy for a held submission."""
    reason = claim.error or "held"
    return f"{reason}; run `reconciler resolve {claim.job_name} --resubmit` or `--give-up`"


def held_short(claim: Claim) -> str:
    """Return remedy and reason for a held submission; the remedy comes first, as the end may be cut off."""
    return f"held, see `reconciler resolve {claim.base_name}`: {claim.error or 'no reason given'}"
