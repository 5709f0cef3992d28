"""A package's folder as a source distribution that pip installs, made without running any of its code.

A folder with a `setup.py`, or with a `pyproject.toml` that says how to build it, is archived as it is. Any
other gets a `setup.py` of ours. It installs what Python could import if the folder were its working
directory, with all that is beside it:

- each folder at the top in which there is a module, however deep, with all that is in it: data files and
  folders without `__init__.py` too;
- each module at the top;
- the requirements in a `requirements.txt` at the top.

Where the job's module is only found by taking the folder itself for a package (`trainer.task` is its
`task.py`, as with gcloud's `--package-path trainer`), the folder is archived as that package. What isn't
installed isn't archived: other files at the top, and folders without a module.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from glob import escape

from reconciler.base.diagnostics import quote
from reconciler.packaging.source_tree import SourceFile, SourceFinding, SourceTree, SourceTreeError
from reconciler.packaging.tar import tar_gz


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


VERSION = "0.0.0"
"""The version of every distribution of ours; which code it is, the archive's hash says."""

_SUFFIX = "-job-code"
_COMMENT = re.compile(r"(?:^|\s+)#.*")
_SETUPTOOLS_SECTION = re.compile(rb"^\[(?:metadata|options)[\].]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sdist:
    """A source distribution.

    Attributes:
        file_name: `<name>-<version>.tar.gz`; only `<name>.tar.gz` for a folder that builds itself, whose name
            and version aren't known without running it: some installers insist that a file's are right.
        data: Its bytes; the same for the same tree, name and module on every machine and Python.
        sha256, md5: Of the bytes, in hex.
    """

    file_name: str
    data: bytes = field(repr=False)
    sha256: str
    md5: str


def build_sdist(tree: SourceTree, name: str, module: str) -> Sdist:
    """The source distribution of a package's files.

    Args:
        tree: The files.
        name: The job's base name. The distribution is called `<name>-job-code`, so that a job called
            "xgboost" doesn't replace the library, unless the folder builds itself.
        module: The module that the job runs (`python -m`).

    Raises:
        SourceTreeError: The folder doesn't build itself, and holds no such module; or it says something about
            its building that pip wouldn't understand.
    """
    distribution = re.sub(r"[-_.]+", "-", name.lower() + _SUFFIX)
    stem = distribution.replace("-", "_")
    files: Iterable[SourceFile] = tree.files
    if not _builds_itself(tree):
        stem += f"-{VERSION}"
        files = _with_setup(tree, distribution, module)
    data = tar_gz(SourceFile(f"{stem}/{file.path}", file.executable, file.content) for file in files)
    sha256 = hashlib.sha256(data).hexdigest()
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    return Sdist(f"{stem}.tar.gz", data, sha256, md5)


def check_sdist(tree: SourceTree, module: str) -> None:
    """Raise SourceTreeError where `build_sdist` would, whatever the name; no archive is made."""
    if not _builds_itself(tree):
        _packages_around(tree, module)
        _requirements(tree)


def _builds_itself(tree: SourceTree) -> bool:
    files = {file.path: file.content for file in tree.files}
    if "setup.py" in files:
        return True
    described = _SETUPTOOLS_SECTION.search(files.get("setup.cfg", b"")) is not None
    if "pyproject.toml" in files:
        return described or _tells_how_to_build(files["pyproject.toml"])
    if described:
        message = "describes a distribution, but pip needs a setup.py or pyproject.toml beside it"
        raise _refused("setup.cfg", message, "add a setup.py: from setuptools import setup; setup()")
    return False


def _tells_how_to_build(pyproject: bytes) -> bool:
    """Whether it is more than a place for the settings of linters and the like."""
    import tomllib

    try:
        tables = tomllib.loads(pyproject.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _refused("pyproject.toml", f"is no TOML: {error}", "mend it, or take it away") from None
    return "build-system" in tables or "project" in tables


def _refused(path: str, message: str, hint: str) -> SourceTreeError:
    return SourceTreeError([SourceFinding(path, f"the package's {quote(path)} {message}", hint)])


def _with_setup(tree: SourceTree, distribution: str, module: str) -> list[SourceFile]:
    """What of a folder is installed, and the `setup.py` that does it."""
    around = "".join(f"{name}/" for name in _packages_around(tree, module))
    moved = [SourceFile(around + file.path, file.executable, file.content) for file in tree.files]
    installed = contents(file.path for file in moved)
    script = setup_script(distribution, VERSION, installed, _requirements(tree))
    return [
        SourceFile("setup.py", False, script.encode("ascii")),
        *(file for file in moved if installed.holds(file.path)),
    ]


def _packages_around(tree: SourceTree, module: str) -> list[str]:
    """The packages that the folder itself has to be in for `module` to be found; mostly none."""
    paths = {file.path for file in tree.files}
    names = module.split(".")
    for depth in range(len(names) + 1):
        inside = names[depth:]
        runnable = {"/".join([*inside, "__main__"]), "/".join(inside)} - {""}
        if any(f"{file}.py" in paths for file in runnable):
            return names[:depth]
    raise SourceTreeError([_module_missing(paths, names)])


def _module_missing(paths: Iterable[str], names: list[str]) -> SourceFinding:
    file = "/".join(names) + ".py"
    alike = sorted(path for path in paths if f"/{path}".endswith(f"/{names[-1]}.py"))
    found = alike[0].removesuffix(".py").replace("/", ".") if alike else ""
    return SourceFinding(
        file,
        f"the package has no module {quote('.'.join(names))}: there is no {quote(file)}",
        f"there is a module {quote(found)}" if found else "name a module of the package, or add a setup.py",
    )


def _requirements(tree: SourceTree) -> list[str]:
    """The lines of `requirements.txt` that ask for something, as they are written."""
    file = next((file for file in tree.files if file.path == "requirements.txt"), None)
    if file is None:
        return []
    try:
        lines = file.content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise _refused(file.path, "is no UTF-8", "write it in UTF-8") from None
    stripped = ((number, _COMMENT.sub("", line).strip()) for number, line in enumerate(lines, start=1))
    asked = [(number, line) for number, line in stripped if line]
    findings = [_no_requirement(number, line) for number, line in asked if not _is_requirement(line)]
    if findings:
        raise SourceTreeError(findings)
    return [line for _, line in asked]


def _is_requirement(line: str) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement  # slow, and rarely needed

    try:
        Requirement(line)
    except (InvalidRequirement, RecursionError):
        return False
    return True


def _no_requirement(number: int, line: str) -> SourceFinding:
    return SourceFinding(
        "requirements.txt",
        f'line {number} of the package\'s "requirements.txt" is no plain requirement: {quote(line)}',
        'write requirements such as "numpy>=2" only, or add a setup.py that says what is needed',
    )
