"""Mounts of the job's buckets at `/gcs/BUCKET/…`, which only the run's programs see.

A trainer gets its own mount namespace. Its root folder repeats the machine's root folder and adds `gcs`, with
the buckets that its job may reach and without the claims; the service's folder of buckets shows the same. The
machine's root folder doesn't change, and the mounts end with the trainer's last process. Processes, network
and users are the machine's. An ordinary user needs a user namespace, which some systems forbid: there a
trainer finds its buckets only below RECONCILER_GCS_DIR, as links. In a user namespace, files of other users
appear to belong to `nobody`, and programs can't run as another user (sudo).

Files that root writes directly into the root folder live as long as the trainer, and so do those in the
folder of `BUNDLE` on a system that lacks this file.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from reconciler.training_service.jobs import archives
from reconciler.training_service.jobs.images import requirements_of
from reconciler.training_service.state.run_spec import PythonTask, RunSpec

BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
"""The file of trusted authorities that programs read which come with a curl of their own."""

_PLACE = "gcs"
_TENSORFLOW_1 = re.compile(r"tensorflow(?:-cpu|-gpu)?\s*(?:[=~]=\s*1\.|<\s*2)")
_MENTIONED = re.compile(r"(?<![\w./-])/gcs/")  # not as a part of a longer path

# linux/sched.h and linux/mount.h
_NEW_MOUNTS = 0x0002_0000
_NEW_USERS = 0x1000_0000
_BIND = 1 << 12
_RECURSIVE = 1 << 14
_UNBINDABLE = 1 << 17
_PRIVATE = 1 << 18
_SLAVE = 1 << 19
_READ_ONLY = 1 << 0
_REMOUNT = 1 << 5
_DETACH = 2

_libc = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None


@dataclass(frozen=True, slots=True)
class View:
    """Buckets and the file of trusted authorities, as a trainer sees them.

    Attributes:
        buckets: The folder of the service's buckets.
        visible: The visible ones, as in `RunSpec.buckets`.
        bundle: The file to see as the system's file of trusted authorities, `BUNDLE`; None for the system's.
    """

    buckets: Path
    visible: tuple[str, ...]
    bundle: Path | None = None

    def places(self) -> tuple[list[str], list[str]]:
        """Return the buckets to show, and the folders in them to hide.

        A prefix that ends within a name hides the whole folder above it, because later files could have such
        names. A bucket hidden as a whole isn't shown.
        """
        hidden = [part.rpartition("/")[0] for part in self.visible if "/" in part]
        names = [part for part in self.visible if "/" not in part and part not in hidden]
        shown = [name for name in names if (self.buckets / name).is_dir()]
        return shown, [part for part in hidden if part.partition("/")[0] in shown]


def link(view: View, folder: Path) -> list[str]:
    """Fill a folder with links to the visible buckets, for a trainer without mounts.

    Returns:
        The buckets that are seen as they are now, because a link can't hide a part of them.
    """
    names, hidden = view.places()
    _link(view.buckets, folder, names, {Path(part) for part in hidden}, Path())
    return sorted({part.partition("/")[0] for part in hidden})


def _link(source: Path, folder: Path, names: Iterable[str], hidden: set[Path], parent: Path) -> None:
    """Link a folder's entries with these names, whose paths in the buckets begin with `parent`.

    Hidden places are left out; a folder above one of them becomes a folder of links.
    """
    folder.mkdir()
    for name in names:
        inner, path = parent / name, source / name
        if any(inner in part.parents for part in hidden) and path.is_dir() and not path.is_symlink():
            _link(path, folder / name, [entry.name for entry in path.iterdir()], hidden, inner)
        elif inner not in hidden:
            (folder / name).symlink_to(path)
    folder.chmod(0o555)


def mount_problem(view: View, root: Path, work: Path) -> str:
    """Return the reason why this system can't mount a view; "" if a child process could.

    Only for a process with a single thread, like `show`.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            show(view, root, work)
        except BaseException as error:
            os.write(writing, f"{error}".encode()[:1000] or b"?")
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        problem = pipe.read().decode("utf-8", "replace")
    os.waitpid(child, 0)
    return problem


def show(view: View, root: Path, work: Path) -> None:
    """Give this process a root folder in which /gcs holds the visible buckets.

    Args:
        root: An empty folder to mount on; it stays empty.
        work: The working folder afterwards.

    Raises:
        OSError: The system doesn't allow the mounts; the process must not go on.
    """
    _own_mounts()
    _mount("none", "/", _RECURSIVE | _SLAVE)  # mounts in this namespace stay invisible outside
    _mount("reconciler", root, 0, kind="tmpfs", data="mode=0555")
    _mount("none", root, _UNBINDABLE)  # or the recursive mounts below would contain it
    for entry in os.scandir("/"):
        if entry.name != _PLACE:
            _mount_entry(entry, root / entry.name)
    (root / _PLACE).mkdir()
    _mount_buckets(view, root / _PLACE)
    # The service's own folder of them, too: a trainer would find all buckets there.
    _mount(root / _PLACE, root / view.buckets.resolve().relative_to("/"), _BIND | _RECURSIVE)
    if view.bundle is not None:
        _cover(Path(BUNDLE).resolve(), view.bundle, root)
    _change_root(root)
    os.chdir(work)


def mentions_gcs(spec: RunSpec, packages: Path) -> bool:
    """Return True if /gcs/ occurs in trainers' arguments, variables or fetched packages."""
    words = [word for replica in spec.replicas for word in replica.env.values()]
    for replica in spec.replicas:
        words += replica.task.args if isinstance(replica.task, PythonTask) else ()
    return any(_MENTIONED.search(word) for word in words) or _packages_mention(b"/gcs/", packages)


def mentions_tensorflow_1(spec: RunSpec, packages: Path) -> bool:
    """Return True if a trainer uses TensorFlow 1, which reads no variable for the trusted authorities."""
    tasks = [replica.task for replica in spec.replicas if isinstance(replica.task, PythonTask)]
    held = any(_TENSORFLOW_1.match(line) for task in tasks for line in requirements_of(task))
    return held and _packages_mention(b"tensorflow", packages)


def warning(problem: str) -> str:
    """Return the log's warning for a trainer that mentions /gcs but can't have it."""
    return (
        f"The buckets can't be mounted below /gcs on this machine ({problem}): the trainer finds them in"
        " the folder that the environment variable RECONCILER_GCS_DIR names, or through gs://."
    )


def tensorflow_1_warning(problem: str) -> str:
    """Return the log's warning for a trainer that uses TensorFlow 1 without mounts."""
    return (
        f"TensorFlow 1 can't reach gs:// on this machine ({problem}), because it takes trusted authorities"
        f" from {BUNDLE} alone: use an image of TensorFlow 2, or the folder that the environment variable"
        " RECONCILER_GCS_DIR names."
    )


def _packages_mention(text: bytes, packages: Path) -> bool:
    return any(archives.mentions(path, text) for path in packages.rglob("*") if path.is_file())


def _own_mounts() -> None:
    # Root needs no user namespace. An ordinary user does, and keeps user and group in it.
    user, group = os.geteuid(), os.getegid()
    try:
        _call("unshare", _NEW_MOUNTS)
    except PermissionError:
        _call("unshare", _NEW_USERS | _NEW_MOUNTS)
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{user} {user} 1")
        _write("/proc/self/gid_map", f"{group} {group} 1")


def _mount_entry(entry: os.DirEntry[str], target: Path) -> None:
    """Mount an entry of the machine's root folder in another root folder."""
    if entry.is_symlink():
        target.symlink_to(Path(entry).readlink())
        return
    if entry.is_dir():
        target.mkdir()
    else:
        target.touch()
    _mount(entry.path, target, _BIND | _RECURSIVE)


def _mount_buckets(view: View, target: Path) -> None:
    names, hidden = view.places()
    _mount("reconciler", target, 0, kind="tmpfs", data="mode=0755")
    for name in names:
        (target / name).mkdir()
        _mount(view.buckets / name, target / name, _BIND | _RECURSIVE)
    for folder in hidden:
        (view.buckets / folder).mkdir(parents=True, exist_ok=True)
        _mount("reconciler", target / folder, _READ_ONLY, kind="tmpfs", data="mode=0555")
    # Root could write beside the buckets otherwise, and the files would be gone with the trainer.
    _mount("none", target, _REMOUNT | _BIND | _READ_ONLY)


def _cover(path: Path, source: Path, root: Path) -> None:
    """Show a file at a path below another root folder, also if this system lacks the path."""
    shown = root / path.relative_to("/")
    if not path.is_file():
        # The machine's folder must not change: its entries are repeated on a file system of this process.
        held = next(folder for folder in path.parents if folder.is_dir())
        copy = root / held.relative_to("/")
        if copy != root:
            _mount("reconciler", copy, 0, kind="tmpfs", data="mode=0755")
            for entry in os.scandir(held):
                _mount_entry(entry, copy / entry.name)
        shown.parent.mkdir(parents=True, exist_ok=True)
        shown.touch()
    _mount(source, shown, _BIND)


def _change_root(root: Path) -> None:
    # pivot_root, because a process in a chroot can't create user namespaces.
    os.chdir(root)
    _call("pivot_root", b".", b".")  # mounts the old root over the new one
    _call("umount2", b".", _DETACH)
    _mount("none", "/", _PRIVATE)
    os.chdir("/")


def _mount(source: str | Path, target: str | Path, flags: int, *, kind: str = "none", data: str = "") -> None:
    _call(
        "mount",
        os.fsencode(source),
        os.fsencode(target),
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
