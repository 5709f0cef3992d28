"""Load the jobs that a repository's manifests ask for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

from reconciler.config import Config, Environment
from reconciler.desired import Desired, desired_jobs
from reconciler.errors import InvalidError
from reconciler.manifestcache import remembering
from reconciler.manifests import check_found, manifest_paths
from reconciler.validation.remembered import Memory
from reconciler.validation.validate import validate


def load_desired(
    config: Config, environment: Environment, paths: Sequence[Path], memory: Memory | None = None
) -> Desired:
    """Return the jobs that the manifests under `paths` ask for.

    Args:
        config: The settings.
        environment: The environment that the jobs are for.
        paths: Files and folders, as `manifest_paths` takes them.
        memory: The known manifests of a process that loads them repeatedly, which it keeps up to date; by
            default, the cache on disk.

    Raises:
        InvalidError: Manifests are not valid, or packages can't be staged; it has every problem.
        UsageError: A path does not exist.
    """
    root, filled = config.root, frozenset(environment.defaults)
    below = manifest_paths(root, paths)
    with remembering(root, filled, os.environ) if memory is None else nullcontext(memory) as known:
        found = validate(root, below, filled, memory=known, whole=not paths)
    check_found(found, paths)
    if found.problems:
        raise InvalidError("some manifests are not valid", problems=found.problems)
    return desired_jobs(root, found.manifests, environment, found.identities)
