"""Engines by name: the apiVersion of the manifests they run.

An engine of another package is found through an entry point in the group `reconciler.engines` whose name is
the apiVersion.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from reconciler import schemas
from reconciler.errors import UsageError
from reconciler.manifest import AIPLATFORM_V1, ML_V1

if TYPE_CHECKING:
    from reconciler.engines.base import Engine

GROUP = schemas.ENGINES

# Reading every distribution's entry points takes longer than all the rest of a small plan.
_OWN = {
    AIPLATFORM_V1: ("reconciler.engines.aiplatform", "AiPlatformEngine"),
    ML_V1: ("reconciler.engines.ml", "MlEngine"),
}


def api_versions() -> list[str]:
    """Every apiVersion that an engine is installed for, sorted."""
    from importlib.metadata import entry_points

    return sorted({*_OWN, *(found.name for found in entry_points(group=GROUP))})


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
