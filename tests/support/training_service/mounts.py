"""A check of this machine's ability to mount buckets."""

from __future__ import annotations

from pathlib import Path

from reconciler.training_service.runner import mounts


def works(folder: Path) -> bool:
    """Return whether this system allows this user to mount."""
    buckets, root = folder / "probe-buckets", folder / "probe-root"
    buckets.mkdir()
    root.mkdir()
    return mounts.mount_problem(mounts.View(buckets, ()), root, folder) == ""
