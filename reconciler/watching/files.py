"""Changes of files, seen as they happen."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

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
