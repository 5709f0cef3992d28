"""The table of `status`."""

from __future__ import annotations

import re
import unicodedata
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.model.cause import Cause, CauseClass
from reconciler.model.claim import ClaimState
from reconciler.model.job import State
from reconciler.model.reason import ReasonCode
from reconciler.output.status_text import status_text
from reconciler.output.terminal import width_of
from reconciler.output.wording.cause import _CAUSE_TEXTS
from reconciler.planning.outcome import Condition, JobStatus
from reconciler.planning.status_rows import by_attention
from tests.support.inert import ACTED_ON, runner_finds_command, texts

NOW = datetime(2026, 1, 2, tzinfo=UTC)
COLOUR = re.compile("\x1b\\[[0-9;]*m")


def at(seconds: float) -> str:
    return (NOW - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z")


TIMES = st.one_of(texts, st.floats(-1e6, 1e9).map(at), st.just(""))
QUOTED = (
    "account",
    "bucket",
    "entry",
    "folder",
    "full",
    "import",
    "lock",
    "module",
    "name",
    "object",
    "role",
)
FOUND = {
    **dict.fromkeys((*QUOTED, "source", "variable"), texts),
    **dict.fromkeys(("is_named", "is_written"), st.booleans()),
    "names": st.lists(texts).map(tuple),
}
"""What a cause that lies in the manifest says, beside the words of all."""
OTHERS = ("exit_code", "item", "metric", "notFinite", "reported", "stored", "word")
WORDS = st.fixed_dictionaries({"head": texts, **FOUND}, optional=dict.fromkeys(OTHERS, texts))
CAUSES = st.builds(
    lambda class_, code, last, values, name: Cause(class_, code, {"last": last, **values}, name),
    st.sampled_from(CauseClass),
    st.sampled_from(sorted(_CAUSE_TEXTS)),
    texts,
    WORDS,
    texts,
)
ROWS = st.builds(
    JobStatus,
    texts,
    texts,
    texts,
    st.none() | st.sampled_from(State),
    st.sampled_from(["none", *ClaimState]),
    service_state=texts,
    create_time=TIMES,
    start_time=TIMES,
    end_time=TIMES,
    error=texts,
    commit=texts,
    cause=st.none() | CAUSES,
    given_up=st.booleans(),
    result=texts,
)


@pytest.mark.slow
@given(rows=st.lists(ROWS, min_size=1, max_size=4), width=st.integers(20, 200), colour=st.booleans())
def test_no_line_exceeds_the_width_and_every_line_is_inert(
    rows: list[JobStatus], width: int, colour: bool
) -> None:
    for line in status_text(rows, rows, NOW, width=width, colour=colour).splitlines():
        plain = COLOUR.sub("", line)
        assert width_of(plain) <= width
        assert not any(unicodedata.category(char) in ACTED_ON for char in plain)
        assert not runner_finds_command(plain)


@given(rows=st.lists(ROWS, min_size=1, max_size=4))
def test_each_job_has_one_line_and_colours_change_no_text(rows: list[JobStatus]) -> None:
    text = status_text(rows, rows, NOW, wide=True)
    assert len(text.split("\n")) == len(rows) + 3
    assert COLOUR.sub("", status_text(rows, rows, NOW, wide=True, colour=True)) == text


def row(name: str, state: State | None, claim: str = "bound", **fields: object) -> JobStatus:
    times = {"create_time": at(7200), "start_time": at(7100)} if state else {}
    return JobStatus(f"{name}_1", name, "CustomJob", state, claim, **{**times, **fields})  # type: ignore[arg-type]


REMEDY = "see `reconciler logs income` and correct the code"
FAILED = row(
    "income",
    State.FAILED,
    end_time=at(3600),
    cause=Cause(
        CauseClass.USER_CODE,
        ReasonCode.NON_ZERO_EXIT,
        {"exit_code": "1", "last": "ValueError: the loss is NaN"},
        "income",
    ),
)


def test_table_has_relative_times_cause_and_counts() -> None:
    rows = by_attention([row("b", State.RUNNING), row("c", None, "none"), FAILED])
    assert status_text(rows, rows, NOW, width=80) == (
        "JOB     STATE            AGE  DURATION  CAUSE\n"
        "income  ✗ FAILED         2h   58m20s    user code: exit code 1\n"
        "b       ● RUNNING        2h   1h58m     -\n"
        "c       + not submitted  -    -         -\n"
        "\n"
        "3 jobs: 1 failed, 1 running, 1 not submitted.\n"
        "Causes and remedies in full: `reconciler status --wide`."
    )


def test_columns_without_content_are_left_out() -> None:
    rows = [row("c", None, "none")]
    assert status_text(rows, rows, NOW).splitlines()[0] == "JOB  STATE"


def test_runs_of_one_base_name_are_told_apart_by_their_job_names() -> None:
    rows = [row("a", State.RUNNING), row("a", State.RUNNING), row("b", State.RUNNING)]
    shown = [line.split()[0] for line in status_text(rows, rows, NOW).splitlines()[1:4]]
    assert shown == ["a_1", "a_1", "b"]


def test_limited_table_counts_all_selected_jobs() -> None:
    rows = [FAILED, row("b", State.RUNNING)]
    assert status_text(rows[:1], rows, NOW).splitlines()[-1] == "2 jobs: 1 failed, 1 running (1 shown)."
    assert status_text([], [], NOW) == "No jobs."


def test_wide_table_is_not_cut_and_has_more_columns() -> None:
    text = status_text([FAILED], [FAILED], NOW, width=40, wide=True)
    assert text.splitlines()[0].split() == [
        *("JOB", "STATE", "AGE", "DURATION", "KIND", "ATTEMPT", "CLAIM", "RUN", "CAUSE")
    ]
    assert f"the loss is NaN; {REMEDY}" in text


@pytest.mark.parametrize("condition", Condition)
def test_every_condition_has_a_sign_and_a_word(condition: Condition) -> None:
    states = {Condition(state.lower()): state for state in State}
    claims = {
        Condition.HELD: "held",
        Condition.REFUSED: "rejected",
        Condition.UNKNOWN: "pending",
        Condition.DELETED: "bound",
        Condition.GIVEN_UP: "held",
    }
    if condition is Condition.SUSPENDED:
        return
    given_up, unreadable = condition is Condition.GIVEN_UP, condition is Condition.UNREADABLE
    one = row("a", states.get(condition), claims.get(condition, "none"), given_up=given_up)
    one = replace(one, unreadable=unreadable)
    assert one.condition is condition
    assert condition in status_text([one], [one], NOW).splitlines()[1].lower()


@pytest.mark.parametrize(
    ("width", "cause"),
    [
        (140, f"user code: exit code 1: ValueError: the loss is NaN; {REMEDY}"),
        (90, "user code: exit code 1: ValueError: the loss is NaN"),
        (70, "user code: exit code 1"),
        (50, "user code: exit …"),
    ],
)
def test_cause_is_as_long_as_there_is_room(width: int, cause: str) -> None:
    text = status_text([FAILED], [FAILED], NOW, width=width)
    assert text.splitlines()[1].endswith(cause)
    assert ("--wide" in text) is (width < 140)


def test_results_make_room_for_short_causes() -> None:
    values = {"exit_code": "1", "last": "ValueError: NaN"}
    cause = Cause(CauseClass.USER_CODE, ReasonCode.NON_ZERO_EXIT, values, "failed")
    done = row("done", State.SUCCEEDED, result="gs://models/done_0123456789abcdef")
    rows = [row("failed", State.FAILED, cause=cause), done]
    lines = status_text(rows, rows, NOW, width=80).splitlines()
    assert lines[1].endswith("  user code: exit code 1")
    assert "gs://models/done_01…" in lines[2]
    assert done.result in status_text(rows, rows, NOW, width=140)


def test_counts_break_between_numbers_and_never_within_one() -> None:
    rows = [row("a", None, "none"), row("b", None, "none"), FAILED]
    lines = status_text(rows, rows, NOW, width=30).splitlines()
    assert "3 jobs: 1 failed," in lines
    assert "2 not submitted." in lines
