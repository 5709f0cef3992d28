"""Jobs with unreadable rows in the database: they are never left out, and hide no other job."""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from reconciler.base.listener.message import Request
from reconciler.training_service.application import open_copy
from reconciler.training_service.state import database
from reconciler.training_service.state.database import Store
from reconciler.training_service.state.records import UNFINISHED, JobState
from reconciler.training_service.state.rows import LABEL
from tests.support.training_service.bodies import ML, VERTEX, custom_job, ml_job, tuning_job
from tests.support.training_service.served import Service

JOBS, TUNED = f"{VERTEX}/customJobs", f"{VERTEX}/hyperparameterTuningJobs"
KEYED = quote(f'labels.{LABEL}="k"')
LIVE = quote('state!="JOB_STATE_SUCCEEDED" AND state!="JOB_STATE_FAILED" AND state!="JOB_STATE_CANCELLED"')
LATE = quote('create_time>="2030-01-01T00:00:00Z"')
NAMED = quote('display_name:"*"')
BODIES = ["", "{", "[]", "null", '{"labels": 5}', '"text"', "\udcff", "[" * 100_000]


def damage(service: Service, **columns: Any) -> None:
    """Write values into the row of the job with the lowest number."""
    with service.store.database.writing() as connection:
        for name, value in columns.items():
            connection.execute(f"UPDATE jobs SET {name} = ? WHERE id = 1", (value,))


@pytest.fixture
def paths(service: Service) -> list[str]:
    """Return the paths of two jobs with the same key; the first job's row will be damaged."""
    made = [service.post(JOBS, custom_job(name, labels={LABEL: "k"})).json for name in ("first", "second")]
    return [f"/v1/{job['name']}" for job in made]


def listed(service: Service, query: str = "", path: str = JOBS) -> dict[str, dict[str, Any]]:
    answer = service.get(path + query)
    assert answer.status == 200, answer.content
    return {job["displayName"]: job for job in answer.json.get(path.rpartition("/")[2], [])}


@pytest.mark.parametrize("body", BODIES)
def test_job_with_unreadable_body_is_listed_with_name_and_labels(
    service: Service, paths: list[str], body: str, caplog: pytest.LogCaptureFixture
) -> None:
    damage(service, body=body.encode("utf-8", "surrogateescape"))
    for query in ("", f"?filter={KEYED}", f"?filter={LIVE}", f"?filter={NAMED}"):
        found = listed(service, query)
        assert [*found] == ["second", "first"], query
        assert "error" not in found["second"]
        assert found["first"]["labels"] == {LABEL: "k"}
        assert found["first"]["state"] == "JOB_STATE_QUEUED"
        assert "jobSpec" not in found["first"]
        error = found["first"]["error"]
        assert error["message"] == "The job's record in the service's database can't be read: body."
        (detail,) = error["details"]
        assert (detail["reason"], detail["metadata"]) == (
            "UNREADABLE",
            {"class": "service", "columns": "body"},
        )
    assert service.get(paths[0]).json == listed(service)["first"]
    assert not caplog.records


@pytest.mark.slow
@pytest.mark.parametrize("state", ["BROKEN", "", "queued", b"\xff", 7])
def test_job_with_unknown_state_counts_as_live(service: Service, paths: list[str], state: Any) -> None:
    damage(service, state=state)
    for query in ("", f"?filter={KEYED}", f"?filter={LIVE}"):
        assert listed(service, query)["first"]["state"] == "JOB_STATE_UNSPECIFIED"
    assert "first" not in listed(service, "?filter=" + quote('state="JOB_STATE_SUCCEEDED"'))
    assert service.call("DELETE", paths[0]).status == 400
    assert service.post(f"{paths[0]}:cancel").status == 200
    assert listed(service)["first"]["state"] == "JOB_STATE_CANCELLING"
    assert "error" not in listed(service)["first"]


def test_unreadable_times_are_left_out_and_no_filter_by_time_leaves_the_job_out(
    service: Service, paths: list[str]
) -> None:
    damage(service, create_time="soon", start_time="2026-01-02", update_time=b"\xff")
    for query in ("", f"?filter={LATE}"):
        found = listed(service, query)["first"]
        assert not {"createTime", "startTime", "updateTime"} & {*found}
        assert found["error"]["message"].endswith("can't be read: create_time start_time update_time.")
    assert "second" not in listed(service, f"?filter={LATE}")


@pytest.mark.parametrize("column", ["images", "error_details"])
def test_other_unreadable_columns_are_named(service: Service, paths: list[str], column: str) -> None:
    damage(service, **{column: "[]"})
    assert listed(service)["first"]["error"]["message"].endswith(f"can't be read: {column}.")
    assert listed(service)["first"]["jobSpec"] == listed(service)["second"]["jobSpec"]


def test_no_filtered_list_is_given_while_labels_are_unknown(service: Service, paths: list[str]) -> None:
    damage(service, body="{", head="{")
    assert [*listed(service)] == ["second", paths[0].rpartition("/")[2]]
    for query in (KEYED, LIVE, quote(f'labels.{LABEL}="other"')):
        answer = service.get(f"{JOBS}?filter={query}")
        assert answer.status == 400
        assert (
            "The labels of projects/demo/locations/us-central1/customJobs/" in answer.json["error"]["message"]
        )
        assert "Restore state.db from a copy." in answer.json["error"]["message"]


def test_unreadable_job_of_ai_platform_is_listed_and_keeps_its_labels(service: Service) -> None:
    for name in ("first", "second"):
        assert service.post(ML, ml_job(name, labels={LABEL: "k"})).status == 200
    damage(service, body="{", state="BROKEN")
    jobs = {job["jobId"]: job for job in service.get(f"{ML}?filter={KEYED}").json["jobs"]}
    assert {name: job["state"] for name, job in jobs.items()} == {
        "first": "STATE_UNSPECIFIED",
        "second": "QUEUED",
    }
    message = "Unreadable (body state): The job's record in the service's database can't be read: body state."
    assert jobs["first"]["errorMessage"] == message
    changed = service.call("PATCH", f"{ML}/first?updateMask=labels", {"labels": {"a": "b"}})
    assert (changed.status, "can't be read: body state" in changed.json["error"]["message"]) == (400, True)


@pytest.mark.parametrize("column", ["parameters", "measurements", "state"])
def test_tuning_job_with_unreadable_trials_is_listed_without_them(service: Service, column: str) -> None:
    for name in ("first", "second"):
        assert service.post(TUNED, tuning_job(name)).status == 200
    for number in (1, 2):
        service.store.add_trial(number, {"lr": 0.5})
    with service.store.database.writing() as connection:
        connection.execute(f"UPDATE trials SET {column} = '[' WHERE job = 1")
    found = listed(service, path=TUNED)
    assert found["first"]["error"]["message"].endswith("can't be read: trials.")
    assert ("trials" in found["first"], "trials" in found["second"]) == (False, True)


def test_state_of_stopped_service_is_read_around_unreadable_jobs(service: Service, paths: list[str]) -> None:
    tuned = service.post(TUNED, tuning_job("tuned")).json["name"]
    service.store.add_trial(3, {"lr": 0.5})
    service.store.move(3, JobState.RUNNING, only_from=UNFINISHED, at=service.store.now())
    service.store.add_run(3, 1)
    damage(service, body="{")
    with service.store.database.writing() as connection:
        connection.execute("UPDATE trials SET state = 'BROKEN'")
    service.store.database.close()
    (service.home / "service.lock").touch()
    with open_copy(service.home) as application:
        for path in (*paths, f"/v1/{tuned}"):
            assert application.handle(Request.of("GET", path)).status == 200


def test_database_of_before_heads_learns_names_and_labels(service: Service, paths: list[str]) -> None:
    service.store.database.close()
    path = service.home / "state.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(
            "DROP INDEX jobs_by_label; ALTER TABLE jobs DROP COLUMN head; PRAGMA user_version = 6;"
        )
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE jobs SET body = '{' WHERE id = 2")
        connection.commit()
    store = Store(database.open_file(path))
    first, second = (store.job(number) for number in (1, 2))
    assert first
    assert second
    assert (first.unreadable, second.unreadable) == ((), ("body", "labels"))
    with store.database.writing() as connection:
        connection.execute("UPDATE jobs SET body = '{' WHERE id = 1")
    first = store.job(1)
    assert first
    assert (first.unreadable, first.body) == (("body",), {"displayName": "first", "labels": {LABEL: "k"}})
    store.database.close()


def test_stopped_service_prints_no_traceback(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The output has no traceback for any damage to the service's state."""
    home = tmp_path / "home"
    (home / "gcs" / "bucket").mkdir(parents=True)
    store = Store(database.open_file(home / "state.db"))
    with store.database.writing() as connection:
        connection.execute("INSERT INTO buckets VALUES ('bucket', 1, 'now', '{')")
    store.database.close()
    logging.getLogger("reconciler.training_service").handlers.clear()
    with open_copy(home) as application:
        answer = application.handle(Request.of("GET", "/storage/v1/b/bucket"))
    assert answer.status == 500
    assert capsys.readouterr() == ("", "")
