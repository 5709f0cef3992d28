"""Commit statuses: their states and descriptions, and the choice of the newer status."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from msgspec import structs

from reconciler.model.job import ActualJob, State
from reconciler.reporting.status import CommitStatus, Freshness, freshness, plain_status, status_of
from tests.support.statuses import HASH, job, status


def is_news(wanted: CommitStatus, there: CommitStatus) -> bool:
    return freshness(wanted, there) is Freshness.NEW


@pytest.mark.parametrize(
    ("state", "said", "description"),
    [
        (State.QUEUED, "pending", "waiting in the queue"),
        (State.PREPARING, "pending", "getting ready"),
        (State.RUNNING, "pending", "running"),
        (State.CANCELLING, "pending", "being cancelled"),
        (State.SUCCEEDED, "success", "succeeded"),
        (
            State.FAILED,
            "failure",
            "failed, service: the service failed; run it again with `reconciler rerun census`",
        ),
        (
            State.CANCELLED,
            "error",
            'cancelled on request; set "suspend: true" to leave it stopped, or run it again with'
            " `reconciler rerun census`",
        ),
    ],
)
def test_each_state_has_its_status(state: State, said: str, description: str) -> None:
    assert status(state) == CommitStatus(
        said,  # type: ignore[arg-type]
        "reconciler/prod/census",
        f"{description} · run {HASH}",
    )


def test_only_an_observed_success_is_green() -> None:
    assert [state for state in State if status(state).state == "success"] == [State.SUCCEEDED]


def test_a_job_without_a_run() -> None:
    problem = "outcome unknown: reconciler resolve my-job"
    assert plain_status("error", "reconciler/local/my-job", problem).description == problem
    assert plain_status("error", "reconciler/local/my-job", "\n\u200b\n").description == "\ufffd"
    assert plain_status("error", "reconciler/local/my-job", " ").description == "no reason given"


@pytest.mark.parametrize(
    ("given", "description"),
    [
        (job(State.PREPARING, service_state="JOB_STATE_PENDING"), "getting ready"),
        (job(State.RUNNING, service_state="JOB_STATE_PAUSED"), "running (PAUSED)"),
        (job(State.RUNNING, service_state="JOB_STATE_PENDING"), "running (PENDING)"),
        (
            job(State.FAILED, service_state="JOB_STATE_EXPIRED"),
            "failed (EXPIRED), resources: no machine became free in time; "
            'raise "maxWaitDuration" under spec.scheduling',
        ),
        (job(State.RUNNING, service_state="RUNNING"), "running"),
        (job(State.RUNNING, service_state=""), "running"),
        (
            job(State.RUNNING, start_time="2026-11-21T10:03:59.123456789Z"),
            "running since 2026-11-21 10:03 UTC",
        ),
        (job(State.RUNNING, start_time="2026-11-21T10:03:59+02:00"), "running since 2026-11-21 08:03 UTC"),
        (job(State.RUNNING, start_time="2026-11-21"), "running"),
        (job(State.RUNNING, start_time="soon"), "running"),
        (job(State.RUNNING, start_time="0001-01-01T00:00:00+23:00"), "running"),
        (
            job(State.SUCCEEDED, start_time="2026-11-21T10:00:00Z", end_time="2026-11-21T10:00:59.7Z"),
            "succeeded after 1 min 0 s",
        ),
        (
            job(State.SUCCEEDED, start_time="2026-11-21T10:00:00Z", end_time="2026-11-21T10:00:09Z"),
            "succeeded after 9 s",
        ),
        (
            job(
                State.FAILED, start_time="2026-11-20T10:00:00Z", end_time="2026-11-21T11:05:09Z", error="boom"
            ),
            "failed after 25 h 5 min, service: boom; run it again with `reconciler rerun census`",
        ),
        (
            job(State.SUCCEEDED, start_time="2026-11-21T10:00:09Z", end_time="2026-11-21T10:00:00Z"),
            "succeeded",
        ),
        (
            job(State.SUCCEEDED, start_time="2026-11-21T10:00:09Z", end_time="2026-11-21T10:00:09Z"),
            "succeeded after 0 s",
        ),
        (
            job(State.FAILED, error="\nexit code 1\nTraceback: password=hunter2"),
            "failed, user code: exit code 1; see `reconciler logs census` and correct the code",
        ),
        (
            job(State.CANCELLED, error="cancelled by the user"),
            'cancelled on request; set "suspend: true" to leave it stopped, or run it again with '
            "`reconciler rerun census`",
        ),
    ],
)
def test_the_description(given: ActualJob, description: str) -> None:
    assert status_of("reconciler/prod/census", given).description == f"{description} · run {HASH}"


def test_the_description_names_the_attempt() -> None:
    assert status(State.RUNNING, attempt=3).description == f"running · run {HASH}_3"
    odd = status_of("reconciler/prod/census", job(job_name="named-by-hand"))
    assert odd.description == "running"


def test_a_long_error_leaves_room_for_the_run() -> None:
    name = "y" * 60
    error, run = "x" * 60, f"{name}_{HASH}_2"
    description = status_of("c", job(State.FAILED, error=error, job_name=run)).description
    assert 130 < len(description) <= 140
    assert description.endswith(f"with `reconciler… · run {HASH}_2"), "it is cut between two words"


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("https://console.cloud.google.com/x?y=z", "https://console.cloud.google.com/x?y=z"),
        ("http://127.0.0.1:8080/jobs/1", "http://127.0.0.1:8080/jobs/1"),
        ("", ""),
        ("javascript:alert(1)", ""),
        ("/jobs/1", ""),
    ],
)
def test_the_link_is_one_that_github_takes(url: str, target: str) -> None:
    assert status(url=url).target_url == target


jobs = st.builds(
    job,
    st.sampled_from(State),
    st.integers(1, 3),
    error=st.text(),
    service_state=st.text(max_size=30),
    start_time=st.one_of(st.text(), st.datetimes().map(lambda t: t.isoformat() + "Z")),
    end_time=st.one_of(st.text(), st.datetimes().map(lambda t: t.isoformat() + "Z")),
)


@given(st.one_of(st.none(), jobs), st.text(max_size=300))
@example(job(State.FAILED, error="🎉" * 200), "")
@example(None, "\x1b[31m")
def test_every_description_is_one_that_github_takes(given: ActualJob | None, problem: str) -> None:
    context = "reconciler/prod/census"
    shown = status_of(context, given) if given and not problem else plain_status("error", context, problem)
    description = shown.description
    assert 1 <= len(description.encode("utf-16-le")) // 2 <= 140
    assert description.isprintable()
    assert all(char <= "\uffff" for char in description)


STEPS = [
    job(state, attempt, error=error)
    for attempt in (1, 2, 11)
    for state in State
    for error in ("", "boom")
    if not error or state is State.FAILED
]


def place(shown: CommitStatus, of: list[ActualJob]) -> tuple[int, bool]:
    """Return a status's position in the life of its run: the attempt, and if it had ended."""
    (found,) = {
        (int(step.job_name.partition(f"{HASH}_")[2] or 1), step.state.ended)
        for step in of
        if status_of("reconciler/prod/census", step) == shown
    }
    return found


@pytest.mark.slow
@given(st.lists(st.sampled_from(STEPS), min_size=1, max_size=20))
def test_a_run_only_goes_forward(seen: list[ActualJob]) -> None:
    """For every order of posts by several reporters, the displayed status never goes back."""
    shown: CommitStatus | None = None
    places = []
    for step in seen:
        wanted = status_of("reconciler/prod/census", step)
        if is_news(wanted, shown):
            shown = wanted
        assert shown is not None
        assert not is_news(shown, shown)
        places.append(place(shown, STEPS))
    assert places == sorted(places)
    assert places[-1] == max(place(status_of("reconciler/prod/census", step), STEPS) for step in seen)


def test_another_content_starts_anew() -> None:
    done = status(State.SUCCEEDED, attempt=3)
    other = status_of("reconciler/prod/census", job(State.QUEUED, job_name="census_ffffffffffffffff"))
    assert is_news(other, done)
    assert is_news(done, other)


def test_an_end_may_be_told_better() -> None:
    assert is_news(status(State.FAILED, error="boom"), status(State.FAILED))
    assert is_news(status(State.RUNNING, url="https://x"), status(State.RUNNING))


def test_a_problem_replaces_and_is_replaced() -> None:
    problem = plain_status("error", "reconciler/prod/census", "outcome unknown")
    assert is_news(problem, status(State.RUNNING))
    assert is_news(status(State.RUNNING), problem)
    assert is_news(problem, status(State.SUCCEEDED))


@pytest.mark.parametrize("changed", [{"state": "failure"}, {"description": "x"}, {"target_url": "https://x"}])
def test_each_part_of_a_status_is_news(changed: dict[str, Any]) -> None:
    there = CommitStatus("success", "reconciler/prod/census", "done", "https://y")
    assert is_news(structs.replace(there, **changed), there)
    assert not is_news(structs.replace(there, context="RECONCILER/prod/census"), there)
