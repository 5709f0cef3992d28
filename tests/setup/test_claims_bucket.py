"""`reconciler init --claims`: a bucket that preserves claims, and the remaining steps for a person."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.errors import ServiceError
from reconciler.manifests.settings import from_document
from reconciler.model.job import KEY, SOURCE
from reconciler.model.manifest import AIPLATFORM_V1
from reconciler.operations.session import Session
from reconciler.setup.claims_bucket import Prepared, prepare_claims
from tests.support.held_service import HeldService
from tests.support.opened import LOCATION, PROJECT, connected, opened
from tests.support.raw_server import Behaviour, RawServer, answer
from tests.support.repository import Repository

SUBMITTER = "submitter@acme-ml.iam.gserviceaccount.com"
DATE = "Sat, 21 Nov 2026 13:06:11 GMT"
SAFE = {
    "name": "acme-claims",
    "location": "US-CENTRAL1",
    "iamConfiguration": {"uniformBucketLevelAccess": {"enabled": True}, "publicAccessPrevention": "enforced"},
    "versioning": {"enabled": True},
}


@pytest.fixture
def service(tmp_path: Path) -> Iterator[HeldService]:
    with HeldService(tmp_path / "home").running() as running:
        yield running


def said(body: Any, status: int = 200) -> Behaviour:
    return answer(status, json.dumps(body).encode(), date=DATE)


def error(status: int, message: str = "it says no") -> Behaviour:
    return said({"error": {"code": status, "message": message}}, status)


NOT_FOUND = error(404, "The specified bucket does not exist.")
NO_RUNS = [said({})] * 3  # a listing of each kind
WRITTEN = said({"generation": "1"})


@contextmanager
def google(*behaviours: Behaviour, **environment: Any) -> Iterator[tuple[Session, RawServer]]:
    """Yield a session with a fake Google Cloud with scripted answers."""
    prod = {
        "engine": "google",
        "project": PROJECT,
        "location": LOCATION,
        "stagingBucket": "acme-staging",
        "claimsBucket": "acme-claims",
        **environment,
    }
    config = from_document(Path("/repository"), {"source": "acme-jobs", "environments": {"prod": prod}})
    with RawServer(list(behaviours)).running() as server:
        yield Session(config, config.environment("prod"), connected(server.url)), server


def prepared(*behaviours: Behaviour, **environment: Any) -> Prepared:
    with google(*behaviours, **environment) as (session, _):
        return prepare_claims(session)


def test_on_the_embedded_service_there_is_nothing_left_to_do(service: HeldService) -> None:
    with opened(service, claimsBucket="own-claims") as session:
        first, again = prepare_claims(session), prepare_claims(session)
        session.claims.check(7)
    assert first == again
    assert (first.bucket, first.folder) == ("own-claims", "reconciler/claims/acme-jobs/")
    assert (first.runs, first.warnings, first.steps) == (0, (), ())


def test_runs_that_are_there_already_are_counted(service: HeldService) -> None:
    pool = {
        "machineSpec": {"machineType": "n1-standard-4"},
        "replicaCount": "1",
        "containerSpec": {"imageUri": "i"},
    }
    labels = {SOURCE: "acme-jobs", KEY: "k"}
    body = {"displayName": "census_1", "labels": labels, "jobSpec": {"workerPoolSpecs": [pool]}}
    with opened(service) as session:
        session.jobs.create(AIPLATFORM_V1, "CustomJob", body, session.credentials.mint())
        assert prepare_claims(session).runs == 1


def test_the_embedded_service_keeps_jobs_away_from_claims(service: HeldService) -> None:
    with opened(service, claimsBucket="own-claims"):
        pass
    assert service.store.setting("claims_buckets") == ["own-claims/reconciler/claims/"]
    assert (service.home / "gcs" / "own-claims").is_dir()


def test_a_bucket_is_made_in_which_claims_last() -> None:
    with google(NOT_FOUND, *NO_RUNS, said(SAFE), WRITTEN) as (session, server):
        found = prepare_claims(session)
    assert (found.made, found.location, found.warnings) == (True, "US-CENTRAL1", ())
    insert, genesis = (request for request in server.arrived if request.method == "POST")
    assert insert.target.split("?")[0] == "/storage/v1/b"
    assert f"project={PROJECT}" in insert.target
    body = json.loads(insert.body)
    assert body == {**SAFE, "location": LOCATION}
    assert "/b/acme-claims/o?" in genesis.target
    assert "ifGenerationMatch=0" in genesis.target


def test_a_bucket_that_is_there_is_left_as_it_is() -> None:
    with google(said(SAFE), *NO_RUNS, error(412), said(genesis("acme-jobs"))) as (session, server):
        found = prepare_claims(session)
    assert not found.made
    assert [request.target.split("?")[0] for request in server.arrived if request.method == "POST"] == [
        "/upload/storage/v1/b/acme-claims/o"
    ]


def genesis(source: str) -> dict[str, Any]:
    """Return the listing of the genesis object."""
    found = {
        "name": "reconciler/claims/acme-jobs/genesis",
        "generation": "1",
        "metadata": {"genesis": json.dumps({"formatVersion": 1, "source": source})},
    }
    return {"kind": "storage#objects", "items": [found]}


def test_the_claims_of_another_repository_are_not_taken_over() -> None:
    with pytest.raises(ServiceError, match="another repository"):
        prepared(said(SAFE), *NO_RUNS, error(412), said(genesis("other")))


def rule(kind: str = "Delete", **condition: Any) -> dict[str, Any]:
    return {"action": {"type": kind}, "condition": condition}


@pytest.mark.fault(11)
@pytest.mark.parametrize(
    "rules",
    [
        [rule(age=30)],
        [rule("SetStorageClass"), rule(age=30, isLive=True)],
        [rule(matchesPrefix=["reconciler/"])],
        [rule(matchesPrefix=["logs/", "reconciler/claims/acme-jobs/"])],
        [rule(matchesSuffix=["1"])],
        [{"action": {"type": "Delete"}}],
        [rule(matchesPrefix=5)],
        [rule(matchesPrefix=[5])],
        [rule(matchesPrefix=[])],
        [rule(age=30, numNewerVersions=0)],
        [rule(age=30, numNewerVersions="3", daysSinceNoncurrentTime=None, noncurrentTimeBefore="")],
        [rule(age=30, daysSinceCustomTime=None, customTimeBefore="")],
        [rule(matchesPrefix=["reconciler/claims/acme-jobs/_commits/"])],
        [rule(matchesSuffix=[".log", "genesis"])],
        [rule(matchesSuffix=[".log", 5])],
        [rule(matchesPrefix=["reconciler/"], matchesSuffix=["acme.x/us-central1"])],
    ],
)
def test_a_bucket_that_deletes_claims_by_and_by_is_refused(rules: list[dict[str, Any]]) -> None:
    with google(said({**SAFE, "lifecycle": {"rule": rules}})) as (session, server):
        with pytest.raises(ServiceError, match="lifecycle rule") as caught:
            prepare_claims(session)
        assert len(server.arrived) == 1
    # The user's rules are somebody's: they are cleared last.
    exception, clear = (
        "--lifecycle-file=FILE`",
        "`gcloud storage buckets update gs://acme-claims --clear-lifecycle`",
    )
    assert caught.value.hint.index(exception) < caught.value.hint.index("another bucket")
    assert caught.value.hint.index("another bucket") < caught.value.hint.index(clear)
    assert 'except "reconciler/claims/acme-jobs/" from the rule' in caught.value.hint


@pytest.mark.parametrize(
    "rules",
    [
        [],
        [rule("SetStorageClass", age=30), rule("AbortIncompleteMultipartUpload", age=1)],
        [rule(isLive=False)],
        [rule(numNewerVersions=3)],
        [rule(daysSinceNoncurrentTime=30)],
        [rule(noncurrentTimeBefore="2026-01-01")],
        [rule(daysSinceNoncurrentTime=0)],
        [rule(age=30, matchesPrefix=["reconciler/packages/", "logs/"])],
        [rule(age=30, matchesPrefix=["reconciler/claims/other-jobs/"])],
        [rule(age=30, matchesSuffix=[".log", "/tmp.gz"])],
        [rule(age=30, matchesPrefix=["reconciler/claims/"], matchesSuffix=[".tmp"])],
        [rule(daysSinceCustomTime=30)],
        [rule(customTimeBefore="2026-01-01")],
    ],
)
def test_rules_that_leave_claims_alone_are_none_of_ours(rules: list[dict[str, Any]]) -> None:
    assert prepared(said({**SAFE, "lifecycle": {"rule": rules}}), *NO_RUNS, WRITTEN).runs == 0


@pytest.mark.slow
@pytest.mark.fault(10)
@pytest.mark.parametrize(
    ("behaviours", "hint"),
    [
        ([error(403)], "roles/storage.admin"),
        ([error(401)], "gcloud auth application-default login"),
        ([error(500)], "try again"),
        ([answer(200, b"<html>hello</html>")], "proxy"),
        ([answer(404, b"<html>no such host</html>")], "proxy"),
        ([NOT_FOUND, error(403)], ""),
        ([NOT_FOUND, *NO_RUNS, error(404, "project")], 'correct "project"'),
        ([NOT_FOUND, *NO_RUNS, error(409), NOT_FOUND], "shared by all"),
        ([NOT_FOUND, *NO_RUNS, error(403)], "roles/storage.admin"),
        ([said(SAFE), *NO_RUNS, error(403)], "roles/storage.objectUser"),
    ],
)
def test_what_fails_is_told_with_what_to_do(behaviours: list[Behaviour], hint: str) -> None:
    with pytest.raises(ServiceError) as caught:
        prepared(*behaviours)
    assert hint in caught.value.hint


def test_a_bucket_that_somebody_makes_meanwhile_is_looked_at_too() -> None:
    raced = [NOT_FOUND, *NO_RUNS, error(409)]
    assert prepared(*raced, said(SAFE), WRITTEN).location == "US-CENTRAL1"
    with pytest.raises(ServiceError, match="lifecycle rule"):
        prepared(*raced, said({**SAFE, "lifecycle": {"rule": [rule(age=1)]}}))


@pytest.mark.fault(11)
def test_a_bucket_whose_objects_cannot_be_written_again_is_refused() -> None:
    with pytest.raises(ServiceError, match="has a retention policy") as caught:
        prepared(said({**SAFE, "retentionPolicy": {"retentionPeriod": "86400"}}))
    assert caught.value.hint.index("another bucket") < caught.value.hint.index("--clear-retention-period")


@pytest.mark.fault(11)
def test_locked_retention_policy_leaves_another_bucket_alone() -> None:
    locked = {"retentionPolicy": {"retentionPeriod": "86400", "isLocked": True}}
    with pytest.raises(ServiceError, match="has a retention policy") as caught:
        prepared(said({**SAFE, **locked}))
    assert caught.value.hint == 'name another bucket under "claimsBucket"'


@pytest.mark.fault(11)
@pytest.mark.parametrize(
    ("setting", "told", "flag"),
    [
        ({"defaultEventBasedHold": True}, "a hold on each new object", "--no-default-event-based-hold"),
        ({"billing": {"requesterPays": True}}, "lets the requester pay", "--no-requester-pays"),
    ],
)
def test_bucket_whose_claims_could_not_be_used_is_refused(
    setting: dict[str, Any], told: str, flag: str
) -> None:
    with google(said({**SAFE, **setting})) as (session, server):
        with pytest.raises(ServiceError, match=told) as caught:
            prepare_claims(session)
        (request,) = server.arrived
    assert f"`gcloud storage buckets update gs://acme-claims {flag}`" in caught.value.hint
    assert "defaultEventBasedHold" in request.target
    assert "billing" in request.target


def test_bucket_that_refuses_to_be_read_without_a_payer_says_so() -> None:
    refused = error(400, "Bucket is requester pays bucket but no user project provided.")
    with pytest.raises(ServiceError, match="requester pays") as caught:
        prepared(refused)
    assert "--no-requester-pays`" in caught.value.hint


@pytest.mark.parametrize(
    "setting",
    [{"defaultEventBasedHold": False}, {"billing": {"requesterPays": False}, "retentionPolicy": {}}],
)
def test_bucket_with_these_settings_switched_off_is_taken(setting: dict[str, Any]) -> None:
    assert not prepared(said({**SAFE, **setting}), *NO_RUNS, WRITTEN).made


@pytest.mark.parametrize(("status", "told"), [(400, '"location"'), (412, "policy of the organization")])
def test_what_the_service_will_always_refuse_is_not_to_be_tried_again(status: int, told: str) -> None:
    with pytest.raises(ServiceError) as caught:
        prepared(NOT_FOUND, *NO_RUNS, error(status, "it says no"))
    assert told in caught.value.hint


@pytest.mark.fault(11)
def test_until_then_nothing_is_submitted_to_google() -> None:
    with google(said({"kind": "storage#objects"})) as (session, _):
        with pytest.raises(ServiceError) as caught:
            session.claims.check(0)
        assert "`reconciler init --claims --env prod`" in caught.value.hint


def test_what_makes_claims_less_safe_is_told() -> None:
    bare = {"name": "acme-staging", "lifecycle": {}}
    found = prepared(said(bare), *NO_RUNS, WRITTEN, claimsBucket="acme-staging")
    told = " ".join(warning.why for warning in found.warnings)
    assert "in the staging bucket: a training job that may write there can overwrite or delete them" in told
    commands = " ".join(warning.command for warning in found.warnings)
    for flag in ("--uniform-bucket-level-access", "--public-access-prevention", "--versioning"):
        assert f"gcloud storage buckets update gs://acme-staging {flag}" in commands


def test_the_permissions_are_named_as_commands() -> None:
    training = "trainer@acme-ml.iam.gserviceaccount.com"
    found = prepared(
        said(SAFE), *NO_RUNS, WRITTEN, submitter=SUBMITTER, defaults={"serviceAccount": training}
    )
    commands = [shlex.split(step.command) for step in found.steps]
    assert all(command[0] == "gcloud" for command in commands)
    bucket, staging, viewer, creator, api, submitter, user, policy = commands
    assert bucket[1:5] == ["storage", "buckets", "add-iam-policy-binding", "gs://acme-claims"]
    assert {"--member=MEMBER", "--role=roles/storage.objectUser"} <= set(bucket)
    (condition,) = [part for part in bucket if part.startswith("--condition=")]
    assert 'startsWith("projects/_/buckets/acme-claims/objects/reconciler/claims/acme-jobs/")' in condition
    assert "objectListPrefix" in condition
    assert staging[1:5] == ["storage", "buckets", "add-iam-policy-binding", "gs://acme-staging"]
    assert {"--member=MEMBER", "--role=roles/storage.objectUser"} <= set(staging)
    assert {"--member=MEMBER", "--role=roles/aiplatform.user"} <= set(viewer)
    assert {SUBMITTER, "--member=MEMBER", "--role=roles/iam.serviceAccountTokenCreator"} <= set(creator)
    assert "iamcredentials.googleapis.com" in api
    assert {f"--member=serviceAccount:{SUBMITTER}", "--role=roles/aiplatform.user"} <= set(submitter)
    assert {training, f"--member=serviceAccount:{SUBMITTER}"} <= set(user)
    assert policy == shlex.split("gcloud storage buckets get-iam-policy gs://acme-claims")
    assert training in found.steps[-1].why
    without = prepared(said(SAFE), *NO_RUNS, WRITTEN)
    assert not any("TokenCreator" in step.command for step in without.steps)
    assert "the service account of training jobs" in without.steps[-1].why


def test_the_command_prepares_and_tells(repository: Repository) -> None:
    for _ in range(2):
        done = repository.run("init", "--claims")
        assert done.code == 0, done.err
        assert "gs://reconciler-staging/reconciler/claims/local/" in done.out
    objects = repository.home / "gcs" / "reconciler-staging" / "reconciler" / "claims" / "local"
    assert json.loads((objects / "genesis").read_text()) == {"formatVersion": 1, "source": "local"}
