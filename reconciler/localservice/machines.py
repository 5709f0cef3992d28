"""What the cloud's machine types hold."""

from __future__ import annotations

import re

# AI Platform's own names for machines: the page "Specifying machine types or scale tiers".
_LEGACY_CPUS = {
    "standard": 4,
    "large_model": 8,
    "complex_model_s": 8,
    "complex_model_m": 16,
    "complex_model_l": 32,
    "standard_gpu": 8,
    "complex_model_m_gpu": 8,
    "complex_model_l_gpu": 16,
    "standard_p100": 8,
    "complex_model_m_p100": 16,
    "standard_v100": 8,
    "large_model_v100": 16,
    "complex_model_m_v100": 32,
    "complex_model_l_v100": 64,
}
_CPUS_OF_AN_A2_GPU = 12


def cpus_of(machine_type: str) -> int | None:
    """How many CPUs a machine type has, None where its name doesn't tell."""
    if machine_type in _LEGACY_CPUS:
        return _LEGACY_CPUS[machine_type]
    if gpus := re.fullmatch(r"a2-(?:high|ultra)gpu-(\d+)g", machine_type):
        return _CPUS_OF_AN_A2_GPU * int(gpus[1])
    found = re.fullmatch(r"[a-z]\w+-[a-z]+-(\d+)", machine_type)
    return int(found[1]) if found else None


def has_tpu(machine_type: str, accelerator: str) -> bool:
    """Whether the machine, or what is put into it, is a TPU."""
    return accelerator.startswith("TPU") or re.match(r"(cloud[-_]tpu|ct\d|tpu)", machine_type) is not None
