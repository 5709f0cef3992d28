"""Lists with a few fields of each item: equal to the same fields of the whole list."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reconciler.base.listener.message import Request
from reconciler.training_service.application import Application
from reconciler.training_service.http import field_masks
from reconciler.training_service.state.database import Database, Store, prepare
from reconciler.training_service.state.records import UNFINISHED, JobState
from tests.support.training_service.bodies import ML, VERTEX, custom_job, ml_job
from tests.support.training_service.served import Clock, Service

LIST = "/storage/v1/b/bucket/o"
FIELDS = {
    f"{VERTEX}/customJobs": (
        "customJobs",
        "name displayName labels state createTime startTime endTime updateTime error jobSpec trials none",
    ),
    ML: ("jobs", "jobId labels createTime startTime endTime state errorMessage etag trainingInput none"),
}
FILTERS = (
    "",
    'labels.team="a"',
    "NOT labels.team:*",
    'labels.team="a" AND create_time>="2026-01-02T03:04:06Z"',
    'labels.team="é" OR labels.other:*',
    'state="SUCCEEDED" OR state="QUEUED"',
)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
LABELS = st.none() | st.dictionaries(st.sampled_from(["team", "other"]), st.sampled_from(["a", "é", ""]))
JOBS = st.lists(st.tuples(LABELS, st.none() | st.sampled_from(JobState), TEXTS), max_size=5)


@contextmanager
def in_process() -> Iterator[tuple[Application, Store]]:
    """Yield the handlers over a state in memory only."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    prepare(connection)
    store = Store(Database(lambda: connection), Clock())
    yield Application(store, Path("/nonexistent")), store
    connection.close()


def asked(application: Application, path: str, **query: str | int) -> Any:
    response = application.handle(Request.of("GET", f"{path}?{urlencode(query)}"))
    assert response.status == 200, response.content
    return json.loads(response.content)


def fill(application: Application, store: Store, path: str, jobs: list[Any]) -> None:
    for number, (labels, state, said) in enumerate(jobs):
        own = {} if labels is None else {"labels": labels}
        body = ml_job(f"j{number}") if path == ML else custom_job()
        names = {} if path == ML else {"displayName": said or "x"}
        body = {key: value for key, value in body.items() if key != "labels"} | own | names
        answer = application.handle(Request.of("POST", path, body=json.dumps(body).encode()))
        assert answer.status == 200, answer.content
        change(store, number + 1, state, said)
        clock = store.clock
        assert isinstance(clock, Clock)
        clock.advance(1)


def change(store: Store, id: int, state: JobState | None, said: str) -> None:
    if state is not None:
        code = 3 if state is JobState.FAILED else 0
        at = store.now()
        store.move(id, state, only_from=UNFINISHED, at=at, error_code=code, error_message=said)


@pytest.mark.slow
@settings(max_examples=60)
@given(
    st.sampled_from([*FIELDS]),
    JOBS,
    st.sampled_from(FILTERS),
    st.data(),
    st.booleans(),
)
def test_parts_of_a_list_are_those_of_the_whole_list(
    path: str, jobs: list[Any], filter: str, data: st.DataObject, pretty: bool
) -> None:
    items, names = FIELDS[path]
    if path != ML:
        filter = filter.replace('"SUCC', '"JOB_STATE_SUCC').replace('"QUEUED', '"JOB_STATE_QUEUED')
    parts = st.lists(st.sampled_from([*names.split(), "labels/team", "*"]), min_size=1, max_size=4)
    others = st.sampled_from(["", ",nextPageToken", ",kind"])
    fields = f"{items}({','.join(data.draw(parts))}){data.draw(others)}"
    with in_process() as (application, store):
        fill(application, store, path, jobs)
        for _ in range(2):
            whole = asked(application, path, filter=filter, pageSize=3)
            wanted = field_masks.masked(whole, field_masks.mask_of(fields))
            query: dict[str, str | int] = {"filter": filter, "pageSize": 3, "fields": fields}
            query["prettyPrint"] = str(pretty).lower()
            assert asked(application, path, **query) == wanted
            if jobs:
                change(store, len(jobs), data.draw(st.sampled_from(JobState)), "else")


@pytest.mark.parametrize("path", FIELDS)
def test_pages_of_parts_hold_all_jobs_once(path: str) -> None:
    items, _ = FIELDS[path]
    name = "jobId" if path == ML else "displayName"
    query = {"fields": f"{items}({name}),nextPageToken", "filter": 'create_time>="2000-01-01"'}
    found: list[str] = []
    sizes: list[int] = []
    token = ""
    with in_process() as (application, store):
        fill(application, store, path, [(None, None, f"j{number}") for number in range(5)])
        while token or not found:
            page = asked(application, path, **query, pageSize=2, pageToken=token)
            found += [item[name] for item in page[items]]
            sizes.append(len(page[items]))
            token = page.get("nextPageToken", "")
            if token:
                other = urlencode({"fields": query["fields"], "pageToken": token})
                assert application.handle(Request.of("GET", f"{path}?{other}")).status == 400
    assert (found, sizes) == ([f"j{number}" for number in (4, 3, 2, 1, 0)], [2, 2, 1])


def listed(service: Service, **query: str) -> list[Any]:
    fields = {"fields": "items(name,generation,metadata,size),nextPageToken", "maxResults": "2"}
    found: list[Any] = []
    token: dict[str, str] = {}
    while True:
        page = service.get(f"{LIST}?{urlencode(fields | query | token)}").json
        assert page.keys() <= {"items", "nextPageToken"}
        found += page.get("items", [])
        if "nextPageToken" not in page:
            break
        token = {"pageToken": page["nextPageToken"]}
    whole = service.get(f"{LIST}?{urlencode(query)}").json.get("items", [])
    names = ("name", "generation", "metadata", "size")
    assert found == [{name: item[name] for name in names if name in item} for item in whole]
    return found


@pytest.fixture
def bucket(service: Service) -> Path:
    """Return a bucket of three folders with a file each, listed before."""
    service.post("/storage/v1/b?project=p", {"name": "bucket"})
    for name in ("k/a/1", "k/b/1", "k/c/1"):
        put(service, name, b"data")
    assert [item["name"] for item in listed(service, prefix="k/")] == ["k/a/1", "k/b/1", "k/c/1"]
    return service.home / "gcs" / "bucket"


def put(service: Service, name: str, data: bytes) -> None:
    query = urlencode({"uploadType": "media", "name": name})
    service.call("POST", f"/upload{LIST}?{query}", data)


def later(folder: Path) -> None:
    """Date the latest change to the folder a second later."""
    time = folder.stat().st_mtime_ns + 10**9
    os.utime(folder, ns=(time, time))


def test_what_the_service_changes_is_in_the_next_list(service: Service, bucket: Path) -> None:
    before = listed(service, prefix="k/")
    service.call("PATCH", f"{LIST}/k%2Fb%2F1", {"metadata": {"claim": "new"}})
    put(service, "k/c/1", b"longer than before")
    after = listed(service, prefix="k/")
    assert after[0] == before[0]
    assert after[1] == before[1] | {"metadata": {"claim": "new"}}
    assert int(after[2]["generation"]) > int(before[2]["generation"])
    assert after[2]["size"] == "18"
    service.call("DELETE", f"{LIST}/k%2Fa%2F1")
    later(bucket / "k" / "a")
    assert listed(service, prefix="k/") == after[1:]


def test_what_is_said_of_an_object_is_in_the_next_list(service: Service, bucket: Path) -> None:
    before = [listed(service) for _ in range(2)][-1]
    service.call("PATCH", f"{LIST}/k%2Fb%2F1", {"metadata": {"claim": "new"}})
    assert listed(service) == [before[0], before[1] | {"metadata": {"claim": "new"}}, before[2]]


@pytest.mark.parametrize("path", [*FIELDS])
def test_what_becomes_of_a_job_is_in_the_next_list(path: str) -> None:
    items, _ = FIELDS[path]
    with in_process() as (application, store):
        fill(application, store, path, [(None, None, "x")] * 2)
        before = [asked(application, path, fields=f"{items}(state)") for _ in range(2)][-1]
        change(store, 1, JobState.SUCCEEDED, "")
        after = asked(application, path, fields=f"{items}(state)")
    assert before[items][0] == after[items][0]
    assert before[items][1] != after[items][1]


def test_what_others_change_is_in_the_next_list(service: Service, bucket: Path) -> None:
    before = listed(service)
    file = bucket / "k" / "b" / "1"
    file.write_bytes(b"DATA")  # the same size and path as before
    later(file)
    changed = listed(service)
    assert int(changed[1]["generation"]) > int(before[1]["generation"])
    new = bucket / "new"
    new.write_bytes(b"data")
    new.replace(file)
    later(file.parent)
    replaced = listed(service)
    assert int(replaced[1]["generation"]) > int(changed[1]["generation"])
    (bucket / "k" / "b" / "2").write_bytes(b"more")
    later(bucket / "k" / "b")
    assert [item["name"] for item in listed(service)] == ["k/a/1", "k/b/1", "k/b/2", "k/c/1"]
    (bucket / "k" / "a" / "1").unlink()
    (bucket / "k" / "a").rmdir()
    (bucket / "k" / "a").symlink_to(bucket / "k" / "b")
    later(bucket / "k")
    assert [item["name"] for item in listed(service)] == ["k/b/1", "k/b/2", "k/c/1"]


def test_a_job_that_only_json_can_write_is_listed() -> None:
    path = f"{VERTEX}/customJobs"
    with in_process() as (application, store):
        fill(application, store, path, [({"team": "a"}, None, "one")])
        body = {"displayName": "one", "labels": {"team": "a"}, "any": "half \ud800 of a pair"}
        with store.database.writing() as connection:
            connection.execute("UPDATE jobs SET body = ?", (json.dumps(body),))
        for _ in range(2):
            found = asked(application, path, fields="customJobs(displayName,labels)")
            assert found == {"customJobs": [{"displayName": "one", "labels": {"team": "a"}}]}
