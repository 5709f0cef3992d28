"""Where the loop has its manifests from: the work tree, or a branch of a remote."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from reconciler.commit import head_of
from reconciler.git import GitError
from reconciler.manifests import JOBS_FOLDER
from reconciler.plan import DesiredJob
from reconciler.watching.files import Files, places
from reconciler.watching.remote import Clone
from reconciler.watching.settings import KeptSettings
from reconciler.watching.telling import Teller
from reconciler.watching.timing import Chance, backoff
from reconciler.watching.turn import Checkout
from reconciler.watching.wakes import Wakes


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
