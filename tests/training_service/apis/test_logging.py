"""A job's log through Cloud Logging's entries.list."""

from __future__ import annotations

import json
import resource
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reconciler.training_service.state.records import JobRecord, number_of
from reconciler.training_service.state.run_folder import run_folder
from tests.support.training_service.bodies import ML, VERTEX, custom_job, ml_job
from tests.support.training_service.served import Service


def time(seconds: int) -> str:
    return f"2026-01-02T{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}.000000Z"


def run_log(service: Service, job: JobRecord, trial: int = 0) -> Path:
    """Return a new run's log."""
    path = run_folder(service.home, service.store.add_run(job.id, trial).run_id).log
    path.parent.mkdir(parents=True)
    return path


def line(number: int, text: str = "", severity: str = "INFO", replica: str = "workerpool0-0") -> str:
    """Return a replica's line; the service's own line with ""."""
    said = {"t": time(number), "s": severity, "m": text or f"line {number}"}
    return json.dumps(said | ({"r": replica} if replica else {})) + "\n"


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
    return [
        entry.get("textPayload") or entry["jsonPayload"]["message"] for entry in answer.get("entries", [])
    ]


def every(service: Service, job: JobRecord, more: str = "", **body: Any) -> list[str]:
    """Return the texts of all pages."""
    found, answer = [], entries(service, job, more, **body)
    while True:
        found += texts(answer)
        if "nextPageToken" not in answer:
            return found
        answer = entries(service, job, more, pageToken=answer["nextPageToken"], **body)


def test_an_entry_says_where_it_comes_from(service: Service, job: JobRecord) -> None:
    run_log(service, job, 3).write_text(line(1, "hello", "ERROR"))
    (entry,) = entries(service, job)["entries"]
    assert entry == {
        "insertId": "000001-0000000000000000",
        "logName": "projects/demo/logs/workerpool0-0",
        "resource": {
            "type": "ml_job",
            "labels": {"project_id": "demo", "job_id": job.job_id, "task_name": "workerpool0-0"},
        },
        "labels": {
            "ml.googleapis.com/job_id": job.job_id,
            "ml.googleapis.com/job_id/log_area": "root",
            "ml.googleapis.com/trial_id": "3",
            "ml.googleapis.com/trial_type": "",
        },
        "timestamp": time(1),
        "receiveTimestamp": time(1),
        "severity": "ERROR",
        "jsonPayload": {"message": "hello", "levelname": "ERROR", "attrs": {"tag": "workerpool0-0"}},
    }


def test_the_services_own_words_come_from_no_replica(service: Service, job: JobRecord) -> None:
    run_log(service, job).write_text(line(1, "it begins", replica="") + line(2))
    entry = entries(service, job)["entries"][0]
    assert entry["textPayload"] == "it begins"
    assert entry["logName"] == f"projects/demo/logs/ml.googleapis.com%2F{job.job_id}"
    assert entry["resource"]["labels"]["task_name"] == "service"
    assert entry["labels"]["ml.googleapis.com/trial_id"] == ""
    assert texts(entries(service, job, 'resource.labels.task_name="service"')) == ["it begins"]


def test_a_job_of_ai_platform_has_its_own_task_name(service: Service) -> None:
    service.post(ML, ml_job("census_1"))
    job = service.store.unfinished()[0]
    run_log(service, job).write_text(
        line(1, replica="worker-replica-1") + line(2, replica="master-replica-0")
    )
    (entry,) = entries(service, job, 'resource.labels.task_name="master-replica-0"')["entries"]
    assert entry["logName"] == "projects/demo/logs/master-replica-0"


@pytest.mark.slow
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


@dataclass(frozen=True)
class Written:
    """Lines that a run writes before a paged read begins, and after its first page."""

    trial: int
    before: list[int]
    after: list[int]


WRITTEN = st.builds(
    Written,
    st.integers(0, 3),
    st.lists(st.integers(0, 9), max_size=12).map(sorted),
    st.lists(st.integers(10, 19), max_size=6).map(sorted),
)


@pytest.mark.slow
@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(runs=st.lists(WRITTEN, max_size=6), size=st.integers(1, 9), since=st.none() | st.integers(0, 19))
def test_merged_pages_hold_each_line_once_in_the_order_of_time(
    service: Service, runs: list[Written], size: int, since: int | None
) -> None:
    service.post(f"{VERTEX}/customJobs", custom_job())
    job = service.store.unfinished()[-1]
    logs = [run_log(service, job, run.trial) for run in runs]
    for number, (log, run) in enumerate(zip(logs, runs, strict=True)):
        log.write_text(written(number, run.before))
    asked = "" if since is None else f'timestamp>="{time(since)}"'
    firsts = {
        order: entries(service, job, asked, pageSize=size, orderBy=f"timestamp {order}")
        for order in ("asc", "desc")
    }
    for number, (log, run) in enumerate(zip(logs, runs, strict=True)):
        with log.open("a") as file:
            file.write(written(number, run.after, len(run.before)))
    late = run_log(service, job)
    late.write_text(written(len(runs), [20]))

    def rest(order: str) -> list[str]:
        found, answer = texts(firsts[order]), firsts[order]
        while "nextPageToken" in answer:
            token = answer["nextPageToken"]
            answer = entries(
                service, job, asked, pageSize=size, orderBy=f"timestamp {order}", pageToken=token
            )
            assert len(texts(answer)) <= size
            found += texts(answer)
        return found

    def wanted(numbers: list[list[int]]) -> list[str]:
        everything = [(at, run, place) for run, held in enumerate(numbers) for place, at in enumerate(held)]
        return [f"{run}.{place}" for at, run, place in sorted(everything) if at >= (since or 0)]

    before = wanted([run.before for run in runs])
    after = wanted([*([*run.before, *run.after] for run in runs), [20]])
    # Lines written during a paged read appear at its end, if a next page exists.
    assert rest("asc") == (after if "nextPageToken" in firsts["asc"] else before)
    assert rest("desc") == before[::-1]
    assert every(service, job, asked, pageSize=size) == after
    assert every(service, job, asked, pageSize=size, orderBy="timestamp desc") == after[::-1]


def written(run: int, times: list[int], begin: int = 0) -> str:
    """Return lines with the number of their run and their number within it."""
    return "".join(line(at, f"{run}.{place}") for place, at in enumerate(times, begin))


def test_a_line_that_comes_late_is_given_all_the_same(service: Service, job: JobRecord) -> None:
    """Another trial's line may be older than the lines that were returned before it was written."""
    first, second = run_log(service, job, 1), run_log(service, job, 2)
    first.write_text(line(1) + line(5) + line(9))
    second.write_text(line(2))
    answer = entries(service, job, pageSize=3)
    assert texts(answer) == ["line 1", "line 2", "line 5"]
    second.write_text(line(2) + line(3))
    assert texts(entries(service, job, pageSize=3, pageToken=answer["nextPageToken"])) == ["line 3", "line 9"]


def test_trials_and_replicas_can_be_asked_for_alone(service: Service, job: JobRecord) -> None:
    for trial in (1, 2, 12):
        lines = [line(trial * 100, f"{trial}a"), line(trial * 100 + 1, f"{trial}b", replica="workerpool1-0")]
        run_log(service, job, trial).write_text("".join(lines))
    asked = 'labels."ml.googleapis.com/trial_id"="{}"'
    assert every(service, job, asked.format(12)) == ["12a", "12b"]
    assert every(service, job, asked.format(3)) == []
    assert every(service, job, f"NOT {asked.format(2)}") == ["1a", "1b", "12a", "12b"]
    assert every(service, job, f"({asked.format(1)} OR {asked.format(2)})") == ["1a", "1b", "2a", "2b"]
    assert every(service, job, 'resource.labels.task_name="workerpool1-0"', pageSize=2) == ["1b", "2b", "12b"]
    both = f'{asked.format(2)} AND resource.labels.task_name="workerpool1-0"'
    assert every(service, job, both, orderBy="timestamp desc") == ["2b"]


@pytest.mark.slow
def test_many_runs_are_read_without_many_files_open(service: Service, job: JobRecord) -> None:
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    count = 300
    for number in range(count):
        run_log(service, job, number + 1).write_text(line(number) + line(number))
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 50, limit[1]))
    try:
        wanted = [f"line {number // 2}" for number in range(2 * count)]
        assert every(service, job, pageSize=70) == wanted
        assert every(service, job, pageSize=70, orderBy="timestamp desc") == wanted[::-1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limit)


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


@pytest.mark.slow
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


@pytest.mark.slow
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
        (line(1) + torn + '{}\n[]\n\n{"t": 5}\n{"t": "2026-01-02", "s": "", "m": ""}\n' + line(3)).encode()
        + b"\xff\n"
        + b"\0" * 99
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


def listed(service: Service, filter_: str = "", project: str = "demo", **body: Any) -> list[str]:
    asked = {"resourceNames": [f"projects/{project}"], "filter": filter_, **body}
    found, token = [], ""
    while True:
        answer = service.post("/v2/entries:list", {**asked, "pageToken": token})
        assert answer.status == 200, answer.content
        found += texts(answer.json)
        token = answer.json.get("nextPageToken", "")
        if not token:
            return found


def test_entries_of_several_jobs_are_merged_by_time(service: Service) -> None:
    jobs = []
    for number in range(3):
        service.post(ML, ml_job(f"job_{number}"))
        jobs.append(service.store.unfinished()[-1])
        logged = (line(second, f"{number} at {second}") for second in range(number, 9, 3))
        run_log(service, jobs[-1]).write_text("".join(logged))
    run_log(service, jobs[0], 1).write_text(line(4, "trial", severity="WARNING"))
    every = [f"{second % 3} at {second}" for second in range(9)]
    found = listed(service, pageSize=2)
    assert found == [*every[:4], "trial", *every[4:]]
    assert listed(service, orderBy="timestamp desc", pageSize=3) == found[::-1]
    some = 'resource.labels.job_id=("job_0" OR "job_2")'
    assert listed(service, f"{some} AND severity=INFO") == [text for text in every if text[0] != "1"]
    either = 'resource.labels.job_id="job_1" OR severity=WARNING'
    assert listed(service, either) == ["1 at 1", "trial", "1 at 4", "1 at 7"]
    assert listed(service, f'timestamp>="{time(6)}"', pageSize=1) == every[6:]
    assert listed(service, 'labels."ml.googleapis.com/trial_id"="1"') == ["trial"]
    assert listed(service, project="other") == []


def write(service: Service, *entries: dict[str, Any], **more: Any) -> Any:
    return service.post("/v2/entries:write", {"entries": entries, **more})


LOG = {
    "logName": "projects/demo/logs/python",
    "resource": {"type": "global", "labels": {"project_id": "demo"}},
}


def test_written_entries_are_listed_among_those_of_jobs(service: Service, job: JobRecord) -> None:
    now = service.clock.now.strftime("%Y-%m-%dT%H:%M:%S.000000Z")
    run_log(service, job).write_text(line(0, "job's first") + line(12_000, "job's last"))
    first = {"jsonPayload": {"message": "written", "epoch": 3}, "severity": "ERROR", "insertId": "one"}
    answer = write(service, first, {"textPayload": "plain", "labels": {"k": "v"}}, labels={"k": "w"}, **LOG)
    assert answer.json == {}
    assert listed(service) == ["job's first", "written", "plain", "job's last"]
    assert listed(service, f'resource.labels.job_id="{job.job_id}"') == ["job's first", "job's last"]
    assert listed(service, 'resource.type="global" AND severity>=ERROR') == ["written"]
    assert listed(service, 'labels.k="v"') == ["plain"]
    assert listed(service, 'logName="projects/demo/logs/python"', orderBy="timestamp desc") == [
        "plain",
        "written",
    ]
    body = {"resourceNames": ["projects/demo"], "filter": 'insertId="one"'}
    (entry,) = service.post("/v2/entries:list", body).json["entries"]
    assert entry == {**LOG, **first, "labels": {"k": "w"}, "timestamp": now, "receiveTimestamp": now}


def test_written_entries_stay_in_the_order_of_their_times(service: Service) -> None:
    for seconds, text in ((30, "second"), (-5, "first"), (10**6, "future"), (40, "later")):
        at = datetime.fromtimestamp(service.clock.now.timestamp() - 100 + seconds, UTC)
        write(service, {"textPayload": text, "timestamp": at.isoformat().replace("+00:00", "Z")}, **LOG)
    assert sorted(listed(service)) == ["first", "future", "later", "second"]
    since = service.clock.now.strftime("%Y-%m-%dT%H:%M:%SZ")
    assert listed(service, f'timestamp>="{since}"') == ["future"]
    assert listed(service, f'timestamp<"{since}"') == ["second", "first", "later"]


@pytest.mark.slow
def test_many_written_entries_are_found_by_their_time(service: Service) -> None:
    for number in range(200):
        write(service, *({"textPayload": f"{number}.{part}"} for part in range(5)), **LOG)
        service.clock.advance(1)
    since = time(3 * 3600 + 4 * 60 + 5 + 198)
    assert listed(service, f'timestamp>="{since}"', pageSize=3) == [
        f"{number}.{part}" for number in (198, 199) for part in range(5)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    "entry",
    [
        {"logName": ""},
        {"logName": "projects/demo/python"},
        {"logName": "projects/../logs/python"},
        {"logName": "folders/1/logs/python"},
        {"resource": {}},
        {"severity": "LOUD"},
        {"timestamp": "yesterday"},
        {"textPayload": "x" * 300_000},
    ],
)
def test_entry_that_cannot_be_stored_is_refused(service: Service, entry: dict[str, Any]) -> None:
    good = {**LOG, "textPayload": "good"}
    assert write(service, good, {**good, **entry}).status == 400
    assert listed(service) == []
    assert write(service, good, dryRun=True).json == {}
    assert listed(service) == []


def test_job_writes_only_its_own_projects_log(service: Service, job: JobRecord) -> None:
    url = f"/jobs/{job.gcs_secret}/v2/entries:write"
    entry = {"textPayload": "from the job", "resource": {"type": "global"}}
    sent = {"entries": [{**entry, "logName": "projects/demo/logs/python"}]}
    assert service.call("POST", url, sent, token="").status == 200
    assert listed(service, project=number_of("demo")) == listed(service) == ["from the job"]
    sent = {"entries": [{**entry, "logName": "projects/other/logs/python"}]}
    assert service.call("POST", url, sent, token="").status == 403
    assert service.call("POST", url.replace("write", "list"), {}, token="").status == 404


def test_a_size_or_token_of_a_wrong_kind_is_refused(service: Service, job: JobRecord) -> None:
    filter_ = f'resource.labels.job_id="{job.job_id}"'
    for more in ({"pageSize": -1}, {"pageToken": "x"}):
        body = {"resourceNames": ["projects/demo"], "filter": filter_, **more}
        assert service.post("/v2/entries:list", body).status == 400
