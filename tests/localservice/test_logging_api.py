"""A job's log through Cloud Logging's entries.list."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from bodies import ML, VERTEX, custom_job, ml_job
from served import Service

from reconciler.localservice.records import JobRecord
from reconciler.localservice.run_folder import run_folder


def time(seconds: int) -> str:
    return f"2026-01-02T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.000000Z"


def run_log(service: Service, job: JobRecord) -> Path:
    """A new run's log."""
    path = run_folder(service.home, service.store.add_run(job.id).run_id).log
    path.parent.mkdir(parents=True)
    return path


def line(number: int, text: str = "", severity: str = "INFO") -> str:
    return json.dumps({"t": time(number), "s": severity, "m": text or f"line {number}"}) + "\n"


@pytest.fixture
def job(service: Service) -> JobRecord:
    service.post(f"{VERTEX}/customJobs", custom_job())
    return service.store.unfinished()[0]


def entries(service: Service, job: JobRecord, more: str = "", **body: Any) -> dict[str, Any]:
    filter_ = f'resource.type="ml_job" AND resource.labels.job_id="{job.job_id}" {more}'
    answer = service.post("/v2/entries:list", {"resourceNames": ["projects/demo"], "filter": filter_, **body})
    assert answer.status == 200, answer.content
    found: dict[str, Any] = answer.json
    return found


def texts(answer: dict[str, Any]) -> list[str]:
    return [entry["jsonPayload"]["message"] for entry in answer.get("entries", [])]


def every(service: Service, job: JobRecord, more: str = "", **body: Any) -> list[str]:
    """The texts of all pages."""
    found, answer = [], entries(service, job, more, **body)
    while True:
        found += texts(answer)
        if "nextPageToken" not in answer:
            return found
        answer = entries(service, job, more, pageToken=answer["nextPageToken"], **body)


def test_an_entry_says_where_it_comes_from(service: Service, job: JobRecord) -> None:
    run_log(service, job).write_text(line(1, "hello", "ERROR"))
    (entry,) = entries(service, job)["entries"]
    labels = {"project_id": "demo", "job_id": job.job_id, "task_name": "workerpool0-0"}
    assert entry == {
        "insertId": "000001-0000000000000000",
        "logName": "projects/demo/logs/workerpool0-0",
        "resource": {"type": "ml_job", "labels": labels},
        "timestamp": time(1),
        "receiveTimestamp": time(1),
        "severity": "ERROR",
        "jsonPayload": {"message": "hello"},
    }


def test_a_job_of_ai_platform_has_its_own_task_name(service: Service) -> None:
    service.post(ML, ml_job("census_1"))
    job = service.store.unfinished()[0]
    run_log(service, job).write_text(line(1))
    (entry,) = entries(service, job, 'resource.labels.task_name="master-replica-0"')["entries"]
    assert entry["logName"] == "projects/demo/logs/master-replica-0"


def test_pages_hold_every_line_once_in_both_orders(service: Service, job: JobRecord) -> None:
    run_log(service, job).write_text("".join(line(number) for number in range(100)))
    run_log(service, job).write_text("".join(line(number) for number in range(100, 250)))
    in_order = [f"line {number}" for number in range(250)]
    assert every(service, job, pageSize=7) == in_order
    assert every(service, job, orderBy="timestamp asc") == in_order
    assert every(service, job, pageSize=7, orderBy="timestamp desc") == in_order[::-1]
    assert len(texts(entries(service, job))) == 50
    ids = [entry["insertId"] for entry in entries(service, job, pageSize=250)["entries"]]
    assert ids == sorted(set(ids))


def test_a_log_is_followed_by_its_last_page(service: Service, job: JobRecord) -> None:
    log = run_log(service, job)
    for cut in (1, 5):
        log.write_text(line(1) + line(2)[:-cut])
        assert texts(entries(service, job)) == ["line 1"]
        assert texts(entries(service, job, orderBy="timestamp desc")) == ["line 1"]
    log.write_text(line(1) + line(2) + line(3))
    assert texts(entries(service, job, f'timestamp>="{time(2)}"')) == ["line 2", "line 3"]
    assert texts(entries(service, job, f'timestamp>"{time(2)}"')) == ["line 3"]
    assert texts(entries(service, job, orderBy="timestamp desc", pageSize=1)) == ["line 3"]
    assert texts(entries(service, job, f'timestamp>="{time(2)}"', orderBy="timestamp desc")) == [
        "line 3",
        "line 2",
    ]


def test_the_end_of_a_large_log_is_found_without_reading_it(
    service: Service, job: JobRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = run_log(service, job)
    with log.open("w") as file:
        for number in range(60_000):
            file.write(line(number, "x" * 200 + f" {number}"))
    size = log.stat().st_size
    read = 0
    wrapped = Path.open

    class Counting:
        def __init__(self, file: Any) -> None:
            self.file = file

        def __enter__(self) -> Counting:
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __iter__(self) -> Any:
            for raw in self.file:
                self.count(raw)
                yield raw

        def count(self, raw: bytes) -> bytes:
            nonlocal read
            read += len(raw)
            return raw

        def read(self, size: int) -> bytes:
            return self.count(self.file.read(size))

        def readline(self) -> bytes:
            return self.count(self.file.readline())

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    monkeypatch.setattr(Path, "open", lambda path, *a, **k: Counting(wrapped(path, *a, **k)))
    assert texts(entries(service, job, f'timestamp>="{time(59_998)}"'))[-1].endswith("59999")
    assert texts(entries(service, job, orderBy="timestamp desc", pageSize=1))[0].endswith("59999")
    assert 0 < read < size / 20


def test_a_filter_that_selects_little_ends_in_an_empty_page_with_a_token(
    service: Service, job: JobRecord
) -> None:
    lines = [line(number) for number in range(25_000)] + [line(25_001, "bad", "CRITICAL")]
    run_log(service, job).write_text("".join(lines))
    first = entries(service, job, "severity>=ERROR")
    assert ("entries" in first, "nextPageToken" in first) == (False, True)
    assert every(service, job, "severity>=ERROR") == ["bad"]


def test_lines_that_a_crash_has_left_unreadable_are_passed_over(service: Service, job: JobRecord) -> None:
    torn = line(2)[:-9] + "\n"
    run_log(service, job).write_bytes(
        (line(1) + torn + "{}\n[]\n\n" + line(3)).encode() + b"\xff\n" + b"\0" * 99
    )
    assert every(service, job) == ["line 1", "line 3"]
    assert every(service, job, orderBy="timestamp desc") == ["line 3", "line 1"]


def test_lines_longer_than_a_block_are_read_whole(service: Service, job: JobRecord) -> None:
    wanted = [character * 200_000 for character in "abc"]
    run_log(service, job).write_text("".join(line(number, text) for number, text in enumerate(wanted)))
    assert every(service, job) == wanted
    assert every(service, job, orderBy="timestamp desc", pageSize=1) == wanted[::-1]


def test_filters(service: Service, job: JobRecord) -> None:
    run_log(service, job).write_text(line(1) + line(2, severity="WARNING") + line(3, severity="odd"))
    assert texts(entries(service, job, "severity>=WARNING")) == ["line 2"]
    assert texts(entries(service, job, "severity=DEFAULT")) == ["line 3"]
    assert texts(entries(service, job, "AND -severity=INFO")) == ["line 2", "line 3"]
    assert texts(entries(service, job, 'logName:"projects/demo/*"')) == ["line 1", "line 2", "line 3"]
    assert texts(entries(service, job, 'insertId>"000001-0000000000000000"')) == ["line 2", "line 3"]
    assert texts(entries(service, job, 'resource.labels.project_id="other"')) == []


def test_a_job_that_isnt_there_or_hasnt_begun_has_no_entries(service: Service, job: JobRecord) -> None:
    assert entries(service, job) == {}
    body = {"resourceNames": ["projects/demo"], "filter": 'resource.labels.job_id="none"'}
    assert service.post("/v2/entries:list", body).json == {}
    service.store.add_run(job.id)
    assert entries(service, job) == {}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"resourceNames": ["projects/demo"]},
        {"resourceNames": ["projects/demo"], "filter": "severity=INFO"},
        {"resourceNames": ["projects/demo"], "filter": 'resource.labels.job_id="1" OR severity=INFO'},
        {"resourceNames": [], "filter": 'resource.labels.job_id="1"'},
        {"resourceNames": ["folders/1"], "filter": 'resource.labels.job_id="1"'},
        {"resourceNames": ["projects/demo"], "filter": 'resource.labels.job_id="1" severity=LOUD'},
        {"resourceNames": ["projects/demo"], "filter": 'resource.labels.job_id="1"', "orderBy": "severity"},
        {"resourceNames": ["projects/demo"], "filter": 'resource.labels.job_id="1" textPayload:x'},
        {"colour": "red"},
    ],
)
def test_what_cannot_be_answered_is_refused(service: Service, body: dict[str, Any]) -> None:
    answer = service.post("/v2/entries:list", body)
    assert (answer.status, answer.json["error"]["status"]) == (400, "INVALID_ARGUMENT")


def test_a_size_or_token_of_a_wrong_kind_is_refused(service: Service, job: JobRecord) -> None:
    filter_ = f'resource.labels.job_id="{job.job_id}"'
    for more in ({"pageSize": -1}, {"pageToken": "x"}):
        body = {"resourceNames": ["projects/demo"], "filter": filter_, **more}
        assert service.post("/v2/entries:list", body).status == 400
