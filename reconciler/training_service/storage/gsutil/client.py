"""Small client of Cloud Storage for the stand-ins of gsutil and gcloud; standard library only."""

from __future__ import annotations

import http.client
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode, urlsplit

_CHUNK = 1024 * 1024


class StorageError(Exception):
    """Refusal by the service; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Storage:
    """Client of Cloud Storage at a URL."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        self._connection = http.client.HTTPConnection(parts.netloc, timeout=600)
        self._base = parts.path.rstrip("/")

    def names(self, bucket: str, prefix: str, delimiter: str = "") -> Iterator[dict[str, Any]]:
        """Yield the objects with the prefix, and {"prefix": …} for names folded at the delimiter."""
        query = {"prefix": prefix, "delimiter": delimiter}
        while True:
            answer = self._json("GET", f"/storage/v1/b/{quote(bucket, safe='')}/o", query)
            yield from ({"prefix": each} for each in answer.get("prefixes", ()))
            yield from answer.get("items", ())
            if "nextPageToken" not in answer:
                return
            query = {**query, "pageToken": answer["nextPageToken"]}

    def buckets(self) -> list[str]:
        """Return the names of all buckets."""
        answer = self._json("GET", "/storage/v1/b", {"project": "_"})
        return [str(each["name"]) for each in answer.get("items", ())]

    def find(self, bucket: str, name: str) -> dict[str, Any] | None:
        """Return an object's resource, None if missing."""
        try:
            return self._json("GET", _object(bucket, name))
        except StorageError as error:
            if error.status in (400, 404):  # 400: no object can have this name
                return None
            raise

    def read(self, bucket: str, name: str, out: BinaryIO) -> None:
        """Write an object's content to `out`."""
        with self._answer("GET", f"{_object(bucket, name)}?alt=media") as response:
            shutil.copyfileobj(response, out, _CHUNK)

    def write(self, bucket: str, name: str, source: BinaryIO, content_type: str) -> None:
        """Create an object from the rest of `source`, from its present position on."""
        path = f"/upload/storage/v1/b/{quote(bucket, safe='')}/o?"
        size = os.fstat(source.fileno()).st_size - source.tell()
        headers = {"Content-Type": content_type, "Content-Length": str(size)}
        query = urlencode({"uploadType": "media", "name": name})
        with self._answer("POST", path + query, source, headers) as response:
            response.read()

    def copy(self, source: tuple[str, str], target: tuple[str, str]) -> None:
        """Copy an object."""
        there = _object(*target).removeprefix("/storage/v1")
        self._json("POST", f"{_object(*source)}/rewriteTo{there}")

    def delete(self, bucket: str, name: str) -> None:
        """Delete an object."""
        with self._answer("DELETE", _object(bucket, name)) as response:
            response.read()

    def _json(self, method: str, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        with self._answer(method, f"{path}?{urlencode(query)}" if query else path) as response:
            found: dict[str, Any] = json.load(response)
        return found

    def _answer(
        self, method: str, path: str, body: BinaryIO | None = None, headers: Mapping[str, str] | None = None
    ) -> http.client.HTTPResponse:
        self._connection.request(method, self._base + path, body, headers or {})
        response = self._connection.getresponse()
        if response.status >= 400:
            raise StorageError(response.status, _message(response.read()))
        return response


def _object(bucket: str, name: str) -> str:
    return f"/storage/v1/b/{quote(bucket, safe='')}/o/{quote(name, safe='')}"


def _message(answer: bytes) -> str:
    try:
        return str(json.loads(answer)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return answer.decode("utf-8", "replace")
