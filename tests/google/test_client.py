"""Reads without Google's client: its addresses, its errors, and the same pages as before."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from googleapiclient import discovery
from googleapiclient.discovery import Resource
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.base.concurrency import call_all
from reconciler.base.errors import ServiceError
from reconciler.base.http import HttpRequest, HttpResponse, NoAnswerError
from reconciler.engines.api import ai_platform, vertex_ai
from reconciler.google import client, object_store
from reconciler.google.client import Connection, Endpoint, address, object_of
from reconciler.google.listing import RecordPages
from reconciler.google.responses import ApiError, NotFoundAtServiceError, typed_record
from tests.support.held_service import HeldService
from tests.support.noted_locks import Meeting
from tests.support.waiting import PATIENCE

ROOTS = {
    "aiplatform": "https://us-central1-aiplatform.googleapis.com/",
    "ml": "http://localhost:8080/",
    "storage": "https://storage.example.test/below/",
}


@dataclass
class Says:
    """A transport with the same answer each time; it records its requests."""

    answer: HttpResponse = field(default_factory=lambda: HttpResponse(200, {}, b"{}"))
    asked: list[HttpRequest] = field(default_factory=list)

    def send(self, request: HttpRequest) -> HttpResponse:
        self.asked.append(request)
        return self.answer


def connection(says: Says) -> Connection:
    return Connection(Endpoint(says, lambda: {"Authorization": "Bearer mine"}, "p", "l", ROOTS))


OFFICIAL = connection(Says())
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["a b", "50%", "%2F", "%zz", "ü📊", 'labels.a="b" AND x:*', "a/b", "a?b#c", "a+b&c=d", "~._-!$'()*,;:@[]"]
)
PART = TEXT.map(lambda text: re.sub(r"[/?#%\n]", "_", text) or "x")
NAMES = {
    "aiplatform.projects.locations.customJobs": "projects/{}/locations/{}/customJobs/{}",
    "aiplatform.projects.locations.hyperparameterTuningJobs": (
        "projects/{}/locations/{}/hyperparameterTuningJobs/{}"
    ),
    "ml.projects.jobs": "projects/{}/jobs/{}",
}


@cache
def resource(names: str) -> Any:
    """Return Google's client of a collection."""
    api, *rest = names.split(".")
    found = OFFICIAL.client(api)
    for name in rest:
        found = getattr(found, name)()
    return found


def official(method: str, parameters: dict[str, Any]) -> str:
    """Return the address that Google's client asks."""
    names, _, last = method.rpartition(".")
    if parameters.get("alt") == "media":
        last = "get_media"
        parameters = {name: value for name, value in parameters.items() if name != "alt"}
    uri: str = getattr(resource(names), last)(**parameters).uri
    return uri


def taken_apart(url: str) -> tuple[object, ...]:
    parts = urlsplit(url)
    query = sorted(parse_qsl(parts.query, keep_blank_values=True, strict_parsing=True))
    return parts.scheme, parts.netloc, parts.path, query, parts.fragment


@pytest.mark.slow
@settings(max_examples=60)
@given(method=st.sampled_from(sorted(NAMES)), parts=st.lists(PART, min_size=3, max_size=3), data=st.data())
def test_jobs_are_asked_for_where_the_official_client_asks(
    method: str, parts: list[str], data: st.DataObject
) -> None:
    name = NAMES[method].format(*parts)
    get = {"name": name, "fields": data.draw(st.none() | TEXT)}
    assert taken_apart(address(ROOTS, f"{method}.get", get)) == taken_apart(official(f"{method}.get", get))
    listed = {
        "parent": name.rsplit("/", 2)[0],
        "filter": data.draw(st.none() | TEXT),
        "pageSize": data.draw(st.none() | st.integers(0, 1000)),
        "pageToken": data.draw(st.none() | TEXT),
        "fields": "customJobs(name,labels),nextPageToken",
    }
    ours = address(ROOTS, f"{method}.list", listed)
    assert taken_apart(ours) == taken_apart(official(f"{method}.list", listed))


def test_a_name_stays_a_part_of_the_path() -> None:
    """The official client lets the name leave the path, and takes "%2F" for an escaped character."""
    parts = urlsplit(address(ROOTS, "ml.projects.jobs.get", {"name": "projects/p/jobs/a?alt=media#b%2F"}))
    assert (parts.path, parts.query) == ("/v1/projects/p/jobs/a%3Falt=media%23b%252F", "alt=json")


@settings(max_examples=60)
@given(bucket=TEXT.filter(bool), name=TEXT.filter(bool), token=st.none() | TEXT, media=st.booleans())
def test_objects_are_asked_for_where_the_official_client_asks(
    bucket: str, name: str, token: str | None, media: bool
) -> None:
    listed = {
        "bucket": bucket,
        "prefix": name,
        "maxResults": 1000,
        "pageToken": token,
        "fields": "items(name)",
    }
    get = {
        "bucket": bucket,
        "object": name,
        "generation": "12",
        "ifGenerationMatch": None,
        **({"alt": "media"} if media else {}),
    }
    there = {"bucket": bucket, "fields": "name"}
    for method, asked in (("objects.list", listed), ("objects.get", get), ("buckets.get", there)):
        ours = address(ROOTS, f"storage.{method}", asked)
        assert taken_apart(ours) == taken_apart(official(f"storage.{method}", asked))


def test_a_read_carries_who_asks_and_whether_a_cache_may_answer() -> None:
    says = Says()
    for fresh in (False, True):
        connection(says).get("storage.buckets.get", fresh=fresh, bucket="b")
    assert [(request.method, request.body) for request in says.asked] == [("GET", None)] * 2
    assert [request.headers for request in says.asked] == [
        {"accept": "application/json", "Authorization": "Bearer mine"},
        {"accept": "application/json", "cache-control": "no-cache", "Authorization": "Bearer mine"},
    ]


@pytest.mark.parametrize(
    ("status", "said", "kind"),
    [
        (404, {"status": "NOT_FOUND", "message": "no\nsuch job"}, NotFoundAtServiceError),
        (429, {"status": "RESOURCE_EXHAUSTED", "message": "busy"}, ApiError),
        (403, {"message": "no scope"}, ApiError),
        (308, {}, ApiError),
        (500, None, ApiError),
    ],
)
def test_an_error_is_the_one_that_the_official_client_leads_to(
    status: int, said: object, kind: type[ApiError]
) -> None:
    from reconciler.google.client import execute

    body = b"<html>" if said is None else json.dumps({"error": said}).encode()
    asked = connection(Says(HttpResponse(status, {"retry-after": "17"}, body)))
    jobs = asked.client("aiplatform.projects.locations.customJobs")
    name = "projects/p/locations/l/customJobs/1"
    with pytest.raises(kind) as ours:
        asked.get("aiplatform.projects.locations.customJobs.get", name=name)
    with pytest.raises(kind) as theirs:
        execute(jobs.get(name=name))
    for attribute in ("message", "hint", "status", "reason", "retry_after"):
        assert getattr(ours.value, attribute) == getattr(theirs.value, attribute)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"<html>", b'{"a": "\xff"}', b"\xef\xbb\xbf{}", b"[" * 9**6]
)
def test_what_is_no_json_object_is_no_answer(body: bytes) -> None:
    with pytest.raises(NoAnswerError, match="not a JSON object"):
        object_of(body)


ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("NaN"),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=5), part, max_size=3),
    max_leaves=6,
)
FIELDS = (
    *("name", "jobId", "displayName", "state", "labels", "createTime", "error", "errorMessage"),
    *("generation", "metadata"),
)
LIKELY = st.fixed_dictionaries(
    {"name": st.text(max_size=5), "jobId": st.text(max_size=5)},
    optional={
        **{name: ANY | st.text(max_size=5) for name in FIELDS[2:]},
        "labels": ANY | st.dictionaries(st.text(max_size=5), st.text(max_size=5)),
        "error": ANY | st.fixed_dictionaries({"code": st.just(3)}, optional={"message": st.text(max_size=5)}),
        "metadata": ANY | st.dictionaries(st.sampled_from(["claim", "genesis", "x"]), st.text(max_size=5)),
    },
)
PAGES: list[RecordPages[Any]] = [*vertex_ai._PAGES.values(), ai_platform._PAGES, object_store._PAGES]


@given(
    pages=st.sampled_from(PAGES),
    items=st.lists(LIKELY | ANY, max_size=3),
    token=ANY | st.text(),
    data=st.data(),
)
def test_a_page_is_read_the_same_whichever_road_it_takes(
    pages: RecordPages[Any], items: list[Any], token: Any, data: st.DataObject
) -> None:
    said = data.draw(
        st.sampled_from([{pages.items: items}, {pages.items: items, "nextPageToken": token}, {}])
    )
    body = json.dumps(said).encode()
    assert outcome(lambda: quickly(pages, body)) == outcome(lambda: slowly(pages, body))


def quickly(pages: RecordPages[Any], body: bytes) -> tuple[dict[str, Any], str]:
    return pages.read(body)


def slowly(pages: RecordPages[Any], body: bytes) -> tuple[dict[str, Any], str]:
    return pages._read_leniently(object_of(body))


def test_pages_that_are_as_they_should_be_take_the_quick_road(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RecordPages, "_read_leniently", lambda *_: pytest.fail("the slow road"))
    job = {
        "name": "n",
        "displayName": "d",
        "state": "S",
        "labels": {"a": "b"},
        "createTime": "t",
        "error": {"code": 3, "message": "m"},
        "fieldOfTomorrow": [{}],
    }
    answer = {"customJobs": [job], "nextPageToken": "x", "unreachable": []}
    found, token = quickly(vertex_ai._PAGES["CustomJob"], json.dumps(answer).encode())
    assert (found["n"], token) == (typed_record(vertex_ai._Job, job), "x")
    assert quickly(ai_platform._PAGES, b'{"jobs": [{"jobId": "j"}]}')[0]["j"] == typed_record(
        ai_platform._Job, {"jobId": "j"}
    )
    assert quickly(object_store._PAGES, b"{}") == ({}, "")


def outcome(act: Callable[[], Any]) -> Any:
    try:
        return act()
    except (ServiceError, ValueError) as error:
        return type(error), str(error)


def test_several_reads_at_once_give_what_each_gives_and_raise_the_first_error() -> None:
    meet = threading.Barrier(3, timeout=PATIENCE)

    def call(number: int, error: str = "") -> Callable[[], int]:
        def made() -> int:
            meet.wait()
            if error:
                raise ServiceError(error)
            return number

        return made

    assert call_all([call(1), call(2), call(3)]) == [1, 2, 3]
    with pytest.raises(ServiceError, match="second"):
        call_all([call(1), call(2, "second"), call(3, "third")])
    assert call_all([]) == []


@dataclass
class Notes(Says):
    """A transport that records for each request whether the test's own thread sends it."""

    at_home: list[bool] = field(default_factory=list)

    def send(self, request: HttpRequest) -> HttpResponse:
        self.at_home.append(threading.current_thread() is threading.main_thread())
        return super().send(request)


def test_only_what_is_far_away_is_asked_for_in_several_threads() -> None:
    for distant in (False, True):
        notes = Notes()
        endpoint = replace(connection(notes).endpoint, distant=distant)
        assert vertex_ai.VertexAi(Connection(endpoint)).jobs({"a": "b"}) == ()
        assert notes.at_home == [not distant] * 3  # one listing of each kind


COLLECTIONS = (
    "aiplatform.projects.locations.customJobs",
    "ml.projects.jobs",
    "storage.objects",
    "storage.buckets",
    "iamcredentials.projects.serviceAccounts",
)


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_collection_is_googles_and_made_once(name: str) -> None:
    asked = Connection(
        replace(OFFICIAL.endpoint, roots={**ROOTS, "iamcredentials": "http://localhost:8081/"})
    )
    jobs = asked.client(name)
    assert isinstance(jobs, Resource)
    assert jobs is asked.client(name)
    assert asked.client(name.partition(".")[0]) is asked.client(name.partition(".")[0])
    with pytest.raises(AttributeError):
        asked.client(f"{name}.unheardOf")


def test_a_client_is_built_once_for_all_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting, build, built = Meeting(), discovery.build_from_document, list[str]()

    def noted(document: dict[str, Any], **more: Any) -> Any:
        built.append(document["name"])
        meeting.pause()
        return build(document, **more)

    monkeypatch.setattr(discovery, "build_from_document", noted)
    meeting.notes_locks_of(client, monkeypatch)
    asked = connection(Says())
    first, second = meeting.hold(
        lambda: asked.client("storage.objects"), lambda: asked.client("storage.objects")
    )
    assert first is second
    assert isinstance(first, Resource)
    assert built == ["storage"]


def test_threads_share_a_collection() -> None:
    """Each request is separate, in any thread."""
    count = 8
    meet = threading.Barrier(count, timeout=PATIENCE)

    @dataclass
    class Echo:
        def send(self, request: HttpRequest) -> HttpResponse:
            meet.wait()
            return HttpResponse(200, {}, json.dumps({"said": json.loads(request.body or b"")}).encode())

    asked = Connection(replace(OFFICIAL.endpoint, transport=Echo()))

    def create(number: int) -> list[Any]:
        jobs = asked.client("ml.projects.jobs")
        bodies = [{"jobId": f"job-{number}-{time}"} for time in range(5)]
        requests = [jobs.create(parent=f"projects/p{number}", body=body) for body in bodies]
        assert {request.uri for request in requests} == {
            f"http://localhost:8080/v1/projects/p{number}/jobs?alt=json"
        }
        return [
            client.execute(request)["said"] == body for request, body in zip(requests, bodies, strict=True)
        ]

    found = call_all([partial(create, number) for number in range(count)])
    assert found == [[True] * 5] * count


LOOK = """
import sys
from pathlib import Path
from reconciler.manifests.settings import from_document
from reconciler.operations.session import open_session
from reconciler.submission.observe import observe

config = from_document(Path(sys.argv[1]).parent, {"source": "acme-jobs"})
environ = {"RECONCILER_HOME": sys.argv[1]}
with open_session(config, config.environment(None), environ, start=False) as session:
    print(len(observe(session.ports).runs))
print([name for name in ("googleapiclient", "httplib2", "google.auth") if name in sys.modules])
"""


@pytest.mark.slow
def test_a_look_loads_no_client(tmp_path: Path) -> None:
    with HeldService(tmp_path / "home").running() as service:
        command = [sys.executable, "-c", LOOK, str(service.home)]
        told = subprocess.run(command, check=False, capture_output=True, text=True, timeout=PATIENCE)
    assert (told.stdout, told.stderr) == ("0\n[]\n", "")
