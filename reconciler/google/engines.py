"""Registry of engines, by the apiVersion of the manifests that they run.

Other packages add engines by entry points in the group `reconciler.engines`, named for the apiVersion.
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

# Named here too, because reading all distributions' entry points takes longer than the rest of a small plan.
_OWN = {
    AIPLATFORM_V1: ("reconciler.google.vertex_ai", "AiPlatformEngine"),
    ML_V1: ("reconciler.google.ai_platform", "MlEngine"),
}


def api_versions() -> list[str]:
    """Return the apiVersions of all installed engines, sorted."""
    if not any(_may_contain_engines(Path(folder or ".")) for folder in sys.path):
        return sorted(_OWN)
    from importlib.metadata import entry_points

    return sorted({*_OWN, *(found.name for found in entry_points(group=GROUP))})


def _may_contain_engines(folder: Path) -> bool:
    """Return True if a distribution in the folder, other than ours, may name an engine."""
    # `importlib.metadata` takes a tenth of a small plan's time, and other engines are rare. Use it only if one
    # of its files contains our group, or if the folder can't be searched, such as a zip file.
    if not folder.is_dir():
        return folder.exists()
    with suppress(OSError), os.scandir(folder) as entries:
        return any(_may_name_engine(entry) for entry in entries)
    return True


def _may_name_engine(entry: os.DirEntry[str]) -> bool:
    if not entry.name.endswith((".dist-info", ".egg-info")) or entry.name.startswith("mljob_reconciler-"):
        return entry.name.endswith(".egg")
    try:
        with open(f"{entry.path}/entry_points.txt", "rb") as file:  # noqa: PTH123  # 100 files per run: Path is slow
            return GROUP.encode() in file.read()
    except OSError:
        return False


def engine_class(api_version: str) -> type[Engine]:
    """Return the engine that runs manifests of `api_version`; raise UsageError if none is installed."""
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
