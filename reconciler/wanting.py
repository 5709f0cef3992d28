"""What a repository wants, found out from its manifests and what earlier passes have left."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from msgspec import Struct, field

from reconciler.config import Config, Environment, read_document
from reconciler.desiredcache import DesiredCache
from reconciler.errors import InvalidError
from reconciler.manifestcache import ManifestCache
from reconciler.manifests import check_found, manifest_paths
from reconciler.validation.remembered import Memory

if TYPE_CHECKING:
    from reconciler.desired import Desired
    from reconciler.sources.remembered import SourceMemory
    from reconciler.validation.files import Found
    from reconciler.validation.validate import Validating


def _source_memory() -> SourceMemory:
    from reconciler.sources.remembered import SourceMemory  # most commands remember no code

    return SourceMemory()


class PassMemory(Struct, frozen=True):
    """What a process that goes on for long remembers from one pass to the next, so that it reads less.

    It is in memory alone, and of use to one thread at a time.
    """

    manifests: Memory = field(default_factory=Memory)
    code: SourceMemory = field(default_factory=_source_memory)


def wanted(
    config: Config, environment: Environment, paths: Sequence[Path], memory: PassMemory | None = None
) -> Desired:
    """The jobs that the manifests under `paths` ask for; raises InvalidError with every problem.

    The arguments are those of `Wanting`.
    """
    with Wanting(config, environment, paths, memory) as wanting:
        return wanting.result()


class Wanting:
    """What is wanted, being found out: where there are many manifests, processes read them from here on.

    Until `result` there is time for something else.

    Args:
        config: The settings.
        environment: Where the jobs are for.
        paths: As `manifest_paths` takes them.
        memory: What earlier passes left; without, there is the cache on disk.
        beside: Called once threads may be started, when the processes are at work.

    Attributes:
        look: Set by `result`: the look by which the same is wanted whenever it is seen again; b"" for none.

    Raises:
        UsageError: A path isn't there.
    """

    def __init__(
        self,
        config: Config,
        environment: Environment,
        paths: Sequence[Path],
        memory: PassMemory | None = None,
        beside: Callable[[], None] | None = None,
    ) -> None:
        self._root = config.root
        self._environment = environment
        self._paths = paths
        self._below = manifest_paths(config.root, paths)
        self._filled = frozenset(environment.defaults)
        self._cache = ManifestCache(config.root, self._filled, os.environ) if memory is None else None
        self._manifests = memory.manifests if memory else None
        self._code = memory.code if memory else None
        may_be_kept = memory is None and not paths
        self._kept = DesiredCache(config.root, os.environ, environment.defaults) if may_be_kept else None
        self._validating: Validating | None = None
        self.look = b""
        if not any(cache and cache.seems_good() for cache in (self._kept, self._cache)):
            self._validating = self._validate(self._found)
        if beside is not None:
            beside()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._validating is not None:
            self._validating.__exit__(kind, error, trace)

    @cached_property
    def seen(self) -> bytes:
        """What the manifests look like; b"" where that tells nothing of what is wanted."""
        return self._kept.look_of(self._found) if self._kept and self._validating is None else b""

    def result(self) -> Desired:
        """What is wanted; call it once. Raises InvalidError with every problem."""
        from reconciler.desired import Desired, desired_jobs

        if self._validating is None:
            kept = self._kept.load(self.seen) if self._kept else None
            if kept is not None:
                self.look = self.seen
                return Desired(kept, {})
            self._validating = self._validate(self._found)
        with self._validating:
            valid = self._validating.result()
        self._keep_manifests()
        check_found(valid, self._paths)
        if valid.problems:
            raise InvalidError("some manifests are not valid", problems=valid.problems)
        desired = desired_jobs(self._root, valid.manifests, self._environment, valid.identities, self._code)
        if self._kept and self._validating.is_remembered:
            look = self._kept.look_of(self._validating.found)
            self.look = look if self._kept.save(look, desired.jobs) else b""
        return desired

    @cached_property
    def _found(self) -> Found:
        from reconciler.validation.files import find_manifests

        return find_manifests(self._root, self._below)

    def _validate(self, found: Found) -> Validating:
        # Imported only now, as what is beside may go on meanwhile.
        from reconciler.validation.validate import Validating

        if self._manifests is None:
            self._manifests = self._cache.load() if self._cache is not None else Memory()
        whole = not self._paths
        return Validating(self._root, found, self._filled, memory=self._manifests, whole=whole)

    def _keep_manifests(self) -> None:
        if self._cache is not None and self._manifests is not None and self._manifests.changed:
            self._cache.save(self._manifests)
            read_document(self._root)  # which are kept as well, now that there is a place for them
