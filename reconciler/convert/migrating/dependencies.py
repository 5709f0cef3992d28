"""Dependencies that a package declares, read without running its code."""

from __future__ import annotations

import ast
import configparser
import tomllib
from collections.abc import Sequence

from msgspec import Struct

from reconciler.convert.migrating.report import mapping
from reconciler.packaging.source_tree import SourceFile


class Dependencies(Struct, frozen=True):
    """Requirements that pip installed with a package.

    Attributes:
        file: The file in the package that lists them.
        requirements: The requirements; empty if code computes them.
    """

    file: str
    requirements: tuple[str, ...]


def dependencies(files: Sequence[SourceFile]) -> Dependencies | None:
    """Return what pip installed with a package, by its build files; None for nothing. Runs no code."""
    contents = {file.path: file.content for file in files}
    readers = {"setup.py": _of_setup, "setup.cfg": _of_configuration, "pyproject.toml": _of_project}
    for name, read in readers.items():
        requirements = read(contents[name]) if name in contents else ()
        if requirements is None or requirements:
            return Dependencies(name, requirements or ())
    if "setup.py" in contents or "requirements.txt" not in contents:
        return None
    lines = contents["requirements.txt"].decode("utf-8", "replace").splitlines()
    listed = tuple(line for raw_line in lines if (line := raw_line.partition("#")[0].strip()))
    return Dependencies("requirements.txt", listed) if listed else None


def _of_setup(content: bytes) -> tuple[str, ...] | None:
    """Return `install_requires` of a setup.py; None if it isn't written out."""
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    values = {
        target.id: node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        for keyword in node.keywords if isinstance(node, ast.Call) else ():
            if keyword.arg == "install_requires":
                named = keyword.value
                return _literals(values.get(named.id) if isinstance(named, ast.Name) else named)
    return ()


def _literals(node: ast.expr | None) -> tuple[str, ...] | None:
    if not isinstance(node, ast.List | ast.Tuple):
        return None
    constants = [element.value for element in node.elts if isinstance(element, ast.Constant)]
    texts = tuple(value for value in constants if isinstance(value, str))
    return texts if len(texts) == len(node.elts) else None


def _of_configuration(content: bytes) -> tuple[str, ...] | None:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(content.decode("utf-8", "replace"))
    except configparser.Error:
        return None
    lines = parser.get("options", "install_requires", fallback="").splitlines()
    return tuple(line.strip() for line in lines if line.strip())


def _of_project(content: bytes) -> tuple[str, ...] | None:
    try:
        project = tomllib.loads(content.decode("utf-8", "replace")).get("project", {})
    except (ValueError, RecursionError):
        return None
    if "dependencies" in mapping(project).get("dynamic", ()):
        return None
    listed = mapping(project).get("dependencies", ())
    return tuple(map(str, listed)) if isinstance(listed, list | tuple) else None
