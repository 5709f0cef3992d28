"""Copies in one call and in parts, with Google's clients and with requests that no client would send."""

from __future__ import annotations

import base64
import errno
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import googleapiclient.discovery
import pytest
import urllib3
from google.cloud import storage
from google.oauth2.credentials import Credentials

from reconciler.training_service.http import discovery
from reconciler.training_service.storage import copies
from reconciler.training_service.storage.upload_sessions import SESSION_DAYS, Uploads, copy_range
from tests.support.training_service.processes import Processes
from tests.support.training_service.served import TOKEN, Answer, Service
from tests.support.waiting import PATIENCE

MIB = 1024**2
SOURCE = "/storage/v1/b/here/o/a"
TARGET = "/storage/v1/b/away/o/c"
REWRITE = f"{SOURCE}/rewriteTo/b/away/o/c"
IN_PARTS = f"{REWRITE}?maxBytesRewrittenPerCall={MIB}"
DATA = os.urandom(2 * MIB) + b"the end"
"""Content of three parts."""


@pytest.fixture(autouse=True)
def buckets(service: Service) -> None:
    service.post("/storage/v1/b?project=demo", {"name": "here"})
    service.post("/storage/v1/b?project=demo", {"name": "away", "location": "EU"})


def put(service: Service, bucket: str = "here", name: str = "a", data: bytes = DATA) -> dict[str, Any]:
    made: dict[str, Any] = service.call(
        "POST",
        f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}",
        data,
        {"Content-Type": "text/x"},
    ).json
    return made


def content(service: Service) -> bytes:
    return service.get(f"{TARGET}?alt=media").content


def begun(service: Service, query: str = "", body: Any = None) -> str:
    """Copy the first part; return the token."""
    answer = service.post(IN_PARTS + query, body)
    assert answer.status == 200, answer.content
    assert answer.json["done"] is False
    return str(answer.json["rewriteToken"])


def go_on(service: Service, token: str, query: str = "", body: Any = None) -> Answer:
    return service.post(f"{IN_PARTS}{query}&rewriteToken={token}", body)


def to_the_end(service: Service, token: str, query: str = "", body: Any = None) -> dict[str, Any]:
    while True:
        answer = go_on(service, token, query, body)
        assert answer.status == 200, answer.content
        if answer.json["done"]:
            resource: dict[str, Any] = answer.json["resource"]
            return resource
        token = answer.json["rewriteToken"]


def left(service: Service) -> list[Path]:
    """Return the files of copies that haven't ended."""
    return sorted((service.home / "uploads").glob("*"))


def official(service: Service) -> storage.Client:
    options = {"api_endpoint": service.url}
    return storage.Client(project="demo", credentials=Credentials(TOKEN), client_options=options)


def test_the_official_client_copies_in_parts(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies, "LARGEST_PART", MIB)
    made = put(service)
    client = official(service)
    source, target = client.bucket("here").blob("a"), client.bucket("away").blob("c")
    steps, token = [], None
    while not steps or token is not None:
        token, copied, size = target.rewrite(source, token=token, if_generation_match=0)
        steps.append((copied, size, target.exists()))
    size = len(DATA)
    assert steps == [(MIB, size, False), (2 * MIB, size, False), (size, size, True)]
    assert (target.md5_hash, target.crc32c) == (made["md5Hash"], made["crc32c"])
    assert target.download_as_bytes() == DATA


def test_the_generated_client_copies_in_parts(service: Service) -> None:
    made = put(service)
    service.call("PATCH", SOURCE, {"metadata": {"k": "v"}})
    document = {**discovery.document("storage.v1"), "rootUrl": service.url + "/"}
    api = googleapiclient.discovery.build_from_document(document, credentials=Credentials(token=TOKEN))
    names = {
        "sourceBucket": "here",
        "sourceObject": "a",
        "destinationBucket": "away",
        "destinationObject": "c",
        "maxBytesRewrittenPerCall": str(MIB),
    }
    answer = api.objects().rewrite(**names).execute()
    sizes = [answer["totalBytesRewritten"]]
    while not answer["done"]:
        assert "resource" not in answer
        assert service.get(TARGET).status == 404
        answer = api.objects().rewrite(**names, rewriteToken=answer["rewriteToken"]).execute()
        sizes.append(answer["totalBytesRewritten"])
    assert sizes == [str(MIB), str(2 * MIB), answer["objectSize"]]
    assert "rewriteToken" not in answer
    same = ("md5Hash", "crc32c", "size", "contentType")
    assert [answer["resource"][key] for key in same] == [made[key] for key in same]
    assert answer["resource"]["metadata"] == {"k": "v"}
    assert content(service) == DATA


@pytest.mark.parametrize(
    ("target", "body", "in_parts"),
    [
        ("here/o/c", {}, False),
        ("near/o/c", {}, False),
        ("here/o/c", {"storageClass": "STANDARD"}, False),
        ("here/o/c", {"storageClass": "NEARLINE"}, True),
        ("away/o/c", {}, True),
    ],
)
def test_a_copy_without_a_limit_is_in_parts_where_the_cloud_s_is(
    target: str, body: Any, in_parts: bool, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copies, "LARGEST_PART", MIB)
    service.post("/storage/v1/b?project=demo", {"name": "near"})
    put(service)
    answer = service.post(f"{SOURCE}/rewriteTo/b/{target}", body).json
    assert answer["done"] is not in_parts
    small = put(service, name="small", data=DATA[:MIB])
    answer = service.post(f"/storage/v1/b/here/o/small/rewriteTo/b/{target}", body).json
    assert (answer["done"], answer["totalBytesRewritten"]) == (True, small["size"])
    assert service.post(f"{SOURCE}/copyTo/b/{target}").json["md5Hash"]


def test_a_limit_is_a_multiple_of_a_mebibyte(service: Service) -> None:
    put(service)
    for most in (-MIB, 0, 1, MIB - 1, MIB + 1):
        answer = service.post(f"{REWRITE}?maxBytesRewrittenPerCall={most}")
        assert answer.error == f"INVALID_ARGUMENT: maxBytesRewrittenPerCall must be a multiple of {MIB}."
    assert service.post(f"{REWRITE}?maxBytesRewrittenPerCall={3 * MIB}").json["done"]
    assert left(service) == []


def test_a_later_call_may_leave_out_what_the_first_said(service: Service) -> None:
    put(service)
    token = begun(service, "&ifGenerationMatch=0", {"contentType": "a/b", "metadata": {"k": "v"}})
    answer = service.post(f"{REWRITE}?rewriteToken={token}").json
    assert (answer["done"], answer["totalBytesRewritten"]) == (False, str(2 * MIB))
    made = service.post(f"{REWRITE}?rewriteToken={token}&prettyPrint=false").json["resource"]
    assert (made["contentType"], made["metadata"]) == ("a/b", {"k": "v"})
    assert content(service) == DATA


def test_a_token_belongs_to_its_request(service: Service) -> None:
    put(service)
    put(service, name="b")
    body = {"contentType": "a/b"}
    token = begun(service, "&ifGenerationMatch=0", body)
    tampered = token[:-1] + ("A" if token[-1] != "A" else "B")
    listed = service.get("/storage/v1/b/here/o?maxResults=1").json["nextPageToken"]
    for path, given in (
        (f"{IN_PARTS}&rewriteToken=x", body),
        (f"{IN_PARTS}&rewriteToken={tampered}", body),
        (f"{IN_PARTS}&rewriteToken={listed}", body),
        (f"/storage/v1/b/here/o/b/rewriteTo/b/away/o/c?rewriteToken={token}", {}),
        (f"{SOURCE}/rewriteTo/b/away/o/d?rewriteToken={token}", {}),
        (f"{SOURCE}/rewriteTo/b/here/o/c?rewriteToken={token}", {}),
        (f"{REWRITE}?maxBytesRewrittenPerCall={2 * MIB}&rewriteToken={token}", body),
        (f"{IN_PARTS}&ifGenerationMatch=1&rewriteToken={token}", body),
        (f"{IN_PARTS}&ifSourceMetagenerationMatch=1&rewriteToken={token}", body),
        (f"{IN_PARTS}&rewriteToken={token}", {"contentType": "c/d"}),
    ):
        answer = service.post(path, given)
        assert (answer.status, answer.json["error"]["errors"][0]["reason"]) == (400, "invalid"), path
    assert service.get(TARGET).status == 404
    assert to_the_end(service, token, "&ifGenerationMatch=0", body)["contentType"] == "a/b"
    assert content(service) == DATA


def test_a_copy_s_token_opens_no_upload(service: Service) -> None:
    put(service)
    token = begun(service)
    upload = json.loads(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))[16:])
    place = f"/upload/storage/v1/b/away/o?uploadType=resumable&upload_id={upload}"
    assert service.call("PUT", place, b"foreign").status == service.call("DELETE", place).status == 400
    to_the_end(service, token)
    assert content(service) == DATA


@pytest.mark.parametrize(
    ("query", "status"),
    [("", 404), ("&sourceGeneration={}", 404), ("&ifSourceGenerationMatch={}", 412)],
)
@pytest.mark.parametrize("how", ["put", "written", "deleted"])
def test_a_source_that_changes_between_two_calls_ends_the_copy(
    how: str, query: str, status: int, service: Service
) -> None:
    query = query.format(put(service)["generation"])
    token = begun(service, query)
    if how == "put":
        put(service)  # the same content: it's another generation nevertheless
    elif how == "written":
        file = service.home / "gcs" / "here" / "a"
        file.write_bytes(DATA[::-1])
        os.utime(file, (time.time() - 10, time.time() - 10))
    else:
        assert service.call("DELETE", SOURCE).status == 204
    assert go_on(service, token, query).status == (404 if how == "deleted" else status)
    assert left(service) == []
    gone = go_on(service, token, query)
    assert (gone.status, gone.json["error"]["errors"][0]["reason"]) == (410, "gone")
    assert service.get(TARGET).status == 404


def test_a_target_that_appears_between_two_calls_stays(service: Service) -> None:
    put(service)
    token = begun(service, "&ifGenerationMatch=0")
    assert go_on(service, token, "&ifGenerationMatch=0").json["done"] is False
    other = put(service, "away", "c", b"other")
    assert go_on(service, token, "&ifGenerationMatch=0").status == 412
    assert service.get(TARGET).json["generation"] == other["generation"]
    assert content(service) == b"other"
    assert left(service) == []


def test_a_target_that_appears_within_the_last_call_stays(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(service, data=DATA[: 2 * MIB])
    token = begun(service, "&ifGenerationMatch=0")

    def overtaken(*arguments: Any) -> None:
        copy_range(*arguments)
        put(service, "away", "c", b"other")

    monkeypatch.setattr(copies, "copy_range", overtaken)
    assert go_on(service, token, "&ifGenerationMatch=0").status == 412
    assert content(service) == b"other"
    assert left(service) == []


def test_what_the_end_would_refuse_is_refused_before_a_byte_is_copied(service: Service) -> None:
    put(service)
    put(service, "away", "c", b"held")
    service.call("PATCH", TARGET, {"temporaryHold": True})
    assert service.post(IN_PARTS).status == 403
    assert service.post(f"{IN_PARTS}&ifGenerationMatch=0").status == 412
    assert service.post(f"{SOURCE}/rewriteTo/b/none/o/c?maxBytesRewrittenPerCall={MIB}").status == 404
    assert service.post(IN_PARTS, {"kmsKeyName": "k"}).status == 501
    assert left(service) == []
    assert content(service) == b"held"


def test_a_client_that_misses_an_answer_asks_again(service: Service) -> None:
    put(service)
    token = begun(service, "&ifGenerationMatch=0")
    made = to_the_end(service, token, "&ifGenerationMatch=0")
    again = go_on(service, token, "&ifGenerationMatch=0").json
    assert (again["done"], again["resource"]) == (True, made)
    assert service.get(TARGET).json["generation"] == made["generation"]


def test_a_part_that_was_cut_off_is_copied_again(service: Service) -> None:
    put(service)
    token = begun(service)
    (part,) = (service.home / "uploads").glob("*.part")
    with part.open("ab") as file:
        file.write(b"torn" * MIB)
    to_the_end(service, token)
    assert content(service) == DATA


def test_a_copy_that_nobody_goes_on_with_is_removed_after_a_week(service: Service) -> None:
    put(service)
    token = begun(service)
    for days, kept in ((SESSION_DAYS - 1, True), (SESSION_DAYS + 1, False)):
        then = time.time() - days * 24 * 3600
        for path in left(service):
            os.utime(path, (then, then))
        Uploads(service.home).clean()
        assert (left(service) != []) is kept
    assert go_on(service, token).status == 410


def test_a_source_that_changes_while_it_is_copied_makes_no_object(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(service)

    def changed(*arguments: Any) -> None:
        with (service.home / "gcs" / "here" / "a").open("r+b") as file:
            file.write(b"changed")
        copy_range(*arguments)

    monkeypatch.setattr(copies, "copy_range", changed)
    assert service.post(REWRITE).error == "UNAVAILABLE: here/a changes whenever it is looked at."
    assert service.get(TARGET).status == 404
    assert left(service) == []
    monkeypatch.undo()
    assert service.post(REWRITE).json["done"]
    assert content(service) == b"changed" + DATA[7:]


def test_a_source_that_grows_while_it_is_copied_is_copied_as_it_was(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(service)

    def grown(*arguments: Any) -> None:
        with (service.home / "gcs" / "here" / "a").open("ab") as file:
            file.write(b"more")
        copy_range(*arguments)

    monkeypatch.setattr(copies, "copy_range", grown)
    assert service.post(REWRITE).json["done"]
    assert content(service) == DATA


def test_other_requests_are_answered_while_a_part_is_copied(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(service)
    copying, others_answered = threading.Event(), threading.Event()

    def waited(*arguments: Any) -> None:
        copying.set()
        assert others_answered.wait(PATIENCE)
        copy_range(*arguments)

    monkeypatch.setattr(copies, "copy_range", waited)
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(service.post(IN_PARTS)))
    thread.start()
    assert copying.wait(PATIENCE)
    assert put(service, name="b", data=b"b")["size"] == "1"
    assert service.get(SOURCE).status == 200
    assert service.call("DELETE", "/storage/v1/b/here/o/b").status == 204
    others_answered.set()
    thread.join(PATIENCE)
    assert answers[0].json["totalBytesRewritten"] == str(MIB)


@pytest.mark.slow
def test_a_full_disk_leaves_the_copy_where_it_was(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    put(service)
    token = begun(service)

    def full(*arguments: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "copy_file_range", full)
        patched.setattr(os, "pwrite", full)
        assert go_on(service, token).status == 503
    to_the_end(service, token)
    assert content(service) == DATA


@pytest.mark.slow
def test_a_large_sparse_file_is_copied_by_gibibytes(service: Service) -> None:
    size = 2 * copies.LARGEST_PART + MIB
    with (service.home / "gcs" / "here" / "a").open("xb") as file:
        file.truncate(size)
        os.pwrite(file.fileno(), DATA, copies.LARGEST_PART - MIB)
        os.utime(file.fileno(), (1e9, 1e9))  # a file that was just written would be read once more
    client = official(service)
    source, target = client.bucket("here").get_blob("a"), client.bucket("away").blob("c")
    assert source is not None
    steps, token = [], None
    while not steps or token is not None:
        token, copied, _ = target.rewrite(source, token=token)
        steps.append(copied)
    assert steps == [copies.LARGEST_PART, 2 * copies.LARGEST_PART, size]
    assert (target.size, target.crc32c, target.md5_hash) == (size, source.crc32c, source.md5_hash)
    copy = service.home / "gcs" / "away" / "c"
    assert copy.stat().st_blocks * 512 <= 4 * MIB
    with copy.open("rb") as file:
        assert os.pread(file.fileno(), len(DATA), copies.LARGEST_PART - MIB) == DATA


@pytest.mark.slow
def test_a_copy_goes_on_after_the_service_was_killed(tmp_path: Path) -> None:
    processes = Processes(tmp_path / "killed")
    try:
        process, found = processes.start_and_wait()

        def post(path: str, body: Any, status: int = 200) -> Any:
            answer = urllib3.request(
                "POST",
                found.url + path,
                body=body if isinstance(body, bytes) else json.dumps(body).encode(),
                headers={"Authorization": f"Bearer {found.token}"},
                retries=False,
                timeout=PATIENCE,
            )
            assert answer.status == status, answer.data
            return answer.json()

        post("/storage/v1/b?project=demo", {"name": "here"})
        post("/storage/v1/b?project=demo", {"name": "away"})
        post("/upload/storage/v1/b/here/o?uploadType=media&name=a", DATA)
        token = post(IN_PARTS, {})["rewriteToken"]
        for copied, done in ((2 * MIB, False), (len(DATA), True)):
            process.kill()
            process.wait(PATIENCE)
            process, found = processes.start_and_wait()
            assert list((processes.home / "gcs" / "away").iterdir()) == []
            answer = post(f"{IN_PARTS}&rewriteToken={token}", {})
            assert (answer["totalBytesRewritten"], answer["done"]) == (str(copied), done)
        assert (processes.home / "gcs" / "away" / "c").read_bytes() == DATA
    finally:
        for started in processes.started:
            started.kill()
            started.communicate()
