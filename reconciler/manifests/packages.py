"""Package folders of manifests (`package.path`)."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import islice
from pathlib import Path, PurePosixPath

from msgspec import Struct
from msgspec.structs import replace

from reconciler.base.diagnostics import Finding, Keys, quote, similar_word
from reconciler.manifests.files import ManifestFile, file_mode, real_path
from reconciler.model.tracking import COMMITTED, Index

PACKAGE_PATH: Keys = ("package", "path")
"""The path to the package's folder in a manifest."""

_MOST = 1000  # entries of a folder that a missing folder's name is compared with
_BUILDS_ITSELF = ("setup.py", "setup.cfg", "pyproject.toml")


class PackageFolder(Struct, frozen=True):
    """Target of a manifest's `package.path`.

    Attributes:
        manifest: The manifest's file, absolute and without links.
        written: The path in the manifest.
        real: The target, absolute and without links.
        is_partial: True if it is in a submodule whose files aren't here, or contains one.
    """

    manifest: Path
    written: str
    real: Path
    is_partial: bool = False

    @property
    def holds_its_manifest(self) -> bool:
        """True if the manifest is in its own package."""
        return self.manifest.is_relative_to(self.real)

    def mistake(self, root: Path) -> tuple[str, str] | None:
        """Return the message and hint of a mistake; None for a folder of the repository at `root`."""
        folder = self.manifest.parent
        if not self.real.is_relative_to(root):
            if Path(os.path.normpath(folder / self.written)).is_relative_to(root):
                return "the package's path leads out of the repository by a link", "put the code in its place"
            return "the package is outside the repository", "move the code into it"
        mode = file_mode(self.real)
        if not mode:
            if self.is_partial:
                return None  # whoever reads the code decides
            counted = folder.relative_to(root).as_posix() if folder.is_relative_to(root) else str(folder)
            similar = self._similar_folder(root)
            guess = f"did you mean {quote(similar)}? " if similar else ""
            hint = f"{guess}paths are relative to {quote(counted)}"
            return f"no such folder: {quote(self.written)}", hint
        if not stat.S_ISDIR(mode):
            return f"{quote(self.written)} is a file, not a folder", "name the folder that contains the code"
        if self.holds_its_manifest:
            message = "the package would hold this manifest itself, so every edit of it would make a new job"
            return message, "move the code into a folder of its own, and name that"
        return None

    def _similar_folder(self, root: Path) -> str:
        """Return the path of the folder that is probably meant, or ""."""
        folder, names = self.manifest.parent, Path(os.path.normpath(self.written)).parts
        below = [name for name in names if name != ".."]
        # Written from another folder, such as the repository's root; else the first missing name is misspelt.
        candidates = [above.joinpath(*below) for above in folder.parents if above.is_relative_to(root)]
        there = next(above for above in self.real.parents if stat.S_ISDIR(file_mode(above)))
        first, *rest = self.real.relative_to(there).parts
        if similar := similar_word(first, _folders(there)):
            candidates += [there.joinpath(similar, *rest), there / similar]
        fits = (
            candidate
            for candidate in candidates
            if stat.S_ISDIR(file_mode(candidate)) and real_path(candidate) == candidate
        )
        return next(
            (_relative(candidate, folder) for candidate in fits if not folder.is_relative_to(candidate)), ""
        )

    def lacks(self, module: str) -> bool:
        """Return True if the package can't have `module`; a folder with a build file may have any."""
        if self.is_partial or any(file_mode(self.real / name) for name in _BUILDS_ITSELF):
            return False
        return not _has_module(self.real, module.split("."))

    def findings(self, root: Path, modules: Iterable[tuple[Keys, str]]) -> Iterator[Finding]:
        """Yield the mistake of the folder; if it has none, those of the named modules that it lacks.

        Args:
            root: The repository's root.
            modules: The path in the manifest and the name of each module.
        """
        # A folder with a mistake can't be searched for modules.
        if mistake := self.mistake(root):
            yield Finding(PACKAGE_PATH, *mistake)
            return
        for keys, module in modules:
            if self.lacks(module):
                message = f"the package {quote(self.written)} has no module {quote(module)}"
                similar = self._similar_module(module)
                hint = f"did you mean {quote(similar)}?" if similar else "name a module that is in it"
                yield Finding(keys, message, hint)

    def _similar_module(self, module: str) -> str:
        """Return the module most similar to `module`, at the top or beside the place of `module`; or ""."""
        above = module.split(".")[:-1]
        folders = [([], self.real), (above, self.real.joinpath(*above))]
        modules = [".".join([*names, file.stem]) for names, folder in folders for file in folder.glob("*.py")]
        return similar_word(module, sorted(modules))


PackageOf = Callable[[Path, str], PackageFolder]
"""Finds the package folder for a manifest's file and its `package.path`."""


def package_folder(manifest: Path, written: str) -> PackageFolder:
    """Return the package folder of a manifest; `package.path` is relative to the manifest's folder."""
    return PackageFolder(manifest, written, real_path(manifest.parent / written))


def hidden_folders(packages: Iterable[PackageFolder]) -> set[Path]:
    """Return the package folders of those manifests that are outside of all package folders.

    Files in them are code and data, not manifests. A folder that contains its own manifest hides no file, so
    that the mistake is reported; nor do folders whose manifests hide each other.
    """
    undecided = {package for package in packages if not package.holds_its_manifest}
    hidden: set[Path] = set()
    while undecided:
        around = hidden | {package.real for package in undecided}
        # A folder counts only if its manifest is certainly a manifest, not a file of another package.
        outside = {package for package in undecided if not is_below_any(package.manifest, around)}
        if not outside:
            break
        hidden |= {package.real for package in outside}
        undecided -= outside
        undecided = {package for package in undecided if not is_below_any(package.manifest, hidden)}
    return hidden


def is_below_any(path: Path, folders: Set[Path]) -> bool:
    """Return True if a path is below one of the folders."""
    return bool(folders) and any(above in folders for above in path.parents)


class Packages:
    """Package folders of many manifests in a repository, each examined once; the root is without links."""

    def __init__(self, root: Path, package_of: PackageOf = package_folder, index: Index = COMMITTED) -> None:
        self._root = root
        self._package_of = package_of
        self._index = index
        self._package_folders: dict[tuple[str, str], PackageFolder] = {}
        self._fitting: dict[tuple[str, str, tuple[str, ...]], bool] = {}

    def folder(self, file: ManifestFile, written: str) -> PackageFolder:
        """Return the package of the manifest in a file."""
        # The package depends on the manifest's folder, not on its file.
        key = (file.folder, written)
        # A caller's finder expects a call for each manifest.
        if key not in self._package_folders or self._package_of is not package_folder:
            package = self._package_of(Path(file.real), written)
            self._package_folders[key] = replace(package, is_partial=self._is_partial(package.real))
        return self._package_folders[key]

    def _is_partial(self, folder: Path) -> bool:
        if not self._index.unread or not folder.is_relative_to(self._root):
            return False
        path = folder.relative_to(self._root)
        submodules = map(PurePosixPath, self._index.unread)
        return any(path.is_relative_to(other) or other.is_relative_to(path) for other in submodules)

    def fits(self, file: ManifestFile, written: str, modules: tuple[str, ...]) -> bool:
        """Return True if the package can be staged for the manifest in a file, and contains all modules."""
        package = self._package_folders[file.folder, written]
        key = (file.folder, written, modules)
        if key not in self._fitting:
            is_sound = package.mistake(self._root) is None
            self._fitting[key] = is_sound and not any(map(package.lacks, modules))
        return self._fitting[key]


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return sorted(entry.name for entry in islice(entries, _MOST) if entry.is_dir())
    except OSError:
        return []


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix()


def _has_module(folder: Path, names: list[str]) -> bool:
    """Return True if Python finds the module in the folder, or in a package around the folder's files."""
    for depth in range(len(names) + 1):
        inside = "/".join(names[depth:])
        files = [f"{inside}/__main__.py", f"{inside}.py"] if inside else ["__main__.py"]
        if any(stat.S_ISREG(file_mode(folder / file)) for file in files):
            return True
    return False
