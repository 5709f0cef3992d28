"""Parts of objects: exactly those of the object that was listed."""

from __future__ import annotations

import pytest

from reconciler.google.object_store import ChangedObjectError, ObjectStore, StoredObject
from reconciler.google.responses import ApiError, NotFoundAtServiceError
from reconciler.operations.session import Session
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
