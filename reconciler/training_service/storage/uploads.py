"""Uploads to Cloud Storage (simple, multipart and resumable) and downloads.

https://cloud.google.com/storage/docs/uploads-downloads
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO
from urllib.parse import quote

from reconciler.base.listener.message import Response
from reconciler.training_service.http import json_mapping
from reconciler.training_service.http.call import Call
from reconciler.training_service.http.message import ApiError, invalid
from reconciler.training_service.state.records import JsonObject
from reconciler.training_service.storage.objects import Conditions, Content, Objects
from reconciler.training_service.storage.resources import (
    DEFAULT_TYPE,
    check_sums,
    etag_of,
    header_of_sums,
    object_body,
    object_resource,
    sums_of_header,
)
from reconciler.training_service.storage.upload_sessions import Staged, Uploads, UploadSession

_CHUNK = 256 * 1024
_MAX_HEADER = 64 * 1024
_MAX_METADATA = 1024 * 1024
_CLIENT_CLOSED = 499
_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")
_BOUNDARY = re.compile(r"""boundary=(?:"([^"]{1,200})"|'([^']{1,200})'|([^\s;"']{1,200}))""", re.IGNORECASE)


def download(content: Content, range_header: str) -> Response:
    """Return an object's content, or the part that a Range header selects ("" for all).

    Raises:
        ApiError: 416: The content has no such part.
    """
    stored = content.object
    span = _range(range_header, stored.size)
    first, last = span or (0, stored.size - 1)
    headers = [
        ("Content-Type", stored.body.get("contentType", DEFAULT_TYPE)),
        ("Content-Length", str(last - first + 1)),
        ("Accept-Ranges", "bytes"),
        ("ETag", f'"{etag_of(stored)}"'),
        ("X-Goog-Generation", str(stored.generation)),
        ("X-Goog-Metageneration", str(stored.metageneration)),
        ("X-Goog-Hash", header_of_sums(stored)),
        ("X-Goog-Stored-Content-Length", str(stored.size)),
        ("X-Goog-Stored-Content-Encoding", stored.body.get("contentEncoding", "identity")),
    ]
    for name in ("Content-Encoding", "Content-Disposition", "Content-Language", "Cache-Control"):
        value = stored.body.get(name[0].lower() + name[1:].replace("-", ""))
        headers += [(name, value)] if value else []
    if span:
        headers.append(("Content-Range", f"bytes {first}-{last}/{stored.size}"))
    content.file.seek(first)
    safe = tuple((name, _header_value(value)) for name, value in headers)
    return Response(206 if span else 200, safe, file=content.file, length=last - first + 1)


def chunks(stream: BinaryIO) -> Iterator[bytes]:
    """Yield a request's content in pieces."""
    while chunk := stream.read(_CHUNK):
        yield chunk


def boundary_of(content_type: str) -> bytes:
    """Return the boundary of a multipart Content-Type.

    Raises:
        ApiError: INVALID_ARGUMENT: The Content-Type has no boundary.
    """
    match = _BOUNDARY.search(content_type)
    if match is None:
        raise invalid("A multipart request's Content-Type must name its boundary.")
    return next(group for group in match.groups() if group).encode("latin-1", "replace")


class Multipart:
    """Reader of a multipart body's parts; accepts CRLF and LF line ends, as clients send both."""

    def __init__(self, stream: BinaryIO, boundary: bytes) -> None:
        self._stream = stream
        self._boundary = b"--" + boundary
        self._left = b"\n"  # each boundary follows a line end; this one precedes the first
        self._mark = b"\n" + self._boundary
        for _ in self._until_mark():
            pass

    def part(self) -> tuple[dict[str, str], Iterator[bytes]]:
        """Return the next part: headers by lower-case name, and content, to be read before the next part.

        Raises:
            ApiError: INVALID_ARGUMENT: The body has no further part.
        """
        head = b""
        while not (end := re.search(rb"\r?\n\r?\n", head)):
            more = self._read()
            if not more or len(head) > _MAX_HEADER or head.startswith(b"--"):
                raise invalid("The multipart body ends too early.")
            head += more
        # The line end before a boundary is part of it; the first line shows whether it is CRLF or LF.
        self._mark = (b"\r\n" if head.startswith(b"\r") else b"\n") + self._boundary
        self._left = head[end.end() :]
        lines = head[: end.start()].decode("utf-8", "replace").splitlines()
        pairs = [line.partition(":") for line in lines if ":" in line]
        return {name.strip().lower(): value.strip() for name, _, value in pairs}, self._until_mark()

    def _until_mark(self) -> Iterator[bytes]:
        keep = len(self._mark)  # a piece may end inside a boundary
        pending = b""
        while True:
            more = self._read()
            pending += more
            index = pending.find(self._mark)
            if index >= 0:
                self._left = pending[index + len(self._mark) :]
                yield pending[:index]
                return
            if not more:
                raise invalid("The multipart body ends too early.")
            yield pending[:-keep]
            pending = pending[-keep:]

    def _read(self) -> bytes:
        left, self._left = self._left, b""
        return left or self._stream.read(_CHUNK)


def _range(range_header: str, size: int) -> tuple[int, int] | None:
    """Return the first and the last byte of a Range header; None for all."""
    match = _RANGE.fullmatch(range_header.strip())
    if match is None or match.groups() == ("", ""):  # HTTP ignores an unreadable range
        return None
    begin, end = match.groups()
    first = int(begin) if begin else max(0, size - int(end))
    last = min(int(end), size - 1) if begin and end else size - 1
    if first >= size or (begin and end and int(end) < first):
        raise ApiError("OUT_OF_RANGE", "Request range not satisfiable", http=416)
    return first, last


def _header_value(text: str) -> str:
    # A client's stored text must not be able to start another header.
    return text if text.isascii() and text.isprintable() else quote(text)


class StorageUploads:
    """Handler of the upload path."""

    def __init__(self, objects: Objects, uploads: Uploads) -> None:
        self._objects = objects
        self._uploads = uploads

    def answer(self, call: Call) -> Response | JsonObject:
        """Answer an upload, or the next step of a resumable one."""
        if call.request.parameter("upload_id"):
            return self._continue(call, call.request.parameter("upload_id"))
        if call.request.method != "POST":
            raise invalid("An upload begins with POST.")
        begin: dict[str, Callable[[Call], Response | JsonObject]] = {
            "media": self._simple,
            "multipart": self._multipart,
            "resumable": self._resumable,
        }
        kind = call.text("uploadType")
        if kind not in begin:
            raise invalid(f"There is no uploadType {kind!r}.")
        return begin[kind](call)

    def _simple(self, call: Call) -> JsonObject:
        given = {"contentType": call.request.headers.get("content-type", DEFAULT_TYPE)}
        return self._stored(call, given, chunks(call.request.body))

    def _multipart(self, call: Call) -> JsonObject:
        boundary = boundary_of(call.request.headers.get("content-type", ""))
        body = Multipart(call.request.body, boundary)
        _, metadata = body.part()
        given = _message(call, b"".join(_limited(metadata)))
        headers, content = body.part()
        return self._stored(call, _typed(given, headers.get("content-type", "")), content)

    def _stored(self, call: Call, given: JsonObject, chunks: Iterator[bytes]) -> JsonObject:
        about = _about(call, given)
        with self._uploads.staged(chunks) as staged:
            return self._put(call, about, staged)

    def _put(self, call: Call, about: JsonObject, staged: Staged) -> JsonObject:
        header_sums = sums_of_header(call.request.headers.get("x-goog-hash", ""))
        check_sums({**about["sums"], **header_sums}, staged.checksums)
        conditions = Conditions(**about["conditions"])
        stored = self._objects.put(about["bucket"], about["name"], staged, about["body"], conditions)
        return object_resource(stored, call.request.base)

    def _resumable(self, call: Call) -> Response:
        given = _message(call, b"".join(_limited(chunks(call.request.body))))
        given = _typed(given, call.request.headers.get("x-upload-content-type", ""))
        about = _about(call, given)
        self._objects.bucket(about["bucket"])
        upload = self._uploads.start(about)
        query = f"uploadType=resumable&upload_id={upload}"
        location = f"{call.request.base}/upload/storage/v1/b/{about['bucket']}/o?{query}"
        return Response(200, (("Location", location), ("X-GUploader-UploadID", upload)))

    def _continue(self, call: Call, upload: str) -> Response | JsonObject:
        with self._uploads.session(upload) as session:
            if session.about.get("bucket") != call.path["bucket"]:
                raise invalid("The upload was begun for another bucket.")
            call.access.check_object(session.about["bucket"], session.about["name"])
            if call.request.method == "DELETE":
                session.give_up()
                return Response(_CLIENT_CLOSED)
            if "object" in session.about:  # finished before, but the client missed the answer
                answer: JsonObject = session.about["object"]
                return answer
            return self._receive(call, session)

    def _receive(self, call: Call, session: UploadSession) -> Response | JsonObject:
        first, total = _content_range(call)
        received = session.received()
        if first is not None:
            if first > received:
                raise invalid(f"The upload has {received} bytes; it can't go on at {first}.")
            session.append(chunks(call.request.body), received - first)
        if total is None or session.received() < total:
            return _incomplete(call, session.received())
        return self._finish(call, session, total)

    def _finish(self, call: Call, session: UploadSession, total: int) -> JsonObject:
        if session.received() > total:
            session.give_up()
            raise invalid("The upload is longer than it was said to be.")
        try:
            answer = self._put(call, session.about, session.whole())
        except ApiError:
            session.give_up()
            raise
        session.done(answer)
        return answer


def conditions_of(call: Call) -> Conditions:
    """Return the preconditions in a call's parameters."""
    return Conditions(
        generation=call.number("ifGenerationMatch"),
        generation_not=call.number("ifGenerationNotMatch"),
        metageneration=call.number("ifMetagenerationMatch"),
        metageneration_not=call.number("ifMetagenerationNotMatch"),
    )


def check_generation(
    call: Call, generation: int, bucket: str, name: str, parameter: str = "generation"
) -> None:
    """Raise NOT_FOUND for a call that asks for another generation: only the latest is stored."""
    if call.number(parameter) not in (None, generation):
        raise ApiError("NOT_FOUND", f"No such object: {bucket}/{name}#{call.number(parameter)}")


def _about(call: Call, given: JsonObject) -> JsonObject:
    # As JSON, because a resumable upload may end after a restart of the service.
    bucket, name = call.path["bucket"], call.text("name") or given.get("name", "")
    if not name:
        raise invalid("Required parameter: name")
    call.access.check_object(bucket, name)
    body = object_body(given)
    if call.text("contentEncoding"):
        body["contentEncoding"] = call.text("contentEncoding")
    conditions = conditions_of(call)
    return {
        "bucket": bucket,
        "name": name,
        "body": body,
        "sums": {key: given[key] for key in ("md5Hash", "crc32c") if key in given},
        "conditions": {field: getattr(conditions, field) for field in Conditions.__dataclass_fields__},
    }


def _message(call: Call, text: bytes) -> JsonObject:
    return json_mapping.read_message(call.method.api, call.method.request, json_mapping.read_json(text), "")


def _typed(given: JsonObject, content_type: str) -> JsonObject:
    """Return the metadata with the content's type, unless it contains a type itself."""
    return {"contentType": content_type or DEFAULT_TYPE} | given


def _limited(chunks: Iterator[bytes]) -> Iterator[bytes]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > _MAX_METADATA:
            raise invalid("The metadata is too long.")
        yield chunk


def _content_range(call: Call) -> tuple[int | None, int | None]:
    """Return the content's first position, None in a query of progress, and the total size if known."""
    text = call.request.headers.get("content-range", "")
    if not text:
        return 0, int(call.request.headers.get("content-length", "0") or "0")
    match = _CONTENT_RANGE.fullmatch(text)
    if match is None:
        raise invalid(f"Failed to parse Content-Range header: {text}")
    first, _, total = match.groups()
    return (None if first is None else int(first)), (None if total == "*" else int(total))


def _incomplete(call: Call, received: int) -> Response:
    """Return 308: continue after the bytes received so far."""
    headers = [("Content-Length", "0")]
    if received:
        headers.append(("Range", f"bytes=0-{received - 1}"))
    if call.request.headers.get("x-guploader-no-308") == "yes":  # Google's Go clients don't handle 308
        return Response(200, (*headers, ("X-Http-Status-Code-Override", "308")))
    return Response(308, tuple(headers))
