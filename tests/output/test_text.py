"""Text for people: complete, and inert for every value that others wrote."""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.base.diagnostics import Problem
from reconciler.base.warning_kinds import WarningKind
from reconciler.manifests.warnings import Warnings, WarningSummary
from reconciler.model.cause import Cause, CauseClass
from reconciler.model.diff import FileChange, diff
from reconciler.model.job import State
from reconciler.model.plan import Action, Change, Drift, DriftKind, NotDone, Plan, Target
from reconciler.model.reason import Note, NoteCode, ReasonCode, because
from reconciler.output.markdown import plan_markdown
from reconciler.output.problems import problems_text, validation_github, validation_json, validation_text
from reconciler.output.review import earlier_spec
from reconciler.output.status_text import status_text
from reconciler.output.text import outcomes_text, plan_text
from reconciler.planning.outcome import JobStatus, Outcome, Status
from tests.support.inert import runner_finds_command
from tests.support.planning import noting, reason_of, saying, wanted

NOW = datetime(2026, 1, 2, tzinfo=UTC)
LOCAL = Target("local", "local", "local", "local")
CHANGE = Change(
    Action.SUBMIT,
    because(ReasonCode.NEW),
    "census",
    "census_0123456789abcdef",
    "CustomJob",
    "jobs/census.yaml",
    3,
)


def plan(*changes: Change, drift: tuple[Drift, ...] = ()) -> Plan:
    return Plan(LOCAL, changes, drift, "sha256:" + "0" * 64)


def specs(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Return the parts of a change between two specs."""
    return {"fields": diff(before, after), "desired": replace(wanted(), packed=after)}


def test_a_plan_shows_what_changes_and_counts_the_rest() -> None:
    change = replace(
        CHANGE, reason=saying("1 field changed"), **specs({"replicaCount": "1"}, {"replicaCount": "2"})
    )
    change = replace(change, files=(FileChange("trainer/task.py", 12, 3),), notes=(noting("a.yaml"),))
    text = plan_text(plan(change, replace(CHANGE, action=Action.NONE)))
    assert text.splitlines() == [
        "Plan for local (embedded service)",
        "",
        "  + submit census_0123456789abcdef  CustomJob  jobs/census.yaml:3",
        "      1 field changed",
        "      - replicaCount: 1",
        "      + replicaCount: 2",
        "      trainer/task.py  +12 -3",
        "      moved from a.yaml",
        "",
        "1 to submit, 0 to retry, 0 to cancel, 1 unchanged, 0 blocked, 0 drift findings.",
        "Digest: sha256:" + "0" * 64,
    ]


def test_a_new_job_shows_its_whole_spec_and_others_none() -> None:
    spec = {"args": ["--x", "1"]}
    new = replace(CHANGE, **specs(spec, spec), is_new=True)
    text = plan_text(plan(new, replace(new, is_new=False, reason=saying("refused"))))
    assert text.splitlines()[3:7] == ["      new", "      + args:", "      + - --x", "      + - '1'"]
    assert text.count("--x") == 1


def test_colours_are_added_only_on_request_and_change_no_text() -> None:
    change = replace(CHANGE, **specs({"a": "\x1b[31mold"}, {"a": "new"}))
    shown = plan(change, drift=(Drift(DriftKind.ORPHANED, "old", "old", noting("x")),))
    plain, coloured = plan_text(shown), plan_text(shown, colour=True)
    assert "\x1b" not in plain
    assert '\x1b[31m- a: "\\e[31mold"\x1b[0m' in coloured.replace("      ", "")
    assert "\x1b[32m+ submit\x1b[0m" in coloured
    assert re.sub("\x1b\\[[0-9;]+m", "", coloured) == plain


def test_beyond_a_hundred_jobs_the_terminal_leaves_details_out() -> None:
    many = [replace(CHANGE, **specs({"a": 1}, {"a": 2})) for _ in range(103)]
    text = plan_text(plan(*many))
    assert text.count("+ a: 2") == 100
    assert "Details of the last 3 jobs are left out" in text


def test_a_plan_with_nothing_to_do_says_so() -> None:
    done = plan(replace(CHANGE, action=Action.NONE))
    assert plan_text(done).splitlines()[-1] == "Nothing to do: 1 job is up to date."
    detail = Note(NoteCode.NO_MANIFEST, {"state": State.RUNNING})
    finding = Drift(DriftKind.ORPHANED, "old_0123456789abcdef", "old", detail)
    drifting = plan_text(replace(done, drift=(finding,)))
    assert "  ~ orphaned old_0123456789abcdef: running, but no manifest asks for it" in drifting
    assert drifting.splitlines()[-1] == "Nothing to do: 1 job is up to date, 1 drift finding."


def test_what_is_left_alone_and_is_not_as_wanted_is_counted_and_shown() -> None:
    # What isn't published has a change of its own.
    kinds = [stuck for stuck in NotDone if stuck is not NotDone.UNPUBLISHED]
    rows = [
        replace(CHANGE, action=Action.NONE, stuck=stuck, reason=saying(f"why {stuck}")) for stuck in kinds
    ]
    text = plan_text(plan(*rows, replace(CHANGE, action=Action.NONE, reason=saying("succeeded"))))
    assert text.splitlines()[-1] == (
        "Nothing to do: 11 jobs (1 failed, 1 cancelled, 1 deleted outside, 1 given up, 1 already ran, "
        "1 unreadable, 1 overwritten, 1 below expectations, 1 not judged yet, 1 suspended)."
    )
    shown = [line.strip() for line in text.splitlines() if "why" in line or "succeeded" in line]
    assert shown == [f"why {stuck}" for stuck in kinds]


def test_a_job_that_is_submitted_again_after_its_cancel_is_shown_and_not_called_up_to_date() -> None:
    awaited = replace(CHANGE, action=Action.NONE, stopped=True, reason=saying("cancelling; submitted again"))
    lines = plan_text(plan(awaited)).splitlines()
    assert "      cancelling; submitted again" in lines
    assert lines[-1] == "Nothing to do: 1 job (1 to be submitted again)."
    assert "cancelling; submitted again" in plan_markdown(plan(awaited))


def test_plan_names_the_job_in_the_command_that_runs_it_again() -> None:
    failed = replace(
        CHANGE, action=Action.NONE, stuck=NotDone.FAILED, reason=because(ReasonCode.DELETED_OUTSIDE)
    )
    assert (
        "      deleted outside; run it again with `reconciler rerun census`"
        in plan_text(plan(failed)).splitlines()
    )
    assert "reconciler rerun census" in plan_markdown(plan(failed))


def test_long_reason_is_wrapped_on_a_terminal_and_stays_inert() -> None:
    change = replace(CHANGE, reason=saying(f"{'x' * 38} ::error::{'y' * 30}"))
    lines = plan_text(plan(change), width=46).splitlines()[4:6]
    assert lines[0] == "      " + "x" * 38
    assert not runner_finds_command(lines[1])
    assert plan_text(plan(change)).splitlines()[3] == f"      {reason_of(change)}"


def test_address_in_a_reason_stays_whole_on_a_terminal() -> None:
    image = "europe-west4-docker.pkg.dev/a-project/a-repository/a-trainer:2026-01-02"
    lines = plan_text(
        plan(replace(CHANGE, reason=saying(f"there is no image {image}"))), width=60
    ).splitlines()
    assert f"      {image}" in lines


def test_place_of_a_manifest_moves_to_the_next_line_where_a_terminal_has_no_room() -> None:
    lines = [plan_text(plan(CHANGE), width=width).splitlines()[2:5] for width in (65, 64)]
    assert lines == [
        ["  + submit census_0123456789abcdef  CustomJob  jobs/census.yaml:3", "      new", ""],
        ["  + submit census_0123456789abcdef  CustomJob", "      jobs/census.yaml:3", "      new"],
    ]


def test_bounds_of_an_integer_are_shown_as_numbers() -> None:
    spec = {"integerValueSpec": {"maxValue": "5", "minValue": "-1"}, "args": ["5"]}
    new = replace(CHANGE, **specs(spec, spec), is_new=True)
    shown = [line.strip("+ ") for line in plan_text(plan(new)).splitlines()]
    assert {"maxValue: 5", "minValue: -1", "- '5'"} <= {*shown}


def test_a_suspended_job_is_shown_where_something_of_it_goes_on() -> None:
    resting = replace(
        CHANGE, action=Action.NONE, stuck=NotDone.SUSPENDED, reason=because(ReasonCode.SUSPENDED)
    )
    running = replace(resting, reason=because(ReasonCode.SUSPENDED, state=State.RUNNING))
    text = plan_text(plan(resting, running))
    assert [line.strip() for line in text.splitlines() if line.startswith("      ")] == [reason_of(running)]


def test_a_change_without_a_manifest_has_no_line() -> None:
    cancel = replace(CHANGE, action=Action.CANCEL, line=0)
    assert plan_text(plan(cancel)).splitlines()[2].endswith("CustomJob  jobs/census.yaml")


@pytest.mark.parametrize(
    ("claim", "state", "shown"),
    [
        ("none", None, "not submitted"),
        ("pending", None, "outcome unknown"),
        ("bound", None, "deleted outside"),
        ("rejected", None, "refused"),
        ("held", None, "held"),
        ("bound", State.SUCCEEDED, "SUCCEEDED"),
        ("pending", State.RUNNING, "RUNNING"),
    ],
)
def test_a_job_without_a_run_is_shown_by_its_claim(claim: str, state: State | None, shown: str) -> None:
    row = JobStatus("census_1", "census", "CustomJob", state, claim)
    line = status_text([row], [row], NOW).splitlines()[1]
    assert line.split("  ")[1].strip()[2:] == shown


def test_problems_are_lines_that_editors_understand() -> None:
    problems = [Problem("jobs/a.yaml", 3, 5, "/spec/x", 'unknown key "x"', 'did you mean "y"?')]
    assert problems_text(problems) == 'jobs/a.yaml:3:5: unknown key "x" (/spec/x)\n    did you mean "y"?'
    assert validation_text(7, problems).splitlines()[-1] == "1 problem in 1 file of 7."
    assert validation_text(7, []) == "7 files valid."


def test_annotations_stay_within_what_github_keeps() -> None:
    problems = [Problem("jobs/a,b.yaml", n, 1, "", "100% wrong") for n in range(1, 31)]
    lines = validation_github(1, problems).splitlines()
    assert len(lines) == 10
    assert lines[0].startswith("::error file=jobs/a%2Cb.yaml,line=1,col=1,")
    assert lines[0].endswith("::100%25 wrong")
    assert "21 more problems" in lines[-1]


DOUBT = Problem(
    "jobs/a.yaml",
    3,
    5,
    "",
    "n1-x is not a known machine type",
    "did you mean n1-y?",
    WarningKind.MACHINE_TYPE,
)


def summary_of(*warnings: Problem) -> WarningSummary:
    return Warnings(items=warnings).summary()


def test_warnings_are_told_from_problems_in_each_format() -> None:
    problem = Problem("jobs/b.yaml", 1, 1, "", "wrong")
    assert problems_text([DOUBT]).startswith("jobs/a.yaml:3:5: warning: n1-x is not")
    one = summary_of(DOUBT)
    assert validation_text(7, [], one).splitlines()[-1] == "7 files valid; 1 warning in 1 file."
    assert validation_text(7, [problem], one).splitlines()[-1] == "1 problem and 1 warning in 2 files of 7."
    assert [line.partition(" ")[0] for line in validation_github(1, [problem], one).splitlines()] == [
        "::error",
        "::warning",
    ]
    found = validation_json(7, [DOUBT], {})
    assert (found["valid"], found["problems"][0]["level"]) == (True, "warning")
    assert (found["problems"][0]["kind"], found["acknowledged"]) == ("machineType", {})
    assert not validation_json(7, [DOUBT, problem], {})["valid"]


def test_annotations_have_a_limit_for_each_level() -> None:
    problems = [Problem("jobs/a.yaml", n, 1, "", "wrong") for n in range(1, 31)]
    different = [replace(DOUBT, line=n, message=f"n1-{n} is not a known machine type") for n in range(1, 31)]
    lines = validation_github(1, problems, summary_of(*different)).splitlines()
    assert [line[:6] for line in lines] == ["::erro"] * 10 + ["::warn"] * 10
    assert lines[-1].endswith("::21 more warnings; run `reconciler validate`")


def test_outcomes_count_the_jobs_that_did_not_succeed() -> None:
    stopped = replace(CHANGE, action=Action.CANCEL)
    outcomes = [
        Outcome(CHANGE, Status.APPLIED, state=State.FAILED),
        Outcome(CHANGE, Status.APPLIED, state=State.CANCELLED),
        Outcome(CHANGE, Status.APPLIED, state=State.SUCCEEDED),
        Outcome(stopped, Status.APPLIED, state=State.CANCELLED),
    ]
    last = outcomes_text(outcomes).splitlines()[-1]
    assert last == "Apply: 4 applied, 1 job FAILED, 1 job CANCELLED."


def test_outcome_with_a_cause_shows_its_class_in_place_of_the_service_s_error() -> None:
    cause = Cause(
        CauseClass.USER_CODE, ReasonCode.NON_ZERO_EXIT, {"exit_code": "1", "last": "ValueError: x"}, "census"
    )
    error = "The replica workerpool0-0 exited with a non-zero status of 1."
    outcome = Outcome(CHANGE, Status.APPLIED, State.FAILED, saying(error), cause=cause)
    assert outcomes_text([outcome]).splitlines()[0].endswith("FAILED: user code: exit code 1")


nasty = st.text(st.characters() | st.sampled_from("`|<>@#:*_[]\n\r\x1b\u202e%"), max_size=30)


@given(nasty, nasty, nasty)
def test_untrusted_text_is_inert_in_every_form(path: str, said: str, value: str) -> None:
    parts = specs({"x": f"1{value}", "y": value}, {"x": f"2{said}", path: [said]})
    change = replace(CHANGE, path=path, reason=saying(said), files=(FileChange(path, 1, 2),), **parts)
    drift = Drift(DriftKind.ORPHANED, said, said, noting(value))
    whole = plan(change, drift=(drift,))
    status = JobStatus(said, said, "CustomJob", State.FAILED, "bound", service_state=value, error=value)
    outcome = Outcome(CHANGE, Status.FAILED, reason=saying(value))
    problem = Problem(path, 1, 1, said, said, value)
    for text in (
        plan_text(whole),
        plan_markdown(whole),
        outcomes_text([outcome]),
        status_text([status], [status], NOW, wide=True),
        problems_text([problem]),
        validation_github(1, [problem]),
    ):
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
        assert all(
            line.startswith("::error ") or not line.lstrip().startswith("::") for line in text.splitlines()
        )
    assert "::error" not in plan_text(whole).splitlines()[0]
    _assert_inert_markdown(plan_markdown(whole))


def _assert_inert_markdown(text: str) -> None:
    """Check that untrusted text outside fenced blocks starts no markup, link or mention."""
    fence = ""
    for line in text.split("\n"):
        ticks = re.match("`{3,}", line)
        if fence:
            fence = "" if line == fence else fence
            continue
        if ticks:
            fence = ticks[0]
            continue
        bare = re.sub(r"&#\d+;|</?(code|details|summary)( open)?>|^- ", "", line)
        bare = re.sub(r"^(### |\| )|\|", "", bare)
        assert not set(bare) & set("`<>@#*[]"), line
    assert not fence


def test_long_values_are_shown_from_where_they_differ() -> None:
    before, after = "x" * 300 + "before", "x" * 300 + "after"
    text = plan_text(plan(replace(CHANGE, **specs({"x": before}, {"x": after}))))
    assert "- …before" in text
    assert "+ …after" in text


def test_lines_that_are_not_shown_are_counted_in_every_form() -> None:
    before, after = ({str(n): n + more for n in range(200)} for more in (0, 1))
    change = replace(CHANGE, **specs(before, after))
    change = replace(change, files=tuple(FileChange(f"f{n}.py", 1, 2) for n in range(30)))
    for text in (plan_text(plan(change)), plan_markdown(plan(change))):
        assert "and 100 more lines" in text
        assert "and 10 more files" in text.replace("&#160;", " ")


leaves = st.booleans() | st.integers(0, 3) | st.sampled_from(["", "a", "~1", "a/b"])
specs_of_any_form = st.dictionaries(
    st.sampled_from(["a", "b", "a/b", "~0", "0"]),
    st.recursive(
        leaves, lambda below: st.lists(below, max_size=4) | st.dictionaries(st.sampled_from("ab"), below)
    ),
)


@given(specs_of_any_form, specs_of_any_form)
def test_changed_fields_set_back_give_the_earlier_spec(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert earlier_spec(new, diff(old, new)) == old


def test_many_problems_are_rendered_with_few_calls_for_each() -> None:
    hint = "pin it by its digest: gcr.io/a/trainer@sha256:…, which docker push prints"
    many = [replace(DOUBT, path=f"jobs/{n}.yaml", hint=hint, kind="") for n in range(200)]
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        text = validation_text(200, many)
    finally:
        sys.setprofile(None)
    assert text.count("pin it") == 200
    assert calls < 200 * 20, "no call for each character"
