"""Expiring tokens: their lifetime, their holders, and their permissions."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import google.auth.transport.urllib3
import googleapiclient.discovery
import pytest
import urllib3
from google.auth import impersonated_credentials
from google.auth.exceptions import RefreshError
from google.oauth2.credentials import Credentials
from googleapiclient.errors import HttpError
from hypothesis import given
from hypothesis import strategies as st

from reconciler.base.http import HttpRequest
from reconciler.training_service import address
from reconciler.training_service.address import Address
from reconciler.training_service.client import ROOT, EmbeddedService, client_settings
from reconciler.training_service.http.auth import Tokens
from reconciler.training_service.state import database
from reconciler.training_service.state.database import Store
from tests.support.training_service import contract, trainers
from tests.support.training_service.bodies import ML, VERTEX, custom_job, ml_job
from tests.support.training_service.served import TOKEN, Answer, Service, serving
from tests.support.training_service.tokens import ACCOUNT, MINT, SCOPE, mint
from tests.support.waiting import PATIENCE

CREATES = ((ML, ml_job()), (f"{VERTEX}/customJobs", custom_job()))


def call(service: Service, token: str, method: str = "GET", path: str = ML, body: Any = None) -> Answer:
    return service.call(method, path, body, token=token)


def test_a_token_says_when_it_expires(service: Service) -> None:
    answer = service.post(MINT, {"scope": [SCOPE], "lifetime": "300s"})
    assert answer.json["expireTime"] == "2026-01-02T03:09:05Z"
    assert service.post(MINT, {"scope": [SCOPE]}).json["expireTime"] == "2026-01-02T04:04:05Z"


def test_a_token_is_good_until_it_expires_and_never_again(service: Service) -> None:
    token = mint(service, "10s")
    assert call(service, token, "POST", ML, ml_job()).status == 200
    assert call(service, token, "POST", "/storage/v1/b?project=p", {"name": "bucket"}).status == 200
    service.clock.advance(9.999)
    assert call(service, token).status == 200
    for later in (0.001, 1, 10**9):
        service.clock.advance(later)
        refused = call(service, token)
        told = "UNAUTHENTICATED: The request's bearer token expired at 2026-01-02T03:04:15Z."
        assert (refused.status, refused.error) == (401, told)
    stored = call(service, token, path="/storage/v1/b/bucket")
    assert (stored.status, stored.json["error"]["errors"][0]["reason"]) == (401, "authError")


@pytest.mark.fault(8)
@pytest.mark.parametrize(("path", "body"), CREATES)
def test_an_expired_token_creates_nothing(service: Service, path: str, body: dict[str, Any]) -> None:
    token = mint(service)
    service.clock.advance(10)
    refused = call(service, token, "POST", path, body)
    assert (refused.status, refused.json["error"]["status"]) == (401, "UNAUTHENTICATED")
    assert (service.store.unfinished(), service.woken) == ([], [])


def sent_in_halves(service: Service, token: str, path: str, body: bytes, pause: float) -> bytes:
    """Return the answer to a request whose second half leaves `pause` seconds of the service's time later."""
    half = len(body) // 2
    head = (
        f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    )
    with socket.create_connection(
        ("127.0.0.1", int(service.url.rsplit(":", 1)[1])), timeout=PATIENCE
    ) as opened:
        opened.sendall(head.encode())
        assert opened.recv(100).startswith(b"HTTP/1.1 100")  # the head has arrived, and was read
        opened.sendall(body[:half])
        service.clock.advance(pause)
        opened.sendall(body[half:])
        return b"".join(iter(lambda: opened.recv(65536), b""))


@pytest.mark.fault(8)
@pytest.mark.parametrize(("path", "body"), CREATES)
def test_a_token_that_expires_while_the_request_arrives_creates_nothing(
    service: Service, path: str, body: dict[str, Any]
) -> None:
    answer = sent_in_halves(service, mint(service), path, json.dumps(body).encode(), 10)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"token expired at" in answer
    assert service.store.unfinished() == []
    in_time = sent_in_halves(service, mint(service), path, json.dumps(body).encode(), 9)
    assert in_time.startswith(b"HTTP/1.1 200 ")
    assert len(service.store.unfinished()) == 1


@pytest.mark.fault(8)
@pytest.mark.parametrize(("path", "body"), CREATES)
def test_a_token_that_expires_while_the_database_is_busy_creates_nothing(
    service: Service, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    token = mint(service)
    begin = service.store.database.writing

    @contextmanager
    def begun_late() -> Iterator[sqlite3.Connection]:
        with begin() as connection:
            service.clock.advance(10)
            yield connection

    monkeypatch.setattr(service.store.database, "writing", begun_late)
    refused = call(service, token, "POST", path, body)
    assert (refused.status, "token expired at" in refused.error) == (401, True)
    assert (service.store.unfinished(), service.woken) == ([], [])
    assert service.call("POST", path, body).status == 200  # the service's own token doesn't expire


@pytest.mark.parametrize(
    ("lifetime", "told"),
    [
        ("0s", "at least one second"),
        ("0.999s", "at least one second"),
        ("-5s", "at least one second"),
        ("3600.000001s", "more than 1 hour"),
        ("43200s", "more than 1 hour"),
        ("300", "Invalid value at 'lifetime'"),
        ("", "Invalid value at 'lifetime'"),
        ("nans", "Invalid value at 'lifetime'"),
        ("infs", "Invalid value at 'lifetime'"),
        ("1e3s", "Invalid value at 'lifetime'"),
        (300, "Invalid value at 'lifetime'"),
    ],
)
def test_a_lifetime_is_a_second_to_an_hour(service: Service, lifetime: Any, told: str) -> None:
    refused = service.post(MINT, {"scope": [SCOPE], "lifetime": lifetime})
    assert (refused.status, refused.json["error"]["status"]) == (400, "INVALID_ARGUMENT")
    assert told in refused.error
    for allowed in ("1s", "1.5s", "3600s"):
        assert service.post(MINT, {"scope": [SCOPE], "lifetime": allowed}).status == 200


def test_what_is_asked_for_is_checked_as_google_does(service: Service) -> None:
    wrong: list[tuple[str, Any]] = [
        (MINT, {}),
        (MINT, {"scope": []}),
        (MINT, {"scope": SCOPE}),
        (MINT, {"scope": [SCOPE], "delegates": [ACCOUNT]}),
        (MINT.replace("projects/-/", "projects/demo/"), {"scope": [SCOPE]}),
        (MINT.replace(ACCOUNT, "trainer"), {"scope": [SCOPE]}),
    ]
    for path, body in wrong:
        assert service.post(path, body).json["error"]["status"] == "INVALID_ARGUMENT", (path, body)
    delegated = {"scope": [SCOPE], "delegates": [f"projects/-/serviceAccounts/{ACCOUNT}"]}
    assert service.post(MINT, delegated).status == 200
    assert service.post(MINT.replace(ACCOUNT, "1234567890"), {"scope": [SCOPE]}).status == 200
    assert service.post(MINT.replace("@", "%40"), {"scope": [SCOPE]}).status == 200


def test_an_expiring_token_is_not_for_the_services_own_paths(service: Service) -> None:
    token = mint(service)
    for method, path in (
        ("GET", "/_service/health"),
        ("POST", "/_service/stop"),
        ("PUT", "/_service/claims"),
        ("PUT", "/_service/images"),
        ("GET", "/_service/nothing"),
    ):
        assert call(service, token, method, path, {"reserved": []}).status == 403
    assert service.stopped == []
    assert service.store.setting("claims_buckets") is None


def test_only_the_services_own_token_makes_others(service: Service) -> None:
    refused = call(service, mint(service), "POST", MINT, {"scope": [SCOPE]})
    assert (refused.status, refused.json["error"]["status"]) == (403, "PERMISSION_DENIED")
    service.post(f"{VERTEX}/customJobs", custom_job())
    (job,) = service.store.unfinished()
    assert service.call("POST", f"/jobs/{job.gcs_secret}{MINT}", {"scope": [SCOPE]}, token="").status == 404
    assert service.call("POST", f"/jobs/{job.gcs_secret}{MINT}", {"scope": [SCOPE]}).status == 404
    assert service.call("POST", MINT, {"scope": [SCOPE]}, token="").status == 401


def test_an_expiring_token_is_for_no_web_page(service: Service) -> None:
    for headers in ({"Origin": "http://x"}, {"Host": "evil.example"}):
        assert service.call("GET", ML, headers=headers, token=mint(service)).status == 403


def test_a_token_cannot_be_made_up(service: Service) -> None:
    assert call(service, "9999999999.a.b").status == 401  # before the first token, when there is no secret
    token = mint(service)
    expiry, random, signature = token.split(".")
    other = mint(service).split(".")[2]
    for forged in (
        f"{int(expiry) + 1}.{random}.{signature}",
        f"{expiry}0.{random}.{signature}",
        f"{expiry}.{random}x.{signature}",
        f"{expiry}.{random}.{other}",
        f"{expiry}.{random}.{signature[:-1]}",
        f"{expiry}.{random}.{signature.upper()}x",
        f"{expiry}.{random}.",
        f"{expiry}.{random}",
        f".{token}",
        f"{token}.",
        "..",
        ".",
        "é.é.é",
    ):
        refused = call(service, forged)
        told = "UNAUTHENTICATED: The request needs the bearer token of service.json."
        assert (refused.status, refused.error) == (401, told)
    assert call(service, token).status == 200
    assert service.call("GET", ML, headers={"Authorization": f"Basic {token}"}, token="").status == 401


def test_tokens_outlive_the_service_but_are_of_one_home_only(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as first:
        token = mint(first)
    with serving(tmp_path / "home") as again, serving(tmp_path / "other") as other:
        mint(other)
        assert call(again, token).status == 200
        assert call(other, token).status == 401
        assert call(again, mint(other)).status == 401
        again.clock.advance(10)
        assert "token expired at" in call(again, token).error


def test_the_secret_never_leaves(service: Service) -> None:
    answer = service.post(MINT, {"scope": [SCOPE]})
    secret = service.store.setting("token_secret")
    assert len(secret) > 40
    assert secret not in answer.content.decode() + str(answer.headers)


def test_tokens_that_are_made_at_once_are_all_good(service: Service) -> None:
    tokens: list[str] = []
    start = threading.Barrier(8)

    def make() -> None:
        start.wait()
        tokens.append(mint(service))

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(tokens)) == 8
    assert {call(service, token).status for token in tokens} == {200}


def in_memory(clock: Any) -> Store:
    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        database.prepare(connection)
        return connection

    return Store(database.Database(connect), clock)


@given(
    begin=st.datetimes(datetime(2020, 1, 1), datetime(2200, 1, 1)),
    lifetime=st.timedeltas(timedelta(seconds=1), timedelta(hours=1)),
)
def test_a_token_lasts_as_long_as_was_asked_and_less_than_a_second_longer(
    begin: datetime, lifetime: timedelta
) -> None:
    tokens = Tokens(in_memory(lambda: begin.replace(tzinfo=UTC)))
    token, ends = tokens.mint(lifetime)
    assert timedelta(0) <= ends - begin.replace(tzinfo=UTC) - lifetime < timedelta(seconds=1)
    assert (ends.microsecond, tokens.expiry(token)) == (0, ends)


def test_google_auth_impersonates_with_it(service: Service) -> None:
    def credentials(source: str, lifetime: int = 300) -> Any:
        return impersonated_credentials.Credentials(
            source_credentials=Credentials(token=source),
            target_principal=ACCOUNT,
            target_scopes=[SCOPE],
            lifetime=lifetime,
            iam_endpoint_override=service.url + MINT,
        )

    made = credentials(TOKEN)
    request = google.auth.transport.urllib3.Request(urllib3.PoolManager())
    made.refresh(request)
    headers: dict[str, str] = {}
    made.apply(headers)
    assert made.expiry == datetime(2026, 1, 2, 3, 9, 5)
    job = ml_job()
    assert service.call("POST", ML, job, {"Authorization": headers["authorization"]}, token="").status == 200
    with pytest.raises(RefreshError, match="more than 1 hour"):
        credentials(TOKEN, 4000).refresh(request)
    with pytest.raises(RefreshError, match="PERMISSION_DENIED"):
        credentials(made.token).refresh(request)
    with pytest.raises(RefreshError, match="UNAUTHENTICATED"):
        credentials("wrong").refresh(request)


def test_google_api_python_client_has_tokens_made(service: Service) -> None:
    document = {**contract.document("iamcredentials.v1"), "rootUrl": service.url + "/"}
    accounts = googleapiclient.discovery.build_from_document(document, credentials=Credentials(token=TOKEN))
    accounts = accounts.projects().serviceAccounts()
    name = f"projects/-/serviceAccounts/{ACCOUNT}"
    body = {"scope": [SCOPE], "lifetime": "60s"}
    answer = accounts.generateAccessToken(name=name, body=body).execute()
    assert call(service, answer["accessToken"]).status == 200
    with pytest.raises(HttpError, match="Required field scope"):
        accounts.generateAccessToken(name=name, body={}).execute()
    with pytest.raises(HttpError) as refused:
        accounts.signBlob(name=name, body={"payload": "eA=="}).execute()
    assert refused.value.status_code == 501


@pytest.mark.parametrize("name", ["Authorization", "authorization"])
def test_a_request_is_sent_with_the_credential_that_it_brings(service: Service, name: str) -> None:
    address.write_address(service.home, Address(os.getpid(), service.url, TOKEN, ""))
    token = mint(service)
    with EmbeddedService(service.home, start=False) as found:
        request = HttpRequest("GET", f"{ROOT}{ML[1:]}", {name: f"Bearer {token}"})
        assert found.send(request).status == 200
        service.clock.advance(10)
        assert found.send(request).status == 401
        assert found.send(HttpRequest("GET", f"{ROOT}{ML[1:]}")).status == 200


def test_a_home_of_an_older_version_makes_tokens_too(tmp_path: Path) -> None:
    with serving(tmp_path / "home") as service:
        service.post(ML, ml_job())
    old = tmp_path / "home" / "state.db"
    connection = sqlite3.connect(old)
    connection.executescript("DROP TABLE announced; PRAGMA user_version = 1;")
    connection.close()
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    with serving(tmp_path / "copy") as again:
        assert call(again, mint(again)).json["jobs"][0]["jobId"] == "census_1"
        again.post("/storage/v1/b?project=p", {"name": "bucket"})
        upload = "/upload/storage/v1/b/bucket/o?uploadType=media&name=a"
        assert again.call("POST", upload, b"x").status == 200


def refresh(service: Service, address: str, **form: str) -> Any:
    body = urlencode({"grant_type": "refresh_token", **form}).encode()
    return service.call("POST", address, body, {"Content-Type": FORM}, token="")


FORM = "application/x-www-form-urlencoded"


def test_the_token_address_gives_the_token_for_the_refresh_token_alone(service: Service) -> None:
    found = client_settings(service.url, TOKEN, "local").credentials
    path = found["token_uri"].removeprefix(service.url)
    answer = refresh(service, path, refresh_token=found["refresh_token"])
    assert (answer.status, answer.json["access_token"], answer.json["expires_in"]) == (200, TOKEN, 3600)
    for wrong in (TOKEN, "", "none"):
        answer = refresh(service, path, refresh_token=wrong)
        assert (answer.status, answer.json) == (400, {"error": "invalid_grant"})
    body = f"refresh_token={found['refresh_token']}".encode()
    assert service.call("POST", path, body, {"Content-Type": FORM}, token="").status == 400
    assert service.call("GET", path, token="").status == 404


def test_the_token_address_is_nobody_else_s_and_no_job_s(service: Service) -> None:
    found = client_settings(service.url, TOKEN, "local").credentials
    job = service.store.add_job(trainers.custom_job())
    for path in ("/token", "/jobs/guessed/token", f"/jobs/{job.gcs_secret}/token"):
        assert refresh(service, path, refresh_token=found["refresh_token"]).status in (401, 404)
