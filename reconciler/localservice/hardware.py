"""What this machine has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import suppress
from functools import cache
from itertools import takewhile
from pathlib import Path

import psutil

from reconciler.localservice.machines import Machine

_IS_LINUX = sys.platform == "linux"
_GROUPS = Path("/sys/fs/cgroup")
_ANSWER = 10.0
_DRIVER = Path("/proc/driver/nvidia")


def this_machine() -> Machine:
    """Its CPUs, memory and GPUs, as far as the service may use them."""
    cpus, memory = _of_control_groups(_GROUPS, _own_groups())
    return Machine(
        cpus=min([len(os.sched_getaffinity(0)) if _IS_LINUX else os.cpu_count() or 1, *cpus]),
        memory=min([psutil.virtual_memory().total, *memory]),
        gpus=len(gpu_ids()),
    )


def _own_groups() -> str:
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""


def _of_control_groups(mounted: Path, own: str) -> tuple[list[int], list[int]]:
    """The limits of CPUs (at least 1 each) and of memory that a container, or systemd, sets for this process.

    Args:
        mounted: Where the control groups are.
        own: What /proc/self/cgroup says: `0::/a/b` (version 2), `4:cpu,cpuacct:/a/b` (version 1).
    """
    cpus, memory = [], []
    for line in own.splitlines():
        _number, controllers, path = line.split(":", 2)
        # Within a container the path may be the host's: then only the mount's own folder is there.
        for group in (Path(path.lstrip("/")), *Path(path.lstrip("/")).parents):
            folder = mounted / controllers / group
            match [*_words(folder / "cpu.max"), *_words(folder / "cpu.cfs_quota_us")]:
                case [quota] if quota.isdigit():  # version 1; -1 for no limit
                    cpus.append(_cpus(quota, *_words(folder / "cpu.cfs_period_us")))
                case [quota, period] if quota.isdigit():  # version 2; `max` for no limit
                    cpus.append(_cpus(quota, period))
            words = [*_words(folder / "memory.max"), *_words(folder / "memory.limit_in_bytes")]
            memory += [int(word) for word in words if word.isdigit()]
    return cpus, memory


def _cpus(quota: str, period: str = "100000") -> int:
    return max(1, int(quota) // int(period))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


@cache
def gpu_ids() -> tuple[str, ...]:
    """The GPUs that the service may use, as CUDA_VISIBLE_DEVICES names them: those of Nvidia, by the driver.

    Looked for once; where CUDA_VISIBLE_DEVICES is set, it alone tells, and "" or -1 hides all.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return _visible(given)
    program = shutil.which("nvidia-smi")
    if program is not None:
        with suppress(OSError, subprocess.SubprocessError):
            listed = subprocess.run(
                [program, "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER
            )
            if listed.returncode == 0:
                return tuple(re.findall(r"^GPU (\d+):", listed.stdout, re.MULTILINE))
    # Where the driver is, but not the program that asks it.
    return tuple(map(str, range(len([*_DRIVER.glob("gpus/*")]))))


def _visible(given: str) -> tuple[str, ...]:
    """The ids in CUDA_VISIBLE_DEVICES; CUDA itself sees none from the first -1 on."""
    ids = [name.strip() for name in given.split(",")]
    return tuple(filter(None, takewhile(lambda name: name != "-1", ids)))
