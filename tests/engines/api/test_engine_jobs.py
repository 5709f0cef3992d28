"""The jobs of an environment: complete listings, a single request for a create, and answers that report only
the service's own statements."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from reconciler.base.errors import NotFoundError, ServiceError, UsageError
from reconciler.base.http import HttpRequest, HttpResponse
from reconciler.base.sanitize import redacted
from reconciler.engines.api.engine_client import CLIENTS, engine_client
from reconciler.engines.api.engine_jobs import EngineJobs
from reconciler.engines.spec.engine_spec import SPECS, engine_spec
from reconciler.google.claim_store import ObjectClaims
from reconciler.google.client import Connection, Endpoint, execute
from reconciler.google.responses import ApiError
from reconciler.manifests.schemas import KINDS
from reconciler.manifests.settings import load_config
from reconciler.model.claim import ClaimId
from reconciler.model.job import KEY, SOURCE, State
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1
from reconciler.model.ports import (
    EMBEDDED_BOUNDS,
    Answer,
    Created,
    Credential,
    NotSent,
    Refused,
    Taken,
    Unknown,
)
from reconciler.operations.session import Session
from tests.support.held_service import HeldService
from tests.support.opened import LOCATION, PROJECT, connected
from tests.support.raw_server import Behaviour, RawServer, answer, reset, send_then_close, silence
from tests.support.repository import Repository
from tests.support.waiting import patience

CREDENTIAL = Credential({"Authorization": "Bearer one-shot"}, datetime(2026, 11, 21, tzinfo=UTC))
PARENT = f"projects/{PROJECT}/locations/{LOCATION}"
NAME = f"projects/123456/locations/{LOCATION}/customJobs/42"
POOL = {
    "machineSpec": {"machineType": "n1-standard-4"},
    "replicaCount": "1",
    "containerSpec": {"imageUri": "example.test/image:1"},
}


def custom_job(name: str = "census_0011", **labels: str) -> dict[str, Any]:
    return {"displayName": name, "labels": labels, "jobSpec": {"workerPoolSpecs": [POOL]}}


def ml_job(name: str = "census_0011", **labels: str) -> dict[str, Any]:
    training = {
        "region": "us-central1",
        "scaleTier": "BASIC",
        "pythonModule": "task",
        "runtimeVersion": "2.11",
    }
    training["packageUris"] = ["gs://acme/task.tar.gz"]
    return {"jobId": name, "trainingInput": training, "labels": labels}


def labels(source: str = "acme-jobs", key: str = "k1") -> dict[str, str]:
    return {SOURCE: source, KEY: key}


def jobs_at(server: RawServer, *versions: str) -> EngineJobs:
    connection = connected(server.url)
    return EngineJobs(
        "acme-jobs", lambda version: engine_client(version, connection), versions or (AIPLATFORM_V1,)
    )


def create_at(*behaviours: Behaviour, body: dict[str, Any] | None = None) -> tuple[Answer, RawServer]:
    with RawServer(list(behaviours)).running() as server:
        return jobs_at(server).create(AIPLATFORM_V1, "CustomJob", body or custom_job(), CREDENTIAL), server


def said(body: Any, status: int = 200, **headers: str) -> Behaviour:
    return answer(status, json.dumps(body).encode(), **headers)


def error(status: int, word: str, message: str = "no", **headers: str) -> Behaviour:
    return said({"error": {"code": status, "status": word, "message": message}}, status, **headers)


def test_what_is_created_is_listed_read_and_cancelled(session: Session) -> None:
    jobs = session.jobs
    credential = session.credentials.mint()
    made = {}
    for version, kind, body in (
        (AIPLATFORM_V1, "CustomJob", custom_job("census_1", **labels())),
        (ML_V1, "Job", ml_job("census_2", **labels(key="k2"))),
    ):
        created = jobs.create(version, kind, body, credential)
        assert isinstance(created, Created)
        assert created.job.labels == body["labels"]
        made[created.job.resource] = created.job
        read = jobs.read(version, kind, created.job.resource)
        assert read == created.job
        assert body.items() <= read.body.items()
        (listed,) = jobs.with_key(version, kind, body["labels"][KEY])
        assert (listed.resource, listed.labels) == (read.resource, read.labels)
        assert jobs.with_key(version, kind, "another") == ()
    assert {job.resource for job in jobs.runs()} == set(made)
    for job in made.values():
        jobs.cancel(job)
        assert jobs.read(job.api_version, job.kind, job.resource).state is State.CANCELLED
    with pytest.raises(NotFoundError):
        jobs.read(AIPLATFORM_V1, "CustomJob", NAME)


@pytest.mark.fault(52)
def test_runs_are_this_repositorys_and_a_key_is_anybodys(session: Session) -> None:
    credential = session.credentials.mint()
    for name, source in (("a_1", "acme-jobs"), ("a_2", "other-jobs")):
        session.jobs.create(AIPLATFORM_V1, "CustomJob", custom_job(name, **labels(source)), credential)
    assert [job.job_name for job in session.jobs.runs()] == ["a_1"]
    assert {job.job_name for job in session.jobs.with_key(AIPLATFORM_V1, "CustomJob", "k1")} == {"a_1", "a_2"}


def test_only_ml_jobs_have_a_resource_name_before_they_are(session: Session) -> None:
    assert session.jobs.named(AIPLATFORM_V1, "CustomJob", "census_1") is None
    name = session.jobs.named(ML_V1, "Job", "census_1")
    created = session.jobs.create(ML_V1, "Job", ml_job("census_1"), session.credentials.mint())
    assert isinstance(created, Created)
    assert created.job.resource == name
    again = session.jobs.create(ML_V1, "Job", ml_job("census_1"), session.credentials.mint())
    assert isinstance(again, Taken)


@pytest.mark.fault(5, 8)
def test_a_create_carries_its_credential_and_no_other(service: HeldService, session: Session) -> None:
    credential = session.credentials.mint()
    service.ahead += timedelta(hours=1)
    late = session.jobs.create(AIPLATFORM_V1, "CustomJob", custom_job(), credential)
    assert isinstance(late, Refused)
    assert (late.status, late.reason) == (401, "UNAUTHENTICATED")
    assert not service.names()
    # All other requests use the service's own token.
    assert session.jobs.runs() == ()


@pytest.mark.fault(5)
def test_a_refused_credential_is_not_replaced_and_the_create_not_repeated() -> None:
    refused, server = create_at(error(401, "UNAUTHENTICATED"))
    assert isinstance(refused, Refused)
    assert [request.headers["authorization"] for request in server.arrived] == ["Bearer one-shot"]


def made(name: object = NAME, **more: Any) -> Behaviour:
    return said({**custom_job(), "name": name, **more})


UNKNOWN = {
    "closed": send_then_close(b""),
    "reset": reset,
    "half": send_then_close(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"),
    "html": answer(200, b"<html>hello</html>"),
    "no utf-8": answer(200, b'{"name": "\xff"}'),
    "deep": answer(200, b"[" * 100_000),
    "deep error": answer(400, b"[" * 100_000),
    "list": said([]),
    "null": said(None),
    "no name": said(custom_job()),
    "a number for a name": made(42),
    "another project": made(f"projects/other/locations/{LOCATION}/customJobs/42"),
    "another location": made(f"projects/{PROJECT}/locations/mars/customJobs/42"),
    "another collection": made(f"{PARENT}/hyperparameterTuningJobs/42"),
    "no number": made(f"{PARENT}/customJobs/latest"),
    "more than a name": made(f"{NAME}/operations/1"),
    "a line end after it": made(f"{NAME}\n"),
    "html 400": answer(400, b"<html>bad gateway</html>"),
    "html 403": answer(403, b"<html>sign in</html>"),
    "html 404": answer(404, b"<html>not found</html>"),
    "html 502": answer(502, b"<html>bad gateway</html>"),
    "no word": said({"error": {"message": "no"}}, 400),
    "error is text": said({"error": "no"}, 400),
    "strange word": error(400, "NO_THANKS"),
    "timed out": error(408, "DEADLINE_EXCEEDED"),
    "aborted": error(409, "ABORTED"),
    "cancelled": error(499, "CANCELLED"),
    "internal": error(500, "INTERNAL"),
    "unavailable": error(503, "UNAVAILABLE"),
    "deadline": error(504, "DEADLINE_EXCEEDED"),
    "refusal of the wrong class": error(500, "INVALID_ARGUMENT"),
    "a number of 5000 digits": answer(200, b'{"name": ' + b"9" * 5000 + b"}"),
    "an error with such a number": answer(400, b'{"error": {"code": ' + b"9" * 5000 + b"}}"),
    "error whose message is a number": said({"error": {"message": 5}}, 400),
    "error that says nothing": said({"error": {}}, 400),
    "errors": said([{"error": {"message": ["no"]}}], 400),
    "error that is null": said({"error": None}, 400),
    "redirect": answer(307, b"", location="http://localhost:1/"),
}


@pytest.mark.fault(1, 3)
@pytest.mark.parametrize("fate", UNKNOWN.values(), ids=UNKNOWN)
def test_whatever_does_not_certainly_refuse_or_name_a_job_is_unknown(fate: Behaviour) -> None:
    found, server = create_at(fate)
    assert isinstance(found, Unknown), found
    assert found.message
    assert server.count("POST") == len(server.arrived) == 1


@pytest.mark.slow
@pytest.mark.fault(2)
def test_a_create_whose_answer_never_comes_is_unknown() -> None:
    with RawServer([silence]).running() as server:
        engine = engine_client(AIPLATFORM_V1, connected(server.url, timeout=patience(0.3)))
        jobs = EngineJobs("acme-jobs", lambda version: engine, [AIPLATFORM_V1])
        assert isinstance(jobs.create(AIPLATFORM_V1, "CustomJob", custom_job(), CREDENTIAL), Unknown)
    assert len(server.arrived) == 1


@pytest.mark.parametrize("project", [PROJECT, "123456"])
def test_a_job_of_our_parent_is_created(project: str) -> None:
    name = f"projects/{project}/locations/{LOCATION}/customJobs/42"
    found, _ = create_at(made(name, state="JOB_STATE_QUEUED"))
    assert isinstance(found, Created)
    assert (found.job.resource, found.job.state) == (name, State.QUEUED)


def test_another_ml_job_than_asked_for_is_unknown() -> None:
    with RawServer([said(ml_job("other"))]).running() as server:
        found = jobs_at(server, ML_V1).create(ML_V1, "Job", ml_job("census"), CREDENTIAL)
    assert isinstance(found, Unknown)


@pytest.mark.parametrize(
    ("status", "word", "hint"),
    [
        (400, "INVALID_ARGUMENT", ""),
        (403, "PERMISSION_DENIED", "`reconciler init --claims` prints who needs which role"),
        (404, "NOT_FOUND", '(check "project" and "location" in reconciler.yaml)'),
        (429, "RESOURCE_EXHAUSTED", ""),
    ],
)
def test_a_refusal_says_why_and_when_again_with_a_hint(status: int, word: str, hint: str) -> None:
    found, _ = create_at(error(status, word, "quota\nof GPUs", retry_after="17"))
    assert isinstance(found, Refused)
    assert (found.status, found.reason) == (status, word)
    assert found.retry_after == (17.0 if status != 404 else None)
    assert re.fullmatch(r"quota\\nof GPUs( \(.*\))?", found.message)
    assert hint in found.message
    assert bool(hint) == found.message.endswith(")")


@pytest.mark.parametrize("message", [5, None, {}, ["no"], ""])
def test_a_refusal_without_a_readable_message_is_one_all_the_same(message: Any) -> None:
    found, _ = create_at(error(400, "INVALID_ARGUMENT", message))
    assert found == Refused(400, "INVALID_ARGUMENT", "HTTP 400", None)


@dataclass
class Says:
    """A transport with a server whose answer the test chooses."""

    answer: HttpResponse

    def send(self, request: HttpRequest) -> HttpResponse:
        return self.answer


SAYS = Says(HttpResponse(200, {}, b"{}"))
CONNECTION = Connection(
    Endpoint(
        SAYS, dict, PROJECT, LOCATION, dict.fromkeys(("aiplatform", "ml", "storage"), "http://localhost/")
    )
)
HUGE = "a number of 5000 digits"
ANY_TEXT = st.text(st.characters(), max_size=9)
FIELDS = st.sampled_from(
    [
        *("error", "message", "status", "details", "code", "errors"),
        *("name", "labels", "state", "createTime", "jobSpec", "workerPoolSpecs", "pythonPackageSpec"),
        *("packageUris", "customJobs", "jobs", "jobId", "trainingInput", "nextPageToken"),
        *("items", "kind", "generation", "metadata", "claim", "genesis"),
    ]
)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats() | ANY_TEXT | st.sampled_from([HUGE, NAME, ""])
)
WORDS = st.sampled_from(["INVALID_ARGUMENT", "ALREADY_EXISTS", "NOT_FOUND", "UNAVAILABLE"])
ANY = st.recursive(
    SCALARS,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(FIELDS | ANY_TEXT, part, max_size=4),
    max_leaves=12,
)
LIKELY = st.one_of(
    ANY,
    st.fixed_dictionaries(
        {"error": st.fixed_dictionaries({}, optional={"message": ANY, "status": WORDS | ANY})}
    ),
    st.fixed_dictionaries({"name": st.just(NAME)}, optional={"labels": ANY, "jobSpec": ANY, "state": ANY}),
    st.fixed_dictionaries({}, optional={"customJobs": ANY, "nextPageToken": ANY_TEXT | ANY}),
    st.fixed_dictionaries({"kind": st.just("storage#objects")}, optional={"items": ANY}),
)
HEADERS = st.dictionaries(
    st.sampled_from(["date", "retry-after", "content-type", "status"]),
    ANY_TEXT | st.sampled_from(["Sat, 21 Nov 99999999999 13:06:11 GMT", "9" * 5000]),
)
STATUSES = st.sampled_from([200, 204, 299, 301, 308, 400, 401, 403, 404, 409, 412, 429, 500, 503, 599])


def a_body(value: Any) -> bytes:
    return json.dumps(value).replace(f'"{HUGE}"', "9" * 5000).encode()


@given(STATUSES, HEADERS, LIKELY)
def test_whatever_an_answer_holds_it_is_told_as_an_answer_or_an_error(
    status: int, headers: dict[str, str], value: Any
) -> None:
    SAYS.answer = HttpResponse(status, headers, a_body(value))
    jobs = EngineJobs("acme-jobs", lambda version: engine_client(version, CONNECTION), [AIPLATFORM_V1, ML_V1])
    made = jobs.create(AIPLATFORM_V1, "CustomJob", custom_job(), CREDENTIAL)
    assert isinstance(made, Unknown | (Created if status < 300 else Refused | Taken))
    store = ObjectClaims(CONNECTION, "claims", "acme-jobs", PROJECT, LOCATION, may_be_new=False)
    for act in (
        jobs.runs,
        lambda: jobs.with_key(ML_V1, "Job", "k"),
        lambda: jobs.read(AIPLATFORM_V1, "CustomJob", NAME),
        lambda: jobs.read(ML_V1, "Job", f"projects/{PROJECT}/jobs/census"),
        lambda: store.check(0),
        lambda: store.listed(),
        store.prepare,
        lambda: store.read(ClaimId("k")),
    ):
        # A result, or an error that the commands report with its hint; an error must stay an error.
        with suppress(ServiceError):
            act()
    with pytest.raises(ApiError) if status >= 300 else suppress(ServiceError) as told:
        execute(CONNECTION.client("ml.projects.jobs").list(parent=f"projects/{PROJECT}"))
    assert told is None or (told.value.status, bool(told.value.message)) == (status, True)


class TestWhatAClaimNames:
    """A damaged claim, or a newer version's claim, leads to no job, and this is reported."""

    @pytest.mark.parametrize(
        ("version", "kind", "resource"),
        [
            ("batch/v1", "Job", NAME),
            (AIPLATFORM_V1, "Dreams", NAME),
            (AIPLATFORM_V1, "Job", NAME),
            (AIPLATFORM_V1, "HyperparameterTuningJob", NAME),
            (AIPLATFORM_V1, "CustomJob", "census"),
            (AIPLATFORM_V1, "CustomJob", ""),
            (AIPLATFORM_V1, "CustomJob", NAME + "\n"),
            (AIPLATFORM_V1, "CustomJob", NAME + "?alt=media"),
            (AIPLATFORM_V1, "CustomJob", NAME + "/operations/1"),
            (AIPLATFORM_V1, "CustomJob", NAME + "\ud800"),
            (ML_V1, "CustomJob", f"projects/{PROJECT}/jobs/census"),
            (ML_V1, "Job", NAME),
            (ML_V1, "Job", f"projects/{PROJECT}/jobs/census:cancel"),
        ],
    )
    @pytest.mark.fault(76)
    def test_nothing_is_asked_of_the_service(self, version: str, kind: str, resource: str) -> None:
        with RawServer([said({})]).running() as server:
            with pytest.raises(ServiceError) as caught:
                jobs_at(server).read(version, kind, resource)
            assert "newer version" in caught.value.hint
            assert server.arrived == []

    def test_no_job_is_cancelled_by_an_odd_name(self) -> None:
        for odd in ("census", NAME + ":delete"):
            with RawServer([listed(1, name=odd), NONE, said({})]).running() as server:
                (job,) = jobs_at(server).runs()
                with pytest.raises(ServiceError):
                    jobs_at(server).cancel(job)
                assert server.count("POST") == 0
        with RawServer([said({"jobs": [ml_job("a:delete", **labels())]}), said({})]).running() as server:
            (job,) = jobs_at(server, ML_V1).runs()
            with pytest.raises(ServiceError):
                jobs_at(server, ML_V1).cancel(job)
            assert server.count("POST") == 0

    def test_a_job_of_an_unknown_service_has_no_name(self) -> None:
        with RawServer([said({})]).running() as server, pytest.raises(ServiceError) as caught:
            jobs_at(server).named("batch/v1", "Job", "census")
        assert "newer version" in caught.value.hint

    @pytest.mark.parametrize(
        ("version", "kind"), [("batch/v1", "Job"), (AIPLATFORM_V1, "Dreams"), (ML_V1, "CustomJob")]
    )
    def test_there_are_no_jobs_of_an_unknown_kind(self, version: str, kind: str) -> None:
        with RawServer([said({})]).running() as server:
            with pytest.raises(ServiceError):
                jobs_at(server).with_key(version, kind, "k")
            assert isinstance(jobs_at(server).create("batch/v1", kind, custom_job(), CREDENTIAL), Unknown)


def test_a_name_that_is_taken_is_told() -> None:
    found, _ = create_at(error(409, "ALREADY_EXISTS", "it is there"))
    assert found == Taken("it is there")


def test_what_never_left_is_told_as_such() -> None:
    server = RawServer([silence])
    with server.running():
        pass
    found = jobs_at(server).create(AIPLATFORM_V1, "CustomJob", custom_job(), CREDENTIAL)
    assert isinstance(found, NotSent)
    unusable = replace(CREDENTIAL, headers={"Authorization": "Bearer a\nb"})
    assert isinstance(jobs_at(server).create(AIPLATFORM_V1, "CustomJob", custom_job(), unusable), NotSent)


@pytest.mark.fault(51)
def test_the_body_is_sent_as_it_is_given() -> None:
    body = {**custom_job(**labels()), "fieldOfTomorrow": {"word": "NEW"}}
    _, server = create_at(made(), body=body)
    (request,) = server.arrived
    assert json.loads(request.body) == body
    assert request.target.split("?")[0] == f"/v1/{PARENT}/customJobs"


@pytest.mark.fault(51)
@pytest.mark.parametrize(
    "newer",
    [
        {"fieldOfTomorrow": [1], "state": "JOB_STATE_DREAMING"},
        {"state": 7, "labels": None, "createTime": 12, "error": "text", "jobSpec": None},
        {"labels": ["a"], "jobSpec": {"workerPoolSpecs": {"0": POOL}}, "error": {"message": ["x"]}},
        {"jobSpec": {"workerPoolSpecs": [{**POOL, "pythonPackageSpec": None}]}},
        {"jobSpec": {"workerPoolSpecs": [{**POOL, "pythonPackageSpec": {"packageUris": None}}]}},
        {"jobSpec": {"workerPoolSpecs": [{**POOL, "pythonPackageSpec": {"packageUris": [1, "a"]}}]}},
        {"labels": {"a": 1, "b": "2"}, "displayName": None},
    ],
)
def test_answers_of_a_newer_service_are_read_as_far_as_they_are_known(newer: dict[str, Any]) -> None:
    resource = {**custom_job(), "name": NAME, **newer}
    found, _ = create_at(said(resource))
    assert isinstance(found, Created)
    assert found.job.state is State.RUNNING
    with RawServer([said(resource)]).running() as server:
        assert jobs_at(server).read(AIPLATFORM_V1, "CustomJob", NAME) == found.job
    assert all(isinstance(value, str) for value in found.job.labels.values())


@pytest.mark.fault(51)
def test_an_ml_answer_of_a_newer_service_is_read_too() -> None:
    with RawServer([said({**ml_job(), "state": "DREAMING", "trainingInput": 7})]).running() as server:
        job = jobs_at(server, ML_V1).read(ML_V1, "Job", f"projects/{PROJECT}/jobs/census_0011")
    assert (job.state, job.service_state, job.spec) == (State.RUNNING, "DREAMING", {})


def listed(number: int, token: str = "", **more: Any) -> Behaviour:
    job = {**custom_job(**labels()), "name": f"{PARENT}/customJobs/{number}", **more}
    return said({"customJobs": [job], **({"nextPageToken": token} if token else {})})


NONE = said({})
REFUSED = error(400, "INVALID_ARGUMENT", "The page token is invalid.")


@pytest.mark.fault(14, 15)
@pytest.mark.parametrize(
    "pages",
    [
        [listed(1, "a"), REFUSED, listed(1, "b"), listed(2, "c"), listed(3)],
        [listed(1, "a"), listed(2, "a"), listed(1, "b"), listed(2, "c"), listed(3)],
        [
            said({"nextPageToken": "a"}),
            listed(1, "b"),
            listed(2, "c"),
            said({"nextPageToken": "d"}),
            listed(3),
        ],
        [listed(1, "a"), listed(1, "b"), listed(2, "c"), listed(3)],
    ],
    ids=["refused", "repeated", "empty pages", "moved"],
)
@pytest.mark.parametrize(
    "ask", [EngineJobs.runs, lambda jobs: jobs.with_key(AIPLATFORM_V1, "CustomJob", "k1")]
)
def test_a_listing_is_whole_and_has_each_job_once(
    pages: list[Behaviour], ask: Callable[[EngineJobs], Any]
) -> None:
    with RawServer([*pages, NONE]).running() as server:
        assert [job.resource[-1] for job in ask(jobs_at(server))] == ["1", "2", "3"]


@pytest.mark.fault(14)
@pytest.mark.parametrize("breaks", [REFUSED, listed(2, "a")], ids=["refused", "repeated"])
def test_a_listing_that_cannot_be_whole_is_an_error(breaks: Behaviour) -> None:
    with RawServer([*[listed(1, "a"), breaks] * 4, NONE]).running() as server:
        with pytest.raises(ServiceError, match="failed 4 times"):
            jobs_at(server).runs()
        assert len(server.arrived) == 8


@pytest.mark.fault(14, 15)
@pytest.mark.parametrize(
    "first",
    [
        REFUSED,
        said({"customJobs": {"0": {}}}),
        said({"customJobs": [{"displayName": "nameless"}]}),
        said({"customJobs": [7]}),
        said({"nextPageToken": 7}),
        said({"nextPageToken": "\ud800"}),
        said([]),
        answer(200, b"<html>hello</html>"),
        answer(404, b"<html>no</html>"),
        error(500, "INTERNAL"),
        listed(1, "a"),  # and then REFUSED for ever
    ],
)
def test_a_page_that_is_none_is_never_an_empty_listing(first: Behaviour) -> None:
    with RawServer([first, error(503, "UNAVAILABLE")]).running() as server, pytest.raises(ServiceError):
        jobs_at(server).with_key(AIPLATFORM_V1, "CustomJob", "k1")


@pytest.mark.fault(15)
def test_a_service_that_ignores_the_filter_makes_no_job_ours() -> None:
    foreign = listed(1, labels=labels("other-jobs"))
    with RawServer([foreign, NONE]).running() as server:
        assert jobs_at(server).runs() == ()


@pytest.mark.fault(15)
def test_nor_does_one_of_the_older_service() -> None:
    with RawServer([said({"jobs": [ml_job(**labels("other-jobs"))]})]).running() as server:
        assert jobs_at(server, ML_V1).runs() == ()


@pytest.mark.fault(16)
@pytest.mark.parametrize(
    ("kind", "collection"),
    [("CustomJob", "customJobs"), ("HyperparameterTuningJob", "hyperparameterTuningJobs")],
)
def test_a_key_is_looked_for_among_the_jobs_of_its_kind_alone(kind: str, collection: str) -> None:
    with RawServer([said({})]).running() as server:
        assert jobs_at(server).with_key(AIPLATFORM_V1, kind, "k1") == ()
    assert [request.target.split("?")[0] for request in server.arrived] == [f"/v1/{PARENT}/{collection}"]


def test_a_404_that_the_service_did_not_say_is_no_missing_job() -> None:
    page = answer(404, b"<html>no such host</html>")
    with RawServer([page]).running() as server, pytest.raises(ServiceError) as caught:
        jobs_at(server).read(AIPLATFORM_V1, "CustomJob", NAME)
    assert not isinstance(caught.value, NotFoundError)


SECRETS = [
    {"name": "TOKEN", "value": "hunter2-hunter2"},
    {"name": "JSON", "value": 'a "quoted" secret'},
    {"name": "LINES", "value": "-----BEGIN-----\nline of a key\n-----END-----"},
    {"name": "ONE", "value": "1"},
    {"name": "EMPTY", "value": ""},
    {"name": "BLANK", "value": " "},
    {"name": "REFERENCE"},
]
LEAK = (
    """value "hunter2-hunter2", 'a "quoted" secret', "a \\"quoted\\" secret" """
    "or line of a key is bad: 1 of 100 at 1"
)


@pytest.mark.fault(47)
def test_an_error_never_quotes_the_environment_of_the_job() -> None:
    body = custom_job()
    body["jobSpec"]["workerPoolSpecs"] = [{**POOL, "containerSpec": {"imageUri": "i", "env": SECRETS}}]
    for status, word in ((400, "INVALID_ARGUMENT"), (500, "INTERNAL"), (409, "ALREADY_EXISTS")):
        found, _ = create_at(error(status, word, LEAK), body=body)
        assert not isinstance(found, Created)
        assert found.message == 'value "***", \'***\', "***" or *** is bad: *** of 100 at ***'


@pytest.mark.fault(47)
@given(
    value=st.text(min_size=1, max_size=40).filter(str.strip),
    around=st.tuples(st.text(max_size=20), st.text(max_size=20)),
)
def test_no_value_of_some_length_survives(value: str, around: tuple[str, str]) -> None:
    body = {"trialJobSpec": {"workerPoolSpecs": [{"pythonPackageSpec": {"env": [{"value": value}]}}]}}
    told = redacted(f"{around[0]} {value} {around[1]}", body)
    if len(value) >= 8:
        assert value not in told
    assert "***" in told


@pytest.mark.fault(47)
def test_a_value_within_another_leaves_nothing_of_that() -> None:
    values = [{"value": "password"}, {"value": "password-of-mine"}, {"value": "of-mine"}]
    assert redacted("password-of-mine is bad", {"env": values}) == "*** is bad"


def test_what_holds_no_environment_leaves_the_text_alone() -> None:
    assert redacted("env is bad", {"env": "bad", "args": ["bad"]}) == "env is bad"


# --- the engines ------------------------------------------------------------------------------------------


def test_every_kind_has_an_engine() -> None:
    assert {api_version for api_version, _ in KINDS} == {*SPECS} == {*CLIENTS}


def test_engine_of_unknown_api_version_is_refused_with_those_that_exist() -> None:
    connection = Connection(Endpoint(cast("Any", None), dict, "p", "l", {}))
    for find in (engine_spec, partial(engine_client, connection=connection)):
        with pytest.raises(UsageError, match=r"no engine runs batch/v1") as caught:
            find("batch/v1")
        assert caught.value.hint == f"write apiVersion: {AIPLATFORM_V1} or {ML_V1}"


def test_job_of_claim_with_unknown_api_version_cannot_be_read(repository: Repository) -> None:
    """A newer version wrote the claim: the job may exist."""
    config = load_config(repository.root)
    session = Session(
        config, config.environment("local"), Connection(Endpoint(cast("Any", None), dict, "p", "l", {}))
    )
    with pytest.raises(ServiceError, match="no engine runs batch/v1"):
        session.jobs.read("batch/v1", "Batch", "jobs/1")
    assert session.bounds == EMBEDDED_BOUNDS
