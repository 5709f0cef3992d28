"""A create is sent once whatever the answer, from the engine to the socket, and its result is exact."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from reconciler.base.http import DirectTransport, HttpRequest, HttpResponse, RetryingReads
from reconciler.engines.api.engine_client import engine_client
from reconciler.engines.api.engine_jobs import EngineJobs
from reconciler.google.client import Connection, Endpoint
from reconciler.model.manifest import AIPLATFORM_V1
from reconciler.model.ports import Answer, Created, Credential, NotSent, Refused, Taken, Unknown
from tests.support.raw_server import ANSWERS, FAULTS, SLOW, Behaviour, RawServer, answer
from tests.support.tls import Loopback
from tests.support.waiting import PATIENCE, patience

TOKEN = "ya29.one-shot"
BODY = {"displayName": "census_0123456789", "jobSpec": {"workerPoolSpecs": []}}
NAME = "projects/123456789012/locations/us-central1/customJobs/1234567890123456789"


def google_error(status: int, word: str, **headers: str) -> Behaviour:
    told = {"error": {"code": status, "message": "no", "status": word}}
    return answer(
        status, json.dumps(told).encode(), content_type="application/json; charset=UTF-8", **headers
    )


def said(value: Any, status: int = 200) -> Behaviour:
    return answer(status, json.dumps(value).encode(), content_type="application/json; charset=UTF-8")


# The meaning of each answer for the existence of a job; any other answer counts as unknown.
TOLD: dict[str, tuple[Behaviour, type[Answer]]] = {
    "a job": (said({"name": NAME, "displayName": BODY["displayName"]}), Created),
    "a job without a name": (said({"displayName": BODY["displayName"]}), Unknown),
    "a job of another place": (said({"name": NAME.replace("us-central1", "europe-west4")}), Unknown),
    "a job of another kind": (said({"name": NAME.replace("customJobs", "nasJobs")}), Unknown),
    "a page with status 200": (answer(200, b"<html>Welcome</html>", content_type="text/html"), Unknown),
    "nothing with status 204": (answer(204, b""), Unknown),
    "half a JSON text": (answer(200, b'{"name": "proj', content_type="application/json"), Unknown),
    "no UTF-8": (answer(200, b'{"name": "\xff"}', content_type="application/json"), Unknown),
    "400": (google_error(400, "INVALID_ARGUMENT"), Refused),
    "401": (google_error(401, "UNAUTHENTICATED", www_authenticate="Bearer"), Refused),
    "403": (google_error(403, "PERMISSION_DENIED"), Refused),
    "404": (google_error(404, "NOT_FOUND"), Refused),
    "409 taken": (google_error(409, "ALREADY_EXISTS"), Taken),
    "409 aborted": (google_error(409, "ABORTED"), Unknown),
    "429": (google_error(429, "RESOURCE_EXHAUSTED", retry_after="0"), Refused),
    "499": (google_error(499, "CANCELLED"), Unknown),
    "500": (google_error(500, "INTERNAL"), Unknown),
    "503": (google_error(503, "UNAVAILABLE", retry_after="0"), Unknown),
    "504": (google_error(504, "DEADLINE_EXCEEDED"), Unknown),
    "400 with a word of success": (google_error(400, "OK"), Unknown),
    **{f"a proxy's {name}": (behaviour, Unknown) for name, (_, behaviour) in ANSWERS.items()},
}


@pytest.fixture
def transport() -> Iterator[DirectTransport]:
    made = DirectTransport(Loopback(), max_body=10_000)
    yield made
    made.close()


class Quick:
    """A transport with a shorter timeout."""

    def __init__(self, transport: DirectTransport, seconds: float) -> None:
        self.transport, self.seconds = transport, seconds

    def send(self, request: HttpRequest) -> HttpResponse:
        more = (request.method, request.url, request.headers, request.body, self.seconds)
        return self.transport.send(HttpRequest(*more))


def create(url: str, transport: DirectTransport, seconds: float = 30.0) -> Answer:
    """Send a create as `apply` sends it to Vertex AI, but to this URL."""
    reads = RetryingReads(Quick(transport, seconds), sleep=pytest.fail, random=lambda: 0.0)
    endpoint = Endpoint(reads, pytest.fail, "acme-ml", "us-central1", {"aiplatform": f"{url}/"})
    connection = Connection(endpoint)
    jobs = EngineJobs("acme", lambda version: engine_client(version, connection), [AIPLATFORM_V1])
    credential = Credential({"Authorization": f"Bearer {TOKEN}"}, datetime.now(UTC))
    return jobs.create(AIPLATFORM_V1, "CustomJob", BODY, credential)


def check_one_post(server: RawServer) -> None:
    """Check that the only request is the create, with its single credential and a whole body."""
    (arrived,) = server.arrived
    assert (arrived.method, arrived.target) == (
        "POST",
        "/v1/projects/acme-ml/locations/us-central1/customJobs?alt=json",
    )
    assert arrived.headers["authorization"] == f"Bearer {TOKEN}"
    assert json.loads(arrived.body) == BODY
    assert server.connections == 1


@pytest.mark.slow
@pytest.mark.fault(1, 3)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_create_without_a_good_answer_is_sent_once_and_unknown(
    fault: str, transport: DirectTransport
) -> None:
    with RawServer([FAULTS[fault]]).running() as server:
        told = create(server.url, transport, patience(0.3) if fault in SLOW else PATIENCE)
        check_one_post(server)
    assert isinstance(told, Unknown)
    assert TOKEN not in repr(told)


@pytest.mark.fault(3, 4, 5)
@pytest.mark.parametrize("name", TOLD)
def test_a_create_is_sent_once_and_its_answer_says_what_it_says(
    name: str, transport: DirectTransport
) -> None:
    behaviour, expected = TOLD[name]
    with RawServer([behaviour]).running() as server:
        told = create(server.url, transport)
        check_one_post(server)
    assert isinstance(told, expected), told
    assert TOKEN not in repr(told)


@pytest.mark.fault(5)
def test_a_refused_credential_is_neither_renewed_nor_sent_again(transport: DirectTransport) -> None:
    """The endpoint's own credentials fail the test when they are used: a create carries its own."""
    with RawServer([google_error(401, "UNAUTHENTICATED"), said({"name": NAME})]).running() as server:
        told = create(server.url, transport)
        check_one_post(server)
    assert isinstance(told, Refused)
    assert (told.status, told.reason) == (401, "UNAUTHENTICATED")


def test_a_create_that_cannot_leave_is_told_as_not_sent(transport: DirectTransport) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        gone = f"http://127.0.0.1:{listener.getsockname()[1]}"
    for url in (gone, "http://nobody.invalid"):
        told = create(url, transport)
        assert isinstance(told, NotSent)
        assert TOKEN not in repr(told)
