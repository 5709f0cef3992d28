"""The modules that decide, and the tests that have to notice a change of each: in one process, and fast."""

from __future__ import annotations

_PLANS = (
    "test_planner",
    "test_decision_cases",
    "test_plan_ownership",
    "test_plan_digest",
    "test_comparison_reasons",
    "test_attempts",
    "test_attempts_by_base",
    "test_repair",
    "test_outcome",
    "test_planner_laws",
)

TESTS: dict[str, tuple[str, ...]] = {
    "answers": ("test_answers", "test_refusals"),
    "labels": ("test_labels", "test_naming"),
    "naming": ("test_naming",),
    "canonical": ("test_canonical", "test_canonical_places"),
    "diff": ("test_diff",),
    "planning.brakes": ("test_brakes",),
    "planning.comparison": _PLANS,
    "planning.drift": _PLANS,
    "planning.planner": _PLANS,
    "planning.decision": _PLANS,
    "planning.attempts": _PLANS,
    "repair": _PLANS,
    "submission.adoption": ("test_adoption", "test_adoption_fields"),
    "defaults": ("test_adoption", "test_adoption_fields"),
    "claim": ("test_claim", "test_claim_limits"),
    "submission.listings": ("test_observation", "test_unlisted_jobs", "test_apply"),
    "submission.observation": ("test_observation", "test_unlisted_jobs", "test_apply"),
    "submission.upkeep": ("test_claim_upkeep", "test_apply"),
    "planning.proposal": ("test_proposing",),
    "planning.outcome": ("test_outcome", "test_outcome_rows"),
    "redaction": ("test_redaction", "test_jobapi"),
    "submission.submitter": (
        "test_submission",
        "test_submission_refusals",
        "test_submission_details",
        "test_bound_claims",
        "test_apply",
    ),
    "apply": ("test_apply", "test_apply_details"),
}
"""By module of `reconciler`; the tests' files are in `tests/`."""
