"""Incoming content, written next to the buckets first, so that an object appears complete or not at all."""

from __future__ import annotations

import base64
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import google_crc32c

from reconciler.training_service.http.message import ApiError, not_found
from reconciler.training_service.state.records import JsonObject

_Crc32c: Any = google_crc32c.Checksum  # the package has no types
_CHUNK = 1024 * 1024
_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_DAY = 24 * 3600.0
SESSION_DAYS = 7  # https://cloud.google.com/storage/docs/resumable-uploads


@dataclass(frozen=True, slots=True)
class Checksums:
    """Size and checksums of content: both in base64, the CRC32C big-endian, as in Cloud Storage."""

    size: int
    md5: str
    crc32c: str


@dataclass(frozen=True, slots=True)
class Staged:
    """A complete, durable file that is not yet an object."""

    path: Path
    checksums: Checksums


def checksums_of(file: BinaryIO, size: int) -> Checksums | None:
    """Return the checksums of the file's next `size` bytes; None if it has fewer."""
    md5, crc32c, remaining = hashlib.md5(usedforsecurity=False), _Crc32c(), size
    while remaining:
        chunk = file.read(min(remaining, _CHUNK))
        if not chunk:
            return None
        md5.update(chunk)
        crc32c.update(chunk)
        remaining -= len(chunk)
    return Checksums(
        size, base64.b64encode(md5.digest()).decode(), base64.b64encode(crc32c.digest()).decode()
    )


def copy_range(source: BinaryIO, copy: BinaryIO, start: int, end: int) -> None:
    """Copy the bytes from `start` to `end` to the same place of `copy`, durably; `copy` then ends there.

    Holes stay holes. Where the source ends earlier, the rest is a hole too.
    """
    copy.truncate(start)  # what a call that was cut off has left behind may be torn
    position = start
    while position < end:
        begin, hole = _next_data(source, position)
        if begin >= end or not (copied := _copy_some(source, copy, begin, min(end, hole))):
            break
        position = begin + copied
    copy.truncate(end)
    os.fsync(copy.fileno())


def _next_data(source: BinaryIO, position: int) -> tuple[int, int]:
    """Return the beginning and the end of the next bytes from `position` on that are no hole."""
    try:
        begin = os.lseek(source.fileno(), position, os.SEEK_DATA)
        return begin, os.lseek(source.fileno(), begin, os.SEEK_HOLE)
    except OSError as error:
        if error.errno == errno.ENXIO:  # nothing follows but a hole, or the file became shorter
            return sys.maxsize, sys.maxsize
        raise


def _copy_some(source: BinaryIO, copy: BinaryIO, start: int, end: int) -> int:
    """Copy bytes from `start` on, up to `end`, and return their number; 0 at the end of the source."""
    with suppress(OSError, AttributeError):  # not between these file systems, or not on this system
        if copied := os.copy_file_range(source.fileno(), copy.fileno(), end - start, start, start):
            return copied
    return os.pwrite(copy.fileno(), os.pread(source.fileno(), min(end - start, _CHUNK), start), start)


class Uploads:
    """Folder of content that is not yet an object."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "uploads"

    @contextmanager
    def staged(self, chunks: Iterator[bytes]) -> Iterator[Staged]:
        """Write content to a file; remove it after the block unless it was moved to its place."""
        with self.new_path() as path:
            with path.open("xb") as file:
                for chunk in chunks:
                    file.write(chunk)
            yield self.whole(path)

    @contextmanager
    def new_path(self) -> Iterator[Path]:
        """Yield the path of a file to make; remove it after the block unless it was moved to its place."""
        self._folder.mkdir(exist_ok=True)
        path = self._folder / f"{secrets.token_hex(16)}.tmp"
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def whole(self, path: Path) -> Staged:
        """Return a completely written file as staged: flushed to disk, with checksums."""
        with path.open("rb") as file:
            os.fsync(file.fileno())
            checksums = checksums_of(file, os.fstat(file.fileno()).st_size)
        if checksums is None:
            raise OSError(f"{path.name} became shorter while it was read")
        return Staged(path, checksums)

    def start(self, about: JsonObject) -> str:
        """Start a resumable upload, or a copy in parts, and return its id; `about` is what its end needs."""
        self._folder.mkdir(exist_ok=True)
        upload = secrets.token_urlsafe(32)
        (self._folder / f"{upload}.part").touch()
        self.write(upload, about)
        return upload

    @contextmanager
    def session(self, upload: str) -> Iterator[UploadSession]:
        """Open a resumable upload, locked against other requests until the block ends.

        Raises:
            ApiError: NOT_FOUND: No such upload, or it has ended.
        """
        part = self._folder / f"{upload}.part"
        if not _ID.fullmatch(upload) or not part.exists():
            raise _no_upload()
        with part.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            # The previous holder of the lock may have moved the file to its place: then it is an object.
            if not part.exists() or not os.path.samestat(part.stat(), os.fstat(file.fileno())):
                raise _no_upload()
            about = json.loads(self._about(upload).read_text(encoding="utf-8"))
            yield UploadSession(self, upload, file, part, about)

    def clean(self) -> None:
        """Remove abandoned uploads: crashed ones after a day, resumable ones after a week."""
        now = time.time()
        for path in self._folder.glob("*"):
            days = 1 if path.suffix == ".tmp" else SESSION_DAYS
            if now - path.stat().st_mtime > days * _DAY:
                path.unlink(missing_ok=True)

    def _about(self, upload: str) -> Path:
        return self._folder / f"{upload}.json"

    def write(self, upload: str, about: JsonObject) -> None:
        """Store a resumable upload's data."""
        path = self._about(upload)
        new = path.with_suffix(".new")  # replaced atomically: a crash must not leave half of the JSON
        new.write_text(json.dumps(about), encoding="utf-8")
        new.replace(path)


@dataclass(frozen=True, slots=True)
class UploadSession:
    """A resumable upload, or a copy in parts.

    Attributes:
        about: The data of its start; contains `object` once it has finished.
    """

    uploads: Uploads
    id: str
    file: BinaryIO
    path: Path
    about: JsonObject

    def received(self) -> int:
        """Return the number of bytes received."""
        return os.fstat(self.file.fileno()).st_size

    def append(self, chunks: Iterator[bytes], overlap: int) -> None:
        """Append content without its first `overlap` bytes, which were received before."""
        self.file.seek(0, os.SEEK_END)
        for chunk in chunks:
            self.file.write(chunk[overlap:])
            overlap = max(0, overlap - len(chunk))
        self.file.flush()

    def whole(self) -> Staged:
        """Return the received content as staged."""
        return self.uploads.whole(self.path)

    def note(self, about: JsonObject) -> None:
        """Store changed data of the upload."""
        self.uploads.write(self.id, about)

    def done(self, answer: JsonObject) -> None:
        """Store the answer, for a client that misses it and asks again."""
        self.note(self.about | {"object": answer})
        self.path.touch()  # the file has moved away; `session` and `clean` need one with a fresh time

    def give_up(self) -> None:
        """Remove the upload."""
        self.path.with_suffix(".json").unlink(missing_ok=True)
        self.path.unlink(missing_ok=True)


def _no_upload() -> ApiError:
    return not_found("There is no such upload; begin again.")
