"""A set-up written into a folder: all of it or nothing, and nothing over what is there."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISLNK, S_ISREG
from tempfile import mkstemp

from reconciler.diagnostics import quote
from reconciler.errors import ReconcilerError
from reconciler.setup.files import Existing, File
from reconciler.setup.texts import RENEWED, with_action
from reconciler.setup.wanted import NO_SHA, Action

_READ_BY_GIT = (".gitignore", ".gitattributes")


@dataclass(frozen=True, slots=True)
class Change:
    """What becomes of one file.

    Attributes:
        path: From the repository's root, with "/".
        verb: `wrote`, `kept`, `extended`, `renewed` or `filled in`.
        data: What is written; None where it is kept.
        before: What was there; None where nothing was.
        missing: What a person may want to add to a file that is kept; "" for nothing.
    """

    path: str
    verb: str
    data: bytes | None
    before: bytes | None
    missing: str = ""

    @property
    def after(self) -> bytes:
        """What is there afterwards."""
        return self.before or b"" if self.data is None else self.data

    @property
    def names_no_action(self) -> bool:
        """Whether the file still has to be told where the workflows take the reconciler from."""
        return NO_SHA.encode() in self.after


def changes(root: Path, files: Iterable[File], action: Action) -> tuple[Change, ...]:
    """What becomes of each file below `root`, where `action` is named; nothing is written.

    Raises ReconcilerError with everything that is in the way.
    """
    found: list[Change] = []
    obstacles: list[str] = []
    for file in files:
        obstacle = _obstacle(root, file.path)
        if obstacle:
            obstacles.append(obstacle)
        else:
            found.append(_change(root, file, action))
    if obstacles:
        raise ReconcilerError(
            f"nothing was written: {'; '.join(dict.fromkeys(obstacles))}",
            hint="move it away, and run `reconciler init` again",
        )
    return tuple(found)


def write(root: Path, found: Sequence[Change]) -> None:
    """Make these changes below `root`; raises ReconcilerError where one fails, and then none was made."""
    folders: list[Path] = []
    done: list[Change] = []
    path = ""
    try:
        for change in found:
            path = change.path
            if change.data is not None:
                _make_folders(root, path, folders)
                _put(root / path, change.data, is_new=change.before is None)
                done.append(change)
    except BaseException as error:
        _take_back(root, done, folders)
        if not isinstance(error, OSError):
            raise
        raise ReconcilerError(
            f"{quote(path)} can't be written, and nothing was: {error.strerror}",
            hint="see to it, and run `reconciler init` again",
        ) from None


def _take_back(root: Path, done: Sequence[Change], folders: Sequence[Path]) -> None:
    for change in reversed(done):
        if change.before is None:
            (root / change.path).unlink()
        else:
            _put(root / change.path, change.before, is_new=False)
    for folder in reversed(folders):
        folder.rmdir()


def _obstacle(root: Path, path: str) -> str:
    """What keeps a file from being there, as a clause; "" for nothing."""
    parts = path.split("/")
    for count in range(1, len(parts)):
        folder = root.joinpath(*parts[:count])
        name = quote("/".join(parts[:count]))
        if not os.path.lexists(folder):
            return ""
        if not folder.resolve().is_relative_to(root.resolve()):
            return f"{name} is a link that leads out of the repository"
        if not folder.is_dir():
            return f"{name} is no folder"
    return _obstacle_at(root / path, path)


def _obstacle_at(file: Path, path: str) -> str:
    if not os.path.lexists(file):
        return ""
    mode = file.lstat().st_mode
    if S_ISDIR(mode):
        return f"{quote(path)} is a folder"
    if S_ISLNK(mode):
        if path in _READ_BY_GIT:
            return f"{quote(path)} is a link, which git doesn't follow"
        return "" if file.is_file() else f"{quote(path)} is a link that leads to no file"
    return "" if S_ISREG(mode) else f"{quote(path)} is no ordinary file"


def _change(root: Path, file: File, action: Action) -> Change:
    target = root / file.path
    if not target.exists():
        return Change(file.path, "wrote", file.text.encode(), None)
    before = _read(target, file.path)
    there = before.decode("utf-8", "surrogateescape")
    if file.existing is not Existing.KEPT and not target.is_symlink():
        after = _edited(file, there, action).encode("utf-8", "surrogateescape")
        if after != before:
            return Change(file.path, file.existing.value, after, before)
    missing = "" if file.is_held_by(there) else file.missing or file.text
    return Change(file.path, "kept", None, before, missing)


def _edited(file: File, there: str, action: Action) -> str:
    if file.existing is Existing.FILLED_IN:
        return with_action(there, action)
    if file.existing is Existing.RENEWED:
        return file.text if RENEWED in there else there
    if file.is_held_by(there):
        return there
    return f"{there}\n{file.text}" if there and not there.endswith("\n") else there + file.text


def _read(file: Path, path: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise ReconcilerError(f"{quote(path)} can't be read: {error.strerror}") from None


def _make_folders(root: Path, path: str, made: list[Path]) -> None:
    for folder in reversed((root / path).parents):
        if folder.is_relative_to(root) and not folder.exists():
            folder.mkdir()
            made.append(folder)


def _put(file: Path, data: bytes, *, is_new: bool) -> None:
    """Write the whole file or nothing of it; a new one takes no other's place."""
    if is_new:
        with file.open("xb"):
            pass
    try:
        handle, beside = mkstemp(dir=file.parent, prefix=f".{file.name}.")
        try:
            with os.fdopen(handle, "wb") as opened:
                opened.write(data)
            Path(beside).chmod(file.stat().st_mode & 0o777)
            Path(beside).replace(file)
        except BaseException:
            Path(beside).unlink()
            raise
    except BaseException:
        if is_new:
            file.unlink()
        raise
