"""The check that nothing in a home came with the checkout: this user's mark, and no file that git tracks."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from reconciler.base.state_dir import (
    MARK,
    OUTSIDE,
    Home,
    HomeError,
    check_mark,
    locate,
    opened,
    refuse_other_owner,
    repository_in,
    set_mark,
)


def home_of(root: Path, environ: Mapping[str, str]) -> Home:
    """Return the home of a repository, after checking that this user made it.

    The check concerns the folder as it is now. It doesn't defend against a process of the same user that
    replaces it afterwards, nor against a switch of branches while a command runs.

    Raises:
        HomeError: The home exists and isn't used; nothing in it was read but its mark.
    """
    home = locate(root, environ)
    check(home, environ)
    return home


def check(home: Home, environ: Mapping[str, str]) -> None:
    """Raise HomeError where a home must not be used; a missing home and an empty one are fine."""
    if home.checkout is not None and os.path.lexists(home.path):
        refuse_tracked(home, environ)
    check_mark(home, environ)


def is_trusted(home: Home, environ: Mapping[str, str]) -> bool:
    """Return whether commands use a home as it is."""
    try:
        check(home, environ)
    except HomeError:
        return False
    return True


def accept(home: Home, environ: Mapping[str, str]) -> None:
    """Mark a home inside the checkout as this user's, and close it to other users.

    Raises:
        HomeError: git tracks something in it, it is another user's, or no key can be kept.
    """
    descriptor = opened(home)
    if descriptor is None or home.checkout is None:
        return
    try:
        refuse_tracked(home, environ)
        refuse_other_owner(home, os.fstat(descriptor))
        os.fchmod(descriptor, 0o700)
        set_mark(home, home.checkout, descriptor, environ)
    finally:
        os.close(descriptor)


def refuse_tracked(home: Home, environ: Mapping[str, str]) -> None:
    """Raise HomeError where git tracks a file in a home, or the home itself as a link or a submodule.

    The home loses its mark then: git may have replaced files that the mark stood for, and they stay when git
    only stops to track them.

    The index decides. Where it can't be read with certainty, git is asked; where git can't answer, the home
    is refused.
    """
    folder = home.path.parent
    repository = next(filter(None, map(repository_in, (folder, *folder.parents))), None)
    if repository is None:
        return
    index = _index_of(repository)
    state = _state_of(index) if index else None
    known, tracked = _TRACKED.get(home.path, (None, []))
    if state is None or known != state:
        surely_none = index is not None and _surely_untracked(index, home.path.name)
        tracked = [] if surely_none else _ask_git(home, environ)
    if state is not None:
        _TRACKED[home.path] = state, tracked
    if tracked:
        _remove_mark(home)
        count = f"{len(tracked)} file{'' if len(tracked) == 1 else 's'}"
        raise HomeError(
            f"{home.path} isn't used: git tracks {count} of it, such as {tracked[0][:200]}, "
            "so its content may be another person's",
            hint="check out a commit without it, or remove it with `git rm -r`, and then accept what is left "
            f"with `reconciler trust`; or {OUTSIDE}",
        )


# What git tracked in a home, and in which state of the index: a command asks about its home several times,
# and the training service whenever a job's turn comes.
_TRACKED: dict[Path, tuple[tuple[int, ...], list[str]]] = {}


def _remove_mark(home: Home) -> None:
    """Remove the mark of a home inside the checkout, if that can be done."""
    if home.checkout is None:
        return
    with suppress(HomeError, OSError):
        descriptor = opened(home)
        if descriptor is not None:
            try:
                os.unlink(MARK, dir_fd=descriptor)
            finally:
                os.close(descriptor)


def _state_of(index: Path) -> tuple[int, ...] | None:
    try:
        status = index.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _index_of(repository: Path) -> Path | None:
    """Return the index of a repository; None where only git knows its place."""
    with suppress(OSError, UnicodeError):
        if stat.S_ISDIR(repository.lstat().st_mode):
            return repository / "index"
        # Of a linked work tree, or a submodule: https://git-scm.com/docs/gitrepository-layout
        word, _, place = repository.read_text("utf-8").partition("gitdir: ")
        if not word and place:
            return repository.parent / place.rstrip("\n") / "index"
    return None


def _surely_untracked(index: Path, name: str) -> bool:
    """Return whether an index has no path with `name` in it, in any case of its letters.

    This spares most commands a process of git. Only versions 2 and 3 keep whole paths, and neither a split
    nor a sparse index has all of them: https://git-scm.com/docs/index-format
    """
    try:
        data = index.read_bytes()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    has_all_paths = (
        data[:4] == b"DIRC"
        and int.from_bytes(data[4:8], "big") in (2, 3)
        and b"link\0" not in data
        and b"sdir\0" not in data
    )
    return has_all_paths and name.isascii() and name.lower().encode() not in data.lower()


def _ask_git(home: Home, environ: Mapping[str, str]) -> list[str]:
    """Return the paths that git tracks in a home; raises HomeError where git can't answer."""
    from reconciler.base.git_command import Git, GitError  # slow to import, and seldom needed

    # These change the meaning of the path below.
    harmless = {name: value for name, value in environ.items() if not name.endswith("_PATHSPECS")}
    try:
        listed = Git(home.path.parent, harmless).run(
            "ls-files", "-z", "--", f":(icase,literal){home.path.name}"
        )
    except GitError as error:
        raise HomeError(
            f"{home.path} isn't used: git doesn't say whether it tracks anything in it: {error.message}",
            hint=f"make `git ls-files` work here, or {OUTSIDE}",
        ) from None
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]
