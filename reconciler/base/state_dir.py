"""The home: the folder of a repository's state, which is that of the embedded service.

A branch or an archive can bring any file, so the home lies outside of the repository. No other user of the
machine may be able to write to the home or to replace it.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from reconciler.base.checkout import checkout_of
from reconciler.base.errors import ExitCode, ReconcilerError, ServiceError, check_machine

OLD_HOME = ".reconciler"
"""The folder at a repository's root in which earlier versions kept their state; nothing reads it."""

_ANOTHER = "set RECONCILER_HOME to a folder of yours outside of the repository"
_NAME_LENGTH = 50
_HASH_LENGTH = 16
_MOST_LINKS = 40  # as in the kernel


class HomeError(ReconcilerError):
    """Error for a home that another person may have written."""

    exit_code = ExitCode.INVALID


def home_of(root: Path, environ: Mapping[str, str]) -> Path:
    """Return the home of the repository at `root`, which may be missing.

    The check is about the current folder. It doesn't detect a process of the same user that replaces the
    folder later.

    Raises:
        HomeError: The home lies in the repository, no place for it is known, or another user can write to it
            or replace it.
    """
    home = location_of(root, environ)
    check_home(home)
    return home


def location_of(root: Path, environ: Mapping[str, str]) -> Path:
    """Return the unchecked home of a repository: `RECONCILER_HOME`, else a folder of the user's state.

    Raises:
        HomeError: `RECONCILER_HOME` lies in the repository, or no place is known.
    """
    named = environ.get("RECONCILER_HOME")
    if not named:
        return _default(root, environ)
    path = Path(named).absolute()
    checkout = checkout_of(root)
    if checkout is None:  # a working directory alone, such as a daemon's
        return path
    # A link inside the repository may have come with it, wherever it leads.
    inside = (way for way in (*_links_to(path), Path(os.path.realpath(path))) if way.is_relative_to(checkout))
    if (way := next(inside, None)) is not None:
        raise HomeError(
            f"RECONCILER_HOME={named} isn't used: {way} lies in the repository {checkout}, "
            "so a branch may contain it",
            hint=_elsewhere(root, environ),
        )
    return path


def _elsewhere(root: Path, environ: Mapping[str, str]) -> str:
    try:
        default = _default(root, environ)
    except HomeError:
        return _ANOTHER
    return f"unset RECONCILER_HOME, so that the state is in {default}; or name a folder outside"


def _default(root: Path, environ: Mapping[str, str]) -> Path:
    """Return the home that belongs to the real path of a repository's root."""
    real = Path(os.path.realpath(root))
    name = re.sub(r"[^A-Za-z0-9._-]", "_", real.name)[:_NAME_LENGTH]
    digest = sha256(os.fsencode(real)).hexdigest()[:_HASH_LENGTH]
    # A relative XDG_STATE_HOME is ignored: https://specifications.freedesktop.org/basedir-spec
    state, user = Path(environ.get("XDG_STATE_HOME", "")), Path(environ.get("HOME", ""))
    if not state.is_absolute():
        if not user.is_absolute():
            raise HomeError(
                "there is no place for the state: HOME and XDG_STATE_HOME are unset", hint=_ANOTHER
            )
        state = user / ".local" / "state"
    checkout, real_state = checkout_of(root), Path(os.path.realpath(state))
    # A home directory that is a repository itself holds its user's state all the same.
    is_dotfiles = checkout and user.is_absolute() and Path(os.path.realpath(user)).is_relative_to(checkout)
    if checkout and real_state.is_relative_to(checkout) and not is_dotfiles:
        raise HomeError(
            f"XDG_STATE_HOME={state} isn't used: it lies in the repository {checkout}, "
            "so a branch may contain it",
            hint=_ANOTHER,
        )
    return state / "reconciler" / f"{name}-{digest}"


def _links_to(path: Path) -> Iterator[Path]:
    """Yield each symbolic link on the way to a path's target, in its resolved folder."""
    at = Path("/")
    ahead = [*reversed(path.parts[1:])]
    left = _MOST_LINKS
    while ahead and left:
        part = ahead.pop()
        if part == "..":
            at = at.parent
            continue
        try:
            target = (at / part).readlink()
        except OSError:
            at /= part
            continue
        yield at / part
        left -= 1
        ahead += reversed(target.parts[1:] if target.is_absolute() else target.parts)
        at = Path("/") if target.is_absolute() else at


def check_home(home: Path) -> None:
    """Raise HomeError if another user can write to a home or replace it; a missing home passes."""
    _refuse_exchangeable(home)
    try:
        status = home.stat()
        is_folder = stat.S_ISDIR(status.st_mode)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        is_folder = False
    except OSError as error:
        check_machine(error, f"{home} can't be opened")
        raise HomeError(f"{home} can't be opened: {error.strerror}", hint=_ANOTHER) from None
    if not is_folder:
        raise HomeError(f"{home} isn't used: it is not a folder", hint=_ANOTHER)
    _refuse_others(home, status)


def prepare_home(home: Path) -> None:
    """Create a home, and close it to other users.

    Raises:
        HomeError: Another user can write to the home or replace it.
        ServiceError: The folder can't be created or written to.
    """
    try:
        # Each missing folder on the way, too, is the user's alone.
        for folder in reversed([home, *home.parents]):
            if not folder.exists():
                folder.mkdir(mode=0o700, exist_ok=True)
        check_home(home)
        # Earlier versions left the folder readable. The target of a link keeps its mode, as this user may
        # share it on purpose.
        if not home.is_symlink() and home.stat().st_mode & 0o077:
            home.chmod(0o700)
        # A home directory may be a repository itself: its user commits no token, and stages no state as code.
        with suppress(FileExistsError), (home / ".gitignore").open("x") as file:
            file.write("*\n")
    except OSError as error:
        hint = "name another folder in RECONCILER_HOME"
        raise ServiceError(f"{home} can't be used: {error.strerror}", hint=hint) from None


def _refuse_exchangeable(home: Path) -> None:
    """Raise HomeError if another user can replace the home, or a link on the way to it."""
    ways = (*_links_to(home), Path(os.path.realpath(home)))
    for folder in sorted({above for way in ways for above in way.parents}):
        try:
            status = folder.stat()
        except OSError:  # missing: it is made later, as this user's
            continue
        if why := _exchange(status):
            raise HomeError(
                f"{home} isn't used: another user can replace it, as {folder} {why}",
                hint="set RECONCILER_HOME to a folder in a place where only you can write, such as your home "
                f"directory; or, if {folder} is yours, run: chmod go-w {shlex.quote(str(folder))}",
            )


def _exchange(status: os.stat_result) -> str:
    """Return the reason why another user can replace entries of a folder; "" if none can."""
    user = os.geteuid()
    # Root in a container often works in folders of the user who started it, as in GitHub's container jobs.
    # That user is accepted as their owner, with that user's group, which umask 002 permits to write.
    is_lent = user == 0 and status.st_uid != 0
    if status.st_uid not in (0, user) and not is_lent:
        return f"belongs to another user (uid {status.st_uid})"
    # In a sticky folder, such as /tmp, other users can replace only entries of their own.
    if status.st_mode & stat.S_ISVTX:
        return ""
    by_group = status.st_mode & stat.S_IWGRP and not is_lent and status.st_gid != _own_group(user)
    if status.st_mode & stat.S_IWOTH or by_group:
        return f"is writable by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def _own_group(user: int) -> int:
    """Return the user's primary group."""
    # Many systems give each user a private group and umask 002, which makes folders writable by that group.
    # Where users share their primary group, by default (macOS: "staff") or by an administrator's choice, they
    # must restrict such folders themselves.
    try:
        return pwd.getpwuid(user).pw_gid
    except KeyError:  # a container may run as an unknown user id
        return os.getegid()


def _refuse_others(home: Path, status: os.stat_result) -> None:
    if status.st_uid != os.geteuid():
        raise HomeError(
            f"{home} isn't used: it belongs to another user (uid {status.st_uid})",
            hint="set RECONCILER_HOME to a folder of yours",
        )
    if status.st_mode & 0o022:
        mode = stat.S_IMODE(status.st_mode)
        raise HomeError(
            f"{home} isn't used: other users can write to it (mode {mode:04o})",
            hint=f"if its content is yours, run: chmod 700 {shlex.quote(str(home))}",
        )
