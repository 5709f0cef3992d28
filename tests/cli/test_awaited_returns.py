"""Content that is being cancelled is submitted again within the same apply: limits, faults, patience."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.model.claim import by_apply
from reconciler.model.job import ActualJob, State
from tests.support.in_memory import Commands, commands_in


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    """Return a repository that desires a new job, and a job with a run that apply is cancelling."""
    made = commands_in(tmp_path, monkeypatch, capsys.readouterr)
    made.job("census", "a")
    assert made.run("apply", "--yes").code == 0
    ((_, found),) = made.outside.claims.held.items()
    made.outside.claims.write(replace(found.claim, error=by_apply("superseded")), found.generation)
    made.outside.jobs.becomes(run_of(made), State.CANCELLING)
    made.job("third", "b")
    return made


def run_of(commands: Commands) -> ActualJob:
    return commands.outside.jobs.jobs[0]


def names(commands: Commands) -> list[tuple[str, State]]:
    return [(job.job_name.split("_", 1)[0], job.state) for job in commands.outside.jobs.jobs]


@pytest.mark.fault(59)
@pytest.mark.parametrize("end", [State.CANCELLED, State.SUCCEEDED, State.FAILED])
def test_it_is_submitted_after_its_end_if_it_was_cancelled(commands: Commands, end: State) -> None:
    commands.meanwhile.append(lambda: commands.outside.jobs.becomes(run_of(commands), end))
    result = commands.run("apply", "--yes")
    again = [("census", State.QUEUED)] if end is State.CANCELLED else []
    assert names(commands) == [("census", end), ("third", State.QUEUED), *again]
    assert result.code == 0, result.err
    assert ("retry" in result.out) == bool(again)


@pytest.mark.fault(17, 59)
def test_a_run_that_does_not_end_in_time_makes_the_apply_fail(commands: Commands) -> None:
    result = commands.run("apply", "--yes")
    assert result.code == 1
    assert "its job is still cancelling: apply again once it has ended" in result.out
    assert names(commands) == [("census", State.CANCELLING), ("third", State.QUEUED)]


def test_the_limits_hold_for_both_halves_of_an_apply_together(commands: Commands) -> None:
    settings = commands.root / "reconciler.yaml"
    settings.write_text(f"{settings.read_text()}  local: {{limits: {{submissions: 1}}}}\n")
    commands.meanwhile.append(lambda: commands.outside.jobs.becomes(run_of(commands), State.CANCELLED))
    result = commands.run("apply", "--yes")
    assert (result.code, len(commands.outside.jobs.jobs)) == (1, 2)
    assert "with what this apply has done already, the plan has 2 submissions" in result.out
    assert "(apply again)" in result.out
    # The next apply has only this submission.
    assert commands.run("apply", "--yes").code == 0
    assert names(commands)[-1] == ("census", State.QUEUED)


def test_a_look_that_fails_after_the_wait_hides_nothing_that_was_done(
    commands: Commands, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away() -> tuple[ActualJob, ...]:
        raise ServiceError("the service is away")

    def ends() -> None:
        commands.outside.jobs.becomes(run_of(commands), State.CANCELLED)
        monkeypatch.setattr(commands.outside.jobs, "runs", away)
        monkeypatch.setattr(commands.outside.jobs, "live", away)

    commands.meanwhile.append(ends)
    result = commands.run("apply", "--yes")
    assert result.code == 1
    assert "applied  submit  third_" in result.out
    assert "failed   none    census_" in result.out
    assert "the service is away" in result.out


def test_attempts_are_counted_without_the_job_that_apply_stopped(commands: Commands) -> None:
    commands.job("census", "a", reconcile="attempts: 2")
    (commands.root / "jobs" / "third.yaml").unlink()
    commands.outside.jobs.becomes(run_of(commands), State.CANCELLED)
    for left in (1, 0):
        commands.meanwhile.append(
            lambda: commands.outside.jobs.becomes(commands.outside.jobs.jobs[-1], State.FAILED)
        )
        result = commands.run("apply", "--wait", "--yes")
        assert result.code == 1
        assert ("the next apply starts attempt 2 of 2" in result.err) == bool(left), result.err
    assert len(commands.outside.jobs.jobs) == 3
    assert commands.run("apply", "--wait", "--yes").code == 1
    assert len(commands.outside.jobs.jobs) == 3
