"""The home: the folder of the embedded service's state and of caches, with the proof that this user made it.

A home inside any checkout may have come with it, and is used only with this user's mark. A home elsewhere was
named in `RECONCILER_HOME` by the user, and needs no mark, but no other user must be able to replace it. The
user's private key makes the mark: authors of checkouts lack it.
"""

from __future__ import annotations

import errno
import hmac
import os
import pwd
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from reconciler.base.checkout import checkout_of
from reconciler.base.errors import ExitCode, ReconcilerError, ServiceError, check_machine
from reconciler.base.safe_files import (
    is_private,
    new_file,
    open_folder,
    opened_folder,
    read_file,
    replace_file,
    write_temporary,
)

MARK = "mark"
"""The file in a home that proves that this user made it."""

OUTSIDE = "set RECONCILER_HOME to a folder of yours outside of checkouts"
"""Hint that fits every refused home."""

_DEFAULT = ".reconciler"
_IGNORE = ".gitignore"
_MARK_FORMAT = b"reconciler home 1\n"
_MARK_BYTES = len(_MARK_FORMAT) + 64
_MOST_LINKS = 40  # as in the kernel


class HomeError(ReconcilerError):
    """Error for a home that another person may have written."""

    exit_code = ExitCode.INVALID


class Home(NamedTuple):
    """The home of one repository.

    Attributes:
        path: The folder, which may be missing.
        checkout: The resolved checkout around the folder, which may have brought it; None if it lies outside.
    """

    path: Path
    checkout: Path | None


def locate(root: Path, environ: Mapping[str, str]) -> Home:
    """Return the unchecked home of a repository: `RECONCILER_HOME`, else `.reconciler/` at the root.

    Raises:
        HomeError: `RECONCILER_HOME` leads out of a checkout by a link that may have come with it.
    """
    current = checkout_of(root)
    named = environ.get("RECONCILER_HOME")
    if not named:
        return Home(root / _DEFAULT, current or Path(os.path.realpath(root)))
    path = Path(named).absolute()
    real = Path(os.path.realpath(path))
    checkout = _checkout_around(real, current, environ)
    if real == checkout:
        raise HomeError(f"RECONCILER_HOME names the checkout itself, {path}", hint=OUTSIDE)
    if checkout is not None:
        return Home(real, checkout)
    for link in _links_to(path):
        if _checkout_around(link.parent, current, environ) is not None:
            message = f"RECONCILER_HOME goes through {link}, a link inside the checkout"
            raise HomeError(message, hint=f"if the link is yours, name the folder: RECONCILER_HOME={real}")
    return Home(path, None)


def _checkout_around(folder: Path, current: Path | None, environ: Mapping[str, str]) -> Path | None:
    """Return the checkout that may have brought a resolved folder: the current one, or another."""
    if current is not None and folder.is_relative_to(current):
        return current
    # Ignore another checkout around the user's key. It is the user's home directory with its dotfiles: their
    # author controls the commands of the user's shell anyway, and no mark could be made in it.
    other = checkout_of(folder)
    key = key_folder(environ)
    if other is None or (key is not None and Path(os.path.realpath(key)).is_relative_to(other)):
        return None
    return other


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


def check_mark(home: Home, environ: Mapping[str, str]) -> None:
    """Raise HomeError if another person may have made a home; a missing or empty home passes."""
    if home.checkout is None:
        _refuse_exchangeable(home)
    with opened(home) as descriptor:
        if descriptor is None:
            return
        # Check the owner of an empty folder too: the owner can replace files that are written into it later.
        _refuse_others(home, os.fstat(descriptor))
        if home.checkout is not None and _is_fresh(descriptor):
            return
        if home.checkout is not None and not _is_marked(home, descriptor, environ):
            raise _not_marked(home, home.checkout, environ)


def is_empty(home: Home) -> bool:
    """Return True if a home is missing or contains only the files that `prepare_home` writes first."""
    with opened(home) as descriptor:
        return descriptor is None or _is_fresh(descriptor)


def prepare_home(home: Home, environ: Mapping[str, str]) -> None:
    """Create a home with its mark, and make git ignore it, so that its files don't make a work tree dirty.

    Raises:
        HomeError: The home exists without a mark, or no key can be stored to mark it.
        ServiceError: The folder can't be created or written to.
    """
    path = home.path
    if home.checkout is not None and not os.path.lexists(path):
        _own_key(home, home.checkout, environ)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        with opened(home) as descriptor:
            if descriptor is None:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            _prepare(home, descriptor, environ)
    except OSError as error:
        hint = "name another folder in RECONCILER_HOME"
        raise ServiceError(f"{path} can't be used: {error.strerror}", hint=hint) from None


def _prepare(home: Home, folder: int, environ: Mapping[str, str]) -> None:
    refuse_other_owner(home, os.fstat(folder))
    is_fresh = _is_fresh(folder)
    if is_fresh:
        # Before any write: without a key for the mark, written files would be useless.
        if home.checkout is not None:
            _own_key(home, home.checkout, environ)
        _close_to_others(home, folder)
    check_mark(home, environ)
    _close_to_others(home, folder)
    # Before the mark: if git saw it even for a moment, the work tree would be dirty.
    with suppress(FileExistsError), new_file(_IGNORE, folder) as file:
        file.write(b"*\n")
    if is_fresh and home.checkout is not None:
        set_mark(home, home.checkout, folder, environ)


def _close_to_others(home: Home, folder: int) -> None:
    status = os.fstat(folder)
    # Earlier versions left the folder readable. The target of a link keeps its mode, as this user may share
    # it on purpose.
    if not home.path.is_symlink() and status.st_uid == os.geteuid() and status.st_mode & 0o077:
        os.fchmod(folder, 0o700)


@contextmanager
def opened(home: Home) -> Iterator[int | None]:
    """Open the home's folder; yield None if it is missing. Raises HomeError for a link in the checkout."""
    descriptor = _open(home)
    try:
        yield descriptor
    finally:
        if descriptor is not None:
            os.close(descriptor)


def _open(home: Home) -> int | None:
    try:
        if home.checkout is not None and home.path.is_symlink():
            raise HomeError(
                f"{home.path} isn't used: it is a symbolic link, and a branch may contain it",
                hint="if the link is yours, remove it and name the folder that it leads to: "
                f"RECONCILER_HOME={os.path.realpath(home.path)}",
            )
        return open_folder(home.path, follow=True)
    except FileNotFoundError:
        return None
    except NotADirectoryError:
        raise HomeError(f"{home.path} isn't used: it is not a folder", hint=OUTSIDE) from None
    except OSError as error:
        check_machine(error, f"{home.path} can't be opened")
        raise HomeError(f"{home.path} can't be opened: {error.strerror}", hint=OUTSIDE) from None


def _is_fresh(folder: int) -> bool:
    """Return True if a folder contains only files that `prepare_home` writes before the mark."""
    with os.scandir(folder) as entries:
        return all(
            entry.is_file(follow_symlinks=False)
            and (entry.name == _IGNORE or entry.name.startswith(f"{MARK}."))
            for entry in entries
        )


def _refuse_exchangeable(home: Home) -> None:
    """Raise HomeError if another user can replace the home, or a link on the way to it."""
    ways = (*_links_to(home.path), Path(os.path.realpath(home.path)))
    for folder in sorted({above for way in ways for above in way.parents}):
        try:
            status = folder.stat()
        except OSError:  # missing: it is made later, as this user's
            continue
        if why := _exchange(status):
            raise HomeError(
                f"{home.path} isn't used: another user can replace it, as {folder} {why}",
                hint="set RECONCILER_HOME to a folder in a place where only you can write, such as your home "
                f"directory; or, if {folder} is yours, run: chmod go-w {folder}",
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


def _refuse_others(home: Home, status: os.stat_result) -> None:
    refuse_other_owner(home, status)
    if status.st_mode & 0o022:
        mode = stat.S_IMODE(status.st_mode)
        raise HomeError(
            f"{home.path} isn't used: other users can write to it (mode {mode:04o})",
            hint=f"if its content is yours, run: chmod 700 {home.path}",
        )


def refuse_other_owner(home: Home, status: os.stat_result) -> None:
    """Raise HomeError if the home's folder, with this status, belongs to another user."""
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
        found, _ = read_file(MARK, _MARK_BYTES + 1, folder=folder)
    except OSError as error:
        check_machine(error, f"{home.path / MARK} can't be read")
        return False
    return hmac.compare_digest(found, _mark_of(home, folder, key))


def set_mark(home: Home, checkout: Path, folder: int, environ: Mapping[str, str]) -> None:
    """Write the mark into the home's open folder; raises OSError, and HomeError if no key can be stored."""
    key = _own_key(home, checkout, environ)
    replace_file(MARK, _mark_of(home, folder, key), folder)


def _mark_of(home: Home, folder: int, key: bytes) -> bytes:
    """Return the mark of a home: a MAC over its resolved path and its inode."""
    # A copy has another inode, even in the original's place; a moved home has another path. The device is
    # omitted: its number changes between boots on some file systems.
    place = b"%s\0%d" % (os.fsencode(os.path.realpath(home.path)), os.fstat(folder).st_ino)
    return _MARK_FORMAT + hmac.digest(key, _MARK_FORMAT + place, "sha256").hex().encode()


_KEY_FOLDER = "reconciler"
_KEY_FILE = "key"
_KEY_BYTES = 32


def key_folder(environ: Mapping[str, str]) -> Path | None:
    """Return the folder of the key, below `$XDG_STATE_HOME` or `~/.local/state`; None without either.

    A relative XDG_STATE_HOME is ignored: https://specifications.freedesktop.org/basedir-spec
    """
    folders = _key_folders(environ)
    return folders[-1] if folders else None


def user_key(checkout: Path, environ: Mapping[str, str], *, make: bool) -> bytes | None:
    """Return the user's 32-byte key; None if it is missing or can't be stored.

    A key that another user can read or may have written is ignored, and so is a key inside the checkout, a
    resolved path. `make` creates a missing key. Raises MachineError.
    """
    folders = _key_folders(environ)
    try:
        if not folders or Path(os.path.realpath(folders[-1])).is_relative_to(checkout):
            return None
        for folder in folders if make else ():
            folder.mkdir(mode=0o700, exist_ok=True)
        with opened_folder(folders[-1]) as descriptor:
            if not is_private(os.fstat(descriptor)):
                return None
            with suppress(FileNotFoundError):
                return _read_key(descriptor)
            return _make_key(descriptor) if make else None
    except OSError as error:
        # Where no file can be written at all, the user chooses another place.
        if error.errno != errno.EROFS:
            check_machine(error, f"the key in {folders[-1]} can't be used")
        return None


def _key_folders(environ: Mapping[str, str]) -> list[Path]:
    """Return the key's folder and the parents to create if missing, outermost first."""
    base = Path(environ.get("XDG_STATE_HOME", ""))
    if base.is_absolute():
        return [base, base / _KEY_FOLDER]
    home = Path(environ.get("HOME", ""))
    # HOME itself is not in the list: a missing HOME must not be created.
    names = (".local", ".local/state", f".local/state/{_KEY_FOLDER}")
    return [home / name for name in names] if home.is_absolute() else []


def _read_key(folder: int) -> bytes | None:
    key, status = read_file(_KEY_FILE, _KEY_BYTES + 1, folder=folder)
    return key if is_private(status) and len(key) == _KEY_BYTES else None


def _make_key(folder: int) -> bytes | None:
    key = os.urandom(_KEY_BYTES)
    # Under another name first, so that no command reads an incomplete key.
    temporary = write_temporary(_KEY_FILE, key, folder)
    try:
        # Unlike a rename, a link never replaces a file: of two concurrent commands, the first one's key
        # stays.
        os.link(temporary, _KEY_FILE, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
    except FileExistsError:
        return _read_key(folder)
    finally:
        os.unlink(temporary, dir_fd=folder)
    return key
