"""The `setup.py` for a folder that has none: what it installs, written down as literals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from glob import escape


@dataclass(frozen=True, slots=True)
class Contents:
    """What of a folder setuptools is told to install.

    Attributes:
        packages: The folders that Python can import from, as paths; those without `__init__.py` too.
        modules: The modules at the top, without ".py".
        data: By package, the files below it that setuptools doesn't find by itself, as paths from there.
    """

    packages: tuple[str, ...]
    modules: tuple[str, ...]
    data: Mapping[str, tuple[str, ...]]

    def holds(self, path: str) -> bool:
        """Whether the file at `path` gets installed."""
        return bool(_module_at_top(path)) or path.partition("/")[0] in self.packages


def contents(paths: Iterable[str]) -> Contents:
    """What is installed of the files at `paths`."""
    known = sorted(paths)
    packages = {folder for path in known for folder in _importable_folders(path)}
    data: dict[str, tuple[str, ...]] = {}
    for path in known:
        package = next((folder for folder in reversed(_folders(path)) if folder in packages), "")
        inside = path.removeprefix(f"{package}/")
        found_anyway = inside.endswith(".py") and "/" not in inside
        if package and not found_anyway:
            data[package] = (*data.get(package, ()), inside)
    modules = tuple(module for path in known if (module := _module_at_top(path)))
    return Contents(tuple(sorted(packages)), modules, data)


def setup_script(name: str, version: str, contents: Contents, requirements: Iterable[str]) -> str:
    """A `setup.py` that the setuptools of any Python 3 reads alike: ASCII, nothing but literals."""
    data = {_dotted(key): [escape(path) for path in paths] for key, paths in contents.data.items()}
    arguments = {
        "name": ascii(name),
        "version": ascii(version),
        "packages": _list(map(_dotted, contents.packages), 4),
        "py_modules": _list(contents.modules, 4),
        "package_data": _dict(data),
        "install_requires": _list(requirements, 4),
        "zip_safe": "False",
    }
    lines = [f"    {keyword}={value},\n" for keyword, value in arguments.items()]
    return f"from setuptools import setup\n\nsetup(\n{''.join(lines)})\n"


def _folders(path: str) -> list[str]:
    """The folders that a file is in, outermost first."""
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names))]


def _importable_folders(path: str) -> list[str]:
    """The folders around a module; none where a dot in a name keeps Python from importing it."""
    folders = _folders(path)
    return folders if path.endswith(".py") and not any("." in folder for folder in folders) else []


def _module_at_top(path: str) -> str:
    """The name of a module that is in no folder; "" for anything else."""
    name = path.removesuffix(".py")
    return name if name != path and "/" not in name and "." not in name else ""


def _dotted(folder: str) -> str:
    return folder.replace("/", ".")


def _list(items: Iterable[str], indent: int) -> str:
    lines = [f"{' ' * (indent + 4)}{item!a},\n" for item in items]
    return f"[\n{''.join(lines)}{' ' * indent}]" if lines else "[]"


def _dict(items: Mapping[str, Iterable[str]]) -> str:
    lines = [f"        {key!a}: {_list(values, 8)},\n" for key, values in sorted(items.items())]
    return f"{{\n{''.join(lines)}    }}" if lines else "{}"
