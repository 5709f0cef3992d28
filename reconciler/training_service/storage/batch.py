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
    head = f"Content-Type: {request.headers.get('content-type', '')}\r\n\r\n".encode("latin-1", "replace")
    batch = BytesParser().parsebytes(head + body)
    parts = [part for part in batch.walk() if part is not batch]
    if not batch.is_multipart():
        raise invalid("A batch is a multipart/mixed body whose Content-Type names its boundary.")
    if len(parts) > _MOST_CALLS:
        raise invalid(f"The batch has {len(parts)} calls; at most {_MOST_CALLS} are allowed.")
    boundary = f"batch_{secrets.token_urlsafe(16)}"
    inner = [(part, _request_in(part, request)) for part in parts]
    answers = [_part(part.get("Content-ID", ""), handle(call)) for part, call in inner]
    lines = [line for each in answers for line in (f"--{boundary}".encode(), each)]
    content = b"\r\n".join([*lines, f"--{boundary}--".encode(), b""])
    headers = (
        ("Content-Type", f"multipart/mixed; boundary={boundary}"),
        ("Content-Length", str(len(content))),
    )
    return Response(200, headers, content)


def _request_in(part: Message, outer: Request) -> Request:
    """Return the request in a part; the headers of the batch count for each of its requests."""
    content = part.get_payload(decode=True)
    line, _, rest = (content if isinstance(content, bytes) else b"").lstrip().partition(b"\n")
    words = line.decode("latin-1").split()
    if len(words) != 3:
        raise invalid("Each part of a batch must be an HTTP request: METHOD PATH HTTP/1.1.")
    head, *body = _END_OF_HEAD.split(rest, maxsplit=1)
    message = BytesParser().parsebytes(head)
    target = urlsplit(words[1])
    path = target.path.removeprefix(urlsplit(outer.base).path)
    if not path.startswith(_SERVED):
        raise invalid(f"A batch takes requests for {_SERVED} alone, without uploads and downloads: {path}")
    headers = {**_shared(outer.headers), **{name.lower(): str(value) for name, value in message.items()}}
    return Request.of(words[0], f"{path}?{target.query}", headers, b"".join(body).strip(), outer.base)


def _shared(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if not name.startswith(("content-", "transfer-"))}


def _part(content_id: str, response: Response) -> bytes:
    name = f"<response-{content_id.strip('<>')}>" if content_id.isprintable() else ""
    content = response.read()
    status = f"HTTP/1.1 {response.status} {HTTPStatus(response.status).phrase}"
    headers = {**dict(response.headers), "Content-Length": str(len(content))}
    lines = ["Content-Type: application/http", *([f"Content-ID: {name}"] if content_id else []), "", status]
    lines += [f"{key}: {value}" for key, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace") + content
