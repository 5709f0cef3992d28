"""The user's private key, which marks files of this user's commands; authors of checkouts lack it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from reconciler.base.safe_files import is_private, opened_folder, read_file, write_temporary

_FOLDER = "reconciler"
_FILE = "key"
_BYTES = 32


def key_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the key, below `$XDG_STATE_HOME` or `~/.local/state`; None without either.

    A relative XDG_STATE_HOME is ignored: https://specifications.freedesktop.org/basedir-spec
    """
    folders = _folders(environ)
    return folders[-1] if folders else None


def user_key(checkout: Path, environ: Mapping[str, str], *, make: bool) -> bytes | None:
    """Return the user's 32-byte key; None if it is missing or can't be stored.

    A key that another user can read or may have written is ignored, and so is a key inside the checkout, a
    resolved path. `make` creates a missing key.
    """
    folders = _folders(environ)
    with suppress(OSError):
        if not folders or Path(os.path.realpath(folders[-1])).is_relative_to(checkout):
            return None
        for folder in folders if make else ():
            folder.mkdir(mode=0o700, exist_ok=True)
        with opened_folder(folders[-1]) as descriptor:
            if not is_private(os.fstat(descriptor)):
                return None
            with suppress(FileNotFoundError):
                return _read(descriptor)
            return _make(descriptor) if make else None
    return None


def _folders(environ: Mapping[str, str]) -> list[Path]:
    """Return the key's folder and the parents to create if missing, outermost first."""
    base = Path(environ.get("XDG_STATE_HOME", ""))
    if base.is_absolute():
        return [base, base / _FOLDER]
    home = Path(environ.get("HOME", ""))
    # HOME itself is not in the list: a missing HOME must not be created.
    names = (".local", ".local/state", f".local/state/{_FOLDER}")
    return [home / name for name in names] if home.is_absolute() else []


def _read(folder: int) -> bytes | None:
    key, status = read_file(_FILE, _BYTES + 1, folder=folder)
    return key if is_private(status) and len(key) == _BYTES else None


def _make(folder: int) -> bytes | None:
    key = os.urandom(_BYTES)
    # Under another name first, so that no command reads an incomplete key.
    temporary = write_temporary(_FILE, key, folder)
    try:
        # Unlike a rename, a link never replaces a file: of two concurrent commands, the first one's key
        # stays.
        os.link(temporary, _FILE, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return _read(folder)
    finally:
        os.unlink(temporary, dir_fd=folder)
    return key
