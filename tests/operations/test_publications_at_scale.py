"""Many publications: what is in its place costs a plan no request."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reconciler.base.state_dir import home_of
from reconciler.model.plan import Action
from tests.support.held_service import HeldService
from tests.support.many_jobs import MANY, ManyJobs
from tests.support.publishing import path_of

pytestmark = pytest.mark.slow


def test_publications_in_their_places_cost_a_plan_no_request(tmp_path: Path) -> None:
    many = ManyJobs(tmp_path)
    with HeldService(home_of(tmp_path, os.environ)).running() as service:
        many.write("publish: {}")
        many.apply()
        many.end_runs(service, "model/model.bin", str)
        many.apply()
        places = [*path_of(service.home, "gs://risk-models").glob("*/current.json")]
        assert len(places) == MANY
        many.apply()  # the summary has an end that was recorded before
        sent, plan = many.plan()
        many.write("")
        sent_without, _ = many.plan()
        many.write("publish: {}")
        # What the summary doesn't know is read.
        path_of(service.home, "gs://risk-models/job-000/current.json").unlink()
        _, short = many.plan()
    assert {change.action for change in plan.changes} == {Action.NONE}
    assert len(plan.changes) == MANY
    assert sent == sent_without
    assert len(sent) < 10
    assert {change.action for change in short.changes} == {Action.NONE}, "a short look takes its word"
