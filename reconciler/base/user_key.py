"""The user's own key: it marks files that this user's commands wrote, so that no author of a checkout can."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

_FOLDER = "reconciler"
_FILE = "key"
_BYTES = 32
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def key_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the key, below `$XDG_STATE_HOME` or `~/.local/state`; None without either.

    A relative XDG_STATE_HOME doesn't count: https://specifications.freedesktop.org/basedir-spec
    """
    folders = _folders(environ)
    return folders[-1] if folders else None


def user_key(checkout: Path, environ: Mapping[str, str], *, make: bool) -> bytes | None:
    """Return the user's 32-byte key; None where there is none, or none can be kept.

    A key that another user can read or may have written doesn't count, nor does one inside the checkout.

    Args:
        checkout: The checkout that the command works in, resolved.
        environ: The environment variables.
        make: Whether a missing key is made.
    """
    folders = _folders(environ)
    with suppress(OSError):
        if not folders or Path(os.path.realpath(folders[-1])).is_relative_to(checkout):
            return None
        for folder in folders if make else ():
            folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folders[-1], _OPEN_FOLDER)
        try:
            if not _is_private(os.fstat(descriptor)):
                return None
            with suppress(FileNotFoundError):
                return _read(descriptor)
            return _make(descriptor) if make else None
        finally:
            os.close(descriptor)
    return None


def _folders(environ: Mapping[str, str]) -> list[Path]:
    """Return the key's folder and its parents that may have to be made, outermost first."""
    base = Path(environ.get("XDG_STATE_HOME", ""))
    if base.is_absolute():
        return [base, base / _FOLDER]
    home = Path(environ.get("HOME", ""))
    # Each folder is made by itself, so that a HOME that doesn't exist stays so.
    names = (".local", ".local/state", f".local/state/{_FOLDER}")
    return [home / name for name in names] if home.is_absolute() else []


def _read(folder: int) -> bytes | None:
    with os.fdopen(os.open(_FILE, _OPEN_FILE, dir_fd=folder), "rb") as file:
        status = os.fstat(file.fileno())
        key = file.read(_BYTES + 1) if stat.S_ISREG(status.st_mode) else b""
    return key if _is_private(status) and len(key) == _BYTES else None


def _make(folder: int) -> bytes | None:
    """Make the key under another name first, so that no command reads half of it."""
    key = os.urandom(_BYTES)
    # A name by chance: processes of two containers that share the folder may have the same id.
    new = f"{_FILE}.{os.urandom(8).hex()}"
    with os.fdopen(os.open(new, _NEW_FILE, 0o600, dir_fd=folder), "wb") as file:
        file.write(key)
    try:
        # Unlike a rename, a link replaces nothing: of two commands at once, the first one's key stays.
        os.link(new, _FILE, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return _read(folder)
    finally:
        os.unlink(new, dir_fd=folder)
    return key


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not status.st_mode & 0o077
