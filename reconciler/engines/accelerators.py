"""How many accelerators a machine comes with, whether or not a job says so.

https://cloud.google.com/compute/docs/accelerator-optimized-machines and, for TPUs by chip,
https://cloud.google.com/kubernetes-engine/docs/concepts/plan-tpus, as of 2026.
"""

from __future__ import annotations

import re

# The names of the series A and of TPUs end with the number: a2-highgpu-8g, ct5lp-hightpu-4t.
_COUNTED = re.compile(r"(?:a[0-9]|ct[0-9]|tpu)[a-z0-9]*-[a-z]+-([0-9]{1,3})[gt]")

# Those of the series G end with the number of CPUs. A part of a GPU counts as one.
_BY_CPUS = {
    "g2-standard-4": 1,
    "g2-standard-8": 1,
    "g2-standard-12": 1,
    "g2-standard-16": 1,
    "g2-standard-24": 2,
    "g2-standard-32": 1,
    "g2-standard-48": 4,
    "g2-standard-96": 8,
    "g4-standard-6": 1,
    "g4-standard-12": 1,
    "g4-standard-24": 1,
    "g4-standard-48": 1,
    "g4-standard-96": 2,
    "g4-standard-192": 4,
    "g4-standard-384": 8,
}


def accelerators_of(machine: str) -> int:
    """The accelerators that a machine type always has; 0 for none, or for a name that isn't known."""
    counted = _COUNTED.fullmatch(machine)
    return int(counted[1]) if counted else _BY_CPUS.get(machine, 0)
