"""Import of modules from a changed syntax tree."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import CodeType
from typing import Any


def replace_module(name: str, path: Path, tree: ast.Module) -> None:
    """Make the import of a module run `tree` instead of its file; raise if it is already imported."""
    if name in sys.modules:
        raise RuntimeError(f"{name} is imported already")
    sys.meta_path.insert(0, _Finder(name, path, tree))


class _Loader(importlib.machinery.SourceFileLoader):
    """Loader of a module from a syntax tree."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        super().__init__(name, str(path))
        self._code = compile(tree, str(path), "exec", dont_inherit=True)

    def get_code(self, fullname: str) -> CodeType:
        return self._code


class _Finder(importlib.abc.MetaPathFinder):
    """Finder that substitutes the changed module for the real module."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        self._name, self._path = name, path
        self._loader = _Loader(name, path, tree)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        if fullname != self._name:
            return None
        return importlib.util.spec_from_file_location(fullname, self._path, loader=self._loader)
