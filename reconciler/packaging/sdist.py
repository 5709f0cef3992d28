"""Source distributions of packages' folders, built for pip without running their code.

A folder with a `setup.py`, or with a `pyproject.toml` that configures the build, is archived unchanged. Any
other folder gets a generated `setup.py`. It installs the modules that Python could import from the folder as
working directory, and their data:

- each folder at the top that contains a module at any depth, with all its content, including data files and
  folders without `__init__.py`;
- each module at the top;
- the requirements in a `requirements.txt` at the top.

If the job's module exists only with the folder itself as a package (`trainer.task` is its `task.py`, as with
gcloud's `--package-path trainer`), the folder is archived as that package. Files that aren't installed aren't
archived: other files at the top, and folders without a module.
"""

from __future__ import annotations

import hashlib
import re
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from glob import escape

from reconciler.base.diagnostics import quote
from reconciler.packaging.requirement_lines import option_remedy
from reconciler.packaging.source_tree import SourceFile, SourceFinding, SourceTree, SourceTreeError


@dataclass(frozen=True, slots=True)
class Contents:
    """Files of a folder that setuptools installs.

    Attributes:
        packages: The importable folders as paths, including those without `__init__.py`.
        modules: The modules at the top, without ".py".
        data: The files below each package that setuptools doesn't find by itself, as paths from the package.
    """

    packages: tuple[str, ...]
    modules: tuple[str, ...]
    data: Mapping[str, tuple[str, ...]]

    def holds(self, path: str) -> bool:
        """Return True if the file at `path` is installed."""
        return bool(_module_at_top(path)) or path.partition("/")[0] in self.packages


def contents(paths: Iterable[str]) -> Contents:
    """Select the installed files among `paths`."""
    ordered = sorted(paths)
    packages = {folder for path in ordered for folder in _importable_folders(path)}
    data: dict[str, tuple[str, ...]] = {}
    for path in ordered:
        package = next((folder for folder in reversed(_folders(path)) if folder in packages), "")
        inside = path.removeprefix(f"{package}/")
        found_anyway = inside.endswith(".py") and "/" not in inside
        if package and not found_anyway:
            data[package] = (*data.get(package, ()), inside)
    modules = tuple(module for path in ordered if (module := _module_at_top(path)))
    return Contents(tuple(sorted(packages)), modules, data)


def setup_script(name: str, version: str, contents: Contents, requirements: Iterable[str]) -> str:
    """Return a `setup.py` of ASCII literals, which has the same meaning in any Python 3."""
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
    """Return the folders around a file, outermost first."""
    names = path.split("/")
    return ["/".join(names[:depth]) for depth in range(1, len(names))]


def _importable_folders(path: str) -> list[str]:
    """Return the folders around a module; none if a dot in a folder's name prevents the import."""
    folders = _folders(path)
    return folders if path.endswith(".py") and not any("." in folder for folder in folders) else []


def _module_at_top(path: str) -> str:
    """Return the name of a module outside of folders; "" for any other file."""
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
"""The version of every generated distribution; the archive's hash identifies the code."""

# Not the job's name: jobs of the same code share an archive, and a job called "xgboost" replaces no library.
_DISTRIBUTION = "job-code"
_BUILD_FILES = ("setup.py", "pyproject.toml", "setup.cfg")
_COMMENT = re.compile(r"(?:^|\s+)#.*")
_SETUPTOOLS_SECTION = re.compile(rb"^\[(?:metadata|options)[\].]", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Sdist:
    """Source distribution.

    Attributes:
        file_name: `<name>-<version>.tar.gz`, or `<name>.tar.gz` for a folder with its own build. Its name and
            version are unknown without running the build, and some installers reject a wrong file name.
        data: The bytes; equal for the same tree and module on every machine and Python.
        sha256: The SHA-256 of the bytes in hex.
        md5: The MD5 of the bytes in hex.
    """

    file_name: str
    data: bytes = field(repr=False)
    sha256: str
    md5: str


def build_sdist(tree: SourceTree, module: str) -> Sdist:
    """Build the source distribution of a package for jobs that run `module`.

    Raises:
        SourceTreeError: A folder without its own build lacks the module, or pip would reject its
            configuration; or a file isn't here.
    """
    _refuse_missing(tree)
    stem = _DISTRIBUTION.replace("-", "_")
    files: Iterable[SourceFile] = tree.files
    if not _has_own_build(tree):
        stem += f"-{VERSION}"
        files = _with_setup(tree, module)
    data = tar_gz(SourceFile(f"{stem}/{file.path}", file.executable, file.content) for file in files)
    return _archive(f"{stem}.tar.gz", data)


def _archive(file_name: str, data: bytes) -> Sdist:
    sha256 = hashlib.sha256(data).hexdigest()
    md5 = hashlib.md5(data, usedforsecurity=False).hexdigest()
    return Sdist(file_name, data, sha256, md5)


def _refuse_missing(tree: SourceTree) -> None:
    if tree.missing:
        path = tree.missing[0].path
        message = f"the package's {quote(path)} is not here: it is in Git LFS or in a submodule"
        raise SourceTreeError([SourceFinding(path, message, "get it, and run the command again")])


def check_sdist(tree: SourceTree, module: str) -> None:
    """Raise SourceTreeError if `build_sdist` would, without building an archive."""
    if not _has_own_build(tree):
        _packages_around(tree, module)
        _requirements(tree)


def build_code(tree: SourceTree, module: str) -> Sdist:
    """Build the archive for containers that run `module`: all files, as Python imports them.

    Raises:
        SourceTreeError: The folder lacks the module, or a file isn't here.
    """
    _refuse_missing(tree)
    around = _around(tree, module)
    data = tar_gz(SourceFile(around + file.path, file.executable, file.content) for file in tree.files)
    return _archive(f"{_DISTRIBUTION}.tar.gz", data)


def check_code(tree: SourceTree, module: str, requirements: str) -> None:
    """Raise SourceTreeError if the folder lacks the module, or a lock file of packages with hashes.

    Args:
        tree: The folder.
        module: The module that the containers run.
        requirements: The path of the lock file in the folder; "" for none.
    """
    try:
        _around(tree, module)
    except SourceTreeError as error:
        raise SourceTreeError(replace(finding, field="module") for finding in error.findings) from None
    if requirements:
        _check_lock(tree, requirements)


def idle_requirements(tree: SourceTree, module: str, *, in_container: bool) -> tuple[str, bool]:
    """Return the path of a requirements.txt that isn't installed, and if the folder has its own build.

    The path is "" if there is none: for a folder with its own build also if the build names requirements of
    any kind, and for a container if the folder has the file that its image is built by.

    Args:
        tree: The folder.
        module: The module that runs; files beside it, and in folders around it, count.
        in_container: True if containers run the code, which install a lock file only.
    """
    files = {file.path: file.content for file in tree.files}
    folders = ["", *(f"{folder}/" for folder in _folders(f"{module.replace('.', '/')}.py"))]
    paths = [path for folder in folders if (path := f"{folder}requirements.txt") in files]
    listed = [path for path in paths if _lists_packages(files[path])]
    has_build = not in_container and _has_own_build(tree)
    described_by = ("Dockerfile",) if in_container else _BUILD_FILES if has_build else ()
    descriptions = b"\n".join(files.get(file, b"") for file in described_by)
    if re.search(rb"requirements|install_requires|dependencies", descriptions):
        return "", has_build
    # Without a build of its own, the folder's top is where requirements are taken from.
    is_taken = not (in_container or has_build) and "requirements.txt" in files
    return listed[0] if listed and not is_taken else "", has_build


def _lists_packages(requirements: bytes) -> bool:
    lines = requirements.decode("utf-8", "replace").splitlines()
    return any(_COMMENT.sub("", line).strip() for line in lines)


def place_in_code(tree: SourceTree, module: str, path: str) -> str:
    """Return the path, in the archive of `build_code`, of a file in the folder."""
    return f"{_around(tree, module)}{path}"


def _check_lock(tree: SourceTree, path: str) -> None:
    file = next((file for file in tree.files if file.path == path), None)
    if file is None and not tree.has_name:
        return  # a submodule may have it
    if file is None:
        message = f"the package has no file {quote(path)}, or git ignores it"
        raise _bad_lock(path, message, f'write it: uv pip compile --generate-hashes -o "{path}" …')
    try:
        text = file.content.decode("utf-8-sig")  # of a file that isn't here, nothing
    except UnicodeDecodeError:
        raise _bad_lock(path, f"the package's {quote(path)} is not UTF-8", "write it in UTF-8") from None
    # A backslash continues a line.
    for line in re.sub(r"\\\r?\n", " ", text).splitlines():
        requirement = _COMMENT.sub("", line).strip()
        if requirement and not requirement.startswith("-") and "--hash=" not in requirement:
            message = f"the package's {quote(path)} has no hash of {quote(requirement)}"
            raise _bad_lock(path, message, "lock it with hashes: uv pip compile --generate-hashes …")


def _bad_lock(path: str, message: str, hint: str) -> SourceTreeError:
    return SourceTreeError([SourceFinding(path, message, hint, field="requirements")])


def _has_own_build(tree: SourceTree) -> bool:
    files = {file.path: file.content for file in tree.files}
    # Of a pyproject.toml that isn't here, this can't be known: its module is not looked for.
    if "setup.py" in files or any(file.path == "pyproject.toml" for file in tree.missing):
        return True
    described = _SETUPTOOLS_SECTION.search(files.get("setup.cfg", b"")) is not None
    if "pyproject.toml" in files:
        return described or _configures_build(files["pyproject.toml"])
    if described:
        message = "describes a distribution, but pip needs a setup.py or pyproject.toml beside it"
        raise _refused("setup.cfg", message, "add a setup.py: from setuptools import setup; setup()")
    return False


def _configures_build(pyproject: bytes) -> bool:
    import tomllib

    try:
        tables = tomllib.loads(pyproject.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _refused("pyproject.toml", f"is not TOML: {error}", "correct it, or remove it") from None
    # Many projects use pyproject.toml only for the settings of tools such as linters.
    return "build-system" in tables or "project" in tables


def _refused(path: str, message: str, hint: str) -> SourceTreeError:
    return SourceTreeError([SourceFinding(path, f"the package's {quote(path)} {message}", hint)])


def _with_setup(tree: SourceTree, module: str) -> list[SourceFile]:
    """Return the installed files of a folder and a generated `setup.py`."""
    around = _around(tree, module)
    moved = [SourceFile(around + file.path, file.executable, file.content) for file in tree.files]
    installed = contents(file.path for file in moved)
    script = setup_script(_DISTRIBUTION, VERSION, installed, _requirements(tree))
    return [
        SourceFile("setup.py", False, script.encode("ascii")),
        *(file for file in moved if installed.holds(file.path)),
    ]


def _around(tree: SourceTree, module: str) -> str:
    """Return the folders that go before each path, for an import of `module`; usually ""."""
    return "".join(f"{name}/" for name in _packages_around(tree, module))


def _packages_around(tree: SourceTree, module: str) -> list[str]:
    """Return the packages that must contain the folder for an import of `module`; usually none."""
    paths = {file.path for file in tree.files}
    names = module.split(".")
    for depth in range(len(names) + 1):
        inside = names[depth:]
        runnable = {"/".join([*inside, "__main__"]), "/".join(inside)} - {""}
        if any(f"{file}.py" in paths for file in runnable):
            return names[:depth]
    if not tree.has_name:
        return []  # a submodule may have it
    raise SourceTreeError([_module_missing(paths, names)])


def _module_missing(paths: Iterable[str], names: list[str]) -> SourceFinding:
    file = "/".join(names) + ".py"
    alike = sorted(path for path in paths if f"/{path}".endswith(f"/{names[-1]}.py"))
    module = alike[0].removesuffix(".py").replace("/", ".") if alike else ""
    return SourceFinding(
        file,
        f"the package has no module {quote('.'.join(names))}: there is no {quote(file)}",
        f"there is a module {quote(module)}" if module else "name a module of the package, or add a setup.py",
    )


def _requirements(tree: SourceTree) -> list[str]:
    """Return the requirements in `requirements.txt` verbatim, without comments."""
    file = next((file for file in tree.files if file.path == "requirements.txt"), None)
    if file is None:
        return []
    try:
        lines = file.content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise _refused(file.path, "is not UTF-8", "write it in UTF-8") from None
    stripped = ((number, _COMMENT.sub("", line).strip()) for number, line in enumerate(lines, start=1))
    requirements = [(number, line) for number, line in stripped if line]
    findings = [_no_requirement(number, line) for number, line in requirements if not _is_requirement(line)]
    if findings:
        raise SourceTreeError(findings)
    return [line for _, line in requirements]


def _is_requirement(line: str) -> bool:
    from packaging.requirements import InvalidRequirement, Requirement  # slow, and rarely needed

    try:
        Requirement(line)
    except (InvalidRequirement, RecursionError):
        return False
    return True


def _no_requirement(number: int, line: str) -> SourceFinding:
    remedy = option_remedy(line)
    shown = line.split()[0].partition("=")[0] if remedy else line  # an index may have a password
    return SourceFinding(
        "requirements.txt",
        f'line {number} of the package\'s "requirements.txt" is not a plain requirement: {quote(shown)}',
        remedy or 'write requirements such as "numpy>=2" only, or add a setup.py that lists what is needed',
    )


MTIME = 946_684_800
"""The time of every file, 2000-01-01: zip files, into which tools may convert them, begin in 1980."""

_BLOCK = 512
_RECORD = 20 * _BLOCK
_STORED = 0xFFFF  # the largest stored block
# Magic, "deflate", no flags, no time, no hint on compression, unknown system (RFC 1952, section 2.3).
_GZIP_HEADER = b"\x1f\x8b\x08\x00" + bytes(4) + b"\x00\xff"


def tar_gz(files: Iterable[SourceFile]) -> bytes:
    """Return a reproducible archive of `files`, in the given order: its bytes depend on the files alone."""
    # This module writes both layers. Headers of `tarfile` have differed between Python releases (3.9 omitted
    # the device numbers of files). zlib's output depends on its version and build, so the content is stored
    # uncompressed (RFC 1951, section 3.2.4).
    return _gzip(_tar(files))


def _tar(files: Iterable[SourceFile]) -> bytes:
    """Return a tar archive in the pax format (POSIX.1-2001)."""
    blocks = [block for file in files for block in _member(file)]
    size = sum(map(len, blocks))
    # Two empty blocks end an archive; like tar, pad it to a multiple of 20 blocks.
    return b"".join([*blocks, bytes(-(size + 2 * _BLOCK) % _RECORD + 2 * _BLOCK)])


def _member(file: SourceFile) -> Iterator[bytes]:
    name = file.path.encode("utf-8")
    if len(name) > 100 or not name.isascii():
        # A pax header takes any name; the ustar header contains a part of it.
        record = _pax_record(b"path", name)
        yield from (_header(b"pax_header", len(record), 0o644, b"x"), record, _padding(record))
        name = name.decode("ascii", "replace").encode("ascii", "replace")[:100]
    yield _header(name, len(file.content), 0o755 if file.executable else 0o644, b"0")
    yield from (file.content, _padding(file.content))


def _header(name: bytes, size: int, mode: int, kind: bytes) -> bytes:
    """Return a header block: owner 0, without a name."""
    fields = [b"%07o\0" % mode, b"%07o\0" % 0, b"%07o\0" % 0, b"%011o\0" % size, b"%011o\0" % MTIME]
    start = name.ljust(100, b"\0") + b"".join(fields)
    end = kind + bytes(100) + b"ustar\0" + b"00"
    # The checksum counts its own field as 8 blanks.
    checksum = sum(start + b" " * 8 + end)
    return (start + b"%06o\0 " % checksum + end).ljust(_BLOCK, b"\0")


def _pax_record(keyword: bytes, value: bytes) -> bytes:
    """Return `<length> <keyword>=<value>` and a line end; the length includes its own digits."""
    rest = b" %s=%s\n" % (keyword, value)
    length = len(rest)
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return b"%d%s" % (length, rest)


def _padding(content: bytes) -> bytes:
    return bytes(-len(content) % _BLOCK)


def _gzip(data: bytes) -> bytes:
    checks = struct.pack("<II", zlib.crc32(data), len(data))
    return b"".join([_GZIP_HEADER, *_stored_blocks(memoryview(data)), checks])


def _stored_blocks(data: memoryview) -> Iterator[bytes | memoryview]:
    """Yield blocks of at most 65,535 bytes after their length and its complement; the last block is empty."""
    for start in range(0, len(data), _STORED):
        block = data[start : start + _STORED]
        yield struct.pack("<BHH", 0, len(block), len(block) ^ 0xFFFF)
        yield block
    yield struct.pack("<BHH", 1, 0, 0xFFFF)
