"""Access to the service, and the permissions of a job's own URL."""

from __future__ import annotations

import http.client
import socket
from typing import Any

import pytest

from reconciler.base.listener.message import Request
from reconciler.training_service.http.auth import Access, job_access
from reconciler.training_service.state.records import JobState
from tests.support.training_service.bodies import ML, VERTEX, job_spec, ml_job
from tests.support.training_service.served import TOKEN, Service, job_with
from tests.support.waiting import PATIENCE

PATHS = ("/_service/health", ML, f"{VERTEX}/customJobs", "/storage/v1/b?project=p", "/nowhere")


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
def test_every_path_needs_the_token(service: Service, path: str) -> None:
    for token in ("", "wrong", TOKEN[:-1], TOKEN + "x", "\u00e9"):
        answer = service.call("GET", path, token=token)
        assert (answer.status, answer.json["error"]["status"]) == (401, "UNAUTHENTICATED")
    basic = service.call("GET", path, headers={"Authorization": f"Basic {TOKEN}"}, token="")
    assert basic.status == 401


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "10.0.0.1:80", "", "localhost:80, x", "[::2]"]
)
def test_only_loopbacks_names_are_hosts(service: Service, host: str) -> None:
    assert service.call("GET", ML, headers={"Host": host}).status in (400, 403)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:1234", "LOCALHOST", "[::1]:80"])
def test_loopbacks_names_are_hosts(service: Service, host: str) -> None:
    assert service.call("GET", ML, headers={"Host": host}).status == 200


def test_web_pages_are_refused_though_they_know_the_token(service: Service) -> None:
    for origin in ("http://localhost", "null", ""):
        assert service.call("GET", ML, headers={"Origin": origin}).status == 403
        assert service.call("OPTIONS", ML, headers={"Origin": origin}).status == 403


def test_the_server_listens_on_loopback_only(service: Service) -> None:
    port = int(service.url.rsplit(":", 1)[1])
    assert service.url.startswith("http://127.0.0.1:")
    with socket.socket() as other:
        other.settimeout(2)
        assert other.connect_ex(("127.0.0.2", port)) != 0


def test_a_jobs_url_reaches_its_buckets_and_nothing_else(service: Service) -> None:
    for name in ("staging", "out", "foreign"):
        service.post("/storage/v1/b?project=p", {"name": name})
    _, url = job_with(service, jobSpec=job_spec(baseOutputDirectory={"outputUriPrefix": "gs://out/x"}))

    def call(method: str, path: str, body: Any = None) -> int:
        return service.call(method, url + path, body, token="").status

    assert call("POST", "/upload/storage/v1/b/out/o?uploadType=media&name=a", b"x") == 200
    assert call("GET", "/storage/v1/b/out/o/a?alt=media") == call("GET", "/out/a") == 200
    assert call("GET", "/storage/v1/b/staging/o") == 200
    listed = service.call("GET", url + "/storage/v1/b?project=p", token="").json
    assert [each["name"] for each in listed["items"]] == ["out", "staging"]
    for path in ("/storage/v1/b/foreign", "/storage/v1/b/foreign/o", "/storage/v1/b/foreign/o/a"):
        assert call("GET", path) == 403
    assert call("POST", "/upload/storage/v1/b/foreign/o?uploadType=media&name=a", b"x") == 403
    assert call("POST", "/storage/v1/b/out/o/a/rewriteTo/b/foreign/o/a", {}) == 403
    assert call("POST", "/storage/v1/b/foreign/o/a/rewriteTo/b/out/o/a", {}) == 403
    assert call("POST", "/storage/v1/b?project=p", {"name": "new-one"}) == 403
    for path in (
        ML,
        f"{VERTEX}/customJobs",
        "/_service/health",
        "/v2/entries:list",
        "/",
    ):
        assert call("GET", path) == 404
    for path in ("/jobs/x/storage/v1/b", "/foreign/a"):  # objects in the form of the XML API
        assert call("GET", path) == 403
    assert call("POST", "/_service/stop") == 404
    assert service.stopped == []


def test_a_jobs_url_never_reaches_claims(service: Service) -> None:
    for name in ("staging", "claims"):
        service.post("/storage/v1/b?project=p", {"name": name})
    for bucket, name in (("staging", "claims/a"), ("staging", "claims-of-mine"), ("claims", "a")):
        service.call("POST", f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}", b"x")
    _, url = job_with(
        service, labels={}, jobSpec=job_spec(baseOutputDirectory={"outputUriPrefix": "gs://claims/x"})
    )
    assert service.call("PUT", "/_service/claims", {"reserved": ["claims", "staging/claims/"]}).status == 200

    def call(method: str, path: str, body: Any = None) -> int:
        return service.call(method, url + path, body, token="").status

    for path in ("/storage/v1/b/claims", "/storage/v1/b/claims/o", "/storage/v1/b/staging/o/claims%2Fa"):
        assert call("GET", path) == 403
    assert call("DELETE", "/storage/v1/b/staging/o/claims%2Fa") == 403
    assert call("POST", "/upload/storage/v1/b/staging/o?uploadType=media&name=claims/b", b"x") == 403
    assert call("POST", "/upload/storage/v1/b/staging/o?uploadType=resumable", {"name": "claims/b"}) == 403
    assert call("PATCH", "/storage/v1/b/staging/o/claims%2Fa", {}) == 403
    listed = service.call("GET", url + "/storage/v1/b/staging/o", token="").json
    assert [item["name"] for item in listed["items"]] == ["claims-of-mine"]
    folded = service.call("GET", url + "/storage/v1/b/staging/o?delimiter=/", token="").json
    assert "prefixes" not in folded
    below = service.call("GET", url + "/storage/v1/b/staging/o?prefix=claims/", token="").json
    assert below == {"kind": "storage#objects"}
    for path in (
        "/storage/v1/b/staging/o/claims%2Fa?alt=media",
        "/download/storage/v1/b/staging/o/claims%2Fa",
    ):
        assert call("GET", path) == 403
    hidden, seen = "/storage/v1/b/staging/o/claims%2Fa", "/storage/v1/b/staging/o/claims-of-mine"
    for way in ("copyTo/b/staging/o", "rewriteTo/b/staging/o", "moveTo/o"):
        assert call("POST", f"{hidden}/{way}/mine", {}) == 403
        assert call("POST", f"{seen}/{way}/claims%2Fb", {}) == 403
    about = b'--b\r\n\r\n{"name": "claims/b"}\r\n--b\r\n\r\nx\r\n--b--'
    kind = {"Content-Type": "multipart/related; boundary=b"}
    upload = "/upload/storage/v1/b/staging/o?uploadType=multipart"
    assert service.call("POST", url + upload, about, kind, token="").status == 403
    names = [item["name"] for item in service.get("/storage/v1/b/staging/o").json["items"]]
    assert names == ["claims-of-mine", "claims/a"]


def test_an_upload_that_was_begun_before_its_name_was_reserved_ends_there(service: Service) -> None:
    service.post("/storage/v1/b?project=p", {"name": "staging"})
    _, url = job_with(service)
    begin = url + "/upload/storage/v1/b/staging/o?uploadType=resumable"
    begun = service.call("POST", begin, {"name": "claims/b"}, token="")
    service.call("PUT", "/_service/claims", {"reserved": ["staging/claims/"]})
    session = begun.headers["location"].removeprefix(service.url)
    assert service.call("PUT", session, b"x", token="").status == 403
    assert "items" not in service.get("/storage/v1/b/staging/o").json


def test_a_jobs_url_ends_with_the_job(service: Service) -> None:
    job, url = job_with(service)
    service.post("/storage/v1/b?project=p", {"name": "staging"})
    assert service.call("GET", url + "/storage/v1/b/staging", token="").status == 200
    service.store.move(job.id, JobState.SUCCEEDED, only_from=set(JobState), at=service.store.now())
    for path in (url, "/jobs/guessed"):
        answer = service.call("GET", path + "/storage/v1/b/staging", token="")
        assert (answer.status, answer.json["error"]["errors"][0]["reason"]) == (401, "authError")


def test_a_jobs_url_is_for_no_web_page_either(service: Service) -> None:
    _, url = job_with(service)
    service.post("/storage/v1/b?project=p", {"name": "staging"})
    for headers in ({"Origin": "http://x"}, {"Host": "evil.example"}):
        assert service.call("GET", url + "/storage/v1/b/staging", headers=headers, token="").status == 403


def test_an_upload_that_a_job_began_is_bound_to_its_bucket(service: Service) -> None:
    _, url = job_with(service)
    service.post("/storage/v1/b?project=p", {"name": "staging"})
    begun = service.call(
        "POST", url + "/upload/storage/v1/b/staging/o?uploadType=resumable", {"name": "a"}, token=""
    )
    session = begun.headers["location"]
    assert session.startswith(service.url + url)
    done = service.call("PUT", session.removeprefix(service.url), b"data", token="")
    assert done.json["selfLink"].startswith(service.url + url)


def test_buckets_are_found_wherever_a_resource_names_them() -> None:
    body = ml_job() | {
        "x": ["--out=gs://one-1/a", {"b": "/gcs/two_2/b c gs://three.3"}, "--bucket=five", "six", "gs://No"]
    }
    found = job_access(body, []).buckets
    assert found
    assert found >= {"staging", "one-1", "two_2", "three.3", "five", "six"}
    assert not found & {"No", "o", "one", "three", "seven"}
    access = Access(frozenset({"a"}), ("a/claims/", "b"))
    assert [access.object(*each) for each in (("a", "claims2"), ("a", "claims/x"), ("b", "x"))] == [
        True,
        False,
        False,
    ]
    assert not access.bucket("b")


def test_the_services_own_paths(service: Service) -> None:
    assert service.get("/_service/health").json.keys() == {"version", "pid"}
    assert service.get("/_service/nothing").status == 404
    assert service.call("GET", "/_service/stop").status == 404
    for bad in ([], {"image": "3.11"}, {"image": {"colour": "red"}}, {"image": {"requirements": "numpy"}}):
        assert service.call("PUT", "/_service/images", bad).status == 400
    assert service.call("PUT", "/_service/claims", {"reserved": "x"}).status == 400
    assert service.post("/_service/stop").json == {}
    assert service.stopped == [None]


def test_a_message_has_a_limit(service: Service) -> None:
    body = b'{"displayName": "' + b"x" * (11 * 1024 * 1024) + b'"}'
    answer = service.call("POST", f"{VERTEX}/customJobs", body)
    assert answer.error == "INVALID_ARGUMENT: Request payload size exceeds the limit: 10485760 bytes."


def test_requests_follow_each_other_on_one_connection(service: Service) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", int(service.url.rsplit(":", 1)[1]), timeout=PATIENCE)
    connection.connect()
    first = connection.sock
    for _ in range(3):
        connection.request("GET", ML, headers={"Authorization": f"Bearer {TOKEN}"})
        assert connection.getresponse().read() == b"{}\n"
    assert connection.sock is first
    connection.close()


def test_a_target_is_read_whatever_its_form() -> None:
    for target in ("/a%2Fb?$alt=json&x=", "http://127.0.0.1:80/a%2Fb?$alt=json&x="):
        request = Request.of("get", target)
        assert (request.method, request.path, request.query) == (
            "GET",
            "/a%2Fb",
            (("alt", "json"), ("x", "")),
        )
    assert Request.of("GET", "//host/path").path == "//host/path"
