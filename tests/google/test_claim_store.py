"""Claims and commit records in Cloud Storage: read back as written, and replaced only by their readers."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from google.cloud import storage
from google.oauth2.credentials import Credentials
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import to_builtins
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.google.claim_store import ObjectClaims
from reconciler.google.commit_store import ObjectCommits
from reconciler.model.applied_tree import AppliedTree
from reconciler.model.claim import Claim, ClaimId, ClaimState, claim_json
from reconciler.model.commit_record import CommitRecord, WantedJob
from reconciler.model.job import State
from reconciler.model.ports import HostedRepository, Place
from reconciler.operations.session import Session
from reconciler.submission.summary import Preface, encoded, read_preface
from tests.support.held_service import HeldService
from tests.support.opened import BUCKET, CLAIM, KEY, LOCATION, PROJECT, connected, opened
from tests.support.raw_server import Behaviour, RawServer, answer, reset, send_then_close, silence

FOLDER = "reconciler/claims/acme-jobs/"
DATE = "Sat, 21 Nov 2026 13:06:11 GMT"
FULL = replace(
    CLAIM,
    id=ClaimId("f" * 52, 3),
    state=ClaimState.BOUND,
    path="jobs/größe 📊.yaml",
    on_delete="cancel",
    commit="c" * 40,
    request_ids=("a" * 26, "b" * 26),
    credential_expiry=datetime(2026, 11, 21, 13, 6, 11, tzinfo=UTC),
    resource="projects/1/locations/l/customJobs/2",
    ended=State.FAILED,
    labels="0011223344556677",
    error='it said "no" to \\ us',
    not_before=datetime(2026, 11, 21, 14, 0, 0, 250000, tzinfo=UTC),
    refusals=2,
    owner="process 7 on host",
)


def put(session: Session, name: str, metadata: dict[str, str]) -> None:
    """Write an object as another client might."""
    from googleapiclient.http import MediaInMemoryUpload

    session.connection.client("storage.objects").insert(
        bucket=BUCKET,
        body={"name": name, "metadata": metadata},
        media_body=MediaInMemoryUpload(b"{}", mimetype="application/json"),
    ).execute()


def store_at(server: RawServer, *, may_be_new: bool = False) -> ObjectClaims:
    return ObjectClaims(
        connected(server.url),
        "claims",
        "acme-jobs",
        PROJECT,
        LOCATION,
        may_be_new=may_be_new,
        environment="prod",
    )


def served(*behaviours: Behaviour) -> RawServer:
    return RawServer(list(behaviours))


def error(status: int, message: str) -> Behaviour:
    """Return an error as Cloud Storage words it."""
    body = {"error": {"code": status, "message": message, "errors": [{"message": message}]}}
    return answer(status, json.dumps(body).encode(), date=DATE)


def said(body: Any) -> Behaviour:
    return answer(200, json.dumps(body).encode(), date=DATE)


def listed(*items: Any) -> Behaviour:
    return said({"kind": "storage#objects", "items": list(items)})


def item(claim: Claim, generation: str = "7") -> dict[str, Any]:
    name = f"{FOLDER}{PROJECT}/{LOCATION}/{claim.id.key}/{claim.id.attempt}"
    return {"name": name, "generation": generation, "metadata": {"claim": json.dumps(claim_json(claim))}}


@pytest.mark.parametrize("claim", [CLAIM, FULL, replace(CLAIM, path="jobs/\udcff.yaml")])
def test_a_claim_is_read_as_it_was_written(session: Session, claim: Claim) -> None:
    written = session.claims.write(claim, 0)
    assert written is not None
    assert written.claim == claim
    assert written.generation > 0
    assert session.claims.read(claim.id).versioned == written
    assert session.claims.listed() == {claim.id: written}


def test_a_claim_that_was_copied_without_its_metadata_is_read_from_its_content(
    service: HeldService, session: Session
) -> None:
    """The objects of a copied home are plain files without metadata."""
    written = session.claims.write(CLAIM, 0)
    assert written is not None
    (path,) = (service.home / "gcs" / BUCKET).rglob(f"{KEY}/1")
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content)
    read = session.claims.read(CLAIM.id).versioned
    assert read is not None
    assert read.claim == CLAIM
    assert session.claims.listed() == {CLAIM.id: read}
    assert session.claims.write(replace(CLAIM, owner="next"), read.generation) is not None


@pytest.mark.parametrize("generation", ["0", "", "-1", "7.0", "²", "9" * 5000])
def test_a_wrong_generation_is_no_version(generation: str) -> None:
    with (
        served(listed(item(CLAIM, generation))).running() as server,
        pytest.raises(ServiceError, match="no generation"),
    ):
        store_at(server).read(CLAIM.id)


@settings(
    max_examples=25,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(error=st.text(max_size=1000), path=st.text(max_size=60), owner=st.text(max_size=60))
def test_any_text_in_a_claim_comes_back(session: Session, error: str, path: str, owner: str) -> None:
    claim = replace(CLAIM, error=error, path=path, owner=owner)
    before = session.claims.read(claim.id).versioned
    written = session.claims.write(claim, before.generation if before else 0)
    assert written is not None
    assert session.claims.read(claim.id).versioned == written


@pytest.mark.fault(7)
def test_a_claim_is_written_only_over_the_one_that_was_read(session: Session) -> None:
    claims = session.claims
    first = claims.write(CLAIM, 0)
    assert first is not None
    assert claims.write(replace(CLAIM, owner="late"), 0) is None
    bound = replace(CLAIM, state=ClaimState.BOUND, resource="projects/p/jobs/j")
    second = claims.write(bound, first.generation)
    assert second is not None
    assert second.generation != first.generation
    assert claims.write(replace(CLAIM, owner="late"), first.generation) is None
    assert claims.read(CLAIM.id).versioned == second


@pytest.mark.fault(7)
def test_of_many_writers_at_once_one_wins(session: Session) -> None:
    wins: list[str] = []

    def write(owner: str) -> None:
        if session.claims.write(replace(CLAIM, owner=owner), 0):
            wins.append(owner)

    # The client is built once, before there are threads.
    assert session.claims.read(CLAIM.id).versioned is None
    threads = [threading.Thread(target=write, args=(str(number),)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    found = session.claims.read(CLAIM.id).versioned
    assert found is not None
    assert wins == [found.claim.owner]


@pytest.mark.fault(32)
def test_the_time_is_that_of_the_answer_also_where_there_is_no_claim() -> None:
    with served(listed()).running() as server:
        read = store_at(server).read(CLAIM.id)
    assert read.versioned is None
    assert read.now == datetime(2026, 11, 21, 13, 6, 11, tzinfo=UTC)


def test_the_services_time_is_read_with_the_genesis(session: Session) -> None:
    assert abs(session.claims.now() - datetime.now(UTC)) < timedelta(seconds=60)


def test_a_stopped_service_tells_the_time_too(service: HeldService, tmp_path: Path) -> None:
    with HeldService(tmp_path / "other").running() as other, opened(other) as session:
        session.claims.write(CLAIM, 0)
    with opened(other, start=False) as stopped:
        read = stopped.claims.read(CLAIM.id)
    assert read.versioned is not None
    assert abs(read.now - datetime.now(UTC)) < timedelta(seconds=60)


def test_no_cache_may_answer_a_read() -> None:
    with served(listed(), listed()).running() as server:
        store_at(server).listed()
        store_at(server).read(CLAIM.id)
    assert [request.headers["cache-control"] for request in server.arrived] == ["no-cache", "no-cache"]


@pytest.mark.fault(14)
def test_all_claims_are_listed_through_all_pages(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reconciler.google.object_store._PAGE_SIZE", 2)
    written = [session.claims.write(replace(CLAIM, id=ClaimId(KEY, attempt)), 0) for attempt in range(1, 6)]
    assert list(session.claims.listed().values()) == written


@pytest.mark.fault(52)
def test_claims_of_other_repositories_and_targets_are_not_seen(service: HeldService) -> None:
    with opened(service) as ours, opened(service, location="europe-west4") as elsewhere:
        ours.claims.prepare()
        ours.claims.write(CLAIM, 0)
        assert elsewhere.claims.listed() == {}
        assert elsewhere.claims.read(CLAIM.id).versioned is None
        other = ObjectClaims(ours.connection, BUCKET, "other-jobs", "local", "local", may_be_new=True)
        assert other.listed() == {}


@pytest.mark.fault(11)
class TestGenesis:
    def test_a_new_store_is_good_where_nobody_has_to_prepare_it_and_nothing_is_there(
        self, session: Session
    ) -> None:
        session.claims.check(0)
        with pytest.raises(ServiceError, match=r"holds no claims of acme-jobs.*has 3 runs") as caught:
            session.claims.check(3)
        assert "`reconciler init --claims --env local`" in caught.value.hint
        session.claims.prepare()
        session.claims.prepare()
        session.claims.check(3)

    def test_elsewhere_a_person_prepares_it(self, session: Session) -> None:
        claims = ObjectClaims(
            session.connection, BUCKET, "acme-jobs", "p", "l", may_be_new=False, environment="prod"
        )
        with pytest.raises(ServiceError, match="isn't prepared for the claims of acme-jobs") as caught:
            claims.check(0)
        assert "`reconciler init --claims --env prod`" in caught.value.hint
        claims.prepare()
        claims.check(0)
        claims.check(9)

    def test_a_stopped_service_that_was_never_used_is_a_new_store(self, tmp_path: Path) -> None:
        service = HeldService(tmp_path / "home")
        with service.running():
            pass
        with opened(service, start=False) as session:
            session.claims.check(0)
            assert session.claims.listed() == {}
        assert not (service.home / "gcs").exists()

    @pytest.mark.parametrize(
        ("metadata", "told"),
        [
            ({"genesis": '{"formatVersion":1,"source":"other"}'}, "to 'other'.*another repository"),
            ({"genesis": '{"formatVersion":2,"source":"acme-jobs"}'}, "format version 2"),
            ({"genesis": "no json"}, "can't be read"),
            ({"genesis": "[1]"}, "can't be read"),
            ({}, "format version None"),
        ],
    )
    def test_anothers_or_an_unreadable_genesis_stops_everything(
        self, session: Session, metadata: dict[str, str], told: str
    ) -> None:
        put(session, f"{FOLDER}genesis", metadata)
        for act in (lambda: session.claims.check(0), session.claims.prepare):
            with pytest.raises(ServiceError, match=told) as caught:
                act()
            assert caught.value.hint

    def test_a_bucket_that_is_gone_is_told_from_one_that_is_empty(self, session: Session) -> None:
        claims = ObjectClaims(session.connection, "no-such-bucket", "acme-jobs", "p", "l", may_be_new=False)
        for act in (lambda: claims.check(0), claims.listed, claims.prepare, lambda: claims.write(CLAIM, 0)):
            with pytest.raises(ServiceError, match="there is no claims bucket no-such-bucket") as caught:
                act()
            hint = caught.value.hint
            assert "`gcloud storage restore gs://no-such-bucket#GENERATION`" in hint
            # A new bucket of this name would prevent the restoration.
            assert hint.index("soft delete") < hint.index("reconciler init --claims")


MODELS = HostedRepository("https://github.com", "7", "acme/models")
COPY = HostedRepository("https://github.com", "8", "acme/copy")


def claims_of(session: Session, repository: HostedRepository | None, *, instance: str = "") -> ObjectClaims:
    return ObjectClaims(
        session.connection,
        BUCKET,
        "acme-jobs",
        "p",
        "l",
        may_be_new=False,
        instance=instance,
        repository=repository,
    )


@pytest.mark.parametrize("instance", ["", "blue"])
class TestOwner:
    def test_new_genesis_names_the_repository(self, session: Session, instance: str) -> None:
        claims_of(session, MODELS, instance=instance).prepare()
        claims_of(session, MODELS, instance=instance).check_owner()
        with pytest.raises(ServiceError, match=r"belong to acme/models .*copied from there"):
            claims_of(session, COPY, instance=instance).check_owner()

    def test_genesis_without_a_repository_is_rewritten_once(self, session: Session, instance: str) -> None:
        claims_of(session, None, instance=instance).prepare()
        claims = claims_of(session, MODELS, instance=instance)
        before = claims.genesis_generation()
        claims.check_owner()
        after = claims.genesis_generation()
        claims.check_owner()
        assert (claims.genesis_generation(), after != before) == (after, True)

    @pytest.mark.parametrize(
        "same", [replace(MODELS, name="other/name"), replace(MODELS, name="")], ids=["renamed", "unnamed"]
    )
    def test_repository_keeps_its_claims_under_another_name(
        self, session: Session, instance: str, same: HostedRepository
    ) -> None:
        claims_of(session, MODELS, instance=instance).prepare()
        claims_of(session, same, instance=instance).check_owner()

    def test_same_number_on_another_server_is_another_repository(
        self, session: Session, instance: str
    ) -> None:
        claims_of(session, MODELS, instance=instance).prepare()
        elsewhere = replace(MODELS, server="https://ghe.example.com")
        with pytest.raises(ServiceError, match="copied from there") as caught:
            claims_of(session, elsewhere, instance=instance).check_owner()
        assert "`reconciler init --claims --env NAME --this-repository`" in caught.value.hint

    @pytest.mark.fault(55)
    def test_summary_survives_that_the_repository_is_recorded(self, session: Session, instance: str) -> None:
        claims = claims_of(session, None, instance=instance)
        claims.prepare()
        place = Place("acme-jobs", "p", "l", instance)
        preface = Preface(place, claims.genesis_generation())
        assert claims.write_summary(encoded(preface, None), 0)
        claims_of(session, MODELS, instance=instance).check_owner()
        claims_of(session, None, instance=instance).change_owner()
        claims_of(session, COPY, instance=instance).check_owner()
        kept = claims.summary()
        preface = Preface(place, claims.genesis_generation())
        assert kept is not None
        assert read_preface(kept) == preface
        # Whoever writes it next names the present generation, so that it is of no restored store.
        assert claims.write_summary(encoded(preface, None), kept.generation)
        genesis = claims._store.find(claims._genesis)[0]
        assert genesis is not None
        put(session, genesis.name, {**genesis.metadata})
        assert read_preface(claims.summary()) is None

    def test_missing_bucket_or_genesis_is_left_to_the_check(self, session: Session, instance: str) -> None:
        claims_of(session, MODELS, instance=instance).check_owner()
        nowhere = ObjectClaims(
            session.connection, "no-such-bucket", "s", "p", "l", may_be_new=False, repository=MODELS
        )
        nowhere.check_owner()


@pytest.mark.parametrize("repository", [7, {"server": 1}, {"server": "s"}], ids=str)
def test_genesis_with_an_unreadable_repository_stops_everything(session: Session, repository: object) -> None:
    document = {"formatVersion": 1, "source": "acme-jobs", "repository": repository}
    put(session, f"{FOLDER}genesis", {"genesis": json.dumps(document)})
    for act in (lambda: session.claims.check(0), claims_of(session, MODELS).check_owner):
        with pytest.raises(ServiceError, match="can't be read"):
            act()


@pytest.mark.fault(7)
@pytest.mark.parametrize("winner", [MODELS, COPY], ids=["same", "other"])
def test_repository_is_recorded_on_condition_of_the_generation(winner: HostedRepository) -> None:
    def found(generation: str, **more: object) -> Behaviour:
        document = {"formatVersion": 1, "source": "acme-jobs", **more}
        return listed(
            {
                "name": f"{FOLDER}genesis",
                "generation": generation,
                "metadata": {"genesis": json.dumps(document)},
            }
        )

    raced = [found("5"), error(412, "At least one of the pre-conditions you specified did not hold.")]
    with served(*raced, found("6", repository=to_builtins(winner))).running() as server:
        claims = ObjectClaims(
            connected(server.url), "claims", "acme-jobs", "p", "l", may_be_new=False, repository=MODELS
        )
        if winner is MODELS:
            claims.check_owner()
        else:
            with pytest.raises(ServiceError, match="acme/copy"):
                claims.check_owner()
        (write,) = (request for request in server.arrived if request.method == "POST")
        assert "ifGenerationMatch=5" in write.target


@pytest.mark.fault(11)
@pytest.mark.parametrize(
    ("entry", "told"),
    [
        ("", "format version None"),  # the content counts then, and is no claim
        ("no json", "can't be read"),
        ("[" * 100_000, "is a JSON object"),
        ("7", "is a JSON object"),
        ("{}", "format version None"),
        ('{"format_version": 99}', "format version 99"),
        (json.dumps({**claim_json(CLAIM), "state": "lost"}), "lost"),
        (json.dumps({**claim_json(CLAIM), "fence": 7}), "can't be read"),
        (json.dumps({**claim_json(CLAIM), "colour": "red"}), "colour"),
        (json.dumps({**claim_json(CLAIM), "attempt": "1"}), "attempt"),
        (json.dumps({**claim_json(CLAIM), "fence": "9999-12-31T23:59:59-23:00"}), "is out of range"),
        ('{"format_version": 1, "attempt": ' + "9" * 5000 + "}", "can't be read"),
        (json.dumps(claim_json(replace(CLAIM, id=ClaimId("z" * 52)))), "it is the claim of zzz"),
    ],
)
def test_nothing_is_decided_over_a_claim_that_cannot_be_read(entry: str, told: str) -> None:
    name = f"{FOLDER}{PROJECT}/{LOCATION}/{KEY}/1"
    found = {"name": name, "generation": "7", "metadata": {"claim": entry}}
    content = [said({})] if not entry else []
    with served(listed(found), *content, listed(found), *content).running() as server:
        store = store_at(server)
        for act in (lambda: store.listed(), lambda: store.read(CLAIM.id)):
            with pytest.raises(ServiceError, match=told) as caught:
                act()
            assert f"gs://claims/{name}" in caught.value.message
            assert "nothing is submitted" in caught.value.hint


PAGE = b"<html>sign in to the hotel's network</html>"
OUTAGES = {
    "html": answer(200, PAGE, date=DATE),
    "html not found": answer(404, PAGE, date=DATE),
    "html error": answer(502, PAGE, date=DATE),
    "server error": error(500, "Internal error"),
    "busy": error(429, "too many changes to one object"),
    "forbidden": error(403, "me@x does not have storage.objects.list access"),
    "no scope": error(403, "Request had insufficient authentication scopes."),
    "unauthorized": error(401, "Invalid Credentials"),
    "no project": error(400, "Unknown project id: acme-ml"),
    "closed": send_then_close(b""),
    "reset": reset,
    "half": send_then_close(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{"),
    "deep": answer(200, b"[" * 100_000, date=DATE),
    "no listing": said({}),
    "text for a list": said({"kind": "storage#objects", "items": "none", "generation": -1}),
    "texts for objects": said({"kind": "storage#objects", "items": ["none"], "generation": -1}),
}


@pytest.mark.fault(10)
@pytest.mark.parametrize("outage", OUTAGES.values(), ids=OUTAGES)
def test_an_outage_is_told_with_what_to_do_and_is_never_an_absent_claim(outage: Behaviour) -> None:
    with served(outage).running() as server:
        store = store_at(server, may_be_new=True)
        acts = [
            lambda: store.read(CLAIM.id),
            lambda: store.write(CLAIM, 0),
            store.prepare,
            lambda: store.check(0),
        ]
        for act in acts:
            with pytest.raises(ServiceError) as caught:
                act()
            assert caught.value.hint
            assert "hotel" not in caught.value.message


@pytest.mark.fault(10)
@pytest.mark.parametrize("outage", sorted(set(OUTAGES) - {"no listing"}))
def test_a_listing_that_fails_is_no_empty_one(outage: str) -> None:
    with served(OUTAGES[outage]).running() as server, pytest.raises(ServiceError) as caught:
        store_at(server, may_be_new=True).listed()
    assert caught.value.hint


@pytest.mark.fault(10)
def test_what_a_refusal_means_is_told() -> None:
    hints = {}
    for name in ("forbidden", "no scope", "unauthorized"):
        with served(OUTAGES[name]).running() as server, pytest.raises(ServiceError) as caught:
            store_at(server).listed()
        hints[name] = caught.value.hint
    assert "roles/storage.objectUser" in hints["forbidden"]
    assert "scope" in hints["no scope"]
    assert "gcloud auth application-default login" in hints["unauthorized"]


@pytest.mark.fault(10)
@pytest.mark.parametrize(
    "date",
    [
        "",
        "yesterday",
        "Sat, 21 Nov 2026 13:06:11 -0000",
        "Sat, 21 Nov 99999999999 13:06:11 GMT",
        "Fri, 31 Dec 9999 23:59:59 -2359",
        "Fri, 31 Dec 9999 23:59:59 GMT",
    ],
)
def test_an_answer_without_a_time_is_none(date: str) -> None:
    headers = {"date": date} if date else {}
    page = json.dumps({"kind": "storage#objects", "items": [item(CLAIM)]})
    with (
        served(answer(200, page.encode(), **headers)).running() as server,
        pytest.raises(ServiceError, match="doesn't say when"),
    ):
        store_at(server).read(CLAIM.id)


@pytest.mark.fault(9, 10)
@pytest.mark.parametrize("fate", [reset, send_then_close(b""), error(503, "later"), answer(502, PAGE)])
def test_a_write_is_sent_once_whatever_becomes_of_it(fate: Behaviour) -> None:
    with served(fate).running() as server:
        with pytest.raises(ServiceError):
            store_at(server).write(CLAIM, 0)
        assert server.count("POST") == 1


def test_nobody_listening_is_told() -> None:
    server = served(silence)
    with server.running():
        pass
    with pytest.raises(ServiceError, match="can't be reached") as caught:
        store_at(server).listed()
    assert "endpoints" in caught.value.hint


def page(number: int, token: str = "") -> Behaviour:
    found = item(replace(CLAIM, id=ClaimId(KEY, number)))
    return said({"items": [found], **({"nextPageToken": token} if token else {})})


REFUSED = error(400, "Invalid page token")


@pytest.mark.fault(14)
@pytest.mark.parametrize(
    "pages",
    [
        [page(1, "a"), REFUSED, page(1, "a"), page(2, "b"), page(3)],
        [page(1, "a"), page(2, "a"), page(1, "a"), page(2, "b"), page(3)],
        [page(1, "a"), error(410, "gone"), page(1, "b"), REFUSED, page(1, "c"), page(2, "d"), page(3)],
        [said({"nextPageToken": "a"}), page(1, "b"), said({"nextPageToken": "c"}), page(2, "d"), page(3)],
        [page(1, "a"), page(1, "b"), page(2, "c"), page(3)],
    ],
    ids=["refused", "repeated", "twice", "empty pages", "moved"],
)
def test_a_listing_that_breaks_off_begins_anew_until_it_is_whole(pages: list[Behaviour]) -> None:
    with served(*pages).running() as server:
        found = store_at(server).listed()
        assert sorted(id.attempt for id in found) == [1, 2, 3]
        assert len(server.arrived) == len(pages)


@pytest.mark.fault(14)
@pytest.mark.parametrize("breaks", [REFUSED, page(2, "a")], ids=["refused", "repeated"])
def test_a_listing_that_always_breaks_off_is_an_error_in_the_end(breaks: Behaviour) -> None:
    with served(*[page(1, "a"), breaks] * 4, page(1)).running() as server:
        with pytest.raises(ServiceError, match="failed 4 times") as caught:
            store_at(server).listed()
        assert len(server.arrived) == 8
    assert "nothing is decided" in caught.value.hint


@pytest.mark.fault(14)
def test_a_later_page_that_fails_fails_the_listing() -> None:
    with served(page(1, "a"), error(500, "Internal error")).running() as server, pytest.raises(ServiceError):
        store_at(server).listed()


@pytest.mark.fault(51)
def test_what_a_newer_service_adds_to_its_answers_does_no_harm() -> None:
    newer = {**item(CLAIM), "shards": [1], "kind": "storage#entity"}
    newer["metadata"]["colour"] = "red"
    with served(said({"items": [newer], "unreachable": [], "cost": 3})).running() as server:
        (found,) = store_at(server).listed().values()
    assert (found.claim, found.generation) == (CLAIM, 7)


def test_the_longest_claim_can_be_written_and_read(session: Session) -> None:
    longest = replace(
        FULL, path="📊" * 5000, error="\0" * 1000, owner='"' * 5000, request_ids=("t" * 26,) * 20
    )
    written = session.claims.write(longest, 0)
    assert written is not None
    assert written.claim == longest
    assert session.claims.read(FULL.id).versioned == written


def test_the_official_client_reads_what_was_written(
    service: HeldService, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    session.claims.prepare()
    written = session.claims.write(FULL, 0)
    assert written is not None
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", service.url)
    client = storage.Client(project="local", credentials=Credentials(token=service.token))
    blobs = {blob.name: blob for blob in client.list_blobs(BUCKET, prefix="reconciler/")}
    name = f"{FOLDER}local/local/{FULL.id.key}/3"
    assert sorted(blobs) == sorted([name, f"{FOLDER}genesis"])
    blob = blobs[name]
    assert blob.generation == written.generation
    assert blob.content_type == "application/json"
    assert blob.cache_control == "no-store"
    assert json.loads(blob.download_as_bytes()) == claim_json(FULL) == json.loads(blob.metadata["claim"])
    genesis = blobs[f"{FOLDER}genesis"]
    assert json.loads(genesis.download_as_bytes()) == {"formatVersion": 1, "source": "acme-jobs"}


@pytest.mark.fault(55)
def test_a_summary_is_read_as_it_was_written_and_is_no_claim(service: HeldService, session: Session) -> None:
    claims = session.claims
    claims.prepare()
    empty = claims.summary()
    assert empty is not None
    assert (empty.content, empty.generation) == (b"", 0)
    assert claims.write_summary(b"{}", 0)
    assert not claims.write_summary(b"[]", 0), "another process has written it"
    found = claims.summary()
    assert found is not None
    assert (found.content, found.genesis) == (b"{}", claims.genesis_generation())
    assert claims.listed() == {}
    assert claims.write_summary(b"[]", found.generation)


@pytest.mark.fault(58)
def test_record_of_the_applied_tree_is_written_over_what_was_read_and_is_no_claim(
    service: HeldService, session: Session
) -> None:
    claims = session.claims
    claims.prepare()
    none = claims.applied_tree()
    assert (none.tree, none.generation) == (None, 0)
    assert none.now is not None
    first, second = (AppliedTree(letter * 40, none.now, "a test", ("a" * 40,)) for letter in "bc")
    assert claims.write_applied_tree(first, 0)
    assert not claims.write_applied_tree(second, 0), "another process has written it"
    found = claims.applied_tree()
    assert found.tree == first
    assert claims.write_applied_tree(second, found.generation)
    assert claims.applied_tree().tree == second
    assert claims.listed() == {}
    (path,) = (service.home / "gcs" / BUCKET).rglob("_applied/*/*")
    path.unlink()
    deleted = claims.applied_tree()
    assert (deleted.tree, deleted.generation) == (None, 0)


def test_record_of_the_applied_tree_is_read_once_while_nobody_writes_it(session: Session) -> None:
    claims = session.claims
    claims.prepare()
    now = claims.now()
    assert claims.write_applied_tree(AppliedTree("b" * 40, now, "a test"), 0)
    read, reads = claims._store.read, []
    claims._store.read = lambda found: reads.append(found.name) or read(found)  # type: ignore[method-assign]
    for _ in range(3):
        assert claims.applied_tree().tree is not None
    assert len(reads) == 1
    assert claims.write_applied_tree(AppliedTree("c" * 40, now, "a test"), claims.applied_tree().generation)
    tree = claims.applied_tree().tree
    assert (tree and tree.commit, len(reads)) == ("c" * 40, 2)


@pytest.mark.fault(55)
def test_a_forged_summary_is_replaced_a_deleted_one_is_none_and_none_is_read_without_genesis(
    service: HeldService, session: Session
) -> None:
    claims = session.claims
    claims.prepare()
    assert claims.write_summary(b"{}", 0)
    (path,) = (service.home / "gcs" / BUCKET).rglob("_summary/*/*")
    path.write_bytes(b"forged by hand")
    forged = claims.summary()
    assert forged is not None
    assert forged.content == b"forged by hand"
    assert claims.write_summary(b"{}", forged.generation), "the next full look replaces it"
    path.unlink()
    deleted = claims.summary()
    assert deleted is not None
    assert deleted.content == b""
    assert claims.write_summary(b"{}", 0)
    (genesis,) = (service.home / "gcs" / BUCKET).rglob("genesis")
    genesis.unlink()
    with pytest.raises(ServiceError, match="isn't prepared"):
        claims.summary()


# --- the records of commits -------------------------------------------------------------------------------

NOW = datetime(2026, 11, 21, 13, 6, 11, tzinfo=UTC)
RECORD = CommitRecord("a" * 40, NOW, 3, {"größe 📊": WantedJob(("k" * 52, "l" * 52), settled=True)})


def store(session: Session, environment: str = "prod") -> ObjectCommits:
    return ObjectCommits(
        session.connection, "reconciler-staging", "acme-jobs", PROJECT, LOCATION, environment
    )


def test_what_is_written_is_read_and_only_over_what_was_read(session: Session) -> None:
    commits = store(session)
    assert commits.all() == {}
    assert commits.write(RECORD, 0)
    assert not commits.write(RECORD, 0), "somebody else wrote it first"
    (found,) = commits.all().values()
    assert found.record == RECORD
    closed = replace(RECORD, closed=True)
    assert commits.write(closed, found.generation)
    assert not commits.write(RECORD, found.generation)
    assert commits.all()[RECORD.sha].record == closed


def test_what_was_changed_meanwhile_is_not_removed(session: Session) -> None:
    commits = store(session)
    commits.write(RECORD, 0)
    before = commits.all()[RECORD.sha].generation
    commits.write(replace(RECORD, closed=True), before)
    commits.remove(RECORD.sha, before)
    assert commits.all().keys() == {RECORD.sha}
    commits.remove(RECORD.sha, commits.all()[RECORD.sha].generation)
    assert commits.all() == {}
    commits.remove(RECORD.sha, 1)


def test_each_environment_has_its_own(session: Session) -> None:
    store(session).write(RECORD, 0)
    assert store(session, "test").all() == {}
    assert session.claims.listed() == {}, "none is taken for a claim"


def test_the_time_is_the_stores(session: Session) -> None:
    assert abs((store(session).now() - datetime.now(UTC)).total_seconds()) < 60


def test_many_jobs_fit(session: Session) -> None:
    jobs = {f"a-job-with-a-name-{n}": WantedJob((f"{n:052}",)) for n in range(2000)}
    commits = store(session)
    commits.write(replace(RECORD, jobs=jobs), 0)
    assert len(commits.all()[RECORD.sha].record.jobs) == 2000


def test_no_bucket_has_no_records(session: Session) -> None:
    nowhere = ObjectCommits(session.connection, "no-such-bucket", "acme-jobs", PROJECT, LOCATION, "prod")
    assert nowhere.all() == {}


def test_a_failure_says_what_it_was_about(tmp_path: Path) -> None:
    refused = answer(403, b'{"error": {"code": 403, "message": "no permission", "status": "x"}}')
    with RawServer([refused]).running() as server:
        commits = ObjectCommits(connected(server.url), "b", "acme-jobs", PROJECT, LOCATION, "prod")
        for use in (commits.all, lambda: commits.write(RECORD, 0), lambda: commits.remove("a", 1)):
            with pytest.raises(ServiceError, match="the statuses still to be posted") as told:
                use()
            assert told.value.hint


def test_a_record_that_cannot_be_read_is_named(session: Session) -> None:
    from googleapiclient.http import MediaInMemoryUpload

    name = f"reconciler/claims/acme-jobs/_commits/{PROJECT}/{LOCATION}/prod/{'b' * 40}"
    media = MediaInMemoryUpload(b"[]", mimetype="application/json")
    objects = session.connection.client("storage.objects")
    objects.insert(bucket="reconciler-staging", body={"name": name}, media_body=media).execute()
    with pytest.raises(ServiceError, match=f"{'b' * 40} can't be read") as told:
        store(session).all()
    assert "delete it" in told.value.hint
