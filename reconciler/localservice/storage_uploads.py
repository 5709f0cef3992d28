"""Uploads to Cloud Storage: simple, multipart and resumable.

https://cloud.google.com/storage/docs/uploads-downloads
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from reconciler.localservice import media, storage_resources, wire
from reconciler.localservice.calls import Call, Handler
from reconciler.localservice.message import ApiError, Response, invalid
from reconciler.localservice.object_index import Conditions
from reconciler.localservice.objects import Objects
from reconciler.localservice.records import JsonObject
from reconciler.localservice.uploads import Session, Staged, Uploads

_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_MAX_METADATA = 1024 * 1024
_CLIENT_CLOSED = 499


class StorageUploads:
    """Answers what comes on the upload path."""

    def __init__(self, objects: Objects, uploads: Uploads) -> None:
        self._objects = objects
        self._uploads = uploads

    def answer(self, call: Call) -> Response | JsonObject:
        """An upload, or the next step of one."""
        if call.request.parameter("upload_id"):
            return self._go_on(call, call.request.parameter("upload_id"))
        if call.request.method != "POST":
            raise invalid("An upload begins with POST.")
        begin: dict[str, Handler] = {
            "media": self._simple,
            "multipart": self._multipart,
            "resumable": self._resumable,
        }
        kind = call.text("uploadType")
        if kind not in begin:
            raise invalid(f"There is no uploadType {kind!r}.")
        return begin[kind](call)

    def _simple(self, call: Call) -> JsonObject:
        given = {"contentType": call.request.headers.get("content-type", storage_resources.DEFAULT_TYPE)}
        return self._stored(call, given, media.chunks(call.request.body))

    def _multipart(self, call: Call) -> JsonObject:
        boundary = media.boundary_of(call.request.headers.get("content-type", ""))
        body = media.Multipart(call.request.body, boundary)
        _, metadata = body.part()
        given = _message(call, b"".join(_limited(metadata)))
        headers, content = body.part()
        return self._stored(call, _typed(given, headers.get("content-type", "")), content)

    def _stored(self, call: Call, given: JsonObject, chunks: Iterator[bytes]) -> JsonObject:
        about = _about(call, given)
        with self._uploads.staged(chunks) as staged:
            return self._put(call, about, staged)

    def _put(self, call: Call, about: JsonObject, staged: Staged) -> JsonObject:
        told = storage_resources.sums_of_header(call.request.headers.get("x-goog-hash", ""))
        storage_resources.check_sums({**about["sums"], **told}, staged.checksums)
        conditions = Conditions(**about["conditions"])
        stored = self._objects.put(about["bucket"], about["name"], staged, about["body"], conditions)
        return storage_resources.object_resource(stored, call.request.base)

    def _resumable(self, call: Call) -> Response:
        given = _message(call, b"".join(_limited(media.chunks(call.request.body))))
        given = _typed(given, call.request.headers.get("x-upload-content-type", ""))
        about = _about(call, given)
        self._objects.bucket(about["bucket"])
        upload = self._uploads.start(about)
        query = f"uploadType=resumable&upload_id={upload}"
        location = f"{call.request.base}/upload/storage/v1/b/{about['bucket']}/o?{query}"
        return Response(200, (("Location", location), ("X-GUploader-UploadID", upload)))

    def _go_on(self, call: Call, upload: str) -> Response | JsonObject:
        with self._uploads.session(upload) as session:
            if session.about["bucket"] != call.path["bucket"]:
                raise invalid("The upload was begun for another bucket.")
            call.reach.check_object(session.about["bucket"], session.about["name"])
            if call.request.method == "DELETE":
                session.give_up()
                return Response(_CLIENT_CLOSED)
            if "object" in session.about:
                answer: JsonObject = session.about["object"]
                return answer
            return self._receive(call, session)

    def _receive(self, call: Call, session: Session) -> Response | JsonObject:
        first, total = _content_range(call)
        received = session.received()
        if first is not None:
            if first > received:
                raise invalid(f"The upload has {received} bytes; it can't go on at {first}.")
            session.append(media.chunks(call.request.body), received - first)
        if total is None or session.received() < total:
            return _incomplete(call, session.received())
        return self._finish(call, session, total)

    def _finish(self, call: Call, session: Session, total: int) -> JsonObject:
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
    """The preconditions that a call's parameters tell."""
    return Conditions(
        generation=call.number("ifGenerationMatch"),
        generation_not=call.number("ifGenerationNotMatch"),
        metageneration=call.number("ifMetagenerationMatch"),
        metageneration_not=call.number("ifMetagenerationNotMatch"),
    )


def _about(call: Call, given: JsonObject) -> JsonObject:
    """What an upload's end needs to know, as JSON, because a resumable one may end after a restart."""
    bucket, name = call.path["bucket"], call.text("name") or given.get("name", "")
    if not name:
        raise invalid("Required parameter: name")
    call.reach.check_object(bucket, name)
    body = storage_resources.object_body(given)
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
    return wire.read_message(call.method.api, call.method.request, wire.read_json(text), "")


def _typed(given: JsonObject, content_type: str) -> JsonObject:
    """The metadata with the content's type, which the metadata itself may also tell."""
    return {"contentType": content_type or storage_resources.DEFAULT_TYPE} | given


def _limited(chunks: Iterator[bytes]) -> Iterator[bytes]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > _MAX_METADATA:
            raise invalid("The metadata is too long.")
        yield chunk


def _content_range(call: Call) -> tuple[int | None, int | None]:
    """Where the content begins, None for a mere question; and the whole's size, None where not known yet."""
    text = call.request.headers.get("content-range", "")
    if not text:
        return 0, int(call.request.headers.get("content-length", "0") or "0")
    found = _CONTENT_RANGE.fullmatch(text)
    if found is None:
        raise invalid(f"Failed to parse Content-Range header: {text}")
    first, _, total = found.groups()
    return (None if first is None else int(first)), (None if total == "*" else int(total))


def _incomplete(call: Call, received: int) -> Response:
    """308: go on. It says how much is here."""
    headers = [("Content-Length", "0")]
    if received:
        headers.append(("Range", f"bytes=0-{received - 1}"))
    if call.request.headers.get("x-guploader-no-308") == "yes":  # Google's Go clients
        return Response(200, (*headers, ("X-Http-Status-Code-Override", "308")))
    return Response(308, tuple(headers))
