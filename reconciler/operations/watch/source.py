"""Where the loop has its manifests from: the work tree, or a branch of a remote."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer
from watchdog.observers.api import ObservedWatch

from reconciler.base.errors import InvalidError
from reconciler.base.git_command import GitError
from reconciler.git.commit import head_of
from reconciler.git.remote import Clone
from reconciler.manifests.files import Signature, can_be_trusted, signature_of
from reconciler.manifests.paths import JOBS_FOLDER
from reconciler.manifests.settings import FILE_NAME, Config, from_document, load_config
from reconciler.model.plan import DesiredJob
from reconciler.operations.watch.report import Teller
from reconciler.operations.watch.state import Checkout
from reconciler.operations.watch.wakeups import Chance, Wakes, backoff

# Not that files are opened or closed: each pass reads them all.
_CHANGES: list[type[FileSystemEvent]] = [
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileModifiedEvent,
    FileMovedEvent,
]


@dataclass(frozen=True, order=True, slots=True)
class Place:
    """A folder to watch, with all below it or by itself."""

    folder: Path
    deep: bool


def places(root: Path, folders: Iterable[Path]) -> set[Place]:
    """Where to watch for what is below `folders`, or could come to be there.

    That is the first folder of each path below the root, since watches within each other would tell twice;
    and the root by itself, and git's own folder, which tells of commits.
    """
    below = [folder.relative_to(root).parts for folder in folders]
    first = {Place(root / parts[0], True) for parts in below if parts}
    top = {Place(root, False), *first} if all(below) else {Place(root, True)}
    return {*top, Place(root / ".git", False)}


class Files:
    """Watches folders; what can't be watched is looked at by each pass all the same.

    Attributes:
        problem: Why something isn't watched; "" where all of it is.

    Args:
        ignored: Folders whose changes don't count.
        changed: Called for each change, in a thread of its own.
    """

    def __init__(self, ignored: Collection[Path], changed: Callable[[], None]) -> None:
        self.problem = ""
        self._handler = _Handler(ignored, changed)
        self._observer = Observer()
        self._watched: dict[Place, tuple[ObservedWatch, object]] = {}
        self._observer.start()

    def close(self) -> None:
        """End its threads."""
        self._observer.stop()
        self._observer.join()

    def follow(self, wanted: Iterable[Place]) -> bool:
        """Watch just these places from now on; whether one is watched that wasn't before.

        A place that was removed and made again is another one.
        """
        there = {place: found for place in wanted if (found := _identity(place.folder)) is not None}
        for place in [*self._watched]:
            if self._watched[place][1] != there.get(place):
                self._leave(place)
        self.problem = ""
        more = [self._watch(place, there) for place in sorted(there.keys() - self._watched.keys())]
        return any(more)

    def _watch(self, place: Place, there: Mapping[Place, object]) -> bool:
        try:
            watch = self._observer.schedule(
                self._handler, str(place.folder), recursive=place.deep, event_filter=_CHANGES
            )
        except OSError as error:
            # Too many watches, for one: the limit is the system's, and other programs use it up too.
            self.problem = f"changes below {place.folder} are not seen: {error.strerror or error}"
            return False
        self._watched[place] = (watch, there[place])
        return True

    def _leave(self, place: Place) -> None:
        watch, _ = self._watched.pop(place)
        self._observer.unschedule(watch)


class _Handler(FileSystemEventHandler):
    def __init__(self, ignored: Collection[Path], changed: Callable[[], None]) -> None:
        self._ignored = [os.fspath(folder) for folder in ignored]
        self._changed = changed

    def on_any_event(self, event: FileSystemEvent) -> None:
        paths = [os.fsdecode(path) for path in (event.src_path, event.dest_path) if path]
        if not all(self._is_ignored(path) for path in paths):
            self._changed()

    def _is_ignored(self, path: str) -> bool:
        return any(path == folder or path.startswith(folder + os.sep) for folder in self._ignored)


def _identity(folder: Path) -> object:
    """What tells a folder from another of its name; None where there is none."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if folder.is_dir() else None


class KeptSettings:
    """Reads `reconciler.yaml`; once it was there, that it is gone is a mistake.

    Without the file the defaults would count: jobs would get another source, and all be submitted again. An
    editor that saves and a branch that is switched take it away for a moment. A file that nobody touched is
    read only once.
    """

    def __init__(self) -> None:
        self._were_there = False
        self._read: tuple[Path, Signature, Config] | None = None

    def read(self, root: Path) -> Config:
        """The settings at `root`.

        Raises:
            InvalidError: They aren't valid, or are gone; an empty file is as good as none.
        """
        began, signature = time.time_ns(), _signature(root)
        if self._read is not None and self._read[:2] == (root, signature):
            return self._read[2]
        config = self._checked(root)
        sure = signature is not None and can_be_trusted(signature, began) and _signature(root) == signature
        self._read = (root, signature, config) if signature is not None and sure else None
        return config

    def _checked(self, root: Path) -> Config:
        try:
            config = load_config(root)
        except InvalidError:
            self._were_there = True
            raise
        if config != from_document(root, {}, config.digest):
            self._were_there = True
        elif self._were_there:
            raise InvalidError(
                f"{FILE_NAME} is gone, or empty, and held settings before",
                hint="put it back; if that is meant, end `reconciler watch` and start it again",
            )
        return config


def _signature(root: Path) -> Signature | None:
    """What the file looks like, or what a link in its place leads to; None where that can't be told."""
    try:
        return signature_of((root / FILE_NAME).stat())
    except OSError:
        return None


class Source(Protocol):
    """Where manifests come from."""

    due: float
    """When to look again, by the monotonic clock."""

    def refresh(self) -> bool:
        """Look; whether there is something new. Raises Stopped when the end is asked for."""

    def checkout(self) -> Checkout | None:
        """What is there now; None where nothing is yet."""

    def follow(self, jobs: Sequence[DesiredJob]) -> None:
        """These are the wanted jobs: where their code lies, changes count."""


class WorkTree:
    """The files of a repository as they are: each change is told to `wakes` as it happens."""

    due = math.inf

    def __init__(
        self,
        root: Path,
        environ: Mapping[str, str],
        environment: str | None,
        files: Files,
        wakes: Wakes,
        teller: Teller,
    ) -> None:
        self._root = root
        self._environ = environ
        self._environment = environment
        self._files = files
        self._wakes = wakes
        self._teller = teller
        self._settings = KeptSettings()
        self._folders = {root / JOBS_FOLDER}
        self._follow()

    def refresh(self) -> bool:
        """Nothing new: changes are told as they happen."""
        return False

    def checkout(self) -> Checkout:
        """The work tree."""
        self._follow()
        head = head_of(self._root, self._environ)
        commit = head.carried if head else ""
        return Checkout(self._root, commit, self._environ, self._environment, self._settings.read)

    def follow(self, jobs: Sequence[DesiredJob]) -> None:
        """Watch the code of these jobs."""
        packages = {job.manifest.package for job in jobs if job.manifest.package}
        self._folders = {self._root / JOBS_FOLDER, *packages}
        if self._follow():
            # It may have changed between its being read and its being watched.
            self._wakes.change()

    def _follow(self) -> bool:
        more = self._files.follow(places(self._root, self._folders))
        self._teller.not_watched(self._files.problem)
        return more


class RemoteBranch:
    """A branch that is fetched every `interval` seconds, later where that failed."""

    def __init__(
        self,
        clone: Clone,
        environ: Mapping[str, str],
        environment: str | None,
        interval: float,
        wakes: Wakes,
        teller: Teller,
        chance: Chance,
    ) -> None:
        self.due = 0.0
        self._clone = clone
        self._environ = environ
        self._environment = environment
        self._interval = interval
        self._wakes = wakes
        self._teller = teller
        self._chance = chance
        self._failures = 0

    def refresh(self) -> bool:
        """Fetch, if it is time to; what can't be fetched is told, and what was fetched before goes on."""
        if time.monotonic() < self.due:
            return False
        moved = False
        try:
            with self._wakes.left_off_at_stop():
                moved = self._clone.refresh()
            self._failures = 0
            self._teller.fetched(self._clone.commit if moved else "", None)
        except GitError as error:
            self._failures += 1
            self._teller.fetched("", error)
        later = backoff(self._failures, self._chance) if self._failures else 0.0
        self.due = time.monotonic() + self._interval + later
        return moved

    def checkout(self) -> Checkout | None:
        """The newest commit that was fetched; None before the first."""
        if not self._clone.commit:
            return None
        return Checkout(
            self._clone.tree, self._clone.commit, self._environ, self._environment, is_exported=True
        )

    def follow(self, jobs: Sequence[DesiredJob]) -> None:
        """Nothing to do: only a fetch brings changes."""
