"""Decision modules, and the fast, single-process tests that must detect every change of them."""

from __future__ import annotations

_PLANS = (
    "planning/test_planner",
    "planning/test_decide",
    "planning/test_plan_ownership",
    "model/test_plan",
    "planning/test_comparison",
    "planning/test_overwriting",
    "planning/test_state",
    "model/test_claimed_run",
    "planning/test_returning_content",
    "planning/test_set_ups",
    "planning/test_status_rows",
    "planning/test_planner_laws",
    "submission/test_instances",
)

TESTS: dict[str, tuple[str, ...]] = {
    "model.ports": ("model/test_ports",),
    "model.applied_tree": ("model/test_applied_tree", "operations/test_tree"),
    "model.job": ("model/test_job", "model/test_states", "model/test_naming", "submission/test_instances"),
    "model.naming": ("model/test_naming", "model/test_canonical"),
    "model.canonical": ("model/test_canonical", "model/test_naming"),
    "model.diff": ("model/test_diff", "submission/test_adoption", "output/test_markdown"),
    "planning.comparison": (*_PLANS, "planning/test_proposal"),
    "planning.settings_changes": ("planning/test_settings_changes",),
    "planning.planner": _PLANS,
    "planning.limits": ("planning/test_limits",),
    "planning.decide": _PLANS,
    "planning.drift": _PLANS,
    "planning.attempts": ("planning/test_attempts", *_PLANS),
    "planning.state": _PLANS,
    "planning.overwriting": ("planning/test_overwriting",),
    "model.expectation": ("model/test_expectation",),
    "submission.adoption": (
        "submission/test_adoption",
        "submission/test_instances",
        "submission/test_protocol",
    ),
    "model.claim": ("model/test_claim", *_PLANS),
    "model.claimed_run": ("model/test_claim", "model/test_claimed_run", *_PLANS),
    "model.commit_record": ("model/test_commit_record",),
    "submission.observe": (
        "submission/test_observe",
        "submission/test_instances",
        "submission/test_protocol",
        "operations/test_execute",
    ),
    "submission.look": (
        "submission/test_look",
        "submission/test_summary",
        "submission/test_observe",
        "submission/test_announcements",
    ),
    "submission.summary": (
        "submission/test_summary",
        "submission/test_look",
        "submission/test_announcements",
    ),
    "submission.announcements": ("submission/test_announcements", "submission/test_look"),
    "submission.claims_upkeep": ("submission/test_claims_upkeep", "operations/test_execute"),
    "planning.proposal": ("planning/test_proposal",),
    "planning.outcome": ("planning/test_status_rows", "operations/test_execute", "cli/test_progress"),
    "planning.status_rows": ("planning/test_status_rows",),
    "base.sanitize": ("base/test_sanitize", "engines/api/test_engine_jobs"),
    "submission.protocol": ("submission/test_protocol", "submission/test_quota", "operations/test_execute"),
    "operations.execute": (
        "operations/test_execute",
        "cli/test_progress",
        "submission/test_quota",
        "submission/test_instances",
    ),
    "convert.adopt": ("convert/test_adopt",),
}
"""Tests by module of `reconciler`; their files are in `tests/`."""
