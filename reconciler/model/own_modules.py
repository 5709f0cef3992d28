"""Modules in the folder of a package, by the names under which a job imports them. Nothing of it is run."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path

_MOST_FILES = 5000
_SKIPPED = {"__pycache__", "node_modules"}


class OwnModules:
    """Modules of a package.

    Args:
        package: The folder, as the manifest's `package` names it.
        entry: The module that the job runs, such as "trainer.task"; "" if unknown.
    """

    def __init__(self, package: Path, entry: str) -> None:
        self._package = package
        self._entry = entry

    def find(self, module: str, *, beside: str = "") -> str:
        """Return the name of the module that an import of `module` means; "" for none.

        Args:
            module: The name that couldn't be imported, such as "model".
            beside: The path of the file that imports it: the module in the same folder comes first.
        """
        names = [name for name in self._names if name == module or name.endswith(f".{module}")]
        importer = beside.replace("\\", "/").rpartition("/")[0].replace("/", ".")
        parents = {name: name.removesuffix(module).rstrip(".") for name in names}
        beside_it = [name for name, parent in parents.items() if f".{importer}".endswith(f".{parent}")]
        return next(iter([*beside_it, *sorted(names, key=len)]), "")

    @cached_property
    def _names(self) -> tuple[str, ...]:
        found: list[str] = []
        for folder, folders, files in os.walk(self._package):
            folders[:] = sorted(name for name in folders if name not in _SKIPPED and name.isidentifier())
            path = Path(folder).relative_to(self._package).parts
            found += [".".join((*path, name.removesuffix(".py"))) for name in files if name.endswith(".py")]
            if len(found) > _MOST_FILES:
                break
        around = self._around(found)
        # A package's own name stands for its `__init__.py`.
        return tuple(f"{around}{name}".removesuffix(".__init__") for name in found)

    def _around(self, found: list[str]) -> str:
        """Return the packages, with a dot, that contain the folder itself in the archive; mostly ""."""
        parts = self._entry.split(".")
        for depth in range(len(parts)):
            inside = ".".join(parts[depth:])
            if inside in found or f"{inside}.__main__" in found:
                return "".join(f"{part}." for part in parts[:depth])
        return ""
