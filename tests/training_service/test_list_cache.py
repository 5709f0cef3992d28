"""Cache of list answers: whatever changes, a list says what an application without a cache says."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

import pytest
from bodies import ML, VERTEX, custom_job, ml_job
from hypothesis import given, settings
from hypothesis import strategies as st
from served import Clock

from reconciler.base.listener.message import Request, Response
from reconciler.training_service.application import Application
from reconciler.training_service.http.discovery import ListCache, Listing
from reconciler.training_service.http.message import json_response
from reconciler.training_service.state import database
from reconciler.training_service.state.database import Store
from reconciler.training_service.state.records import UNFINISHED, JobState

OBJECTS = "/storage/v1/b/bucket/o"
LISTS = (
    f"{VERTEX}/customJobs",
    f"{VERTEX}/customJobs?filter=labels.team%3D%22a%22&pageSize=1",
    ML,
    OBJECTS,
    f"{OBJECTS}?prefix=a/&delimiter=/",
    f"{OBJECTS}?maxResults=1&fields=items(name,generation,metadata),nextPageToken",
)
NAMES = st.sampled_from(["a/1", "a/2", "a/b/1", "c"])
LONG_AGO = 1_700_000_000_000_000_000

CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("upload"), NAMES, st.sampled_from(["x", "y", "longer"])),
        st.tuples(st.just("delete"), NAMES),
        st.tuples(st.just("metadata"), NAMES, st.sampled_from(["1", "2"])),
        st.tuples(st.just("trainer writes"), NAMES, st.sampled_from(["x", "y", "longer"]), st.booleans()),
        st.tuples(st.just("trainer removes"), st.sampled_from(["a", "a/b"])),
        st.tuples(st.just("create"), st.sampled_from([f"{VERTEX}/customJobs", ML])),
        st.tuples(st.just("end"), st.integers(1, 3)),
        st.tuples(st.just("another process ends"), st.integers(1, 3)),
        st.tuples(st.just("nothing")),
    ),
    min_size=1,
    max_size=8,
)


class Home:
    """A home with a bucket, its application, and the changes that others make to it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = Store(database.open_file(folder / "state.db"), Clock())
        self.application = Application(self.store, folder)
        self.times = iter(range(LONG_AGO, LONG_AGO + 10**12, 10**9))
        self.ids = 0
        self.send("POST", "/storage/v1/b?project=p", {"name": "bucket"})
        for name in ("a/1", "c"):
            self.change("upload", name, "x")
        for path in (f"{VERTEX}/customJobs", ML):
            self.change("create", path)

    def send(self, method: str, path: str, body: Any = None) -> Response:
        content = body.encode() if isinstance(body, str) else json.dumps(body or {}).encode()
        return self.application.handle(Request.of(method, path, body=content))

    def change(self, kind: str, *values: Any) -> None:
        match kind, *values:
            case "upload", name, text:
                upload = f"/upload{OBJECTS}?uploadType=media&name={name.replace('/', '%2F')}"
                assert self.send("POST", upload, text).status == 200
            case "delete", name:
                self.send("DELETE", f"{OBJECTS}/{name.replace('/', '%2F')}")
            case "metadata", name, value:
                path = f"{OBJECTS}/{name.replace('/', '%2F')}"
                self.send("PATCH", path, {"metadata": {"key": value}})
            case "trainer writes", name, text, is_old:
                path = self.folder / "gcs/bucket" / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
                if is_old:
                    os.utime(path, ns=(at := next(self.times), at))
            case "trainer removes", name:
                shutil.rmtree(self.folder / "gcs/bucket" / name, ignore_errors=True)
            case "create", path:
                self.ids += 1
                body = ml_job(f"j{self.ids}") if path == ML else custom_job(labels={"team": "a"})
                assert self.send("POST", path, body).status == 200
            case "end", id:
                self.end(self.store, id)
            case "another process ends", id:
                with other_store(self.folder) as store:
                    self.end(store, id)

    def end(self, store: Store, id: int) -> None:
        store.move(id, JobState.SUCCEEDED, only_from=UNFINISHED, at=store.now())


@contextmanager
def other_store(folder: Path) -> Iterator[Store]:
    store = Store(database.open_file(folder / "state.db"), Clock())
    yield store
    store.database.close()


@settings(max_examples=40)
@given(CHANGES)
def test_lists_after_any_change_equal_those_without_a_cache(changes: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as folder:
        home = Home(Path(folder))
        for change in changes:
            home.change(*change)
            for path in LISTS:
                assert home.send("GET", path).content == home.send("GET", path).content
                with other_store(home.folder) as store:
                    plain = Application(store, home.folder).handle(Request.of("GET", path))
                assert home.send("GET", path).content == plain.content
        home.store.database.close()


def filters(states: list[str], key: str) -> st.SearchStrategy[tuple[str, Callable[[Any], bool]]]:
    """Filters by state and key, each with its meaning for a job's resource."""
    terms: list[tuple[str, Callable[[Any], bool]]] = [
        (f'labels.{key}="{value}"', lambda job, value=value: job.get("labels", {}).get(key) == value)
        for value in ("a", "b", "c")
    ]
    terms += [
        (
            f"labels.{key}:{start}*",
            lambda job, start=start: (
                job.get("labels", {}).get(key, "").startswith(start) and key in job.get("labels", {})
            ),
        )
        for start in ("a", "")
    ]
    terms += [(f'state!="{state}"', lambda job, state=state: job["state"] != state) for state in states]
    terms += [(f'state="{state}"', lambda job, state=state: job["state"] == state) for state in states]

    def both(one: Any, other: Any) -> Any:
        return f"({one[0]}) AND ({other[0]})", lambda job: one[1](job) and other[1](job)

    def either(one: Any, other: Any) -> Any:
        return f"({one[0]}) OR ({other[0]})", lambda job: one[1](job) or other[1](job)

    def negated(one: Any) -> Any:
        return f"NOT ({one[0]})", lambda job: not one[1](job)

    return st.recursive(
        st.sampled_from(terms),
        lambda below: st.one_of(
            st.builds(both, below, below), st.builds(either, below, below), st.builds(negated, below)
        ),
        max_leaves=6,
    )


@pytest.mark.parametrize(
    ("path", "collection", "prefix"), [(f"{VERTEX}/customJobs", "customJobs", "JOB_STATE_"), (ML, "jobs", "")]
)
def test_filtered_list_has_what_the_filter_means_of_the_whole_list(
    path: str, collection: str, prefix: str, tmp_path: Path
) -> None:
    store = Store(database.open_file(tmp_path / "state.db"), Clock())
    application = Application(store, tmp_path)
    states = [JobState.QUEUED, JobState.RUNNING, JobState.SUCCEEDED, JobState.FAILED]
    for number in range(12):
        labels = {"reconciler-key": "ab"[number % 2]} if number % 3 else {}
        body = ml_job(f"j{number}", labels=labels) if collection == "jobs" else custom_job(labels=labels)
        made = application.handle(Request.of("POST", path, body=json.dumps(body).encode()))
        assert made.status == 200, made.content
        store.move(number + 1, states[number % 4], only_from=UNFINISHED, at=store.now())

    def listed(**query: str) -> list[Any]:
        found = application.handle(Request.of("GET", f"{path}?{urlencode(query)}"))
        assert found.status == 200, found.content
        return json.loads(found.content).get(collection, [])

    whole = listed()
    assert len(whole) == 12

    @given(filters([f"{prefix}{state}" for state in states], "reconciler-key"))
    def check(wanted: tuple[str, Callable[[Any], bool]]) -> None:
        text, means = wanted
        assert listed(filter=text) == [job for job in whole if means(job)]

    check()


def test_unchanged_list_is_built_once_and_changed_list_again() -> None:
    cache, built = ListCache(), []

    def asked(version: object, path: str = "/a") -> bytes:
        def message() -> dict[str, Any]:
            built.append(version)
            return {"n": len(built)}

        request = Request.of("GET", path)
        return cache.answer(request, Listing(version, message), json_response).content  # type: ignore[arg-type]

    first = asked(1)
    assert (asked(1), asked(2)) == (first, asked(2))
    assert asked(2, "/b") != asked(2)
    assert asked(None) != asked(None)
    assert built == [1, 2, 2, None, None]


def test_cache_drops_the_answers_that_were_used_least_recently() -> None:
    size = len(json_response({"text": "x" * 1000}).content)
    cache, built = ListCache(largest=2 * size), []

    def ask(path: str) -> None:
        listing = Listing(1, lambda: built.append(path) or {"text": "x" * 1000})  # type: ignore[func-returns-value]
        cache.answer(Request.of("GET", path), listing, json_response)

    for path in ("/a", "/b", "/a", "/c", "/a", "/b"):
        ask(path)
    assert built == ["/a", "/b", "/c", "/b"]
