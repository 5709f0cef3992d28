"""Check that a home didn't come with the checkout: it has this user's mark, and git tracks no file in it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from reconciler.base.checkout import git_folder, repository_in
from reconciler.base.diagnostics import counted
from reconciler.base.errors import MachineError
from reconciler.base.state_dir import (
    MARK,
    OUTSIDE,
    Home,
    HomeError,
    check_mark,
    locate,
    opened,
    refuse_other_owner,
    set_mark,
)


def home_of(root: Path, environ: Mapping[str, str]) -> Home:
    """Return the home of a repository after checking that this user made it.

    The check is about the current folder. It doesn't detect a process of the same user that replaces the
    folder later, nor a switch of branches while a command runs.

    Raises:
        HomeError: The home exists and can't be used; only its mark was read.
    """
    home = locate(root, environ)
    check(home, environ)
    return home


def check(home: Home, environ: Mapping[str, str]) -> None:
    """Raise HomeError if a home must not be used; a missing or empty home passes."""
    if home.checkout is not None and os.path.lexists(home.path):
        refuse_tracked(home, environ)
    check_mark(home, environ)


def is_trusted(home: Home, environ: Mapping[str, str]) -> bool:
    """Return True if commands use a home without a further `accept`."""
    try:
        check(home, environ)
    except HomeError:
        return False
    return True


def accept(home: Home, environ: Mapping[str, str]) -> None:
    """Mark a home inside the checkout as this user's, and close it to other users.

    Raises:
        HomeError: git tracks a file in it, it belongs to another user, or no key can be stored.
    """
    with opened(home) as descriptor:
        if descriptor is None or home.checkout is None:
            return
        refuse_tracked(home, environ)
        refuse_other_owner(home, os.fstat(descriptor))
        os.fchmod(descriptor, 0o700)
        set_mark(home, home.checkout, descriptor, environ)


def refuse_tracked(home: Home, environ: Mapping[str, str]) -> None:
    """Raise HomeError if git tracks a file in a home, or the home itself as a link or a submodule.

    Such a home loses its mark. The index decides; if this module can't read it, `git ls-files` decides, and a
    failure of git refuses the home.
    """
    place = Path(os.path.realpath(home.path.parent))
    # Every repository above: git also checks out files through a repository that lies in another.
    tops = (top for top in (place, *place.parents) if repository_in(top))
    tracked = next(filter(None, (_tracked_by(top, place / home.path.name, environ) for top in tops)), [])
    if tracked:
        # git may have replaced marked files, and they remain when git only stops tracking them.
        _remove_mark(home)
        raise HomeError(
            f"{home.path} isn't used: git tracks {counted(len(tracked), 'file')} of it, such as "
            f"{tracked[0][:200]}, so its content may be another person's",
            hint="check out a commit without it, or remove it with `git rm -r`, and then accept what is left "
            f"with `reconciler trust`; or {OUTSIDE}",
        )


def _tracked_by(top: Path, home: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the paths of a home that the repository at `top` tracks."""
    git = git_folder(top)
    index = git / "index" if git else None
    state = _state_of(index) if index else None
    cached_state, tracked = _TRACKED.get((top, home), (None, []))
    if state is None or cached_state != state:
        surely_none = index is not None and _surely_untracked(index, home.name)
        tracked = [] if surely_none else _ask_git(top, home, environ)
    if state is not None:
        _TRACKED[top, home] = state, tracked
    return tracked


# The tracked files by repository and home, with the state of the index: a command checks its home several
# times, and the training service before each job.
_TRACKED: dict[tuple[Path, Path], tuple[tuple[int, ...], list[str]]] = {}


def _remove_mark(home: Home) -> None:
    """Remove the mark of a home inside the checkout, if possible."""
    if home.checkout is None:
        return
    with suppress(HomeError, MachineError, OSError), opened(home) as descriptor:
        if descriptor is not None:
            os.unlink(MARK, dir_fd=descriptor)


def _state_of(index: Path) -> tuple[int, ...] | None:
    try:
        status = index.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _surely_untracked(index: Path, name: str) -> bool:
    """Return True if an index certainly has no path that contains `name` in any case; saves a git process."""
    try:
        data = index.read_bytes()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    # Only versions 2 and 3 store complete paths, and a split or sparse index lacks some of them:
    # https://git-scm.com/docs/index-format
    has_all_paths = (
        data[:4] == b"DIRC"
        and int.from_bytes(data[4:8], "big") in (2, 3)
        and b"link\0" not in data
        and b"sdir\0" not in data
    )
    return has_all_paths and name.isascii() and name.lower().encode() not in data.lower()


def _ask_git(top: Path, home: Path, environ: Mapping[str, str]) -> list[str]:
    """Return the paths that git tracks in a home; raises HomeError if git fails."""
    from reconciler.base.git_command import Git, GitError  # slow to import, and seldom needed

    # Variables such as GIT_LITERAL_PATHSPECS would change the meaning of the path below.
    harmless = {name: value for name, value in environ.items() if not name.endswith("_PATHSPECS")}
    try:
        place = home.relative_to(top).as_posix()
        listed = Git(top, harmless).run("ls-files", "-z", "--", f":(icase,literal){place}")
    except GitError as error:
        raise HomeError(
            f"{home} isn't used: git doesn't say whether it tracks anything in it: {error.message}",
            hint=f"make `git ls-files` work here, or {OUTSIDE}",
        ) from None
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]
