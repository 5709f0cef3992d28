"""Description of a home that may be another person's: no file in it is trusted, followed or run.

The work has limits: of the database's size, of the number of files, and of seconds.
"""

from __future__ import annotations

import os
import sqlite3
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

from msgspec import Struct

from reconciler.base.safe_files import IrregularFileError, open_file
from reconciler.training_service.address import ADDRESS

MOST_FILES = 200_000
MOST_DATABASE = 512 * 1024 * 1024  # bytes
MOST_STATES = 100
MOST_LINKS = 20
_SECONDS = 5.0  # limit for reading the database
_STEPS = 10_000  # of SQLite, between two checks of the clock
_LONGEST = 1_000_000  # bytes of one value
_PIECE = 1024 * 1024


class Bucket(Struct, frozen=True):
    """Files below one folder of `gcs/`; links are neither followed nor counted."""

    name: str
    files: int
    size: int


class Link(Struct, frozen=True):
    """Symbolic link: its path below the home, and its target."""

    name: str
    target: str


class Contents(Struct, frozen=True):
    """Content of a home.

    Attributes:
        jobs: The number of jobs in the database, by state.
        problem: The reason why the database can't be shown; "" if it can, or is missing.
        has_database: True if the home has a database.
        buckets: The buckets with their sizes, by name.
        environments: The number of kept environments.
        has_address: True if the home has a service.json.
        links: Symbolic links in the home, in its folders and in the buckets; at most `MOST_LINKS`.
        further_links: The number of links beyond these.
        complete: False if the limits left entries uncounted.
    """

    jobs: dict[str, int]
    problem: str
    has_database: bool
    buckets: tuple[Bucket, ...]
    environments: int
    has_address: bool
    links: tuple[Link, ...]
    further_links: int
    complete: bool


def contents_of(home: Path) -> Contents:
    """Return a description of a home; raise no error, whatever its content."""
    has_database = os.path.lexists(home / "state.db")
    jobs, problem = _jobs(home) if has_database else ({}, "")
    walk = _Walk(home)
    # Upper levels first: their links replace whole folders, and many links deep in buckets must not displace
    # them from the list.
    folders = {folder.name: [*walk.folders(folder)] for folder in [*walk.folders(home)]}
    buckets = [walk.bucket(folder) for folder in folders.get("gcs", ())]
    return Contents(
        jobs,
        problem,
        has_database,
        tuple(sorted(buckets, key=lambda bucket: bucket.name)),
        len(folders.get("environments", ())),
        os.path.lexists(home / ADDRESS),
        tuple(walk.links),
        walk.further_links,
        walk.left > 0,
    )


class _Walk:
    """Walk over the folders of a home up to a limit of entries, which collects symbolic links."""

    def __init__(self, home: Path) -> None:
        self.left = MOST_FILES
        self.links: list[Link] = []
        self.further_links = 0
        self._home = home

    def folders(self, folder: Path) -> Iterator[Path]:
        for entry in [*self._entries(folder)]:
            if entry.is_dir(follow_symlinks=False):
                yield Path(entry.path)

    def bucket(self, folder: Path) -> Bucket:
        files = size = 0
        below = [folder]
        while below:
            for entry in self._entries(below.pop()):
                try:
                    status = entry.stat(follow_symlinks=False)
                except OSError:
                    continue
                if stat.S_ISDIR(status.st_mode):
                    below.append(Path(entry.path))
                elif stat.S_ISREG(status.st_mode):
                    files, size = files + 1, size + status.st_size
        return Bucket(folder.name, files, size)

    def _entries(self, folder: Path) -> Iterator[os.DirEntry[str]]:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if self.left <= 0:
                        return
                    self.left -= 1
                    if entry.is_symlink():
                        self._add_link(Path(entry.path))
                    yield entry
        except OSError:  # missing, unreadable, or too deep a path
            return

    def _add_link(self, link: Path) -> None:
        if len(self.links) >= MOST_LINKS:
            self.further_links += 1
            return
        self.links.append(Link(str(link.relative_to(self._home)), str(link.readlink())))


def _jobs(home: Path) -> tuple[dict[str, int], str]:
    """Return the number of jobs by state, or the reason why it can't be known."""
    # Never copied, not even for SQLite to roll it back: a journal may name any file of this user as the
    # journal of several databases, and SQLite then deletes that file.
    if os.path.lexists(home / "state.db-journal"):
        return {}, "state.db-journal may change what it says"
    try:
        with tempfile.TemporaryDirectory(prefix="reconciler-") as folder:
            copy = Path(folder) / "state.db"
            _copy(home / "state.db", copy)
            if os.path.lexists(home / "state.db-wal"):
                _copy(home / "state.db-wal", copy.with_name("state.db-wal"))
            with closing(sqlite3.connect(copy)) as connection:
                return _count(connection), ""
    except (sqlite3.Error, UnicodeError) as error:
        return {}, f"it can't be read: {error}"
    except OSError as error:
        return {}, f"it can't be read: {error.strerror or error}"


def _count(connection: sqlite3.Connection) -> dict[str, int]:
    until = time.monotonic() + _SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST)
    # Large intermediate results go to files. SQLite's limit of the heap is no way: it holds for the whole
    # process, and can't be raised again.
    connection.execute("PRAGMA temp_store = FILE")
    # The header of a database may ask for a cache of any size; negative: in KiB.
    connection.execute("PRAGMA cache_size = -2000")
    # Neither functions nor virtual tables run because a schema names them.
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    rows = connection.execute("SELECT state, count(*) FROM jobs GROUP BY state LIMIT ?", (MOST_STATES,))
    return {str(state): int(count) for state, count in rows}


def _copy(source: Path, target: Path) -> None:
    try:
        descriptor, status = open_file(source)
    except IrregularFileError:
        raise OSError(f"{source.name} is not a regular file") from None
    with os.fdopen(descriptor, "rb") as file, target.open("wb") as copy:
        if status.st_size > MOST_DATABASE:
            raise OSError(f"{source.name} is larger than {MOST_DATABASE >> 20} MiB")
        size = 0
        # The file may grow during the copy.
        while size <= MOST_DATABASE and (data := file.read(_PIECE)):
            copy.write(data)
            size += len(data)
