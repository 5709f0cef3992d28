"""Parts and copies of objects: exactly those of the object that was listed."""

from __future__ import annotations

from typing import Any

import pytest

from reconciler.google import object_store
from reconciler.google.client import execute
from reconciler.google.object_store import ChangedObjectError, ObjectStore, StoredObject
from reconciler.google.responses import ApiError, NotFoundAtServiceError
from reconciler.operations.session import Session
from reconciler.training_service.storage import copies
from tests.support.held_service import HeldService
from tests.support.noted_requests import noting_session
from tests.support.publishing import put

URI, NAME = "gs://models/a b/größe?#%2F 📊", "a b/größe?#%2F 📊"
CONTENT = bytes(range(256))


def listed(session: Session) -> tuple[ObjectStore, StoredObject]:
    store = ObjectStore(session.connection, "models", "name,generation,size")
    stored, _ = store.find(NAME)
    assert stored is not None
    return store, stored


@pytest.mark.parametrize(("first", "last"), [(0, 255), (0, 0), (255, 255), (10, 19)])
def test_part_has_exactly_the_bytes(service: HeldService, session: Session, first: int, last: int) -> None:
    put(service.home, URI, CONTENT)
    store, stored = listed(session)
    assert store.read_part(stored, first, last) == CONTENT[first : last + 1]


@pytest.mark.parametrize("content", [CONTENT + b"x", CONTENT[:-1]])
def test_part_of_object_with_another_size_is_an_error(
    service: HeldService, session: Session, content: bytes
) -> None:
    put(service.home, URI, content)
    store, stored = listed(session)
    of_now = StoredObject(stored.name, size="256")
    with pytest.raises(ChangedObjectError, match="another size"):
        store.read_part(of_now, 0, 9)


def test_part_of_object_that_ends_before_it_is_an_error(service: HeldService, session: Session) -> None:
    put(service.home, URI, CONTENT)
    store, stored = listed(session)
    with pytest.raises(ApiError) as raised:
        store.read_part(stored, 256, 300)
    assert raised.value.status == 416


def test_part_is_of_the_listed_generation(service: HeldService, session: Session) -> None:
    noting, requests = noting_session(session)
    put(service.home, URI, CONTENT)
    store, stored = listed(noting)
    put(service.home, URI, CONTENT[::-1])
    with pytest.raises(NotFoundAtServiceError):
        store.read_part(stored, 0, 9)
    assert f"generation={stored.generation}" in requests.sent[-1][1]


MIB = 2**20


@pytest.fixture
def away(session: Session) -> str:
    """Return a bucket in another location than the others, to which large objects are copied in parts."""
    buckets = session.connection.client("storage.buckets")
    execute(buckets.insert(project="local", body={"name": "away", "location": "EUROPE-WEST4"}))
    return "away"


def test_large_object_is_copied_in_parts_to_its_end(
    service: HeldService, session: Session, away: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "LARGEST_PART", MIB)
    content = CONTENT * (5 * MIB // 2 // len(CONTENT))
    put(service.home, URI, content)
    noting, requests = noting_session(session)
    _, stored = listed(session)
    assert ObjectStore(noting.connection, away, "name").copy("models", stored, "copy")
    assert (service.home / "gcs/away/copy").read_bytes() == content
    tokens = ["rewriteToken=" in url for method, url in requests.sent if method == "POST"]
    assert tokens == [False, True, True]


@pytest.mark.parametrize("changed", ["source", "target"])
def test_object_is_not_copied_when_source_or_target_changes_between_parts(
    service: HeldService, session: Session, away: str, changed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "LARGEST_PART", MIB)
    put(service.home, URI, CONTENT * (2 * MIB // len(CONTENT)))
    _, stored = listed(session)
    store = ObjectStore(session.connection, away, "name")

    def after_first_part(request: Any) -> Any:
        answer = execute(request)
        if not answer["done"]:
            put(service.home, URI if changed == "source" else f"gs://{away}/copy", b"other")
        return answer

    monkeypatch.setattr(object_store, "execute", after_first_part)
    assert not store.copy("models", stored, "copy")
    path = service.home / "gcs/away/copy"
    assert (path.read_bytes() if path.exists() else b"") == (b"" if changed == "source" else b"other")
