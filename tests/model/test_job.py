"""Jobs: the labels that identify a job, and the severity of a log line."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reconciler.model import job
from reconciler.model.job import (
    ATTEMPT,
    ActualJob,
    ErrorInfo,
    LogEntry,
    State,
    Trials,
    attempt_of,
    labels_digest,
    service_word,
)


def make_run(own: dict[str, str]) -> ActualJob:
    return ActualJob("jobs/1", "a", "v1", "CustomJob", State.RUNNING, "RUNNING", labels=own)


def test_label_names_never_change() -> None:
    names = (job.SOURCE, job.KEY, job.ATTEMPT, job.CODE, job.COMMIT, job.REQUEST_ID, job.INSTANCE)
    assert " ".join(names) == (
        "reconciler-source reconciler-key reconciler-attempt reconciler-code "
        "reconciler-commit reconciler-try reconciler-instance"
    )


def test_optional_fields_of_job_are_empty_by_default() -> None:
    run, line = make_run({}), LogEntry("2026-01-01T00:00:00Z", "INFO", "step 1")
    assert (run.create_time, run.start_time, run.end_time, run.error, run.url) == ("", "", "", "", "")
    assert (run.on_runner, run.backing) == (False, "")
    assert (line.insert_id, line.replica, line.trial) == ("", "", "")
    assert Trials(frozenset(), 5) == Trials(frozenset(), 5, goes_on=False)


@pytest.mark.parametrize(
    ("text", "attempt"),
    [
        ("1", 1),
        ("2", 2),
        ("10", 10),
        ("999999999", 999_999_999),
        ("9999999999", 1),
        ("0", 1),
        ("", 1),
        ("-2", 1),
        ("two", 1),
        ("٣", 1),
        ("²", 1),
    ],
)
def test_attempt_comes_from_label_or_is_first(text: str, attempt: int) -> None:
    assert attempt_of(make_run({ATTEMPT: text})) == attempt


def test_attempt_is_first_without_label() -> None:
    assert attempt_of(make_run({})) == 1


def test_labels_digest_never_changes() -> None:
    """A claim stores it: another way to compute it would make every job look modified."""
    digest = hashlib.sha256(b"a=1\nb=2\n").hexdigest()[:16]
    assert labels_digest({"b": "2", "a": "1"}) == labels_digest({"a": "1", "b": "2"}) == digest


def test_labels_digest_ignores_only_labels_of_google_services() -> None:
    own = {"a": "1", "b": "2"}
    assert labels_digest({**own, "goog-pipeline": "x"}) == labels_digest(own)
    for other in ({"a": "1"}, {"a": "2", "b": "2"}, {**own, "my-goog-": "x"}, {**own, "google": "x"}):
        assert labels_digest(other) != labels_digest(own)


@given(
    st.dictionaries(
        st.text(max_size=4) | st.sampled_from(["a%s", "%", "goog-x", "100%%"]), st.text(max_size=4)
    )
)
def test_labels_digest_hashes_line_per_label_sorted_by_name(labels: dict[str, str]) -> None:
    own = sorted((name, value) for name, value in labels.items() if not name.startswith("goog-"))
    text = "".join(f"{name}={value}\n" for name, value in own)
    assert labels_digest(labels) == hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("state", "service_state", "word"),
    [
        (State.RUNNING, "JOB_STATE_RUNNING", ""),
        (State.RUNNING, "PIPELINE_STATE_RUNNING", ""),
        (State.RUNNING, "RUNNING", ""),
        (State.RUNNING, "JOB_STATE_PAUSED", "PAUSED"),
        (State.RUNNING, "PIPELINE_STATE_PAUSED", "PAUSED"),
        (State.PREPARING, "JOB_STATE_PENDING", ""),
        (State.PREPARING, "PREPARING", ""),
        (State.QUEUED, "JOB_STATE_PENDING", "PENDING"),
        (State.FAILED, "JOB_STATE_EXPIRED", "EXPIRED"),
    ],
)
def test_word_of_service_is_given_only_if_it_says_more_than_state(
    state: State, service_state: str, word: str
) -> None:
    assert service_word(state, service_state) == word


@pytest.mark.parametrize(
    ("info", "service_state", "is_unreadable", "has_unknown_state"),
    [
        (None, "JOB_STATE_RUNNING", False, False),
        (None, "JOB_STATE_UNSPECIFIED", False, False),
        (ErrorInfo("OUT_OF_MEMORY"), "JOB_STATE_UNSPECIFIED", False, False),
        (ErrorInfo("UNREADABLE"), "JOB_STATE_FAILED", True, False),
        (ErrorInfo("UNREADABLE"), "JOB_STATE_UNSPECIFIED", True, True),
        (ErrorInfo("UNREADABLE"), "PIPELINE_STATE_UNSPECIFIED", True, True),
    ],
)
def test_job_whose_record_embedded_service_cannot_read_is_unreadable(
    info: ErrorInfo | None, service_state: str, is_unreadable: bool, has_unknown_state: bool
) -> None:
    run = ActualJob("jobs/1", "a", "v1", "CustomJob", State.RUNNING, service_state, info=info)
    assert (run.is_unreadable, run.has_unknown_state) == (is_unreadable, has_unknown_state)


@pytest.mark.parametrize(
    ("severity", "replica", "shown"),
    [
        ("ERROR", "workerpool0-0", ""),
        ("ERROR", "service", "ERROR "),
        ("ERROR", "", "ERROR "),
        ("WARNING", "workerpool0-0", "WARNING "),
        ("WARNING", "service", "WARNING "),
        ("INFO", "workerpool0-0", ""),
        ("INFO", "", ""),
        ("DEFAULT", "service", ""),
        ("DEFAULT", "workerpool0-0", ""),
    ],
)
def test_severity_is_shown_unless_it_adds_no_information(severity: str, replica: str, shown: str) -> None:
    entry = LogEntry("2026-01-01T00:00:00Z", severity, "a line", replica=replica)
    assert entry.shown_severity == shown
