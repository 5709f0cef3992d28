"""Cloud Storage for the stand-ins of gsutil and gcloud: a small client, and the URLs that words name.

Imports only the standard library. Source: the pages "cp - Copy files and objects" and "URI wildcards" of
Google's documentation.
"""

from __future__ import annotations

import glob
import http.client
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote, urlencode, urlsplit

_CHUNK = 1024 * 1024
_WILD = re.compile(r"[*?\[]")


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
            yield from ({"prefix": folded} for folded in answer.get("prefixes", ()))
            yield from answer.get("items", ())
            if "nextPageToken" not in answer:
                return
            query = {**query, "pageToken": answer["nextPageToken"]}

    def buckets(self) -> list[str]:
        """Return the names of all buckets."""
        answer = self._json("GET", "/storage/v1/b", {"project": "_"})
        return [str(bucket["name"]) for bucket in answer.get("items", ())]

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
        answer = self._json("POST", f"{_object(*source)}/rewriteTo{there}")
        while not answer["done"]:
            token = {"rewriteToken": answer["rewriteToken"]}
            answer = self._json("POST", f"{_object(*source)}/rewriteTo{there}", token)

    def delete(self, bucket: str, name: str) -> None:
        """Delete an object."""
        with self._answer("DELETE", _object(bucket, name)) as response:
            response.read()

    def metadata(self, path: str) -> str:
        """Return a value of the metadata server that stands beside a job's storage."""
        headers = {"Metadata-Flavor": "Google"}
        with self._answer("GET", f"/computeMetadata/v1/{path}", headers=headers) as response:
            return response.read().decode()

    def _json(self, method: str, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        with self._answer(method, f"{path}?{urlencode(query)}" if query else path) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

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


class UsageError(Exception):
    """Refusal of a command line."""


@dataclass(frozen=True, slots=True)
class StorageUrl:
    """A file, or an object if `bucket` is set; `name` is its path or name, a container's may end in "/"."""

    name: str
    bucket: str = ""

    def __str__(self) -> str:
        return f"gs://{self.bucket}/{self.name}" if self.bucket else self.name

    @property
    def base(self) -> str:
        """Return the last part of the name."""
        return self.name.rstrip("/").rpartition("/")[2]

    def below(self, name: str) -> StorageUrl:
        """Return a URL below this one."""
        joined = f"{self.name.rstrip('/')}/{name}" if self.name.rstrip("/") else name
        return StorageUrl(f"/{name}" if not self.bucket and self.name == "/" else joined, self.bucket)


def parse(word: str) -> StorageUrl:
    """Return the URL that a word names.

    Raises:
        UsageError: The word names a place outside files and Cloud Storage.
    """
    scheme, mark, rest = word.partition("://")
    if not mark or scheme == "file":
        return StorageUrl(rest if mark else word)
    bucket, _, name = rest.partition("/")
    if scheme != "gs" or (not bucket and name) or _WILD.search(bucket):
        raise UsageError(f"{word!r} names no bucket or object here: gs://BUCKET/NAME is served.")
    return StorageUrl(name, bucket)


def matches(storage: Storage, url: StorageUrl) -> Iterator[tuple[StorageUrl, bool]]:
    """Yield the objects and containers that a URL with or without wildcards names, True for containers."""
    if not url.bucket:
        wild = _WILD.search(url.name) is not None
        # gsutil's rules are those of glob; Path.glob differs.
        for path in sorted(glob.glob(url.name, recursive=True)) if wild else [url.name]:  # noqa: PTH207 (see above)
            if os.path.lexists(path) and not ("**" in url.name and Path(path).is_dir()):
                yield StorageUrl(path), Path(path).is_dir()
    elif not url.name:
        yield url, True
    elif _WILD.search(url.name):
        yield from _by_wildcard(storage, url)
    elif not url.name.endswith("/") and storage.find(url.bucket, url.name):
        yield url, False
    elif any(True for _ in storage.names(url.bucket, f"{url.name.rstrip('/')}/", "/")):
        yield StorageUrl(url.name.rstrip("/"), url.bucket), True


def _by_wildcard(storage: Storage, url: StorageUrl) -> Iterator[tuple[StorageUrl, bool]]:
    pattern = _pattern(url.name.rstrip("/"))
    across = "**" in url.name  # matches across "/", so it names objects, never containers
    only_containers = url.name.endswith("/") and not across
    seen = set()
    for entry in storage.names(url.bucket, _WILD.split(url.name)[0]):
        parts = entry["name"].split("/")
        depth = len(parts) if across else url.name.rstrip("/").count("/") + 1
        head, container = "/".join(parts[:depth]), len(parts) > depth
        if pattern.fullmatch(head) and (container or not only_containers) and (head, container) not in seen:
            seen.add((head, container))
            yield StorageUrl(head, url.bucket), container


def _pattern(text: str) -> re.Pattern[str]:
    kinds = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*|\*|\?|\[!?[^]]+\])", text)
    return re.compile("".join(_part(part, kinds) for part in parts), re.DOTALL)


def _part(part: str, kinds: dict[str, str]) -> str:
    if part in kinds:
        return kinds[part]
    if part.startswith("[") and part.endswith("]") and len(part) > 2:
        return f"[^{part[2:]}" if part[1] == "!" else part
    return re.escape(part)
