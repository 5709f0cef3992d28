"""Publications in Cloud Storage: read as written, bounded before they are read, and refused if unusable."""

from __future__ import annotations

import json
from typing import Any

import pytest

from reconciler.base.errors import ServiceError
from reconciler.google.publication_store import PublicationStore
from reconciler.model.ports import NO_CURRENT
from reconciler.model.publication import (
    LARGEST_CURRENT,
    LARGEST_MANIFEST,
    CurrentModel,
    current_json,
    published_json,
)
from reconciler.operations.session import Session
from tests.support.held_service import HeldService
from tests.support.noted_requests import NotedRequests, noting_session
from tests.support.publishing import (
    FILES,
    JOB,
    TO,
    crc32c_of,
    current_model,
    path_of,
    publish,
    published_model,
    put,
)

MODEL = published_model()
CURRENT = f"{TO}/current.json"
MANIFEST = f"{TO}/{JOB}/manifest.json"


@pytest.fixture
def noted(session: Session) -> tuple[Session, NotedRequests]:
    return noting_session(session)


def store(session: Session, to: str = TO) -> PublicationStore:
    return PublicationStore(session.connection, to)


@pytest.mark.parametrize("to", [TO, "gs://risk-models"])
def test_publication_is_read_as_written(service: HeldService, session: Session, to: str) -> None:
    publish(service.home, MODEL, to=to)
    found = store(session, to).current()
    assert (found.current, found.generation > 0) == (current_model(MODEL, to), True)
    assert store(session, to).model(JOB) == MODEL
    listed = store(session, to).files(f"{to}/{JOB}", 10)
    prefix = f"{to}/{JOB}/".removeprefix("gs://risk-models/")
    contents = {name: (len(content), crc32c_of(content)) for name, content in FILES.items()}
    contents["manifest.json"] = (len(published_json(MODEL)), crc32c_of(published_json(MODEL)))
    assert {item.name.removeprefix(prefix): (int(item.size), item.crc32c) for item in listed} == contents
    assert all(int(item.generation) > 0 for item in listed)


def test_address_without_publication_has_none(service: HeldService, session: Session) -> None:
    assert store(session).current() == NO_CURRENT  # no bucket
    assert store(session).model(JOB) is None
    put(service.home, f"{CURRENT}.old", b"")
    put(service.home, f"{TO}-2/current.json", current_json(current_model(MODEL)))
    assert store(session).current() == NO_CURRENT
    assert store(session).model(JOB) is None
    assert store(session).files(f"{TO}/{JOB}", 10) == []


def form(**changed: Any) -> bytes:
    return json.dumps(json.loads(current_json(current_model(MODEL))) | changed).encode()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no JSON", "JSON"),
        (b"\xff", "JSON"),
        (b"[]", "object"),
        (b'{"formatVersion": 1, "folder":' + b"[" * 60_000, "too deeply|recursion"),
        (form(formatVersion=2), "format version 2"),
        (form(folder="gs://risk-models/other/" + JOB), "folder"),
        (form(folder="gs://other-bucket/census/" + JOB), "folder"),
        (form(folder=f"{TO}/../{JOB}"), "folder"),
        (form(jobName="../../secret"), "jobName"),
        (form(hash=1), "hash"),
        (form().ljust(LARGEST_CURRENT + 1), "larger than 65,536 bytes"),
    ],
)
def test_unusable_current_is_refused_with_remedy(
    service: HeldService, session: Session, content: bytes, why: str
) -> None:
    put(service.home, CURRENT, content)
    with pytest.raises(ServiceError, match=why) as raised:
        store(session).current()
    assert raised.value.message.startswith(f"{CURRENT} can't be used: ")
    assert "delete it" in raised.value.hint


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b'{"formatVersion": 1, "metrics":' + b'{"a":' * 60_000, "too deeply|recursion|metrics"),
        (published_json(published_model(job_name="other_0011")), "another job"),
        (published_json(published_model(files={"": b""})), "name"),
    ],
)
def test_unusable_record_is_refused_with_remedy(
    service: HeldService, session: Session, content: bytes, why: str
) -> None:
    put(service.home, MANIFEST, content)
    with pytest.raises(ServiceError, match=why) as raised:
        store(session).model(JOB)
    assert raised.value.message.startswith(f"{MANIFEST} can't be used: ")
    assert "delete it" in raised.value.hint


def test_large_object_is_refused_without_request_for_its_content(
    service: HeldService, noted: tuple[Session, NotedRequests]
) -> None:
    session, requests = noted
    for uri, largest in ((CURRENT, LARGEST_CURRENT), (MANIFEST, LARGEST_MANIFEST)):
        path_of(service.home, uri).parent.mkdir(parents=True, exist_ok=True)
        with path_of(service.home, uri).open("wb") as file:
            file.truncate(largest + 1)
    with pytest.raises(ServiceError, match="larger than 65,536 bytes"):
        store(session).current()
    with pytest.raises(ServiceError, match="larger than 33,554,432 bytes"):
        store(session).model(JOB)
    assert requests.of("alt=media") == []
    put(service.home, CURRENT, form().ljust(LARGEST_CURRENT))
    assert store(session).current().current == current_model(MODEL)


def test_folder_of_many_objects_is_not_listed_to_its_end(
    service: HeldService, noted: tuple[Session, NotedRequests]
) -> None:
    session, requests = noted
    for number in range(1005):
        put(service.home, f"gs://acme-runs/census/{number}", b"")
    assert len(store(session).files("gs://acme-runs/census/", 1005)) == 1005
    assert len(requests.of("acme-runs/o")) == 2
    with pytest.raises(ServiceError, match="gs://acme-runs/census has more than 999 objects") as raised:
        store(session).files("gs://acme-runs/census", 999)
    assert raised.value.hint
    assert len(requests.of("acme-runs/o")) == 3


def test_publication_that_is_replaced_during_read_is_read_again(
    service: HeldService, noted: tuple[Session, NotedRequests]
) -> None:
    session, requests = noted
    publish(service.home, MODEL)
    later = published_model(job_name=f"{JOB}_2")

    def replace_once(method: str, url: str) -> None:
        if "alt=media" in url:
            requests.before = lambda method, url: None
            path_of(service.home, CURRENT).unlink()
            publish(service.home, later)

    requests.before = replace_once
    assert store(session).current().current == current_model(later)
    assert len(requests.of("alt=media")) == 2


def test_publication_that_is_replaced_all_the_time_is_an_error(
    service: HeldService, noted: tuple[Session, NotedRequests]
) -> None:
    session, requests = noted
    publish(service.home, MODEL)
    put_again: list[CurrentModel] = []

    def replace(method: str, url: str) -> None:
        if "alt=media" in url:
            path_of(service.home, CURRENT).unlink()
        elif put_again:
            put(service.home, CURRENT, current_json(put_again[0]))
        put_again.append(current_model(MODEL))

    requests.before = replace
    with pytest.raises(ServiceError, match="changes again and again"):
        store(session).current()


@pytest.mark.parametrize(
    ("status", "hint"), [(403, "roles/storage.objectViewer on gs://risk-models"), (503, "try again later")]
)
def test_refusal_is_told_with_address_and_remedy(
    noted: tuple[Session, NotedRequests], status: int, hint: str
) -> None:
    session, requests = noted
    requests.refused = {"risk-models": status}
    acts = {
        CURRENT: lambda: store(session).current(),
        MANIFEST: lambda: store(session).model(JOB),
        f"{TO}/{JOB}": lambda: store(session).files(f"{TO}/{JOB}", 10),
    }
    for uri, act in acts.items():
        with pytest.raises(ServiceError) as raised:
            act()
        assert raised.value.message == f"{uri} can't be read: refused with {status}"
        assert hint in raised.value.hint


def test_listing_of_missing_bucket_is_an_error(session: Session) -> None:
    with pytest.raises(ServiceError, match="gs://no-such-bucket/a can't be read") as raised:
        store(session).files("gs://no-such-bucket/a", 10)
    assert raised.value.hint == "create gs://no-such-bucket, or correct its name in the manifest"
