"""What a plan says of a change where it doesn't know everything about the job before."""

from __future__ import annotations

from reconciler.model.job import State
from reconciler.model.plan import DriftKind
from tests.planning import bound_to, only, plan, run_of, wanted

JOB = wanted()


def test_without_a_claim_nothing_is_said_of_rerun_where_something_else_changed() -> None:
    assert only(plan([JOB], [run_of(wanted(content="b"), State.SUCCEEDED)])).reason == "1 field changed"


def test_a_job_that_is_gone_is_not_modified() -> None:
    claim = bound_to(JOB, run_of(JOB, State.RUNNING), labels="0" * 16)
    assert [drift.kind for drift in plan([JOB], [], [claim]).drift] == [DriftKind.DELETED_OUTSIDE]
