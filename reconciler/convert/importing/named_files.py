"""Files and folders that a command line names; only those inside the repository are read."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from reconciler.base.diagnostics import MAX_FILE_BYTES
from reconciler.base.errors import check_machine
from reconciler.base.safe_files import read_file
from reconciler.convert.importing.body import Code
from reconciler.convert.importing.config_file import ConfigError, load_all
from reconciler.convert.importing.import_result import Found, is_config
from reconciler.convert.importing.placeholders import flag_error, is_marked, names_in, quoted
from reconciler.manifests.files import file_mode, real_path

_RELATIVE = "paths are relative to the source's folder or to the working directory"
_SETTINGS = ("setup.py", "setup.cfg", "pyproject.toml")
"""Files that say, beside a package, what it needs."""


class Files:
    """Files of one command line.

    Args:
        root: The repository's root, without links.
        folder: The folder of the source, which paths probably count from.
        working: The working directory.
        found: The command line.
    """

    notes: list[str]

    def __init__(self, root: Path, folder: Path, working: Path, entry: Found) -> None:
        self._root = root
        self._bases = [*dict.fromkeys((folder, working, root))]
        self._entry = entry
        self.notes = []

    def shown(self, path: Path) -> str:
        """Return a path as users know it."""
        return path.relative_to(self._root).as_posix() or "."

    def flags(self, name: str) -> Any:
        """Return the value of a flags file."""
        return self._value("--flags-file", name)

    def config(self, name: str) -> Any:
        """Return the value of a config file."""
        return self._value("--config", name)

    def _value(self, flag: str, name: str) -> Any:
        text = self._text(flag, name)
        if text is None:
            self.notes.append(f"{name} is the config that is shown beside the command.")
            return next(block for block in self._entry.blocks if is_config(block))
        try:
            documents = load_all(text)
        except ConfigError as error:
            raise flag_error(flag, f"{quoted(name)} line {error.line}: {error.message}", error.hint) from None
        if len(documents) > 1:
            raise flag_error(flag, f"{quoted(name)} contains several documents", "write one")
        return documents[0][0] if documents else None

    def _text(self, flag: str, name: str) -> str | None:
        """Return a file's text; None for a config that is shown in the text around the command."""
        if is_marked(name):
            names = " ".join(f"--set {variable}=…" for variable in names_in(name))
            raise flag_error(flag, f"the file's name {quoted(name)} is unknown", f"give it: {names}")
        if name == "-":
            if self._entry.stdin is None:
                raise flag_error(flag, "the standard input is unknown", "name a file")
            return self._entry.stdin
        if name in self._entry.files:
            return self._entry.files[name]
        path = self.find(flag, name)
        if path is None:
            if len(self._entry.blocks) == 1:
                return None
            raise flag_error(flag, f"there is no file {quoted(name)}", _RELATIVE)
        try:
            data, _ = read_file(path, MAX_FILE_BYTES + 1)
        except OSError as error:
            check_machine(error, f"{quoted(name)} can't be read")
            raise flag_error(flag, f"{quoted(name)} can't be read: {error.strerror}", "name a file") from None
        return data.decode("utf-8-sig", "replace")

    def find(self, flag: str, name: str, fits: Callable[[Path], bool] = lambda path: True) -> Path | None:
        """Return the path of a file or folder in the repository; None if there is none.

        Of several, the first that fits counts, else the first: a script may have changed its folder.

        Raises:
            SourceError: It is outside the repository, or behind a link.
        """
        paths = []
        for base in self._bases:
            path = Path(os.path.normpath(base / name))
            if not os.path.lexists(path):
                continue
            if not path.is_relative_to(self._root):
                raise flag_error(
                    flag, f"{quoted(name)} is outside the repository", "copy it into the repository"
                )
            if real_path(path) != path:
                raise flag_error(flag, f"{quoted(name)} is behind a symbolic link", "use the link's target")
            if fits(path):
                return path
            paths.append(path)
        return next(iter(paths), None)

    def package(self, code: Code, output: Path, notes: list[str]) -> Path | None:
        """Return the folder of a job's code; None if it isn't here."""
        flag = "--package-path" if code.is_package else "--worker-pool-spec"
        name = code.path
        if is_marked(name):
            notes.append("The folder of the code is unknown: set package.path.")
            return None
        folder = self.find(flag, name, lambda folder: code.is_package or _has_module(folder, code.module))
        if folder is None and Path(name).is_absolute():
            notes.append(f"The code in {name} does not exist here: set package.path.")
            return None
        if folder is None or not folder.is_dir():
            raise flag_error(flag, f"there is no folder {quoted(name)}", _RELATIVE)
        if not code.is_package:
            return self._around_module(folder, code.module, output, notes)
        if not file_mode(folder / "__init__.py") and not file_mode(folder / "setup.py"):
            raise flag_error(flag, f"{quoted(name)} has no __init__.py", "name the Python package's folder")
        above = folder.parent
        builds = file_mode(above / "setup.py") or not file_mode(folder / "__init__.py")
        if builds and above.is_relative_to(self._root) and not output.is_relative_to(above):
            return above
        beside = [name for name in _SETTINGS if file_mode(above / name)]
        if beside:
            why = "manifests are beside it" if builds else "only the package is staged"
            notes.append(
                f"{self.shown(folder)} is staged without the {' and '.join(beside)} above: {why}. "
                f"List the packages that the code needs in {self.shown(folder)}/requirements.txt."
            )
        return folder

    def _around_module(self, folder: Path, module: str, output: Path, notes: list[str]) -> Path:
        """Return a folder of code; only the module's own folder if the manifests are in the folder too."""
        inside = folder / module.partition(".")[0]
        if not output.is_relative_to(folder) or "." not in module or not inside.is_dir():
            return folder
        around = "the repository's root" if folder == self._root else self.shown(folder)
        notes.append(f"Only {self.shown(inside)} is staged: {around} also contains manifests.")
        if file_mode(folder / "requirements.txt") and not file_mode(inside / "requirements.txt"):
            notes.append(f"Move requirements.txt to {self.shown(inside)}.")
        return inside

    def check_archive(self, name: str, names: Sequence[str]) -> None:
        """Raise SourceError for an archive that gcloud can't upload."""
        if is_marked(name):
            return
        if names.count(Path(name).name) > 1:
            raise flag_error(
                "--packages", f"two packages have the name {quoted(Path(name).name)}", "rename one"
            )
        path = self.find("--packages", name)
        if path is None or not path.is_file():
            raise flag_error("--packages", f"there is no file {quoted(name)}", "name an archive, or gs://…")

    def folder_of_archive(self, name: str, output: Path) -> Path | None:
        """Return the folder with the setup.py that an archive in its `dist` is built of."""
        archive = None if is_marked(name) else self.find("--packages", name)
        above = archive.parent.parent if archive and archive.parent.name == "dist" else None
        if above is None or not file_mode(above / "setup.py") or output.is_relative_to(above):
            return None
        return above


def _has_module(folder: Path, name: str) -> bool:
    """Return True if a folder contains a Python module."""
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        return False
    module_path = folder.joinpath(*parts)
    return any(file_mode(path) for path in (module_path.with_suffix(".py"), module_path / "__init__.py"))
