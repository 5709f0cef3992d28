"""Hostile text in manifests, services and logs: no printed line acts on a terminal or a workflow."""

from __future__ import annotations

import io
import json
import re
import unicodedata
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from rich.console import Console

from reconciler.base.diagnostics import Problem
from reconciler.base.errors import ServiceError
from reconciler.cli import (
    init,
    logs,
    print_error,
    print_json,
    print_json_rows,
    print_lines,
    print_message,
    progress,
)
from reconciler.cli.events import events
from reconciler.cli.problems import print_problems
from reconciler.model.details import PublishedPlace
from reconciler.model.diff import FieldChange
from reconciler.model.job import ActualJob, LogEntry, State
from reconciler.model.plan import FORMAT_VERSION, Action, Change, Drift, DriftKind, NotDone, Plan, Target
from reconciler.model.reason import Note, NoteCode, Reason, ReasonCode, because
from reconciler.output.json import job_json, plan_json
from reconciler.output.problems import validation_github, validation_json, validation_text
from reconciler.output.status_text import status_text
from reconciler.output.text import outcomes_text, plan_text
from reconciler.output.wording.judgement import judgement_text
from reconciler.output.wording.plan import reason_text
from reconciler.output.wording.published_place import with_place
from reconciler.planning.outcome import JobStatus, Outcome, Status
from reconciler.setup.claims_bucket import Prepared
from tests.support.hostile_plans import hostile_judgement as judgement
from tests.support.hostile_plans import published_plan
from tests.support.inert import ACTED_ON, runner_finds_command, texts
from tests.support.planning import noting, saying
from tests.support.repository import Repository

pytestmark = pytest.mark.fault(45)

NOW = datetime(2026, 1, 2, tzinfo=UTC)
TARGET = Target("prod", "google", "acme", "europe-west4")


def change(text: str) -> Change:
    fields = (FieldChange("/a", text, None), FieldChange(text, None, {text: [text]}))
    return Change(Action.SUBMIT, saying(text), text, text, "CustomJob", text, 3, fields=fields)


def judged_plan(text: str) -> Plan:
    """Return the plan of jobs whose metrics were missed and can't be read, and whose files changed."""
    missed = because(ReasonCode.EXPECTATION_MISSED, judgement=judgement(text))
    unread = because(ReasonCode.METRICS_UNREAD, why=text)
    worse = because(ReasonCode.WORSE_THAN_PUBLISHED, judgement=judgement(text))
    unpublished = because(ReasonCode.NOT_PUBLISHED, why=worse, since="")

    def judged(reason: Reason, stuck: NotDone) -> Change:
        return Change(Action.NONE, reason, "census", "census_0", "CustomJob", "a.yaml", 3, stuck=stuck)

    changes = (
        judged(missed, NotDone.MISSED),
        judged(unread, NotDone.UNJUDGED),
        judged(unpublished, NotDone.UNPUBLISHED),
        judged(worse, NotDone.UNPUBLISHED),
    )
    note = Note(NoteCode.FILE_CHANGED, {"files": text})
    drift = Drift(DriftKind.MODIFIED, "census_0", "census", note)
    return Plan(TARGET, changes, (drift,), "sha256:" + "0" * 64)


def print_unsuccessful(text: str) -> None:
    """Print why jobs weren't as expected, as apply does."""
    print_lines((f"census_0: {reason_text(c.reason)}" for c in judged_plan(text).changes), "text")


def status(text: str) -> JobStatus:
    return JobStatus(
        text,
        text,
        "CustomJob",
        State.FAILED,
        "bound",
        service_state=text,
        create_time=text,
        start_time=text,
        end_time=text,
        error=text,
        resource=text,
        url=text,
        result=with_place(judgement_text(judgement(text)), PublishedPlace(text, text, NOW)),
    )


def plan(text: str) -> Plan:
    drift = Drift(next(iter(DriftKind)), text, text, noting(text))
    return Plan(TARGET, (change(text),), (drift,), "sha256:" + "0" * 64)


def problem(text: str) -> Problem:
    return Problem(text, 1, 1, text, text, text)


SINKS: dict[str, Callable[[str], object]] = {
    "plan": lambda text: print(plan_text(plan(text), verbose=True)),
    "plan as JSON": lambda text: print_json(plan_json(plan(text))),
    "judged plan": lambda text: print(plan_text(judged_plan(text), verbose=True, width=60)),
    "judged plan as JSON": lambda text: print_json(plan_json(judged_plan(text))),
    "misses": print_unsuccessful,
    "published plan": lambda text: print(plan_text(published_plan(text), verbose=True, width=60)),
    "published plan as JSON": lambda text: print_json(plan_json(published_plan(text))),
    "publications": lambda text: print(
        outcomes_text([Outcome(c, Status.SKIPPED, None, c.reason) for c in published_plan(text).changes])
    ),
    "outcomes": lambda text: print(
        outcomes_text([Outcome(change(text), Status.FAILED, State.FAILED, saying(text))])
    ),
    "status": lambda text: print(status_text([status(text)], [status(text)], NOW, wide=True)),
    "status as JSON": lambda text: print_json_rows(FORMAT_VERSION, "jobs", [job_json(status(text))]),
    "problems": lambda text: print(validation_text(1, [problem(text)])),
    "problems as JSON": lambda text: print_json(validation_json(1, [problem(text)], {})),
    "problems on stderr": lambda text: print_problems([problem(text)], "text"),
    "problems as events": lambda text: print_problems([problem(text)], "json"),
    "an error": lambda text: print_error(ServiceError(text, hint=text), "text"),
    "an error as event": lambda text: print_error(ServiceError(text, hint=text), "json"),
    "a message": lambda text: print_message(text, "text", text),
    "events": lambda text: events("text").info(text, job=text, error=text),
    "events as JSON": lambda text: events("json").info(text, job=text, error=text),
    "a log": lambda text: logs._print(
        [LogEntry(*[text] * 6)], lambda entry: f"{entry.trial} {entry.replica} "
    ),
    "a table": lambda text: live_table(text),
    "init": lambda text: init._print_claims(Prepared("b", "f/", text, True, 2, (), ()), "acme"),
}


def live_table(text: str) -> None:
    """Return the live table as a terminal shows it, without colours."""
    job = ActualJob(
        "r",
        text,
        "v",
        "CustomJob",
        State.FAILED,
        text,
        create_time=text,
        end_time=text,
        error=text or "x",
    )
    out = io.StringIO()
    session: Any = SimpleNamespace(connection=None)
    Console(file=out, width=1000, color_system=None).print(progress._table(session, (job,)))
    print(out.getvalue())


@pytest.mark.slow
@pytest.mark.parametrize("name", SINKS)
@settings(max_examples=60)
@given(text=texts)
@example(text="::error file=a::owned")
@example(text="a\n::set-env name=PATH::owned\n##[error]owned")
@example(text="`rm`@octocat" + "a" * 1000)
@example(text="a\r::stop-commands::x\x1b[2J\x1b]0;t\x07\u202e\u2066\x9b31m")
def test_no_line_acts(name: str, text: str) -> None:
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        SINKS[name](text)
    shown = out.getvalue() + err.getvalue()
    assert shown
    lines = re.split("\r\n|\r|\n", shown)
    assert not [c for line in lines for c in line if unicodedata.category(c) in ACTED_ON]
    assert not [line for line in lines if runner_finds_command(line)]
    if name.endswith("as JSON") and "events" not in name:
        json.loads(shown)
        assert shown.isascii()


@pytest.mark.slow
@given(text=texts)
@settings(max_examples=60)
def test_annotations_are_one_command_each(text: str) -> None:
    """Check that exactly the intended annotations are workflow commands, and that none contains another."""
    told = validation_github(1, [problem(text), problem(text)])
    commands = re.split("\r\n|\r|\n", told)
    assert len(commands) == 2
    first = "file" if text else "title"
    assert all(command.startswith(f"::error {first}=") for command in commands)
    assert not [char for char in told.replace("\n", "") if unicodedata.category(char) in ACTED_ON]


def test_a_log_keeps_its_order_and_words(capsys: pytest.CaptureFixture[str]) -> None:
    """Check that each line is inert by itself, without a command that stops command processing."""
    stamp = datetime(2026, 11, 21, tzinfo=UTC).isoformat()
    logs._print([LogEntry(stamp, "INFO", "step 1\n::error::owned\nstep 2", "1")], lambda entry: "")
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.endswith("step 1")
    assert second.endswith("INFO    \\x3a:error::owned")
    assert third.endswith("step 2")


@pytest.mark.parametrize("value", ["true", "TRUE", "1"])
def test_nothing_runs_where_a_log_could_change_the_workflow(repository: Repository, value: str) -> None:
    done = repository.run("plan", ACTIONS_ALLOW_UNSECURE_COMMANDS=value)
    assert done.code == 64
    assert "ACTIONS_ALLOW_UNSECURE_COMMANDS" in done.err
    assert not done.out


def test_it_may_be_set_to_nothing(repository: Repository) -> None:
    repository.job()
    assert repository.run("validate", ACTIONS_ALLOW_UNSECURE_COMMANDS="false").code == 0
