"""A stopped service's state, read without a service and without leaving a trace."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.http import HttpRequest
from reconciler.base.listener.message import Request
from reconciler.training_service import address
from reconciler.training_service.address import ServiceRunningError
from reconciler.training_service.application import Application, open_copy
from reconciler.training_service.client import ROOT, EmbeddedService
from reconciler.training_service.state.database import DatabaseError
from reconciler.training_service.state.records import JobState
from reconciler.training_service.state.run_folder import FAILED, Ending, run_folder
from tests.support.training_service import contract
from tests.support.training_service.bodies import ML, VERTEX, custom_job, ml_job, pipeline
from tests.support.training_service.served import Service, serving


@pytest.fixture(autouse=True)
def temp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = tmp_path / "temp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Return a home with jobs, objects and logs, whose service never closed its database."""
    with serving(tmp_path / "home") as service:
        fill(service)
        shutil.copytree(service.home, tmp_path / "killed")
    return tmp_path / "killed"


def fill(service: Service) -> None:
    (service.home / address.LOCK).touch()
    service.post(ML, ml_job("one"))
    service.post(f"{VERTEX}/customJobs", custom_job("two"))
    service.post("/storage/v1/b?project=p", {"name": "bucket"})
    service.call("POST", "/upload/storage/v1/b/bucket/o?uploadType=media&name=d/a", b"data")
    (service.home / "gcs/bucket/outside").write_bytes(b"outside")
    for job in service.store.unfinished():
        service.store.move(job.id, JobState.RUNNING, only_from=set(JobState), at=service.store.now())
        run = run_folder(service.home, service.store.add_run(job.id).run_id)
        run.path.mkdir(parents=True)
        line = {"t": "2026-01-02T03:04:05Z", "s": "INFO", "m": "hello"}
        run.log.write_text(json.dumps(line) + "\n")
        if job.job_id == "one":
            run.end(Ending(FAILED, 9, "It broke.", "2026-01-02T04:00:00.000000Z"))


def ask(application: Application, method: str, target: str, body: Any = None) -> tuple[int, Any]:
    request = Request.of(method, target, body=b"" if body is None else json.dumps(body).encode())
    response = application.handle(request)
    contract.check(request, response)
    content = response.read()
    return response.status, json.loads(content) if content.startswith(b"{") else content


def snapshot(folder: Path) -> dict[str, tuple[int, ...]]:
    status = {str(path): path.lstat() for path in [folder, *folder.rglob("*")]}
    return {
        name: (each.st_size, each.st_mtime_ns, each.st_ino, each.st_mode) for name, each in status.items()
    }


def test_the_state_is_seen_and_nothing_is_written(killed: Path) -> None:
    before = snapshot(killed)
    assert (killed / "state.db-wal").stat().st_size > 0
    with open_copy(killed) as application:
        assert ask(application, "GET", ML + "/one")[1]["state"] == "FAILED"
        jobs = ask(application, "GET", f"{VERTEX}/customJobs?pageSize=1")[1]["customJobs"]
        assert [(job["displayName"], job["state"]) for job in jobs] == [("two", "JOB_STATE_RUNNING")]
        found = ask(application, "GET", "/storage/v1/b/bucket/o")[1]["items"]
        assert [item["name"] for item in found] == ["d/a", "outside"]
        assert ask(application, "GET", "/storage/v1/b/bucket/o/d%2Fa?alt=media") == (200, b"data")
        body = {"resourceNames": ["projects/demo"], "filter": 'resource.labels.job_id="one"'}
        entries = ask(application, "POST", "/v2/entries:list", body)[1]["entries"]
        assert [entry["textPayload"] for entry in entries] == ["hello"]
    assert snapshot(killed) == before


def test_an_end_that_was_recorded_without_the_service_is_shown(killed: Path) -> None:
    with open_copy(killed) as application:
        job = ask(application, "GET", ML + "/one")[1]
    assert (job["state"], job["errorMessage"], job["endTime"]) == (
        "FAILED",
        "It broke.",
        "2026-01-02T04:00:00.000000Z",
    )


def test_a_queued_pipeline_is_shown_and_its_log_is_that_of_its_backing_job(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as service:
        (service.home / address.LOCK).touch()
        created = service.post(f"{VERTEX}/trainingPipelines", pipeline()).json
        shutil.copytree(service.home, tmp_path / "killed")
    job_id = created["trainingTaskMetadata"]["backingCustomJob"].rpartition("/")[2]
    with open_copy(tmp_path / "killed") as application:
        assert ask(application, "GET", f"/v1/{created['name']}")[1] == created
        entries = ask(application, "POST", "/v2/entries:list", {"resourceNames": ["projects/demo"]})[1]
    assert [entry["resource"]["labels"]["job_id"] for entry in entries["entries"]] == [job_id]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", ML, ml_job("new")),
        ("POST", ML + "/one:cancel", {}),
        ("PATCH", ML + "/one?updateMask=labels", {}),
        ("POST", f"{VERTEX}/customJobs", custom_job()),
        ("DELETE", f"{VERTEX}/customJobs/1", None),
        ("POST", "/storage/v1/b?project=p", {"name": "new-one"}),
        ("POST", "/upload/storage/v1/b/bucket/o?uploadType=media&name=b", {}),
        ("PUT", "/upload/storage/v1/b/bucket/o?upload_id=x", {}),
        ("DELETE", "/storage/v1/b/bucket/o/d%2Fa", None),
        ("POST", "/storage/v1/b/bucket/o/d%2Fa/rewriteTo/b/bucket/o/c", {}),
    ],
)
def test_whatever_would_write_is_refused(killed: Path, method: str, path: str, body: Any) -> None:
    before = snapshot(killed)
    with open_copy(killed) as application:
        status, answer = ask(application, method, path, body)
    assert (status, answer["error"]["status"]) == (400, "FAILED_PRECONDITION")
    assert answer["error"]["message"] == "The embedded training service isn't running."
    assert snapshot(killed) == before


def test_a_home_that_isnt_there_is_an_empty_one(tmp_path: Path) -> None:
    home = tmp_path / "none"
    with open_copy(home) as application:
        assert ask(application, "GET", ML) == (200, {})
        assert ask(application, "GET", ML + "/a")[0] == 404
        assert ask(application, "GET", "/storage/v1/b?project=p") == (200, {"kind": "storage#buckets"})
        assert ask(application, "GET", "/storage/v1/b/bucket/o")[0] == 404
    assert not home.exists()


def test_several_may_look_at_once(killed: Path) -> None:
    with open_copy(killed) as one, open_copy(killed) as two:
        assert ask(one, "GET", ML) == ask(two, "GET", ML)


def test_a_running_service_is_to_be_asked_itself(killed: Path) -> None:
    lock = address.lock_home(killed)
    assert lock
    with pytest.raises(ServiceRunningError), open_copy(killed):
        pass
    lock.release()
    with open_copy(killed):
        pass


def test_a_service_waits_for_those_who_only_look(killed: Path) -> None:
    lock = address.lock_home(killed)
    assert lock
    lock.release()
    got: list[address.HomeLock | None] = []
    starting = threading.Thread(target=lambda: got.append(address.lock_home(killed)))
    with address.unserved(killed):
        starting.start()
        starting.join(0.2)
        assert starting.is_alive()
    starting.join(10)
    assert got[0] is not None
    assert address.lock_home(killed) is None
    got[0].release()


@pytest.mark.fault(36)
def test_a_state_that_cant_be_read_says_so(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "state.db").write_bytes(b"nothing" * 1000)
    with pytest.raises(DatabaseError, match="not a database"), open_copy(tmp_path / "home"):
        pass


def test_answers_of_a_stopped_service_are_dated(killed: Path) -> None:
    before = datetime.now(UTC).replace(microsecond=0)
    with EmbeddedService(killed, start=False) as service:
        for path in ("storage/v1/b/bucket/o", "storage/v1/b/bucket/o/none", "v1/projects/demo/jobs"):
            answer = service.send(HttpRequest("GET", ROOT + path))
            assert before <= parsedate_to_datetime(answer.headers["date"]) <= datetime.now(UTC)
