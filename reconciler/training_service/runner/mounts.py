"""Buckets as files below /gcs, as trainers find them in the cloud: `/gcs/BUCKET/…`.

A trainer gets a mount namespace of its own, with a root folder that is put together of everything in the
machine's, and of `gcs`. The machine's own root folder isn't touched, and with the trainer's last process all
of it is gone. Processes, network and users are as they were. An ordinary user needs a user namespace for it,
which not every system allows: there a trainer finds the buckets below RECONCILER_GCS_DIR alone. Within one,
files of other users are shown as nobody's, and no program runs as another user (sudo).

What is written straight into the root folder (only root may) lives as long as the trainer.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from pathlib import Path

from reconciler.training_service.jobs import archives
from reconciler.training_service.state.run_folder import PythonTask, RunSpec

_PLACE = "gcs"
_MENTIONED = re.compile(r"(?<![\w./-])/gcs/")  # not as a part of a longer path

# linux/sched.h and linux/mount.h
_NEW_MOUNTS = 0x0002_0000
_NEW_USERS = 0x1000_0000
_BIND = 1 << 12
_RECURSIVE = 1 << 14
_UNBINDABLE = 1 << 17
_PRIVATE = 1 << 18
_SLAVE = 1 << 19
_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


def why_not(buckets: Path, root: Path, work: Path) -> str:
    """Why programs can't be shown the buckets here, "" where they can: a child process tries it.

    Only for a process with a single thread, as `show` is.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            show(buckets, root, work)
        except BaseException as error:
            os.write(writing, f"{error}".encode()[:1000] or b"?")
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        problem = told.read().decode("utf-8", "replace")
    os.waitpid(child, 0)
    return problem


def show(buckets: Path, root: Path, work: Path) -> None:
    """Give this process a root folder in which /gcs is the folder of the buckets.

    Args:
        root: An empty folder; nothing is left in it.
        work: The working folder from then on.

    Raises:
        OSError: The system doesn't allow it, and the process must not go on.
    """
    _own_mounts()
    _mount("none", "/", _RECURSIVE | _SLAVE)  # nothing that is mounted here is seen outside
    _mount("reconciler", root, 0, kind="tmpfs", data="mode=0555")
    _mount("none", root, _UNBINDABLE)  # it isn't to be in itself
    for entry in os.scandir("/"):
        if entry.name != _PLACE:
            _repeat(entry, root / entry.name)
    (root / _PLACE).mkdir()
    _mount(buckets, root / _PLACE, _BIND | _RECURSIVE)
    _change_root(root)
    os.chdir(work)


def wanted(spec: RunSpec, packages: Path) -> bool:
    """Whether a trainer seems to use /gcs: its arguments, its variables, or its fetched packages say so."""
    words = [word for replica in spec.replicas for word in replica.env.values()]
    for replica in spec.replicas:
        words += replica.task.args if isinstance(replica.task, PythonTask) else ()
    mentioned = any(_MENTIONED.search(word) for word in words)
    return mentioned or any(
        archives.mentions(path, b"/gcs/") for path in packages.rglob("*") if path.is_file()
    )


def told(problem: str) -> str:
    """What the log says where a trainer wants /gcs and can't have it."""
    return (
        f"The buckets are not to be seen below /gcs on this machine ({problem}): the trainer finds them in"
        " the folder that the environment variable RECONCILER_GCS_DIR names, or through gs://."
    )


def _own_mounts() -> None:
    """Leave the mount namespace; in a user namespace, with the same user, where nothing else will do."""
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", _NEW_MOUNTS)
    except PermissionError:
        _call("unshare", _NEW_USERS | _NEW_MOUNTS)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")


def _repeat(entry: os.DirEntry[str], place: Path) -> None:
    """Show what is in the machine's root folder in another."""
    if entry.is_symlink():
        place.symlink_to(Path(entry).readlink())
        return
    if entry.is_dir():
        place.mkdir()
    else:
        place.touch()
    _mount(entry.path, place, _BIND | _RECURSIVE)


def _change_root(root: Path) -> None:
    """Exchange the root folder; by pivot_root, as within a chroot there could be no more user namespaces."""
    os.chdir(root)
    _call("pivot_root", b".", b".")  # the old one lies over the new one now
    _call("umount2", b".", _DETACH)
    _mount("none", "/", _PRIVATE)
    os.chdir("/")


def _mount(source: str | Path, place: str | Path, flags: int, *, kind: str = "none", data: str = "") -> None:
    _call(
        "mount",
        os.fsencode(source),
        os.fsencode(place),
        kind.encode(),
        ctypes.c_ulong(flags),
        data.encode() or None,
    )


def _call(name: str, *arguments: object) -> None:
    function = getattr(_libc, name, None)
    if function is None:
        raise OSError(f"this system has no {name}")
    if function(*arguments) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)
