"""Sources of manifests for the loop, and the first of them: the work tree; `remote.py` has the other.

A watcher of folders reports changes to the work tree. Its settings are kept: a missing file is an error, and
never lets the defaults replace them.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from watchdog import events
from watchdog.observers import Observer
from watchdog.observers.api import ObservedWatch

from reconciler.base.checkout import checkout_of, git_folder
from reconciler.base.errors import (
    InvalidError,
    ReconcilerError,
)
from reconciler.git.commit import head_of
from reconciler.git.index import GitIndex
from reconciler.manifests.settings import (
    FILE_NAME,
    JOBS_FOLDER,
    Config,
    content_digest,
    from_document,
    load_config,
)
from reconciler.model.plan import DesiredJob
from reconciler.operations.load_desired import Desired
from reconciler.operations.watch.report import PassReporter
from reconciler.operations.watch.rest import SETTLES_IN, changing, git_at_work, unfinished_code
from reconciler.operations.watch.state import Checkout
from reconciler.operations.watch.wakeups import Wakes


class Source(Protocol):
    """Source of manifests."""

    due: float
    """Time of the next refresh, by the monotonic clock."""

    def refresh(self, changed: bool) -> bool:
        """Return True if there is a new version to apply; raise Stopped if a stop is requested.

        `changed` is True if a file was seen to change since the last call.
        """

    def checkout(self) -> Checkout | None:
        """Return the current files; None if no version is available yet."""

    def follow(self, jobs: Sequence[DesiredJob]) -> None:
        """Update the watched folders to those of these jobs' code."""


# Without the events of opened and closed files: each pass opens every manifest, and would trigger the next.
_CHANGES: list[type[events.FileSystemEvent]] = [
    *(events.DirCreatedEvent, events.DirDeletedEvent, events.DirMovedEvent),
    *(events.FileCreatedEvent, events.FileDeletedEvent, events.FileModifiedEvent, events.FileMovedEvent),
]


@dataclass(frozen=True, order=True, slots=True)
class WatchedFolder:
    """Folder to watch, with or without the folders below it."""

    folder: Path
    deep: bool


def watched_places(root: Path, folders: Iterable[Path]) -> set[WatchedFolder]:
    """Return the folders to watch for changes below `folders`, including folders that do not exist yet.

    These are the top-level folder of each path, since nested watches report each change twice, the root
    without its subfolders, and `.git`, where a new commit shows.
    """
    below = [folder.relative_to(root).parts for folder in folders]
    first = {WatchedFolder(root / parts[0], True) for parts in below if parts}
    top = {WatchedFolder(root, False), *first} if all(below) else {WatchedFolder(root, True)}
    # In a linked work tree, or where the root is a subfolder of the checkout, it is elsewhere.
    checkout = checkout_of(root)
    git = git_folder(checkout) if checkout else None
    return {*top, WatchedFolder(git or root / ".git", False)}


class FolderWatcher:
    """Watcher of folders; each pass reads all files, so an unwatched folder only delays a change.

    Attributes:
        problem: The reason why a folder isn't watched; "" if all are.
        changed_last: The path of the last change; "" before the first.

    Args:
        ignored: Folders whose changes are ignored.
        changed: Called for each change, in a background thread.
    """

    def __init__(self, ignored: Collection[Path], changed: Callable[[], None]) -> None:
        self.problem = ""
        self.changed_last = ""
        self._changed = changed
        self._handler = _Handler(ignored, self._change)
        self._observer = Observer()
        self._watched: dict[WatchedFolder, tuple[ObservedWatch, object]] = {}
        self._observer.start()

    def _change(self, path: str) -> None:
        self.changed_last = path
        self._changed()

    def close(self) -> None:
        """Stop the watcher's threads."""
        self._observer.stop()
        self._observer.join()

    def follow(self, wanted: Iterable[WatchedFolder]) -> bool:
        """Watch exactly these folders; return True if a new one is watched.

        A folder that was removed and created again is a new one.
        """
        existing = {
            watched: identity for watched in wanted if (identity := _identity(watched.folder)) is not None
        }
        # A watch follows the inode: it reports nothing about a new folder with the same name.
        for watched in [*self._watched]:
            if self._watched[watched][1] != existing.get(watched):
                watch, _ = self._watched.pop(watched)
                self._observer.unschedule(watch)
        self.problem = ""
        # A list, not a generator: `any` would stop at the first new place.
        added = [
            self._watch(watched, existing[watched])
            for watched in sorted(existing.keys() - self._watched.keys())
        ]
        return any(added)

    def _watch(self, watched: WatchedFolder, identity: object) -> bool:
        try:
            watch = self._observer.schedule(
                self._handler, str(watched.folder), recursive=watched.deep, event_filter=_CHANGES
            )
        except OSError as error:
            # For example, all programs of a user share inotify's limit on watches.
            self.problem = f"changes below {watched.folder} can't be detected: {error.strerror or error}"
            return False
        self._watched[watched] = (watch, identity)
        return True


class _Handler(events.FileSystemEventHandler):
    def __init__(self, ignored: Collection[Path], changed: Callable[[str], None]) -> None:
        self._ignored = [os.fspath(folder) for folder in ignored]
        self._changed = changed

    def on_any_event(self, event: events.FileSystemEvent) -> None:
        paths = [os.fsdecode(path) for path in (event.src_path, event.dest_path) if path]
        if path := next((path for path in paths if not self._is_ignored(path)), ""):
            self._changed(path)

    def _is_ignored(self, path: str) -> bool:
        return any(path == folder or path.startswith(folder + os.sep) for folder in self._ignored)


def _identity(folder: Path) -> object:
    """Return the device and inode of a folder; None if it is missing."""
    try:
        status = folder.stat()
    except OSError:
        return None
    return (status.st_dev, status.st_ino) if folder.is_dir() else None


class KeptSettings:
    """Reader of `reconciler.yaml` that reports a removed file as an error and checks only new content.

    Without the file the defaults would apply: jobs would get another source, and all be submitted again. An
    editor that saves, or a branch switch, removes the file for a moment.
    """

    def __init__(self) -> None:
        # Set once settings were found; an invalid file counts too.
        self._had_settings = False
        self._read: Config | None = None

    def read(self, root: Path) -> Config:
        """Return the settings at `root`.

        Raises:
            InvalidError: The settings are invalid, or the file had settings before and is missing or empty.
        """
        read, digest = self._read, content_digest(root)
        if read is None or not digest or (read.root, read.digest) != (root, digest):
            read = self._read = self._checked(root)
        return read

    def _checked(self, root: Path) -> Config:
        try:
            config = load_config(root)
        except InvalidError:
            self._had_settings = True
            raise
        if config != from_document(root, {}, config.digest):
            self._had_settings = True
        elif self._had_settings:
            raise InvalidError(
                f"{FILE_NAME} is missing or empty, although it had settings before",
                hint="restore it; if this is intended, stop `reconciler watch` and start it again",
            )
        return config


@dataclass(slots=True)
class LocalFiles:
    """Files of a repository's work tree; `wakes` gets an event for each change.

    Attributes:
        settles_in: Seconds without a change after which changes are applied on Google Cloud.
    """

    root: Path
    environ: Mapping[str, str]
    environment: str | None
    files: FolderWatcher
    wakes: Wakes
    reporter: PassReporter
    settles_in: float = SETTLES_IN
    due: float = field(default=math.inf, init=False)
    # Somebody may be in the middle of an edit when it starts.
    _is_changed: bool = field(default=True, init=False)
    _changed_at: float = field(default_factory=time.monotonic, init=False)
    _settings: KeptSettings = field(default_factory=KeptSettings, init=False)
    _packages: set[Path] = field(default_factory=set, init=False)

    def __post_init__(self) -> None:
        self._follow()

    def refresh(self, changed: bool) -> bool:
        """Return True once the files have changed and are quiet."""
        if changed:
            self._is_changed, self._changed_at = True, time.monotonic()
        if self._is_changed and self._is_in_the_cloud():
            self.due = self._changed_at + self.settles_in
            if time.monotonic() < self.due:
                self.reporter.held(changing(self.settles_in), self.files.changed_last)
                return False
        is_new, self._is_changed, self.due = self._is_changed, False, math.inf
        return is_new

    def checkout(self) -> Checkout:
        """Return the work tree."""
        self._follow()
        head = head_of(self.root, self.environ)
        commit = head.carried if head else ""
        index = GitIndex(self.root, self.environ)
        return Checkout(
            self.root,
            commit,
            self.environ,
            self.environment,
            self._settings.read,
            index=index,
            held=partial(self._held, index),
        )

    def _held(self, index: GitIndex, desired: Desired) -> str:
        if self.wakes.has_changed or time.monotonic() < self._changed_at + self.settles_in:
            return changing(self.settles_in)
        return git_at_work(self.root) or unfinished_code(desired, self.root, index)

    def _is_in_the_cloud(self) -> bool:
        try:
            return self._settings.read(self.root).environment(self.environment).engine == "google"
        except ReconcilerError:
            return False  # the pass reports it

    def follow(self, jobs: Sequence[DesiredJob]) -> None:
        """Watch the code of these jobs."""
        self._packages = {job.manifest.package for job in jobs if job.manifest.package}
        if self._follow():
            # A file may have changed after it was read and before it was watched.
            self.wakes.change()

    def _follow(self) -> bool:
        more = self.files.follow(watched_places(self.root, {self.root / JOBS_FOLDER, *self._packages}))
        self.reporter.not_watched(self.files.problem)
        return more
