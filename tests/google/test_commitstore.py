"""The records of commits in Cloud Storage, as the embedded service keeps it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from msgspec.structs import replace

from reconciler.base.errors import ServiceError
from reconciler.google.claim_store import ObjectCommits
from reconciler.model.commit_record import CommitRecord, WantedJob
from reconciler.operations.session import Session
from tests.support.held_service import HeldService
from tests.support.opened import LOCATION, PROJECT, connected, opened
from tests.support.raw_server import RawServer, answer

NOW = datetime(2026, 11, 21, 13, 6, 11, tzinfo=UTC)
RECORD = CommitRecord("a" * 40, NOW, 3, {"größe 📊": WantedJob(("k" * 52, "l" * 52), settled=True)})


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with HeldService(tmp_path / "home").running() as service, opened(service) as made:
        yield made


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
