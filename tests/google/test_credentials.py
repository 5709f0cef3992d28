"""Credentials of creates: their end is known and never assumed too early, and they are never renewed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import google.auth.credentials
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import example, given
from hypothesis import strategies as st

from reconciler.base.errors import InvalidError, ServiceError
from reconciler.google import credentials as credentials_module
from reconciler.google.credentials import DefaultCredentials, GeneratedTokens, OwnToken
from reconciler.manifests.settings import Config, from_document, load_config
from reconciler.model.manifest import AIPLATFORM_V1
from reconciler.model.ports import Created, Credential, Refused
from reconciler.operations.session import Session, open_session
from tests.support.held_service import HeldService
from tests.support.noted_locks import Meeting
from tests.support.opened import connected, opened
from tests.support.raw_server import Behaviour, RawServer, answer, reset
from tests.support.tls import behind_tls, server_tls
from tests.support.token_server import token_server

SUBMITTER = "submitter@acme-ml.iam.gserviceaccount.com"
MINUTES = timedelta(minutes=1)
BODY = {
    "displayName": "census_1",
    "jobSpec": {
        "workerPoolSpecs": [
            {
                "machineSpec": {"machineType": "n1-standard-4"},
                "replicaCount": "1",
                "containerSpec": {"imageUri": "example.test/image:1"},
            }
        ]
    },
}
GRANT = (
    f"gcloud iam service-accounts add-iam-policy-binding {SUBMITTER} "
    "--role=roles/iam.serviceAccountTokenCreator --member=MEMBER"
)


def minted(*behaviours: Behaviour) -> Credential:
    with RawServer(list(behaviours)).running() as server:
        return GeneratedTokens(connected(server.url), SUBMITTER, 5 * MINUTES).mint()


def said(body: Any, status: int = 200) -> Behaviour:
    return answer(status, json.dumps(body).encode())


def error(status: int, word: str) -> Behaviour:
    return said({"error": {"code": status, "status": word, "message": "it says no"}}, status)


@pytest.mark.fault(8)
def test_a_generated_token_is_good_until_it_ends_and_then_for_nothing(service: HeldService) -> None:
    with opened(service) as session:
        before = service.now()
        first, second = session.credentials.mint(), session.credentials.mint()
        assert first.headers != second.headers
        lifetime = session.bounds.lifetime
        assert lifetime <= first.expires - before <= lifetime + timedelta(seconds=60)
        assert isinstance(session.jobs.create(AIPLATFORM_V1, "CustomJob", BODY, first), Created)
        service.ahead = first.expires - datetime.now(UTC) + timedelta(seconds=1)
        assert isinstance(session.jobs.create(AIPLATFORM_V1, "CustomJob", BODY, first), Refused)
    assert service.names() == {"census_1": 1}


def test_a_token_is_asked_for_as_iam_wants_it() -> None:
    told = said({"accessToken": "t", "expireTime": "2026-11-21T13:06:11.123456789Z"})
    with RawServer([told]).running() as server:
        found = GeneratedTokens(connected(server.url), SUBMITTER, 5 * MINUTES).mint()
    (request,) = server.arrived
    assert request.target.split("?")[0] == f"/v1/projects/-/serviceAccounts/{SUBMITTER}:generateAccessToken"
    assert json.loads(request.body) == {
        "scope": ["https://www.googleapis.com/auth/cloud-platform"],
        "lifetime": "300s",
    }
    assert found.headers == {"Authorization": "Bearer t"}
    assert found.expires == datetime(2026, 11, 21, 13, 6, 11, 123456, tzinfo=UTC)
    assert "Bearer" not in repr(found)


def test_who_may_not_make_tokens_is_told_the_command_that_allows_it() -> None:
    with pytest.raises(ServiceError, match="it says no") as caught:
        minted(error(403, "PERMISSION_DENIED"))
    assert f"`{GRANT}`" in caught.value.hint
    with pytest.raises(ServiceError, match="it says no") as caught:
        minted(error(404, "NOT_FOUND"))
    assert f"`{GRANT}`" in caught.value.hint
    assert '"submitter"' in caught.value.hint


@pytest.mark.parametrize(
    "bad",
    [
        said({}),
        said({"accessToken": "t"}),
        said({"expireTime": "2026-11-21T13:06:11Z"}),
        said({"accessToken": "t", "expireTime": "soon"}),
        said({"accessToken": "t", "expireTime": "2026-11-21T13:06:11"}),
        said({"accessToken": "t", "expireTime": "9999-12-31T23:59:59-23:00"}),
        said({"accessToken": "t", "expireTime": "9999-12-31T23:59:59Z"}),
        said({"accessToken": "t", "expireTime": "0001-01-01T00:00:00+23:00"}),
        said({"accessToken": 7, "expireTime": 7}),
        answer(200, b"<html>hello</html>"),
        error(500, "INTERNAL"),
        error(429, "RESOURCE_EXHAUSTED"),
        answer(403, b"<html>sign in</html>"),
    ],
)
def test_no_token_whose_end_is_not_known(bad: Behaviour) -> None:
    with pytest.raises(ServiceError) as caught:
        minted(bad)
    assert caught.value.hint


def test_no_answer_is_told() -> None:
    with pytest.raises(ServiceError, match="no complete answer"):
        minted(reset)


class World:
    """The true time, this machine's clock, and credentials of google-auth that expire by this clock."""

    def __init__(self, *, off: float = 0, by_issuer: bool = False, lifetime: float = 3600) -> None:
        self.now = datetime(2026, 11, 21, 13, 6, 11, 400_000, tzinfo=UTC)
        self.elapsed = 0.0
        self.off = timedelta(seconds=off)
        self.by_issuer = by_issuer
        self.lifetime = timedelta(seconds=lifetime)
        self.ends = self.now
        self.refreshed = 0
        self.between: Callable[[], None] = lambda: None

    def wall(self) -> datetime:
        return self.now + self.off

    def service(self) -> datetime:
        """Return the time as in a Date header."""
        return self.now.replace(microsecond=0)

    def passes(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)
        self.elapsed += seconds

    @contextmanager
    def fence(self) -> Iterator[tuple[DefaultCredentials, OwnToken]]:
        credentials = DefaultCredentials(self.wall, lambda: self.elapsed)
        found = mock.patch("google.auth.default", return_value=(Found(self), "acme-ml"))
        clock = mock.patch(
            "google.auth._helpers.utcnow", side_effect=lambda: self.wall().replace(tzinfo=None)
        )
        with found, clock:
            yield credentials, OwnToken(credentials, self.service)


class Found(google.auth.credentials.Credentials):
    """Credentials that note a token's end by this machine's clock, or by its issuer's."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def refresh(self, request: object) -> None:
        world = self._world
        world.refreshed += 1
        world.ends = world.now + world.lifetime
        noted = world.ends if world.by_issuer else world.wall() + world.lifetime
        self.token = f"token-{world.refreshed}"
        world.between()
        self.expiry = noted.replace(tzinfo=None)


SECONDS = st.integers(-7200, 7200) | st.integers(-200_000, 200_000)
LONGEST = 12 * 3600


@pytest.mark.fault(32)
@example(off=-600, jump=600, by_issuer=False, age=100, lifetime=3600)
@given(
    off=SECONDS,
    jump=SECONDS,
    by_issuer=st.booleans(),
    age=st.integers(0, 7200),
    lifetime=st.integers(0, 3600) | st.integers(0, LONGEST),
)
def test_the_end_of_ones_own_token_is_never_too_early(
    off: float, jump: float, by_issuer: bool, age: float, lifetime: float
) -> None:
    world = World(off=off, by_issuer=by_issuer, lifetime=lifetime)
    with world.fence() as (credentials, fence):
        credentials.headers()
        world.off += timedelta(seconds=jump)
        world.passes(age)
        found = fence.mint()
    assert found.headers["authorization"] == f"Bearer token-{world.refreshed}"
    assert found.expires >= world.ends
    assert found.expires <= world.now + timedelta(seconds=LONGEST + 1)


@pytest.mark.fault(32)
def test_a_clock_that_is_days_fast_does_not_make_it_days_late() -> None:
    world = World(off=3 * 86400)
    with world.fence() as (_, fence):
        assert fence.mint().expires - world.now <= timedelta(seconds=LONGEST + 1)


@pytest.mark.fault(32)
@pytest.mark.parametrize("off", [0, -3600, -60])
@pytest.mark.parametrize("age", [0, 1800])
def test_a_slow_clock_makes_it_no_later_either(off: float, age: float) -> None:
    world = World(off=off)
    with world.fence() as (credentials, fence):
        credentials.headers()
        world.passes(age)
        assert fence.mint().expires - world.ends <= timedelta(seconds=1)
    assert world.refreshed == 1


def test_a_token_that_is_about_to_end_is_refreshed_first() -> None:
    world = World()
    with world.fence() as (credentials, fence):
        credentials.headers()
        world.passes(3540)
        assert fence.mint().headers == {"authorization": "Bearer token-2"}
    assert world.refreshed == 2


@pytest.mark.fault(32)
@pytest.mark.parametrize("age", [None, 3540], ids=["the first", "a later one"])
def test_no_thread_sees_a_new_token_with_the_end_of_another(
    age: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """google-auth sets the token and its end one after the other."""
    meeting, world = Meeting(), World()
    meeting.notes_locks_of(credentials_module, monkeypatch)
    with world.fence() as (credentials, fence):
        if age is not None:
            credentials.headers()
            world.passes(age)
        world.between = meeting.pause
        found = meeting.hold(credentials.headers, fence.mint)
    headers = {"authorization": f"Bearer token-{1 if age is None else 2}"}
    assert found[0] == headers
    assert found[1].headers == headers
    assert found[1].expires >= world.ends
    assert world.refreshed == (1 if age is None else 2)


def test_a_token_without_an_end_is_no_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    anonymous = google.auth.credentials.AnonymousCredentials()
    monkeypatch.setattr("google.auth.default", lambda scopes, request: (anonymous, None))
    with pytest.raises(ServiceError, match="don't say when") as caught:
        OwnToken(DefaultCredentials(), lambda: datetime.now(UTC)).mint()
    assert '"submitter"' in caught.value.hint


def test_identity_that_the_provider_no_longer_admits_names_the_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Google's words, as reported in terraform-google-modules/terraform-example-foundation, issue 1404."""
    told = {
        "error": "unauthorized_client",
        "error_description": "The given credential is rejected by the attribute condition.",
    }
    (tmp_path / "token").write_text("the-workflow-s-token")
    with RawServer([answer(401, json.dumps(told).encode())], tls=server_tls()).running() as server:
        credentials = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/projects/1/workloadIdentityPools/p/providers/github",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{server.url}/v1/token",
            "credential_source": {"file": str(tmp_path / "token")},
        }
        (tmp_path / "key.json").write_text(json.dumps(credentials))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        with pytest.raises(ServiceError, match="rejected by the attribute condition") as caught:
            DefaultCredentials().headers()
    assert "a rename, a transfer or a new default branch" in caught.value.hint
    assert "`reconciler init --steps google`" in caught.value.hint
    assert "update-oidc" in caught.value.hint
    assert "the-workflow-s-token" not in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("account", "token"),
    [(SUBMITTER, "of-the-pool"), ("other@acme-ml.iam.gserviceaccount.com", "of-the-account")],
)
def test_federated_identity_makes_tokens_itself_for_the_account_that_it_acts_as(
    account: str, token: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchanged = {
        "access_token": "of-the-pool",
        "issued_token_type": "urn:ietf:params:oauth:token-type:access_token",
        "token_type": "Bearer",
        "expires_in": 3600,
    }
    generated = {"accessToken": "of-the-account", "expireTime": "2099-01-01T00:00:00Z"}
    answers = [answer(200, json.dumps(said).encode()) for said in (exchanged, generated, exchanged)]
    (tmp_path / "token").write_text("the-workflow-s-token")
    with RawServer(answers, tls=server_tls()).running() as server:
        credentials = {
            "type": "external_account",
            "audience": "//iam.googleapis.com/locations/global/workforcePools/p/providers/github",
            "subject_token_type": "urn:ietf:params:oauth:token-type:jwt",
            "token_url": f"{server.url}/v1/token",
            "service_account_impersonation_url": (
                f"{server.url}/v1/serviceAccounts/{SUBMITTER}:generateAccessToken"
            ),
            "service_account_impersonation": {"token_lifetime_seconds": 3600},
            "credential_source": {"file": str(tmp_path / "token")},
        }
        (tmp_path / "key.json").write_text(json.dumps(credentials))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        found = DefaultCredentials()
        assert found.headers_for(account)["authorization"] == f"Bearer {token}"
        assert found.headers()["authorization"] == "Bearer of-the-account"


def test_without_credentials_it_is_told_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))
    with pytest.raises(ServiceError) as caught:
        OwnToken(DefaultCredentials(), lambda: datetime.now(UTC)).mint()
    assert "gcloud auth application-default login" in caught.value.hint


@pytest.fixture(scope="module")
def private_key() -> str:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption()).decode()


@pytest.fixture
def cloud(
    service: HeldService, tmp_path: Path, private_key: str, monkeypatch: pytest.MonkeyPatch
) -> Iterator[HeldService]:
    """Yield the held service in Google's place, with real Application Default Credentials for it."""
    (service.home / "gcs" / "acme-staging").mkdir(parents=True)
    with token_server(lambda: service.token) as token_uri, behind_tls(service.url) as url:
        told = {
            "type": "service_account",
            "client_email": "me@acme-ml.iam.gserviceaccount.com",
            "private_key": private_key,
            "private_key_id": "1",
            "project_id": "acme-ml",
            "token_uri": token_uri,
        }
        (tmp_path / "key.json").write_text(json.dumps(told))
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
        monkeypatch.setenv("RECONCILER_TOKEN_HOSTS", urlsplit(url).netloc)
        yield service


def google_config(service: HeldService, **environment: Any) -> Config:
    apis = ("aiplatform", "ml", "storage", "logging", "iamcredentials")
    prod = {
        "engine": "google",
        "project": "acme-ml",
        "location": "us-central1",
        "stagingBucket": "acme-staging",
        "endpoints": dict.fromkeys(apis, f"https://{os.environ['RECONCILER_TOKEN_HOSTS']}"),
        **environment,
    }
    return from_document(service.home.parent, {"source": "acme-jobs", "environments": {"prod": prod}})


@contextmanager
def google_session(service: HeldService, **environment: Any) -> Iterator[Session]:
    config = google_config(service, **environment)
    with open_session(config, config.environment("prod"), os.environ, start=True) as session:
        yield session


def test_on_google_the_submitters_tokens_are_used_where_one_is_named(cloud: HeldService) -> None:
    with google_session(cloud, submitter=SUBMITTER) as session:
        credential = session.credentials.mint()
        assert cloud.token not in credential.headers["Authorization"]
        assert timedelta(0) < credential.expires - cloud.now() <= 5 * MINUTES + timedelta(seconds=1)
        assert isinstance(session.jobs.create(AIPLATFORM_V1, "CustomJob", BODY, credential), Created)


def test_on_google_without_a_submitter_ones_own_token_is_used(cloud: HeldService) -> None:
    with google_session(cloud) as session:
        credential = session.credentials.mint()
        assert credential.headers["authorization"] == f"Bearer {cloud.token}"
        assert 59 * MINUTES < credential.expires - cloud.now() < 61 * MINUTES
        assert isinstance(session.jobs.create(AIPLATFORM_V1, "CustomJob", BODY, credential), Created)


def test_the_submitter_is_a_service_account(tmp_path: Path) -> None:
    file = tmp_path / "reconciler.yaml"
    file.write_text(f"environments: {{local: {{engine: local, submitter: {SUBMITTER}}}}}\n")
    assert load_config(tmp_path).environment(None).submitter == SUBMITTER
    for wrong in ("me@example.test", "submitter", "serviceAccount:" + SUBMITTER, SUBMITTER + "/x", "-"):
        file.write_text(f'environments: {{local: {{engine: local, submitter: "{wrong}"}}}}\n')
        with pytest.raises(InvalidError) as caught:
            load_config(tmp_path)
        assert "service account" in caught.value.problems[0].message
