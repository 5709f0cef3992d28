"""Where the tool keeps what it leaves behind in a repository: the embedded service's state, and caches."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from reconciler.errors import ServiceError


def home_of(root: Path, environ: Mapping[str, str]) -> Path:
    """Where runs leave their things: `RECONCILER_HOME`, else `.reconciler/` at the repository's root."""
    named = environ.get("RECONCILER_HOME")
    return Path(named).absolute() if named else root / ".reconciler"


def prepare_home(home: Path) -> None:
    """Make the folder, and have git ignore it: what lies there must not make a work tree count as changed.

    Raises ServiceError where there can be no such folder.
    """
    ignore = home / ".gitignore"
    try:
        home.mkdir(parents=True, exist_ok=True)
        if not ignore.exists():
            ignore.write_text("*\n")
    except OSError as error:
        hint = "name another folder in RECONCILER_HOME"
        raise ServiceError(f"{home} can't be used: {error.strerror}", hint=hint) from None
