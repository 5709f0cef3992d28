"""The visible progress of an apply: a bar on a terminal, occasional lines in a log."""

from __future__ import annotations

import io
import subprocess
import sys
from argparse import Namespace
from typing import Any, cast

import pytest
from rich.console import Console

from reconciler.cli import progress
from reconciler.cli.progress import submitting
from reconciler.model.job import ActualJob, State
from reconciler.model.manifest import AIPLATFORM_V1
from reconciler.planning.outcome import SubmitProgress
from tests.support.terminal import Terminal
from tests.support.waiting import PATIENCE


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def arguments(**settings: Any) -> Namespace:
    return Namespace(**{"quiet": False, "log_format": "text", **settings})


def test_a_log_gets_a_line_for_every_fifty() -> None:
    out = io.StringIO()
    with submitting(arguments(), out) as listener:
        for done in range(121):
            listener(SubmitProgress(120, done, failed=done // 60))
    assert out.getvalue() == "submitted 50 of 120\nsubmitted 100 of 120, 1 failed\n"


def test_a_log_gets_a_line_for_thirty_seconds_in_which_something_was_done() -> None:
    lines, clock = list[str](), Clock()
    counted = progress._CountedLines(lines.append, clock)
    for clock.now, done in [(10.0, 0), (29.0, 1), (40.0, 1), (40.0, 2), (69.0, 3), (70.0, 4), (200.0, 4)]:
        counted(SubmitProgress(9, done, left=9.0 - done))
    assert lines == [
        "submitted 1 of 9, at least 0:00:08 left",
        "submitted 4 of 9, at least 0:00:05 left",
    ]


@pytest.mark.parametrize(
    ("settings", "stream"),
    [({"quiet": True}, Terminal()), ({"quiet": True}, io.StringIO()), ({}, io.StringIO())],
)
def test_few_are_told_in_the_outcomes_only(settings: Any, stream: io.StringIO) -> None:
    with submitting(arguments(**settings), stream) as listener:
        for done in range(4):
            listener(SubmitProgress(3, done))
    assert stream.getvalue() == ""


@pytest.mark.parametrize(
    ("settings", "stream", "environ"),
    [
        ({"log_format": "json"}, Terminal(), {}),
        ({}, Terminal(), {"NO_COLOR": "1"}),
        ({}, io.StringIO(), {}),
    ],
)
def test_a_bar_is_for_terminals(
    settings: Any, stream: io.StringIO, environ: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with submitting(arguments(**settings), stream) as listener:
        assert isinstance(listener, progress._CountedLines)


def test_on_a_terminal_the_bar_begins_with_the_first_submission_and_ends() -> None:
    with submitting(arguments(), Terminal()) as listener:
        assert isinstance(listener, progress._Bar)
        listener(SubmitProgress(0))
        assert listener._live is None
        listener(SubmitProgress(2))
        live = listener._live
        assert live is not None
        assert live.is_started
        listener(SubmitProgress(2, 1))
        assert listener._live is live
    assert not live.is_started


def shown(bar: progress._Bar) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=150).print(bar.shown())
    return [line.strip() for line in out.getvalue().splitlines()]


def test_the_bar_says_what_is_done_and_what_is_waited_for() -> None:
    clock = Clock()
    bar = progress._Bar(clock)
    bar._standing = SubmitProgress(300, 150, failed=1, open=2, held=30.0, left=180.0)
    first, second = shown(bar)
    assert first.startswith("━" * 15)
    assert first.endswith("submitted 150 of 300")
    assert second == "1 failed, 2 unknown so far, quota used up, continuing in 30 s, at least 0:03:00 left"
    clock.now = 10.0
    assert shown(bar)[1].endswith("continuing in 20 s, at least 0:02:50 left")
    clock.now = 1000.0
    assert shown(bar)[1] == "1 failed, 2 unknown so far"


@pytest.mark.slow
def test_rich_is_only_loaded_for_a_bar() -> None:
    code = (
        "import io, sys; from argparse import Namespace; from reconciler.cli.progress import submitting\n"
        "from reconciler.planning.outcome import SubmitProgress\n"
        "with submitting(Namespace(quiet=False, log_format='text'), io.StringIO()) as listener:\n"
        "    listener(SubmitProgress(200, 100))\n"
        "assert 'rich' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE)


def test_the_table_shows_the_cause_of_a_failed_job_in_place_of_the_service_s_words() -> None:
    error = "The replica workerpool0-0 exited with a non-zero status of 1.\nValueError: no such column"
    name = "census_0123456789abcdef"
    job = ActualJob("r", name, AIPLATFORM_V1, "CustomJob", State.FAILED, "JOB_STATE_FAILED", error=error)
    (row,) = table(job)
    assert row == "census  ✗ FAILED           exit code 1: ValueError: no such column"


def table(*jobs: ActualJob) -> list[str]:
    """Return the rows of the live table on a terminal of 80 columns."""
    console = Console(file=io.StringIO(), width=80)
    console.print(progress._table(cast("Any", None), jobs))
    shown: str = console.file.getvalue()  # type: ignore[attr-defined]
    return [line.rstrip() for line in shown.splitlines()[1:]]


def test_the_table_has_whole_job_names_only_for_runs_of_one_base_name() -> None:
    names = ("a_0123456789abcdef", "b_0123456789abcdef", "b_fedcba9876543210")
    jobs = [ActualJob("r", name, AIPLATFORM_V1, "CustomJob", State.FAILED, "", error="x") for name in names]
    assert [row.split()[0] for row in table(*jobs)] == ["a", *names[1:]]
