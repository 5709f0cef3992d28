"""The home: the folder of the embedded service's state and of caches, and the proof that this user made it.

A home inside a checkout, this one or another, may have come with it, so it counts only with this user's mark.
A home elsewhere was named in `RECONCILER_HOME` by the user, and needs no mark; nobody else may exchange it.
"""

from __future__ import annotations

import errno
import hmac
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from reconciler.base.errors import ExitCode, ReconcilerError, ServiceError
from reconciler.base.user_key import key_folder, user_key

MARK = "mark"
"""The file in a home that proves that this user made it."""

OUTSIDE = "set RECONCILER_HOME to a folder of yours outside of checkouts"
"""Hint that fits every refused home."""

_DEFAULT = ".reconciler"
_SETTINGS = "reconciler.yaml"
_IGNORE = ".gitignore"
_MARK_FORMAT = b"reconciler home 1\n"
_MARK_BYTES = len(_MARK_FORMAT) + 64
_MOST_LINKS = 40  # as in the kernel
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class HomeError(ReconcilerError):
    """Error for a home that another person may have written."""

    exit_code = ExitCode.INVALID


class Home(NamedTuple):
    """The home of one repository.

    Attributes:
        path: The folder, which need not exist.
        checkout: The checkout that the folder lies in and may have come with, resolved; None where it lies
            outside.
    """

    path: Path
    checkout: Path | None


def locate(root: Path, environ: Mapping[str, str]) -> Home:
    """Return the home of a repository, unchecked: `RECONCILER_HOME`, else `.reconciler/` at the root.

    Raises:
        HomeError: `RECONCILER_HOME` leads out of a checkout by a link that may have come with it.
    """
    worked_in = checkout_of(root)
    named = environ.get("RECONCILER_HOME")
    if not named:
        return Home(root / _DEFAULT, worked_in or Path(os.path.realpath(root)))
    path = Path(named).absolute()
    real = Path(os.path.realpath(path))
    checkout = _checkout_around(real, worked_in, environ)
    if real == checkout:
        raise HomeError(f"RECONCILER_HOME names the checkout itself, {path}", hint=OUTSIDE)
    if checkout is not None:
        return Home(real, checkout)
    for link in _links_to(path):
        if _checkout_around(link.parent, worked_in, environ) is not None:
            message = f"RECONCILER_HOME goes through {link}, a link inside the checkout"
            raise HomeError(message, hint=f"if the link is yours, name the folder: RECONCILER_HOME={real}")
    return Home(path, None)


def checkout_of(folder: Path) -> Path | None:
    """Return the top of the checkout around a folder, resolved: a repository, else a folder with settings.

    None without either: a working directory alone, such as a daemon's, is no checkout.
    """
    folder = Path(os.path.realpath(folder))
    around = (folder, *folder.parents)
    top = next((place for place in around if repository_in(place)), None)
    return top or next((place for place in around if os.path.lexists(place / _SETTINGS)), None)


def _checkout_around(folder: Path, worked_in: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the checkout that may have brought a resolved folder: the one worked in, else another one.

    Another one around the user's key doesn't count. It is the user's home directory with its dotfiles:
    whoever writes these decides what the user's shell runs, and no mark could be made in it.
    """
    if worked_in is not None and folder.is_relative_to(worked_in):
        return worked_in
    other = checkout_of(folder)
    key = key_folder(environ)
    if other is None or (key is not None and Path(os.path.realpath(key)).is_relative_to(other)):
        return None
    return other


def _links_to(path: Path) -> Iterator[Path]:
    """Yield each symbolic link on the way to where a path leads, in its resolved folder."""
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


def check_mark(home: Home, environ: Mapping[str, str]) -> None:
    """Raise HomeError where this user may not have made a home; a missing home and an empty one are fine."""
    if home.checkout is None:
        _refuse_exchangeable(home)
    descriptor = opened(home)
    if descriptor is None:
        return
    try:
        # First of all: the owner of an empty folder can exchange what is written into it later.
        _refuse_others(home, os.fstat(descriptor))
        if home.checkout is not None and _is_fresh(descriptor):
            return
        if home.checkout is not None and not _is_marked(home, descriptor, environ):
            raise _not_marked(home, home.checkout, environ)
    finally:
        os.close(descriptor)


def is_empty(home: Home) -> bool:
    """Return True if a home is missing or contains only the files that `prepare_home` writes first."""
    descriptor = opened(home)
    if descriptor is None:
        return True
    try:
        return _is_fresh(descriptor)
    finally:
        os.close(descriptor)


def prepare_home(home: Home, environ: Mapping[str, str]) -> None:
    """Make a home with its mark, and have git ignore it: its files must not make a work tree count as dirty.

    Args:
        home: The home.
        environ: The environment variables.

    Raises:
        HomeError: The home exists without a mark, or no key can be kept to mark it.
        ServiceError: The folder can't be made or written to.
    """
    path = home.path
    if home.checkout is not None and not os.path.lexists(path):
        _own_key(home, home.checkout, environ)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = opened(home)
        if descriptor is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        try:
            _prepare(home, descriptor, environ)
        finally:
            os.close(descriptor)
    except OSError as error:
        hint = "name another folder in RECONCILER_HOME"
        raise ServiceError(f"{path} can't be used: {error.strerror}", hint=hint) from None


def _prepare(home: Home, folder: int, environ: Mapping[str, str]) -> None:
    refuse_other_owner(home, os.fstat(folder))
    is_fresh = _is_fresh(folder)
    if is_fresh:
        # Before anything is written, as nothing of it would be of use without the mark.
        if home.checkout is not None:
            _own_key(home, home.checkout, environ)
        _close_to_others(home, folder)
    check_mark(home, environ)
    _close_to_others(home, folder)
    # Before the mark: git must not see it, not even for a moment, as a commit would count as changed.
    with (
        suppress(FileExistsError),
        os.fdopen(os.open(_IGNORE, _NEW_FILE, 0o600, dir_fd=folder), "wb") as file,
    ):
        file.write(b"*\n")
    if is_fresh and home.checkout is not None:
        set_mark(home, home.checkout, folder, environ)


def _close_to_others(home: Home, folder: int) -> None:
    """Take other users' access from the home's folder, which earlier versions left open to readers.

    The target of a link keeps its mode: it may be a folder that this user shares on purpose.
    """
    status = os.fstat(folder)
    if not home.path.is_symlink() and status.st_uid == os.geteuid() and status.st_mode & 0o077:
        os.fchmod(folder, 0o700)


def repository_in(folder: Path) -> Path | None:
    """Return the folder's `.git`, None without one; git also overlooks an empty folder of that name."""
    git = folder / ".git"
    try:
        status = git.lstat()
    except OSError:
        return None
    return git if not stat.S_ISDIR(status.st_mode) or os.path.lexists(git / "HEAD") else None


def opened(home: Home) -> int | None:
    """Open the home's folder; None where there is no folder. Raises HomeError for a link in the checkout."""
    try:
        if home.checkout is not None and home.path.is_symlink():
            raise HomeError(
                f"{home.path} isn't used: it is a symbolic link, and a branch may contain it",
                hint="if the link is yours, remove it and name the folder that it leads to: "
                f"RECONCILER_HOME={os.path.realpath(home.path)}",
            )
        return os.open(home.path, _OPEN_FOLDER)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise HomeError(f"{home.path} isn't used: it is not a folder", hint=OUTSIDE) from None
    except OSError as error:
        raise HomeError(f"{home.path} can't be opened: {error.strerror}", hint=OUTSIDE) from None


def _is_fresh(folder: int) -> bool:
    """Return whether a folder has nothing but what `prepare_home` writes before the mark."""
    with os.scandir(folder) as entries:
        return all(
            entry.is_file(follow_symlinks=False)
            and (entry.name == _IGNORE or entry.name.startswith(f"{MARK}."))
            for entry in entries
        )


def _refuse_exchangeable(home: Home) -> None:
    """Raise HomeError where another user can put another folder, or another link, in the home's place."""
    ways = (*_links_to(home.path), Path(os.path.realpath(home.path)))
    for folder in sorted({above for way in ways for above in way.parents}):
        try:
            status = folder.stat()
        except OSError:  # missing: it is made later, as this user's
            continue
        if why := _exchange(status):
            raise HomeError(
                f"{home.path} isn't used: another user can exchange it, as {folder} {why}",
                hint="set RECONCILER_HOME to a folder in a place where only you can write, such as your home "
                f"directory; or, if {folder} is yours, run: chmod go-w {folder}",
            )


def _exchange(status: os.stat_result) -> str:
    """Return the reason why another user can exchange what lies in a folder; "" where none can."""
    user = os.geteuid()
    # Root in a container often works in folders of the user who started it, as in GitHub's container jobs.
    # That user stays able to exchange them, and so does that user's group, which umask 002 lets write.
    is_lent = user == 0 and status.st_uid != 0
    if status.st_uid not in (0, user) and not is_lent:
        return f"belongs to another user (uid {status.st_uid})"
    # In a sticky folder, such as /tmp, each entry is its owner's alone.
    if status.st_mode & stat.S_ISVTX:
        return ""
    by_group = status.st_mode & stat.S_IWGRP and not is_lent and status.st_gid != _own_group(user)
    if status.st_mode & stat.S_IWOTH or by_group:
        return f"is writable by others (mode {stat.S_IMODE(status.st_mode):04o})"
    return ""


def _own_group(user: int) -> int:
    """Return the user's primary group.

    Many systems give each user a group of that user's own and umask 002, so that folders are writable by that
    group as a rule. Where users share their primary group, as by an administrator's choice, it is theirs to
    keep such folders from it.
    """
    try:
        return pwd.getpwuid(user).pw_gid
    except KeyError:  # in a container started with any number as the user
        return os.getegid()


def _refuse_others(home: Home, status: os.stat_result) -> None:
    refuse_other_owner(home, status)
    if status.st_mode & 0o022:
        mode = stat.S_IMODE(status.st_mode)
        raise HomeError(
            f"{home.path} isn't used: other users can write to it (mode {mode:04o})",
            hint=f"if its content is yours, run: chmod 700 {home.path}",
        )


def refuse_other_owner(home: Home, status: os.stat_result) -> None:
    """Raise HomeError where the home's folder, with this status, is another user's."""
    if status.st_uid != os.geteuid():
        raise HomeError(
            f"{home.path} isn't used: it belongs to another user (uid {status.st_uid})",
            hint="set RECONCILER_HOME to a folder of yours",
        )


def _not_marked(home: Home, checkout: Path, environ: Mapping[str, str]) -> HomeError:
    _own_key(home, checkout, environ)
    return HomeError(
        f"{home.path} isn't used: it has no mark that you made it in this place, "
        f"so it may have come with the checkout {checkout}",
        hint="`reconciler trust` shows its content and accepts it, if it is yours; otherwise remove it, "
        f"or {OUTSIDE}",
    )


def _own_key(home: Home, checkout: Path, environ: Mapping[str, str]) -> bytes:
    key = user_key(checkout, environ, make=True)
    if key is not None:
        return key
    folder = key_folder(environ)
    place = f"in {folder}, as a file of yours alone outside the checkout" if folder else "without HOME"
    raise HomeError(
        f"{home.path} can't be marked as yours: no private key can be kept {place}",
        hint=OUTSIDE,
    )


def _is_marked(home: Home, folder: int, environ: Mapping[str, str]) -> bool:
    assert home.checkout is not None, "only a home inside the checkout has a mark"
    key = user_key(home.checkout, environ, make=False)
    if key is None:
        return False
    try:
        descriptor = os.open(MARK, _OPEN_FILE, dir_fd=folder)
    except OSError:
        return False
    with os.fdopen(descriptor, "rb") as file:
        is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
        found = file.read(_MARK_BYTES + 1) if is_file else b""
    return hmac.compare_digest(found, _mark_of(home, folder, key))


def set_mark(home: Home, checkout: Path, folder: int, environ: Mapping[str, str]) -> None:
    """Write the mark into the home's open folder; raises HomeError where no key can be kept, and OSError."""
    key = _own_key(home, checkout, environ)
    # A name by chance: processes of two containers that share the folder may have the same id.
    new = f"{MARK}.{os.urandom(8).hex()}"
    with os.fdopen(os.open(new, _NEW_FILE, 0o600, dir_fd=folder), "wb") as file:
        file.write(_mark_of(home, folder, key))
    os.replace(new, MARK, src_dir_fd=folder, dst_dir_fd=folder)


def _mark_of(home: Home, folder: int, key: bytes) -> bytes:
    """Return the mark of a home: a MAC over its resolved path and its inode.

    A copy has another inode, also where it replaced the original; a moved home has another path. The device
    is left out: its number changes between boots on some file systems.
    """
    place = b"%s\0%d" % (os.fsencode(os.path.realpath(home.path)), os.fstat(folder).st_ino)
    return _MARK_FORMAT + hmac.digest(key, _MARK_FORMAT + place, "sha256").hex().encode()
