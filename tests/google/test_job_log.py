"""The client of Cloud Logging, the same as for the cloud, over the embedded service's entries.list.

The fixture checks the answers against the API's document; the service checks the requests.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from reconciler.base.http import DirectTransport
from reconciler.base.http.destination import ThisMachine
from reconciler.engines.spec import ai_platform, vertex_ai
from reconciler.google.client import Connection, Endpoint
from reconciler.google.job_log import JobLog
from reconciler.model.job import ActualJob, LogEntry, State
from reconciler.training_service.jobs.cluster import pools_of
from reconciler.training_service.jobs.launch import replicas_of
from reconciler.training_service.state.run_folder import run_folder
from tests.support.training_service.bodies import ML, VERTEX, job_spec, ml_job, tuning_job
from tests.support.training_service.served import TOKEN, Service, serving


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with serving(tmp_path / "home") as running:
        yield running


@pytest.fixture
def connection(service: Service) -> Connection:
    return Connection(
        Endpoint(
            transport=DirectTransport(ThisMachine()),
            authorize=lambda: {"Authorization": f"Bearer {TOKEN}"},
            project="demo",
            location="us-central1",
            roots={"logging": f"{service.url}/"},
        )
    )


def actual(resource: str) -> ActualJob:
    return ActualJob(resource, "a", "aiplatform.googleapis.com/v1", "CustomJob", State.RUNNING, "")


def write_run(service: Service, trial: int, *lines: tuple[int, str, str]) -> Path:
    """Write a new run of the newest job: each line's minute, replica and text."""
    job = service.store.unfinished()[-1]
    path = run_folder(service.home, service.store.add_run(job.id, trial).run_id).log
    path.parent.mkdir(parents=True)
    said = (
        {"t": f"2026-01-02T03:{minute:02}:00.000000Z", "s": "INFO", "m": text} | ({"r": name} if name else {})
        for minute, name, text in lines
    )
    path.write_text("".join(json.dumps(line) + "\n" for line in said))
    return path


@pytest.fixture
def tuned(service: Service) -> ActualJob:
    """Return a tuning job of two trials that ran at once."""
    answer = service.post(f"{VERTEX}/hyperparameterTuningJobs", tuning_job())
    assert answer.status == 200, answer.content
    write_run(service, 1, (1, "", "begins"), (3, "workerpool0-0", "one"), (5, "workerpool1-0", "helps"))
    write_run(service, 2, (2, "", "begins"), (4, "workerpool0-0", "two"))
    return actual(answer.json["name"])


def texts(log: JobLog, since: str = "") -> list[str]:
    return [entry.text for entry in log.entries(since)]


def test_all_of_a_job_in_the_order_of_time(connection: Connection, tuned: ActualJob) -> None:
    log = JobLog(connection, tuned)
    assert texts(log) == ["begins", "begins", "one", "two", "helps"]
    assert texts(log, "2026-01-02T03:04:00Z") == ["two", "helps"]
    last = LogEntry(
        timestamp="2026-01-02T03:05:00.000000Z",
        severity="INFO",
        text="helps",
        insert_id="000001-" + f"{len(_line('', 'begins')) + len(_line('workerpool0-0', 'one')):016x}",
        replica="workerpool1-0",
        trial="1",
    )
    assert log.last() == [last]
    assert [entry.text for entry in log.last(2)] == ["two", "helps"]
    first = log.first()
    assert first is not None
    assert first.text == "begins"


def _line(replica: str, text: str) -> str:
    line = {"t": "2026-01-02T03:00:00.000000Z", "s": "INFO", "m": text}
    return json.dumps(line | ({"r": replica} if replica else {})) + "\n"


def test_one_trial_or_replica(connection: Connection, tuned: ActualJob) -> None:
    assert texts(JobLog(connection, tuned, trial="1")) == ["begins", "one", "helps"]
    assert texts(JobLog(connection, tuned, trial="2")) == ["begins", "two"]
    assert texts(JobLog(connection, tuned, trial="3")) == []
    assert texts(JobLog(connection, tuned, "workerpool0-0")) == ["one", "two"]
    assert texts(JobLog(connection, tuned, "service")) == ["begins", "begins"]
    assert texts(JobLog(connection, tuned, "workerpool0-0", "2"), "2026-01-02T03:04:00Z") == ["two"]
    (last,) = JobLog(connection, tuned, "workerpool0-0", "1").last()
    assert (last.text, last.trial, last.replica) == ("one", "1", "workerpool0-0")


def test_a_job_of_ai_platform(connection: Connection, service: Service) -> None:
    service.post(ML, ml_job("census_1"))
    write_run(service, 0, (1, "master-replica-0", "trains"), (2, "ps-replica-0", "serves"))
    job = actual("projects/demo/jobs/census_1")
    assert texts(JobLog(connection, job, "ps-replica-0")) == ["serves"]
    assert [entry.trial for entry in JobLog(connection, job).entries()] == ["", ""]


@pytest.mark.parametrize("name", ['"', 'a" OR severity="INFO', "\\", '\\"', "workerpool0-0\\"])
def test_a_name_never_becomes_more_than_a_value(connection: Connection, tuned: ActualJob, name: str) -> None:
    assert texts(JobLog(connection, tuned, name)) == []
    assert texts(JobLog(connection, tuned, "", name)) == []


def test_pages_are_followed_to_the_end(
    connection: Connection, service: Service, tuned: ActualJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reconciler.google.job_log._PAGE_SIZE", 2)
    assert texts(JobLog(connection, tuned)) == ["begins", "begins", "one", "two", "helps"]


@pytest.mark.parametrize(
    "training",
    [
        {"scaleTier": "BASIC"},
        {"scaleTier": "STANDARD_1"},
        {"scaleTier": "PREMIUM_1"},
        {
            "scaleTier": "CUSTOM",
            "masterType": "standard",
            "workerType": "standard",
            "workerCount": "2",
            "parameterServerType": "standard",
            "parameterServerCount": "1",
            "evaluatorType": "standard",
            "evaluatorCount": "1",
        },
    ],
)
def test_replicas_are_called_alike_by_those_who_ask_and_who_run_them(
    service: Service, training: dict[str, str]
) -> None:
    body = ml_job("census_1")
    body["trainingInput"] |= training
    service.post(ML, body)
    assert named(ai_platform.replicas("Job", body)) == run_as(service)


def test_pools_are_called_alike_by_those_who_ask_and_who_run_them(service: Service) -> None:
    spec = job_spec()
    (pool,) = spec["workerPoolSpecs"]
    spec["workerPoolSpecs"] = [pool, {**pool, "replicaCount": "3"}, {}, {**pool, "replicaCount": "1"}]
    assert service.post(f"{VERTEX}/customJobs", {"displayName": "a", "jobSpec": spec}).status == 200
    assert named(vertex_ai.replicas("CustomJob", spec)) == run_as(service)


def named(replicas: Mapping[str, int]) -> list[str]:
    return [f"{prefix}{number}" for prefix, count in replicas.items() for number in range(count)]


def run_as(service: Service) -> list[str]:
    """Return the task names of the newest job's running replicas."""
    pools = pools_of(service.store.unfinished()[-1])
    ports = tuple(range(sum(pool.size for pool in pools)))
    return [replica.task_name for replica in replicas_of(pools, ports)]
