"""Whose model is in place at an address, as `status`, `show` and the pages say it."""

from __future__ import annotations

import os
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.cli import status
from reconciler.model.details import JobDetails, PublishedPlace
from reconciler.model.job import ActualJob, State
from reconciler.model.publication import InPlace, current_json
from reconciler.model.reason import ReasonCode
from reconciler.operations.named_job import NamedJob
from reconciler.operations.publications import place_of_model
from reconciler.operations.show import run_details
from reconciler.output.json import details_json, plan_json
from reconciler.pages.live import LiveJobs
from reconciler.pages.site import row_key
from reconciler.pages.snapshot import Snapshot, completed
from reconciler.planning.state import NameState
from reconciler.planning.status_rows import job_statuses
from reconciler.submission.observe import Observed
from tests.support.publishing import TO, path_of, put
from tests.support.publishing_place import CURRENT, Done, Place, publishing_place

__all__ = ["publishing_place"]

SINCE = datetime(2026, 11, 20, 9, tzinfo=UTC)


def named(done: Done) -> NameState:
    """Return the state of the job, without what the plan knows of its publication."""
    return replace(done.state.names["census"], publication=None)


def details(place: Place, name: NameState, run: ActualJob) -> JobDetails:
    """Return what `show` has of the job's desired run."""
    job = NamedJob(name, name.last_wanted, run, is_base_name=True)
    return run_details(place.session, job, os.environ, entries=0)


def results(place: Place, done: Done, marks: dict[str, InPlace] | None = None) -> list[str]:
    """Return the results that `status` shows."""
    state = replace(done.state, names={"census": named(done)})
    observed = Observed({}, tuple(place.jobs.jobs), in_place=marks or {})
    rows = [row for row in job_statuses(state) if row.current]
    return [row.result for row in status._with_results(rows, state, observed, place.session)]


def test_place_of_published_model_is_told_with_its_time(place: Place) -> None:
    run = place.want(0.95)
    before = place.publish()
    found = place_of_model(place.session, named(before))
    assert found == PublishedPlace(TO, run.job_name, place.current.time, is_own=True)
    assert details(place, named(before), run).place == found
    assert details_json(details(place, named(before), run))["publication"] == {
        "to": TO,
        "current": run.job_name,
    }
    (shown,) = results(place, before)
    assert shown == "accuracy 0.95 (at least 0.5); published"


def test_other_model_in_place_is_named(place: Place) -> None:
    good = place.want(0.95)
    place.publish()
    worse = place.want(0.9)
    done = place.publish()
    found = details(place, named(done), worse).place
    assert found == PublishedPlace(TO, good.job_name, place.current.time)
    (shown,) = results(place, done)
    assert shown == "accuracy 0.9 (at least 0.5); not published"
    # A plan knows why.
    known = place_of_model(place.session, done.state.names["census"])
    assert known is not None
    assert known.reason is not None
    assert known.reason.code is ReasonCode.WORSE_THAN_PUBLISHED
    assert replace(known, reason=None) == found
    changes = plan_json(done.plan)["changes"]
    assert [change["publication"] for change in changes if change["action"] == "blocked"] == [
        {"to": TO, "current": good.job_name}
    ]
    assert [change["publication"] for change in changes if change["action"] == "none"] == [None]


def test_model_of_the_same_job_in_another_environment_is_not_its_own(place: Place) -> None:
    place.want(0.95)
    done = place.publish()
    put(place.service.home, CURRENT, current_json(replace(place.current, environment="production")))
    found = place_of_model(place.session, named(done))
    assert found is not None
    assert not found.is_own


def test_address_without_a_model_is_told(place: Place) -> None:
    run = place.want(0.95)
    done = place.publish()
    path_of(place.service.home, CURRENT).unlink()
    assert details(place, named(done), run).place == PublishedPlace(TO)
    assert results(place, done) == ["accuracy 0.95 (at least 0.5); not published"]


def test_nothing_is_told_of_runs_that_are_not_published(place: Place) -> None:
    run = place.want(0.95)
    done = place.publish()
    name = named(done)
    (attempt,) = name.attempts
    assert name.desired is not None
    place.wire.read.clear()
    unwanted = replace(name, desired=replace(name.desired, publish=None))
    running = replace(name, attempts=(replace(attempt, run=replace(run, state=State.RUNNING)),))
    for other in (unwanted, running, replace(name, attempts=())):
        assert place_of_model(place.session, other) is None
    assert details(place, name, replace(run, resource="projects/another")).place is None
    assert [url for url in place.wire.read if "current.json" in url] == []


def test_mark_of_the_summary_spares_the_requests(place: Place) -> None:
    run = place.want(0.95)
    done = place.publish()
    place.wire.read.clear()
    mark = InPlace(TO, SINCE)
    assert results(place, done, {run.resource: mark}) == ["accuracy 0.95 (at least 0.5); published"]
    assert place_of_model(place.session, named(done), mark) == PublishedPlace(
        TO, run.job_name, SINCE, is_own=True
    )
    assert place.wire.read == []
    elsewhere = InPlace("gs://risk-models/other", SINCE)
    found = place_of_model(place.session, named(done), elsewhere)
    assert found is not None
    assert found.since == place.current.time


def test_unusable_object_is_no_failure_of_the_rest(place: Place) -> None:
    run = place.want(0.95)
    done = place.publish()
    put(place.service.home, CURRENT, b"{}")
    with pytest.raises(ServiceError, match=r"current\.json can't be used"):
        place_of_model(place.session, named(done))
    assert results(place, done) == ["accuracy 0.95 (at least 0.5)"]
    shown = details(place, named(done), run)
    assert "current.json can't be used" in shown.unread["publication"]
    assert details_json(shown)["publication"] is None


def test_pages_have_it_beside_the_result(place: Place) -> None:
    run = place.want(0.95)
    place.publish()
    done = place.publish()
    (row,) = (row for row in job_statuses(done.state) if row.current)
    shown = completed(row, details(place, done.state.names["census"], run))
    assert shown.result.endswith("; published")
    place.want(0.9)
    other = place.publish()
    (row,) = (row for row in job_statuses(other.state) if row.current)
    shown = completed(row, details(place, other.state.names["census"], place.jobs.jobs[-1]))
    assert shown.result.endswith("; not published")


def test_live_pages_ask_again_until_the_model_is_in_its_place(place: Place) -> None:
    run = place.want(0.95)
    done = place.publish()
    (row,) = (row for row in job_statuses(done.state) if row.current)
    name = named(done)
    job = NamedJob(name, name.last_wanted, run, is_base_name=True)
    site: Any = None
    taken = Snapshot(site, {row_key(row): job}, None)
    jobs = LiveJobs(lambda: nullcontext(place.session), taken, os.environ, {})
    current = path_of(place.service.home, CURRENT)
    content = current.read_bytes()
    current.unlink()
    for expected in ("not published", "not published"):
        assert [shown.result for shown in jobs.completed([row])] == [f"accuracy 0.95; {expected}"]
    current.write_bytes(content)
    assert [shown.result for shown in jobs.completed([row])] == ["accuracy 0.95; published"]
    place.wire.read.clear()
    assert [shown.result for shown in jobs.completed([row])] == ["accuracy 0.95; published"]
    assert place.wire.read == []
