"""What a repository wants, found out from its manifests and what earlier passes have left."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from reconciler.config import Config, Environment, read_document
from reconciler.errors import InvalidError
from reconciler.manifestcache import ManifestCache
from reconciler.manifests import check_found, manifest_paths
from reconciler.validation.remembered import Memory

if TYPE_CHECKING:
    from reconciler.desired import Desired
    from reconciler.sources.remembered import SourceMemory
    from reconciler.validation.beforehand import Beforehand
    from reconciler.validation.validate import Validating, Validation


def _source_memory() -> SourceMemory:
    from reconciler.sources.remembered import SourceMemory  # most commands remember no code

    return SourceMemory()


@dataclass(frozen=True, slots=True)
class PassMemory:
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
        beside: Called once threads may be started, when the processes are at work. Where nothing goes on
            beside, this process looks at what is known by itself.

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
        self._found = manifest_paths(config.root, paths)
        self._filled = frozenset(environment.defaults)
        self._cache = ManifestCache(config.root, self._filled, os.environ) if memory is None else None
        self._manifests = memory.manifests if memory else None
        self._code = memory.code if memory else None
        self._validating: Validating | None = None
        is_worth_it = beside is not None and self._cache is not None and self._cache.seems_large()
        self._beforehand = self._begun() if is_worth_it else None
        if self._beforehand is None and not (self._cache and self._cache.seems_good()):
            self._validating = self._validate()
        if beside is not None:
            beside()
        if self._beforehand is None and self._validating is None:
            self._validating = self._validate()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for each in (self._beforehand, self._validating):
            if each is not None:
                each.__exit__(kind, error, trace)

    def result(self) -> Desired:
        """What is wanted; call it once. Raises InvalidError with every problem."""
        from reconciler.desired import desired_jobs

        found = self._beforehand.result() if self._beforehand is not None else None
        if found is None:
            self._validating = self._validating or self._validate()
            found = self._result_of(self._validating)
        check_found(found, self._paths)
        if found.problems:
            raise InvalidError("some manifests are not valid", problems=found.problems)
        return desired_jobs(self._root, found.manifests, self._environment, found.identities, self._code)

    def _begun(self) -> Beforehand | None:
        """The validation in another process; None where there can't be one beside this."""
        from reconciler.validation.workers import can_fork, count_of_processors

        if count_of_processors() < 2 or not can_fork():
            return None
        from reconciler.validation.beforehand import Beforehand

        return Beforehand(lambda: self._result_of(self._validate()))

    def _validate(self) -> Validating:
        # Imported only now, as what is beside may go on meanwhile.
        from reconciler.validation.validate import Validating

        if self._manifests is None:
            self._manifests = self._cache.load() if self._cache is not None else Memory()
        whole = not self._paths
        return Validating(self._root, self._found, self._filled, memory=self._manifests, whole=whole)

    def _result_of(self, validating: Validating) -> Validation:
        with validating:
            found = validating.result()
        if self._cache is not None and self._manifests is not None and self._manifests.changed:
            self._cache.save(self._manifests)
            read_document(self._root)  # which are kept as well, now that there is a place for them
        return found
