"""Static analysis of a trainer's package archives; none of their code is run."""

from __future__ import annotations

import ast
import re
import tarfile
import tomllib
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO

_FILE_LIMIT = 2 * 1024 * 1024
_FILES_LIMIT = 20_000
_LOCK_LIMIT = 16 * 1024 * 1024
_METADATA = ("METADATA", "PKG-INFO", "requires.txt", "pyproject.toml", "setup.py", "setup.cfg")
_IMPORT = re.compile(r"^\s*(?:from\s+([\w.]+)\s+import|import\s+([\w., \t]+))", re.MULTILINE)
_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_REQUIREMENT = re.compile(rf"\s*({_NAME.pattern})\s*(?:\[[^\]]*\])?\s*(?:[<>=!~;@(].*)?", re.DOTALL)
_DISTUTILS_BACKENDS = {"setuptools.build_meta", "setuptools.build_meta:__legacy__"}


@dataclass(frozen=True, slots=True)
class Needs:
    """Modules, names and distributions that package archives mention.

    Attributes:
        modules: Dotted names in import statements, also `a.b` for `from a import b`.
        names: Attributes and functions that the code uses, such as `read_parquet`.
        distributions: Normalised names of required distributions.
    """

    modules: frozenset[str] = frozenset()
    names: frozenset[str] = frozenset()
    distributions: frozenset[str] = frozenset()

    def __or__(self, other: Needs) -> Needs:
        return Needs(
            self.modules | other.modules,
            self.names | other.names,
            self.distributions | other.distributions,
        )


def needs(archive: Path) -> Needs:
    """Return the needs of an archive; empty if it is unreadable, as the installer then reports the reason."""
    merged = Needs()
    try:
        for name, content in _files(archive):
            merged |= _needs_of_file(name, content)
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError):
        return Needs()
    return merged


def mentions(archive: Path, text: bytes) -> bool:
    """Return True if a file of the archive contains this text; False if the archive is unreadable."""
    try:
        return any(text in content for _name, content in _files(archive))
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError):
        return False


def lock_file_of(archive: BinaryIO, name: str) -> bytes:
    """Return the content of a lock file in a tar archive.

    It is b"" if the archive is unreadable, or has no such file of at most 16 MiB.
    """
    archive.seek(0)
    with (
        suppress(OSError, tarfile.TarError, EOFError, zlib.error),
        tarfile.open(fileobj=archive, mode="r:*") as file,
    ):
        for member in file:
            if member.name == name and member.isfile() and member.size <= _LOCK_LIMIT:
                content = file.extractfile(member)
                return content.read() if content else b""
    return b""


def builds_with_setuptools(archive: Path) -> bool:
    """Return True if the archive builds with setuptools and wheel alone, which is the default."""
    try:
        for name, content in _files(archive):
            if len(PurePosixPath(name).parts) == 2 and name.endswith("/pyproject.toml"):
                return _is_setuptools(
                    tomllib.loads(content.decode("utf-8", "replace")).get("build-system", {})
                )
    except (OSError, tarfile.TarError, zipfile.BadZipFile, EOFError, tomllib.TOMLDecodeError):
        return True
    return True


def requirements_of(wheel: Path) -> list[str]:
    """Return a wheel's requirements; empty if it is unreadable, as the installer then reports the reason."""
    from email.parser import HeaderParser  # here: importing it takes long

    try:
        with zipfile.ZipFile(wheel) as file:
            metadata = [name for name in file.namelist() if name.endswith(".dist-info/METADATA")]
            texts = [file.read(name).decode("utf-8", "replace") for name in metadata]
    except (OSError, zipfile.BadZipFile):
        return []
    return [line for text in texts for line in HeaderParser().parsestr(text).get_all("Requires-Dist", ())]


def distribution_of(wheel: Path) -> str:
    """Return the normalised name of a wheel's distribution."""
    return normalised(wheel.name.partition("-")[0])


def normalised(distribution: str) -> str:
    """Return a distribution's name in the form that compares equal (PEP 503)."""
    return re.sub(r"[-_.]+", "-", distribution).lower()


def _is_setuptools(build_system: object) -> bool:
    if not isinstance(build_system, dict):
        return True
    requires = {_distribution(str(line)) for line in build_system.get("requires", ())}
    backend = build_system.get("build-backend", "setuptools.build_meta")
    return backend in _DISTUTILS_BACKENDS and requires <= {"setuptools", "wheel", None}


def _needs_of_file(name: str, content: bytes) -> Needs:
    base = PurePosixPath(name).name
    text = content.decode("utf-8", "replace")
    if base.endswith(".py"):
        return _needs_of_source(text, is_setup=base == "setup.py")
    if base == "pyproject.toml":
        return Needs(distributions=_required(_lines_of_pyproject(text)))
    return Needs(distributions=_required(text.splitlines()))


def _needs_of_source(text: str, *, is_setup: bool) -> Needs:
    try:
        with warnings.catch_warnings(action="ignore"):
            nodes = list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError, RecursionError):
        # The file may be written for a newer or older Python than this one.
        return Needs(modules=frozenset(_imports_of_text(text)))
    strings = [node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    distributions = (_distribution(value) for value in strings) if is_setup else ()
    return Needs(
        modules=frozenset(name for node in nodes for name in _imports(node)),
        names=frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute)),
        distributions=frozenset(name for name in distributions if name),
    )


def _imports(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names if alias.name != "*")


def _imports_of_text(text: str) -> Iterator[str]:
    for module, several in _IMPORT.findall(text):
        yield from ([module] if module else (part.split()[0] for part in several.split(",") if part.split()))


def _lines_of_pyproject(text: str) -> list[str]:
    try:
        project = tomllib.loads(text).get("project", {})
    except tomllib.TOMLDecodeError:
        return []
    lines = project.get("dependencies", []) if isinstance(project, dict) else []
    return [str(line) for line in lines] if isinstance(lines, list) else []


def _required(lines: Iterable[str]) -> frozenset[str]:
    # Lines that aren't requirements may match too: an extra package is harmless, a missing one fails the job.
    distributions = (_distribution(line.removeprefix("Requires-Dist:").strip()) for line in lines)
    return frozenset(name for name in distributions if name)


def _distribution(requirement: str) -> str | None:
    match = _REQUIREMENT.fullmatch(requirement)
    return normalised(match[1]) if match else None


def _files(archive: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the Python and metadata files of a source distribution or wheel, limited in number and size."""
    files = _files_of_zip(archive) if zipfile.is_zipfile(archive) else _files_of_tar(archive)
    for count, (name, content) in enumerate(files):
        if count >= _FILES_LIMIT:
            return
        yield name, content


def _files_of_zip(archive: Path) -> Iterator[tuple[str, bytes]]:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            if _matters(info.filename, info.file_size):
                yield info.filename, file.read(info)


def _files_of_tar(archive: Path) -> Iterator[tuple[str, bytes]]:
    with tarfile.open(archive) as file:
        for member in file:
            if member.isfile() and _matters(member.name, member.size):
                content = file.extractfile(member)
                if content is not None:
                    yield member.name, content.read()


def _matters(name: str, size: int) -> bool:
    return size <= _FILE_LIMIT and (name.endswith(".py") or PurePosixPath(name).name in _METADATA)
