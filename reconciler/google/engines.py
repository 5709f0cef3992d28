"""Engines by name: the apiVersion of the manifests they run.

An engine of another package is found through an entry point in the group `reconciler.engines` whose name is
the apiVersion.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from reconciler.base.errors import UsageError
from reconciler.manifests import schemas
from reconciler.model.manifest import AIPLATFORM_V1, ML_V1

if TYPE_CHECKING:
    from reconciler.google.client import Engine

GROUP = schemas.ENGINES

# Reading every distribution's entry points takes longer than all the rest of a small plan.
_OWN = {
    AIPLATFORM_V1: ("reconciler.google.vertex_ai", "AiPlatformEngine"),
    ML_V1: ("reconciler.google.ai_platform", "MlEngine"),
}


def api_versions() -> list[str]:
    """Every apiVersion that an engine is installed for, sorted."""
    if not any(_may_bring_engines(Path(place or ".")) for place in sys.path):
        return sorted(_OWN)
    from importlib.metadata import entry_points

    return sorted({*_OWN, *(found.name for found in entry_points(group=GROUP))})


def _may_bring_engines(place: Path) -> bool:
    """Whether an installed distribution there, other than ours, may name an engine.

    `importlib.metadata` costs a small plan a tenth of its time, and there is nearly never anything to find:
    so it is asked only where one of the files that it would read speaks of our group, or where they can't be
    looked at so simply, as in a zip file.
    """
    if not place.is_dir():
        return place.exists()
    with suppress(OSError), os.scandir(place) as entries:
        return any(_tells_of_engines(entry) for entry in entries)
    return True


def _tells_of_engines(entry: os.DirEntry[str]) -> bool:
    if not entry.name.endswith((".dist-info", ".egg-info")) or entry.name.startswith("mljob_reconciler-"):
        return entry.name.endswith(".egg")
    try:
        with open(f"{entry.path}/entry_points.txt", "rb") as told:  # noqa: PTH123  # of a hundred, at each start: a Path takes longer
            return GROUP.encode() in told.read()
    except OSError:
        return False


def engine_class(api_version: str) -> type[Engine]:
    """The engine that runs manifests of `api_version`; raises UsageError where there is none."""
    if api_version in _OWN:
        module, name = _OWN[api_version]
        own: type[Engine] = getattr(import_module(module), name)
        return own
    from importlib.metadata import entry_points

    for found in entry_points(group=GROUP, name=api_version):
        other: type[Engine] = found.load()
        return other
    raise UsageError(
        f"no engine runs {api_version}", hint=f"install a package with an entry point in {GROUP}"
    )
