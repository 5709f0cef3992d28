"""Where the tool keeps what it leaves behind in a repository: the embedded service's state, and caches."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from reconciler.errors import ServiceError


def home_of(root: Path, environ: Mapping[str, str]) -> Path:
    """Where runs leave their things: `RECONCILER_HOME`, else `.reconciler/` at the repository's root."""
    named = environ.get("RECONCILER_HOME")
    return Path(named).absolute() if named else root / ".reconciler"


def prepare_home(home: Path) -> None:
    """Make the folder, for this user only, and have git ignore it: a work tree stays unchanged by it.

    Raises ServiceError where there can be no such folder.
    """
    ignore = home / ".gitignore"
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _close_to_others(home)
        if not ignore.exists():
            ignore.write_text("*\n")
    except OSError as error:
        hint = "name another folder in RECONCILER_HOME"
        raise ServiceError(f"{home} can't be used: {error.strerror}", hint=hint) from None


def _close_to_others(home: Path) -> None:
    """Take other users' access from a home that an earlier version made.

    A link's target stays as it is: a checkout may bring the link, and the target be any folder of this user.
    """
    found = home.lstat()
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and found.st_mode & 0o077:
        home.chmod(0o700)
