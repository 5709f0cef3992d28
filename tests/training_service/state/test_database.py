"""The store: its records, and the durability of acknowledged writes when it is killed at any moment."""

from __future__ import annotations

import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from reconciler.training_service.state import database
from reconciler.training_service.state.database import (
    AlreadyExistsError,
    DatabaseError,
    Store,
    TooLateError,
)
from reconciler.training_service.state.records import (
    ENDED,
    PIPELINES,
    UNFINISHED,
    JobRecord,
    JobState,
    RunRecord,
    details_of,
    number_of,
)
from reconciler.training_service.state.rows import LABEL
from reconciler.training_service.state.trial_records import Measurement, TrialState
from reconciler.training_service.storage import index
from reconciler.training_service.storage.index import StoredObject
from tests.support.training_service.served import Clock


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(database.open_file(tmp_path / "state.db"), Clock())


def record(store: Store, job_id: str = "a", collection: str = "jobs", project: str = "demo") -> JobRecord:
    now = store.now()
    return JobRecord(
        collection, project, "", job_id, {"jobId": job_id}, f"secret-{collection}-{job_id}", now, now
    )


def test_a_job_comes_back_as_it_went_in(store: Store) -> None:
    added = store.add_job(record(store))
    assert added == JobRecord(**{name: getattr(added, name) for name in JobRecord.__dataclass_fields__})
    assert store.job(added.id) == added
    assert store.find("jobs", "demo", "", "a") == added
    assert store.find("jobs", number_of("demo"), "", "a") == added
    assert store.of_secret(added.gcs_secret) == added
    assert store.newest_named("demo", "a") == added
    assert store.unfinished() == [added]
    assert [job.id for job in store.select(("jobs", "demo", ""), lambda _: True, 10)] == [added.id]
    assert store.find("jobs", "other", "", "a") is None
    assert store.job(added.id + 1) is None


def test_an_id_is_used_once_and_numbers_never_come_again(store: Store) -> None:
    first = store.add_job(record(store))
    with pytest.raises(AlreadyExistsError):
        store.add_job(record(store))
    second = store.add_job(record(store, "b"))
    store.delete(second.id)
    assert store.add_job(record(store, "b")).id > second.id > first.id


def test_a_job_moves_only_from_where_it_is_said_to_be(store: Store) -> None:
    job = store.add_job(record(store))
    assert store.move(job.id, JobState.RUNNING, only_from={JobState.PREPARING}, at="t") is None
    assert store.job(job.id) == job
    running = store.move(job.id, JobState.RUNNING, only_from=UNFINISHED, at="t1")
    assert running is not None
    assert (running.start_time, running.end_time, running.update_time) == ("t1", "", "t1")
    again = store.move(job.id, JobState.RUNNING, only_from=UNFINISHED, at="t2")
    assert again is not None
    assert again.start_time == "t1"
    ended = store.move(
        job.id, JobState.FAILED, only_from=UNFINISHED, at="t3", error_code=3, error_message="why"
    )
    assert ended is not None
    assert (ended.end_time, ended.error_code, ended.error_message) == ("t3", 3, "why")
    assert store.job(job.id) == ended
    assert store.unfinished() == []
    assert store.move(job.id, JobState.RUNNING, only_from=UNFINISHED, at="t4") is None
    assert store.move(99, JobState.RUNNING, only_from=set(JobState), at="t4") is None


def test_every_state_is_ended_or_not() -> None:
    assert set(JobState) == ENDED | UNFINISHED
    assert not ENDED & UNFINISHED
    assert {state for state in JobState if state.ended} == ENDED


def test_runs_are_counted_for_each_job(store: Store) -> None:
    one, two = store.add_job(record(store, "a")), store.add_job(record(store, "b"))
    runs = [store.add_run(one.id), store.add_run(two.id), store.add_run(one.id)]
    assert [run.number for run in runs] == [1, 1, 2]
    assert store.runs(one.id) == [runs[0], runs[2]]
    trial = store.add_run(one.id, trial=2)
    assert store.runs(one.id, trial=2) == [trial]
    assert store.runs(one.id, trial=0) == [runs[0], runs[2]]
    store.delete(one.id)
    assert store.runs(one.id) == []
    assert store.runs(two.id) == [runs[1]]


def test_labels_are_replaced_under_their_etag(store: Store) -> None:
    job = store.add_job(record(store))
    one = store.set_labels(job.id, {"a": "b"}, only_etag="", at="t")
    assert one is not None
    assert one.body["labels"] == {"a": "b"}
    assert store.set_labels(job.id, {}, only_etag="another", at="t") is None
    two = store.set_labels(job.id, {}, only_etag=one.etag, at="t")
    assert two is not None
    assert "labels" not in two.body
    assert store.job(job.id) == two


def test_trials_come_back_as_they_went_in(store: Store) -> None:
    one, two = store.add_job(record(store, "a")), store.add_job(record(store, "b"))
    first = store.add_trial(one.id, {"rate": 0.1, "layers": 3, "kind": "adam"})
    assert (first.number, first.state) == (1, TrialState.QUEUED)
    assert store.trials(one.id) == [first]
    measured = Measurement(2, 1.5, {"loss": 0.25})
    ended = replace(
        first,
        state=TrialState.SUCCEEDED,
        start_time="t1",
        end_time="t2",
        measurements=(Measurement(1, 0.5, {"loss": 1.0}), measured),
        final=measured,
        stopped_early=True,
        message="why",
    )
    store.save_trial(ended)
    second = store.add_trial(one.id, {})
    assert store.trials(one.id) == [ended, second]
    assert [*ended.parameters] == [*store.trials(one.id)[0].parameters]
    assert [store.add_trial(two.id, {}, after=7).number for _ in range(2)] == [8, 9]
    assert store.add_run(one.id, trial=2).trial == store.runs(one.id)[0].trial == 2
    store.delete(one.id)
    assert store.trials(one.id) == []
    assert len(store.trials(two.id)) == 2


# The tables of version 2, without the tables that are still the same.
VERSION_2 = """
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY AUTOINCREMENT, collection TEXT NOT NULL, project TEXT NOT NULL,
    project_number TEXT NOT NULL, location TEXT NOT NULL, job_id TEXT NOT NULL, body TEXT NOT NULL,
    images TEXT NOT NULL, state TEXT NOT NULL, create_time TEXT NOT NULL, start_time TEXT NOT NULL,
    end_time TEXT NOT NULL, update_time TEXT NOT NULL, error_code INTEGER NOT NULL,
    error_message TEXT NOT NULL, etag TEXT NOT NULL, gcs_secret TEXT NOT NULL UNIQUE,
    UNIQUE (collection, project_number, location, job_id)
);
CREATE TABLE runs (
    run_id TEXT PRIMARY KEY, job INTEGER NOT NULL REFERENCES jobs (id) ON DELETE CASCADE,
    number INTEGER NOT NULL, UNIQUE (job, number)
);
INSERT INTO jobs VALUES (
    7, 'jobs', 'demo', '1', '', 'old', '{}', '{}', 'RUNNING', 'c', 's', '', 'u', 0, '', '', 'secret'
);
INSERT INTO runs VALUES ('7-1-abcd', 7, 1);
PRAGMA user_version = 2;
"""


def test_a_database_of_before_there_were_trials_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_2)
    for _ in range(2):
        store = Store(database.open_file(path), Clock())
        (job,) = store.unfinished()
        assert (job.id, job.state, job.error_details) == (7, JobState.RUNNING, {})
        assert store.runs(7)[0] == RunRecord("7-1-abcd", 7, 1, trial=0)
        store.add_run(7, trial=1)
        assert store.runs(7)[-1].trial == 1
        assert store.add_trial(7, {}) in store.trials(7)
        with store.database.reading() as connection:
            assert connection.execute("PRAGMA user_version").fetchone()[0] == database.SCHEMA_VERSION
        store.database.close()


# The tables of version 3, without the tables that are still the same.
VERSION_3 = (
    VERSION_2.replace("number INTEGER NOT NULL, UNIQUE", "number INTEGER NOT NULL, trial INTEGER, UNIQUE")
    .replace("('7-1-abcd', 7, 1)", "('7-1-abcd', 7, 1, 0)")
    .replace("user_version = 2", "user_version = 3")
    + """
CREATE TABLE objects (
    bucket TEXT NOT NULL, name TEXT NOT NULL, generation INTEGER NOT NULL, metageneration INTEGER NOT NULL,
    created TEXT NOT NULL, updated TEXT NOT NULL, size INTEGER NOT NULL, md5 TEXT NOT NULL,
    crc32c TEXT NOT NULL, inode INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, body TEXT NOT NULL,
    PRIMARY KEY (bucket, name)
) WITHOUT ROWID;
INSERT INTO objects VALUES ('b', 'n', 5, 2, 'c', 'u', 4, 'm', 'k', 11, 12, '{"metadata": {"a": "b"}}');
"""
)
OBJECT = StoredObject("b", "n", 5, 2, "c", "u", 4, "m", "k", 11, 12, {"metadata": {"a": "b"}})


def test_a_database_of_before_jobs_had_revisions_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_3)
    for taken in range(2):
        store = Store(database.open_file(path), Clock())
        (job,) = store.select(("jobs", "1", ""), lambda _: True, 2)
        assert (job.id, job.job_id, job.state) == (7, "old", JobState.RUNNING)
        with store.database.writing() as connection:
            assert connection.execute("SELECT revision FROM jobs").fetchone()[0] == taken
            assert index.find(connection, "b", "n") == OBJECT
            assert index.find_all(connection, "b", ["m", "n"]) == {"n": OBJECT}
            index.note(connection, OBJECT)
            tables = {row["name"] for row in connection.execute("SELECT name FROM sqlite_master")}
        assert "objects" in tables
        assert "objects_3" not in tables
        store.move(7, JobState.RUNNING, only_from=UNFINISHED, at="u")
        store.database.close()


@pytest.mark.fault(33)
def test_a_database_that_cant_be_taken_over_stays_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(VERSION_3 + "CREATE TABLE objects_3 (in_the_way);")
        before = [*connection.iterdump()]
    for _ in range(2):
        with pytest.raises(DatabaseError, match="objects_3"):
            Store(database.open_file(path)).unfinished()
    with closing(sqlite3.connect(path)) as connection:
        assert [*connection.iterdump()] == before
        assert connection.execute("PRAGMA user_version").fetchone()[0] == 3


def test_whatever_changes_of_a_job_is_seen_in_the_next_list(store: Store) -> None:
    job = store.add_job(record(store))
    place = ("jobs", "demo", "")

    def listed() -> JobRecord:
        return store.select(place, lambda _: True, 2)[0]

    seen = [listed()]
    # The clock stands still, so that no order follows from times.
    store.move(job.id, JobState.RUNNING, only_from=UNFINISHED, at=job.update_time)
    seen.append(listed())
    store.move(job.id, JobState.RUNNING, only_from=UNFINISHED, at=job.update_time, error_message="why")
    seen.append(listed())
    store.set_labels(job.id, {"a": "b"}, only_etag="", at=job.update_time)
    seen.append(listed())
    with store.database.writing() as connection:
        connection.execute("UPDATE jobs SET project = 'else', end_time = 't'")
    seen.append(listed())
    assert [(job.state, job.error_message, job.body.get("labels"), job.end_time) for job in seen] == [
        (JobState.QUEUED, "", None, ""),
        (JobState.RUNNING, "", None, ""),
        (JobState.RUNNING, "why", None, ""),
        (JobState.RUNNING, "why", {"a": "b"}, ""),
        (JobState.RUNNING, "why", {"a": "b"}, "t"),
    ]
    store.delete(job.id)
    assert store.select(place, lambda _: True, 2) == []


def test_a_list_goes_along_an_index_and_so_does_the_look_for_work(store: Store) -> None:
    asked: list[str] = []
    with store.database.reading() as connection:
        connection.set_trace_callback(asked.append)
    store.select(("jobs", "demo", ""), lambda _: True, 2)
    store.unfinished()
    store.unfinished_pipelines()
    with store.database.reading() as connection:
        connection.set_trace_callback(None)
        plans = [row["detail"] for each in asked for row in connection.execute(f"EXPLAIN QUERY PLAN {each}")]
    assert "USING INDEX jobs_by_place" in plans[0]
    assert all("USING INDEX jobs_by_state" in plan for plan in plans[1:] if plan.startswith("SEARCH"))
    assert not any(plan.startswith("SCAN") for plan in plans)


def test_settings_hold_any_json(store: Store) -> None:
    assert store.setting("x") is None
    store.set_setting("x", {"a": [1, None]})
    store.set_setting("x", [True])
    assert store.setting("x") == [True]


@pytest.mark.slow
def test_jobs_are_selected_newest_first_from_where_one_left_off(store: Store) -> None:
    ids = [store.add_job(record(store, f"j{number}")).id for number in range(450)][::-1]
    store.add_job(record(store, "elsewhere", collection="customJobs"))
    place = ("jobs", number_of("demo"), "")
    assert [job.id for job in store.select(place, lambda _: True, 450)] == ids
    store.add_job(record(store, "late"))
    found = store.select(place, lambda job: job.id % 100 == 0, 3, before=ids[10])
    assert [job.id for job in found] == [id for id in ids[11:] if id % 100 == 0][:3]


@pytest.mark.slow
def test_unfinished_jobs_and_those_of_one_content_are_selected_by_an_index(store: Store) -> None:
    ids = []
    for number in range(300):
        body = {"jobId": f"j{number}", "labels": {LABEL: f"k{number % 100}"}}
        ids.append(store.add_job(replace(record(store, f"j{number}"), body=body)).id)
    for id in ids[5:]:
        store.move(id, JobState.SUCCEEDED, only_from=UNFINISHED, at=store.now())
    store.add_job(record(store, "elsewhere", collection="customJobs"))
    place, read = ("jobs", "demo", ""), list[int]()

    def selects(job: JobRecord) -> bool:
        read.append(job.id)
        return True

    def selected(before: int = 2**62, **few: Any) -> list[int]:
        return [job.id for job in store.select(place, selects, 2, before=before, **few)]

    assert selected(label="k7") == [ids[207], ids[107]]
    assert selected(label="k7", before=ids[107]) == [ids[7]]
    assert selected(unfinished=True) == [ids[4], ids[3]]
    assert selected(unfinished=True, before=ids[3]) == [ids[2], ids[1]]
    assert selected(label="other") == []
    assert len(read) == 7


@pytest.mark.slow
def test_many_threads_write_at_once(store: Store) -> None:
    def add(thread: int) -> None:
        for number in range(20):
            store.add_job(record(store, f"{thread}-{number}"))

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.unfinished()) == 160


def test_a_failed_transaction_leaves_nothing(store: Store) -> None:
    def fail() -> None:
        with store.database.writing() as connection:
            connection.execute("REPLACE INTO settings VALUES ('x', '1')")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert store.setting("x") is None
    store.set_setting("x", 2)


@pytest.mark.fault(33)
def test_after_an_error_the_database_is_opened_anew(tmp_path: Path) -> None:
    opened = []

    def connect() -> sqlite3.Connection:
        opened.append(sqlite3.connect(tmp_path / "x.db", isolation_level=None, check_same_thread=False))
        database.prepare(opened[-1])
        return opened[-1]

    store = Store(database.Database(connect))
    store.set_setting("x", 1)
    opened[-1].close()  # whatever was done to it: it can't be trusted any more
    with pytest.raises(DatabaseError):
        store.set_setting("x", 2)
    assert store.setting("x") == 1
    assert len(opened) == 2


def breaking(path: Path) -> list[tuple[str, Callable[[], object]]]:
    def newer() -> None:
        connection = sqlite3.connect(path)
        connection.execute("PRAGMA user_version = 99")
        connection.close()

    return [
        ("newer version", newer),
        ("not a database", lambda: path.write_bytes(b"not a database at all" * 1000)),
        ("unable to open", lambda: (path.unlink(), path.mkdir())),
    ]


@pytest.mark.fault(36)
@pytest.mark.parametrize("which", range(3))
def test_a_database_that_cant_be_read_says_why(tmp_path: Path, which: int) -> None:
    path = tmp_path / "state.db"
    store = Store(database.open_file(path))
    store.database.close()
    path.touch()
    text, damage = breaking(path)[which]
    damage()
    with pytest.raises(DatabaseError, match=text):
        store.unfinished()


def test_the_state_is_for_its_owner_only(tmp_path: Path) -> None:
    Store(database.open_file(tmp_path / "state.db")).set_setting("x", 1)
    assert {path.stat().st_mode & 0o777 for path in tmp_path.iterdir()} == {0o600}


WRITER = """
import sys
from pathlib import Path
from reconciler.training_service.state import database
from reconciler.training_service.state.records import JobRecord, JobState, UNFINISHED
from reconciler.training_service.state.database import Store

store = Store(database.open_file(Path(sys.argv[1])))
number = int(sys.argv[2])
while True:
    now = store.now()
    job = store.add_job(JobRecord("jobs", "demo", "", f"j{number}", {}, f"s{number}", now, now))
    store.add_run(job.id)
    store.move(job.id, JobState.FAILED, only_from=UNFINISHED, at=now)
    print(number, flush=True)
    number += 1
"""


@pytest.mark.slow
@pytest.mark.fault(34)
def test_a_killed_writer_loses_nothing_that_it_had_acknowledged(tmp_path: Path) -> None:
    path, acknowledged, following = tmp_path / "state.db", set[int](), 0
    for kill_after in (1, 7, 23, 2, 40):
        writer = subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(following)], stdout=subprocess.PIPE, text=True
        )
        assert writer.stdout
        acknowledged |= {int(writer.stdout.readline()) for _ in range(kill_after)}
        writer.send_signal(signal.SIGKILL)
        acknowledged |= {int(number) for number in writer.communicate()[0].split()}
        store = Store(database.open_file(path))
        with store.database.reading() as connection:
            assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        for number in acknowledged:
            job = store.find("jobs", "demo", "", f"j{number}")
            assert job is not None
            assert (job.state, len(store.runs(job.id))) == (JobState.FAILED, 1)
        following = max(acknowledged) + 2  # the next write may exist, but was not acknowledged
        store.database.close()


def test_a_database_without_causes_is_taken_over_with_its_trials(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = Store(database.open_file(path), Clock())
    with store.database.writing() as connection:
        for table in ("jobs", "trials"):
            connection.execute(f"ALTER TABLE {table} DROP COLUMN error_details")
        connection.execute("PRAGMA user_version = 4")
    store.database.close()
    columns = (
        "id, collection, project, project_number, location, job_id, body, images, state, create_time,"
        " start_time, end_time, update_time, error_code, error_message, etag, gcs_secret"
    )
    row = "7, 'jobs', 'demo', '1', '', 'old', '{}', '{}', 'RUNNING', 'c', 's', '', 'u', 0, '', '', 'secret'"
    with closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"INSERT INTO jobs ({columns}) VALUES ({row})")
    store = Store(database.open_file(path), Clock())
    trial = store.add_trial(7, {"rate": 0.5})
    (job,) = store.unfinished()
    assert (job.error_details, store.trials(7)[0].error_details) == ({}, {})
    store.save_trial(replace(trial, error_details=details_of("KILLED")))
    details = details_of("ENGINE_MISSING", image="a" * 1000)
    ended = store.move(7, JobState.FAILED, only_from={JobState.RUNNING}, at="now", error_details=details)
    assert ended == store.job(7)
    assert ended is not None
    assert ended.error_details == {"reason": "ENGINE_MISSING", "class": "set-up", "image": "a" * 500}
    assert store.trials(7)[0].error_details == details_of("KILLED")


def test_a_database_without_pipelines_is_taken_over(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    store = Store(database.open_file(path), Clock())
    job = store.add_job(record(store))
    with store.database.writing() as connection:
        for column in ("backing", "model"):
            connection.execute(f"ALTER TABLE jobs DROP COLUMN {column}")
        connection.execute("PRAGMA user_version = 7")
    store.database.close()
    store = Store(database.open_file(path), Clock())
    assert store.unfinished() == [job]
    pipeline = replace(record(store, "p", collection=PIPELINES), backing="customJobs/b")
    backing = record(store, "b", collection="customJobs")
    added = store.add_job(pipeline, backing=backing)
    assert store.unfinished_pipelines() == [added]
    assert [each.job_id for each in store.unfinished()] == [job.job_id, "b"]
    store.database.close()


def test_a_pipeline_is_added_with_its_backing_job_or_not_at_all(store: Store) -> None:
    pipeline = record(store, "p", collection=PIPELINES)
    backing = record(store, "b", collection="customJobs")
    with pytest.raises(TooLateError):
        store.add_job(pipeline, store.clock(), backing=backing)
    assert not store.is_busy()
    same = replace(backing, gcs_secret=pipeline.gcs_secret)  # no two rows may have the same
    with pytest.raises(AlreadyExistsError):
        store.add_job(pipeline, store.clock() + timedelta(seconds=1), backing=same)
    assert not store.is_busy()
