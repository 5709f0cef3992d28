"""Jobs with a damaged record in the embedded service's database: every command goes on, and reports it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from reconciler.model.manifest import TRAINING_PIPELINE
from tests.support.repository import Repository, Result


@pytest.fixture
def trained(repository: Repository) -> Repository:
    """Return a repository with two jobs that have succeeded, and a stopped service."""
    repository.job("first")
    repository.job("second")
    assert repository.run("apply", "--wait").code == 0
    repository.run("serve", "--stop")
    return repository


def damage(repository: Repository, **columns: str) -> None:
    """Write values into the row of the job `first`."""
    with closing(sqlite3.connect(repository.home / "state.db", isolation_level=None)) as connection:
        for name, value in columns.items():
            connection.execute(f"UPDATE jobs SET {name} = ? WHERE head LIKE '%\"first_%'", (value,))


def submitted(repository: Repository) -> int:
    with closing(sqlite3.connect(repository.home / "state.db")) as connection:
        return int(connection.execute("SELECT count(*) FROM jobs").fetchone()[0])


def conditions(status: Result) -> dict[str, str]:
    lines = [line.split() for line in status.out.splitlines() if line.startswith(("first ", "second "))]
    return {words[0]: words[2] for words in lines}


DAMAGES = [{"body": "{"}, {"state": "BROKEN"}, {"images": "[", "create_time": "soon"}]


@pytest.mark.parametrize("columns", DAMAGES, ids=lambda columns: " ".join(columns))
def test_damaged_job_is_shown_as_unreadable_with_the_next_step_and_others_as_ever(
    trained: Repository, tmp_path: Path, columns: dict[str, str]
) -> None:
    damage(trained, **columns)
    said = f"The job's record in the service's database can't be read: {' '.join(columns)}"
    unknown = "state" in columns
    step = "reconciler cancel first" if unknown else "reconciler rerun first"
    for _running in range(2):  # of the stopped service, then of the running one
        status = trained.run("status")
        assert conditions(status) == {"first": "unreadable", "second": "SUCCEEDED"}
        assert said in status.out
        assert step in status.out
        assert conditions(trained.run("status", "--state", "unreadable")) == {"first": "unreadable"}
        rows: dict[str, Any] = {
            row["baseName"]: row for row in trained.run("status", "--format", "json").json["jobs"]
        }
        assert rows["first"]["cause"]["class"] == "service"
        assert rows["second"]["cause"] is None
        shown = trained.run("show", "first")
        assert (shown.code, said in shown.out) == (0, True)
        log = trained.run("logs", "first")
        assert ("done" in log.out, said in log.err) == (True, True)
        assert "done" in trained.run("logs", "second").out
        plan = trained.run("plan", "--detailed-exitcode")
        assert (plan.code, "unreadable" in plan.out) == ((2, False) if unknown else (0, True))
        assert step in plan.out.replace("\n      ", " ")
        assert trained.run("report", "--html", str(tmp_path / "site")).code == 0
        assert "unreadable" in (tmp_path / "site" / "index.html").read_text()
        assert trained.run("apply").code == (1 if unknown else 0)
    assert submitted(trained) == 2, "nothing was submitted beside it"


def test_cancel_finds_out_how_a_job_of_unknown_state_ended(trained: Repository) -> None:
    damage(trained, state="BROKEN")
    cancelled = trained.run("cancel", "first")
    assert "ended SUCCEEDED" in cancelled.out
    assert conditions(trained.run("status")) == {"first": "SUCCEEDED", "second": "SUCCEEDED"}


@pytest.mark.slow
def test_pipeline_whose_training_has_an_unknown_state_is_unreadable_until_it_is_cancelled(
    repository: Repository,
) -> None:
    repository.job("first", kind=TRAINING_PIPELINE)
    assert repository.run("apply", "--wait").code == 0
    repository.run("serve", "--stop")
    damage(repository, state="RUNNING", end_time="")
    with closing(sqlite3.connect(repository.home / "state.db", isolation_level=None)) as connection:
        connection.execute("UPDATE jobs SET state = 'BROKEN' WHERE collection = 'customJobs'")
    for _running in range(2):  # of the stopped service, then of the running one
        status = repository.run("status")
        assert conditions(status) == {"first": "unreadable"}
        assert "reconciler cancel first" in status.out
        assert "reconciler cancel first" in repository.run("plan").out.replace("\n      ", " ")
        assert repository.run("apply", "--wait").code == 1
    assert submitted(repository) == 2, "nothing was submitted beside the pipeline and its job"
    assert "ended CANCELLED" in repository.run("cancel", "first").out


@pytest.mark.parametrize(
    "columns", [{"body": "{"}, {"state": "BROKEN"}], ids=lambda columns: " ".join(columns)
)
def test_damaged_job_whose_claim_was_lost_is_not_submitted_again(
    trained: Repository, columns: dict[str, str]
) -> None:
    damage(trained, **columns)
    (claim,) = (
        path for path in (trained.home / "gcs").glob("*/*/claims/*/*/*/*/1") if b'"first' in path.read_bytes()
    )
    claim.unlink()
    for _ in range(2):
        applied = trained.run("apply")
        assert (submitted(trained), "first" in applied.out) == (2, True)


def test_no_command_acts_while_the_labels_of_a_job_are_unknown(trained: Repository) -> None:
    damage(trained, body="{", head='"first_')
    for command in ("status", "plan", "apply", "show second"):
        done = trained.run(*command.split())
        assert done.code == 1
        assert "so no list is complete. Restore state.db from a copy." in done.err
    assert submitted(trained) == 2
