"""Batches of Cloud Storage's JSON API: several requests in the parts of one.

Source: the page "Batch requests" (Cloud Storage); RFC 2046, section 5.1.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from email.message import Message
from email.parser import BytesParser
from http import HTTPStatus
from urllib.parse import urlsplit

from reconciler.base.listener.message import Request, Response
from reconciler.training_service.http.message import invalid

PATH = "/batch/storage/v1"
_MOST_CALLS = 100  # https://cloud.google.com/storage/docs/batch
_END_OF_HEAD = re.compile(rb"\r?\n\r?\n")
_SERVED = "/storage/v1/"  # metadata alone: "uploads and downloads are not supported"


def answer(request: Request, largest: int, handle: Callable[[Request], Response]) -> Response:
    """Answer a batch with the answers of its requests, in their order.

    Args:
        largest: The limit of the batch's size in bytes.
        handle: Answers one of the requests.

    Raises:
        ApiError: INVALID_ARGUMENT: The batch isn't one, or is too large.
    """
    body = request.body.read(largest + 1)
    if len(body) > largest:
        raise invalid(f"Request payload size exceeds the limit: {largest} bytes.")
    parts = _parts(request.headers.get("content-type", ""), body)
    boundary = f"batch_{secrets.token_urlsafe(16)}"
    calls = [(_id_of(part), _request_in(part, request)) for part in parts]
    answers = [_part(name, handle(call)) for name, call in calls]
    lines = [line for part in answers for line in (f"--{boundary}".encode(), part)]
    content = b"\r\n".join([*lines, f"--{boundary}--".encode(), b""])
    headers = (
        ("Content-Type", f"multipart/mixed; boundary={boundary}"),
        ("Content-Length", str(len(content))),
    )
    return Response(200, headers, content)


def _parts(content_type: str, body: bytes) -> list[Message]:
    if body.count(b"\n--") > _MOST_CALLS:  # the first boundary has no line before it, the last no part
        raise invalid(f"At most {_MOST_CALLS} calls are allowed in a batch.")
    head = f"Content-Type: {content_type}\r\n\r\n".encode("latin-1", "replace")
    try:
        parts = BytesParser().parsebytes(head + body).get_payload()
    except RecursionError:
        parts = ""
    if not isinstance(parts, list):
        raise invalid("A batch is a multipart/mixed body whose Content-Type names its boundary.")
    return [part for part in parts if isinstance(part, Message)]


def _id_of(part: Message) -> str:
    """Return the Content-ID of the answer to a part; "" for none."""
    name = str(part.get("Content-ID", "")).strip("<> ")
    return f"<response-{name}>" if name and name.isascii() and name.isprintable() else ""


def _request_in(part: Message, outer: Request) -> Request:
    """Return the request in a part; the headers of the batch count for each of its requests."""
    content = part.get_payload(decode=True)
    line, _, rest = (content if isinstance(content, bytes) else b"").lstrip().partition(b"\n")
    words = line.decode("latin-1").split()
    if len(words) != 3:
        raise invalid("Each part of a batch must be an HTTP request: METHOD PATH HTTP/1.1.")
    head, *body = _END_OF_HEAD.split(rest, maxsplit=1)
    message = BytesParser().parsebytes(head)
    try:
        target = urlsplit(words[1])
    except ValueError:
        raise invalid("Each part of a batch must be a request for a path.") from None
    path = target.path.removeprefix(urlsplit(outer.base).path)
    if not path.startswith(_SERVED):
        raise invalid(f"A batch takes requests for {_SERVED} alone, without uploads and downloads: {path}")
    headers = {**_shared(outer.headers), **{name.lower(): str(value) for name, value in message.items()}}
    inner = Request.of(words[0], f"{path}?{target.query}", headers, b"".join(body).strip(), outer.base)
    if inner.parameter("alt") == "media":
        raise invalid("A batch has no downloads: ask for each object's content by itself.")
    return inner


def _shared(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if not name.startswith(("content-", "transfer-"))}


def _part(content_id: str, response: Response) -> bytes:
    content = response.read()
    status = f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"
    headers = {**dict(response.headers), "Content-Length": str(len(content))}
    lines = [
        "Content-Type: application/http",
        *([f"Content-ID: {content_id}"] if content_id else []),
        "",
        status,
    ]
    lines += [f"{key}: {value}" for key, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + content
