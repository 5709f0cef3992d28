"""The modules that decide, and the tests that must notice every change of them: in one process, and fast."""

from __future__ import annotations

_PLANS = (
    "planning/test_planner",
    "planning/test_decision_cases",
    "planning/test_plan_ownership",
    "planning/test_plan_digest",
    "planning/test_comparison_reasons",
    "planning/test_attempts",
    "planning/test_attempts_by_base",
    "planning/test_repair",
    "planning/test_set_ups",
    "planning/test_outcome",
    "planning/test_planner_laws",
    "submission/test_instances",
)

TESTS: dict[str, tuple[str, ...]] = {
    "model.ports": ("model/test_answers", "model/test_ports", "reporting/test_refusals"),
    "model.applied_tree": ("model/test_applied_tree", "operations/test_tree_check"),
    "model.job": (
        "model/test_labels",
        "model/test_log_entry",
        "model/test_states",
        "model/test_naming",
        "submission/test_instances",
    ),
    "model.naming": ("model/test_naming", "model/test_canonical", "model/test_canonical_places"),
    "model.diff": (
        "model/test_diff",
        "submission/test_adoption",
        "submission/test_adoption_fields",
        "output/test_proposal_markdown",
    ),
    "planning.comparison": (*_PLANS, "planning/test_proposing"),
    "planning.planner": (*_PLANS, "planning/test_limits"),
    "planning.decide": _PLANS,
    "planning.drift": _PLANS,
    "planning.attempts": _PLANS,
    "submission.adoption": (
        "submission/test_adoption",
        "submission/test_adoption_fields",
        "submission/test_adoption_by_hand",
        "submission/test_instances",
        "submission/test_submission",
        "submission/test_submission_refusals",
        "submission/test_submission_details",
    ),
    "model.claim": ("model/test_claim", "model/test_claim_limits", "model/test_commit_record", *_PLANS),
    "submission.observe": (
        "submission/test_observation",
        "submission/test_instances",
        "submission/test_submission",
        "submission/test_submission_details",
        "google/test_unlisted_jobs",
        "operations/test_apply",
    ),
    "submission.look": ("submission/test_look", "submission/test_summary", "submission/test_observation"),
    "submission.summary": (
        "submission/test_summary",
        "submission/test_look",
        "submission/test_announcements",
    ),
    "submission.announcements": ("submission/test_announcements", "submission/test_look"),
    "submission.claims_upkeep": (
        "submission/test_claim_upkeep",
        "operations/test_apply",
        "operations/test_apply_details",
    ),
    "planning.proposal": ("planning/test_proposing",),
    "planning.outcome": (
        "planning/test_outcome",
        "planning/test_outcome_rows",
        "operations/test_apply",
        "operations/test_apply_details",
        "operations/test_apply_progress",
    ),
    "planning.status_rows": ("planning/test_outcome", "planning/test_outcome_rows"),
    "base.sanitize": ("base/test_redaction", "base/test_inert", "google/test_jobapi"),
    "submission.protocol": (
        "submission/test_submission",
        "submission/test_submission_refusals",
        "submission/test_submission_details",
        "submission/test_submission_quota",
        "planning/test_bound_claims",
        "operations/test_apply",
    ),
    "operations.execute": (
        "operations/test_apply",
        "operations/test_apply_details",
        "operations/test_apply_progress",
        "operations/test_apply_quota",
        "operations/test_live_jobs",
        "submission/test_instances",
    ),
}
"""By module of `reconciler`; the tests' files are in `tests/`."""
