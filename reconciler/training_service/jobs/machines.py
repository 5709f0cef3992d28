"""CPUs, memory and GPUs of the cloud's machine types and of this machine.

Sources: Compute Engine's pages on its machine families, and for AI Platform Training's own names its page
"Specifying machine types or scale tiers".
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path

from reconciler.training_service.state.records import Code, details_of
from reconciler.training_service.state.run_folder import FAILED, Ending
from reconciler.training_service.state.run_spec import PythonTask, Role, RunSpec

_GIB = 2**30


@dataclass(frozen=True, slots=True)
class Machine:
    """Size of a machine; memory in bytes."""

    cpus: int
    memory: int
    gpus: int = 0


# AI Platform's own names: the machine type, and the number of its GPUs.
_OWN_NAMES = {
    "standard": ("n1-standard-4", 0),
    "large_model": ("n1-highmem-8", 0),
    "complex_model_s": ("n1-highcpu-8", 0),
    "complex_model_m": ("n1-highcpu-16", 0),
    "complex_model_l": ("n1-highcpu-32", 0),
    "standard_gpu": ("n1-standard-8", 1),
    "complex_model_m_gpu": ("n1-standard-16", 4),
    "complex_model_l_gpu": ("n1-standard-32", 8),
    "standard_p100": ("n1-standard-8", 1),
    "complex_model_m_p100": ("n1-standard-16", 4),
    "standard_v100": ("n1-standard-8", 1),
    "large_model_v100": ("n1-highmem-8", 1),
    "complex_model_m_v100": ("n1-standard-16", 4),
    "complex_model_l_v100": ("n1-standard-32", 8),
}

# AI Platform's predefined scale tiers: number of machines, machine type and accelerator of each role.
SCALE_TIERS: dict[str, dict[Role, tuple[int, str, str]]] = {
    "BASIC": {Role.PRIMARY: (1, "n1-standard-4", "")},
    "BASIC_GPU": {Role.PRIMARY: (1, "n1-standard-8", "NVIDIA_TESLA_K80")},
    "BASIC_TPU": {Role.PRIMARY: (1, "n1-standard-4", "TPU_V2")},
    "STANDARD_1": {
        Role.PRIMARY: (1, "n1-highcpu-8", ""),
        Role.WORKER: (4, "n1-highcpu-8", ""),
        Role.PARAMETER_SERVER: (3, "n1-standard-4", ""),
    },
    "PREMIUM_1": {
        Role.PRIMARY: (1, "n1-highcpu-16", ""),
        Role.WORKER: (19, "n1-highcpu-16", ""),
        Role.PARAMETER_SERVER: (11, "n1-highmem-8", ""),
    },
}

# GiB per CPU, for standard, highmem and highcpu; other series have the values in `_OTHER_SERIES`.
_OTHER_SERIES = (4.0, 8.0, 2.0)
_SERIES = {
    "n1": (3.75, 6.5, 0.9),
    "n2": (4.0, 8.0, 1.0),
    "n2d": (4.0, 8.0, 1.0),
    "e2": (4.0, 8.0, 1.0),
    "c4": (3.75, 7.75, 2.0),
    "c4d": (3.875, 7.875, 1.875),
    "g4": (3.75, 3.75, 3.75),
}
_KINDS = ("standard", "highmem", "highcpu")

# Memory-optimized machines: GiB per CPU.
_LARGE = {
    "n1-megamem": 14.933,
    "n1-ultramem": 24.025,
    "m1-megamem": 14.933,
    "m1-ultramem": 24.025,
    "m2-megamem": 14.153,
    "m2-hypermem": 21.230,
    "m2-ultramem": 28.307,
    "m3-megamem": 15.25,
    "m3-ultramem": 30.5,
}

# Shared-core machines: a part of a CPU counts as a whole one, as the guest system reports it.
_SHARED = {
    "e2-micro": (2, 1.0),
    "e2-small": (2, 2.0),
    "e2-medium": (2, 4.0),
    "f1-micro": (1, 0.6),
    "g1-small": (1, 1.7),
}

# Accelerator-optimized machines: CPUs and GiB per GPU.
_BY_GPU = {
    "a2-highgpu": (12, 85),
    "a2-megagpu": (6, 85),
    "a2-ultragpu": (12, 170),
    "a3-highgpu": (26, 234),
    "a3-megagpu": (26, 234),
    "a3-edgegpu": (26, 234),
    "a3-ultragpu": (28, 369),
    "a4-highgpu": (28, 496),
    "a4x-highgpu": (35, 221),
}
_GPUS_BY_CPUS = {
    "g2": {4: 1, 8: 1, 12: 1, 16: 1, 24: 2, 32: 1, 48: 4, 96: 8},
    "g4": {48: 1, 96: 2, 192: 4, 384: 8},
}

_TYPE = re.compile(
    r"(?P<family>(?P<series>[a-z]\d+[a-z]*)-(?P<kind>[a-z]+))-(?P<size>\d+)(?P<gpus>g?)(-lssd)?"
)
_CUSTOM = re.compile(r"(?:[a-z]\d+[a-z]*-)?custom-(\d+)-(\d+)(?:-ext)?")


def machine_of(machine_type: str, accelerators: int = 0) -> Machine | None:
    """Return the size of a machine of this type, None for an unknown type.

    Args:
        accelerators: The number of GPUs that the job attaches; the type's own number counts if it is larger.
    """
    name, gpus = _OWN_NAMES.get(machine_type, (machine_type, 0))
    machine = _machine(name)
    return machine and Machine(machine.cpus, machine.memory, max(machine.gpus, gpus, accelerators))


def has_tpu(machine_type: str, accelerator: str) -> bool:
    """Return True if the machine or its accelerator is a TPU."""
    return accelerator.startswith("TPU") or re.match(r"(cloud[-_]tpu|ct\d|tpu)", machine_type) is not None


def _machine(name: str) -> Machine | None:
    if name in _SHARED:
        cpus, memory = _SHARED[name]
        return Machine(cpus, int(memory * _GIB))
    if custom := _CUSTOM.fullmatch(name):
        return Machine(int(custom[1]), int(custom[2]) * 2**20)
    match = _TYPE.fullmatch(name)
    if match is None or int(match["size"]) == 0:
        return None
    size = int(match["size"])
    if match["gpus"]:
        cpus_of_gpu, memory_of_gpu = _BY_GPU.get(match["family"], (0, 0))
        return Machine(size * cpus_of_gpu, size * memory_of_gpu * _GIB, size) if cpus_of_gpu else None
    if match["kind"] in _KINDS:
        memory_of_cpu = _SERIES.get(match["series"], _OTHER_SERIES)[_KINDS.index(match["kind"])]
    elif match["family"] in _LARGE:
        memory_of_cpu = _LARGE[match["family"]]
    else:
        return None
    gpus = _GPUS_BY_CPUS.get(match["series"], {}).get(size, 0)
    return Machine(size, int(size * memory_of_cpu * _GIB), gpus)


_IS_LINUX = sys.platform == "linux"
_GROUPS = Path("/sys/fs/cgroup")
_ANSWER = 10.0
_DRIVER = Path("/proc/driver/nvidia")
_CHECK_MEMORY = 0.5  # seconds between two checks
_MOST_RESERVED = 2**30


def this_machine() -> Machine:
    """Return the CPUs, memory and GPUs of this machine that the service may use."""
    cpus, _memory = _of_control_groups(_GROUPS, _own_groups())
    return Machine(
        cpus=min([len(os.sched_getaffinity(0)) if _IS_LINUX else os.cpu_count() or 1, *cpus]),
        memory=whole_memory(),
        gpus=len(gpu_ids()),
    )


def whole_memory() -> int:
    """Return the bytes of memory that the service may use."""
    import psutil  # slow, and a plan of a stopped service comes by here

    _cpus, memory = _of_control_groups(_GROUPS, _own_groups())
    return min([psutil.virtual_memory().total, *memory])


def spare_memory() -> int:
    """Return the bytes of memory that this process's limits and other processes leave at this moment."""
    import psutil  # slow, as above

    left = [psutil.virtual_memory().available]
    for folder in _folders(_GROUPS, _own_groups()):
        limits = [*_words(folder / "memory.max"), *_words(folder / "memory.limit_in_bytes")]
        used = [*_words(folder / "memory.current"), *_words(folder / "memory.usage_in_bytes")]
        if limits and used and limits[0].isdigit():
            words = _words(folder / "memory.stat")
            counts = dict(zip(words[::2], words[1::2], strict=False))
            # Files that were read count as used, though the system takes their memory back at need.
            files = counts.get("total_inactive_file") or counts.get("inactive_file", "0")
            left.append(int(limits[0]) - int(used[0]) + int(files))
    return min(left)


class MemoryLimits:
    """Limits of the memory of a run's packages: those of their machines, and what this machine can spare.

    Containers aren't measured: their engine limits them.

    Attributes:
        measure: Returns the memory in bytes by replica, with "" for all else; rough while it is below the
            given limit.
    """

    def __init__(self, spec: RunSpec, measure: Callable[[int], Mapping[str, int]]) -> None:
        self._measure = measure
        self._packages = [replica for replica in spec.replicas if isinstance(replica.task, PythonTask)]
        self._limit = sum(replica.memory for replica in self._packages)
        self._has_containers = len(self._packages) < len(spec.replicas)
        # The rest of the system needs some memory to go on, and to end the run.
        self._reserve = min(whole_memory() // 20, _MOST_RESERVED)
        self._check_at = 0.0
        self._exceeded: Ending | None = None

    def exceeded(self) -> Ending | None:
        """Return the run's ending once it has exceeded a limit, else None; checks twice a second."""
        if self._packages and self._exceeded is None and time.monotonic() >= self._check_at:
            excess = self._excess()
            if excess:
                message = f"The job was ended: {excess}."
                details = details_of("OUT_OF_MEMORY")
                self._exceeded = Ending(FAILED, Code.RESOURCE_EXHAUSTED, message, details=details)
            self._check_at = time.monotonic() + _CHECK_MEMORY
        return self._exceeded

    def _excess(self) -> str:
        spare = spare_memory() - self._reserve
        smallest = min(replica.memory for replica in self._packages)
        used = self._measure(0 if spare < 0 else smallest)
        for replica in self._packages:
            taken = used.get(replica.task_name, 0)
            if taken > replica.memory:
                return (
                    f"the replica {replica.name} took {taken >> 20} MiB of memory,"
                    f" and its machine has {replica.memory >> 20} MiB here"
                )
        total = sum(used.values())
        took = f"it took {total >> 20} MiB of memory"
        if total > self._limit and not self._has_containers:
            return f"{took}, and its machines have {self._limit >> 20} MiB here"
        if spare < 0 and total > self._reserve:
            return f"{took}, and this computer can spare {total + spare >> 20} MiB"
        return ""


def _own_groups() -> str:
    try:
        return Path("/proc/self/cgroup").read_text()
    except OSError:
        return ""


def _of_control_groups(mounted: Path, groups: str) -> tuple[list[int], list[int]]:
    """Return the limits of CPUs (at least 1) and memory that a container or systemd sets for this process.

    Args:
        mounted: The folder of the control groups.
        groups: The content of /proc/self/cgroup: `0::/a/b` (version 2), `4:cpu,cpuacct:/a/b` (version 1).
    """
    cpus, memory = [], []
    for folder in _folders(mounted, groups):
        match [*_words(folder / "cpu.max"), *_words(folder / "cpu.cfs_quota_us")]:
            case [quota] if quota.isdigit():  # version 1; -1 for no limit
                cpus.append(_cpus(quota, *_words(folder / "cpu.cfs_period_us")))
            case [quota, period] if quota.isdigit():  # version 2; `max` for no limit
                cpus.append(_cpus(quota, period))
        words = [*_words(folder / "memory.max"), *_words(folder / "memory.limit_in_bytes")]
        memory += [int(word) for word in words if word.isdigit()]
    return cpus, memory


def _folders(mounted: Path, groups: str) -> Iterator[Path]:
    """Yield the folders of this process's control groups and of those above them."""
    for line in groups.splitlines():
        _number, controllers, path = line.split(":", 2)
        # In a container the path may be the host's; then only the mount's own folder exists.
        for group in (Path(path.lstrip("/")), *Path(path.lstrip("/")).parents):
            yield mounted / controllers / group


def _cpus(quota: str, period: str = "100000") -> int:
    return max(1, int(quota) // int(period))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text().split()
    except OSError:
        return []


@cache
def gpu_ids() -> tuple[str, ...]:
    """Return the ids of the Nvidia GPUs that the service may use, as in CUDA_VISIBLE_DEVICES.

    If that variable is set, it alone decides; "" or -1 hides all GPUs. Otherwise the driver reports them.
    """
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    if given is not None:
        return _visible(given)
    program = shutil.which("nvidia-smi")
    if program is not None:
        import subprocess  # slow, and a plan of a stopped service comes by here

        with suppress(OSError, subprocess.SubprocessError):
            listed = subprocess.run(
                [program, "-L"], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_ANSWER
            )
            if listed.returncode == 0:
                return tuple(re.findall(r"^GPU (\d+):", listed.stdout, re.MULTILINE))
    # Some containers have the driver, but not nvidia-smi.
    return tuple(map(str, range(len([*_DRIVER.glob("gpus/*")]))))


def _visible(given: str) -> tuple[str, ...]:
    ids = [name.strip() for name in given.split(",")]
    # Like CUDA, which ignores all ids from the first -1 on.
    return tuple(filter(None, takewhile(lambda name: name != "-1", ids)))
