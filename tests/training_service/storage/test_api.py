"""Rarely used parts of the Cloud Storage JSON API over HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import quote

import google_crc32c
import pytest
import urllib3

from tests.support.training_service import trainers
from tests.support.training_service.served import TOKEN, Answer, Service

BUCKET = "/storage/v1/b/bucket"
UPLOAD = "/upload/storage/v1/b/bucket/o"


@pytest.fixture(autouse=True)
def bucket(service: Service) -> None:
    assert service.post("/storage/v1/b?project=demo", {"name": "bucket"}).status == 200


def put(service: Service, name: str, data: bytes = b"data", query: str = "", **headers: str) -> Answer:
    own = {key.replace("_", "-"): value for key, value in headers.items()}
    return service.call("POST", f"{UPLOAD}?uploadType=media&name={quote(name, safe='')}{query}", data, own)


def path(name: str) -> str:
    return f"{BUCKET}/o/{quote(name, safe='')}"


def names(service: Service, query: str = "") -> list[str]:
    answer = service.get(f"{BUCKET}/o?{query}").json
    return [item["name"] for item in answer.get("items", [])] + answer.get("prefixes", [])


def test_a_path_of_bucket_and_object_is_a_download(service: Service) -> None:
    put(service, "a b/c", b"content")
    assert service.get("/bucket/a%20b/c").content == service.get("/bucket/a%20b%2Fc").content == b"content"
    part = service.call("GET", "/bucket/a%20b/c", headers={"Range": "bytes=2-3"})
    assert (part.status, part.content) == (206, b"nt")
    assert service.get("/bucket/none").status == service.get("/no-bucket/x").status == 404
    assert service.call("PUT", "/bucket/x", b"").status == 501


def test_a_body_in_chunks_is_an_upload_of_every_kind(service: Service) -> None:
    def pieces(content: bytes) -> Iterator[bytes]:
        yield from (content[:5], content[5:])

    content = b"0123456789" * 1000
    simple = {"Content-Type": "text/plain"}
    parts = b"--x\r\n\r\n{}\r\n--x\r\n\r\n" + content + b"\r\n--x--"
    started = service.call("POST", f"{UPLOAD}?uploadType=resumable&name=resumable", b"")
    session = started.headers["location"].removeprefix(service.url)
    for method, place, body, headers in (
        ("POST", f"{UPLOAD}?uploadType=media&name=media", content, simple),
        (
            "POST",
            f"{UPLOAD}?uploadType=multipart&name=multipart",
            parts,
            {"Content-Type": "multipart/related; boundary=x"},
        ),
        ("PUT", session, content, simple),
    ):
        answer = urllib3.request(
            method,
            service.url + place,
            body=pieces(body),
            headers={"Authorization": f"Bearer {TOKEN}", **headers},
            retries=False,
        )
        assert (answer.status, answer.json()["size"]) == (200, "10000")
    assert names(service) == ["media", "multipart", "resumable"]


def test_a_bucket_is_made_once(service: Service) -> None:
    made = service.post(
        "/storage/v1/b?project=demo", {"name": "other", "location": "EU", "labels": {"a": "b"}}
    ).json
    assert (made["name"], made["location"], made["labels"]) == ("other", "EU", {"a": "b"})
    assert service.get("/storage/v1/b/other").json == made
    assert service.post("/storage/v1/b?project=demo", {"name": "other"}).error.startswith("ALREADY_EXISTS")
    listed = service.get("/storage/v1/b?project=demo&maxResults=1").json
    assert [each["name"] for each in listed["items"]] == ["bucket"]
    listed = service.get(f"/storage/v1/b?project=demo&pageToken={listed['nextPageToken']}").json
    assert [each["name"] for each in listed["items"]] == ["other"]
    assert service.get("/storage/v1/b?project=demo&prefix=ot").json["items"] == [made]


def test_a_folder_that_somebody_made_is_a_bucket(service: Service) -> None:
    (service.home / "gcs/by-hand").mkdir()
    (service.home / "gcs/link").symlink_to(service.home)
    (service.home / "gcs/No-Bucket").mkdir()
    assert [each["name"] for each in service.get("/storage/v1/b?project=p").json["items"]] == [
        "bucket",
        "by-hand",
    ]
    assert service.get("/storage/v1/b/by-hand").status == 200
    assert service.get("/storage/v1/b/link").status == 404


@pytest.mark.slow
@pytest.mark.parametrize(
    "body", [{}, {"name": "A"}, {"name": ".."}, {"name": "a..b"}, {"name": "b/c"}, {"name": "ab\n"}]
)
def test_no_bucket_has_such_a_name(service: Service, body: dict[str, Any]) -> None:
    assert service.post("/storage/v1/b?project=demo", body).status == 400


def test_what_a_bucket_cannot_do_here_is_refused(service: Service) -> None:
    answer = service.post("/storage/v1/b?project=demo", {"name": "other", "versioning": {"enabled": True}})
    assert answer.error == "UNIMPLEMENTED: This service keeps no versioning of a bucket."
    body = {"name": "other", "defaultEventBasedHold": False}
    assert service.post("/storage/v1/b?project=demo", body).status == 200


def test_an_object_has_its_checksums(service: Service) -> None:
    made = put(service, "a", b"hello", content_type="text/plain").json
    assert made["md5Hash"] == base64.b64encode(hashlib.md5(b"hello").digest()).decode()
    crc = google_crc32c.value(b"hello").to_bytes(4, "big")
    assert made["crc32c"] == base64.b64encode(crc).decode()
    assert (made["size"], made["contentType"], made["metageneration"]) == ("5", "text/plain", "1")
    assert service.get(path("a")).json == made
    down = service.get(path("a") + "?alt=media")
    assert down.content == b"hello"
    assert down.headers["x-goog-hash"] == f"crc32c={made['crc32c']},md5={made['md5Hash']}"
    assert down.headers["x-goog-generation"] == made["generation"]
    assert down.headers["etag"] == f'"{made["etag"]}"'


def test_generations_grow_though_the_clock_stands_still_or_goes_back(service: Service) -> None:
    found = []
    for _ in range(3):
        found.append(int(put(service, "a").json["generation"]))
        service.clock.advance(-10)
    service.call("DELETE", path("a"))
    found.append(int(put(service, "a").json["generation"]))
    assert found == sorted(set(found))


def multipart(
    service: Service, parts: list[tuple[str, bytes]], end: bytes = b"\r\n", query: str = ""
) -> Answer:
    body = b""
    for kind, content in parts:
        body += b"--=b=" + end + b"Content-Type: " + kind.encode() + end + end + content + end
    headers = {"Content-Type": 'multipart/related; boundary="=b="'}
    return service.call("POST", f"{UPLOAD}?uploadType=multipart{query}", body + b"--=b=--" + end, headers)


@pytest.mark.slow
@pytest.mark.parametrize("end", [b"\r\n", b"\n"])
@pytest.mark.parametrize(
    "data", [b"", b"\r", b"\n", b"a\r\n--=b", b"x" * 700_000 + b"\r\n\r", b"\r\n--=c=\r\n" * 9]
)
def test_a_multipart_upload_keeps_every_byte(service: Service, end: bytes, data: bytes) -> None:
    about = json.dumps({"name": "a", "metadata": {"k": "v"}}).encode()
    made = multipart(service, [("application/json", about), ("text/x", data)], end)
    assert made.status == 200, made.content
    assert (made.json["contentType"], made.json["metadata"]) == ("text/x", {"k": "v"})
    assert service.get(path("a") + "?alt=media").content == data


@pytest.mark.slow
@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"--=b=\r\n",
        b"--=b=\r\n\r\n{}\r\n--=b=--",
        b"--=b=\r\n\r\n{}\r\n--=b=\r\n\r\ncut",
        b"--=x=\r\n\r\n",
    ],
)
def test_a_multipart_upload_that_ends_too_early_is_refused(service: Service, body: bytes) -> None:
    headers = {"Content-Type": "multipart/related; boundary==b="}
    assert service.call("POST", f"{UPLOAD}?uploadType=multipart&name=a", body, headers).status == 400
    assert names(service) == []
    assert (
        service.call("POST", f"{UPLOAD}?uploadType=multipart", b"", {"Content-Type": "text/plain"}).status
        == 400
    )


def test_content_that_isnt_what_it_is_said_to_be_is_refused(service: Service) -> None:
    right = base64.b64encode(hashlib.md5(b"data").digest()).decode()
    wrong = base64.b64encode(hashlib.md5(b"date").digest()).decode()
    about = json.dumps({"name": "a", "md5Hash": wrong}).encode()
    assert "doesn't match" in multipart(service, [("application/json", about), ("x/y", b"data")]).error
    assert "doesn't match" in put(service, "a", x_goog_hash=f"crc32c=AAAAAA==,md5={right}").error
    assert names(service) == []
    assert put(service, "a", x_goog_hash=f"md5={right}").status == 200


def begin(service: Service, query: str = "", about: dict[str, Any] | None = None) -> str:
    answer = service.post(f"{UPLOAD}?uploadType=resumable{query}", about or {"name": "a"})
    assert answer.status == 200, answer.content
    return answer.headers["location"].removeprefix(service.url)


def chunk(service: Service, session: str, data: bytes, span: str) -> Answer:
    return service.call("PUT", session, data, {"Content-Range": f"bytes {span}"})


def test_a_resumable_upload_goes_on_where_it_was_cut(service: Service) -> None:
    session = begin(service)
    asked = chunk(service, session, b"", "*/*")
    assert (asked.status, "range" in asked.headers) == (308, False)
    sent = chunk(service, session, b"abcd", "0-3/*")
    assert (sent.status, sent.headers["range"]) == (308, "bytes=0-3")
    assert chunk(service, session, b"", "*/10").headers["range"] == "bytes=0-3"
    assert chunk(service, session, b"cdef", "2-5/*").headers["range"] == "bytes=0-5"
    assert chunk(service, session, b"zz", "8-9/10").status == 400
    assert names(service) == []
    done = chunk(service, session, b"ghij", "6-9/10")
    assert done.status == 200
    assert service.get(path("a") + "?alt=media").content == b"abcdefghij"
    put(service, "a", b"other")
    again = chunk(service, session, b"", "*/10")
    assert (again.status, again.json) == (200, done.json)


def test_an_empty_resumable_upload_is_an_empty_object(service: Service) -> None:
    assert chunk(service, begin(service), b"", "*/0").json["size"] == "0"
    session = begin(service, about={"name": "b"})
    assert service.call("PUT", session, b"all at once").json["size"] == "11"


def test_a_resumable_upload_checks_its_preconditions_at_its_end(service: Service) -> None:
    session = begin(service, "&ifGenerationMatch=0")
    put(service, "a", b"first")
    assert chunk(service, session, b"late", "0-3/4").status == 412
    assert service.get(path("a") + "?alt=media").content == b"first"
    assert chunk(service, session, b"late", "0-3/4").status == 404


def test_a_resumable_upload_can_be_given_up(service: Service) -> None:
    session = begin(service)
    assert service.call("DELETE", session).status == 499
    assert chunk(service, session, b"x", "0-0/1").status == 404
    for bad in ("../state", "x", ""):
        assert service.call("PUT", f"{UPLOAD}?upload_id={bad}", b"x").status in (400, 404)
    assert chunk(service, begin(service), b"x", "nonsense").status == 400
    assert chunk(service, begin(service), b"xyz", "0-2/2").status == 400
    other = begin(service).replace("/b/bucket/", "/b/other/")
    assert chunk(service, other, b"x", "0-0/1").status == 400


def test_go_clients_are_told_to_go_on_in_their_own_way(service: Service) -> None:
    headers = {"Content-Range": "bytes 0-3/*", "X-GUploader-No-308": "yes"}
    answer = service.call("PUT", begin(service), b"abcd", headers)
    assert (answer.status, answer.headers["x-http-status-code-override"]) == (200, "308")


@pytest.mark.slow
def test_preconditions(service: Service) -> None:
    assert put(service, "a", query="&ifGenerationMatch=1").status == 412
    first = put(service, "a", query="&ifGenerationMatch=0").json["generation"]
    assert put(service, "a", query="&ifGenerationMatch=0").status == 412
    assert put(service, "a", query=f"&ifGenerationNotMatch={first}").status == 412
    assert put(service, "b", query="&ifGenerationNotMatch=1").status == 412
    assert put(service, "a", query="&ifMetagenerationMatch=2").status == 412
    second = put(service, "a", query=f"&ifGenerationMatch={first}").json["generation"]
    assert service.get(path("a") + f"?ifGenerationMatch={first}").status == 412
    assert service.get(path("a") + f"?ifGenerationNotMatch={second}").status == 304
    assert service.get(path("a") + f"?alt=media&ifGenerationNotMatch={second}").status == 304
    assert service.get(path("a") + f"?ifGenerationNotMatch={first}").status == 200
    assert service.get(path("a") + "?ifMetagenerationMatch=2").status == 412
    assert service.get(path("a") + f"?generation={first}").status == 404
    assert service.get(path("a") + f"?generation={second}").status == 200
    assert service.get(path("none") + "?ifGenerationMatch=0").status == 404
    patch = service.call("PATCH", path("a") + "?ifMetagenerationMatch=7", {"contentType": "x/y"})
    assert patch.status == 412
    assert patch.json["error"]["errors"][0]["reason"] == "conditionNotMet"
    assert service.call("DELETE", path("a") + f"?ifGenerationMatch={first}").status == 412
    assert service.call("DELETE", path("a") + f"?generation={first}").status == 404
    assert service.call("DELETE", path("a") + f"?ifGenerationMatch={second}").status == 204
    assert service.call("DELETE", path("a")).status == 404


def test_a_patch_changes_what_it_names(service: Service) -> None:
    about = json.dumps({"name": "a", "metadata": {"k": "v", "gone": "x"}, "contentLanguage": "en"}).encode()
    made = multipart(service, [("application/json", about), ("text/x", b"data")]).json
    body = {
        "metadata": {"gone": None, "new": "1"},
        "contentLanguage": None,
        "cacheControl": "no-store",
        "size": "9",
    }
    changed = service.call("PATCH", path("a"), body).json
    assert changed["metadata"] == {"k": "v", "new": "1"}
    assert ("contentLanguage" in changed, changed["cacheControl"], changed["size"]) == (
        False,
        "no-store",
        "4",
    )
    assert (changed["generation"], changed["metageneration"]) == (made["generation"], "2")
    assert "metadata" not in service.call("PATCH", path("a"), {"metadata": None}).json
    assert service.call("PATCH", path("none"), {}).status == 404


def test_ranges(service: Service) -> None:
    put(service, "a", b"0123456789")

    def part(span: str) -> tuple[int, bytes]:
        answer = service.call("GET", path("a") + "?alt=media", None, {"Range": span})
        return answer.status, answer.content

    assert part("bytes=2-4") == (206, b"234")
    assert part("bytes=7-") == (206, b"789")
    assert part("bytes=-3") == (206, b"789")
    assert part("bytes=-30") == (206, b"0123456789")
    assert part("bytes=5-99") == (206, b"56789")
    assert part("bytes=0-") == (206, b"0123456789")
    assert part("lines=1-2") == (200, b"0123456789")
    assert part("bytes=4-2")[0] == 416
    assert part("bytes=10-")[0] == 416
    put(service, "empty", b"")
    assert service.get(path("empty") + "?alt=media").content == b""


def test_lists_are_in_the_order_of_bytes_with_prefixes_and_pages(service: Service) -> None:
    all_names = ["a", "a-b", "a.txt", "a0", "b/1", "b/c/2", "b.x", "é", "z/1", "\U0001f600"]
    for name in all_names:
        put(service, "dir/" + name if name == "a" else name)
    all_names[0] = "dir/a"
    in_order = sorted(all_names, key=lambda name: name.encode())
    assert names(service) == in_order
    paged, token = [], ""
    while True:
        page = service.get(f"{BUCKET}/o?maxResults=2&pageToken={token}").json
        paged += [item["name"] for item in page["items"]]
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert paged == in_order
    assert names(service, "delimiter=/") == [
        "a-b",
        "a.txt",
        "a0",
        "b.x",
        "é",
        "\U0001f600",
        "b/",
        "dir/",
        "z/",
    ]
    assert names(service, "delimiter=/&prefix=b/") == ["b/1", "b/c/"]
    assert names(service, "prefix=b") == ["b.x", "b/1", "b/c/2"]
    assert names(service, "prefix=b&delimiter=/") == ["b.x", "b/"]
    assert names(service, "delimiter=.") == [
        "a-b",
        "a0",
        "b/1",
        "b/c/2",
        "dir/a",
        "z/1",
        "é",
        "\U0001f600",
        "a.",
        "b.",
    ]
    assert names(service, "startOffset=b/1&endOffset=e") == ["b/1", "b/c/2", "dir/a"]
    assert names(service, "prefix=nothing") == []


def test_pages_of_prefixes_hold_each_once(service: Service) -> None:
    for name in ("a/1", "a/2", "b", "c/1", "c/2", "d"):
        put(service, name)
    found, token = [], ""
    while True:
        page = service.get(f"{BUCKET}/o?delimiter=/&maxResults=1&pageToken={token}").json
        found += [item["name"] for item in page.get("items", [])] + page.get("prefixes", [])
        token = page.get("nextPageToken", "")
        if not token:
            break
    assert found == ["a/", "b", "c/", "d"]
    assert service.get(f"{BUCKET}/o?pageToken=x").status == 400


def test_an_empty_folder_is_no_prefix(service: Service) -> None:
    put(service, "a/b")
    (service.home / "gcs/bucket/empty/deep").mkdir(parents=True)
    assert names(service, "delimiter=/") == ["a/"]
    service.call("DELETE", path("a/b"))
    assert names(service, "delimiter=/") == []
    assert put(service, "a", b"a file where a folder was").status == 200
    assert put(service, "empty").status == 200


def test_copies_and_moves(service: Service) -> None:
    service.post("/storage/v1/b?project=demo", {"name": "other"})
    made = put(service, "a/b", b"data", content_type="text/plain").json
    copied = service.post(f"{path('a/b')}/copyTo/b/other/o/c").json
    assert (copied["bucket"], copied["name"], copied["contentType"]) == ("other", "c", "text/plain")
    answer = service.post(
        f"{path('a/b')}/rewriteTo/b/bucket/o/d?ifGenerationMatch=0", {"contentType": "x/y"}
    ).json
    assert (answer["done"], answer["objectSize"], answer["resource"]["contentType"]) == (True, "4", "x/y")
    assert service.post(f"{path('a/b')}/rewriteTo/b/bucket/o/d?ifGenerationMatch=0").status == 412
    assert service.post(f"{path('a/b')}/rewriteTo/b/bucket/o/e?ifSourceGenerationMatch=1").status == 412
    assert service.post(f"{path('a/b')}/rewriteTo/b/bucket/o/e?sourceGeneration=1").status == 404
    moved = service.post(f"{path('a/b')}/moveTo/o/f%2Fg").json
    assert (moved["name"], moved["md5Hash"]) == ("f/g", made["md5Hash"])
    assert names(service) == ["d", "f/g"]
    assert service.post(f"{path('f/g')}/moveTo/o/f%2Fg").status == 200
    assert names(service) == ["d", "f/g"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["..", ".", "../../state.db", "a/../b", "a//b", "/a", "/", "x" * 256, "a\0", "a\nb", "a/" * 513 + "a"],
)
def test_no_object_has_a_name_that_is_no_files(service: Service, name: str) -> None:
    assert put(service, name).status == 400
    if name not in (".", ".."):  # these are steps in the path for the tests' HTTP client
        assert service.get(path(name)).status == 400
        assert service.call("DELETE", path(name)).status == 400


@pytest.mark.slow
def test_object_beside_a_folder_of_its_name_is_listed_as_in_the_cloud(service: Service) -> None:
    for name in ("a", "a/b", "c/", "d/e/", "f"):
        assert put(service, name).status == 200
    assert names(service) == ["a", "a/b", "c/", "d/e/", "f"]
    assert names(service, "delimiter=/") == ["a", "f", "a/", "c/", "d/"]
    assert names(service, "delimiter=/&prefix=c/") == ["c/"]
    assert names(service, "delimiter=/&prefix=d/") == ["d/e/"]
    trailing = service.get(f"{BUCKET}/o?delimiter=/&includeTrailingDelimiter=true").json
    assert [each["name"] for each in trailing["items"]] == ["a", "c/", "f"]
    assert trailing["prefixes"] == ["a/", "c/", "d/"]
    put(service, "c/x")
    items, prefixes, token = [], [], ""
    while token or not items:
        query = f"delimiter=/&includeTrailingDelimiter=true&maxResults=1&pageToken={token}"
        page = service.get(f"{BUCKET}/o?{query}").json
        items += [item["name"] for item in page.get("items", [])]
        prefixes += page.get("prefixes", [])
        token = page.get("nextPageToken", "")
    assert (items, prefixes) == (["a", "c/", "f"], ["a/", "c/", "d/"])
    assert service.get(path("a")).json["name"] == "a"
    assert service.get(path("c/") + "?alt=media").content == b"data"
    assert service.post(f"{path('c/')}/rewriteTo/b/bucket/o/g%2F").json["resource"]["name"] == "g/"
    assert service.call("DELETE", path("c/")).status == 204
    assert service.get(path("c/")).error == "NOT_FOUND: No such object: bucket/c/"


def test_what_isnt_served_says_so(service: Service) -> None:
    assert service.get(f"{BUCKET}/o?softDeleted=true").status == 501
    assert service.post(f"{BUCKET}/o", {"name": "a"}).status == 400
    assert service.call("POST", f"{UPLOAD}?uploadType=other&name=a", b"").status == 400
    assert service.call("PUT", f"{UPLOAD}?name=a", b"").status == 400
    assert put(service, "").error == "INVALID_ARGUMENT: Required parameter: name"
    for missing in (
        "/storage/v1/b/none",
        "/storage/v1/b/none/o",
        "/storage/v1/b/none/o/a",
        "/storage/v1/b/No/o/a",
    ):
        assert service.get(missing).status == 404
    assert service.call("POST", "/upload/storage/v1/b/none/o?uploadType=media&name=a", b"").status == 404
    assert service.post("/upload/storage/v1/b/none/o?uploadType=resumable", {"name": "a"}).status == 404


def test_match_glob_selects_names_and_prefixes(service: Service) -> None:
    for name in ("a.txt", "b.csv", "d/a.txt", "d/e/a.txt", "f/b.csv"):
        put(service, name)
    assert names(service, "matchGlob=*.txt") == ["a.txt"]
    assert names(service, f"matchGlob={quote('**.{txt,md}')}") == ["a.txt", "d/a.txt", "d/e/a.txt"]
    assert names(service, "matchGlob=&prefix=d/e") == ["d/e/a.txt"]
    assert names(service, "matchGlob=[!a]*&delimiter=/") == ["b.csv"]
    assert names(service, "matchGlob=?/&delimiter=/") == ["d/", "f/"]
    page = service.get(f"{BUCKET}/o?matchGlob=**.txt&maxResults=2").json
    assert [item["name"] for item in page["items"]] == ["a.txt", "d/a.txt"]
    token = page["nextPageToken"]
    assert names(service, f"matchGlob=**.txt&pageToken={token}") == ["d/e/a.txt"]
    assert service.get(f"{BUCKET}/o?matchGlob=**.csv&pageToken={token}").status == 400
    assert service.get(f"{BUCKET}/o?matchGlob=[a").status == 400


def compose(
    service: Service, target: str, sources: list[str | dict[str, Any]], query: str = "", **more: Any
) -> Answer:
    given = [{"name": source} if isinstance(source, str) else source for source in sources]
    return service.post(f"{path(target)}/compose{query}", {"sourceObjects": given, **more})


def test_compose_concatenates_objects(service: Service) -> None:
    first, second = put(service, "1", b"one").json, put(service, "2", b"two").json
    made = compose(
        service, "all", ["1", "2", "1"], destination={"contentType": "x/y", "metadata": {"k": "v"}}
    )
    assert (made.json["size"], made.json["contentType"], made.json["componentCount"]) == ("9", "x/y", 3)
    crc = google_crc32c.value(b"onetwoone").to_bytes(4, "big")
    assert (made.json["crc32c"], "md5Hash" in made.json) == (base64.b64encode(crc).decode(), False)
    down = service.get(path("all") + "?alt=media")
    assert (down.content, down.headers["x-goog-hash"]) == (b"onetwoone", f"crc32c={made.json['crc32c']}")
    appended = compose(service, "all", ["all", "2"], f"?ifGenerationMatch={made.json['generation']}").json
    assert (appended["componentCount"], appended["size"]) == (4, "12")
    patched = service.call("PATCH", path("all"), {"contentType": "a/b", "componentCount": 7}).json
    assert (patched["componentCount"], patched["contentType"]) == (4, "a/b")
    copied = service.post(f"{path('all')}/copyTo/b/bucket/o/copy").json
    assert ("componentCount" in copied, "md5Hash" in copied, copied["contentType"]) == (False, True, "a/b")
    right = {"name": "1", "generation": first["generation"]}
    guarded = {"name": "2", "objectPreconditions": {"ifGenerationMatch": second["generation"]}}
    assert compose(service, "new", [right, guarded], "?ifGenerationMatch=0").status == 200
    assert compose(service, "new", ["1", "2", "new"], deleteSourceObjects=True).status == 200
    assert names(service) == ["all", "copy", "new"]
    assert service.get(path("new") + "?alt=media").content == b"onetwoonetwo"


def test_compose_refuses_what_it_cannot_do(service: Service) -> None:
    made = put(service, "a").json
    assert compose(service, "b", []).error == (
        "INVALID_ARGUMENT: You must provide at least one source component."
    )
    assert "(33) exceeds the maximum (32)" in compose(service, "b", ["a"] * 33).error
    assert compose(service, "b", ["a"] * 32).status == 200
    assert compose(service, "b", [{"generation": "1"}]).status == 400
    assert compose(service, "b", ["a", "none"]).status == 404
    assert compose(service, "b", [{"name": "a", "generation": "1"}]).status == 404
    other = {"name": "a", "objectPreconditions": {"ifGenerationMatch": "1"}}
    refused = compose(service, "b", [other])
    assert (refused.status, refused.json["error"]["errors"][0]["reason"]) == (412, "conditionNotMet")
    assert compose(service, "a", ["a"], "?ifGenerationMatch=0").status == 412
    assert service.get(path("a")).json == made


def test_empty_bucket_can_be_deleted(service: Service) -> None:
    put(service, "a/b")
    refused = service.call("DELETE", BUCKET)
    assert (refused.status, refused.json["error"]["errors"][0]["reason"]) == (409, "conflict")
    assert refused.error.endswith("The bucket you tried to delete is not empty.")
    service.call("DELETE", path("a/b"))
    put(service, "c/")
    assert service.call("DELETE", BUCKET).status == 409
    service.call("DELETE", path("c/"))
    assert service.call("DELETE", f"{BUCKET}?ifMetagenerationMatch=2").status == 412
    assert service.call("DELETE", f"{BUCKET}?ifMetagenerationNotMatch=1").status == 412
    assert service.call("DELETE", f"{BUCKET}?ifMetagenerationMatch=1").status == 204
    assert service.call("DELETE", BUCKET).status == 404
    assert service.get(f"{BUCKET}/o").status == 404
    assert not (service.home / "gcs/bucket").exists()
    again = service.post("/storage/v1/b?project=demo", {"name": "bucket"})
    assert (again.status, names(service)) == (200, [])


def test_bucket_with_a_trainers_link_is_not_empty(service: Service) -> None:
    (service.home / "gcs/bucket/link").symlink_to(service.home)
    assert service.call("DELETE", BUCKET).status == 409
    assert (service.home / "state.db").exists()


def test_policy_is_kept_as_it_was_set(service: Service) -> None:
    first = service.get(f"{BUCKET}/iam").json
    assert first.keys() == {"kind", "resourceId", "version", "etag"}
    bindings = [{"role": "roles/storage.objectViewer", "members": ["allUsers", "user:a@example.com"]}]
    changed = service.call("PUT", f"{BUCKET}/iam", {"etag": first["etag"], "bindings": bindings})
    assert changed.json["bindings"] == bindings
    assert service.get(f"{BUCKET}/iam").json == changed.json
    late = service.call("PUT", f"{BUCKET}/iam", {"etag": first["etag"], "bindings": []})
    assert (late.status, late.json["error"]["errors"][0]["reason"]) == (412, "conditionNotMet")
    bucket = service.get(BUCKET).json
    assert (bucket["metageneration"], bucket["etag"]) == ("2", changed.json["etag"])
    assert not {"policy", "bindings"} & bucket.keys()
    condition = {"title": "t", "expression": "true"}
    with_condition = {"version": 3, "bindings": [{**bindings[0], "condition": condition}]}
    assert service.call("PUT", f"{BUCKET}/iam", with_condition).json["bindings"][0]["condition"] == condition
    assert service.get(f"{BUCKET}/iam").status == 400
    assert service.get(f"{BUCKET}/iam?optionsRequestedPolicyVersion=3").json["version"] == 3
    (service.home / "gcs/by-hand").mkdir()
    assert service.call("PUT", "/storage/v1/b/by-hand/iam", {"bindings": bindings}).status == 200
    assert service.get("/storage/v1/b/by-hand/iam").json["bindings"] == bindings
    assert service.get("/storage/v1/b/none/iam").status == 404


@pytest.mark.slow
@pytest.mark.parametrize(
    "policy",
    [
        {"version": 2},
        {"bindings": [{"role": "viewer", "members": ["allUsers"]}]},
        {"bindings": [{"role": "roles/viewer", "members": ["anna"]}]},
        {"bindings": [{"role": "roles/viewer"}]},
        {
            "bindings": [
                {"role": "roles/viewer", "members": ["allUsers"], "condition": {"expression": "true"}}
            ]
        },
    ],
)
def test_policy_that_iam_has_not_is_refused(service: Service, policy: dict[str, Any]) -> None:
    assert service.call("PUT", f"{BUCKET}/iam", policy).status == 400


def test_caller_has_every_permission_on_a_bucket(service: Service) -> None:
    asked = "permissions=storage.objects.get&permissions=storage.buckets.delete"
    assert service.get(f"{BUCKET}/iam/testPermissions?{asked}").json["permissions"] == [
        "storage.objects.get",
        "storage.buckets.delete",
    ]
    assert service.get(f"{BUCKET}/iam/testPermissions?permissions=storage.all").status == 400
    assert service.get(f"{BUCKET}/iam/testPermissions").status == 400
    assert service.get(f"/storage/v1/b/none/iam/testPermissions?{asked}").status == 404


def test_a_stored_header_cannot_make_another(service: Service) -> None:
    about = {"name": "a", "contentType": "text/x\r\nSet-Cookie: a=b", "contentDisposition": "é"}
    multipart(service, [("application/json", json.dumps(about).encode()), ("", b"data")])
    answer = service.get(path("a") + "?alt=media")
    assert answer.content == b"data"
    assert "set-cookie" not in answer.headers
    assert answer.headers["content-disposition"] == "%C3%A9"


def claim(service: Service, name: str, value: str, query: str = "") -> Answer:
    """Write an object with some custom metadata in a single request."""
    about = json.dumps({"name": name, "metadata": {"claim": value}}).encode()
    return multipart(
        service, [("application/json", about), ("application/json", value.encode())], query=query
    )


def test_answers_tell_the_services_time(service: Service) -> None:
    asked = [
        lambda: claim(service, "a", "x"),
        lambda: claim(service, "a", "x", "&ifGenerationMatch=0"),
        lambda: service.get(path("a")),
        lambda: service.get(path("none")),
        lambda: service.get(f"{BUCKET}/o"),
        lambda: service.get(path("a") + "?alt=media"),
        lambda: service.call("DELETE", path("a")),
    ]
    for second, ask in enumerate(asked, 5):
        assert ask().headers["date"] == f"Fri, 02 Jan 2026 03:04:{second:02} GMT"
        service.clock.advance(1)


def test_custom_metadata_is_written_and_replaced_with_its_object(service: Service) -> None:
    first = claim(service, "c/a", "one", "&ifGenerationMatch=0").json
    assert (first["metadata"], service.get(path("c/a")).json) == ({"claim": "one"}, first)
    late = claim(service, "c/a", "two", "&ifGenerationMatch=0")
    assert (late.status, late.json["error"]["errors"][0]["reason"]) == (412, "conditionNotMet")
    second = claim(service, "c/a", "two", f"&ifGenerationMatch={first['generation']}").json
    assert int(second["generation"]) > int(first["generation"])
    assert (second["metadata"], second["metageneration"]) == ({"claim": "two"}, "1")
    assert claim(service, "c/a", "three", f"&ifGenerationMatch={first['generation']}").status == 412
    assert service.get(path("c/a")).json == second
    same = claim(service, "c/a", "two", f"&ifGenerationMatch={second['generation']}").json
    assert int(same["generation"]) > int(second["generation"])  # although the object is unchanged
    assert "metadata" not in put(service, "c/a", b"other").json


def test_custom_metadata_has_eight_kibibytes_at_most(service: Service) -> None:
    most = "é" * ((8 * 1024 - len("claim") - 1) // 2) + "x"
    assert len(most.encode()) + len("claim") == 8 * 1024
    made = claim(service, "a", most)
    assert made.json["metadata"] == {"claim": most}
    for refused in (
        claim(service, "a", most + "x"),
        claim(service, "b", most + "x"),
        service.post(f"{UPLOAD}?uploadType=resumable", {"name": "b", "metadata": {"claim": most + "x"}}),
        service.call("PATCH", path("a"), {"metadata": {"k": ""}}),
        service.post(f"{path('a')}/copyTo/b/bucket/o/b", {"metadata": {"claim": most, "k": ""}}),
    ):
        assert (refused.status, refused.json["error"]["errors"][0]["reason"]) == (400, "invalid")
        assert "8193 bytes" in refused.error
    assert service.get(path("a")).json == made.json
    assert names(service) == ["a"]
    assert service.post(f"{path('a')}/copyTo/b/bucket/o/b").json["metadata"] == {"claim": most}


def test_a_list_gives_only_what_is_asked_of_each_object_page_by_page(service: Service) -> None:
    expected = []
    for number in range(7):
        made = claim(service, f"claims/s/{number}", f"value {number}").json
        expected.append({name: made[name] for name in ("name", "generation", "metadata")})
    put(service, "claims/t", b"not below the prefix")
    put(service, "claims/s/plain")
    fields = "items(name,generation,metadata),nextPageToken"
    found, sizes, token = [], [], ""
    while token or not sizes:
        query = f"prefix=claims/s/&maxResults=3&fields={quote(fields)}&pageToken={token}"
        page = service.get(f"{BUCKET}/o?{query}").json
        assert set(page) <= {"items", "nextPageToken"}
        found += page["items"]
        sizes.append(len(page["items"]))
        token = page.get("nextPageToken", "")
    assert sizes == [3, 3, 2]
    assert found[:-1] == expected
    assert found[-1].keys() == {"name", "generation"}
    assert service.get(f"{BUCKET}/o?prefix=none/&fields={quote(fields)}").json == {}


def test_the_next_page_is_one_of_the_same_list(service: Service) -> None:
    for number in range(3):
        claim(service, f"claims/{number}", "x")
    token = service.get(f"{BUCKET}/o?prefix=claims/&maxResults=1").json["nextPageToken"]
    assert service.get(f"{BUCKET}/o?prefix=other/&pageToken={token}").status == 400
    claim(service, "claims/0a", "written meanwhile, after the page's end")
    assert names(service, f"prefix=claims/&pageToken={token}") == ["claims/0a", "claims/1", "claims/2"]


def at_once(count: int, work: Callable[[int], None]) -> None:
    """Run `work` in `count` threads that begin together; raise the exception of any thread."""
    start, raised = threading.Barrier(count), []

    def run(number: int) -> None:
        start.wait()
        try:
            work(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert raised == []


@pytest.mark.slow
def test_of_writers_that_expect_the_same_generation_exactly_one_wins(service: Service) -> None:
    statuses: dict[str, list[tuple[int, int]]] = {f"claims/{number}": [] for number in range(100)}

    def write(writer: int) -> None:
        for name, answers in statuses.items():
            answers.append((claim(service, name, f"writer {writer}", "&ifGenerationMatch=0").status, writer))

    at_once(8, write)
    assert {name: Counter(status for status, _ in answers) for name, answers in statuses.items()} == (
        {name: Counter({200: 1, 412: 7}) for name in statuses}
    )
    listed = service.get(f"{BUCKET}/o?prefix=claims/").json["items"]
    winners = {
        name: next(writer for status, writer in each if status == 200) for name, each in statuses.items()
    }
    assert {item["name"]: item["metadata"]["claim"] for item in listed} == {
        name: f"writer {writer}" for name, writer in winners.items()
    }
    assert service.get(path("claims/0") + "?alt=media").content.decode() == f"writer {winners['claims/0']}"


@pytest.mark.slow
def test_no_write_that_expects_a_generation_is_lost(service: Service) -> None:
    claim(service, "count", "0")

    def count(_: int) -> None:
        for _ in range(10):
            while True:
                read = service.get(path("count")).json
                value = str(int(read["metadata"]["claim"]) + 1)
                if claim(service, "count", value, f"&ifGenerationMatch={read['generation']}").status == 200:
                    break

    at_once(8, count)
    assert service.get(path("count")).json["metadata"] == {"claim": "80"}


KEY = {
    "x-goog-encryption-algorithm": "AES256",
    "x-goog-encryption-key": "a2V5",
    "x-goog-encryption-key-sha256": "c",
}


def test_objects_with_a_key_of_the_customer_s_are_refused(service: Service) -> None:
    put(service, "a")
    copied = {name.replace("x-goog-", "x-goog-copy-source-"): value for name, value in KEY.items()}
    for method, place, headers in (
        ("POST", f"{UPLOAD}?uploadType=media&name=b", KEY),
        ("POST", f"{UPLOAD}?uploadType=resumable&name=b", KEY),
        ("GET", path("a") + "?alt=media", KEY),
        ("POST", path("a") + "/rewriteTo/b/bucket/o/b", copied),
        ("POST", path("a") + "/rewriteTo/b/bucket/o/b?destinationKmsKeyName=k", {}),
        ("POST", f"{UPLOAD}?uploadType=media&name=b&kmsKeyName=k", {}),
        ("POST", f"{UPLOAD}?uploadType=media&name=b&predefinedAcl=publicRead", {}),
    ):
        assert service.call(method, place, None if method == "GET" else b"", headers).status == 501
    assert names(service) == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize("field", ["acl", "contexts", "kmsKeyName", "retention"])
def test_what_an_object_cannot_keep_here_is_refused(service: Service, field: str) -> None:
    value: Any = {
        "acl": [{"entity": "allUsers", "role": "READER"}],
        "contexts": {"custom": {"k": {"value": "v"}}},
        "kmsKeyName": "k",
        "retention": {"mode": "Locked", "retainUntilTime": "2030-01-01T00:00:00Z"},
    }[field]
    put(service, "a")
    assert service.call("PATCH", path("a"), {field: value}).status == 501
    assert service.post(path("a") + "/copyTo/b/bucket/o/b", {field: value}).status == 501
    body = json.dumps({"name": "b", field: value}).encode()
    content = b"--x\r\n\r\n" + body + b"\r\n--x\r\n\r\ndata\r\n--x--"
    headers = {"Content-Type": "multipart/related; boundary=x"}
    answer = service.call("POST", f"{UPLOAD}?uploadType=multipart", content, headers)
    assert answer.error == f"UNIMPLEMENTED: This service keeps no {field} of an object."
    assert names(service) == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hold", "kind"), [("temporaryHold", "Temporary"), ("eventBasedHold", "Event-Based")]
)
def test_an_object_under_a_hold_stays_as_it_is(service: Service, hold: str, kind: str) -> None:
    made = put(service, "a", b"held").json
    put(service, "b")
    assert service.call("PATCH", path("a"), {hold: True}).json[hold]
    merged = {"sourceObjects": [{"name": "a"}, {"name": "b"}], "deleteSourceObjects": True}
    for answer in (
        service.post(path("d") + "/compose", merged),
        service.call("DELETE", path("a")),
        put(service, "a", b"other"),
        service.post(path("b") + "/rewriteTo/b/bucket/o/a"),
        service.post(path("b") + "/moveTo/o/a"),
        service.post(path("a") + "/moveTo/o/c"),
        service.post(path("a") + "/compose", {"sourceObjects": [{"name": "b"}]}),
    ):
        assert answer.status == 403
        assert f"Object 'bucket/a' is under active {kind} hold" in answer.error
    found = service.get(path("a")).json
    assert (found["generation"], found["size"]) == (made["generation"], "4")
    assert names(service) == ["a", "b"]
    service.call("PATCH", path("a"), {hold: False})
    assert service.call("DELETE", path("a")).status == 204


def test_multipart_uploads_of_the_xml_api_are_refused(service: Service) -> None:
    put(service, "a")
    for method, query in (
        ("POST", "?uploads"),
        ("PUT", "?partNumber=1&uploadId=u"),
        ("POST", "?uploadId=u"),
        ("GET", "?uploadId=u"),
        ("DELETE", "?uploadId=u"),
        ("PUT", ""),
    ):
        answer = service.call(method, f"/bucket/a{query}", None if method == "GET" else b"")
        assert (answer.status, "Upload by the JSON API" in answer.error) == (501, True)


def batched(service: Service, *parts: str) -> Answer:
    lines = [
        f"--x\r\nContent-Type: application/http\r\nContent-ID: <{n}>\r\n\r\n{part}"
        for n, part in enumerate(parts)
    ]
    content = "\r\n".join([*lines, "--x--", ""]).encode()
    return service.call("POST", "/batch/storage/v1", content, {"Content-Type": "multipart/mixed; boundary=x"})


def test_a_batch_answers_each_request_in_its_order(service: Service) -> None:
    put(service, "a", b"one")
    put(service, "b", b"two")
    answer = batched(
        service,
        f"GET {path('a')} HTTP/1.1\r\n\r\n",
        f"DELETE {service.url}{path('b')} HTTP/1.1\nX: y\n\n",
        f'PATCH {path("a")} HTTP/1.1\r\nContent-Type: application/json\r\n\r\n{{"contentType": "x/y"}}',
        f"GET {path('none')} HTTP/1.1\r\n\r\n",
    )
    assert answer.status == 200
    statuses = re.findall(rb"^HTTP/1.1 (\d+) ", answer.content, re.MULTILINE)
    assert statuses == [b"200", b"204", b"200", b"404"]
    assert re.findall(rb"Content-ID: <response-(\d)>", answer.content) == [b"0", b"1", b"2", b"3"]
    assert service.get(path("a")).json["contentType"] == "x/y"
    assert names(service) == ["a"]


def test_a_batch_is_for_metadata_and_has_limits(service: Service) -> None:
    for part in (
        f"GET /download{path('a')} HTTP/1.1\r\n\r\n",
        f"GET {path('a')}?alt=media HTTP/1.1\r\n\r\n",
        f"GET {path('a')}?$alt=media HTTP/1.1\r\n\r\n",
        "GET /_service/health HTTP/1.1\r\n\r\n",
        "GET http://[bad/storage/v1/b HTTP/1.1\r\n\r\n",
        "GET",
    ):
        assert batched(service, part).status == 400
    many = [f"GET {path('a')} HTTP/1.1\r\n\r\n"] * 101
    assert batched(service, *many).error.endswith("At most 100 calls are allowed in a batch.")
    assert service.call("POST", "/batch/storage/v1", b"x", {"Content-Type": "text/plain"}).status == 400


def test_a_batch_with_an_odd_id_is_answered_without_it(service: Service) -> None:
    put(service, "a")
    part = f"--x\r\nContent-ID: <\u00e9>\r\n\r\nDELETE {path('a')} HTTP/1.1\r\n\r\n\r\n--x--\r\n"
    headers = {"Content-Type": "multipart/mixed; boundary=x"}
    answer = service.call("POST", "/batch/storage/v1", part.encode(), headers)
    assert (answer.status, b"HTTP/1.1 204" in answer.content, b"Content-ID" in answer.content) == (
        200,
        True,
        False,
    )


def test_a_batch_of_a_job_reaches_what_the_job_reaches(service: Service) -> None:
    put(service, "a")
    job = service.store.add_job(trainers.custom_job(args=["gs://another"]))
    content = f"--x\r\n\r\nDELETE {path('a')} HTTP/1.1\r\n\r\n\r\n--x--\r\n".encode()
    headers = {"Content-Type": "multipart/mixed; boundary=x"}
    answer = service.call("POST", f"/jobs/{job.gcs_secret}/batch/storage/v1", content, headers, token="")
    assert b"HTTP/1.1 403" in answer.content
    assert names(service) == ["a"]
