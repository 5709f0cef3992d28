"""Fetching: exactly the files of the record or the listing, verified; of everything else, nothing at all."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlencode

import pytest
import urllib3
from msgspec.structs import replace

from reconciler.base.errors import NotFoundError, ReconcilerError, ServiceError
from reconciler.base.http import HttpRequest, HttpResponse, Transport
from reconciler.google.object_store import StoredObject
from reconciler.operations import fetch as operation
from reconciler.operations.fetch import (
    Progress,
    RemoteFile,
    RemoteFolder,
    fetch,
    folder_of,
    published_folder,
)
from reconciler.operations.session import Session
from tests.support.held_service import HeldService
from tests.support.metrics_files import custom_run
from tests.support.noted_requests import NotedRequests, noting_session
from tests.support.publishing import (
    FILES,
    JOB,
    TO,
    crc32c_of,
    current_model,
    path_of,
    publish,
    published_model,
    put,
)

RUNS = f"gs://acme-runs/{JOB}"


@pytest.fixture
def noted(session: Session) -> tuple[Session, NotedRequests]:
    return noting_session(session)


def fetched(session: Session, remote: RemoteFolder, path: Path) -> list[Progress]:
    """Fetch into a path; return what was reported."""
    reports: list[Progress] = []
    fetch(session, remote, path, reports.append)
    return reports


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files below a folder by their relative paths."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()
    }


def names(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(path.name for path in folder.iterdir())


def remote_of(files: Mapping[str, bytes]) -> RemoteFolder:
    """Return the folder of the published model with these files."""
    model = published_model(files)
    listed = [
        RemoteFile(f.name, f.size, f.crc32c, StoredObject(f"census/{JOB}/{f.name}", size=str(f.size)))
        for f in model.files
    ]
    return RemoteFolder(f"{TO}/{JOB}", JOB, listed)


def test_published_model_is_fetched_exactly(service: HeldService, session: Session, tmp_path: Path) -> None:
    model = published_model()
    publish(service.home, model)
    put(service.home, f"{TO}/{JOB}/stranger.txt", b"not in the record")
    remote = published_folder(session, TO)
    assert (remote.uri, remote.job_name, remote.current) == (f"{TO}/{JOB}", JOB, current_model(model))
    assert remote.size == sum(map(len, FILES.values()))
    reports = fetched(session, remote, tmp_path / "model")
    assert contents(tmp_path / "model") == FILES
    assert reports[-1] == Progress(len(FILES), remote.size)
    assert [report.size for report in reports] == sorted(report.size for report in reports)


def test_publication_that_is_replaced_meanwhile_is_fetched_as_it_was_read(
    service: HeldService, session: Session, tmp_path: Path
) -> None:
    publish(service.home, published_model())
    remote = published_folder(session, TO)
    later = published_model({"model.txt": b"later"}, job_name=f"{JOB}_2")
    publish(service.home, later, {"model.txt": b"later"})
    fetched(session, remote, tmp_path / "model")
    assert contents(tmp_path / "model") == FILES


@pytest.mark.parametrize("distant", [False, True])
def test_large_file_is_fetched_in_parts(
    service: HeldService,
    noted: tuple[Session, NotedRequests],
    tmp_path: Path,
    distant: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, requests = noted
    session.connection.endpoint = replace(session.connection.endpoint, distant=distant)
    monkeypatch.setattr(operation, "_PART", 1000)
    files = {"large": os.urandom(20_500), "whole": os.urandom(3000), "empty": b"", "small": b"x"}
    publish(service.home, published_model(files), files)
    remote = published_folder(session, TO)
    requests.sent.clear()
    reports = fetched(session, remote, tmp_path / "model")
    assert contents(tmp_path / "model") == files
    assert len(requests.of("alt=media")) == len(requests.sent) == 21 + 3 + 1 + 1
    assert reports[-1] == Progress(4, 23_501)


def test_parts_are_read_at_once_only_from_afar(
    service: HeldService,
    noted: tuple[Session, NotedRequests],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, requests = noted
    monkeypatch.setattr(operation, "_PART", 1000)
    files = {"large": bytes(10_000)}
    publish(service.home, published_model(files), files)
    remote = published_folder(session, TO)
    threads: set[threading.Thread] = set()
    requests.before = lambda method, url: threads.add(threading.current_thread())
    fetched(session, remote, tmp_path / "near")
    assert threads == {threading.current_thread()}
    session.connection.endpoint = replace(session.connection.endpoint, distant=True)
    fetched(session, remote, tmp_path / "far")
    assert len(threads) > 2


def test_folders_that_are_objects_are_folders(service: HeldService, session: Session, tmp_path: Path) -> None:
    """Tools for buckets make such objects, as TensorFlow does."""
    files = {"assets/": b"", "variables/": b"", "variables/a": b"a"}
    remote = remote_of(files)
    put(service.home, f"{TO}/{JOB}/variables/a", b"a")
    fetched(session, remote, tmp_path / "model")
    assert contents(tmp_path / "model") == {"variables/a": b"a"}
    assert (tmp_path / "model/assets").is_dir()


@pytest.mark.parametrize(
    "hostile",
    [
        ["/etc/passwd"],
        ["../outside"],
        ["a/../../outside"],
        ["a//b"],
        ["a\\b"],
        ["a\nb"],
        ["\x1b[2J"],
        [".git/config"],
        ["a" * 256],
        ["Model.bin", "model.bin"],
        ["caf\u00e9", "cafe\u0301"],
        ["a", "a/b"],
        ["a", "a"],
        [""],
        ["a/"],
    ],
)
def test_hostile_name_is_refused_before_any_byte_is_fetched(
    noted: tuple[Session, NotedRequests], tmp_path: Path, hostile: list[str]
) -> None:
    session, requests = noted
    files = remote_of({"ok": b"x"}).files
    files = [*files, *(replace(files[0], name=name) for name in hostile)]
    remote = replace(remote_of({"ok": b"x"}), files=files)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ServiceError) as raised:
        fetched(session, remote, tmp_path / "model")
    assert f'"{hostile[-1]}"' in raised.value.message
    assert requests.sent == []
    assert sorted(tmp_path.rglob("*")) == before


def spoil_size(service: HeldService, uri: str) -> None:
    put(service.home, uri, b"weights and more")


def spoil_content(service: HeldService, uri: str) -> None:
    put(service.home, uri, b"WEIGHTS")


def shorten(service: HeldService, uri: str) -> None:
    put(service.home, uri, b"w")


def empty(service: HeldService, uri: str) -> None:
    put(service.home, uri, b"")


def remove(service: HeldService, uri: str) -> None:
    path_of(service.home, uri).unlink()


WRONG = f"{TO}/{JOB}/model.txt isn't what its size and checksum say"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_size, WRONG),
        (spoil_content, WRONG),
        (shorten, WRONG),
        (empty, WRONG),
        (remove, f"{TO}/{JOB}/model.txt is gone"),
    ],
)
@pytest.mark.parametrize("distant", [False, True])
def test_file_that_is_not_as_recorded_leaves_nothing(
    service: HeldService,
    session: Session,
    tmp_path: Path,
    spoil: Callable[[HeldService, str], None],
    message: str,
    distant: bool,
) -> None:
    session.connection.endpoint = replace(session.connection.endpoint, distant=distant)
    publish(service.home, published_model())
    remote = published_folder(session, TO)
    spoil(service, f"{TO}/{JOB}/model.txt")
    before = names(tmp_path)
    with pytest.raises(ServiceError) as raised:
        fetched(session, remote, tmp_path / "model")
    assert raised.value.message == message
    assert raised.value.hint
    assert names(tmp_path) == before


def test_file_recorded_as_empty_that_has_bytes_is_refused(
    service: HeldService, session: Session, tmp_path: Path
) -> None:
    publish(service.home, published_model())
    put(service.home, f"{TO}/{JOB}/empty", b"x")
    with pytest.raises(ServiceError, match="empty isn't what its size and checksum say"):
        fetched(session, published_folder(session, TO), tmp_path / "model")


def test_object_with_content_encoding_is_refused(
    service: HeldService, session: Session, tmp_path: Path
) -> None:
    """Cloud Storage would unpack it, and its checksum is that of the packed bytes."""
    publish(service.home, published_model())
    url = f"{service.url}/upload/storage/v1/b/risk-models/o?uploadType=multipart"
    about = json.dumps({"name": f"census/{JOB}/model.txt", "contentEncoding": "gzip"})
    parts = [f"Content-Type: application/json\r\n\r\n{about}", "Content-Type: text/plain\r\n\r\nweights"]
    body = "".join(f"--b\r\n{part}\r\n" for part in parts) + "--b--"
    headers = {"Authorization": f"Bearer {service.token}", "Content-Type": "multipart/related; boundary=b"}
    answer = urllib3.request("POST", url, body=body, headers=headers)
    assert answer.status == 200, answer.data
    with pytest.raises(ServiceError, match="it is encoded"):
        fetched(session, published_folder(session, TO), tmp_path / "model")
    assert names(tmp_path) == ["home"]


@pytest.mark.parametrize(
    ("status", "hint"), [(403, "roles/storage.objectViewer on gs://risk-models"), (429, "quota")]
)
def test_refusal_leaves_nothing_and_has_remedy(
    service: HeldService,
    noted: tuple[Session, NotedRequests],
    tmp_path: Path,
    status: int,
    hint: str,
) -> None:
    session, requests = noted
    publish(service.home, published_model())
    remote = published_folder(session, TO)
    requests.refused = {"model.txt": status}
    with pytest.raises(ServiceError, match=f"{TO}/{JOB} can't be read: refused with {status}") as raised:
        fetched(session, remote, tmp_path / "model")
    assert hint in raised.value.hint
    assert names(tmp_path) == ["home"]


def test_more_than_the_disk_has_is_refused_before_any_byte_is_fetched(
    noted: tuple[Session, NotedRequests], tmp_path: Path
) -> None:
    session, requests = noted
    remote = remote_of({"large": b"x"})
    remote = replace(remote, files=[replace(remote.files[0], size=2**62)])
    with pytest.raises(ReconcilerError, match="the disk has"):
        fetched(session, remote, tmp_path / "model")
    assert requests.sent == []
    assert names(tmp_path) == ["home"]


def test_address_without_publication_has_nothing_to_fetch(service: HeldService, session: Session) -> None:
    with pytest.raises(NotFoundError, match=f"nothing is published at {TO} yet") as raised:
        published_folder(session, TO)
    assert "--run JOB_NAME" in raised.value.hint
    publish(service.home, published_model())
    path_of(service.home, f"{TO}/{JOB}/manifest.json").unlink()
    with pytest.raises(NotFoundError, match=r"census/current\.json names .* which has no manifest\.json"):
        published_folder(session, TO)


def test_folder_of_a_run_is_listed_with_checksums(
    service: HeldService, session: Session, tmp_path: Path
) -> None:
    for name, content in FILES.items():
        put(service.home, f"{RUNS}/model/{name}", content)
    put(service.home, f"{RUNS}-2/model/other", b"")
    remote = folder_of(session, custom_run(f"{RUNS}/"))
    assert (remote.uri, remote.current) == (RUNS, None)
    expected = sorted((f"model/{name}", len(text), crc32c_of(text)) for name, text in FILES.items())
    assert [(file.name, file.size, file.crc32c) for file in remote.files] == expected
    fetched(session, remote, tmp_path / "run")
    assert contents(tmp_path / "run/model") == FILES


def test_folder_of_a_run_may_be_a_whole_bucket(service: HeldService, session: Session) -> None:
    put(service.home, "gs://acme-runs/a/b", b"x")
    remote = folder_of(session, custom_run("gs://acme-runs"))
    assert [file.name for file in remote.files] == ["a/b"]


def test_object_of_a_run_that_changes_meanwhile_leaves_nothing(
    service: HeldService, session: Session, tmp_path: Path
) -> None:
    put(service.home, f"{RUNS}/model.txt", b"weights")
    remote = folder_of(session, custom_run(RUNS))
    put(service.home, f"{RUNS}/model.txt", b"WEIGHTS")
    with pytest.raises(ServiceError, match=r"model\.txt is gone") as raised:
        fetched(session, remote, tmp_path / "run")
    assert "fetch again" in raised.value.hint
    assert names(tmp_path) == ["home"]


@pytest.mark.parametrize(
    ("folder", "why"),
    [
        ("", "has no output directory"),
        ("file:///tmp", "which is not in Cloud Storage"),
        (RUNS, "has no files"),
    ],
)
def test_run_without_files_has_nothing_to_fetch(
    service: HeldService, session: Session, folder: str, why: str
) -> None:
    put(service.home, f"{RUNS}-other/a", b"")
    with pytest.raises(NotFoundError, match=why) as raised:
        folder_of(session, custom_run(folder))
    assert raised.value.hint


def test_run_with_too_many_files_is_refused(
    service: HeldService, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operation, "MOST_FILES", 3)
    for number in range(4):
        put(service.home, f"{RUNS}/{number}", b"")
    with pytest.raises(ServiceError, match=f"{RUNS} has more than 3 objects"):
        folder_of(session, custom_run(RUNS))


def test_empty_file_with_the_checksum_of_other_bytes_is_refused(
    service: HeldService, session: Session, tmp_path: Path
) -> None:
    put(service.home, f"{TO}/{JOB}/a", b"x")
    remote = remote_of({"a": b"x"})
    remote = replace(remote, files=[replace(remote.files[0], size=0)])
    with pytest.raises(ServiceError, match="a isn't what its size and checksum say"):
        fetched(session, remote, tmp_path / "model")


class Stripping:
    """A transport whose listings lack a field."""

    def __init__(self, transport: Transport, field: str) -> None:
        self._transport = transport
        self._field = field

    def send(self, request: HttpRequest) -> HttpResponse:
        response = self._transport.send(request)
        listed = json.loads(response.body)
        for item in listed.get("items", ()):
            item.pop(self._field, None)
        return replace(response, body=json.dumps(listed).encode())


@pytest.mark.parametrize("field", ["crc32c", "size", "generation"])
def test_listing_without_checksums_is_refused(service: HeldService, session: Session, field: str) -> None:
    put(service.home, f"{RUNS}/a", b"x")
    endpoint = session.connection.endpoint
    session.connection.endpoint = replace(endpoint, transport=Stripping(endpoint.transport, field))
    with pytest.raises(ServiceError, match="a is listed without its size or its checksum") as raised:
        folder_of(session, custom_run(RUNS))
    assert raised.value.hint


def test_objects_of_a_run_that_stand_for_folders_are_left_out(
    service: HeldService, session: Session, tmp_path: Path
) -> None:
    url = f"{service.url}/upload/storage/v1/b/acme-runs/o"
    put(service.home, f"{RUNS}/a", b"x")
    for name in (f"{JOB}/", f"{JOB}/assets/"):
        fields = {"uploadType": "media", "name": name}
        headers = {"Authorization": f"Bearer {service.token}"}
        answer = urllib3.request("POST", f"{url}?{urlencode(fields)}", body=b"", headers=headers)
        assert answer.status == 200, answer.data
    remote = folder_of(session, custom_run(RUNS))
    assert [file.name for file in remote.files] == ["a"]
    fetched(session, remote, tmp_path / "run")
    assert contents(tmp_path / "run") == {"a": b"x"}
