"""Judged metrics in Cloud Storage: read back as written, and replaced only by their readers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from reconciler.base.errors import ServiceError
from reconciler.google.metrics_store import ObjectMetrics
from reconciler.model.expectation import Measured, Missing, RunMetrics
from reconciler.model.ports import NO_METRICS
from reconciler.operations.session import Session
from tests.support.held_service import HeldService
from tests.support.noted_requests import NotedRequests, noting_session
from tests.support.opened import BUCKET, KEY, opened

FOLDER = "reconciler/claims/acme-jobs/"
RUN = RunMetrics(
    job_name="census_0011223344556677_2",
    resource="projects/1/locations/l/customJobs/2",
    folder="gs://models/größe 📊",
    metrics={
        "accuracy": Measured(0.1 + 0.2, None, ("model/metrics.json",), ("1795803905013019",)),
        "loss \x1b\n::error::": Measured(None, Missing.TWO_VALUES, ("a.json", "b.json"), ("1", "2")),
        "": Measured(None, Missing.RECORD_GONE),
    },
)
OTHER = RunMetrics("census_0", "projects/1/locations/l/customJobs/3")


@pytest.fixture
def noted(session: Session) -> tuple[Session, NotedRequests]:
    return noting_session(session)


def path_of(service: HeldService, folder: str = FOLDER) -> Path:
    """Return the file of the object of `KEY`."""
    return service.home / "gcs" / BUCKET / f"{folder}_verdicts/local/local/{KEY}"


def put(service: HeldService, content: str | bytes) -> None:
    """Write the object of `KEY` as another program might."""
    path = path_of(service)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)


def form(**changed: Any) -> dict[str, Any]:
    """Return the stored form of a run without metrics, with some fields changed."""
    run = {"job_name": OTHER.job_name, "resource": OTHER.resource, "folder": "", "metrics": {}}
    return {"formatVersion": 1, "key": KEY, "run": run, **changed}


@pytest.mark.parametrize(
    ("environment", "folder"), [({}, FOLDER), ({"instance": "eu"}, f"{FOLDER}_instances/eu/")]
)
def test_object_has_documented_name_and_is_read_as_written(
    service: HeldService, environment: dict[str, str], folder: str
) -> None:
    with opened(service, **environment) as session:
        assert session.metrics.read(KEY) == NO_METRICS
        assert session.metrics.write(KEY, RUN, 0)
        found = session.metrics.read(KEY)
        assert (found.run, found.generation > 0) == (RUN, True)
        assert session.metrics.read(KEY[:-1]) == session.metrics.read(KEY[:-1] + "x") == NO_METRICS
    stored = [path for path in (service.home / "gcs").rglob("*") if path.is_file()]
    assert stored == [path_of(service, folder)]


def test_stored_form_stays_same(service: HeldService, session: Session) -> None:
    """Later versions must read what this version wrote."""
    measured = {
        "accuracy": Measured(0.5, None, ("metrics.json",), ("7",)),
        "loss": Measured(missing=Missing.NO_FILE),
    }
    run = RunMetrics("census_0", "customJobs/3", "gs://models/census", measured)
    assert session.metrics.write(KEY, run, 0)
    assert json.loads(path_of(service).read_bytes()) == {
        "formatVersion": 1,
        "key": KEY,
        "run": {
            "job_name": "census_0",
            "resource": "customJobs/3",
            "folder": "gs://models/census",
            "metrics": {
                "accuracy": {
                    "value": 0.5,
                    "missing": None,
                    "files": ["metrics.json"],
                    "generations": ["7"],
                },
                "loss": {"value": None, "missing": "no-file", "files": [], "generations": []},
            },
        },
    }


def test_only_object_of_same_generation_is_replaced(session: Session) -> None:
    assert session.metrics.write(KEY, RUN, 0)
    assert not session.metrics.write(KEY, OTHER, 0)
    first = session.metrics.read(KEY)
    assert first.run == RUN
    assert session.metrics.write(KEY, OTHER, first.generation)
    assert not session.metrics.write(KEY, RUN, first.generation)
    second = session.metrics.read(KEY)
    assert (second.run, second.generation != first.generation) == (OTHER, True)


def test_unknown_fields_are_ignored(service: HeldService, session: Session) -> None:
    later = form(later=1)
    later["run"] |= {"later": [], "metrics": {"accuracy": {"value": 1, "later": {}}}}
    put(service, json.dumps(later))
    run = session.metrics.read(KEY).run
    assert run == RunMetrics(OTHER.job_name, OTHER.resource, metrics={"accuracy": Measured(1.0)})


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"no JSON", "JSON"),
        (b"", "truncated"),
        (b"\xff", "JSON"),
        (b"[]", "object"),
        (b'{"run":' * 20_000, "too large|recursion|truncated"),
        (json.dumps(form(formatVersion=2)), "it is of another version, or of another content"),
        (json.dumps(form(key="x" * 52)), "it is of another version, or of another content"),
        (json.dumps(form(run={})), "job_name"),
        (json.dumps(form(run={"job_name": "a", "resource": "b", "metrics": {"a": 1}})), "metrics"),
        (
            json.dumps(form(run={"job_name": "a", "resource": "b", "metrics": {"a": {"missing": "new"}}})),
            "'new'",
        ),
    ],
    ids=["text", "empty", "no UTF-8", "list", "nested", "version", "key", "run", "metric", "reason"],
)
def test_unreadable_object_is_named_with_remedy(
    service: HeldService, session: Session, content: str | bytes, why: str
) -> None:
    put(service, content)
    with pytest.raises(ServiceError, match=why) as raised:
        session.metrics.read(KEY)
    name = path_of(service).relative_to(service.home / "gcs").as_posix()
    assert raised.value.message.startswith(f"gs://{name} can't be read: ")
    assert raised.value.hint == (
        "update the reconciler if a newer version wrote it, else delete it: it is made again"
    )
    path_of(service).unlink()
    assert session.metrics.write(KEY, RUN, 0)


def test_large_object_is_refused_without_request_for_its_content(
    service: HeldService, noted: tuple[Session, NotedRequests]
) -> None:
    session, requests = noted
    largest = json.dumps(form()).ljust(256 * 1024)
    put(service, largest)
    assert session.metrics.read(KEY).run == OTHER
    assert len(requests.of("alt=media")) == 1
    put(service, largest + " ")
    with pytest.raises(ServiceError, match=r"can't be read: it is too large$"):
        session.metrics.read(KEY)
    assert len(requests.of("alt=media")) == 1


def test_record_that_could_not_be_read_again_is_not_written(
    service: HeldService, noted: tuple[Session, NotedRequests]
) -> None:
    session, requests = noted
    names = {f"{number}": Measured(None, Missing.NOT_NAMED, ("\x1b" * 1000,), ("1",)) for number in range(50)}
    large = RunMetrics(OTHER.job_name, OTHER.resource, metrics=names)
    with pytest.raises(ServiceError, match="take more than 256 KiB") as raised:
        session.metrics.write(KEY, large, 0)
    assert raised.value.hint
    assert requests.sent == []
    assert session.metrics.read(KEY) == NO_METRICS


def test_missing_bucket_has_no_metrics_and_takes_none(session: Session) -> None:
    store = ObjectMetrics(session.connection, "no-such-bucket", FOLDER, "local", "local")
    assert store.read(KEY) == NO_METRICS
    assert not store.write(KEY, RUN, 0)


def test_object_that_is_removed_during_read_counts_as_missing(
    service: HeldService, noted: tuple[Session, NotedRequests]
) -> None:
    session, requests = noted
    assert session.metrics.write(KEY, RUN, 0)

    def remove(method: str, url: str) -> None:
        if "alt=media" in url:
            path_of(service).unlink()

    requests.before = remove
    assert session.metrics.read(KEY) == NO_METRICS


@pytest.mark.parametrize("status", [403, 503])
def test_refusal_is_told_with_bucket_and_remedy(noted: tuple[Session, NotedRequests], status: int) -> None:
    session, requests = noted
    requests.refused = {BUCKET: status}
    said = f"the judged metrics can't be read or written in gs://{BUCKET}: refused with {status}"
    for act in (lambda: session.metrics.read(KEY), lambda: session.metrics.write(KEY, RUN, 0)):
        with pytest.raises(ServiceError) as raised:
            act()
        assert raised.value.message == said
        assert raised.value.hint
