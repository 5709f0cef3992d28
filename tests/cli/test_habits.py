"""Habits of other command lines: flags before the command, a question in the cloud, and Ctrl-C."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from reconciler import cli
from reconciler.base.errors import UsageError
from reconciler.cli.arguments import parse
from tests.support.google_place import google_place
from tests.support.held_service import HeldService
from tests.support.repository import Repository
from tests.support.terminal import on_terminal


@pytest.mark.parametrize(
    "words",
    [
        ("--env", "prod", "plan", "jobs/a.yaml"),
        ("--env=prod", "plan", "jobs/a.yaml"),
        ("plan", "jobs/a.yaml", "--env", "prod"),
        ("--env", "dev", "plan", "--env", "prod", "jobs/a.yaml"),
    ],
)
def test_common_flags_stand_before_or_after_the_command(words: tuple[str, ...]) -> None:
    found = parse(words)
    assert (found.env, found.paths, found.quiet) == ("prod", [Path("jobs/a.yaml")], False)
    assert parse(["-q", *words]).quiet


@pytest.mark.parametrize("words", [("--env",), ("--env", "plan"), ("-v",), ("--wait", "apply")])
def test_flags_without_a_command_or_of_one_command_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(UsageError):
        parse(words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["apply"],
            ["interrupted; submitted jobs keep running", "    the next `reconciler apply` first looks for"],
        ),
        (["--env", "prod", "watch"], ["interrupted; submitted jobs keep running", "    the next"]),
        (["validate"], ["interrupted"]),
        (["logs", "apply"], ["interrupted"]),
    ],
)
def test_interrupted_command_speaks_of_jobs_only_if_it_submits(
    words: list[str], said: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "parse", interrupted)
    assert cli.run(words) == 128 + signal.SIGINT
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == len(said)
    assert all(line.startswith(start) for line, start in zip(lines, said, strict=True))


@pytest.fixture
def cloud(repository: Repository, tmp_path: Path) -> Iterator[dict[str, str]]:
    """Return the variables of an environment in Google Cloud, with a job that isn't submitted."""
    repository.job()
    with (
        HeldService(repository.home).running() as service,
        google_place(repository, service, service.url, tmp_path, submitter=False) as environ,
    ):
        assert repository.run("init", "--claims", **environ).code == 0
        yield environ


def test_apply_at_a_terminal_asks_before_it_submits_in_the_cloud(
    repository: Repository, cloud: dict[str, str]
) -> None:
    refused = on_terminal(repository, "apply", answer="\n", **cloud)
    assert "Apply this plan? (prod, project acme-ml) [y/N]" in refused
    assert "cancelled: nothing was done" in refused
    (job,) = repository.run("status", "--format", "json", **cloud).json["jobs"]
    assert (job["state"], job["claim"]) == (None, "none")
    assert "applied" in on_terminal(repository, "apply", answer="y\n", **cloud)
    assert "[y/N]" not in on_terminal(repository, "apply", **cloud), "there is nothing to do"


def test_cancel_at_a_terminal_asks_in_the_cloud_unless_yes_is_given(
    repository: Repository, cloud: dict[str, str]
) -> None:
    applied = on_terminal(repository, "apply", "--yes", **cloud)
    assert "applied" in applied
    assert "[y/N]" not in applied
    refused = on_terminal(repository, "cancel", "census", answer="n\n", **cloud)
    assert "Cancel census_" in refused
    assert "nothing was done" in refused
    assert "ended CANCELLED" in on_terminal(repository, "cancel", "--yes", "census", **cloud)


def test_without_a_terminal_nothing_is_asked(repository: Repository, cloud: dict[str, str]) -> None:
    done = repository.run("apply", **cloud)
    assert (done.code, "[y/N]" in done.err) == (0, False)


def test_interrupted_wait_says_that_the_job_goes_on(repository: Repository) -> None:
    repository.job(args=["--hold", str(repository.hold)])
    repository.hold.touch()
    process = repository.start("apply", "--wait")
    try:
        assert process.stderr
        # Wait for the state in the output: an apply interrupted earlier doesn't know it.
        assert any(" RUNNING " in line for line in process.stderr)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate()
    finally:
        process.kill()
    assert process.returncode == 128 + signal.SIGINT
    assert "is RUNNING and goes on; `reconciler cancel census` stops it" in err
    assert "Traceback" not in err
    assert _state(repository) == "RUNNING"
    repository.hold.unlink()
    assert repository.run("apply", "--wait").code == 0


def _state(repository: Repository) -> str | None:
    jobs = repository.run("status", "--format", "json").json["jobs"]
    return jobs[0]["state"] if jobs else None
